/*
 * Membership under simulated trouble: processes that each have their own copy of the machine, a
 * message layer with delays, and a seed that decides who moves next, who dies, stops, joins, fails.
 *
 *     member_sim [--seed S] [--runs N] [--seconds T] [--verbose]
 *
 * What is simulated: the all-gather of each step (a round: complete when all have given their part;
 * each process takes the result when the seed says so, or never), shrink and agreement (complete
 * when all that are alive have entered; some may take the result, others hear of the next death
 * first), the switch with joiners, parked and spawned processes, the memory of nodes. One action of
 * one process at a time, in any order. After each, the checkers; at the end of a run it calms down,
 * all must agree and serve, and one more operation must succeed.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/rng.h"
#include "member/member.h"

#define PROCS 40
#define NODES 3
#define SEATS 6
#define SEATS_MAX 8
#define BATCH 512
#define MS UINT64_C(1000000)
#define EPOCHS 4096

struct proc {
    bool alive, stopped, outside_told; /* outside_told: its end is known to all */
    uint32_t id, node;
    struct eep_member *m; /* NULL: never in an epoch */
    bool in_group;
    bool contributed, has_result; /* of the round; a completed batch to take */
    bool entered, has_agreed;     /* shrink: waits; a result to take */
    bool switching;               /* waits in the switch */
    uint32_t tried_low;           /* highest epoch of a session it took part in */
    uint32_t task, awake;         /* serial to report; serial to appear with; 0: none */
    uint32_t old_task;            /* one that it had before, which it may still report */
    bool task_ready, relayed;     /* relayed: its appearance was told */
    enum eep_status task_status;
    uint64_t loads;                /* seats that the task brings to its node */
    uint32_t gone[16], gone_count; /* to report */
    uint32_t restarts;
};

static struct {
    uint64_t seed, draws, now_ns;
    bool verbose, calm;
    struct proc procs[PROCS];
    uint32_t proc_count;
    struct eep_member_params params;
    uint32_t node_of[PROCS];
    /* The round that is being filled, and the last complete one. */
    struct eep_member_event next[BATCH], batch[BATCH];
    uint32_t next_from[BATCH], batch_from[BATCH];
    uint32_t next_count, batch_count;
    uint32_t drains[64][4], drain_count;
    /* A new epoch that processes may take. */
    struct eep_member_state state;
    uint32_t set[PROCS], set_count;
    uint64_t epoch;
    uint64_t held[NODES];  /* seats in the memory of each node */
    uint64_t served_epoch; /* the last that somebody serves in */
    struct {
        bool known;
        uint32_t coordinator;
        uint64_t members;
    } epochs[EPOCHS];
    uint64_t ended, done, rolled_back, shrinks, switches, adopted, refused;
    uint32_t requests, history_seen;
    struct eep_member_actions actions;
} w;

static uint32_t draw(uint32_t below)
{
    return (uint32_t)(eep_rng_bits(w.seed, w.draws++) % below);
}

static bool chance(uint32_t one_in)
{
    return draw(one_in) == 0;
}

static void die(const char *what)
{
    printf("member_sim: FAILED: %s\n  run it again: member_sim --seed %" PRIu64
           " --runs 1 --verbose\n",
           what, w.seed);
    exit(1);
}

/* An assertion of the machine's own. */
static void say_seed(int signal_number)
{
    char text[120];
    const int length = snprintf(text, sizeof(text),
                                "member_sim: FAILED: signal %d\n  run it again: member_sim --seed "
                                "%" PRIu64 " --runs 1 --verbose\n",
                                signal_number, w.seed);

    fflush(stdout);
    if (write(STDOUT_FILENO, text, (size_t)length) < 0) {
        _exit(2);
    }
    _exit(1);
}

#define MUST(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            printf("%s:%d: ", __FILE__, __LINE__);                                                 \
            die(#condition);                                                                       \
        }                                                                                          \
    } while (0)

#define SAY(...)                                                                                   \
    do {                                                                                           \
        if (w.verbose) {                                                                           \
            printf(__VA_ARGS__);                                                                   \
        }                                                                                          \
    } while (0)

static struct proc *by_id(uint32_t id)
{
    for (uint32_t i = 0; i < w.proc_count; i++) {
        if (w.procs[i].id == id) {
            return &w.procs[i];
        }
    }
    return NULL;
}

static bool acts(const struct proc *p)
{
    return p->alive && !p->stopped;
}

/* ---- checkers ---- */

