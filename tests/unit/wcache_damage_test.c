/*
 * Damage of every field of every file of a weight cache: refused with a reason, or harmless.
 */
#include <fcntl.h>

#include "wcache/format.h"
#include "wcache_fixture.h"

/* ---- damage -----------------------------------------------------------------------------------
 */

struct file {
    char path[EEP_WCACHE_PATH_MAX + 40];
    unsigned char *bytes;
    size_t count;
};

static struct file load(const char *base, const char *name)
{
    struct file f = {.bytes = NULL};
    struct stat info;
    int fd;

    snprintf(f.path, sizeof(f.path), "%s/%s", base, name);
    fd = open(f.path, O_RDONLY);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(fstat(fd, &info), 0);
    f.count = (size_t)info.st_size;
    f.bytes = malloc(f.count);
    ck_assert_int_eq(read(fd, f.bytes, f.count), (ssize_t)f.count);
    close(fd);
    return f;
}

static void store(const struct file *f, size_t count)
{
    const int fd = open(f->path, O_WRONLY | O_TRUNC);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, f->bytes, count), (ssize_t)count);
    close(fd);
}

/* Open, map all, pin, verify the bytes: what an engine that wants to be sure does. */
static enum eep_status use(bool fills)
{
    struct eep_wcache_verify v = {0};
    struct eep_wcache_params params;
    struct eep_wcache *c;
    enum eep_status status;
    int32_t map[WT_TABLE];

    wt_map(map);
    params = wt_params(dir, map, "engine", 11);
    EEP_TRY(eep_wcache_open(&params, &c));
    status = fills ? wt_fill(c) : EEP_OK;
    if (status == EEP_OK) {
        status = eep_wcache_verify(c, NULL, NULL, NULL, &v);
    }
    if (status == EEP_OK && v.bad > 0) {
        status = EEP_FAIL(EEP_ERR_CACHE_BAD, "verify found bad frames");
    }
    if (status == EEP_OK) {
        status = wt_check(c);
        ck_assert_msg(status == EEP_OK || status == EEP_ERR_NOMEM, "accepted, but: %s",
                      eep_error_text());
    }
    eep_wcache_close(c);
    return status;
}

/* Flip one bit; the use must be refused, or harmless. Returns whether it was refused. */
static bool flip(struct file *f, size_t at, unsigned bit)
{
    enum eep_status status;

    f->bytes[at] ^= (unsigned char)(1u << bit);
    store(f, f->count);
    status = use(true);
    f->bytes[at] ^= (unsigned char)(1u << bit);
    if (status != EEP_OK) {
        ck_assert_msg(status == EEP_ERR_CACHE_BAD || status == EEP_ERR_STALE, "%s + %zu: %d: %s",
                      f->path, at, status, eep_error_text());
        ck_assert_uint_gt(strlen(eep_error_text()), 10);
    }
    return status != EEP_OK;
}

static void cache_path(char *path, size_t size)
{
    struct eep_wcache *c = filled();
    struct eep_wcache_status s;

    CK_OK(wt_move(c, 0, 3, 17, false));
    CK_OK(eep_wcache_status(c, &s));
    snprintf(path, size, "%s", s.path);
    eep_wcache_close(c);
}

