/* plan: the choices, their times, and the alternatives. */
#include "client/adtopkctl/show.h"
#include "client/adtopkctl/text.h"

static bool known(const cJSON *object, const char *name)
{
    return cJSON_IsNumber(text_member(object, name));
}

/* "12.3 ms", "0 ms" for what is shorter than the clock's 1 us, or "-". */
static const char *time_of(const cJSON *object, const char *name, char out[TEXT_SIZE])
{
    const double us = text_number(object, name);

    if (known(object, name)) {
        (void)snprintf(out, TEXT_SIZE, "%.4g ms", us < 1 ? 0 : 1e-3 * us);
    } else {
        (void)snprintf(out, TEXT_SIZE, "-");
    }
    return out;
}

/* ------------------------------------------------------------------ measurements */

static void show_step(FILE *out, const cJSON *document)
{
    const cJSON *measured = text_member(document, "measured");
    char step[TEXT_SIZE], predicted[TEXT_SIZE];

    if (!known(measured, "step_us")) {
        return;
    }
    (void)fprintf(out, "  a step takes %s here (%.0f step%s)", time_of(measured, "step_us", step),
        text_number(measured, "steps"), text_s(text_number(measured, "steps")));
    if (known(document, "predicted_us")) {
        (void)fprintf(out, ", the prediction was %s", time_of(document, "predicted_us", predicted));
    }
    (void)fprintf(out, "\n");
}

static void show_link(FILE *out, const cJSON *document)
{
    const cJSON *measured = text_member(document, "measured");
    char text[TEXT_SIZE];

    if (known(measured, "link_bytes_s")) {
        (void)fprintf(out, "  the link carries %s/s",
            text_bytes(text_number(measured, "link_bytes_s"), text));
        (void)fprintf(out, ", round trip %s\n", time_of(measured, "round_trip_us", text));
    }
    if (known(measured, "gamma")) {
        (void)fprintf(out, "  a sum has %.3g times the entries of a contribution\n",
            text_number(measured, "gamma"));
    }
}

static void show_known(FILE *out, const cJSON *document)
{
    char text[TEXT_SIZE];

    if (!text_true(document, "automatic")) {
        (void)fprintf(out,
            "  no plan to choose: \"sparsifier\" and \"sparse_collective\" are not \"auto\"\n");
        return;
    }
    if (!text_true(document, "replan")) {
        (void)fprintf(out, "  the plan stays as it is: \"replan\" is false\n");
    }
    if (text_string(document, "why", TEXT_SIZE / 2, text)[0] != '\0') {
        (void)fprintf(out, "  ");
        text_fill(out, 2, 4, text);
    }
    show_step(out, document);
    show_link(out, document);
    if (text_number(document, "node") != text_number(document, "coordinator")) {
        (void)fprintf(out, "  node %.0f decides, and shows the other plans\n",
            text_number(document, "coordinator"));
    }
}

/* ------------------------------------------------------------------ tables */

static void show_candidates(FILE *out, const cJSON *document)
{
    const cJSON *candidates = text_member(document, "candidates");
    const cJSON *candidate;
    char text[TEXT_SIZE];

    if (cJSON_GetArraySize(candidates) == 0) {
        return;
    }
    (void)fprintf(
        out, "\n  %-34s%10s%11s%11s%10s\n", "plans", "buckets", "predicted", "measured", "bytes");
    cJSON_ArrayForEach(candidate, candidates)
    {
        (void)fprintf(out, "%s ", text_true(candidate, "in_force") ? "*" : " ");
        text_column(out, candidate, "name", 34);
        (void)fprintf(out, "%10s", text_bytes(text_number(candidate, "bucket_bytes"), text));
        (void)fprintf(out, "%11s", time_of(candidate, "predicted_us", text));
        (void)fprintf(out, "%11s", time_of(candidate, "measured_us", text));
        (void)fprintf(out, "%10s\n", text_bytes(text_number(candidate, "bytes"), text));
    }
}

static void show_plan_tensor(FILE *out, const cJSON *tensor)
{
    double count = text_number(tensor, "count");
    char text[TEXT_SIZE];

    text_column(out, tensor, "name", 26);
    (void)fprintf(out, "%9s  ", text_count(text_number(tensor, "elements"), text));
    text_column(out, tensor, "choice", 12);
    (void)fprintf(out, "%8s", count > 0 ? text_count(count, text) : "all");
    (void)fprintf(out, "%12s", time_of(tensor, "arrival_us", text));
    (void)fprintf(out, "%8.0f\n", text_number(tensor, "bucket"));
}

static void show_all(FILE *out, const cJSON *document)
{
    const cJSON *tensors = text_member(document, "tensors");
    const cJSON *tensor;
    double first = text_number(document, "first");
    double omitted = text_number(document, "tensors_omitted");

    if (cJSON_GetArraySize(tensors) == 0 && first == 0) {
        return; /* the ranks have not committed any */
    }
    (void)fputc('\n', out);
    if (show_is_beyond(out, document)) {
        return;
    }
    (void)fprintf(out, "%-26s%9s  %-12s%8s%12s%8s\n", "tensor", "elements", "choice", "per turn",
        "ready after", "bucket");
    cJSON_ArrayForEach(tensor, tensors)
    {
        show_plan_tensor(out, tensor);
    }
    if (omitted > 0) {
        (void)fprintf(
            out, "and %.0f more (--first %.0f)\n", omitted, first + cJSON_GetArraySize(tensors));
    }
}

void show_plan(FILE *out, const cJSON *document)
{
    char plan[TEXT_SIZE];

    text_job(out, document);
    if (text_string(document, "plan", 40, plan)[0] == '\0') {
        (void)fprintf(out, ": no plan%s\n", text_true(document, "automatic") ? " yet" : "");
    } else {
        (void)fprintf(out, ": plan %s\n", plan);
    }
    show_known(out, document);
    show_candidates(out, document);
    show_all(out, document);
}
