/*
 * What the endpoint tells, as text. Every field may be missing: an older or newer engine is shown
 * as far as it is understood. doc/admin.md has the fields.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "eepctl/eepctl.h"

#define KIB 1024.0
#define SEATS_SHOWN 8

/* ---- values ---- */

const char *eepctl_text(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));

    return text != NULL ? text : "";
}

static json_int_t number(const json_t *object, const char *name)
{
    return json_integer_value(json_object_get(object, name));
}

static double real(const json_t *object, const char *name)
{
    return json_number_value(json_object_get(object, name));
}

static const char *yes_no(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);

    return json_is_boolean(value) ? (json_is_true(value) ? "yes" : "no") : "?";
}

static void put_clean(FILE *out, const char *text)
{
    for (; *text != '\0'; text++) {
        const unsigned char c = (unsigned char)*text;

        (void)fputc(c < 0x20 || c == 0x7f ? '?' : c, out);
    }
}

static void put_bytes(FILE *out, double bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t unit = 0;

    while (bytes >= KIB && unit + 1 < sizeof(units) / sizeof(units[0])) {
        bytes /= KIB;
        unit++;
    }
    (void)fprintf(out, unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
}

static void put_seconds(FILE *out, json_int_t ms)
{
    const json_int_t s = ms / 1000;

    if (s < 120) {
        (void)fprintf(out, "%.1f s", (double)ms / 1000.0);
    } else if (s < 2 * 86400) {
        (void)fprintf(out, "%" JSON_INTEGER_FORMAT ":%02d h", s / 3600, (int)(s / 60 % 60));
    } else {
        (void)fprintf(out, "%" JSON_INTEGER_FORMAT " days", s / 86400);
    }
}

static void put_time(FILE *out, json_int_t unix_ms)
{
    const time_t seconds = (time_t)(unix_ms / 1000);
    struct tm tm;
    char text[32];

    if (localtime_r(&seconds, &tm) != NULL && strftime(text, sizeof(text), "%F %T", &tm) > 0) {
        (void)fprintf(out, "%s.%03d", text, (int)(unix_ms % 1000));
    }
}

bool eepctl_print_json(const json_t *json)
{
    return json_dumpf(json, stdout, JSON_COMPACT) == 0 && putchar('\n') != EOF &&
           fflush(stdout) == 0;
}

/* ---- status ---- */

static void show_head(FILE *out, const json_t *s)
{
    const json_t *model = json_object_get(s, "model");
    const json_int_t started_ms = number(s, "started_ms"), now_ms = number(s, "now_ms");

    (void)fprintf(out, "eep         ");
    put_clean(out, eepctl_text(s, "version"));
    (void)fprintf(out, ", ");
    put_clean(out, eepctl_text(s, "state"));
    (void)fprintf(out, ", epoch %" JSON_INTEGER_FORMAT, number(s, "epoch"));
    if (started_ms > 0 && now_ms >= started_ms) {
        (void)fprintf(out, ", up ");
        put_seconds(out, now_ms - started_ms);
    }
    (void)fprintf(out, "\nmodel       ");
    put_clean(out, eepctl_text(model, "directory"));
    (void)fprintf(out, ", ");
    put_clean(out, eepctl_text(model, "architecture"));
    (void)fprintf(out,
                  ", %" JSON_INTEGER_FORMAT " MoE layers of %" JSON_INTEGER_FORMAT
                  " experts, top-%" JSON_INTEGER_FORMAT "\n",
                  number(model, "moe_layers"), number(model, "experts"), number(model, "top_k"));
}

/* "0-3,7", cut after some. */
static void put_seats(FILE *out, const json_t *seats)
{
    char text[48] = "";
    size_t used = 0, runs = 0;

    for (size_t i = 0; i < json_array_size(seats) && used + 1 < sizeof(text); runs++) {
        const json_int_t first = json_integer_value(json_array_get(seats, i));
        json_int_t last = first;

        for (i++;
             i < json_array_size(seats) && json_integer_value(json_array_get(seats, i)) == last + 1;
             i++) {
            last++;
        }
        if (runs == SEATS_SHOWN) {
            used += (size_t)snprintf(text + used, sizeof(text) - used, ",...");
            break;
        }
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%" JSON_INTEGER_FORMAT,
                                 runs > 0 ? "," : "", first);
        if (last > first && used < sizeof(text)) {
            used +=
                (size_t)snprintf(text + used, sizeof(text) - used, "-%" JSON_INTEGER_FORMAT, last);
        }
    }
    (void)fprintf(out, "%-14s", used > 0 ? text : "-");
}

