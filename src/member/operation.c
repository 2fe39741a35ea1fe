/*
 * Operations: what may begin, what is answered, how they end. One runs at a time; ended ones are
 * kept for a while so that the same id gets the same answer.
 */
#include <stdio.h>
#include <string.h>

#include "member/member_int.h"

/* ---- answers ---- */

static struct eep_member_action *answer(struct eep_member *m, const char *id, enum eep_answer code,
                                        enum eep_operation_reason reason)
{
    struct eep_member_action *action =
        eep_emit(m, EEP_DO_ANSWER, EEP_NO_MEMBER, eep_lowest_of_epoch(&m->state));

    action->code = code;
    action->reason = reason;
    memcpy(action->operation, id, sizeof(action->operation));
    return action;
}

static const struct eep_operation *ended(const struct eep_member_state *s, const char *id)
{
    const uint32_t kept = EEP_MIN(s->history_count, EEP_OPERATION_HISTORY);

    for (uint32_t i = 0; i < kept; i++) {
        if (memcmp(s->history[i].id, id, EEP_OPERATION_ID_BYTES) == 0) {
            return &s->history[i];
        }
    }
    return NULL;
}

static bool runs(const struct eep_member_state *s, const char *id)
{
    return eep_operation_runs(s) && memcmp(s->operation.id, id, EEP_OPERATION_ID_BYTES) == 0;
}

/* ---- ends ---- */

void eep_set_phase(struct eep_member *m, enum eep_operation_phase phase)
{
    struct eep_operation *op = &m->state.operation;

    if (op->phase != phase) {
        eep_audit(m, EEP_AUDIT_OPERATION, op->reason, op->phase, phase);
        op->phase = phase;
    }
}

static void forget_marks(struct eep_member *m)
{
    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        m->state.members[i].flags &= EEP_MEMBER_SPAWNED | EEP_MEMBER_MISSED;
    }
}

void eep_operation_end(struct eep_member *m, enum eep_operation_phase phase,
                       enum eep_operation_reason reason, enum eep_status status)
{
    struct eep_member_state *s = &m->state;
    struct eep_operation *op = &s->operation;

    op->reason = reason;
    op->status = status;
    eep_set_phase(m, phase);
    if (phase == EEP_PHASE_DONE) {
        s->wanted_size = op->target; /* not its size: that may be smaller by a loss meanwhile */
    }
    answer(m, op->id, EEP_ANSWER_ENDED, reason);
    s->respawn_at_ns = eep_later(s->now_ns, m->params.respawn_ns);
    forget_marks(m);
    s->history[s->history_count++ % EEP_OPERATION_HISTORY] = *op;
    memset(op, 0, sizeof(*op));
    memset(&s->operation_wait, 0, sizeof(s->operation_wait));
}

void eep_operation_roll_back(struct eep_member *m, enum eep_operation_reason reason,
                             enum eep_status status)
{
    struct eep_member_state *s = &m->state;

    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        struct eep_member_record *r = &s->members[i];

        if (r->life == EEP_LIFE_DRAINING) {
            eep_set_life(m, r, EEP_LIFE_ACTIVE);
            eep_emit(m, EEP_DO_UNDRAIN, r->id, r->id);
        } else if (r->life == EEP_LIFE_JOINING) {
            const bool ends = (r->flags & EEP_MEMBER_SPAWNED) != 0;

            if (reason == EEP_REASON_TIMEOUT && (r->flags & EEP_MEMBER_APPEARED) == 0) {
                r->flags |= EEP_MEMBER_MISSED;
            }
            eep_set_life(m, r, ends ? EEP_LIFE_LEFT : EEP_LIFE_PARKED);
            eep_emit(m, ends ? EEP_DO_EXIT : EEP_DO_PARK, r->id, r->id);
        }
    }
    eep_phase_forget_seats(s);
    eep_emit(m, EEP_DO_ROLL_BACK, EEP_NO_MEMBER, EEP_NO_MEMBER);
    eep_operation_end(m, EEP_PHASE_ROLLED_BACK, reason, status);
}

/* ---- what may begin ---- */

