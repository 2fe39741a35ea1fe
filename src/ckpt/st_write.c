/* Writing a safetensors file: under a temporary name, renamed when it is complete. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "ckpt/ckpt_int.h"

#define HEADER_ALIGN 8

/* Bytes of a tensor's data. */
static enum eep_status data_bytes(const struct eep_tensor_out *tensor, uint64_t *bytes_out)
{
    uint64_t bytes = eep_dtype_bytes(tensor->dtype);

    if (tensor->dims > EEP_TENSOR_MAX_DIMS) {
        return EEP_FAIL(EEP_ERR_INVALID, "tensor " EEP_NAME_FMT " has %u dimensions; at most %d",
                        tensor->name, tensor->dims, EEP_TENSOR_MAX_DIMS);
    }
    for (uint32_t dim = 0; dim < tensor->dims; dim++) {
        if (__builtin_mul_overflow(bytes, tensor->shape[dim], &bytes) || bytes > INT64_MAX) {
            return EEP_FAIL(EEP_ERR_INVALID, "tensor " EEP_NAME_FMT " is larger than 2^63 bytes",
                            tensor->name);
        }
    }
    *bytes_out = bytes;
    return EEP_OK;
}

/* The header's entry for a tensor at [begin, end); NULL if there is no memory. */
static json_t *make_entry(const struct eep_tensor_out *tensor, uint64_t begin, uint64_t end)
{
    json_t *shape = json_array();

    for (uint32_t dim = 0; shape != NULL && dim < tensor->dims; dim++) {
        if (json_array_append_new(shape, json_integer((json_int_t)tensor->shape[dim])) != 0) {
            json_decref(shape);
            shape = NULL;
        }
    }
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", eep_dtype_name(tensor->dtype), "shape", shape,
                     "data_offsets", (json_int_t)begin, (json_int_t)end);
}

static enum eep_status add_entries(json_t *header, const struct eep_tensor_out *tensors,
                                   size_t count)
{
    uint64_t begin = 0;

    for (size_t i = 0; i < count; i++) {
        uint64_t bytes;

        EEP_TRY(data_bytes(&tensors[i], &bytes));
        if (bytes > (uint64_t)INT64_MAX - begin) {
            return EEP_FAIL(EEP_ERR_INVALID, "the tensors are larger than 2^63 bytes together");
        }
        if (json_object_get(header, tensors[i].name) != NULL ||
            strcmp(tensors[i].name, "__metadata__") == 0) {
            return EEP_FAIL(EEP_ERR_INVALID,
                            "tensor name " EEP_NAME_FMT " occurs twice or is reserved",
                            tensors[i].name);
        }
        json_t *entry = make_entry(&tensors[i], begin, begin + bytes);

        if (entry == NULL) {
            return EEP_FAIL(EEP_ERR_NOMEM, "header of a safetensors file: no memory");
        }
        if (json_object_set_new(header, tensors[i].name, entry) != 0) {
            return EEP_FAIL(EEP_ERR_INVALID,
                            "tensor name " EEP_NAME_FMT " is not UTF-8, or there is no memory",
                            tensors[i].name);
        }
        begin += bytes;
    }
    return EEP_OK;
}

/* The header as text, owned by the caller: free(). */
static enum eep_status make_header(const struct eep_tensor_out *tensors, size_t count,
                                   char **text_out)
{
    json_t *header = json_object();

    if (header == NULL) {
        return EEP_FAIL(EEP_ERR_NOMEM, "header of a safetensors file: no memory");
    }
    enum eep_status status = add_entries(header, tensors, count);

    if (status == EEP_OK) {
        *text_out = json_dumps(header, JSON_COMPACT);
        if (*text_out == NULL) {
            status = EEP_FAIL(EEP_ERR_NOMEM, "header of a safetensors file: no memory");
        }
    }
    json_decref(header);
    if (status == EEP_OK && strlen(*text_out) > EEP_ST_HEADER_MAX - HEADER_ALIGN) {
        free(*text_out);
        status =
            EEP_FAIL(EEP_ERR_INVALID, "a header of %zu tensors is above the limit of %llu bytes",
                     count, (unsigned long long)EEP_ST_HEADER_MAX);
    }
    return status;
}

static bool write_header(FILE *out, const char *text)
{
    unsigned char raw[EEP_ST_LENGTH_BYTES];
    size_t bytes = strlen(text);
    size_t padded = eep_round_up(bytes, HEADER_ALIGN);

    for (size_t i = 0; i < sizeof(raw); i++) {
        raw[i] = (unsigned char)((uint64_t)padded >> (8 * i));
    }
    return fwrite(raw, sizeof(raw), 1, out) == 1 && fwrite(text, 1, bytes, out) == bytes &&
           fprintf(out, "%*s", (int)(padded - bytes), "") == (int)(padded - bytes);
}

static bool write_all(FILE *out, const char *header, const struct eep_tensor_out *tensors,
                      size_t count)
{
    if (!write_header(out, header)) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t bytes;

        if (data_bytes(&tensors[i], &bytes) != EEP_OK ||
            (bytes > 0 && fwrite(tensors[i].data, 1, (size_t)bytes, out) != (size_t)bytes)) {
            return false;
        }
    }
    return true;
}

static enum eep_status write_file(const char *path, const char *temporary, const char *header,
                                  const struct eep_tensor_out *tensors, size_t count)
{
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    FILE *out = fd < 0 ? NULL : fdopen(fd, "wb");

    if (out == NULL) {
        int error = errno;

        if (fd >= 0) {
            close(fd);
        }
        return EEP_FAIL(EEP_ERR_IO, "%s: cannot be created: %s", temporary, strerror(error));
    }
    bool written = write_all(out, header, tensors, count);
    int error = errno;

    if (fclose(out) != 0 && written) {
        written = false;
        error = errno;
    }
    if (written && rename(temporary, path) != 0) {
        written = false;
        error = errno;
    }
    if (!written) {
        unlink(temporary);
        return EEP_FAIL(EEP_ERR_IO, "%s: cannot be written: %s", path, strerror(error));
    }
    return EEP_OK;
}

enum eep_status eep_safetensors_write(const char *path, const struct eep_tensor_out *tensors,
                                      size_t count)
{
    char *header;
    char *temporary;
    size_t bytes = strlen(path) + sizeof(".4294967295.tmp");

    EEP_TRY(make_header(tensors, count, &header));
    enum eep_status status = eep_mem_alloc(bytes, 1, path, &temporary);

    if (status == EEP_OK) {
        snprintf(temporary, bytes, "%s.%u.tmp", path, (unsigned)getpid());
        status = write_file(path, temporary, header, tensors, count);
        eep_mem_free(temporary);
    }
    free(header);
    return status;
}
