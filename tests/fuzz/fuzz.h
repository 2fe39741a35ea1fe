/*
 * What the fuzzers share. A fuzzer is a file with LLVMFuzzerTestOneInput(), linked with libFuzzer,
 * or with driver.c where there is none; scripts/fuzz builds and runs them. An input of two parts
 * has a NUL byte between them, which no JSON text holds.
 */
#ifndef EEP_TESTS_FUZZ_FUZZ_H
#define EEP_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* What must hold of everything that was accepted. */
#define FUZZ_CHECK(condition)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);              \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

#define FUZZ_PATH_MAX 512

static char fuzz_dir[FUZZ_PATH_MAX];

static inline void fuzz_dir_remove(void)
{
    char command[FUZZ_PATH_MAX + 16];

    snprintf(command, sizeof(command), "rm -rf '%s'", fuzz_dir);
    if (system(command) != 0) {
        fprintf(stderr, "cannot remove %s\n", fuzz_dir);
    }
}

/* A directory in memory for this process, made at the first call and removed at its end. */
static inline const char *fuzz_dir_get(void)
{
    if (fuzz_dir[0] == '\0') {
        snprintf(fuzz_dir, sizeof(fuzz_dir), "%s/eep-fuzz-XXXXXX",
                 access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
        FUZZ_CHECK(mkdtemp(fuzz_dir) != NULL);
        atexit(fuzz_dir_remove);
    }
    return fuzz_dir;
}

static inline void fuzz_write(const char *name, const void *data, size_t bytes)
{
    char path[2 * FUZZ_PATH_MAX];

    snprintf(path, sizeof(path), "%s/%s", fuzz_dir_get(), name);
    FILE *file = fopen(path, "wb");

    FUZZ_CHECK(file != NULL);
    FUZZ_CHECK(fwrite(data, 1, bytes, file) == bytes);
    FUZZ_CHECK(fclose(file) == 0);
}

/* Bytes of the part before the first NUL; all of them if there is none. */
static inline size_t fuzz_first_part(const uint8_t *data, size_t bytes)
{
    const uint8_t *nul = bytes > 0 ? memchr(data, 0, bytes) : NULL;

    return nul != NULL ? (size_t)(nul - data) : bytes;
}

#endif
