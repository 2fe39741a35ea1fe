/*
 * Recovery from losses: what src/member and those who feed it agree on; doc/model.md explains it.
 *
 * World: PROCS processes, the last on a node of its own, the others together on node 0; seat i is
 * executed by process i at first. Steps are all-gathers: one is complete when all of the group have
 * given their part, dead ones too; each process takes the result on its own, or hears of a death
 * first. Whoever hears of one revokes. A shrink is complete when all that live have come to it; its
 * result (a set, the highest position with its state, an epoch) is taken by each on its own, or
 * not: the next death may be heard first. A death may come at any moment.
 *
 * The agreed state is position, epoch, set, mode, who has reported, and a bit that stands for all
 * that the last step did. What a step does is chosen when its first part is given: made again in
 * another epoch it may do something else.
 *
 * BREAK_x breaks one rule; tests/model/run shows that each break is found.
 */
#ifndef PROCS
#define PROCS 3
#endif
#ifndef CRASHES
#define CRASHES 2
#endif
#ifndef SLIPS
#define SLIPS 0 /* how often a process gives up an epoch for nothing: a time-out, a failed call */
#endif
#ifndef STEPS
#define STEPS 2 /* parts that are given while all serve, by each process */
#endif
#ifndef IDLE
#define IDLE 1 /* parts that are given while seats are still being filled */
#endif

#define bit_of(p) (1 << (p))
#define ALL ((1 << PROCS) - 1)
#define has(set, p) (((set) >> (p)) & 1)
#define node_of(p) ((p) == PROCS - 1 -> 1 : 0)
#define ON_NODE0 ((1 << (PROCS - 1)) - 1)
#define nodemates(p) (node_of(p) -> bit_of(PROCS - 1) : ON_NODE0)

#define SERVING 0
#define RESEATING 1

/* What a process does. */
#define STEP 0   /* between two steps */
#define GIVEN 1  /* has given its part, waits for those of the others */
#define SHRINK 2 /* waits for the others that live */
#define AGREE 3  /* a result of a shrink is there to take */

typedef state_t {
    byte pos;
    byte epoch; /* also the serial of the wait: each epoch has one */
    byte set;
    bit mode;
    byte done; /* who has reported that its seats are there */
    bit last   /* what the last step did */
}

state_t s[PROCS];
byte act[PROCS];
byte tried[PROCS];  /* highest epoch that a shrink has offered it */
byte filled[PROCS]; /* epoch for which its seats are there: what it reports */
byte steps[PROCS];
byte gave[PROCS];   /* position after the step that it has given its part of, in this group */
byte report[PROCS * 2]; /* with the part of the step to an even, odd position */
byte alive = ALL;
byte group = ALL; /* those of the present communicator */
byte revoked = 0; /* who has heard of it, in this group */
byte idle = IDLE;
byte crashes = CRASHES;
byte slips = SLIPS;
bit does[2];     /* the step to an even, odd position */
byte started[2]; /* position of the step whose `does` that is; 0: none */
state_t offer;   /* of the last shrink */
byte sets[12];   /* of each epoch that anybody has seen; 0: not seen */

byte mem[2]; /* seats whose frames are in the memory of each node */

/* Who executes a seat: its first process, another of its node, the lowest. */
#define lowest(set) (has(set, 0) -> 0 : (has(set, 1) -> 1 : (has(set, 2) -> 2 : 3)))
#define executor(set, i) (has(set, i) -> i : \
    (((set) & nodemates(i)) != 0 -> lowest((set) & nodemates(i)) : lowest(set)))
#define is_there(set, i) has(mem[node_of(executor(set, i))], i)


/* Who serves, serves every seat of a live executor from frames that are there. */
inline check(p)
{
    for (i : 0 .. PROCS - 1) {
        assert(s[p].mode == RESEATING || !has(alive, executor(s[p].set, i)) ||
               is_there(s[p].set, i))
    }
    /* An epoch has one set. */
    assert(sets[s[p].epoch] == 0 || sets[s[p].epoch] == s[p].set);
    sets[s[p].epoch] = s[p].set;
    /* At one position, one state, among those that live. */
    for (i : 0 .. PROCS - 1) {
        if
        :: has(alive, i) && act[i] != AGREE && act[p] != AGREE && s[i].pos == s[p].pos ->
            assert(s[i].epoch == s[p].epoch && s[i].set == s[p].set && s[i].mode == s[p].mode &&
                   s[i].done == s[p].done && s[i].last == s[p].last)
        :: else
        fi
    }
}

