/*
 * Views with fewer members (on_peer_loss: shrink): a node proposes members of its view without the
 * ones that it believes to be lost, be they lost or not. With GROW it may propose others, too, which
 * join with nothing. With TIE any member of a proposal may be the one whose half goes on. See
 * README.md for the rule.
 *
 * Messages are facts that stay: any node may learn of one now, later or never. So every loss, delay
 * and partition is covered, and a node that is down is one that does nothing.
 */
#ifndef NODES
#define NODES 3
#endif
#ifndef PROPOSALS
#define PROPOSALS 4 /* of all nodes together */
#endif
#ifndef NUMBERS
#define NUMBERS 3   /* of views that are proposed */
#endif
#define STEPS 2     /* two sides that both go on show it in their second step */
#define ALL ((1 << NODES) - 1)
#ifdef GROW
#define FOUNDERS (ALL >> 1) /* the highest node may join */
#else
#define FOUNDERS ALL
#endif
#define VIEWS ((NUMBERS + 1) * NODES) /* a view is a number and the node that proposed it */
#define AT(v, n) ((v) * NODES + (n))
#define NUMBER(v) ((v) / NODES)
#define PROPOSER(v) ((v) % NODES)
#ifdef PLAIN_NUMBERS /* two nodes may propose views of one number, and neither is the higher one */
#define is_newer(a, b) (NUMBER(a) > NUMBER(b))
#else
#define is_newer(a, b) ((a) > (b))
#endif
#define DIFFERENT 254
#define NOT_MADE 255 /* the node was not there */

/* In the store. */
byte promised[NODES];
byte in_force[NODES];          /* the view in which the node takes part */
byte known[NODES];             /* the newest view in force of which it heard */
byte step[NODES];
byte made[NODES * STEPS];      /* the view in which each step's update was made, plus 1 */
bit waits[NODES];              /* promised, and not in force */
bit lost[NODES];              /* it has lost its store, and was in no view since */

/* In the daemon. */
byte proposed[NODES];          /* the node's proposal that waits for answers; 0: none */

/* A view: prepare, states, commit, frames. */
byte members[VIEWS];           /* bits; 0: not proposed */
byte base[VIEWS];              /* the view that its proposer knew: its members have votes */
byte answered[VIEWS];          /* bits: the nodes that promised it, which they keep in the store, too */
byte furthest[VIEWS];          /* steps of the furthest node among the answers, */
byte last[VIEWS];              /* and in which view it made the last one */
byte tie[VIEWS];               /* the member that decides between halves */
bit committed[VIEWS];
byte frames[VIEWS * NODES];    /* of a node in the view: steps begun, plus 1 */

byte proposals, numbers;
hidden byte i, j, total, part, fine;

#define last_made(n) (step[n] > 0 -> made[(n) * STEPS + step[n] - 1] : 0)

/* fine = fine and `some` has a majority of the view, or the half with its tie-breaker. */
inline counts(some, v)
{
    total = 0;
    part = 0;
    for (j : 0 .. NODES - 1) {
        if
        :: members[v] & (1 << j) ->
            total++;
            if :: (some) & (1 << j) -> part++ :: else -> skip fi
        :: else -> skip
        fi
    }
#ifdef PLANT_BOTH_HALVES
    fine = fine && 2 * part >= total
#elif defined(PLANT_OWN_TIE) /* each node takes it from the policy that it has */
    fine = fine && (2 * part > total || (2 * part == total && ((some) & (1 << tie[promised[n]]))))
#else
    fine = fine && (2 * part > total || (2 * part == total && ((some) & (1 << tie[v]))))
#endif
}

#if defined(GROW) && !defined(PLANT_VOTES)
#define votes(some, n) ((some) & members[known[n]])
#else
#define votes(some, n) (some)
#endif

/* membership_break_ties() of daemon/job/membership.c: the lowest member, or the one that the policy
 * names, which may be any. */
inline breaks_ties(v, some)
{
    tie[v] = 0;
    do
    :: !((some) & (1 << tie[v])) -> tie[v]++
    :: else -> break
    od;
#ifdef TIE
    for (i : 0 .. NODES - 1) {
        if
        :: (some) & (1 << i) -> tie[v] = i
        :: true -> skip
        fi
    }
#endif
}

