/*
 * A model directory: config.json, and one safetensors file or the files of an index.
 *
 * The index alone decides. It names the file of each tensor: files that it does not name are not
 * opened, tensors that it does not name are not seen, and each one that it names must be in the
 * file that it says. An entry is a plain name in the directory; that may well be a symbolic link
 * out of it, as in a download cache.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/assert.h"
#include "base/mem.h"
#include "ckpt/ckpt_int.h"

#define CONFIG_BYTES_MAX ((size_t)16 << 20)
#define INDEX_BYTES_MAX ((size_t)256 << 20)

#define CONFIG_NAME "config.json"
#define GENERATION_NAME "generation_config.json"
#define SINGLE_NAME "model.safetensors"
#define INDEX_NAME "model.safetensors.index.json"

struct eep_ckpt {
    char *dir;
    char *source; /* path of the index or of the one data file */
    json_t *config;
    json_t *generation; /* NULL if there is none */
    struct eep_safetensors **files;
    size_t file_count;
    uint64_t bytes;
    const struct eep_tensor **tensors;
    size_t count;
    struct eep_name_table table;
};

/* DIR/NAME; free it with eep_mem_free(). */
static enum eep_status path_in(const struct eep_ckpt *ckpt, const char *name, char **path_out)
{
    size_t bytes = strlen(ckpt->dir) + 1 + strlen(name) + 1;
    char *path;

    EEP_TRY(eep_mem_alloc(bytes, 1, "a path", &path));
    snprintf(path, bytes, "%s/%s", ckpt->dir, name);
    *path_out = path;
    return EEP_OK;
}

/* Does DIR/NAME exist, under whatever type? */
static enum eep_status has_file(const struct eep_ckpt *ckpt, const char *name, bool *has_out)
{
    struct stat info;
    char *path;

    EEP_TRY(path_in(ckpt, name, &path));
    *has_out = lstat(path, &info) == 0;
    eep_mem_free(path);
    return EEP_OK;
}

static enum eep_status load_json(const struct eep_ckpt *ckpt, const char *name, size_t max_bytes,
                                 json_t **json_out)
{
    char *path;

    EEP_TRY(path_in(ckpt, name, &path));
    enum eep_status status = eep_json_load(path, max_bytes, json_out);
    eep_mem_free(path);
    return status;
}

static enum eep_status load_optional_json(const struct eep_ckpt *ckpt, const char *name,
                                          json_t **json_out)
{
    bool has;

    EEP_TRY(has_file(ckpt, name, &has));
    return has ? load_json(ckpt, name, CONFIG_BYTES_MAX, json_out) : EEP_OK;
}

static enum eep_status check_dir(const char *dir)
{
    struct stat info;

    if (stat(dir, &info) != 0) {
        return EEP_FAIL(EEP_ERR_IO, "%s: cannot be opened: %s", dir, strerror(errno));
    }
    if (!S_ISDIR(info.st_mode)) {
        return EEP_FAIL(EEP_ERR_IO, "%s: is not a directory; a model is a directory with a %s", dir,
                        CONFIG_NAME);
    }
    return EEP_OK;
}

/* Open file number `file_count` and count it. */
static enum eep_status open_file(struct eep_ckpt *ckpt, const char *name)
{
    struct stat info;
    char *path;

    EEP_TRY(path_in(ckpt, name, &path));
    enum eep_status status = eep_safetensors_open(path, &ckpt->files[ckpt->file_count]);

    if (status == EEP_OK) {
        ckpt->bytes += stat(path, &info) == 0 ? (uint64_t)info.st_size : 0;
        ckpt->file_count++;
    }
    eep_mem_free(path);
    return status;
}

/* Room for `count` tensors. */
static enum eep_status make_room(struct eep_ckpt *ckpt, size_t count)
{
    EEP_TRY(eep_mem_alloc(count, sizeof(*ckpt->tensors), "list of tensors", &ckpt->tensors));
    return eep_name_table_init(&ckpt->table, count);
}

static void add_tensor(struct eep_ckpt *ckpt, const struct eep_tensor *tensor)
{
    bool is_new = eep_name_table_add(&ckpt->table, tensor);

    EEP_ASSERT(is_new); /* names are keys of a JSON object whose parser refuses doubled ones */
    ckpt->tensors[ckpt->count++] = tensor;
}

