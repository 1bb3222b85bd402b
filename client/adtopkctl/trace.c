/* Reads documents of adtopkctl trace. The daemon may be of another version: fields are found by
 * name, and rows that say nothing to this program are left out. */
#include "client/adtopkctl/trace.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/adtopkctl/text.h"

enum trace_column { US, KIND, STEP, BUCKET, VALUE, NODE, VIEW, PHASE, COLUMNS };

static const char *const trace_columns[COLUMNS] = {
    "us", "kind", "step", "bucket", "value", "node", "view", "phase"};

static const char *const trace_kinds[TRACE_REST] = {
    "began", "pushed", "ended", "sent", "received", "opened", "settle", "withdraw", "closed"};

/* Where the document has each column; false if one is missing. */
static bool trace_find_columns(const cJSON *document, int place[COLUMNS])
{
    const cJSON *columns = text_member(document, "columns");

    for (int c = 0; c < COLUMNS; c++) {
        const cJSON *column;
        int at = 0;

        place[c] = -1;
        cJSON_ArrayForEach(column, columns)
        {
            if (cJSON_IsString(column) && strcmp(column->valuestring, trace_columns[c]) == 0) {
                place[c] = at;
            }
            at++;
        }
        if (place[c] < 0) {
            return false;
        }
    }
    return true;
}

static enum trace_kind trace_kind_of(const char *name)
{
    for (unsigned kind = 0; kind < TRACE_REST; kind++) {
        if (strcmp(name, trace_kinds[kind]) == 0) {
            return (enum trace_kind)kind;
        }
    }
    return strcmp(name, "idle") == 0 || strcmp(name, "delivered") == 0 ? TRACE_REST : TRACE_PHASE;
}

/* False: the row is not one. */
static bool trace_read_row(
    const cJSON *row, const int place[COLUMNS], const cJSON *kinds, struct trace_row *out)
{
    double value[COLUMNS];
    const cJSON *kind;

    for (int c = 0; c < COLUMNS; c++) {
        const cJSON *item = cJSON_GetArrayItem(row, place[c]);

        if (!cJSON_IsNumber(item) || item->valuedouble < 0) {
            return false;
        }
        value[c] = item->valuedouble;
    }
    kind = value[KIND] < 256 ? cJSON_GetArrayItem(kinds, (int)value[KIND]) : NULL;
    if (!cJSON_IsString(kind)) {
        return false;
    }
    *out = (struct trace_row){.us = value[US],
        .step = value[STEP],
        .bucket = value[BUCKET],
        .value = value[VALUE],
        .kind = trace_kind_of(kind->valuestring),
        .name = kind->valuestring,
        .node = value[NODE] < 65536 ? (unsigned)value[NODE] : 65536,
        .view = value[VIEW] < 65536 ? (unsigned)value[VIEW] : 65536,
        .phase = value[PHASE] < 65536 ? (unsigned)value[PHASE] : 65536};
    return true;
}

static enum adtopk_status trace_read_rows(struct trace_node *node, const cJSON *item,
    const int place[COLUMNS], const cJSON *kinds, struct error *err)
{
    const cJSON *rows = text_member(item, "records");
    const cJSON *row;

    node->row = calloc((size_t)cJSON_GetArraySize(rows) + 1, sizeof(*node->row));
    if (node->row == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for the trace");
    }
    cJSON_ArrayForEach(row, rows)
    {
        node->rows += trace_read_row(row, place, kinds, &node->row[node->rows]) ? 1 : 0;
    }
    return ADTOPK_OK;
}

/* The place of a node: where it is already, or behind the others. */
static unsigned trace_place_of(const struct trace *trace, double number)
{
    unsigned i = 0;

    while (i < trace->nodes && (double)trace->node[i].node != number) {
        i++;
    }
    return i;
}

