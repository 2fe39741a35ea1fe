#include "model/sampler.h"

#include <math.h>
#include <stdlib.h>

#include "base/assert.h"
#include "base/rng.h"

enum eep_status eep_sampling_check(const struct eep_sampling *s)
{
    if (!(s->temperature >= 0.0) || !isfinite(s->temperature)) {
        return EEP_FAIL(EEP_ERR_INVALID, "temperature is %g; it must be 0 (greedy) or more",
                        s->temperature);
    }
    if (!(s->top_p > 0.0 && s->top_p <= 1.0)) {
        return EEP_FAIL(EEP_ERR_INVALID, "top_p is %g; it must be above 0 and at most 1", s->top_p);
    }
    return EEP_OK;
}

static uint32_t greedy(const float *logits, uint32_t count)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < count; i++) {
        if (logits[i] > logits[best]) {
            best = i;
        }
    }
    return best;
}

/* Larger logits first, ties to the lower id: a total order, so qsort's result is unique. */
static int by_logit(const void *a, const void *b)
{
    const struct eep_sampler_entry *x = a, *y = b;

    if (x->logit != y->logit) {
        return x->logit < y->logit ? 1 : -1;
    }
    return x->id < y->id ? -1 : x->id > y->id;
}

static double probability(const struct eep_sampler_entry *entries, uint32_t i, double temperature)
{
    return exp(((double)entries[i].logit - (double)entries[0].logit) / temperature);
}

uint32_t eep_sample(const struct eep_sampling *s, const float *logits, uint32_t count,
                    uint64_t position, struct eep_sampler_entry *work)
{
    EEP_ASSERT(count > 0);
    if (s->temperature == 0.0) {
        return greedy(logits, count);
    }
    for (uint32_t i = 0; i < count; i++) {
        work[i] = (struct eep_sampler_entry){.logit = logits[i], .id = i};
    }
    qsort(work, count, sizeof(*work), by_logit);

    uint32_t kept = s->top_k != 0 && s->top_k < count ? s->top_k : count;
    double total = 0.0, reached = 0.0;
    for (uint32_t i = 0; i < kept; i++) {
        total += probability(work, i, s->temperature);
    }
    uint32_t nucleus = 0;
    while (nucleus < kept && (nucleus == 0 || reached < s->top_p * total)) {
        reached += probability(work, nucleus++, s->temperature);
    }
    double left = eep_rng_uniform(s->seed, position) * reached;
    for (uint32_t i = 0; i + 1 < nucleus; i++) {
        left -= probability(work, i, s->temperature);
        if (left < 0.0) {
            return work[i].id;
        }
    }
    return work[nucleus - 1].id;
}

double eep_negative_log_likelihood(const float *logits, uint32_t count, uint32_t id)
{
    double largest = logits[0], sum = 0.0;

    EEP_ASSERT(id < count);
    for (uint32_t i = 1; i < count; i++) {
        largest = logits[i] > largest ? logits[i] : largest;
    }
    for (uint32_t i = 0; i < count; i++) {
        sum += exp(logits[i] - largest);
    }
    return log(sum) + largest - logits[id];
}