static enum eep_status open_single(struct eep_ckpt *ckpt)
{
    EEP_TRY(eep_mem_alloc(1, sizeof(*ckpt->files), "list of files", &ckpt->files));
    EEP_TRY(open_file(ckpt, SINGLE_NAME));
    size_t count = eep_safetensors_count(ckpt->files[0]);

    EEP_TRY(make_room(ckpt, count));
    for (size_t i = 0; i < count; i++) {
        add_tensor(ckpt, eep_safetensors_at(ckpt->files[0], i));
    }
    return EEP_OK;
}

static enum eep_status check_entry(const struct eep_ckpt *ckpt, const char *tensor,
                                   const json_t *value)
{
    if (!json_is_string(value)) {
        return EEP_FAIL(EEP_ERR_FORMAT,
                        "%s/%s: weight_map does not map tensor " EEP_NAME_FMT " to a file name",
                        ckpt->dir, INDEX_NAME, tensor);
    }
    const char *name = json_string_value(value);

    if (name[0] == '\0' || strcmp(name, ".") == 0 || strcmp(name, "..") == 0 ||
        strchr(name, '/') != NULL) {
        return EEP_FAIL(EEP_ERR_FORMAT,
                        "%s/%s: weight_map maps tensor " EEP_NAME_FMT " to " EEP_NAME_FMT
                        ", which is not the plain name of a file in the directory",
                        ckpt->dir, INDEX_NAME, tensor, name);
    }
    return EEP_OK;
}

/* The distinct files of `map` as an object from name to number. */
static enum eep_status list_files(const struct eep_ckpt *ckpt, json_t *map, json_t *numbers)
{
    const char *tensor;
    json_t *value;

    json_object_foreach(map, tensor, value)
    {
        EEP_TRY(check_entry(ckpt, tensor, value));
        const char *name = json_string_value(value);

        if (json_object_get(numbers, name) == NULL &&
            json_object_set_new(numbers, name,
                                json_integer((json_int_t)json_object_size(numbers))) != 0) {
            return EEP_FAIL(EEP_ERR_NOMEM, "%s/%s: no memory for its list of files", ckpt->dir,
                            INDEX_NAME);
        }
    }
    return EEP_OK;
}

static enum eep_status open_files(struct eep_ckpt *ckpt, json_t *numbers)
{
    const char *name;
    json_t *number;

    EEP_TRY(eep_mem_alloc(json_object_size(numbers), sizeof(*ckpt->files), "list of files",
                          &ckpt->files));
    json_object_foreach(numbers, name, number)
    {
        EEP_ASSERT((size_t)json_integer_value(number) == ckpt->file_count);
        enum eep_status status = open_file(ckpt, name);

        if (status == EEP_ERR_IO) {
            return eep_fail_context(status, "a file that %s/%s lists", ckpt->dir, INDEX_NAME);
        }
        EEP_TRY(status);
    }
    return EEP_OK;
}

static enum eep_status add_indexed(struct eep_ckpt *ckpt, json_t *map, const json_t *numbers)
{
    const char *tensor_name;
    json_t *value;

    EEP_TRY(make_room(ckpt, json_object_size(map)));
    json_object_foreach(map, tensor_name, value)
    {
        const char *name = json_string_value(value);
        json_int_t number = json_integer_value(json_object_get(numbers, name));
        const struct eep_tensor *tensor = eep_safetensors_find(ckpt->files[number], tensor_name);

        if (tensor == NULL) {
            return EEP_FAIL(EEP_ERR_FORMAT,
                            "%s/%s: tensor " EEP_NAME_FMT " is not in it, though %s says so",
                            ckpt->dir, name, tensor_name, INDEX_NAME);
        }
        add_tensor(ckpt, tensor);
    }
    return EEP_OK;
}

static enum eep_status open_map(struct eep_ckpt *ckpt, json_t *map)
{
    enum eep_status status;
    json_t *numbers;

    if (!json_is_object(map) || json_object_size(map) == 0) {
        return EEP_FAIL(EEP_ERR_FORMAT,
                        "%s/%s: has no weight_map, an object that maps each tensor to its file",
                        ckpt->dir, INDEX_NAME);
    }
    numbers = json_object();
    if (numbers == NULL) {
        return EEP_FAIL(EEP_ERR_NOMEM, "%s/%s: no memory for its list of files", ckpt->dir,
                        INDEX_NAME);
    }
    EEP_TRY_GOTO(list_files(ckpt, map, numbers), free_numbers);
    EEP_TRY_GOTO(open_files(ckpt, numbers), free_numbers);
    status = add_indexed(ckpt, map, numbers);
free_numbers:
    json_decref(numbers);
    return status;
}

