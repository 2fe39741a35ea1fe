/*
 * The shared-memory segment of a node: one file in /dev/shm, mode 0600, that has a name only while
 * the ranks of the node attach it, so that nothing is left behind however they end.
 *
 *     head | rank blocks | mailboxes | regions of exchanges, mapped one by one ...
 *     ▲ taken at once                  ▲ address space only; taken by eep_node_reserve()
 *
 * Memory is taken with fallocate(), so that a full /dev/shm is an error here and not a SIGBUS
 * later.
 *
 * Pretended nodes share a machine: each rank also sees the head and the rank blocks of the other
 * nodes of its machine, for their signs of life (presence.c).
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/assert.h"
#include "mpi_int.h"

#define SHM_DIR "/dev/shm"
#define MAGIC "eepnode"
#define SEGMENT_VERSION 2u

struct segment_name {
    char path[64]; /* "" from ranks that made none */
};

static size_t head_bytes(uint32_t ranks)
{
    return eep_round_up(sizeof(struct eep_node_head) + ranks * sizeof(struct eep_node_rank),
                        EEP_PAGE);
}

static size_t segment_bytes(uint32_t ranks)
{
    return head_bytes(ranks) + ranks * 2 * EEP_MAIL_BYTES;
}

static enum eep_status take_memory(int fd, const char *what, uint64_t offset, size_t bytes)
{
    struct statvfs fs;
    int rc;

    do {
        rc = fallocate(fd, 0, (off_t)offset, (off_t)bytes);
    } while (rc != 0 && errno == EINTR);
    if (rc == 0) {
        return EEP_OK;
    }
    const int error = errno;
    const double free_mb =
        fstatvfs(fd, &fs) == 0 ? (double)fs.f_bavail * (double)fs.f_frsize / 1e6 : 0.0;
    return EEP_FAIL(error == ENOSPC ? EEP_ERR_NOMEM : EEP_ERR_IO,
                    "%s: cannot take %.1f MB in " SHM_DIR " (%s; %.1f MB free there); make it "
                    "larger (mount -o remount,size=..., or --shm-size for a container) or use "
                    "smaller batches",
                    what, (double)bytes / 1e6, strerror(error), free_mb);
}

/* ---- making, attaching ---- */

static enum eep_status make_file(struct eep_node *node, uint32_t ranks, struct segment_name *name)
{
    uint64_t tag = 0;

    if (getrandom(&tag, sizeof(tag), 0) != (ssize_t)sizeof(tag)) {
        return EEP_FAIL(EEP_ERR_IO, "shared memory: no random numbers for a name: %s",
                        strerror(errno));
    }
    snprintf(name->path, sizeof(name->path), SHM_DIR "/eep-node-%u-%016llx", (unsigned)getuid(),
             (unsigned long long)tag);
    node->fd = open(name->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (node->fd < 0) {
        const int error = errno;

        enum eep_status status = EEP_FAIL(EEP_ERR_IO, "shared memory: cannot create %s: %s",
                                          name->path, strerror(error));
        name->path[0] = '\0';
        return status;
    }
    return take_memory(node->fd, "shared memory of the node", 0, segment_bytes(ranks));
}

static enum eep_status open_file(const char *path, size_t bytes, int *fd_out)
{
    struct stat st;
    const int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);

    if (fd < 0 || fstat(fd, &st) != 0) {
        return EEP_FAIL(EEP_ERR_IO, "shared memory: cannot open %s: %s", path, strerror(errno));
    }
    *fd_out = fd;
    if (st.st_uid != getuid() || (uint64_t)st.st_size < bytes) {
        return EEP_FAIL(EEP_ERR_IO, "shared memory: %s has owner %u and %llu bytes, not %u and %zu",
                        path, (unsigned)st.st_uid, (unsigned long long)st.st_size,
                        (unsigned)getuid(), bytes);
    }
    return EEP_OK;
}

static enum eep_status map_file(int fd, size_t bytes, void *base_out)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (base == MAP_FAILED) {
        return EEP_FAIL(EEP_ERR_NOMEM, "shared memory: cannot map %zu bytes: %s", bytes,
                        strerror(errno));
    }
    memcpy(base_out, &base, sizeof(base));
    return EEP_OK;
}

static struct eep_node_rank *blocks(struct eep_node_head *head)
{
    return (struct eep_node_rank *)(head + 1);
}

