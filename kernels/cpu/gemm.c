/* Dense products: the panels are split evenly over the threads, one linear stream each. */
#include <string.h>

#include "kernels/cpu/panels.h"

#include <omp.h>

/* Columns of a panel that the matrix has; the rest of its last panel is zero. */
static size_t panel_columns(const struct eep_panels *w, size_t panel)
{
    return EEP_MIN(w->n - panel * EEP_PANEL, (size_t)EEP_PANEL);
}

static void finish_row(const struct eep_gemm *gemm, const float *c, size_t panel, float *y)
{
    size_t columns = panel_columns(gemm->w, panel);

    if (gemm->bias != NULL) {
        for (size_t i = 0; i < columns; i++) {
            y[i] = c[i] + gemm->bias[panel * EEP_PANEL + i];
        }
    } else {
        memcpy(y, c, columns * sizeof(*y));
    }
    memset(y + columns, 0, (EEP_PANEL - columns) * sizeof(*y));
}

static void finish(const struct eep_cpu_product *product, const float *c, size_t panel,
                   size_t panels, size_t row, size_t rows)
{
    const struct eep_gemm *gemm = product->context;

    for (size_t p = 0; p < panels; p++) {
        for (size_t r = 0; r < rows; r++) {
            finish_row(gemm, c + (p * rows + r) * EEP_PANEL, panel + p,
                       gemm->y + (row + r) * gemm->y_stride + (panel + p) * EEP_PANEL);
        }
    }
}

void eep_cpu_gemm(const struct eep_cpu_isa *isa, const struct eep_gemm *gemm)
{
    struct eep_cpu_product product = {
        .isa = isa,
        .dtype = gemm->w->dtype,
        .w = gemm->w->data,
        .k = gemm->w->k,
        .x = gemm->x,
        .x_stride = gemm->x_stride,
        .rows = gemm->rows,
        .finish = finish,
        .context = gemm,
    };
    size_t panels = eep_div_up(gemm->w->n, EEP_PANEL);

    if (gemm->rows == 0) {
        return;
    }
#pragma omp parallel if (gemm->rows * gemm->w->n * gemm->w->k > EEP_CPU_PARALLEL_FMAS)
    {
        size_t thread = (size_t)omp_get_thread_num();
        size_t threads = (size_t)omp_get_num_threads();

        eep_cpu_product_run(&product, panels * thread / threads, panels * (thread + 1) / threads);
    }
}
