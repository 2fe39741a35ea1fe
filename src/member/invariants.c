/* What must hold after every agreed event, on every member. */
#include "member/member_int.h"

static const char *broken_members(const struct eep_member_state *s)
{
    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        const struct eep_member_record *r = &s->members[i];

        if (r->life == EEP_LIFE_NONE) {
            continue;
        }
        if (r->life >= EEP_LIFE_SILENT || r->node >= EEP_NODES_MAX) {
            return "a member has a life or a node that does not exist";
        }
        if (r->id >= s->next_id) {
            return "a member has an id that was not given out";
        }
        for (uint32_t j = 0; j < i; j++) {
            if (s->members[j].life != EEP_LIFE_NONE && s->members[j].id == r->id) {
                return "two members have one id";
            }
        }
        if ((r->life == EEP_LIFE_JOINING || r->life == EEP_LIFE_DRAINING) &&
            !eep_operation_runs(s)) {
            return "a member joins or leaves without an operation";
        }
    }
    return NULL;
}

static const char *broken_seats(const struct eep_member_state *s)
{
    for (uint32_t i = 0; i < s->seats_max; i++) {
        const struct eep_seat_record *seat = &s->seats[i];
        const struct eep_member_record *r = eep_member_find(s, seat->executor);

        if (seat->state > EEP_SEAT_LOST) {
            return "a seat has a state that does not exist";
        }
        if (seat->state == EEP_SEAT_RESERVED ? seat->executor != EEP_NO_MEMBER
                                             : r == NULL || !eep_member_in_epoch(r)) {
            return "a seat has no executor in the epoch, or a reserved one has";
        }
        if (seat->state == EEP_SEAT_LOST && s->mode != EEP_MODE_RESEATING) {
            return "serving with a lost seat";
        }
        if ((seat->next != EEP_NO_MEMBER || seat->state == EEP_SEAT_LEAVING) &&
            !eep_operation_runs(s)) {
            return "a seat is to change without an operation";
        }
        if (seat->next != EEP_NO_MEMBER && eep_member_find(s, seat->next) == NULL) {
            return "a seat is to go to an unknown member";
        }
        if (seat->state == EEP_SEAT_ACTIVE && (seat->held_on & eep_node_bit(r->node)) == 0) {
            return "an active seat has no frames where it is executed";
        }
    }
    return NULL;
}

/* What another process has sent is read before it is believed. */
static bool has_words(const struct eep_operation *op)
{
    return op->id[EEP_OPERATION_ID_BYTES - 1] == '\0' && op->kind <= EEP_OPERATION_ABORT &&
           op->phase <= EEP_PHASE_ROLLED_BACK && op->reason <= EEP_REASON_BAD_REQUEST;
}

static const char *broken_operations(const struct eep_member_state *s)
{
    const uint32_t kept = EEP_MIN(s->history_count, EEP_OPERATION_HISTORY);

    if (!has_words(&s->operation) || s->operation.phase >= EEP_PHASE_DONE) {
        return "the operation that runs has ended, or words that do not exist";
    }
    for (uint32_t i = 0; i < kept; i++) {
        if (!has_words(&s->history[i]) || s->history[i].phase < EEP_PHASE_DONE) {
            return "an ended operation still runs, or has words that do not exist";
        }
    }
    return NULL;
}

static const char *broken_waits(const struct eep_member_state *s)
{
    if (s->mode == EEP_MODE_RESEATING &&
        (s->reseat_wait.owner == EEP_NO_MEMBER || s->reseat_wait.serial == 0)) {
        return "reseating has no owner";
    }
    if (eep_operation_runs(s) &&
        (s->operation_wait.owner == EEP_NO_MEMBER || s->operation_wait.serial == 0)) {
        return "an operation has no owner";
    }
    if (eep_operation_runs(s) && s->now_ns >= s->operation.deadline_ns) {
        return "an operation outlived its deadline";
    }
    if (s->mode == EEP_MODE_RESEATING && s->operation.phase > EEP_PHASE_PLANNED) {
        return "an operation goes on during a recovery";
    }
    return NULL;
}

const char *eep_member_broken(const struct eep_member_state *s)
{
    const char *broken;

    if (s->seats_max == 0 || s->seats_max > EEP_SEATS_MAX || s->mode > EEP_MODE_RESEATING) {
        return "counts or mode are out of range";
    }
    if (eep_lowest_of_epoch(s) == EEP_NO_MEMBER) {
        return "nobody is in the epoch";
    }
    broken = broken_members(s);
    if (broken == NULL) {
        broken = broken_seats(s);
    }
    if (broken == NULL) {
        broken = broken_operations(s);
    }
    return broken != NULL ? broken : broken_waits(s);
}