static enum eep_status attach(struct eep_world *world, const char *path)
{
    struct eep_node *node = &world->node;
    const uint32_t ranks = world->xport.topo.node_size;
    const size_t bytes = segment_bytes(ranks);

    if (path[0] == '\0') {
        return EEP_OK; /* its maker says what failed */
    }
    if (node->fd < 0) {
        EEP_TRY(open_file(path, bytes, &node->fd));
    }
    EEP_TRY(map_file(node->fd, bytes, &node->head));
    node->ranks = blocks(node->head);
    node->mail = (unsigned char *)node->head + head_bytes(ranks);
    node->end = bytes;
    node->rank_of = world->node_ranks;
    if (world->xport.topo.node_rank == 0) {
        memcpy(node->head->magic, MAGIC, sizeof(MAGIC));
        node->head->version = SEGMENT_VERSION;
        node->head->ranks = ranks;
        node->head->bytes = bytes;
    }
    return EEP_OK;
}

/* ---- the other nodes of this machine ---- */

static uint32_t ranks_of_node(const struct eep_world *world, uint32_t node)
{
    uint32_t ranks = 0;

    for (uint32_t r = 0; r < world->xport.topo.size; r++) {
        ranks += world->node_of[r] == node;
    }
    return ranks;
}

/* See the blocks of the node whose lowest rank is `first`. */
static enum eep_status see_blocks(struct eep_world *world, uint32_t first, const char *path)
{
    const uint32_t node = world->node_of[first];
    const size_t bytes = head_bytes(ranks_of_node(world, node));
    struct eep_node_head *head = world->node.head;
    enum eep_status status = EEP_OK;
    int fd = -1;

    if (node != world->xport.topo.node) {
        status = open_file(path, bytes, &fd);
        if (status == EEP_OK) {
            status = map_file(fd, bytes, &head);
        }
        if (fd >= 0) {
            close(fd);
        }
    }
    for (uint32_t r = first; r < world->xport.topo.size && status == EEP_OK; r++) {
        if (world->node_of[r] == node) {
            world->node.block_of[r] = &blocks(head)[world->node_rank_of[r]];
        }
    }
    return status;
}

static enum eep_status see_machine(struct eep_world *world, const struct segment_name *names)
{
    const uint32_t size = world->xport.topo.size;

    EEP_TRY(eep_mem_alloc(size, sizeof(struct eep_node_rank *), "shared memory",
                          &world->node.block_of));
    for (uint32_t r = 0; r < size; r++) {
        if (world->is_here[r] && world->node_rank_of[r] == 0 && names[r].path[0] != '\0') {
            EEP_TRY(see_blocks(world, r, names[r].path));
        }
    }
    return EEP_OK;
}

static void unsee_machine(struct eep_world *world)
{
    for (uint32_t r = 0; r < world->xport.topo.size && world->node.block_of != NULL; r++) {
        struct eep_node_rank *block = world->node.block_of[r];

        if (block != NULL && world->node_rank_of[r] == 0 &&
            world->node_of[r] != world->xport.topo.node) {
            munmap((unsigned char *)block - sizeof(struct eep_node_head),
                   head_bytes(ranks_of_node(world, world->node_of[r])));
        }
    }
    eep_mem_free((void *)world->node.block_of);
    world->node.block_of = NULL;
}

/* Two builds of eep must not share a segment. */
static enum eep_status check_head(const struct eep_world *world)
{
    const struct eep_node_head *head = world->node.head;

    if (memcmp(head->magic, MAGIC, sizeof(MAGIC)) != 0 || head->version != SEGMENT_VERSION ||
        head->ranks != world->xport.topo.node_size ||
        head->bytes != segment_bytes(world->xport.topo.node_size)) {
        return EEP_FAIL(EEP_ERR_FORMAT, "shared memory: the ranks of this node run different "
                                        "versions of eep");
    }
    return EEP_OK;
}

enum eep_status eep_node_open(struct eep_world *world)
{
    const struct eep_topology *topo = &world->xport.topo;
    const bool maker = topo->node_rank == 0;
    struct segment_name mine = {.path = ""};
    struct segment_name *names;
    struct eep_node_head *head;
    enum eep_status status, made = EEP_OK;

