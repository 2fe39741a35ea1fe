/*
 * Fault points. What is asked for is read from the environment once; the count of the armed point
 * and the list of the points that were logged are kept under a lock, since a point is never in the
 * data plane.
 */
#include "base/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"

#define LOGGED_MAX 256
#define POINTS_MAX 8
#define DEFAULT_SLEEP_MS 1000

enum action { ACTION_KILL, ACTION_EXIT, ACTION_STOP, ACTION_SLEEP };

/* A point at which this process acts. */
struct armed {
    char name[64];
    unsigned long nth;   /* act at this visit */
    unsigned long visit; /* visits so far */
};

static struct {
    pthread_mutex_t lock;
    bool read;
    struct armed armed[POINTS_MAX]; /* armed_count of them */
    size_t armed_count;
    enum action action;
    unsigned long sleep_ms;
    const char *log_path; /* of the environment, or NULL */
    const char *logged[LOGGED_MAX];
    size_t logged_count;
} fault = {.lock = PTHREAD_MUTEX_INITIALIZER};

_Noreturn static void refuse(const char *variable, const char *value)
{
    eep_log(EEP_LOG_ERROR, "fault points: %s='%s' is not understood", variable, value);
    _exit(2);
}

static unsigned long number(const char *variable, const char *value, const char *digits)
{
    char *end;
    unsigned long result;

    errno = 0;
    result = strtoul(digits, &end, 10);
    if (*digits < '0' || *digits > '9' || *end != '\0' || errno != 0) {
        refuse(variable, value);
    }
    return result;
}

static void read_action(const char *value)
{
    fault.sleep_ms = DEFAULT_SLEEP_MS;
    if (value == NULL || strcmp(value, "kill") == 0) {
        fault.action = ACTION_KILL;
    } else if (strcmp(value, "exit") == 0) {
        fault.action = ACTION_EXIT;
    } else if (strcmp(value, "stop") == 0) {
        fault.action = ACTION_STOP;
    } else if (strcmp(value, "sleep") == 0) {
        fault.action = ACTION_SLEEP;
    } else if (strncmp(value, "sleep:", 6) == 0) {
        fault.action = ACTION_SLEEP;
        fault.sleep_ms = number("EEP_FAULT_ACTION", value, value + 6);
    } else {
        refuse("EEP_FAULT_ACTION", value);
    }
}

/* The launcher's word, since a point may lie before the first MPI call. */
static bool is_rank(const char *wanted)
{
    const char *rank = getenv("PMIX_RANK");

    if (rank == NULL) {
        rank = getenv("OMPI_COMM_WORLD_RANK");
    }
    return number("EEP_FAULT_RANK", wanted, wanted) ==
           (rank != NULL ? number("PMIX_RANK", rank, rank) : 0);
}

/* One of the list; `text` is cut into its parts. */
static void read_point(char *text, const char *whole)
{
    char *rank = strchr(text, '@'), *visit;
    struct armed point = {.nth = 1};
    const char *only = getenv("EEP_FAULT_RANK");

    if (rank != NULL) {
        *rank++ = '\0';
        only = rank;
    }
    visit = strchr(text, ':');
    if (visit != NULL) {
        *visit++ = '\0';
        point.nth = number("EEP_FAULT_AT", whole, visit);
    }
    if (point.nth == 0 || text[0] == '\0' || strlen(text) >= sizeof(point.name) ||
        fault.armed_count == POINTS_MAX) {
        refuse("EEP_FAULT_AT", whole);
    }
    snprintf(point.name, sizeof(point.name), "%s", text);
    if (only == NULL || is_rank(only)) {
        fault.armed[fault.armed_count++] = point;
    }
}

static void read_points(const char *at)
{
    char list[1024], *rest = list, *text;

    if (strlen(at) >= sizeof(list)) {
        refuse("EEP_FAULT_AT", at);
    }
    snprintf(list, sizeof(list), "%s", at);
    while ((text = strsep(&rest, ",")) != NULL) {
        read_point(text, at);
    }
}

static void read_environment(void)
{
    const char *at = getenv("EEP_FAULT_AT");

    fault.read = true;
    fault.armed_count = 0;
    fault.logged_count = 0;
    fault.log_path = getenv("EEP_FAULT_LOG");
    if (at != NULL && *at != '\0') {
        read_action(getenv("EEP_FAULT_ACTION"));
        read_points(at);
    }
}

/* One write with O_APPEND, so that lines of several processes do not mix. */
static void log_point(const char *name)
{
    char line[160];
    int fd, length;

    for (size_t i = 0; i < fault.logged_count; i++) {
        if (strcmp(fault.logged[i], name) == 0) {
            return;
        }
    }
    if (fault.logged_count < LOGGED_MAX) {
        fault.logged[fault.logged_count++] = name;
    }
    fd = open(fault.log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    length = snprintf(line, sizeof(line), "%s\n", name);
    if (fd < 0 || write(fd, line, (size_t)length) != length) {
        refuse("EEP_FAULT_LOG", fault.log_path);
    }
    close(fd);
}

static void act(void)
{
    const struct timespec pause = {.tv_sec = (time_t)(fault.sleep_ms / 1000),
                                   .tv_nsec = (long)(fault.sleep_ms % 1000) * 1000000};

    switch (fault.action) {
    case ACTION_KILL:
        kill(getpid(), SIGKILL);
        break;
    case ACTION_EXIT:
        _exit(EEP_FAULT_EXIT_STATUS);
    case ACTION_STOP:
        kill(getpid(), SIGSTOP);
        break;
    case ACTION_SLEEP:
        nanosleep(&pause, NULL);
        break;
    }
}

bool eep_fault_compiled_in(void)
{
#ifdef EEP_FAULTS
    return true;
#else
    return false;
#endif
}

void eep_fault_reached(const char *name)
{
    bool acts = false;

    pthread_mutex_lock(&fault.lock);
    if (!fault.read) {
        read_environment();
    }
    if (fault.log_path != NULL) {
        log_point(name);
    }
    for (size_t i = 0; i < fault.armed_count; i++) {
        struct armed *point = &fault.armed[i];

        acts = acts || (strcmp(point->name, name) == 0 && ++point->visit == point->nth);
    }
    pthread_mutex_unlock(&fault.lock);
    if (acts) {
        act();
    }
}

void eep_fault_rearm(void)
{
    read_environment();
}
