/* ranks. */
#include <stdlib.h>

#include "client/adtopkctl/show.h"
#include "client/adtopkctl/text.h"

/* "-" if nothing was measured. */
static const char *show_ranks_late(const cJSON *rank, const char *name, char out[TEXT_SIZE])
{
    return cJSON_IsNumber(text_member(rank, name)) ? text_time(text_number(rank, name), out) : "-";
}

static const char *show_ranks_doing(const cJSON *rank)
{
    if (!text_is(rank, "state", "ready")) {
        return NULL;
    }
    return text_true(rank, "ended")    ? "ended the step"
           : text_true(rank, "pushed") ? "pushes"
                                       : "computes";
}

/* "-" for a daemon that does not tell it. */
static const char *show_ranks_node(const cJSON *rank, char out[TEXT_SIZE])
{
    if (!cJSON_IsNumber(text_member(rank, "node"))) {
        return "-";
    }
    (void)snprintf(out, TEXT_SIZE, "%.0f", text_number(rank, "node"));
    return out;
}

/* The last step in which a rank has pushed; negative: none has. */
static double show_ranks_pushed(const cJSON *ranks)
{
    const cJSON *rank;
    double step = -1;

    cJSON_ArrayForEach(rank, ranks)
    {
        if (text_true(rank, "pushed") && text_number(rank, "step") > step) {
            step = text_number(rank, "step");
        }
    }
    return step;
}

/* Whether it still computes in a step for which others have pushed: how late it is, nobody knows
 * yet, and a number of the step before would look like it. */
static bool show_ranks_is_open(const cJSON *rank, double pushed)
{
    return text_is(rank, "state", "ready") && !text_true(rank, "pushed") &&
           !text_true(rank, "ended") && text_number(rank, "step") <= pushed;
}

static void show_ranks_rank(struct table *table, const cJSON *rank, double pushed)
{
    const char *last = show_ranks_is_open(rank, pushed) ? "" : "late_last_us";
    const char *doing = show_ranks_doing(rank);
    char text[TEXT_SIZE];

    table_add(table, rank);
    show_count(table, rank, "rank");
    table_number(table, show_ranks_node(rank, text), text_number(rank, "node"));
    table_number(table, text_pid(rank, text), text_number(rank, "pid"));
    show_count(table, rank, "step");
    table_text(table, doing != NULL ? doing : text_string(rank, "state", TEXT_SIZE, text));
    table_number(table, show_ranks_late(rank, "late_us", text), text_number(rank, "late_us"));
    table_number(table, show_ranks_late(rank, last, text), text_number(rank, last));
}

const struct table_column show_ranks_columns[SHOW_RANKS_COLUMNS] = {
    {.title = "rank", .right = true}, {.title = "node", .right = true},
    {.title = "process", .right = true}, {.title = "step", .right = true}, {.title = "state"},
    {.title = "mean late", .right = true}, {.title = "last late", .right = true}};

/* The nodes whose ranks are missing. */
static void show_ranks_silent(FILE *out, const cJSON *document)
{
    const cJSON *node;

    cJSON_ArrayForEach(node, text_member(document, "others"))
    {
        if (!text_true(node, "answered")) {
            (void)fprintf(
                out, "node %.0f did not tell about its ranks\n", text_number(node, "node"));
        }
    }
    if (text_number(document, "ranks_omitted") > 0) {
        (void)fprintf(out, "and %.0f more\n", text_number(document, "ranks_omitted"));
    }
}

static int show_ranks_order(const void *one, const void *other)
{
    const double a = text_number(*(const cJSON *const *)one, "rank");
    const double b = text_number(*(const cJSON *const *)other, "rank");

    return a < b ? -1 : a > b;
}

/* In the order of their numbers, whichever node was asked; without memory as they come. */
void show_ranks_rows(struct table *table, const cJSON *ranks)
{
    const int count = cJSON_GetArraySize(ranks);
    const cJSON **list = malloc(((size_t)count + 1) * sizeof(*list));
    const double pushed = show_ranks_pushed(ranks);
    const cJSON *rank;
    size_t at = 0;

    cJSON_ArrayForEach(rank, ranks)
    {
        if (list != NULL) {
            list[at++] = rank;
        } else {
            show_ranks_rank(table, rank, pushed);
        }
    }
    if (list != NULL) {
        qsort(list, at, sizeof(*list), show_ranks_order);
    }
    for (size_t i = 0; i < at; i++) {
        show_ranks_rank(table, list[i], pushed);
    }
    free(list);
}

void show_ranks(FILE *out, const cJSON *document)
{
    const cJSON *ranks = text_member(document, "ranks");
    const double all = text_number(document, "world_size");
    struct table table;
    char user[TEXT_SIZE];

    text_job(out, document);
    (void)fprintf(out, ": %d of %.0f rank%s, ", cJSON_GetArraySize(ranks), all, text_s(all));
    if (text_member(document, "others") == NULL) {
        (void)fprintf(out, "on node %.0f, ", text_number(document, "node"));
    }
    (void)fprintf(out, "of user %s\n", text_user(text_number(document, "owner"), 32, user));
    table_begin(&table, show_ranks_columns, SHOW_RANKS_COLUMNS);
    show_ranks_rows(&table, ranks);
    show_table(out, &table);
    table_free(&table);
    show_ranks_silent(out, document);
}