static void put_column(FILE *out, const char *text, int width)
{
    char cell[32];

    snprintf(cell, sizeof(cell), "%-*.*s ", width, width, text[0] != '\0' ? text : "-");
    put_clean(out, cell);
}

static void show_member(FILE *out, const json_t *m)
{
    const json_t *rank = json_object_get(m, "rank");

    (void)fprintf(out, "%8" JSON_INTEGER_FORMAT " ", number(m, "id"));
    if (json_is_integer(rank)) {
        (void)fprintf(out, "%5" JSON_INTEGER_FORMAT " ", json_integer_value(rank));
    } else {
        (void)fprintf(out, "%5s ", "-");
    }
    (void)fprintf(out, "%5" JSON_INTEGER_FORMAT " ", number(m, "node"));
    put_column(out, eepctl_text(m, "host"), 16);
    put_column(out, eepctl_text(m, "state"), 10);
    put_seats(out, json_object_get(m, "seats"));
    (void)fputc(' ', out);
    put_bytes(out, real(json_object_get(m, "memory"), "resident_bytes"));
    (void)fputc('\n', out);
}

static void show_members(FILE *out, const json_t *s)
{
    const json_t *members = json_object_get(s, "members"), *member;
    size_t i;

    (void)fprintf(out, "%8s %5s %5s %-16s %-10s %-14s %s\n", "member", "rank", "node", "host",
                  "state", "seats", "memory");
    json_array_foreach(members, i, member)
    {
        show_member(out, member);
    }
}

static void show_seats(FILE *out, const json_t *s)
{
    const json_t *seats = json_object_get(s, "seats");

    (void)fprintf(out,
                  "seats       %" JSON_INTEGER_FORMAT " of %" JSON_INTEGER_FORMAT
                  " slots: %" JSON_INTEGER_FORMAT " active, %" JSON_INTEGER_FORMAT
                  " reserved, %" JSON_INTEGER_FORMAT " leaving, %" JSON_INTEGER_FORMAT " lost\n",
                  number(seats, "total"), number(seats, "slots_per_seat"), number(seats, "active"),
                  number(seats, "reserved"), number(seats, "leaving"), number(seats, "lost"));
}

static void show_cache(FILE *out, const json_t *s)
{
    const json_t *cache = json_object_get(s, "cache");

    (void)fprintf(out, "cache       ");
    if (!json_is_object(cache)) {
        (void)fprintf(out, "none\n");
        return;
    }
    put_clean(out, eepctl_text(cache, "path"));
    (void)fprintf(out, ", ");
    put_bytes(out, real(cache, "bytes"));
    (void)fprintf(out, json_is_true(json_object_get(cache, "kept")) ? ", kept" : "");
    (void)fprintf(out,
                  json_is_true(json_object_get(cache, "attached")) ? ", attached\n" : ", filled\n");
}

static void show_survives(FILE *out, const json_t *s)
{
    const json_t *survives = json_object_get(s, "survives");

    if (!json_is_object(survives)) {
        return;
    }
    (void)fprintf(out,
                  "survives    any one rank: %s; any one node: %s; experts with a single source: "
                  "%" JSON_INTEGER_FORMAT "\n",
                  yes_no(survives, "any_rank"), yes_no(survives, "any_node"),
                  number(survives, "single_source"));
}

