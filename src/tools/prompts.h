/* Prompts of `eep generate`: from the command line or a file, on rank 0, then on every rank. */
#ifndef EEP_TOOLS_PROMPTS_H
#define EEP_TOOLS_PROMPTS_H

#include <eep/engine.h>

#include "base/status.h"
#include "tools/opts.h"

/** Where prompts come from; exactly one of the first three is given. */
struct eep_prompt_source {
    const char *text;            /* --prompt */
    struct eep_u32_list ids;     /* --prompt-ids */
    const char *file;            /* --prompts-file; "-" = standard input */
    struct eep_request defaults; /* for what a line of the file leaves out */
};

/**
 * Read the prompts on rank 0, encode them, submit them on every rank. Collective.
 *
 * A file has one JSON object per line: {"prompt": "..."} or {"prompt_ids": [...]}, and optionally
 * max_tokens, temperature, top_k, top_p, seed, ignore_eos. Empty lines are skipped. A wrong line is
 * refused with its number.
 *
 * @param counts_out  (count_out): tokens of each prompt; owned by the caller, free() it
 */
EEP_MUST_CHECK enum eep_status eep_prompts_submit(struct eep_engine *engine,
                                                  const struct eep_prompt_source *source,
                                                  uint32_t **counts_out, size_t *count_out);

#endif
