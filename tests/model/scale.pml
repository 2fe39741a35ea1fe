/*
 * Growing and draining as src/member does it; doc/model.md explains it. recover.pml shows that all
 * members agree on one state; so here there is one, and what each process does with it.
 *
 * World: members 0 and 1 on node 0, process 2 parked on node 1; two seats, executed by 0 and 1 at
 * first. Operations let 2 join (it takes seat 1, which its node has to load) or let any member leave
 * (0 is the coordinator). What the parked one is told goes through the coordinator, which may die
 * first; what it says may be old. A frame that nobody executes grows old as soon as experts move.
 *
 * BREAK_x breaks one rule; tests/model/run shows that each break is found.
 */
#ifndef OPS
#define OPS 2
#endif
#ifndef CRASHES
#define CRASHES 2
#endif
#ifndef HANGS
#define HANGS 1 /* the parked one stands still for ever, and nobody sees it */
#endif

#define NOBODY 3
#define bit_of(p) (1 << (p))
#define has(set, p) (((set) >> (p)) & 1)
#define node_of(p) ((p) == 2 -> 1 : 0)

/* ---- what all members agree on -------------------------------------------------------------- */

#define PARKED 0
#define JOINING 1
#define ACTIVE 2
#define DRAINING 3
#define GONE 4 /* dead, or has left */

#define NONE 0
#define PLANNED 1
#define STARTING 2
#define LOADING 3
#define READY 4
#define SWITCHING 5

byte life[3];
bool reseating;
byte reseated; /* who has taken over its seats */
byte phase;
bool grows;
byte leaver;   /* of a drain */
byte serial;   /* of the operation's wait */
byte first;    /* its first one */
bool appeared;
byte done;     /* who has reported to the wait */
byte exec[2], next[2];
byte held[2];  /* nodes that hold the seat, as far as is known */

#define in_epoch(p) (life[p] == ACTIVE || life[p] == DRAINING)
#define set (in_epoch(0) + 2 * in_epoch(1) + 4 * in_epoch(2))
#define coordinator (in_epoch(0) -> 0 : (in_epoch(1) -> 1 : 2))
#define stays(p) (life[p] == ACTIVE || life[p] == JOINING)
#define loads(p) (life[p] == JOINING || (next[0] == p && !has(held[0], node_of(p))) || \
                  (next[1] == p && !has(held[1], node_of(p))))
#define expected(p) ((phase == LOADING && stays(p) && loads(p) && !has(done, p)) || \
                     (phase == READY && in_epoch(p) && !has(done, p)))

/* ---- what is so ----------------------------------------------------------------------------- */

byte alive = 7;
byte mem[2];  /* seats whose frames in the node's memory are what the layout says */
bool hung;    /* process 2 */
bool is_in;   /* process 2 is in the communicator */
byte woken;   /* serial that process 2 was woken with; 0: it sleeps */
byte to_load; /* serial that it was asked to load for */
byte loaded;  /* serial that it has loaded for */

/* The coordinator's word to process 2, not yet passed on. */
#define WAKE 1
#define LOAD 2
#define PARK 3
byte tell, tell_serial, tell_by;

byte ops = OPS, crashes = CRASHES, hangs = HANGS;

#define hurt ((set & ~alive) != 0)
#define agrees (!hurt) /* steps are complete: events are agreed on */
#define acts(p) (has(alive, p) && !(p == 2 && hung))

inline say(what)
{
    tell = what;
    tell_serial = serial;
    tell_by = coordinator
}

inline check()
{
    assert(set != 0);
    for (i : 0 .. 1) {
        assert(reseating || in_epoch(exec[i]));
        assert(reseating || hurt || has(mem[node_of(exec[i])], i))
    }
    assert(phase != NONE ||
           (life[0] != DRAINING && life[1] != DRAINING && life[2] != DRAINING && life[2] != JOINING &&
            next[0] == NOBODY && next[1] == NOBODY));
    assert(!reseating || phase <= PLANNED);
    assert(!has(alive, 2) || is_in == in_epoch(2))
}

