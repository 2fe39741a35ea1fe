/* Prompts of `eep generate`: from the command line or a file, on rank 0, then on every rank. */
#ifndef EEP_TOOLS_PROMPTS_H
#define EEP_TOOLS_PROMPTS_H

#include <eep/engine.h>

#include "base/status.h"
#include "tools/generate_index.h"
#include "tools/opts.h"

/** Where prompts come from; exactly one of the first three is given. */
struct eep_prompt_source {
    const char *text;                      /* --prompt */
    struct eep_u32_list ids;               /* --prompt-ids */
    const char *file;                      /* --prompts-file; "-" = standard input */
    struct eep_request defaults;           /* for what a line of the file leaves out */
    const struct eep_index_set *delivered; /* numbers of those that are left out */
};

/**
 * Read the prompts on rank 0, encode them, submit them on every rank. Collective.
 *
 * A file has one JSON object per line: {"prompt": "..."} or {"prompt_ids": [...]}, and optionally
 * max_tokens, temperature, top_k, top_p, seed, ignore_eos. Empty lines are skipped. A wrong line is
 * refused with its number.
 *
 * The tag of each is its number, from 0.
 */
EEP_MUST_CHECK enum eep_status eep_prompts_submit(struct eep_engine *engine,
                                                  const struct eep_prompt_source *source);

/**
 * One line of a prompts file. Local.
 *
 * @param request_out  its prompt is owned by the caller: free() it
 */
EEP_MUST_CHECK enum eep_status eep_prompts_parse(struct eep_engine *engine,
                                                 const struct eep_request *defaults,
                                                 const char *line, size_t bytes,
                                                 struct eep_request *request_out);

/** A line without anything but blanks, which is skipped. */
bool eep_prompts_blank(const char *line, size_t bytes);

#endif
