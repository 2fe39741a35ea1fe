/*
 * The move protocol over the weight caches of two nodes, with crashes; doc/model.md explains it.
 *
 * World: two nodes with one seat of one slot each, two experts. A map is one bit: slot n (that of
 * node n) holds expert n ^ map, so every move swaps the experts. A node has one frame, or one and a
 * spare one. Engine 0 has a member on each node, which runs on its own between collectives; engine
 * 1 is one process that acts on both nodes. Both route, follow, move, recover, die and come again.
 *
 * Each d_step is what cannot be interrupted: one store, or one call whose inner stores no crash and
 * no other process can tell apart. A step of an engine (a forward pass) is looked at as possible at
 * any moment while the engine serves: check() runs after whatever could make it wrong.
 *
 * Versions start at 1 here, so that 0 can mean none.
 *
 * BREAK_x breaks one rule; tests/model/run shows that each break is found.
 */
#ifndef FRAMES0
#define FRAMES0 2
#endif
#ifndef FRAMES1
#define FRAMES1 2
#endif
#ifndef MOVES
#define MOVES 2
#endif
#ifndef CRASHES
#define CRASHES 2
#endif
#ifndef ATTACHES
#define ATTACHES 2 /* of engine 1 */
#endif
#ifndef SLIPS
#define SLIPS 1 /* how often a member may plan another map than the others */
#endif

#define frames(n) (n == 0 -> FRAMES0 : FRAMES1)
#define in_place(n) (frames(n) == 1)

/* State of a node's move. */
#define IDLE 0
#define PENDING 1
#define DIRTY 2

/* Answers. */
#define BAD 0
#define OK 1

/* Content of a frame: an expert, or neither. */
#define PARTIAL 2

/* ---- the record and the frames of a node: they outlive every process ------------------------ */

typedef copy_t {
    byte ver;
    bit map;      /* also stands for its digest */
    bit frame;    /* of the node's slot */
    byte retired; /* version with which the other frame left the layout; 0: it was never in it */
    bool sealed   /* complete, checksum right */
}

typedef node_t {
    copy_t copy[2];
    bit cur;         /* the current copy */
    byte prepared;   /* version in the other copy, 0: none; equal to the current one: was flipped */
    byte move;
    byte mover;      /* who holds the mover's lock: engine + 1 */
    byte content[2]  /* of the frames */
}

node_t node[2];

#define current(n) node[n].copy[node[n].cur]
#define other(n) node[n].copy[1 - node[n].cur]
#define flipped(n) (node[n].prepared != 0 && node[n].prepared == current(n).ver)
#define is_prepared(n) (node[n].prepared != 0 && !flipped(n))
#define state(n) (flipped(n) -> IDLE : node[n].move)
#define clean(n) (flipped(n) || (node[n].move == IDLE && node[n].prepared == 0))
#define same_layout (current(0).ver == current(1).ver && current(0).map == current(1).map)
#define expert(n, m) (n ^ m)

/* The frame that the node's slot has in the current version holds what the map names. */
#define slot_right(n) (node[n].content[current(n).frame] == expert(n, current(n).map))

/* ---- engines -------------------------------------------------------------------------------- */

/* A view, or a pin that was stored and is looked at again (ok = false). */
typedef view_t {
    byte ver;
    bit frame;
    bit map;
    bool ok
}

#define at(e, n) ((e) * 2 + (n))
view_t view[4]; /* by at(engine, node): what the engine routes with */
view_t coming[4]; /* what it changes to between two steps */
bool serves[2];
byte moves = MOVES;
byte slips = SLIPS;

#define holds(v, f) (v.ver != 0 && v.ok && v.frame == f)
#define pins_below(e, n, r) ((view[at(e, n)].ver != 0 && view[at(e, n)].ver < r) || \
                             (coming[at(e, n)].ver != 0 && coming[at(e, n)].ver < r))
#define has_pin(e, n) (view[at(e, n)].ver != 0 || coming[at(e, n)].ver != 0)

/* All of an engine's members route with one version, and each slot's frame holds the expert that
 * this version names. */
#define route_right(e, n) (node[n].content[view[at(e, n)].frame] == expert(n, view[at(e, n)].map))
#define step_right(e) \
    (view[at(e, 0)].ver != 0 && view[at(e, 0)].ver == view[at(e, 1)].ver && \
     view[at(e, 0)].map == view[at(e, 1)].map && route_right(e, 0) && route_right(e, 1))

