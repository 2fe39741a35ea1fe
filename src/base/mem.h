/*
 * Memory: checked sizes, aligned blocks, and the sizes that panels and rows are rounded to.
 */
#ifndef EEP_BASE_MEM_H
#define EEP_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define EEP_CACHE_LINE 64
#define EEP_PAGE 4096

#define EEP_MIN(a, b) ((a) < (b) ? (a) : (b))
#define EEP_MAX(a, b) ((a) > (b) ? (a) : (b))

/** `value` rounded up to a multiple of `to`, a power of two. */
static inline size_t eep_round_up(size_t value, size_t to)
{
    return (value + to - 1) & ~(to - 1);
}

/** `a / b`, rounded up. */
static inline size_t eep_div_up(size_t a, size_t b)
{
    return (a + b - 1) / b;
}

/** `a * b` into `product_out`; false if it does not fit. */
static inline bool eep_mul_ok(size_t a, size_t b, size_t *product_out)
{
    return !__builtin_mul_overflow(a, b, product_out);
}

/**
 * Zeroed memory for `count` objects of `size` bytes, aligned to a cache line; blocks of 2 MiB and
 * more are aligned to 2 MiB and ask for huge pages. Free it with eep_mem_free().
 *
 * @param what     named in the error text
 * @param out      set only on EEP_OK; never NULL then, also when count is 0
 *
 * @retval EEP_ERR_NOMEM  says what was asked for and how much
 */
EEP_MUST_CHECK enum eep_status eep_mem_alloc(size_t count, size_t size, const char *what,
                                             void *out /* a pointer to the pointer to set */);

/** Free what eep_mem_alloc() gave; NULL is allowed. */
void eep_mem_free(void *memory);

/** The same, and the pointer is NULL afterwards. */
#define EEP_MEM_RELEASE(pointer) (eep_mem_free(pointer), (void)((pointer) = NULL))

/**
 * Zeroed memory that costs nothing until it is touched, aligned to a page: for buffers whose worst
 * case is far above their use. Free it with eep_mem_unmap() and the same size.
 *
 * @param out  set only on EEP_OK; never NULL then
 *
 * @retval EEP_ERR_NOMEM  says what was asked for and how much
 */
EEP_MUST_CHECK enum eep_status eep_mem_map(size_t bytes, const char *what,
                                           void *out /* a pointer to the pointer to set */);

/** Give back what eep_mem_map() gave; NULL is allowed. */
void eep_mem_unmap(void *memory, size_t bytes);

/** Memory that this machine could still give in bytes (MemAvailable); 0 if it is not known. */
uint64_t eep_mem_available_bytes(void);

/** Test hook: the n-th allocation from now on fails once (0 = none). */
void eep_mem_fail_nth(uint64_t nth);

/** Resident memory of this process in bytes; 0 if it is not known. */
uint64_t eep_mem_resident_bytes(void);

#endif
