/*
 * Reading one safetensors file.
 *
 *     | header length N, u64 little-endian | N bytes of JSON, padded by spaces | data ... |
 *
 * The JSON maps each tensor's name to its dtype, shape and [begin, end) in the data. The ranges
 * must cover the data exactly: sorted by place, each begins where the last one ends. The header is
 * read, not mapped, so that a file cut short while it is parsed is an error and not a signal.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/mem.h"
#include "ckpt/ckpt_int.h"

struct eep_safetensors {
    char *path;
    void *mapping; /* NULL if the data belongs to somebody else */
    size_t mapping_bytes;
    const unsigned char *data;
    uint64_t data_bytes;
    struct eep_tensor *tensors; /* in the order of the header */
    size_t count;
    char *names; /* all names, NUL after each */
    struct eep_name_table table;
};

static bool dtype_by_name(const char *name, enum eep_dtype *dtype_out)
{
    for (int dtype = 0; dtype < EEP_DTYPE_COUNT; dtype++) {
        if (strcmp(name, eep_dtype_name((enum eep_dtype)dtype)) == 0) {
            *dtype_out = (enum eep_dtype)dtype;
            return true;
        }
    }
    return false;
}

static enum eep_status read_dtype(const json_t *entry, struct eep_tensor *tensor)
{
    const json_t *value = json_object_get(entry, "dtype");

    if (!json_is_string(value)) {
        return EEP_FAIL(EEP_ERR_FORMAT,
                        "%s: tensor " EEP_NAME_FMT " has no dtype, or one that is not a string",
                        tensor->file, tensor->name);
    }
    if (!dtype_by_name(json_string_value(value), &tensor->dtype)) {
        return EEP_FAIL(EEP_ERR_UNSUPPORTED,
                        "%s: tensor " EEP_NAME_FMT " has dtype '%.40s', which is not supported",
                        tensor->file, tensor->name, json_string_value(value));
    }
    return EEP_OK;
}

static enum eep_status read_shape(const json_t *entry, struct eep_tensor *tensor)
{
    const json_t *value = json_object_get(entry, "shape");

    if (!json_is_array(value)) {
        return EEP_FAIL(EEP_ERR_FORMAT,
                        "%s: tensor " EEP_NAME_FMT " has no shape, or one that is not an array",
                        tensor->file, tensor->name);
    }
    if (json_array_size(value) > EEP_TENSOR_MAX_DIMS) {
        return EEP_FAIL(EEP_ERR_FORMAT,
                        "%s: tensor " EEP_NAME_FMT " has %zu dimensions; at most %d are supported",
                        tensor->file, tensor->name, json_array_size(value), EEP_TENSOR_MAX_DIMS);
    }
    tensor->dims = (uint32_t)json_array_size(value);
    tensor->count = 1;
    bool fits = true;
    bool empty = false;

    for (uint32_t dim = 0; dim < tensor->dims; dim++) {
        const json_t *size = json_array_get(value, dim);

        if (!json_is_integer(size) || json_integer_value(size) < 0) {
            return EEP_FAIL(EEP_ERR_FORMAT,
                            "%s: dimension %u in the shape of tensor " EEP_NAME_FMT
                            " is not an integer of 0 or more",
                            tensor->file, dim, tensor->name);
        }
        tensor->shape[dim] = (uint64_t)json_integer_value(size);
        empty = empty || tensor->shape[dim] == 0;
        /* a zero does not excuse the others: 2^40 x 2^40 x 0 is no shape of a real tensor */
        fits = fits && !__builtin_mul_overflow(tensor->count, EEP_MAX(tensor->shape[dim], 1),
                                               &tensor->count);
    }
    fits = fits &&
           !__builtin_mul_overflow(tensor->count, eep_dtype_bytes(tensor->dtype), &tensor->bytes);
    if (!fits) {
        return EEP_FAIL(EEP_ERR_FORMAT,
                        "%s: the shape of tensor " EEP_NAME_FMT " is larger than 2^64 bytes",
                        tensor->file, tensor->name);
    }
    if (empty) {
        tensor->count = 0;
        tensor->bytes = 0;
    }
    return EEP_OK;
}

