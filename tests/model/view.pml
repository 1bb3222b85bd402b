/*
 * The agreement of daemon/core on views, rounds and the policy of a job: three nodes, the lowest of
 * which coordinates. Every node takes part in every view (on_peer_loss: wait). See README.md.
 *
 * Messages lie in tables. A message that is there may be taken now, later or never, so the tables
 * cover loss, delay and overtaking. A restart drops what was sent to or by the daemon before, or
 * lets it arrive until the receiver has heard the new join.
 *
 * Every counter only grows and is bounded, so each run ends. A state in which nothing can happen is
 * good only if every node has done all steps: spin reports any other as an invalid end state.
 */
#include "code.pml"

#ifndef STEPS
#define STEPS 3    /* steps that the ranks make */
#endif
#ifndef CRASHES
#define CRASHES 1  /* restarts of daemons, of all nodes together */
#endif
#ifdef ONLY_WHILE_HELD /* restarts only of node 2, while the others hold for the next policy */
#define MAY_CRASH(n) ((n) == 2 && turn[0] == SWITCH_HELD && turn[1] == SWITCH_HELD && step[2] < step[0])
#else
#define MAY_CRASH(n) true
#endif
#ifndef CHANGES
#define CHANGES 1  /* requested changes of the policy */
#endif
#ifndef REFUSALS
#define REFUSALS 0 /* changes that a node refuses */
#endif
#define NODES 3
#define VIEWS (2 + 2 * CRASHES + CHANGES) /* more must never be proposed */
#define NOTHING 255
#define AT(v, n) ((v) * NODES + (n))
#define FORMS_ALL(v, of) (members[AT(v, 0)] == of[0] && members[AT(v, 1)] == of[1] && members[AT(v, 2)] == of[2])

/* In the store: a restart keeps it. */
byte promised[NODES];                 /* the highest view that the node promised */
byte step[NODES];                     /* steps done */
bit delivered[NODES];                 /* the round of the open step is delivered */
byte policy[NODES];                   /* version in force */

/* In the daemon. */
byte incarnation[NODES];
byte job[NODES] = JOB_FORMING;
byte stage[NODES] = STEP_IDLE;        /* of the step */
byte round[NODES] = ROUND_IDLE;
byte turn[NODES] = SWITCH_NONE;       /* of the switch */
byte view[NODES];                     /* in force; 0: none yet */
bit owes[NODES];                      /* a state to the coordinator */
byte agreed[NODES * NODES];           /* incarnations of the members of the promised view */
byte joined[NODES * NODES];           /* the incarnation of each node's join; 0: none */
short made[NODES];                    /* of the round that is being summed, as in content */
byte holder[NODES];                   /* the node from which a copy is fetched */
byte next[NODES], next_step[NODES];   /* the next policy and its first step */
byte accepted[NODES];                 /* the proposal of it */

/* At the coordinator. */
byte proposed;                        /* the view that waits for answers; 0: none */
bit anew[NODES];
bit answered[NODES];
byte said_step[NODES], said_policy[NODES], said_held[NODES];
bit said_delivered[NODES];
bit held[NODES];
byte attempt, attempts;

/* Messages. */
byte members[(VIEWS + 1) * NODES];    /* prepare: the incarnations */
bit committed[VIEWS + 1];             /* commit, */
byte commit_step[VIEWS + 1], commit_holder[VIEWS + 1], commit_policy[VIEWS + 1];
byte frame[(VIEWS + 1) * NODES];      /* frames of a node in a view: its steps so far + 1 */
bit proposal[NODES];                  /* policy_propose: on its way to this node */
byte offered, offered_step, offered_attempt, offered_view;
byte holds[NODES];                    /* policy_answer: the attempt that it answers; 0: none */
bit refuses[NODES];                   /* it refuses */
byte ended[NODES];                    /* policy_end: the version that is called off; 0: none */

/* What must be true. */
short content[STEPS];                 /* of the round: the views of the frames that were summed first */
byte ruled[STEPS];                    /* the policy under which the step was begun first, plus 1 */
byte witness[(VIEWS + 1) * NODES];    /* members of the view that somebody put in force */

byte starts[CHANGES + 1];             /* the first step under each policy */

byte crashes, changes, refusals;
hidden byte i, j;
hidden byte all;

#define job_fires(n, event, to) assert(job_moves(job[n], event, to)); job[n] = to
#define step_fires(n, event, to) assert(step_moves(stage[n], event, to)); stage[n] = to
#define round_fires(n, event, to) assert(round_moves(round[n], event, to)); round[n] = to
#define switch_fires(n, event, to) assert(switch_moves(turn[n], event, to)); turn[n] = to

