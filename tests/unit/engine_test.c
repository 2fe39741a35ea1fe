/*
 * The engine on one rank: requests before and after loading, ends of text, scores, requests that
 * fail alone, limits, and every allocation failing once.
 */
#include <eep/engine.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "ckpt/ckpt.h"
#include "testutil.h"

static struct eep_engine *open_engine(const char *model)
{
    const struct eep_engine_params params = {
        .fields = EEP_ENGINE_KV_TOKENS, .model = model, .kv_tokens = 512};
    struct eep_engine *engine;

    CK_OK(eep_engine_create(&params, &engine));
    return engine;
}

static uint64_t submit(struct eep_engine *engine, const uint32_t *ids, size_t count,
                       uint32_t max_tokens)
{
    const struct eep_request request = {.prompt = ids,
                                        .prompt_count = count,
                                        .max_tokens = max_tokens,
                                        .top_p = 1.0,
                                        .ignore_eos = true};
    uint64_t id;

    CK_OK(eep_engine_submit(engine, &request, &id));
    return id;
}

#define KINDS (EEP_EVENT_FAILED + 1)

/* Steps until idle; counts events by kind. */
static void run(struct eep_engine *engine, int counts_out[KINDS], struct eep_event *last_out)
{
    struct eep_event event;
    bool idle = false;

    memset(counts_out, 0, KINDS * sizeof(*counts_out));
    while (!idle) {
        CK_OK(eep_engine_step(engine, &idle));
        while (eep_engine_next_event(engine, &event)) {
            counts_out[event.kind]++;
            if (last_out != NULL && event.kind != EEP_EVENT_TOKEN) {
                *last_out = event;
            }
        }
    }
}

START_TEST(requests_come_before_and_after_loading)
{
    const uint32_t ids[] = {3, 7, 1, 30};
    struct eep_engine *engine = open_engine(test_path("cases/model/ok-qwen3"));
    int counts[KINDS];
    size_t a, b;

    ck_assert_uint_eq(submit(engine, ids, 4, 10), 0);
    CK_OK(eep_engine_load(engine));
    run(engine, counts, NULL);
    ck_assert_int_eq(counts[EEP_EVENT_TOKEN], 10);
    ck_assert_int_eq(counts[EEP_EVENT_DONE], 1);
    ck_assert_uint_eq(submit(engine, ids, 4, 10), 1);
    ck_assert_uint_eq(submit(engine, ids, 2, 3), 2);
    run(engine, counts, NULL);
    ck_assert_int_eq(counts[EEP_EVENT_TOKEN], 13);
    ck_assert_int_eq(counts[EEP_EVENT_DONE], 2);
    const uint32_t *first = eep_engine_tokens(engine, 0, &a);
    const uint32_t *second = eep_engine_tokens(engine, 1, &b);
    ck_assert_uint_eq(a, 10);
    ck_assert_uint_eq(b, 10);
    ck_assert_mem_eq(first, second, 10 * sizeof(*first));
    eep_engine_destroy(engine);
}
END_TEST

START_TEST(an_end_of_text_token_ends_a_request)
{
    const uint32_t ids[] = {3, 7, 1, 30};
    struct eep_engine *engine = open_engine(test_path("cases/model/ok-qwen3"));
    struct eep_request request = {
        .prompt = ids, .prompt_count = 4, .max_tokens = 60, .top_p = 1.0, .temperature = 3.0};
    bool ended_early = false;
    uint64_t id;
    int counts[KINDS];

    CK_OK(eep_engine_load(engine));
    for (request.seed = 0; request.seed < 20; request.seed++) { /* eos is 2, one of 32 ids */
        size_t count;

        CK_OK(eep_engine_submit(engine, &request, &id));
        run(engine, counts, NULL);
        const uint32_t *tokens = eep_engine_tokens(engine, id, &count);

        for (size_t i = 0; i + 1 < count; i++) {
            ck_assert_uint_ne(tokens[i], 2);
        }
        ck_assert(count == 60 || tokens[count - 1] == 2);
        ended_early |= count < 60;
    }
    ck_assert(ended_early);
    eep_engine_destroy(engine);
}
END_TEST