inline check()
{
    assert(!serves[0] || step_right(0));
    assert(!serves[1] || step_right(1))
}

inline forget_view(who, where)
{
    view[who * 2 + where].ver = 0;
    view[who * 2 + where].frame = 0;
    view[who * 2 + where].map = 0;
    view[who * 2 + where].ok = false
}

inline forget_coming(who, where)
{
    coming[who * 2 + where].ver = 0;
    coming[who * 2 + where].frame = 0;
    coming[who * 2 + where].map = 0;
    coming[who * 2 + where].ok = false
}

/* Change to the next views, between two steps of the engine. */
inline switch_views(e)
{
    assert(coming[at(e, 0)].ver >= view[at(e, 0)].ver);
    view[at(e, 0)].ver = coming[at(e, 0)].ver;
    view[at(e, 0)].frame = coming[at(e, 0)].frame;
    view[at(e, 0)].map = coming[at(e, 0)].map;
    view[at(e, 0)].ok = true;
    view[at(e, 1)].ver = coming[at(e, 1)].ver;
    view[at(e, 1)].frame = coming[at(e, 1)].frame;
    view[at(e, 1)].map = coming[at(e, 1)].map;
    view[at(e, 1)].ok = true;
    forget_coming(e, 0);
    forget_coming(e, 1);
    serves[e] = true;
    check()
}

/* ---- calls of the weight cache, on node n for engine e -------------------------------------- */

inline unlock(who, where)
{
    d_step {
        if
        :: node[where].mover == who + 1 -> node[where].mover = 0
        :: else
        fi
    }
}

/* A frame that a live engine has pinned is never overwritten. */
#define assert_unpinned(e, n, f) \
    assert(!holds(view[at(1 - e, n)], f) && !holds(coming[at(1 - e, n)], f) && \
           (!serves[e] || !holds(view[at(e, n)], f)))

/* Fill a frame, which takes time. The expert comes from the other node's frame and, when its digest
 * is wrong, from the disk. */
inline write(who, where, to, wanted)
{
    d_step {
        assert_unpinned(who, where, to);
        node[where].content[to] = PARTIAL;
        check()
    };
    d_step {
        assert_unpinned(who, where, to);
        node[where].content[to] = node[1 - where].content[current(1 - where).frame];
#ifndef BREAK_FRAME_DIGEST_SKIPPED
        node[where].content[to] = wanted;
#endif
        check()
    }
}

/* Fill the slot's frame again with what the current version names, if its digest is wrong. */
inline refill(who, where)
{
    if
    :: node[where].move == DIRTY && !slot_right(where) ->
        d_step {
            assert_unpinned(who, where, current(where).frame);
            node[where].content[current(where).frame] = PARTIAL;
            check()
        };
        d_step {
            assert_unpinned(who, where, current(where).frame);
            node[where].content[current(where).frame] = expert(where, current(where).map);
            check()
        }
    :: else
    fi
}

/* What is in the copy that nobody points to does not matter: fewer states. */
inline clear_other(where)
{
    other(where).ver = 0;
    other(where).map = 0;
    other(where).frame = 0;
    other(where).retired = 0;
    other(where).sealed = false
}

inline begin(e, n, base, answer)
{
    d_step {
        answer = BAD;
        if
#ifdef BREAK_BEGIN_IGNORES_MOVER
        :: false
#else
        :: node[n].mover != 0 && node[n].mover != e + 1 /* busy */
#endif
        :: else ->
            if
            :: flipped(n) ->
                node[n].move = IDLE;
                node[n].prepared = 0;
                clear_other(n)
            :: else
            fi;
            if
            :: node[n].move == DIRTY || is_prepared(n) || current(n).ver != base /* refused */
            :: else ->
                node[n].mover = e + 1;
                node[n].move = PENDING; /* what a dead mover left pending is cleared */
                answer = OK
            fi
        fi
    }
}

#if defined(BREAK_PIN_IGNORED)
#define frame_is_free(n) true
#else
#define frame_is_free(n) (!pins_below(0, n, current(n).retired) && \
                          !pins_below(1, n, current(n).retired))
