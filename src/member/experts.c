/*
 * Where each expert can be had, and what the layout survives. An expert's places are the nodes
 * whose memory holds it: in the frame of a seat, or as a backup.
 */
#include <string.h>

#include "member/member_int.h"

static uint64_t frames_of(const struct eep_experts_ask *ask, uint64_t pair)
{
    const struct eep_layout *layout = ask->layout;
    uint64_t nodes = 0;

    for (uint32_t i = layout->replica_first[pair]; i < layout->replica_first[pair + 1]; i++) {
        nodes |= ask->held_on[layout->replica_slots[i] / layout->slots_per_seat];
    }
    return nodes & ask->live_nodes;
}

static enum eep_expert_source best_source(uint64_t frames, uint64_t backup, bool disk)
{
    if (frames != 0) {
        return EEP_SOURCE_REPLICA;
    }
    if (backup != 0) {
        return EEP_SOURCE_BACKUP;
    }
    return disk ? EEP_SOURCE_DISK : EEP_SOURCE_NONE;
}

void eep_experts_survey(const struct eep_experts_ask *ask, uint8_t *sources_out,
                        struct eep_experts_survey *survey_out)
{
    const uint64_t pairs = (uint64_t)ask->layout->layers * ask->layout->experts;

    memset(survey_out, 0, sizeof(*survey_out));
    survey_out->survives_rank = true;
    survey_out->survives_node = true;
    for (uint64_t pair = 0; pair < pairs; pair++) {
        const uint64_t frames = frames_of(ask, pair);
        const uint64_t backup = ask->backup_on == NULL ? 0 : ask->backup_on[pair] & ask->live_nodes;
        const uint64_t nodes = frames | backup;
        const bool single = (nodes & (nodes - 1)) == 0; /* one node, or none */
        const enum eep_expert_source source = best_source(frames, backup, ask->disk);

        survey_out->by_source[source]++;
        survey_out->single_source += single && nodes != 0;
        survey_out->survives_node &= !single;
        survey_out->survives_rank &= !single || (nodes != 0 && (nodes & ask->single_nodes) == 0);
        if (sources_out != NULL) {
            sources_out[pair] = (uint8_t)source;
        }
    }
}
