/*
 * The life of the machine, the records that all parts write through, and the dispatch of events.
 * The state is one block without gaps, so that it can be sent, compared and adopted whole.
 */
#include <string.h>

#include "base/hash.h"
#include "member/member_int.h"

#define S(n) ((n)*UINT64_C(1000000000))
#define PASSED_MAX_NS S(3600) /* one broken clock must not use up the time for ever */

/* No gaps that the compiler fills: equal states have equal bytes. */
_Static_assert(sizeof(struct eep_member_wait) == 16, "travels");
_Static_assert(sizeof(struct eep_member_record) == 24, "travels");
_Static_assert(sizeof(struct eep_seat_record) == 24, "travels");
_Static_assert(sizeof(struct eep_operation) == EEP_OPERATION_ID_BYTES + 12 * 4 + 2 * 8, "travels");
_Static_assert(sizeof(struct eep_member_state) ==
                   5 * 8 + 8 * 4 + 2 * sizeof(struct eep_member_wait) +
                       (1 + EEP_OPERATION_HISTORY) * sizeof(struct eep_operation) +
                       EEP_MEMBERS_MAX * sizeof(struct eep_member_record) +
                       EEP_SEATS_MAX * sizeof(struct eep_seat_record),
               "travels");

/* ---- records ---- */

const struct eep_member_record *eep_member_find(const struct eep_member_state *s, uint32_t id)
{
    if (id == EEP_NO_MEMBER) {
        return NULL;
    }
    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        if (s->members[i].life != EEP_LIFE_NONE && s->members[i].id == id) {
            return &s->members[i];
        }
    }
    return NULL;
}

struct eep_member_record *eep_record_find(struct eep_member_state *s, uint32_t id)
{
    const struct eep_member_record *found = eep_member_find(s, id);

    return found == NULL ? NULL : &s->members[found - s->members];
}

static bool is_over(const struct eep_member_record *r)
{
    return r->life == EEP_LIFE_DEAD || r->life == EEP_LIFE_LEFT;
}

static struct eep_member_record *free_record(struct eep_member_state *s)
{
    struct eep_member_record *oldest = NULL;

    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        struct eep_member_record *r = &s->members[i];

        if (r->life == EEP_LIFE_NONE) {
            return r;
        }
        if (is_over(r) && (oldest == NULL || r->since < oldest->since)) {
            oldest = r;
        }
    }
    return oldest;
}

struct eep_member_record *eep_record_new(struct eep_member *m, uint32_t node)
{
    struct eep_member_record *r = m->state.next_id != EEP_NO_MEMBER ? free_record(&m->state) : NULL;

    if (r != NULL) {
        memset(r, 0, sizeof(*r));
        r->id = m->state.next_id++;
        r->node = node;
    }
    return r;
}

uint32_t eep_lowest_of_epoch(const struct eep_member_state *s)
{
    uint32_t lowest = EEP_NO_MEMBER;

    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        if (eep_member_in_epoch(&s->members[i])) {
            lowest = EEP_MIN(lowest, s->members[i].id);
        }
    }
    return lowest;
}

uint32_t eep_member_size(const struct eep_member_state *s)
{
    uint32_t size = 0;

    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        size += eep_member_in_epoch(&s->members[i]);
    }
    return size;
}

/* ---- what a step gives back ---- */

struct eep_member_action *eep_emit(struct eep_member *m, enum eep_member_action_kind kind,
                                   uint32_t member, uint32_t by)
{
    EEP_ASSERT(m->out->count < EEP_ACTIONS_MAX);
    struct eep_member_action *action = &m->out->items[m->out->count++];

    memset(action, 0, sizeof(*action));
    action->kind = kind;
    action->member = member;
    action->by = by;
    action->epoch = m->state.epoch;
    return action;
}

void eep_audit(struct eep_member *m, enum eep_audit_what what, uint32_t subject, uint32_t from,
               uint32_t to)
{
    EEP_ASSERT(m->out->audit_count < EEP_AUDITS_MAX);
    struct eep_member_audit *audit = &m->out->audits[m->out->audit_count++];

    memset(audit, 0, sizeof(*audit));
    audit->sequence = m->state.audit_count++;
    audit->now_ns = m->state.now_ns;
    audit->epoch = m->state.epoch;
    audit->what = what;
    audit->subject = subject;
    audit->from = from;
    audit->to = to;
    memcpy(audit->operation, m->state.operation.id, sizeof(audit->operation));
}

void eep_set_life(struct eep_member *m, struct eep_member_record *r, enum eep_life life)
{
    if (r->life != life) {
        const uint32_t before = r->life;

        r->life = life;
        r->since = (uint32_t)m->state.audit_count;
        eep_audit(m, EEP_AUDIT_MEMBER, r->id, before, life);
    }
}

