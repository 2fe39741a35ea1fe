/*
 * Operations: submit, then ask how it stands until it has ended. The id is made here, so that a
 * request whose answer was lost can be sent again without harm, and so that a change of the
 * coordinator on the way is waited out.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "admin/admin.h"
#include "base/clock.h"
#include "eepctl/eepctl.h"
#include "tools/tools.h"

#define POLL_MS 100
#define RETRY_MS 500
#define SILENCE_NS (30 * EEP_NS_PER_S) /* without any answer, before we give up */

static void make_id(char id[EEP_ADMIN_ID_MAX + 1])
{
    uint64_t bits;

    if (getrandom(&bits, sizeof(bits), 0) != (ssize_t)sizeof(bits)) {
        bits = eep_clock_ns();
    }
    snprintf(id, EEP_ADMIN_ID_MAX + 1, "ctl-%016" PRIx64, bits);
}

static json_t *make_body(const struct eepctl_opts *o, const char *id)
{
    json_t *body = json_pack("{s:s}", "id", id);

    if (o->dry_run) {
        (void)json_object_set_new(body, "dry_run", json_true());
    }
    if (o->deadline_s > 0) {
        (void)json_object_set_new(body, "deadline_s", json_integer(o->deadline_s));
    }
    return body;
}

static bool has_ended(const json_t *operation)
{
    const char *state = eepctl_text(operation, "state");

    return strcmp(state, "queued") != 0 && strcmp(state, "running") != 0;
}

/* Is it worth to ask again? A 503 says that nothing was begun. */
static bool is_passing(enum eep_status status, const struct eepctl_reply *reply)
{
    return status == EEP_ERR_IO || status == EEP_ERR_TIMEOUT || status == EEP_ERR_AGAIN ||
           (status == EEP_OK && reply->code == 503);
}

/* Ask until there is an answer that is not "not now". False: said why. */
static bool ask_patiently(struct eepctl_client *client, const char *path, const json_t *body,
                          bool at_once, struct eepctl_reply *reply_out)
{
    const uint64_t end_ns = eep_clock_ns() + SILENCE_NS;

    for (;;) {
        const enum eep_status status = eepctl_client_ask(client, path, body, reply_out);
        const bool nobody = status == EEP_ERR_AGAIN && at_once;

        if (status == EEP_OK && reply_out->code < 300) {
            return true;
        }
        if (!is_passing(status, reply_out) || nobody || eepctl_interrupted() ||
            eep_clock_ns() > end_ns) {
            (void)(status != EEP_OK ? eepctl_failed() : eepctl_refused(reply_out));
            return false;
        }
        if (status == EEP_OK) {
            json_decref(reply_out->json);
        }
        at_once = false;
        eepctl_sleep_ms(RETRY_MS);
    }
}

/* Progress goes to stderr, a line for each change of phase. */
static void tell_progress(const struct eepctl_opts *o, const json_t *operation, char phase[64])
{
    char now[64];

    snprintf(now, sizeof(now), "%s/%s", eepctl_text(operation, "state"),
             eepctl_text(operation, "phase"));
    if (!o->json && strcmp(now, phase) != 0 && !has_ended(operation)) {
        eepctl_show_operation(stderr, operation);
        (void)fputc('\n', stderr);
    }
    strcpy(phase, now);
}

/* The operation when it has ended; NULL: said why. */
static json_t *wait_for(const struct eepctl_opts *o, struct eepctl_client *client, const char *id,
                        json_t *operation)
{
    char path[EEP_ADMIN_ID_MAX + 32], phase[64] = "";
    struct eepctl_reply reply;

    snprintf(path, sizeof(path), "/eep/operations?id=%s", id);
    while (!has_ended(operation)) {
        tell_progress(o, operation, phase);
        json_decref(operation);
        eepctl_sleep_ms(POLL_MS);
        if (eepctl_interrupted()) {
            (void)fprintf(stderr, "eepctl: operation '%s' goes on; 'eepctl abort' ends it\n", id);
            return NULL;
        }
        if (!ask_patiently(client, path, NULL, false, &reply)) {
            return NULL;
        }
        operation = reply.json;
    }
    return operation;
}

static int report(const struct eepctl_opts *o, const json_t *operation)
{
    const char *state = eepctl_text(operation, "state");
    const json_t *plan = json_object_get(operation, "plan");
    const bool good = strcmp(state, "done") == 0 || !has_ended(operation);

    if (o->json) {
        return eepctl_print_json(operation) && good ? EEP_EXIT_OK : EEP_EXIT_FAILED;
    }
    eepctl_show_operation(good ? stdout : stderr, operation);
    (void)fputc('\n', good ? stdout : stderr);
    if (json_is_object(plan) && (o->dry_run || !good)) {
        eepctl_show_plan(stdout, plan);
    }
    return fflush(stdout) == 0 && good ? EEP_EXIT_OK : EEP_EXIT_FAILED;
}

