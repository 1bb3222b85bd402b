/* stats, and the rates between two of them. */
#include <string.h>

#include "client/adtopkctl/show.h"
#include "client/adtopkctl/text.h"

static void show_volume(FILE *out, const cJSON *job)
{
    char wire[TEXT_SIZE];
    char payload[TEXT_SIZE];
    char dense[TEXT_SIZE];
    double sent = text_number(job, "wire_bytes_sent");

    (void)fprintf(out, "  sent        %s on the wire, %s of payload\n", text_bytes(sent, wire),
        text_bytes(text_number(job, "payload_bytes"), payload));
    (void)fprintf(out, "  dense f32   %s would be one rank's gradients",
        text_bytes(text_number(job, "dense_bytes"), dense));
    if (sent > 0) {
        (void)fprintf(out, ", %.1f times as much", text_number(job, "dense_bytes") / sent);
    }
    (void)fprintf(out, "\n");
    if (text_number(job, "nonzeros_sent") > 0) {
        (void)fprintf(out, "  sparse      %.0f non-zero%s in %s, %.1f bits each\n",
            text_number(job, "nonzeros_sent"), text_s(text_number(job, "nonzeros_sent")),
            text_bytes(text_number(job, "sparse_bytes_sent"), payload),
            text_number(job, "bits_per_nonzero"));
    }
}

static void show_phases(FILE *out, const cJSON *job)
{
    const cJSON *phase;
    unsigned shown = 0;
    char name[TEXT_SIZE], time[TEXT_SIZE];

    (void)fprintf(out, "  time        ");
    cJSON_ArrayForEach(phase, text_member(job, "phase_seconds"))
    {
        const char *between = shown == 0 ? "" : shown % 3 == 0 ? ",\n              " : ", ";

        if (cJSON_IsNumber(phase) && phase->string != NULL) {
            (void)fprintf(out, "%s%s %s", between, text_clean(phase->string, 10, name),
                text_time(phase->valuedouble * 1e6, time));
            shown++;
        }
    }
    (void)fprintf(out, "\n");
}

/* The checkpoint that an operator asked for, and whether the ranks have saved it. */
static void show_checkpoint(FILE *out, const cJSON *job)
{
    const cJSON *due = text_member(job, "checkpoint_due");
    const cJSON *read = text_member(job, "checkpoint_read");
    const cJSON *saved = text_member(job, "checkpoint_saved");

    if (cJSON_IsNumber(due) || cJSON_IsNumber(read)) {
        (void)fprintf(out, "  checkpoint  ");
    }
    if (cJSON_IsNumber(due)) {
        (void)fprintf(out, "asked for after step %.0f%s", due->valuedouble,
            cJSON_IsNumber(read) ? "; " : ", no residuals were read yet\n");
    }
    if (cJSON_IsNumber(read)) {
        const bool whole = cJSON_IsNumber(saved) && saved->valuedouble == read->valuedouble;

        (void)fprintf(
            out, "%s after step %.0f\n", whole ? "saved" : "residuals read", read->valuedouble);
    }
}

void show_checkpoint_ask(FILE *out, const cJSON *document)
{
    text_job(out, document);
    (void)fprintf(out, ": its ranks %s a checkpoint after step %.0f\n",
        text_true(document, "saved") ? "have saved" : "are told to save",
        text_number(document, "step"));
}

static void show_stats_job(FILE *out, const cJSON *job)
{
    const double tensors = text_number(job, "tensors"), buckets = text_number(job, "buckets");
    const double elements = text_number(job, "elements");
    char state[TEXT_SIZE];

    text_job(out, job);
    (void)fprintf(out, ", %s\n", text_string(job, "state", 12, state));
    (void)fprintf(out, "  steps       %.0f, %.0f of them withdrawn\n", text_number(job, "steps"),
        text_number(job, "steps_withdrawn"));
    (void)fprintf(out, "  rounds      %.0f, %.0f of them repeated\n", text_number(job, "rounds"),
        text_number(job, "rounds_retried"));
    (void)fprintf(out, "  tensors     %.0f in %.0f bucket%s, %.0f element%s\n", tensors, buckets,
        text_s(buckets), elements, text_s(elements));
    show_checkpoint(out, job);
    show_volume(out, job);
    show_phases(out, job);
    (void)fputc('\n', out);
}

/* Whether some job has not ended. */
static bool show_stats_any_present(const cJSON *jobs)
{
    const cJSON *job;

    cJSON_ArrayForEach(job, jobs)
    {
        if (!text_is_over(job)) {
            return true;
        }
    }
    return false;
}

