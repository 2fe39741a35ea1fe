/*
 * The head of a request, read strictly. A head is first found whole (an empty line ends it), then
 * its lines are read one by one; no line is looked at twice.
 */
#include "admin/http.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "base/status.h"

/* A piece of the head; not ended by NUL. */
struct span {
    const char *at;
    size_t length;
};

struct reader {
    struct eep_http_head *head;
    struct eep_http_wrong *wrong;
    bool is_1_0;
    bool has_host;
    bool has_length;
    bool has_authorization;
};

static bool wrong(struct reader *r, int code, const char *fmt, ...) EEP_PRINTF(3, 4);

static bool wrong(struct reader *r, int code, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(r->wrong->message, sizeof(r->wrong->message), fmt, args);
    va_end(args);
    r->wrong->code = code;
    return false;
}

static bool is_token_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != '\0' && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

static bool equals(struct span s, const char *text)
{
    return s.length == strlen(text) && strncasecmp(s.at, text, s.length) == 0;
}

static bool equals_exactly(struct span s, const char *text)
{
    return s.length == strlen(text) && memcmp(s.at, text, s.length) == 0;
}

/* The part before the next `separator`; *rest goes behind it. False if there is none. */
static bool split(struct span *rest, char separator, struct span *part)
{
    const char *found = memchr(rest->at, separator, rest->length);

    if (found == NULL) {
        return false;
    }
    *part = (struct span){rest->at, (size_t)(found - rest->at)};
    rest->length -= part->length + 1;
    rest->at = found + 1;
    return true;
}

static struct span trimmed(struct span s)
{
    while (s.length > 0 && (s.at[0] == ' ' || s.at[0] == '\t')) {
        s.at++;
        s.length--;
    }
    while (s.length > 0 && (s.at[s.length - 1] == ' ' || s.at[s.length - 1] == '\t')) {
        s.length--;
    }
    return s;
}

/* ---- request line ---- */

static bool read_method(struct reader *r, struct span method)
{
    if (method.length == 0) {
        return wrong(r, 400, "the request line has no method");
    }
    for (size_t i = 0; i < method.length; i++) {
        if (!is_token_char(method.at[i])) {
            return wrong(r, 400, "the method has a character that is not allowed");
        }
    }
    r->head->method = equals_exactly(method, "GET")    ? EEP_HTTP_GET
                      : equals_exactly(method, "POST") ? EEP_HTTP_POST
                                                       : EEP_HTTP_OTHER;
    return true;
}

static bool read_target(struct reader *r, struct span target)
{
    struct span path;

    if (target.length == 0 || target.at[0] != '/') {
        return wrong(r, 400, "the request's path does not begin with '/'");
    }
    for (size_t i = 0; i < target.length; i++) {
        if (target.at[i] <= ' ' || target.at[i] > '~') {
            return wrong(r, 400, "the request's path has a character that is not allowed");
        }
    }
    if (!split(&target, '?', &path)) {
        path = target;
        target.length = 0;
    }
    if (path.length >= EEP_HTTP_PATH_MAX || target.length >= EEP_HTTP_QUERY_MAX) {
        return wrong(r, 414, "the request's path is too long (%zu bytes, query %zu)", path.length,
                     target.length);
    }
    memcpy(r->head->path, path.at, path.length);
    memcpy(r->head->query, target.at, target.length);
    return true;
}

static bool read_version(struct reader *r, struct span version)
{
    if (equals_exactly(version, "HTTP/1.1")) {
        r->head->keep_alive = true;
        return true;
    }
    if (equals_exactly(version, "HTTP/1.0")) {
        r->is_1_0 = true;
        return true;
    }
    if (version.length > 5 && memcmp(version.at, "HTTP/", 5) == 0) {
        return wrong(r, 505, "only HTTP/1.1 and HTTP/1.0 are spoken here");
    }
    return wrong(r, 400, "the first line is no HTTP request line");
}

static bool read_request_line(struct reader *r, struct span line)
{
    struct span method, target;

    if (!split(&line, ' ', &method) || !split(&line, ' ', &target)) {
        return wrong(r, 400, "the first line is no HTTP request line");
    }
    return read_method(r, method) && read_target(r, target) && read_version(r, line);
}

/* ---- header lines ---- */

static bool read_length(struct reader *r, struct span value)
{
    uint64_t length = 0;

    if (r->has_length) {
        return wrong(r, 400, "Content-Length is there twice");
    }
    r->has_length = true;
    if (value.length == 0 || value.length > 18) {
        return wrong(r, 400, "Content-Length is no length");
    }
    for (size_t i = 0; i < value.length; i++) {
        if (value.at[i] < '0' || value.at[i] > '9') {
            return wrong(r, 400, "Content-Length is no whole number");
        }
        length = length * 10 + (uint64_t)(value.at[i] - '0');
    }
    r->head->body_bytes = length;
    return true;
}

/* A token that is too long to be right becomes one that cannot be: it is compared all the same. */
static bool read_authorization(struct reader *r, struct span value)
{
    struct span scheme;

    if (r->has_authorization) {
        return wrong(r, 400, "Authorization is there twice");
    }
    r->has_authorization = true;
    if (!split(&value, ' ', &scheme) || !equals(scheme, "Bearer")) {
        return true; /* not ours: as if there was none */
    }
    value = trimmed(value);
    if (value.length <= EEP_TOKEN_MAX) {
        memcpy(r->head->token, value.at, value.length);
    }
    return true;
}

static void read_connection(struct reader *r, struct span value)
{
    struct span word;
    bool more;

    do {
        more = split(&value, ',', &word);
        word = trimmed(more ? word : value);
        if (equals(word, "close")) {
            r->head->keep_alive = false;
            return;
        }
        if (equals(word, "keep-alive") && r->is_1_0) {
            r->head->keep_alive = true;
        }
    } while (more);
}

