#include <math.h>
#include <stdlib.h>

#include "client/adtopkctl/trace.h"

/* One end of a message. */
struct trace_end {
    unsigned from, to; /* indexes of nodes */
    double step, bucket;
    unsigned view, phase;
    size_t row;
};

struct trace_ends {
    struct trace_end *end;
    size_t count;
};

/* The index of a node; -1: it is not in the trace. */
static int trace_index(const struct trace *trace, unsigned node)
{
    for (unsigned i = 0; i < trace->nodes; i++) {
        if (trace->node[i].node == node) {
            return (int)i;
        }
    }
    return -1;
}

static int trace_compare(double one, double other)
{
    return (one > other) - (one < other);
}

/* Whether both are ends of one message: 0. */
static int trace_end_compare(const struct trace_end *a, const struct trace_end *b)
{
    const double one[] = {a->from, a->to, a->step, a->bucket, a->view, a->phase};
    const double other[] = {b->from, b->to, b->step, b->bucket, b->view, b->phase};
    int order = 0;

    for (size_t i = 0; order == 0 && i < sizeof(one) / sizeof(one[0]); i++) {
        order = trace_compare(one[i], other[i]);
    }
    return order;
}

static int trace_end_order(const void *one, const void *other)
{
    const struct trace_end *a = one, *b = other;
    const int order = trace_end_compare(a, b);

    return order != 0 ? order : trace_compare((double)a->row, (double)b->row);
}

static void trace_add_ends(
    const struct trace *trace, unsigned at, enum trace_kind kind, struct trace_ends *ends)
{
    const struct trace_node *node = &trace->node[at];

    for (size_t r = 0; r < node->rows; r++) {
        const struct trace_row *row = &node->row[r];
        const int other = row->kind == kind ? trace_index(trace, row->node) : -1;

        if (other >= 0) {
            ends->end[ends->count++] =
                (struct trace_end){.from = kind == TRACE_SENT ? at : (unsigned)other,
                    .to = kind == TRACE_SENT ? (unsigned)other : at,
                    .step = row->step,
                    .bucket = row->bucket,
                    .view = row->view,
                    .phase = row->phase,
                    .row = r};
        }
    }
}

static size_t trace_rows(const struct trace *trace)
{
    size_t rows = 0;

    for (unsigned i = 0; i < trace->nodes; i++) {
        rows += trace->node[i].rows;
    }
    return rows;
}

/* All ends of this kind, in the order of their messages; false without memory. */
static bool trace_find_ends(
    const struct trace *trace, enum trace_kind kind, struct trace_ends *ends)
{
    ends->count = 0;
    ends->end = malloc((trace_rows(trace) + 1) * sizeof(*ends->end));
    if (ends->end == NULL) {
        return false;
    }
    for (unsigned i = 0; i < trace->nodes; i++) {
        trace_add_ends(trace, i, kind, ends);
    }
    qsort(ends->end, ends->count, sizeof(*ends->end), trace_end_order);
    return true;
}

/* Pairs what left with what came. */
static void trace_pair(
    struct trace *trace, const struct trace_ends *sent, const struct trace_ends *received)
{
    size_t s = 0, r = 0;

    while (s < sent->count && r < received->count) {
        const int order = trace_end_compare(&sent->end[s], &received->end[r]);

        if (order == 0) {
            trace->flow[trace->flows++] = (struct trace_flow){.from = sent->end[s].from,
                .to = sent->end[s].to,
                .sent = sent->end[s].row,
                .received = received->end[r].row};
        }
        s += order <= 0 ? 1 : 0;
        r += order >= 0 ? 1 : 0;
    }
}

static bool trace_find_flows(struct trace *trace)
{
    struct trace_ends sent = {.end = NULL}, received = {.end = NULL};
    bool all = trace_find_ends(trace, TRACE_SENT, &sent) &&
               trace_find_ends(trace, TRACE_RECEIVED, &received);

    trace->flow = all ? malloc((sent.count + 1) * sizeof(*trace->flow)) : NULL;
    all = trace->flow != NULL;
    if (all) {
        trace_pair(trace, &sent, &received);
    }
    free(sent.end);
    free(received.end);
    return all;
}