static enum eep_status read_range(const json_t *entry, const struct eep_safetensors *file,
                                  struct eep_tensor *tensor)
{
    const json_t *value = json_object_get(entry, "data_offsets");
    const json_t *first = json_array_get(value, 0);
    const json_t *second = json_array_get(value, 1);

    if (!json_is_array(value) || json_array_size(value) != 2 || !json_is_integer(first) ||
        !json_is_integer(second) || json_integer_value(first) < 0 ||
        json_integer_value(second) < 0) {
        return EEP_FAIL(EEP_ERR_FORMAT,
                        "%s: tensor " EEP_NAME_FMT
                        " has no data_offsets of the form [begin, end], both 0 or more",
                        tensor->file, tensor->name);
    }
    unsigned long long begin = (unsigned long long)json_integer_value(first);
    unsigned long long end = (unsigned long long)json_integer_value(second);

    if (begin > end) {
        return EEP_FAIL(EEP_ERR_FORMAT,
                        "%s: tensor " EEP_NAME_FMT
                        " has data_offsets [%llu, %llu], begin after end",
                        tensor->file, tensor->name, begin, end);
    }
    if (end - begin != tensor->bytes) {
        return EEP_FAIL(EEP_ERR_FORMAT,
                        "%s: tensor " EEP_NAME_FMT
                        " is %llu bytes by its dtype and shape, but its data_offsets hold %llu",
                        tensor->file, tensor->name, (unsigned long long)tensor->bytes, end - begin);
    }
    if (end > file->data_bytes) {
        return EEP_FAIL(EEP_ERR_FORMAT,
                        "%s: truncated: tensor " EEP_NAME_FMT
                        " ends at byte %llu of the data, and the file holds %llu",
                        tensor->file, tensor->name, end, (unsigned long long)file->data_bytes);
    }
    tensor->data = file->data + begin;
    return EEP_OK;
}

static enum eep_status read_tensor(const json_t *entry, const struct eep_safetensors *file,
                                   struct eep_tensor *tensor)
{
    if (!json_is_object(entry)) {
        return EEP_FAIL(EEP_ERR_FORMAT,
                        "%s: the header's entry for tensor " EEP_NAME_FMT " is not an object",
                        tensor->file, tensor->name);
    }
    EEP_TRY(read_dtype(entry, tensor));
    EEP_TRY(read_shape(entry, tensor));
    return read_range(entry, file, tensor);
}

static enum eep_status check_metadata(const char *path, json_t *metadata)
{
    const char *key;
    json_t *value;

    if (!json_is_object(metadata)) {
        return EEP_FAIL(EEP_ERR_FORMAT, "%s: __metadata__ is not an object", path);
    }
    json_object_foreach(metadata, key, value)
    {
        if (!json_is_string(value)) {
            return EEP_FAIL(EEP_ERR_FORMAT,
                            "%s: the value of " EEP_NAME_FMT " in __metadata__ is not a string",
                            path, key);
        }
    }
    return EEP_OK;
}

static int by_place(const void *left, const void *right)
{
    const struct eep_tensor *a = *(const struct eep_tensor *const *)left;
    const struct eep_tensor *b = *(const struct eep_tensor *const *)right;

    if (a->data != b->data) {
        return (uintptr_t)a->data < (uintptr_t)b->data ? -1 : 1;
    }
    return a->bytes < b->bytes ? -1 : a->bytes > b->bytes; /* empty ones before what follows */
}

/* `sorted` by place must cover the data without overlap, hole or rest. */
static enum eep_status check_cover(const struct eep_safetensors *file,
                                   const struct eep_tensor **sorted)
{
    uint64_t covered = 0;

    for (size_t i = 0; i < file->count; i++) {
        uint64_t begin = (uint64_t)((const unsigned char *)sorted[i]->data - file->data);

        if (begin < covered) {
            return EEP_FAIL(EEP_ERR_FORMAT,
                            "%s: tensors " EEP_NAME_FMT " and " EEP_NAME_FMT
                            " overlap by %llu bytes",
                            file->path, sorted[i - 1]->name, sorted[i]->name,
                            (unsigned long long)EEP_MIN(covered - begin, sorted[i]->bytes));
        }
        if (begin > covered) {
            return EEP_FAIL(EEP_ERR_FORMAT,
                            "%s: a hole: %llu bytes before tensor " EEP_NAME_FMT
                            " belong to no tensor",
                            file->path, (unsigned long long)(begin - covered), sorted[i]->name);
        }
        covered = begin + sorted[i]->bytes;
    }
    if (covered != file->data_bytes) {
        return EEP_FAIL(
            EEP_ERR_FORMAT,
            "%s: %llu extra bytes after the last tensor: the header needs %llu bytes of "
            "data, the file holds %llu",
            file->path, (unsigned long long)(file->data_bytes - covered),
            (unsigned long long)covered, (unsigned long long)file->data_bytes);
    }
    return EEP_OK;
}