static void check_epoch(const struct proc *p, const struct eep_member_state *s)
{
    const uint32_t coordinator = eep_member_coordinator(p->m);
    uint64_t members = 0;

    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        if (s->members[i].life == EEP_LIFE_ACTIVE || s->members[i].life == EEP_LIFE_DRAINING) {
            members |= UINT64_C(1) << (s->members[i].id % 64);
        }
    }
    MUST(s->epoch < EPOCHS);
    if (!w.epochs[s->epoch].known) {
        w.epochs[s->epoch].known = true;
        w.epochs[s->epoch].coordinator = coordinator;
        w.epochs[s->epoch].members = members;
    }
    MUST(w.epochs[s->epoch].coordinator == coordinator); /* one coordinator an epoch */
    MUST(w.epochs[s->epoch].members == members);
}

/* Every seat is served from frames that are there, or known to be lost. */
static void check_seats(const struct proc *p, const struct eep_member_state *s)
{
    for (uint32_t i = 0; i < SEATS_MAX; i++) {
        const struct eep_seat_record *seat = &s->seats[i];
        const struct proc *executor = by_id(seat->executor);

        MUST(i >= SEATS || seat->state != EEP_SEAT_RESERVED);
        if (seat->state == EEP_SEAT_RESERVED) {
            continue;
        }
        MUST(executor != NULL);
        const enum eep_life life = eep_member_life(p->m, executor->id);

        MUST(life == EEP_LIFE_ACTIVE || life == EEP_LIFE_DRAINING || life == EEP_LIFE_SILENT);
        if (s->mode == EEP_MODE_SERVING && !eep_member_is_shrinking(p->m) && executor->alive &&
            !p->has_agreed) {
            MUST(seat->state == EEP_SEAT_ACTIVE || seat->state == EEP_SEAT_LEAVING);
            if ((w.held[executor->node] & (UINT64_C(1) << i)) == 0) {
                SAY("process %u: seat %u of %u on node %u is not there (%#" PRIx64 ")\n", p->id, i,
                    executor->id, executor->node, w.held[executor->node]);
            }
            MUST((w.held[executor->node] & (UINT64_C(1) << i)) != 0);
        }
    }
}

static void check(void)
{
    const struct eep_member_state *ahead = NULL;

    for (uint32_t i = 0; i < w.proc_count; i++) {
        const struct proc *p = &w.procs[i];

        if (!p->alive || !p->in_group || p->m == NULL) {
            continue;
        }
        const struct eep_member_state *s = eep_member_state(p->m);

        MUST(eep_member_broken(s) == NULL);
        check_epoch(p, s);
        check_seats(p, s);
        MUST(p->restarts == 0);
        /* Equal positions, equal states: in groups of the one that was seen last. */
        if (ahead != NULL && ahead->position == s->position) {
            if (memcmp(ahead, s, sizeof(*s)) != 0) {
                SAY("process %u at event %" PRIu64 " of epoch %" PRIu64 "/%" PRIu64
                    ": another state\n",
                    p->id, s->position, s->epoch, ahead->epoch);
            }
            MUST(memcmp(ahead, s, sizeof(*s)) == 0);
        }
        ahead = s;
    }
}

/* ---- what a process does ---- */

static void drop_round(void)
{
    w.next_count = w.batch_count = 0;
    for (uint32_t i = 0; i < w.proc_count; i++) {
        w.procs[i].contributed = w.procs[i].has_result = false;
    }
}

/* A node whose last member of the group is gone can give nothing any more. */
static void forget_memory(void)
{
    for (uint32_t node = 0; node < NODES; node++) {
        bool lives = false;

        for (uint32_t i = 0; i < w.proc_count; i++) {
            const struct proc *p = &w.procs[i];

            lives |= p->alive && p->node == node && (p->in_group || p->task != 0);
        }
        if (!lives) {
            w.held[node] = 0;
        }
    }
}

static void feed(struct proc *p, const struct eep_member_event *event);

static void end(struct proc *p)
{
    SAY("  process %u ends\n", p->id);
    p->alive = p->in_group = p->switching = p->entered = p->has_agreed = false;
    p->has_result = false;
}

/* The others are still to agree that it is not of their group any more. */
static void end_suddenly(struct proc *p)
{
    const bool in_group = p->in_group;

    end(p);
    p->in_group = in_group;
}

static void park(struct proc *p)
{
    p->in_group = p->switching = p->entered = p->has_agreed = p->has_result = false;
    p->task = p->awake = 0;
    p->loads = 0;
    eep_member_destroy(p->m);
    p->m = NULL;
}

static void give_task(struct proc *p, uint32_t serial, uint64_t loads)
{
    if (p != NULL && acts(p)) {
        p->old_task = p->task;
        p->task = serial;
        p->task_ready = false;
        p->loads = loads;
    }
}

static uint64_t seats_of(const struct eep_member_state *s, uint32_t id)
{
    uint64_t seats = 0;

    for (uint32_t i = 0; i < SEATS_MAX; i++) {
        seats |= s->seats[i].executor == id ? UINT64_C(1) << i : 0;
    }
    return seats;
}

