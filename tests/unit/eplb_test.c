/* The balancer's rules: whatever the input, an answer that keeps them or a clear refusal. */
#include <math.h>

#include "base/rng.h"
#include "eplb_data.h"

static uint64_t draws;

static uint32_t draw(uint32_t below)
{
    return (uint32_t)(eep_rng_bits(42, draws++) % below);
}

/* ---- the placement cases ------------------------------------------------------------------- */

static uint32_t seats_with(const struct bench *b, int32_t expert)
{
    const uint32_t stride = eep_eplb_slots_per_seat(&b->shape);
    uint32_t seats = 0;

    for (uint32_t s = 0; s < b->shape.seats; s++) {
        bool holds = false;

        for (uint32_t i = 0; i < stride; i++) {
            holds |= b->map[s * stride + i] == expert;
        }
        seats += holds;
    }
    return seats;
}

/* The layout of a first start: slot p holds expert p % experts. */
static void set_initial(const struct bench *b, int32_t *map)
{
    const uint32_t stride = eep_eplb_slots_per_seat(&b->shape);
    uint32_t next = 0;

    for (uint32_t p = 0; p < b->slots; p++) {
        const bool is_there = p % stride < eep_eplb_seat_slots(&b->shape, p / stride);

        map[p] = is_there ? (int32_t)(next++ % b->shape.experts) : EEP_NO_EXPERT;
    }
}

static void check_extra(const char *id, struct bench *b, const struct eep_eplb_ask *ask)
{
    if (strcmp(id, "even") == 0) {
        ck_assert_double_le(b->result.after.max_load, 7.0);
    } else if (strcmp(id, "redundant-0-move") == 0) {
        for (uint32_t e = 0; e < b->shape.experts; e++) {
            ck_assert_uint_eq(b->count[e], 1);
        }
        ck_assert_double_eq(b->result.after.max_load, 10.0);
    } else if (strcmp(id, "zero-load") == 0) {
        int32_t current[64];

        set_initial(b, current);
        struct eep_eplb_ask again = *ask;
        again.current = current;
        plan(b, &again);
        ck_assert_int_eq(b->result.verdict, EEP_EPLB_NO_LOAD);
        ck_assert_uint_eq(b->result.copies, 0);
        ck_assert_mem_eq(b->map, current, b->slots * sizeof(*current));
    } else if (strcmp(id, "one-hot") == 0) {
        ck_assert_uint_eq(b->count[0], 4);
        ck_assert_uint_eq(seats_with(b, 0), 4);
        ck_assert_double_eq(b->result.after.balancedness, 1.0);
    } else if (strcmp(id, "rank-dead") == 0) {
        ck_assert_int_eq(b->map[6], EEP_NO_EXPERT);
        ck_assert_int_eq(b->map[7], EEP_NO_EXPERT);
        ck_assert_int_eq(b->map[8], EEP_NO_EXPERT);
    }
}

START_TEST(placement_cases_hold)
{
    json_t *file = read_json("cases/vectors/placement.json"), *one;
    size_t i;

    ck_assert_uint_eq(json_array_size(json_object_get(file, "cases")), 7);
    json_array_foreach(json_object_get(file, "cases"), i, one)
    {
        const char *id = json_string_value(json_object_get(one, "id"));
        const uint32_t experts = get_count(one, "experts");
        struct bench b = make_bench((struct eep_eplb_shape){
            experts, experts + get_count(one, "redundant"), get_count(one, "ranks"), 1, 1});
        const json_t *dead = json_array_get(json_object_get(one, "dead"), 0);
        double loads[16];
        bool failed[16] = {false};

        for (uint32_t e = 0; e < experts; e++) {
            loads[e] = json_number_value(json_array_get(json_object_get(one, "load"), e));
        }
        if (dead != NULL) {
            failed[json_integer_value(dead)] = true;
        }
        const struct eep_eplb_ask ask = {
            .policy = EEP_EPLB_EEP, .loads = loads, .failed = failed, .max_copies = UINT32_MAX};
        plan(&b, &ask);
        check_map(&b, failed, NULL, false);
        ck_assert(!isnan(b.result.after.balancedness) && b.result.after.balancedness > 0.0);
        check_extra(id, &b, &ask);
        free_bench(&b);
    }
    json_decref(file);
}
END_TEST

