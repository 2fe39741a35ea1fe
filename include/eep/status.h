/**
 * @file
 * Status codes of libeep.
 *
 * 0 is success, negative is failure. The codes are grouped by the largest thing lost: the call, a
 * resource, a peer, the epoch, this process. A caller may respond to the group alone.
 */
#ifndef EEP_STATUS_H
#define EEP_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

/** Marks what libeep exports; all other symbols are hidden. */
#define EEP_API __attribute__((visibility("default")))

/** X(name, value, group, text): the one list of codes, groups and texts. */
#define EEP_STATUS_LIST(X)                                                                         \
    X(OK, 0, NOTHING, "success")                                                                   \
    X(ERR_INVALID, -1, CALL, "invalid argument")                                                   \
    X(ERR_AGAIN, -2, CALL, "try again later")                                                      \
    X(ERR_TIMEOUT, -3, CALL, "timed out")                                                          \
    X(ERR_STALE, -4, CALL, "out of date")                                                          \
    X(ERR_UNSUPPORTED, -5, CALL, "not supported")                                                  \
    X(ERR_NOMEM, -20, RESOURCE, "out of memory")                                                   \
    X(ERR_IO, -21, RESOURCE, "input/output error")                                                 \
    X(ERR_FORMAT, -22, RESOURCE, "malformed input")                                                \
    X(ERR_CACHE_BAD, -23, RESOURCE, "weight cache damaged")                                        \
    X(ERR_PEER_LOST, -40, PEER, "a rank is gone")                                                  \
    X(ERR_REVOKED, -50, EPOCH, "the communicator was revoked")                                     \
    X(ERR_FATAL, -60, PROCESS, "this process cannot go on")

enum eep_status {
#define EEP_STATUS_X(name, value, group, text) EEP_##name = (value),
    EEP_STATUS_LIST(EEP_STATUS_X)
#undef EEP_STATUS_X
};

/** The largest thing that a failure lost; see the list above. */
enum eep_lost {
    EEP_LOST_NOTHING,
    EEP_LOST_CALL,
    EEP_LOST_RESOURCE,
    EEP_LOST_PEER,
    EEP_LOST_EPOCH,
    EEP_LOST_PROCESS,
};

/** What `status` lost; EEP_LOST_PROCESS for a value that is no status. Thread-safe. */
EEP_API enum eep_lost eep_status_lost(enum eep_status status);

/** A short constant text such as "out of memory"; never NULL. Thread-safe. */
EEP_API const char *eep_status_text(enum eep_status status);

/** Longest text of a failure in bytes, its end included. */
#define EEP_ERROR_TEXT_MAX 2048

/**
 * The text of the last failure in this thread: what, where, which value, what to do.
 * Owned by the library, valid until the next call that fails in this thread; "" if there was none.
 */
EEP_API const char *eep_error_text(void);

#ifdef __cplusplus
}
#endif
#endif
