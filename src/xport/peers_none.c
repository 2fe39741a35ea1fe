/* A build without MPI has nothing to compare with. */
#include "xport/peers.h"

enum eep_status eep_peers_open(struct eep_xport *xport, const struct eep_peers_traffic *traffic,
                               struct eep_peers **peers_out)
{
    (void)xport;
    (void)traffic;
    (void)peers_out;
    return EEP_FAIL(EEP_ERR_UNSUPPORTED, "this eep was built without MPI");
}

void eep_peers_close(struct eep_peers *peers)
{
    (void)peers;
}

void *eep_peers_send_rows(struct eep_peers *peers, enum eep_peers_way way, bool back)
{
    (void)peers;
    (void)way;
    (void)back;
    return NULL;
}

const void *eep_peers_received_rows(struct eep_peers *peers, enum eep_peers_way way, bool back)
{
    (void)peers;
    (void)way;
    (void)back;
    return NULL;
}

enum eep_status eep_peers_move(struct eep_peers *peers, enum eep_peers_way way, bool back)
{
    (void)peers;
    (void)way;
    (void)back;
    return EEP_FAIL(EEP_ERR_UNSUPPORTED, "this eep was built without MPI");
}

enum eep_status eep_peers_barrier(struct eep_peers *peers)
{
    (void)peers;
    return EEP_FAIL(EEP_ERR_UNSUPPORTED, "this eep was built without MPI");
}