struct refusal {
    enum eep_operation_reason reason;
    uint32_t have, want;
};

static uint32_t parked(const struct eep_member_state *s)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        count += s->members[i].life == EEP_LIFE_PARKED;
    }
    return count;
}

static struct refusal check_scale(const struct eep_member *m, uint32_t target)
{
    const uint32_t size = eep_member_size(&m->state), waiting = parked(&m->state);

    if (target == 0) {
        return (struct refusal){EEP_REASON_TOO_SMALL, target, 1};
    }
    if (target > m->params.max_size) {
        return (struct refusal){EEP_REASON_TOO_LARGE, m->params.max_size, target};
    }
    if (target > size && target - size > waiting && !m->params.can_spawn) {
        return (struct refusal){EEP_REASON_NO_JOINERS, waiting, target - size};
    }
    return (struct refusal){EEP_REASON_NONE, 0, 0};
}

static struct refusal check_drain(const struct eep_member *m,
                                  const struct eep_member_request *request)
{
    const uint32_t size = eep_member_size(&m->state);

    for (uint32_t i = 0; i < request->drain_count; i++) {
        const struct eep_member_record *r = eep_member_find(&m->state, request->drain[i]);

        if (r == NULL || r->life != EEP_LIFE_ACTIVE) {
            return (struct refusal){EEP_REASON_NOT_A_MEMBER, 0, request->drain[i]};
        }
        for (uint32_t j = 0; j < i; j++) {
            if (request->drain[j] == request->drain[i]) {
                return (struct refusal){EEP_REASON_BAD_REQUEST, i, request->drain[i]};
            }
        }
    }
    if (request->drain_count >= size) {
        return (struct refusal){EEP_REASON_TOO_SMALL, 0, 1};
    }
    return (struct refusal){EEP_REASON_NONE, 0, 0};
}

/* Spawned ones come to the coordinator's node, as far as can be said before. */
static void add_spawned(const struct eep_member_state *s, uint32_t count, struct eep_plan *plan)
{
    const uint32_t node = eep_member_find(s, eep_lowest_of_epoch(s))->node;

    for (uint32_t i = 0; i < count; i++) {
        plan->candidates[plan->count++] = (struct eep_seat_candidate){s->next_id + i, node};
    }
}

/* The plan that a request would lead to; changes nothing. */
static void foresee(const struct eep_member *m, const struct eep_operation *op,
                    const struct eep_member_request *request, struct eep_plan *plan)
{
    const struct eep_member_state *s = &m->state;
    bool takes[EEP_MEMBERS_MAX], marks[EEP_MEMBERS_MAX] = {false};
    uint32_t missing = 0;

    if (op->grows != 0) {
        missing = op->target - op->size_before;
        missing -= eep_plan_joiners(s, missing, marks);
    } else if (op->kind == EEP_OPERATION_SCALE) {
        eep_plan_leavers(s, op, marks);
    }
    for (uint32_t i = 0; i < request->drain_count; i++) {
        marks[eep_member_find(s, request->drain[i]) - s->members] = true;
    }
    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        takes[i] = op->grows != 0 ? marks[i] || eep_member_in_epoch(&s->members[i])
                                  : eep_member_in_epoch(&s->members[i]) && !marks[i];
    }
    eep_plan_candidates(s, takes, plan);
    add_spawned(s, missing, plan);
    eep_plan_seats(m, op->grows != 0, plan);
}

static struct eep_operation make_operation(const struct eep_member *m,
                                           const struct eep_member_request *request)
{
    const uint32_t size = eep_member_size(&m->state);
    const bool drains = request->kind == EEP_OPERATION_DRAIN;
    struct eep_operation op = {.kind = request->kind, .size_before = size};

    memcpy(op.id, request->id, sizeof(op.id));
    op.target = drains ? size - request->drain_count : request->target;
    op.grows = op.target > size;
    op.leavers_exit = request->leavers_exit;
    op.begin_ns = m->state.now_ns;
    op.deadline_ns = eep_later(op.begin_ns, request->timeout_ns != 0 ? request->timeout_ns
                                                                     : m->params.operation_ns);
    return op;
}

