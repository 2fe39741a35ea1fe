#include "tools/generate_index.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INDEX_END (UINT64_C(1) << 40)

bool eep_index_has(const struct eep_index_set *set, uint64_t index)
{
    return index / 64 < set->word_count && (set->words[index / 64] >> index % 64 & 1) != 0;
}

static enum eep_status grow(struct eep_index_set *set, size_t words)
{
    const size_t count = words + words / 2;
    uint64_t *grown = realloc(set->words, count * sizeof(*grown));

    if (grown == NULL) {
        return EEP_FAIL(EEP_ERR_NOMEM, "no memory for the indexes of %zu answers", 64 * count);
    }
    memset(grown + set->word_count, 0, (count - set->word_count) * sizeof(*grown));
    set->words = grown;
    set->word_count = count;
    return EEP_OK;
}

enum eep_status eep_index_add(struct eep_index_set *set, uint64_t index)
{
    if (index >= INDEX_END) {
        return EEP_FAIL(EEP_ERR_FORMAT, "%" PRIu64 " is no index of a prompt", index);
    }
    if (index / 64 >= set->word_count) {
        EEP_TRY(grow(set, index / 64 + 1));
    }
    set->count += !eep_index_has(set, index);
    set->words[index / 64] |= UINT64_C(1) << index % 64;
    return EEP_OK;
}

enum eep_status eep_index_read(struct eep_index_set *set)
{
    const char *path = getenv(EEP_DELIVERED_ENV);
    FILE *file = path != NULL ? fopen(path, "r") : NULL;
    enum eep_status status = EEP_OK;
    uint64_t index;

    if (file == NULL) {
        return path == NULL || errno == ENOENT
                   ? EEP_OK
                   : EEP_FAIL(EEP_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
    }
    while (status == EEP_OK && fscanf(file, "%" SCNu64, &index) == 1) {
        status = eep_index_add(set, index);
    }
    fclose(file);
    return status;
}

void eep_index_free(struct eep_index_set *set)
{
    free(set->words);
    *set = (struct eep_index_set){0};
}
