/*
 * The engine's side of the admin endpoint, on rank 0: between two steps it takes commands from the
 * mailbox and posts what there is to see. Commands reach the other ranks with the next step. When
 * rank 0 is lost or leaves, the next one opens the endpoint anew.
 */
#include "tools/admin.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "admin/mailbox.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/look.h"
#include "tools/tools.h"

#define POST_EVERY_NS (100 * EEP_NS_PER_MS)
#define RATE_OVER_NS EEP_NS_PER_S

struct eep_tool_admin {
    struct eep_engine *engine;
    struct eep_tool_admin_opts opts;
    struct eep_admin_mailbox *mailbox; /* NULL on other ranks than 0 */
    struct eep_admin *endpoint;
    uint64_t tried_ns; /* when it could not be opened last */
    uint64_t epoch;    /* of the membership, that was posted */

    struct eep_backup_facts backup; /* as posted */
    struct eep_admin_status status; /* what does not change is filled in at the start */
    struct eep_rank_memory *memory; /* (started): of each member at the start */
    uint32_t started, seat_count;
    struct eep_admin_member *members;
    struct eep_admin_seat *seats;
    uint64_t posted_ns;
    bool layout_posted;
    uint64_t layout_version; /* that was posted */

    uint64_t rate_ns, rate_tokens; /* where the current measuring of tokens/s began */

    bool has_operation;               /* one is under way */
    bool is_asked;                    /* a change of members waits for its first answer */
    struct eep_admin_request request; /* that was asked */
    struct eep_admin_operation operation;
    struct eep_rebalance_status before; /* when it was asked for */
};

static int64_t unix_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* ---- what there is to see ---- */

/* What this process knows by itself. */
static void describe(struct eep_tool_admin *a, const struct eep_layout *layout)
{
    struct eep_admin_status *s = &a->status;
    struct eep_engine_facts f;

    if (eep_engine_own_facts(a->engine, &f) != EEP_OK) {
        eep_log(EEP_LOG_WARN, "admin: the status has gaps: %s", eep_error_text());
    }
    snprintf(s->state, sizeof(s->state), "serving");
    snprintf(s->architecture, sizeof(s->architecture), "%s", f.architecture);
    s->started_ms = unix_ms();
    s->moe_layers = f.moe_layers;
    s->experts = f.experts;
    s->top_k = f.top_k;
    s->slots_per_seat = layout->slots_per_seat;
    a->seat_count = layout->seats;
    if (f.cache_path != NULL) {
        snprintf(s->cache_path, sizeof(s->cache_path), "%s", f.cache_path);
        s->cache_bytes = f.cache_bytes;
        s->cache_kept = f.cache_kept;
        s->cache_attached = f.cache_attached;
    }
}

static void show_member(struct eep_tool_admin *a, uint32_t id, uint32_t rank, uint32_t node,
                        const char *state)
{
    const struct eep_rank_memory none = {0};
    const struct eep_rank_memory *memory = id < a->started ? &a->memory[id] : &none;
    struct eep_admin_member *member = &a->members[a->status.member_count++];

    *member = (struct eep_admin_member){.id = id, .rank = rank, .node = node};
    snprintf(member->state, sizeof(member->state), "%s", state);
    if (rank != EEP_ADMIN_NO_RANK) {
        member->resident_bytes = memory->resident;
        member->dense_bytes = memory->dense;
        member->frames_bytes = memory->frames;
        member->kv_bytes = memory->kv;
        member->buffers_bytes = memory->buffers;
    }
}

static uint32_t rank_of(const struct eep_tool_admin *a, uint32_t id)
{
    const uint32_t *ids = eep_engine_member_ids(a->engine);

    for (uint32_t r = 0; r < eep_engine_ranks(a->engine); r++) {
        if (ids[r] == id) {
            return r;
        }
    }
    return EEP_ADMIN_NO_RANK;
}

static const char *life_text(uint32_t life)
{
    return life == EEP_LIFE_ACTIVE ? "serving" : eep_life_text((enum eep_life)life);
}

