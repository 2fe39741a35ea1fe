/*
 * Checkpoints: a Hugging Face model directory, checked and mapped read-only.
 *
 *     DIR/config.json                      parsed by jansson, duplicates refused
 *     DIR/model.safetensors                one file, or
 *     DIR/model.safetensors.index.json     the index, which alone decides the file of each tensor
 *     DIR/model-0000x-of-0000y.safetensors
 *
 * Nothing of a file is believed before it is checked: header length against file size, JSON,
 * names, dtypes, shapes against ranges, ranges without overlap or hole up to the end of the file,
 * index entries against the tensors that are in each shard, paths inside the directory.
 */
#ifndef EEP_CKPT_H
#define EEP_CKPT_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"

#define EEP_TENSOR_MAX_DIMS 8

/** A tensor of an open file. Owned by the file or checkpoint; valid until that is closed. */
struct eep_tensor {
    const char *name;
    const char *file; /* path, for messages */
    enum eep_dtype dtype;
    uint32_t dims;
    uint64_t shape[EEP_TENSOR_MAX_DIMS];
    uint64_t count; /* product of shape */
    uint64_t bytes;
    const void *data; /* in the mapping; any alignment */
};

struct eep_safetensors;

/**
 * Open, check and map one safetensors file; nothing of its data is read.
 *
 * @retval EEP_ERR_IO           cannot be opened or mapped
 * @retval EEP_ERR_FORMAT       the text names the file, and the tensor where there is one
 * @retval EEP_ERR_UNSUPPORTED  a dtype that eep does not know: the text names tensor and dtype
 */
EEP_MUST_CHECK enum eep_status eep_safetensors_open(const char *path,
                                                    struct eep_safetensors **file_out);
void eep_safetensors_close(struct eep_safetensors *file);
/** As eep_ckpt_drop_pages(), for one file. */
void eep_safetensors_drop_pages(const struct eep_safetensors *file);
size_t eep_safetensors_count(const struct eep_safetensors *file);
const struct eep_tensor *eep_safetensors_at(const struct eep_safetensors *file, size_t index);
/** NULL if there is none of that name. */
const struct eep_tensor *eep_safetensors_find(const struct eep_safetensors *file, const char *name);

/** A tensor to be written. */
struct eep_tensor_out {
    const char *name;
    enum eep_dtype dtype;
    uint32_t dims;
    uint64_t shape[EEP_TENSOR_MAX_DIMS];
    const void *data;
};

/** Write tensors to a new file (a temporary one, renamed when complete). */
EEP_MUST_CHECK enum eep_status eep_safetensors_write(const char *path,
                                                     const struct eep_tensor_out *tensors,
                                                     size_t count);

struct eep_ckpt;

/** Open a model directory; see above for what is checked. Errors as eep_safetensors_open(). */
EEP_MUST_CHECK enum eep_status eep_ckpt_open(const char *dir, struct eep_ckpt **ckpt_out);
void eep_ckpt_close(struct eep_ckpt *ckpt);
const char *eep_ckpt_dir(const struct eep_ckpt *ckpt);
/** Path of the file that lists the tensors: the index, or the one data file. For messages. */
const char *eep_ckpt_source(const struct eep_ckpt *ckpt);
/** The parsed config.json, an object. Borrowed. */
const json_t *eep_ckpt_config(const struct eep_ckpt *ckpt);
/** The parsed generation_config.json, or NULL if there is none. Borrowed. */
const json_t *eep_ckpt_generation_config(const struct eep_ckpt *ckpt);
/** NULL if no file of the checkpoint holds (and the index, if any, lists) that name. */
const struct eep_tensor *eep_ckpt_find(const struct eep_ckpt *ckpt, const char *name);
size_t eep_ckpt_count(const struct eep_ckpt *ckpt);
const struct eep_tensor *eep_ckpt_at(const struct eep_ckpt *ckpt, size_t index);
/** Let go of the pages of the files that were read; they are read again when touched. */
void eep_ckpt_drop_pages(const struct eep_ckpt *ckpt);
/** Bytes of all data files. */
uint64_t eep_ckpt_bytes(const struct eep_ckpt *ckpt);

/** Parse a JSON file whose top value is an object; at most `max_bytes`. The caller decrefs it. */
EEP_MUST_CHECK enum eep_status eep_json_load(const char *path, size_t max_bytes, json_t **json_out);

/**
 * From now on a mapped file that shrinks under us (SIGBUS) ends this process with a message that
 * names the file and exit status 1, instead of a crash. For programs; a library's host decides.
 */
void eep_ckpt_guard_sigbus(void);

#endif
