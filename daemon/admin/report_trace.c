/*
 * What nodes have recorded of a job, for adtopkctl trace. There may be 100,000 rows, and the loop
 * waits for them: so they are written as text at once, and not as an object each.
 */
#include "daemon/admin/report_trace.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/admin/report.h"

#define NUMBER_SIZE 20
#define ROW_SIZE (8 * (NUMBER_SIZE + 1) + 3)

static const char *const report_trace_columns[] = {
    "us", "kind", "step", "bucket", "value", "node", "view", "phase"};

/* Writes digits, then a character. */
static char *report_trace_number(char *to, uint64_t number, char then)
{
    char digits[NUMBER_SIZE];
    size_t count = 0;

    do {
        digits[count++] = (char)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    while (count > 0) {
        *to++ = digits[--count];
    }
    *to++ = then;
    return to;
}

static char *report_trace_row(char *to, const struct flight_record *record)
{
    *to++ = '[';
    to = report_trace_number(to, record->at_us, ',');
    to = report_trace_number(to, record->kind, ',');
    to = report_trace_number(to, record->step, ',');
    to = report_trace_number(to, record->bucket, ',');
    to = report_trace_number(to, record->value, ',');
    to = report_trace_number(to, record->node, ',');
    to = report_trace_number(to, record->view, ',');
    return report_trace_number(to, record->phase, ']');
}

/* "[[...],...]"; NULL without memory. */
static char *report_trace_rows(const struct flight_record *record, uint32_t count)
{
    char *text = malloc((size_t)count * ROW_SIZE + 3);
    char *to = text;

    if (text == NULL) {
        return NULL;
    }
    *to++ = '[';
    for (uint32_t i = 0; i < count; i++) {
        if (i > 0) {
            *to++ = ',';
        }
        to = report_trace_row(to, &record[i]);
    }
    *to++ = ']';
    *to = '\0';
    return text;
}

static void report_trace_add_part(
    struct document *document, cJSON *nodes, const struct recorded_part *part)
{
    cJSON *node = document_append(document, nodes);
    char *rows = report_trace_rows(part->record, part->records);

    document_count(document, node, "node", part->node);
    document_bool(document, node, "answered", part->answered);
    if (part->answered_us != 0) {
        document_count(document, node, "asked_us", part->asked_us);
        document_count(document, node, "answered_us", part->answered_us);
        document_count(document, node, "heard_us", part->heard_us);
    }
    if (part->missing > 0) {
        document_count(document, node, "missing", part->missing);
        document_bool(document, node, "late", part->late);
    }
    if (rows != NULL) {
        document_raw(document, node, "records", rows);
    } else {
        document->failed = true;
    }
    free(rows);
}

static void report_trace_add_names(struct document *document)
{
    cJSON *columns = document_array(document, document->root, "columns");
    cJSON *kinds = document_array(document, document->root, "kinds");

    for (size_t i = 0; i < sizeof(report_trace_columns) / sizeof(report_trace_columns[0]); i++) {
        document_append_text(document, columns, report_trace_columns[i]);
    }
    for (unsigned kind = 0; recorder_kind_name(kind) != NULL; kind++) {
        document_append_text(document, kinds, recorder_kind_name(kind));
    }
}

char *report_trace(
    uint16_t node, const struct job_info *job, const char *reason, const struct recorded *records)
{
    struct document document;
    cJSON *nodes;

    document_begin(&document);
    report_key(&document, document.root, &job->key);
    document_count(&document, document.root, "node", node);
    document_text(&document, document.root, "reason", reason);
    report_trace_add_names(&document);
    nodes = document_array(&document, document.root, "nodes");
    for (unsigned i = 0; i < records->parts; i++) {
        report_trace_add_part(&document, nodes, &records->part[i]);
    }
    return document_end(&document);
}