/* An engine that a loss ends: its ranks are its members. */
static void show_fixed_members(struct eep_tool_admin *a)
{
    struct eep_admin_status *s = &a->status;
    const uint32_t *executors = eep_engine_executors(a->engine);

    for (uint32_t r = 0; r < a->started; r++) {
        show_member(a, r, r, a->memory[r].node, "serving");
    }
    for (uint32_t seat = 0; seat < a->seat_count; seat++) {
        a->seats[seat].state = EEP_ADMIN_SEAT_ACTIVE;
        a->seats[seat].executor = executors[seat];
    }
    s->seat_count = a->seat_count;
    s->scaling.effective_ep_size = s->scaling.pending_ep_size = a->started;
    s->scaling.max_ep_size = a->started;
    snprintf(s->scaling.scale_phase, sizeof(s->scaling.scale_phase), "idle");
}

static void show_survival(struct eep_tool_admin *a, const struct eep_member_state *m,
                          const struct eep_layout *layout)
{
    struct eep_admin_status *s = &a->status;
    uint64_t held_on[EEP_SEATS_MAX];
    uint32_t on_node[EEP_NODES_MAX] = {0};
    struct eep_experts_ask ask = {.layout = layout, .held_on = held_on, .disk = true};
    struct eep_experts_survey survey;

    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        const struct eep_member_record *r = &m->members[i];

        on_node[r->node] += eep_member_in_epoch(r);
    }
    for (uint32_t node = 0; node < EEP_NODES_MAX; node++) {
        ask.live_nodes |= on_node[node] > 0 ? UINT64_C(1) << node : 0;
        ask.single_nodes |= on_node[node] == 1 ? UINT64_C(1) << node : 0;
    }
    for (uint32_t seat = 0; seat < a->seat_count; seat++) {
        held_on[seat] = m->seats[seat].held_on;
    }
    ask.backup_on = a->backup.on;
    eep_experts_survey(&ask, NULL, &survey);
    s->survival_known = true;
    s->survives_any_rank = survey.survives_rank;
    s->survives_any_node = survey.survives_node;
    s->single_source = survey.single_source;
    s->has_backup = a->backup.enabled;
    s->backup_whole = a->backup.whole;
    s->backup_experts = a->backup.experts;
    s->backup_bytes = a->backup.bytes;
    s->backup_missing = a->backup.missing;
}

static void show_scaling(struct eep_tool_admin *a, const struct eep_member_state *m)
{
    struct eep_admin_scaling *scaling = &a->status.scaling;
    const struct eep_operation *op = &m->operation;
    const bool runs = op->phase != EEP_PHASE_NONE;

    scaling->enabled = true;
    scaling->is_scaling = runs;
    scaling->effective_ep_size = eep_member_size(m);
    scaling->pending_ep_size = runs ? op->target : scaling->effective_ep_size;
    scaling->max_ep_size = a->started;
    snprintf(scaling->scale_phase, sizeof(scaling->scale_phase), "%s",
             runs ? eep_phase_text(op) : "idle");
}

/* Members, seats, and what a loss would cost. */
static void show_members(struct eep_tool_admin *a, const struct eep_layout *layout)
{
    const struct eep_member_state *m = eep_engine_member_state(a->engine);
    struct eep_admin_status *s = &a->status;

    s->member_count = 0;
    if (m == NULL) {
        show_fixed_members(a);
        return;
    }
    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        const struct eep_member_record *r = &m->members[i];

        if (r->life != EEP_LIFE_NONE) {
            show_member(a, r->id, rank_of(a, r->id), r->node, life_text(r->life));
        }
    }
    for (uint32_t seat = 0; seat < a->seat_count; seat++) {
        a->seats[seat].state = (enum eep_admin_seat_state)m->seats[seat].state;
        a->seats[seat].executor = m->seats[seat].executor;
    }
    s->seat_count = a->seat_count;
    s->epoch = m->epoch;
    show_scaling(a, m);
    show_survival(a, m, layout);
}

