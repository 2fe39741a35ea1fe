/* What the files of eepctl share. */
#ifndef EEP_EEPCTL_H
#define EEP_EEPCTL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "eepctl/client.h"
#include "tools/opts.h"

/** Words and options of all commands; a command takes those of its own table only. */
struct eepctl_opts {
    struct eepctl_client_params client;
    bool json;
    /* operations */
    uint32_t to;
    const char *hosts; /* "H:SLOTS,..." of --host */
    bool dry_run;
    bool exit;
    bool no_wait;
    const char *id;
    uint32_t deadline_s;
    /* events, watch */
    bool follow;
    uint64_t since;
    double interval_s;
    uint32_t count;
    /* words that are no options; borrowed from argv */
    char **words;
    int word_count;
};

/** A command: it returns the exit status. */
typedef int (*eepctl_run_fn)(const struct eepctl_opts *o, struct eepctl_client *client);

int eepctl_status(const struct eepctl_opts *o, struct eepctl_client *client);
int eepctl_watch(const struct eepctl_opts *o, struct eepctl_client *client);
int eepctl_events(const struct eepctl_opts *o, struct eepctl_client *client);
int eepctl_scale(const struct eepctl_opts *o, struct eepctl_client *client);
int eepctl_drain(const struct eepctl_opts *o, struct eepctl_client *client);
int eepctl_rebalance(const struct eepctl_opts *o, struct eepctl_client *client);
int eepctl_operations(const struct eepctl_opts *o, struct eepctl_client *client);
int eepctl_layout(const struct eepctl_opts *o, struct eepctl_client *client);
int eepctl_abort(const struct eepctl_opts *o, struct eepctl_client *client);

/** Say this thread's last failure; returns EEP_EXIT_FAILED. */
int eepctl_failed(void);

/** Say the error that a reply holds; returns EEP_EXIT_FAILED. */
int eepctl_refused(const struct eepctl_reply *reply);

/** Ask; what failed or was refused is said. True with a reply of 200 to 299. */
bool eepctl_ask(struct eepctl_client *client, const char *path, const json_t *body,
                struct eepctl_reply *reply_out);

/** Set when the user has asked to end (SIGINT, SIGTERM); sleeps end early then. */
bool eepctl_interrupted(void);
void eepctl_sleep_ms(uint32_t ms);

/* ---- show.c: JSON as text. Control characters of foreign text are not passed on. ---- */

/** One line of JSON. False if stdout is gone. */
bool eepctl_print_json(const json_t *json);

void eepctl_show_status(FILE *out, const json_t *status);
/** The gist of a status in one line. */
void eepctl_show_status_line(FILE *out, const json_t *status);
void eepctl_show_event(FILE *out, const json_t *event);
/** "scale 4 -> 8 ranks", what phase, how far. One line without its end. */
void eepctl_show_operation(FILE *out, const json_t *operation);
/** One expert map: a line a layer, its seats in brackets. */
void eepctl_show_layout(FILE *out, const json_t *layout);
/** A plan, indented, a line a value. */
void eepctl_show_plan(FILE *out, const json_t *plan);

/** A text field, "" where there is none. */
const char *eepctl_text(const json_t *object, const char *name);

#endif
