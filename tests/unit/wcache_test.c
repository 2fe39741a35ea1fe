/*
 * The weight cache of a node, without crashes (tests/fault has those): attach and fill, views,
 * moves, what is busy and what is refused, damage of every field of every file.
 */
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/fault/wcache_util.h"
#include "testutil.h"
#include "wcache/format.h"

static char dir[64];

/* Each test runs in a process and a directory of its own. */
static void make_dir(void)
{
    snprintf(dir, sizeof(dir), "/dev/shm/eep-test-%d", (int)getpid());
    ck_assert_int_eq(mkdir(dir, 0700), 0);
}

static void remove_dir(void)
{
    char command[128];

    snprintf(command, sizeof(command), "rm -rf '%s'", dir);
    ck_assert_int_eq(system(command), 0);
}

static struct eep_wcache *attach_as(const char *engine, uint64_t id)
{
    int32_t map[WT_TABLE];
    struct eep_wcache_params params;
    struct eep_wcache *c;

    wt_map(map);
    params = wt_params(dir, map, engine, id);
    CK_OK(eep_wcache_open(&params, &c));
    return c;
}

static struct eep_wcache *filled(void)
{
    struct eep_wcache *c = attach_as("engine A", 1);

    CK_OK(wt_fill(c));
    return c;
}

/* Run `body` as another process, another engine; fails the test if it fails. A pipe lets both take
 * turns: each writes a byte to let the other go on. */
static int to_child[2], to_parent[2];

static void let_go(int fd)
{
    ck_assert_int_eq(write(fd, "x", 1), 1);
}

static void wait_turn(int fd)
{
    char byte;

    ck_assert_int_eq(read(fd, &byte, 1), 1);
}

static pid_t other_process(void (*body)(struct eep_wcache *), const char *engine, uint64_t id)
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

static void join(pid_t pid)
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

/* ---- attach and fill --------------------------------------------------------------------------
 */

START_TEST(filled_once_then_attached)
{
    struct eep_wcache *c = filled();
    struct eep_wcache_status s;
    struct eep_wcache_verify v;
    bool fill;

    CK_OK(eep_wcache_status(c, &s));
    ck_assert(s.created && s.keep && s.version == 0 && s.state == EEP_WCACHE_CLEAN);
    ck_assert_uint_eq(s.attached, 1);
    ck_assert_uint_eq(s.prepared_version, EEP_WCACHE_NO_VERSION);
    CK_OK(wt_check(c));
    eep_wcache_close(c);

    c = attach_as("engine B", 2);
    CK_OK(eep_wcache_status(c, &s));
    ck_assert(!s.created);
    CK_OK(eep_wcache_dense_open(c, 0, &fill));
    ck_assert(!fill);
    for (uint32_t seat = 0; seat < WT_SEATS; seat++) {
        CK_OK(eep_wcache_seat_open(c, (struct eep_seat){seat}, 0, &fill));
        ck_assert(!fill);
        for (uint32_t part = 0; part < 100; part++) { /* more parts than pages */
            eep_wcache_seat_populate(c, (struct eep_seat){seat}, part, 100);
        }
    }
    eep_wcache_dense_populate(c, 0, 1);
    CK_OK(wt_check(c));
    CK_OK(eep_wcache_verify(c, NULL, NULL, NULL, &v));
    ck_assert_uint_eq(v.bad, 0);
    ck_assert_uint_eq(v.frames, WT_TABLE - 1 + 1);
    eep_wcache_close(c);
}
END_TEST

START_TEST(job_cache_goes_with_the_last)
{
    int32_t map[WT_TABLE];
    struct eep_wcache_params params;
    struct eep_wcache_info *infos;
    struct eep_wcache *c;
    size_t count;

    wt_map(map);
    params = wt_params(dir, map, "job", 7);
    params.keep = false;
    CK_OK(eep_wcache_open(&params, &c));
    CK_OK(wt_fill(c));
    CK_OK(eep_wcache_list(dir, &infos, &count));
    ck_assert_uint_eq(count, 1);
    ck_assert(infos[0].status == EEP_OK && infos[0].attached == 1 && !infos[0].keep);
    ck_assert_uint_eq(infos[0].seats_filled, WT_SEATS);
    ck_assert(infos[0].dense_filled);
    eep_mem_free(infos);
    CK_OK(wt_move(c, 0, 1, 1, false)); /* the list took no lock away */
    eep_wcache_close(c);
    CK_OK(eep_wcache_list(dir, &infos, &count));
    ck_assert_uint_eq(count, 0);
    eep_mem_free(infos);
}
END_TEST

