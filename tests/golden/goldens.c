/*
 * goldens MODEL_DIR: the stored answers of Hugging Face against the engine, on as many ranks as it
 * is started with. All prompts run together: the 32 greedy tokens of each must be equal, the logits
 * of the first within 1e-4 + 1e-4 |golden|. Prints "ok" on rank 0.
 */
#include <eep/engine.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "ckpt/ckpt.h"

enum { GENERATED = 32 };

static int fail(const char *what)
{
    eep_log(EEP_LOG_ERROR, "%s: %s", what, eep_error_text());
    return 1;
}

static int submit_all(struct eep_engine *engine, const json_t *prompts)
{
    size_t index;
    json_t *prompt;

    json_array_foreach(prompts, index, prompt)
    {
        const json_t *list = json_object_get(prompt, "ids");
        uint32_t ids[2048];
        uint64_t id;
        struct eep_request request = {.prompt = ids,
                                      .prompt_count = json_array_size(list),
                                      .max_tokens = GENERATED,
                                      .top_p = 1.0,
                                      .ignore_eos = true,
                                      .keep_logits = true};

        for (size_t i = 0; i < request.prompt_count && i < 2048; i++) {
            ids[i] = (uint32_t)json_integer_value(json_array_get(list, i));
        }
        if (eep_engine_submit(engine, &request, &id) != EEP_OK) {
            return fail("submit");
        }
    }
    return 0;
}

static int check_tokens(const struct eep_engine *engine, const json_t *greedy, size_t index)
{
    size_t count;
    const uint32_t *tokens = eep_engine_tokens(engine, index, &count);

    if (count != GENERATED || json_array_size(greedy) != GENERATED) {
        eep_log(EEP_LOG_ERROR, "prompt %zu: %zu tokens", index, count);
        return 1;
    }
    for (size_t i = 0; i < count; i++) {
        const json_int_t want = json_integer_value(json_array_get(greedy, i));

        if (tokens[i] != want) {
            eep_log(EEP_LOG_ERROR, "prompt %zu, token %zu: %u instead of %lld", index, i, tokens[i],
                    (long long)want);
            return 1;
        }
    }
    return 0;
}

static int check_logits(struct eep_engine *engine, const struct eep_tensor *golden, size_t index)
{
    const uint32_t vocab = eep_engine_vocab(engine);
    int failed = 0;
    float *logits;
    size_t rows;

    if (eep_engine_collect_logits(engine, index, &logits, &rows) != EEP_OK) {
        return fail("logits");
    }
    for (uint32_t i = 0; logits != NULL && i < vocab && !failed; i++) {
        const double want = ((const float *)golden->data)[index * vocab + i];

        if (!(fabs(logits[i] - want) <= 1e-4 + 1e-4 * fabs(want))) {
            eep_log(EEP_LOG_ERROR, "prompt %zu, logit %u: %.9g instead of %.9g", index, i,
                    (double)logits[i], want);
            failed = 1;
        }
    }
    free(logits);
    return failed;
}

static int check_all(struct eep_engine *engine, const json_t *file, const struct eep_tensor *golden)
{
    const json_t *prompts = json_object_get(file, "prompts"),
                 *greedy = json_object_get(file, "greedy");
    struct eep_event event;
    bool idle = false;
    int failures = 0;

    if (golden->count != json_array_size(prompts) * eep_engine_vocab(engine)) {
        eep_log(EEP_LOG_ERROR, "the golden logits have another shape");
        return 1;
    }
    while (!idle) {
        if (eep_engine_step(engine, &idle) != EEP_OK) {
            return fail("step");
        }
        while (eep_engine_next_event(engine, &event)) {
            failures += event.kind == EEP_EVENT_FAILED;
        }
    }
    for (size_t i = 0; i < json_array_size(prompts); i++) {
        failures += check_tokens(engine, json_array_get(greedy, i), i);
        failures += check_logits(engine, golden, i);
    }
    return failures;
}

int main(int argc, char **argv)
{
    char path[4096];
    struct eep_engine_params params = {.model = argc > 1 ? argv[1] : NULL};
    struct eep_engine *engine;
    struct eep_safetensors *file;
    json_t *golden;

    if (argc != 2) {
        fprintf(stderr, "usage: goldens MODEL_DIR\n");
        return 2;
    }
    snprintf(path, sizeof(path), "%s/golden/logits.safetensors", argv[1]);
    if (eep_safetensors_open(path, &file) != EEP_OK) {
        return fail(path);
    }
    snprintf(path, sizeof(path), "%s/golden/prompts.json", argv[1]);
    golden = json_load_file(path, 0, NULL);
    const json_t *prompts = json_object_get(golden, "prompts");
    if (json_array_size(prompts) == 0) {
        return fail(path);
    }
    if (eep_engine_create(&params, &engine) != EEP_OK) {
        return fail("create");
    }
    int failures = submit_all(engine, prompts);
    if (failures == 0 && eep_engine_load(engine) != EEP_OK) {
        failures = fail("load");
    }
    failures += failures == 0 ? check_all(engine, golden, eep_safetensors_find(file, "logits")) : 0;
    const uint32_t rank = eep_engine_rank(engine);
    eep_engine_destroy(engine);
    eep_safetensors_close(file);
    json_decref(golden);
    if (rank == 0 && failures == 0) {
        printf("ok\n");
    }
    return failures == 0 ? 0 : 1;
}
