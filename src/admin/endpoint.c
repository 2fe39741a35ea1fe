/*
 * Endpoints as text, the default one, and the token that goes with those on TCP.
 */
#include "admin/endpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"

#define TOKEN_ENV "EEP_ADMIN_TOKEN"

static enum eep_status parse_path(const char *path, struct eep_endpoint *out)
{
    if (path[0] == '\0') {
        return EEP_FAIL(EEP_ERR_INVALID, "endpoint 'unix:' names no path; use unix:PATH");
    }
    if (strlen(path) >= sizeof(out->path)) {
        return EEP_FAIL(
            EEP_ERR_INVALID,
            "endpoint 'unix:%s': the path has %zu bytes, a socket's may have %zu; use a "
            "shorter one",
            path, strlen(path), sizeof(out->path) - 1);
    }
    out->is_unix = true;
    strcpy(out->path, path);
    return EEP_OK;
}

static bool parse_port(const char *text, char port[6])
{
    const size_t length = strlen(text);

    if (length < 1 || length > 5 || strspn(text, "0123456789") != length ||
        strtoul(text, NULL, 10) > 65535) {
        return false;
    }
    strcpy(port, text);
    return true;
}

static enum eep_status parse_host(const char *text, struct eep_endpoint *out)
{
    const char *colon = strrchr(text, ':');
    const char *host = text;
    size_t length = colon != NULL ? (size_t)(colon - text) : 0;

    if (colon == NULL || length == 0) {
        return EEP_FAIL(EEP_ERR_INVALID, "endpoint '%s': use unix:PATH or HOST:PORT", text);
    }
    if (text[0] == '[' && text[length - 1] == ']') {
        host++;
        length -= 2;
    } else if (memchr(text, ':', length) != NULL) {
        return EEP_FAIL(EEP_ERR_INVALID,
                        "endpoint '%s': put an IPv6 address in brackets: [ADDRESS]:PORT", text);
    }
    if (length == 0 || length >= sizeof(out->host) || memchr(host, '[', length) != NULL ||
        memchr(host, ']', length) != NULL || memchr(host, '/', length) != NULL) {
        return EEP_FAIL(EEP_ERR_INVALID, "endpoint '%s': no host name or address before the port",
                        text);
    }
    if (!parse_port(colon + 1, out->port)) {
        return EEP_FAIL(EEP_ERR_INVALID, "endpoint '%s': '%s' is no port, 0 to 65535", text,
                        colon + 1);
    }
    out->is_unix = false;
    memcpy(out->host, host, length);
    out->host[length] = '\0';
    return EEP_OK;
}

enum eep_status eep_endpoint_parse(const char *text, struct eep_endpoint *endpoint_out)
{
    struct eep_endpoint endpoint;

    memset(&endpoint, 0, sizeof(endpoint));
    if (strncmp(text, "unix:", 5) == 0) {
        EEP_TRY(parse_path(text + 5, &endpoint));
    } else {
        EEP_TRY(parse_host(text, &endpoint));
    }
    *endpoint_out = endpoint;
    return EEP_OK;
}

void eep_endpoint_text(const struct eep_endpoint *endpoint, char text[EEP_ENDPOINT_TEXT_MAX])
{
    if (endpoint->is_unix) {
        snprintf(text, EEP_ENDPOINT_TEXT_MAX, "unix:%s", endpoint->path);
    } else if (strchr(endpoint->host, ':') != NULL) {
        snprintf(text, EEP_ENDPOINT_TEXT_MAX, "[%s]:%s", endpoint->host, endpoint->port);
    } else {
        snprintf(text, EEP_ENDPOINT_TEXT_MAX, "%s:%s", endpoint->host, endpoint->port);
    }
}

/* Another user could have made the directory before us: then everything in it is his. */
static enum eep_status check_dir(const char *dir)
{
    struct stat st;

    if (lstat(dir, &st) != 0) {
        if (errno == ENOENT) {
            return EEP_OK; /* for a client: connecting will say so */
        }
        return EEP_FAIL(EEP_ERR_IO, "%s: %s", dir, strerror(errno));
    }
    if (!S_ISDIR(st.st_mode)) {
        return EEP_FAIL(EEP_ERR_INVALID, "%s is no directory; remove it, or name another endpoint",
                        dir);
    }
    if (st.st_uid != geteuid()) {
        return EEP_FAIL(EEP_ERR_INVALID,
                        "%s belongs to user %u, not to user %u; name another endpoint", dir,
                        (unsigned)st.st_uid, (unsigned)geteuid());
    }
    if ((st.st_mode & 077) != 0) {
        return EEP_FAIL(EEP_ERR_INVALID,
                        "%s has mode %04o: a socket's directory must be closed to others; chmod "
                        "700 it, or name another endpoint",
                        dir, (unsigned)(st.st_mode & 07777));
    }
    return EEP_OK;
}