START_TEST(different_keys_live_side_by_side)
{
    int32_t map[WT_TABLE];
    struct eep_wcache_params a, b;
    struct eep_wcache *ca, *cb;
    struct eep_wcache_info *infos;
    size_t count;

    wt_map(map);
    a = wt_params(dir, map, "A", 1);
    CK_OK(eep_wcache_open(&a, &ca));
    CK_OK(wt_fill(ca));
    for (int field = 0; field < 5; field++) {
        b = wt_params(dir, map, "B", 2);
        b.key.checkpoint[31] = field == 0;
        b.key.packing += field == 1;
        b.key.dtype += field == 2;
        b.key.frame_bytes += field == 3;
        b.key.node[0] = field == 4 ? 'x' : 'n';
        CK_OK(eep_wcache_open(&b, &cb));
        CK_OK(eep_wcache_list(dir, &infos, &count));
        ck_assert_uint_eq(count, 2);
        eep_mem_free(infos);
        eep_wcache_close_discard(cb);
    }
    CK_OK(wt_check(ca));
    eep_wcache_close(ca);
}
END_TEST

START_TEST(second_open_in_a_process_is_refused)
{
    int32_t map[WT_TABLE];
    struct eep_wcache_params params;
    struct eep_wcache *c = filled(), *second;

    wt_map(map);
    params = wt_params(dir, map, "second", 2);
    FAILS(eep_wcache_open(&params, &second), EEP_ERR_INVALID, "open in this process");
    CK_OK(wt_move(c, 0, 1, 1, false)); /* and took no lock away */
    eep_wcache_close(c);
}
END_TEST

START_TEST(bad_parameters_are_refused)
{
    int32_t map[WT_TABLE];
    struct eep_wcache_params good, p;
    struct eep_wcache *c;
    struct eep_wcache_info *infos;
    size_t count;

    wt_map(map);
    good = wt_params(dir, map, "engine", 1);
    p = good, p.engine_id = 0;
    FAILS(eep_wcache_open(&p, &c), EEP_ERR_INVALID, "id");
    p = good, p.key.layers = EEP_WCACHE_LAYERS_MAX + 1;
    FAILS(eep_wcache_open(&p, &c), EEP_ERR_INVALID, "layers");
    p = good, p.key.seats = UINT32_MAX;
    FAILS(eep_wcache_open(&p, &c), EEP_ERR_INVALID, "seats");
    p = good, p.key.frame_bytes = 0;
    FAILS(eep_wcache_open(&p, &c), EEP_ERR_INVALID, "frame");
    p = good, p.key.node[0] = '\0';
    FAILS(eep_wcache_open(&p, &c), EEP_ERR_INVALID, "node");
    p = good, p.attach_only = true;
    FAILS(eep_wcache_open(&p, &c), EEP_ERR_STALE, "no such");
    map[3] = (int32_t)WT_EXPERTS;
    FAILS(eep_wcache_open(&good, &c), EEP_ERR_INVALID, "no expert 6");
    map[3] = 0;
    FAILS(eep_wcache_open(&good, &c), EEP_ERR_INVALID, "expert 3 has no slot");
    CK_OK(eep_wcache_list(dir, &infos, &count));
    ck_assert_uint_eq(count, 0); /* nothing is left behind */
    eep_mem_free(infos);
}
END_TEST

START_TEST(no_room_says_the_numbers_and_leaves_nothing)
{
    int32_t map[WT_TABLE];
    struct eep_wcache_params p;
    struct eep_wcache *c;
    struct dirent *entry;
    char needed[32];
    DIR *stream;
    bool fill;

    wt_map(map);
    p = wt_params(dir, map, "engine", 1);
    p.key.frame_bytes = UINT64_C(1) << 38;
    snprintf(needed, sizeof(needed), "%llu", (unsigned long long)eep_wcache_bytes_needed(&p));
    FAILS(eep_wcache_open(&p, &c), EEP_ERR_NOMEM, needed);
    SAYS("available");
    p.node_seats = 0; /* the caller hid the need: found when the seat is made */
    p.dense_bytes = UINT64_C(1) << 39;
    p.dense_bytes = 0;
    CK_OK(eep_wcache_open(&p, &c));
    FAILS(eep_wcache_seat_open(c, (struct eep_seat){0}, 0, &fill), EEP_ERR_NOMEM, "needs");
    eep_wcache_close_discard(c);
    stream = opendir(dir);
    while ((entry = readdir(stream)) != NULL) {
        ck_assert_msg(entry->d_name[0] == '.' && strncmp(entry->d_name, ".new", 4) != 0 &&
                          strncmp(entry->d_name, ".drop", 5) != 0,
                      "left behind: %s", entry->d_name);
    }
    closedir(stream);
}
END_TEST

