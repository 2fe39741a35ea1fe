/* A safetensors file: as a file, and its header alone, so that its length may be wrong. */
#include "ckpt/ckpt.h"
#include "ckpt/ckpt_int.h"
#include "fuzz.h"

static void check_accepted(struct eep_safetensors *file, const void *data, uint64_t data_bytes)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < eep_safetensors_count(file); i++) {
        const struct eep_tensor *tensor = eep_safetensors_at(file, i);
        uint64_t count = 1;

        for (uint32_t dim = 0; dim < tensor->dims; dim++) {
            count *= tensor->shape[dim];
        }
        FUZZ_CHECK(tensor->count == count);
        FUZZ_CHECK(tensor->bytes == count * eep_dtype_bytes(tensor->dtype));
        FUZZ_CHECK(eep_safetensors_find(file, tensor->name) == tensor);
        FUZZ_CHECK((const char *)tensor->data >= (const char *)data);
        FUZZ_CHECK((const char *)tensor->data + tensor->bytes <= (const char *)data + data_bytes);
        sum += tensor->bytes;
    }
    FUZZ_CHECK(sum == data_bytes);
}

/* The data is never read, so any address will do. */
static void try_header(const uint8_t *header, size_t header_bytes, uint64_t data_bytes)
{
    static char nothing[1 << 20];
    struct eep_safetensors *file;

    if (data_bytes <= sizeof(nothing) &&
        eep_safetensors_parse("x", (const char *)header, header_bytes, nothing, data_bytes,
                              &file) == EEP_OK) {
        check_accepted(file, nothing, data_bytes);
        eep_safetensors_close(file);
    }
}

static void try_file(const uint8_t *data, size_t bytes)
{
    char path[2 * FUZZ_PATH_MAX];
    struct eep_safetensors *file;
    volatile unsigned char sum = 0;

    fuzz_write("x.safetensors", data, bytes);
    snprintf(path, sizeof(path), "%s/x.safetensors", fuzz_dir_get());
    if (eep_safetensors_open(path, &file) != EEP_OK) {
        FUZZ_CHECK(strstr(eep_error_text(), "x.safetensors") != NULL);
        return;
    }
    for (size_t i = 0; i < eep_safetensors_count(file); i++) {
        const struct eep_tensor *tensor = eep_safetensors_at(file, i);

        for (uint64_t at = 0; at < tensor->bytes; at++) { /* all of it is mapped */
            sum = (unsigned char)(sum + ((const unsigned char *)tensor->data)[at]);
        }
    }
    eep_safetensors_close(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    uint64_t claimed;

    if (bytes < sizeof(claimed)) {
        try_file(data, bytes);
        return 0;
    }
    memcpy(&claimed, data, sizeof(claimed));
    size_t left = bytes - sizeof(claimed);

    if (claimed <= left) {
        try_header(data + 8, (size_t)claimed, left - claimed);
        try_file(data, bytes);
    } else {
        try_header(data + 8, left, claimed % 4096);
    }
    return 0;
}
