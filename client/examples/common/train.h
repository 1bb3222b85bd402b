/* The training loop that the examples share. */
#ifndef EXAMPLE_TRAIN_H
#define EXAMPLE_TRAIN_H

#include <stddef.h>
#include <stdint.h>

#include "exchange.h"
#include "options.h"

/* Sees every step that was accepted, before its update is applied: a study, not training. Returns
 * 0, or -1 to end the run, having said why. */
struct train_observer {
    int (*step)(
        void *self, const struct options *options, struct exchange *exchange, uint64_t step);
    void *self;
};

/* Trains the task of task.h as the command line says. observer: NULL for none. Returns the exit
 * status: 0 done, 1 failed, 2 wrong usage. */
int train_main(int argc, char **argv, const struct train_observer *observer);

#endif
