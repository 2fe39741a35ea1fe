/*
 * From logits to a token. A draw is a function of (logits, parameters, seed, position) alone.
 */
#ifndef EEP_MODEL_SAMPLER_H
#define EEP_MODEL_SAMPLER_H

#include <stdint.h>

#include "base/status.h"

struct eep_sampling {
    double temperature; /* 0 = greedy */
    uint32_t top_k;     /* 0 = all */
    double top_p;       /* in (0, 1] */
    uint64_t seed;
};

/** Refuses what is out of range; the text has the value. */
EEP_MUST_CHECK enum eep_status eep_sampling_check(const struct eep_sampling *sampling);

struct eep_sampler_entry {
    float logit;
    uint32_t id;
};

/**
 * Choose a token.
 *
 * Greedy: the largest logit, ties to the lower id. Else: logits / temperature, the top_k largest,
 * of those the smallest set whose probability reaches top_p (at least one), and a draw from it.
 *
 * @param logits    (count), finite
 * @param position  of the token to be chosen; the draw's counter
 * @param work      (count)
 */
uint32_t eep_sample(const struct eep_sampling *sampling, const float *logits, uint32_t count,
                    uint64_t position, struct eep_sampler_entry *work);

/** -log softmax(logits)[id], in double, natural logarithm. */
double eep_negative_log_likelihood(const float *logits, uint32_t count, uint32_t id);

#endif