static enum eep_status check_ranges(const struct eep_safetensors *file)
{
    const struct eep_tensor **sorted;

    EEP_TRY(eep_mem_alloc(file->count, sizeof(*sorted), "tensors by place", &sorted));
    for (size_t i = 0; i < file->count; i++) {
        sorted[i] = &file->tensors[i];
    }
    qsort(sorted, file->count, sizeof(*sorted), by_place);
    enum eep_status status = check_cover(file, sorted);
    eep_mem_free(sorted);
    return status;
}

static bool is_metadata(const char *key)
{
    return strcmp(key, "__metadata__") == 0;
}

/* Room for the tensors, their names and the table. */
static enum eep_status make_room(struct eep_safetensors *file, json_t *header)
{
    const char *key;
    json_t *entry;
    size_t name_bytes = 0;
    size_t count = 0;

    json_object_foreach(header, key, entry)
    {
        if (!is_metadata(key)) {
            name_bytes += strlen(key) + 1;
            count++;
        }
    }
    EEP_TRY(eep_mem_alloc(count, sizeof(*file->tensors), "list of tensors", &file->tensors));
    EEP_TRY(eep_mem_alloc(name_bytes, 1, "names of tensors", &file->names));
    return eep_name_table_init(&file->table, count);
}

static enum eep_status read_header(struct eep_safetensors *file, json_t *header)
{
    const char *key;
    json_t *entry;

    EEP_TRY(make_room(file, header));
    char *names = file->names;

    json_object_foreach(header, key, entry)
    {
        if (is_metadata(key)) {
            EEP_TRY(check_metadata(file->path, entry));
            continue;
        }
        struct eep_tensor *tensor = &file->tensors[file->count];
        size_t bytes = strlen(key) + 1;

        memcpy(names, key, bytes);
        tensor->name = names;
        tensor->file = file->path;
        names += bytes;
        EEP_TRY(read_tensor(entry, file, tensor));
        file->count++;
        bool is_new = eep_name_table_add(&file->table, tensor);
        EEP_ASSERT(is_new); /* the parser refuses a doubled key */
    }
    return check_ranges(file);
}

enum eep_status eep_safetensors_parse(const char *path, const char *header, size_t header_bytes,
                                      const void *data, uint64_t data_bytes,
                                      struct eep_safetensors **file_out)
{
    enum eep_status status;
    struct eep_safetensors *file;
    json_t *json;

    if (header_bytes == 0 || header[0] != '{') {
        return EEP_FAIL(EEP_ERR_FORMAT,
                        "%s: the header does not begin with '{': it is not a "
                        "safetensors file",
                        path);
    }
    EEP_TRY(eep_mem_alloc(1, sizeof(*file), "safetensors file", &file));
    file->data = data;
    file->data_bytes = data_bytes;
    EEP_TRY_GOTO(eep_ckpt_copy_text(path, &file->path), close_file);
    EEP_TRY_GOTO(eep_json_parse(header, header_bytes, path, &json), close_file);
    status = read_header(file, json);
    json_decref(json);
    if (status != EEP_OK) {
        goto close_file;
    }
    *file_out = file;
    return EEP_OK;
close_file:
    eep_safetensors_close(file);
    return status;
}