void eep_set_executor(struct eep_member *m, uint32_t seat, uint32_t executor)
{
    struct eep_seat_record *s = &m->state.seats[seat];

    if (s->executor != executor) {
        eep_audit(m, EEP_AUDIT_SEAT, seat, s->executor, executor);
        s->executor = executor;
    }
}

void eep_set_mode(struct eep_member *m, enum eep_member_mode mode)
{
    if (m->state.mode != mode) {
        eep_audit(m, EEP_AUDIT_MODE, 0, m->state.mode, mode);
        m->state.mode = mode;
    }
}

uint64_t eep_later(uint64_t now_ns, uint64_t limit_ns)
{
    uint64_t sum;

    return __builtin_add_overflow(now_ns, limit_ns, &sum) ? UINT64_MAX : sum;
}

void eep_wait_begin(struct eep_member *m, struct eep_member_wait *wait, uint64_t limit_ns,
                    uint64_t latest_ns)
{
    wait->serial = ++m->state.serial;
    wait->deadline_ns = eep_later(m->state.now_ns, limit_ns);
    if (latest_ns != 0) {
        wait->deadline_ns = EEP_MIN(wait->deadline_ns, latest_ns);
    }
    wait->owner = eep_lowest_of_epoch(&m->state);
}

/* ---- life ---- */

static void set_default(uint64_t *value, uint64_t standard)
{
    if (*value == 0) {
        *value = standard;
    }
}

static void fill_in_defaults(struct eep_member_params *p)
{
    p->node_of = NULL;
    if (p->max_size == 0) {
        p->max_size = EEP_MEMBERS_MAX;
    }
    set_default(&p->operation_ns, S(600));
    set_default(&p->start_ns, S(60));
    set_default(&p->load_ns, S(300));
    set_default(&p->switch_ns, S(30));
    set_default(&p->reseat_ns, S(60));
    set_default(&p->shrink_ns, S(10));
    set_default(&p->fence_ns, S(2));
    set_default(&p->respawn_ns, S(60));
}

static enum eep_status check_params(const struct eep_member_params *p)
{
    if (p->active == 0 || p->active > p->started || p->started > EEP_MEMBERS_MAX) {
        return EEP_FAIL(EEP_ERR_INVALID,
                        "membership: %u members active of %u started; between 1 and %u can be "
                        "started, and at least one active",
                        p->active, p->started, EEP_MEMBERS_MAX);
    }
    if (p->seats == 0 || p->seats > p->seats_max || p->seats_max > EEP_SEATS_MAX) {
        return EEP_FAIL(EEP_ERR_INVALID,
                        "membership: %u seats of %u; at least one, and %u at most, can be there",
                        p->seats, p->seats_max, EEP_SEATS_MAX);
    }
    if (p->max_size > EEP_MEMBERS_MAX || (p->max_size != 0 && p->max_size < p->active)) {
        return EEP_FAIL(EEP_ERR_INVALID,
                        "membership: at most %u members of an epoch, but %u are active and %u is "
                        "the limit",
                        p->max_size, p->active, EEP_MEMBERS_MAX);
    }
    for (uint32_t i = 0; i < p->started; i++) {
        if (p->node_of[i] >= EEP_NODES_MAX) {
            return EEP_FAIL(EEP_ERR_INVALID, "membership: member %u is on node %u; %u nodes fit", i,
                            p->node_of[i], EEP_NODES_MAX);
        }
    }
    return EEP_OK;
}

static void set_beginning(struct eep_member_state *s, const struct eep_member_params *p)
{
    s->epoch = 1;
    s->next_id = p->started;
    s->wanted_size = p->active;
    s->seats_max = p->seats_max;
    s->reseat_wait.owner = EEP_NO_MEMBER;
    s->operation_wait.owner = EEP_NO_MEMBER;
    for (uint32_t i = 0; i < p->started; i++) {
        s->members[i].id = i;
        s->members[i].life = i < p->active ? EEP_LIFE_ACTIVE : EEP_LIFE_PARKED;
        s->members[i].node = p->node_of[i];
    }
    for (uint32_t i = 0; i < EEP_SEATS_MAX; i++) {
        struct eep_seat_record *seat = &s->seats[i];

        seat->executor = EEP_NO_MEMBER;
        seat->next = EEP_NO_MEMBER;
        if (i < p->seats) {
            seat->state = EEP_SEAT_ACTIVE;
            seat->executor = eep_layout_executor(i, p->seats, p->active);
            seat->held_on = eep_node_bit(p->node_of[seat->executor]);
        }
    }
}

enum eep_status eep_member_create(const struct eep_member_params *params, uint32_t self,
                                  struct eep_member **member_out)
{
    struct eep_member *m;

    EEP_TRY(check_params(params));
    EEP_TRY(eep_mem_alloc(1, sizeof(*m), "membership", &m));
    m->params = *params;
    m->self = self;
    fill_in_defaults(&m->params);
    set_beginning(&m->state, params);
    EEP_ASSERT(eep_member_broken(&m->state) == NULL);
    *member_out = m;
    return EEP_OK;
}

