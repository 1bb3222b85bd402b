/* tensors and verify. */
#include "client/adtopkctl/show.h"
#include "client/adtopkctl/text.h"

static void show_tensors_tensor(FILE *out, const cJSON *tensor)
{
    char elements[TEXT_SIZE];
    double count = text_number(tensor, "count");

    text_column(out, tensor, "name", 16);
    (void)fprintf(out, "%8s  ", text_count(text_number(tensor, "elements"), elements));
    text_column(out, tensor, "sparsifier", 10);
    (void)fprintf(out, " ");
    text_column(out, tensor, "collective", 10);
    if (count > 0) {
        (void)fprintf(out, "%7.3g%%", 100 * text_number(tensor, "density"));
        (void)fprintf(out, "%7s ", text_count(count, elements));
    } else {
        (void)fprintf(out, "%8s%7s ", "-", "all");
    }
    text_column(out, tensor, "values", 6);
    (void)fprintf(out, " ");
    text_column(out, tensor, "scope", 4);
    (void)fprintf(out, "%6.0f\n", text_number(tensor, "bucket"));
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

void show_tensors(FILE *out, const cJSON *document)
{
    const cJSON *tensor;
    double first = text_number(document, "first");
    double omitted = text_number(document, "tensors_omitted");
    int shown = cJSON_GetArraySize(text_member(document, "tensors"));

    text_job(out, document);
    (void)fprintf(out, ": %.0f tensors\n", text_number(document, "tensors_count"));
    (void)fprintf(out, "%-16s%8s  %-10s %-10s%8s%7s %-6s %-4s%6s\n", "tensor", "elements",
        "sparsifier", "collective", "density", "a turn", "values", "by", "bucket");
    cJSON_ArrayForEach(tensor, text_member(document, "tensors"))
    {
        show_tensors_tensor(out, tensor);
    }
    show_tensors_guards(out, text_member(document, "tensors"));
    if (shown == 0 && first > 0) {
        (void)fprintf(out, "none from number %.0f on\n", first);
    }
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
        "%.0f of %.0f tensors checked, %.0f out of balance; largest deviation %.2g of the "
        "tolerance",
        checked, all, unbalanced, text_number(document, "worst_share_of_tolerance"));
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
