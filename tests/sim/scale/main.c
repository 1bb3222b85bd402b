/*
 * scale-run: one collective among many nodes, over a modelled network; prints one line of JSON.
 */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "tests/sim/scale/group.h"

struct settings {
    const struct collective_ops *ops;
    double nodes, steps, finishing, raw;
    double numel, entries, overlap, first_eighth, drift, seed;
    double latency_us, gbit, rack, narrowing, overhead, compute, memory;
};

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
    SETTING("nodes", nodes, true, 1, 1024, "nodes [8]"),
    SETTING("steps", steps, true, 1, 100000, "steps; the figures are those of the last [1]"),
    SETTING("finish", finishing, true, 1, 1024, "nodes that form the sum, and must agree [2]"),
    SETTING("raw", raw, true, 0, 1, "1: 32 bit positions and values, two words an entry [0]"),
    SETTING("numel", numel, true, 1, 4e9, "positions [1e7]"),
    SETTING("entries", entries, true, 0, 1e8, "entries that a node contributes [1e5]"),
    SETTING("overlap", overlap, false, 0, 1, "share of them that all nodes have [0.5]"),
    SETTING("first-eighth", first_eighth, false, 0.001, 0.999,
        "share of them in the first eighth of the positions [0.125]"),
    SETTING("drift", drift, false, 0.5, 2, "factor of all magnitudes from step to step [1]"),
    SETTING("seed", seed, true, 0, 1e15, "of the contributions [1]"),
    SETTING("latency-us", latency_us, false, 0, 1e6, "from node to node [20]"),
    SETTING("gbit", gbit, false, 0.001, 1e5, "of a node's link [10]"),
    SETTING("rack", rack, true, 0, 1024, "nodes in a rack; 0: all [0]"),
    SETTING("narrowing", narrowing, false, 1, 1000, "of a rack's link against its nodes' [1]"),
    SETTING("compute-ns", compute, false, 0, 1e6, "a node computes on a byte that came in [0]"),
    SETTING("memory", memory, false, 0, 1e6, "GiB that it may take; 0: any [0]"),
    SETTING("overhead", overhead, true, 0, 10000, "bytes a message takes beside its frame [120]"),
};
/* That magnitudes may drift by. */
#define MOST_DECADES 30
#define SETTINGS (sizeof(table) / sizeof(table[0]))

static void help(void)
{
    (void)printf("Usage: scale-run --collective=NAME [--OPTION=NUMBER]...\n"
                 "       scale-run --list    names the sparse collectives\n\n"
                 "One sparse collective among many nodes, over a modelled network.\n\n");
    for (size_t i = 0; i < SETTINGS; i++) {
        (void)printf("  --%-14s %s\n", table[i].name, table[i].help);
    }
}

static void list(void)
{
    for (unsigned i = 0; collective_table[i] != NULL; i++) {
        if (group_takes(collective_table[i])) {
            (void)puts(collective_table[i]->name);
        }
    }
}

static bool set(struct settings *settings, const struct setting *setting, const char *text)
{
    char *end;
    double number = strtod(text, &end);

    if (end == text || *end != '\0' || !(number >= setting->least && number <= setting->most)) {
        (void)fprintf(stderr, "scale-run: --%s: \"%s\" is no number from %g to %g\n", setting->name,
            text, setting->least, setting->most);
        return false;
    }
    if (setting->whole && number != floor(number)) {
        (void)fprintf(stderr, "scale-run: --%s: \"%s\" is no whole number\n", setting->name, text);
        return false;
    }
    (void)memcpy((char *)settings + setting->at, &number, sizeof(number));
    return true;
}

static bool set_collective(struct settings *settings, const char *name)
{
    settings->ops = collective_find(name);
    if (settings->ops == NULL || !group_takes(settings->ops)) {
        (void)fprintf(
            stderr, "scale-run: --collective: \"%s\" is none that works on lists\n", name);
        return false;
    }
    return true;
}

static bool parse(struct settings *settings, int argc, char **argv)
{
    struct option options[SETTINGS + 4] = {
        {.name = "collective", .has_arg = 1}, {.name = "help"}, {.name = "list"}};
    int at;

    for (size_t i = 0; i < SETTINGS; i++) {
        options[i + 3] = (struct option){.name = table[i].name, .has_arg = 1};
    }
    for (int found; (found = getopt_long(argc, argv, "", options, &at)) != -1;) {
        if (found != 0) {
            return false;
        }
        if (at == 1 || at == 2) {
            (at == 1 ? help : list)();
            exit(0);
        }
        if (!(at == 0 ? set_collective(settings, optarg) : set(settings, &table[at - 3], optarg))) {
            return false;
        }
    }
    if (optind < argc || settings->ops == NULL) {
        (void)fprintf(stderr, "scale-run: %s (see --help)\n",
            optind < argc ? "options only" : "--collective is needed");
        return false;
    }
    if (settings->entries > settings->numel) {
        (void)fprintf(stderr, "scale-run: --entries is more than --numel\n");
        return false;
    }
    if (fabs(log10(settings->drift) * settings->steps) > MOST_DECADES) {
        (void)fprintf(stderr, "scale-run: --drift in so many --steps leaves the range of f32\n");
        return false;
    }
    return true;
}

static void print_step(const struct settings *settings, const struct group_step *step,
    uint64_t update_min, uint64_t update_max)
{
    (void)printf("{\"collective\":\"%s\",\"nodes\":%.0f,\"entries\":%.1f,\"numel\":%.0f,"
                 "\"seconds\":%.9g,\"messages\":%llu,\"bytes\":%.1f,\"headers\":%.1f,"
                 "\"bytes_max\":%llu,\"sent_max\":%llu,\"imbalance\":%.4f,\"update\":%llu,"
                 "\"update_min\":%llu,\"update_max\":%llu}\n",
        settings->ops->name, settings->nodes, step->entries, settings->numel, step->seconds,
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
    struct settings settings = {.nodes = 8,
        .steps = 1,
        .finishing = 2,
        .numel = 1e7,
        .entries = 1e5,
        .overlap = 0.5,
        .first_eighth = 0.125,
        .drift = 1,
        .seed = 1,
        .latency_us = 20,
        .gbit = 10,
        .narrowing = 1,
        .overhead = 120};
    struct group *group;
    int result = 1;

    if (!parse(&settings, argc, argv)) {
        return 2;
    }
    if (!limit_memory(settings.memory)) {
        return 1;
    }
    group = group_open(settings.ops, (unsigned)settings.nodes,
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
