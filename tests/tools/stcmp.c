/* stcmp FILE_A NAME_A FILE_B NAME_B: exit status 0 when two tensors are equal byte for byte. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/ckpt.h"

static const struct eep_tensor *find(const char *path, const char *name)
{
    struct eep_safetensors *file;

    if (eep_safetensors_open(path, &file) != EEP_OK) {
        fprintf(stderr, "stcmp: %s\n", eep_error_text());
        return NULL;
    }
    const struct eep_tensor *tensor = eep_safetensors_find(file, name);
    if (tensor == NULL) {
        fprintf(stderr, "stcmp: %s has no %s\n", path, name);
    }
    return tensor; /* the file stays open until the end of the process */
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: stcmp FILE_A NAME_A FILE_B NAME_B\n");
        return 2;
    }
    const struct eep_tensor *a = find(argv[1], argv[2]), *b = find(argv[3], argv[4]);
    if (a == NULL || b == NULL) {
        return 2;
    }
    const bool equal = a->dtype == b->dtype && a->dims == b->dims &&
                       memcmp(a->shape, b->shape, a->dims * sizeof(a->shape[0])) == 0 &&
                       memcmp(a->data, b->data, a->bytes) == 0;
    return equal ? 0 : 1;
}
