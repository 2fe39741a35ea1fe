/* Opening and closing: parameters to a socket, a server and its thread. */
#include "admin/admin.h"

#include <errno.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>

#include "admin/admin_int.h"
#include "base/log.h"
#include "base/mem.h"

#define CONNECTIONS_MAX 64
#define REQUEST_TIMEOUT_MS 10000
#define VERDICT_TIMEOUT_MS 5000

struct eep_admin {
    struct eep_listener listener;
    SSL_CTX *tls;                  /* NULL: plain */
    char token[EEP_TOKEN_MAX + 1]; /* "": none needed */
    char address[EEP_ENDPOINT_TEXT_MAX];
    struct eep_server *server;
    pthread_t thread;
};

static enum eep_status find_endpoint(const struct eep_admin_params *params,
                                     struct eep_endpoint *endpoint_out)
{
    if (params->endpoint != NULL) {
        return eep_endpoint_parse(params->endpoint, endpoint_out);
    }
    eep_endpoint_default(endpoint_out);
    return EEP_OK;
}

static enum eep_status check_secrets(const struct eep_admin_params *params,
                                     const struct eep_endpoint *endpoint, struct eep_admin *admin)
{
    const bool tls = params->cert_file != NULL || params->key_file != NULL;

    if (endpoint->is_unix) {
        return tls ? EEP_FAIL(EEP_ERR_INVALID, "unix:%s: a Unix socket needs no TLS",
                              endpoint->path)
                   : EEP_OK;
    }
    if (tls && (params->cert_file == NULL || params->key_file == NULL)) {
        return EEP_FAIL(EEP_ERR_INVALID, "TLS needs both, a certificate and its key");
    }
    EEP_TRY(eep_token_load(params->token_file, admin->token));
    if (admin->token[0] == '\0') {
        return EEP_FAIL(EEP_ERR_INVALID,
                        "endpoint %s:%s: TCP needs a token, by a file or in EEP_ADMIN_TOKEN",
                        endpoint->host, endpoint->port);
    }
    return tls ? eep_tls_server(params->cert_file, params->key_file, &admin->tls) : EEP_OK;
}

static enum eep_status make_server(const struct eep_admin_params *params,
                                   const struct eep_admin_handlers *handlers,
                                   struct eep_admin *admin)
{
    const struct eep_server_params p = {
        .handlers = *handlers,
        .listen_fd = admin->listener.fd,
        .tls = admin->tls,
        .token = admin->token,
        .connections_max = params->connections_max > 0 ? params->connections_max : CONNECTIONS_MAX,
        .request_timeout_ms =
            params->request_timeout_ms > 0 ? params->request_timeout_ms : REQUEST_TIMEOUT_MS,
        .verdict_timeout_ms =
            params->verdict_timeout_ms > 0 ? params->verdict_timeout_ms : VERDICT_TIMEOUT_MS,
    };

    return eep_server_create(&p, &admin->server);
}

static void *serve(void *context)
{
    eep_server_run(context);
    return NULL;
}

/* Signals are for the host's threads. A write to a closed connection raises SIGPIPE in the thread
 * that writes, where it stays blocked. */
static enum eep_status start_thread(struct eep_admin *admin)
{
    sigset_t all, before;
    int error;

    sigfillset(&all);
    error = pthread_sigmask(SIG_SETMASK, &all, &before);
    if (error == 0) {
        error = pthread_create(&admin->thread, NULL, serve, admin->server);
        (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    return error == 0 ? EEP_OK
                      : EEP_FAIL(EEP_ERR_IO, "admin: cannot start its thread: %s", strerror(error));
}

static void free_admin(struct eep_admin *admin)
{
    SSL_CTX_free(admin->tls);
    explicit_bzero(admin->token, sizeof(admin->token));
    eep_mem_free(admin);
}

enum eep_status eep_admin_open(const struct eep_admin_params *params,
                               const struct eep_admin_handlers *handlers,
                               struct eep_admin **admin_out)
{
    struct eep_endpoint endpoint;
    struct eep_admin *admin;
    enum eep_status status;

    EEP_TRY(find_endpoint(params, &endpoint));
    EEP_TRY(eep_mem_alloc(1, sizeof(*admin), "the admin endpoint", &admin));
    EEP_TRY_GOTO(check_secrets(params, &endpoint, admin), free_it);
    EEP_TRY_GOTO(eep_listen(&endpoint, admin->tls == NULL, &admin->listener), free_it);
    EEP_TRY_GOTO(make_server(params, handlers, admin), end_listening);
    EEP_TRY_GOTO(start_thread(admin), destroy_server);
    eep_endpoint_text(&admin->listener.endpoint, admin->address);
    eep_log(EEP_LOG_INFO, "admin: serves %s%s", admin->address,
            admin->tls != NULL ? " by TLS" : "");
    *admin_out = admin;
    return EEP_OK;

destroy_server:
    eep_server_destroy(admin->server);
end_listening:
    eep_listen_end(&admin->listener);
free_it:
    free_admin(admin);
    return status;
}

const char *eep_admin_address(const struct eep_admin *admin)
{
    return admin->address;
}

void eep_admin_close(struct eep_admin *admin)
{
    if (admin == NULL) {
        return;
    }
    eep_server_stop(admin->server);
    (void)pthread_join(admin->thread, NULL);
    eep_server_destroy(admin->server);
    eep_listen_end(&admin->listener);
    free_admin(admin);
}
