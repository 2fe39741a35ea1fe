/*
 * `eep launch`: mpirun with the options that eep needs, and the job's true exit status. (The same
 * options for everyday use from a shell: scripts/mpi-run; keep the two alike.)
 *
 * mpirun's own exit status is no witness: it is 0 when every rank crashed. So each rank appends a
 * line "RANK STATUS" to the file that EEP_STATUS_FILE names, as the last thing that it does, and
 * rank 0's line is the job's status, after its loss that of the others. Without one the job is
 * lost, and is started again if --restarts allows it.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/status.h"
#include "tools/launch_io.h"
#include "tools/launch_procs.h"
#include "tools/opts.h"
#include "tools/tools.h"

#define STATUS_ENV "EEP_STATUS_FILE"
#define SPAWNED_RANK "1000000" /* not the job's first one */
#define MAX_OPTIONS 24         /* words before the command */
#define TURN_US 100000u
#define TURNS_MAX 9 /* usleep() takes less than a second */

#ifdef EEP_HAVE_MPI
enum { HAVE_MPI = 1 };
#else
enum { HAVE_MPI = 0 };
#endif

/* ---- the ranks' side ---- */

/* Spawned processes are numbered from 0 in a namespace of their own, the job's second or later. */
bool eep_status_spawned(void)
{
    const char *name = getenv("PMIX_NAMESPACE");
    const char *number = name != NULL ? strrchr(name, '@') : NULL;

    return number != NULL && strcmp(number, "@1") != 0;
}

void eep_status_file_forget(void)
{
    (void)unsetenv(STATUS_ENV);
}

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
    const char *rank = eep_status_spawned() ? SPAWNED_RANK : getenv("PMIX_RANK");

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
    uint32_t restarts; /* UINT32_MAX: as the command needs */
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

#define EARLY_NS (5 * EEP_NS_PER_S) /* a job that lived shorter and gave nothing ended early */
#define EARLY_MAX 3
#define PAUSE_FIRST_MS 100u
#define PAUSE_MAX_MS 30000u
#define TURN_MS 50
#define LOOK_NS (1 * EEP_NS_PER_S) /* between two looks at the job's processes */
#define HANGS_LOOKS 3
#define PROBE_S 10u

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

static void notice_child(int number)
{
    (void)number; /* ends a wait */
}

static void catch_signals(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGALRM};
    struct sigaction action = {.sa_sigaction = pass_on, .sa_flags = SA_SIGINFO};
    struct sigaction child = {.sa_handler = notice_child};

    sigemptyset(&action.sa_mask);
    sigemptyset(&child.sa_mask);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        (void)sigaction(numbers[i], &action, NULL);
    }
    (void)sigaction(SIGCHLD, &child, NULL);
}

static bool is_stopped(void)
{
    return stop_signal != 0 || timed_out != 0;
}

/* The job, over all its starts. */
struct job {
    struct launch_options o; /* hosts and ranks as they are now */
    struct eep_launch_io io;
    char status_path[PATH_MAX];
    char hosts[4096]; /* what o.host points to after a restart */
    bool ours;        /* a command of eep */
    bool must_restart, hangs;
    int wait_status;
    int null_input;
};

/* Only async-signal-safe calls between fork and exec. */
static void become(const struct words *words, int null_input, int output, const sigset_t *unblocked)
{
    static const char text[] = "eep: error: launch: cannot start the launcher; is mpirun on PATH? "
                               "(EEP_MPIRUN names another)\n";

    (void)sigprocmask(SIG_SETMASK, unblocked, NULL);
    (void)signal(SIGPIPE, SIG_DFL);
    if (null_input >= 0) {
        (void)dup2(null_input, STDIN_FILENO);
    }
    if (output >= 0) {
        (void)dup2(output, STDOUT_FILENO);
    }
    (void)execvp(words->list[0], (char *const *)(uintptr_t)words->list);
    if (write(STDERR_FILENO, text, sizeof(text) - 1) < 0) {
        _exit(127);
    }
    _exit(127);
}

static enum eep_status start(const struct words *words, int null_input, int output, pid_t *pid_out)
{
    sigset_t all, before;

