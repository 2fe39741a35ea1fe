/* The digest of an expert's bytes that lie outside of a frame. */
#include "base/assert.h"
#include "base/mem.h"
#include "wcache/wcache.h"
#include "wcache/xxh.h"

struct eep_wcache_digest {
    XXH3_state_t *hash;
};

enum eep_status eep_wcache_digest_begin(struct eep_wcache_digest **digest_out)
{
    struct eep_wcache_digest *digest;

    EEP_TRY(eep_mem_alloc(1, sizeof(*digest), "a digest", &digest));
    digest->hash = XXH3_createState();
    if (digest->hash == NULL || XXH3_128bits_reset(digest->hash) != XXH_OK) {
        eep_wcache_digest_drop(digest);
        return EEP_FAIL(EEP_ERR_NOMEM, "no memory for a digest");
    }
    *digest_out = digest;
    return EEP_OK;
}

void eep_wcache_digest_add(struct eep_wcache_digest *digest, const void *bytes, uint64_t count)
{
    const XXH_errorcode rc = XXH3_128bits_update(digest->hash, bytes, count);

    EEP_ASSERT(rc == XXH_OK);
}

struct eep_wcache_content eep_wcache_digest_end(struct eep_wcache_digest *digest)
{
    const XXH128_hash_t hash = XXH3_128bits_digest(digest->hash);

    eep_wcache_digest_drop(digest);
    return (struct eep_wcache_content){hash.low64, hash.high64};
}

void eep_wcache_digest_drop(struct eep_wcache_digest *digest)
{
    if (digest != NULL) {
        XXH3_freeState(digest->hash);
        eep_mem_free(digest);
    }
}