static void show_backup(FILE *out, const json_t *s)
{
    const json_t *backup = json_object_get(s, "backup");

    if (!json_is_object(backup)) {
        return;
    }
    (void)fprintf(out, "backup      %s: %" JSON_INTEGER_FORMAT " experts, ",
                  json_is_true(json_object_get(backup, "whole")) ? "whole" : "not whole",
                  number(backup, "experts"));
    put_bytes(out, real(backup, "bytes"));
    (void)fprintf(out, "; %" JSON_INTEGER_FORMAT " find no room\n", number(backup, "missing"));
}

static void show_requests(FILE *out, const json_t *s)
{
    const json_t *r = json_object_get(s, "requests");

    (void)fprintf(out,
                  "requests    %" JSON_INTEGER_FORMAT " open, %" JSON_INTEGER_FORMAT
                  " done; %.1f tokens/s\n",
                  number(r, "open"), number(r, "done"), real(r, "tokens_per_s"));
}

static void show_rebalance(FILE *out, const json_t *s)
{
    const json_t *r = json_object_get(s, "rebalance");

    (void)fprintf(out,
                  "layout      version %" JSON_INTEGER_FORMAT "; rebalanced %" JSON_INTEGER_FORMAT
                  " times, ",
                  number(json_object_get(s, "layout"), "version"), number(r, "count"));
    put_bytes(out, real(r, "bytes"));
    (void)fprintf(out, " moved, now ");
    put_clean(out, eepctl_text(r, "state"));
    if (eepctl_text(r, "reason")[0] != '\0') {
        (void)fprintf(out, ": ");
        put_clean(out, eepctl_text(r, "reason"));
    }
    (void)fputc('\n', out);
}

void eepctl_show_status(FILE *out, const json_t *s)
{
    show_head(out, s);
    show_seats(out, s);
    show_rebalance(out, s);
    show_cache(out, s);
    show_survives(out, s);
    show_backup(out, s);
    show_requests(out, s);
    (void)fprintf(out, "operation   ");
    eepctl_show_operation(out, json_object_get(s, "operation"));
    (void)fputc('\n', out);
    show_members(out, s);
}

void eepctl_show_status_line(FILE *out, const json_t *s)
{
    const json_t *r = json_object_get(s, "requests");

    put_time(out, number(s, "now_ms"));
    (void)fputc(' ', out);
    put_clean(out, eepctl_text(s, "state"));
    (void)fprintf(out,
                  ", epoch %" JSON_INTEGER_FORMAT ", %zu members, layout %" JSON_INTEGER_FORMAT
                  ", %" JSON_INTEGER_FORMAT " open, %" JSON_INTEGER_FORMAT
                  " done, %.1f tokens/s, operation: ",
                  number(s, "epoch"), json_array_size(json_object_get(s, "members")),
                  number(json_object_get(s, "layout"), "version"), number(r, "open"),
                  number(r, "done"), real(r, "tokens_per_s"));
    eepctl_show_operation(out, json_object_get(s, "operation"));
    (void)fputc('\n', out);
}

/* ---- layout ---- */

static void show_layer(FILE *out, const json_t *row, size_t layer, size_t slots_per_seat)
{
    const json_t *expert;
    size_t p;

    (void)fprintf(out, "layer %-4zu", layer);
    json_array_foreach(row, p, expert)
    {
        if (p % slots_per_seat == 0) {
            (void)fprintf(out, p == 0 ? " [" : "] [");
        } else {
            (void)fputc(' ', out);
        }
        if (json_integer_value(expert) < 0) {
            (void)fputc('.', out);
        } else {
            (void)fprintf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(expert));
        }
    }
    (void)fprintf(out, "]\n");
}

void eepctl_show_layout(FILE *out, const json_t *layout)
{
    const json_t *rows = json_object_get(layout, "phys2log"), *row;
    const json_int_t slots_per_seat = number(layout, "slots_per_seat");
    size_t layer;

    (void)fprintf(out,
                  "version %" JSON_INTEGER_FORMAT ": %" JSON_INTEGER_FORMAT
                  " experts in %" JSON_INTEGER_FORMAT " seats of %" JSON_INTEGER_FORMAT " slots\n",
                  number(layout, "version"), number(layout, "experts"), number(layout, "seats"),
                  slots_per_seat);
    json_array_foreach(rows, layer, row)
    {
        show_layer(out, row, layer, slots_per_seat > 0 ? (size_t)slots_per_seat : 1);
    }
}

