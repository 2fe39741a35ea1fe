/*
 * `eep launch`: mpirun with the options that eep needs, and the job's true exit status. (The same
 * options for everyday use from a shell: scripts/mpi-run; keep the two alike.)
 *
 * mpirun's own exit status is no witness: it is 0 when every rank crashed. So each rank appends a
 * line "RANK STATUS" to the file that EEP_STATUS_FILE names, as the last thing that it does, and
 * rank 0's line is the job's status. Without one the job did not end well.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"
#include "tools/opts.h"
#include "tools/tools.h"

#define STATUS_ENV "EEP_STATUS_FILE"
#define MAX_OPTIONS 24 /* words before the command */
#define TURN_US 100000u
#define TURNS_MAX 9 /* usleep() takes less than a second */

#ifdef EEP_HAVE_MPI
enum { HAVE_MPI = 1 };
#else
enum { HAVE_MPI = 0 };
#endif

/* ---- the ranks' side ---- */

/* Write this rank's line, if somebody wants it. */
static void write_status(const char *rank, int status)
{
    const char *path = getenv(STATUS_ENV);
    char line[64];

    if (path == NULL || path[0] == '\0') {
        return;
    }
    const int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) {
        return; /* on another machine; rank 0's line counts */
    }
    const int length =
        snprintf(line, sizeof(line), "%.16s %d\n", rank != NULL ? rank : "0", status);
    if (write(fd, line, (size_t)length) != length) {
        (void)fprintf(stderr, "eep: warn: cannot write %s: %s\n", path, strerror(errno));
    }
    close(fd);
}

/* Ranks that end with an error at once leave mpirun (PRRTE 3.0.14) blocked on a lock of its own in
 * some of 100 runs. So rank 0 goes first, and the launcher ends the rest while they wait here. */
void eep_status_file_write(int status)
{
    const char *rank = getenv("PMIX_RANK");

    write_status(rank, status);
    if (rank != NULL && status != EEP_EXIT_OK) {
        const long place = strtol(rank, NULL, 10);

        (void)usleep((useconds_t)(place < TURNS_MAX ? place : TURNS_MAX) * TURN_US);
    }
}

/* ---- the launcher's side ---- */

struct launch_options {
    uint32_t ranks;
    uint32_t node_size;
    const char *host;
    uint32_t time_limit_s;
    bool dry_run;
};

static const struct eep_command_help help = {
    .usage = "eep launch -n N [options] -- COMMAND [argument ...]",
    .summary =
        "Start COMMAND on N ranks with the launcher options that eep needs, and return its\n"
        "true exit status. COMMAND is a command of eep (generate, eval, bench) or a program.",
    .epilog = "exit status: rank 0's; 1 if the job ended without one; 124 after --time-limit\n\n"
              "  eep launch -n 4 -- generate --model DIR --prompt 'Once' --max-tokens 32",
};

static bool is_command(const char *word)
{
    static const char *const commands[] = {"generate", "eval", "bench"};

    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        if (strcmp(word, commands[i]) == 0) {
            return true;
        }
    }
    return false;
}

static const char *find_mpirun(void)
{
    const char *named = getenv("EEP_MPIRUN");

    if (named != NULL && named[0] != '\0') {
        return named;
    }
#ifdef EEP_MPIRUN
    if (access(EEP_MPIRUN, X_OK) == 0) {
        return EEP_MPIRUN;
    }
#endif
    return "mpirun";
}

struct words {
    const char **list;
    size_t count;
};

static void add(struct words *words, const char *word)
{
    words->list[words->count++] = word;
}

static bool cores_have_siblings(void)
{
    FILE *file = fopen("/sys/devices/system/cpu/smt/active", "r");
    int active = 0;

    if (file != NULL) {
        active = fgetc(file);
        fclose(file);
    }
    return active == '1';
}

/* As many ranks as cores, all of them ours and without siblings: mpirun binds each rank to its
 * core. Else nothing is bound, and eep shares the cores out itself. */
static bool one_per_core(const struct launch_options *o)
{
    cpu_set_t allowed;

    return o->host == NULL && o->ranks > 1 && !cores_have_siblings() &&
           sched_getaffinity(0, sizeof(allowed), &allowed) == 0 &&
           (long)o->ranks == CPU_COUNT(&allowed) && (long)o->ranks == sysconf(_SC_NPROCESSORS_ONLN);
}

