/*
 * Lines of standard input as they come, without waiting for them; on rank 0 alone. After a loss
 * another process reads on: a file from its start, a pipe where it is.
 */
#ifndef EEP_TOOLS_INPUT_H
#define EEP_TOOLS_INPUT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

struct eep_input;

/**
 * Open the job's standard input: EEP_STDIN of the environment, or this process's own. When
 * EEP_STDIN_GROWS is set, EEP_STDIN is a file that somebody still appends to, until there is a file
 * of that name with ".end" behind it.
 *
 * @retval EEP_ERR_UNSUPPORTED  under a plain mpirun
 * @retval EEP_ERR_IO           it cannot be opened here
 */
EEP_MUST_CHECK enum eep_status eep_input_open(struct eep_input **input_out);

/** NULL is allowed. */
void eep_input_close(struct eep_input *input);

/** True for a file, which another process reads again from its start. */
bool eep_input_is_file(const struct eep_input *input);

/**
 * The next whole line that is there, without its end; NULL: none is. Valid until the next call.
 *
 * @param ended_out  there will be no more
 *
 * @retval EEP_ERR_IO     it cannot be read
 * @retval EEP_ERR_NOMEM  a line is too long: 64 MiB
 */
EEP_MUST_CHECK enum eep_status eep_input_line(struct eep_input *input, const char **line_out,
                                              size_t *bytes_out, bool *ended_out);

/** Wait until there may be more, at most so long. */
void eep_input_wait(const struct eep_input *input, int ms);

#endif