static bool read_known(struct reader *r, struct span name, struct span value)
{
    if (equals(name, "Content-Length")) {
        return read_length(r, value);
    }
    if (equals(name, "Transfer-Encoding")) {
        return wrong(r, 501, "transfer codings are not supported; send a Content-Length");
    }
    if (equals(name, "Host")) {
        if (r->has_host) {
            return wrong(r, 400, "Host is there twice");
        }
        r->has_host = true;
    } else if (equals(name, "Authorization")) {
        return read_authorization(r, value);
    } else if (equals(name, "Connection")) {
        read_connection(r, value);
    } else if (equals(name, "Expect")) {
        if (!equals(value, "100-continue")) {
            return wrong(r, 417, "Expect: only 100-continue is known");
        }
        r->head->expects_continue = !r->is_1_0;
    }
    return true;
}

static bool read_header_line(struct reader *r, struct span line)
{
    struct span name;

    if (line.at[0] == ' ' || line.at[0] == '\t') {
        return wrong(r, 400, "a header line is folded");
    }
    if (!split(&line, ':', &name) || name.length == 0) {
        return wrong(r, 400, "a header line has no name");
    }
    for (size_t i = 0; i < name.length; i++) {
        if (!is_token_char(name.at[i])) {
            return wrong(r, 400, "a header's name has a character that is not allowed");
        }
    }
    for (size_t i = 0; i < line.length; i++) {
        const unsigned char c = (unsigned char)line.at[i];

        if ((c < ' ' && c != '\t') || c == 0x7f) {
            return wrong(r, 400, "a header's value has a control character");
        }
    }
    return read_known(r, name, trimmed(line));
}

/* ---- the head as a whole ---- */

/* The next line, without its end. False: a bare LF or CR, or not complete. */
static bool next_line(struct reader *r, struct span *rest, struct span *line)
{
    if (!split(rest, '\n', line)) {
        return false;
    }
    if (line->length == 0 || line->at[line->length - 1] != '\r') {
        return wrong(r, 400, "a line does not end with CR LF");
    }
    line->length--;
    return true;
}

static bool read_lines(struct reader *r, struct span rest)
{
    struct span line = {NULL, 0};

    if (!next_line(r, &rest, &line) || !read_request_line(r, line)) {
        return false;
    }
    for (int lines = 0; next_line(r, &rest, &line) && line.length > 0; lines++) {
        if (lines == EEP_HTTP_LINES_MAX) {
            return wrong(r, 431, "more than %d header lines", EEP_HTTP_LINES_MAX);
        }
        if (!read_header_line(r, line)) {
            return false;
        }
    }
    if (r->wrong->code != 0) {
        return false;
    }
    if (!r->has_host && !r->is_1_0) {
        return wrong(r, 400, "an HTTP/1.1 request needs a Host line");
    }
    return true;
}

/* Bytes up to and with the empty line; 0 if it is not there. A bare LF ends it too: read_lines()
 * refuses it, at once and not after a time-out. */
static size_t head_length(const char *bytes, size_t count)
{
    for (size_t i = 0; i + 1 < count; i++) {
        if (bytes[i] != '\n') {
            continue;
        }
        if (bytes[i + 1] == '\n') {
            return i + 2;
        }
        if (bytes[i + 1] == '\r' && i + 2 < count && bytes[i + 2] == '\n') {
            return i + 3;
        }
    }
    return 0;
}

enum eep_http_result eep_http_parse(const char *bytes, size_t count, struct eep_http_head *head_out,
                                    struct eep_http_wrong *wrong_out)
{
    struct reader r = {.head = head_out, .wrong = wrong_out};
    const size_t length = head_length(bytes, EEP_MIN(count, EEP_HTTP_HEAD_MAX));

    memset(head_out, 0, sizeof(*head_out));
    memset(wrong_out, 0, sizeof(*wrong_out));
    if (length == 0) {
        if (count < EEP_HTTP_HEAD_MAX) {
            return EEP_HTTP_MORE;
        }
        (void)wrong(&r, 431, "the request's head is longer than %zu bytes", EEP_HTTP_HEAD_MAX);
        return EEP_HTTP_BAD;
    }
    if (!read_lines(&r, (struct span){bytes, length})) {
        return EEP_HTTP_BAD;
    }
    head_out->head_bytes = length;
    return EEP_HTTP_READY;
}

bool eep_http_query(const char *query, const char *name, char *value, size_t size, bool *given_out)
{
    struct span rest = {query, strlen(query)};
    bool more;

    *given_out = false;
    if (rest.length == 0) {
        return true;
    }
    do {
        struct span pair, key;

        more = split(&rest, '&', &pair);
        pair = more ? pair : rest;
        if (memchr(pair.at, '%', pair.length) != NULL || !split(&pair, '=', &key) ||
            !equals_exactly(key, name) || *given_out || pair.length >= size) {
            return false;
        }
        memcpy(value, pair.at, pair.length);
        value[pair.length] = '\0';
        *given_out = true;
    } while (more);
    return true;
}

const char *eep_http_reason(int code)
{
    static const struct {
        int code;
        const char *text;
    } reasons[] = {
        {200, "OK"},
        {202, "Accepted"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {413, "Content Too Large"},
        {414, "URI Too Long"},
        {417, "Expectation Failed"},
        {431, "Request Header Fields Too Large"},
        {501, "Not Implemented"},
        {503, "Service Unavailable"},
        {505, "HTTP Version Not Supported"},
    };

    for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++) {
        if (reasons[i].code == code) {
            return reasons[i].text;
        }
    }
    return "Unknown";
}
