/* Answers as JSON. A NULL from here means that there is no memory. */
#include <string.h>

#include "admin/admin_int.h"
#include "config.h"

const char *eep_admin_kind_text(enum eep_admin_kind kind)
{
    static const char *const texts[] = {"scale", "drain", "rebalance"};

    return texts[kind];
}

const char *eep_admin_state_text(enum eep_admin_state state)
{
    static const char *const texts[] = {"queued", "running", "done",
                                        "failed", "aborted", "refused"};

    return texts[state];
}

/* A string of ours that may hold foreign bytes: never a reason to fail. */
static json_t *text_json(const char *text)
{
    json_t *json = json_string(text);

    return json != NULL ? json : json_string("(not UTF-8)");
}

static json_t *time_json(int64_t unix_ms)
{
    return unix_ms != 0 ? json_integer(unix_ms) : json_null();
}

/* The handlers' own JSON; null where it is none. */
static json_t *plan_json(const char *plan)
{
    json_t *json = plan != NULL ? json_loads(plan, 0, NULL) : NULL;

    return json != NULL ? json : json_null();
}

json_t *eep_admin_operation_json(const struct eep_admin_operation *op)
{
    if (op == NULL) {
        return json_null();
    }
    return json_pack(
        "{s:s, s:s, s:s, s:b, s:I, s:I, s:o, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o}", "id", op->id,
        "kind", eep_admin_kind_text(op->kind), "state", eep_admin_state_text(op->state), "dry_run",
        (int)op->dry_run, "from", (json_int_t)op->from, "to", (json_int_t)op->to, "phase",
        text_json(op->phase), "bytes_total", (json_int_t)op->bytes_total, "bytes_done",
        (json_int_t)op->bytes_done, "deadline_s", (json_int_t)op->deadline_s, "submitted_ms",
        time_json(op->submitted_ms), "started_ms", time_json(op->started_ms), "ended_ms",
        time_json(op->ended_ms), "message", text_json(op->message), "plan", plan_json(op->plan));
}

json_t *eep_admin_scaling_json(const struct eep_admin_scaling *s)
{
    return json_pack("{s:b, s:I, s:I, s:o, s:o}", "is_scaling", (int)s->is_scaling,
                     "effective_ep_size", (json_int_t)s->effective_ep_size, "pending_ep_size",
                     (json_int_t)s->pending_ep_size, "scale_phase", text_json(s->scale_phase),
                     "last_error",
                     s->last_error[0] != '\0' ? text_json(s->last_error) : json_null());
}

static json_t *event_json(const struct eep_admin_event *e)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:o, s:o}", "seq", (json_int_t)e->seq, "time_ms",
                     (json_int_t)e->time_ms, "epoch", (json_int_t)e->epoch, "layout_version",
                     (json_int_t)e->version, "kind", text_json(e->kind), "text",
                     text_json(e->text));
}

json_t *eep_admin_events_json(const struct eep_admin_events *events)
{
    json_t *list = json_array();

    for (size_t i = 0; list != NULL && i < events->count; i++) {
        if (json_array_append_new(list, event_json(events->list[i])) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return json_pack("{s:s, s:I, s:I, s:o}", "log", events->log, "first_kept",
                     (json_int_t)events->first_kept, "last", (json_int_t)events->last, "events",
                     list);
}

/* ---- the status ---- */

const char *eep_admin_seat_text(enum eep_admin_seat_state state)
{
    static const char *const texts[] = {"reserved", "active", "leaving", "lost"};

    return texts[state];
}

static json_t *seats_of(const struct eep_admin_status *s, uint64_t member)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < s->seat_count; i++) {
        if (s->seats[i].state != EEP_ADMIN_SEAT_RESERVED && s->seats[i].executor == member) {
            (void)json_array_append_new(list, json_integer(i));
        }
    }
    return list;
}