    sigfillset(&all);
    (void)sigprocmask(SIG_BLOCK, &all, &before); /* until child_pid is set */
    *pid_out = fork();
    if (*pid_out == 0) {
        become(words, null_input, output, &before);
    }
    child_pid = *pid_out > 0 ? *pid_out : 0;
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    return *pid_out > 0
               ? EEP_OK
               : EEP_FAIL(EEP_ERR_IO, "launch: cannot start a process: %s", strerror(errno));
}

/* mpirun may wait for ever after its last rank has ended. */
static void watch_for_hang(struct job *job, uint64_t *look_at, uint32_t *empty_looks, bool *seen)
{
    if (!job->must_restart || job->o.host != NULL || eep_clock_ns() < *look_at) {
        return;
    }
    *look_at = eep_clock_ns() + LOOK_NS;
    const uint32_t ranks = eep_procs_ranks();

    *seen = *seen || ranks > 0;
    *empty_looks = *seen && ranks == 0 ? *empty_looks + 1 : 0;
    if (*empty_looks >= HANGS_LOOKS) {
        job->hangs = true;
        (void)kill((pid_t)child_pid, *empty_looks == HANGS_LOOKS ? SIGTERM : SIGKILL);
    }
}

/* One start of the job, to its end. */
static enum eep_status run_once(struct job *job, const struct words *words)
{
    enum eep_status status;
    uint64_t look_at = 0;
    uint32_t empty_looks = 0;
    bool seen = false;
    int output = -1;
    pid_t pid, ended = 0;

    job->hangs = false;
    EEP_TRY(eep_launch_io_begin(&job->io, &output));
    status = start(words, job->null_input, output, &pid);
    eep_launch_io_started(&job->io);
    while (status == EEP_OK && ended == 0) {
        status = eep_launch_io_turn(&job->io, TURN_MS);
        if (timed_out == 1) {
            (void)alarm(5); /* if it does not end when asked, it is killed */
        }
        watch_for_hang(job, &look_at, &empty_looks, &seen);
        ended = waitpid(pid, &job->wait_status, WNOHANG);
    }
    if (status != EEP_OK && child_pid != 0) {
        (void)kill(pid, SIGTERM);
        (void)waitpid(pid, &job->wait_status, 0);
    }
    child_pid = 0;
    if (job->must_restart) {
        eep_procs_kill();
    }
    const enum eep_status rest = eep_launch_io_end(&job->io);

    return status != EEP_OK ? status : rest;
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

/* Has the job said itself how it ended? What ranks say whose mpirun was killed may be just that,
 * and what rank 0 has written may not have come through. */
static bool has_ended(const struct job *job, int told)
{
    const bool killed = WIFSIGNALED(job->wait_status) && !job->hangs;

    return (told >= 0 && !killed) || is_stopped() ||
           (WIFEXITED(job->wait_status) && WEXITSTATUS(job->wait_status) == 127);
}

static int judge(const struct job *job, int told)
{
    if (timed_out) {
        (void)fprintf(stderr, "eep: error: launch: the job was stopped at its time limit\n");
        return 124;
    }
    if (stop_signal != 0) {
        return 128 + (int)stop_signal;
    }
    if (told >= 0) {
        return told == 0 && job->io.errors > 0 ? EEP_EXIT_FAILED : told;
    }
    if (WIFEXITED(job->wait_status) && (WEXITSTATUS(job->wait_status) != 0 || !job->ours)) {
        return WEXITSTATUS(job->wait_status); /* a foreign program tells nothing */
    }
    (void)fprintf(stderr, "eep: error: launch: the job ended without a status: its ranks crashed "
                          "or were killed\n");
    return EEP_EXIT_FAILED;
}

/* ---- starting it again ---- */

static const char *why(const struct job *job, char *text, size_t bytes)
{
    if (job->hangs) {
        snprintf(text, bytes, "its ranks ended and mpirun did not");
    } else if (WIFSIGNALED(job->wait_status)) {
        snprintf(text, bytes, "mpirun was ended by signal %d", WTERMSIG(job->wait_status));
    } else {
        snprintf(text, bytes, "its ranks ended without a status (mpirun: exit status %d)",
                 WEXITSTATUS(job->wait_status));
    }
    return text;
}

/* Does a machine still start programs? */
static bool answers(const struct job *job, const char *host, size_t length)
{
    char name[256];
    struct words words = {.list = (const char *[MAX_OPTIONS]){NULL}};
    uint64_t end = eep_clock_ns() + PROBE_S * EEP_NS_PER_S;
    pid_t pid, ended = 0;
    int status = 0;

    snprintf(name, sizeof(name), "%.*s", (int)length, host);
    add(&words, find_mpirun());
    if (geteuid() == 0) {
        add(&words, "--allow-run-as-root");
    }
    add(&words, "--host");
    add(&words, name);
    add(&words, "-n");
    add(&words, "1");
    add(&words, "true");
    if (start(&words, job->null_input, STDERR_FILENO, &pid) != EEP_OK) {
        return false;
    }
    while (ended == 0 && eep_clock_ns() < end && !is_stopped()) {
        (void)usleep(20000);
        ended = waitpid(pid, &status, WNOHANG);
    }
    if (ended == 0) {
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, &status, 0);
    }
    child_pid = 0;
    return ended == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Keep the machines that answer, and as many ranks as they have slots for. */
static enum eep_status choose_hosts(struct job *job, const char *all, uint32_t ranks)
{
    uint32_t slots = 0, given = 0, gone = 0;
    size_t used = 0;
    char kept[sizeof(job->hosts)];

