/* Initial layouts, replica lists, layout files, choice of replicas. */
#include <string.h>
#include <unistd.h>

#include "layout/layout.h"
#include "moe/route.h"
#include "testutil.h"

static const char *write_file(const char *text)
{
    static char path[] = "/tmp/eep-layout-test-XXXXXX";
    FILE *file;

    strcpy(path + sizeof(path) - 7, "XXXXXX");
    const int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    file = fdopen(fd, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
    return path;
}

START_TEST(every_expert_has_a_slot_at_any_number_of_seats)
{
    for (uint32_t experts = 1; experts <= 16; experts++) {
        for (uint32_t seats = 1; seats <= 20; seats++) {
            struct eep_layout *layout;
            uint32_t least = UINT32_MAX, most = 0;

            CK_OK(eep_layout_initial(2, experts, seats, 0, &layout));
            ck_assert_uint_eq(layout->replica_first[2 * experts], 2 * experts);
            for (uint32_t seat = 0; seat < seats; seat++) {
                uint32_t held = 0;

                for (uint32_t s = 0; s < layout->slots_per_seat; s++) {
                    const struct eep_slot slot = {seat * layout->slots_per_seat + s};

                    held += eep_layout_expert(layout, 1, slot) != EEP_NO_EXPERT;
                }
                least = held < least ? held : least;
                most = held > most ? held : most;
            }
            ck_assert_uint_le(most - least, 1);
            eep_layout_destroy(layout);
        }
    }
}
END_TEST

START_TEST(no_seat_holds_two_replicas_of_an_expert)
{
    for (uint32_t redundant = 0; redundant <= 24; redundant++) {
        struct eep_layout *layout;

        CK_OK(eep_layout_initial(1, 12, 3, redundant, &layout));
        ck_assert_uint_eq(layout->replica_first[12], 12 + redundant);
        for (uint32_t e = 0; e < 12; e++) {
            for (uint32_t j = layout->replica_first[e] + 1; j < layout->replica_first[e + 1]; j++) {
                ck_assert_uint_ne(layout->replica_slots[j] / layout->slots_per_seat,
                                  layout->replica_slots[j - 1] / layout->slots_per_seat);
            }
        }
        eep_layout_destroy(layout);
    }
}
END_TEST

START_TEST(too_many_redundant_experts_are_refused_with_the_numbers)
{
    struct eep_layout *layout;

    ck_assert_int_eq(eep_layout_initial(1, 12, 3, 25, &layout), EEP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(eep_error_text(), "25"));
    ck_assert_ptr_nonnull(strstr(eep_error_text(), "24"));
}
END_TEST

START_TEST(a_layout_file_is_read)
{
    struct eep_layout *layout;
    const char *path = write_file("{\"seats\": 2, \"slots_per_seat\": 3, "
                                  "\"phys2log\": [[0, 1, 2, 2, 1, -1], [2, 2, 2, 0, 1, 0]]}");

    CK_OK(eep_layout_load(path, 2, 3, &layout));
    ck_assert_int_eq(eep_layout_expert(layout, 0, (struct eep_slot){5}), EEP_NO_EXPERT);
    ck_assert_uint_eq(layout->replica_first[1], 1); /* expert 0 of layer 0 has one replica */
    ck_assert_uint_eq(layout->replica_first[2], 3); /* expert 1 has two: slots 1 and 4 */
    ck_assert_uint_eq(layout->replica_slots[1], 1);
    ck_assert_uint_eq(layout->replica_slots[2], 4);
    ck_assert_uint_eq(layout->replica_first[5] - layout->replica_first[4], 1);
    eep_layout_destroy(layout);
    unlink(path);
}
END_TEST

START_TEST(wrong_layout_files_are_refused_by_name)
{
    const struct {
        const char *text, *names;
    } cases[] = {
        {"{", "eep-layout-test"},
        {"[]", "eep-layout-test"},
        {"{\"slots_per_seat\": 3, \"phys2log\": [[0,1,2]]}", "seats"},
        {"{\"seats\": 0, \"slots_per_seat\": 3, \"phys2log\": [[0,1,2]]}", "seats"},
        {"{\"seats\": 1, \"slots_per_seat\": 2.5, \"phys2log\": [[0,1,2]]}", "slots_per_seat"},
        {"{\"seats\": 1, \"slots_per_seat\": 3}", "phys2log"},
        {"{\"seats\": 1, \"slots_per_seat\": 3, \"phys2log\": [[0,1,2],[0,1,2]]}", "2 lists"},
        {"{\"seats\": 1, \"slots_per_seat\": 3, \"phys2log\": [[0,1]]}", "phys2log[0]"},
        {"{\"seats\": 1, \"slots_per_seat\": 3, \"phys2log\": [[0,1,3]]}", "phys2log[0][2]"},
        {"{\"seats\": 1, \"slots_per_seat\": 3, \"phys2log\": [[0,1,-2]]}", "phys2log[0][2]"},
        {"{\"seats\": 1, \"slots_per_seat\": 3, \"phys2log\": [[0,1,\"2\"]]}", "phys2log[0][2]"},
        {"{\"seats\": 1, \"slots_per_seat\": 3, \"phys2log\": [[0,1,1]]}", "expert 2"},
        {"{\"seats\": 1, \"slots_per_seat\": 2, \"phys2log\": [[0,1]]}", "3 experts"},
        {"{\"seats\": 2000000000, \"slots_per_seat\": 2000000000, \"phys2log\": [[0,1]]}", "2000"},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct eep_layout *layout;
        const char *path = write_file(cases[i].text);

        ck_assert_int_eq(eep_layout_load(path, 1, 3, &layout), EEP_ERR_FORMAT);
        ck_assert_msg(strstr(eep_error_text(), cases[i].names) != NULL, "case %zu: '%s'", i,
                      eep_error_text());
        ck_assert_ptr_nonnull(strstr(eep_error_text(), path));
        unlink(path);
    }
}
END_TEST

START_TEST(the_nearest_replicas_are_used_in_turn)
{
    static const uint32_t nodes[] = {0, 0, 1, 1};
    static const struct eep_topology topo = {.rank = 1,
                                             .size = 4,
                                             .node = 0,
                                             .nodes = 2,
                                             .node_rank = 1,
                                             .node_size = 2,
                                             .node_of = nodes};
    /* Expert 0: here and elsewhere. 1: on this node and elsewhere. 2: twice elsewhere. */
    const char *path = write_file("{\"seats\": 4, \"slots_per_seat\": 2, "
                                  "\"phys2log\": [[0, 1, 0, -1, 2, 1, 2, 0]]}");
    const uint32_t experts[] = {0, 1, 2, 0, 1, 2, 0, 2, 2}, executors[] = {0, 1, 2, 3};
    const bool skip[] = {false, false, true};
    uint32_t ranks[9], slots[9];
    struct eep_layout *layout;
    struct eep_route *route;

    CK_OK(eep_layout_load(path, 1, 3, &layout));
    CK_OK(eep_route_create(layout, executors, &topo, &route));
    eep_route_choose(route, 0, experts, 3, 3, skip, ranks, slots);
    ck_assert_uint_eq(slots[0], 2);
    ck_assert_uint_eq(ranks[0], 1);
    ck_assert_uint_eq(slots[1], 1);
    ck_assert_uint_eq(ranks[1], 0);
    ck_assert_uint_ne(slots[2], slots[5]); /* 4 and 6 in turn */
    ck_assert(slots[2] == 4 || slots[2] == 6);
    ck_assert_uint_eq(ranks[2], slots[2] / 2);
    ck_assert_uint_eq(slots[3], 2);
    for (int i = 6; i < 9; i++) {
        ck_assert_uint_eq(ranks[i], EEP_NO_RANK);
    }
    eep_route_destroy(route);
    eep_layout_destroy(layout);
    unlink(path);
}
END_TEST

START_TEST(seats_are_shared_out_over_any_number_of_ranks)
{
    for (uint32_t seats = 1; seats <= 12; seats++) {
        for (uint32_t ranks = 1; ranks <= 12; ranks++) {
            uint32_t last = 0;

            for (uint32_t seat = 0; seat < seats; seat++) {
                const uint32_t rank = eep_layout_executor(seat, seats, ranks);

                ck_assert_uint_lt(rank, ranks);
                ck_assert_uint_ge(rank, last);
                ck_assert(seats != ranks || rank == seat);
                last = rank;
            }
        }
    }
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        every_expert_has_a_slot_at_any_number_of_seats,
        no_seat_holds_two_replicas_of_an_expert,
        too_many_redundant_experts_are_refused_with_the_numbers,
        a_layout_file_is_read,
        wrong_layout_files_are_refused_by_name,
        the_nearest_replicas_are_used_in_turn,
        seats_are_shared_out_over_any_number_of_ranks,
    };

    return run_tests("layout", tests, COUNT(tests));
}
