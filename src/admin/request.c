/*
 * Bodies of requests: JSON to checked arguments. A body is read by a table of its fields; what is
 * not in the table, has another type or lies out of range is refused by name and value.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "admin/admin_int.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"

#define FIELDS_MAX 8
#define SHOWN_MAX 60

typedef bool (*read_fn)(const json_t *value, const char *name, struct eep_admin_request *r,
                        struct eep_admin_wrong *w);

struct field {
    const char *name;
    read_fn read;
};

static bool wrong(struct eep_admin_wrong *w, const char *field, const char *fmt, ...)
    EEP_PRINTF(3, 4);

static bool wrong(struct eep_admin_wrong *w, const char *field, const char *fmt, ...)
{
    va_list args;

    snprintf(w->field, sizeof(w->field), "%s", field);
    va_start(args, fmt);
    vsnprintf(w->message, sizeof(w->message), fmt, args);
    va_end(args);
    return false;
}

/* "FIELD must be WANTED, not VALUE". */
static bool wrong_value(struct eep_admin_wrong *w, const char *name, const json_t *value,
                        const char *wanted)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);
    const char *shown = text != NULL ? text : "that";

    (void)wrong(w, name, "'%s' must be %s, not %.*s%s", name, wanted, SHOWN_MAX, shown,
                strlen(shown) > SHOWN_MAX ? "..." : "");
    free(text);
    return false;
}

static bool whole_number(const json_t *value, json_int_t min, json_int_t max)
{
    return json_is_integer(value) && json_integer_value(value) >= min &&
           json_integer_value(value) <= max;
}

/* ---- fields ---- */

static bool read_to(const json_t *value, const char *name, struct eep_admin_request *r,
                    struct eep_admin_wrong *w)
{
    if (!whole_number(value, 1, EEP_ADMIN_SIZE_MAX)) {
        return wrong_value(w, name, value, "a whole number of 1 to 65535");
    }
    if (r->to != 0) {
        return wrong(w, name, "'%s' is given beside another name of the same field", name);
    }
    r->to = (uint32_t)json_integer_value(value);
    return true;
}

static bool read_flag(const json_t *value, const char *name, bool *flag_out,
                      struct eep_admin_wrong *w)
{
    if (!json_is_boolean(value)) {
        return wrong_value(w, name, value, "true or false");
    }
    *flag_out = json_is_true(value);
    return true;
}

static bool read_dry_run(const json_t *value, const char *name, struct eep_admin_request *r,
                         struct eep_admin_wrong *w)
{
    return read_flag(value, name, &r->dry_run, w);
}

static bool read_exit(const json_t *value, const char *name, struct eep_admin_request *r,
                      struct eep_admin_wrong *w)
{
    return read_flag(value, name, &r->exit, w);
}

static bool read_deadline(const json_t *value, const char *name, struct eep_admin_request *r,
                          struct eep_admin_wrong *w)
{
    if (!whole_number(value, 1, EEP_ADMIN_DEADLINE_S_MAX)) {
        return wrong_value(w, name, value, "a whole number of seconds, 1 to 86400");
    }
    r->deadline_s = (uint32_t)json_integer_value(value);
    return true;
}

static bool read_id_text(const json_t *value, const char *name, char id[EEP_ADMIN_ID_MAX + 1],
                         struct eep_admin_wrong *w)
{
    const char *text = json_string_value(value);

    if (text == NULL || strlen(text) != json_string_length(value) || !eep_admin_id_ok(text)) {
        return wrong_value(w, name, value, "1 to 64 characters of A-Z a-z 0-9 . _ -");
    }
    strcpy(id, text);
    return true;
}

static bool read_id(const json_t *value, const char *name, struct eep_admin_request *r,
                    struct eep_admin_wrong *w)
{
    return read_id_text(value, name, r->id, w);
}

/* "HOST" or "HOST:SLOTS", as mpirun takes them; one slot where none is named. */
static bool parse_host(const json_t *value, struct eep_admin_host *host)
{
    const char *text = json_string_value(value);
    const char *colon;
    size_t length;

    if (text == NULL || strlen(text) != json_string_length(value)) {
        return false;
    }
    colon = strchr(text, ':');
    length = colon != NULL ? (size_t)(colon - text) : strlen(text);
    if (length < 1 || length > EEP_ADMIN_HOST_MAX || text[0] == '-' ||
        strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") <
            length) {
        return false;
    }
    host->slots = 1;
    if (colon != NULL) {
        const size_t digits = strspn(colon + 1, "0123456789");

        if (digits < 1 || digits > 5 || colon[1 + digits] != '\0') {
            return false;
        }
        host->slots = (uint32_t)strtoul(colon + 1, NULL, 10);
    }
    memcpy(host->name, text, length);
    return host->slots >= 1 && host->slots <= EEP_ADMIN_SIZE_MAX;
}