/* An epoch that began since the last look. */
static void tell_epoch(struct eep_tool_admin *a)
{
    const struct eep_loss_facts *loss = eep_engine_losses(a->engine);

    if (a->epoch != 0 && a->status.epoch != a->epoch) {
        eep_admin_mailbox_event(
            a->mailbox, "membership", a->status.epoch, a->layout_version,
            "epoch %llu -> %llu: %u members (%llu lost or left so far), noticed within %.1f ms, "
            "agreed in %.1f ms, reseated in %.1f ms",
            (unsigned long long)a->epoch, (unsigned long long)a->status.epoch,
            a->status.scaling.effective_ep_size, (unsigned long long)loss->ranks_lost,
            (double)loss->noticed_ns * 1e-6, (double)loss->agreed_ns * 1e-6,
            (double)loss->reseated_ns * 1e-6);
    }
    a->epoch = a->status.epoch;
}

static void measure_rate(struct eep_tool_admin *a, const struct eep_engine_look *look,
                         uint64_t now_ns)
{
    const uint64_t ns = now_ns - a->rate_ns;

    if (ns >= RATE_OVER_NS) {
        a->status.tokens_per_s =
            (double)(look->generated_tokens - a->rate_tokens) * 1e9 / (double)ns;
        a->rate_ns = now_ns;
        a->rate_tokens = look->generated_tokens;
    }
}

static void post_status(struct eep_tool_admin *a, const struct eep_engine_look *look)
{
    struct eep_admin_status *s = &a->status;

    s->now_ms = unix_ms();
    eep_engine_backup(a->engine, &a->backup);
    show_members(a, look->layout);
    tell_epoch(a);
    s->requests_open = look->unfinished;
    s->requests_done = look->requests - look->unfinished;
    eep_engine_rebalance_status(a->engine, &s->rebalance);
    const struct eep_loss_facts *loss = eep_engine_losses(a->engine);
    const struct eep_admin_metric metrics[] = {
        {"eep_losses_total", (double)loss->losses},
        {"eep_ranks_lost_total", (double)loss->ranks_lost},
        {"eep_loss_noticed_seconds", (double)loss->noticed_ns * 1e-9},
        {"eep_loss_agreed_seconds", (double)loss->agreed_ns * 1e-9},
        {"eep_loss_reseated_seconds", (double)loss->reseated_ns * 1e-9},
        {"eep_loss_first_step_seconds", (double)loss->first_step_ns * 1e-9},
        {"eep_loss_experts_from_frames", (double)(loss->from_node + loss->from_other_node)},
        {"eep_loss_experts_from_backup", (double)loss->from_backup},
        {"eep_loss_experts_from_checkpoint", (double)loss->from_checkpoint},
        {"eep_backup_experts", (double)a->backup.experts},
        {"eep_backup_bytes", (double)a->backup.bytes},
        {"eep_backup_missing_experts", (double)a->backup.missing},
        {"eep_backup_failures_total", (double)a->backup.failures},
        {"eep_steps_total", (double)look->steps},
        {"eep_prompt_tokens_total", (double)look->prompt_tokens},
        {"eep_generated_tokens_total", (double)look->generated_tokens},
        {"eep_rebalances_total", (double)s->rebalance.rebalances},
        {"eep_moved_bytes_total", (double)s->rebalance.bytes},
        {"eep_resident_bytes", (double)eep_mem_resident_bytes()},
    };
    s->metrics = metrics;
    s->metric_count = sizeof(metrics) / sizeof(metrics[0]);
    if (eep_admin_mailbox_post(a->mailbox, s) != EEP_OK) {
        eep_log(EEP_LOG_WARN, "admin: the status is not up to date: %s", eep_error_text());
    }
    s->metrics = NULL;
    s->metric_count = 0;
}