inline begin_wait(p)
{
    phase = p;
    serial++;
    done = 0
}

inline forget_plan()
{
    next[0] = NOBODY;
    next[1] = NOBODY
}

inline end_operation()
{
    phase = NONE;
    appeared = false;
    done = 0;
    forget_plan()
}

inline roll_back()
{
    for (i : 0 .. 2) {
        if
        :: life[i] == DRAINING -> life[i] = ACTIVE
        :: life[i] == JOINING -> life[i] = PARKED; say(PARK)
        :: else
        fi
    }
    end_operation()
}

/* Who executes a seat among those that `stays`, or, after a loss, all of the epoch. */
#define may(p, all) (all -> in_epoch(p) : stays(p))
#define on_node(h, p, all) (may(p, all) && has(h, node_of(p)))
#define heir(i, all) (may(exec[i], all) -> exec[i] : \
    (on_node(held[i], 0, all) -> 0 : (on_node(held[i], 1, all) -> 1 : (on_node(held[i], 2, all) -> 2 : \
    (may(0, all) -> 0 : (may(1, all) -> 1 : 2))))))

inline plan_seats()
{
    next[0] = heir(0, false);
    next[1] = heir(1, false);
    if
    :: grows && next[0] != 2 -> next[1] = 2
    :: else
    fi
}

inline load_phase()
{
    plan_seats();
    begin_wait(LOADING);
    if
    :: life[2] == JOINING -> say(LOAD)
    :: else
    fi
}

inline start_operation()
{
    begin_wait(STARTING);
    if
    :: grows && life[2] == PARKED -> life[2] = JOINING; say(WAKE)
    :: grows && life[2] == JOINING && !appeared -> say(WAKE)
    :: grows && life[2] == JOINING && appeared -> load_phase()
    :: grows && life[2] > JOINING -> roll_back()
    :: !grows && !in_epoch(leaver) -> end_operation()
    :: !grows && in_epoch(leaver) && set == bit_of(leaver) -> roll_back()
    :: !grows && in_epoch(leaver) && set != bit_of(leaver) -> life[leaver] = DRAINING
    fi
}

/* Frames of a node that does not execute a seat are forgotten, and grow old. */
inline serve()
{
    reseating = false;
    reseated = 0;
    for (i : 0 .. 1) {
        held[i] = bit_of(node_of(exec[i]))
    }
    check();
    if
    :: phase == PLANNED -> start_operation()
    :: else
    fi
}

inline adopt_seats()
{
    n = 0;
    for (i : 0 .. 2) {
        n = (in_epoch(i) -> n | bit_of(node_of(i)) : n)
    }
    for (i : 0 .. 1) {
        held[i] = held[i] & n;
        exec[i] = heir(i, true)
    }
}

inline reseat()
{
    reseating = true;
    reseated = 0;
    forget_plan();
    adopt_seats()
}

/* Memory goes with the node's last process that uses it. */
inline forget_memory()
{
    if
    :: !has(alive, 0) && !has(alive, 1) -> mem[0] = 0
    :: else
    fi;
    if
    :: !has(alive, 2) -> mem[1] = 0
    :: else
    fi
}

/* Process 2 sleeps; it drops what it holds. */
inline sleep()
{
    is_in = false;
    woken = 0;
    to_load = 0;
    loaded = 0;
    mem[1] = 0
}

inline lose()
{
#ifdef BREAK_LEFT_OUT_COUNTS_AS_IN
    if
    :: phase == SWITCHING && life[2] == JOINING -> life[2] = ACTIVE; end_operation()
    :: else
    fi;
#endif
    for (i : 0 .. 2) {
        if
        :: in_epoch(i) && !has(alive, i) -> life[i] = GONE
        :: else
        fi
    }
    if
    :: phase == SWITCHING && life[2] == JOINING -> roll_back()
    :: phase == SWITCHING && !grows && !in_epoch(leaver) -> end_operation()
#ifndef BREAK_PHASE_OUTLIVES_A_LOSS
    :: phase != NONE && !(phase == SWITCHING && (life[2] == JOINING || (!grows && !in_epoch(leaver)))) ->
        begin_wait(PLANNED)
#endif
    :: else
    fi;
    reseat()
}

