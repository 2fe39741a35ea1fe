/*
 * From a complete request to an answer: which path takes which method, what its query and body may
 * hold, which handler is asked.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "admin/admin_int.h"

#define EVENTS_LIMIT 256 /* of one answer */

struct asked {
    const struct eep_admin_handlers *handlers;
    const struct eep_http_head *head;
    const char *body;
    size_t body_bytes;
};

typedef void (*answer_fn)(const struct asked *asked, struct eep_admin_answer *answer);

/* ---- ways to answer ---- */

static void fail(struct eep_admin_answer *answer, int code, const char *field, const char *message,
                 const struct eep_admin_operation *operation)
{
    answer->code = code;
    answer->json = eep_admin_error_json(code, field, message, operation);
}

static void fail_wrong(struct eep_admin_answer *answer, const struct eep_admin_wrong *wrong)
{
    fail(answer, 400, wrong->field, wrong->message, NULL);
}

void eep_admin_route_error(int code, const char *message, struct eep_admin_answer *answer_out)
{
    memset(answer_out, 0, sizeof(*answer_out));
    fail(answer_out, code, NULL, message, NULL);
}

static void not_ready(struct eep_admin_answer *answer)
{
    fail(answer, 503, NULL, "the engine is not ready yet; try again", NULL);
}

static void answer_operation(struct eep_admin_answer *answer, const struct eep_admin_operation *op)
{
    if (op->state == EEP_ADMIN_REFUSED) {
        fail(answer, (int)op->refusal, NULL, op->message, NULL);
        return;
    }
    answer->code = op->state == EEP_ADMIN_QUEUED || op->state == EEP_ADMIN_RUNNING ? 202 : 200;
    answer->json = eep_admin_operation_json(op);
}

static void answer_verdict(struct eep_admin_answer *answer, const struct eep_admin_verdict *verdict)
{
    if (verdict->code >= EEP_ADMIN_BAD || verdict->operation == NULL) {
        fail(answer, (int)verdict->code, NULL, verdict->message, verdict->operation);
    } else {
        answer_operation(answer, verdict->operation);
    }
}

static bool no_query(const struct asked *asked, struct eep_admin_answer *answer)
{
    if (asked->head->query[0] == '\0') {
        return true;
    }
    fail(answer, 400, NULL, "this path takes no query ('?...')", NULL);
    return false;
}

static bool no_body(const struct asked *asked, struct eep_admin_answer *answer)
{
    if (asked->body_bytes == 0) {
        return true;
    }
    fail(answer, 400, NULL, "a GET takes no body", NULL);
    return false;
}

/* ---- what can be seen ---- */

static void get_status(const struct asked *asked, struct eep_admin_answer *answer)
{
    if (!no_query(asked, answer)) {
        return;
    }
    const struct eep_admin_handlers *h = asked->handlers;
    const struct eep_admin_status *status = h->status(h->context);

    if (status == NULL) {
        not_ready(answer);
        return;
    }
    answer->code = 200;
    answer->json = eep_admin_status_json(status, h->operation(h->context, NULL));
}

static void get_layout(const struct asked *asked, struct eep_admin_answer *answer)
{
    if (!no_query(asked, answer)) {
        return;
    }
    const struct eep_admin_layout *layout = asked->handlers->layout(asked->handlers->context);

    if (layout == NULL) {
        not_ready(answer);
        return;
    }
    answer->code = 200;
    answer->json = eep_admin_layout_json(layout);
}

/* The id of a query "?id=ID"; false: answered already. */
static bool read_id_query(const struct asked *asked, char id[EEP_ADMIN_ID_MAX + 2], bool *given_out,
                          struct eep_admin_answer *answer)
{
    if (!eep_http_query(asked->head->query, "id", id, EEP_ADMIN_ID_MAX + 2, given_out) ||
        (*given_out && !eep_admin_id_ok(id))) {
        fail(answer, 400, "id", "the query may be ?id=ID, of A-Z a-z 0-9 . _ -", NULL);
        return false;
    }
    return true;
}

static void no_such_operation(struct eep_admin_answer *answer)
{
    fail(answer, 404, "id", "there is no operation of that id", NULL);
}