#define finished(n) (step[n] == STEPS)

/* ------------------------------------------------------------------ steps and rounds */

inline opens(n) /* step_open() */
{
    if
    :: finished(n) -> skip
    :: else ->
        step_fires(n, STEP_ON_OPEN, STEP_OPEN);
        if
        :: delivered[n] -> round_fires(n, ROUND_ON_OPEN, ROUND_DELIVERED)
        :: else -> round_fires(n, ROUND_ON_OPEN, ROUND_COLLECT)
        fi
    fi
}

/* advance_step(): the last step is closed. */
inline follows(n)
{
    if
    :: turn[n] == SWITCH_PROPOSED && next_step[n] == step[n] ->
        switch_fires(n, SWITCH_ON_HOLD, SWITCH_HELD);
        if
        :: job[n] == JOB_ACTIVE -> holds[n] = accepted[n]
        :: else -> skip
        fi
    :: turn[n] < SWITCH_HELD && !(turn[n] == SWITCH_PROPOSED && next_step[n] == step[n]) -> opens(n)
    :: else -> skip
    fi
}

/* The ranks have pushed, the gradients are selected, and the frames leave. */
inline sends(n)
{
    round_fires(n, ROUND_ON_COLLECTED, ROUND_SELECT);
    round_fires(n, ROUND_ON_COMPUTED, ROUND_EXCHANGE);
    frame[AT(view[n], n)] = step[n] + 1;
    assert(ruled[step[n]] == 0 || ruled[step[n]] == policy[n] + 1);
    ruled[step[n]] = policy[n] + 1
}

/* Whether the frame of a node is there that goes into a round, and the view in which it was sent. */
#ifdef PLANT_OLD_FRAME
#define has_new(n, from) (frame[AT(view[n], from)] > step[n])
#define has_frame(n, from) (has_new(n, from) || (view[n] > 1 && frame[AT(view[n] - 1, from)] > step[n]))
#define origin(n, from) (has_new(n, from) -> view[n] : view[n] - 1)
#else
#define has_frame(n, from) (frame[AT(view[n], from)] > step[n])
#define origin(n, from) view[n]
#endif
#define has_frames(n) (has_frame(n, 0) && has_frame(n, 1) && has_frame(n, 2))

inline reduces(n)
{
    round_fires(n, ROUND_ON_PHASE, ROUND_REDUCE);
    made[n] = (origin(n, 0) * 16 + origin(n, 1)) * 16 + origin(n, 2)
}

inline delivers(n)
{
    round_fires(n, ROUND_ON_COMPUTED, ROUND_DELIVERED);
    assert(content[step[n]] == 0 || content[step[n]] == made[n]);
    content[step[n]] = made[n];
    made[n] = 0;
    delivered[n] = 1
}

inline closes(n) /* step_settle(), step_done() */
{
    step_fires(n, STEP_ON_DELIVERED, STEP_SETTLE);
    step[n]++;
    delivered[n] = 0;
    round_fires(n, ROUND_ON_CLOSE, ROUND_IDLE);
    step_fires(n, STEP_ON_DONE, STEP_IDLE);
    follows(n)
}

inline copies(n) /* the holder has the commit too, and answers the fetch */
{
    round_fires(n, ROUND_ON_COPY, ROUND_DELIVERED);
    holder[n] = 0;
    assert(content[step[n]] != 0);
    delivered[n] = 1
}

#define has_joins(n) (joined[AT(n, 0)] && joined[AT(n, 1)] && joined[AT(n, 2)])
#define computes(n) (round[n] == ROUND_REDUCE || turn[n] == SWITCH_MOVING)
#define knows_members(n) (joined[AT(n, 0)] == agreed[AT(n, 0)] && \
    joined[AT(n, 1)] == agreed[AT(n, 1)] && joined[AT(n, 2)] == agreed[AT(n, 2)])
#define is_proposed() (proposed && members[AT(proposed, 0)] == joined[0] && \
    members[AT(proposed, 1)] == joined[1] && members[AT(proposed, 2)] == joined[2])

/* ------------------------------------------------------------------ views */

inline prepares(n, v) /* view_prepare() */
{
    for (i : 0 .. NODES - 1) {
        agreed[AT(n, i)] = members[AT(v, i)]
    }
    promised[n] = v; /* `v` may be an expression with promised[n] */
    owes[n] = 1;
    job_fires(n, JOB_ON_PREPARE, JOB_PREPARED);
    if
    :: round[n] == ROUND_EXCHANGE || round[n] == ROUND_FETCH ->
        round_fires(n, ROUND_ON_FREEZE, ROUND_COLLECT)
    :: else -> skip
    fi
}

