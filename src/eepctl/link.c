/* Connections: resolving, connecting with a time limit, TLS with the server's name checked. */
#include "eepctl/link.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define CONNECT_MS 5000
#define IO_S 20

/* ---- sockets ---- */

static void set_limits(int fd)
{
    const struct timeval limit = {.tv_sec = IO_S};

    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

/* 0, or an errno. */
static int connect_in_time(int fd, const struct sockaddr *address, socklen_t length)
{
    struct pollfd wait = {.fd = fd, .events = POLLOUT};
    socklen_t size = sizeof(int);
    int error = 0;

    if (connect(fd, address, length) == 0) {
        return 0;
    }
    if (errno != EINPROGRESS) {
        return errno;
    }
    if (poll(&wait, 1, CONNECT_MS) != 1) {
        return ETIMEDOUT;
    }
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

/* 0, or an errno. */
static int try_address(const struct sockaddr *address, socklen_t length, int *fd_out)
{
    const int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int error;

    if (fd < 0) {
        return errno;
    }
    error = connect_in_time(fd, address, length);
    if (error != 0 || fcntl(fd, F_SETFL, 0) != 0) {
        close(fd);
        return error != 0 ? error : EIO;
    }
    set_limits(fd);
    *fd_out = fd;
    return 0;
}

static enum eep_status nobody(const struct eep_endpoint *endpoint, int error)
{
    char text[EEP_ENDPOINT_TEXT_MAX];
    const bool none = error == ENOENT || error == ECONNREFUSED;

    eep_endpoint_text(endpoint, text);
    return EEP_FAIL(
        none ? EEP_ERR_AGAIN : EEP_ERR_IO, "%s: %s%s", text,
        none ? "no engine serves this endpoint: " : "cannot connect: ", strerror(error));
}

static enum eep_status resolve(const struct eep_endpoint *endpoint, struct addrinfo **infos_out)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    const int error = getaddrinfo(endpoint->host, endpoint->port, &hints, infos_out);

    return error == 0 ? EEP_OK
                      : EEP_FAIL(EEP_ERR_INVALID, "%s: %s", endpoint->host, gai_strerror(error));
}

static enum eep_status connect_unix(const struct eep_endpoint *endpoint, int *fd_out)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int error;

    memcpy(address.sun_path, endpoint->path, sizeof(address.sun_path));
    error = try_address((const void *)&address, sizeof(address), fd_out);
    return error == 0 ? EEP_OK : nobody(endpoint, error);
}

static enum eep_status connect_tcp(const struct eep_endpoint *endpoint, bool plain, int *fd_out)
{
    struct addrinfo *infos;
    int error = EHOSTUNREACH;

    EEP_TRY(resolve(endpoint, &infos));
    for (const struct addrinfo *info = infos; info != NULL && error != 0; info = info->ai_next) {
        if (!plain || eep_endpoint_is_loopback(info->ai_addr)) {
            error = try_address(info->ai_addr, info->ai_addrlen, fd_out);
        }
    }
    freeaddrinfo(infos);
    return error == 0 ? EEP_OK : nobody(endpoint, error);
}

enum eep_status eepctl_link_is_local(const struct eep_endpoint *endpoint, bool *local_out)
{
    struct addrinfo *infos;

    *local_out = true;
    if (endpoint->is_unix) {
        return EEP_OK;
    }
    EEP_TRY(resolve(endpoint, &infos));
    for (const struct addrinfo *info = infos; info != NULL; info = info->ai_next) {
        *local_out = *local_out && eep_endpoint_is_loopback(info->ai_addr);
    }
    freeaddrinfo(infos);
    return EEP_OK;
}

/* ---- TLS ---- */

static enum eep_status fail_tls(enum eep_status status, const char *what, const char *name)
{
    const unsigned long error = ERR_peek_last_error();
    char text[256] = "the connection broke";

    if (error != 0) {
        ERR_error_string_n(error, text, sizeof(text));
    }
    ERR_clear_error();
    return EEP_FAIL(status, "%s %s: %s", what, name, text);
}

enum eep_status eepctl_link_tls(const char *ca_file, SSL_CTX **tls_out)
{
    SSL_CTX *tls = SSL_CTX_new(TLS_client_method());
    int good;

