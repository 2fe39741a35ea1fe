/*
 * What tests of file readers share: paths of tests/data, temporary directories, the listed cases
 * of tests/data/cases, and running something with every allocation failing once.
 */
#ifndef EEP_TESTS_UNIT_DATA_H
#define EEP_TESTS_UNIT_DATA_H

#include <check.h>
#include <dirent.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/status.h"

#define DATA_PATH_MAX 1024

/* A path below tests/data; valid until 8 more have been made. */
static inline const char *data_path(const char *fmt, ...)
{
    static char paths[8][DATA_PATH_MAX];
    static unsigned next;
    const char *source = getenv("EEP_SRC"); /* make check and scripts/test set it */
    char *path = paths[next++ % 8];
    va_list args;
    int used = snprintf(path, DATA_PATH_MAX, "%s/tests/data/", source != NULL ? source : ".");

    va_start(args, fmt);
    vsnprintf(path + used, DATA_PATH_MAX - (size_t)used, fmt, args);
    va_end(args);
    return path;
}

/* A fresh directory; remove it with scratch_remove(). */
static inline void scratch_make(char dir[DATA_PATH_MAX])
{
    const char *parent = getenv("TMPDIR");

    snprintf(dir, DATA_PATH_MAX, "%s/eep-test-XXXXXX", parent != NULL ? parent : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(dir));
}

/* Remove a directory of plain files and links. */
static inline void scratch_remove(const char *dir)
{
    DIR *open_dir = opendir(dir);
    struct dirent *entry;

    ck_assert_ptr_nonnull(open_dir);
    while ((entry = readdir(open_dir)) != NULL) {
        char path[2 * DATA_PATH_MAX];

        snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
        if (entry->d_name[0] != '.') {
            ck_assert_int_eq(unlink(path), 0);
        }
    }
    closedir(open_dir);
    ck_assert_int_eq(rmdir(dir), 0);
}

static inline void scratch_write(const char *dir, const char *name, const void *data, size_t bytes)
{
    char path[2 * DATA_PATH_MAX];

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(data, 1, bytes, file), bytes);
    ck_assert_int_eq(fclose(file), 0);
}

static inline void scratch_write_json(const char *dir, const char *name, const json_t *json)
{
    char *text = json_dumps(json, 0);

    ck_assert_ptr_nonnull(text);
    scratch_write(dir, name, text, strlen(text));
    free(text);
}

/* In `dir`, a link to each file of the directory `source` whose name is not there yet. */
static inline void scratch_link_all(const char *dir, const char *source)
{
    char absolute[DATA_PATH_MAX * 4], target[DATA_PATH_MAX * 5], path[2 * DATA_PATH_MAX];
    DIR *open_dir = opendir(source);
    struct dirent *entry;

    ck_assert_ptr_nonnull(open_dir);
    ck_assert_ptr_nonnull(realpath(source, absolute));
    while ((entry = readdir(open_dir)) != NULL) {
        snprintf(target, sizeof(target), "%s/%s", absolute, entry->d_name);
        snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
        if (entry->d_name[0] != '.' && strcmp(entry->d_name, "golden") != 0 &&
            access(path, F_OK) != 0) {
            ck_assert_int_eq(symlink(target, path), 0);
        }
    }
    closedir(open_dir);
}

/* May be called outside of tests, so it asserts nothing. */
static inline json_t *load_json(const char *path)
{
    json_error_t error;
    json_t *json = json_load_file(path, JSON_ALLOW_NUL, &error);

    if (json == NULL) {
        fprintf(stderr, "%s: %s (EEP_SRC must be the source tree)\n", path, error.text);
        exit(EXIT_FAILURE);
    }
    return json;
}

/* Those of tests/data/cases/expected.json that begin with `prefix`: a new list. */
static inline json_t *listed_cases(const char *prefix)
{
    json_t *all = load_json(data_path("cases/expected.json"));
    json_t *some = json_array();
    json_t *entry;
    size_t i;

    json_array_foreach(all, i, entry)
    {
        const char *path = json_string_value(json_object_get(entry, "path"));

        if (strncmp(path, prefix, strlen(prefix)) == 0) {
            json_array_append(some, entry);
        }
    }
    json_decref(all);
    return some;
}

static inline const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    ck_assert_ptr_nonnull(text);
    return text;
}

static inline void assert_error_has(const char *fragment)
{
    ck_assert_msg(strstr(eep_error_text(), fragment) != NULL, "'%s' is not in: %s", fragment,
                  eep_error_text());
}

/* A listed case that is to be refused: one line that names the file and every listed string. */
static inline void assert_refused_as_listed(const json_t *entry, enum eep_status status)
{
    const json_t *names = json_object_get(entry, "names");

    ck_assert_int_ne(status, EEP_OK);
    ck_assert_ptr_null(strchr(eep_error_text(), '\n'));
    assert_error_has(text_of(entry, "path"));
    for (size_t i = 0; i < json_array_size(names); i++) {
        assert_error_has(json_string_value(json_array_get(names, i)));
    }
}

/*
 * Call `attempt` with its first, second, ... allocation failing until one call has all it asks
 * for. Each failure must be reported as such; returns how many there were.
 */
static inline unsigned fail_each_allocation(enum eep_status (*attempt)(void *context),
                                            void *context)
{
    for (unsigned nth = 1;; nth++) {
        ck_assert_uint_lt(nth, 100000);
        eep_mem_fail_nth(nth);
        enum eep_status status = attempt(context);
        eep_mem_fail_nth(0);

        if (status == EEP_OK) {
            return nth - 1;
        }
        ck_assert_int_eq(status, EEP_ERR_NOMEM);
        assert_error_has("memory");
    }
}

#endif
