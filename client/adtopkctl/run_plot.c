/*
 * Happy path: `plan` finds the one job that is meant. Then, until the time is over, `stats` and
 * `plan` are asked at equal distances. Sometimes `verify` goes before, which reads the residuals.
 * Each answer is compared with the one before, and the points become a plot.
 *
 * Failures: a job that ends, or a daemon that goes away, ends the sampling; two answers are needed
 * for a plot. If the daemon went away the exit status tells it, and the plot has what came before.
 * Residuals are left out where the caller may not verify.
 */
#include "client/adtopkctl/run_plot.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/adtopkctl/plot.h"
#include "client/adtopkctl/save.h"
#include "client/adtopkctl/text.h"

#define POINTS_MAX 121
#define INTERVAL_S 0.25 /* at least, between two questions */
#define READINGS 8      /* of residuals */

struct points {
    size_t count;
    double time[POINTS_MAX]; /* seconds since the first answer */
    double density[POINTS_MAX], sent[POINTS_MAX], residual[POINTS_MAX];
    double step[POINTS_MAX], measured[POINTS_MAX], predicted[POINTS_MAX];
};

/* The job, and what it said the last time. */
struct watched {
    const struct options *options;
    char name[TEXT_SIZE]; /* UID:NAME/RUN */
    struct answer before;
    double began_s;      /* the daemon's clock at the first answer */
    double node;         /* the daemon's */
    bool residuals;      /* the caller may read them */
    bool any_residual;   /* they were read before */
    enum exit_code lost; /* why answers ended, unless the job did */
};

