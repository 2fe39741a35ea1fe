/* An expert between two ranks, with the digest of its bytes. */
#include "engine/mover.h"

enum eep_status eep_parcel_begin(struct eep_engine *e, struct eep_parcel *p, uint32_t peer,
                                 uint32_t number, bool sends, void *bytes)
{
    const struct eep_xport_ops *ops = e->xport->ops;
    const uint32_t tag = 2 * (number % (EEP_PARCELS_MAX));

    EEP_TRY(ops->transfer_begin(e->xport, "expert", peer, tag, sends, bytes, e->frame_bytes,
                                &p->transfer));
    return ops->transfer_begin(e->xport, "expert's digest", peer, tag + 1, sends, &p->content,
                               sizeof(p->content), &p->digest_transfer);
}

static enum eep_status test(struct eep_engine *e, struct eep_transfer **transfer, size_t bytes,
                            size_t *progress_out)
{
    EEP_TRY(e->xport->ops->transfer_test(*transfer, progress_out));
    *transfer = *progress_out == bytes ? NULL : *transfer;
    return EEP_OK;
}

enum eep_status eep_parcel_test(struct eep_engine *e, struct eep_parcel *p)
{
    size_t progress;

    if (p->digest_transfer != NULL) {
        EEP_TRY(test(e, &p->digest_transfer, sizeof(p->content), &progress));
    }
    return p->transfer != NULL ? test(e, &p->transfer, e->frame_bytes, &p->done) : EEP_OK;
}

void eep_parcel_describe(const struct eep_engine *e, struct eep_parcel *p, uint32_t layer,
                         struct eep_expert expert)
{
    if (!eep_wcache_frame_digest(e->cache, layer, expert, &p->content)) {
        p->content = (struct eep_wcache_content){0, 0};
    }
}