/* What the state says that a member has to fill: no more is loaded. */
static uint64_t lost_seats_of(const struct eep_member_state *s, uint32_t id)
{
    uint64_t seats = 0;

    for (uint32_t i = 0; i < SEATS_MAX; i++) {
        if (s->seats[i].executor == id && s->seats[i].state == EEP_SEAT_LOST) {
            seats |= UINT64_C(1) << i;
        }
    }
    return seats;
}

static uint64_t new_seats_of(const struct eep_member_state *s, const struct proc *p)
{
    uint64_t seats = 0;

    for (uint32_t i = 0; i < SEATS_MAX; i++) {
        if (s->seats[i].next == p->id && (s->seats[i].held_on & UINT64_C(1) << p->node) == 0) {
            seats |= UINT64_C(1) << i;
        }
    }
    return seats;
}

/* A step of all in an epoch is over: experts may have moved with it, so frames that are not
 * executed are not what the layout says any more. Who serves in an epoch that the others never see
 * moves nothing, and none moves while members load. */
static void let_old_frames_rot(const struct eep_member_state *s)
{
    if (s->epoch <= w.served_epoch || s->operation.phase >= EEP_PHASE_LOADING) {
        return;
    }
    w.served_epoch = s->epoch;
    for (uint32_t i = 0; i < SEATS_MAX; i++) {
        const struct proc *executor = by_id(s->seats[i].executor);

        for (uint32_t node = 0; node < NODES; node++) {
            if (executor == NULL || executor->node != node) {
                w.held[node] &= ~(UINT64_C(1) << i);
            }
        }
    }
}

static void spawn(uint32_t count, uint32_t serial)
{
    for (uint32_t i = 0; i < count && w.proc_count < PROCS; i++) {
        struct proc *p = &w.procs[w.proc_count++];

        memset(p, 0, sizeof(*p));
        p->alive = !chance(8) || w.calm; /* some never come up */
        p->id = EEP_NO_MEMBER;
        p->node = draw(NODES);
        p->awake = serial;
    }
}

static void act_for_all(struct proc *p, const struct eep_member_action *a)
{
    const struct eep_member_state *s = eep_member_state(p->m);

    switch (a->kind) {
    case EEP_DO_RESEAT:
        give_task(p, a->serial, lost_seats_of(s, p->id));
        break;
    case EEP_DO_PREPARE:
        give_task(p, a->serial, 0);
        break;
    case EEP_DO_SWITCH:
        p->switching = true;
        break;
    case EEP_DO_ROLL_BACK:
        p->switching = false; /* by an event after the one that asked for it */
        break;
    default:
        break;
    }
}

static void act(struct proc *p, const struct eep_member_action *a)
{
    struct proc *other = by_id(a->member);

    switch (a->kind) {
    case EEP_DO_SHRINK:
        p->entered = true;
        p->has_agreed = p->has_result = p->switching = false;
        break;
    case EEP_DO_FENCE:
        if (other != NULL && other->stopped && other->alive) {
            end_suddenly(other);
        }
        break;
    case EEP_DO_REPORT:
        if (p->gone_count < 16) {
            p->gone[p->gone_count++] = a->member;
        }
        break;
    case EEP_DO_RESTART:
        p->restarts++;
        break;
    case EEP_DO_ACTIVATE:
        if (other != NULL && acts(other) && !other->in_group) {
            other->awake = a->serial;
            other->relayed = false;
        }
        break;
    case EEP_DO_SPAWN:
        spawn(a->count, a->serial);
        break;
    case EEP_DO_DRAIN:
        give_task(other, a->serial, 0);
        break;
    case EEP_DO_LOAD:
        if (other != NULL) {
            give_task(other, a->serial, new_seats_of(eep_member_state(p->m), other));
        }
        break;
    case EEP_DO_PARK:
        if (other != NULL && acts(other) && (other == p || !other->in_group)) {
            park(other);
        }
        break;
    case EEP_DO_EXIT:
    case EEP_DO_DIE:
        if (other != NULL && (other == p || !other->in_group)) {
            end(other);
        }
        break;
    default:
        act_for_all(p, a);
        break;
    }
}