START_TEST(other_dense_bytes_are_refused)
{
    int32_t map[WT_TABLE];
    struct eep_wcache_params p;
    struct eep_wcache *c = filled();

    eep_wcache_close(c);
    wt_map(map);
    p = wt_params(dir, map, "engine", 1);
    p.dense_bytes++;
    FAILS(eep_wcache_open(&p, &c), EEP_ERR_STALE, "9001");
}
END_TEST

START_TEST(foreign_or_open_directory_is_refused)
{
    int32_t map[WT_TABLE];
    struct eep_wcache_params p;
    struct eep_wcache_info *infos;
    struct eep_wcache *c = filled();
    struct eep_wcache_status s;
    char path[EEP_WCACHE_PATH_MAX + 16], record[EEP_WCACHE_PATH_MAX + 32], name[80];
    size_t count;

    CK_OK(eep_wcache_status(c, &s));
    snprintf(path, sizeof(path), "%s", s.path);
    snprintf(record, sizeof(record), "%s/record", s.path);
    snprintf(name, sizeof(name), "%s", strrchr(s.path, '/') + 1);
    eep_wcache_close(c);
    wt_map(map);
    p = wt_params(dir, map, "engine", 1);
    ck_assert_int_eq(chmod(path, 0750), 0);
    FAILS(eep_wcache_open(&p, &c), EEP_ERR_STALE, "750");
    ck_assert_int_eq(chmod(path, 0700), 0);
    ck_assert_int_eq(chmod(record, 0640), 0);
    FAILS(eep_wcache_open(&p, &c), EEP_ERR_STALE, "640");
    ck_assert_int_eq(chmod(record, 0600), 0);
    if (geteuid() == 0) {
        ck_assert_int_eq(chown(path, 1, 1), 0);
        FAILS(eep_wcache_open(&p, &c), EEP_ERR_STALE, "belongs to user 1");
        FAILS(eep_wcache_drop(dir, name, 0), EEP_ERR_STALE, "belongs to user 1");
        CK_OK(eep_wcache_list(dir, &infos, &count));
        ck_assert(count == 1 && infos[0].status == EEP_ERR_STALE);
        eep_mem_free(infos);
        ck_assert_int_eq(chown(path, 0, 0), 0);
        ck_assert_int_eq(chown(record, 1, 1), 0);
        FAILS(eep_wcache_open(&p, &c), EEP_ERR_STALE, "owner 1");
        ck_assert_int_eq(chown(record, 0, 0), 0);
        ck_assert_int_eq(chown(dir, 1, 1), 0);
        FAILS(eep_wcache_open(&p, &c), EEP_ERR_STALE, "belongs to user 1");
        ck_assert_int_eq(chown(dir, 0, 0), 0);
    }
    CK_OK(eep_wcache_open(&p, &c));
    CK_OK(wt_fill(c));
    CK_OK(wt_check(c));
    eep_wcache_close(c);
    ck_assert_int_eq(rename(path, record), -1);
    CK_OK(eep_wcache_drop(dir, name, 0));
    ck_assert_int_eq(symlink("/", path), 0);
    ck_assert_int_ne(eep_wcache_open(&p, &c), EEP_OK);
    ck_assert_int_eq(unlink(path), 0);
}
END_TEST

START_TEST(replicas_must_have_the_same_bytes)
{
    struct eep_wcache *c = attach_as("engine", 1);
    struct eep_wcache_content content, known;
    struct eep_wcache_frame frame;
    bool fill;
    void *bytes;

    CK_OK(eep_wcache_seat_open(c, (struct eep_seat){0}, 0, &fill));
    ck_assert(fill);
    ck_assert(!eep_wcache_frame_digest(c, 0, (struct eep_expert){0}, &known));
    ck_assert(eep_wcache_slot_frame(c, 0, (struct eep_slot){0}, &frame));
    CK_OK(eep_wcache_frame_begin(c, frame, &bytes));
    wt_bytes(0, 0, bytes, WT_FRAME_BYTES);
    CK_OK(eep_wcache_frame_end(c, frame, 0, (struct eep_expert){0}, NULL, &content));
    ck_assert(eep_wcache_slot_filled(c, 0, (struct eep_slot){0}));
    ck_assert(eep_wcache_frame_digest(c, 0, (struct eep_expert){0}, &known));
    ck_assert(known.low == content.low && known.high == content.high);
    CK_OK(eep_wcache_frame_begin(c, frame, &bytes));
    ((char *)bytes)[WT_FRAME_BYTES - 1] ^= 1;
    FAILS(eep_wcache_frame_end(c, frame, 0, (struct eep_expert){0}, NULL, NULL), EEP_ERR_CACHE_BAD,
          "first copy");
    ck_assert(!eep_wcache_slot_filled(c, 0, (struct eep_slot){0}));
    content.high ^= 1;
    FAILS(eep_wcache_frame_end(c, frame, 0, (struct eep_expert){1}, &content, NULL),
          EEP_ERR_CACHE_BAD, "source");
    FAILS(eep_wcache_seat_end(c, (struct eep_seat){0}), EEP_ERR_CACHE_BAD, "should hold");
    eep_wcache_close_discard(c);
}
END_TEST

