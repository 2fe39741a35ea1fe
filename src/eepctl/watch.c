/*
 * What is going on: status, watch, events.
 *
 * watch on a terminal: a screen drawn anew at each refresh, without clearing it first (no flicker);
 * the user's own screen comes back at the end. Elsewhere: a line at each refresh, and the events.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "admin/admin.h"
#include "eepctl/eepctl.h"
#include "tools/tools.h"

#define EVENTS_SHOWN 8
#define EVENTS_KEPT 32
#define FOLLOW_MS 500
#define SCREEN_ENTER "\033[?1049h\033[?25l"
#define SCREEN_LEAVE "\033[?25h\033[?1049l"
#define SCREEN_HOME "\033[H"
#define LINE_REST "\033[K\n"
#define SCREEN_REST "\033[J"

/* Ask for one thing and show it. */
static int show_one(const struct eepctl_opts *o, struct eepctl_client *client, const char *path,
                    void (*show)(FILE *out, const json_t *json))
{
    struct eepctl_reply reply;
    bool good = true;

    if (!eepctl_ask(client, path, NULL, &reply)) {
        return EEP_EXIT_FAILED;
    }
    if (o->json) {
        good = eepctl_print_json(reply.json);
    } else {
        show(stdout, reply.json);
        good = fflush(stdout) == 0;
    }
    json_decref(reply.json);
    return good ? EEP_EXIT_OK : EEP_EXIT_FAILED;
}

int eepctl_status(const struct eepctl_opts *o, struct eepctl_client *client)
{
    return show_one(o, client, "/eep/status", eepctl_show_status);
}

int eepctl_layout(const struct eepctl_opts *o, struct eepctl_client *client)
{
    return show_one(o, client, "/eep/layout", eepctl_show_layout);
}

static void show_operations(FILE *out, const json_t *json)
{
    const json_t *list = json_object_get(json, "operations"), *operation;
    size_t i;

    json_array_foreach(list, i, operation)
    {
        eepctl_show_operation(out, operation);
        (void)fputc('\n', out);
    }
    if (json_array_size(list) == 0) {
        eepctl_show_operation(out, json_is_array(list) ? NULL : json);
        (void)fputc('\n', out);
    }
}

int eepctl_operations(const struct eepctl_opts *o, struct eepctl_client *client)
{
    char path[EEP_ADMIN_ID_MAX + 32];

    if (o->id == NULL) {
        return show_one(o, client, "/eep/operations", show_operations);
    }
    snprintf(path, sizeof(path), "/eep/operations?id=%s", o->id);
    return show_one(o, client, path, show_operations);
}

/* ---- events ---- */

/* Where a reader of the audit log stands. A new engine or coordinator begins a new numbering. */
struct position {
    char log[80];
    uint64_t since;
};

/* The events after the position; moves it. NULL: failed, and the text is recorded (code 0) or in
 * the reply. */
static enum eep_status fetch_events(struct eepctl_client *client, struct position *p,
                                    struct eepctl_reply *reply_out)
{
    char path[64];
    const json_t *events, *last;
    const char *log;

    snprintf(path, sizeof(path), "/eep/events?since=%" PRIu64, p->since);
    EEP_TRY(eepctl_client_ask(client, path, NULL, reply_out));
    if (reply_out->code != 200) {
        return EEP_OK;
    }
    log = eepctl_text(reply_out->json, "log");
    if (p->log[0] != '\0' && strcmp(p->log, log) != 0) {
        json_decref(reply_out->json);
        *p = (struct position){.since = 0};
        return fetch_events(client, p, reply_out);
    }
    snprintf(p->log, sizeof(p->log), "%s", log);
    events = json_object_get(reply_out->json, "events");
    last = json_array_get(events, json_array_size(events) - 1);
    if (last != NULL) {
        p->since = (uint64_t)json_integer_value(json_object_get(last, "seq"));
    }
    return EEP_OK;
}

/* False if stdout is gone. */
static bool print_events(const struct eepctl_opts *o, const json_t *events)
{
    const json_t *event;
    size_t i;

    json_array_foreach(events, i, event)
    {
        if (!o->json) {
            eepctl_show_event(stdout, event);
        } else if (!eepctl_print_json(event)) {
            return false;
        }
    }
    return fflush(stdout) == 0;
}

int eepctl_events(const struct eepctl_opts *o, struct eepctl_client *client)
{
    struct position position = {.since = o->since};
    bool told = false;

    while (!eepctl_interrupted()) {
        struct eepctl_reply reply;
        const enum eep_status status = fetch_events(client, &position, &reply);

        if (status != EEP_OK || reply.code != 200) {
            if (!o->follow || (position.log[0] == '\0' && status != EEP_OK)) {
                return status != EEP_OK ? eepctl_failed() : eepctl_refused(&reply);
            }
            if (!told) {
                (void)(status != EEP_OK ? eepctl_failed() : eepctl_refused(&reply));
            }
            told = true;
            eepctl_sleep_ms(FOLLOW_MS);
            continue;
        }
        const json_t *events = json_object_get(reply.json, "events");
        const size_t count = json_array_size(events);
        const bool good = print_events(o, events);

        json_decref(reply.json);
        told = false;
        if (!good) {
            return EEP_EXIT_FAILED;
        }
        if (count == 0 && !o->follow) {
            break;
        }
        if (count == 0) {
            eepctl_sleep_ms(FOLLOW_MS);
        }
    }
    return EEP_EXIT_OK;
}

