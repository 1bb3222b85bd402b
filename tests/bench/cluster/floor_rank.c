/*
 * The least work of a node: adding its ranks' gradients to a residual, r += g, by the fastest of
 * four loops. There is one process per node; their steps run at the same time, as those of daemons
 * do.
 *
 * usage: cluster-floor CONDUCTOR NODE GRADIENTS ELEMENTS
 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/bench/cluster/turns.h"
#include "tests/bench/perf/data.h"
#include "tests/bench/perf/floor.h"

#define TEAM "floor"
#define SAMPLES 3
#define GRADIENTS_MAX 64

struct node {
    struct floor_work work;
    const struct floor_loop *loop;
};

static bool prepare(void *context, const char *what)
{
    (void)context;
    (void)what;
    return true;
}

static bool step(void *context, const char *what)
{
    const struct node *node = context;

    (void)what;
    node->loop->add(&node->work, 0, node->work.n);
    return true;
}

static bool choose_loop(struct node *node)
{
    struct floor_race race = {0};
    bool ok = true;

    for (unsigned i = 0; i < SAMPLES && ok; i++) {
        ok = floor_sample(&race, &node->work);
    }
    node->loop = &floor_loops[floor_fastest(&race)];
    floor_free(&race);
    return ok;
}

static bool run(const char *path, unsigned number, struct node *node, const void **gradients)
{
    static const struct turns turns = {prepare, step};
    const size_t size = node->work.n * sizeof(float);
    bool ok = true;

    node->work.r = data_map(size);
    for (unsigned i = 0; i < node->work.count && ok; i++) {
        gradients[i] = data_map(size);
        ok = gradients[i] != NULL;
    }
    node->work.g = gradients;
    ok = ok && node->work.r != NULL && choose_loop(node);
    ok = ok ? turns_serve(path, TEAM, number, &turns, node)
            : turns_fail(TEAM, number, "no memory for %u gradients", node->work.count);
    data_unmap(node->work.r, size);
    for (unsigned i = 0; i < node->work.count; i++) {
        data_unmap((void *)(uintptr_t)gradients[i], size);
    }
    return ok;
}

int main(int argc, char **argv)
{
    const void *gradients[GRADIENTS_MAX] = {NULL};
    struct node node = {.work = {.dtype = DTYPE_F32}};

    if (argc != 5) {
        (void)fprintf(stderr, "usage: %s CONDUCTOR NODE GRADIENTS ELEMENTS\n", argv[0]);
        return 2;
    }
    node.work.count = (unsigned)strtoul(argv[3], NULL, 10);
    node.work.n = strtoull(argv[4], NULL, 10);
    if (node.work.count < 1 || node.work.count > GRADIENTS_MAX || node.work.n == 0) {
        (void)fprintf(
            stderr, "%s: 1 to %d gradients of at least one element\n", argv[0], GRADIENTS_MAX);
        return 2;
    }
    return run(argv[1], (unsigned)strtoul(argv[2], NULL, 10), &node, gradients) ? 0 : 1;
}