/* All that are remembered; with an id that one alone. */
static void get_operations(const struct asked *asked, struct eep_admin_answer *answer)
{
    const struct eep_admin_handlers *h = asked->handlers;
    const struct eep_admin_operation *op;
    char id[EEP_ADMIN_ID_MAX + 2];
    json_t *list;
    bool given;

    if (!read_id_query(asked, id, &given, answer)) {
        return;
    }
    if (given) {
        op = h->operation(h->context, id);
        if (op == NULL) {
            no_such_operation(answer);
            return;
        }
        answer->code = 200;
        answer->json = eep_admin_operation_json(op);
        return;
    }
    list = json_array();
    for (size_t i = 0; (op = h->operation_at(h->context, i)) != NULL; i++) {
        (void)json_array_append_new(list, eep_admin_operation_json(op));
    }
    answer->code = 200;
    answer->json = json_pack("{s:o}", "operations", list);
}

/* The scaling state; false: answered already. */
static bool know_scaling(const struct asked *asked, struct eep_admin_scaling *scaling,
                         struct eep_admin_answer *answer)
{
    const struct eep_admin_status *status = asked->handlers->status(asked->handlers->context);

    if (status == NULL) {
        not_ready(answer);
        return false;
    }
    *scaling = status->scaling;
    return true;
}

static bool is_elastic(const struct eep_admin_scaling *scaling, struct eep_admin_answer *answer)
{
    if (!scaling->enabled) {
        fail(answer, 404, NULL, "elasticity is off in this engine: its ranks are fixed", NULL);
    }
    return scaling->enabled;
}

static void get_scale(const struct asked *asked, struct eep_admin_answer *answer)
{
    const struct eep_admin_handlers *h = asked->handlers;
    const struct eep_admin_operation *op;
    struct eep_admin_scaling scaling;
    char id[EEP_ADMIN_ID_MAX + 2];
    bool given;

    if (!read_id_query(asked, id, &given, answer) || !know_scaling(asked, &scaling, answer) ||
        (!given && !is_elastic(&scaling, answer))) {
        return;
    }
    op = h->operation(h->context, given ? id : NULL);
    if (given && op == NULL) {
        no_such_operation(answer);
        return;
    }
    answer->code = 200;
    answer->json = eep_admin_scaling_json(&scaling);
    if (answer->json != NULL &&
        (json_object_set_new(answer->json, "max_ep_size", json_integer(scaling.max_ep_size)) != 0 ||
         json_object_set_new(answer->json, "operation", eep_admin_operation_json(op)) != 0)) {
        json_decref(answer->json);
        answer->json = NULL;
    }
}

static void is_scaling(const struct asked *asked, struct eep_admin_answer *answer)
{
    struct eep_admin_scaling scaling;

    if (no_query(asked, answer) && know_scaling(asked, &scaling, answer) &&
        is_elastic(&scaling, answer)) {
        answer->code = 200;
        answer->json = eep_admin_scaling_json(&scaling);
    }
}

static void get_events(const struct asked *asked, struct eep_admin_answer *answer)
{
    struct eep_admin_events events;
    char text[24] = "0";
    uint64_t since = 0;
    bool given;
    bool good = eep_http_query(asked->head->query, "since", text, sizeof(text), &given);
    const size_t digits = strspn(text, "0123456789");

    if (!good || digits < 1 || digits > 19 || text[digits] != '\0') {
        fail(answer, 400, "since", "the query may be ?since=N, a whole number", NULL);
        return;
    }
    since = strtoull(text, NULL, 10);
    memset(&events, 0, sizeof(events));
    asked->handlers->events(asked->handlers->context, since, EVENTS_LIMIT, &events);
    answer->code = 200;
    answer->json = eep_admin_events_json(&events);
}

/* ---- what can be done ---- */

static void submit(const struct asked *asked, enum eep_admin_body body,
                   struct eep_admin_answer *answer)
{
    const struct eep_admin_handlers *h = asked->handlers;
    struct eep_admin_request request;
    struct eep_admin_verdict verdict;
    struct eep_admin_wrong wrong;

    if (!no_query(asked, answer)) {
        return;
    }
    if (!eep_admin_request_parse(body, asked->body, asked->body_bytes, &request, &wrong)) {
        fail_wrong(answer, &wrong);
        return;
    }
    memset(&verdict, 0, sizeof(verdict));
    h->submit(h->context, &request, &verdict);
    if (verdict.code < EEP_ADMIN_BAD && verdict.operation != NULL &&
        verdict.operation->state == EEP_ADMIN_QUEUED) {
        answer->waits = true;
        strcpy(answer->id, verdict.operation->id);
        return;
    }
    answer_verdict(answer, &verdict);
}

static void post_scale(const struct asked *asked, struct eep_admin_answer *answer)
{
    submit(asked, EEP_ADMIN_BODY_SCALE, answer);
}

static void post_scale_compatible(const struct asked *asked, struct eep_admin_answer *answer)
{
    submit(asked, EEP_ADMIN_BODY_SCALE_COMPATIBLE, answer);
}