/* The first one and each new version. */
static void post_layout(struct eep_tool_admin *a, const struct eep_engine_look *look)
{
    struct eep_rebalance_status r;

    eep_engine_rebalance_status(a->engine, &r);
    if (a->layout_posted && a->layout_version == r.version) {
        return;
    }
    const struct eep_admin_layout layout = {.version = r.version,
                                            .layers = look->layout->layers,
                                            .experts = look->layout->experts,
                                            .seats = look->layout->seats,
                                            .slots_per_seat = look->layout->slots_per_seat,
                                            .phys2log = look->layout->phys2log};

    if (eep_admin_mailbox_post_layout(a->mailbox, &layout) != EEP_OK) {
        eep_log(EEP_LOG_WARN, "admin: the layout is not up to date: %s", eep_error_text());
        return;
    }
    if (a->layout_posted) {
        eep_admin_mailbox_event(a->mailbox, "layout", 0, r.version, "version %llu -> %llu",
                                (unsigned long long)a->layout_version,
                                (unsigned long long)r.version);
    }
    a->layout_posted = true;
    a->layout_version = r.version;
}

/* ---- operations ---- */

static void tell_operation(struct eep_tool_admin *a)
{
    if (eep_admin_mailbox_post_operation(a->mailbox, &a->operation) != EEP_OK) {
        eep_log(EEP_LOG_WARN, "admin: operation '%s' is not up to date: %s", a->operation.id,
                eep_error_text());
    }
}

static void refuse(struct eep_tool_admin *a, const struct eep_admin_request *request,
                   enum eep_admin_code code, const char *why)
{
    if (eep_admin_mailbox_refuse(a->mailbox, request, code, "%s", why) != EEP_OK) {
        eep_log(EEP_LOG_WARN, "admin: an answer is lost: %s", eep_error_text());
    }
}

static void begin_rebalance(struct eep_tool_admin *a, const struct eep_admin_request *request)
{
    struct eep_engine_look look;

    eep_engine_look(a->engine, &look);
    eep_engine_rebalance_status(a->engine, &a->before);
    if (a->before.state == EEP_REBALANCE_OFF) {
        refuse(a, request, EEP_ADMIN_BUSY, a->before.reason);
        return;
    }
    if (look.unfinished == 0) {
        refuse(a, request, EEP_ADMIN_UNAVAILABLE, "the engine is at its end: no request is left");
        return;
    }
    eep_engine_ask_rebalance(a->engine, request->dry_run);
    a->has_operation = true;
    a->operation = (struct eep_admin_operation){.kind = EEP_ADMIN_REBALANCE,
                                                .state = EEP_ADMIN_RUNNING,
                                                .dry_run = request->dry_run,
                                                .phase = "planning",
                                                .deadline_s = request->deadline_s};
    snprintf(a->operation.id, sizeof(a->operation.id), "%s", request->id);
    tell_operation(a);
    eep_admin_mailbox_event(a->mailbox, "operation", 0, a->layout_version, "%s%s '%s' begins",
                            request->dry_run ? "dry run of " : "", "rebalance", request->id);
}

/* What a rebalance found and did, as JSON; the caller frees it. NULL: no memory. */
static char *outcome(const struct eep_tool_admin *a, const struct eep_rebalance_status *now)
{
    json_t *json = json_pack("{s:I, s:I, s:I, s:I, s:f, s:f, s:s}", "planned_copies",
                             (json_int_t)now->planned_copies, "copies",
                             (json_int_t)(now->copies - a->before.copies), "bytes",
                             (json_int_t)(now->bytes - a->before.bytes), "layout_version",
                             (json_int_t)now->version, "imbalance_before", now->imbalance_before,
                             "imbalance_after", now->imbalance_after, "reason", now->reason);
    char *text = json != NULL ? json_dumps(json, JSON_COMPACT) : NULL;

    json_decref(json);
    return text;
}

