/*
 * The admin endpoint: HTTP with JSON bodies over a Unix socket or TCP, in a thread of its own.
 *
 * It knows no engine. What it is asked it asks the handlers, in its own thread:
 *
 *     client -> connection (server.c) -> request (http.c, request.c) -> path (route.c) -> handlers
 *
 * The mailbox (mailbox.h) is a set of handlers for an engine that steps: it takes commands between
 * two steps and posts what there is to see, without a lock. doc/admin.md has paths, fields and
 * codes.
 */
#ifndef EEP_ADMIN_H
#define EEP_ADMIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <eep/engine.h>

#include "base/status.h"

#define EEP_ADMIN_ID_MAX 64        /* characters of an operation's id: A-Z a-z 0-9 . _ - */
#define EEP_ADMIN_HOST_MAX 253     /* characters of a host's name */
#define EEP_ADMIN_HOSTS_MAX 1024   /* hosts of one request */
#define EEP_ADMIN_MEMBERS_MAX 4096 /* members of one request */
#define EEP_ADMIN_SIZE_MAX 65535   /* ranks */
#define EEP_ADMIN_DEADLINE_S 600   /* an operation's default deadline */
#define EEP_ADMIN_DEADLINE_S_MAX 86400
#define EEP_ADMIN_WORD_MAX 32
#define EEP_ADMIN_EVENT_TEXT_MAX 512