static void begin(struct eep_member *m, const struct eep_member_request *request,
                  const struct eep_operation *op)
{
    struct eep_member_state *s = &m->state;

    s->operation = *op;
    s->operation.first_serial = s->serial + 1;
    s->operation.phase = EEP_PHASE_NONE;
    for (uint32_t i = 0; i < request->drain_count; i++) {
        eep_record_find(s, request->drain[i])->flags |= EEP_MEMBER_NAMED;
    }
    eep_phase_hold(m);
    if (s->mode == EEP_MODE_SERVING) {
        eep_phase_start(m);
    }
}

/* Accept, refuse, or only say; the reason of a refusal. */
static struct refusal consider(struct eep_member *m, const struct eep_member_request *request,
                               struct eep_plan *plan)
{
    struct refusal no = request->kind == EEP_OPERATION_DRAIN ? check_drain(m, request)
                                                             : check_scale(m, request->target);

    if (no.reason != EEP_REASON_NONE) {
        return no;
    }
    const struct eep_operation op = make_operation(m, request);

    foresee(m, &op, request, plan);
    if (!plan->fits) {
        return (struct refusal){EEP_REASON_NO_ROOM, plan->have, plan->want};
    }
    return no;
}

static void propose(struct eep_member *m, const struct eep_member_request *request)
{
    struct eep_plan plan;
    const struct refusal no = consider(m, request, &plan);
    struct eep_member_action *action;

    if (no.reason != EEP_REASON_NONE) {
        action = answer(m, request->id, EEP_ANSWER_REFUSED, no.reason);
        action->have = no.have;
        action->want = no.want;
        return;
    }
    action = answer(m, request->id, request->dry_run ? EEP_ANSWER_ENDED : EEP_ANSWER_ACCEPTED,
                    EEP_REASON_NONE);
    action->have = plan.moved;
    action->want = plan.loaded;
    if (!request->dry_run) {
        const struct eep_operation op = make_operation(m, request);

        begin(m, request, &op);
    }
}

/* ---- requests ---- */

static void abort_operation(struct eep_member *m, const char *id, bool dry_run)
{
    const struct eep_operation *old = ended(&m->state, id);

    if (runs(&m->state, id)) {
        if (m->state.operation.phase == EEP_PHASE_SWITCHING) {
            answer(m, id, EEP_ANSWER_BUSY, EEP_REASON_TOO_LATE);
        } else if (dry_run) {
            answer(m, id, EEP_ANSWER_ENDED, EEP_REASON_ABORTED);
        } else {
            eep_operation_roll_back(m, EEP_REASON_ABORTED, EEP_ERR_STALE);
        }
    } else if (old != NULL) {
        answer(m, id, EEP_ANSWER_ENDED, (enum eep_operation_reason)old->reason);
    } else {
        answer(m, id, EEP_ANSWER_REFUSED, EEP_REASON_UNKNOWN);
    }
}

static bool is_well_formed(const struct eep_member_request *request)
{
    const size_t length = strnlen(request->id, EEP_OPERATION_ID_BYTES);

    if (length == 0 || length == EEP_OPERATION_ID_BYTES) {
        return false;
    }
    return request->kind == EEP_OPERATION_DRAIN
               ? request->drain_count > 0 && request->drain_count <= EEP_MEMBERS_MAX
               : request->drain_count == 0 &&
                     (request->kind == EEP_OPERATION_SCALE || request->kind == EEP_OPERATION_ABORT);
}

