/*
 * The weight cache of a node: attaching, filling once, what is refused, several processes.
 */
#include <dirent.h>
#include <signal.h>

#include "wcache_fixture.h"

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

static struct eep_wcache *attach_job(uint64_t id)
{
    int32_t map[WT_TABLE];
    struct eep_wcache_params params;
    struct eep_wcache *c;

    wt_map(map);
    params = wt_params(dir, map, "job", id);
    params.keep = false;
    CK_OK(eep_wcache_open(&params, &c));
    return c;
}

START_TEST(job_cache_stays_while_another_process_uses_it)
{
    struct eep_wcache_info *infos;
    struct eep_wcache *c = attach_job(7);
    size_t count;
    const pid_t pid = fork();

    if (pid == 0) {
        eep_wcache_close(attach_job(7));
        _exit(0);
    }
    join(pid);
    CK_OK(wt_fill(c));
    CK_OK(eep_wcache_list(dir, &infos, &count));
    ck_assert_uint_eq(count, 1);
    eep_mem_free(infos);
    eep_wcache_close(c);
    CK_OK(eep_wcache_list(dir, &infos, &count));
    ck_assert_uint_eq(count, 0);
    eep_mem_free(infos);
}
END_TEST

/* What is forgotten is filled again where it differs, which is nowhere here. */
START_TEST(a_seat_is_forgotten_unless_another_engine_is_there)
{
    struct eep_wcache *c = filled();
    const struct eep_seat seat = {1};
    bool fill, full;
    char word = 0;
    int ready[2], end[2];

    ck_assert(pipe(ready) == 0 && pipe(end) == 0);
    const pid_t pid = fork();

    if (pid == 0) {
        struct eep_wcache *other = attach_as("engine B", 2);

        ck_assert_int_eq(write(ready[1], &word, 1), 1);
        ck_assert_int_eq(read(end[0], &word, 1), 1);
        eep_wcache_close(other);
        _exit(0);
    }
    ck_assert_int_eq(read(ready[0], &word, 1), 1);
    CK_OK(eep_wcache_seat_forget(c, seat));
    CK_OK(eep_wcache_seat_full(c, seat, &full));
    ck_assert(full);
    ck_assert_int_eq(write(end[1], &word, 1), 1);
    join(pid);

    CK_OK(eep_wcache_seat_forget(c, seat));
    CK_OK(eep_wcache_seat_full(c, seat, &full));
    ck_assert(!full);
    CK_OK(eep_wcache_seat_forget(c, seat));
    CK_OK(eep_wcache_seat_open(c, seat, 0, &fill));
    ck_assert(fill);
    CK_OK(eep_wcache_seat_end(c, seat));
    CK_OK(eep_wcache_seat_full(c, seat, &full));
    ck_assert(full);
    CK_OK(wt_check(c));
    ck_assert_int_eq(eep_wcache_seat_forget(c, (struct eep_seat){WT_SEATS}), EEP_ERR_INVALID);
    eep_wcache_close(c);
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

int main(void)
{
    const TTest *const tests[] = {
        filled_once_then_attached,
        job_cache_goes_with_the_last,
        job_cache_stays_while_another_process_uses_it,
        a_seat_is_forgotten_unless_another_engine_is_there,
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
    };

    return run_cache_tests("wcache", tests, COUNT(tests));
}