/* ---- refusals ------------------------------------------------------------------------------ */

static void ck_refused(struct bench *b, const struct eep_eplb_ask *ask, const char *text)
{
    ck_assert_int_eq(eep_eplb_plan(b->eplb, ask, b->map, b->count, &b->result), EEP_ERR_INVALID);
    ck_assert_msg(strstr(eep_error_text(), text) != NULL, "'%s' has no '%s'", eep_error_text(),
                  text);
}

START_TEST(shapes_that_cannot_be_are_refused)
{
    static const struct {
        struct eep_eplb_shape shape;
        const char *text;
    } bad[] = {
        {{8, 7, 2, 1, 1}, "7 slots cannot hold 8 experts"},
        {{0, 8, 2, 1, 1}, "0 experts"},
        {{8, 8, 0, 1, 1}, "0 ranks"},
        {{8, 8, 2, 0, 1}, "0 nodes"},
        {{8, 8, 2, 1, 0}, "0 groups"},
        {{8, 8, 2, 3, 1}, "3 nodes for 2 ranks"},
        {{70000, 70000, 2, 1, 1}, "above the limits"},
    };

    for (size_t i = 0; i < COUNT(bad); i++) {
        struct eep_eplb *eplb = NULL;

        ck_assert_int_eq(eep_eplb_create(&bad[i].shape, &eplb), EEP_ERR_INVALID);
        ck_assert_ptr_null(eplb);
        ck_assert_msg(strstr(eep_error_text(), bad[i].text) != NULL, "%s", eep_error_text());
    }
}
END_TEST

START_TEST(loads_that_are_no_numbers_are_refused)
{
    const double bad[] = {NAN, INFINITY, -INFINITY, -1.0, 0x1p65};

    for (size_t i = 0; i < COUNT(bad); i++) {
        for (int policy = EEP_EPLB_DEEPSEEK; policy <= EEP_EPLB_EEP; policy++) {
            double loads[8] = {1, 2, 3, 4, 5, 6, 7, 8};
            struct bench b = make_bench((struct eep_eplb_shape){8, 12, 4, 1, 1});

            loads[5] = bad[i];
            ck_refused(&b, &(struct eep_eplb_ask){.policy = policy, .loads = loads}, "expert 5");
            free_bench(&b);
        }
    }
}
END_TEST