/* ---- several processes ------------------------------------------------------------------------
 */

static void only_fills(struct eep_wcache *c)
{
    CK_OK(wt_check(c));
}

START_TEST(many_start_at_once_and_fill_once)
{
    pid_t pids[4];

    for (int i = 0; i < 4; i++) {
        pids[i] = other_process(only_fills, "engine", 1);
    }
    for (int i = 0; i < 4; i++) {
        join(pids[i]);
    }
    struct eep_wcache *c = attach_as("last", 2);
    CK_OK(wt_fill(c));
    CK_OK(wt_check(c));
    eep_wcache_close(c);
}
END_TEST

START_TEST(a_waiter_names_the_filler_and_takes_over)
{
    struct eep_wcache *c;
    bool fill;
    pid_t pid;
    int ready[2];
    char byte;

    ck_assert_int_eq(pipe(ready), 0);
    pid = fork();
    if (pid == 0) {
        c = attach_as("slow filler", 5);
        CK_OK(eep_wcache_seat_open(c, (struct eep_seat){0}, 0, &fill));
        CK_OK(eep_wcache_dense_open(c, 0, &fill));
        ck_assert_int_eq(write(ready[1], "x", 1), 1);
        pause();
        _exit(1);
    }
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    c = attach_as("waiter", 6);
    FAILS(eep_wcache_seat_open(c, (struct eep_seat){0}, 20 * EEP_NS_PER_MS, &fill), EEP_ERR_TIMEOUT,
          "slow filler");
    FAILS(eep_wcache_dense_open(c, 20 * EEP_NS_PER_MS, &fill), EEP_ERR_TIMEOUT, "slow filler");
    FAILS(eep_wcache_begin(c, (uint32_t[]){0}, 1, 0), EEP_ERR_AGAIN, "being filled");
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    CK_OK(wt_fill(c));
    CK_OK(wt_check(c));
    eep_wcache_close(c);
}
END_TEST

START_TEST(drop_refuses_while_attached)
{
    struct eep_wcache *c = filled();
    struct eep_wcache_status s;
    char name[80];
    pid_t pid;

    CK_OK(eep_wcache_status(c, &s));
    snprintf(name, sizeof(name), "%s", strrchr(s.path, '/') + 1);
    FAILS(eep_wcache_drop(dir, name, 0), EEP_ERR_AGAIN, "in this process");
    pid = fork();
    if (pid == 0) {
        FAILS(eep_wcache_drop(dir, name, EEP_NS_PER_S), EEP_ERR_AGAIN, "engine A");
        eep_wcache_close(c); /* inherited: must take nothing away */
        _exit(0);
    }
    join(pid);
    CK_OK(wt_move(c, 0, 1, 1, false));
    pid = fork();
    if (pid == 0) {
        FAILS(eep_wcache_drop(dir, name, EEP_NS_PER_S), EEP_ERR_AGAIN, "engine A");
        _exit(0);
    }
    join(pid);
    eep_wcache_close(c);
    FAILS(eep_wcache_drop(dir, "../x", 0), EEP_ERR_INVALID, "no name");
    FAILS(eep_wcache_drop(dir, "eep-none", 0), EEP_ERR_INVALID, "no such");
    CK_OK(eep_wcache_drop(dir, name, 0));
    FAILS(eep_wcache_drop(dir, name, 0), EEP_ERR_INVALID, "no such");
}
END_TEST

/* ---- moves ------------------------------------------------------------------------------------
 */

START_TEST(moves_change_versions_and_keep_bytes)
{
    struct eep_wcache *c = filled();
    struct eep_wcache_status before, after;

    for (uint64_t i = 0; i < 60; i++) {
        const bool in_place = i % 3 == 2;

        CK_OK(eep_wcache_status(c, &before));
        CK_OK(wt_move(c, (uint32_t)i, 1 + i % 2, i * 10, in_place));
        CK_OK(eep_wcache_status(c, &after));
        ck_assert_uint_eq(after.version, before.version + 1);
        ck_assert_uint_eq(after.version, eep_wcache_version(c));
        ck_assert_int_eq(after.state, EEP_WCACHE_CLEAN);
        CK_OK(wt_check(c));
    }
    eep_wcache_close(c);
    c = attach_as("engine B", 2); /* a restart starts from the record */
    CK_OK(wt_fill(c));
    CK_OK(eep_wcache_status(c, &after));
    ck_assert_uint_eq(after.version, 60);
    CK_OK(wt_check(c));
    eep_wcache_close(c);
}
END_TEST

