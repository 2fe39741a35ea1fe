/* A connection to the server: bytes out and in, plain or by TLS. */
#ifndef EEP_EEPCTL_LINK_H
#define EEP_EEPCTL_LINK_H

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stddef.h>

#include "admin/endpoint.h"

struct eepctl_link {
    int fd;
    SSL *ssl; /* NULL: plain */
};

/** Settings for all TLS connections; NULL as ca_file: the system's CAs. */
EEP_MUST_CHECK enum eep_status eepctl_link_tls(const char *ca_file, SSL_CTX **tls_out);

/**
 * Connect, and with TLS shake hands.
 *
 * @param tls        NULL: plain
 */
EEP_MUST_CHECK enum eep_status eepctl_link_open(const struct eep_endpoint *endpoint, SSL_CTX *tls,
                                                struct eepctl_link *link_out);
void eepctl_link_close(struct eepctl_link *link);

EEP_MUST_CHECK enum eep_status eepctl_link_write(struct eepctl_link *link, const char *bytes,
                                                 size_t count);

/** Read at most `count` bytes; *got_out is 0 at the end. */
EEP_MUST_CHECK enum eep_status eepctl_link_read(struct eepctl_link *link, char *bytes, size_t count,
                                                size_t *got_out);

/** Is every address of this endpoint loopback (or is it a Unix socket)? */
EEP_MUST_CHECK enum eep_status eepctl_link_is_local(const struct eep_endpoint *endpoint,
                                                    bool *local_out);

#endif
