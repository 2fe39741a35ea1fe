/* The `eepctl` program: options and commands. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "admin/admin.h"
#include "base/log.h"
#include "config.h"
#include "eepctl/eepctl.h"
#include "tools/tools.h"

#define OPTS_MAX 16
#define INTERVAL_S_MIN 0.1
#define INTERVAL_S_MAX 3600.0

/* ---- what the other files use ---- */

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
    (void)number;
    interrupted = 1;
}

bool eepctl_interrupted(void)
{
    return interrupted != 0;
}

void eepctl_sleep_ms(uint32_t ms)
{
    const struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};

    (void)nanosleep(&time, NULL); /* a signal ends it early, as it should */
}

int eepctl_failed(void)
{
    (void)fprintf(stderr, "eepctl: error: %s\n", eep_error_text());
    return EEP_EXIT_FAILED;
}

int eepctl_refused(const struct eepctl_reply *reply)
{
    const char *message = eepctl_text(json_object_get(reply->json, "error"), "message");

    /* recorded and read back: control characters are gone then */
    (void)eep_fail(EEP_ERR_INVALID, "%s (%d)", message[0] != '\0' ? message : "refused",
                   reply->code);
    json_decref(reply->json);
    return eepctl_failed();
}

bool eepctl_ask(struct eepctl_client *client, const char *path, const json_t *body,
                struct eepctl_reply *reply_out)
{
    if (eepctl_client_ask(client, path, body, reply_out) != EEP_OK) {
        (void)eepctl_failed();
        return false;
    }
    if (reply_out->code >= 300) {
        (void)eepctl_refused(reply_out);
        return false;
    }
    return true;
}

/* opts.c asks: one process, it always speaks, also below a launcher. */
bool eep_tool_speaks(void)
{
    return true;
}

/* ---- options ---- */

static struct eepctl_opts o = {.interval_s = 1.0};
static bool version;

enum opt_set {
    OPT_ALWAYS = 1 << 0,
    OPT_VERSION = 1 << 1,
    OPT_SUBMIT = 1 << 2,
    OPT_TO = 1 << 3,
    OPT_EXIT = 1 << 4,
    OPT_NAMED = 1 << 5,
    OPT_WAIT = 1 << 6,
    OPT_FOLLOW = 1 << 7,
    OPT_REFRESH = 1 << 8,
};

static const struct {
    int sets;
    struct eep_opt opt;
} all_opts[] = {
    {OPT_ALWAYS,
     {"endpoint", EEP_OPT_STRING, &o.client.endpoint, "ENDPOINT",
      "unix:PATH or HOST:PORT\n(default $EEP_ADMIN, else unix:/tmp/eep-UID/admin.sock)"}},
    {OPT_ALWAYS,
     {"token-file", EEP_OPT_STRING, &o.client.token_file, "FILE",
      "the token, for TCP (default $EEP_ADMIN_TOKEN)"}},
    {OPT_ALWAYS,
     {"ca", EEP_OPT_STRING, &o.client.ca_file, "FILE",
      "speak TLS and trust these certificates (PEM)"}},
    {OPT_ALWAYS, {"json", EEP_OPT_FLAG, &o.json, NULL, "print JSON, an object a line"}},
    {OPT_VERSION, {"version", EEP_OPT_FLAG, &version, NULL, "print the version"}},
    {OPT_TO, {"to", EEP_OPT_U32, &o.to, "N", "ranks that are to serve"}},
    {OPT_TO,
     {"host", EEP_OPT_STRING, &o.hosts, "H:SLOTS ...",
      "where ranks may be started, with commas or spaces between"}},
    {OPT_EXIT,
     {"exit", EEP_OPT_FLAG, &o.exit, NULL,
      "leavers end; by default they are parked and can come back"}},
    {OPT_SUBMIT, {"dry-run", EEP_OPT_FLAG, &o.dry_run, NULL, "tell what would be done"}},
    {OPT_SUBMIT,
     {"deadline", EEP_OPT_U32, &o.deadline_s, "SECONDS",
      "roll back if it takes longer (default 600)"}},
    {OPT_SUBMIT,
     {"id", EEP_OPT_STRING, &o.id, "ID",
      "the operation's id; the same one again is harmless\n(default: made)"}},
    {OPT_NAMED, {"id", EEP_OPT_STRING, &o.id, "ID", "the operation's id"}},
    {OPT_SUBMIT | OPT_WAIT,
     {"no-wait", EEP_OPT_FLAG, &o.no_wait, NULL, "do not wait until it has ended"}},
    {OPT_FOLLOW, {"follow", EEP_OPT_FLAG, &o.follow, NULL, "go on with those that happen"}},
    {OPT_FOLLOW, {"since", EEP_OPT_U64, &o.since, "N", "only those after number N"}},
    {OPT_REFRESH,
     {"interval", EEP_OPT_DOUBLE, &o.interval_s, "SECONDS", "between two looks (default 1)"}},
    {OPT_REFRESH, {"count", EEP_OPT_U32, &o.count, "N", "end after N looks (default: never)"}},
};

