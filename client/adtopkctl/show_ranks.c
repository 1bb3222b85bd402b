/* ranks. */
#include "client/adtopkctl/show.h"
#include "client/adtopkctl/text.h"

/* Microseconds in three digits: "85 us", "1.25 ms"; "-" if nothing was measured. */
static const char *show_ranks_late(const cJSON *rank, const char *name, char out[TEXT_SIZE])
{
    const double us = text_number(rank, name);

    if (!cJSON_IsNumber(text_member(rank, name))) {
        return "-";
    }
    (void)snprintf(out, TEXT_SIZE,
        us < 1000  ? "%.0f us"
        : us < 1e6 ? "%.3g ms"
                   : "%.3g s",
        us < 1000  ? us
        : us < 1e6 ? us / 1000
                   : us / 1e6);
    return out;
}

static const char *show_ranks_doing(const cJSON *rank)
{
    if (!text_is(rank, "state", "ready")) {
        return NULL;
    }
    return text_true(rank, "ended")    ? "has ended it"
           : text_true(rank, "pushed") ? "pushes"
                                       : "computes";
}

static void show_ranks_rank(FILE *out, const cJSON *rank)
{
    const char *doing = show_ranks_doing(rank);
    char text[TEXT_SIZE];

    (void)fprintf(out, "%6.0f%10s%12.0f  ", text_number(rank, "rank"), text_pid(rank, text),
        text_number(rank, "step"));
    text_pad(out, doing != NULL ? doing : text_string(rank, "state", 14, text), 14);
    (void)fprintf(out, "%11s", show_ranks_late(rank, "late_us", text));
    (void)fprintf(out, "%11s\n", show_ranks_late(rank, "late_last_us", text));
}

void show_ranks(FILE *out, const cJSON *document)
{
    const cJSON *ranks = text_member(document, "ranks");
    const cJSON *rank;
    char user[TEXT_SIZE];

    text_job(out, document);
    (void)fprintf(out, ": %d of %.0f ranks, on node %.0f, of user %s\n", cJSON_GetArraySize(ranks),
        text_number(document, "world_size"), text_number(document, "node"),
        text_user(text_number(document, "owner"), 32, user));
    (void)fprintf(out, "%6s%10s%12s  %-14s%11s%11s\n", "rank", "process", "step", "state",
        "mean late", "last late");
    cJSON_ArrayForEach(rank, ranks)
    {
        show_ranks_rank(out, rank);
    }
}
