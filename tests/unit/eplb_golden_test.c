/* The compatible policy against the reference outputs; the own policy against its bars. */
#include <math.h>

#include "eplb_data.h"

/* ---- policy deepseek: bit for bit -------------------------------------------------------- */

static const char *const golden_files[] = {
    "cfg_a_48x128_p130_r2",
    "cfg_b_decode_global_p288_r32",
    "cfg_b_prefill_global_p288_r32",
    "cfg_b_prefill_hier_p288_r32_n4_g8",
    "cfg_c_61x384_p448_r64",
    "cfg_d_60x256_p320_r40",
    "cfg_d_60x256_p320_r40_dead_5_17_33",
    "small_dead_1_of_4",
    "small_dead_2_of_8",
    "small_random_global",
    "small_random_hier",
    "small_random_hier_groups2nodes",
    "tiny_big_counts",
    "tiny_equal",
    "tiny_flashlb_example",
    "tiny_groups_not_divisible",
    "tiny_no_redundancy",
    "tiny_one_hot",
    "tiny_one_slot_per_rank",
    "tiny_readme",
    "tiny_single_rank",
    "tiny_zero",
};

static double number_at(const json_t *list, uint32_t index)
{
    const json_t *value = json_array_get(list, index);

    ck_assert(json_is_number(value));
    return json_number_value(value);
}

/* One layer of a golden file; failed seats hold 0 there, which is padding, and nothing here. */
static void check_layer(const char *name, const json_t *golden, const json_t *out, uint32_t layer,
                        const bool *failed, const struct bench *b)
{
    const uint32_t stride = eep_eplb_slots_per_seat(&b->shape);
    const json_t *map = json_array_get(json_object_get(out, "phy2log"), layer);
    const json_t *count = json_array_get(json_object_get(out, "logcnt"), layer);

    ck_assert_uint_eq(json_array_size(map), b->slots);
    for (uint32_t p = 0; p < b->slots; p++) {
        const int32_t wanted = failed[p / stride] ? EEP_NO_EXPERT : (int32_t)number_at(map, p);

        ck_assert_msg(b->map[p] == wanted, "%s: layer %u, slot %u: %d, wanted %d", name, layer, p,
                      b->map[p], wanted);
    }
    for (uint32_t e = 0; e < b->shape.experts; e++) {
        ck_assert_uint_eq(b->count[e], (uint32_t)number_at(count, e));
    }
    const double bound = number_at(json_object_get(golden, "lower_bound_max_load"), layer);
    const double balancedness = number_at(json_object_get(out, "balancedness_per_layer"), layer);
    ck_assert_double_eq_tol(b->result.lower_bound, bound, bound * 1e-6 + 1e-9);
    ck_assert_double_eq_tol(b->result.after.balancedness, balancedness, 2e-6);
}

static void check_golden(const char *name)
{
    char path[256];
    bool failed[64] = {false};

    snprintf(path, sizeof(path), "eplb/golden/%s.json", name);
    json_t *golden = read_json(path);
    const json_t *file = json_object_get(golden, "loads_file");
    const json_t *active = json_object_get(golden, "active_ranks");
    const json_t *out =
        json_object_get(json_object_get(golden, "outputs"),
                        active != NULL ? "sglang_elasticity_aware" : "deepseek_eplb");
    struct bench b = make_bench((struct eep_eplb_shape){
        .experts = get_count(golden, "num_experts"),
        .slots = get_count(golden, "num_slots"),
        .seats = get_count(golden, "num_ranks"),
        .nodes = get_count(golden, "num_nodes"),
        .groups = get_count(golden, "num_groups"),
    });
    struct loads loads;
    if (file != NULL) {
        loads = read_loads(json_string_value(file));
    } else {
        loads = make_loads(get_count(golden, "num_layers"), b.shape.experts);
        fill_loads(json_object_get(golden, "loads"), &loads);
    }
    for (uint32_t s = 0; s < json_array_size(active); s++) {
        failed[s] = number_at(active, s) == 0.0;
    }
    for (uint32_t layer = 0; layer < loads.layers; layer++) {
        const struct eep_eplb_ask ask = {.policy = EEP_EPLB_DEEPSEEK,
                                         .loads = loads_of(&loads, layer),
                                         .failed = active != NULL ? failed : NULL,
                                         .max_copies = EEP_EPLB_NO_LIMIT};

        plan(&b, &ask);
        check_layer(name, golden, out, layer, failed, &b);
    }
    free(loads.values);
    free_bench(&b);
    json_decref(golden);
}

START_TEST(deepseek_equals_every_reference_output)
{
    for (size_t i = 0; i < COUNT(golden_files); i++) {
        check_golden(golden_files[i]);
    }
}
END_TEST

/* ---- policy eep: the bars ---------------------------------------------------------------- */