START_TEST(a_score_is_the_sum_over_the_prompt)
{
    const uint32_t ids[] = {3, 7, 1, 30, 12, 5};
    struct eep_engine *engine = open_engine(test_path("cases/model/ok-qwen3"));
    struct eep_request request = {.prompt = ids, .prompt_count = 6, .top_p = 1.0, .score = true};
    struct eep_event event;
    double shorter;
    int counts[KINDS];
    uint64_t id;

    CK_OK(eep_engine_load(engine));
    request.prompt_count = 5;
    CK_OK(eep_engine_submit(engine, &request, &id));
    run(engine, counts, &event);
    shorter = event.nll;
    request.prompt_count = 6;
    CK_OK(eep_engine_submit(engine, &request, &id));
    run(engine, counts, &event);
    ck_assert_int_eq(counts[EEP_EVENT_DONE], 1);
    ck_assert(event.nll > shorter && shorter > 0.0);
    request.prompt_count = 1; /* nothing to score */
    CK_OK(eep_engine_submit(engine, &request, &id));
    run(engine, counts, &event);
    ck_assert(event.nll == 0.0);
    eep_engine_destroy(engine);
}
END_TEST

/* A copy of the model whose embedding of `token` is NaN. */
static void write_poisoned(const char *from, const char *to, uint32_t token)
{
    struct eep_ckpt *ckpt;
    char command[8192], path[4096];
    struct eep_tensor_out out[256];
    static uint16_t embed[32 * 16];

    CK_OK(eep_ckpt_open(from, &ckpt));
    ck_assert_uint_le(eep_ckpt_count(ckpt), COUNT(out));
    for (size_t i = 0; i < eep_ckpt_count(ckpt); i++) {
        const struct eep_tensor *tensor = eep_ckpt_at(ckpt, i);

        out[i] = (struct eep_tensor_out){.name = tensor->name,
                                         .dtype = tensor->dtype,
                                         .dims = tensor->dims,
                                         .data = tensor->data};
        memcpy(out[i].shape, tensor->shape, sizeof(tensor->shape));
        if (strcmp(tensor->name, "model.embed_tokens.weight") == 0) {
            ck_assert_uint_eq(tensor->bytes, sizeof(embed));
            memcpy(embed, tensor->data, sizeof(embed));
            embed[token * 16] = 0x7fc0; /* NaN */
            out[i].data = embed;
        }
    }
    snprintf(path, sizeof(path), "%s/model.safetensors", to);
    CK_OK(eep_safetensors_write(path, out, eep_ckpt_count(ckpt)));
    snprintf(command, sizeof(command), "cp '%s/config.json' '%s/'", from, to);
    ck_assert_int_eq(system(command), 0);
    eep_ckpt_close(ckpt);
}

START_TEST(a_request_of_nan_fails_alone)
{
    const uint32_t good[] = {3, 7, 1, 30}, bad[] = {3, 9, 1};
    char dir[] = "/tmp/eep-engine-test-XXXXXX", path[128];
    struct eep_engine *engine;
    struct eep_event event;
    uint32_t alone[10];
    int counts[KINDS];
    size_t count;

    ck_assert_ptr_nonnull(mkdtemp(dir));
    write_poisoned(test_path("cases/model/ok-qwen3"), dir, 9);
    engine = open_engine(dir);
    CK_OK(eep_engine_load(engine));
    submit(engine, good, 4, 10);
    run(engine, counts, NULL);
    ck_assert_int_eq(counts[EEP_EVENT_TOKEN], 10);
    memcpy(alone, eep_engine_tokens(engine, 0, &count), sizeof(alone));

    submit(engine, good, 4, 10);
    submit(engine, bad, 3, 10);
    submit(engine, good, 4, 10);
    run(engine, counts, NULL);
    ck_assert_int_eq(counts[EEP_EVENT_TOKEN], 20);
    ck_assert_int_eq(counts[EEP_EVENT_DONE], 2);
    ck_assert_int_eq(counts[EEP_EVENT_FAILED], 1);
    ck_assert_mem_eq(eep_engine_tokens(engine, 1, &count), alone, sizeof(alone));
    ck_assert_mem_eq(eep_engine_tokens(engine, 3, &count), alone, sizeof(alone));
    eep_engine_tokens(engine, 2, &count);
    ck_assert_uint_eq(count, 0);

    submit(engine, bad, 3, 10);
    run(engine, counts, &event);
    ck_assert_int_eq(event.kind, EEP_EVENT_FAILED);
    ck_assert_ptr_nonnull(strstr(event.reason, "layer 0"));
    submit(engine, good, 4, 10); /* its blocks are free again, NaN in them or not */
    run(engine, counts, NULL);
    ck_assert_mem_eq(eep_engine_tokens(engine, 5, &count), alone, sizeof(alone));
    eep_engine_destroy(engine);
    snprintf(path, sizeof(path), "%s/config.json", dir);
    unlink(path);
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    unlink(path);
    rmdir(dir);
}
END_TEST