static void feed(struct proc *p, const struct eep_member_event *event)
{
    static struct eep_member_action todo[EEP_ACTIONS_MAX];
    const enum eep_status status = eep_member_step(p->m, event, w.now_ns, &w.actions);

    SAY("%u: event %d member %u serial %u status %d, then at %" PRIu64 " of epoch %" PRIu64 "\n",
        p->id, (int)event->kind, event->member, event->serial, event->status,
        eep_member_state(p->m)->position, eep_member_state(p->m)->epoch);
    const uint32_t count = w.actions.count, coordinator = eep_member_coordinator(p->m);

    if (status != EEP_OK) {
        printf("%s\n", eep_error_text());
    }
    MUST(status == EEP_OK);
    memcpy(todo, w.actions.items, count * sizeof(*todo));
    for (uint32_t i = 0; i < count && p->alive && p->m != NULL; i++) {
        const struct proc *by = by_id(todo[i].by);
        const bool relays = by != NULL && !by->in_group && p->id == coordinator;

        SAY("  %u: action %d member %u by %u serial %u\n", p->id, (int)todo[i].kind, todo[i].member,
            todo[i].by, todo[i].serial);
        if (todo[i].by == p->id || todo[i].by == EEP_NO_MEMBER || relays) {
            act(p, &todo[i]);
        }
    }
}

/* ---- rounds ---- */

static void put(const struct proc *p, struct eep_member_event event)
{
    if (w.next_count < BATCH) {
        w.next_from[w.next_count] = (uint32_t)(p - w.procs);
        w.next[w.next_count++] = event;
    }
}

static void put_done(const struct proc *from, uint32_t serial, enum eep_status status)
{
    put(from, (struct eep_member_event){
                  .kind = EEP_DONE, .member = from->id, .serial = serial, .status = status});
}

static void put_task(const struct proc *from)
{
    if (from->id == EEP_NO_MEMBER) {
        return;
    }
    if (from->task != 0 && from->task_ready) {
        put_done(from, from->task, from->task_status);
    }
    if (from->old_task != 0 && chance(8)) {
        put_done(from, from->old_task, chance(4) ? EEP_ERR_IO : EEP_OK);
    }
}

/* It has brought its seats into its node's memory, or could not. */
static void end_task(struct proc *p)
{
    p->task_ready = true;
    p->task_status = !w.calm && chance(30) ? EEP_ERR_IO : EEP_OK;
    if (p->task_status == EEP_OK) {
        w.held[p->node] |= p->loads;
    }
}

static void put_request(struct proc *p)
{
    struct eep_member_event e = {.kind = EEP_REQUEST};
    struct eep_member_request *r = &e.request;
    const uint32_t kind = draw(8);

    w.requests += !chance(4); /* else an id again */
    snprintf(r->id, sizeof(r->id), "op-%u", w.requests);
    r->kind = kind < 5 ? EEP_OPERATION_SCALE : kind < 7 ? EEP_OPERATION_DRAIN : EEP_OPERATION_ABORT;
    r->dry_run = chance(8);
    r->leavers_exit = chance(4);
    r->timeout_ns = chance(4) ? 2000 * MS : 0;
    if (r->kind == EEP_OPERATION_SCALE) {
        r->target = draw(10);
    } else if (r->kind == EEP_OPERATION_DRAIN && w.drain_count < 64) {
        uint32_t *ids = w.drains[w.drain_count++];

        r->drain_count = 1 + draw(3);
        r->drain = ids;
        for (uint32_t i = 0; i < r->drain_count; i++) {
            ids[i] = draw(8);
        }
    } else {
        r->kind = EEP_OPERATION_ABORT;
        r->dry_run = false;
    }
    put(p, e);
}

/* What joiners say goes through the coordinator, again and again until it has an effect. */
static void relay(struct proc *p)
{
    put(p, (struct eep_member_event){.kind = EEP_PASSED, .passed_ns = draw(400) * MS});
    for (uint32_t i = 0; i < w.proc_count; i++) {
        struct proc *q = &w.procs[i];

        if (!acts(q) || q->in_group) {
            continue;
        }
        if (q->awake != 0 && !q->relayed && (w.calm || chance(3))) {
            put(q, (struct eep_member_event){
                       .kind = EEP_APPEARED, .member = q->id, .node = q->node, .serial = q->awake});
            q->relayed = q->id == EEP_NO_MEMBER;
        }
        put_task(q);
    }
}

static void contribute(struct proc *p)
{
    put_task(p);
    for (uint32_t i = 0; i < p->gone_count; i++) {
        put(p, (struct eep_member_event){.kind = EEP_GONE, .member = p->gone[i]});
    }
    p->gone_count = 0;
    if (!w.calm && chance(12)) {
        put_request(p);
    }
    if (eep_member_coordinator(p->m) == p->id) {
        relay(p);
    }
    p->contributed = true;
}

/* In the order of ranks: by member, whoever came first. */
static void sort_batch(void)
{
    for (uint32_t i = 1; i < w.batch_count; i++) {
        for (uint32_t j = i; j > 0 && w.batch_from[j] < w.batch_from[j - 1]; j--) {
            const struct eep_member_event event = w.batch[j];
            const uint32_t from = w.batch_from[j];

            w.batch[j] = w.batch[j - 1];
            w.batch_from[j] = w.batch_from[j - 1];
            w.batch[j - 1] = event;
            w.batch_from[j - 1] = from;
        }
    }
}