static bool read_hosts(const json_t *value, const char *name, struct eep_admin_request *r,
                       struct eep_admin_wrong *w)
{
    const size_t count = json_array_size(value);

    if (!json_is_array(value) || count < 1 || count > EEP_ADMIN_HOSTS_MAX) {
        return wrong_value(w, name, value, "a list of 1 to 1024 hosts");
    }
    if (eep_mem_alloc(count, sizeof(*r->hosts), "hosts of a request", &r->hosts) != EEP_OK) {
        return wrong(w, name, "no memory for %zu hosts", count);
    }
    r->host_count = count;
    for (size_t i = 0; i < count; i++) {
        char item[EEP_ADMIN_WORD_MAX];

        snprintf(item, sizeof(item), "%s[%zu]", name, i);
        if (!parse_host(json_array_get(value, i), &r->hosts[i])) {
            return wrong_value(w, item, json_array_get(value, i), "\"HOST\" or \"HOST:SLOTS\"");
        }
    }
    return true;
}

static int compare_ids(const void *a, const void *b)
{
    uint64_t x, y;

    memcpy(&x, a, sizeof(x));
    memcpy(&y, b, sizeof(y));
    return (x > y) - (x < y);
}

static bool each_once(struct eep_admin_request *r, const char *name, struct eep_admin_wrong *w)
{
    qsort(r->members, r->member_count, sizeof(*r->members), compare_ids);
    for (size_t i = 1; i < r->member_count; i++) {
        if (r->members[i] == r->members[i - 1]) {
            return wrong(w, name, "'%s' names member %" PRIu64 " twice", name, r->members[i]);
        }
    }
    return true;
}

static bool read_members(const json_t *value, const char *name, struct eep_admin_request *r,
                         struct eep_admin_wrong *w)
{
    const size_t count = json_array_size(value);

    if (!json_is_array(value) || count < 1 || count > EEP_ADMIN_MEMBERS_MAX) {
        return wrong_value(w, name, value, "a list of 1 to 4096 member ids");
    }
    if (eep_mem_alloc(count, sizeof(*r->members), "members of a request", &r->members) != EEP_OK) {
        return wrong(w, name, "no memory for %zu members", count);
    }
    r->member_count = count;
    for (size_t i = 0; i < count; i++) {
        char item[EEP_ADMIN_WORD_MAX];

        snprintf(item, sizeof(item), "%s[%zu]", name, i);
        if (!whole_number(json_array_get(value, i), 0, INT64_MAX)) {
            return wrong_value(w, item, json_array_get(value, i), "a member's id, 0 or more");
        }
        r->members[i] = (uint64_t)json_integer_value(json_array_get(value, i));
    }
    return each_once(r, name, w);
}

/* ---- bodies ---- */

static const struct field bodies[][FIELDS_MAX + 1] = {
    [EEP_ADMIN_BODY_SCALE] = {{"to", read_to},
                              {"hosts", read_hosts},
                              {"exit", read_exit},
                              {"dry_run", read_dry_run},
                              {"id", read_id},
                              {"deadline_s", read_deadline}},
    [EEP_ADMIN_BODY_SCALE_COMPATIBLE] = {{"new_ep_size", read_to},
                                         {"ep_size", read_to},
                                         {"new_data_parallel_size", read_to},
                                         {"to", read_to},
                                         {"drain_timeout", read_deadline},
                                         {"hosts", read_hosts},
                                         {"dry_run", read_dry_run},
                                         {"id", read_id}},
    [EEP_ADMIN_BODY_DRAIN] = {{"members", read_members},
                              {"exit", read_exit},
                              {"dry_run", read_dry_run},
                              {"id", read_id},
                              {"deadline_s", read_deadline}},
    [EEP_ADMIN_BODY_REBALANCE] = {{"dry_run", read_dry_run},
                                  {"id", read_id},
                                  {"deadline_s", read_deadline}},
};

static const enum eep_admin_kind kinds[] = {
    [EEP_ADMIN_BODY_SCALE] = EEP_ADMIN_SCALE,
    [EEP_ADMIN_BODY_SCALE_COMPATIBLE] = EEP_ADMIN_SCALE,
    [EEP_ADMIN_BODY_DRAIN] = EEP_ADMIN_DRAIN,
    [EEP_ADMIN_BODY_REBALANCE] = EEP_ADMIN_REBALANCE,
};

/* An empty body is an empty object. NULL: *w is set. */
static json_t *parse_object(const char *text, size_t bytes, struct eep_admin_wrong *w)
{
    json_error_t error;
    json_t *json =
        bytes == 0 ? json_object() : json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);

    if (json == NULL && bytes == 0) {
        (void)wrong(w, "", "no memory");
    } else if (json == NULL) {
        (void)wrong(w, "", "the body is not valid JSON: line %d, column %d: %s", error.line,
                    error.column, error.text);
    } else if (!json_is_object(json)) {
        (void)wrong(w, "", "the body is JSON, but not an object");
        json_decref(json);
        json = NULL;
    }
    return json;
}