static void add_launcher(struct words *words, const struct launch_options *o)
{
    static char ranks[16];

    snprintf(ranks, sizeof(ranks), "%u", o->ranks);
    add(words, find_mpirun());
    add(words, "--map-by");
    add(words, ":OVERSUBSCRIBE");
    if (geteuid() == 0) {
        add(words, "--allow-run-as-root");
    }
    add(words, "--bind-to");
    add(words, one_per_core(o) ? "core" : "none");
    add(words, "--with-ft");
    add(words, "ulfm");
    add(words, "--prtemca"); /* these two: the death of a spawned rank must not end the job */
    add(words, "state_base_recoverable");
    add(words, "1");
    add(words, "--prtemca");
    add(words, "state_base_notify_errors");
    add(words, "1");
    if (o->host != NULL) {
        add(words, "--host");
        add(words, o->host);
    }
    add(words, "-n");
    add(words, ranks);
}

/* The whole command line; with one rank of a build without MPI, only the command. */
static enum eep_status build_command(const struct launch_options *o, int argc, char **argv,
                                     struct words *words)
{
    static char self[PATH_MAX];

    words->list = calloc((size_t)argc + MAX_OPTIONS, sizeof(*words->list));
    if (words->list == NULL) {
        return EEP_FAIL(EEP_ERR_NOMEM, "launch: no memory");
    }
    if (HAVE_MPI) {
        add_launcher(words, o);
    } else if (o->ranks > 1) {
        return EEP_FAIL(EEP_ERR_UNSUPPORTED,
                        "launch: this eep was built without MPI and runs on one rank, not %u",
                        o->ranks);
    }
    if (is_command(argv[0])) {
        const ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);

        if (length <= 0) {
            return EEP_FAIL(EEP_ERR_IO, "launch: cannot find this program: %s", strerror(errno));
        }
        add(words, self);
    }
    for (int i = 0; i < argc; i++) {
        add(words, argv[i]);
    }
    return EEP_OK;
}

/* ---- running it ---- */

static volatile sig_atomic_t child_pid; /* 0 while there is none */
static volatile sig_atomic_t stop_signal, timed_out;

static void pass_on(int number, siginfo_t *info, void *context)
{
    const int saved = errno;
    bool from_terminal = false; /* the launcher has it already */

    (void)context;
    if (number == SIGALRM) {
        timed_out = timed_out + 1;
        number = timed_out > 1 ? SIGKILL : SIGTERM;
    } else {
        stop_signal = number;
        from_terminal = info->si_code > 0;
    }
    if (child_pid != 0 && !from_terminal) {
        (void)kill((pid_t)child_pid, number);
    }
    errno = saved;
}

static void catch_signals(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGALRM};
    struct sigaction action = {.sa_sigaction = pass_on, .sa_flags = SA_SIGINFO};

    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        (void)sigaction(numbers[i], &action, NULL);
    }
}

/* The job reads this process's standard input by its path: src/tools/engine_opts.c. Not opened by
 * the launcher, which would read it too. */
static int null_input = -1;

static void hand_over_input(void)
{
    char path[64];

    null_input = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null_input >= 0) {
        snprintf(path, sizeof(path), "/proc/%ld/fd/0", (long)getpid());
        (void)setenv("EEP_STDIN", path, 1);
    }
}

/* Only async-signal-safe calls between fork and exec. */
static void become(const struct words *words, const sigset_t *unblocked)
{
    static const char text[] = "eep: error: launch: cannot start the launcher; is mpirun on PATH? "
                               "(EEP_MPIRUN names another)\n";

    (void)sigprocmask(SIG_SETMASK, unblocked, NULL);
    if (null_input >= 0) {
        (void)dup2(null_input, STDIN_FILENO);
    }
    (void)execvp(words->list[0], (char *const *)(uintptr_t)words->list);
    if (write(STDERR_FILENO, text, sizeof(text) - 1) < 0) {
        _exit(127);
    }
    _exit(127);
}

/* Run to the end; the child's wait status. */
static enum eep_status run(const struct words *words, uint32_t limit_s, int *wait_status_out)
{
    sigset_t all, before;
    pid_t pid, ended;

    catch_signals();
    sigfillset(&all);
    (void)sigprocmask(SIG_BLOCK, &all, &before); /* until child_pid is set */
    pid = fork();
    if (pid == 0) {
        become(words, &before);
    }
    child_pid = pid > 0 ? pid : 0;
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    if (pid < 0) {
        return EEP_FAIL(EEP_ERR_IO, "launch: cannot start a process: %s", strerror(errno));
    }
    (void)alarm(limit_s);
    do {
        ended = waitpid(pid, wait_status_out, 0);
        if (ended < 0 && errno == EINTR && timed_out > 0) {
            (void)alarm(5); /* if it does not end when asked, it is killed */
        }
    } while (ended < 0 && errno == EINTR);
    child_pid = 0;
    (void)alarm(0);
    return EEP_OK;
}

