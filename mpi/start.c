/*
 * Starting and ending MPI: settings that suit eep, and a watch over calls that Open MPI may never
 * return from (MPI_Init when a rank dies while it starts, MPI_Finalize after a loss).
 */
#include "config.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "mpi_int.h"

/* ---- the watch ---- */

/* A thread that ends the process when a call takes too long; one at a time, by the main thread. */
static struct {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool running, done; /* done: guarded by lock */
    struct timespec deadline;
    const char *what;
    int exit_status;
} watch = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *watch_call(void *unused)
{
    int rc = 0;

    (void)unused;
    pthread_mutex_lock(&watch.lock);
    while (!watch.done && rc != ETIMEDOUT) {
        rc = pthread_cond_timedwait(&watch.changed, &watch.lock, &watch.deadline);
    }
    if (!watch.done) {
        eep_log(EEP_LOG_ERROR,
                "%s does not return: a rank may have died at this moment, or cannot be reached "
                "(EEP_TIMEOUT sets the limit in seconds)",
                watch.what);
        _exit(watch.exit_status);
    }
    pthread_mutex_unlock(&watch.lock);
    return NULL;
}

void eep_watch_begin(const char *what, uint64_t limit_ns, int exit_status)
{
    const uint64_t end = eep_clock_ns() + limit_ns;
    pthread_condattr_t attributes;
    sigset_t all, before;

    watch.what = what;
    watch.exit_status = exit_status;
    watch.done = false;
    watch.deadline = (struct timespec){.tv_sec = (time_t)(end / EEP_NS_PER_S),
                                       .tv_nsec = (long)(end % EEP_NS_PER_S)};
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&watch.changed, &attributes);
    pthread_condattr_destroy(&attributes);
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before); /* signals are the main thread's */
    watch.running = pthread_create(&watch.thread, NULL, watch_call, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void eep_watch_end(void)
{
    if (!watch.running) {
        return;
    }
    pthread_mutex_lock(&watch.lock);
    watch.done = true;
    pthread_cond_signal(&watch.changed);
    pthread_mutex_unlock(&watch.lock);
    pthread_join(watch.thread, NULL);
    pthread_cond_destroy(&watch.changed);
    watch.running = false;
}

/* ---- settings ---- */

/* What eep wants of Open MPI unless the user says otherwise. Naming the transports skips a
 * search for networks that takes over a second; the rest is what survives the loss of a rank.
 */
static const struct {
    const char *name, *value;
} mca_defaults[] = {
    {"OMPI_MCA_pml", "ob1"},  {"OMPI_MCA_btl", "self,sm,tcp"},      {"OMPI_MCA_coll", "^han"},
    {"OMPI_MCA_osc", "^ucx"}, {"OMPI_MCA_async_mpi_finalize", "1"},
};

bool eep_start_launched(void)
{
    static const char *const names[] = {"PMIX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (getenv(names[i]) != NULL) {
            return true;
        }
    }
    return false;
}

static void set_mca_defaults(void)
{
    const char *local = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");

    for (size_t i = 0; i < sizeof(mca_defaults) / sizeof(mca_defaults[0]); i++) {
        (void)setenv(mca_defaults[i].name, mca_defaults[i].value, 0);
    }
    if (local != NULL && atol(local) > sysconf(_SC_NPROCESSORS_ONLN)) {
        (void)setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    }
}

/* Severity and text, as libevent gives them. */
static void say_event(int severity, const char *text)
{
    if (strncmp(text, "Epoll ADD", 9) != 0) {
        (void)fprintf(stderr, "libevent: %d: %s\n", severity, text);
    }
}

/*
 * Between a rank and a spawned one Open MPI uses TCP, and when both connect at the same time it
 * closes one of the two connections before it stops to watch it. libevent, which it uses, says so
 * on stderr; it does no harm.
 */
static void quiet_events(void)
{
    void (*set)(void (*say)(int severity, const char *text));
    void *symbol = dlsym(RTLD_DEFAULT, "event_set_log_callback");

    if (symbol != NULL) {
        memcpy(&set, &symbol, sizeof(set));
        set(say_event);
    }
}

void eep_start_yield(void)
{
    bool (*set)(bool);
    void *symbol = dlsym(RTLD_DEFAULT, "opal_progress_set_yield_when_idle");

    if (symbol != NULL) { /* of Open MPI; there is no public way after the start */
        memcpy(&set, &symbol, sizeof(set));
        (void)set(true);
    }
}

enum eep_status eep_start_mpi(void)
{
    int initialized = 0, provided;

    (void)MPI_Initialized(&initialized);
    if (initialized) {
        return EEP_FAIL(EEP_ERR_FATAL, "MPI was started before; eep must start it itself");
    }
    set_mca_defaults();
    quiet_events();
    (void)signal(SIGPIPE, SIG_IGN); /* else a write to a dead peer's socket ends this process */
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS) {
        return EEP_FAIL(EEP_ERR_FATAL, "MPI cannot be started (MPI_Init_thread failed)");
    }
    (void)MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    (void)MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    return EEP_OK;
}