/* Takes the body over. */
static int run_operation(const struct eepctl_opts *o, struct eepctl_client *client,
                         const char *path, const char *id, json_t *body)
{
    struct eepctl_reply reply;
    json_t *operation;
    int status;

    if (body == NULL || !ask_patiently(client, path, body, true, &reply)) {
        json_decref(body);
        return EEP_EXIT_FAILED;
    }
    json_decref(body);
    operation = o->no_wait ? reply.json : wait_for(o, client, id, reply.json);
    if (operation == NULL) {
        return EEP_EXIT_FAILED;
    }
    status = report(o, operation);
    json_decref(operation);
    return status;
}

static void choose_id(const struct eepctl_opts *o, char id[EEP_ADMIN_ID_MAX + 1])
{
    if (o->id != NULL) {
        snprintf(id, EEP_ADMIN_ID_MAX + 1, "%s", o->id);
    } else {
        make_id(id);
    }
}

/* "a:2,b:4" of --host, and words after it. */
static json_t *host_list(const struct eepctl_opts *o)
{
    json_t *list = json_array();
    char *copy = o->hosts != NULL ? strdup(o->hosts) : NULL, *save = NULL;

    if (copy != NULL) {
        for (char *host = strtok_r(copy, ",", &save); host != NULL;
             host = strtok_r(NULL, ",", &save)) {
            (void)json_array_append_new(list, json_string(host));
        }
    }
    for (int i = 0; i < o->word_count; i++) {
        (void)json_array_append_new(list, json_string(o->words[i]));
    }
    free(copy);
    return list;
}

int eepctl_scale(const struct eepctl_opts *o, struct eepctl_client *client)
{
    char id[EEP_ADMIN_ID_MAX + 1];
    json_t *body;

    choose_id(o, id);
    body = make_body(o, id);
    (void)json_object_set_new(body, "to", json_integer(o->to));
    if (o->hosts != NULL) {
        (void)json_object_set_new(body, "hosts", host_list(o));
    }
    if (o->exit) {
        (void)json_object_set_new(body, "exit", json_true());
    }
    return run_operation(o, client, "/eep/scale", id, body);
}

int eepctl_drain(const struct eepctl_opts *o, struct eepctl_client *client)
{
    char id[EEP_ADMIN_ID_MAX + 1];
    json_t *body, *members = json_array();

    choose_id(o, id);
    body = make_body(o, id);
    for (int i = 0; i < o->word_count; i++) {
        (void)json_array_append_new(members,
                                    json_integer((json_int_t)strtoull(o->words[i], NULL, 10)));
    }
    (void)json_object_set_new(body, "members", members);
    if (o->exit) {
        (void)json_object_set_new(body, "exit", json_true());
    }
    return run_operation(o, client, "/eep/drain", id, body);
}

int eepctl_rebalance(const struct eepctl_opts *o, struct eepctl_client *client)
{
    char id[EEP_ADMIN_ID_MAX + 1];

    choose_id(o, id);
    return run_operation(o, client, "/eep/rebalance", id, make_body(o, id));
}

/* Done when the operation has ended, in whatever way: "aborted" is what was asked for. */
int eepctl_abort(const struct eepctl_opts *o, struct eepctl_client *client)
{
    json_t *body = o->id != NULL ? json_pack("{s:s}", "id", o->id) : json_object();
    struct eepctl_reply reply;
    json_t *operation;
    char id[EEP_ADMIN_ID_MAX + 1];
    bool aborted, good = true;

    if (!ask_patiently(client, "/eep/abort", body, true, &reply)) {
        json_decref(body);
        return EEP_EXIT_FAILED;
    }
    json_decref(body);
    snprintf(id, sizeof(id), "%s", eepctl_text(reply.json, "id"));
    operation = o->no_wait ? reply.json : wait_for(o, client, id, reply.json);
    if (operation == NULL) {
        return EEP_EXIT_FAILED;
    }
    aborted = o->no_wait || strcmp(eepctl_text(operation, "state"), "aborted") == 0;
    if (o->json) {
        good = eepctl_print_json(operation);
    } else {
        eepctl_show_operation(stdout, operation);
        good = putchar('\n') != EOF && fflush(stdout) == 0;
    }
    json_decref(operation);
    return aborted && good ? EEP_EXIT_OK : EEP_EXIT_FAILED;
}