static bool unknown_field(const struct field *fields, const char *name, struct eep_admin_wrong *w)
{
    char known[128] = "";
    size_t used = 0;

    for (; fields->name != NULL && used < sizeof(known); fields++) {
        used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%s", used > 0 ? ", " : "",
                                 fields->name);
    }
    return wrong(w, "", "there is no field '%.60s' here; known are: %s", name, known);
}

static bool read_fields(const struct field *fields, json_t *body, struct eep_admin_request *r,
                        struct eep_admin_wrong *w)
{
    const char *name;
    json_t *value;

    json_object_foreach(body, name, value)
    {
        const struct field *field = fields;

        while (field->name != NULL && strcmp(field->name, name) != 0) {
            field++;
        }
        if (field->name == NULL) {
            return unknown_field(fields, name, w);
        }
        if (!field->read(value, name, r, w)) {
            return false;
        }
    }
    return true;
}

static void make_id(char id[EEP_ADMIN_ID_MAX + 1])
{
    uint64_t bits;

    if (getrandom(&bits, sizeof(bits), GRND_NONBLOCK) != (ssize_t)sizeof(bits)) {
        bits = eep_rng_bits((uint64_t)(uintptr_t)id, eep_clock_ns());
    }
    snprintf(id, EEP_ADMIN_ID_MAX + 1, "%016" PRIx64, bits);
}

static bool complete(struct eep_admin_request *r, struct eep_admin_wrong *w)
{
    if (r->kind == EEP_ADMIN_SCALE && r->to == 0) {
        return wrong(w, "to", "'to' is missing: the number of ranks to scale to");
    }
    if (r->kind == EEP_ADMIN_DRAIN && r->members == NULL) {
        return wrong(w, "members",
                     "'members' is missing: the ids of the members that are to leave");
    }
    if (r->id[0] == '\0') {
        make_id(r->id);
    }
    return true;
}

bool eep_admin_request_parse(enum eep_admin_body body, const char *text, size_t bytes,
                             struct eep_admin_request *request_out,
                             struct eep_admin_wrong *wrong_out)
{
    struct eep_admin_request r = {.kind = kinds[body], .deadline_s = EEP_ADMIN_DEADLINE_S};
    json_t *json;

    memset(wrong_out, 0, sizeof(*wrong_out));
    json = parse_object(text, bytes, wrong_out);
    if (json == NULL) {
        return false;
    }
    const bool good = read_fields(bodies[body], json, &r, wrong_out) && complete(&r, wrong_out);
    json_decref(json);
    if (!good) {
        eep_admin_request_free(&r);
        return false;
    }
    *request_out = r;
    return true;
}

bool eep_admin_abort_parse(const char *text, size_t bytes, char id_out[EEP_ADMIN_ID_MAX + 1],
                           struct eep_admin_wrong *wrong_out)
{
    static const struct field fields[] = {{"id", read_id}, {NULL, NULL}};
    struct eep_admin_request r = {.deadline_s = EEP_ADMIN_DEADLINE_S};
    json_t *json;

    memset(wrong_out, 0, sizeof(*wrong_out));
    json = parse_object(text, bytes, wrong_out);
    if (json == NULL) {
        return false;
    }
    const bool good = read_fields(fields, json, &r, wrong_out);
    json_decref(json);
    if (good) {
        strcpy(id_out, r.id);
    }
    return good;
}

void eep_admin_request_free(struct eep_admin_request *request)
{
    eep_mem_free(request->hosts);
    eep_mem_free(request->members);
    request->hosts = NULL;
    request->members = NULL;
    request->host_count = 0;
    request->member_count = 0;
}

static bool hosts_equal(const struct eep_admin_request *a, const struct eep_admin_request *b)
{
    if (a->host_count != b->host_count) {
        return false;
    }
    for (size_t i = 0; i < a->host_count; i++) {
        if (a->hosts[i].slots != b->hosts[i].slots ||
            strcmp(a->hosts[i].name, b->hosts[i].name) != 0) {
            return false;
        }
    }
    return true;
}

bool eep_admin_request_equal(const struct eep_admin_request *a, const struct eep_admin_request *b)
{
    return a->kind == b->kind && a->dry_run == b->dry_run && a->exit == b->exit && a->to == b->to &&
           a->deadline_s == b->deadline_s && hosts_equal(a, b) &&
           a->member_count == b->member_count &&
           (a->member_count == 0 ||
            memcmp(a->members, b->members, a->member_count * sizeof(*a->members)) == 0);
}