    kept[0] = '\0';
    for (const char *at = all; *at != '\0';) {
        const size_t length = strcspn(at, ",");
        const char *colon = memchr(at, ':', length);
        const uint32_t count = colon != NULL ? (uint32_t)strtoul(colon + 1, NULL, 10) : 1;

        if (length > 0 && used + length + 2 < sizeof(kept) &&
            answers(job, at, colon != NULL ? (size_t)(colon - at) : length)) {
            used += (size_t)snprintf(kept + used, sizeof(kept) - used, "%s%.*s",
                                     used > 0 ? "," : "", (int)length, at);
            slots += count;
        } else {
            gone++;
        }
        given++;
        at += length + (at[length] == ',');
    }
    if (used == 0) {
        return EEP_FAIL(EEP_ERR_IO, "launch: none of %u machines (%s) answers any more", given,
                        all);
    }
    memcpy(job->hosts, kept, sizeof(kept));
    job->o.host = job->hosts;
    job->o.ranks = gone == 0 || slots == 0 ? ranks : EEP_MIN(ranks, slots);
    return EEP_OK;
}

static void pause_ms(uint32_t ms)
{
    const uint64_t end = eep_clock_ns() + ms * EEP_NS_PER_MS;

    while (eep_clock_ns() < end && !is_stopped()) {
        (void)usleep(10000);
    }
}

/* One start after the other. */
static int supervise(struct job *job, int argc, char **argv)
{
    const struct launch_options first = job->o;
    uint32_t early = 0, pause = 0;
    char text[128];

    catch_signals();
    (void)alarm(first.time_limit_s);
    for (uint32_t restart = 0;; restart++) {
        const uint64_t begin = eep_clock_ns(), delivered = job->io.delivered.count;
        struct words words = {NULL, 0};

        if (truncate(job->status_path, 0) != 0 ||
            build_command(&job->o, argc, argv, &words) != EEP_OK) {
            free(words.list);
            return eep_tool_failed();
        }
        const enum eep_status status = run_once(job, &words);
        const int told = read_statuses(job->status_path);
        const bool gave = job->io.delivered.count > delivered;

        free(words.list);
        if (status != EEP_OK && !is_stopped()) {
            return eep_tool_failed();
        }
        early = gave || eep_clock_ns() - begin >= EARLY_NS ? 0 : early + 1;
        if (has_ended(job, told) || restart >= first.restarts || early >= EARLY_MAX) {
            if (early >= EARLY_MAX && !has_ended(job, told)) {
                (void)fprintf(stderr,
                              "eep: error: launch: %u starts in a row ended early without "
                              "an answer; it is not started again\n",
                              early);
            }
            return judge(job, told);
        }
        pause = early == 0 ? 0 : EEP_MIN(EEP_MAX(2 * pause, PAUSE_FIRST_MS), PAUSE_MAX_MS);
        if (first.host != NULL && choose_hosts(job, first.host, first.ranks) != EEP_OK) {
            return eep_tool_failed();
        }
        (void)fprintf(stderr,
                      "eep: warn: launch: the job is lost: %s; start %u of at most %u again on %s "
                      "with %u ranks, %" PRIu64 " answers delivered, in %u ms\n",
                      why(job, text, sizeof(text)), restart + 1, first.restarts,
                      job->o.host != NULL ? job->o.host : "this machine", job->o.ranks,
                      job->io.delivered.count, pause);
        pause_ms(pause);
        if (is_stopped()) {
            return judge(job, -1);
        }
    }
}

static bool says(int argc, char **argv, const char *word)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], word) == 0) {
            return true;
        }
    }
    return false;
}

