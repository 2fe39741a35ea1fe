/*
 * Control collectives. Within one node they go through mailboxes in the node's segment, so that an
 * idle rank sleeps; over several nodes through MPI's non-blocking collectives, polled.
 *
 * Mailboxes: a rank has two, used in turn. In round r it writes box r % 2, publishes `round = r`,
 * and waits until all have published r. It may overwrite a box two rounds later without asking,
 * because whoever publishes r + 1 has finished reading round r, and round r + 2 begins only after
 * all have published r + 1.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "mpi_int.h"

/* Bytes of a rank in one round of a gather between nodes. */
#define GATHER_CHUNK ((size_t)4 << 20)

/* ---- one node: mailboxes ---- */

struct round_wait {
    struct eep_wait wait;
    struct eep_world *world;
    uint32_t next; /* ranks below it have published the round */
};

static bool round_ready(struct eep_wait *wait)
{
    struct round_wait *w = (struct round_wait *)wait;
    const struct eep_node *node = &w->world->node;

    for (; w->next < w->world->xport.topo.node_size; w->next++) {
        if (atomic_load_explicit(&node->ranks[w->next].round, memory_order_acquire) < node->round) {
            wait->missing = node->rank_of[w->next];
            return false;
        }
    }
    return true;
}

static unsigned char *mailbox(const struct eep_world *world, uint32_t node_rank)
{
    return world->node.mail + (2 * (size_t)node_rank + world->node.round % 2) * EEP_MAIL_BYTES;
}

/* Publish `bytes` of this rank in a new round and wait for all; then mailbox() holds each part. */
static enum eep_status node_round(struct eep_world *world, const char *what, const void *in,
                                  size_t bytes)
{
    struct eep_node *node = &world->node;
    const uint32_t me = world->xport.topo.node_rank;
    struct round_wait w = {.wait = {.what = what, .ready = round_ready}, .world = world};

    node->round++;
    if (bytes > 0) {
        memcpy(mailbox(world, me), in, bytes);
    }
    atomic_store_explicit(&node->ranks[me].round, node->round, memory_order_release);
    eep_wait_notify(world);
    return eep_wait_until(world, &w.wait);
}

static enum eep_status node_allgather(struct eep_world *world, const char *what,
                                      const unsigned char *in, size_t bytes, unsigned char *out)
{
    size_t done = 0;

    do {
        const size_t part = EEP_MIN(bytes - done, EEP_MAIL_BYTES);

        EEP_TRY(node_round(world, what, in + done, part));
        for (uint32_t r = 0; r < world->xport.topo.node_size && part > 0; r++) {
            memcpy(out + r * bytes + done, mailbox(world, r), part);
        }
        done += part;
    } while (done < bytes);
    return EEP_OK;
}

static enum eep_status node_broadcast(struct eep_world *world, const char *what, uint32_t root,
                                      unsigned char *buffer, size_t bytes)
{
    const bool mine = world->xport.topo.rank == root;
    size_t done = 0;

    do {
        const size_t part = EEP_MIN(bytes - done, EEP_MAIL_BYTES);

        EEP_TRY(node_round(world, what, buffer + done, mine ? part : 0));
        if (!mine && part > 0) {
            memcpy(buffer + done, mailbox(world, root), part);
        }
        done += part;
    } while (done < bytes);
    return EEP_OK;
}

static size_t largest(const size_t *bytes, uint32_t count)
{
    size_t most = 0;

    for (uint32_t r = 0; r < count; r++) {
        most = EEP_MAX(most, bytes[r]);
    }
    return most;
}

/* Bytes of a rank in the part of a gather that starts at `done`. */
static size_t gather_part(size_t bytes, size_t done, size_t chunk)
{
    return bytes > done ? EEP_MIN(bytes - done, chunk) : 0;
}

