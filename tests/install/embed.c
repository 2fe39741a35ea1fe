/*
 * How a program embeds eep: built with `cc embed.c $(pkg-config --cflags --libs eep)`, started
 * alone or by mpirun. Prints the ids that a checkpoint answers to a prompt of the ids 1 2 3.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <eep/engine.h>

static void check(enum eep_status status)
{
    if (status != EEP_OK) {
        fprintf(stderr, "%s: %s\n", eep_status_text(status), eep_error_text());
        exit(EXIT_FAILURE);
    }
}

int main(int argc, char **argv)
{
    const uint32_t prompt[] = {1, 2, 3};
    const struct eep_request request = {
        .prompt = prompt, .prompt_count = 3, .max_tokens = 8, .top_p = 1, .ignore_eos = true};
    const struct eep_engine_params params = {.model = argc > 1 ? argv[1] : "."};
    struct eep_engine *engine;
    struct eep_event event;
    uint64_t id;
    bool idle = false;

    check(eep_engine_create(&params, &engine));
    check(eep_engine_submit(engine, &request, &id));
    check(eep_engine_load(engine));
    while (!idle) {
        check(eep_engine_step(engine, &idle));
        while (eep_engine_next_event(engine, &event)) {
            if (event.kind == EEP_EVENT_TOKEN && eep_engine_rank(engine) == 0) {
                printf("%" PRIu32 "\n", event.token);
            }
        }
    }
    eep_engine_destroy(engine);
    return EXIT_SUCCESS;
}
