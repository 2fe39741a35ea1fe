/*
 * Between an engine that steps and the admin thread: commands one way, what there is to see the
 * other.
 *
 *     engine thread                                   admin thread
 *     take()            <-- commands --               submit(), abort()
 *     post()            -- latest snapshot -->        status()
 *     post_layout()     -- latest map -->             layout()
 *     post_operation()  -- in order -->               operation()
 *     event()           -- in order -->               events()
 *
 * The engine's side takes no lock and waits for nobody: it exchanges pointers, and wakes the admin
 * thread by an eventfd (only for operations and events). One engine thread at a time may use it.
 * The mailbox keeps the rules that need no engine: one operation at a time (so at most one command
 * to begin and one to stop are on their way), the same id again is harmless, what the engine cannot
 * do is refused, how many operations and events are remembered.
 */
#ifndef EEP_ADMIN_MAILBOX_H
#define EEP_ADMIN_MAILBOX_H

#include "admin/admin.h"

#define EEP_ADMIN_KEPT_OPERATIONS 32
#define EEP_ADMIN_KEPT_EVENTS 1024

struct eep_admin_mailbox;

EEP_MUST_CHECK enum eep_status eep_admin_mailbox_create(struct eep_admin_mailbox **mailbox_out);

/** After eep_admin_close(). NULL is allowed. */
void eep_admin_mailbox_destroy(struct eep_admin_mailbox *mailbox);

/** The handlers to open the endpoint with. */
struct eep_admin_handlers eep_admin_mailbox_handlers(struct eep_admin_mailbox *mailbox);

/* ---- the engine's side: all below are called by the engine's thread ---- */

/** Readable while there may be a command: for an engine that has nothing to do and sleeps. */
int eep_admin_mailbox_fd(const struct eep_admin_mailbox *mailbox);

enum eep_admin_command_type {
    EEP_ADMIN_DO,   /* an operation: answer with post_operation() or refuse() */
    EEP_ADMIN_STOP, /* abort the operation of that id, if it still can be */
};

struct eep_admin_command {
    enum eep_admin_command_type type;
    struct eep_admin_request request; /* EEP_ADMIN_STOP: only its id; eep_admin_request_free() it */
};

/** The next command; false: there is none (one load from memory, so ask in each step). */
bool eep_admin_mailbox_take(struct eep_admin_mailbox *mailbox,
                            struct eep_admin_command *command_out);

/**
 * How an operation stands now. Every EEP_ADMIN_DO that was taken must be answered, and end with
 * done, failed or aborted. An id that the mailbox does not know is added: after a change of
 * coordinator the new one tells what it goes on with.
 *
 * @param operation  copied, plan included; its times are set by the mailbox
 *
 * @retval EEP_ERR_NOMEM  not told; tell it again in a later step
 */
EEP_MUST_CHECK enum eep_status eep_admin_mailbox_post_operation(
    struct eep_admin_mailbox *mailbox, const struct eep_admin_operation *operation);

/** Refuse a command that was taken: nothing was begun. */
EEP_MUST_CHECK enum eep_status eep_admin_mailbox_refuse(struct eep_admin_mailbox *mailbox,
                                                        const struct eep_admin_request *request,
                                                        enum eep_admin_code code, const char *fmt,
                                                        ...) EEP_PRINTF(4, 5);

/**
 * What can be seen now; replaces what was posted before. Costs a copy and wakes nobody: post on
 * changes, and every 100 ms or so while counters run.
 */
EEP_MUST_CHECK enum eep_status eep_admin_mailbox_post(struct eep_admin_mailbox *mailbox,
                                                      const struct eep_admin_status *status);

/** The map of experts, copied; post it when its version has changed. */
EEP_MUST_CHECK enum eep_status eep_admin_mailbox_post_layout(struct eep_admin_mailbox *mailbox,
                                                             const struct eep_admin_layout *layout);

/** Add a line to the audit log. Lines above the room there is are dropped, and counted in it. */
void eep_admin_mailbox_event(struct eep_admin_mailbox *mailbox, const char *kind, uint64_t epoch,
                             uint64_t version, const char *fmt, ...) EEP_PRINTF(5, 6);

#endif