inline forget_step()
{
    for (i : 0 .. PROCS - 1) {
        gave[i] = 0;
        report[2 * i] = 0;
        report[2 * i + 1] = 0
    }
    started[0] = 0;
    started[1] = 0;
    does[0] = 0;
    does[1] = 0
}

/* ---- steps ---- */

inline give(p)
{
    n = s[p].pos + 1;
    if
    :: started[n % 2] != n ->
        started[n % 2] = n;
        if
        :: does[n % 2] = 0
        :: does[n % 2] = 1
        fi
    :: else
    fi;
    gave[p] = n;
    report[2 * p + n % 2] = (s[p].mode == RESEATING -> filled[p] : 0);
    act[p] = GIVEN
}

inline take(p)
{
    s[p].pos++;
    s[p].last = does[s[p].pos % 2];
    for (i : 0 .. PROCS - 1) {
        if
#ifdef BREAK_OLD_REPORT_COUNTS
        :: s[p].mode == RESEATING && has(s[p].set, i) && report[2 * i + s[p].pos % 2] != 0 ->
#else
        :: s[p].mode == RESEATING && has(s[p].set, i) && report[2 * i + s[p].pos % 2] == s[p].epoch ->
#endif
            s[p].done = s[p].done | bit_of(i)
        :: else
        fi
    }
    if
#ifdef BREAK_FIRST_REPORT_SERVES
    :: s[p].mode == RESEATING && s[p].done != 0 ->
#else
    :: s[p].mode == RESEATING && s[p].done == s[p].set ->
#endif
        s[p].mode = SERVING;
        s[p].done = 0
    :: else
    fi;
    act[p] = STEP;
    check(p)
}

/* ---- shrink ---- */

inline enter(p)
{
    revoked = revoked | bit_of(p);
    act[p] = SHRINK
}

inline offer_next()
{
    n = PROCS;
    e = 0;
    for (i : 0 .. PROCS - 1) {
        if
        :: has(group & alive, i) ->
            if
#ifdef BREAK_ADOPT_FROM_BEHIND
            :: n == PROCS || s[i].pos < s[n].pos -> n = i
#else
            :: n == PROCS || s[i].pos > s[n].pos -> n = i
#endif
            :: else
            fi;
            e = (s[i].epoch > e -> s[i].epoch : e);
#ifndef BREAK_EPOCH_USED_TWICE
            e = (tried[i] > e -> tried[i] : e)
#endif
        :: else
        fi
    }
    group = group & alive;
    offer.pos = s[n].pos;
    offer.epoch = e + 1;
    offer.set = group;
    offer.last = s[n].last;
    revoked = 0;
    forget_step();
    for (i : 0 .. PROCS - 1) {
        if
        :: has(group, i) ->
            act[i] = AGREE;
            tried[i] = offer.epoch
        :: else
        fi
    }
}

inline agree(p)
{
#ifndef BREAK_NO_ADOPTION
    assert(offer.pos >= s[p].pos); /* what has been done is not undone */
    s[p].pos = offer.pos + 1;
    s[p].last = offer.last;
#else
    s[p].pos = s[p].pos + 1;
#endif
    s[p].epoch = offer.epoch;
    s[p].set = offer.set;
    s[p].mode = RESEATING;
    s[p].done = 0;
    act[p] = STEP;
    check(p)
}

inline fill(p)
{
    for (i : 0 .. PROCS - 1) {
        if
        :: executor(s[p].set, i) == p -> mem[node_of(p)] = mem[node_of(p)] | bit_of(i)
        :: else
        fi
    }
    filled[p] = s[p].epoch
}

/* ---- processes ---- */

