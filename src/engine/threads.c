/*
 * Threads per rank: the cores that the launcher gave this process, else the machine's cores over
 * the ranks on it. hwloc tells the cores; OpenMP runs the threads.
 */
#include <hwloc.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "engine/engine_int.h"

#define MAX_THREADS 1024u

struct cores {
    uint32_t machine; /* all cores */
    uint32_t allowed; /* those that this process may use */
};

static uint32_t count_cores(hwloc_topology_t topology, hwloc_const_cpuset_t set)
{
    const int cores = hwloc_get_nbobjs_inside_cpuset_by_type(topology, set, HWLOC_OBJ_CORE);
    const int units = hwloc_bitmap_weight(set);

    return (uint32_t)(cores > 0 ? cores : EEP_MAX(units, 1));
}

static enum eep_status find_cores(struct cores *cores_out)
{
    enum eep_status status = EEP_FAIL(EEP_ERR_IO, "hwloc cannot read this machine's topology");
    hwloc_bitmap_t bound = hwloc_bitmap_alloc();
    hwloc_topology_t topology;

    if (bound == NULL || hwloc_topology_init(&topology) != 0) {
        hwloc_bitmap_free(bound);
        return status;
    }
    hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE);
    hwloc_topology_set_type_filter(topology, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
    if (hwloc_topology_load(topology) == 0) {
        hwloc_const_cpuset_t all = hwloc_topology_get_allowed_cpuset(topology);

        if (hwloc_get_cpubind(topology, bound, HWLOC_CPUBIND_PROCESS) != 0) {
            hwloc_bitmap_copy(bound, all);
        }
        hwloc_bitmap_and(bound, bound, all);
        *cores_out = (struct cores){.machine = count_cores(topology, all),
                                    .allowed = count_cores(topology, bound)};
        status = EEP_OK;
    }
    hwloc_topology_destroy(topology);
    hwloc_bitmap_free(bound);
    return status;
}

/* The same number for all processes of one machine, whatever nodes are pretended. */
static uint64_t machine_id(void)
{
    char text[256] = {0};
    uint64_t id = UINT64_C(1469598103934665603); /* FNV-1a */
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");

    if (file != NULL) {
        if (fgets(text, 64, file) == NULL) {
            text[0] = '\0';
        }
        fclose(file);
    }
    (void)gethostname(text + strlen(text), sizeof(text) - strlen(text) - 1);
    for (const char *c = text; *c != '\0'; c++) {
        id = (id ^ (unsigned char)*c) * UINT64_C(1099511628211);
    }
    return id;
}

static enum eep_status count_ranks_here(struct eep_xport *xport, uint32_t *count_out)
{
    const uint64_t mine = machine_id();
    uint64_t *all;

    EEP_TRY(eep_mem_alloc(xport->topo.size, sizeof(*all), "machine ids", &all));
    enum eep_status status = xport->ops->allgather(xport, "machine ids", &mine, sizeof(mine), all);
    *count_out = 0;
    for (uint32_t r = 0; r < xport->topo.size; r++) {
        *count_out += all[r] == mine;
    }
    eep_mem_free(all);
    return status;
}

enum eep_status eep_threads_set(struct eep_xport *xport, uint32_t wanted, uint32_t *threads_out)
{
    struct cores cores = {.machine = 1, .allowed = 1};
    uint32_t ranks_here;

    EEP_TRY(count_ranks_here(xport, &ranks_here));
    if (wanted == 0) {
        EEP_TRY(find_cores(&cores));
        wanted = cores.allowed < cores.machine ? cores.allowed : cores.machine / ranks_here;
        wanted = EEP_MAX(wanted, 1u);
    }
    wanted = EEP_MIN(wanted, MAX_THREADS);
    omp_set_dynamic(0);
    omp_set_num_threads((int)wanted);
    *threads_out = wanted;
    return EEP_OK;
}