/* NAN if it is null or missing. */
static double plot_number(const cJSON *object, const char *name)
{
    const cJSON *item = text_member(object, name);

    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

static const cJSON *plot_job(const cJSON *document)
{
    const cJSON *job;

    cJSON_ArrayForEach(job, text_member(document, "jobs"))
    {
        if (!text_is_over(job)) {
            return job;
        }
    }
    return NULL;
}

/* ------------------------------------------------------------------ questions */

static enum exit_code plot_ask_stats(const struct watched *watched, struct answer *answer)
{
    struct question question;

    question_begin(&question, COMMAND_STATS, watched->name, watched->options);
    question.body.stats.no_tensors = true;
    return run_ask(watched->options, &question, answer);
}

static enum exit_code plot_ask_plan(
    const struct options *options, const char *job, struct answer *answer)
{
    struct question question;

    question_begin(&question, COMMAND_PLAN, job, options);
    question.body.plan.first = UINT32_MAX; /* no tensors */
    return run_ask(options, &question, answer);
}

static bool plot_verify(const struct watched *watched)
{
    struct question question;
    struct answer answer;
    bool good;

    question_begin(&question, COMMAND_VERIFY, watched->name, watched->options);
    good = run_ask_for(watched->any_residual ? "the plot has no more of the residual: "
                                             : "the plot is without the residual: ",
               watched->options, &question, &answer) == EXIT_OK;
    run_answer_free(&answer);
    return good;
}

/* ------------------------------------------------------------------ points */

static double plot_grown(const cJSON *before, const cJSON *after, const char *name)
{
    return plot_number(after, name) - plot_number(before, name);
}

static void plot_add(struct points *points, struct watched *watched, const cJSON *stats,
    const cJSON *plan, bool verified)
{
    const cJSON *before = plot_job(watched->before.document), *after = plot_job(stats);
    const double seconds = plot_grown(watched->before.document, stats, "clock_s");
    const double steps = plot_grown(before, after, "steps");
    const size_t i = points->count++;

    points->time[i] = plot_number(stats, "clock_s") - watched->began_s;
    points->sent[i] = plot_grown(before, after, "wire_bytes_sent") / seconds;
    points->density[i] = steps > 0 && text_number(after, "sparse_elements") > 0
                             ? plot_grown(before, after, "nonzeros_sent") /
                                   (text_number(after, "sparse_elements") * steps)
                             : NAN;
    points->step[i] = steps > 0 ? seconds / steps : NAN;
    points->measured[i] = plot_number(text_member(plan, "measured"), "step_us") * 1e-6;
    points->predicted[i] = plot_number(plan, "predicted_us") * 1e-6;
    points->residual[i] = verified ? plot_number(after, "residual_mean") : NAN;
}

/* False once the job has ended, or the daemon has gone. reading: of the residuals, too. */
static bool plot_sample(struct points *points, struct watched *watched, bool reading)
{
    struct answer stats = {.text = NULL}, plan = {.text = NULL};
    const bool verified = reading && watched->residuals && plot_verify(watched);
    enum exit_code code = plot_ask_stats(watched, &stats);
    bool good = code == EXIT_OK && plot_job(stats.document) != NULL;

    if (good) {
        code = plot_ask_plan(watched->options, watched->name, &plan);
        good = code == EXIT_OK;
    }
    watched->lost = code != EXIT_FAILED ? code : EXIT_OK; /* the daemon answers: the job is over */
    if (good) {
        plot_add(points, watched, stats.document, plan.document, verified);
        run_answer_free(&watched->before);
        watched->before = stats;
        stats = (struct answer){.text = NULL};
    }
    watched->residuals = watched->residuals && (verified || !reading);
    watched->any_residual = watched->any_residual || verified;
    run_answer_free(&stats);
    run_answer_free(&plan);
    return good;
}

static void plot_watch(struct points *points, struct watched *watched)
{
    const double seconds = watched->options->seconds;
    const double interval_s = fmax(INTERVAL_S, seconds / (POINTS_MAX - 1));
    const size_t wanted = (size_t)fmax(1, floor(seconds / interval_s + 0.5));
    const size_t every = wanted > READINGS ? wanted / READINGS : 1;
    bool goes_on = true;

    while (goes_on && points->count < wanted && points->count < POINTS_MAX) {
        run_rest(interval_s);
        goes_on = plot_sample(points, watched, points->count % every == 0);
    }
}

/* ------------------------------------------------------------------ the picture */

static void plot_draw(FILE *file, const void *plot)
{
    plot_print(file, plot);
}

static enum exit_code plot_save(const struct options *options, const struct plot *plot)
{
    const char *path = options->value[OPTION_OUT];
    struct error err = {.code = ADTOPK_OK};

    if (path != NULL) {
        return save_file(path, plot_draw, plot, &err) == ADTOPK_OK ? EXIT_OK
                                                                   : run_failed(&err, false);
    }
    plot_print(stdout, plot);
    return run_flushed(EXIT_OK);
}

static bool plot_knows(const struct points *points, const double *y)
{
    size_t i = 0;

    while (i < points->count && isnan(y[i])) {
        i++;
    }
    return i < points->count;
}

static enum exit_code plot_finish(const struct points *points, const struct watched *watched)
{
    const struct plot_panel panels[] = {
        {.title = "Density: entries sent per element of sparse tensors",
            .unit = PLOT_SHARE,
            .line = {{"density", points->density}},
            .empty = "nothing was sent sparse"},
        {.title = "Bytes sent by this node",
            .unit = PLOT_RATE,
            .line = {{"sent", points->sent}},
            .empty = "not known"},
        {.title = "Residual: mean magnitude of its elements on this node",
            .unit = PLOT_NUMBER,
            .line = {{"residual", points->residual}},
            .empty = watched->residuals ? "nothing was sent sparse" : "it could not be read"},
        {.title = "Time of a step, and the planner's part of it",
            .unit = PLOT_DURATION,
            .line = {{"whole step", points->step},
                {plot_knows(points, points->measured) ? "measured" : "not measured",
                    points->measured},
                {plot_knows(points, points->predicted) ? "predicted" : "no prediction",
                    points->predicted}},
            .empty = "there was no step"},
    };
    char title[TEXT_SIZE + 16], subtitle[TEXT_SIZE], date[32] = "";
    const time_t now = time(NULL);
    struct tm local;
    const struct plot plot = {.title = title,
        .subtitle = subtitle,
        .x = points->time,
        .count = points->count,
        .panel = panels,
        .panels = sizeof(panels) / sizeof(panels[0])};

    if (localtime_r(&now, &local) != NULL) {
        (void)strftime(date, sizeof(date), "%Y-%m-%d %H:%M:%S", &local);
    }
    (void)snprintf(title, sizeof(title), "adtopk job %s", watched->name);
    (void)snprintf(subtitle, sizeof(subtitle), "The %.3g s until %s, as node %.0f saw them",
        points->time[points->count - 1], date, watched->node);
    return plot_save(watched->options, &plot);
}

/* The name by which exactly this job is found from now on. */
static enum exit_code plot_find(struct watched *watched)
{
    struct answer plan;
    enum exit_code code = plot_ask_plan(watched->options, watched->options->argument[0], &plan);
    const cJSON *name = text_member(plan.document, "name");
    const cJSON *run = text_member(plan.document, "run_id");

    if (code == EXIT_OK && cJSON_IsString(name) && cJSON_IsString(run)) {
        (void)snprintf(watched->name, sizeof(watched->name), "%.0f:%.200s/%.200s",
            text_number(plan.document, "owner"), name->valuestring, run->valuestring);
        watched->node = text_number(plan.document, "node");
    }
    run_answer_free(&plan);
    return code == EXIT_OK ? plot_ask_stats(watched, &watched->before) : code;
}

enum exit_code run_plot(const struct options *options)
{
    struct watched watched = {.options = options, .residuals = true};
    struct points *points = calloc(1, sizeof(*points));
    enum exit_code code = EXIT_FAILED;

    if (points == NULL) {
        run_complain("no memory for the plot");
        return code;
    }
    code = plot_find(&watched);
    if (code == EXIT_OK) {
        watched.began_s = plot_number(watched.before.document, "clock_s");
        plot_watch(points, &watched);
        if (points->count > 0) {
            code = plot_finish(points, &watched);
        } else if (watched.lost == EXIT_OK) {
            run_complain("the job ended before there was anything to plot");
            code = EXIT_UNKNOWN;
        }
        code = code == EXIT_OK ? watched.lost : code;
    }
    run_answer_free(&watched.before);
    free(points);
    return code;
}
