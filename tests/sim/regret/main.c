/*
 * regret-run: steps of one policy on a modelled cluster; prints one line of JSON. Or measures what
 * computes take.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/regret/cluster.h"
#include "tests/sim/regret/measuring.h"
#include "tests/sim/settings.h"

#define LINE_SIZE 256

struct settings {
    bool measures;
    const char *model, *arrivals, *costs, *policy;
    double nodes, workers, elements, pass_ms, gbit, latency_us, overhead, density;
    double settle, still, warmup, turns;
    double slow_gbit, alternating, sampled;
};

static const char usage[] =
    "Usage: regret-run --model=NAME --arrivals=FILE --costs=FILE --policy=JSON "
    "[--OPTION=NUMBER]...\n"
    "       regret-run --measure [--OPTION=NUMBER]...\n\n"
    "Steps of one policy on a modelled cluster, in virtual time.\n";

static const struct setting table[] = {
    SETTING(
        SWITCH, "measure", measures, "prints what computes take on this machine instead", 0, 0, 0),
    SETTING(TEXT, "model", model, "whose tensors travel", 0, 0, 0),
    SETTING(TEXT, "arrivals", arrivals, "file with a recorded pass of the model", 0, 0, 0),
    SETTING(TEXT, "costs", costs, "file with what computes take", 0, 0, 0),
    SETTING(TEXT, "policy", policy, "as JSON", 0, 0, 0),
    SETTING(WHOLE, "nodes", nodes, "nodes, one rank each", 4, 2, CLUSTER_NODES),
    SETTING(WHOLE, "workers", workers, "worker threads of a node", 4, 1, 256),
    SETTING(WHOLE, "elements", elements, "of the gradient, about", 4e6, 1, 1e9),
    SETTING(NUMBER, "pass-ms", pass_ms, "within which gradients become ready", 50, 0, 60000),
    SETTING(NUMBER, "gbit", gbit, "of a node's link", 10, 0.001, 1e5),
    SETTING(NUMBER, "latency-us", latency_us, "from node to node", 20, 0, 1e6),
    SETTING(WHOLE, "overhead", overhead, "bytes a packet takes beside its own", 120, 0, 10000),
    SETTING(NUMBER, "density", density, "that is measured", 0.01, 1e-6, 1),
    SETTING(WHOLE, "settle", settle, "most steps until the plan holds", 0, 0, 100000),
    SETTING(WHOLE, "still", still, "steps that a plan has held then", 60, 1, 100000),
    SETTING(WHOLE, "warmup", warmup, "steps after that", 2, 0, 10000),
    SETTING(NUMBER, "slow-gbit", slow_gbit, "of a node's link while it is slow", 0.01, 0.001, 1e5),
    SETTING(WHOLE, "alternating", alternating,
        "steps in which the link alternates between --gbit and --slow-gbit; nothing else is told",
        0, 0, 1000000),
    SETTING(WHOLE, "sampled", sampled,
        "steps that are played each time, and count for all until the link changes; 0: all", 0, 0,
        1000000),
    SETTING(WHOLE, "turns", turns, "steps that are told", 5, 1, 10000),
};

/* ------------------------------------------------------------------ arrivals */

/* Removes the tensor of this name from `given`, whose names become empty. */
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

/* How many steps the link stays as it is: 50 to 500, the same in every run. */
static unsigned phase_steps(uint64_t *random)
{
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return 50 + (unsigned)((*random >> 33) % 451);
}

/* The result on a link that alternates. */
struct alternated {
    double spent_us[2]; /* while it was fast, while it was slow */
    unsigned phases, plans;
    char plan[CHOICES_TEXT_SIZE];
};

/* So many steps, of which all are played, or a few that count for all. */
static bool play_phase(struct cluster *cluster, const struct settings *settings, unsigned steps,
    struct alternated *all, struct error *err)
{
    unsigned most = (unsigned)settings->sampled, played = most > 0 && most < steps ? most : steps;
    unsigned slow = all->phases++ % 2;
    double us, spent = 0;

    cluster_set_bandwidth(cluster, (slow ? settings->slow_gbit : settings->gbit) * 1e9 / 8);
    for (unsigned s = 0; s < played; s++) {
        if (!cluster_step(cluster, &us, err)) {
            return false;
        }
        spent += us;
        if (strcmp(all->plan, cluster_plan(cluster)) != 0) {
            (void)strcpy(all->plan, cluster_plan(cluster));
            all->plans++;
        }
    }
    all->spent_us[slow] += spent * steps / played;
    return true;
}

static bool alternate(struct cluster *cluster, const struct settings *settings, struct error *err)
{
    struct alternated *all = calloc(1, sizeof(*all));
    unsigned left = (unsigned)settings->alternating;
    uint64_t random = 1;
    bool done = all != NULL;

    while (done && left > 0) {
        unsigned steps = phase_steps(&random);
        steps = steps < left ? steps : left;
        done = play_phase(cluster, settings, steps, all, err);
        left -= steps;
    }
    if (done) {
        (void)printf("{\"alternating\":{\"steps\":%.0f,\"phases\":%u,\"plans\":%u,"
                     "\"fast_ms\":%.9g,\"slow_ms\":%.9g}}\n",
            settings->alternating, all->phases, all->plans, 1e-3 * all->spent_us[0],
            1e-3 * all->spent_us[1]);
    } else if (all == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for a plan");
    }
    free(all);
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
    if (cluster != NULL && settings->alternating > 0) {
        done = alternate(cluster, settings, err);
    } else {
        done = cluster != NULL && play(cluster, settings, err);
    }
    cluster_close(cluster);
    free(shapes);
    return done;
}

int main(int argc, char **argv)
{
    struct settings settings = {0};
    struct error error;
    bool done;

    if (!settings_read(usage, table, sizeof(table) / sizeof(table[0]), &settings, argc, argv)) {
        return 2;
    }
    if (!settings.measures && (settings.model == NULL || settings.arrivals == NULL ||
                                  settings.costs == NULL || settings.policy == NULL)) {
        (void)fprintf(stderr,
            "regret-run: --model, --arrivals, --costs and --policy are needed (see --help)\n");
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
