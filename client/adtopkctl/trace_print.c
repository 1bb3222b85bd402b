/*
 * Trace events, as "Trace Event Format" (Chrome) describes them: a node is a process; its steps,
 * ranks, buckets and links are threads. A slice is an event X, a message two of them and a flow (s,
 * f) between.
 */
#include <stdlib.h>

#include "client/adtopkctl/text.h"
#include "client/adtopkctl/trace.h"

/* Threads of a node, in the order in which they are shown. Readers keep their numbers in 32 bits.
 */
#define STEPS 1.0
#define RANKS 1e6
#define BUCKETS 2e6
#define OPERATIONS 1e9
#define SENDING 1.1e9
#define RECEIVING 1.2e9

struct printer {
    FILE *out;
    const struct trace *trace;
    double begin_us, end_us;
    bool any; /* an event stands before the next one */
};

/* A bucket, rank or step of which the end has not come yet. */
struct trace_open {
    double thread;
    const struct trace_row *row; /* where it began; NULL: it has ended */
};

struct trace_opens {
    struct trace_open *open;
    size_t count, room;
};

static void trace_event(struct printer *printer, const char *type, unsigned node, double thread)
{
    (void)fprintf(printer->out, "%s\n{\"ph\":\"%s\",\"pid\":%u,\"tid\":%.0f",
        printer->any ? "," : "", type, node + 1, thread);
    printer->any = true;
}

static void trace_at(const struct printer *printer, double us)
{
    (void)fprintf(printer->out, ",\"ts\":%.1f", us - printer->begin_us);
}

/* A slice without its arguments and its closing brace. */
static void trace_slice(
    struct printer *printer, unsigned node, double thread, double from_us, double to_us)
{
    trace_event(printer, "X", node, thread);
    trace_at(printer, from_us);
    (void)fprintf(printer->out, ",\"dur\":%.1f", to_us > from_us ? to_us - from_us : 0);
}

static void trace_string(const struct printer *printer, const cJSON *object, const char *name)
{
    const cJSON *item = text_member(object, name);
    char *text = cJSON_IsString(item) ? cJSON_PrintUnformatted(item) : NULL;

    (void)fputs(text != NULL ? text : "\"\"", printer->out);
    free(text);
}

/* ------------------------------------------------------------------ names of threads */

static void trace_name_thread(
    struct printer *printer, unsigned node, double thread, const char *kind, double number)
{
    trace_event(printer, "M", node, thread);
    (void)fprintf(printer->out, ",\"name\":\"thread_name\",\"args\":{\"name\":\"%s", kind);
    if (number >= 0) {
        (void)fprintf(printer->out, " %.0f", number);
    }
    (void)fputs("\"}}", printer->out);
    trace_event(printer, "M", node, thread);
    (void)fprintf(printer->out, ",\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":%.0f}}",
        thread / 1e3);
}

static void trace_name_node(struct printer *printer, const struct trace_node *node)
{
    trace_event(printer, "M", node->node, 0);
    (void)fprintf(
        printer->out, ",\"name\":\"process_name\",\"args\":{\"name\":\"node %u\"}}", node->node);
    trace_event(printer, "M", node->node, 0);
    (void)fprintf(printer->out, ",\"name\":\"process_labels\",\"args\":{\"labels\":\"");
    if (node->error_us < 0) {
        (void)fprintf(printer->out, "clock not compared\"}}");
    } else {
        (void)fprintf(printer->out, "clock to %.3f ms\"}}", node->error_us / 1000);
    }
    trace_event(printer, "M", node->node, 0);
    (void)fprintf(
        printer->out, ",\"name\":\"process_sort_index\",\"args\":{\"sort_index\":%u}}", node->node);
}

/* ------------------------------------------------------------------ slices */

/* The open slice of a thread; NULL without memory. New threads get their names. */
static struct trace_open *trace_find_open(struct printer *printer, struct trace_opens *opens,
    unsigned node, double thread, const char *kind, double number)
{
    for (size_t i = 0; i < opens->count; i++) {
        if (opens->open[i].thread == thread) {
            return &opens->open[i];
        }
    }
    if (opens->count == opens->room) {
        const size_t room = opens->room > 0 ? 2 * opens->room : 64;
        struct trace_open *grown = realloc(opens->open, room * sizeof(*grown));

        if (grown == NULL) {
            return NULL;
        }
        opens->open = grown;
        opens->room = room;
    }
    trace_name_thread(printer, node, thread, kind, number);
    opens->open[opens->count] = (struct trace_open){.thread = thread};
    return &opens->open[opens->count++];
}