START_TEST(every_field_of_the_record_is_checked)
{
    char path[EEP_WCACHE_PATH_MAX];
    struct file f;
    struct eep_wcache_params params;
    struct wc_shape shape;
    int32_t map[WT_TABLE];

    cache_path(path, sizeof(path));
    wt_map(map);
    params = wt_params(dir, map, "engine", 1);
    CK_OK(wc_shape_init(&params.key, params.spare_frames, params.dense_bytes, &shape));
    f = load(path, "record");
    ck_assert_uint_eq(f.count, shape.record_bytes);
    for (size_t i = 0; i < sizeof(struct wc_header); i += i < 256 ? 1 : 61) {
        ck_assert_msg(flip(&f, i, (unsigned)i % 8), "header + %zu was accepted", i);
    }
    for (size_t i = 0; i < 32; i++) { /* current, prepared, move, keep */
        for (unsigned bit = 0; bit < 8; bit++) {
            ck_assert_msg(flip(&f, sizeof(struct wc_header) + i, bit), "control + %zu bit %u", i,
                          bit);
        }
    }
    for (size_t i = 0; i < shape.copy_bytes; i++) { /* version 1 is in copy 1 */
        ck_assert_msg(flip(&f, shape.copy_offset[1] + i, (unsigned)i % 8), "copy + %zu", i);
    }
    for (size_t i = 0; i < WT_LAYERS * WT_EXPERTS * sizeof(struct wc_expert_digest); i++) {
        ck_assert_msg(flip(&f, shape.digests_offset + i, (unsigned)i % 8), "digests + %zu", i);
    }
    /* Places of processes that are gone, the description of no move, the version before: unused. */
    for (size_t i = sizeof(struct wc_header) + 64; i < shape.copy_offset[0] + shape.copy_bytes;
         i += 97) {
        ck_assert_msg(!flip(&f, i, 3), "unused byte %zu was refused: %s", i, eep_error_text());
    }
    for (size_t cut = 0; cut < f.count; cut += 509) {
        store(&f, cut);
        ck_assert_int_eq(use(true), EEP_ERR_CACHE_BAD);
    }
    store(&f, f.count);
    CK_OK(use(true));
    free(f.bytes);
}
END_TEST

START_TEST(every_field_of_seats_and_dense_is_checked)
{
    const size_t frames = sizeof(struct wc_seat_header);
    char path[EEP_WCACHE_PATH_MAX];
    struct file f, g;
    size_t refused = 0, checked = 0;

    cache_path(path, sizeof(path));
    f = load(path, "seat-001");
    for (size_t i = 0; i < 72; i++) {
        ck_assert_msg(flip(&f, i, (unsigned)i % 8), "seat header + %zu", i);
    }
    for (size_t i = frames; i < frames + 18 * sizeof(struct wc_frame); i += 3) {
        checked++;
        refused += flip(&f, i, (unsigned)i % 8); /* harmless in frames that are free */
    }
    ck_assert_uint_gt(refused, checked / 2);
    for (size_t i = 2 * EEP_PAGE; i < f.count; i += 3001) {
        flip(&f, i, 5); /* verify finds it, or it is padding or a free frame */
    }
    ck_assert(flip(&f, 2 * EEP_PAGE + 2 * EEP_PAGE * 5 + 4999, 7));
    for (size_t cut = 0; cut < f.count; cut += 20011) {
        store(&f, cut);
        ck_assert_int_eq(use(true), EEP_ERR_CACHE_BAD);
    }
    g = load(path, "seat-000"); /* swapped */
    memcpy(g.path, f.path, sizeof(g.path));
    store(&g, g.count);
    ck_assert_int_eq(use(true), EEP_ERR_CACHE_BAD);
    SAYS("another seat");
    store(&f, f.count);
    CK_OK(use(true));
    free(g.bytes);
    free(f.bytes);

    f = load(path, "dense");
    for (size_t i = 0; i < 80; i++) {
        ck_assert_msg(flip(&f, i, (unsigned)i % 8) || (i >= 12 && i < 16), "dense header + %zu", i);
    }
    ck_assert(flip(&f, EEP_PAGE, 0));
    ck_assert(flip(&f, EEP_PAGE + WT_DENSE_BYTES - 1, 7));
    ck_assert(!flip(&f, EEP_PAGE + WT_DENSE_BYTES, 7));
    store(&f, f.count - 1);
    ck_assert_int_eq(use(true), EEP_ERR_CACHE_BAD);
    ck_assert_int_eq(unlink(f.path), 0);
    ck_assert_int_eq(mkfifo(f.path, 0600), 0);
    ck_assert_int_eq(use(true), EEP_ERR_CACHE_BAD);
    free(f.bytes);
}
END_TEST

