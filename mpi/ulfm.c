/*
 * The one file with ULFM's names: is fault tolerance on, and who has died; and what Open MPI says
 * about it.
 *
 * MPIX_Comm_get_failed() alone makes no progress and would never see a death; MPI_Iprobe() on
 * MPI_COMM_SELF makes progress and cannot itself fail because of a peer.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include <mpi.h>

#include <mpi-ext.h>

#include "mpi_int.h"

bool eep_ulfm_active(void)
{
    int *active = NULL;
    int found = 0;

    if (MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_FT, &active, &found) != MPI_SUCCESS) {
        return false;
    }
    return found && active != NULL && *active != 0;
}

/* The lowest rank of `comm`, from `from` on, that MPI knows to be dead, or EEP_NO_RANK. */
uint32_t eep_ulfm_next_failed(struct eep_world *world, MPI_Comm comm, uint32_t from)
{
    MPI_Group failed = MPI_GROUP_NULL, all = MPI_GROUP_NULL;
    uint32_t found = EEP_NO_RANK;
    int count = 0;

    if (!world->ulfm || comm == MPI_COMM_NULL ||
        MPIX_Comm_get_failed(comm, &failed) != MPI_SUCCESS) {
        return EEP_NO_RANK;
    }
    if (MPI_Group_size(failed, &count) == MPI_SUCCESS && count > 0 &&
        MPI_Comm_group(comm, &all) == MPI_SUCCESS) {
        for (int i = 0; i < count; i++) {
            int rank = MPI_UNDEFINED;

            (void)MPI_Group_translate_ranks(failed, 1, &i, all, &rank);
            if (rank != MPI_UNDEFINED && (uint32_t)rank >= from) {
                found = EEP_MIN(found, (uint32_t)rank);
            }
        }
        MPI_Group_free(&all);
    }
    MPI_Group_free(&failed);
    return found;
}

uint32_t eep_ulfm_failed_rank(struct eep_world *world)
{
    int flag;

    (void)MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &flag, MPI_STATUS_IGNORE);
    return eep_ulfm_next_failed(world, world->control, 0);
}

void eep_ulfm_acknowledge(MPI_Comm comm)
{
    int size = 0, acknowledged;

    (void)MPI_Comm_size(comm, &size);
    (void)MPIX_Comm_ack_failed(comm, size, &acknowledged);
}

bool eep_ulfm_is_loss(int error_class)
{
    return error_class == MPIX_ERR_PROC_FAILED || error_class == MPIX_ERR_PROC_FAILED_PENDING ||
           error_class == MPIX_ERR_REVOKED;
}

/* ---- what Open MPI is not told ---- */

struct name {
    uint32_t job, rank;
};

/* Functions of Open MPI 5.0's library that its failure detectors use. */
struct reporting {
    int (*names_of_group)(MPI_Group group, struct name **names_out, size_t *count_out);
    void *(*process_of_name)(struct name name);
    int (*process_failed)(void *process, int error, bool tell_others);
};

static void find_function(const char *name, void *pointer_out)
{
    void *symbol = dlsym(RTLD_DEFAULT, name);

    memcpy(pointer_out, &symbol, sizeof(symbol));
}

static bool find_reporting(struct reporting *r)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length;

    if (MPI_Get_library_version(version, &length) != MPI_SUCCESS ||
        strncmp(version, "Open MPI v5.0.", 14) != 0) {
        return false;
    }
    find_function("ompi_group_to_proc_name_array", &r->names_of_group);
    find_function("ompi_proc_for_name", &r->process_of_name);
    find_function("ompi_errhandler_proc_failed_internal", &r->process_failed);
    return r->names_of_group != NULL && r->process_of_name != NULL && r->process_failed != NULL;
}

/*
 * The launcher tells of an end once the process's memory is taken down, and only of a signal or of
 * status 0. MPI has no public call for somebody who knows better, so this does what the library's
 * own failure detector does. Without it, losses are agreed on when the launcher has told.
 */
