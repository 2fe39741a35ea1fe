/* What unit tests share: paths of test data, and a main that runs one list of tests. */
#ifndef EEP_TESTUTIL_H
#define EEP_TESTUTIL_H

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/status.h"

/* A file of tests/data. The text is valid until the fourth call after this one. */
static inline const char *test_path(const char *name)
{
    static char paths[4][4096];
    static int next;
    const char *source = getenv("EEP_SRC");
    char *path = paths[next++ % 4];

    snprintf(path, sizeof(paths[0]), "%s/tests/data/%s", source != NULL ? source : ".", name);
    return path;
}

/* Fails with the recorded text when a call does not return EEP_OK. */
#define CK_OK(call)                                                                                \
    do {                                                                                           \
        enum eep_status ck_status_ = (call);                                                       \
        ck_assert_msg(ck_status_ == EEP_OK, "%s: %s", #call, eep_error_text());                    \
    } while (0)

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Each test with what goes before it and after it in its process; NULL: nothing. */
static inline int run_tests_with(const char *name, const TTest *const *tests, size_t count,
                                 void (*set_up)(void), void (*tear_down)(void))
{
    Suite *suite = suite_create(name);
    TCase *tcase = tcase_create(name);
    SRunner *runner;

    tcase_set_timeout(tcase, 300);
    tcase_add_checked_fixture(tcase, set_up, tear_down);
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

static inline int run_tests(const char *name, const TTest *const *tests, size_t count)
{
    return run_tests_with(name, tests, count, NULL, NULL);
}

#endif
