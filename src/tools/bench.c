/* `eep bench NAME`: picks the benchmark. */
#include "tools/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/opts.h"
#include "tools/tools.h"

static const struct eep_command_help help = {
    .usage = "eep bench NAME [options]",
    .summary = "Measure a part of eep beside the limits of this machine, in one run.\n\n"
               "  moe        the MoE block against read bandwidth and FMA peak\n"
               "  dispatch   dispatch and combine against MPI_Alltoallv and plain copies\n"
               "  eplb       the balancer against its bars\n"
               "  move       experts that move, against plain copies and still steps\n"
               "  model      prompt and generation speed of a whole checkpoint\n"
               "  recover    what the loss of ranks costs\n"
               "  scale      what it costs that ranks join and leave\n"
               "  restart    first token with a filled weight cache and without\n\n"
               "`eep bench NAME --help` tells a benchmark's options.",
};

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} benches[] = {
    {"moe", eep_bench_moe},         {"dispatch", eep_bench_dispatch},
    {"eplb", eep_bench_eplb},       {"move", eep_bench_move},
    {"model", eep_bench_model},     {"restart", eep_bench_restart},
    {"recover", eep_bench_recover}, {"scale", eep_bench_scale},
};

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

void eep_bench_sort(double *values, size_t count)
{
    qsort(values, count, sizeof(*values), by_value);
}

int eep_cmd_bench(int argc, char **argv)
{
    int rest;

    const int ended = eep_opts_parse(&help, NULL, 0, argc < 2 ? argc : 2, argv, &rest);
    if (ended != EEP_OPTS_GO_ON) {
        return ended;
    }
    if (argc < 2) {
        return eep_opts_wrong(&help, "which benchmark?");
    }
    for (size_t i = 0; i < sizeof(benches) / sizeof(benches[0]); i++) {
        if (strcmp(argv[1], benches[i].name) == 0) {
            return benches[i].run(argc - 1, argv + 1);
        }
    }
    return eep_opts_wrong(&help, "there is no benchmark '%s'", argv[1]);
}