#endif

/* Take the spare frame, or with no spare one that of the slot, and fill it. */
inline fill(e, n, newmap, taken, answer)
{
    if
    :: !in_place(n) ->
        d_step {
            taken = 1 - current(n).frame;
            answer = (frame_is_free(n) -> OK : BAD)
        }
    :: else ->
#if defined(BREAK_DIRTY_AFTER_FIRST_BYTE)
        d_step { node[n].content[current(n).frame] = PARTIAL };
#endif
#ifndef BREAK_NO_DIRTY_MARK
        d_step { node[n].move = DIRTY };
#endif
        d_step {
            taken = current(n).frame;
#ifdef BREAK_IN_PLACE_IGNORES_PINS
            answer = OK
#else
            answer = (has_pin(1 - e, n) -> BAD : OK)
#endif
        }
    fi;
    if
    :: answer == OK ->
        wanted = expert(n, newmap);
        write(e, n, taken, wanted)
    :: else
    fi
}

/* Write version v + 1 beside the current one. */
inline prepare(e, n, newmap, taken)
{
    d_step {
        node[n].prepared = 0;
#ifdef BREAK_ONE_COPY
        current(n).sealed = false
#else
        other(n).sealed = false
#endif
    };
    d_step {
#ifdef BREAK_ONE_COPY
        current(n).sealed = true;
#endif
        other(n).ver = current(n).ver + 1;
#ifdef BREAK_VERSION_NOT_RAISED
        other(n).ver = current(n).ver;
#endif
        other(n).map = newmap;
        other(n).frame = taken;
        other(n).retired = (taken == current(n).frame -> current(n).retired : other(n).ver);
        other(n).sealed = true;
        node[n].prepared = other(n).ver
    }
}

/* No node flips before each one has prepared that version, or has it. */
#define has_version(n, v) (current(n).ver == v || (node[n].prepared == v && other(n).sealed))

inline store_current(where)
{
    assert(other(where).sealed && other(where).ver > current(where).ver);
    node[where].cur = 1 - node[where].cur
}

inline clear_move(where)
{
    d_step {
        node[where].move = IDLE;
        node[where].prepared = 0;
        clear_other(where)
    }
}

inline flip(which)
{
    d_step {
        assert(has_version(1 - which, other(which).ver));
        store_current(which)
    };
    clear_move(which)
}

/* Give up a move; after an in-place one the old expert is written back first. */
inline abort(e, n)
{
    refill(e, n);
    clear_move(n);
    unlock(e, n)
}

/* Pin the current version: store the pin, then look again. coming.ok says whether it was got. */
inline pin(e, n, seen)
{
    d_step { seen = (state(n) == DIRTY -> 0 : current(n).ver) };
    if
    :: seen != 0 ->
#ifdef BREAK_PIN_LOOKS_ONCE
        d_step {
            coming[at(e, n)].frame = current(n).frame;
            coming[at(e, n)].map = current(n).map
        };
        d_step {
            coming[at(e, n)].ver = seen;
            coming[at(e, n)].ok = true
        }
#else
        d_step { coming[at(e, n)].ver = seen };
        d_step {
            if
            :: state(n) != DIRTY && current(n).ver == seen ->
                assert(current(n).sealed);
                coming[at(e, n)].frame = current(n).frame;
                coming[at(e, n)].map = current(n).map;
                coming[at(e, n)].ok = true
            :: else -> forget_coming(e, n)
            fi
        }
#endif
    :: else
    fi
}

/* ---- recovery and start --------------------------------------------------------------------- */

/* Is there a node that committed what another one has only prepared? */
#if defined(BREAK_ALWAYS_BACK)
#define decide_forward false
#elif defined(BREAK_ALWAYS_FORWARD)
#define decide_forward true
#else
#define decide_forward ((is_prepared(0) && current(1).ver == node[0].prepared) || \
                        (is_prepared(1) && current(0).ver == node[1].prepared))
#endif

inline resolve(n, onward)
{
    if
    :: is_prepared(n) && onward ->
        assert(other(n).sealed);
        flip(n)
    :: else ->
        d_step {
            if
            :: flipped(n) -> node[n].move = IDLE
            :: node[n].move == PENDING -> node[n].move = IDLE
            :: else
            fi;
            node[n].prepared = 0;
            clear_other(n)
        }
    fi
}