static void complete_round(void)
{
    for (uint32_t i = 0; i < w.proc_count; i++) {
        if (w.procs[i].in_group && (!w.procs[i].contributed || w.procs[i].has_result)) {
            return;
        }
    }
    memcpy(w.batch, w.next, sizeof(w.batch));
    memcpy(w.batch_from, w.next_from, sizeof(w.batch_from));
    w.batch_count = w.next_count;
    w.next_count = 0;
    sort_batch();
    for (uint32_t i = 0; i < w.proc_count; i++) {
        if (w.procs[i].in_group && w.procs[i].m != NULL &&
            eep_member_state(w.procs[i].m)->mode == EEP_MODE_SERVING) {
            let_old_frames_rot(eep_member_state(w.procs[i].m));
        }
        w.procs[i].contributed = false;
        w.procs[i].has_result = w.procs[i].in_group && w.procs[i].alive;
    }
}

/* A new process is known by the id that it is given now. */
static void name_newcomer(const struct proc *p, uint32_t from)
{
    const uint32_t id = eep_member_state(p->m)->next_id;
    struct proc *other = by_id(id);

    if (other != NULL && other != &w.procs[from]) {
        end(other); /* whoever gave it this id has died with that knowledge */
        other->id = EEP_NO_MEMBER;
        other->relayed = true;
    }
    w.procs[from].id = id;
}

static void take_batch(struct proc *p)
{
    p->has_result = false;
    for (uint32_t i = 0; i < w.batch_count && p->alive && p->in_group; i++) {
        if (w.batch[i].kind == EEP_APPEARED && w.batch[i].member == EEP_NO_MEMBER) {
            name_newcomer(p, w.batch_from[i]);
        }
        feed(p, &w.batch[i]);
    }
}

/* ---- epochs ---- */

static bool in_set(uint32_t id)
{
    for (uint32_t i = 0; i < w.set_count; i++) {
        if (w.set[i] == id) {
            return true;
        }
    }
    return false;
}

static void add_to_set(uint32_t id)
{
    uint32_t at = w.set_count++;

    for (; at > 0 && w.set[at - 1] > id; at--) {
        w.set[at] = w.set[at - 1];
    }
    w.set[at] = id;
}

/* The state that is ahead, the next epoch; all of the set may take it from now on. */
static void publish(void)
{
    uint64_t highest = 0;

    memset(&w.state, 0, sizeof(w.state));
    for (uint32_t i = 0; i < w.proc_count; i++) {
        struct proc *p = &w.procs[i];

        if (p->m == NULL || !p->alive || !p->in_group) {
            continue;
        }
        const struct eep_member_state *s = eep_member_state(p->m);

        highest = s->epoch > highest ? s->epoch : highest;
        highest = p->tried_low > highest ? p->tried_low : highest;
        if (w.state.epoch == 0 || s->position > w.state.position) {
            w.state = *s;
        }
    }
    w.epoch = highest + 1;
    drop_round();
    for (uint32_t i = 0; i < w.proc_count; i++) {
        struct proc *p = &w.procs[i];
        const bool was = p->in_group && p->alive;

        p->in_group = in_set(p->id) && p->alive;
        p->entered = p->switching = false;
        p->has_agreed = p->in_group || was;
        if (p->in_group) {
            p->tried_low = (uint32_t)w.epoch;
        }
    }
}

static void take_agreed(struct proc *p)
{
    const struct eep_member_event e = {.kind = EEP_AGREED,
                                       .epoch = w.epoch,
                                       .position = w.state.position,
                                       .set = w.set,
                                       .set_count = w.set_count};

    p->has_agreed = false;
    p->old_task = p->task;
    p->task = p->awake = 0;
    if (p->m == NULL) {
        MUST(eep_member_create(&w.params, p->id, &p->m) == EEP_OK);
    }
    w.adopted += eep_member_state(p->m)->position != w.state.position;
    MUST(eep_member_adopt(p->m, &w.state) == EEP_OK);
    feed(p, &e);
}

static void complete_shrink(void)
{
    for (uint32_t i = 0; i < w.proc_count; i++) {
        if (w.procs[i].in_group && w.procs[i].alive && !w.procs[i].entered) {
            return;
        }
    }
    w.set_count = 0;
    for (uint32_t i = 0; i < w.proc_count; i++) {
        if (w.procs[i].in_group && w.procs[i].alive) {
            add_to_set(w.procs[i].id);
        }
    }
    MUST(w.set_count > 0);
    w.shrinks++;
    publish();
}

static const struct proc *any_switching(void)
{
    for (uint32_t i = 0; i < w.proc_count; i++) {
        if (w.procs[i].switching && acts(&w.procs[i])) {
            return &w.procs[i];
        }
    }
    return NULL;
}