/* ------------------------------------------------------------------ bounds */

/* By how much the clock of `to` is at most ahead of that of `from`. */
struct trace_bound {
    unsigned from, to;
    double most_us;
};

struct trace_bounds {
    struct trace_bound *bound;
    size_t count;
};

static void trace_bound_add(struct trace_bounds *bounds, unsigned from, unsigned to, double most_us)
{
    bounds->bound[bounds->count++] =
        (struct trace_bound){.from = from, .to = to, .most_us = most_us};
}

/* Each message gives a bound, and so do the question for the records and its answer. */
static bool trace_find_bounds(const struct trace *trace, struct trace_bounds *bounds)
{
    bounds->count = 0;
    bounds->bound = malloc((trace->flows + 2 * (size_t)trace->nodes + 1) * sizeof(*bounds->bound));
    if (bounds->bound == NULL) {
        return false;
    }
    for (size_t f = 0; f < trace->flows; f++) {
        const struct trace_flow *flow = &trace->flow[f];
        trace_bound_add(bounds, flow->from, flow->to,
            trace->node[flow->to].row[flow->received].us -
                trace->node[flow->from].row[flow->sent].us);
    }
    for (unsigned i = 0; i < trace->nodes; i++) {
        const struct trace_node *node = &trace->node[i];
        const int asker = trace_index(trace, node->asker);

        if (asker >= 0 && (unsigned)asker != i && node->answered_us > 0) {
            trace_bound_add(bounds, (unsigned)asker, i, node->answered_us - node->asked_us);
            trace_bound_add(bounds, i, (unsigned)asker, node->heard_us - node->answered_us);
        }
    }
    return true;
}

/* The tightest bounds of all nodes against the first one, over any way (Bellman-Ford). backwards:
 * of the first node against each. False: they contradict each other. */
static bool trace_tighten(const struct trace *trace, const struct trace_bounds *bounds,
    bool backwards, double most_us[TRACE_NODES_MAX])
{
    bool moved = true;

    for (unsigned i = 0; i < trace->nodes; i++) {
        most_us[i] = i == 0 ? 0 : INFINITY;
    }
    for (unsigned turn = 0; moved && turn <= trace->nodes; turn++) {
        moved = false;
        for (size_t b = 0; b < bounds->count; b++) {
            const struct trace_bound *bound = &bounds->bound[b];
            const unsigned from = backwards ? bound->to : bound->from;
            const unsigned to = backwards ? bound->from : bound->to;

            if (most_us[from] + bound->most_us < most_us[to]) {
                most_us[to] = most_us[from] + bound->most_us;
                moved = true;
            }
        }
    }
    return !moved;
}

/* A clock that is bounded on one side only is taken to be at that side: its messages then take no
 * time. */
static void trace_compare_clocks(struct trace *trace, const struct trace_bounds *bounds)
{
    double ahead[TRACE_NODES_MAX], behind[TRACE_NODES_MAX];
    const bool agree =
        trace_tighten(trace, bounds, false, ahead) && trace_tighten(trace, bounds, true, behind);

    for (unsigned i = 0; i < trace->nodes; i++) {
        struct trace_node *node = &trace->node[i];
        const bool above = agree && isfinite(ahead[i]);
        const bool below = agree && isfinite(behind[i]);

        node->ahead_us = above && below ? (ahead[i] - behind[i]) / 2
                         : above        ? ahead[i]
                         : below        ? -behind[i]
                                        : 0;
        node->error_us = above && below ? (ahead[i] + behind[i]) / 2 : -1;
    }
}

enum adtopk_status trace_align(struct trace *trace, struct error *err)
{
    struct trace_bounds bounds = {.bound = NULL};

    if (!trace_find_flows(trace) || !trace_find_bounds(trace, &bounds)) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for the trace");
    }
    trace_compare_clocks(trace, &bounds);
    free(bounds.bound);
    for (unsigned i = 0; i < trace->nodes; i++) {
        for (size_t r = 0; r < trace->node[i].rows; r++) {
            trace->node[i].row[r].us -= trace->node[i].ahead_us;
        }
        trace->node[i].answered_us -= trace->node[i].ahead_us;
    }
    return ADTOPK_OK;
}
