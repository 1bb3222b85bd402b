/* tensors and verify. */
#include "client/adtopkctl/show.h"
#include "client/adtopkctl/text.h"

const struct table_column show_tensors_columns[SHOW_TENSORS_COLUMNS] = {
    {.title = "tensor", .least = 13}, {.title = "elements", .right = true},
    {.title = "sparsifier", .least = 10}, {.title = "collective", .least = 10},
    {.title = "wanted", .right = true}, {.title = "sent", .right = true},
    {.title = "entries", .right = true, .extra = true}, {.title = "values"},
    {.title = "by", .extra = true}, {.title = "bucket", .right = true},
    {.title = "residual", .right = true, .extra = true},
    {.title = "sent B", .right = true, .extra = true},
    {.title = "received B", .right = true, .extra = true}};

static void show_tensors_share(struct table *table, double share)
{
    char text[TEXT_SIZE];

    (void)snprintf(text, sizeof(text), "%.3g%%", 100 * share);
    table_number(table, text, share);
}

/* The mean magnitude of the residual's elements when they were last read. */
static void show_tensors_residual(struct table *table, const cJSON *tensor)
{
    const double elements = text_number(tensor, "elements");
    const double mean = elements > 0 ? text_number(tensor, "residual_magnitude") / elements : 0;
    char text[TEXT_SIZE];

    if (!cJSON_IsNumber(text_member(tensor, "residual_magnitude"))) {
        table_number(table, "-", -1);
        return;
    }
    (void)snprintf(text, sizeof(text), "%.3g", mean);
    table_number(table, text, mean);
}

/* `wanted` is the policy's density, `sent` what a turn sends at most: at least one entry of each
 * fibre, for example. */
void show_tensors_tensor(struct table *table, const cJSON *tensor)
{
    const double count = text_number(tensor, "count");
    const double elements = text_number(tensor, "elements");
    char text[TEXT_SIZE];

    table_add(table, tensor);
    table_text(table, text_string(tensor, "name", TEXT_SIZE, text));
    table_number(table, text_count(elements, text), elements);
    table_text(table, text_string(tensor, "sparsifier", TEXT_SIZE, text));
    table_text(table, text_string(tensor, "collective", TEXT_SIZE, text));
    if (count > 0) {
        show_tensors_share(table, text_number(tensor, "density"));
        show_tensors_share(table, elements > 0 ? count / elements : 0);
        table_number(table, text_count(count, text), count);
    } else {
        table_number(table, "-", 1);
        show_tensors_share(table, 1);
        table_number(table, "all", elements);
    }
    table_text(table, text_string(tensor, "values", TEXT_SIZE, text));
    table_text(table, text_string(tensor, "scope", TEXT_SIZE, text));
    show_count(table, tensor, "bucket");
    show_tensors_residual(table, tensor);
    show_bytes(table, tensor, "bytes_sent");
    show_bytes(table, tensor, "bytes_received");
}

static bool show_tensors_guarded(const cJSON *tensor)
{
    const double ahead = text_number(tensor, "lookahead");

    return ahead > 0 && ahead < 0.999 * text_number(tensor, "lookahead_policy");
}

/* Whose look-ahead the guard shortens. */
static void show_tensors_guards(FILE *out, const cJSON *tensors)
{
    const cJSON *tensor;

    cJSON_ArrayForEach(tensor, tensors)
    {
        char name[TEXT_SIZE], line[TEXT_SIZE];

        if (show_tensors_guarded(tensor)) {
            (void)snprintf(line, sizeof(line),
                "%s: ranks look ahead by %.2g instead of %.2g, so that the shift is at most a "
                "tenth "
                "of the parameters",
                text_string(tensor, "name", TEXT_COLUMNS, name), text_number(tensor, "lookahead"),
                text_number(tensor, "lookahead_policy"));
            text_fill(out, 0, 2, line);
        }
    }
}

bool show_is_beyond(FILE *out, const cJSON *document)
{
    const double first = text_number(document, "first");
    const double count = text_number(document, "tensors_count");
    const bool beyond = count > 0 && cJSON_GetArraySize(text_member(document, "tensors")) == 0;

    if (beyond && first < count) {
        (void)fprintf(out, "how they are sent is decided when all ranks have committed them\n");
    } else if (beyond) {
        (void)fprintf(out, "there is no tensor %.0f: the job has %.0f tensor%s, numbered from 0\n",
            first, count, text_s(count));
    }
    return beyond;
}

void show_tensors(FILE *out, const cJSON *document)
{
    const cJSON *tensor;
    struct table table;
    double first = text_number(document, "first");
    double omitted = text_number(document, "tensors_omitted");
    int shown = cJSON_GetArraySize(text_member(document, "tensors"));

    text_job(out, document);
    (void)fprintf(out, ": %.0f tensor%s\n", text_number(document, "tensors_count"),
        text_s(text_number(document, "tensors_count")));
    if (show_is_beyond(out, document)) {
        return;
    }
    table_begin(&table, show_tensors_columns, SHOW_TENSORS_COLUMNS);
    cJSON_ArrayForEach(tensor, text_member(document, "tensors"))
    {
        show_tensors_tensor(&table, tensor);
    }
    show_table(out, &table);
    table_free(&table);
    show_tensors_guards(out, text_member(document, "tensors"));
    if (omitted > 0) {
        (void)fprintf(out, "and %.0f more (--first %.0f)\n", omitted, first + shown);
    }
}

static double element(const cJSON *object, const char *name, int index)
{
    const cJSON *item = cJSON_GetArrayItem(text_member(object, name), index);

    return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

static void show_sum(FILE *out, const cJSON *tensor, int index, const char *what)
{
    (void)fprintf(out, "  %-6s  %12.5g%12.5g%12.5g%12.5g%11.3g%11.3g\n", what,
        element(tensor, "input", index), element(tensor, "applied", index),
        element(tensor, "lost", index), element(tensor, "residual", index),
        element(tensor, "off", index), text_number(tensor, "tolerance"));
}

void show_verify(FILE *out, const cJSON *document)
{
    const cJSON *tensors = text_member(document, "out_of_balance");
    const cJSON *tensor;
    char name[TEXT_SIZE];
    char line[TEXT_SIZE];
    double all = text_number(document, "tensors");
    double checked = text_number(document, "checked");
    double unbalanced = text_number(document, "unbalanced");

    text_job(out, document);
    (void)fprintf(out, ": %s as of step %.0f\n",
        text_true(document, "conserved") ? "conserved" : "NOT CONSERVED",
        text_number(document, "step"));
    (void)snprintf(line, sizeof(line),
        "%.0f of %.0f tensor%s checked, %.0f out of balance; largest deviation %.2g of the "
        "tolerance",
        checked, all, text_s(all), unbalanced, text_number(document, "worst_share_of_tolerance"));
    (void)fprintf(out, "  ");
    text_fill(out, 2, 4, line);
    if (cJSON_GetArraySize(tensors) == 0) {
        return;
    }
    (void)fprintf(out, "\n  %-6s  %12s%12s%12s%12s%11s%11s\n", "sum", "input", "applied", "lost",
        "residual", "off by", "tolerance");
    cJSON_ArrayForEach(tensor, tensors)
    {
        (void)fprintf(out, "%s\n", text_string(tensor, "name", TEXT_COLUMNS, name));
        show_sum(out, tensor, 0, "plain");
        show_sum(out, tensor, 1, "signed");
    }
    if (unbalanced > cJSON_GetArraySize(tensors)) {
        (void)fprintf(out, "and %.0f more\n", unbalanced - cJSON_GetArraySize(tensors));
    }
}