START_TEST(an_old_view_keeps_its_frames)
{
    struct eep_wcache *c = filled();
    struct eep_wcache_view *old, *new;
    uint64_t moves = 0;
    enum eep_status status = EEP_OK;

    CK_OK(eep_wcache_pin(c, &old));
    while (status == EEP_OK) {
        status = wt_move(c, 0, 1, moves * 7, false);
        CK_OK(wt_check_view(old));
        moves += status == EEP_OK;
        ck_assert_uint_lt(moves, 50);
    }
    ck_assert_uint_gt(moves, 1);
    ck_assert_int_eq(status, EEP_ERR_AGAIN);
    SAYS("older versions");
    CK_OK(eep_wcache_abort(c));
    CK_OK(eep_wcache_pin(c, &new)); /* follow */
    eep_wcache_unpin(c, old);
    CK_OK(wt_check_view(new));
    CK_OK(wt_move(c, 0, 1, 1000, false));
    CK_OK(wt_check_view(new));
    eep_wcache_unpin(c, new);
    eep_wcache_close(c);
}
END_TEST

START_TEST(abort_leaves_the_old_version)
{
    struct eep_wcache *c = filled();
    struct eep_wcache_status s;
    struct wt_move m;

    FAILS(eep_wcache_abort(c), EEP_ERR_STALE, "no own move");
    for (uint64_t i = 0; i < 10; i++) {
        CK_OK(wt_prepare(c, 0, 2, i, false, &m));
        CK_OK(eep_wcache_status(c, &s));
        ck_assert_uint_eq(s.prepared_version, 1);
        ck_assert(memcmp(s.prepared_digest, m.digest, sizeof(m.digest)) == 0);
        ck_assert_int_eq(s.state, EEP_WCACHE_MOVING);
        CK_OK(eep_wcache_abort(c));
        CK_OK(wt_check(c));
    }
    ck_assert_uint_eq(eep_wcache_version(c), 0);
    CK_OK(wt_move(c, 0, 3, 5, false));
    CK_OK(wt_check(c));
    eep_wcache_close(c);
}
END_TEST

START_TEST(abort_in_place_needs_the_old_bytes)
{
    struct eep_wcache *c = filled();
    struct eep_wcache_view *view;
    struct eep_wcache_repair repaired;
    struct eep_wcache_frame frame;
    struct wt_move m;
    uint64_t version;
    void *bytes;

    CK_OK(eep_wcache_begin(c, (uint32_t[]){1}, 1, 0));
    CK_OK(eep_wcache_take_in_place(c, 1, (struct eep_slot){2}, &frame));
    FAILS(eep_wcache_pin(c, &view), EEP_ERR_AGAIN, "engine A");
    CK_OK(eep_wcache_abort(c)); /* nothing was touched */
    CK_OK(wt_check(c));
    do {
        CK_OK(wt_prepare(c, 1, 1, 40, true, &m));
    } while (memcmp(m.map[0], (int32_t[]){0, 1, 2, 3, 4, 5, 0, 1}, sizeof(m.map[0])) == 0);
    FAILS(eep_wcache_abort(c), EEP_ERR_CACHE_BAD, "dirty");
    for (uint32_t p = 0; p < WT_SLOTS; p++) {
        CK_OK(eep_wcache_take_in_place(c, 1, (struct eep_slot){p}, &frame));
        CK_OK(eep_wcache_frame_begin(c, frame, &bytes));
        wt_bytes(1, p % WT_EXPERTS, bytes, WT_FRAME_BYTES);
        CK_OK(eep_wcache_frame_end(c, frame, 1, (struct eep_expert){p % WT_EXPERTS}, NULL, NULL));
    }
    CK_OK(eep_wcache_abort(c));
    CK_OK(wt_check(c));
    CK_OK(eep_wcache_repair(c, true, 0, NULL, NULL, &repaired));
    ck_assert(repaired.refilled == 0 && repaired.version == 0);
    FAILS(eep_wcache_commit(c, &version), EEP_ERR_INVALID, "no own move");
    eep_wcache_close(c);
}
END_TEST