static const char trace_b[] = "traces/dsv3_prefill_in4096.json";
static const char drift_b[] = "loads/b_prefill_in4096_noise10.json";

static void check_fresh(const char *file, struct eep_eplb_shape shape, const char *dead)
{
    struct loads loads = read_loads(file);
    double over = 0.0;
    bool failed[64];

    shape.experts = loads.experts;
    struct bench b = make_bench(shape);
    mark_failed(failed, shape.seats, dead);
    for (uint32_t l = 0; l < loads.layers; l++) {
        plan(&b, &(struct eep_eplb_ask){.policy = EEP_EPLB_EEP,
                                        .loads = loads_of(&loads, l),
                                        .failed = failed,
                                        .max_copies = EEP_EPLB_NO_LIMIT});
        check_map(&b, failed, NULL, false);
        ck_assert_uint_eq(b.result.doubled, 0);
        const double part = b.result.after.max_load / b.result.lower_bound - 1.0;
        ck_assert_double_ge(part, -1e-9);
        ck_assert_msg(part <= 0.001, "%s: layer %u is %.4f %% over the bound", file, l,
                      100.0 * part);
        over += part / loads.layers;
    }
    ck_assert_msg(over <= 0.0005, "%s: %.4f %% over the bound", file, 100.0 * over);
    free_bench(&b);
    free(loads.values);
}

START_TEST(fresh_maps_are_at_the_lower_bound)
{
    check_fresh("loads/a_48x128.json", (struct eep_eplb_shape){0, 130, 2, 1, 1}, NULL);
    check_fresh(trace_b, (struct eep_eplb_shape){0, 288, 32, 1, 1}, NULL);
    check_fresh(trace_b, (struct eep_eplb_shape){0, 288, 32, 4, 8}, NULL);
    check_fresh("traces/dsv3_decode_in1000out1000.json", (struct eep_eplb_shape){0, 288, 32, 1, 1},
                NULL);
    check_fresh("loads/c_61x384.json", (struct eep_eplb_shape){0, 448, 64, 1, 1}, NULL);
    check_fresh("loads/d_60x256.json", (struct eep_eplb_shape){0, 320, 40, 1, 1}, NULL);
    check_fresh("loads/d_60x256.json", (struct eep_eplb_shape){0, 320, 40, 1, 1}, "5,17,33");
}
END_TEST

/* Means over the layers after a change of loads or seats. */
struct after {
    double balancedness, copies;
    uint32_t lost;
};

/* From a map for old_file (by `first`) to one for new_file within max_copies. */
static struct after change(const char *old_file, const char *new_file, struct eep_eplb_shape shape,
                           const char *dead, enum eep_eplb_policy first, uint32_t max_copies)
{
    struct loads old = read_loads(old_file), new = read_loads(new_file);
    struct after after = {0};
    bool failed[64];

    shape.experts = old.experts;
    struct bench b = make_bench(shape);
    int32_t *current = calloc(b.slots, sizeof(*current));
    mark_failed(failed, shape.seats, dead);
    for (uint32_t l = 0; l < old.layers; l++) {
        plan(&b, &(struct eep_eplb_ask){
                     .policy = first, .loads = loads_of(&old, l), .max_copies = EEP_EPLB_NO_LIMIT});
        memcpy(current, b.map, b.slots * sizeof(*current));
        plan(&b, &(struct eep_eplb_ask){.policy = EEP_EPLB_EEP,
                                        .loads = loads_of(&new, l),
                                        .failed = dead != NULL ? failed : NULL,
                                        .current = current,
                                        .max_copies = max_copies});
        const uint32_t copies = check_map(&b, dead != NULL ? failed : NULL, current, false);
        ck_assert_uint_eq(copies, b.result.copies);
        ck_assert_msg(copies <= EEP_MAX(max_copies, b.result.lost), "layer %u: %u copies", l,
                      copies);
        after.balancedness += b.result.after.balancedness / old.layers;
        after.copies += (double)copies / old.layers;
        after.lost += b.result.lost;
    }
    free(current);
    free(old.values);
    free(new.values);
    free_bench(&b);
    return after;
}

START_TEST(few_copies_follow_a_drift)
{
    static const struct {
        uint32_t max_copies;
        double balancedness;
    } bars[] = {{8, 0.966}, {31, 0.996}, {55, 0.999}, {EEP_EPLB_NO_LIMIT, 0.9995}};
    /* asked were 0.96 and 0.9935 for the first two; this is what the thrifty search gives */

    for (uint32_t nodes = 1; nodes <= 4; nodes += 3) {
        for (size_t i = 0; i < COUNT(bars); i++) {
            const struct eep_eplb_shape shape = {0, 288, 32, nodes, 1};
            const struct after after =
                change(trace_b, drift_b, shape, NULL, EEP_EPLB_DEEPSEEK, bars[i].max_copies);

            ck_assert_msg(after.balancedness >= bars[i].balancedness, "%u copies: %.5f",
                          bars[i].max_copies, after.balancedness);
        }
    }
}
END_TEST

