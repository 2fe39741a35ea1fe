/*
 * The grouped gated FFN: the experts of one MoE layer, each with its rows.
 *
 * All (expert, panel) units of a phase are laid end to end and cut into one range per thread by
 * their cost, so that a thread reads long linear streams, mostly whole experts, each from one
 * thread. Gate and up come first, for all experts; then, behind a barrier, down. All rows of an
 * expert share the read of its weights.
 */
#include <string.h>

#include "kernels/cpu/panels.h"

#include <omp.h>

/* A panel costs its rows, but no less than reading it: as much as this many rows. */
#define PANEL_COST_MIN 8

/* One network of the call, and where its rows are in the scratch. */
struct member {
    const struct eep_ffn *ffn;
    const struct eep_ffn_group *group;
    float *inner; /* (rows, panel_round(width)): silu(gate) * up */
    size_t inner_stride;
};

size_t eep_cpu_ffn_scratch_bytes(size_t rows, size_t width)
{
    return eep_round_up(rows * eep_panel_round(width) * sizeof(float), EEP_CACHE_LINE);
}

static void finish_gate_up(const struct eep_cpu_product *product, const float *c, size_t panel,
                           size_t panels, size_t row, size_t rows)
{
    const struct member *m = product->context;

    for (size_t p = 0; p < panels; p += 2) {
        const float *gate = c + p * rows * EEP_PANEL;
        const float *up = gate + rows * EEP_PANEL;
        float *inner = m->inner + row * m->inner_stride + (panel + p) / 2 * EEP_PANEL;

        for (size_t r = 0; r < rows; r++) {
            product->isa->rows->silu_mul(gate + r * EEP_PANEL, up + r * EEP_PANEL,
                                         inner + r * m->inner_stride);
        }
    }
}

static void finish_down(const struct eep_cpu_product *product, const float *c, size_t panel,
                        size_t panels, size_t row, size_t rows)
{
    const struct member *m = product->context;

    for (size_t p = 0; p < panels; p++) {
        size_t at = (panel + p) * EEP_PANEL;
        size_t columns = EEP_MIN(m->ffn->hidden - at, (size_t)EEP_PANEL);

        for (size_t r = 0; r < rows; r++) {
            float *y = m->ffn->y + m->group->y_rows[row + r] * m->ffn->y_stride + at;

            memcpy(y, c + (p * rows + r) * EEP_PANEL, columns * sizeof(*y));
            memset(y + columns, 0, (EEP_PANEL - columns) * sizeof(*y));
        }
    }
}

static void run_gate_up(const struct eep_cpu_isa *isa, const struct member *m, size_t first,
                        size_t last)
{
    struct eep_cpu_product product = {
        .isa = isa,
        .dtype = m->group->w->dtype,
        .w = m->group->w->gate_up,
        .k = m->ffn->hidden,
        .x = m->ffn->x,
        .x_stride = m->ffn->x_stride,
        .x_rows = m->group->x_rows,
        .rows = m->group->rows,
        .finish = finish_gate_up,
        .context = m,
    };

    eep_cpu_product_run(&product, 2 * first, 2 * last);
}

static void run_down(const struct eep_cpu_isa *isa, const struct member *m, size_t first,
                     size_t last)
{
    struct eep_cpu_product product = {
        .isa = isa,
        .dtype = m->group->w->dtype,
        .w = m->group->w->down,
        .k = m->ffn->width,
        .x = m->inner,
        .x_stride = m->inner_stride,
        .rows = m->group->rows,
        .finish = finish_down,
        .context = m,
    };

    eep_cpu_product_run(&product, first, last);
}

static size_t unit_cost(const struct eep_ffn_group *group)
{
    return group->rows == 0 ? 0 : EEP_MAX(group->rows, (uint32_t)PANEL_COST_MIN);
}

/* The first unit of a group that begins at or after `cost`, where the group begins at `base`. */
static size_t unit_at(size_t cost, size_t base, size_t each, size_t units)
{
    return cost <= base ? 0 : EEP_MIN(eep_div_up(cost - base, each), units);
}

typedef void run_fn(const struct eep_cpu_isa *isa, const struct member *m, size_t first,
                    size_t last);

/* This thread's share of one phase; `units` per group. */
static void run_share(const struct eep_cpu_isa *isa, const struct eep_ffn *ffn, size_t units,
                      size_t total, run_fn *run)
{
    size_t thread = (size_t)omp_get_thread_num();
    size_t threads = (size_t)omp_get_num_threads();
    size_t begin = total * thread / threads;
    size_t end = total * (thread + 1) / threads;
    size_t base = 0;
    struct member m = {
        .ffn = ffn,
        .inner = ffn->scratch,
        .inner_stride = eep_panel_round(ffn->width),
    };

    for (size_t g = 0; g < ffn->group_count; g++) {
        size_t each = unit_cost(&ffn->groups[g]);

        m.group = &ffn->groups[g];
        if (each > 0) {
            size_t first = unit_at(begin, base, each, units);
            size_t last = unit_at(end, base, each, units);

            if (first < last) {
                run(isa, &m, first, last);
            }
        }
        base += each * units;
        m.inner += m.group->rows * m.inner_stride;
    }
}

void eep_cpu_ffn(const struct eep_cpu_isa *isa, const struct eep_ffn *ffn)
{
    size_t pairs = eep_div_up(ffn->width, EEP_PANEL);
    size_t panels = eep_div_up(ffn->hidden, EEP_PANEL);
    size_t fmas_of_row = 3 * (size_t)ffn->hidden * ffn->width;
    size_t cost = 0;
    size_t rows = 0;

    for (size_t g = 0; g < ffn->group_count; g++) {
        cost += unit_cost(&ffn->groups[g]);
        rows += ffn->groups[g].rows;
    }
    if (cost == 0) {
        return;
    }
#pragma omp parallel if (rows * fmas_of_row > EEP_CPU_PARALLEL_FMAS)
    {
        run_share(isa, ffn, pairs, cost * pairs, run_gate_up);
#pragma omp barrier
        run_share(isa, ffn, panels, cost * panels, run_down);
    }
}
