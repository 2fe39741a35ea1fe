/*
 * Assertions are for our own mistakes, never for input, peers or the network.
 * EEP_ASSERT stays on in release builds; EEP_DASSERT is for hot loops.
 */
#ifndef EEP_BASE_ASSERT_H
#define EEP_BASE_ASSERT_H

_Noreturn void eep_assert_failed(const char *condition, const char *file, int line);

#define EEP_ASSERT(condition)                                                                      \
    do {                                                                                           \
        if (__builtin_expect(!(condition), 0)) {                                                   \
            eep_assert_failed(#condition, __FILE__, __LINE__);                                     \
        }                                                                                          \
    } while (0)

#ifdef EEP_DEBUG
#define EEP_DASSERT(condition) EEP_ASSERT(condition)
#else
#define EEP_DASSERT(condition) ((void)sizeof(!(condition)))
#endif

#endif