static enum eep_status read_header_bytes(int fd, const char *path, uint64_t file_bytes,
                                         uint64_t *header_bytes_out)
{
    unsigned char raw[EEP_ST_LENGTH_BYTES];
    uint64_t length = 0;

    if (file_bytes < EEP_ST_LENGTH_BYTES) {
        return EEP_FAIL(EEP_ERR_FORMAT,
                        "%s: is %llu bytes, too short for the %d bytes of the header's length",
                        path, (unsigned long long)file_bytes, EEP_ST_LENGTH_BYTES);
    }
    EEP_TRY(eep_ckpt_read_at(fd, path, 0, sizeof(raw), raw));
    for (int i = EEP_ST_LENGTH_BYTES - 1; i >= 0; i--) {
        length = length << 8 | raw[i];
    }
    if (length > EEP_ST_HEADER_MAX) {
        return EEP_FAIL(EEP_ERR_FORMAT,
                        "%s: a header of %llu bytes is above the format's limit of %llu", path,
                        (unsigned long long)length, (unsigned long long)EEP_ST_HEADER_MAX);
    }
    if (length > file_bytes - EEP_ST_LENGTH_BYTES) {
        return EEP_FAIL(EEP_ERR_FORMAT,
                        "%s: truncated: the header is %llu bytes long, and only %llu follow its "
                        "length",
                        path, (unsigned long long)length,
                        (unsigned long long)(file_bytes - EEP_ST_LENGTH_BYTES));
    }
    *header_bytes_out = length;
    return EEP_OK;
}

/* Read and check the header of the mapped file. */
static enum eep_status parse_mapped(int fd, const char *path, const void *mapping, uint64_t bytes,
                                    uint64_t header_bytes, struct eep_safetensors **file_out)
{
    uint64_t data_at = EEP_ST_LENGTH_BYTES + header_bytes;
    char *header;

    EEP_TRY(eep_mem_alloc((size_t)header_bytes, 1, path, &header));
    enum eep_status status =
        eep_ckpt_read_at(fd, path, EEP_ST_LENGTH_BYTES, (size_t)header_bytes, header);
    if (status == EEP_OK) {
        status = eep_safetensors_parse(path, header, (size_t)header_bytes,
                                       (const unsigned char *)mapping + data_at, bytes - data_at,
                                       file_out);
    }
    eep_mem_free(header);
    return status;
}

static enum eep_status open_fd(int fd, const char *path, uint64_t bytes,
                               struct eep_safetensors **file_out)
{
    uint64_t header_bytes;
    struct eep_safetensors *file;

    EEP_TRY(read_header_bytes(fd, path, bytes, &header_bytes));
    void *mapping = mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, fd, 0);

    if (mapping == MAP_FAILED) {
        return EEP_FAIL(EEP_ERR_IO, "%s: cannot be mapped: %s", path, strerror(errno));
    }
    enum eep_status status = parse_mapped(fd, path, mapping, bytes, header_bytes, &file);

    if (status != EEP_OK) {
        munmap(mapping, (size_t)bytes);
        return status;
    }
    file->mapping = mapping;
    file->mapping_bytes = (size_t)bytes;
    eep_ckpt_guard_add(mapping, file->mapping_bytes, file->path);
    *file_out = file;
    return EEP_OK;
}

enum eep_status eep_safetensors_open(const char *path, struct eep_safetensors **file_out)
{
    uint64_t bytes;
    int fd;

    EEP_TRY(eep_ckpt_open_file(path, &fd, &bytes));
    enum eep_status status = open_fd(fd, path, bytes, file_out);
    close(fd); /* the mapping stays */
    return status;
}

void eep_safetensors_close(struct eep_safetensors *file)
{
    if (file == NULL) {
        return;
    }
    if (file->mapping != NULL) {
        eep_ckpt_guard_remove(file->mapping);
        munmap(file->mapping, file->mapping_bytes);
    }
    eep_name_table_free(&file->table);
    eep_mem_free(file->names);
    eep_mem_free(file->tensors);
    eep_mem_free(file->path);
    eep_mem_free(file);
}

void eep_safetensors_drop_pages(const struct eep_safetensors *file)
{
    if (file->mapping != NULL) {
        (void)madvise(file->mapping, file->mapping_bytes, MADV_DONTNEED); /* a wish */
    }
}

size_t eep_safetensors_count(const struct eep_safetensors *file)
{
    return file->count;
}

const struct eep_tensor *eep_safetensors_at(const struct eep_safetensors *file, size_t index)
{
    EEP_ASSERT(index < file->count);
    return &file->tensors[index];
}

const struct eep_tensor *eep_safetensors_find(const struct eep_safetensors *file, const char *name)
{
    return eep_name_table_find(&file->table, name);
}