/* The version that all publish after damage, so that they agree again; 0: nothing to do. */
#define dirt(n) (node[n].move == DIRTY -> 1 : 0)
#define max(a, b) (a > b -> a : b)
#ifdef BREAK_ONE_NODE_RAISES
#define target_version \
    ((dirt(0) + dirt(1)) > 0 -> max(current(0).ver + dirt(0), current(1).ver + dirt(1)) : 0)
#define must_publish(n, v) (v != 0 && node[n].move == DIRTY)
#else
#define target_version \
    ((dirt(0) + dirt(1)) > 0 || current(0).ver != current(1).ver \
     -> max(current(0).ver + dirt(0), current(1).ver + dirt(1)) : 0)
#define must_publish(n, v) (v > current(n).ver)
#endif

/* A frame that another engine has pinned is not repaired under it. */
#define repair_blocked(e) \
    ((node[0].move == DIRTY && has_pin(1 - e, 0)) || (node[1].move == DIRTY && has_pin(1 - e, 1)))

/* Check the frame by its digest, fill it again if it is bad, publish the same map as version v. */
inline repair(e, n, goalver)
{
#ifndef BREAK_REPAIR_SKIPPED
    refill(e, n);
#endif
    if
    :: must_publish(n, goalver) ->
        d_step { other(n).sealed = false };
        d_step {
            other(n).ver = goalver;
            other(n).map = current(n).map;
            other(n).frame = current(n).frame;
            other(n).retired = current(n).retired;
            other(n).sealed = true;
            node[n].prepared = goalver
        };
        d_step { store_current(n) };
        clear_move(n)
    :: else
    fi
}

inline assert_recovered()
{
    assert(clean(0) && clean(1));
    assert(same_layout);
    assert(current(0).sealed && current(1).sealed);
    assert(slot_right(0) && slot_right(1))
}

/* A dead mover left something behind on node n, or between the nodes. */
#define stalled(n) (node[n].mover == 0 && !clean(n))
#define apart (node[0].mover == 0 && node[1].mover == 0 && current(0).ver != current(1).ver)
#define needs_recovery (stalled(0) || stalled(1) || apart)

/* Both nodes have the same version, and it is not the one that the engine routes with. */
#define can_follow(e) \
    (current(0).ver == current(1).ver && current(0).ver != view[at(e, 0)].ver && \
     state(0) != DIRTY && state(1) != DIRTY)

/* ---- engine 0: two members in lock step ----------------------------------------------------- */

/* Collectives: an all-gather of one byte, then an agreement, so all survivors learn the same. */
#define ENTRY 1
#define LOCK_FIRST 2
#define LOCK_ALL 3
#define RESOLVED 4
#define REPAIRED 5
#define PINNED 6
#define BEGUN 7
#define PREPARED 8
#define FLIPPED 9
#define ABORTED 10
#define COMING 200 /* what is gathered at the entry */

/* What the members agreed to do after the next step. */
#define NOTHING 0
#define FOLLOW 1
#define RECOVER 2
#define MOVE 3

bool dead[2];
bool lost;     /* a member died since the last entry */
byte vote[2];  /* value + 1; 0: not arrived */
bool got[2];   /* the collective is over and this member has not looked yet */
byte value[2]; /* what was gathered */
byte wish;
bit forward;
byte target;
bool blocked;

inline complete(kind)
{
    if
    :: kind == ENTRY ->
        lost = false;
        forward = 0;
        target = 0;
        blocked = false;
        serves[0] = false;
        forget_view(0, 0);
        forget_view(0, 1);
        forget_coming(0, 0);
        forget_coming(0, 1);
        wish = NOTHING
    :: kind == LOCK_FIRST ->
        wish = NOTHING
#ifdef BREAK_DECIDE_BEFORE_LOCK
        ; forward = decide_forward
#endif
    :: kind == LOCK_ALL ->
#ifndef BREAK_DECIDE_BEFORE_LOCK
        forward = decide_forward
#endif
        ; skip
    :: kind == RESOLVED ->
        forward = 0;
        blocked = repair_blocked(0);
        target = (blocked -> 0 : target_version)
    :: kind == REPAIRED ->
        target = 0;
        value[0] = 0;
        value[1] = 0;
        assert_recovered()
    :: kind == PINNED ->
        wish = NOTHING;
        if
        :: value[0] == value[1] && value[0] != 0 -> switch_views(0)
        :: else ->
            forget_coming(0, 0);
            forget_coming(0, 1)
        fi
    :: kind == BEGUN ->
        wish = NOTHING;
        if
        :: value[0] == OK && value[1] == OK && (in_place(0) || in_place(1)) -> serves[0] = false
        :: else
        fi
    :: kind == PREPARED ->
        if
        :: value[0] == value[1] && value[0] != BAD -> serves[0] = false
        :: else
        fi
    :: kind == FLIPPED -> switch_views(0)
    :: kind == ABORTED ->
        serves[0] = true;
        check()
    fi
}