/* views_allow() of daemon/job/views.c: whether a node may propose a view of `some`, or promise it. */
inline allows(n, some)
{
    fine = true;
#if !defined(PLANT_OUTSIDERS) && !defined(GROW)
    fine = ((some & ~members[known[n]]) == 0);
#endif
    counts(some, known[n]);
    for (i : NODES .. VIEWS - 1) {
        if
#if defined(PLANT_KNOWN_ONLY)
        :: false -> skip
#elif defined(PLANT_NEWEST_ONLY)
        :: i == promised[n] && is_newer(i, known[n]) -> counts(votes(some, n), i)
#elif defined(PLANT_SAME_MEMBERS)
        :: (answered[i] & (1 << n)) && is_newer(i, known[n]) && members[i] != members[known[n]] ->
            counts(votes(some, n), i)
#else
        :: (answered[i] & (1 << n)) && is_newer(i, known[n]) -> counts(votes(some, n), i)
#endif
        :: else -> skip
        fi
    }
}

/* A proposal that its node has given up has no effect beyond the nodes that promised it. */
inline forgets_dead()
{
    for (i : NODES .. VIEWS - 1) {
        if
        :: members[i] && !committed[i] && proposed[PROPOSER(i)] != i ->
            furthest[i] = 0;
            last[i] = 0
        :: else -> skip
        fi
    }
}

/* views_hear_proposer(): a member of the proposer's view learns it, and refuses if it knows a later
 * one. Any other node joins: it has lost what it had. */
inline hears(n, v)
{
    if
    :: members[base[v]] & (1 << n) ->
        if :: is_newer(base[v], known[n]) -> known[n] = base[v] :: else -> skip fi;
        fine = (known[n] == base[v] && !lost[n])
    :: else ->
        for (i : NODES .. VIEWS - 1) {
            answered[i] = answered[i] & ~(1 << n)
        }
        known[n] = base[v];
        in_force[n] = 0;
        waits[n] = 0;
        proposed[n] = 0;
        step[n] = 0;
        lost[n] = 1;
        fine = true
    fi
}

inline answers(n, v)
{
    answered[v] = answered[v] | (1 << n);
    promised[n] = v;
    proposed[n] = 0;
    waits[n] = 1;
    if
    :: step[n] > furthest[v] -> furthest[v] = step[n]; last[v] = last_made(n)
    :: step[n] == furthest[v] && last_made(n) != last[v] -> last[v] = DIFFERENT
    :: else -> skip
    fi
}

inline takes(n, v)
{
    assert(last[v] != DIFFERENT); /* members applied different updates in their last step */
    if
    :: lost[n] -> /* it joins */
        step[n] = furthest[v];
        lost[n] = 0;
        for (i : 0 .. STEPS - 1) {
            made[n * STEPS + i] = (i + 1 < step[n] -> NOT_MADE : (i < step[n] -> last[v] : 0))
        }
    :: else -> skip
    fi;
    assert(step[n] <= furthest[v] && step[n] + 1 >= furthest[v]);
    if
    :: step[n] == furthest[v] -> assert(last_made(n) == last[v])
    :: else -> made[n * STEPS + step[n]] = last[v]; step[n] = furthest[v] /* a copy */
    fi;
    in_force[n] = v;
    known[n] = v;
    waits[n] = 0;
    frames[AT(v, n)] = step[n] + 1
}

inline commits(v)
{
    if
    :: answered[v] == members[v] ->
        committed[v] = 1;
        proposed[PROPOSER(v)] = 0;
        takes(PROPOSER(v), v)
    :: else -> skip
    fi
}

#define lacks_frame(n, from) ((members[in_force[n]] & (1 << (from))) && frames[AT(in_force[n], from)] <= step[n])
#if NODES == 2
#define has_frames(n) (!lacks_frame(n, 0) && !lacks_frame(n, 1))
#elif NODES == 3
#define has_frames(n) (!lacks_frame(n, 0) && !lacks_frame(n, 1) && !lacks_frame(n, 2))
#elif NODES == 4
#define has_frames(n) (!lacks_frame(n, 0) && !lacks_frame(n, 1) && !lacks_frame(n, 2) && !lacks_frame(n, 3))
#endif

/* Two nodes that have both made a step have the same update of the step before it: only the last
 * step of a node that is cut off may be another one than the others made. */