/* "No move pays" is an outcome; that it was put off or given up is a failure. */
static void end_rebalance(struct eep_tool_admin *a)
{
    struct eep_admin_operation *op = &a->operation;
    struct eep_rebalance_status now;
    char *plan;

    eep_engine_rebalance_status(a->engine, &now);
    plan = outcome(a, &now);
    op->state = now.state == EEP_REBALANCE_IDLE || now.state == EEP_REBALANCE_NO_MOVE
                    ? EEP_ADMIN_DONE
                    : EEP_ADMIN_FAILED;
    op->phase[0] = '\0';
    op->bytes_done = op->bytes_total = now.bytes - a->before.bytes;
    op->plan = plan;
    snprintf(op->message, sizeof(op->message), "%s", now.reason);
    tell_operation(a);
    eep_admin_mailbox_event(a->mailbox, "operation", 0, now.version, "rebalance '%s' %s: %s",
                            op->id, eep_admin_state_text(op->state), now.reason);
    op->plan = NULL;
    free(plan);
    a->has_operation = false;
}

/* A change of members, or the end of one. */
static void ask_members(struct eep_tool_admin *a, struct eep_admin_request *request)
{
    uint32_t drain[EEP_MEMBERS_MAX];
    struct eep_member_request ask = {
        .kind = request->kind == EEP_ADMIN_SCALE ? EEP_OPERATION_SCALE : EEP_OPERATION_DRAIN,
        .target = request->to,
        .drain = drain,
        .drain_count = (uint32_t)EEP_MIN(request->member_count, (size_t)EEP_MEMBERS_MAX),
        .dry_run = request->dry_run,
        .leavers_exit = request->exit,
        .timeout_ns = (uint64_t)request->deadline_s * EEP_NS_PER_S,
    };

    if (eep_engine_member_state(a->engine) == NULL) {
        refuse(a, request, EEP_ADMIN_NOT_FOUND,
               "members cannot come or go here: the job has one rank, or it was started with "
               "--on-loss=stop or without fault tolerance");
        return;
    }
    if (request->host_count > 0) {
        refuse(
            a, request, EEP_ADMIN_NOT_FOUND,
            "this job cannot start ranks on machines of your choice: parked processes join where "
            "they are, new ones on rank 0's; start it with all machines and --ep-size");
        return;
    }
    if (strlen(request->id) >= sizeof(ask.id) || request->member_count > EEP_MEMBERS_MAX) {
        refuse(a, request, EEP_ADMIN_BAD, "an id has at most 39 characters, a list 256 members");
        return;
    }
    memcpy(ask.id, request->id, strlen(request->id));
    for (uint32_t i = 0; i < ask.drain_count; i++) {
        drain[i] = (uint32_t)EEP_MIN(request->members[i], (uint64_t)EEP_NO_MEMBER);
    }
    if (eep_engine_ask_members(a->engine, &ask) != EEP_OK) {
        refuse(a, request, EEP_ADMIN_UNAVAILABLE, eep_error_text());
        return;
    }
    a->has_operation = a->is_asked = true;
    a->request = *request;
    *request = (struct eep_admin_request){0};
}

static void stop_operation(struct eep_tool_admin *a, const struct eep_admin_request *request)
{
    struct eep_member_request ask = {.kind = EEP_OPERATION_ABORT};

    if (eep_engine_member_state(a->engine) != NULL && strlen(request->id) < sizeof(ask.id)) {
        memcpy(ask.id, request->id, strlen(request->id));
        if (eep_engine_ask_members(a->engine, &ask) != EEP_OK) {
            eep_log(EEP_LOG_WARN, "admin: the abort of '%s' is lost: %s", request->id,
                    eep_error_text());
        }
    }
}

static void take_commands(struct eep_tool_admin *a)
{
    struct eep_admin_command command;

    while (eep_admin_mailbox_take(a->mailbox, &command)) {
        if (command.type == EEP_ADMIN_STOP) {
            stop_operation(a, &command.request);
        } else if (a->has_operation) {
            refuse(a, &command.request, EEP_ADMIN_BUSY, "another operation runs");
        } else if (command.request.kind == EEP_ADMIN_REBALANCE) {
            begin_rebalance(a, &command.request);
        } else {
            ask_members(a, &command.request);
        }
        eep_admin_request_free(&command.request);
    }
}

/* ---- answers of the membership ---- */

static const char *kind_text(enum eep_admin_kind kind)
{
    return kind == EEP_ADMIN_SCALE ? "scale" : "drain";
}