/* A loss makes it fail, but for ENTRY, where the survivor and the node's next rank meet. */
inline gather(n, kind, given)
{
    d_step {
        if
        :: lost && kind != ENTRY
        :: else ->
            vote[n] = given + 1;
            if
            :: vote[1 - n] != 0 ->
                value[n] = given;
                value[1 - n] = vote[1 - n] - 1;
                vote[0] = 0;
                vote[1] = 0;
                got[0] = true;
                got[1] = true;
                complete(kind)
            :: else
            fi
        fi
    };
    if
    :: atomic { got[n] -> got[n] = false }
    :: kind != ENTRY && lost && !got[n] -> goto entry
    fi
}

#ifdef BREAK_MAP_DIGEST_SKIPPED
#define prepared_value(n) current(n).ver
#else
#define prepared_value(n) (current(n).ver * 2 + m)
#endif

proctype member(bit n)
{
    byte r, v;
    bit m, f, wanted;

life:
    {
        skip;
entry:
        skip;
        d_step {
            vote[n] = 0;
            r = 0;
            v = 0;
            m = 0;
            f = 0;
            wanted = 0
        };
        gather(n, ENTRY, COMING);

recover:
        /* All mover's locks, the first node's first; only then is it sure who did what. */
        if
        :: node[n].mover == 0 || node[n].mover == 1
        :: lost -> goto entry
        fi;
        if
        :: n == 0 ->
            d_step {
                r = (node[0].mover == 0 || node[0].mover == 1 -> OK : BAD);
                if
                :: r == OK -> node[0].mover = 1
                :: else
                fi
            }
        :: else -> r = OK
        fi;
        gather(n, LOCK_FIRST, r);
        if
        :: n == 1 && value[0] == OK ->
            d_step {
                r = (node[1].mover == 0 || node[1].mover == 1 -> OK : BAD);
                if
                :: r == OK -> node[1].mover = 1
                :: else
                fi
            }
        :: else
        fi;
        gather(n, LOCK_ALL, r);
        if
        :: value[0] == BAD || value[1] == BAD ->
            unlock(0, n);
            goto recover
        :: else
        fi;
        resolve(n, forward);
#ifdef BREAK_REPAIR_BEFORE_ALL_RESOLVED
        v = current(n).ver + dirt(n);
        repair(0, n, v);
#endif
        gather(n, RESOLVED, 0);
        if
        :: blocked ->
            unlock(0, n);
            if
            :: !repair_blocked(0) -> goto recover
            :: lost -> goto entry
            fi
        :: else
        fi;
        repair(0, n, target);
        gather(n, REPAIRED, 0);
        unlock(0, n);
        if
        :: serves[0] -> goto serve
        :: else
        fi;

follow:
        pin(0, n, v);
        v = (coming[n].ok -> coming[n].ver : 0);
        gather(n, PINNED, v);
        if
        :: view[n].ver == 0 -> goto recover
        :: else
        fi;

serve:
        skip;
        d_step { r = 0; v = 0; m = 0; f = 0; wanted = 0 };
end_serve:
        if
        :: lost -> goto entry
        :: n == 0 && !lost && wish == NOTHING && can_follow(0) -> wish = FOLLOW; goto end_serve
        :: n == 0 && !lost && wish == NOTHING && needs_recovery -> wish = RECOVER; goto end_serve
        :: atomic { n == 0 && !lost && wish == NOTHING && moves > 0 && !can_follow(0) ->
                    wish = MOVE; moves-- };
            goto end_serve
        :: !lost && wish == FOLLOW -> goto follow
        :: !lost && wish == RECOVER -> goto recover
        :: !lost && wish == MOVE
        fi;

        begin(0, n, view[n].ver, r);
        gather(n, BEGUN, r);
        if
        :: value[0] == BAD || value[1] == BAD ->
            if
            :: r == OK ->
#ifndef BREAK_BEGIN_NOT_UNDONE
                abort(0, n)
#endif
                ; skip
            :: else
            fi;
            goto serve
        :: else
        fi;
        if
        :: m = 1 - view[n].map
        :: atomic { slips > 0 && n == 1 -> slips--; m = view[n].map }
        fi;
#ifdef BREAK_FLIP_BEFORE_FILL
        f = (in_place(n) -> current(n).frame : 1 - current(n).frame);
        wanted = expert(n, m);
#else
        fill(0, n, m, f, r);
#endif
        if
        :: r == OK -> prepare(0, n, m, f)
        :: else
        fi;
#ifdef BREAK_FLIP_BEFORE_ALL_PREPARED
        value[n] = OK; value[1 - n] = OK;
#else
        r = (r == OK -> prepared_value(n) : BAD);
        gather(n, PREPARED, r);
#endif
        if
        :: value[0] != value[1] || value[0] == BAD ->
            abort(0, n);
            gather(n, ABORTED, 0);
            goto serve
        :: else
        fi;
#ifdef BREAK_FLIP_INSIDE_A_STEP
        d_step { serves[0] = true };
#endif
        flip(n);
#ifdef BREAK_FLIP_BEFORE_FILL
        write(0, n, f, wanted);
#endif
        d_step {
            coming[n].ver = current(n).ver;
            coming[n].frame = current(n).frame;
            coming[n].map = current(n).map;
            coming[n].ok = true
#ifdef BREAK_FLIP_INSIDE_A_STEP
            ; view[n].ver = coming[n].ver;
            view[n].frame = coming[n].frame;
            view[n].map = coming[n].map;
            check()
#endif
        };
        gather(n, FLIPPED, 0);
        unlock(0, n);
        goto serve
    }
    unless
    {
        atomic { dead[n] -> dead[n] = false }
    };
    goto life
}

