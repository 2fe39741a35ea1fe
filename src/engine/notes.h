/*
 * What rank 0 and a process that is no rank tell each other, beside the steps, by the transport's
 * roster:
 *
 *     rank 0            parked process
 *     ACTIVATE   ──►
 *            ◄── APPEARED
 *     LOAD, MAP… ──►                   the layout, and which seats it is to execute
 *            ◄── DONE                  it has all that it needs, or why not
 *     SWITCH     ──►                   both call regroup()
 *     PARK       ──►                   at any time: forget it
 *     EXIT       ──►                   at any time: end
 *
 * What rank 0 hears travels to all ranks with the next step.
 */
#ifndef EEP_ENGINE_NOTES_H
#define EEP_ENGINE_NOTES_H

#include "engine/engine_int.h"
#include "member/member.h"

enum eep_note_kind {
    EEP_NOTE_ACTIVATE = 1,
    EEP_NOTE_APPEARED,
    EEP_NOTE_LOAD,   /* followed by a struct eep_note_load */
    EEP_NOTE_MAP,    /* followed by `count` entries of the map, from entry `first` on */
    EEP_NOTE_DONE,   /* followed by `count` bytes of text when `status` is a failure */
    EEP_NOTE_SWITCH, /* followed by `count` origins: the new ranks */
    EEP_NOTE_PARK,
    EEP_NOTE_EXIT,
};

struct eep_note {
    uint32_t kind;   /* enum eep_note_kind */
    uint32_t serial; /* of the wait that it belongs to */
    int32_t status;  /* enum eep_status */
    uint32_t count;
    uint64_t first;
};

struct eep_note_load {
    uint64_t kv_tokens, engine_id;
    uint64_t likeness;                      /* of the ranks' program, checkpoint and parameters */
    uint32_t id, node;                      /* the receiver's */
    uint32_t started;                       /* processes, with the job */
    uint32_t layers, experts, seats, slots; /* of the layout; slots of a seat */
    uint32_t has_cache;
    uint32_t in_use; /* 1: ranks of the receiver's node use its cache */
    uint32_t reserved;
    uint8_t mine[EEP_SEATS_MAX]; /* 1: to be executed by the receiver */
};

#define EEP_NOTE_DATA_MAX (EEP_ROSTER_BYTES_MAX - sizeof(struct eep_note))

struct eep_note_message {
    struct eep_note head;
    unsigned char data[EEP_NOTE_DATA_MAX];
};

_Static_assert(sizeof(struct eep_note) == 24, "travels between processes");
_Static_assert(sizeof(struct eep_note_load) == 64 + EEP_SEATS_MAX, "travels between processes");
_Static_assert(sizeof(struct eep_note_message) == EEP_ROSTER_BYTES_MAX, "a message");
_Static_assert(EEP_MEMBERS_MAX * sizeof(uint32_t) <= EEP_NOTE_DATA_MAX, "a world's origins");

/** The head and `bytes` of message->data. Local. */
EEP_MUST_CHECK enum eep_status eep_note_send(struct eep_engine *engine, uint32_t origin,
                                             const struct eep_note_message *message, size_t bytes);

/** The next one, if there is one that is whole. Local. */
bool eep_note_take(struct eep_engine *engine, uint32_t *from_out,
                   struct eep_note_message *message_out, size_t *bytes_out);

#endif
