/* A request as HTTP, and its answer. */
#include "eepctl/client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "admin/endpoint.h"
#include "base/mem.h"
#include "eepctl/link.h"

#define HEAD_MAX 8192
#define ANSWER_MAX ((size_t)64 << 20)

struct eepctl_client {
    struct eep_endpoint endpoint;
    char address[EEP_ENDPOINT_TEXT_MAX];
    char token[EEP_TOKEN_MAX + 1];
    SSL_CTX *tls; /* NULL: plain */
};

/* ---- open ---- */

static enum eep_status find_endpoint(const char *named, struct eep_endpoint *endpoint_out)
{
    const char *env = getenv("EEP_ADMIN");

    if (named != NULL) {
        return eep_endpoint_parse(named, endpoint_out);
    }
    if (env != NULL && env[0] != '\0') {
        enum eep_status status = eep_endpoint_parse(env, endpoint_out);

        return status == EEP_OK ? status : eep_fail_context(status, "EEP_ADMIN");
    }
    eep_endpoint_default(endpoint_out);
    return eep_endpoint_dir(endpoint_out, false); /* it lies where others could make one */
}

static enum eep_status find_secrets(const struct eepctl_client_params *params,
                                    struct eepctl_client *client)
{
    bool local;

    if (client->endpoint.is_unix) {
        return EEP_OK;
    }
    EEP_TRY(eep_token_load(params->token_file, client->token));
    EEP_TRY(eepctl_link_is_local(&client->endpoint, &local));
    if (params->ca_file != NULL || !local) {
        return eepctl_link_tls(params->ca_file, &client->tls);
    }
    return EEP_OK;
}

enum eep_status eepctl_client_open(const struct eepctl_client_params *params,
                                   struct eepctl_client **client_out)
{
    struct eepctl_client *client;
    enum eep_status status;

    EEP_TRY(eep_mem_alloc(1, sizeof(*client), "the client", &client));
    EEP_TRY_GOTO(find_endpoint(params->endpoint, &client->endpoint), close);
    EEP_TRY_GOTO(find_secrets(params, client), close);
    eep_endpoint_text(&client->endpoint, client->address);
    *client_out = client;
    return EEP_OK;

close:
    eepctl_client_close(client);
    return status;
}

void eepctl_client_close(struct eepctl_client *client)
{
    if (client != NULL) {
        SSL_CTX_free(client->tls);
        explicit_bzero(client->token, sizeof(client->token));
        eep_mem_free(client);
    }
}

const char *eepctl_client_address(const struct eepctl_client *client)
{
    return client->address;
}

/* ---- the request ---- */

static enum eep_status send_request(const struct eepctl_client *c, struct eepctl_link *link,
                                    const char *path, const json_t *body)
{
    char *text = body != NULL ? json_dumps(body, JSON_COMPACT) : NULL;
    char *request = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&request, &bytes);
    enum eep_status status;

    if (out == NULL || (body != NULL && text == NULL)) {
        if (out != NULL) {
            (void)fclose(out);
        }
        free(request);
        free(text);
        return EEP_FAIL(EEP_ERR_NOMEM, "no memory for the request");
    }
    (void)fprintf(out, "%s %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n",
                  body != NULL ? "POST" : "GET", path,
                  c->endpoint.is_unix ? "localhost" : c->address);
    if (c->token[0] != '\0') {
        (void)fprintf(out, "Authorization: Bearer %s\r\n", c->token);
    }
    if (text != NULL) {
        (void)fprintf(out, "Content-Type: application/json\r\nContent-Length: %zu\r\n",
                      strlen(text));
    }
    (void)fprintf(out, "\r\n%s", text != NULL ? text : "");
    status = fclose(out) == 0 ? eepctl_link_write(link, request, bytes)
                              : EEP_FAIL(EEP_ERR_NOMEM, "no memory for the request");
    explicit_bzero(request, bytes); /* it holds the token */
    free(request);
    free(text);
    return status;
}

/* ---- the answer ---- */

static enum eep_status no_http(void)
{
    return EEP_FAIL(EEP_ERR_FORMAT, "the answer is no HTTP with JSON: is that an admin endpoint of "
                                    "eep?");
}