static void trace_close_slice(
    struct printer *printer, unsigned node, struct trace_open *open, double end_us, bool ended)
{
    const struct trace_row *row = open->row;

    if (row == NULL) {
        return;
    }
    trace_slice(printer, node, open->thread, row->us, end_us);
    if (row->kind == TRACE_PHASE) {
        char name[TEXT_SIZE];
        (void)fprintf(
            printer->out, ",\"cat\":\"round\",\"name\":\"%s\"", text_clean(row->name, 16, name));
    } else {
        (void)fprintf(printer->out, ",\"cat\":\"step\",\"name\":\"%s %.0f\"",
            row->kind == TRACE_SETTLE     ? "settle"
            : row->kind == TRACE_WITHDRAW ? "withdraw"
                                          : "step",
            row->step);
    }
    (void)fprintf(printer->out, ",\"args\":{\"%s\":%.0f%s}}",
        row->bucket == TRACE_OPERATION ? "operation" : "step", row->step,
        ended ? "" : ",\"unfinished\":true");
    open->row = NULL;
}

/* The slice that the row belongs to; NULL: none, or no memory. */
static struct trace_open *trace_open_of(
    struct printer *printer, struct trace_opens *opens, unsigned node, const struct trace_row *row)
{
    switch (row->kind) {
    case TRACE_BEGAN:
    case TRACE_PUSHED:
    case TRACE_ENDED:
        return trace_find_open(printer, opens, node, RANKS + row->value, "rank", row->value);
    case TRACE_OPENED:
    case TRACE_CLOSED: return trace_find_open(printer, opens, node, STEPS, "steps", -1);
    case TRACE_SETTLE:
    case TRACE_WITHDRAW: return trace_find_open(printer, opens, node, STEPS + 1, "settling", -1);
    case TRACE_REST:
    case TRACE_PHASE:
        return row->bucket == TRACE_OPERATION
                   ? trace_find_open(printer, opens, node, OPERATIONS, "operations", -1)
                   : trace_find_open(
                         printer, opens, node, BUCKETS + row->bucket, "bucket", row->bucket);
    default: return NULL;
    }
}

static void trace_print_push(struct printer *printer, unsigned node, const struct trace_row *row)
{
    trace_event(printer, "i", node, RANKS + row->value);
    trace_at(printer, row->us);
    (void)fprintf(printer->out,
        ",\"s\":\"t\",\"cat\":\"rank\",\"name\":\"bucket %.0f pushed\",\"args\":{\"step\":%.0f}}",
        row->bucket, row->step);
}

static void trace_print_row(
    struct printer *printer, struct trace_opens *opens, unsigned node, const struct trace_row *row)
{
    struct trace_open *open = trace_open_of(printer, opens, node, row);

    if (open == NULL) {
        return;
    }
    if (row->kind == TRACE_PUSHED) {
        trace_print_push(printer, node, row);
        return;
    }
    trace_close_slice(printer, node, open, row->us, true);
    if (row->kind != TRACE_ENDED && row->kind != TRACE_CLOSED && row->kind != TRACE_REST) {
        open->row = row;
    }
    if (row->kind == TRACE_CLOSED) { /* the step's end is that of settling, too */
        open = trace_find_open(printer, opens, node, STEPS + 1, "settling", -1);
        if (open != NULL) {
            trace_close_slice(printer, node, open, row->us, true);
        }
    }
}

static void trace_print_node(struct printer *printer, const struct trace_node *node)
{
    struct trace_opens opens = {.open = NULL};

    trace_name_node(printer, node);
    for (size_t r = 0; r < node->rows; r++) {
        trace_print_row(printer, &opens, node->node, &node->row[r]);
    }
    for (size_t i = 0; i < opens.count; i++) {
        trace_close_slice(printer, node->node, &opens.open[i], printer->end_us, false);
    }
    free(opens.open);
}

/* ------------------------------------------------------------------ messages */