/* ---- events and operations ---- */

void eepctl_show_event(FILE *out, const json_t *event)
{
    (void)fprintf(out, "%5" JSON_INTEGER_FORMAT " ", number(event, "seq"));
    put_time(out, number(event, "time_ms"));
    (void)fprintf(out, " e%" JSON_INTEGER_FORMAT " v%" JSON_INTEGER_FORMAT " ",
                  number(event, "epoch"), number(event, "layout_version"));
    put_column(out, eepctl_text(event, "kind"), 10);
    put_clean(out, eepctl_text(event, "text"));
    (void)fputc('\n', out);
}

static void show_sizes(FILE *out, const json_t *op)
{
    if (number(op, "to") > 0) {
        if (number(op, "from") > 0) {
            (void)fprintf(out, " %" JSON_INTEGER_FORMAT " ->", number(op, "from"));
        } else {
            (void)fprintf(out, " to");
        }
        (void)fprintf(out, " %" JSON_INTEGER_FORMAT " ranks", number(op, "to"));
    }
}

static void show_progress(FILE *out, const json_t *op)
{
    if (eepctl_text(op, "phase")[0] != '\0') {
        (void)fprintf(out, ", ");
        put_clean(out, eepctl_text(op, "phase"));
    }
    if (number(op, "bytes_total") > 0) {
        (void)fprintf(out, ", ");
        put_bytes(out, real(op, "bytes_done"));
        (void)fprintf(out, " of ");
        put_bytes(out, real(op, "bytes_total"));
    }
}

void eepctl_show_operation(FILE *out, const json_t *op)
{
    if (!json_is_object(op)) {
        (void)fprintf(out, "none");
        return;
    }
    put_clean(out, eepctl_text(op, "kind"));
    show_sizes(out, op);
    (void)fprintf(out, "%s: ", json_is_true(json_object_get(op, "dry_run")) ? " (dry run)" : "");
    put_clean(out, eepctl_text(op, "state"));
    if (json_is_integer(json_object_get(op, "ended_ms"))) {
        (void)fprintf(out, " after ");
        put_seconds(out, number(op, "ended_ms") - number(op, "submitted_ms"));
    } else {
        show_progress(out, op);
    }
    if (eepctl_text(op, "message")[0] != '\0') {
        (void)fprintf(out, ": ");
        put_clean(out, eepctl_text(op, "message"));
    }
    (void)fprintf(out, " (id ");
    put_clean(out, eepctl_text(op, "id"));
    (void)fputc(')', out);
}

/* A name that ends in _bytes, or is bytes, is shown as such. */
static bool counts_bytes(const char *name)
{
    const size_t length = strlen(name);

    return length >= 5 && strcmp(name + length - 5, "bytes") == 0;
}

static void show_value(FILE *out, const char *name, const json_t *value)
{
    char *text;

    if (json_is_string(value)) {
        put_clean(out, json_string_value(value));
    } else if (json_is_number(value) && counts_bytes(name)) {
        put_bytes(out, json_number_value(value));
    } else if (json_is_boolean(value)) {
        (void)fputs(json_is_true(value) ? "yes" : "no", out);
    } else if (json_is_real(value)) {
        (void)fprintf(out, "%.4g", json_real_value(value));
    } else {
        text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);
        put_clean(out, text != NULL ? text : "?");
        free(text);
    }
    (void)fputc('\n', out);
}

void eepctl_show_plan(FILE *out, const json_t *plan)
{
    const char *name, *inner_name;
    json_t *value, *inner;

    json_object_foreach((json_t *)(uintptr_t)plan, name, value)
    {
        (void)fprintf(out, "  ");
        put_column(out, name, 20);
        if (!json_is_object(value)) {
            show_value(out, name, value);
            continue;
        }
        (void)fputc('\n', out);
        json_object_foreach(value, inner_name, inner)
        {
            (void)fprintf(out, "    ");
            put_column(out, inner_name, 18);
            show_value(out, inner_name, inner);
        }
    }
}