inline take_plan()
{
    for (i : 0 .. 1) {
        held[i] = held[i] | bit_of(node_of(next[i]));
        exec[i] = next[i]
    }
}

inline switch_over()
{
    take_plan();
    if
    :: grows ->
        life[2] = ACTIVE;
        is_in = true;
        woken = 0
    :: !grows && leaver == 2 ->
        life[2] = PARKED;
        sleep()
    :: !grows && leaver != 2 ->
        life[leaver] = GONE;
        alive = alive & ~bit_of(leaver);
        forget_memory()
    fi;
    end_operation();
    serve()
}

inline fill_next(p)
{
    for (i : 0 .. 1) {
        if
        :: next[i] == p -> mem[node_of(p)] = mem[node_of(p)] | bit_of(i)
        :: else
        fi
    }
}

inline fill_exec(p)
{
    for (i : 0 .. 1) {
        if
        :: exec[i] == p -> mem[node_of(p)] = mem[node_of(p)] | bit_of(i)
        :: else
        fi
    }
}


/* ---- what may happen ------------------------------------------------------------------------ */

#ifdef BREAK_MOVES_WHILE_LOADING
#define may_move (!reseating && phase <= READY)
#else
#define may_move (!reseating && phase < LOADING)
#endif
#define is_old(i) has(mem[1 - node_of(exec[i])], i)

#ifdef BREAK_LATE_REPORT_COUNTS
#define has_loaded (loaded != 0)
#else
#define has_loaded (loaded == serial)
#endif

proctype events()
{
    byte i, n;

end:
    do
    /* Requests, aborts, deadlines. */
    :: d_step { agrees && phase == NONE && ops > 0 && life[2] == PARKED ->
        ops--; grows = true; leaver = NOBODY; begin_wait(PLANNED); first = serial;
        if :: !reseating -> start_operation() :: else fi; i = 0; check(); i = 0; n = 0 }
    :: atomic { agrees && phase == NONE && ops > 0 && (set & (set - 1)) != 0 ->
        if
        :: in_epoch(0) -> leaver = 0
        :: in_epoch(1) -> leaver = 1
        :: in_epoch(2) -> leaver = 2
        fi;
        d_step { ops--; grows = false; begin_wait(PLANNED); first = serial;
        if :: !reseating -> start_operation() :: else fi; check(); i = 0; n = 0 } }
#ifndef BREAK_NO_DEADLINE
    :: d_step { agrees && phase != NONE -> roll_back(); check(); i = 0; n = 0 }
#endif
    /* Starting. */
    :: d_step { agrees && !reseating && phase == STARTING && grows && acts(2) && woken >= first ->
        appeared = true; load_phase(); check(); i = 0; n = 0 }
    :: d_step { agrees && !reseating && phase == STARTING && !grows ->
        load_phase(); check(); i = 0; n = 0 }
    /* Loading, ready: members at once, process 2 when it says so. */
    :: d_step { agrees && expected(0) -> if :: phase == LOADING -> fill_next(0) :: else fi;
        done = done | 1; i = 0 }
    :: d_step { agrees && expected(1) -> if :: phase == LOADING -> fill_next(1) :: else fi;
        done = done | 2; i = 0 }
    :: d_step { agrees && expected(2) && is_in && acts(2) ->
        if :: phase == LOADING -> fill_next(2) :: else fi; done = done | 4; i = 0 }
    :: d_step { agrees && expected(2) && !is_in && acts(2) && has_loaded -> done = done | 4 }
#ifdef BREAK_SWITCH_BEFORE_LOADED
    :: d_step { agrees && phase == LOADING -> begin_wait(READY) }
#endif
    :: d_step { agrees && phase == LOADING && !expected(0) && !expected(1) && !expected(2) ->
        begin_wait(READY) }
    :: d_step { agrees && phase == READY && !expected(0) && !expected(1) && !expected(2) ->
        begin_wait(SWITCHING) }
    /* Switching. */
    :: d_step { agrees && phase == SWITCHING && (!grows || acts(2)) ->
        switch_over(); check(); i = 0; n = 0 }
    :: d_step { agrees && phase == SWITCHING -> roll_back(); check(); i = 0; n = 0 }
    /* Losses. */
    :: d_step { hurt && (set & alive) != 0 -> lose(); check(); i = 0; n = 0 }
    :: d_step { agrees && !has(alive, 2) && (life[2] == PARKED || life[2] == JOINING) ->
        n = life[2]; life[2] = GONE;
        if :: n == JOINING -> roll_back() :: else fi; check(); i = 0; n = 0 }
    :: d_step { agrees && reseating && has(set & ~reseated, 0) -> fill_exec(0);
        reseated = reseated | 1; if :: reseated == set -> serve() :: else fi; i = 0; n = 0 }
    :: d_step { agrees && reseating && has(set & ~reseated, 1) -> fill_exec(1);
        reseated = reseated | 2; if :: reseated == set -> serve() :: else fi; i = 0; n = 0 }
    :: d_step { agrees && reseating && has(set & ~reseated, 2) && acts(2) -> fill_exec(2);
        reseated = reseated | 4; if :: reseated == set -> serve() :: else fi; i = 0; n = 0 }
    /* Experts move: copies that nobody executes are not what the layout says any more. */
    :: d_step { agrees && may_move && (is_old(0) || is_old(1)) ->
        for (i : 0 .. 1) { mem[1 - node_of(exec[i])] = mem[1 - node_of(exec[i])] & ~bit_of(i) };
        check(); i = 0 }
    /* Process 2 says that it is there, though nobody waits for it. */
#ifndef BREAK_PARK_TOLD_ONCE
    :: d_step { agrees && acts(2) && woken != 0 && life[2] == PARKED && tell == 0 -> say(PARK) }
#endif
    od
}

