/* tokenizer.json, and after a NUL a text. */
#include "fuzz.h"
#include "text/tokenizer.h"

static void try_text(const struct eep_tokenizer *tokenizer, const char *text, size_t bytes)
{
    uint32_t *ids;
    size_t count;
    char *decoded;

    if (eep_tokenizer_encode(tokenizer, text, bytes, &ids, &count) != EEP_OK) {
        return;
    }
    FUZZ_CHECK(ids != NULL);
    for (size_t i = 0; i < count; i++) {
        size_t token_bytes;

        FUZZ_CHECK(ids[i] < eep_tokenizer_size(tokenizer));
        FUZZ_CHECK(eep_tokenizer_token(tokenizer, ids[i], &token_bytes) != NULL);
    }
    FUZZ_CHECK(eep_tokenizer_decode(tokenizer, ids, count, false, &decoded) == EEP_OK);
    free(decoded);
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    size_t first = fuzz_first_part(data, bytes);
    struct eep_tokenizer *tokenizer;

    fuzz_write("tokenizer.json", data, first);
    if (eep_tokenizer_open(fuzz_dir_get(), &tokenizer) != EEP_OK) {
        FUZZ_CHECK(strstr(eep_error_text(), "tokenizer.json") != NULL);
        return 0;
    }
    try_text(tokenizer, (const char *)data + first, bytes - first);
    try_text(tokenizer, "It's 12  caf\xc3\xa9 <s>\xff\n", 20);
    eep_tokenizer_close(tokenizer);
    return 0;
}