/* ---- engine 1: one process on both nodes ---------------------------------------------------- */

bool dead1;

proctype standby()
{
    byte r, r2, v, goal, attaches = ATTACHES;
    bit m, f, f2, go, wanted;

life:
    {
        skip;
absent:
        skip;
        d_step { r = 0; r2 = 0; v = 0; goal = 0; m = 0; f = 0; f2 = 0; go = 0; wanted = 0 };
end_absent:
        if
        :: attaches > 0 -> attaches--
        :: attaches > 0 -> attaches = 0; goto end_absent
        fi;

recover:
        atomic { node[0].mover == 0 -> node[0].mover = 2 };
#ifdef BREAK_DECIDE_BEFORE_LOCK
        go = decide_forward;
#endif
        d_step {
            r = (node[1].mover == 0 -> OK : BAD);
            if
            :: r == OK -> node[1].mover = 2
            :: else
            fi
        };
        if
        :: r == BAD ->
            unlock(1, 0);
            node[1].mover == 0;
            goto recover
        :: else
        fi;
#ifndef BREAK_DECIDE_BEFORE_LOCK
        go = decide_forward;
#endif
        resolve(0, go);
#ifdef BREAK_REPAIR_BEFORE_ALL_RESOLVED
        goal = current(0).ver + dirt(0);
        repair(1, 0, goal);
#endif
        resolve(1, go);
#ifdef BREAK_REPAIR_BEFORE_ALL_RESOLVED
        goal = current(1).ver + dirt(1);
        repair(1, 1, goal);
#endif
        go = 0;
        if
        :: repair_blocked(1) ->
            unlock(1, 0);
            unlock(1, 1);
            !repair_blocked(1);
            goto recover
        :: else
        fi;
        goal = target_version;
        repair(1, 0, goal);
        repair(1, 1, goal);
        d_step {
            goal = 0;
            assert_recovered()
        };
        unlock(1, 0);
        unlock(1, 1);
        if
        :: serves[1] -> goto serve
        :: else
        fi;

follow:
        pin(1, 0, v);
        pin(1, 1, v);
        d_step {
            v = 0;
            if
#ifdef BREAK_FOLLOW_ONE_NODE
            :: coming[2].ok && coming[3].ok
#else
            :: coming[2].ok && coming[3].ok && coming[2].ver == coming[3].ver
#endif
                -> switch_views(1)
            :: else ->
                forget_coming(1, 0);
                forget_coming(1, 1)
            fi
        };
        if
        :: view[2].ver == 0 -> goto recover
        :: else
        fi;

serve:
        skip;
        d_step { r = 0; r2 = 0; v = 0; goal = 0; m = 0; f = 0; f2 = 0; go = 0; wanted = 0 };
end_serve:
        if
        :: can_follow(1) -> goto follow
        :: needs_recovery -> goto recover
        :: atomic { /* leaves */
                attaches > 0 -> serves[1] = false; forget_view(1, 0); forget_view(1, 1) };
            goto absent
        :: atomic { moves > 0 && !can_follow(1) -> moves-- }
        fi;

        begin(1, 0, view[2].ver, r);
        begin(1, 1, view[3].ver, r2);
        if
        :: r == BAD || r2 == BAD ->
            if
            :: r == OK -> abort(1, 0)
            :: else
            fi;
            if
            :: r2 == OK -> abort(1, 1)
            :: else
            fi;
            goto serve
        :: else
        fi;
        d_step {
            m = 1 - view[2].map;
            serves[1] = !(in_place(0) || in_place(1))
        };
        fill(1, 0, m, f, r);
        if
        :: r == OK -> fill(1, 1, m, f2, r)
        :: else
        fi;
        if
        :: r == OK ->
            prepare(1, 0, m, f);
            prepare(1, 1, m, f2)
        :: else ->
            abort(1, 0);
            abort(1, 1);
            d_step {
                serves[1] = true;
                check()
            };
            goto serve
        fi;
        d_step { serves[1] = false };
        flip(0);
        flip(1);
        d_step {
            coming[2].ver = current(0).ver;
            coming[2].frame = current(0).frame;
            coming[2].map = current(0).map;
            coming[3].ver = current(1).ver;
            coming[3].frame = current(1).frame;
            coming[3].map = current(1).map;
            switch_views(1)
        };
        unlock(1, 0);
        unlock(1, 1);
        goto serve
    }
    unless
    {
        atomic { dead1 -> dead1 = false }
    };
    goto life
}