    if (tls == NULL) {
        return fail_tls(EEP_ERR_NOMEM, "TLS", "context");
    }
    (void)SSL_CTX_set_min_proto_version(tls, TLS1_2_VERSION);
    (void)SSL_CTX_set_options(tls, SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_verify(tls, SSL_VERIFY_PEER, NULL);
    good = ca_file != NULL ? SSL_CTX_load_verify_file(tls, ca_file)
                           : SSL_CTX_set_default_verify_paths(tls);
    if (good != 1) {
        SSL_CTX_free(tls);
        return fail_tls(EEP_ERR_INVALID, "certificates of",
                        ca_file != NULL ? ca_file : "the system");
    }
    *tls_out = tls;
    return EEP_OK;
}

/* The certificate must be for the name, or the address, that was asked for. */
static bool expect_name(SSL *ssl, const char *host)
{
    unsigned char address[sizeof(struct in6_addr)];

    if (inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1) {
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) == 1;
    }
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return SSL_set1_host(ssl, host) == 1 && SSL_set_tlsext_host_name(ssl, host) == 1;
}

static enum eep_status shake_hands(SSL_CTX *tls, const char *host, struct eepctl_link *link)
{
    long verified;

    link->ssl = SSL_new(tls);
    if (link->ssl == NULL || !expect_name(link->ssl, host) ||
        SSL_set_fd(link->ssl, link->fd) != 1) {
        return fail_tls(EEP_ERR_NOMEM, "TLS to", host);
    }
    if (SSL_connect(link->ssl) == 1) {
        return EEP_OK;
    }
    verified = SSL_get_verify_result(link->ssl);
    if (verified != X509_V_OK) {
        ERR_clear_error();
        return EEP_FAIL(EEP_ERR_INVALID, "TLS to %s: its certificate is not trusted: %s", host,
                        X509_verify_cert_error_string(verified));
    }
    return fail_tls(EEP_ERR_IO, "TLS to", host);
}

/* ---- the link ---- */

enum eep_status eepctl_link_open(const struct eep_endpoint *endpoint, SSL_CTX *tls,
                                 struct eepctl_link *link_out)
{
    struct eepctl_link link = {.fd = -1};

    EEP_TRY(endpoint->is_unix ? connect_unix(endpoint, &link.fd)
                              : connect_tcp(endpoint, tls == NULL, &link.fd));
    if (tls != NULL) {
        const enum eep_status status = shake_hands(tls, endpoint->host, &link);

        if (status != EEP_OK) {
            eepctl_link_close(&link);
            return status;
        }
    }
    *link_out = link;
    return EEP_OK;
}

void eepctl_link_close(struct eepctl_link *link)
{
    SSL_free(link->ssl);
    if (link->fd >= 0) {
        close(link->fd);
    }
    *link = (struct eepctl_link){.fd = -1};
}

static enum eep_status broken(const char *what, int error)
{
    if (error == EAGAIN || error == EWOULDBLOCK) {
        return EEP_FAIL(EEP_ERR_TIMEOUT, "%s: no answer within %d s", what, IO_S);
    }
    return EEP_FAIL(EEP_ERR_IO, "%s: the connection broke: %s", what,
                    error != 0 ? strerror(error) : "closed by the engine");
}

enum eep_status eepctl_link_write(struct eepctl_link *link, const char *bytes, size_t count)
{
    while (count > 0) {
        const ssize_t done = link->ssl != NULL ? (ssize_t)SSL_write(link->ssl, bytes, (int)count)
                                               : send(link->fd, bytes, count, MSG_NOSIGNAL);

        if (done <= 0) {
            if (link->ssl == NULL && errno == EINTR) {
                continue;
            }
            return broken("sending the request", errno);
        }
        bytes += done;
        count -= (size_t)done;
    }
    return EEP_OK;
}

enum eep_status eepctl_link_read(struct eepctl_link *link, char *bytes, size_t count,
                                 size_t *got_out)
{
    ssize_t got;

    do {
        errno = 0;
        got = link->ssl != NULL ? (ssize_t)SSL_read(link->ssl, bytes, (int)count)
                                : recv(link->fd, bytes, count, 0);
    } while (got < 0 && link->ssl == NULL && errno == EINTR);
    if (got < 0 && link->ssl != NULL &&
        SSL_get_error(link->ssl, (int)got) == SSL_ERROR_ZERO_RETURN) {
        got = 0;
    }
    if (got < 0) {
        return broken("waiting for the answer", errno);
    }
    *got_out = (size_t)got;
    return EEP_OK;
}
