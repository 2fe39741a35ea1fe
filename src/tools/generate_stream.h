/*
 * Prompts of `eep generate` that come on standard input while others are answered: rank 0 reads the
 * lines that are there between two steps and hands them to the engine.
 */
#ifndef EEP_TOOLS_GENERATE_STREAM_H
#define EEP_TOOLS_GENERATE_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <eep/engine.h>

#include "base/status.h"
#include "tools/generate_index.h"
#include "tools/input.h"

/** A line that is no prompt; it has its place among the answers. */
struct eep_wrong_line {
    uint64_t index;
    uint64_t after; /* so many requests come before it */
    char *text;     /* what is wrong; owned */
    struct eep_wrong_line *next;
};

/** How far an earlier rank 0 had come. */
struct eep_stream_past {
    uint64_t requests; /* that were accepted */
    uint64_t lines;    /* taken from the input, at least */
    uint64_t wrong;    /* of those that were wrong: told already */
};

struct eep_stream {
    struct eep_engine *engine;
    const struct eep_request *defaults;
    const struct eep_index_set *delivered;
    struct eep_input *input;
    struct eep_stream_past past;
    uint64_t index;    /* of the next line */
    uint64_t requests; /* those of the past that were met, and those handed in */
    uint64_t wrong_met;
    struct eep_wrong_line *wrong, **wrong_end;
    struct eep_request held; /* its turn is after the next step; its prompt is owned */
    bool is_held, ended;
};

/** Begin to read, at the first line that is not of the past. On rank 0. */
EEP_MUST_CHECK enum eep_status eep_stream_open(struct eep_stream *stream, struct eep_engine *engine,
                                               const struct eep_request *defaults,
                                               const struct eep_index_set *delivered,
                                               const struct eep_stream_past *past);

/** Hand the lines that are there to the engine; when nothing runs, wait a little for some. */
EEP_MUST_CHECK enum eep_status eep_stream_take(struct eep_stream *stream);

/** Forget the first wrong line. */
void eep_stream_drop_wrong(struct eep_stream *stream);

/** A stream that was never opened is {0}. */
void eep_stream_close(struct eep_stream *stream);

#endif