START_TEST(a_compatible_plan_tells_its_copies)
{
    struct loads old = read_loads(trace_b), new = read_loads(drift_b);
    struct bench b = make_bench((struct eep_eplb_shape){old.experts, 288, 32, 1, 1});
    int32_t current[288];
    uint64_t copies = 0;

    for (uint32_t l = 0; l < old.layers; l++) {
        struct eep_eplb_ask ask = {.policy = EEP_EPLB_DEEPSEEK, .loads = loads_of(&old, l)};

        plan(&b, &ask);
        memcpy(current, b.map, sizeof(current));
        ask.loads = loads_of(&new, l);
        ask.current = current;
        plan(&b, &ask);
        ck_assert_uint_eq(check_map(&b, NULL, current, true), b.result.copies);
        ck_assert_int_eq(b.result.verdict, EEP_EPLB_MOVED);
        copies += b.result.copies;
    }
    ck_assert_double_eq_tol((double)copies / old.layers, 275.1, 0.05);
    free(old.values);
    free(new.values);
    free_bench(&b);
}
END_TEST

START_TEST(few_copies_follow_other_drifts)
{
    const struct eep_eplb_shape a = {0, 130, 2, 1, 1}, c = {0, 448, 64, 1, 1};
    struct after after =
        change("loads/a_48x128.json", "loads/a_48x128_noise10.json", a, NULL, EEP_EPLB_EEP, 2);

    ck_assert_double_ge(after.balancedness, 0.999);
    after = change("loads/c_61x384.json", "loads/c_61x384_noise10.json", c, NULL, EEP_EPLB_EEP, 63);
    ck_assert_double_ge(after.balancedness, 0.994);
    /* prompts to answers: hot experts are others, and replicas must follow */
    after =
        change(trace_b, "traces/dsv3_decode_in1000out1000.json",
               (struct eep_eplb_shape){0, 288, 32, 1, 1}, NULL, EEP_EPLB_EEP, EEP_EPLB_NO_LIMIT);
    ck_assert_double_ge(after.balancedness, 0.9995);
}
END_TEST

START_TEST(lost_experts_come_first)
{
    const char d[] = "loads/d_60x256.json", dead[] = "5,17,33";
    const struct eep_eplb_shape shape = {0, 320, 40, 1, 1};
    struct after after = change(d, d, shape, dead, EEP_EPLB_DEEPSEEK, 0);

    ck_assert_uint_eq(after.lost, 938);
    ck_assert_double_eq_tol(after.copies, 938.0 / 60.0, 1e-9); /* no copy more than they need */
    ck_assert_double_ge(after.balancedness, 0.6929);
    after = change(d, d, shape, dead, EEP_EPLB_DEEPSEEK, 71);
    ck_assert_uint_eq(after.lost, 938);
    ck_assert_double_ge(after.balancedness, 0.999); /* 0.994 was asked */
}
END_TEST

START_TEST(small_cases_are_near_the_optimum)
{
    json_t *file = read_json("eplb/golden/small_optimum.json");
    json_t *instances = json_object_get(file, "instances"), *instance;
    size_t i;

    ck_assert_uint_eq(json_array_size(instances), 22);
    json_array_foreach(instances, i, instance)
    {
        struct loads loads = make_loads(1, get_count(instance, "num_experts"));
        struct bench b =
            make_bench((struct eep_eplb_shape){loads.experts, get_count(instance, "num_slots"),
                                               get_count(instance, "num_ranks"), 1, 1});
        const double best = json_number_value(json_object_get(instance, "opt_max_over_mean"));
        const double bound = json_number_value(json_object_get(instance, "dual_bound"));

        for (uint32_t e = 0; e < loads.experts; e++) {
            loads.values[e] = number_at(json_object_get(instance, "loads"), e);
        }
        plan(&b, &(struct eep_eplb_ask){
                     .policy = EEP_EPLB_EEP, .loads = loads.values, .max_copies = UINT32_MAX});
        check_map(&b, NULL, NULL, false);
        const double mine = b.result.after.max_load / b.result.after.mean_load;
        ck_assert_msg(mine <= best * 1.05, "instance %zu: %.4f, the optimum is %.4f", i, mine,
                      best);
        ck_assert_double_ge(mine, bound - 1e-5);
        free_bench(&b);
        free(loads.values);
    }
    json_decref(file);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        deepseek_equals_every_reference_output,
        fresh_maps_are_at_the_lower_bound,
        few_copies_follow_a_drift,
        a_compatible_plan_tells_its_copies,
        few_copies_follow_other_drifts,
        lost_experts_come_first,
        small_cases_are_near_the_optimum,
    };

    return run_tests("eplb_golden", tests, COUNT(tests));
}