START_TEST(wrong_requests_are_refused)
{
    const uint32_t ids[] = {3, 32}, good[] = {3};
    struct eep_engine *engine = open_engine(test_path("cases/model/ok-qwen3"));
    const struct {
        struct eep_request request;
        const char *names;
    } cases[] = {
        {{.prompt = ids, .prompt_count = 0, .max_tokens = 1, .top_p = 1.0}, "empty"},
        {{.prompt = ids, .prompt_count = 2, .max_tokens = 1, .top_p = 1.0}, "32"},
        {{.prompt = good, .prompt_count = 1, .max_tokens = 0, .top_p = 1.0}, "max_tokens"},
        {{.prompt = good, .prompt_count = 1, .max_tokens = 128, .top_p = 1.0}, "128"},
        {{.prompt = good, .prompt_count = 1, .max_tokens = 1, .top_p = 2.0}, "top_p"},
        {{.prompt = good, .prompt_count = 1, .max_tokens = 1, .top_p = 1.0, .score = true},
         "max_tokens"},
    };
    uint64_t id;

    CK_OK(eep_engine_load(engine));
    for (size_t i = 0; i < COUNT(cases); i++) {
        ck_assert_int_eq(eep_engine_submit(engine, &cases[i].request, &id), EEP_ERR_INVALID);
        ck_assert_ptr_nonnull(strstr(eep_error_text(), cases[i].names));
    }
    eep_engine_destroy(engine);
}
END_TEST

START_TEST(more_requests_than_the_cache_holds_wait)
{
    const struct eep_engine_params params = {
        .fields = EEP_ENGINE_KV_TOKENS | EEP_ENGINE_MAX_SEQUENCES | EEP_ENGINE_MAX_BATCH_TOKENS,
        .model = test_path("cases/model/ok-mixtral"),
        .kv_tokens = 64,
        .max_sequences = 3,
        .max_batch_tokens = 4};
    struct eep_engine *engine;
    uint32_t ids[40];
    int counts[KINDS];

    for (uint32_t i = 0; i < 40; i++) {
        ids[i] = i % 32;
    }
    CK_OK(eep_engine_create(&params, &engine));
    CK_OK(eep_engine_load(engine));
    for (uint32_t i = 0; i < 12; i++) { /* 1 or 2 blocks each, 2 in all */
        submit(engine, ids, 1 + 3 * i, 5);
    }
    run(engine, counts, NULL);
    ck_assert_int_eq(counts[EEP_EVENT_TOKEN], 60);
    ck_assert_int_eq(counts[EEP_EVENT_DONE], 12);

    const struct eep_request too_long = {
        .prompt = ids, .prompt_count = 40, .max_tokens = 25, .top_p = 1.0};
    uint64_t id;
    ck_assert_int_eq(eep_engine_submit(engine, &too_long, &id), EEP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(eep_error_text(), "KV cache"));
    eep_engine_destroy(engine);
}
END_TEST

/* The whole life of an engine; returns the first failure. */
static enum eep_status live(void)
{
    const uint32_t ids[] = {3, 7, 1};
    const struct eep_engine_params params = {.model = test_path("cases/model/ok-qwen3")};
    const struct eep_request request = {
        .prompt = ids, .prompt_count = 3, .max_tokens = 3, .top_p = 1.0, .keep_logits = true};
    struct eep_engine *engine;
    bool idle = false;
    uint64_t id;

    EEP_TRY(eep_engine_create(&params, &engine));
    enum eep_status status = eep_engine_submit(engine, &request, &id);
    if (status == EEP_OK) {
        status = eep_engine_load(engine);
    }
    while (status == EEP_OK && !idle) {
        status = eep_engine_step(engine, &idle);
    }
    eep_engine_destroy(engine);
    return status;
}

START_TEST(every_allocation_fails_once)
{
    uint64_t nth = 1;

    for (;; nth++) {
        eep_mem_fail_nth(nth);
        const enum eep_status status = live();

        eep_mem_fail_nth(0);
        if (status == EEP_OK) {
            break;
        }
        ck_assert_msg(status == EEP_ERR_NOMEM, "allocation %llu: %d %s", (unsigned long long)nth,
                      status, eep_error_text());
        ck_assert_uint_gt(strlen(eep_error_text()), 0);
        ck_assert_uint_lt(nth, 1000);
    }
    ck_assert_uint_gt(nth, 30); /* the run without a failure came after many with one */
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        requests_come_before_and_after_loading,
        an_end_of_text_token_ends_a_request,
        a_score_is_the_sum_over_the_prompt,
        a_request_of_nan_fails_alone,
        wrong_requests_are_refused,
        more_requests_than_the_cache_holds_wait,
        every_allocation_fails_once,
    };

    return run_tests("engine", tests, COUNT(tests));
}