static const struct eep_command_help help = {
    .usage = "eepctl [options] COMMAND [options]",
    .summary = "Look at a running engine of eep, and change its ranks and layout.\n\n"
               "  status     members, seats, layout, requests\n"
               "  watch      the same, live\n"
               "  scale      to more or fewer ranks\n"
               "  drain      let members leave\n"
               "  rebalance  move experts to where they are used\n"
               "  abort      roll the running operation back\n"
               "  operations those that were asked for, and what became of them\n"
               "  layout     which expert is in which slot\n"
               "  events     the log of changes\n\n"
               "`eepctl COMMAND --help` tells a command's options.",
    .epilog = "environment:\n"
              "  EEP_ADMIN        the endpoint\n"
              "  EEP_ADMIN_TOKEN  the token, for TCP\n\n"
              "exit status: 0 done, 1 failed, 2 wrong usage",
};

struct command {
    const char *name;
    struct eep_command_help help;
    int sets;
    bool words; /* takes some */
    eepctl_run_fn run;
};

static const struct command commands[] = {
    {"status",
     {"eepctl status [options]", "Members, seats, layout, requests, the operation.", NULL},
     OPT_ALWAYS,
     false,
     eepctl_status},
    {"watch",
     {"eepctl watch [options]",
      "The status, live: a screen on a terminal, else a line at each look.", NULL},
     OPT_ALWAYS | OPT_REFRESH,
     false,
     eepctl_watch},
    {"scale",
     {"eepctl scale --to N [options]",
      "Let ranks join or leave until N serve. Serving goes on meanwhile.", NULL},
     OPT_ALWAYS | OPT_SUBMIT | OPT_TO | OPT_EXIT,
     true,
     eepctl_scale},
    {"drain",
     {"eepctl drain [options] MEMBER ...",
      "Let these members leave: experts and requests move to others first.\n"
      "`eepctl status` lists the members' ids.",
      NULL},
     OPT_ALWAYS | OPT_SUBMIT | OPT_EXIT,
     true,
     eepctl_drain},
    {"rebalance",
     {"eepctl rebalance [options]", "Place the experts anew by the load that was seen.", NULL},
     OPT_ALWAYS | OPT_SUBMIT,
     false,
     eepctl_rebalance},
    {"abort",
     {"eepctl abort [options]", "Roll the running operation back, or that of --id.", NULL},
     OPT_ALWAYS | OPT_NAMED | OPT_WAIT,
     false,
     eepctl_abort},
    {"operations",
     {"eepctl operations [options]",
      "The last operations, or that of --id: phase, progress, outcome.", NULL},
     OPT_ALWAYS | OPT_NAMED,
     false,
     eepctl_operations},
    {"layout",
     {"eepctl layout [options]",
      "Which expert is in which slot, a line a layer. --json prints a layout file, as\n"
      "`eep layout` reads it.",
      NULL},
     OPT_ALWAYS,
     false,
     eepctl_layout},
    {"events",
     {"eepctl events [options]", "Changes of membership and layout, operations, recoveries.", NULL},
     OPT_ALWAYS | OPT_FOLLOW,
     false,
     eepctl_events},
};

static size_t choose_opts(int sets, struct eep_opt opts[OPTS_MAX])
{
    size_t count = 0;

    for (size_t i = 0; i < sizeof(all_opts) / sizeof(all_opts[0]); i++) {
        if ((all_opts[i].sets & sets) != 0) {
            opts[count++] = all_opts[i].opt;
        }
    }
    return count;
}

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        if (strcmp(commands[i].name, name) == 0) {
            return &commands[i];
        }
    }
    return NULL;
}

/* ---- checks of what a command was given ---- */

static bool is_number(const char *word)
{
    const size_t length = strlen(word);

    return length >= 1 && length <= 18 && strspn(word, "0123456789") == length;
}

