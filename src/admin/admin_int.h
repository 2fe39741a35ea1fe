/* What the files of src/admin share. */
#ifndef EEP_ADMIN_INT_H
#define EEP_ADMIN_INT_H

#include <jansson.h>
#include <openssl/types.h>

#include "admin/admin.h"
#include "admin/endpoint.h"
#include "admin/http.h"

/* ---- request.c: bodies ---- */

/** What is wrong with a body. */
struct eep_admin_wrong {
    char field[EEP_ADMIN_WORD_MAX]; /* "" if it is no field's fault */
    char message[512];
};

/** How a body names its fields. */
enum eep_admin_body {
    EEP_ADMIN_BODY_SCALE,
    EEP_ADMIN_BODY_SCALE_COMPATIBLE,
    EEP_ADMIN_BODY_DRAIN,
    EEP_ADMIN_BODY_REBALANCE,
};

/** False: *wrong_out is set and nothing is to be freed. An id is made where the body gives none. */
bool eep_admin_request_parse(enum eep_admin_body body, const char *text, size_t bytes,
                             struct eep_admin_request *request_out,
                             struct eep_admin_wrong *wrong_out);

/** The body of an abort: {} or {"id": ID}; id_out "" without. */
bool eep_admin_abort_parse(const char *text, size_t bytes, char id_out[EEP_ADMIN_ID_MAX + 1],
                           struct eep_admin_wrong *wrong_out);

/* ---- reply.c: answers as JSON ---- */

json_t *eep_admin_status_json(const struct eep_admin_status *status,
                              const struct eep_admin_operation *operation);
json_t *eep_admin_layout_json(const struct eep_admin_layout *layout);
json_t *eep_admin_operation_json(const struct eep_admin_operation *operation); /* null for NULL */
json_t *eep_admin_scaling_json(const struct eep_admin_scaling *scaling);
json_t *eep_admin_events_json(const struct eep_admin_events *events);
json_t *eep_admin_error_json(int code, const char *field, const char *message,
                             const struct eep_admin_operation *operation);

/* ---- route.c: from a request to an answer ---- */

struct eep_admin_answer {
    int code;
    json_t *json;      /* owned; NULL: no memory for it */
    const char *allow; /* of a 405 */
    bool waits;        /* for the verdict on `id`; code and json are not set */
    char id[EEP_ADMIN_ID_MAX + 1];
};

/** Answer a request whose body is complete. */
void eep_admin_route(const struct eep_admin_handlers *handlers, const struct eep_http_head *head,
                     const char *body, size_t body_bytes, struct eep_admin_answer *answer_out);

/** Has the engine decided on the operation that an answer waits for? */
bool eep_admin_route_decided(const struct eep_admin_handlers *handlers, const char *id,
                             struct eep_admin_answer *answer_out);

/** It has not in time. */
void eep_admin_route_late(const struct eep_admin_handlers *handlers, const char *id,
                          struct eep_admin_answer *answer_out);

/** An error that needs no handler. */
void eep_admin_route_error(int code, const char *message, struct eep_admin_answer *answer_out);

/** The body to send: malloc()ed, ends with a newline. NULL: no memory. */
char *eep_admin_answer_text(const struct eep_admin_answer *answer);
void eep_admin_answer_free(struct eep_admin_answer *answer);

/* ---- listen.c: sockets ---- */

struct eep_listener {
    struct eep_endpoint endpoint; /* the port is the real one */
    int fd;
    int lock_fd;            /* unix; -1 else */
    uint64_t device, inode; /* unix: of our socket, so that no other is removed */
};

EEP_MUST_CHECK enum eep_status eep_listen(const struct eep_endpoint *endpoint, bool plain,
                                          struct eep_listener *listener_out);
void eep_listen_end(struct eep_listener *listener);

/* ---- tls.c ---- */

EEP_MUST_CHECK enum eep_status eep_tls_server(const char *cert_file, const char *key_file,
                                              SSL_CTX **tls_out);

/** Are these the same, in a time that depends on neither? `expected` is never "". */
bool eep_token_equal(const char *token, const char *expected);

/* ---- server.c: connections ---- */

struct eep_server;

struct eep_server_params {
    struct eep_admin_handlers handlers;
    int listen_fd;
    SSL_CTX *tls;      /* NULL: plain */
    const char *token; /* "": none needed */
    uint32_t connections_max;
    uint32_t request_timeout_ms;
    uint32_t verdict_timeout_ms;
};

EEP_MUST_CHECK enum eep_status eep_server_create(const struct eep_server_params *params,
                                                 struct eep_server **server_out);
/** Serve until eep_server_stop(). */
void eep_server_run(struct eep_server *server);
/** From any thread. */
void eep_server_stop(struct eep_server *server);
void eep_server_destroy(struct eep_server *server);

#endif
