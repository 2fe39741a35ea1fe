/* The benchmarks of `eep bench NAME`: argv[0] is the benchmark's name. */
#ifndef EEP_TOOLS_BENCH_H
#define EEP_TOOLS_BENCH_H

#include <stddef.h>

int eep_bench_moe(int argc, char **argv);
int eep_bench_dispatch(int argc, char **argv);
int eep_bench_eplb(int argc, char **argv);
int eep_bench_move(int argc, char **argv);
int eep_bench_model(int argc, char **argv);
int eep_bench_recover(int argc, char **argv);
int eep_bench_scale(int argc, char **argv);
int eep_bench_restart(int argc, char **argv);

/** Sort, the smallest first. */
void eep_bench_sort(double *values, size_t count);

#endif