static enum eep_status node_gather(struct eep_world *world, const char *what, uint32_t root,
                                   const unsigned char *in, const size_t *bytes, unsigned char *out)
{
    const struct eep_topology *topo = &world->xport.topo;
    const size_t most = largest(bytes, topo->size);

    for (size_t done = 0; done < most; done += EEP_MAIL_BYTES) {
        const size_t mine = gather_part(bytes[topo->rank], done, EEP_MAIL_BYTES);

        EEP_TRY(node_round(world, what, mine > 0 ? in + done : NULL, mine));
        size_t start = 0;
        for (uint32_t r = 0; r < topo->size && topo->rank == root; r++) {
            const size_t part = gather_part(bytes[r], done, EEP_MAIL_BYTES);

            if (part > 0) {
                memcpy(out + start + done, mailbox(world, r), part);
            }
            start += bytes[r];
        }
    }
    return EEP_OK;
}

/* ---- several nodes, and before there is a segment: MPI ---- */

static enum eep_status fits_int(const char *what, size_t bytes)
{
    if (bytes > INT_MAX) {
        return EEP_FAIL(EEP_ERR_INVALID, "%s: %zu bytes are too many for one message", what, bytes);
    }
    return EEP_OK;
}

static enum eep_status mpi_allgather(struct eep_world *world, const char *what, const void *in,
                                     size_t bytes, void *out)
{
    MPI_Request request;

    EEP_TRY(fits_int(what, bytes));
    EEP_MPI_TRY(world, what,
                MPI_Iallgather(in, (int)bytes, MPI_BYTE, out, (int)bytes, MPI_BYTE, world->control,
                               &request));
    return eep_wait_request(world, what, &request);
}

static enum eep_status mpi_broadcast(struct eep_world *world, const char *what, uint32_t root,
                                     unsigned char *buffer, size_t bytes)
{
    size_t done = 0;

    do {
        const size_t part = EEP_MIN(bytes - done, (size_t)INT_MAX);
        MPI_Request request;

        EEP_MPI_TRY(
            world, what,
            MPI_Ibcast(buffer + done, (int)part, MPI_BYTE, (int)root, world->control, &request));
        EEP_TRY(eep_wait_request(world, what, &request));
        done += part;
    } while (done < bytes);
    return EEP_OK;
}

struct gather_plan {
    size_t chunk;
    int *counts, *starts; /* (size) */
    unsigned char *stage; /* (size, chunk) */
};

static enum eep_status mpi_gather_chunk(struct eep_world *world, const char *what, uint32_t root,
                                        const unsigned char *in, const size_t *bytes, size_t done,
                                        struct gather_plan *plan, unsigned char *out)
{
    const struct eep_topology *topo = &world->xport.topo;
    MPI_Request request;
    size_t start = 0;

    for (uint32_t r = 0; r < topo->size; r++) {
        plan->counts[r] = (int)gather_part(bytes[r], done, plan->chunk);
        plan->starts[r] = (int)(r * plan->chunk);
    }
    const int mine = plan->counts[topo->rank];
    EEP_MPI_TRY(world, what,
                MPI_Igatherv(mine > 0 ? in + done : NULL, mine, MPI_BYTE, plan->stage, plan->counts,
                             plan->starts, MPI_BYTE, (int)root, world->control, &request));
    EEP_TRY(eep_wait_request(world, what, &request));
    for (uint32_t r = 0; r < topo->size && topo->rank == root; r++) {
        memcpy(out + start + (plan->counts[r] > 0 ? done : 0), plan->stage + r * plan->chunk,
               (size_t)plan->counts[r]);
        start += bytes[r];
    }
    return EEP_OK;
}