static void begin_change(struct eep_tool_admin *a, const struct eep_member_action *answer)
{
    const struct eep_member_state *m = eep_engine_member_state(a->engine);
    const struct eep_admin_request *request = &a->request;

    a->is_asked = false;
    a->operation = (struct eep_admin_operation){
        .kind = request->kind,
        .state = EEP_ADMIN_RUNNING,
        .dry_run = request->dry_run,
        .from =
            m->operation.phase != EEP_PHASE_NONE ? m->operation.size_before : eep_member_size(m),
        .deadline_s = request->deadline_s,
    };
    a->operation.to = request->kind == EEP_ADMIN_SCALE
                          ? request->to
                          : a->operation.from - (uint32_t)request->member_count;
    snprintf(a->operation.id, sizeof(a->operation.id), "%s", request->id);
    snprintf(a->operation.message, sizeof(a->operation.message),
             "%u seats get another executor, %u of them are filled first", answer->have,
             answer->want);
    tell_operation(a);
    eep_admin_mailbox_event(a->mailbox, "operation", m->epoch, a->layout_version,
                            "%s%s '%s' begins: %s", request->dry_run ? "dry run of " : "",
                            kind_text(request->kind), request->id, a->operation.message);
}

static void end_change(struct eep_tool_admin *a, const struct eep_member_action *answer)
{
    struct eep_admin_operation *op = &a->operation;
    const bool done = answer->reason == EEP_REASON_NONE || answer->reason == EEP_REASON_SHORT;

    op->state = done                                   ? EEP_ADMIN_DONE
                : answer->reason == EEP_REASON_ABORTED ? EEP_ADMIN_ABORTED
                                                       : EEP_ADMIN_FAILED;
    op->phase[0] = '\0';
    if (answer->reason != EEP_REASON_NONE) {
        snprintf(op->message, sizeof(op->message), "%s", eep_reason_text(answer->reason));
    }
    if (!done) {
        snprintf(a->status.scaling.last_error, sizeof(a->status.scaling.last_error), "%s '%s': %s",
                 kind_text(op->kind), op->id, op->message);
    }
    tell_operation(a);
    eep_admin_mailbox_event(a->mailbox, "operation", a->status.epoch, a->layout_version,
                            "%s '%s' %s: %s", kind_text(op->kind), op->id,
                            eep_admin_state_text(op->state), op->message);
    a->has_operation = false;
    eep_admin_request_free(&a->request);
}

static void hear_answer(struct eep_tool_admin *a, const struct eep_member_action *answer)
{
    char text[160];

    if (!a->has_operation || strcmp(answer->operation, a->request.id) != 0) {
        return; /* one that an earlier rank 0 was asked */
    }
    if (a->is_asked && (answer->code == EEP_ANSWER_REFUSED || answer->code == EEP_ANSWER_BUSY)) {
        snprintf(text, sizeof(text), "%s (have %u, want %u)", eep_reason_text(answer->reason),
                 answer->have, answer->want);
        refuse(a, &a->request, answer->code == EEP_ANSWER_BUSY ? EEP_ADMIN_BUSY : EEP_ADMIN_BAD,
               text);
        a->has_operation = a->is_asked = false;
        eep_admin_request_free(&a->request);
        return;
    }
    if (a->is_asked) {
        begin_change(a, answer);
    }
    if (answer->code == EEP_ANSWER_ENDED) {
        end_change(a, answer);
    }
}

static void show_phase(struct eep_tool_admin *a)
{
    const struct eep_member_state *m = eep_engine_member_state(a->engine);

    if (m != NULL && m->operation.phase != EEP_PHASE_NONE &&
        strcmp(a->operation.phase, eep_phase_text(&m->operation)) != 0) {
        snprintf(a->operation.phase, sizeof(a->operation.phase), "%s",
                 eep_phase_text(&m->operation));
        tell_operation(a);
    }
}

