/*
 * A rank that trains an example's model in turns. It runs the examples' own loop, with an observer
 * that asks the conductor between the end of a step's exchange and its optimiser. So one measured
 * step is: apply the last update, forward pass, backward pass, which pushes gradients as they
 * become ready, and the wait for the exchange. Orders say how many steps a turn has.
 *
 * usage: cluster-training CONDUCTOR TEAM RANK OPTION...: those of the example
 *        cluster-training --shape OPTION...: prints the model's tensors: name, elements
 *
 * The linked file decides how gradients are exchanged: client/examples/common/exchange.c (adtopk)
 * or training_exchange.c (nothing, or gloo).
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/task.h"
#include "common/train.h"
#include "tests/bench/cluster/turns.h"
#include "tests/bench/perf/clock.h"

#define STEPS_MAX 1000 /* of a turn */

struct pupil {
    const char *path, *team;
    unsigned rank;
    struct turns_talk talk;
    unsigned steps; /* of this turn */
    unsigned made;
    uint64_t begin_ns, end_ns[STEPS_MAX];
    bool dismissed;
};

/* Waits until the next turn begins; -1 if there is none. */
static int await_turn(struct pupil *pupil)
{
    const char *what = NULL;
    enum turns_order order;
    unsigned long steps;

    while ((order = turns_next(&pupil->talk, &what)) == TURNS_PREPARE) {
        if (!turns_ready(&pupil->talk)) {
            return -1;
        }
    }
    pupil->dismissed = order == TURNS_END;
    if (order != TURNS_STEP) {
        return -1;
    }
    steps = strtoul(what, NULL, 10);
    if (steps < 1 || steps > STEPS_MAX) {
        (void)turns_fail(pupil->team, pupil->rank, "'%s' steps: 1 to %d", what, STEPS_MAX);
        return -1;
    }
    pupil->steps = (unsigned)steps;
    pupil->made = 0;
    pupil->begin_ns = clock_ns();
    return 0;
}

/* A train_observer's step. The first one is over before the conductor knows of this rank. */
static int exchanged(
    void *self, const struct options *options, struct exchange *exchange, uint64_t step)
{
    struct pupil *pupil = self;

    (void)options;
    (void)exchange;
    if (step == 0) {
        return turns_open(&pupil->talk, pupil->path, pupil->team, pupil->rank) ? await_turn(pupil)
                                                                               : -1;
    }
    pupil->end_ns[pupil->made++] = clock_ns();
    if (pupil->made < pupil->steps) {
        return 0;
    }
    return turns_made(&pupil->talk, pupil->begin_ns, pupil->end_ns, pupil->made) ? await_turn(pupil)
                                                                                 : -1;
}

static int print_shape(int argc, char **argv)
{
    char error[TASK_ERROR_SIZE] = "no memory";
    struct options options = {0};
    struct task *task = NULL;
    const struct tensor *tensors;
    size_t count;
    bool ok = options_read(&options, &task_options, argc, argv) == OPTIONS_RUN;

    if (ok) {
        task = task_create(&options, error);
        ok = task != NULL && task_build(task, &options) == 0;
        if (!ok) {
            (void)fprintf(stderr, "%s: %s\n", argv[0], error);
        }
    }
    if (ok) {
        tensors = model_tensors(task_model(task), &count);
        for (size_t t = 0; t < count; t++) {
            printf("%s %zu\n", tensors[t].name, tensor_size(&tensors[t]));
        }
    }
    task_destroy(task);
    options_free(&options);
    return ok ? 0 : 1;
}

int main(int argc, char **argv)
{
    struct pupil pupil = {0};
    const struct train_observer observer = {exchanged, &pupil};
    int result;

    if (argc > 2 && strcmp(argv[1], "--shape") == 0) {
        argv[1] = argv[0];
        return print_shape(argc - 1, argv + 1);
    }
    if (argc < 5) {
        (void)fprintf(stderr, "usage: %s CONDUCTOR TEAM RANK OPTION...\n", argv[0]);
        return 2;
    }
    pupil.path = argv[1];
    pupil.team = argv[2];
    pupil.rank = (unsigned)strtoul(argv[3], NULL, 10);
    argv[3] = argv[0];
    (void)signal(SIGPIPE, SIG_IGN); /* a bridge that has ended is an error that is told */
    result = train_main(argc - 3, argv + 3, &observer);
    turns_close(&pupil.talk);
    return pupil.dismissed ? 0 : result;
}