static void post_drain(const struct asked *asked, struct eep_admin_answer *answer)
{
    submit(asked, EEP_ADMIN_BODY_DRAIN, answer);
}

static void post_rebalance(const struct asked *asked, struct eep_admin_answer *answer)
{
    submit(asked, EEP_ADMIN_BODY_REBALANCE, answer);
}

static void post_abort(const struct asked *asked, struct eep_admin_answer *answer)
{
    char id[EEP_ADMIN_ID_MAX + 1];
    struct eep_admin_verdict verdict;
    struct eep_admin_wrong wrong;

    if (!no_query(asked, answer)) {
        return;
    }
    if (!eep_admin_abort_parse(asked->body, asked->body_bytes, id, &wrong)) {
        fail_wrong(answer, &wrong);
        return;
    }
    memset(&verdict, 0, sizeof(verdict));
    asked->handlers->abort(asked->handlers->context, id[0] != '\0' ? id : NULL, &verdict);
    answer_verdict(answer, &verdict);
}

/* ---- paths ---- */

static const struct path {
    const char *path;
    answer_fn get, post; /* NULL: not taken */
} paths[] = {
    {"/eep/status", get_status, NULL},
    {"/eep/layout", get_layout, NULL},
    {"/eep/operations", get_operations, NULL},
    {"/eep/scale", get_scale, post_scale},
    {"/eep/drain", NULL, post_drain},
    {"/eep/rebalance", NULL, post_rebalance},
    {"/eep/abort", NULL, post_abort},
    {"/eep/events", get_events, NULL},
    {"/scale_elastic_ep", NULL, post_scale_compatible},
    {"/is_scaling_elastic_ep", is_scaling, is_scaling},
};

static const struct path *find_path(const char *path)
{
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        if (strcmp(paths[i].path, path) == 0) {
            return &paths[i];
        }
    }
    return NULL;
}

static void not_allowed(const struct path *path, struct eep_admin_answer *answer)
{
    char message[64];

    answer->allow = path->get == NULL ? "POST" : path->post == NULL ? "GET" : "GET, POST";
    snprintf(message, sizeof(message), "this path takes only %s", answer->allow);
    fail(answer, 405, NULL, message, NULL);
}

void eep_admin_route(const struct eep_admin_handlers *handlers, const struct eep_http_head *head,
                     const char *body, size_t body_bytes, struct eep_admin_answer *answer_out)
{
    const struct asked asked = {handlers, head, body, body_bytes};
    const struct path *path = find_path(head->path);
    answer_fn answer;

    memset(answer_out, 0, sizeof(*answer_out));
    handlers->catch_up(handlers->context);
    if (path == NULL) {
        fail(answer_out, 404, NULL, "there is no such path; doc/admin.md lists them", NULL);
        return;
    }
    answer = head->method == EEP_HTTP_GET    ? path->get
             : head->method == EEP_HTTP_POST ? path->post
                                             : NULL;
    if (answer == NULL) {
        not_allowed(path, answer_out);
    } else if (head->method != EEP_HTTP_GET || no_body(&asked, answer_out)) {
        answer(&asked, answer_out);
    }
}

bool eep_admin_route_decided(const struct eep_admin_handlers *handlers, const char *id,
                             struct eep_admin_answer *answer_out)
{
    const struct eep_admin_operation *op = handlers->operation(handlers->context, id);

    if (op != NULL && op->state == EEP_ADMIN_QUEUED) {
        return false;
    }
    memset(answer_out, 0, sizeof(*answer_out));
    if (op == NULL) {
        not_ready(answer_out);
    } else {
        answer_operation(answer_out, op);
    }
    return true;
}

void eep_admin_route_late(const struct eep_admin_handlers *handlers, const char *id,
                          struct eep_admin_answer *answer_out)
{
    struct eep_admin_verdict verdict;

    memset(answer_out, 0, sizeof(*answer_out));
    memset(&verdict, 0, sizeof(verdict));
    handlers->catch_up(handlers->context);
    handlers->withdraw(handlers->context, id, &verdict);
    answer_verdict(answer_out, &verdict);
}

char *eep_admin_answer_text(const struct eep_admin_answer *answer)
{
    char *text = answer->json != NULL ? json_dumps(answer->json, JSON_COMPACT) : NULL;
    char *line = NULL;

    if (text != NULL && asprintf(&line, "%s\n", text) < 0) {
        line = NULL;
    }
    free(text);
    return line;
}

void eep_admin_answer_free(struct eep_admin_answer *answer)
{
    json_decref(answer->json);
    answer->json = NULL;
}
