/*
 * The engine's side of the admin endpoint, on rank 0: between two steps it takes commands from the
 * mailbox and posts what there is to see. Commands reach the other ranks with the next step.
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
    struct eep_admin_mailbox *mailbox;
    struct eep_admin *endpoint;

    struct eep_admin_status status; /* what does not change is filled in at the start */
    struct eep_admin_member *members;
    struct eep_admin_seat *seats;
    uint64_t posted_ns;
    bool layout_posted;
    uint64_t layout_version; /* that was posted */

    uint64_t rate_ns, rate_tokens; /* where the current measuring of tokens/s began */

    bool has_operation; /* a rebalance is under way */
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

static enum eep_status fill_facts(struct eep_tool_admin *a, const struct eep_engine_facts *f,
                                  const struct eep_layout *layout)
{
    struct eep_admin_status *s = &a->status;

    EEP_TRY(eep_mem_alloc(f->ranks, sizeof(*a->members), "members", &a->members));
    EEP_TRY(eep_mem_alloc(layout->seats, sizeof(*a->seats), "seats", &a->seats));
    for (uint32_t r = 0; r < f->ranks; r++) {
        const struct eep_rank_memory *memory = &f->memory[r];

        a->members[r] = (struct eep_admin_member){.id = r,
                                                  .rank = r,
                                                  .node = memory->node,
                                                  .state = "serving",
                                                  .resident_bytes = memory->resident,
                                                  .dense_bytes = memory->dense,
                                                  .frames_bytes = memory->frames,
                                                  .kv_bytes = memory->kv,
                                                  .buffers_bytes = memory->buffers};
    }
    for (uint32_t seat = 0; seat < layout->seats; seat++) {
        a->seats[seat].state = EEP_ADMIN_SEAT_ACTIVE;
        a->seats[seat].executor = eep_layout_executor(seat, layout->seats, f->ranks);
    }
    snprintf(s->state, sizeof(s->state), "serving");
    snprintf(s->architecture, sizeof(s->architecture), "%s", f->architecture);
    s->started_ms = unix_ms();
    s->moe_layers = f->moe_layers;
    s->experts = f->experts;
    s->top_k = f->top_k;
    s->slots_per_seat = layout->slots_per_seat;
    s->scaling.effective_ep_size = s->scaling.pending_ep_size = s->scaling.max_ep_size = f->ranks;
    snprintf(s->scaling.scale_phase, sizeof(s->scaling.scale_phase), "idle");
    if (f->cache_path != NULL) {
        snprintf(s->cache_path, sizeof(s->cache_path), "%s", f->cache_path);
        s->cache_bytes = f->cache_bytes;
        s->cache_kept = f->cache_kept;
        s->cache_attached = f->cache_attached;
    }
    s->members = a->members;
    s->member_count = f->ranks;
    s->seats = a->seats;
    s->seat_count = layout->seats;
    return EEP_OK;
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
    s->requests_open = look->unfinished;
    s->requests_done = look->requests - look->unfinished;
    eep_engine_rebalance_status(a->engine, &s->rebalance);
    const struct eep_admin_metric metrics[] = {
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

static void take_commands(struct eep_tool_admin *a)
{
    struct eep_admin_command command;

    while (eep_admin_mailbox_take(a->mailbox, &command)) {
        EEP_ASSERT(command.type == EEP_ADMIN_DO); /* the status says that nothing can be aborted */
        if (command.request.kind == EEP_ADMIN_REBALANCE && !a->has_operation) {
            begin_rebalance(a, &command.request);
        } else {
            refuse(a, &command.request, EEP_ADMIN_UNSUPPORTED, "this engine cannot do that");
        }
        eep_admin_request_free(&command.request);
    }
}

void eep_tool_admin_step(struct eep_tool_admin *a)
{
    struct eep_engine_look look;
    uint64_t now_ns;
    bool ended;

    if (a == NULL) {
        return;
    }
    take_commands(a);
    now_ns = eep_clock_ns();
    eep_engine_look(a->engine, &look);
    ended = a->has_operation && !look.rebalance_pending;
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

static enum eep_status open_here(const struct eep_tool_admin_opts *values,
                                 const struct eep_engine_facts *facts, struct eep_tool_admin *a)
{
    const struct eep_admin_params params = {
        .endpoint = strcmp(values->endpoint, "default") != 0 ? values->endpoint : NULL,
        .token_file = values->token_file,
        .cert_file = values->cert_file,
        .key_file = values->key_file,
    };
    struct eep_admin_handlers handlers;
    struct eep_engine_look look;

    eep_engine_look(a->engine, &look);
    EEP_TRY(fill_facts(a, facts, look.layout));
    snprintf(a->status.model, sizeof(a->status.model), "%s", values->model);
    a->status.can = look.can_rebalance ? EEP_ADMIN_CAN_REBALANCE : 0;
    EEP_TRY(eep_admin_mailbox_create(&a->mailbox));
    a->rate_ns = eep_clock_ns();
    post_layout(a, &look);
    post_status(a, &look);
    handlers = eep_admin_mailbox_handlers(a->mailbox);
    return eep_admin_open(&params, &handlers, &a->endpoint);
}

enum eep_status eep_tool_admin_open(const struct eep_tool_admin_opts *values,
                                    struct eep_engine *engine, struct eep_tool_admin **admin_out)
{
    enum eep_status status = EEP_OK;
    struct eep_engine_facts facts;
    struct eep_tool_admin *a = NULL;

    *admin_out = NULL;
    if (values->endpoint == NULL) {
        return EEP_OK;
    }
    EEP_TRY(eep_engine_facts(engine, &facts));
    if (eep_engine_rank(engine) == 0) {
        status = eep_mem_alloc(1, sizeof(*a), "the admin endpoint", &a);
        if (status == EEP_OK) {
            a->engine = engine;
            status = open_here(values, &facts, a);
        }
    }
    status = eep_engine_agree(engine, "admin endpoint", status);
    if (status != EEP_OK) {
        eep_tool_admin_close(a);
        return status;
    }
    *admin_out = a;
    return EEP_OK;
}

void eep_tool_admin_close(struct eep_tool_admin *a)
{
    if (a == NULL) {
        return;
    }
    eep_admin_close(a->endpoint);
    eep_admin_mailbox_destroy(a->mailbox);
    eep_mem_free(a->members);
    eep_mem_free(a->seats);
    eep_mem_free(a);
}