START_TEST(too_few_live_slots_are_refused_with_the_numbers)
{
    const double loads[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const bool failed[4] = {false, true, false, true};
    struct bench b = make_bench((struct eep_eplb_shape){8, 12, 4, 1, 1});

    for (int policy = EEP_EPLB_DEEPSEEK; policy <= EEP_EPLB_EEP; policy++) {
        ck_refused(&b, &(struct eep_eplb_ask){.policy = policy, .loads = loads, .failed = failed},
                   "2 of 4 ranks are live; their 6 slots cannot hold 8 experts: 2 more");
    }
    free_bench(&b);
}
END_TEST

START_TEST(the_compatible_policy_names_the_count_that_fits)
{
    const double loads[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    struct bench b = make_bench((struct eep_eplb_shape){5, 5, 2, 1, 1});
    const struct eep_eplb_ask ask = {.policy = EEP_EPLB_DEEPSEEK, .loads = loads};

    ck_refused(&b, &ask,
               "5 slots do not divide by 2 ranks: 5 experts and 0 redundant slots; the next count "
               "that fits is 1 redundant");
    free_bench(&b);
    b = make_bench((struct eep_eplb_shape){4, 4, 6, 1, 1});
    ck_refused(&b, &ask,
               "4 slots do not divide by 6 ranks: 4 experts and 0 redundant slots; the next count "
               "that fits is 2 redundant");
    free_bench(&b);
    b = make_bench((struct eep_eplb_shape){8, 12, 3, 2, 2});
    ck_refused(&b, &ask, "3 ranks do not divide by 2 nodes");
    free_bench(&b);
    b = make_bench((struct eep_eplb_shape){8, 12, 3, 1, 3});
    ck_refused(&b, &ask, "8 experts do not divide by 3 groups");
    free_bench(&b);
}
END_TEST

START_TEST(a_current_map_with_unknown_experts_is_refused)
{
    const double loads[4] = {1, 1, 1, 1};
    const int32_t high[4] = {0, 1, 2, 4}, low[4] = {0, 1, 2, -2};
    struct bench b = make_bench((struct eep_eplb_shape){4, 4, 2, 1, 1});

    ck_refused(&b, &(struct eep_eplb_ask){.loads = loads, .current = high}, "expert 4 in slot 3");
    ck_refused(&b, &(struct eep_eplb_ask){.loads = loads, .current = low}, "expert -2 in slot 3");
    free_bench(&b);
}
END_TEST

/* ---- any input ----------------------------------------------------------------------------- */

struct random_case {
    struct eep_eplb_shape shape;
    double loads[96];
    bool failed[16];
    int32_t current[512];
    bool has_current;
    uint32_t max_copies;
};

static double random_load(uint32_t kind)
{
    const double u = eep_rng_uniform(7, draws++);

    switch (kind) {
    case 0:
        return floor(1000.0 * u);
    case 1: /* some large, many nothing */
        return u < 0.7 ? 0.0 : 1e6 * u;
    case 2: /* many decades */
        return exp(40.0 * u);
    default:
        return 5.0;
    }
}

/* Seats in any order, a few doubled, empty and lost experts. */
static void random_current(struct random_case *c)
{
    const uint32_t stride = eep_eplb_slots_per_seat(&c->shape);

    for (uint32_t p = 0; p < c->shape.seats * stride; p++) {
        const bool is_there = p % stride < eep_eplb_seat_slots(&c->shape, p / stride);

        c->current[p] =
            !is_there || draw(12) == 0 ? EEP_NO_EXPERT : (int32_t)draw(c->shape.experts);
    }
}

static void random_case(struct random_case *c)
{
    const uint32_t seats = 1 + draw(12), kind = draw(4);

    memset(c, 0, sizeof(*c));
    c->shape = (struct eep_eplb_shape){
        .experts = 1 + draw(40), .seats = seats, .nodes = 1 + draw(EEP_MIN(seats, 4)), .groups = 1};
    c->shape.slots = c->shape.experts + draw(2 * c->shape.experts + 1);
    for (uint32_t e = 0; e < c->shape.experts; e++) {
        c->loads[e] = random_load(kind);
    }
    uint32_t live_slots = c->shape.slots;
    for (uint32_t s = 0; s < seats; s++) {
        const uint32_t slots = eep_eplb_seat_slots(&c->shape, s);

        if (draw(4) == 0 && live_slots - slots >= c->shape.experts) {
            c->failed[s] = true;
            live_slots -= slots;
        }
    }
    c->has_current = draw(3) != 0;
    c->max_copies = draw(3) == 0 ? EEP_EPLB_NO_LIMIT : draw(20);
    random_current(c);
}

/* The largest seat load, counted from the map. */
static double max_load(const struct bench *b, const double *loads)
{
    const uint32_t stride = eep_eplb_slots_per_seat(&b->shape);
    double max = 0.0;

    for (uint32_t s = 0; s < b->shape.seats; s++) {
        double load = 0.0;

        for (uint32_t i = 0; i < stride; i++) {
            const int32_t e = b->map[s * stride + i];

            load += e == EEP_NO_EXPERT ? 0.0 : loads[e] / b->count[e];
        }
        max = EEP_MAX(max, load);
    }
    return max;
}

static bool is_whole(const struct eep_eplb_shape *shape, const bool *failed, const int32_t *map)
{
    uint32_t count[96];

    eep_eplb_count(shape, failed, map, count);
    for (uint32_t e = 0; e < shape->experts; e++) {
        if (count[e] == 0) {
            return false;
        }
    }
    return true;
}

static void check_random(const struct random_case *c)
{
    const int32_t *current = c->has_current ? c->current : NULL;
    struct bench b = make_bench(c->shape);
    const struct eep_eplb_ask ask = {.policy = EEP_EPLB_EEP,
                                     .loads = c->loads,
                                     .failed = c->failed,
                                     .current = current,
                                     .max_copies = c->max_copies};

    plan(&b, &ask);
    /* a map that is kept may have what came with it */
    const bool kept = b.result.verdict >= EEP_EPLB_NO_LOAD;
    const uint32_t copies = check_map(&b, c->failed, current, kept);
    if (kept) {
        ck_assert_ptr_nonnull(current);
        ck_assert(is_whole(&c->shape, c->failed, current));
    } else {
        ck_assert_uint_eq(copies, b.result.copies);
    }
    if (current != NULL) {
        ck_assert_uint_le(copies, EEP_MAX(c->max_copies, b.result.lost));
    }
    const double max = max_load(&b, c->loads);
    ck_assert_double_le(fabs(max - b.result.after.max_load), 1e-9 * max + 1e-300);
    ck_assert_double_ge(max, b.result.lower_bound * (1.0 - 1e-9));
    ck_assert(b.result.after.balancedness >= 0.0 && b.result.after.balancedness <= 1.0);
    if (b.result.verdict == EEP_EPLB_MOVED) {
        ck_assert_double_lt(b.result.after.max_load, b.result.before.max_load);
    }
    free_bench(&b);
}

START_TEST(any_input_gives_a_map_that_keeps_the_rules)
{
    struct random_case c;

    for (int i = 0; i < 3000; i++) {
        random_case(&c);
        check_random(&c);
    }
}
END_TEST

START_TEST(the_same_input_gives_the_same_bytes)
{
    struct random_case c;

    for (int i = 0; i < 200; i++) {
        random_case(&c);
        struct eep_eplb_ask ask = {.policy = EEP_EPLB_EEP,
                                   .loads = c.loads,
                                   .failed = c.failed,
                                   .current = c.has_current ? c.current : NULL,
                                   .max_copies = c.max_copies};
        struct bench a = make_bench(c.shape), b = make_bench(c.shape);

        plan(&a, &ask);
        /* another question before, and other places in memory */
        double other[96];
        for (uint32_t e = 0; e < c.shape.experts; e++) {
            other[e] = random_load(0);
        }
        plan(&b, &(struct eep_eplb_ask){
                     .policy = EEP_EPLB_EEP, .loads = other, .max_copies = EEP_EPLB_NO_LIMIT});
        plan(&b, &ask);
        ck_assert_mem_eq(a.map, b.map, a.slots * sizeof(*a.map));
        ck_assert_mem_eq(a.count, b.count, c.shape.experts * sizeof(*a.count));
        /* a power of two changes no digit of a load */
        for (uint32_t e = 0; e < c.shape.experts; e++) {
            other[e] = c.loads[e] * 0x1p-7;
        }
        ask.loads = other;
        plan(&b, &ask);
        ck_assert_mem_eq(a.map, b.map, a.slots * sizeof(*a.map));
        free_bench(&a);
        free_bench(&b);
    }
}
END_TEST

START_TEST(any_one_node_may_go_where_slots_allow)
{
    for (int i = 0; i < 500; i++) {
        const uint32_t nodes = 2 + draw(3), seats = nodes * (1 + draw(3));
        const uint32_t experts = seats + draw(30);
        const struct eep_eplb_shape shape = {experts, 2 * experts + seats + draw(10), seats, nodes,
                                             1};
        struct bench b = make_bench(shape);
        double loads[96];
        int32_t *current = calloc(b.slots, sizeof(*current));

        for (uint32_t e = 0; e < experts; e++) {
            loads[e] = random_load(i % 3);
        }
        struct eep_eplb_ask ask = {
            .policy = EEP_EPLB_EEP, .loads = loads, .max_copies = EEP_EPLB_NO_LIMIT};
        plan(&b, &ask);
        check_map(&b, NULL, NULL, false);
        ck_assert_msg(b.result.single_node == 0, "%u experts, %u slots, %u seats, %u nodes: %u",
                      experts, shape.slots, seats, nodes, b.result.single_node);
        /* and moves keep it so */
        memcpy(current, b.map, b.slots * sizeof(*current));
        for (uint32_t e = 0; e < experts; e++) {
            loads[e] = random_load(i % 3);
        }
        ask.current = current;
        ask.max_copies = 10;
        plan(&b, &ask);
        ck_assert_uint_eq(b.result.single_node, 0);
        free(current);
        free_bench(&b);
    }
}
END_TEST

/* ---- experts that one node alone has ------------------------------------------------------- */

static uint32_t count_singles(const struct bench *b)
{
    uint32_t singles = 0;

    for (uint32_t e = 0; e < b->shape.experts; e++) {
        singles += b->count[e] == 1;
    }
    return singles;
}

/* 288 slots for 256 experts: with 32 more slots at least 224 stay with one node. */
START_TEST(measured_loads_leave_few_experts_on_one_node)
{
    struct loads loads = read_loads("traces/dsv3_prefill_in4096.json");
    struct bench b = make_bench((struct eep_eplb_shape){loads.experts, 288, 32, 4, 1});
    uint32_t as_is = 0, covered = 0;

    for (uint32_t l = 0; l < loads.layers; l++) {
        struct eep_eplb_ask ask = {.policy = EEP_EPLB_EEP,
                                   .loads = loads_of(&loads, l),
                                   .max_copies = EEP_EPLB_NO_LIMIT,
                                   .balance_first = true};

        plan(&b, &ask);
        as_is += b.result.single_node;
        const double most =
            EEP_MAX(b.result.after.max_load, b.result.lower_bound * (1.0 + 1.0 / 2048) + 1.0);
        ask.balance_first = false;
        plan(&b, &ask);
        check_map(&b, NULL, NULL, false);
        ck_assert_uint_eq(b.result.single_node, count_singles(&b)); /* replicas: on two nodes */
        ck_assert_double_le(b.result.after.max_load, most);
        covered += b.result.single_node;
    }
    ck_assert_uint_ge(as_is, 230 * loads.layers);
    ck_assert_uint_ge(covered, 224 * loads.layers);
    ck_assert_uint_le(covered, 224 * loads.layers + loads.layers / 2);
    free_bench(&b);
    free(loads.values);
}
END_TEST

START_TEST(random_loads_leave_fewer_experts_on_one_node)
{
    uint32_t as_is = 0, covered = 0, least = 0;

    for (int i = 0; i < 300; i++) {
        const uint32_t nodes = 2 + draw(3), seats = nodes * (1 + draw(4));
        const uint32_t experts = 2 * seats + draw(30), more = 2 + draw(experts - 2);
        struct bench b =
            make_bench((struct eep_eplb_shape){experts, experts + more, seats, nodes, 1});
        double loads[96];

        for (uint32_t e = 0; e < experts; e++) {
            loads[e] = random_load(0);
        }
        struct eep_eplb_ask ask = {.policy = EEP_EPLB_EEP,
                                   .loads = loads,
                                   .max_copies = EEP_EPLB_NO_LIMIT,
                                   .balance_first = true};
        plan(&b, &ask);
        as_is += b.result.single_node;
        ask.balance_first = false;
        plan(&b, &ask);
        check_map(&b, NULL, NULL, false);
        covered += b.result.single_node;
        least += experts - more;
        free_bench(&b);
    }
    /* small seats are hard to level: at least a quarter of what could be won at any price is */
    ck_assert_msg(covered >= least && 4 * (covered - least) <= 3 * (as_is - least),
                  "%u experts on one node, %u without looking at it, %u at least", covered, as_is,
                  least);
}
END_TEST

START_TEST(moves_leave_experts_on_two_nodes_within_the_budget)
{
    struct loads loads = read_loads("traces/dsv3_prefill_in4096.json");
    struct loads drifted = read_loads("loads/b_prefill_in4096_noise10.json");
    struct bench b = make_bench((struct eep_eplb_shape){loads.experts, 288, 32, 4, 1});
    int32_t *current = calloc(b.slots, sizeof(*current));
    uint32_t singles = 0;

    for (uint32_t l = 0; l < loads.layers; l++) {
        struct eep_eplb_ask ask = {
            .policy = EEP_EPLB_EEP, .loads = loads_of(&loads, l), .max_copies = EEP_EPLB_NO_LIMIT};

        plan(&b, &ask);
        memcpy(current, b.map, b.slots * sizeof(*current));
        ask.loads = loads_of(&drifted, l);
        ask.current = current;
        ask.max_copies = 40;
        plan(&b, &ask);
        ck_assert_uint_le(check_map(&b, NULL, current, false), 40);
        singles += b.result.single_node;
    }
    ck_assert_uint_le(singles, 225 * loads.layers);
    free(current);
    free_bench(&b);
    free(loads.values);
    free(drifted.values);
}
END_TEST

START_TEST(balance_first_gives_hot_experts_the_slots)
{
    double loads[16] = {100.0};
    struct bench b = make_bench((struct eep_eplb_shape){16, 32, 8, 2, 1});
    struct eep_eplb_ask ask = {
        .policy = EEP_EPLB_EEP, .loads = loads, .max_copies = EEP_EPLB_NO_LIMIT};

    for (uint32_t e = 1; e < 16; e++) {
        loads[e] = 1.0;
    }
    plan(&b, &ask);
    ck_assert_uint_eq(b.result.single_node, 0);
    ck_assert_uint_eq(b.count[0], 2);
    ask.balance_first = true;
    plan(&b, &ask);
    ck_assert_uint_eq(b.count[0], 8);
    ck_assert_double_ge(b.result.after.balancedness, 0.95);
    free_bench(&b);
}
END_TEST

/* ---- the true optimum of tiny cases -------------------------------------------------------- */

struct search {
    const double *loads;
    uint32_t experts, seats, stride;
    uint32_t held[4]; /* experts of each seat, as bits */
    uint32_t count[8];
    double best;
};

/* Every set of `stride` experts for every seat. */
static void search_seat(struct search *s, uint32_t seat)
{
    if (seat == s->seats) {
        double max = 0.0;

        for (uint32_t i = 0; i < s->seats; i++) {
            double load = 0.0;

            for (uint32_t e = 0; e < s->experts; e++) {
                if (s->count[e] == 0) {
                    return;
                }
                load += s->held[i] >> e & 1 ? s->loads[e] / s->count[e] : 0.0;
            }
            max = EEP_MAX(max, load);
        }
        s->best = EEP_MIN(s->best, max);
        return;
    }
    for (uint32_t set = 0; set < 1u << s->experts; set++) {
        if ((uint32_t)__builtin_popcount(set) != s->stride) {
            continue;
        }
        s->held[seat] = set;
        for (uint32_t e = 0; e < s->experts; e++) {
            s->count[e] += set >> e & 1;
        }
        search_seat(s, seat + 1);
        for (uint32_t e = 0; e < s->experts; e++) {
            s->count[e] -= set >> e & 1;
        }
    }
}

START_TEST(tiny_cases_reach_the_optimum)
{
    double worst = 0.0;

    for (int i = 0; i < 300; i++) {
        const uint32_t seats = 2 + draw(2), experts = 4 + draw(3);
        const uint32_t least = (experts + seats - 1) / seats;
        const uint32_t stride = EEP_MIN(least + draw(2), experts);
        struct bench b = make_bench((struct eep_eplb_shape){experts, seats * stride, seats, 1, 1});
        double loads[8];

        for (uint32_t e = 0; e < experts; e++) {
            loads[e] = 1.0 + floor(exp(8.0 * eep_rng_uniform(9, draws++)));
        }
        struct search s = {
            .loads = loads, .experts = experts, .seats = seats, .stride = stride, .best = 1e300};
        search_seat(&s, 0);
        plan(&b, &(struct eep_eplb_ask){
                     .policy = EEP_EPLB_EEP, .loads = loads, .max_copies = EEP_EPLB_NO_LIMIT});
        worst = EEP_MAX(worst, b.result.after.max_load / s.best - 1.0);
        ck_assert_double_ge(b.result.after.max_load, s.best * (1.0 - 1e-9));
        free_bench(&b);
    }
    ck_assert_msg(worst <= 0.05, "%.2f %% above the optimum", 100.0 * worst);
}
END_TEST

/* ---- whether a move pays ------------------------------------------------------------------- */

START_TEST(a_second_plan_for_the_same_loads_moves_nothing)
{
    struct loads loads = read_loads("traces/dsv3_prefill_in4096.json");
    struct bench b = make_bench((struct eep_eplb_shape){256, 288, 32, 4, 1});
    int32_t current[288];

    for (uint32_t l = 0; l < loads.layers; l++) {
        struct eep_eplb_ask ask = {
            .policy = EEP_EPLB_EEP, .loads = loads_of(&loads, l), .max_copies = EEP_EPLB_NO_LIMIT};
        plan(&b, &ask);
        memcpy(current, b.map, sizeof(current));
        ask.current = current;
        plan(&b, &ask);
        ck_assert_int_eq(b.result.verdict, EEP_EPLB_BALANCED);
        ck_assert_uint_eq(b.result.copies, 0);
        ck_assert_mem_eq(b.map, current, sizeof(current));
    }
    free(loads.values);
    free_bench(&b);
}
END_TEST

START_TEST(no_move_pays_is_an_answer_with_numbers)
{
    const double loads[4] = {10, 12, 11, 13};
    const int32_t current[4] = {0, 2, 1, 3}; /* 21 and 25; the best is 23 and 23 */
    struct bench b = make_bench((struct eep_eplb_shape){4, 4, 2, 1, 1});
    struct eep_eplb_ask ask = {.policy = EEP_EPLB_EEP,
                               .loads = loads,
                               .current = current,
                               .max_copies = EEP_EPLB_NO_LIMIT,
                               .min_gain = 0.1};

    plan(&b, &ask);
    ck_assert_int_eq(b.result.verdict, EEP_EPLB_NO_GAIN);
    ck_assert_mem_eq(b.map, current, sizeof(current));
    ck_assert_uint_eq(b.result.copies, 0);
    ck_assert_double_eq_tol(b.result.best_gain, 2.0 / 25.0, 1e-12);
    ck_assert_uint_eq(b.result.best_copies, 2);
    ask.min_gain = 0.05;
    plan(&b, &ask);
    ck_assert_int_eq(b.result.verdict, EEP_EPLB_MOVED);
    ck_assert_double_eq(b.result.after.max_load, 23.0);
    ask.max_copies = 0;
    plan(&b, &ask);
    ck_assert_int_eq(b.result.verdict, EEP_EPLB_NO_BUDGET);
    ask.min_total = 47.0;
    plan(&b, &ask);
    ck_assert_int_eq(b.result.verdict, EEP_EPLB_FEW);
    for (int v = EEP_EPLB_FRESH; v <= EEP_EPLB_NO_BUDGET; v++) {
        ck_assert_str_ne(eep_eplb_verdict_text(v), "unknown");
    }
    free_bench(&b);
}
END_TEST

START_TEST(extreme_loads_are_balanced_all_the_same)
{
    const double scales[] = {0x1p63, 1.0, 0x1p-1060};
    double loads[8];

    for (size_t i = 0; i < COUNT(scales); i++) {
        struct bench b = make_bench((struct eep_eplb_shape){8, 12, 4, 1, 1});

        for (uint32_t e = 0; e < 8; e++) {
            loads[e] = scales[i] * (1 + e % 2);
        }
        plan(&b, &(struct eep_eplb_ask){
                     .policy = EEP_EPLB_EEP, .loads = loads, .max_copies = EEP_EPLB_NO_LIMIT});
        check_map(&b, NULL, NULL, false);
        ck_assert_double_ge(b.result.after.balancedness, 0.999);
        plan(&b, &(struct eep_eplb_ask){.policy = EEP_EPLB_DEEPSEEK, .loads = loads});
        check_map(&b, NULL, NULL, true);
        free_bench(&b);
    }
}
END_TEST

START_TEST(new_seats_are_filled_by_few_copies)
{
    /* 4 seats hold 32 experts; 2 more came, empty */
    struct bench b = make_bench((struct eep_eplb_shape){32, 48, 6, 1, 1});
    int32_t current[48];
    double loads[32];

    for (uint32_t p = 0; p < 48; p++) {
        current[p] = p < 32 ? (int32_t)p : EEP_NO_EXPERT;
    }
    for (uint32_t e = 0; e < 32; e++) {
        loads[e] = 100.0 + e;
    }
    plan(&b, &(struct eep_eplb_ask){.policy = EEP_EPLB_EEP,
                                    .loads = loads,
                                    .current = current,
                                    .max_copies = EEP_EPLB_NO_LIMIT});
    const uint32_t copies = check_map(&b, NULL, current, false);
    ck_assert_uint_le(copies, 24);
    ck_assert_double_ge(b.result.after.balancedness, 0.999);
    free_bench(&b);
}
END_TEST

START_TEST(one_budget_serves_the_layers_that_gain_most)
{
    struct loads old = read_loads("traces/dsv3_prefill_in4096.json");
    struct loads new = read_loads("loads/b_prefill_in4096_noise10.json");
    struct bench b = make_bench((struct eep_eplb_shape){256, 288, 32, 1, 1});
    const size_t layers = old.layers;
    int32_t *current = calloc(layers * 288, sizeof(*current));
    int32_t *maps = calloc(layers * 288, sizeof(*maps));
    uint32_t *counts = calloc(layers * 256, sizeof(*counts));
    struct eep_eplb_result *results = calloc(layers, sizeof(*results));
    struct eep_eplb_ask ask = {
        .policy = EEP_EPLB_EEP, .loads = old.values, .max_copies = EEP_EPLB_NO_LIMIT};
    uint64_t copies = 0;
    uint32_t still = 0, turns = 0;

    CK_OK(eep_eplb_plan_layers(b.eplb, &ask, old.layers, UINT64_MAX, current, counts, results));
    ask.loads = new.values;
    ask.current = current;
    ask.max_copies = 31;
    CK_OK(eep_eplb_plan_layers(b.eplb, &ask, old.layers, 700, maps, counts, results));
    for (uint32_t l = 0; l < layers; l++) {
        memcpy(b.map, maps + l * 288, 288 * sizeof(*maps));
        memcpy(b.count, counts + l * 256, 256 * sizeof(*counts));
        const uint32_t here = check_map(&b, NULL, current + l * 288, false);

        ck_assert_uint_eq(here, results[l].copies);
        ck_assert_uint_le(here, 31);
        ck_assert_uint_eq(here > 0, results[l].turn > 0);
        copies += here;
        turns = EEP_MAX(turns, results[l].turn);
        still += here == 0;
    }
    ck_assert_uint_le(copies, 700);
    ck_assert_uint_ge(copies, 690);
    ck_assert_uint_ge(still, 30);
    ck_assert_uint_eq(turns + still, layers);
    free(current);
    free(maps);
    free(counts);
    free(results);
    free(old.values);
    free(new.values);
    free_bench(&b);
}
END_TEST

START_TEST(planning_allocates_nothing)
{
    struct loads loads = read_loads("loads/a_48x128.json");
    const struct eep_eplb_shape shape = {128, 130, 2, 1, 1};
    struct eep_eplb *eplb = NULL;

    eep_mem_fail_nth(1);
    ck_assert_int_eq(eep_eplb_create(&shape, &eplb), EEP_ERR_NOMEM);
    struct bench b = make_bench(shape);
    eep_mem_fail_nth(1);
    plan(&b, &(struct eep_eplb_ask){
                 .policy = EEP_EPLB_EEP, .loads = loads.values, .max_copies = EEP_EPLB_NO_LIMIT});
    plan(&b, &(struct eep_eplb_ask){.policy = EEP_EPLB_DEEPSEEK, .loads = loads.values});
    ck_assert_int_eq(eep_eplb_create(&shape, &eplb), EEP_ERR_NOMEM); /* the failure still waited */
    free(loads.values);
    free_bench(&b);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        placement_cases_hold,
        shapes_that_cannot_be_are_refused,
        loads_that_are_no_numbers_are_refused,
        too_few_live_slots_are_refused_with_the_numbers,
        the_compatible_policy_names_the_count_that_fits,
        a_current_map_with_unknown_experts_is_refused,
        any_input_gives_a_map_that_keeps_the_rules,
        the_same_input_gives_the_same_bytes,
        any_one_node_may_go_where_slots_allow,
        measured_loads_leave_few_experts_on_one_node,
        random_loads_leave_fewer_experts_on_one_node,
        moves_leave_experts_on_two_nodes_within_the_budget,
        balance_first_gives_hot_experts_the_slots,
        tiny_cases_reach_the_optimum,
        a_second_plan_for_the_same_loads_moves_nothing,
        no_move_pays_is_an_answer_with_numbers,
        extreme_loads_are_balanced_all_the_same,
        new_seats_are_filled_by_few_copies,
        one_budget_serves_the_layers_that_gain_most,
        planning_allocates_nothing,
    };

    return run_tests("eplb", tests, COUNT(tests));
}