#define hurt ((group & ~alive) != 0)
#define may_give(p) (s[p].mode == SERVING -> steps[p] < STEPS : \
    filled[p] == s[p].epoch || idle > 0)

proctype process(byte p)
{
    byte i, n, e;
    bool whole;

end:
    do
    :: d_step { !has(alive, p) -> i = 0; n = 0; e = 0; whole = false }; break
    /* A step. */
    :: atomic {
        has(alive, p) && act[p] == STEP && !has(revoked, p) && may_give(p) ->
        if
        :: s[p].mode == SERVING -> steps[p]++
        :: s[p].mode == RESEATING && filled[p] != s[p].epoch -> idle--
        :: else
        fi;
        give(p);
        i = 0; n = 0
    }
    :: d_step {
        has(alive, p) && act[p] == GIVEN &&
        !((has(group, 0) && gave[0] < s[p].pos + 1) ||
          (has(group, 1) && gave[1] < s[p].pos + 1) ||
#if PROCS > 3
          (has(group, 3) && gave[3] < s[p].pos + 1) ||
#endif
          (has(group, 2) && gave[2] < s[p].pos + 1)) ->
        take(p);
        i = 0
    }
    /* Seats. */
    :: d_step {
        has(alive, p) && act[p] <= GIVEN && s[p].mode == RESEATING && filled[p] != s[p].epoch ->
        fill(p);
        i = 0
    }
    /* A death is heard of, or that somebody else has heard of one. */
    :: d_step { has(alive, p) && act[p] <= GIVEN && hurt -> enter(p) }
#ifndef BREAK_NOBODY_REVOKES
    :: d_step { has(alive, p) && act[p] <= GIVEN && revoked != 0 -> enter(p) }
#endif
    /* The last that comes to the shrink completes it. */
    :: d_step {
        has(alive, p) && act[p] == SHRINK && (group & alive & ~revoked) == 0 ->
        offer_next();
        i = 0; n = 0; e = 0
    }
    :: d_step { has(alive, p) && act[p] == AGREE && !has(revoked, p) -> agree(p); i = 0 }
#ifndef BREAK_NOBODY_REVOKES
    :: d_step { has(alive, p) && act[p] == AGREE && (hurt || revoked != 0) -> enter(p) }
#else
    :: d_step { has(alive, p) && act[p] == AGREE && hurt -> enter(p) }
#endif
    :: d_step {
        has(alive, p) && act[p] != SHRINK && slips > 0 ->
        slips--;
        enter(p)
    }
    od
}

proctype death()
{
    byte i;

end:
    do
    :: d_step { crashes + slips > 0 -> crashes = 0; slips = 0 } /* no more of that */
    :: atomic {
        crashes > 0 ->
        if
        :: has(alive, 0) && alive != 1 -> i = 0
        :: has(alive, 1) && alive != 2 -> i = 1
        :: has(alive, 2) && alive != 4 -> i = 2
#if PROCS > 3
        :: has(alive, 3) && alive != 8 -> i = 3
#endif
        fi;
        crashes--;
        alive = alive & ~bit_of(i);
        /* With its last process goes the node's memory. */
        if
        :: (alive & nodemates(i)) == 0 -> mem[node_of(i)] = 0
        :: else
        fi;
        i = 0
    }
    od
}

/* When nothing can happen any more, all that live serve in one epoch, with nobody else. */
#define rests(p) (!has(alive, p) || (act[p] <= GIVEN && s[p].mode == SERVING && \
    s[p].set == alive && !has(revoked, p)))

proctype rest()
{
    timeout ->
    assert(rests(0) && rests(1) && rests(2));
#if PROCS > 3
    assert(rests(3));
#endif
}

init {
    byte i;

    atomic {
        mem[0] = ON_NODE0;
        mem[1] = bit_of(PROCS - 1);
        for (i : 0 .. PROCS - 1) {
            s[i].epoch = 1;
            s[i].set = ALL;
            tried[i] = 1
        }
        sets[1] = ALL;
        for (i : 0 .. PROCS - 1) {
            run process(i)
        }
        i = 0;
        run death();
        run rest()
    }
}