/* ---- watch ---- */

struct watch {
    const struct eepctl_opts *o;
    struct eepctl_client *client;
    struct position position;
    json_t *recent; /* the newest events */
    bool first;
};

static void keep_recent(struct watch *w, const json_t *events)
{
    json_t *event;
    size_t i;

    json_array_foreach((json_t *)(uintptr_t)events, i, event)
    {
        (void)json_array_append(w->recent, event);
    }
    while (json_array_size(w->recent) > EVENTS_KEPT) {
        (void)json_array_remove(w->recent, 0);
    }
}

/* The status, or NULL with the text recorded. New events are taken in. */
static json_t *fetch(struct watch *w)
{
    struct eepctl_reply status, events;

    if (eepctl_client_ask(w->client, "/eep/status", NULL, &status) != EEP_OK) {
        return NULL;
    }
    if (status.code != 200) {
        (void)eep_fail(EEP_ERR_AGAIN, "%s",
                       eepctl_text(json_object_get(status.json, "error"), "message"));
        json_decref(status.json);
        return NULL;
    }
    while (fetch_events(w->client, &w->position, &events) == EEP_OK) {
        const json_t *list = json_object_get(events.json, "events");
        const size_t count = json_array_size(list);

        if (events.code == 200) {
            keep_recent(w, list);
        }
        json_decref(events.json);
        if (count == 0) {
            break;
        }
    }
    return status.json;
}

static void write_view(FILE *out, const struct watch *w, const json_t *status)
{
    const size_t count = json_array_size(w->recent);

    if (status == NULL) {
        (void)fprintf(out, "%s\n\nno answer: %s\n", eepctl_client_address(w->client),
                      eep_error_text());
    } else {
        eepctl_show_status(out, status);
    }
    (void)fprintf(out, "\n");
    for (size_t i = count > EVENTS_SHOWN ? count - EVENTS_SHOWN : 0; i < count; i++) {
        eepctl_show_event(out, json_array_get(w->recent, i));
    }
    (void)fprintf(out, "\n%s, each %g s; end with Ctrl-C\n", eepctl_client_address(w->client),
                  w->o->interval_s);
}

static void screen_size(size_t *rows, size_t *columns)
{
    struct winsize size;

    *rows = 24;
    *columns = 80;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0) {
        *rows = size.ws_row;
        *columns = size.ws_col;
    }
}

/* Bytes of a line that fit: characters of UTF-8 are counted, not bytes. */
static size_t fitting(const char *line, size_t length, size_t columns)
{
    size_t at = 0;

    for (size_t shown = 0; at < length; at++) {
        if (((unsigned char)line[at] & 0xc0) != 0x80 && shown++ == columns) {
            break;
        }
    }
    return at;
}

static bool draw(const struct watch *w, const json_t *status)
{
    size_t rows, columns, bytes;
    char *text = NULL;
    FILE *out = open_memstream(&text, &bytes);

    if (out == NULL) {
        return false;
    }
    write_view(out, w, status);
    if (fclose(out) != 0) {
        free(text);
        return false;
    }
    screen_size(&rows, &columns);
    (void)fputs(SCREEN_HOME, stdout);
    for (const char *line = text; *line != '\0' && rows > 1; rows--) {
        const size_t length = strcspn(line, "\n");

        (void)fwrite(line, 1, fitting(line, length, columns), stdout);
        (void)fputs(LINE_REST, stdout);
        line += length + (line[length] != '\0');
    }
    (void)fputs(SCREEN_REST, stdout);
    free(text);
    return fflush(stdout) == 0;
}

/* Without a terminal: lines. The events that were there before are not repeated. */
static bool print_lines(struct watch *w, const json_t *status)
{
    const json_t *event;
    size_t i;

    if (status == NULL) {
        (void)eepctl_failed();
        return true;
    }
    if (w->o->json) {
        return eepctl_print_json(status);
    }
    eepctl_show_status_line(stdout, status);
    json_array_foreach(w->recent, i, event)
    {
        if (!w->first) {
            eepctl_show_event(stdout, event);
        }
    }
    (void)json_array_clear(w->recent);
    w->first = false;
    return fflush(stdout) == 0;
}

int eepctl_watch(const struct eepctl_opts *o, struct eepctl_client *client)
{
    struct watch w = {.o = o, .client = client, .recent = json_array(), .first = true};
    const bool screen = isatty(STDOUT_FILENO) && !o->json;
    bool good = true, answered = false;

    if (screen) {
        (void)fputs(SCREEN_ENTER, stdout);
    }
    for (uint32_t round = 0; good && !eepctl_interrupted() && (o->count == 0 || round < o->count);
         round++) {
        json_t *status;

        if (round > 0) {
            eepctl_sleep_ms((uint32_t)(o->interval_s * 1000));
        }
        if (eepctl_interrupted()) {
            break;
        }
        status = fetch(&w);
        answered = status != NULL;
        good = screen ? draw(&w, status) : print_lines(&w, status);
        json_decref(status);
    }
    if (screen) {
        (void)fputs(SCREEN_LEAVE, stdout);
        (void)fflush(stdout);
    }
    json_decref(w.recent);
    return good && (answered || eepctl_interrupted()) ? EEP_EXIT_OK : EEP_EXIT_FAILED;
}