/* Rank 0's line, else the worst of the others', else -1. */
static int read_statuses(const char *path)
{
    FILE *file = fopen(path, "r");
    int worst = -1, rank, status;

    if (file == NULL) {
        return -1;
    }
    while (fscanf(file, "%d %d", &rank, &status) == 2) {
        if (rank == 0) {
            worst = status;
            break;
        }
        worst = status > worst ? status : worst;
    }
    fclose(file);
    return worst;
}

static int judge(const char *status_path, int wait_status, bool ours)
{
    const int told = read_statuses(status_path);

    if (timed_out) {
        (void)fprintf(stderr, "eep: error: launch: the job was stopped at its time limit\n");
        return 124;
    }
    if (stop_signal != 0) {
        return 128 + (int)stop_signal;
    }
    if (told >= 0) {
        return told;
    }
    if (WIFEXITED(wait_status) && (WEXITSTATUS(wait_status) != 0 || !ours)) {
        return WEXITSTATUS(wait_status); /* a foreign program tells nothing */
    }
    (void)fprintf(stderr, "eep: error: launch: the job ended without a status: its ranks crashed "
                          "or were killed\n");
    return EEP_EXIT_FAILED;
}

static int launch(const struct launch_options *o, int argc, char **argv)
{
    char path[] = "/tmp/eep-status-XXXXXX";
    struct words words = {NULL, 0};
    int wait_status = 0, result = EEP_EXIT_FAILED;
    char node_size[16];

    const int fd = mkstemp(path);
    if (fd < 0) {
        (void)EEP_FAIL(EEP_ERR_IO, "launch: cannot create %s: %s", path, strerror(errno));
        return eep_tool_failed();
    }
    close(fd);
    (void)setenv(STATUS_ENV, path, 1);
    if (o->node_size > 0) {
        snprintf(node_size, sizeof(node_size), "%u", o->node_size);
        (void)setenv("EEP_NODE_SIZE", node_size, 1);
    }
    if (is_command(argv[0])) {
        hand_over_input();
    }
    if (build_command(o, argc, argv, &words) != EEP_OK) {
        result = eep_tool_failed();
    } else if (o->dry_run) {
        for (size_t i = 0; i < words.count; i++) {
            printf("%s%s", i > 0 ? " " : "", words.list[i]);
        }
        printf("\n");
        result = EEP_EXIT_OK;
    } else if (run(&words, o->time_limit_s, &wait_status) != EEP_OK) {
        result = eep_tool_failed();
    } else {
        result = judge(path, wait_status, is_command(argv[0]));
    }
    (void)unlink(path);
    free(words.list);
    return result;
}

int eep_cmd_launch(int argc, char **argv)
{
    struct launch_options o = {.ranks = 0};
    const struct eep_opt opts[] = {
        {"n", EEP_OPT_U32, &o.ranks, "N", "ranks; also -n"},
        {"node-size", EEP_OPT_U32, &o.node_size, "K", "every K ranks are one pretended node"},
        {"host", EEP_OPT_STRING, &o.host, "A,B:4", "machines, as mpirun takes them"},
        {"time-limit", EEP_OPT_U32, &o.time_limit_s, "SECONDS", "end the job after so long"},
        {"dry-run", EEP_OPT_FLAG, &o.dry_run, NULL, "print the command instead"},
    };
    static char long_n[] = "--n";
    int rest = argc;

    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "-n") == 0) {
            argv[i] = long_n;
            break;
        }
    }
    switch (eep_opts_parse(&help, opts, sizeof(opts) / sizeof(opts[0]), argc, argv, &rest)) {
    case EEP_OPTS_HELP:
        return EEP_EXIT_OK;
    case EEP_OPTS_USAGE:
        return EEP_EXIT_USAGE;
    case EEP_OPTS_OK:
        break;
    }
    if (o.ranks == 0) {
        return eep_opts_wrong(&help, "how many ranks? (-n N)");
    }
    if (rest >= argc) {
        return eep_opts_wrong(&help, "which command?");
    }
    return launch(&o, argc - rest, argv + rest);
}