static int check_scale(const struct command *c)
{
    if (o.to < 1 || o.to > EEP_ADMIN_SIZE_MAX) {
        return eep_opts_wrong(&c->help, "to how many ranks? --to N, 1 to %d", EEP_ADMIN_SIZE_MAX);
    }
    if (o.word_count > 0 && o.hosts == NULL) {
        return eep_opts_wrong(&c->help, "unexpected word '%s'", o.words[0]);
    }
    return EEP_EXIT_OK;
}

static int check_drain(const struct command *c)
{
    if (o.word_count == 0) {
        return eep_opts_wrong(&c->help, "which members?");
    }
    for (int i = 0; i < o.word_count; i++) {
        if (!is_number(o.words[i])) {
            return eep_opts_wrong(&c->help, "'%s' is no member's id, a whole number", o.words[i]);
        }
    }
    return EEP_EXIT_OK;
}

static int check(const struct command *c)
{
    if (o.word_count > 0 && !c->words) {
        return eep_opts_wrong(&c->help, "unexpected word '%s'", o.words[0]);
    }
    if (o.id != NULL && !eep_admin_id_ok(o.id)) {
        return eep_opts_wrong(&c->help, "--id takes 1 to %d characters of A-Z a-z 0-9 . _ -",
                              EEP_ADMIN_ID_MAX);
    }
    if (o.deadline_s > EEP_ADMIN_DEADLINE_S_MAX) {
        return eep_opts_wrong(&c->help, "--deadline takes 1 to %d seconds",
                              EEP_ADMIN_DEADLINE_S_MAX);
    }
    if (o.interval_s < INTERVAL_S_MIN || o.interval_s > INTERVAL_S_MAX) {
        return eep_opts_wrong(&c->help, "--interval takes %g to %g seconds", INTERVAL_S_MIN,
                              INTERVAL_S_MAX);
    }
    if (c->run == eepctl_scale) {
        return check_scale(c);
    }
    return c->run == eepctl_drain ? check_drain(c) : EEP_EXIT_OK;
}

/* ---- the program ---- */

/* Options may stand between the words of a command. */
static int parse_command(const struct command *c, int argc, char **argv)
{
    struct eep_opt opts[OPTS_MAX];
    const size_t opt_count = choose_opts(c->sets, opts);
    int at = 0, rest;
    bool words_only = false;

    o.words = argv; /* words move to the front, over what was read */
    while (at + 1 < argc) {
        if (!words_only) {
            const int result =
                eep_opts_parse(&c->help, opts, opt_count, argc - at, argv + at, &rest);

            if (result != EEP_OPTS_GO_ON) {
                return result;
            }
            at += rest;
            words_only = strcmp(argv[at - 1], "--") == 0;
        } else {
            at++;
        }
        if (at < argc) {
            o.words[o.word_count++] = argv[at];
        }
    }
    return EEP_OPTS_GO_ON;
}

static int run_command(const struct command *c, int argc, char **argv)
{
    struct eepctl_client *client;
    int status;

    const int ended = parse_command(c, argc, argv);
    if (ended != EEP_OPTS_GO_ON) {
        return ended;
    }
    status = check(c);
    if (status != EEP_EXIT_OK) {
        return status;
    }
    if (eepctl_client_open(&o.client, &client) != EEP_OK) {
        return eepctl_failed();
    }
    status = c->run(&o, client);
    eepctl_client_close(client);
    return status;
}

static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal};

    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    action.sa_handler = SIG_IGN;
    (void)sigaction(SIGPIPE, &action, NULL); /* writes tell */
}

int main(int argc, char **argv)
{
    struct eep_opt opts[OPTS_MAX];
    const size_t opt_count = choose_opts(OPT_ALWAYS | OPT_VERSION, opts);
    const struct command *command;
    int rest;

    if (eep_log_level_from_env() != EEP_OK) {
        return eepctl_failed();
    }
    const int ended = eep_opts_parse(&help, opts, opt_count, argc, argv, &rest);
    if (ended != EEP_OPTS_GO_ON) {
        return ended;
    }
    if (version) {
        printf("eepctl %s\n", PACKAGE_VERSION);
        return EEP_EXIT_OK;
    }
    if (rest == argc) {
        return eep_opts_wrong(&help, "which command?");
    }
    command = find_command(argv[rest]);
    if (command == NULL) {
        return eep_opts_wrong(&help, "there is no command '%s'", argv[rest]);
    }
    catch_signals();
    return run_command(command, argc - rest, argv + rest);
}