static json_t *member_json(const struct eep_admin_status *s, const struct eep_admin_member *m)
{
    json_t *memory = json_pack(
        "{s:I, s:I, s:I, s:I, s:I}", "resident_bytes", (json_int_t)m->resident_bytes, "dense_bytes",
        (json_int_t)m->dense_bytes, "frames_bytes", (json_int_t)m->frames_bytes, "kv_bytes",
        (json_int_t)m->kv_bytes, "buffers_bytes", (json_int_t)m->buffers_bytes);

    return json_pack("{s:I, s:o, s:I, s:o, s:o, s:o, s:o}", "id", (json_int_t)m->id, "rank",
                     m->rank != EEP_ADMIN_NO_RANK ? json_integer(m->rank) : json_null(), "node",
                     (json_int_t)m->node, "host", text_json(m->host), "state", text_json(m->state),
                     "seats", seats_of(s, m->id), "memory", memory);
}

static json_t *members_json(const struct eep_admin_status *s)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < s->member_count; i++) {
        (void)json_array_append_new(list, member_json(s, &s->members[i]));
    }
    return list;
}

static json_t *seats_json(const struct eep_admin_status *s)
{
    uint32_t counts[EEP_ADMIN_SEAT_LOST + 1] = {0};
    json_t *json;

    for (uint32_t i = 0; i < s->seat_count; i++) {
        counts[s->seats[i].state]++;
    }
    json = json_pack("{s:I, s:I}", "total", (json_int_t)s->seat_count, "slots_per_seat",
                     (json_int_t)s->slots_per_seat);
    for (int i = 0; json != NULL && i <= EEP_ADMIN_SEAT_LOST; i++) {
        (void)json_object_set_new(json, eep_admin_seat_text((enum eep_admin_seat_state)i),
                                  json_integer(counts[i]));
    }
    return json;
}

static const char *rebalance_word(enum eep_rebalance_state state)
{
    static const char *const words[] = {
        [EEP_REBALANCE_IDLE] = "idle",     [EEP_REBALANCE_RUNNING] = "running",
        [EEP_REBALANCE_BUSY] = "busy",     [EEP_REBALANCE_NO_MOVE] = "no_move",
        [EEP_REBALANCE_FAILED] = "failed", [EEP_REBALANCE_OFF] = "off",
    };

    return words[state];
}

static json_t *rebalance_json(const struct eep_rebalance_status *r)
{
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:I, s:f, s:o}", "state",
                     rebalance_word(r->state), "count", (json_int_t)r->rebalances, "followed",
                     (json_int_t)r->followed, "copies", (json_int_t)r->copies, "bytes",
                     (json_int_t)r->bytes, "versions", (json_int_t)r->chunks, "imbalance_before",
                     r->imbalance_before, "imbalance_after", r->imbalance_after, "planned_copies",
                     (json_int_t)r->planned_copies, "flip_ms_max", (double)r->flip_ns * 1e-6,
                     "reason", text_json(r->reason));
}

static json_t *cache_json(const struct eep_admin_status *s)
{
    return s->cache_path[0] == '\0'
               ? json_null()
               : json_pack("{s:o, s:I, s:b, s:b}", "path", text_json(s->cache_path), "bytes",
                           (json_int_t)s->cache_bytes, "kept", (int)s->cache_kept, "attached",
                           (int)s->cache_attached);
}

static json_t *survival_json(const struct eep_admin_status *s)
{
    return !s->survival_known ? json_null()
                              : json_pack("{s:b, s:b, s:I}", "any_rank", (int)s->survives_any_rank,
                                          "any_node", (int)s->survives_any_node, "single_source",
                                          (json_int_t)s->single_source);
}

static json_t *backup_json(const struct eep_admin_status *s)
{
    return !s->has_backup
               ? json_null()
               : json_pack("{s:b, s:I, s:I, s:I}", "whole", (int)s->backup_whole, "experts",
                           (json_int_t)s->backup_experts, "bytes", (json_int_t)s->backup_bytes,
                           "missing", (json_int_t)s->backup_missing);
}