static enum eep_status mpi_gather(struct eep_world *world, const char *what, uint32_t root,
                                  const unsigned char *in, const size_t *bytes, unsigned char *out)
{
    const uint32_t size = world->xport.topo.size;
    const size_t most = largest(bytes, size);
    struct gather_plan plan = {.chunk =
                                   EEP_MIN(most, EEP_MIN(GATHER_CHUNK, (size_t)INT_MAX / size))};
    enum eep_status status;

    if (most == 0) {
        return EEP_OK;
    }
    EEP_TRY_GOTO(eep_mem_alloc(size, sizeof(int), what, &plan.counts), done);
    EEP_TRY_GOTO(eep_mem_alloc(size, sizeof(int), what, &plan.starts), done);
    if (world->xport.topo.rank == root) {
        EEP_TRY_GOTO(eep_mem_alloc(size, plan.chunk, what, &plan.stage), done);
    }
    for (size_t at = 0; at < most; at += plan.chunk) {
        EEP_TRY_GOTO(mpi_gather_chunk(world, what, root, in, bytes, at, &plan, out), done);
    }
    status = EEP_OK;
done:
    eep_mem_free(plan.stage);
    eep_mem_free(plan.starts);
    eep_mem_free(plan.counts);
    return status;
}

/* ---- the interface ---- */

/* A failed collective leaves ranks at different places: none can work after it. */
static enum eep_status finish(struct eep_world *world, enum eep_status status)
{
    if (status != EEP_OK) {
        world->broken = status;
    }
    return status;
}

static enum eep_status begin(struct eep_world *world, const char *what)
{
    if (world->broken != EEP_OK && eep_error_text()[0] == '\0') {
        return EEP_FAIL(world->broken, "%s: the ranks lost touch earlier (%s)", what,
                        eep_status_text(world->broken));
    }
    return world->broken; /* the text of the first failure says more */
}

static bool by_mail(const struct eep_world *world)
{
    return world->xport.topo.nodes == 1 && world->node.head != NULL;
}

enum eep_status eep_control_allgather(struct eep_xport *xport, const char *what, const void *in,
                                      size_t bytes, void *out)
{
    struct eep_world *world = (struct eep_world *)xport;

    EEP_TRY(begin(world, what));
    return finish(world, by_mail(world) ? node_allgather(world, what, in, bytes, out)
                                        : mpi_allgather(world, what, in, bytes, out));
}

enum eep_status eep_control_broadcast(struct eep_xport *xport, const char *what, uint32_t root,
                                      void *buffer, size_t bytes)
{
    struct eep_world *world = (struct eep_world *)xport;

    EEP_TRY(begin(world, what));
    return finish(world, by_mail(world) ? node_broadcast(world, what, root, buffer, bytes)
                                        : mpi_broadcast(world, what, root, buffer, bytes));
}

enum eep_status eep_control_gather(struct eep_xport *xport, const char *what, uint32_t root,
                                   const void *in, size_t in_bytes, const size_t *bytes, void *out)
{
    struct eep_world *world = (struct eep_world *)xport;

    EEP_TRY(begin(world, what));
    if (bytes[xport->topo.rank] != in_bytes) {
        return finish(world, EEP_FAIL(EEP_ERR_INVALID, "%s: %zu bytes announced, %zu given", what,
                                      bytes[xport->topo.rank], in_bytes));
    }
    return finish(world, by_mail(world) ? node_gather(world, what, root, in, bytes, out)
                                        : mpi_gather(world, what, root, in, bytes, out));
}

struct verdict {
    int32_t status;
    char text[508];
};

enum eep_status eep_control_agree(struct eep_world *world, const char *what, enum eep_status status)
{
    struct verdict mine = {.status = status};
    struct verdict *all;

    strncpy(mine.text, status != EEP_OK ? eep_error_text() : "", sizeof(mine.text) - 1);
    all = calloc(world->xport.topo.size, sizeof(*all));
    if (all == NULL) {
        return EEP_FAIL(EEP_ERR_FATAL, "%s: no memory to agree with the other ranks", what);
    }
    status = eep_control_allgather(&world->xport, what, &mine, sizeof(mine), all);
    for (uint32_t r = 0; r < world->xport.topo.size && status == EEP_OK; r++) {
        status = (enum eep_status)all[r].status;
        if (status != EEP_OK) {
            eep_error_text_set(all[r].text);
        }
    }
    free(all);
    return status;
}