/* Leavers part at once; they have nothing to agree on. */
static void part_leavers(void)
{
    for (uint32_t i = 0; i < w.proc_count; i++) {
        if (w.procs[i].has_agreed && !w.procs[i].in_group) {
            if (acts(&w.procs[i])) {
                take_agreed(&w.procs[i]);
            } else {
                w.procs[i].has_agreed = false;
            }
        }
    }
}

/* The caller's agreement said no: everybody hears it in the old epoch. */
static void fail_switch(uint32_t serial)
{
    for (uint32_t i = 0; i < w.proc_count; i++) {
        w.procs[i].switching = false;
    }
    drop_round();
    for (uint32_t i = 0; i < w.proc_count; i++) {
        if (w.procs[i].in_group) {
            put(&w.procs[i], (struct eep_member_event){.kind = EEP_DONE,
                                                       .member = w.procs[i].id,
                                                       .serial = serial,
                                                       .status = EEP_ERR_IO});
            return;
        }
    }
}

static void complete_switch(void)
{
    const struct proc *first = any_switching();
    uint32_t missing = 0;

    for (uint32_t i = 0; i < w.proc_count; i++) {
        const struct proc *p = &w.procs[i];

        missing += p->in_group && !p->alive;
        if (p->in_group && p->alive && !p->switching) {
            return;
        }
    }
    if (first == NULL) {
        return;
    }
    const struct eep_member_state *s = eep_member_state(first->m);

    if ((missing > 0 && chance(2)) || (!w.calm && chance(8))) {
        if (missing == 0) {
            fail_switch(s->operation_wait.serial);
        }
        return; /* with a dead one, they find out and shrink */
    }
    w.set_count = 0;
    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        const struct eep_member_record *r = &s->members[i];
        const struct proc *p = by_id(r->id);

        if ((r->life == EEP_LIFE_ACTIVE || r->life == EEP_LIFE_JOINING) && p != NULL && acts(p)) {
            add_to_set(r->id);
        }
    }
    if (w.set_count > 0) {
        w.switches++;
        publish();
        part_leavers();
    }
}

/* ---- trouble ---- */

static void local(struct proc *p, enum eep_member_event_kind kind, uint32_t member)
{
    feed(p, &(struct eep_member_event){.kind = kind, .member = member});
}

static uint32_t group_alive(void)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < w.proc_count; i++) {
        count += w.procs[i].in_group && acts(&w.procs[i]);
    }
    return count;
}

static void hurt(void)
{
    struct proc *p = &w.procs[draw(w.proc_count)];

    if (!acts(p) || (p->in_group && group_alive() < 2)) {
        return;
    }
    if (p->in_group && chance(3)) {
        SAY("stop %u\n", p->id);
        p->stopped = true;
    } else if (chance(3)) { /* its node, but one process of the group at least stays */
        for (uint32_t i = 0; i < w.proc_count; i++) {
            struct proc *q = &w.procs[i];

            if (q->node == p->node && q->alive && !(q->in_group && group_alive() < 2)) {
                SAY("kill %u with node %u\n", q->id, q->node);
                end_suddenly(q);
            }
        }
    } else {
        SAY("kill %u\n", p->id);
        end_suddenly(p);
    }
}

/* The detector of p looks at q. */
static void detect(struct proc *p, struct proc *q)
{
    const enum eep_life life = eep_member_life(p->m, q->id);

    if (q == p || life == EEP_LIFE_NONE || life == EEP_LIFE_DEAD || life == EEP_LIFE_LEFT) {
        return;
    }
    if (!q->alive) {
        local(p, EEP_SEEN_DEAD, q->id);
    } else if (q->stopped) {
        local(p, EEP_SEEN_SILENT, q->id);
    } else if (life == EEP_LIFE_SILENT) {
        local(p, EEP_SEEN_ALIVE, q->id);
    }
}

static bool somebody_shrinks(void)
{
    for (uint32_t i = 0; i < w.proc_count; i++) {
        if (w.procs[i].in_group && w.procs[i].alive && w.procs[i].entered) {
            return true;
        }
    }
    return false;
}

static bool set_is_hurt(void)
{
    for (uint32_t i = 0; i < w.set_count; i++) {
        const struct proc *p = by_id(w.set[i]);

        if (p != NULL && !p->alive) {
            return true;
        }
    }
    return false;
}

/* What was agreed on in an epoch that this process has given up. */
static void hear_too_late(struct proc *p)
{
    const struct eep_member_event e = {.kind = EEP_PASSED, .passed_ns = MS};

    MUST(eep_member_step(p->m, &e, w.now_ns, &w.actions) == EEP_ERR_REVOKED);
}

