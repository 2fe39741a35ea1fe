/*
 * The SIGBUS guard: a mapped file that another program cuts short faults when its lost pages are
 * read. The handler finds the file in a table of plain atomics, because it may interrupt any code.
 */
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/ckpt_int.h"

#define MAPPINGS_MAX 4096 /* files beyond these are guarded too, but not named */

static struct {
    atomic_uintptr_t begin; /* 0 = free */
    atomic_uintptr_t end;   /* set before begin; 0 while the entry changes hands */
    _Atomic(const char *) path;
} mappings[MAPPINGS_MAX];

void eep_ckpt_guard_add(const void *mapping, size_t bytes, const char *path)
{
    for (size_t i = 0; i < MAPPINGS_MAX; i++) {
        uintptr_t is_free = 0;

        if (atomic_compare_exchange_strong(&mappings[i].begin, &is_free, (uintptr_t)mapping)) {
            atomic_store(&mappings[i].path, path);
            atomic_store(&mappings[i].end, (uintptr_t)mapping + bytes);
            return;
        }
    }
}

void eep_ckpt_guard_remove(const void *mapping)
{
    for (size_t i = 0; i < MAPPINGS_MAX; i++) {
        if (atomic_load(&mappings[i].begin) == (uintptr_t)mapping) {
            atomic_store(&mappings[i].end, 0);
            atomic_store(&mappings[i].begin, 0);
            return;
        }
    }
}

static const char *path_at(uintptr_t address)
{
    for (size_t i = 0; i < MAPPINGS_MAX; i++) {
        if (atomic_load(&mappings[i].begin) != 0 && address >= atomic_load(&mappings[i].begin) &&
            address < atomic_load(&mappings[i].end)) {
            return atomic_load(&mappings[i].path);
        }
    }
    return NULL;
}

/* Append to a message that has room for all its parts but the path, which may be cut. */
static size_t append(char *message, size_t used, size_t room, const char *text)
{
    while (*text != '\0' && used < room) {
        message[used++] = *text++;
    }
    return used;
}

static void on_sigbus(int signal_number, siginfo_t *info, void *context)
{
    const char *path = path_at((uintptr_t)info->si_addr);

    (void)context;
    if (path == NULL) { /* not ours: die as without a guard when the instruction is run again */
        signal(signal_number, SIG_DFL);
        return;
    }
    static const char reason[] =
        ": became shorter, or could not be read, while it was in use (SIGBUS)\n";
    char message[1024]; /* one write, so that lines of several processes do not mix */
    size_t used = append(message, 0, sizeof(message), "eep: error: ");

    used = append(message, used, sizeof(message) - sizeof(reason), path);
    used = append(message, used, sizeof(message), reason);
    ssize_t ignored = write(STDERR_FILENO, message, used); /* nothing can be done about it */

    (void)ignored;
    _exit(1);
}

void eep_ckpt_guard_sigbus(void)
{
    struct sigaction action;

    memset(&action, 0, sizeof(action));
    action.sa_sigaction = on_sigbus;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    (void)sigaction(SIGBUS, &action, NULL); /* fails only for a signal that does not exist */
}
