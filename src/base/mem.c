#include "base/mem.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_PAGE ((size_t)2 << 20)

static atomic_uint_fast64_t fail_countdown;

void eep_mem_fail_nth(uint64_t nth)
{
    atomic_store(&fail_countdown, nth);
}

static bool fails_now(void)
{
    uint_fast64_t left = atomic_load_explicit(&fail_countdown, memory_order_relaxed);

    if (left == 0) {
        return false;
    }
    atomic_store(&fail_countdown, left - 1);
    return left == 1;
}

enum eep_status eep_mem_alloc(size_t count, size_t size, const char *what, void *out)
{
    size_t bytes;
    void *memory = NULL;

    if (!eep_mul_ok(count, size, &bytes) || bytes > SIZE_MAX / 2) {
        return EEP_FAIL(EEP_ERR_NOMEM, "%s: %zu x %zu bytes is more than can be addressed", what,
                        count, size);
    }
    bool huge = bytes >= HUGE_PAGE;
    size_t align = huge ? HUGE_PAGE : EEP_CACHE_LINE;
    size_t rounded = eep_round_up(EEP_MAX(bytes, (size_t)1), huge ? EEP_PAGE : EEP_CACHE_LINE);

    if (fails_now() || posix_memalign(&memory, align, rounded) != 0) {
        return EEP_FAIL(EEP_ERR_NOMEM, "%s: cannot get %zu bytes of memory", what, bytes);
    }
    if (huge) {
        (void)madvise(memory, rounded, MADV_HUGEPAGE); /* a wish; not every kernel grants it */
    }
    memset(memory, 0, rounded);
    memcpy(out, &memory, sizeof(memory));
    return EEP_OK;
}

void eep_mem_free(void *memory)
{
    free(memory);
}

static size_t mapped_bytes(size_t bytes)
{
    return eep_round_up(EEP_MAX(bytes, (size_t)1), EEP_PAGE);
}

enum eep_status eep_mem_map(size_t bytes, const char *what, void *out)
{
    void *memory = MAP_FAILED;

    if (bytes <= SIZE_MAX / 2 && !fails_now()) {
        memory = mmap(NULL, mapped_bytes(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    if (memory == MAP_FAILED) {
        return EEP_FAIL(EEP_ERR_NOMEM, "%s: cannot get %zu bytes of memory", what, bytes);
    }
    if (bytes >= HUGE_PAGE) {
        (void)madvise(memory, mapped_bytes(bytes), MADV_HUGEPAGE);
    }
    memcpy(out, &memory, sizeof(memory));
    return EEP_OK;
}

void eep_mem_unmap(void *memory, size_t bytes)
{
    if (memory != NULL) {
        munmap(memory, mapped_bytes(bytes));
    }
}

uint64_t eep_mem_available_bytes(void)
{
    char line[256];
    unsigned long long kib = 0;
    FILE *file = fopen("/proc/meminfo", "r");

    if (file == NULL) {
        return 0;
    }
    while (fgets(line, sizeof(line), file) != NULL) {
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) {
            break;
        }
    }
    fclose(file);
    return kib * 1024;
}

uint64_t eep_mem_resident_bytes(void)
{
    unsigned long long total, resident;
    FILE *file = fopen("/proc/self/statm", "r");

    if (file == NULL) {
        return 0;
    }
    int got = fscanf(file, "%llu %llu", &total, &resident);
    fclose(file);
    return got == 2 ? resident * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}
