/*
 * The mailbox. Four things are shared between the two threads, each by one atomic pointer:
 *
 *     commands   a stack: the admin thread pushes, the engine takes all of it
 *     notes      a stack: the engine pushes, the admin thread takes all of it
 *     view       a slot: the engine exchanges, the admin thread empties; the same for layout
 *
 * Whoever takes a pointer out owns what it points to. All else belongs to one side. A command has
 * two owners, for the admin thread may withdraw it: its `taken` decides who was first.
 */
#include "admin/mailbox.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "admin/admin_int.h"
#include "base/assert.h"
#include "base/mem.h"

#define EVENTS_PENDING_MAX 4096 /* that the admin thread has not seen */
#define EVENTS_LIST_MAX 256

enum taken {
    NEW,
    TAKEN,     /* by the engine: what the command owns has moved there */
    WITHDRAWN, /* by the admin thread */
};

struct command {
    struct command *next; /* the stack's, then the engine's */
    atomic_int taken;     /* enum taken */
    atomic_int owners;
    struct eep_admin_command what;
};

enum note_type {
    NOTE_OPERATION,
    NOTE_EVENT,
};

struct note {
    struct note *next;
    enum note_type type;
    struct eep_admin_operation operation; /* its plan is an eep_mem_alloc() of its own */
    struct eep_admin_event event;         /* without seq */
};

/* A snapshot is one block: the structure, then what its pointers point to. */
struct view {
    struct eep_admin_status status;
};

struct layout_view {
    struct eep_admin_layout layout;
    int32_t map[];
};

/* An operation as the admin thread remembers it. */
struct entry {
    struct eep_admin_operation operation;
    char *plan;
    struct eep_admin_request asked; /* to compare with what the same id asks again */
    bool has_asked;                 /* false: the engine told of it */
    bool stop_sent;
    struct command *command; /* while it is queued; NULL else */
};

struct eep_admin_mailbox {
    /* shared */
    _Atomic(struct command *) commands;
    _Atomic(struct note *) notes;
    _Atomic(struct view *) view;
    _Atomic(struct layout_view *) layout;
    atomic_uint events_pending;
    atomic_uint events_dropped;
    int wake_fd;   /* the engine wakes the admin thread */
    int engine_fd; /* the admin thread wakes the engine */

    /* the engine's */
    struct command *taken; /* in order */

    /* the admin thread's */
    struct view *seen;
    struct layout_view *seen_layout;
    struct entry *entries[EEP_ADMIN_KEPT_OPERATIONS]; /* oldest first */
    size_t entry_count;
    struct eep_admin_event *events; /* a ring of EEP_ADMIN_KEPT_EVENTS */
    uint64_t event_last;            /* seq of the newest */
    const struct eep_admin_event *event_list[EVENTS_LIST_MAX];
    char log[EEP_ADMIN_ID_MAX + 1];
};