/* One thing that a process of the group may do now. */
static void move(struct proc *p)
{
    if (p->task != 0 && !p->task_ready && chance(2)) {
        end_task(p);
    }
    if (p->m == NULL || !p->in_group) {
        if (p->has_agreed) {
            take_agreed(p);
        }
        return;
    }
    if (p->has_agreed) {
        if (set_is_hurt() && eep_member_is_shrinking(p->m) && chance(2)) {
            local(p, EEP_SHRINK_FAILED, 0);
        } else if (set_is_hurt() && chance(2)) {
            local(p, EEP_REVOKED, 0); /* in a switch: heard of a death first */
        } else {
            take_agreed(p);
        }
    } else if (chance(4)) {
        detect(p, &w.procs[draw(w.proc_count)]);
    } else if (chance(6)) {
        local(p, EEP_TICK, 0);
    } else if (p->entered) {
        hear_too_late(p);
    } else if (p->switching) {
        if (somebody_shrinks()) {
            local(p, EEP_REVOKED, 0);
        }
    } else if (somebody_shrinks()) {
        local(p, EEP_REVOKED, 0);
    } else if (p->has_result) {
        take_batch(p);
    } else if (!p->contributed) {
        contribute(p);
    }
}

static void turn(void)
{
    struct proc *p = &w.procs[draw(w.proc_count)];

    w.now_ns += draw(20) * MS;
    if (!w.calm && chance(60)) {
        hurt();
    }
    if (p->stopped && p->alive && chance(w.calm ? 5 : 30)) {
        p->stopped = false;
    }
    if (acts(p)) {
        move(p);
    }
    complete_round();
    complete_shrink();
    complete_switch();
    forget_memory();
    check();
}

/* ---- a run ---- */

static void begin_run(uint64_t seed, bool verbose)
{
    const uint32_t started = 4 + (uint32_t)(eep_rng_bits(seed, 1u << 20) % 6);

    for (uint32_t i = 0; i < w.proc_count; i++) {
        eep_member_destroy(w.procs[i].m);
    }
    const uint64_t counts[] = {w.done, w.rolled_back, w.shrinks, w.switches, w.adopted};

    memset(&w, 0, sizeof(w));
    w.done = counts[0], w.rolled_back = counts[1], w.shrinks = counts[2];
    w.switches = counts[3], w.adopted = counts[4];
    w.seed = seed;
    w.verbose = verbose;
    w.proc_count = started;
    for (uint32_t i = 0; i < started; i++) {
        w.node_of[i] = draw(NODES);
    }
    w.params = (struct eep_member_params){
        .started = started,
        .active = 2 + draw(started - 2),
        .node_of = w.node_of,
        .seats = SEATS,
        .seats_max = SEATS_MAX,
        .can_spawn = chance(2),
        .on_loss = chance(3) ? EEP_ON_LOSS_RESPAWN : EEP_ON_LOSS_CONTINUE,
        .shrink_ns = 1000000 * MS,
        .start_ns = 20000 * MS,
        .load_ns = 20000 * MS,
        .switch_ns = 20000 * MS,
        .operation_ns = 60000 * MS,
    };
    for (uint32_t i = 0; i < started; i++) {
        struct proc *p = &w.procs[i];

        p->alive = true;
        p->id = i;
        p->node = w.node_of[i];
        if (i < w.params.active) {
            p->in_group = true;
            MUST(eep_member_create(&w.params, i, &p->m) == EEP_OK);
            w.held[p->node] |= seats_of(eep_member_state(p->m), i);
        }
    }
}

static struct proc *leader(void)
{
    for (uint32_t i = 0; i < w.proc_count; i++) {
        struct proc *p = &w.procs[i];

        if (p->in_group && acts(p) && p->m != NULL && eep_member_coordinator(p->m) == p->id) {
            return p;
        }
    }
    return NULL;
}

/* This process takes one that has died for parked. */
static bool trusts_a_dead_one(const struct proc *p)
{
    for (uint32_t i = 0; i < w.proc_count; i++) {
        if (!w.procs[i].alive && eep_member_life(p->m, w.procs[i].id) == EEP_LIFE_PARKED) {
            return true;
        }
    }
    return false;
}

/* All serve in one epoch with one state, nothing is under way, and who is dead is known. */
static bool is_settled(void)
{
    const struct eep_member_state *first = NULL;

    for (uint32_t i = 0; i < w.proc_count; i++) {
        const struct proc *p = &w.procs[i];

        if (!p->in_group) {
            continue;
        }
        if (!acts(p) || p->m == NULL || p->has_agreed || eep_member_is_shrinking(p->m)) {
            return false;
        }
        const struct eep_member_state *s = eep_member_state(p->m);

        if (trusts_a_dead_one(p) || s->mode != EEP_MODE_SERVING ||
            s->operation.phase != EEP_PHASE_NONE || (first != NULL && first->epoch != s->epoch)) {
            return false;
        }
        first = s;
    }
    return first != NULL;
}

