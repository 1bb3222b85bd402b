/*
 * regret-run: steps of one policy on a modelled cluster; prints one line of JSON. Or measures what
 * computes take.
 */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/regret/cluster.h"
#include "tests/sim/regret/measuring.h"

#define LINE_SIZE 256

struct settings {
    bool measures;
    const char *model, *arrivals, *costs, *policy;
    double nodes, workers, elements, pass_ms, gbit, latency_us, overhead, density;
    double settle, still, warmup, turns;
};

enum { MEASURE, MODEL, ARRIVALS, COSTS, POLICY, HELP, TEXTS };

/* Numbers that can be set, with their ranges. */
static const struct setting {
    const char *name;
    size_t at;
    bool whole;
    double least, most;
    const char *help;
} table[] = {
#define SETTING(name, field, whole, least, most, help)                                             \
    {                                                                                              \
        name, offsetof(struct settings, field), whole, least, most, help                           \
    }
    SETTING("nodes", nodes, true, 2, CLUSTER_NODES, "nodes, one rank each [4]"),
    SETTING("workers", workers, true, 1, 256, "worker threads of a node [4]"),
    SETTING("elements", elements, true, 1, 1e9, "of the gradient, about [4e6]"),
    SETTING("pass-ms", pass_ms, false, 0, 60000, "within which gradients become ready [50]"),
    SETTING("gbit", gbit, false, 0.001, 1e5, "of a node's link [10]"),
    SETTING("latency-us", latency_us, false, 0, 1e6, "from node to node [20]"),
    SETTING("overhead", overhead, true, 0, 10000, "bytes a packet takes beside its own [120]"),
    SETTING("density", density, false, 1e-6, 1, "that is measured [0.01]"),
    SETTING("settle", settle, true, 0, 100000, "most steps until the plan holds [0]"),
    SETTING("still", still, true, 1, 100000, "steps that a plan has held then [60]"),
    SETTING("warmup", warmup, true, 0, 10000, "steps after that [2]"),
    SETTING("turns", turns, true, 1, 10000, "steps that are told [5]"),
};
#define SETTINGS (sizeof(table) / sizeof(table[0]))

static void help(void)
{
    (void)printf("Usage: regret-run --model=NAME --arrivals=FILE --costs=FILE --policy=JSON "
                 "[--OPTION=NUMBER]...\n"
                 "       regret-run --measure    prints what computes take on this machine\n\n"
                 "Steps of one policy on a modelled cluster, in virtual time.\n\n");
    for (size_t i = 0; i < SETTINGS; i++) {
        (void)printf("  --%-12s %s\n", table[i].name, table[i].help);
    }
}

static bool set(struct settings *settings, const struct setting *setting, const char *text)
{
    char *end;
    double number = strtod(text, &end);

    if (end == text || *end != '\0' || !(number >= setting->least && number <= setting->most) ||
        (setting->whole && number != floor(number))) {
        (void)fprintf(stderr, "regret-run: --%s: \"%s\" is no %snumber from %g to %g\n",
            setting->name, text, setting->whole ? "whole " : "", setting->least, setting->most);
        return false;
    }
    (void)memcpy((char *)settings + setting->at, &number, sizeof(number));
    return true;
}

static void set_text(struct settings *settings, int which)
{
    switch (which) {
    case MEASURE: settings->measures = true; break;
    case MODEL: settings->model = optarg; break;
    case ARRIVALS: settings->arrivals = optarg; break;
    case COSTS: settings->costs = optarg; break;
    case POLICY: settings->policy = optarg; break;
    default: help(); exit(0);
    }
}

static bool parse(struct settings *settings, int argc, char **argv)
{
    struct option options[TEXTS + SETTINGS + 1] = {[MEASURE] = {.name = "measure"},
        [MODEL] = {.name = "model", .has_arg = 1},
        [ARRIVALS] = {.name = "arrivals", .has_arg = 1},
        [COSTS] = {.name = "costs", .has_arg = 1},
        [POLICY] = {.name = "policy", .has_arg = 1},
        [HELP] = {.name = "help"}};
    int at;

    for (size_t i = 0; i < SETTINGS; i++) {
        options[TEXTS + i] = (struct option){.name = table[i].name, .has_arg = 1};
    }
    for (int found; (found = getopt_long(argc, argv, "", options, &at)) != -1;) {
        if (found != 0 || (at >= TEXTS && !set(settings, &table[at - TEXTS], optarg))) {
            return false;
        }
        if (at < TEXTS) {
            set_text(settings, at);
        }
    }
    if (optind < argc ||
        (!settings->measures && (settings->model == NULL || settings->arrivals == NULL ||
                                    settings->costs == NULL || settings->policy == NULL))) {
        (void)fprintf(stderr, "regret-run: %s (see --help)\n",
            optind < argc ? "options only"
                          : "--model, --arrivals, --costs and --policy are needed");
        return false;
    }
    return true;
}

/* ------------------------------------------------------------------ arrivals */

/* Takes the tensor of this name out of `given`, whose names become empty. */
static bool take_tensor(struct shapes *given, const char *name, struct model_tensor *tensor)
{
    for (unsigned t = 0; name[0] != '\0' && t < given->count; t++) {
        if (strcmp(given->tensor[t].name, name) == 0) {
            *tensor = given->tensor[t];
            given->tensor[t].name[0] = '\0';
            return true;
        }
    }
    return false;
}

/* Puts tensors into the order of the recorded pass: lines NAME,SHARE behind comments and names of
 * columns. */
