/* Weight caches of unit tests: a directory for each test, a second process, what a failure says. */
#ifndef EEP_WCACHE_FIXTURE_H
#define EEP_WCACHE_FIXTURE_H

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/fault/wcache_util.h"
#include "testutil.h"

static char dir[256];

/* Each test runs in a process and a directory of its own. */
static inline void make_dir(void)
{
    const char *base = getenv("TMPDIR");

    snprintf(dir, sizeof(dir), "%s/eep-test-%d", base != NULL ? base : "/dev/shm", (int)getpid());
    ck_assert_int_eq(mkdir(dir, 0700), 0);
}

static inline void remove_dir(void)
{
    char command[300];

    snprintf(command, sizeof(command), "rm -rf '%s'", dir);
    ck_assert_int_eq(system(command), 0);
}

static inline struct eep_wcache *attach_as(const char *engine, uint64_t id)
{
    int32_t map[WT_TABLE];
    struct eep_wcache_params params;
    struct eep_wcache *c;

    wt_map(map);
    params = wt_params(dir, map, engine, id);
    CK_OK(eep_wcache_open(&params, &c));
    return c;
}

static inline struct eep_wcache *filled(void)
{
    struct eep_wcache *c = attach_as("engine A", 1);

    CK_OK(wt_fill(c));
    return c;
}

/* Run `body` as another process, another engine; fails the test if it fails. A pipe lets both take
 * turns: each writes a byte to let the other go on. */
static int to_child[2], to_parent[2];

static inline void let_go(int fd)
{
    ck_assert_int_eq(write(fd, "x", 1), 1);
}

static inline void wait_turn(int fd)
{
    char byte;

    ck_assert_int_eq(read(fd, &byte, 1), 1);
}

static inline pid_t other_process(void (*body)(struct eep_wcache *), const char *engine,
                                  uint64_t id)
{
    pid_t pid;

    ck_assert_int_eq(pipe(to_child), 0);
    ck_assert_int_eq(pipe(to_parent), 0);
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        struct eep_wcache *c = attach_as(engine, id);

        CK_OK(wt_fill(c));
        body(c);
        _exit(0);
    }
    return pid;
}

static inline void join(pid_t pid)
{
    int status;

    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
}

#define SAYS(word)                                                                                 \
    ck_assert_msg(strstr(eep_error_text(), word) != NULL, "'%s' is not in: %s", word,              \
                  eep_error_text())
#define FAILS(call, code, word)                                                                    \
    do {                                                                                           \
        ck_assert_int_eq((call), (code));                                                          \
        SAYS(word);                                                                                \
    } while (0)

/* Each test in a process and a directory of its own. */
static inline int run_cache_tests(const char *name, const TTest *const *tests, size_t count)
{
    Suite *suite = suite_create(name);
    TCase *tcase = tcase_create(name);
    SRunner *runner;

    tcase_set_timeout(tcase, 120);
    tcase_add_checked_fixture(tcase, make_dir, remove_dir);
    for (size_t i = 0; i < count; i++) {
        tcase_add_test(tcase, tests[i]);
    }
    suite_add_tcase(suite, tcase);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#endif