START_TEST(a_seat_of_an_older_cache_is_refused)
{
    char path[EEP_WCACHE_PATH_MAX], command[3 * EEP_WCACHE_PATH_MAX];

    cache_path(path, sizeof(path));
    snprintf(command, sizeof(command), "cp '%s/seat-000' '%s/old'", path, dir);
    ck_assert_int_eq(system(command), 0);
    CK_OK(eep_wcache_drop(dir, strrchr(path, '/') + 1, 0));
    cache_path(path, sizeof(path));
    snprintf(command, sizeof(command), "cp '%s/old' '%s/seat-000'", dir, path);
    ck_assert_int_eq(system(command), 0);
    ck_assert_int_eq(use(true), EEP_ERR_CACHE_BAD);
    SAYS("another seat or cache");
}
END_TEST

/* Change a byte of a file in place, as a stray write would. */
static void poke(const char *base, const char *name, size_t at)
{
    char path[EEP_WCACHE_PATH_MAX + 40];
    unsigned char byte;
    int fd;

    snprintf(path, sizeof(path), "%s/%s", base, name);
    ck_assert_msg(strcmp(name, "record") != 0,
                  "another descriptor would drop this process's locks");
    fd = open(path, O_RDWR);
    ck_assert_int_eq(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= 2;
    ck_assert_int_eq(pwrite(fd, &byte, 1, (off_t)at), 1);
    close(fd);
}

START_TEST(a_header_that_goes_bad_is_seen_by_the_next_pin)
{
    char path[EEP_WCACHE_PATH_MAX];
    struct eep_wcache_view *view;
    struct eep_wcache *c;
    uint32_t frame;

    cache_path(path, sizeof(path));
    c = filled();
    CK_OK(eep_wcache_pin(c, &view));
    frame = eep_wcache_view_frames(view)[0];
    eep_wcache_unpin(c, view);
    poke(path, "seat-000",
         sizeof(struct wc_seat_header) + frame * sizeof(struct wc_frame) +
             offsetof(struct wc_frame, expert));
    FAILS(eep_wcache_pin(c, &view), EEP_ERR_CACHE_BAD, "should hold");
    eep_wcache_close(c);
}
END_TEST

static void prepare_and_die(struct eep_wcache *c)
{
    struct wt_move m;

    CK_OK(wt_prepare(c, 1, 2, 21, false, &m));
}

START_TEST(a_damaged_prepared_version_is_only_rolled_back)
{
    char path[EEP_WCACHE_PATH_MAX];
    struct eep_wcache_params params;
    struct wc_shape shape;
    struct eep_wcache *c;
    uint64_t version;
    struct file f;
    int32_t map[WT_TABLE];

    cache_path(path, sizeof(path)); /* version 1, in copy 1 */
    wt_map(map);
    params = wt_params(dir, map, "engine", 1);
    CK_OK(wc_shape_init(&params.key, params.spare_frames, params.dense_bytes, &shape));
    join(other_process(prepare_and_die, "engine P", 3));
    f = load(path, "record");
    f.bytes[shape.copy_offset[0] + sizeof(struct wc_copy) + 5] ^= 1;
    store(&f, f.count);
    free(f.bytes);
    c = filled();
    FAILS(eep_wcache_resolve(c, true, &version), EEP_ERR_CACHE_BAD, "damaged");
    CK_OK(eep_wcache_resolve(c, false, &version));
    ck_assert_uint_eq(version, 1);
    CK_OK(wt_move(c, 0, 2, 3, false));
    CK_OK(wt_check(c));
    eep_wcache_close(c);
}
END_TEST

static void prepare_in_place_and_die(struct eep_wcache *c)
{
    struct wt_move m;

    CK_OK(wt_prepare(c, 1, 2, 21, true, &m));
}

START_TEST(a_prepared_move_in_place_is_checked_by_its_bytes)
{
    struct eep_wcache *c = filled();
    char path[EEP_WCACHE_PATH_MAX];
    struct eep_wcache_status s;
    struct eep_wcache_repair r;
    uint64_t version;

    CK_OK(eep_wcache_status(c, &s));
    snprintf(path, sizeof(path), "%s", s.path);
    join(other_process(prepare_in_place_and_die, "engine P", 3));
    poke(path, "seat-000", 2 * EEP_PAGE + 4 * 2 * EEP_PAGE + 17); /* frame 4: layer 1, slot 0 */
    FAILS(eep_wcache_resolve(c, true, &version), EEP_ERR_CACHE_BAD, "do not have its digest");
    CK_OK(eep_wcache_resolve(c, false, &version));
    CK_OK(eep_wcache_repair(c, false, 0, wt_refill, NULL, &r));
    ck_assert_uint_gt(r.refilled, 0);
    CK_OK(wt_check(c));
    eep_wcache_close(c);
}
END_TEST

START_TEST(bad_bytes_are_found_and_repaired)
{
    char path[EEP_WCACHE_PATH_MAX];
    struct eep_wcache_verify v;
    struct eep_wcache_repair r;
    struct eep_wcache *c;
    struct file f;

    cache_path(path, sizeof(path));
    f = load(path, "seat-000");
    for (size_t at = 2 * EEP_PAGE; at < f.count; at += 2 * EEP_PAGE) {
        f.bytes[at + 17] ^= 4; /* every frame, free ones too */
    }
    store(&f, f.count);
    c = attach_as("engine", 1);
    CK_OK(eep_wcache_verify(c, NULL, NULL, NULL, &v));
    ck_assert_uint_eq(v.bad, WT_LAYERS * WT_SLOTS_PER_SEAT);
    CK_OK(eep_wcache_repair(c, false, 0, wt_refill, NULL, &r)); /* not dirty: nothing to do */
    ck_assert(r.checked == 0 && r.version == 1);
    CK_OK(eep_wcache_repair(c, true, 0, wt_refill, NULL, &r));
    ck_assert_uint_eq(r.refilled, WT_LAYERS * WT_SLOTS_PER_SEAT);
    ck_assert_uint_eq(r.version, 2);
    CK_OK(eep_wcache_verify(c, NULL, NULL, NULL, &v));
    ck_assert_uint_eq(v.bad, 0);
    CK_OK(wt_fill(c));
    CK_OK(wt_check(c));
    eep_wcache_close(c);
    free(f.bytes);
}
END_TEST

START_TEST(every_allocation_may_fail)
{
    for (uint64_t n = 1; n < 200; n++) {
        enum eep_status status;

        eep_mem_fail_nth(n);
        status = use(true);
        eep_mem_fail_nth(0);
        if (status == EEP_OK) {
            ck_assert_uint_gt(n, 5);
            return;
        }
        ck_assert_int_eq(status, EEP_ERR_NOMEM);
    }
    ck_abort_msg("it never worked");
}
END_TEST

START_TEST(map_digest_is_as_documented)
{
    const int32_t map[4] = {0, 1, 1, -1};
    uint8_t digest[EEP_WCACHE_DIGEST_BYTES];
    char hex[65];

    /* printf 'EEPMAP1\0' and the integers 1 2 2 2, 0 1 1 -1, | sha256sum */
    CK_OK(eep_wcache_map_digest(1, 2, 2, 2, map, digest));
    for (int i = 0; i < 32; i++) {
        snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    }
    ck_assert_str_eq(hex, "c5154febbbda79192cc2496ea85b2c71ff37f7440bdf0f49860b978bd6ff25ae");
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        every_field_of_the_record_is_checked,
        every_field_of_seats_and_dense_is_checked,
        a_seat_of_an_older_cache_is_refused,
        a_header_that_goes_bad_is_seen_by_the_next_pin,
        a_damaged_prepared_version_is_only_rolled_back,
        a_prepared_move_in_place_is_checked_by_its_bytes,
        bad_bytes_are_found_and_repaired,
        every_allocation_may_fail,
        map_digest_is_as_documented,
    };

    return run_cache_tests("wcache damage", tests, COUNT(tests));
}