/* ---- crashes: locks and pins go at once, memory stays --------------------------------------- */

inline drop_of_dead(e, n)
{
#ifndef BREAK_LOCK_OUTLIVES_PROCESS
    if
    :: node[n].mover == e + 1 -> node[n].mover = 0
    :: else
    fi;
#endif
    forget_view(e, n);
    forget_coming(e, n);
    serves[e] = false
}

inline kill_member(n)
{
    d_step {
        dead[n] = true;
        lost = true;
        vote[n] = 0;
        vote[1 - n] = (vote[1 - n] == COMING + 1 -> COMING + 1 : 0); /* others fail */
        got[n] = false;
        drop_of_dead(0, n)
    }
}

proctype crashes()
{
    byte left = CRASHES;

end_crashes:
    do
    :: left > 0 && !dead[0] -> left--; kill_member(0)
    :: left > 0 && !dead[1] -> left--; kill_member(1)
    :: left > 0 && !dead1 ->
        left--;
        d_step {
            dead1 = true;
            drop_of_dead(1, 0);
            drop_of_dead(1, 1)
        }
    :: left > 0 -> left = 0
    od
}

/* ---- when nothing can happen any more ------------------------------------------------------- */

#define can_begin (clean(0) && clean(1) && same_layout && node[0].mover == 0 && node[1].mover == 0)

init
{
    atomic {
        current(0).ver = 1;
        current(0).sealed = true;
        current(1).ver = 1;
        current(1).sealed = true;
        node[0].content[0] = 0;
        node[0].content[1] = PARTIAL;
        node[1].content[0] = 1;
        node[1].content[1] = PARTIAL;
        run member(0);
        run member(1);
        run standby();
        run crashes()
    };
end_init:
    timeout -> assert(can_begin && serves[0]);
}

#ifdef WAY_OUT
ltl way_out { [] <> can_begin }
#endif
