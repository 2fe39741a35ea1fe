/*
 * A plain fuzzer for where there is no libFuzzer: changes the seed files, the same way for the
 * same number of rounds, and runs the target until its time is up.
 *
 *     PROGRAM SECONDS DICTIONARY SEED_FILE...
 *
 * When the target crashes or hangs, the input is in ./crash-input; PROGRAM 0 DICTIONARY crash-input
 * runs it again.
 */
#include <signal.h>

#include "base/clock.h"
#include "base/rng.h"
#include "fuzz.h"

#define INPUT_MAX (1 << 16)
#define WORDS_MAX 256
#define SECONDS_PER_INPUT 20

struct bytes {
    uint8_t *data;
    size_t size;
};

static struct bytes *seeds;
static size_t seed_count;
static char words[WORDS_MAX][64];
static size_t word_count;
static uint8_t input[INPUT_MAX];
static size_t input_size;
static uint64_t draws;

static size_t draw(size_t below)
{
    return below == 0 ? 0 : (size_t)(eep_rng_bits(1, draws++) % below);
}

static void load_seed(const char *path, struct bytes *seed)
{
    FILE *file = fopen(path, "rb");

    FUZZ_CHECK(file != NULL);
    seed->data = malloc(INPUT_MAX);
    FUZZ_CHECK(seed->data != NULL);
    seed->size = fread(seed->data, 1, INPUT_MAX, file);
    fclose(file);
}

/* Lines of the form "word", with \" and \\ in them. */
static void load_words(const char *path)
{
    FILE *file = fopen(path, "r");
    char line[128];

    FUZZ_CHECK(file != NULL);
    while (word_count < WORDS_MAX && fgets(line, sizeof(line), file) != NULL) {
        size_t used = 0;

        if (line[0] != '"') {
            continue;
        }
        for (const char *c = line + 1; *c != '\0' && *c != '"' && used < sizeof(words[0]) - 1;
             c++) {
            c += *c == '\\' && c[1] != '\0';
            words[word_count][used++] = *c;
        }
        word_count++;
    }
    fclose(file);
}

/* Replace `cut` bytes at `at` by `size` bytes. */
static void replace(size_t at, size_t cut, const void *data, size_t size)
{
    uint8_t copy[256];

    size = size < sizeof(copy) ? size : sizeof(copy);
    if (input_size - cut + size > INPUT_MAX) {
        return;
    }
    memcpy(copy, data, size); /* it may be a part of the input */
    memmove(input + at + size, input + at + cut, input_size - at - cut);
    memcpy(input + at, copy, size);
    input_size = input_size - cut + size;
}

static void change_once(void)
{
    size_t at = draw(input_size + 1);
    size_t left = input_size - at;
    const struct bytes *other = &seeds[draw(seed_count)];
    size_t from = draw(other->size + 1);
    uint8_t byte = (uint8_t)draw(256);

    switch (draw(7)) {
    case 0:
        if (left > 0) {
            input[at] ^= (uint8_t)(1u << draw(8));
        }
        break;
    case 1:
        replace(at, left > 0, &byte, 1);
        break;
    case 2:
        replace(at, draw(left < 16 ? left + 1 : 16), &byte, 0);
        break;
    case 3:
        replace(at, 0, input + at, draw(left < 64 ? left + 1 : 64));
        break;
    case 4:
        replace(at, draw(left < 8 ? left + 1 : 8), other->data + from,
                draw(other->size - from < 64 ? other->size - from + 1 : 64));
        break;
    default: /* words are what gets past the parser */
        if (word_count > 0) {
            const char *word = words[draw(word_count)];

            replace(at, draw(left < 8 ? left + 1 : 8), word, strlen(word));
        }
        break;
    }
}

/* Only calls what a signal handler may. */
static void save_input(void)
{
    FILE *file = fopen("crash-input", "wb");

    if (file != NULL) {
        (void)!fwrite(input, 1, input_size, file);
        fclose(file);
    }
}

static void on_end(int number)
{
    (void)number;
    fprintf(stderr, "the input that failed or took too long is in crash-input\n");
    save_input();
    _exit(1);
}

static void run_input(void)
{
    uint8_t *copy = malloc(input_size + 1); /* exact, so that the sanitizer sees its end */

    FUZZ_CHECK(copy != NULL);
    memcpy(copy, input, input_size);
    alarm(SECONDS_PER_INPUT);
    LLVMFuzzerTestOneInput(copy, input_size);
    alarm(0);
    free(copy);
}

static void take_seed(const struct bytes *seed)
{
    memcpy(input, seed->data, seed->size);
    input_size = seed->size;
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: %s SECONDS DICTIONARY SEED_FILE...\n", argv[0]);
        return 2;
    }
    uint64_t end_ns = eep_clock_ns() + strtoull(argv[1], NULL, 10) * EEP_NS_PER_S;
    uint64_t rounds = 0;

    load_words(argv[2]);
    seed_count = (size_t)argc - 3;
    seeds = calloc(seed_count, sizeof(*seeds));
    FUZZ_CHECK(seeds != NULL);
    signal(SIGALRM, on_end);
    signal(SIGABRT, on_end);
    for (size_t i = 0; i < seed_count; i++) {
        load_seed(argv[i + 3], &seeds[i]);
        take_seed(&seeds[i]);
        run_input();
    }
    for (; eep_clock_ns() < end_ns; rounds++) {
        take_seed(&seeds[draw(seed_count)]);
        for (size_t change = draw(6) + 1; change > 0; change--) {
            change_once();
        }
        run_input();
    }
    printf("%llu inputs, none failed\n", (unsigned long long)(rounds + seed_count));
    for (size_t i = 0; i < seed_count; i++) {
        free(seeds[i].data);
    }
    free(seeds);
    return 0;
}
