/*
 * scale-run: one collective among many nodes, over a modelled network; prints one line of JSON.
 */
#include <math.h>
#include <stdio.h>
#include <sys/resource.h>

#include "tests/sim/scale/group.h"
#include "tests/sim/settings.h"

/* That magnitudes may drift by. */
#define MOST_DECADES 30

struct settings {
    bool list;
    const char *collective;
    double nodes, steps, finishing, raw;
    double numel, entries, overlap, first_eighth, drift, seed;
    double latency_us, gbit, rack, narrowing, overhead, compute, memory;
};

static const char usage[] = "Usage: scale-run --collective=NAME [--OPTION=NUMBER]...\n\n"
                            "One sparse collective among many nodes, over a modelled network.\n";

static const struct setting table[] = {
    SETTING(SWITCH, "list", list, "names the sparse collectives instead", 0, 0, 0),
    SETTING(TEXT, "collective", collective, "which", 0, 0, 0),
    SETTING(WHOLE, "nodes", nodes, "nodes", 8, 1, 1024),
    SETTING(WHOLE, "steps", steps, "steps; the figures are those of the last", 1, 1, 100000),
    SETTING(WHOLE, "finish", finishing, "nodes that form the sum, and must agree", 2, 1, 1024),
    SETTING(WHOLE, "raw", raw, "1: 32 bit positions and values, two words an entry", 0, 0, 1),
    SETTING(WHOLE, "numel", numel, "positions", 1e7, 1, 4e9),
    SETTING(WHOLE, "entries", entries, "entries that a node contributes", 1e5, 0, 1e8),
    SETTING(NUMBER, "overlap", overlap, "share of them that all nodes have", 0.5, 0, 1),
    SETTING(NUMBER, "first-eighth", first_eighth,
        "share of them in the first eighth of the positions", 0.125, 0.001, 0.999),
    SETTING(NUMBER, "drift", drift, "factor of all magnitudes from step to step", 1, 0.5, 2),
    SETTING(WHOLE, "seed", seed, "of the contributions", 1, 0, 1e15),
    SETTING(NUMBER, "latency-us", latency_us, "from node to node", 20, 0, 1e6),
    SETTING(NUMBER, "gbit", gbit, "of a node's link", 10, 0.001, 1e5),
    SETTING(WHOLE, "rack", rack, "nodes in a rack; 0: all", 0, 0, 1024),
    SETTING(NUMBER, "narrowing", narrowing, "of a rack's link against its nodes'", 1, 1, 1000),
    SETTING(NUMBER, "compute-ns", compute, "a node computes on a byte that came in", 0, 0, 1e6),
    SETTING(NUMBER, "memory", memory, "GiB that it may take; 0: any", 0, 0, 1e6),
    SETTING(WHOLE, "overhead", overhead, "bytes a message takes beside its frame", 120, 0, 10000),
};

static void list(void)
{
    for (unsigned i = 0; collective_table[i] != NULL; i++) {
        if (group_takes(collective_table[i])) {
            (void)puts(collective_table[i]->name);
        }
    }
}

static const struct collective_ops *find(const char *name)
{
    const struct collective_ops *ops = name != NULL ? collective_find(name) : NULL;

    if (name == NULL) {
        (void)fprintf(stderr, "scale-run: --collective is needed (see --help)\n");
    } else if (ops == NULL || !group_takes(ops)) {
        (void)fprintf(stderr,
            "scale-run: --collective: \"%s\" is none that works on lists (see --list)\n", name);
        return NULL;
    }
    return ops;
}

/* Checks the numbers together; returns the fault, or NULL. */
static const char *wrong(const struct settings *settings)
{
    if (settings->entries > settings->numel) {
        return "--entries is more than --numel";
    }
    if (fabs(log10(settings->drift) * settings->steps) > MOST_DECADES) {
        return "--drift in so many --steps leaves the range of f32";
    }
    return NULL;
}

static void print_step(const struct settings *settings, const struct group_step *step,
    uint64_t update_min, uint64_t update_max)
{
    (void)printf("{\"collective\":\"%s\",\"nodes\":%.0f,\"entries\":%.1f,\"numel\":%.0f,"
                 "\"seconds\":%.9g,\"messages\":%llu,\"bytes\":%.1f,\"headers\":%.1f,"
                 "\"bytes_max\":%llu,\"sent_max\":%llu,\"imbalance\":%.4f,\"update\":%llu,"
                 "\"update_min\":%llu,\"update_max\":%llu}\n",
        settings->collective, settings->nodes, step->entries, settings->numel, step->seconds,
        (unsigned long long)step->messages, step->bytes, step->headers,
        (unsigned long long)step->bytes_max, (unsigned long long)step->sent_max, step->imbalance,
        (unsigned long long)step->update, (unsigned long long)update_min,
        (unsigned long long)update_max);
}

static bool limit_memory(double gib)
{
    rlim_t bytes = (rlim_t)(gib * 0x1p30);
    struct rlimit limit = {.rlim_cur = bytes, .rlim_max = bytes};

    if (gib > 0 && setrlimit(RLIMIT_AS, &limit) != 0) {
        perror("scale-run: --memory");
        return false;
    }
    return true;
}

static int run(const struct settings *settings, struct group *group)
{
    const struct fabric_links links = {.latency = settings->latency_us * 1e-6,
        .bandwidth = settings->gbit * 1e9 / 8,
        .rack = (unsigned)settings->rack,
        .narrowing = settings->narrowing,
        .overhead = (unsigned)settings->overhead};
    uint64_t least = UINT64_MAX, most = 0;
    struct group_step step;
    char text[ERROR_TEXT_SIZE];

    if (settings->raw > 0) {
        group_encode(group, PAYLOAD_INDEX_RAW, PAYLOAD_VALUE_F32);
    }
    group_compute(group, settings->compute * 1e-9);
    for (double i = 0; i < settings->steps; i++) {
        if (!group_run(group, &links, &step, text)) {
            (void)fprintf(stderr, "scale-run: step %.0f: %s\n", i, text);
            return 1;
        }
        least = step.update < least ? step.update : least;
        most = step.update > most ? step.update : most;
    }
    print_step(settings, &step, least, most);
    return 0;
}

int main(int argc, char **argv)
{
    struct settings settings = {0};
    const struct collective_ops *ops;
    const char *refusal;
    struct group *group;
    int result = 1;

    if (!settings_read(usage, table, sizeof(table) / sizeof(table[0]), &settings, argc, argv)) {
        return 2;
    }
    if (settings.list) {
        list();
        return 0;
    }
    ops = find(settings.collective);
    if (ops == NULL) {
        return 2;
    }
    refusal = wrong(&settings);
    if (refusal != NULL) {
        (void)fprintf(stderr, "scale-run: %s\n", refusal);
        return 2;
    }
    if (!limit_memory(settings.memory)) {
        return 1;
    }
    group = group_open(ops, (unsigned)settings.nodes,
        &(struct group_input){.numel = (uint64_t)settings.numel,
            .entries = (uint64_t)settings.entries,
            .overlap = settings.overlap,
            .first_eighth = settings.first_eighth,
            .drift = settings.drift,
            .seed = (uint64_t)settings.seed},
        (unsigned)settings.finishing);
    if (group == NULL) {
        (void)fprintf(stderr, "scale-run: no memory for the nodes\n");
        return 1;
    }
    result = run(&settings, group);
    group_close(group);
    return result;
}