void eep_operation_request(struct eep_member *m, const struct eep_member_request *asked)
{
    const struct eep_member_state *s = &m->state;
    struct eep_member_request request = *asked;

    /* What stands behind the id's end must not tell two equal ids apart. */
    memset(request.id, 0, sizeof(request.id));
    memcpy(request.id, asked->id, strnlen(asked->id, sizeof(request.id)));
    if (!is_well_formed(&request)) {
        request.id[EEP_OPERATION_ID_BYTES - 1] = '\0';
        answer(m, request.id, EEP_ANSWER_REFUSED, EEP_REASON_BAD_REQUEST);
    } else if (request.kind == EEP_OPERATION_ABORT) {
        abort_operation(m, request.id, request.dry_run);
    } else if (runs(s, request.id)) {
        answer(m, request.id, EEP_ANSWER_ACCEPTED, EEP_REASON_NONE);
    } else if (ended(s, request.id) != NULL) {
        answer(m, request.id, EEP_ANSWER_ENDED,
               (enum eep_operation_reason)ended(s, request.id)->reason);
    } else if (eep_operation_runs(s)) {
        answer(m, request.id, EEP_ANSWER_BUSY, EEP_REASON_BUSY);
    } else {
        propose(m, &request);
    }
}

void eep_operation_idle(struct eep_member *m)
{
    struct eep_member_state *s = &m->state;
    struct eep_member_request request = {.kind = EEP_OPERATION_SCALE, .target = s->wanted_size};
    struct eep_plan plan;

    if (m->params.on_loss != EEP_ON_LOSS_RESPAWN || s->mode != EEP_MODE_SERVING ||
        eep_operation_runs(s) || eep_member_size(s) >= s->wanted_size ||
        s->now_ns < s->respawn_at_ns) {
        return;
    }
    snprintf(request.id, sizeof(request.id), "respawn-%u", s->serial);
    if (consider(m, &request, &plan).reason != EEP_REASON_NONE) {
        s->respawn_at_ns = eep_later(s->now_ns, m->params.respawn_ns);
        return;
    }
    const struct eep_operation op = make_operation(m, &request);

    begin(m, &request, &op);
}

/* ---- words ---- */

const char *eep_life_text(enum eep_life life)
{
    static const char *const texts[] = {
        [EEP_LIFE_NONE] = "unknown",  [EEP_LIFE_JOINING] = "joining",
        [EEP_LIFE_ACTIVE] = "active", [EEP_LIFE_DRAINING] = "draining",
        [EEP_LIFE_PARKED] = "parked", [EEP_LIFE_DEAD] = "dead",
        [EEP_LIFE_LEFT] = "left",     [EEP_LIFE_SILENT] = "silent",
    };

    return (size_t)life < sizeof(texts) / sizeof(texts[0]) ? texts[life] : "unknown";
}

const char *eep_phase_text(const struct eep_operation *operation)
{
    static const char *const texts[2][EEP_PHASE_ROLLED_BACK + 1] = {
        {"idle", "planned", "draining", "moving", "ready", "switching", "done", "rolled_back"},
        {"idle", "planned", "starting", "loading", "ready", "switching", "done", "rolled_back"},
    };

    return operation->phase <= EEP_PHASE_ROLLED_BACK
               ? texts[operation->grows != 0][operation->phase]
               : "unknown";
}

const char *eep_reason_text(enum eep_operation_reason reason)
{
    static const char *const texts[] = {
        [EEP_REASON_NONE] = "",
        [EEP_REASON_ABORTED] = "aborted as asked",
        [EEP_REASON_TIMEOUT] = "its time was over",
        [EEP_REASON_FAILED] = "a member reported a failure",
        [EEP_REASON_JOINER_LOST] = "a joining member died or was not let in",
        [EEP_REASON_SHORT] = "done, but members were lost on the way",
        [EEP_REASON_NO_JOINERS] = "not enough parked members, and none can be spawned",
        [EEP_REASON_TOO_LARGE] = "more members than the largest size",
        [EEP_REASON_TOO_SMALL] = "no member would be left",
        [EEP_REASON_NO_ROOM] = "the other nodes cannot hold the seats in memory",
        [EEP_REASON_NOT_A_MEMBER] = "a member to drain is not active",
        [EEP_REASON_UNKNOWN] = "no operation has this id",
        [EEP_REASON_BUSY] = "another operation runs",
        [EEP_REASON_TOO_LATE] = "it is switching and ends by itself",
        [EEP_REASON_BAD_REQUEST] = "no id, an unknown kind, or a wrong list of members",
    };

    return (size_t)reason < sizeof(texts) / sizeof(texts[0]) ? texts[reason] : "unknown";
}
