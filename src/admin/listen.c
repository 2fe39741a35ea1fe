/*
 * Listening sockets. A Unix socket is guarded by PATH.lock: whoever holds the lock may replace the
 * socket. The kernel drops the lock with its process, so a dead process's socket is known as such.
 */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "admin/admin_int.h"

#define BACKLOG 64

struct lock_path {
    char text[EEP_ENDPOINT_PATH_MAX + 8];
};

static struct lock_path lock_path(const struct eep_endpoint *endpoint)
{
    struct lock_path path;

    snprintf(path.text, sizeof(path.text), "%s.lock", endpoint->path);
    return path;
}

static enum eep_status in_use(const struct eep_endpoint *endpoint)
{
    return EEP_FAIL(EEP_ERR_AGAIN,
                    "unix:%s: another process serves this endpoint; name another one",
                    endpoint->path);
}

/* ---- lock ---- */

/* The holder removes the file at its end: the one that we have locked may be gone by then. */
static bool is_current(int fd, const char *path)
{
    struct stat ours, there;

    return fstat(fd, &ours) == 0 && lstat(path, &there) == 0 && ours.st_dev == there.st_dev &&
           ours.st_ino == there.st_ino;
}

static enum eep_status lock(const struct eep_endpoint *endpoint, int *fd_out)
{
    const struct lock_path path = lock_path(endpoint);

    for (int tries = 0; tries < 100; tries++) {
        const int fd = open(path.text, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);

        if (fd < 0) {
            return EEP_FAIL(EEP_ERR_IO, "%s: cannot be opened: %s", path.text, strerror(errno));
        }
        if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
            const int error = errno;

            close(fd);
            return error == EWOULDBLOCK
                       ? in_use(endpoint)
                       : EEP_FAIL(EEP_ERR_IO, "%s: flock: %s", path.text, strerror(error));
        }
        if (is_current(fd, path.text)) {
            *fd_out = fd;
            return EEP_OK;
        }
        close(fd);
    }
    return in_use(endpoint);
}

static void unlock(const struct eep_endpoint *endpoint, int fd)
{
    if (fd >= 0) {
        const struct lock_path path = lock_path(endpoint);

        (void)unlink(path.text); /* while it is still locked */
        close(fd);
    }
}

/* ---- Unix ---- */

static void fill_address(const struct eep_endpoint *endpoint, struct sockaddr_un *address)
{
    memset(address, 0, sizeof(*address));
    address->sun_family = AF_UNIX;
    memcpy(address->sun_path, endpoint->path, sizeof(address->sun_path));
}

/* Does somebody who knows nothing of our lock listen there? */
static bool is_alive(const struct sockaddr_un *address)
{
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool refused;

    if (fd < 0) {
        return true;
    }
    refused = connect(fd, (const void *)address, sizeof(*address)) != 0 && errno == ECONNREFUSED;
    close(fd);
    return !refused;
}

static enum eep_status remove_stale(const struct eep_endpoint *endpoint,
                                    const struct sockaddr_un *address)
{
    struct stat st;

    if (lstat(endpoint->path, &st) != 0) {
        return errno == ENOENT
                   ? EEP_OK
                   : EEP_FAIL(EEP_ERR_IO, "unix:%s: %s", endpoint->path, strerror(errno));
    }
    if (!S_ISSOCK(st.st_mode)) {
        return EEP_FAIL(EEP_ERR_INVALID,
                        "unix:%s: there is something that is no socket; it is left "
                        "as it is",
                        endpoint->path);
    }
    if (is_alive(address)) {
        return in_use(endpoint);
    }
    if (unlink(endpoint->path) != 0 && errno != ENOENT) {
        return EEP_FAIL(EEP_ERR_IO,
                        "unix:%s: the socket of a process that ended cannot be removed: %s",
                        endpoint->path, strerror(errno));
    }
    return EEP_OK;
}

/* The mode is set before bind(): Linux gives it to the file, so it is never open to others. */
static enum eep_status bind_unix(struct eep_listener *l, const struct sockaddr_un *address)
{
    struct stat st;

    if (fchmod(l->fd, 0600) != 0 || bind(l->fd, (const void *)address, sizeof(*address)) != 0) {
        return EEP_FAIL(EEP_ERR_IO, "unix:%s: bind: %s", l->endpoint.path, strerror(errno));
    }
    if (lstat(l->endpoint.path, &st) != 0 || !S_ISSOCK(st.st_mode) || (st.st_mode & 077) != 0) {
        (void)unlink(l->endpoint.path);
        return EEP_FAIL(EEP_ERR_IO, "unix:%s: the socket could not be kept from others",
                        l->endpoint.path);
    }
    l->device = (uint64_t)st.st_dev;
    l->inode = (uint64_t)st.st_ino;
    if (listen(l->fd, BACKLOG) != 0) {
        (void)unlink(l->endpoint.path);
        return EEP_FAIL(EEP_ERR_IO, "unix:%s: listen: %s", l->endpoint.path, strerror(errno));
    }
    return EEP_OK;
}

