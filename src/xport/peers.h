/*
 * What `eep bench dispatch` compares an exchange with: the same bytes by MPI_Alltoallv, and by
 * plain copies into memory that the ranks of a node share, between two barriers. Filled in by
 * mpi/bench_peers.c; a build without MPI has none.
 */
#ifndef EEP_XPORT_PEERS_H
#define EEP_XPORT_PEERS_H

#include <stdbool.h>

#include "xport/xport.h"

/** How much goes from this rank to each and back. The caller's until eep_peers_close(). */
struct eep_peers_traffic {
    const uint32_t *out_rows; /* (size): rows for each rank; as many of x_row_bytes go there */
    const uint32_t *in_rows;  /* (size): rows from each rank */
    const uint32_t *out_back; /* (size): rows of y_row_bytes that return to each rank */
    const uint32_t *in_back;  /* (size): that return from each */
    size_t x_row_bytes, y_row_bytes;
};

enum eep_peers_way {
    EEP_PEERS_ALLTOALLV,
    EEP_PEERS_COPY, /* on one node only */
    EEP_PEERS_WAYS
};

struct eep_peers;

/**
 * Buffers for one traffic. Collective.
 *
 * @retval EEP_ERR_UNSUPPORTED  a build without MPI, or ranks that MPI did not start
 */
EEP_MUST_CHECK enum eep_status eep_peers_open(struct eep_xport *xport,
                                              const struct eep_peers_traffic *traffic,
                                              struct eep_peers **peers_out);
void eep_peers_close(struct eep_peers *peers);

/** Rows to send, packed by destination: x rows, or (back) y rows by source. */
void *eep_peers_send_rows(struct eep_peers *peers, enum eep_peers_way way, bool back);

/** Rows that have come, packed by source or (back) by the rank that they return from. */
const void *eep_peers_received_rows(struct eep_peers *peers, enum eep_peers_way way, bool back);

/** Move all; ends with a barrier where the way itself does not synchronise. Collective. */
EEP_MUST_CHECK enum eep_status eep_peers_move(struct eep_peers *peers, enum eep_peers_way way,
                                              bool back);

/** MPI_Barrier. */
EEP_MUST_CHECK enum eep_status eep_peers_barrier(struct eep_peers *peers);

#endif