/* The coordinator passes on what process 2 is told; process 2 does it. */
proctype outside()
{
    byte i;

end:
    do
    :: d_step { tell != 0 && has(alive, tell_by) && acts(2) && !is_in ->
        if
        :: tell == WAKE -> woken = tell_serial
        :: tell == LOAD -> to_load = tell_serial
        :: tell == PARK -> sleep()
        fi;
        tell = 0; tell_serial = 0; tell_by = 0 }
    :: d_step { tell != 0 && (!has(alive, tell_by) || !has(alive, 2) || is_in) ->
        tell = 0; tell_serial = 0; tell_by = 0 }
    :: d_step { acts(2) && !is_in && to_load != 0 ->
        /* By what is agreed on now: the seats that are planned for it. */
        if :: to_load == serial -> fill_next(2); loaded = to_load :: else fi;
        to_load = 0; i = 0 }
    :: d_step { crashes > 0 && has(alive, 0) && (set & alive & ~1) != 0 ->
        crashes--; alive = alive & ~1; forget_memory() }
    :: d_step { crashes > 0 && has(alive, 1) && (set & alive & ~2) != 0 ->
        crashes--; alive = alive & ~2; forget_memory() }
    :: d_step { crashes > 0 && has(alive, 2) && (set & alive & ~4) != 0 ->
        crashes--; alive = alive & ~4; forget_memory() }
    :: d_step { hangs > 0 && !is_in && has(alive, 2) -> hangs--; hung = true }
    :: d_step { crashes + hangs > 0 -> crashes = 0; hangs = 0 } /* no more of that */
    od
}

/* When nothing can happen any more, no operation runs, all serve, and who is parked sleeps. */
proctype rest()
{
    timeout ->
    assert(phase == NONE && !reseating && !hurt);
    assert(!acts(2) || is_in || woken == 0)
}

init {
    atomic {
        life[0] = ACTIVE;
        life[1] = ACTIVE;
        exec[1] = 1;
        next[0] = NOBODY;
        next[1] = NOBODY;
        held[0] = 1;
        held[1] = 1;
        mem[0] = 3;
        leaver = NOBODY;
        run events();
        run outside();
        run rest()
    }
}