inline forgets_answer(n)
{
    answered[n] = 0;
    said_step[n] = 0;
    said_policy[n] = 0;
    said_held[n] = 0;
    said_delivered[n] = 0
}

inline proposes() /* coordinate_propose() */
{
    assert(promised[0] < VIEWS);
    proposed = promised[0] + 1;
    for (i : 0 .. NODES - 1) {
        members[AT(proposed, i)] = joined[i];
        forgets_answer(i);
        held[i] = 0;
        proposal[i] = 0 /* it came before the prepare, or was sent in a view that is over */
    }
    prepares(0, proposed)
}

inline hears(n, from) /* join_message(), and coordinate() */
{
    joined[AT(n, from)] = incarnation[from];
    if
    :: n == 0 ->
        anew[from] = 1;
        if
        :: has_joins(0) && !is_proposed() -> proposes()
        :: else -> skip
        fi
    :: else -> skip
    fi
}

inline answers(n) /* answer(), and coordinate_state() */
{
    owes[n] = 0;
    if
    :: proposed == promised[n] && members[AT(proposed, n)] == incarnation[n] ->
        answered[n] = 1;
        said_step[n] = step[n];
        said_delivered[n] = delivered[n];
        said_policy[n] = policy[n];
        said_held[n] = (turn[n] == SWITCH_HELD -> next[n] : 0)
    :: else -> skip
    fi
}

inline takes(n, v) /* view_commit() */
{
    view[n] = v;
    for (i : 0 .. NODES - 1) {
        assert(witness[AT(v, i)] == 0 || witness[AT(v, i)] == agreed[AT(n, i)]);
        witness[AT(v, i)] = agreed[AT(n, i)]
    }
    job_fires(n, JOB_ON_COMMIT, JOB_ACTIVE);
    if
    :: commit_policy[v] > policy[n] -> /* switch_commit() */
        assert(stage[n] == STEP_IDLE && turn[n] != SWITCH_PROPOSED && starts[commit_policy[v]] == step[n]);
        next[n] = commit_policy[v];
        switch_fires(n, SWITCH_ON_COMMIT, SWITCH_MOVING)
    :: commit_policy[v] <= policy[n] ->
        if
        :: turn[n] == SWITCH_PROPOSED || turn[n] == SWITCH_HELD ->
            switch_fires(n, SWITCH_ON_ABORT, SWITCH_NONE);
            next[n] = 0
        :: else -> skip
        fi;
        if
        :: stage[n] == STEP_IDLE -> opens(n)
        :: else -> skip
        fi
    fi;
    if /* fetch_delivered() */
    :: commit_holder[v] != NOTHING && commit_step[v] == step[n] && round[n] == ROUND_COLLECT ->
        holder[n] = commit_holder[v];
        round_fires(n, ROUND_ON_HELD, ROUND_FETCH)
    :: else -> skip
    fi
}

/* Whose answers make the commit: those of all proposed members. */
#if defined(PLANT_ONE_ANSWER)
#define counts_in(i) true
#define has_answers() (answered[0] && (answered[1] || answered[2]))
#elif defined(PLANT_ABSENT)
#define counts_in(i) (joined[i] != 0)
#define is_in(i) (answered[i] || !counts_in(i))
#define has_answers() (is_in(0) && is_in(1) && is_in(2))
#else
#define counts_in(i) true
#define has_answers() (answered[0] && answered[1] && answered[2])
#endif

/* conclude(): the step that the furthest node is at, who has a round that others lack, and the
 * policy. */
inline concludes()
{
    committed[proposed] = 1;
    commit_step[proposed] = 0;
    commit_holder[proposed] = NOTHING;
    commit_policy[proposed] = policy[0];
    all = 1;
    for (i : 0 .. NODES - 1) {
        if
        :: counts_in(i) ->
            if :: said_step[i] > commit_step[proposed] -> commit_step[proposed] = said_step[i] :: else -> skip fi;
            if :: said_policy[i] > commit_policy[proposed] -> commit_policy[proposed] = said_policy[i] :: else -> skip fi;
            if :: next[0] == 0 || said_held[i] != next[0] -> all = 0 :: else -> skip fi
        :: else -> skip
        fi
    }
    if :: all && next[0] > commit_policy[proposed] ->
        commit_policy[proposed] = next[0];
        starts[next[0]] = next_step[0]
    :: else -> skip
    fi;
    j = 0;
    for (i : 0 .. NODES - 1) {
        assert(!counts_in(i) || said_step[i] + 1 >= commit_step[proposed]); /* coherent() */
        if :: counts_in(i) && said_step[i] < commit_step[proposed] -> j = 1 :: else -> skip fi
    }
    for (i : 0 .. NODES - 1) { /* decide_rounds() */
        if
        :: counts_in(i) && said_step[i] == commit_step[proposed] ->
            assert(!j || !said_delivered[i]); /* that round would need a frame of the node behind */
            if
            :: commit_holder[proposed] == NOTHING && (j || said_delivered[i]) -> commit_holder[proposed] = i
            :: else -> skip
            fi
        :: else -> skip
        fi
    }
    commit_step[proposed] = commit_step[proposed] - j;
    j = proposed;
    proposed = 0;
    attempt = 0;
    for (i : 0 .. NODES - 1) {
        anew[i] = 0;
        forgets_answer(i)
    }
    takes(0, j)
}

