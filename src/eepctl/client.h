/*
 * The client's side of the admin endpoint: one connection a request, over a Unix socket, TCP or
 * TLS.
 */
#ifndef EEP_EEPCTL_CLIENT_H
#define EEP_EEPCTL_CLIENT_H

#include <jansson.h>

#include "base/status.h"

struct eepctl_client;

struct eepctl_client_params {
    const char *endpoint;   /* NULL: $EEP_ADMIN, else the default Unix socket */
    const char *token_file; /* NULL: $EEP_ADMIN_TOKEN */
    const char *ca_file;    /* TLS, trusting what this file holds; NULL: see below */
};

struct eepctl_reply {
    int code;     /* HTTP */
    json_t *json; /* the body; owned by the caller */
};

/**
 * Read the parameters; connects to nothing yet.
 *
 * TLS is spoken on TCP when a CA file is given, and to every address that is not loopback (with the
 * system's CAs then): a token never crosses a network unprotected.
 */
EEP_MUST_CHECK enum eep_status eepctl_client_open(const struct eepctl_client_params *params,
                                                  struct eepctl_client **client_out);
void eepctl_client_close(struct eepctl_client *client);

/** The endpoint, for messages. */
const char *eepctl_client_address(const struct eepctl_client *client);

/**
 * Ask and get the answer, errors of the server included.
 *
 * @param path  with the query
 * @param body  NULL: a GET; else a POST
 *
 * @retval EEP_ERR_AGAIN    nobody listens there: nothing was sent
 * @retval EEP_ERR_TIMEOUT  no answer in time
 * @retval EEP_ERR_IO       the connection broke; the request may have been taken
 * @retval EEP_ERR_FORMAT   the answer is no HTTP with JSON
 * @retval EEP_ERR_INVALID  TLS: the server's certificate is not trusted, or has another name
 */
EEP_MUST_CHECK enum eep_status eepctl_client_ask(struct eepctl_client *client, const char *path,
                                                 const json_t *body,
                                                 struct eepctl_reply *reply_out);

#endif
