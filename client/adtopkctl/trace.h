/*
 * A trace: what the nodes of one job have recorded, from one document of adtopkctl trace or from
 * several that daemons wrote by themselves.
 *
 * Clocks. A message leaves before it comes, so each bounds by how much the clock of one node can be
 * ahead of another's. The bounds of all messages, there and back, and over other nodes, leave an
 * interval: its middle is the estimate, half of it the error.
 */
#ifndef ADTOPK_TRACE_H
#define ADTOPK_TRACE_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "proto/error.h"

#define TRACE_NODES_MAX 1024
#define TRACE_OPERATION 4294967295.0 /* as bucket: of a plain operation */

/* How the row is to be read, whatever number the daemon gave to it. */
enum trace_kind {
    TRACE_BEGAN,
    TRACE_PUSHED,
    TRACE_ENDED,
    TRACE_SENT,
    TRACE_RECEIVED,
    TRACE_OPENED,
    TRACE_SETTLE,
    TRACE_WITHDRAW,
    TRACE_CLOSED,
    TRACE_REST,    /* the round rests: it is idle or delivered */
    TRACE_PHASE,   /* the round has begun the phase `name` */
    TRACE_UNKNOWN, /* of a newer daemon */
};

struct trace_row {
    double us; /* the clock of the row's node; after trace_align() that of the first node */
    double step, bucket, value;
    enum trace_kind kind;
    const char *name; /* PHASE: in the document */
    unsigned node;    /* SENT, RECEIVED: the other node */
    unsigned view, phase;
};

struct trace_node {
    unsigned node;
    double asked_us, answered_us, heard_us; /* when it was asked, by both clocks */
    unsigned asker;                         /* the node that asked */
    struct trace_row *row;                  /* in order of time */
    size_t rows;
    double missing;  /* earlier records that the node has */
    bool late;       /* there was no time for those; otherwise no room */
    double ahead_us; /* by how much its clock is ahead of the first node's */
    double error_us; /* of that; below 0: the clocks could not be compared */
};

/* A message of which both ends are known. */
struct trace_flow {
    unsigned from, to; /* indexes of nodes */
    size_t sent, received;
};

struct trace {
    struct trace_node node[TRACE_NODES_MAX];
    unsigned nodes;
    unsigned silent[TRACE_NODES_MAX]; /* nodes that did not answer */
    unsigned silents;
    struct trace_flow *flow;
    size_t flows;
    const cJSON *first; /* the document with the names and the reason; the caller's */
};

/** Adds the nodes of a document, which must outlive the trace. Of two traces that a node wrote, the
 * later one counts. PROTOCOL: it is not one of a trace,
 * or not of the same job; MEMORY. */
enum adtopk_status trace_add(struct trace *trace, const cJSON *document, struct error *err);

/** Pairs the messages, and moves all rows to the clock of the first node. MEMORY. */
enum adtopk_status trace_align(struct trace *trace, struct error *err);

/** Writes it as trace events (JSON), which Perfetto and chrome://tracing show. */
void trace_print(FILE *out, const struct trace *trace);

/** A sentence per node on its clock, and one on nodes without an answer. */
void trace_summary(FILE *out, const struct trace *trace);

void trace_free(struct trace *trace);

#endif