/* Of two traces of a node, the later one counts: a job was stuck, and failed then. */
static enum adtopk_status trace_add_node(struct trace *trace, const cJSON *item, unsigned asker,
    const int place[COLUMNS], const cJSON *kinds, struct error *err)
{
    const double number = text_number(item, "node");
    const double answered_us = text_number(item, "answered_us");
    const unsigned at = trace_place_of(trace, number);
    const bool known = at < trace->nodes;
    struct trace_node *node = &trace->node[at];

    if (!(number >= 0 && number < 65535) || at == TRACE_NODES_MAX ||
        (known && node->answered_us == answered_us)) {
        return error_set(
            err, ADTOPK_ERR_PROTOCOL, "the trace has node %.0f twice, or too many", number);
    }
    if (!text_true(item, "answered")) {
        if (trace->silents < TRACE_NODES_MAX) {
            trace->silent[trace->silents++] = (unsigned)number;
        }
        return ADTOPK_OK;
    }
    if (known && node->answered_us > answered_us) {
        return ADTOPK_OK;
    }
    free(known ? node->row : NULL);
    trace->nodes += known ? 0 : 1;
    *node = (struct trace_node){.node = (unsigned)number,
        .asked_us = text_number(item, "asked_us"),
        .answered_us = answered_us,
        .heard_us = text_number(item, "heard_us"),
        .missing = text_number(item, "missing"),
        .late = text_true(item, "late"),
        .asker = asker};
    return trace_read_rows(node, item, place, kinds, err);
}

static bool trace_is_same_job(const cJSON *one, const cJSON *other)
{
    const cJSON *name = text_member(one, "name");
    const cJSON *run = text_member(one, "run_id");

    return cJSON_IsString(name) && cJSON_IsString(run) &&
           text_is(other, "name", name->valuestring) &&
           text_is(other, "run_id", run->valuestring) &&
           text_number(one, "owner") == text_number(other, "owner");
}

enum adtopk_status trace_add(struct trace *trace, const cJSON *document, struct error *err)
{
    const double asker = text_number(document, "node");
    const cJSON *item;
    int place[COLUMNS];
    unsigned at;
    double earlier_us;

    if (!trace_find_columns(document, place) || !(asker >= 0 && asker < 65535)) {
        return error_set(err, ADTOPK_ERR_PROTOCOL, "this is no trace of adtopkd");
    }
    if (!trace_is_same_job(trace->first != NULL ? trace->first : document, document)) {
        return error_set(err, ADTOPK_ERR_PROTOCOL, "the traces are of different jobs");
    }
    trace->first = trace->first != NULL ? trace->first : document;
    at = trace_place_of(trace, asker);
    earlier_us = at < trace->nodes ? trace->node[at].answered_us : INFINITY;
    cJSON_ArrayForEach(item, text_member(document, "nodes"))
    {
        if (trace_add_node(trace, item, (unsigned)asker, place, text_member(document, "kinds"),
                err) != ADTOPK_OK) {
            return err->code;
        }
    }
    if (at < trace->nodes && trace->node[at].answered_us > earlier_us) {
        trace->first = document; /* its reason is the later one */
    }
    return ADTOPK_OK;
}

void trace_free(struct trace *trace)
{
    for (unsigned i = 0; i < trace->nodes; i++) {
        free(trace->node[i].row);
    }
    free(trace->flow);
    *trace = (struct trace){.nodes = 0};
}

void trace_summary(FILE *out, const struct trace *trace)
{
    for (unsigned i = 0; i < trace->nodes; i++) {
        const struct trace_node *node = &trace->node[i];

        (void)fprintf(
            out, "node %u: %zu record%s", node->node, node->rows, text_s((double)node->rows));
        if (i > 0 && node->error_us < 0) {
            (void)fprintf(
                out, "; its clock could not be compared with that of node %u", trace->node[0].node);
        } else if (i > 0) {
            (void)fprintf(out, "; its clock is %.3f ms %s that of node %u, to %.3f ms",
                fabs(node->ahead_us) / 1000, node->ahead_us < 0 ? "behind" : "ahead of",
                trace->node[0].node, node->error_us / 1000);
        }
        if (node->missing > 0) {
            (void)fprintf(out, "; %.0f earlier ones %s", node->missing,
                node->late ? "did not come in time" : "found no room");
        }
        (void)fputc('\n', out);
    }
    for (unsigned i = 0; i < trace->silents; i++) {
        (void)fprintf(out, "node %u: no answer\n", trace->silent[i]);
    }
}
