/*
 * What `eep launch` keeps of a job's standard input and output so that it can be started again: the
 * input as a file that the job reads, and which answers were passed on already.
 */
#ifndef EEP_TOOLS_LAUNCH_IO_H
#define EEP_TOOLS_LAUNCH_IO_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "tools/generate_index.h"

struct eep_launch_io {
    char dir[PATH_MAX - 32]; /* of this launcher alone, mode 0700 */
    int input;               /* the file that the input is kept in; -1: it is not kept */
    bool input_ended;
    bool filters; /* lines of the output are answers of eep generate --json */
    int output;   /* the read end of the job's standard output; -1 */
    int job_end;  /* the job's end of it, until the job has it */
    int list;     /* the file of the delivered indexes */
    char *line;   /* piece of a line: (line_bytes) of (line_capacity) */
    size_t line_bytes, line_capacity;
    struct eep_index_set delivered;
    uint64_t errors; /* answers that are errors */
};

/** Make the directory, and set EEP_STDIN, EEP_STDIN_GROWS and EEP_DELIVERED as needed. */
EEP_MUST_CHECK enum eep_status eep_launch_io_open(struct eep_launch_io *io, bool keeps_input,
                                                  bool filters);

/** Before a start. @param output_out  the job's standard output; -1: this process's */
EEP_MUST_CHECK enum eep_status eep_launch_io_begin(struct eep_launch_io *io, int *output_out);

/** The job has its end of the output. */
void eep_launch_io_started(struct eep_launch_io *io);

/** Move what is there; wait for it for at most so long. A signal ends the wait. */
EEP_MUST_CHECK enum eep_status eep_launch_io_turn(struct eep_launch_io *io, int ms);

/** After the job's end: what it has written still. */
EEP_MUST_CHECK enum eep_status eep_launch_io_end(struct eep_launch_io *io);

/** Remove the directory. */
void eep_launch_io_close(struct eep_launch_io *io);

#endif
