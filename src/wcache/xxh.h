/* xxHash with the widest vectors of this machine where the library has them; the same digests. */
#ifndef EEP_WCACHE_XXH_H
#define EEP_WCACHE_XXH_H

#include "config.h"

#ifdef EEP_XXH_DISPATCH
#include <xxh_x86dispatch.h> /* gives XXH3_128bits() and the others new meanings */
#else
#include <xxhash.h>
#endif

#endif