static void go_on_with_members(struct eep_tool_admin *a)
{
    struct eep_member_action answer;

    while (eep_engine_next_answer(a->engine, &answer)) {
        hear_answer(a, &answer);
    }
    if (a->has_operation && !a->is_asked && a->operation.kind != EEP_ADMIN_REBALANCE) {
        show_phase(a);
    }
}

static enum eep_status open_endpoint(struct eep_tool_admin *a);

/* Another rank had it, and is gone. */
static bool take_over(struct eep_tool_admin *a)
{
    const uint64_t now_ns = eep_clock_ns();

    if (now_ns - a->tried_ns < POST_EVERY_NS) {
        return false;
    }
    a->tried_ns = now_ns;
    if (open_endpoint(a) != EEP_OK) {
        eep_log(EEP_LOG_WARN, "admin: the endpoint cannot be opened yet: %s", eep_error_text());
        eep_admin_mailbox_destroy(a->mailbox);
        a->mailbox = NULL;
        return false;
    }
    return true;
}

void eep_tool_admin_step(struct eep_tool_admin *a)
{
    struct eep_engine_look look;
    uint64_t now_ns;
    bool ended;

    if (a == NULL || eep_engine_rank(a->engine) != 0 || (a->mailbox == NULL && !take_over(a))) {
        return;
    }
    take_commands(a);
    go_on_with_members(a);
    now_ns = eep_clock_ns();
    eep_engine_look(a->engine, &look);
    ended = a->has_operation && !a->is_asked && a->operation.kind == EEP_ADMIN_REBALANCE &&
            !look.rebalance_pending;
    if (!ended && now_ns - a->posted_ns < POST_EVERY_NS) {
        return;
    }
    measure_rate(a, &look, now_ns);
    post_layout(a, &look);
    post_status(a, &look);
    a->posted_ns = now_ns;
    if (ended) {
        end_rebalance(a);
    }
}

/* ---- life ---- */

/* Operations that another rank 0 was asked: what became of them, and the one that runs. */
static void tell_inherited(struct eep_tool_admin *a, const struct eep_operation *op, bool runs)
{
    const bool done = op->phase == EEP_PHASE_DONE;
    struct eep_admin_operation told = {
        .kind = op->kind == EEP_OPERATION_SCALE ? EEP_ADMIN_SCALE : EEP_ADMIN_DRAIN,
        .state = runs                                                          ? EEP_ADMIN_RUNNING
                 : done                                                        ? EEP_ADMIN_DONE
                 : (enum eep_operation_reason)op->reason == EEP_REASON_ABORTED ? EEP_ADMIN_ABORTED
                                                                               : EEP_ADMIN_FAILED,
        .from = op->size_before,
        .to = op->target,
        .deadline_s = (uint32_t)((op->deadline_ns - op->begin_ns) / EEP_NS_PER_S),
    };

    memcpy(told.id, op->id, sizeof(op->id));
    snprintf(told.message, sizeof(told.message), "%s",
             eep_reason_text((enum eep_operation_reason)op->reason));
    if (runs) {
        a->has_operation = true;
        memcpy(a->request.id, op->id, sizeof(op->id));
        a->request.kind = told.kind;
        a->operation = told;
    }
    if (eep_admin_mailbox_post_operation(a->mailbox, &told) != EEP_OK) {
        eep_log(EEP_LOG_WARN, "admin: operation '%s' is not known any more: %s", told.id,
                eep_error_text());
    }
}

static void inherit_operations(struct eep_tool_admin *a)
{
    const struct eep_member_state *m = eep_engine_member_state(a->engine);

    if (m == NULL) {
        return;
    }
    for (uint32_t i = m->history_count - EEP_MIN(m->history_count, EEP_OPERATION_HISTORY);
         i < m->history_count; i++) {
        tell_inherited(a, &m->history[i % EEP_OPERATION_HISTORY], false);
    }
    if (m->operation.phase != EEP_PHASE_NONE) {
        tell_inherited(a, &m->operation, true);
    }
}