void eep_member_destroy(struct eep_member *m)
{
    eep_mem_free(m);
}

void eep_member_set_layout(struct eep_member *m, const struct eep_layout *layout)
{
    m->layout = layout;
}

enum eep_status eep_member_adopt(struct eep_member *m, const struct eep_member_state *state)
{
    const char *broken = eep_member_broken(state);

    if (broken != NULL) {
        return EEP_FAIL(EEP_ERR_FORMAT, "membership: another member's state is not taken: %s",
                        broken);
    }
    if (state->position < m->state.position || state->epoch < m->state.epoch) {
        return EEP_FAIL(EEP_ERR_STALE,
                        "membership: a state at event %llu of epoch %llu is not taken by a member "
                        "at event %llu of epoch %llu",
                        (unsigned long long)state->position, (unsigned long long)state->epoch,
                        (unsigned long long)m->state.position, (unsigned long long)m->state.epoch);
    }
    if (state->position == m->state.position && memcmp(state, &m->state, sizeof(*state)) != 0) {
        return EEP_FAIL(EEP_ERR_FORMAT,
                        "membership: another member's state is not taken: at event %llu it is not "
                        "the same as here; the members have parted",
                        (unsigned long long)state->position);
    }
    m->state = *state;
    return EEP_OK;
}

/* ---- events ---- */

/* The lowest member that a wait is for. */
static void name_owners(struct eep_member_state *s)
{
    uint32_t reseats = EEP_NO_MEMBER, acts = EEP_NO_MEMBER;

    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        const struct eep_member_record *r = &s->members[i];

        if (eep_reseat_expects(s, r)) {
            reseats = EEP_MIN(reseats, r->id);
        }
        if (eep_phase_expects(s, r)) {
            acts = EEP_MIN(acts, r->id);
        }
    }
    s->reseat_wait.owner = reseats;
    s->operation_wait.owner = EEP_NO_MEMBER;
    if (eep_operation_runs(s)) {
        s->operation_wait.owner = acts == EEP_NO_MEMBER ? eep_lowest_of_epoch(s) : acts;
    }
}

static void time_passed(struct eep_member *m, uint64_t passed_ns)
{
    m->state.now_ns = eep_later(m->state.now_ns, EEP_MIN(passed_ns, PASSED_MAX_NS));
    eep_recover_passed(m);
    eep_phase_passed(m);
    eep_operation_idle(m);
}

static void apply_agreed(struct eep_member *m, const struct eep_member_event *event)
{
    switch (event->kind) {
    case EEP_PASSED:
        time_passed(m, event->passed_ns);
        break;
    case EEP_REQUEST:
        eep_operation_request(m, &event->request);
        break;
    case EEP_APPEARED:
        eep_phase_appeared(m, event);
        break;
    case EEP_DONE:
        eep_recover_done(m, event);
        eep_phase_done(m, event);
        break;
    default:
        eep_phase_gone(m, event);
        break;
    }
}

enum eep_status eep_member_step(struct eep_member *m, const struct eep_member_event *event,
                                uint64_t now_ns, struct eep_member_actions *actions_out)
{
    actions_out->count = 0;
    actions_out->audit_count = 0;
    m->out = actions_out;
    if (event->kind < EEP_AGREED) {
        eep_recover_local(m, event, now_ns);
        return EEP_OK;
    }
    if (event->kind == EEP_AGREED) {
        EEP_TRY(eep_recover_agreed(m, event));
    } else if (m->shrinking) {
        return EEP_FAIL(EEP_ERR_REVOKED, "membership: epoch %llu is over",
                        (unsigned long long)m->state.epoch);
    } else {
        apply_agreed(m, event);
    }
    m->state.position++;
    name_owners(&m->state);
    EEP_ASSERT(eep_member_broken(&m->state) == NULL);
    return EEP_OK;
}

/* ---- looking ---- */

const struct eep_member_state *eep_member_state(const struct eep_member *m)
{
    return &m->state;
}

uint64_t eep_member_digest(const struct eep_member *m)
{
    return eep_hash_bytes(EEP_HASH_START, &m->state, sizeof(m->state));
}

uint32_t eep_member_coordinator(const struct eep_member *m)
{
    return eep_lowest_of_epoch(&m->state);
}

bool eep_member_is_shrinking(const struct eep_member *m)
{
    return m->shrinking;
}

enum eep_life eep_member_life(const struct eep_member *m, uint32_t id)
{
    const struct eep_member_record *r = eep_member_find(&m->state, id);

    if (r == NULL) {
        return EEP_LIFE_NONE;
    }
    for (uint32_t i = 0; eep_member_in_epoch(r) && i < m->silent_count; i++) {
        if (m->silent[i].member == id) {
            return EEP_LIFE_SILENT;
        }
    }
    return (enum eep_life)r->life;
}