static json_t *metrics_json(const struct eep_admin_status *s)
{
    json_t *json = json_object();

    for (uint32_t i = 0; i < s->metric_count; i++) {
        (void)json_object_set_new(json, s->metrics[i].name, json_real(s->metrics[i].value));
    }
    return json;
}

static json_t *abilities_json(uint32_t can)
{
    static const char *const words[] = {"scale", "drain", "rebalance", "abort"};
    json_t *list = json_array();

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if ((can & (1u << i)) != 0) {
            (void)json_array_append_new(list, json_string(words[i]));
        }
    }
    return list;
}

static json_t *model_json(const struct eep_admin_status *s)
{
    return json_pack("{s:o, s:o, s:I, s:I, s:I}", "directory", text_json(s->model), "architecture",
                     text_json(s->architecture), "moe_layers", (json_int_t)s->moe_layers, "experts",
                     (json_int_t)s->experts, "top_k", (json_int_t)s->top_k);
}

static json_t *requests_json(const struct eep_admin_status *s)
{
    return json_pack("{s:I, s:I, s:f}", "open", (json_int_t)s->requests_open, "done",
                     (json_int_t)s->requests_done, "tokens_per_s", s->tokens_per_s);
}

json_t *eep_admin_status_json(const struct eep_admin_status *s,
                              const struct eep_admin_operation *operation)
{
    return json_pack(
        "{s:s, s:o, s:I, s:o, s:o, s:o, s:o, s:o, s:{s:I}, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
        "version", PACKAGE_VERSION, "state", text_json(s->state), "epoch", (json_int_t)s->epoch,
        "started_ms", time_json(s->started_ms), "now_ms", time_json(s->now_ms), "can",
        abilities_json(s->can), "model", model_json(s), "seats", seats_json(s), "layout", "version",
        (json_int_t)s->rebalance.version, "rebalance", rebalance_json(&s->rebalance), "cache",
        cache_json(s), "survives", survival_json(s), "backup", backup_json(s), "requests",
        requests_json(s), "operation", eep_admin_operation_json(operation), "members",
        members_json(s), "metrics", metrics_json(s));
}

/* ---- the layout ---- */

json_t *eep_admin_layout_json(const struct eep_admin_layout *l)
{
    const size_t slots = (size_t)l->seats * l->slots_per_seat;
    json_t *rows = json_array();

    for (uint32_t layer = 0; layer < l->layers; layer++) {
        json_t *row = json_array();

        for (size_t p = 0; p < slots; p++) {
            (void)json_array_append_new(row, json_integer(l->phys2log[layer * slots + p]));
        }
        (void)json_array_append_new(rows, row);
    }
    return json_pack("{s:I, s:I, s:I, s:I, s:o}", "version", (json_int_t)l->version, "experts",
                     (json_int_t)l->experts, "seats", (json_int_t)l->seats, "slots_per_seat",
                     (json_int_t)l->slots_per_seat, "phys2log", rows);
}

/* ---- errors ---- */

static const char *reason_word(int code)
{
    switch (code) {
    case 401:
        return "unauthorized";
    case 404:
        return "not_found";
    case 405:
        return "method_not_allowed";
    case 409:
        return "conflict";
    case 413:
        return "too_large";
    case 501:
        return "not_supported";
    case 503:
        return "unavailable";
    default:
        return "bad_request";
    }
}

json_t *eep_admin_error_json(int code, const char *field, const char *message,
                             const struct eep_admin_operation *operation)
{
    return json_pack("{s:{s:i, s:s, s:o, s:o, s:o}}", "error", "code", code, "reason",
                     reason_word(code), "field",
                     field != NULL && field[0] != '\0' ? text_json(field) : json_null(), "message",
                     text_json(message), "operation", eep_admin_operation_json(operation));
}
