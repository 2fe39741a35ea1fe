/*
 * Where an admin endpoint is: unix:PATH, or HOST:PORT (an IPv6 address in brackets). The server and
 * eepctl read the same words.
 */
#ifndef EEP_ADMIN_ENDPOINT_H
#define EEP_ADMIN_ENDPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/status.h"

#define EEP_ENDPOINT_PATH_MAX sizeof(((struct sockaddr_un *)0)->sun_path)
#define EEP_ENDPOINT_HOST_MAX 254
#define EEP_ENDPOINT_TEXT_MAX 272

struct eep_endpoint {
    bool is_unix;
    char path[EEP_ENDPOINT_PATH_MAX]; /* unix */
    char host[EEP_ENDPOINT_HOST_MAX]; /* else; without brackets */
    char port[6];                     /* decimal, 0 .. 65535 */
};

/**
 * Read an endpoint; nothing is resolved.
 *
 * @retval EEP_ERR_INVALID  says what is wrong with it: the form, a path too long for a socket, a
 * port
 */
EEP_MUST_CHECK enum eep_status eep_endpoint_parse(const char *text,
                                                  struct eep_endpoint *endpoint_out);

/** The endpoint as text, as eep_endpoint_parse() reads it. */
void eep_endpoint_text(const struct eep_endpoint *endpoint, char text[EEP_ENDPOINT_TEXT_MAX]);

/**
 * The default endpoint: unix:/tmp/eep-UID/admin.sock. It depends on the user alone, not on the
 * login session, so that a job and a shell on the same node agree on it (/run/user/UID exists only
 * while its user is logged in).
 */
void eep_endpoint_default(struct eep_endpoint *endpoint_out);

/**
 * Check the directory of a Unix socket: this user's and closed to others, so that nobody else can
 * have put a socket there. A directory that is not there is all right.
 *
 * @param create  make it, mode 0700, if it is not there
 *
 * @retval EEP_ERR_INVALID  no directory, another user's, or open to others
 * @retval EEP_ERR_IO       it cannot be made or looked at
 */
EEP_MUST_CHECK enum eep_status eep_endpoint_dir(const struct eep_endpoint *endpoint, bool create);

/** True for 127.0.0.0/8 and ::1 (also as an IPv4 address in IPv6): no other machine is reached. */
bool eep_endpoint_is_loopback(const struct sockaddr *address);

/** Longest bearer token, and the shortest that is taken. */
#define EEP_TOKEN_MAX 256
#define EEP_TOKEN_MIN 16

/**
 * The bearer token: the first line of a file, or $EEP_ADMIN_TOKEN. Never logged.
 *
 * @param file       NULL: from the environment
 * @param token_out  "" if there is neither
 *
 * @retval EEP_ERR_IO       the file cannot be read
 * @retval EEP_ERR_INVALID  too short, too long, or a character that a header cannot hold
 */
EEP_MUST_CHECK enum eep_status eep_token_load(const char *file, char token_out[EEP_TOKEN_MAX + 1]);

#endif