/* ------------------------------------------------------------------ changes of the policy */

inline offers() /* switch_ask_propose(), and its own switch_propose() */
{
    changes++;
    attempts++;
    attempt = attempts;
    offered = policy[0] + 1;
    offered_step = step[0] + 2;
    offered_attempt = attempt;
    offered_view = view[0];
    for (i : 0 .. NODES - 1) {
        held[i] = 0;
        proposal[i] = 1
    }
}

inline considers(n, refuse) /* switch_propose() */
{
    proposal[n] = 0;
    if
    :: job[n] != JOB_ACTIVE -> skip
    :: job[n] == JOB_ACTIVE && (offered_step <= step[n] || refuse) ->
        refuses[n] = 1;
        holds[n] = offered_attempt
    :: else ->
        assert(turn[n] == SWITCH_NONE && offered == policy[n] + 1 && offered_step <= step[n] + 3);
        next[n] = offered;
        next_step[n] = offered_step;
        accepted[n] = offered_attempt;
        switch_fires(n, SWITCH_ON_PROPOSE, SWITCH_PROPOSED)
    fi
}

inline calls_off() /* switch_call_off() */
{
    attempt = 0;
    for (i : 0 .. NODES - 1) {
        if
        :: proposal[i] -> proposal[i] = 0 /* both come, one after the other */
        :: else -> ended[i] = offered
        fi
    }
}

inline reads_answer(from) /* switch_answer() */
{
    if
    :: job[0] == JOB_ACTIVE && holds[from] == attempt && attempt != 0 ->
        if
        :: refuses[from] -> calls_off()
        :: else -> held[from] = 1
        fi
    :: else -> skip
    fi;
    holds[from] = 0;
    refuses[from] = 0
}

inline reads_end(n) /* switch_end() */
{
    if
    :: job[n] == JOB_ACTIVE && next[n] == ended[n] && turn[n] == SWITCH_PROPOSED ->
        switch_fires(n, SWITCH_ON_ABORT, SWITCH_NONE);
        next[n] = 0
    :: job[n] == JOB_ACTIVE && next[n] == ended[n] && turn[n] == SWITCH_HELD ->
        switch_fires(n, SWITCH_ON_ABORT, SWITCH_NONE);
        next[n] = 0;
        opens(n)
    :: else -> skip
    fi;
    ended[n] = 0
}

inline moves(n) /* moved() */
{
    switch_fires(n, SWITCH_ON_DONE, SWITCH_NONE);
    policy[n] = next[n];
    next[n] = 0;
    opens(n)
}

/* ------------------------------------------------------------------ restarts */

inline restarts(n)
{
    crashes++;
    incarnation[n]++;
    job[n] = JOB_FORMING;
    stage[n] = STEP_IDLE;
    round[n] = ROUND_IDLE;
    turn[n] = SWITCH_NONE;
    view[n] = 0;
    made[n] = 0;
    holder[n] = 0;
    owes[n] = 0;
    next[n] = 0;
    next_step[n] = 0;
    accepted[n] = 0;
    holds[n] = 0;
    refuses[n] = 0;
    proposal[n] = 0;
    ended[n] = 0;
    for (i : 0 .. NODES - 1) {
        agreed[AT(n, i)] = 0;
        joined[AT(n, i)] = 0
    }
    joined[AT(n, n)] = incarnation[n];
    if
    :: n == 0 ->
        proposed = 0;
        attempt = 0;
        for (i : 0 .. NODES - 1) {
            anew[i] = 1;
            forgets_answer(i);
            held[i] = 0;
            proposal[i] = 0;
            ended[i] = 0;
            holds[i] = 0;
            refuses[i] = 0
        }
#ifdef PLANT_FORGET_PROMISE
        promised[0] = (promised[0] > 1 -> promised[0] - 1 : 0)
#endif
    :: else -> skip
    fi
}

