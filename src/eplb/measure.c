/*
 * What a map is worth: loads of the seats, replicas, copies from another map.
 */
#include <string.h>

#include "base/mem.h"
#include "eplb/eplb_int.h"

static bool is_live(const bool *failed, uint32_t seat)
{
    return failed == NULL || !failed[seat];
}

void eep_eplb_count(const struct eep_eplb_shape *shape, const bool *failed, const int32_t *map,
                    uint32_t *count_out)
{
    const uint32_t stride = eep_eplb_slots_per_seat(shape);

    memset(count_out, 0, shape->experts * sizeof(*count_out));
    for (uint32_t s = 0; s < shape->seats; s++) {
        for (uint32_t p = s * stride; p < (s + 1) * stride && is_live(failed, s); p++) {
            if (map[p] != EEP_NO_EXPERT) {
                count_out[map[p]]++;
            }
        }
    }
}

void eep_eplb_measure(const struct eep_eplb_shape *shape, const double *loads, const bool *failed,
                      const int32_t *map, const uint32_t *counts, double *seat_loads_out,
                      struct eep_eplb_balance *balance_out)
{
    const uint32_t stride = eep_eplb_slots_per_seat(shape);
    double max = 0.0, sum = 0.0;
    uint32_t live = 0;

    for (uint32_t s = 0; s < shape->seats; s++) {
        double load = 0.0;

        for (uint32_t p = s * stride; p < (s + 1) * stride && is_live(failed, s); p++) {
            if (map[p] != EEP_NO_EXPERT) {
                load += loads[map[p]] / counts[map[p]];
            }
        }
        if (seat_loads_out != NULL) {
            seat_loads_out[s] = load;
        }
        if (is_live(failed, s) && eep_eplb_seat_slots(shape, s) > 0) {
            live++;
            sum += load;
            max = EEP_MAX(max, load);
        }
    }
    const double mean = live > 0 ? sum / live : 0.0;
    /* with one seat the quotient would differ from 1 by rounding */
    const double balancedness = max > 0.0 ? EEP_MIN(1.0, mean / max) : 1.0;
    *balance_out =
        (struct eep_eplb_balance){.balancedness = balancedness, .max_load = max, .mean_load = mean};
}

/* Whether a seat's part of a map holds the expert in its first `count` slots. */
static bool holds(const int32_t *seat_map, uint32_t count, int32_t expert)
{
    for (uint32_t i = 0; i < count; i++) {
        if (seat_map[i] == expert) {
            return true;
        }
    }
    return false;
}

uint32_t eep_eplb_copies(const struct eep_eplb_shape *shape, const bool *failed,
                         const int32_t *current, const int32_t *map)
{
    const uint32_t stride = eep_eplb_slots_per_seat(shape);
    uint32_t copies = 0;

    for (uint32_t s = 0; s < shape->seats; s++) {
        const int32_t *now = map + (size_t)s * stride;

        for (uint32_t i = 0; i < stride && is_live(failed, s); i++) {
            copies += now[i] != EEP_NO_EXPERT && !holds(now, i, now[i]) &&
                      (current == NULL || !holds(current + (size_t)s * stride, stride, now[i]));
        }
    }
    return copies;
}