static bool read_arrivals(
    const struct settings *settings, FILE *file, struct shapes *shapes, uint64_t *at_ns)
{
    struct shapes given = *shapes;
    char line[LINE_SIZE], name[MODELS_NAME_SIZE];
    unsigned count = 0;
    double share;

    while (fgets(line, sizeof(line), file) != NULL) {
        if (line[0] == '#' || strcmp(line, "tensor,at\n") == 0) {
            continue;
        }
        if (sscanf(line, "%47[^,],%lf", name, &share) != 2 || !(share >= 0 && share <= 1) ||
            count == shapes->count || !take_tensor(&given, name, &shapes->tensor[count])) {
            return false;
        }
        at_ns[count] = (uint64_t)llround(share * settings->pass_ms * 1e6);
        if (count > 0 && at_ns[count] < at_ns[count - 1]) {
            return false;
        }
        count++;
    }
    return count == shapes->count;
}

static struct shapes *tensors_of(
    const struct settings *settings, uint64_t *at_ns, struct error *err)
{
    struct shapes *shapes = shapes_new(settings->model, (uint64_t)settings->elements);
    FILE *file = fopen(settings->arrivals, "r");
    bool good = false;

    if (shapes == NULL) {
        (void)error_set(err, ADTOPK_ERR_ARGUMENT, "no memory, or no model \"%s\"", settings->model);
    } else if (file == NULL) {
        (void)error_set(err, ADTOPK_ERR_ARGUMENT, "%s: %s", settings->arrivals, strerror(errno));
    } else {
        good = read_arrivals(settings, file, shapes, at_ns);
        if (!good) {
            (void)error_set(err, ADTOPK_ERR_ARGUMENT, "%s is no recorded pass of %s",
                settings->arrivals, settings->model);
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    if (!good) {
        free(shapes);
        return NULL;
    }
    return shapes;
}

/* ------------------------------------------------------------------ steps */

/* Steps until the plan has held for some. */
static bool settle(struct cluster *cluster, const struct settings *settings, struct error *err)
{
    char *plan = calloc(1, CHOICES_TEXT_SIZE);
    unsigned steps = 0, since = 0, plans = 0;
    double us, spent = 0;
    bool done = plan != NULL;

    while (done && steps < settings->settle && steps - since < settings->still) {
        done = cluster_step(cluster, &us, err);
        spent += done ? us : 0;
        steps++;
        if (done && strcmp(plan, cluster_plan(cluster)) != 0) {
            (void)strcpy(plan, cluster_plan(cluster));
            since = steps;
            plans++;
        }
    }
    if (done) {
        (void)printf("\"settled\":{\"steps\":%u,\"plans\":%u,\"held\":%u,\"ms\":%.9g,"
                     "\"plan\":\"%s\"},",
            steps, plans, steps - since, 1e-3 * spent, plan);
    } else if (plan == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for a plan");
    }
    free(plan);
    return done;
}

static bool play(struct cluster *cluster, const struct settings *settings, struct error *err)
{
    bool done = true, first = true;
    double us;

    (void)printf("{");
    if (settings->settle > 0) {
        done = settle(cluster, settings, err);
    }
    (void)printf("\"ms\":[");
    for (double i = -settings->warmup; done && i < settings->turns; i++) {
        done = cluster_step(cluster, &us, err);
        if (done && i >= 0) {
            (void)printf("%s%.9g", first ? "" : ",", 1e-3 * us);
            first = false;
        }
    }
    (void)printf("],\"plan_after\":\"%s\"}\n", cluster_plan(cluster));
    return done;
}

static bool run(const struct settings *settings, struct error *err)
{
    uint64_t at_ns[SHAPES_MAX];
    struct shapes *shapes = tensors_of(settings, at_ns, err);
    struct costs costs;
    struct cluster_config config = {.nodes = (unsigned)settings->nodes,
        .workers = (unsigned)settings->workers,
        .links = {.latency = settings->latency_us * 1e-6,
            .bandwidth = settings->gbit * 1e9 / 8,
            .narrowing = 1,
            .overhead = (unsigned)settings->overhead},
        .costs = &costs,
        .shapes = shapes,
        .at_ns = at_ns,
        .policy = settings->policy};
    struct cluster *cluster = NULL;
    bool done = shapes != NULL && costs_read(&costs, settings->costs, err);

    if (done && costs.nodes != config.nodes) {
        (void)error_set(err, ADTOPK_ERR_ARGUMENT, "%s was measured among %u nodes, not %u",
            settings->costs, costs.nodes, config.nodes);
        done = false;
    }
    cluster = done ? cluster_open(&config, err) : NULL;
    done = cluster != NULL && play(cluster, settings, err);
    cluster_close(cluster);
    free(shapes);
    return done;
}

int main(int argc, char **argv)
{
    struct settings settings = {.nodes = 4,
        .workers = 4,
        .elements = 4e6,
        .pass_ms = 50,
        .gbit = 10,
        .latency_us = 20,
        .overhead = 120,
        .density = 0.01,
        .still = 60,
        .warmup = 2,
        .turns = 5};
    struct error error;
    bool done;

    if (!parse(&settings, argc, argv)) {
        return 2;
    }
    done = settings.measures ? measuring_print((unsigned)settings.nodes, settings.density,
                                   (unsigned)settings.turns, &error)
                             : run(&settings, &error);
    if (!done) {
        (void)fprintf(stderr, "regret-run: %s\n", error.text);
    }
    return done ? 0 : 1;
}