static enum eep_status open_endpoint(struct eep_tool_admin *a)
{
    const struct eep_admin_params params = {
        .endpoint = strcmp(a->opts.endpoint, "default") != 0 ? a->opts.endpoint : NULL,
        .token_file = a->opts.token_file,
        .cert_file = a->opts.cert_file,
        .key_file = a->opts.key_file,
    };
    struct eep_admin_handlers handlers;
    struct eep_engine_look look;

    const bool changes = eep_engine_member_state(a->engine) != NULL;

    eep_engine_look(a->engine, &look);
    describe(a, look.layout);
    a->status.can =
        (look.can_rebalance ? (uint32_t)EEP_ADMIN_CAN_REBALANCE : 0u) |
        (changes ? EEP_ADMIN_CAN_SCALE | EEP_ADMIN_CAN_DRAIN | EEP_ADMIN_CAN_ABORT : 0u);
    EEP_TRY(eep_admin_mailbox_create(&a->mailbox));
    a->rate_ns = eep_clock_ns();
    post_layout(a, &look);
    post_status(a, &look);
    inherit_operations(a);
    handlers = eep_admin_mailbox_handlers(a->mailbox);
    return eep_admin_open(&params, &handlers, &a->endpoint);
}

static enum eep_status create(const struct eep_tool_admin_opts *values, struct eep_engine *engine,
                              const struct eep_engine_facts *facts, struct eep_tool_admin **a_out)
{
    struct eep_tool_admin *a;

    EEP_TRY(eep_mem_alloc(1, sizeof(*a), "the admin endpoint", &a));
    *a_out = a;
    a->engine = engine;
    a->opts = *values;
    a->started = eep_engine_processes(engine);
    EEP_TRY(eep_mem_alloc(a->started, sizeof(*a->memory), "memory facts", &a->memory));
    for (uint32_t r = 0; facts != NULL && r < facts->ranks; r++) {
        a->memory[r] = facts->memory[r];
    }
    EEP_TRY(eep_mem_alloc(EEP_MAX(a->started, EEP_MEMBERS_MAX), sizeof(*a->members), "members",
                          &a->members));
    EEP_TRY(eep_mem_alloc(EEP_MAX(eep_engine_seats(engine), EEP_SEATS_MAX), sizeof(*a->seats),
                          "seats", &a->seats));
    a->status.members = a->members;
    a->status.seats = a->seats;
    snprintf(a->status.model, sizeof(a->status.model), "%s", values->model);
    return eep_engine_rank(engine) == 0 ? open_endpoint(a) : EEP_OK;
}

enum eep_status eep_tool_admin_open(const struct eep_tool_admin_opts *values,
                                    struct eep_engine *engine, struct eep_tool_admin **admin_out)
{
    struct eep_engine_facts facts;
    struct eep_tool_admin *a = NULL;
    enum eep_status status;

    *admin_out = NULL;
    if (values->endpoint == NULL) {
        return EEP_OK;
    }
    if (eep_engine_is_parked(engine)) {
        status = create(values, engine, NULL, &a);
    } else {
        EEP_TRY(eep_engine_facts(engine, &facts));
        status = eep_engine_agree(engine, "admin endpoint", create(values, engine, &facts, &a));
    }
    if (status != EEP_OK) {
        eep_tool_admin_close(a);
        return status;
    }
    *admin_out = a;
    return EEP_OK;
}

static void close_endpoint(struct eep_tool_admin *a)
{
    eep_admin_close(a->endpoint);
    a->endpoint = NULL;
    eep_admin_mailbox_destroy(a->mailbox);
    a->mailbox = NULL;
}

void eep_tool_admin_rest(struct eep_tool_admin *a)
{
    if (a == NULL) {
        return;
    }
    close_endpoint(a);
    eep_admin_request_free(&a->request);
    a->has_operation = a->is_asked = false;
    a->layout_posted = false;
    a->epoch = 0;
}

void eep_tool_admin_close(struct eep_tool_admin *a)
{
    if (a == NULL) {
        return;
    }
    close_endpoint(a);
    eep_mem_free(a->members);
    eep_mem_free(a->memory);
    eep_admin_request_free(&a->request);
    eep_mem_free(a->seats);
    eep_mem_free(a);
}
