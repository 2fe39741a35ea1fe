/* What the files that open the cache share. */
#ifndef EEP_ENGINE_CACHE_INT_H
#define EEP_ENGINE_CACHE_INT_H

#include "engine/engine_int.h"

struct eep_cache_shape {
    uint32_t seats;
    uint32_t slots; /* of a seat */
    uint32_t found; /* 1: a cache of that shape is there; else this is the wanted one */
};

/** The key of this engine's cache on this node, with the shape of e->layout. */
EEP_MUST_CHECK enum eep_status eep_cache_key(const struct eep_engine *engine,
                                             struct eep_wcache_key *key_out);

/** A cache of this checkpoint on this node: of the key's shape, else the newest of another one. */
EEP_MUST_CHECK enum eep_status eep_cache_find(const struct eep_engine *engine,
                                              const struct eep_wcache_key *key,
                                              struct eep_cache_shape *shape_out);

/** Pin the same version on all ranks, with its map as the engine's layout. Seats are open.
 *  Collective. (first_view.c) */
EEP_MUST_CHECK enum eep_status eep_cache_first_view(struct eep_engine *engine);

/**
 * Give up the caches of nodes that cannot go with the newest one: e->cache is NULL there, to be
 * made again with e->layout, which has the newest map on all ranks then. Where there is a cache,
 * e->layout is what its record says. Collective. (renew.c)
 *
 * @param stale        the records have different maps
 * @param dropped_out  some were given up
 */
EEP_MUST_CHECK enum eep_status eep_cache_drop_unfit(struct eep_engine *engine, bool stale,
                                                    bool *dropped_out);

/** Close this node's cache, and remove it by its name, unless it went with its last user. Local. */
EEP_MUST_CHECK enum eep_status eep_cache_leave(struct eep_engine *engine,
                                               char name_out[EEP_WCACHE_PATH_MAX]);
EEP_MUST_CHECK enum eep_status eep_cache_drop(const struct eep_engine *engine, const char *name,
                                              uint64_t timeout_ns);

#endif