inline delivers(n)
{
    made[n * STEPS + step[n]] = in_force[n] + 1;
    for (i : 0 .. NODES - 1) {
        assert(step[n] == 0 || step[i] <= step[n] ||
            made[n * STEPS + step[n] - 1] == made[i * STEPS + step[n] - 1] ||
            made[n * STEPS + step[n] - 1] == NOT_MADE || made[i * STEPS + step[n] - 1] == NOT_MADE)
    }
    step[n]++;
    frames[AT(in_force[n], n)] = step[n] + 1
}

proctype node(byte n)
{
    byte v, some;

    do
    :: atomic { NUMBER(promised[n]) < NUMBERS && proposals < PROPOSALS ->
           v = NUMBER(promised[n]) + 1;
           do
           :: v < NUMBERS && v <= numbers -> v++
           :: break
           od;
           skip;
           v = AT(v, n);
           some = 1 << n; /* the lowest member proposes */
           for (i : 0 .. NODES - 1) {
               if
               :: i > n && (members[known[n]] & (1 << i)) -> some = some | (1 << i)
#ifdef GROW
               :: i != n && !(members[known[n]] & (1 << i)) -> some = some | (1 << i)
#endif
               :: true -> skip
               fi
           }
           breaks_ties(v, some);
           d_step {
               allows(n, some);
               fine = fine && !lost[n] && (members[known[n]] & (1 << n));
               if
               :: fine ->
                   base[v] = known[n];
                   proposals++;
                   if :: NUMBER(v) > numbers -> numbers = NUMBER(v) :: else -> skip fi;
                   members[v] = some;
                   answers(n, v);
                   proposed[n] = v;
                   commits(v);
                   forgets_dead()
               :: else -> tie[v] = 0
               fi;
               v = 0;
               some = 0
           }
       }
    :: atomic { true ->
           v = NODES;
           do
           :: v < VIEWS - 1 -> v++
           :: break
           od;
           skip;
           if
           :: (members[v] & (1 << n)) && is_newer(v, promised[n]) && proposed[PROPOSER(v)] == v ->
               d_step {
#ifdef GROW
                   hears(n, v);
                   if :: fine -> allows(n, members[v]) :: else -> skip fi;
#else
                   allows(n, members[v]);
#endif
                   if
                   :: fine -> answers(n, v); commits(v); forgets_dead()
                   :: else -> skip
                   fi;
                   v = 0
               }
           :: else -> v = 0
           fi
       }
    :: d_step { waits[n] && committed[promised[n]] -> takes(n, promised[n]); forgets_dead(); i = 0 }
    :: d_step { !waits[n] && !lost[n] && step[n] < STEPS && has_frames(n) -> delivers(n); i = 0 }
    /* views_learn(): a join, or the state that refuses, tells the newest view that a node knows. */
    :: d_step { is_newer(known[0], known[n]) -> known[n] = known[0] }
    :: d_step { is_newer(known[1], known[n]) -> known[n] = known[1] }
#if NODES >= 3
    :: d_step { is_newer(known[2], known[n]) -> known[n] = known[2] }
#endif
#if NODES == 4
    :: d_step { is_newer(known[3], known[n]) -> known[n] = known[3] }
#endif
#ifdef PLANT_FRESH
    :: d_step { n == 1 && promised[n] != 0 && step[0] == 0 && step[1] == 0 && step[2] == 0 -> /* it loses its store */
           for (i : NODES .. VIEWS - 1) {
               answered[i] = answered[i] & ~(1 << n)
           }
           known[n] = 0;
           in_force[n] = 0;
           waits[n] = 0;
           proposed[n] = 0;
           frames[AT(0, n)] = 0;
           forgets_dead();
           i = 0
       }
#endif
#ifdef PLANT_FORGET_VIEW
    :: d_step { known[n] != 0 -> known[n] = 0; in_force[n] = 0; waits[n] = 0; proposed[n] = 0; forgets_dead(); i = 0 }
#endif
    od
}

init {
    atomic {
        members[0] = FOUNDERS;
        committed[0] = 1;
        breaks_ties(0, FOUNDERS);
        for (i : 0 .. NODES - 1) {
            frames[i] = 1;
            lost[i] = !(FOUNDERS & (1 << i))
        }
        for (i : 0 .. NODES - 1) {
            run node(i)
        }
    }
}