static int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void signal_fd(int fd)
{
    const uint64_t one = 1;

    while (write(fd, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
}

static void clear_fd(int fd)
{
    uint64_t count;

    while (read(fd, &count, sizeof(count)) < 0 && errno == EINTR) {
    }
}

static bool has_ended(const struct eep_admin_operation *op)
{
    return op->state != EEP_ADMIN_QUEUED && op->state != EEP_ADMIN_RUNNING;
}

/* ---- commands ---- */

static void command_release(struct command *command)
{
    if (command == NULL || atomic_fetch_sub(&command->owners, 1) > 1) {
        return;
    }
    if (atomic_load(&command->taken) != TAKEN) {
        eep_admin_request_free(&command->what.request);
    }
    eep_mem_free(command);
}

/* Only one of the two threads wins. */
static bool command_claim(struct command *command, enum taken how)
{
    int expected = NEW;

    return atomic_compare_exchange_strong(&command->taken, &expected, (int)how);
}

static void command_push(struct eep_admin_mailbox *m, struct command *command)
{
    command->next = atomic_load(&m->commands);
    while (!atomic_compare_exchange_weak(&m->commands, &command->next, command)) {
    }
    signal_fd(m->engine_fd);
}

/* Move what was pushed to the end of the engine's own list, oldest first. */
static void commands_fetch(struct eep_admin_mailbox *m)
{
    struct command *pushed, *ordered = NULL, **end = &m->taken;

    clear_fd(m->engine_fd);
    pushed = atomic_exchange(&m->commands, NULL);
    while (pushed != NULL) {
        struct command *next = pushed->next;

        pushed->next = ordered;
        ordered = pushed;
        pushed = next;
    }
    while (*end != NULL) {
        end = &(*end)->next;
    }
    *end = ordered;
}

bool eep_admin_mailbox_take(struct eep_admin_mailbox *m, struct eep_admin_command *command_out)
{
    if (atomic_load_explicit(&m->commands, memory_order_relaxed) != NULL) {
        commands_fetch(m);
    }
    while (m->taken != NULL) {
        struct command *command = m->taken;
        const bool ours = command_claim(command, TAKEN);

        m->taken = command->next;
        if (ours) {
            *command_out = command->what;
        }
        command_release(command);
        if (ours) {
            return true;
        }
    }
    return false;
}

int eep_admin_mailbox_fd(const struct eep_admin_mailbox *m)
{
    return m->engine_fd;
}

/* ---- notes ---- */

static void note_free(struct note *note)
{
    eep_mem_free((void *)(uintptr_t)note->operation.plan);
    eep_mem_free(note);
}

static void note_push(struct eep_admin_mailbox *m, struct note *note)
{
    note->next = atomic_load(&m->notes);
    while (!atomic_compare_exchange_weak(&m->notes, &note->next, note)) {
    }
    signal_fd(m->wake_fd);
}

static enum eep_status copy_text(const char *text, const char **copy_out)
{
    char *copy;

    EEP_TRY(eep_mem_alloc(strlen(text) + 1, 1, "a plan for the admin endpoint", &copy));
    strcpy(copy, text);
    *copy_out = copy;
    return EEP_OK;
}

enum eep_status eep_admin_mailbox_post_operation(struct eep_admin_mailbox *m,
                                                 const struct eep_admin_operation *operation)
{
    enum eep_status status;
    struct note *note;

    EEP_ASSERT(operation->state != EEP_ADMIN_QUEUED && eep_admin_id_ok(operation->id));
    EEP_TRY(eep_mem_alloc(1, sizeof(*note), "a note to the admin endpoint", &note));
    note->type = NOTE_OPERATION;
    note->operation = *operation;
    note->operation.plan = NULL;
    if (operation->plan != NULL) {
        EEP_TRY_GOTO(copy_text(operation->plan, &note->operation.plan), free_note);
    }
    note_push(m, note);
    return EEP_OK;

free_note:
    note_free(note);
    return status;
}

enum eep_status eep_admin_mailbox_refuse(struct eep_admin_mailbox *m,
                                         const struct eep_admin_request *request,
                                         enum eep_admin_code code, const char *fmt, ...)
{
    struct eep_admin_operation operation = {.kind = request->kind,
                                            .state = EEP_ADMIN_REFUSED,
                                            .dry_run = request->dry_run,
                                            .to = request->to,
                                            .refusal = code};
    va_list args;

    EEP_ASSERT(code >= EEP_ADMIN_BAD);
    strcpy(operation.id, request->id);
    va_start(args, fmt);
    vsnprintf(operation.message, sizeof(operation.message), fmt, args);
    va_end(args);
    return eep_admin_mailbox_post_operation(m, &operation);
}

void eep_admin_mailbox_event(struct eep_admin_mailbox *m, const char *kind, uint64_t epoch,
                             uint64_t version, const char *fmt, ...)
{
    struct note *note = NULL;
    va_list args;

    if (atomic_load(&m->events_pending) >= EVENTS_PENDING_MAX ||
        eep_mem_alloc(1, sizeof(*note), "an event", &note) != EEP_OK) {
        atomic_fetch_add(&m->events_dropped, 1);
        return;
    }
    note->type = NOTE_EVENT;
    note->event.time_ms = now_ms();
    note->event.epoch = epoch;
    note->event.version = version;
    snprintf(note->event.kind, sizeof(note->event.kind), "%s", kind);
    va_start(args, fmt);
    vsnprintf(note->event.text, sizeof(note->event.text), fmt, args);
    va_end(args);
    atomic_fetch_add(&m->events_pending, 1);
    note_push(m, note);
}

/* Copies `bytes` to *at and moves it on; each piece begins at a multiple of 8. */
static const void *put(char **at, const void *from, size_t bytes)
{
    char *to = *at;

    if (bytes > 0) {
        memcpy(to, from, bytes);
    }
    *at += eep_round_up(bytes, 8);
    return to;
}

enum eep_status eep_admin_mailbox_post(struct eep_admin_mailbox *m,
                                       const struct eep_admin_status *status)
{
    const size_t members = status->member_count * sizeof(*status->members);
    const size_t seats = status->seat_count * sizeof(*status->seats);
    const size_t metrics = status->metric_count * sizeof(*status->metrics);
    const size_t head = eep_round_up(sizeof(struct view), 8);
    struct view *view;
    char *at;

    EEP_TRY(eep_mem_alloc(
        1, head + eep_round_up(members, 8) + eep_round_up(seats, 8) + eep_round_up(metrics, 8),
        "a status for the admin endpoint", &view));
    at = (char *)view + head;
    view->status = *status;
    view->status.members = put(&at, status->members, members);
    view->status.seats = put(&at, status->seats, seats);
    view->status.metrics = put(&at, status->metrics, metrics);
    eep_mem_free(atomic_exchange(&m->view, view));
    return EEP_OK;
}

enum eep_status eep_admin_mailbox_post_layout(struct eep_admin_mailbox *m,
                                              const struct eep_admin_layout *layout)
{
    const size_t count = (size_t)layout->layers * layout->seats * layout->slots_per_seat;
    struct layout_view *view;

    EEP_TRY(eep_mem_alloc(1, sizeof(*view) + count * sizeof(view->map[0]),
                          "a layout for the admin endpoint", &view));
    view->layout = *layout;
    memcpy(view->map, layout->phys2log, count * sizeof(view->map[0]));
    view->layout.phys2log = view->map;
    eep_mem_free(atomic_exchange(&m->layout, view));
    return EEP_OK;
}

/* ---- the admin thread: operations ---- */

static void entry_free(struct entry *entry)
{
    eep_admin_request_free(&entry->asked);
    eep_mem_free(entry->plan);
    command_release(entry->command);
    eep_mem_free(entry);
}

static struct entry *entry_find(const struct eep_admin_mailbox *m, const char *id)
{
    for (size_t i = m->entry_count; i > 0; i--) {
        if (strcmp(m->entries[i - 1]->operation.id, id) == 0) {
            return m->entries[i - 1];
        }
    }
    return NULL;
}

static struct entry *entry_active(const struct eep_admin_mailbox *m)
{
    for (size_t i = m->entry_count; i > 0; i--) {
        if (!has_ended(&m->entries[i - 1]->operation)) {
            return m->entries[i - 1];
        }
    }
    return NULL;
}

static void entry_remove(struct eep_admin_mailbox *m, size_t index)
{
    entry_free(m->entries[index]);
    m->entry_count--;
    memmove(&m->entries[index], &m->entries[index + 1],
            (m->entry_count - index) * sizeof(m->entries[0]));
}

/* Adds one of that id in place of one that was refused; the oldest that has ended makes room. */
static struct entry *entry_add(struct eep_admin_mailbox *m, const char *id)
{
    struct entry *entry;
    size_t out = 0;

    if (eep_mem_alloc(1, sizeof(*entry), "an operation", &entry) != EEP_OK) {
        return NULL;
    }
    strcpy(entry->operation.id, id);
    entry->operation.submitted_ms = now_ms();
    for (size_t i = m->entry_count; i > 0; i--) {
        if (strcmp(m->entries[i - 1]->operation.id, id) == 0) {
            entry_remove(m, i - 1);
        }
    }
    if (m->entry_count == EEP_ADMIN_KEPT_OPERATIONS) {
        while (out + 1 < m->entry_count && !has_ended(&m->entries[out]->operation)) {
            out++;
        }
        entry_remove(m, out);
    }
    m->entries[m->entry_count++] = entry;
    return entry;
}

static void apply_operation(struct eep_admin_mailbox *m, struct note *note)
{
    const struct eep_admin_operation *told = &note->operation;
    struct entry *entry = entry_find(m, told->id);
    struct eep_admin_operation *op;

    if (entry == NULL) {
        entry = entry_add(m, told->id);
    }
    if (entry == NULL || has_ended(&entry->operation)) {
        return;
    }
    const struct eep_admin_operation before = entry->operation;
    op = &entry->operation;
    *op = *told;
    op->submitted_ms = before.submitted_ms;
    op->started_ms = before.started_ms != 0 ? before.started_ms : now_ms();
    op->ended_ms = has_ended(op) ? now_ms() : 0;
    op->deadline_s = entry->has_asked ? entry->asked.deadline_s : told->deadline_s;
    if (told->plan != NULL) {
        eep_mem_free(entry->plan);
        entry->plan = (char *)(uintptr_t)told->plan;
        note->operation.plan = NULL;
    }
    op->plan = entry->plan;
    command_release(entry->command);
    entry->command = NULL;
}

/* ---- the admin thread: events ---- */

static void add_event(struct eep_admin_mailbox *m, const struct eep_admin_event *event)
{
    struct eep_admin_event *kept = &m->events[m->event_last % EEP_ADMIN_KEPT_EVENTS];

    *kept = *event;
    kept->seq = ++m->event_last;
}

static void apply_event(struct eep_admin_mailbox *m, const struct eep_admin_event *event)
{
    atomic_fetch_sub(&m->events_pending, 1);
    add_event(m, event);
}

/* They would have come after those that were there. */
static void tell_dropped(struct eep_admin_mailbox *m)
{
    const unsigned dropped = atomic_exchange(&m->events_dropped, 0);
    struct eep_admin_event lost = {.time_ms = now_ms(), .kind = "warning"};

    if (dropped > 0) {
        snprintf(lost.text, sizeof(lost.text), "%u events were lost: no room for them", dropped);
        add_event(m, &lost);
    }
}

/* Take in what the engine has told. */
static void catch_up(struct eep_admin_mailbox *m)
{
    struct note *notes = atomic_exchange(&m->notes, NULL), *ordered = NULL;
    struct view *view = atomic_exchange(&m->view, NULL);
    struct layout_view *layout = atomic_exchange(&m->layout, NULL);

    if (view != NULL) {
        eep_mem_free(m->seen);
        m->seen = view;
    }
    if (layout != NULL) {
        eep_mem_free(m->seen_layout);
        m->seen_layout = layout;
    }
    while (notes != NULL) {
        struct note *next = notes->next;

        notes->next = ordered;
        ordered = notes;
        notes = next;
    }
    while (ordered != NULL) {
        struct note *note = ordered;

        ordered = note->next;
        if (note->type == NOTE_OPERATION) {
            apply_operation(m, note);
        } else {
            apply_event(m, &note->event);
        }
        note_free(note);
    }
    tell_dropped(m);
}

/* ---- the admin thread: handlers ---- */

static void on_catch_up(void *context)
{
    struct eep_admin_mailbox *m = context;

    clear_fd(m->wake_fd);
    catch_up(m);
}

static const struct eep_admin_status *on_status(void *context)
{
    struct eep_admin_mailbox *m = context;

    return m->seen != NULL ? &m->seen->status : NULL;
}

static const struct eep_admin_layout *on_layout(void *context)
{
    struct eep_admin_mailbox *m = context;

    return m->seen_layout != NULL ? &m->seen_layout->layout : NULL;
}

static void on_events(void *context, uint64_t since, size_t limit,
                      struct eep_admin_events *events_out)
{
    struct eep_admin_mailbox *m = context;
    uint64_t first, kept;

    kept = EEP_MIN(m->event_last, (uint64_t)EEP_ADMIN_KEPT_EVENTS);
    events_out->last = m->event_last;
    events_out->first_kept = kept > 0 ? m->event_last - kept + 1 : 0;
    events_out->list = m->event_list;
    events_out->count = 0;
    strcpy(events_out->log, m->log);
    first = EEP_MAX(events_out->first_kept, since < UINT64_MAX ? since + 1 : since);
    for (uint64_t seq = first; seq >= 1 && seq <= m->event_last &&
                               events_out->count < EEP_MIN(limit, (size_t)EVENTS_LIST_MAX);
         seq++) {
        m->event_list[events_out->count++] = &m->events[(seq - 1) % EEP_ADMIN_KEPT_EVENTS];
    }
}

static void refuse(struct eep_admin_verdict *verdict, enum eep_admin_code code, const char *fmt,
                   ...) EEP_PRINTF(3, 4);

static void refuse(struct eep_admin_verdict *verdict, enum eep_admin_code code, const char *fmt,
                   ...)
{
    va_list args;

    verdict->code = code;
    va_start(args, fmt);
    vsnprintf(verdict->message, sizeof(verdict->message), fmt, args);
    va_end(args);
}

static void show(struct eep_admin_verdict *verdict, const struct entry *entry)
{
    verdict->code = has_ended(&entry->operation) ? EEP_ADMIN_OK : EEP_ADMIN_ACCEPTED;
    verdict->operation = &entry->operation;
}

/* An id that was used before: true if that settles it. */
static bool same_id(const struct entry *entry, const struct eep_admin_request *request,
                    struct eep_admin_verdict *verdict)
{
    if (entry == NULL || entry->operation.state == EEP_ADMIN_REFUSED) {
        return false;
    }
    if (entry->has_asked ? eep_admin_request_equal(&entry->asked, request)
                         : entry->operation.kind == request->kind &&
                               entry->operation.dry_run == request->dry_run) {
        show(verdict, entry);
    } else {
        refuse(verdict, EEP_ADMIN_BUSY, "id '%s' belongs to another operation (%s); use a new one",
               request->id, eep_admin_kind_text(entry->operation.kind));
        verdict->operation = &entry->operation;
    }
    return true;
}

static const enum eep_admin_ability abilities[] = {
    [EEP_ADMIN_SCALE] = EEP_ADMIN_CAN_SCALE,
    [EEP_ADMIN_DRAIN] = EEP_ADMIN_CAN_DRAIN,
    [EEP_ADMIN_REBALANCE] = EEP_ADMIN_CAN_REBALANCE,
};

/* Can the engine do that? False: *verdict says why not. */
static bool is_able(const struct eep_admin_mailbox *m, enum eep_admin_ability ability,
                    const char *what, struct eep_admin_verdict *verdict)
{
    if (m->seen == NULL) {
        refuse(verdict, EEP_ADMIN_UNAVAILABLE, "the engine is not ready yet; try again");
        return false;
    }
    if ((m->seen->status.can & ability) == 0) {
        refuse(verdict, EEP_ADMIN_UNSUPPORTED, "this engine cannot do '%s'", what);
        return false;
    }
    return true;
}

/* May an operation be queued? False: *verdict says why not. */
static bool is_free(const struct eep_admin_mailbox *m, const struct eep_admin_request *request,
                    struct eep_admin_verdict *verdict)
{
    const struct entry *active = entry_active(m);

    if (!is_able(m, abilities[request->kind], eep_admin_kind_text(request->kind), verdict)) {
        return false;
    }
    if (request->kind != EEP_ADMIN_REBALANCE && !m->seen->status.scaling.enabled) {
        refuse(verdict, EEP_ADMIN_NOT_FOUND,
               "elasticity is off in this engine: its ranks are fixed");
        return false;
    }
    if (active != NULL) {
        refuse(verdict, EEP_ADMIN_BUSY,
               "operation '%s' (%s, %s%s%s) is not done; wait for it, or abort it",
               active->operation.id, eep_admin_kind_text(active->operation.kind),
               eep_admin_state_text(active->operation.state),
               active->operation.phase[0] != '\0' ? ", " : "", active->operation.phase);
        verdict->operation = &active->operation;
        return false;
    }
    return true;
}

static enum eep_status copy_request(const struct eep_admin_request *from,
                                    struct eep_admin_request *copy_out)
{
    struct eep_admin_request copy = *from;

    copy.hosts = NULL;
    copy.members = NULL;
    if (from->host_count > 0) {
        EEP_TRY(eep_mem_alloc(from->host_count, sizeof(*copy.hosts), "hosts", &copy.hosts));
        memcpy(copy.hosts, from->hosts, from->host_count * sizeof(*copy.hosts));
    }
    if (from->member_count > 0) {
        enum eep_status status =
            eep_mem_alloc(from->member_count, sizeof(*copy.members), "members", &copy.members);
        if (status != EEP_OK) {
            eep_admin_request_free(&copy);
            return status;
        }
        memcpy(copy.members, from->members, from->member_count * sizeof(*copy.members));
    }
    *copy_out = copy;
    return EEP_OK;
}

static struct command *make_command(enum eep_admin_command_type type, int owners)
{
    struct command *command;

    if (eep_mem_alloc(1, sizeof(*command), "an admin command", &command) != EEP_OK) {
        return NULL;
    }
    command->what.type = type;
    atomic_init(&command->taken, NEW);
    atomic_init(&command->owners, owners);
    return command;
}

/* Takes the request over, whatever comes of it. */
static struct entry *enqueue(struct eep_admin_mailbox *m, struct eep_admin_request *request)
{
    struct command *command = make_command(EEP_ADMIN_DO, 2);
    struct eep_admin_request asked;
    struct entry *entry;

    if (command == NULL || copy_request(request, &asked) != EEP_OK) {
        goto free_request;
    }
    entry = entry_add(m, request->id);
    if (entry == NULL) {
        eep_admin_request_free(&asked);
        goto free_request;
    }
    entry->operation.kind = request->kind;
    entry->operation.dry_run = request->dry_run;
    entry->operation.to = request->to;
    entry->operation.deadline_s = request->deadline_s;
    entry->asked = asked;
    entry->has_asked = true;
    entry->command = command;
    command->what.request = *request;
    command_push(m, command);
    return entry;

free_request:
    eep_admin_request_free(request);
    eep_mem_free(command);
    return NULL;
}

static void on_submit(void *context, struct eep_admin_request *request,
                      struct eep_admin_verdict *verdict)
{
    struct eep_admin_mailbox *m = context;
    const struct entry *entry;

    if (same_id(entry_find(m, request->id), request, verdict) || !is_free(m, request, verdict)) {
        eep_admin_request_free(request);
        return;
    }
    entry = enqueue(m, request);
    if (entry == NULL) {
        refuse(verdict, EEP_ADMIN_UNAVAILABLE, "no memory; nothing was begun");
    } else {
        show(verdict, entry);
    }
}

/* True if the engine never saw it. */
static bool take_back(struct entry *entry, enum eep_admin_state state)
{
    if (entry->operation.state != EEP_ADMIN_QUEUED || entry->command == NULL ||
        !command_claim(entry->command, WITHDRAWN)) {
        return false;
    }
    command_release(entry->command);
    entry->command = NULL;
    entry->operation.state = state;
    entry->operation.ended_ms = now_ms();
    return true;
}

static void on_withdraw(void *context, const char *id, struct eep_admin_verdict *verdict)
{
    struct eep_admin_mailbox *m = context;
    struct entry *entry;

    entry = entry_find(m, id);
    if (entry == NULL) {
        refuse(verdict, EEP_ADMIN_UNAVAILABLE, "the operation is not known any more");
    } else if (take_back(entry, EEP_ADMIN_REFUSED)) {
        entry->operation.refusal = EEP_ADMIN_UNAVAILABLE;
        refuse(verdict, EEP_ADMIN_UNAVAILABLE,
               "the engine did not take the operation in time (it recovers, or a step is long); "
               "nothing was begun, try again");
        strcpy(entry->operation.message, verdict->message);
    } else {
        show(verdict, entry);
    }
}

static void send_stop(struct eep_admin_mailbox *m, struct entry *entry,
                      struct eep_admin_verdict *verdict)
{
    struct command *command;

    if (!entry->stop_sent) {
        command = make_command(EEP_ADMIN_STOP, 1);
        if (command == NULL) {
            refuse(verdict, EEP_ADMIN_UNAVAILABLE, "no memory; try again");
            return;
        }
        command->what.request.kind = entry->operation.kind;
        strcpy(command->what.request.id, entry->operation.id);
        command_push(m, command);
        entry->stop_sent = true;
    }
    show(verdict, entry);
    verdict->code = EEP_ADMIN_ACCEPTED;
}

static void on_abort(void *context, const char *id, struct eep_admin_verdict *verdict)
{
    struct eep_admin_mailbox *m = context;
    struct entry *entry;

    entry = id != NULL ? entry_find(m, id) : entry_active(m);
    if (entry == NULL && id != NULL) {
        refuse(verdict, EEP_ADMIN_NOT_FOUND, "there is no operation '%s'", id);
    } else if (entry == NULL) {
        refuse(verdict, EEP_ADMIN_BUSY, "no operation is running: there is nothing to abort");
    } else if (has_ended(&entry->operation)) {
        show(verdict, entry);
    } else if (take_back(entry, EEP_ADMIN_ABORTED)) {
        show(verdict, entry);
    } else if (is_able(m, EEP_ADMIN_CAN_ABORT, "abort", verdict)) {
        send_stop(m, entry, verdict);
    }
}

static const struct eep_admin_operation *on_operation(void *context, const char *id)
{
    struct eep_admin_mailbox *m = context;
    struct entry *entry = NULL;

    if (id != NULL) {
        entry = entry_find(m, id);
    } else if (m->entry_count > 0) {
        entry = m->entries[m->entry_count - 1];
    }
    return entry != NULL ? &entry->operation : NULL;
}

static const struct eep_admin_operation *on_operation_at(void *context, size_t index)
{
    struct eep_admin_mailbox *m = context;

    return index < m->entry_count ? &m->entries[index]->operation : NULL;
}

/* ---- life ---- */

struct eep_admin_handlers eep_admin_mailbox_handlers(struct eep_admin_mailbox *m)
{
    return (struct eep_admin_handlers){
        .context = m,
        .wake_fd = m->wake_fd,
        .catch_up = on_catch_up,
        .status = on_status,
        .layout = on_layout,
        .events = on_events,
        .submit = on_submit,
        .withdraw = on_withdraw,
        .abort = on_abort,
        .operation = on_operation,
        .operation_at = on_operation_at,
    };
}

static void name_log(struct eep_admin_mailbox *m)
{
    uint64_t bits;

    if (getrandom(&bits, sizeof(bits), GRND_NONBLOCK) != (ssize_t)sizeof(bits)) {
        bits = (uint64_t)now_ms();
    }
    snprintf(m->log, sizeof(m->log), "%016" PRIx64, bits);
}

enum eep_status eep_admin_mailbox_create(struct eep_admin_mailbox **mailbox_out)
{
    struct eep_admin_mailbox *m;
    enum eep_status status;

    EEP_TRY(eep_mem_alloc(1, sizeof(*m), "the admin mailbox", &m));
    m->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    m->engine_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (m->wake_fd < 0 || m->engine_fd < 0) {
        status = EEP_FAIL(EEP_ERR_IO, "the admin mailbox: eventfd: %s", strerror(errno));
        goto destroy;
    }
    EEP_TRY_GOTO(eep_mem_alloc(EEP_ADMIN_KEPT_EVENTS, sizeof(*m->events), "events", &m->events),
                 destroy);
    name_log(m);
    *mailbox_out = m;
    return EEP_OK;

destroy:
    eep_admin_mailbox_destroy(m);
    return status;
}

void eep_admin_mailbox_destroy(struct eep_admin_mailbox *m)
{
    if (m == NULL) {
        return;
    }
    if (m->events != NULL) {
        catch_up(m); /* frees what was on its way */
    }
    commands_fetch(m);
    while (m->taken != NULL) {
        struct command *command = m->taken;

        m->taken = command->next;
        command_release(command);
    }
    while (m->entry_count > 0) {
        entry_remove(m, m->entry_count - 1);
    }
    eep_mem_free(m->seen);
    eep_mem_free(m->seen_layout);
    eep_mem_free(m->events);
    if (m->wake_fd >= 0) {
        close(m->wake_fd);
    }
    if (m->engine_fd >= 0) {
        close(m->engine_fd);
    }
    eep_mem_free(m);
}