bool eep_ulfm_report(struct eep_world *world, uint32_t rank)
{
    MPI_Group group = MPI_GROUP_NULL;
    struct reporting r;
    struct name *names = NULL;
    size_t count = 0;
    bool told = false;

    if (!find_reporting(&r) || MPI_Comm_group(world->control, &group) != MPI_SUCCESS) {
        return false;
    }
    if (r.names_of_group(group, &names, &count) == MPI_SUCCESS && rank < count) {
        void *process = r.process_of_name(names[rank]);

        told =
            process != NULL && r.process_failed(process, MPIX_ERR_PROC_FAILED, true) == MPI_SUCCESS;
    }
    free(names);
    MPI_Group_free(&group);
    return told;
}

/* ---- after a loss ---- */

#define SHRINKS_MAX 16 /* each but the last one is undone by one more death */

bool eep_ulfm_shrink_one(MPI_Comm comm, MPI_Comm *left_out)
{
    if (MPIX_Comm_shrink(comm, left_out) != MPI_SUCCESS || *left_out == MPI_COMM_NULL) {
        return false;
    }
    (void)MPI_Comm_set_errhandler(*left_out, MPI_ERRORS_RETURN);
    return true;
}

bool eep_ulfm_agree(MPI_Comm comm, bool ok)
{
    int all_ok = ok;

    return MPIX_Comm_agree(comm, &all_ok) == MPI_SUCCESS && all_ok;
}

void eep_ulfm_revoke_one(MPI_Comm comm)
{
    (void)MPIX_Comm_revoke(comm);
}

/* Communicators of those that are left in `old`. False: one more died meanwhile, on all ranks. */
static bool shrink_once(MPI_Comm old, MPI_Comm *control, MPI_Comm *data)
{
    *control = *data = MPI_COMM_NULL;
    if (!eep_ulfm_shrink_one(old, control)) {
        return false;
    }
    const bool ok = MPI_Comm_dup(*control, data) == MPI_SUCCESS &&
                    MPI_Comm_set_errhandler(*data, MPI_ERRORS_RETURN) == MPI_SUCCESS;

    if (!ok) {
        (void)MPIX_Comm_revoke(*control); /* the others may be in the middle of it */
    }
    if (eep_ulfm_agree(*control, ok)) {
        return true;
    }
    (void)MPIX_Comm_revoke(*control);
    return false;
}

void eep_ulfm_revoke(struct eep_world *world)
{
    (void)MPIX_Comm_revoke(world->data);
    (void)MPIX_Comm_revoke(world->control);
}

int eep_ulfm_revocation(struct eep_world *world)
{
    int revoked = 0;

    return world->ulfm && world->control != MPI_COMM_NULL &&
                   MPIX_Comm_is_revoked(world->control, &revoked) == MPI_SUCCESS && revoked
               ? MPIX_ERR_REVOKED
               : MPI_SUCCESS;
}

bool eep_ulfm_shrink(struct eep_world *world, MPI_Comm *control, MPI_Comm *data)
{
    MPI_Comm old = world->control;

    for (int i = 0; i < SHRINKS_MAX; i++) {
        if (shrink_once(old, control, data)) {
            return true;
        }
        old = *control != MPI_COMM_NULL ? *control : old;
    }
    return false;
}

/* ---- a warning that does not apply ---- */

typedef int show_help_fn(const char *file, const char *topic, int header, ...);

static int say_nothing(const char *file, const char *topic, int header, ...)
{
    (void)file, (void)topic, (void)header;
    return 0;
}

/*
 * With fault tolerance on, Open MPI warns at the first window that windows are not tested after a
 * failure. Those that eep uses (shared memory, a shared lock for life) were, and nobody could do
 * anything about it. There is no setting for it: the texts go through a function pointer of the
 * library, if it still has one.
 */
void eep_ulfm_quiet(bool quiet)
{
    static show_help_fn *before;
    show_help_fn **place;
    void *symbol = dlsym(RTLD_DEFAULT, "opal_show_help");

    memcpy(&place, &symbol, sizeof(place));
    if (place == NULL) {
        return;
    }
    if (quiet) {
        before = *place;
        *place = say_nothing;
    } else if (before != NULL) {
        *place = before;
    }
}