static bool reads_prompts(int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i++) {
        if (strcmp(argv[i], "--prompts-file") == 0 && strcmp(argv[i + 1], "-") == 0) {
            return true;
        }
    }
    return says(argc, argv, "--prompts-file=-");
}

/* What this launcher does for the command, and where the job finds it. */
static enum eep_status prepare(struct job *job, int argc, char **argv)
{
    const bool generates = strcmp(argv[0], "generate") == 0, json = says(argc, argv, "--json"),
               reads = generates && reads_prompts(argc, argv);
    struct stat input;
    const bool is_file = fstat(STDIN_FILENO, &input) == 0 && S_ISREG(input.st_mode);
    char number[16], path[64];

    if (job->o.restarts == UINT32_MAX) {
        /* What came through a pipe is there once. */
        job->o.restarts = HAVE_MPI && generates && (!reads || json || is_file) ? 10 : 0;
    }
    job->must_restart = job->o.restarts > 0;
    if (job->ours) {
        job->null_input = open("/dev/null", O_RDONLY | O_CLOEXEC);
        snprintf(path, sizeof(path), "/proc/%ld/fd/0", (long)getpid());
        (void)setenv("EEP_STDIN", path, 1); /* not read by the launcher, unless it keeps it */
    }
    if (job->o.node_size > 0) {
        snprintf(number, sizeof(number), "%u", job->o.node_size);
        (void)setenv("EEP_NODE_SIZE", number, 1);
    }
    eep_procs_name_job();
    EEP_TRY(eep_launch_io_open(&job->io, job->must_restart && reads && json && !is_file,
                               job->must_restart && generates && json));
    snprintf(job->status_path, sizeof(job->status_path), "%s/status", job->io.dir);
    const int fd = open(job->status_path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);

    if (fd < 0) {
        return EEP_FAIL(EEP_ERR_IO, "launch: cannot create %s: %s", job->status_path,
                        strerror(errno));
    }
    close(fd);
    (void)setenv(STATUS_ENV, job->status_path, 1);
    return EEP_OK;
}

static int launch(const struct launch_options *o, int argc, char **argv)
{
    struct job job = {.o = *o, .ours = is_command(argv[0]), .null_input = -1};
    struct words words = {NULL, 0};
    int result;

    if (o->dry_run) {
        if (build_command(o, argc, argv, &words) != EEP_OK) {
            return eep_tool_failed();
        }
        for (size_t i = 0; i < words.count; i++) {
            printf("%s%s", i > 0 ? " " : "", words.list[i]);
        }
        printf("\n");
        free(words.list);
        return EEP_EXIT_OK;
    }
    result = prepare(&job, argc, argv) == EEP_OK ? supervise(&job, argc, argv) : eep_tool_failed();
    (void)unlink(job.status_path);
    eep_launch_io_close(&job.io);
    return result;
}

int eep_cmd_launch(int argc, char **argv)
{
    struct launch_options o = {.restarts = UINT32_MAX};
    const struct eep_opt opts[] = {
        {"n", EEP_OPT_U32, &o.ranks, "N", "ranks; also -n"},
        {"node-size", EEP_OPT_U32, &o.node_size, "K", "every K ranks are one pretended node"},
        {"host", EEP_OPT_STRING, &o.host, "A,B:4", "machines, as mpirun takes them"},
        {"time-limit", EEP_OPT_U32, &o.time_limit_s, "SECONDS", "end the job after so long"},
        {"restarts", EEP_OPT_U32, &o.restarts, "N",
         "start the job again at most so often when it is lost\n(default 10 for generate, else 0)"},
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
    const int ended =
        eep_opts_parse(&help, opts, sizeof(opts) / sizeof(opts[0]), argc, argv, &rest);
    if (ended != EEP_OPTS_GO_ON) {
        return ended;
    }
    if (o.ranks == 0) {
        return eep_opts_wrong(&help, "how many ranks? (-n N)");
    }
    if (rest >= argc) {
        return eep_opts_wrong(&help, "which command?");
    }
    return launch(&o, argc - rest, argv + rest);
}
