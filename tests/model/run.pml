/*
 * Runs of one key: the same job is opened again, at once, while messages of the one before are still
 * on their way. Which of them count? See README.md.
 *
 * Every message stays and may be taken once, again, or never, at any time. Links are kinder.
 */
#ifndef NODES
#define NODES 2
#endif
#ifndef JOBS
#define JOBS 2     /* jobs of the key that a node opens, one after the other */
#endif
#ifndef VIEWS
#define VIEWS 2    /* proposals of each of the coordinator's jobs */
#endif
#define NONE 0
#define K (JOBS + 1)
#define PROPOSALS (K * VIEWS)               /* one for a job of the coordinator and a view from 1 */
#define AT(p, n) ((p) * NODES + (n))
#define JOB_OF(p) ((p) / VIEWS)
#define VIEW_OF(p) ((p) % VIEWS + 1)
#define MINE(v) (job[0] * VIEWS + (v) - 1)  /* the coordinator's proposal of view v */
#define JOIN(from, k, to, r) ((((from) * K + (k)) * NODES + (to)) * K + (r))

byte job[NODES];                            /* number of the job; 0: none is open */
byte opened[NODES];
byte run_of[NODES];                            /* that a commit agreed on: the coordinator's job */
byte promised[NODES], view[NODES];          /* of this job */
byte agreed[NODES];                         /* the proposal that was promised */
bit prepared[NODES];
byte known[NODES * NODES];                  /* each node's job, as its join said */
byte former[NODES * NODES];                 /* each node's last job in an attempt that ended here */

/* Messages: `about` has the sender's job and the receiver's, as the sender knew it. */
bit join[NODES * K * NODES * K];
byte members[PROPOSALS * NODES];            /* prepare: the job of each member; 0: not proposed */
byte state[PROPOSALS * NODES];              /* the sender's job; 0: not sent */
bit answered[PROPOSALS * NODES];
bit commit[PROPOSALS];
byte frame[PROPOSALS * NODES];              /* the sender's job; 0: not sent */
byte proposed;                              /* the coordinator's view that waits; 0: none */

hidden byte i;
hidden byte all;

/* dispatch_is_late(): of, or for, an earlier job. */
#ifdef PLANT_LATE
#define is_late(n, from, k, to) false
#define names(p, n) true
#else
#define names(p, n) (members[AT(p, n)] == job[n])
#define is_late(n, from, k, to) (((to) != 0 && (to) != job[n]) || \
    (known[AT(n, from)] != 0 && (k) < known[AT(n, from)]))
#endif
#ifdef PLANT_OLD_RUN
#define is_of_run(n, r) true
#else
#define is_of_run(n, r) (run_of[n] == (r))
#endif
#define is_of_stranger(n, from, k) (known[AT(n, from)] == 0 || (k) > known[AT(n, from)])
#define is_former(n, from, k) (known[AT(n, from)] == 0 && (k) <= former[AT(n, from)])

inline tells(n) /* join_announce(): to every node, with its job as far as it is known */
{
    for (i : 0 .. NODES - 1) {
        if
        :: i != n -> join[JOIN(n, job[n], i, known[AT(n, i)])] = 1
        :: else -> skip
        fi
    }
}

inline begins(n)
{
    opened[n]++;
    job[n] = opened[n];
    known[AT(n, n)] = job[n];
    tells(n)
}

inline ends(n)
{
    for (i : 0 .. NODES - 1) {
        if
        :: i != n && known[AT(n, i)] > former[AT(n, i)] -> former[AT(n, i)] = known[AT(n, i)]
        :: else -> skip
        fi;
        known[AT(n, i)] = 0
    }
    job[n] = 0;
    run_of[n] = 0;
    promised[n] = 0;
    view[n] = 0;
    agreed[n] = 0;
    prepared[n] = 0;
    if
    :: n == 0 -> proposed = 0
    :: else -> skip
    fi
}

inline hears(n, from, k) /* join_message() */
{
    if
    :: view[n] != 0 && known[AT(n, from)] != 0 && known[AT(n, from)] != k -> ends(n) /* it begins another run */
    :: else ->
        known[AT(n, from)] = k;
        tells(n)
    fi
}

inline promises(n, p)
{
    promised[n] = VIEW_OF(p);
    agreed[n] = p;
    prepared[n] = 1;
    state[AT(p, n)] = job[n]
}

#if NODES == 2
#define knows_all() (known[0] && known[1])
#define has_states(p) (answered[AT(p, 0)] && answered[AT(p, 1)])
#define has_frames(n) (frame[AT(agreed[n], 0)] && frame[AT(agreed[n], 1)])
#else
#define knows_all() (known[0] && known[1] && known[2])
#define has_states(p) (answered[AT(p, 0)] && answered[AT(p, 1)] && answered[AT(p, 2)])
#define has_frames(n) (frame[AT(agreed[n], 0)] && frame[AT(agreed[n], 1)] && frame[AT(agreed[n], 2)])
#endif

