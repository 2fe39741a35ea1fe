/*
 * Which cache: the key of a checkpoint's cache on this node, and the shape (seats, slots) of one
 * that is there. A cache of another shape is used as it is, since members execute the seats that
 * there are.
 */
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "engine/cache_int.h"

#define PACKING_VERSION 1 /* of panels and frames: kernels/kernels.h, model/ffn.h */

/* One tensor, and its file's size and time when the file is another than the last one's. */
static bool digest_tensor(EVP_MD_CTX *hash, const struct eep_tensor *tensor, const char **last)
{
    struct stat info;
    uint64_t numbers[3] = {tensor->dtype, tensor->dims, tensor->bytes};
    bool ok = EVP_DigestUpdate(hash, tensor->name, strlen(tensor->name) + 1) == 1 &&
              EVP_DigestUpdate(hash, numbers, sizeof(numbers)) == 1 &&
              EVP_DigestUpdate(hash, tensor->shape, tensor->dims * sizeof(tensor->shape[0])) == 1;

    if (ok && (*last == NULL || strcmp(*last, tensor->file) != 0)) {
        *last = tensor->file;
        ok = stat(tensor->file, &info) == 0;
        numbers[0] = (uint64_t)info.st_size;
        numbers[1] = (uint64_t)info.st_mtim.tv_sec;
        numbers[2] = (uint64_t)info.st_mtim.tv_nsec;
        ok = ok && EVP_DigestUpdate(hash, numbers, sizeof(numbers)) == 1;
    }
    return ok;
}

/*
 * A checkpoint's identity without reading its data: config, every tensor's name, type and shape,
 * and each file's size and time of change.
 */
enum eep_status eep_cache_checkpoint_digest(const struct eep_ckpt *ckpt, uint8_t digest_out[32])
{
    char *config = json_dumps(eep_ckpt_config(ckpt), JSON_SORT_KEYS | JSON_COMPACT);
    EVP_MD_CTX *hash = EVP_MD_CTX_new();
    const char *last = NULL;
    bool ok = config != NULL && hash != NULL && EVP_DigestInit_ex(hash, EVP_sha256(), NULL) == 1 &&
              EVP_DigestUpdate(hash, config, strlen(config) + 1) == 1;

    for (size_t i = 0; ok && i < eep_ckpt_count(ckpt); i++) {
        ok = digest_tensor(hash, eep_ckpt_at(ckpt, i), &last);
    }
    ok = ok && EVP_DigestFinal_ex(hash, digest_out, NULL) == 1;
    EVP_MD_CTX_free(hash);
    free(config);
    return ok ? EEP_OK
              : EEP_FAIL(EEP_ERR_IO, "%s: the checkpoint's digest cannot be taken",
                         eep_ckpt_dir(ckpt));
}

/* Real nodes are known by their names; pretended ones share a machine and are numbered too. */
static void name_node(const struct eep_engine *e, char name_out[EEP_WCACHE_NODE_MAX])
{
    char host[EEP_WCACHE_NODE_MAX - 12] = "";

    (void)gethostname(host, sizeof(host) - 1);
    if (e->pretended) {
        snprintf(name_out, EEP_WCACHE_NODE_MAX, "%s.%" PRIu32, host, e->home_node);
    } else {
        snprintf(name_out, EEP_WCACHE_NODE_MAX, "%s", host[0] != '\0' ? host : "node");
    }
}

enum eep_status eep_cache_key(const struct eep_engine *e, struct eep_wcache_key *key)
{
    const struct eep_experts_source source = eep_engine_source(e);
    enum eep_dtype dtype;

    memset(key, 0, sizeof(*key));
    memcpy(key->checkpoint, e->checkpoint_digest, sizeof(key->checkpoint));
    EEP_TRY(eep_experts_content(&source, &key->frame_bytes, &dtype));
    key->packing = PACKING_VERSION;
    key->dtype = dtype;
    key->layers = e->layout->layers;
    key->experts = e->layout->experts;
    key->seats = e->layout->seats;
    key->slots_per_seat = e->layout->slots_per_seat;
    name_node(e, key->node);
    return EEP_OK;
}

enum eep_status eep_cache_find(const struct eep_engine *e, const struct eep_wcache_key *key,
                               struct eep_cache_shape *shape_out)
{
    struct eep_wcache_info *infos;
    uint64_t newest = 0;
    size_t count;

    *shape_out = (struct eep_cache_shape){.seats = key->seats, .slots = key->slots_per_seat};
    EEP_TRY(eep_wcache_list(e->cache_dir, &infos, &count));
    for (size_t i = 0; i < count; i++) {
        struct eep_wcache_key other = infos[i].key;
        const struct eep_cache_shape shape = {
            .seats = other.seats, .slots = other.slots_per_seat, .found = true};

        other.seats = key->seats;
        other.slots_per_seat = key->slots_per_seat;
        if (infos[i].status != EEP_OK || memcmp(&other, key, sizeof(other)) != 0) {
            continue;
        }
        if (shape.seats == key->seats && shape.slots == key->slots_per_seat) {
            *shape_out = shape;
            break;
        }
        if (infos[i].created_ns >= newest) {
            newest = infos[i].created_ns;
            *shape_out = shape;
        }
    }
    eep_mem_free(infos);
    if (e->own_shape &&
        (shape_out->seats != key->seats || shape_out->slots != key->slots_per_seat)) {
        return EEP_FAIL(EEP_ERR_STALE,
                        "the weight cache of this checkpoint has %u seats of %u slots, %u seats of "
                        "%u slots are asked for; leave out --redundant-experts and --layout to use "
                        "it, or drop it (eep cache drop)",
                        shape_out->seats, shape_out->slots, key->seats, key->slots_per_seat);
    }
    return EEP_OK;
}