static enum eep_status listen_unix(struct eep_listener *l)
{
    enum eep_status status;
    struct sockaddr_un address;

    fill_address(&l->endpoint, &address);
    EEP_TRY(eep_endpoint_dir(&l->endpoint, true));
    EEP_TRY(lock(&l->endpoint, &l->lock_fd));
    EEP_TRY_GOTO(remove_stale(&l->endpoint, &address), drop_lock);
    l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->fd < 0) {
        status = EEP_FAIL(EEP_ERR_IO, "unix:%s: socket: %s", l->endpoint.path, strerror(errno));
        goto drop_lock;
    }
    EEP_TRY_GOTO(bind_unix(l, &address), close_socket);
    return EEP_OK;

close_socket:
    close(l->fd);
drop_lock:
    /* in_use(): the lock is ours, the socket is not, and nobody needs our lock file */
    unlock(&l->endpoint, l->lock_fd);
    return status;
}

/* ---- TCP ---- */

static enum eep_status bind_tcp(struct eep_listener *l, const struct addrinfo *info)
{
    const int one = 1;

    l->fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->fd < 0) {
        return EEP_FAIL(EEP_ERR_IO, "endpoint %s:%s: socket: %s", l->endpoint.host,
                        l->endpoint.port, strerror(errno));
    }
    if (setsockopt(l->fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) != 0 ||
        bind(l->fd, info->ai_addr, info->ai_addrlen) != 0 || listen(l->fd, BACKLOG) != 0) {
        const int error = errno;

        close(l->fd);
        return EEP_FAIL(error == EADDRINUSE ? EEP_ERR_AGAIN : EEP_ERR_IO,
                        "endpoint %s:%s: cannot be listened on: %s", l->endpoint.host,
                        l->endpoint.port, strerror(error));
    }
    return EEP_OK;
}

static void learn_port(struct eep_listener *l)
{
    struct sockaddr_storage address;
    socklen_t length = sizeof(address);
    unsigned port = 0;

    if (getsockname(l->fd, (void *)&address, &length) == 0) {
        port = ntohs(address.ss_family == AF_INET6
                         ? ((const struct sockaddr_in6 *)(const void *)&address)->sin6_port
                         : ((const struct sockaddr_in *)(const void *)&address)->sin_port);
    }
    snprintf(l->endpoint.port, sizeof(l->endpoint.port), "%u", port & 65535u);
}

static enum eep_status listen_tcp(struct eep_listener *l, bool plain)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *infos = NULL;
    enum eep_status status;
    const int error = getaddrinfo(l->endpoint.host, l->endpoint.port, &hints, &infos);

    if (error != 0) {
        return EEP_FAIL(EEP_ERR_INVALID, "endpoint %s:%s: %s", l->endpoint.host, l->endpoint.port,
                        gai_strerror(error));
    }
    if (plain && !eep_endpoint_is_loopback(infos->ai_addr)) {
        status = EEP_FAIL(EEP_ERR_INVALID,
                          "endpoint %s:%s: other machines can reach it, so it needs TLS (a "
                          "certificate and its key); without, use a loopback address or unix:PATH",
                          l->endpoint.host, l->endpoint.port);
    } else {
        status = bind_tcp(l, infos);
    }
    freeaddrinfo(infos);
    if (status == EEP_OK) {
        learn_port(l);
    }
    return status;
}

enum eep_status eep_listen(const struct eep_endpoint *endpoint, bool plain,
                           struct eep_listener *listener_out)
{
    struct eep_listener l = {.endpoint = *endpoint, .fd = -1, .lock_fd = -1};

    EEP_TRY(endpoint->is_unix ? listen_unix(&l) : listen_tcp(&l, plain));
    *listener_out = l;
    return EEP_OK;
}

void eep_listen_end(struct eep_listener *l)
{
    struct stat st;

    if (l->endpoint.is_unix && lstat(l->endpoint.path, &st) == 0 && S_ISSOCK(st.st_mode) &&
        (uint64_t)st.st_dev == l->device && (uint64_t)st.st_ino == l->inode) {
        (void)unlink(l->endpoint.path);
    }
    unlock(&l->endpoint, l->lock_fd);
    close(l->fd);
}