static void trace_print_ends(struct printer *printer, const struct trace_node *node)
{
    struct trace_opens links = {.open = NULL};

    for (size_t r = 0; r < node->rows; r++) {
        const struct trace_row *row = &node->row[r];
        const bool sent = row->kind == TRACE_SENT;
        const double thread = (sent ? SENDING : RECEIVING) + row->node;

        if (!sent && row->kind != TRACE_RECEIVED) {
            continue;
        }
        (void)trace_find_open(
            printer, &links, node->node, thread, sent ? "to node" : "from node", row->node);
        trace_slice(printer, node->node, thread, row->us, row->us + 1);
        (void)fprintf(printer->out,
            ",\"cat\":\"message\",\"name\":\"%s\",\"args\":{\"%s\":%.0f,\"bucket\":%.0f,"
            "\"phase\":%u,\"bytes\":%.0f}}",
            sent ? "send" : "receive", row->bucket == TRACE_OPERATION ? "operation" : "step",
            row->step, row->bucket == TRACE_OPERATION ? -1 : row->bucket, row->phase, row->value);
    }
    free(links.open);
}

static void trace_print_flow(struct printer *printer, const struct trace_flow *flow, size_t id)
{
    const struct trace_node *from = &printer->trace->node[flow->from];
    const struct trace_node *to = &printer->trace->node[flow->to];

    trace_event(printer, "s", from->node, SENDING + to->node);
    trace_at(printer, from->row[flow->sent].us);
    (void)fprintf(printer->out, ",\"id\":%zu,\"cat\":\"message\",\"name\":\"frame\"}", id);
    trace_event(printer, "f", to->node, RECEIVING + from->node);
    trace_at(printer, to->row[flow->received].us);
    (void)fprintf(
        printer->out, ",\"id\":%zu,\"bp\":\"e\",\"cat\":\"message\",\"name\":\"frame\"}", id);
}

/* ------------------------------------------------------------------ the whole */

static void trace_find_span(struct printer *printer)
{
    const struct trace *trace = printer->trace;
    bool any = false;

    for (unsigned i = 0; i < trace->nodes; i++) {
        const struct trace_node *node = &trace->node[i];

        if (node->rows == 0) {
            continue;
        }
        if (!any || node->row[0].us < printer->begin_us) {
            printer->begin_us = node->row[0].us;
        }
        if (!any || node->row[node->rows - 1].us > printer->end_us) {
            printer->end_us = node->row[node->rows - 1].us;
        }
        printer->end_us = node->answered_us > printer->end_us ? node->answered_us : printer->end_us;
        any = true;
    }
}

static void trace_print_clocks(const struct printer *printer)
{
    const struct trace *trace = printer->trace;

    for (unsigned i = 0; i < trace->nodes; i++) {
        const struct trace_node *node = &trace->node[i];

        (void)fprintf(printer->out,
            "%s{\"node\":%u,\"ahead_us\":%.1f,\"error_us\":", i > 0 ? "," : "", node->node,
            node->ahead_us);
        if (node->error_us < 0) {
            (void)fputs("null}", printer->out);
        } else {
            (void)fprintf(printer->out, "%.1f}", node->error_us);
        }
    }
}

void trace_print(FILE *out, const struct trace *trace)
{
    struct printer printer = {.out = out, .trace = trace};

    trace_find_span(&printer);
    (void)fputs("{\"displayTimeUnit\":\"ms\",\"otherData\":{\"job\":", out);
    trace_string(&printer, trace->first, "name");
    (void)fputs(",\"run_id\":", out);
    trace_string(&printer, trace->first, "run_id");
    (void)fputs(",\"reason\":", out);
    trace_string(&printer, trace->first, "reason");
    (void)fputs(",\"clocks\":[", out);
    trace_print_clocks(&printer);
    (void)fputs("],\"silent\":[", out);
    for (unsigned i = 0; i < trace->silents; i++) {
        (void)fprintf(out, "%s%u", i > 0 ? "," : "", trace->silent[i]);
    }
    (void)fputs("]},\"traceEvents\":[", out);
    for (unsigned i = 0; i < trace->nodes; i++) {
        trace_print_node(&printer, &trace->node[i]);
        trace_print_ends(&printer, &trace->node[i]);
    }
    for (size_t f = 0; f < trace->flows; f++) {
        trace_print_flow(&printer, &trace->flow[f], f + 1);
    }
    (void)fputs("\n]}\n", out);
}
