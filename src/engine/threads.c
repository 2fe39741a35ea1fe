/*
 * Threads per rank: the cores that this process may use (those that the launcher gave it, or all of
 * the machine) over the ranks that may use the same ones. hwloc tells the cores; OpenMP runs the
 * threads.
 */
#include <hwloc.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/mem.h"
#include "engine/engine_int.h"

#define MAX_THREADS 1024u

static enum eep_status look_at(hwloc_topology_t topology, hwloc_bitmap_t set,
                               struct eep_cores *cores_out)
{
    hwloc_const_cpuset_t all = hwloc_topology_get_allowed_cpuset(topology);
    char *text;

    if (hwloc_get_cpubind(topology, set, HWLOC_CPUBIND_PROCESS) != 0) {
        hwloc_bitmap_copy(set, all);
    }
    hwloc_bitmap_and(set, set, all);
    if (hwloc_bitmap_asprintf(&text, set) < 0) {
        return EEP_FAIL(EEP_ERR_NOMEM, "no memory for a set of cores");
    }
    const int cores = hwloc_get_nbobjs_inside_cpuset_by_type(topology, set, HWLOC_OBJ_CORE);
    const int units =
        hwloc_bitmap_weight(set); /* where cores are not told, or shared out in parts */

    cores_out->count = (uint32_t)(cores > 0 ? cores : EEP_MAX(units, 1));
    cores_out->places = eep_hash_bytes(cores_out->places, text, strlen(text));
    free(text);
    return EEP_OK;
}

static enum eep_status find_cores(struct eep_cores *cores_out)
{
    enum eep_status status = EEP_FAIL(EEP_ERR_IO, "hwloc cannot read this machine's topology");
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    hwloc_topology_t topology;

    if (set == NULL || hwloc_topology_init(&topology) != 0) {
        hwloc_bitmap_free(set);
        return status;
    }
    hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE);
    hwloc_topology_set_type_filter(topology, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
    if (hwloc_topology_load(topology) == 0) {
        status = look_at(topology, set, cores_out);
    }
    hwloc_topology_destroy(topology);
    hwloc_bitmap_free(set);
    return status;
}

uint64_t eep_threads_machine(void)
{
    char text[256] = {0};
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");

    if (file != NULL) {
        if (fgets(text, 64, file) == NULL) {
            text[0] = '\0';
        }
        fclose(file);
    }
    (void)gethostname(text + strlen(text), sizeof(text) - strlen(text) - 1);
    return eep_hash_bytes(EEP_HASH_START, text, strlen(text));
}

/* This rank's share of its cores: they are divided by the ranks that may use the same ones. */
static enum eep_status share_out(struct eep_xport *xport, const struct eep_cores *mine,
                                 uint32_t *threads_out)
{
    uint64_t *all;
    uint32_t sharers = 0;

    EEP_TRY(eep_mem_alloc(xport->topo.size, sizeof(*all), "cores of the ranks", &all));
    const enum eep_status status =
        xport->ops->allgather(xport, "cores", &mine->places, sizeof(mine->places), all);
    for (uint32_t r = 0; r < xport->topo.size; r++) {
        sharers += all[r] == mine->places;
    }
    eep_mem_free(all);
    *threads_out = EEP_MAX(mine->count / EEP_MAX(sharers, 1u), 1u);
    return status;
}

enum eep_status eep_threads_set(struct eep_engine *e, uint32_t wanted)
{
    e->cores = (struct eep_cores){.count = 0, .places = eep_threads_machine()};
    e->threads = wanted;
    omp_set_dynamic(0);
    if (wanted == 0) {
        EEP_TRY(eep_agree(e->xport, "topology", find_cores(&e->cores)));
    }
    return eep_threads_share(e);
}

enum eep_status eep_threads_share(struct eep_engine *e)
{
    if (e->cores.count > 0 && e->xport->topo.rank != EEP_NO_RANK) {
        EEP_TRY(share_out(e->xport, &e->cores, &e->threads));
    }
    e->threads = EEP_MIN(e->threads, MAX_THREADS);
    omp_set_num_threads((int)e->threads);
    return EEP_OK;
}
