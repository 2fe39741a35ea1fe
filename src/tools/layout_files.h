/*
 * The files of the offline commands: expert loads, and layouts in any of the forms that exist. All
 * are foreign input: every number is checked, every failure names file, layer and entry.
 */
#ifndef EEP_TOOLS_LAYOUT_FILES_H
#define EEP_TOOLS_LAYOUT_FILES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "eplb/eplb.h"

/** Loads of all MoE layers, and what the file says about where they were measured (0: nothing). */
struct eep_loads_file {
    uint32_t layers, experts;
    double *loads; /* (layers, experts) */
    uint32_t slots, ranks, nodes, groups;
    bool *failed; /* (ranks) or NULL: the file names no failed rank */
};

/**
 * Read loads: {"loads": [[...], ...]}, {"loads": [...]} or {"load": [...]} for one layer,
 * {"loads_file": PATH} beside it or in the folder above, or {"instances": [...]} or {"cases":
 * [...]} of such objects.
 *
 * @param which     the instance or case, by index or "id"; NULL where there is only one
 * @param file_out  free it with eep_loads_file_free(), set only on EEP_OK
 *
 * @retval EEP_ERR_IO, EEP_ERR_FORMAT, EEP_ERR_NOMEM  named in the text
 */
EEP_MUST_CHECK enum eep_status eep_loads_file_read(const char *path, const char *which,
                                                   struct eep_loads_file *file_out);
void eep_loads_file_free(struct eep_loads_file *file);

/** A layout that is not checked against a model. */
struct eep_map_file {
    uint32_t layers;
    uint32_t
        experts; /* the largest number of an expert + 1, or what the file says if that is more */
    struct eep_eplb_shape shape; /* slots = seats * slots per seat, 1 node */
    int32_t *map;                /* (layers, slots) EEP_NO_EXPERT for an empty slot */
};

/**
 * Read a layout: {"seats", "slots_per_seat", "phys2log"} as eep_layout_load() takes it, or the
 * output of `eep layout plan --json`, or a file of reference outputs ({"num_ranks", "outputs":
 * {NAME:
 * {"phy2log"}}}; the first that has one). Slots of ranks that the file calls dead are empty.
 *
 * @param ranks     of a file that does not say; 0 = it must say
 * @param file_out  free it with eep_map_file_free(), set only on EEP_OK
 *
 * @retval EEP_ERR_IO, EEP_ERR_FORMAT, EEP_ERR_NOMEM  named in the text
 */
EEP_MUST_CHECK enum eep_status eep_map_file_read(const char *path, uint32_t ranks,
                                                 struct eep_map_file *file_out);
void eep_map_file_free(struct eep_map_file *file);

/** Write a layout as eep_layout_load() reads it. */
EEP_MUST_CHECK enum eep_status eep_map_file_write(const char *path, uint32_t layers,
                                                  const struct eep_eplb_shape *shape,
                                                  const int32_t *map);

#endif