    world->node = (struct eep_node){.fd = -1};
    EEP_TRY(eep_mem_alloc(topo->size, sizeof(*names), "names of shared memory", &names));
    if (maker) {
        made = make_file(&world->node, topo->node_size, &mine);
    }
    status = eep_control_agree(world, "making shared memory", made);
    if (status == EEP_OK) {
        status = eep_control_allgather(&world->xport, "names of shared memory", &mine, sizeof(mine),
                                       names);
    }
    if (status == EEP_OK) {
        status = attach(world, names[world->node_ranks[0]].path);
        if (status == EEP_OK && world->node.head != NULL) {
            status = see_machine(world, names);
        }
        if (status == EEP_OK && world->node.head != NULL) {
            status = eep_presence_begin(world);
        }
        /* Not through the mailboxes yet: a rank may have failed to map them. */
        head = world->node.head;
        world->node.head = NULL;
        status = eep_control_agree(world, "attaching shared memory", status);
        world->node.head = head;
    }
    if (mine.path[0] != '\0') {
        (void)unlink(mine.path); /* all have it open, or nobody will */
    }
    if (status == EEP_OK) {
        status = eep_control_agree(world, "checking shared memory", check_head(world));
    }
    eep_mem_free(names);
    return status;
}

void eep_node_close(struct eep_world *world)
{
    struct eep_node *node = &world->node;

    eep_presence_end();
    unsee_machine(world);
    if (node->head != NULL) {
        munmap(node->head, segment_bytes(world->xport.topo.node_size));
        node->head = NULL;
    }
    if (node->fd >= 0) {
        close(node->fd);
        node->fd = -1;
    }
}

uint32_t eep_node_gone_rank(struct eep_world *world)
{
    const struct eep_node *node = &world->node;
    const unsigned known = atomic_load(&node->head->lost);

    if (known != 0) {
        return known - 1;
    }
    for (uint32_t r = 0; r < world->xport.topo.node_size; r++) {
        if (r != world->xport.topo.node_rank &&
            atomic_load_explicit(&node->ranks[r].leaving, memory_order_acquire) != 0) {
            return node->rank_of[r];
        }
    }
    return eep_presence_lost_rank(world);
}

/* ---- regions ---- */

enum eep_status eep_node_map(struct eep_world *world, const char *what, size_t bytes,
                             uint64_t *offset_out, void *base_out)
{
    struct eep_node *node = &world->node;
    const uint64_t offset = node->end;
    enum eep_status status = EEP_OK;
    void *base = MAP_FAILED;

    EEP_ASSERT(bytes % EEP_PAGE == 0);
    if (world->xport.topo.node_rank == 0 && ftruncate(node->fd, (off_t)(offset + bytes)) != 0) {
        status = EEP_FAIL(EEP_ERR_NOMEM, "%s: cannot grow the shared memory by %zu bytes: %s", what,
                          bytes, strerror(errno));
    }
    if (status == EEP_OK) {
        base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, node->fd,
                    (off_t)offset);
        if (base == MAP_FAILED) {
            status = EEP_FAIL(EEP_ERR_NOMEM, "%s: cannot map %zu bytes: %s", what, bytes,
                              strerror(errno));
        }
    }
    status = eep_control_agree(world, what, status);
    if (status != EEP_OK) {
        if (base != MAP_FAILED) {
            munmap(base, bytes);
        }
        return status;
    }
    node->end += bytes;
    *offset_out = offset;
    memcpy(base_out, &base, sizeof(base));
    return EEP_OK;
}

enum eep_status eep_node_map_over(struct eep_world *world, const char *what, uint64_t offset,
                                  size_t bytes, void *address)
{
    if (bytes > 0 && mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                          world->node.fd, (off_t)offset) == MAP_FAILED) {
        return EEP_FAIL(EEP_ERR_NOMEM, "%s: cannot map %zu bytes: %s", what, bytes,
                        strerror(errno));
    }
    return EEP_OK;
}

enum eep_status eep_node_reserve(struct eep_world *world, const char *what, uint64_t offset,
                                 size_t bytes)
{
    return bytes == 0 ? EEP_OK : take_memory(world->node.fd, what, offset, bytes);
}

void eep_node_release(struct eep_world *world, uint64_t offset, size_t bytes)
{
    if (bytes > 0) {
        (void)fallocate(world->node.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset,
                        (off_t)bytes);
    }
}