inline proposes()
{
    proposed = promised[0] + 1;
    for (i : 0 .. NODES - 1) {
        members[AT(MINE(proposed), i)] = known[i]
    }
    promises(0, MINE(proposed));
    answered[AT(MINE(proposed), 0)] = 1
}

inline takes(n)
{
    view[n] = promised[n];
    run_of[n] = JOB_OF(agreed[n]);
    prepared[n] = 0;
    frame[AT(agreed[n], n)] = job[n]
}

/* All members of a view that a node takes part in have promised it with the jobs that it names. */
inline is_true(p)
{
    for (i : 0 .. NODES - 1) {
        assert(state[AT(p, i)] == members[AT(p, i)])
    }
}

proctype node(byte n)
{
    byte k, r, from, p;

    do
    :: d_step { job[n] == 0 && opened[n] < JOBS -> begins(n); i = 0 }
    :: d_step { job[n] != 0 && opened[n] < JOBS -> ends(n); i = 0 }
    :: atomic { job[n] != 0 ->
           from = 0;
           do :: from < NODES - 1 -> from++ :: break od;
           k = 1;
           do :: k < JOBS -> k++ :: break od;
           r = 0;
           do :: r < JOBS -> r++ :: break od;
           skip;
           d_step {
               if
               :: from != n && join[JOIN(from, k, n, r)] && !is_late(n, from, k, r) && !is_former(n, from, k) &&
                   known[AT(n, from)] != k -> hears(n, from, k)
               :: else -> skip
               fi;
               from = 0;
               k = 0;
               r = 0;
               i = 0
           }
       }
    :: d_step { n == 0 && job[0] != 0 && view[0] == 0 && knows_all() && promised[0] < VIEWS && (proposed == 0 ||
           members[AT(MINE(proposed), 1)] != known[1]) -> proposes(); i = 0 }
    :: atomic { n != 0 && job[n] != 0 ->
           p = VIEWS;
           do :: p < PROPOSALS - 1 -> p++ :: break od;
           skip;
           d_step {
               if
               :: members[AT(p, n)] != 0 && !is_late(n, 0, JOB_OF(p), members[AT(p, n)]) && !is_of_stranger(n, 0, JOB_OF(p)) &&
                   names(p, n) && (run_of[n] == 0 || run_of[n] == JOB_OF(p)) && VIEW_OF(p) > promised[n] -> promises(n, p)
               :: else -> skip
               fi;
               p = 0
           }
       }
    :: atomic { n == 0 && proposed != 0 ->
           from = 1;
           do :: from < NODES - 1 -> from++ :: break od;
           p = VIEWS;
           do :: p < PROPOSALS - 1 -> p++ :: break od;
           skip;
           d_step { /* a state for view VIEW_OF(p), for the job of the coordinator that made p */
               if
               :: state[AT(p, from)] != 0 && VIEW_OF(p) == proposed && !is_late(0, from, state[AT(p, from)], JOB_OF(p)) &&
                   state[AT(p, from)] <= known[from] -> answered[AT(MINE(proposed), from)] = 1
               :: else -> skip
               fi;
               from = 0;
               p = 0
           }
       }
    :: d_step { n == 0 && proposed != 0 && has_states(MINE(proposed)) ->
           commit[MINE(proposed)] = 1; proposed = 0; takes(0); is_true(agreed[0]); i = 0 }
    :: atomic { n != 0 && prepared[n] ->
           p = VIEWS;
           do :: p < PROPOSALS - 1 -> p++ :: break od;
           skip;
           d_step {
               if
               :: commit[p] && VIEW_OF(p) == promised[n] && !is_late(n, 0, JOB_OF(p), members[AT(p, n)]) &&
                   !is_of_stranger(n, 0, JOB_OF(p)) -> takes(n); is_true(agreed[n])
               :: else -> skip
               fi;
               p = 0;
               i = 0
           }
       }
    /* A frame, which names the run and the view only. */
    :: atomic { view[n] != 0 ->
           from = 0;
           do :: from < NODES - 1 -> from++ :: break od;
           p = VIEWS;
           do :: p < PROPOSALS - 1 -> p++ :: break od;
           skip;
           d_step {
               if
               :: frame[AT(p, from)] != 0 && VIEW_OF(p) == view[n] && is_of_run(n, JOB_OF(p)) ->
                   assert(frame[AT(p, from)] == members[AT(agreed[n], from)])
               :: else -> skip
               fi;
               from = 0;
               p = 0
           }
       }
    od
}

init {
    atomic {
        for (i : 0 .. NODES - 1) {
            run node(i)
        }
    }
}