static enum eep_status open_indexed(struct eep_ckpt *ckpt)
{
    json_t *index;

    EEP_TRY(load_json(ckpt, INDEX_NAME, INDEX_BYTES_MAX, &index));
    enum eep_status status = open_map(ckpt, json_object_get(index, "weight_map"));
    json_decref(index);
    return status;
}

static enum eep_status open_tensors(struct eep_ckpt *ckpt)
{
    bool has_index, has_single;

    EEP_TRY(has_file(ckpt, INDEX_NAME, &has_index));
    EEP_TRY(has_file(ckpt, SINGLE_NAME, &has_single));
    if (has_index || has_single) {
        EEP_TRY(path_in(ckpt, has_index ? INDEX_NAME : SINGLE_NAME, &ckpt->source));
        return has_index ? open_indexed(ckpt) : open_single(ckpt);
    }
    return EEP_FAIL(EEP_ERR_IO,
                    "%s: has neither %s nor %s; only safetensors checkpoints can be read",
                    ckpt->dir, SINGLE_NAME, INDEX_NAME);
}

enum eep_status eep_ckpt_open(const char *dir, struct eep_ckpt **ckpt_out)
{
    enum eep_status status;
    struct eep_ckpt *ckpt;

    EEP_TRY(check_dir(dir));
    EEP_TRY(eep_mem_alloc(1, sizeof(*ckpt), "checkpoint", &ckpt));
    EEP_TRY_GOTO(eep_ckpt_copy_text(dir, &ckpt->dir), close_ckpt);
    EEP_TRY_GOTO(load_json(ckpt, CONFIG_NAME, CONFIG_BYTES_MAX, &ckpt->config), close_ckpt);
    EEP_TRY_GOTO(load_optional_json(ckpt, GENERATION_NAME, &ckpt->generation), close_ckpt);
    EEP_TRY_GOTO(open_tensors(ckpt), close_ckpt);
    *ckpt_out = ckpt;
    return EEP_OK;
close_ckpt:
    eep_ckpt_close(ckpt);
    return status;
}

void eep_ckpt_close(struct eep_ckpt *ckpt)
{
    if (ckpt == NULL) {
        return;
    }
    eep_name_table_free(&ckpt->table);
    eep_mem_free(ckpt->tensors);
    for (size_t i = 0; i < ckpt->file_count; i++) {
        eep_safetensors_close(ckpt->files[i]);
    }
    eep_mem_free(ckpt->files);
    json_decref(ckpt->generation);
    json_decref(ckpt->config);
    eep_mem_free(ckpt->source);
    eep_mem_free(ckpt->dir);
    eep_mem_free(ckpt);
}

const char *eep_ckpt_dir(const struct eep_ckpt *ckpt)
{
    return ckpt->dir;
}

const char *eep_ckpt_source(const struct eep_ckpt *ckpt)
{
    return ckpt->source;
}

const json_t *eep_ckpt_config(const struct eep_ckpt *ckpt)
{
    return ckpt->config;
}

const json_t *eep_ckpt_generation_config(const struct eep_ckpt *ckpt)
{
    return ckpt->generation;
}

const struct eep_tensor *eep_ckpt_find(const struct eep_ckpt *ckpt, const char *name)
{
    return eep_name_table_find(&ckpt->table, name);
}

size_t eep_ckpt_count(const struct eep_ckpt *ckpt)
{
    return ckpt->count;
}

const struct eep_tensor *eep_ckpt_at(const struct eep_ckpt *ckpt, size_t index)
{
    EEP_ASSERT(index < ckpt->count);
    return ckpt->tensors[index];
}

uint64_t eep_ckpt_bytes(const struct eep_ckpt *ckpt)
{
    return ckpt->bytes;
}

void eep_ckpt_drop_pages(const struct eep_ckpt *ckpt)
{
    for (size_t i = 0; i < ckpt->file_count; i++) {
        eep_safetensors_drop_pages(ckpt->files[i]);
    }
}