/* The value of a header line, or NULL. The head ends with NUL. */
static const char *header(const char *head, const char *name)
{
    const size_t length = strlen(name);

    for (const char *line = strstr(head, "\r\n"); line != NULL; line = strstr(line, "\r\n")) {
        line += 2;
        if (strncasecmp(line, name, length) == 0 && line[length] == ':') {
            return line + length + 1;
        }
    }
    return NULL;
}

/* Reads up to the end of the head; what came after it stays in `bytes` from *head_out on. */
static enum eep_status read_head(struct eepctl_link *link, char bytes[HEAD_MAX + 1],
                                 size_t *count_out, size_t *head_out)
{
    size_t count = 0, got;

    for (;;) {
        const char *end;

        EEP_TRY(eepctl_link_read(link, bytes + count, HEAD_MAX - count, &got));
        count += got;
        bytes[count] = '\0';
        end = strstr(bytes, "\r\n\r\n");
        if (end != NULL) {
            *count_out = count;
            *head_out = (size_t)(end - bytes) + 4;
            return EEP_OK;
        }
        if (got == 0 && count == 0) {
            return EEP_FAIL(EEP_ERR_IO, "the engine closed the connection without an answer");
        }
        if (got == 0 || count == HEAD_MAX) {
            return no_http();
        }
    }
}

static enum eep_status read_body(struct eepctl_link *link, const char *first, size_t first_bytes,
                                 size_t bytes, json_t **json_out)
{
    char *body;
    size_t count = EEP_MIN(first_bytes, bytes), got;
    enum eep_status status = EEP_OK;

    EEP_TRY(eep_mem_alloc(bytes + 1, 1, "the answer", &body));
    memcpy(body, first, count);
    while (count < bytes) {
        EEP_TRY_GOTO(eepctl_link_read(link, body + count, bytes - count, &got), free_body);
        if (got == 0) {
            status = EEP_FAIL(EEP_ERR_IO, "the answer ends after %zu of %zu bytes", count, bytes);
            goto free_body;
        }
        count += got;
    }
    *json_out = json_loadb(body, bytes, 0, NULL);
    if (!json_is_object(*json_out)) {
        json_decref(*json_out);
        status = no_http();
    }
free_body:
    eep_mem_free(body);
    return status;
}

static enum eep_status read_answer(struct eepctl_link *link, struct eepctl_reply *reply_out)
{
    char bytes[HEAD_MAX + 1];
    size_t count, head;
    unsigned long long length;
    const char *value;
    int code;

    EEP_TRY(read_head(link, bytes, &count, &head));
    bytes[head - 2] = '\0';
    value = header(bytes, "Content-Length");
    if (sscanf(bytes, "HTTP/1.%*1[01] %3d", &code) != 1 || value == NULL) {
        return no_http();
    }
    length = strtoull(value, NULL, 10);
    if (length == 0 && code == 503) {
        return EEP_FAIL(EEP_ERR_TIMEOUT, "the endpoint has too many clients; try again");
    }
    if (length > ANSWER_MAX) {
        return EEP_FAIL(EEP_ERR_FORMAT, "an answer of %llu bytes is not believed", length);
    }
    EEP_TRY(read_body(link, bytes + head, count - head, (size_t)length, &reply_out->json));
    reply_out->code = code;
    return EEP_OK;
}

enum eep_status eepctl_client_ask(struct eepctl_client *client, const char *path,
                                  const json_t *body, struct eepctl_reply *reply_out)
{
    struct eepctl_reply reply = {0, NULL};
    struct eepctl_link link;
    enum eep_status status;

    EEP_TRY(eepctl_link_open(&client->endpoint, client->tls, &link));
    status = send_request(client, &link, path, body);
    /* A server that refuses early answers before it has read all. */
    if (status == EEP_OK || status == EEP_ERR_IO) {
        status = read_answer(&link, &reply);
    }
    eepctl_link_close(&link);
    if (status == EEP_OK) {
        *reply_out = reply;
        return EEP_OK;
    }
    return status == EEP_ERR_INVALID
               ? status
               : (enum eep_status)eep_fail_context(status, "%s", client->address);
}
