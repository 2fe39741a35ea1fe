/*
 * HTTP/1.1 as the admin endpoint speaks it: request heads read strictly, response heads written.
 * Pure functions over bytes; the connections are in server.c.
 *
 * Read: a request line, header lines, each ended by CR LF; bodies by Content-Length only. What is
 * ambiguous is refused: folded lines, bare LF, control characters, doubled lengths, transfer
 * codings.
 */
#ifndef EEP_ADMIN_HTTP_H
#define EEP_ADMIN_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "admin/endpoint.h"

#define EEP_HTTP_HEAD_MAX ((size_t)8192) /* bytes of a request's head */
#define EEP_HTTP_BODY_MAX ((size_t)65536)
#define EEP_HTTP_LINES_MAX 64
#define EEP_HTTP_PATH_MAX 128
#define EEP_HTTP_QUERY_MAX 256

enum eep_http_method {
    EEP_HTTP_GET,
    EEP_HTTP_POST,
    EEP_HTTP_OTHER, /* a method that no path takes */
};

/** What a request says before its body. */
struct eep_http_head {
    enum eep_http_method method;
    char path[EEP_HTTP_PATH_MAX];   /* as sent, before the '?' */
    char query[EEP_HTTP_QUERY_MAX]; /* after it; "" without */
    bool keep_alive;
    bool expects_continue;
    uint64_t body_bytes;
    char token[EEP_TOKEN_MAX + 1]; /* of "Authorization: Bearer TOKEN"; "" without */
    size_t head_bytes;             /* up to and with the empty line */
};

enum eep_http_result {
    EEP_HTTP_MORE,  /* the head is not complete */
    EEP_HTTP_READY, /* *head_out is set */
    EEP_HTTP_BAD,   /* *wrong_out is set; nothing after can be understood */
};

/** Why a request is refused. */
struct eep_http_wrong {
    int code;
    char message[256];
};

/** Read a head from the first bytes of a connection. Never reads past `count`. */
enum eep_http_result eep_http_parse(const char *bytes, size_t count, struct eep_http_head *head_out,
                                    struct eep_http_wrong *wrong_out);

/**
 * The value of `name` in a query "a=1&b=2".
 *
 * @return false if the query is malformed: a name without '=', an unknown or doubled name, a '%'
 */
bool eep_http_query(const char *query, const char *name, char *value, size_t size, bool *given_out);

/** "Bad Request" of 400; never NULL. */
const char *eep_http_reason(int code);

#endif