static void settle(const char *when)
{
    for (uint32_t i = 0; i < 400000; i++) {
        turn();
        if (is_settled()) {
            return;
        }
    }
    die(when);
}

static const struct eep_operation *ended(const struct proc *p, const char *id)
{
    const struct eep_member_state *s = eep_member_state(p->m);

    for (uint32_t i = 0; i < EEP_OPERATION_HISTORY; i++) {
        if (strcmp(s->history[i].id, id) == 0) {
            return &s->history[i];
        }
    }
    return NULL;
}

static void count_ends(void)
{
    const struct eep_member_state *s = eep_member_state(leader()->m);

    for (uint32_t i = 0; i < EEP_OPERATION_HISTORY && i < s->history_count; i++) {
        MUST(s->history[i].phase == EEP_PHASE_DONE || s->history[i].phase == EEP_PHASE_ROLLED_BACK);
        w.done += s->history[i].phase == EEP_PHASE_DONE;
        w.rolled_back += s->history[i].phase == EEP_PHASE_ROLLED_BACK;
    }
}

/* A size that can be had: one less or more. False: there is none. */
static bool ask_for_another_size(const char *id)
{
    const struct proc *p = leader();
    const uint32_t size = eep_member_size(eep_member_state(p->m));
    bool has_parked = false;
    struct eep_member_event e = {.kind = EEP_REQUEST};

    for (uint32_t i = 0; i < w.proc_count; i++) {
        has_parked |= eep_member_life(p->m, w.procs[i].id) == EEP_LIFE_PARKED;
    }
    if (size == 1 && !has_parked) {
        return false;
    }
    snprintf(e.request.id, sizeof(e.request.id), "%s", id);
    e.request.kind = EEP_OPERATION_SCALE;
    e.request.target = has_parked && (size == 1 || chance(2)) ? size + 1 : size - 1;
    put(p, e);
    return true;
}

/* Whatever went wrong before: a good operation works. Lost members may just be being replaced, so
 * it is asked for again; the same id twice is one operation. */
static void one_good_operation(void)
{
    static const char id[] = "the last one";

    for (uint32_t i = 0; i < 40; i++) {
        settle("it does not settle before an operation");
        if (!ask_for_another_size(id)) {
            return;
        }
        for (uint32_t j = 0; j < 200; j++) {
            turn();
        }
        settle("it does not settle after an operation");
        const struct eep_operation *op = ended(leader(), id);

        if (op != NULL) {
            MUST(op->phase == EEP_PHASE_DONE && op->reason == EEP_REASON_NONE);
            return;
        }
    }
    die("no operation can begin");
}

static void run(uint64_t seed, bool verbose)
{
    begin_run(seed, verbose);
    check();
    for (uint32_t i = 0; i < 3000; i++) {
        turn();
    }
    w.calm = true;
    for (uint32_t i = 0; i < w.proc_count; i++) {
        w.procs[i].restarts = 0;
    }
    settle("it does not settle");
    count_ends();
    one_good_operation();
}

int main(int argc, char **argv)
{
    uint64_t seed = 1, runs = UINT64_MAX, done = 0;
    double seconds = 4;
    bool verbose = false;

    for (int i = 1; i < argc; i++) {
        const bool has_value = i + 1 < argc;

        if (strcmp(argv[i], "--verbose") == 0) {
            verbose = true;
        } else if (strcmp(argv[i], "--seed") == 0 && has_value) {
            seed = strtoull(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--runs") == 0 && has_value) {
            runs = strtoull(argv[++i], NULL, 10);
            seconds = 1e9;
        } else if (strcmp(argv[i], "--seconds") == 0 && has_value) {
            seconds = strtod(argv[++i], NULL);
        } else {
            fprintf(stderr, "usage: member_sim [--seed S] [--runs N] [--seconds T] [--verbose]\n");
            return 2;
        }
    }
    signal(SIGABRT, say_seed);
    signal(SIGSEGV, say_seed);
    const clock_t begin = clock();

    while (done < runs && (double)(clock() - begin) / CLOCKS_PER_SEC < seconds) {
        run(seed + done++, verbose);
    }
    printf("member_sim: %" PRIu64 " runs from seed %" PRIu64 ": %" PRIu64
           " operations done, %" PRIu64 " rolled back, %" PRIu64 " shrinks, %" PRIu64
           " switches, %" PRIu64 " states adopted\n",
           done, seed, w.done, w.rolled_back, w.shrinks, w.switches, w.adopted);
    if (done >= 100 && (w.done == 0 || w.rolled_back == 0 || w.shrinks == 0 || w.switches == 0 ||
                        w.adopted == 0)) {
        die("something that should happen never did");
    }
    return 0;
}