enum eep_status eep_endpoint_dir(const struct eep_endpoint *endpoint, bool create)
{
    char dir[EEP_ENDPOINT_PATH_MAX];
    const char *slash = strrchr(endpoint->path, '/');
    const size_t length = slash == NULL ? 0 : (size_t)(slash - endpoint->path);

    memcpy(dir, endpoint->path, length);
    dir[length] = '\0';
    if (length == 0) {
        strcpy(dir, slash == NULL ? "." : "/");
    }
    if (create && mkdir(dir, 0700) != 0 && errno != EEXIST) {
        return EEP_FAIL(EEP_ERR_IO, "%s: cannot be made: %s", dir, strerror(errno));
    }
    return check_dir(dir);
}

void eep_endpoint_default(struct eep_endpoint *endpoint_out)
{
    memset(endpoint_out, 0, sizeof(*endpoint_out));
    endpoint_out->is_unix = true;
    snprintf(endpoint_out->path, sizeof(endpoint_out->path), "/tmp/eep-%u/admin.sock",
             (unsigned)geteuid());
}

bool eep_endpoint_is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const void *)address;

        return ntohl(v4->sin_addr.s_addr) >> 24 == 127;
    }
    if (address->sa_family == AF_INET6) {
        const struct in6_addr *v6 =
            &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;

        return IN6_IS_ADDR_LOOPBACK(v6) || (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == 127);
    }
    return address->sa_family == AF_UNIX;
}

/* ---- token ---- */

static enum eep_status check_token(const char *token, const char *where)
{
    const size_t length = strlen(token);

    if (length < EEP_TOKEN_MIN || length > EEP_TOKEN_MAX) {
        return EEP_FAIL(EEP_ERR_INVALID, "%s: a token of %zu characters; it needs %d to %d", where,
                        length, EEP_TOKEN_MIN, EEP_TOKEN_MAX);
    }
    for (size_t i = 0; i < length; i++) {
        if (token[i] <= ' ' || token[i] > '~') {
            return EEP_FAIL(EEP_ERR_INVALID,
                            "%s: character %zu of the token is no printable ASCII character", where,
                            i + 1);
        }
    }
    return EEP_OK;
}

static enum eep_status read_token(const char *path, char *text, size_t size)
{
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0 || fstat(fd, &st) != 0) {
        const int error = errno;

        if (fd >= 0) {
            close(fd);
        }
        return EEP_FAIL(EEP_ERR_IO, "token file %s: %s", path, strerror(error));
    }
    if (S_ISREG(st.st_mode) && (st.st_mode & 077) != 0) {
        eep_log(EEP_LOG_WARN, "token file %s: mode %04o lets others read it; chmod 600 it", path,
                (unsigned)(st.st_mode & 07777));
    }
    const ssize_t length = read(fd, text, size - 1);
    const int error = errno;
    close(fd);
    if (length < 0) {
        return EEP_FAIL(EEP_ERR_IO, "token file %s: %s", path, strerror(error));
    }
    text[length] = '\0';
    text[strcspn(text, "\r\n")] = '\0';
    return EEP_OK;
}

enum eep_status eep_token_load(const char *file, char token_out[EEP_TOKEN_MAX + 1])
{
    char text[EEP_TOKEN_MAX + 3]; /* one more than fits, and a line's end: too long is seen */
    const char *env = getenv(TOKEN_ENV);
    enum eep_status status = EEP_OK;

    if (file == NULL) {
        if (env == NULL || env[0] == '\0') {
            token_out[0] = '\0';
            return EEP_OK;
        }
        EEP_TRY(check_token(env, TOKEN_ENV));
        strcpy(token_out, env);
        return EEP_OK;
    }
    EEP_TRY(read_token(file, text, sizeof(text)));
    status = check_token(text, file);
    if (status == EEP_OK) {
        strcpy(token_out, text);
    }
    explicit_bzero(text, sizeof(text));
    return status;
}
