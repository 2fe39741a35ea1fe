/* What the files of this folder share, and what their fuzzers call. */
#ifndef EEP_CKPT_CKPT_INT_H
#define EEP_CKPT_CKPT_INT_H

#include <stdbool.h>

#include "ckpt/ckpt.h"

/* A name in a message: cut, because a file may hold names as long as it likes. */
#define EEP_NAME_FMT "'%.200s'"

#define EEP_ST_LENGTH_BYTES 8
#define EEP_ST_HEADER_MAX UINT64_C(100000000) /* the format's own limit */

/** A set of tensors by name; the tensors belong to somebody else and outlive it. */
struct eep_name_table {
    const struct eep_tensor **slots; /* NULL = free; linear probing */
    size_t mask;                     /* slots - 1; a power of two, at most half of them used */
};

/** Make an empty table that takes up to `count` tensors. */
EEP_MUST_CHECK enum eep_status eep_name_table_init(struct eep_name_table *table, size_t count);
void eep_name_table_free(struct eep_name_table *table);
/** Add a tensor; false if its name is there already. */
bool eep_name_table_add(struct eep_name_table *table, const struct eep_tensor *tensor);
const struct eep_tensor *eep_name_table_find(const struct eep_name_table *table, const char *name);

/** A copy of `text`; free it with eep_mem_free(). */
EEP_MUST_CHECK enum eep_status eep_ckpt_copy_text(const char *text, char **copy_out);

/** Open a regular file for reading (a FIFO does not block), and its size. */
EEP_MUST_CHECK enum eep_status eep_ckpt_open_file(const char *path, int *fd_out,
                                                  uint64_t *bytes_out);
/** Read all of `bytes` at `offset`. */
EEP_MUST_CHECK enum eep_status eep_ckpt_read_at(int fd, const char *path, uint64_t offset,
                                                size_t bytes, void *to);

/** Parse JSON text whose top value is an object; `path` is for messages. */
EEP_MUST_CHECK enum eep_status eep_json_parse(const char *text, size_t bytes, const char *path,
                                              json_t **json_out);

/**
 * Check a header's text and fill in the tensors of `file`; their data starts at `data`, which is
 * not read.
 */
EEP_MUST_CHECK enum eep_status eep_safetensors_parse(const char *path, const char *header,
                                                     size_t header_bytes, const void *data,
                                                     uint64_t data_bytes,
                                                     struct eep_safetensors **file_out);

/** Remember a mapping for the message of the SIGBUS guard; `path` outlives it. */
void eep_ckpt_guard_add(const void *mapping, size_t bytes, const char *path);
void eep_ckpt_guard_remove(const void *mapping);

#endif