START_TEST(begin_refuses_with_reasons)
{
    struct eep_wcache *c = filled();
    const uint32_t twice[] = {1, 1}, high[] = {WT_LAYERS}, one[] = {1};
    struct eep_wcache_frame frame;
    uint8_t digest[EEP_WCACHE_DIGEST_BYTES];
    uint64_t version;

    FAILS(eep_wcache_begin(c, one, 0, 0), EEP_ERR_INVALID, "no layers");
    FAILS(eep_wcache_begin(c, twice, 2, 0), EEP_ERR_INVALID, "layer 1");
    FAILS(eep_wcache_begin(c, high, 1, 0), EEP_ERR_INVALID, "layer 3");
    FAILS(eep_wcache_begin(c, one, 1, 4), EEP_ERR_STALE, "is 0, not 4");
    FAILS(eep_wcache_take(c, (struct eep_seat){0}, &frame), EEP_ERR_INVALID, "no move");
    FAILS(eep_wcache_prepare(c, NULL, 0, &version, digest), EEP_ERR_INVALID, "no own move");
    CK_OK(eep_wcache_begin(c, one, 1, 0));
    FAILS(eep_wcache_begin(c, one, 1, 0), EEP_ERR_STALE, "own move");
    FAILS(eep_wcache_commit(c, &version), EEP_ERR_INVALID, "nothing is prepared");
    FAILS(eep_wcache_resolve(c, true, &version), EEP_ERR_INVALID, "own move");
    FAILS(eep_wcache_take_in_place(c, 0, (struct eep_slot){0}, &frame), EEP_ERR_INVALID,
          "not in the move");
    FAILS(eep_wcache_take(c, (struct eep_seat){WT_SEATS}, &frame), EEP_ERR_INVALID, "no seat");
    CK_OK(eep_wcache_abort(c));
    eep_wcache_close(c);
}
END_TEST

START_TEST(prepare_refuses_what_frames_do_not_hold)
{
    struct eep_wcache *c = filled();
    struct eep_wcache_frame frame;
    int32_t map[WT_SLOTS];
    uint32_t frames[WT_SLOTS];
    struct eep_wcache_row row = {0, map, frames};
    struct eep_wcache_view *view;
    uint8_t digest[EEP_WCACHE_DIGEST_BYTES];
    uint64_t version;

    CK_OK(eep_wcache_pin(c, &view));
    CK_OK(eep_wcache_begin(c, (uint32_t[]){0}, 1, 0));
#define RESET()                                                                                    \
    (memcpy(map, eep_wcache_view_map(view), sizeof(map)),                                          \
     memcpy(frames, eep_wcache_view_frames(view), sizeof(frames)))
#define REFUSED(word) FAILS(eep_wcache_prepare(c, &row, 1, &version, digest), EEP_ERR_INVALID, word)
    RESET(), map[0] = 6;
    REFUSED("no expert 6");
    RESET(), map[2] = 0;
    REFUSED("expert 2 is left without");
    RESET(), map[6] = 4; /* the frame holds expert 0 */
    REFUSED("not what the frames hold");
    RESET(), frames[1] = frames[0], map[1] = 0, map[7] = 1;
    REFUSED("given twice");
    RESET(), frames[0] = 1000;
    REFUSED("not below");
    RESET(), row.layer = 1;
    REFUSED("not in the move");
    row.layer = 0;
    CK_OK(eep_wcache_take(c, (struct eep_seat){1}, &frame)); /* taken and not filled */
    RESET(), map[6] = 4, frames[6] = frame.index;
    REFUSED("not what the frames hold");
    /* Within a seat a slot's frame may be given to another: no byte moves. */
    RESET(), map[0] = 1, map[1] = 0, frames[0] = 1, frames[1] = 0;
    CK_OK(eep_wcache_prepare(c, &row, 1, &version, digest));
    CK_OK(eep_wcache_commit(c, &version));
    eep_wcache_unpin(c, view);
    CK_OK(wt_check(c));
    eep_wcache_close(c);
}
END_TEST

/* A standby: it follows, takes over as mover when the mover goes, and is refused before. */
static void standby(struct eep_wcache *c)
{
    struct eep_wcache_view *view, *next;
    struct eep_wcache_status s;

    CK_OK(eep_wcache_pin(c, &view));
    let_go(to_parent[1]);
    wait_turn(to_child[0]); /* A moved twice and has a move pending */
    CK_OK(wt_check_view(view));
    ck_assert_uint_eq(eep_wcache_version(c), 2);
    FAILS(eep_wcache_begin(c, (uint32_t[]){0}, 1, 2), EEP_ERR_AGAIN, "engine A");
    FAILS(eep_wcache_wait(c, 10 * EEP_NS_PER_MS), EEP_ERR_TIMEOUT, "engine A");
    SAYS("layers 0-1");
    CK_OK(eep_wcache_status(c, &s));
    ck_assert(s.state == EEP_WCACHE_MOVING && s.attached == 2 && s.attached_others == 1);
    ck_assert_str_eq(s.move.engine, "engine A");
    CK_OK(eep_wcache_pin(c, &next));
    eep_wcache_unpin(c, view);
    CK_OK(wt_check_view(next));
    let_go(to_parent[1]);
    wait_turn(to_child[0]); /* A is gone */
    FAILS(eep_wcache_begin(c, (uint32_t[]){0}, 1, 1), EEP_ERR_STALE, "is 3, not 1");
    CK_OK(wt_move(c, 0, 2, 99, false));
    ck_assert_uint_eq(eep_wcache_version(c), 4);
    CK_OK(wt_check_view(next));
    CK_OK(wt_check(c));
    eep_wcache_close(c);
}

