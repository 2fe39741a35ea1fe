/*
 * Status codes: what a function lost, and so who has to answer.
 *
 * 0 is success; failures are negative and grouped by the largest thing lost, so that a caller can
 * respond to a group without knowing each code. The text of a failure ("which file, which value,
 * what to do") is recorded once, by whoever first decides it, with EEP_FAIL(); everybody above
 * passes the code up silently and the outermost caller shows eep_error_text().
 */
#ifndef EEP_BASE_STATUS_H
#define EEP_BASE_STATUS_H

#include <eep/status.h>

#define EEP_MUST_CHECK __attribute__((warn_unused_result))
#define EEP_PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))

/**
 * Record the text of a failure in this thread and return its code.
 * The text is cut after EEP_ERROR_TEXT_MAX - 1 bytes. Thread-safe (the record is per thread).
 */
enum eep_status eep_fail(enum eep_status status, const char *fmt, ...) EEP_PRINTF(2, 3);

/* The code itself is the value, so that the compiler sees that it is not EEP_OK. */
static inline enum eep_status eep_fail_value(enum eep_status recorded, enum eep_status status)
{
    (void)recorded;
    return status;
}

#define EEP_FAIL(status, ...) eep_fail_value(eep_fail((status), __VA_ARGS__), (status))

/** Put `fmt` before the text that is recorded already; for callers that know the context. */
enum eep_status eep_fail_context(enum eep_status status, const char *fmt, ...) EEP_PRINTF(2, 3);

/** Replace the recorded text; NULL or "" clears it. For text that came from another rank. */
void eep_error_text_set(const char *text);

/* Return at once when a call fails; its text is recorded already. */
#define EEP_TRY(call)                                                                              \
    do {                                                                                           \
        enum eep_status try_status_ = (call);                                                      \
        if (try_status_ != EEP_OK) {                                                               \
            return try_status_;                                                                    \
        }                                                                                          \
    } while (0)

/* The same for functions that unwind by goto: sets `status`, jumps to `label`. */
#define EEP_TRY_GOTO(call, label)                                                                  \
    do {                                                                                           \
        status = (call);                                                                           \
        if (status != EEP_OK) {                                                                    \
            goto label;                                                                            \
        }                                                                                          \
    } while (0)

#endif
