/* What needs OpenSSL besides the connections: the server's certificate and key, and tokens. */
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/sha.h>
#include <openssl/ssl.h>
#include <string.h>

#include "admin/admin_int.h"

/* An encrypted key would ask for its password on a terminal that nobody looks at. */
static int no_password(char *buffer, int size, int writing, void *context)
{
    (void)buffer;
    (void)size;
    (void)writing;
    (void)context;
    return -1;
}

static enum eep_status fail_tls(const char *what, const char *file)
{
    const unsigned long error = ERR_peek_last_error();
    char text[256];

    ERR_error_string_n(error, text, sizeof(text));
    ERR_clear_error();
    return EEP_FAIL(EEP_ERR_INVALID, "%s %s: %s", what, file, error != 0 ? text : "not usable");
}

enum eep_status eep_tls_server(const char *cert_file, const char *key_file, SSL_CTX **tls_out)
{
    enum eep_status status = EEP_OK;
    SSL_CTX *tls = SSL_CTX_new(TLS_server_method());

    if (tls == NULL) {
        return fail_tls("TLS", "context");
    }
    SSL_CTX_set_default_passwd_cb(tls, no_password);
    (void)SSL_CTX_set_min_proto_version(tls, TLS1_2_VERSION);
    (void)SSL_CTX_set_options(tls, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                       SSL_OP_IGNORE_UNEXPECTED_EOF);
    (void)SSL_CTX_set_session_cache_mode(tls, SSL_SESS_CACHE_OFF);
    if (SSL_CTX_use_certificate_chain_file(tls, cert_file) != 1) {
        status = fail_tls("certificate", cert_file);
    } else if (SSL_CTX_use_PrivateKey_file(tls, key_file, SSL_FILETYPE_PEM) != 1) {
        status = fail_tls("key (PEM, not encrypted)", key_file);
    } else if (SSL_CTX_check_private_key(tls) != 1) {
        status = fail_tls("key that belongs to the certificate", key_file);
    }
    if (status != EEP_OK) {
        SSL_CTX_free(tls);
        return status;
    }
    *tls_out = tls;
    return EEP_OK;
}

/* Digests have one length, so that not even the length of the right token can be measured. */
bool eep_token_equal(const char *token, const char *expected)
{
    unsigned char a[SHA256_DIGEST_LENGTH], b[SHA256_DIGEST_LENGTH];

    return SHA256((const void *)token, strlen(token), a) != NULL &&
           SHA256((const void *)expected, strlen(expected), b) != NULL &&
           CRYPTO_memcmp(a, b, sizeof(a)) == 0;
}
