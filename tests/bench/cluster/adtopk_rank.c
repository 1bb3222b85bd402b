/*
 * A rank of an adtopk job: opens, registers the tensors of a model, commits. Then it makes one step
 * per turn: it pushes all tensors, at once or when a recorded backward pass had their gradients
 * ready (arrivals.h), waits, and reads every update. Until a gradient is ready it sleeps.
 *
 * usage: cluster-adtopk CONDUCTOR ADDRESS JOB RANK WORLD MODEL ELEMENTS POLICY [ARRIVALS]
 *        cluster-adtopk --shape MODEL ELEMENTS: prints the tensors that that makes: name, elements
 *
 * Failures: all errors of the client library; their sentence goes to standard error.
 */
#include <adtopk/adtopk.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/cluster/arrivals.h"
#include "tests/bench/cluster/shapes.h"
#include "tests/bench/cluster/turns.h"
#include "tests/bench/perf/clock.h"
#include "tests/bench/perf/data.h"

/* Gradients are stretches of so many random numbers, from a place that moves with every turn. A
 * prime, so that the same number does not meet the same element again. */
#define NUMBERS 4194301
#define MOVE 1000003

struct rank {
    const char *job;
    unsigned number;
    struct shapes *shapes; /* in the order in which they become ready */
    uint64_t at_ns[SHAPES_MAX];
    float *numbers;
    uint64_t turn;
    adtopk_context *context;
};

static bool failed(const struct rank *rank)
{
    return turns_fail(rank->job, rank->number, "%s", adtopk_message(rank->context));
}

static bool join(struct rank *rank, char **argv)
{
    const struct adtopk_options options = {.size = sizeof options,
        .address = argv[2],
        .job = rank->job,
        .run_id = "0",
        .rank = (int)rank->number,
        .has_rank = 1,
        .world_size = atoi(argv[5]),
        .policy = argv[8]};
    bool ok = adtopk_open(&options, &rank->context) == ADTOPK_OK;

    for (unsigned i = 0; i < rank->shapes->count && ok; i++) {
        const struct model_tensor *tensor = &rank->shapes->tensor[i];
        struct adtopk_tensor_spec spec = {
            .size = sizeof spec, .name = tensor->name, .dims = (int)tensor->shape.dims};

        memcpy(spec.shape, tensor->shape.size, tensor->shape.dims * sizeof(spec.shape[0]));
        ok = adtopk_register(rank->context, &spec, NULL) == ADTOPK_OK;
    }
    return (ok && adtopk_commit(rank->context) == ADTOPK_OK) || failed(rank);
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static bool prepare(void *context, const char *what)
{
    struct rank *rank = context;
    uint64_t from = (++rank->turn * MOVE + rank->number) % NUMBERS;

    (void)what;
    for (unsigned i = 0; i < rank->shapes->count; i++) {
        const uint64_t n = shapes_numel(&rank->shapes->tensor[i].shape);
        float *gradient = adtopk_gradient(rank->context, i);

        for (uint64_t done = 0, part; done < n; done += part) {
            part = least(n - done, NUMBERS - from);
            memcpy(gradient + done, rank->numbers + from, part * sizeof(float));
            from = (from + part) % NUMBERS;
        }
    }
    return true;
}

static bool step(void *context, const char *what)
{
    const struct rank *rank = context;
    const uint64_t begin = clock_ns();
    struct adtopk_update update = {.size = sizeof update};
    bool ok = true;

    (void)what;
    for (unsigned i = 0; i < rank->shapes->count && ok; i++) {
        arrivals_await(begin, rank->at_ns[i]);
        ok = adtopk_push_tensor(rank->context, i, NULL) == ADTOPK_OK;
    }
    ok = ok && adtopk_step_wait(rank->context) == ADTOPK_OK;
    for (unsigned i = 0; i < rank->shapes->count && ok; i++) {
        ok = adtopk_update(rank->context, i, &update) == ADTOPK_OK;
    }
    return ok || failed(rank);
}

static bool run(struct rank *rank, char **argv)
{
    static const struct turns turns = {prepare, step};

    rank->numbers = malloc(NUMBERS * sizeof(float));
    rank->shapes = shapes_new(argv[6], strtoull(argv[7], NULL, 10));
    if (rank->numbers == NULL || rank->shapes == NULL) {
        return turns_fail(rank->job, rank->number, "no memory, or no model '%s'", argv[6]);
    }
    if (!arrivals_order(argv[9], rank->shapes, rank->at_ns)) {
        return turns_fail(rank->job, rank->number, "no arrivals of this model: %s", argv[9]);
    }
    data_fill(rank->numbers, NUMBERS, DATA_NORMAL, rank->number + 1);
    return join(rank, argv) && turns_serve(argv[1], rank->job, rank->number, &turns, rank);
}

static int print_shape(char **argv)
{
    struct shapes *shapes = shapes_new(argv[2], strtoull(argv[3], NULL, 10));

    if (shapes == NULL) {
        (void)fprintf(stderr, "%s: no memory, or no model '%s'\n", argv[0], argv[2]);
        return 1;
    }
    for (unsigned i = 0; i < shapes->count; i++) {
        printf("%s %" PRIu64 "\n", shapes->tensor[i].name, shapes_numel(&shapes->tensor[i].shape));
    }
    free(shapes);
    return 0;
}

int main(int argc, char **argv)
{
    struct rank rank = {0};
    bool ok;

    if (argc == 4 && strcmp(argv[1], "--shape") == 0) {
        return print_shape(argv);
    }
    if (argc != 9 && argc != 10) {
        (void)fprintf(stderr,
            "usage: %s CONDUCTOR ADDRESS JOB RANK WORLD MODEL ELEMENTS POLICY [ARRIVALS]\n",
            argv[0]);
        return 2;
    }
    rank.job = argv[3];
    rank.number = (unsigned)strtoul(argv[4], NULL, 10);
    ok = run(&rank, argv);
    adtopk_close(rank.context);
    free(rank.numbers);
    free(rank.shapes);
    return ok ? 0 : 1;
}
