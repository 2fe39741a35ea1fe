/*
 * Private to the exchange: its memory, shared and not. The protocol is described in exchange.c and
 * in doc/dispatch.md.
 */
#ifndef EEP_MPI_EXCHANGE_INT_H
#define EEP_MPI_EXCHANGE_INT_H

#include "mpi_int.h"

/* Where one destination's share of a source's lists is. Written by the source in dispatch. */
struct eep_part {
    uint32_t row_start, rows;   /* in row_tokens */
    uint32_t pair_start, pairs; /* in pair_rows and pair_slots */
};

/* A rank's flags in shared memory; only that rank writes them. */
struct eep_front_flags {
    _Alignas(EEP_CACHE_LINE) _Atomic uint64_t dispatched; /* round whose rows and lists stand */
    _Alignas(EEP_CACHE_LINE) _Atomic uint64_t returned;   /* round whose y rows stand */
    /* Of the node's first rank only, counted by all: ranks that have closed the exchange. */
    _Alignas(EEP_CACHE_LINE) atomic_uint closed;
};

_Static_assert(sizeof(struct eep_front_flags) == 3 * EEP_CACHE_LINE, "shared between processes");
_Static_assert(sizeof(struct eep_part) == 16, "shared between processes");

/* A rank's front as this process sees it: pointers into the mapping. */
struct eep_front {
    struct eep_front_flags *flags;
    struct eep_part *parts; /* (node_size): by destination within the node */
    uint32_t *pair_base;    /* (node_size): by source, where its pairs begin in this rank's y */
    uint32_t *row_tokens;   /* row of x of each row to send, grouped by destination */
    uint32_t *pair_rows;    /* row of each pair, counted within the destination's rows */
    uint32_t *pair_slots;
    unsigned char *x; /* (max_tokens), x_row_bytes apart */
    unsigned char *y; /* (size * max_tokens * top_k), y_row_bytes apart; address space */
};

/* What goes between nodes by MPI; not there on one node. */
struct eep_net {
    MPI_Datatype x_row, y_row;
    size_t rows_bytes, lists_out_bytes, lists_in_bytes, back_bytes; /* of the mapped buffers */
    unsigned char *rows;   /* packed rows on their way out */
    uint32_t *lists_out;   /* messages of lists, one after the other */
    uint32_t *lists_in;    /* (size): messages of lists, room for the largest each */
    unsigned char *back;   /* (max_tokens * top_k), y_row_bytes apart: outputs that came back */
    MPI_Request *requests; /* (4, size) */
    size_t request_count;  /* in flight */
};

struct eep_exchange {
    struct eep_world *world;
    struct eep_exchange_params params;
    size_t row_list_max;        /* entries of row_tokens */
    size_t max_pairs;           /* of one rank's tokens */
    size_t all_rows, all_pairs; /* most that one rank can receive */

    /* Shared: node_size fronts, then node_size y regions. */
    uint64_t offset;
    unsigned char *base;
    size_t front_bytes, y_bytes; /* of one rank */
    size_t y_taken;              /* bytes of this rank's y region that have memory */
    struct eep_front *fronts;    /* (node_size) */

    /* This rank's. */
    uint64_t round;
    bool returned;          /* the round's combine is done */
    uint32_t tokens;        /* of the round */
    struct eep_part *parts; /* (size): by destination */
    uint32_t *row_last;     /* (size): work space of the plan */
    uint32_t *pair_ranks;   /* (max_pairs): destination of each pair of this rank's tokens */
    uint32_t *pair_indexes; /* (max_pairs): its place among the pairs for that destination */
    const unsigned char **dest_base; /* (size): where a destination's outputs for us begin */

    /* Received. */
    unsigned char *region; /* room for rows before and after this rank's own; see exchange.c */
    size_t before_bytes, region_bytes;
    unsigned char *rows;            /* of this round, x_row_bytes apart: within region */
    uint32_t *pair_row, *pair_slot; /* (all_pairs) */
    uint32_t *row_base, *pair_base; /* (size + 1): where each source's begin */
    size_t most_rows, most_pairs;   /* received in one round so far */
    struct eep_net *net;            /* NULL on one node */
};

/* exchange.c: memory for `pairs` rows of this rank's y. */
EEP_MUST_CHECK enum eep_status eep_exchange_take_y(struct eep_exchange *e, size_t pairs);

/* dispatch.c: copy the rows `tokens` of x; those that lie one after the other at once. */
void eep_copy_rows(unsigned char *to, const unsigned char *x, const uint32_t *tokens, size_t rows,
                   size_t row_bytes);

/* ---- net.c: between nodes ---- */

EEP_MUST_CHECK enum eep_status eep_net_open(struct eep_exchange *e);
void eep_net_close(struct eep_exchange *e);
size_t eep_net_bytes(const struct eep_exchange *e);

/** Exchange the lists: which rows and pairs come from ranks of other nodes. */
EEP_MUST_CHECK enum eep_status eep_net_lists(struct eep_exchange *e);
/** How many come from one of them; after eep_net_lists(). */
void eep_net_counts(const struct eep_exchange *e, uint32_t source, uint32_t *rows_out,
                    uint32_t *pairs_out);
/** Start to send rows, sources being placed; then finish, which also unpacks the lists. */
EEP_MUST_CHECK enum eep_status eep_net_rows_start(struct eep_exchange *e);
EEP_MUST_CHECK enum eep_status eep_net_rows_finish(struct eep_exchange *e);
/** Return outputs; sets dest_base of remote destinations. */
EEP_MUST_CHECK enum eep_status eep_net_combine_start(struct eep_exchange *e);
EEP_MUST_CHECK enum eep_status eep_net_combine_finish(struct eep_exchange *e);

static inline bool eep_is_near(const struct eep_exchange *e, uint32_t rank)
{
    return e->world->node_of[rank] == e->world->xport.topo.node;
}

#endif
