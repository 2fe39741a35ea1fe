/* Monotonic time and short sleeps. */
#ifndef EEP_BASE_CLOCK_H
#define EEP_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define EEP_NS_PER_S UINT64_C(1000000000)
#define EEP_NS_PER_MS UINT64_C(1000000)
#define EEP_NS_PER_US UINT64_C(1000)

/** Nanoseconds of the monotonic clock; the same clock for all processes of a node. */
static inline uint64_t eep_clock_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * EEP_NS_PER_S + (uint64_t)now.tv_nsec;
}

#endif