/** Is this an operation's id? */
static inline bool eep_admin_id_ok(const char *id)
{
    const size_t length = strlen(id);

    return length >= 1 && length <= EEP_ADMIN_ID_MAX &&
           strspn(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") ==
               length;
}

enum eep_admin_kind {
    EEP_ADMIN_SCALE,
    EEP_ADMIN_DRAIN,
    EEP_ADMIN_REBALANCE,
};

/** "scale", "drain", "rebalance". */
const char *eep_admin_kind_text(enum eep_admin_kind kind);

struct eep_admin_host {
    char name[EEP_ADMIN_HOST_MAX + 1];
    uint32_t slots; /* 1 .. EEP_ADMIN_SIZE_MAX */
};

/** An operation as it was asked for; every value is in its range. */
struct eep_admin_request {
    enum eep_admin_kind kind;
    char id[EEP_ADMIN_ID_MAX + 1]; /* the client's, or made */
    bool dry_run;                  /* plan only */
    bool exit;                     /* scale, drain: leavers end instead of parking */
    uint32_t deadline_s;
    uint32_t to;                  /* scale: ranks afterwards, 1 .. EEP_ADMIN_SIZE_MAX */
    struct eep_admin_host *hosts; /* scale: where joiners may be started; NULL: anywhere */
    size_t host_count;
    uint64_t *members; /* drain: ids of the leavers, each once */
    size_t member_count;
};

/** Free what a request owns, not the request. */
void eep_admin_request_free(struct eep_admin_request *request);

/** True if both ask for the same; ids are not compared. */
bool eep_admin_request_equal(const struct eep_admin_request *a, const struct eep_admin_request *b);

enum eep_admin_state {
    EEP_ADMIN_QUEUED,  /* the engine has not taken it yet */
    EEP_ADMIN_RUNNING, /* taken; phase and bytes say how far it is */
    EEP_ADMIN_DONE,
    EEP_ADMIN_FAILED,  /* rolled back; message says why */
    EEP_ADMIN_ABORTED, /* rolled back as asked */
    EEP_ADMIN_REFUSED, /* nothing was begun; refusal and message say why */
};

/** "queued", "running", "done", "failed", "aborted", "refused". */
const char *eep_admin_state_text(enum eep_admin_state state);

/** HTTP codes that handlers answer with. */
enum eep_admin_code {
    EEP_ADMIN_OK = 200,
    EEP_ADMIN_ACCEPTED = 202,
    EEP_ADMIN_BAD = 400,         /* the arguments; message names the field and the value */
    EEP_ADMIN_NOT_FOUND = 404,   /* no such operation, or elasticity is off */
    EEP_ADMIN_BUSY = 409,        /* another operation is running */
    EEP_ADMIN_UNSUPPORTED = 501, /* this engine cannot do it at all */
    EEP_ADMIN_UNAVAILABLE = 503, /* not now; nothing was begun */
};

/** How an operation stands. */
struct eep_admin_operation {
    char id[EEP_ADMIN_ID_MAX + 1];
    enum eep_admin_kind kind;
    enum eep_admin_state state;
    bool dry_run;
    uint32_t from, to;                /* ranks before and after */
    char phase[EEP_ADMIN_WORD_MAX];   /* of the membership state machine: "loading"; "" */
    uint64_t bytes_total, bytes_done; /* of experts to move; 0 if none */
    uint32_t deadline_s;
    int64_t submitted_ms, started_ms, ended_ms; /* Unix time; 0 = not yet */
    enum eep_admin_code refusal;                /* of a refused one */
    char message[EEP_ERROR_TEXT_MAX];           /* why it failed or was refused; "" */
    const char *plan; /* JSON object: what a dry run found, or the plan followed; NULL */
};

/** Answer to a submission, a withdrawal or an abort. */
struct eep_admin_verdict {
    enum eep_admin_code code;
    char message[EEP_ERROR_TEXT_MAX];            /* for codes of 400 and more */
    const struct eep_admin_operation *operation; /* the one meant, or the one in the way; NULL */
};

/** For GET /eep/scale and GET /is_scaling_elastic_ep. */
struct eep_admin_scaling {
    bool enabled; /* ranks may join and leave; false: 404, elasticity is off */
    bool is_scaling;
    uint32_t effective_ep_size; /* ranks that serve */
    uint32_t pending_ep_size;   /* ranks after the operation; as effective_ep_size without one */
    uint32_t max_ep_size;       /* 0: no maximum */
    char scale_phase[EEP_ADMIN_WORD_MAX]; /* "idle" without an operation */
    char last_error[EEP_ERROR_TEXT_MAX];  /* of the last operation; "" */
};

/** What an engine can do: bits of eep_admin_status.can. What it cannot is answered with 501. */
enum eep_admin_ability {
    EEP_ADMIN_CAN_SCALE = 1 << 0,
    EEP_ADMIN_CAN_DRAIN = 1 << 1,
    EEP_ADMIN_CAN_REBALANCE = 1 << 2,
    EEP_ADMIN_CAN_ABORT = 1 << 3,
};

struct eep_admin_member {
    uint64_t id;   /* stable for life */
    uint32_t rank; /* in this epoch; EEP_ADMIN_NO_RANK for a parked one */
    uint32_t node;
    char host[EEP_ADMIN_WORD_MAX];  /* "": not known */
    char state[EEP_ADMIN_WORD_MAX]; /* "serving", "parked", "leaving", "lost" ... */
    uint64_t resident_bytes, dense_bytes, frames_bytes, kv_bytes, buffers_bytes;
};

#define EEP_ADMIN_NO_RANK UINT32_MAX

enum eep_admin_seat_state {
    EEP_ADMIN_SEAT_RESERVED,
    EEP_ADMIN_SEAT_ACTIVE,
    EEP_ADMIN_SEAT_LEAVING,
    EEP_ADMIN_SEAT_LOST,
};

/** "reserved", "active", "leaving", "lost". */
const char *eep_admin_seat_text(enum eep_admin_seat_state state);

struct eep_admin_seat {
    enum eep_admin_seat_state state;
    uint64_t executor; /* id of the member that computes its slots */
};

/** A counter or a measured value, by its name as in the metrics: "eep_steps_total". */
struct eep_admin_metric {
    char name[48];
    double value;
};

/**
 * What there is to see. The engine fills one in and posts it; it is copied and never changed then.
 * Texts end with NUL; counts of 0 and NULL pointers are allowed.
 */
struct eep_admin_status {
    uint32_t can;                   /* of enum eep_admin_ability */
    char state[EEP_ADMIN_WORD_MAX]; /* of the membership: "serving", "revoked" ... */
    uint64_t epoch;
    int64_t started_ms, now_ms; /* Unix time */

    char model[256]; /* directory */
    char architecture[EEP_ADMIN_WORD_MAX];
    uint32_t moe_layers, experts, top_k;
    uint32_t slots_per_seat;

    struct eep_admin_scaling scaling;
    struct eep_rebalance_status rebalance; /* its version is the layout's */

    char cache_path[256]; /* of the weight cache; "": none */
    bool cache_kept, cache_attached;
    uint64_t cache_bytes; /* on this node; 0: not known */

    bool survival_known; /* false: the three below mean nothing */
    bool survives_any_rank, survives_any_node;
    uint64_t single_source; /* experts of a layer that only one node's memory holds */

    bool has_backup;                                       /* false: the three below mean nothing */
    bool backup_whole;                                     /* every expert that needs one has one */
    uint64_t backup_experts, backup_bytes, backup_missing; /* of a layer, on all nodes */

    uint64_t requests_open, requests_done;
    double tokens_per_s; /* generated, of late */

    const struct eep_admin_member *members;
    const struct eep_admin_seat *seats;
    const struct eep_admin_metric *metrics;
    uint32_t member_count, seat_count, metric_count;
};

/** The map of experts. */
struct eep_admin_layout {
    uint64_t version;
    uint32_t layers, experts, seats, slots_per_seat;
    const int32_t *phys2log; /* (layers, seats * slots_per_seat); -1 for an empty slot */
};

/** A line of the audit log. */
struct eep_admin_event {
    uint64_t seq;                  /* 1, 2, 3 ... */
    int64_t time_ms;               /* Unix time */
    uint64_t epoch;                /* in which it happened */
    uint64_t version;              /* of the layout then */
    char kind[EEP_ADMIN_WORD_MAX]; /* "membership", "layout", "operation", "recovery", "warning" */
    char text[EEP_ADMIN_EVENT_TEXT_MAX];
};

/** Events after some number, oldest first. */
struct eep_admin_events {
    const struct eep_admin_event **list; /* `count` pointers, valid until catch_up() */
    size_t count;
    uint64_t first_kept;            /* seq of the oldest one that is kept; 0 if there is none */
    uint64_t last;                  /* seq of the newest; 0 if there is none */
    char log[EEP_ADMIN_ID_MAX + 1]; /* names this numbering: a new coordinator begins anew */
};

/**
 * What the endpoint asks. All functions are called in the admin thread, one at a time, and must
 * return soon (they hold up other clients). What they return by pointer stays theirs.
 */
struct eep_admin_handlers {
    void *context;
    int wake_fd; /* readable when the engine has told something */

    /** Take in what the engine has told: called before each request and when wake_fd is readable.
     *  What the others return stays as it is until then. */
    void (*catch_up)(void *context);

    /** NULL: there is none yet (503). */
    const struct eep_admin_status *(*status)(void *context);

    /** NULL: there is none yet (503). */
    const struct eep_admin_layout *(*layout)(void *context);

    /** At most `limit` events with a seq above `since`. */
    void (*events)(void *context, uint64_t since, size_t limit,
                   struct eep_admin_events *events_out);

    /**
     * An operation is asked for. The same id and arguments again: answered with the operation as it
     * stands. An operation left EEP_ADMIN_QUEUED is answered when operation() tells another state,
     * asked after each catch_up(), or after a time-out by what withdraw() says.
     *
     * @param request  its pointers are the handler's from here on
     */
    void (*submit)(void *context, struct eep_admin_request *request,
                   struct eep_admin_verdict *verdict_out);

    /** Nobody took the operation in time: withdraw it (503), or say that it was taken (202). */
    void (*withdraw)(void *context, const char *id, struct eep_admin_verdict *verdict_out);

    /** Abort an operation; id NULL: the one that is running. Of an ended one: harmless, 200. */
    void (*abort)(void *context, const char *id, struct eep_admin_verdict *verdict_out);

    /** The operation of that id, id NULL: the latest. NULL: there is none. */
    const struct eep_admin_operation *(*operation)(void *context, const char *id);

    /** The index-th of those that are remembered, the oldest first; NULL: there are no more. */
    const struct eep_admin_operation *(*operation_at)(void *context, size_t index);
};

struct eep_admin_params {
    const char *endpoint;   /* unix:PATH or HOST:PORT (port 0: any); NULL: eep_endpoint_default() */
    const char *token_file; /* for TCP; NULL: $EEP_ADMIN_TOKEN */
    const char *cert_file;  /* TLS: PEM, chain included; NULL, as key_file: none */
    const char *key_file;
    uint32_t connections_max;    /* 0: 64 */
    uint32_t request_timeout_ms; /* to send a request whole, or to begin the next; 0: 10000 */
    uint32_t verdict_timeout_ms; /* for the engine to take an operation; 0: 5000 */
};

struct eep_admin;

/**
 * Open the endpoint and serve it in a thread of its own, which takes no signals.
 *
 * A Unix socket has mode 0600 from the moment it is there. PATH.lock beside it is locked as long as
 * this process lives: so the socket of a dead process is replaced, that of a live one refused.
 * TCP needs a token; without TLS it is bound to loopback addresses only.
 *
 * @param params    copied
 * @param handlers  copied; must work until eep_admin_close() returns
 *
 * @retval EEP_ERR_INVALID  the endpoint's form, a missing or bad token, TLS files that do not fit,
 *                          plain TCP on an address that is not loopback
 * @retval EEP_ERR_AGAIN    another live process has that endpoint
 * @retval EEP_ERR_IO       the system refuses; says which call
 */
EEP_MUST_CHECK enum eep_status eep_admin_open(const struct eep_admin_params *params,
                                              const struct eep_admin_handlers *handlers,
                                              struct eep_admin **admin_out);

/** Where it listens, as eepctl takes it: the port is the real one. Valid until closed. */
const char *eep_admin_address(const struct eep_admin *admin);

/** End the thread, drop the clients, remove the socket. NULL is allowed. */
void eep_admin_close(struct eep_admin *admin);

#endif