START_TEST(a_standby_follows_and_takes_over)
{
    struct eep_wcache *c = filled();
    struct eep_wcache_frame frame;
    struct wt_move m;
    uint64_t version;
    pid_t pid = other_process(standby, "engine B", 2);

    wait_turn(to_parent[0]);
    CK_OK(wt_move(c, 0, 1, 3, false));
    CK_OK(wt_move(c, 1, 1, 4, false));
    CK_OK(wt_prepare(c, 0, 2, 5, false, &m));
    let_go(to_child[1]);
    wait_turn(to_parent[0]);
    CK_OK(eep_wcache_commit(c, &version));
    /* B has a view: not in place. */
    CK_OK(eep_wcache_begin(c, (uint32_t[]){0}, 1, 3));
    FAILS(eep_wcache_take_in_place(c, 0, (struct eep_slot){0}, &frame), EEP_ERR_AGAIN, "engine B");
    CK_OK(eep_wcache_abort(c));
    eep_wcache_close(c);
    let_go(to_child[1]);
    join(pid);
}
END_TEST

static void does_not_follow(struct eep_wcache *c)
{
    let_go(to_parent[1]);
    wait_turn(to_child[0]);
    eep_wcache_close(c);
}

START_TEST(one_that_does_not_follow_blocks_moves_while_it_is_there)
{
    struct eep_wcache *c = filled();
    int32_t map[WT_TABLE];
    struct eep_wcache_params params;
    pid_t pid;

    wt_map(map);
    ck_assert_int_eq(pipe(to_child), 0);
    ck_assert_int_eq(pipe(to_parent), 0);
    pid = fork();
    if (pid == 0) {
        struct eep_wcache *d;

        params = wt_params(dir, map, "old engine", 9);
        params.follows = false;
        CK_OK(eep_wcache_open(&params, &d));
        does_not_follow(d);
        _exit(0);
    }
    wait_turn(to_parent[0]);
    FAILS(eep_wcache_begin(c, (uint32_t[]){0}, 1, 0), EEP_ERR_AGAIN, "old engine");
    let_go(to_child[1]);
    join(pid);
    CK_OK(wt_move(c, 0, 1, 1, false));
    eep_wcache_close(c);
}
END_TEST

/* ---- a mover that dies ------------------------------------------------------------------------
 */

static void die_prepared(struct eep_wcache *c)
{
    struct wt_move m;

    CK_OK(wt_prepare(c, 1, 2, 21, false, &m));
}

static void die_prepared_in_place(struct eep_wcache *c)
{
    struct wt_move m;

    CK_OK(wt_prepare(c, 1, 2, 21, true, &m));
}

static void die_dirty(struct eep_wcache *c)
{
    struct eep_wcache_frame frame;
    void *bytes;

    CK_OK(eep_wcache_begin(c, (uint32_t[]){0, 2}, 2, 0));
    CK_OK(eep_wcache_take_in_place(c, 2, (struct eep_slot){3}, &frame));
    CK_OK(eep_wcache_frame_begin(c, frame, &bytes));
    memset(bytes, 0x55, 100);
}

START_TEST(what_was_prepared_is_rolled_forward_or_back)
{
    for (int forward = 0; forward < 2; forward++) {
        struct eep_wcache *c = filled();
        struct eep_wcache_status s;
        const uint64_t base = eep_wcache_version(c);
        uint64_t version;

        join(other_process(die_prepared, "engine C", 3));
        CK_OK(eep_wcache_status(c, &s));
        ck_assert(s.state == EEP_WCACHE_STALLED && s.prepared_version == base + 1);
        CK_OK(eep_wcache_wait(c, 0));
        FAILS(eep_wcache_begin(c, (uint32_t[]){0}, 1, base), EEP_ERR_STALE, "prepared");
        CK_OK(wt_check(c)); /* the current version can be served meanwhile */
        CK_OK(eep_wcache_resolve(c, forward != 0, &version));
        ck_assert_uint_eq(version, base + (uint64_t)forward);
        CK_OK(wt_check(c));
        CK_OK(wt_move(c, 0, 1, 1, false));
        CK_OK(wt_check(c));
        eep_wcache_close(c);
    }
}
END_TEST

