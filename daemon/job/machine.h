/*
 * Declared state machines.
 *
 * A table describes the life of a job, rank, step or round: for every state and event, the states
 * that may follow. machine_fire() checks each move against the table. It aborts on an undeclared
 * move, because that is a bug of the daemon; input is checked earlier. It counts each move and
 * hands it to the trace. The simulator prints the counts as its coverage.
 */
#ifndef ADTOPK_JOB_MACHINE_H
#define ADTOPK_JOB_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#define MACHINE_MAX_STATES 10
#define MACHINE_MAX_EVENTS 16

struct machine_table {
    const char *name;
    unsigned states;
    unsigned events;
    const char *state_name[MACHINE_MAX_STATES];
    const char *event_name[MACHINE_MAX_EVENTS];
    /* next[state][event]: bit s is set if state s may follow; 0: this must not happen. */
    uint16_t next[MACHINE_MAX_STATES][MACHINE_MAX_EVENTS];
};

struct machine_trace {
    void (*move)(void *context, const struct machine_table *table, uint64_t id, unsigned from,
        unsigned event, unsigned to);
    void *context;
};

struct machine {
    const struct machine_table *table;
    const struct machine_trace *trace;
    uint64_t id; /* the object, for the trace */
    unsigned state;
};

void machine_init(struct machine *machine, const struct machine_table *table,
    const struct machine_trace *trace, uint64_t id);

/** Moves to `next` because of `event`; aborts if the table does not allow it. */
void machine_fire(struct machine *machine, unsigned event, unsigned next);

/** The name of the current state. */
const char *machine_state(const struct machine *machine);

#endif