/* ------------------------------------------------------------------ what a node may do */

#define fetches_from(n) holder[n]
#define holder_has(n) (job[fetches_from(n)] == JOB_ACTIVE && view[fetches_from(n)] == view[n] && \
    ((step[fetches_from(n)] == step[n] && delivered[fetches_from(n)]) || step[fetches_from(n)] == step[n] + 1))
#define all_done() (finished(0) && finished(1) && finished(2))

/* A proposal comes after the commit of the view in which it was sent, and after the end of the one
 * before. */
#define is_asked(n) (proposal[n] && !ended[n] && promised[n] >= offered_view && \
    (promised[n] > offered_view || job[n] == JOB_ACTIVE))
/* A prepare for this start of the daemon, from the coordinator's start whose join it has. */
#define comes(n, v) ((v) <= VIEWS && members[AT(v, n)] == incarnation[n] && joined[AT(n, 0)] == members[AT(v, 0)])

proctype node(byte n)
{
    do
    /* The round and the step. */
    :: d_step { job[n] == JOB_ACTIVE && round[n] == ROUND_COLLECT -> sends(n) }
    :: d_step { job[n] == JOB_ACTIVE && round[n] == ROUND_EXCHANGE && has_frames(n) -> reduces(n) }
    :: d_step { round[n] == ROUND_REDUCE -> delivers(n) }
    :: d_step { job[n] == JOB_ACTIVE && round[n] == ROUND_FETCH && holder_has(n) -> copies(n) }
    :: d_step { job[n] == JOB_ACTIVE && stage[n] == STEP_OPEN && round[n] == ROUND_DELIVERED -> closes(n); i = 0 }
    /* Joins. A restart is noticed before the new join comes. */
    :: d_step { joined[AT(n, 0)] != 0 && joined[AT(n, 0)] != incarnation[0] -> joined[AT(n, 0)] = 0 }
    :: d_step { joined[AT(n, 1)] != 0 && joined[AT(n, 1)] != incarnation[1] -> joined[AT(n, 1)] = 0 }
    :: d_step { joined[AT(n, 2)] != 0 && joined[AT(n, 2)] != incarnation[2] -> joined[AT(n, 2)] = 0 }
    :: d_step { joined[AT(n, 0)] == 0 -> hears(n, 0); i = 0 }
    :: d_step { joined[AT(n, 1)] == 0 -> hears(n, 1); i = 0 }
    :: d_step { joined[AT(n, 2)] == 0 -> hears(n, 2); i = 0 }
    /* Views: what each member does, and what the coordinator does. */
    :: d_step { n != 0 && comes(n, promised[n] + 1) -> prepares(n, promised[n] + 1); i = 0 }
    :: d_step { n != 0 && comes(n, promised[n] + 2) -> prepares(n, promised[n] + 2); i = 0 }
    :: d_step { n != 0 && comes(n, promised[n] + 3) -> prepares(n, promised[n] + 3); i = 0 }
    :: d_step { owes[n] && !computes(n) && knows_members(n) -> answers(n) }
    :: d_step { n != 0 && job[n] == JOB_PREPARED && !owes[n] && committed[promised[n]] -> takes(n, promised[n]); i = 0 }
    :: d_step { n == 0 && proposed && has_answers() -> concludes(); i = 0 }
    /* The policy. */
    :: d_step { n == 0 && changes < CHANGES && job[0] == JOB_ACTIVE && turn[0] == SWITCH_NONE && attempt == 0 && policy[1] == policy[0] && policy[2] == policy[0] -> offers(); i = 0 }
    :: d_step { is_asked(n) -> considers(n, false) }
    :: d_step { is_asked(n) && job[n] == JOB_ACTIVE && refusals < REFUSALS -> refusals++; considers(n, true) }
    :: d_step { holds[n] -> reads_answer(n); i = 0 }
    :: d_step { ended[n] -> reads_end(n) }
    :: d_step { n == 0 && held[0] && held[1] && held[2] && job[0] == JOB_ACTIVE -> held[0] = 0; if :: has_joins(0) -> proposes() :: else -> skip fi; i = 0 }
    :: d_step { turn[n] == SWITCH_MOVING -> moves(n) }
    :: d_step { crashes < CRASHES && MAY_CRASH(n) -> restarts(n); i = 0 }
    :: all_done() -> break
    od
}

init {
    atomic {
        for (i : 0 .. NODES - 1) {
            incarnation[i] = 1;
            joined[AT(i, i)] = 1;
            anew[i] = 1
        }
        for (i : 0 .. NODES - 1) {
            run node(i)
        }
    }
}