/* Jobs that have ended are shown only if the user named them, and none of the name goes on. */
void show_stats(FILE *out, const cJSON *document)
{
    const cJSON *jobs = text_member(document, "jobs");
    const cJSON *links = text_member(document, "links");
    const bool named = show_is_named();
    const bool all = named && !show_stats_any_present(jobs);
    const cJSON *job;
    unsigned ended = 0;

    cJSON_ArrayForEach(job, jobs)
    {
        if (all || !text_is_over(job)) {
            show_stats_job(out, job);
        } else {
            ended++;
        }
    }
    if (ended > 0 && named) {
        (void)fprintf(out, "%u other run%s of it ended: --json has them\n\n", ended, text_s(ended));
    } else if (ended > 0) {
        (void)fprintf(out, "%u job%s ended: adtopkctl stats NAME shows %s\n\n", ended,
            text_s(ended), ended == 1 ? "it" : "them");
    } else if (cJSON_GetArraySize(jobs) == 0) {
        (void)fprintf(out, "no jobs\n\n");
    }
    if (cJSON_GetArraySize(links) > 0) {
        show_peers_table(out, links);
    }
}

/* ------------------------------------------------------------------ rates */

static const char *const phases[] = {"collect", "select", "exchange", "reduce", "settle"};

#define PHASES (sizeof(phases) / sizeof(phases[0]))

void show_rates_header(FILE *out)
{
    (void)fprintf(out, "%-15s%8s%11s%8s   ms per step:\n", "", "", "", "");
    (void)fprintf(out, "%-15s%8s%11s%8s%8s%7s%9s%7s%7s\n", "job", "steps/s", "wire/s", "density",
        phases[0], phases[1], phases[2], phases[3], phases[4]);
}

bool show_is_same_job(const cJSON *one, const cJSON *other)
{
    char name[TEXT_SIZE];
    char run[TEXT_SIZE];

    return text_is(one, "name", text_string(other, "name", TEXT_SIZE, name)) &&
           text_is(one, "run_id", text_string(other, "run_id", TEXT_SIZE, run)) &&
           text_number(one, "owner") == text_number(other, "owner");
}

/* The same job in another document; NULL if it is not there. */
static const cJSON *show_stats_find_job(const cJSON *document, const cJSON *job)
{
    const cJSON *other;

    cJSON_ArrayForEach(other, text_member(document, "jobs"))
    {
        if (show_is_same_job(other, job)) {
            return other;
        }
    }
    return NULL;
}

static double grown(const cJSON *before, const cJSON *after, const char *name)
{
    return text_number(after, name) - text_number(before, name);
}

/* Entries sent per element of sparse tensors and step; negative: no such tensor, or no step. */
static double density(const cJSON *before, const cJSON *after, double steps)
{
    double elements = text_number(after, "sparse_elements");

    return elements > 0 && steps > 0 ? grown(before, after, "nonzeros_sent") / (elements * steps)
                                     : -1;
}

static void show_rate(FILE *out, const cJSON *before, const cJSON *after, double seconds)
{
    static const int widths[PHASES] = {8, 7, 9, 7, 7};
    double steps = grown(before, after, "steps");
    double sent = density(before, after, steps);
    char text[TEXT_SIZE];
    char rate[TEXT_SIZE];

    text_column(out, after, "name", 15);
    (void)snprintf(rate, sizeof(rate), "%s/s",
        text_bytes(grown(before, after, "wire_bytes_sent") / seconds, text));
    (void)fprintf(out, "%8.1f%11s", steps / seconds, rate);
    if (sent >= 0) {
        (void)fprintf(out, "%7.3g%%", 100 * sent);
    } else {
        (void)fprintf(out, "%8s", "-");
    }
    for (size_t i = 0; i < PHASES; i++) {
        double spent = grown(
            text_member(before, "phase_seconds"), text_member(after, "phase_seconds"), phases[i]);

        if (steps > 0) {
            (void)fprintf(out, "%*.2f", widths[i], 1000 * spent / steps);
        } else {
            (void)fprintf(out, "%*s", widths[i], "-");
        }
    }
    (void)fprintf(out, "\n");
}

void show_rates(FILE *out, const cJSON *before, const cJSON *after)
{
    double seconds = grown(before, after, "clock_s");
    const cJSON *job;
    bool any = false;

    cJSON_ArrayForEach(job, text_member(after, "jobs"))
    {
        const cJSON *earlier = show_stats_find_job(before, job);

        /* A job that has begun anew meanwhile has fewer steps: the next interval shows it. */
        if (earlier != NULL && seconds > 0 && grown(earlier, job, "steps") >= 0 &&
            !text_is_over(job)) {
            show_rate(out, earlier, job, seconds);
            any = true;
        }
    }
    if (!any) {
        (void)fprintf(out, "no jobs\n");
    }
}