START_TEST(a_dirty_record_is_refused_and_repaired)
{
    struct eep_wcache *c = filled();
    struct eep_wcache_repair r;
    struct eep_wcache_status s;
    struct eep_wcache_view *view;

    join(other_process(die_dirty, "engine D", 4));
    CK_OK(eep_wcache_status(c, &s));
    ck_assert(s.state == EEP_WCACHE_DIRTY && s.in_place && s.move.base_version == 0);
    FAILS(eep_wcache_pin(c, &view), EEP_ERR_CACHE_BAD, "engine D");
    SAYS("layers 0, 2; base version 0");
    FAILS(eep_wcache_begin(c, (uint32_t[]){0}, 1, 0), EEP_ERR_CACHE_BAD, "engine D");
    FAILS(eep_wcache_wait(c, 0), EEP_ERR_CACHE_BAD, "engine D");
    /* Expert 3 of layer 2 has no other frame. */
    FAILS(eep_wcache_repair(c, false, 0, NULL, NULL, &r), EEP_ERR_CACHE_BAD, "no other frame");
    FAILS(eep_wcache_pin(c, &view), EEP_ERR_CACHE_BAD, "engine D");
    CK_OK(eep_wcache_repair(c, false, 9, wt_refill, NULL, &r));
    ck_assert_uint_eq(r.checked, 2 * WT_SLOTS - 1);
    ck_assert_uint_eq(r.refilled, 1);
    ck_assert_uint_eq(r.version, 9);
    CK_OK(eep_wcache_status(c, &s));
    ck_assert(s.state == EEP_WCACHE_CLEAN && s.version == 9);
    CK_OK(wt_check(c));
    CK_OK(wt_move(c, 0, 2, 1, true));
    CK_OK(wt_check(c));
    eep_wcache_close(c);
}
END_TEST

START_TEST(a_prepared_move_in_place_is_complete)
{
    struct eep_wcache *c = filled();
    struct eep_wcache_repair r;
    uint64_t version;

    join(other_process(die_prepared_in_place, "engine E", 5));
    FAILS(eep_wcache_repair(c, false, 0, wt_refill, NULL, &r), EEP_ERR_STALE, "prepared");
    CK_OK(eep_wcache_resolve(c, true, &version));
    ck_assert_uint_eq(version, 1);
    CK_OK(wt_check(c));
    eep_wcache_mover_release(c);
    join(other_process(die_prepared, "engine F", 6));
    CK_OK(eep_wcache_resolve(c, true, &version));
    ck_assert_uint_eq(version, 2);
    CK_OK(wt_check(c));
    eep_wcache_close(c);
}
END_TEST

START_TEST(rolled_back_in_place_stays_dirty)
{
    struct eep_wcache *c = filled();
    struct eep_wcache_status s;
    struct eep_wcache_repair r;
    uint64_t version;

    join(other_process(die_prepared_in_place, "engine E", 5));
    CK_OK(eep_wcache_resolve(c, false, &version));
    ck_assert_uint_eq(version, 0);
    CK_OK(eep_wcache_status(c, &s));
    ck_assert_int_eq(s.state, EEP_WCACHE_DIRTY);
    CK_OK(eep_wcache_repair(c, false, 0, wt_refill, NULL, &r));
    ck_assert_uint_gt(r.refilled, 0);
    CK_OK(wt_check(c));
    eep_wcache_close(c);
}
END_TEST

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
        filled_once_then_attached,
        job_cache_goes_with_the_last,
        different_keys_live_side_by_side,
        second_open_in_a_process_is_refused,
        bad_parameters_are_refused,
        no_room_says_the_numbers_and_leaves_nothing,
        other_dense_bytes_are_refused,
        foreign_or_open_directory_is_refused,
        replicas_must_have_the_same_bytes,
        many_start_at_once_and_fill_once,
        a_waiter_names_the_filler_and_takes_over,
        drop_refuses_while_attached,
        moves_change_versions_and_keep_bytes,
        an_old_view_keeps_its_frames,
        abort_leaves_the_old_version,
        abort_in_place_needs_the_old_bytes,
        begin_refuses_with_reasons,
        prepare_refuses_what_frames_do_not_hold,
        a_standby_follows_and_takes_over,
        one_that_does_not_follow_blocks_moves_while_it_is_there,
        what_was_prepared_is_rolled_forward_or_back,
        a_dirty_record_is_refused_and_repaired,
        a_prepared_move_in_place_is_complete,
        rolled_back_in_place_stays_dirty,
        every_field_of_the_record_is_checked,
        every_field_of_seats_and_dense_is_checked,
        a_seat_of_an_older_cache_is_refused,
        bad_bytes_are_found_and_repaired,
        every_allocation_may_fail,
        map_digest_is_as_documented,
    };
    Suite *suite = suite_create("wcache");
    TCase *tcase = tcase_create("wcache");
    SRunner *runner;

    tcase_set_timeout(tcase, 120);
    tcase_add_checked_fixture(tcase, make_dir, remove_dir);
    for (size_t i = 0; i < COUNT(tests); i++) {
        tcase_add_test(tcase, tests[i]);
    }
    suite_add_tcase(suite, tcase);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
