/* The command line. */
#ifndef EXAMPLE_OPTIONS_H
#define EXAMPLE_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

#include "drift.h"
#include "exchange.h"

enum { OPTIONS_MAX_SIZES = 4 };

/* A whole number that only this example has, such as a width of its model. */
struct options_size {
    const char *name;
    const char *help;
    uint64_t least;
    uint64_t most;
    uint64_t usual; /* default */
};

/* The text of --help about an example. */
struct options_task {
    const char *program;
    const char *about; /* whole lines */
    const char *data;  /* the argument of --data */
    uint64_t steps;    /* default, like the values below */
    uint64_t batch;
    uint64_t warmup;
    uint64_t tested; /* about how many examples a test takes while it trains */
    float lr, adamw_lr;
    struct options_size sizes[OPTIONS_MAX_SIZES]; /* up to the first without a name */
};

struct options {
    const struct options_task *task;
    const char *data;
    const char *log; /* NULL: none */
    uint64_t steps;
    uint64_t seed;
    uint64_t batch; /* over all ranks */
    uint64_t warmup;
    uint64_t evaluate_every; /* steps; 0: only at the end */
    enum optimiser_kind optimiser;
    float lr;
    float weight_decay;
    int corrected;                     /* updates have their momentum from the daemon */
    const char *checkpoint;            /* folder; NULL: none */
    uint64_t checkpoint_every;         /* steps */
    int resume;                        /* from the last one in that folder */
    struct drift_options drift;        /* steps 0: gradients are exchanged in every step */
    uint64_t sizes[OPTIONS_MAX_SIZES]; /* as in the task's table */
    struct exchange_options exchange;
    char *policy_text; /* owned; exchange.policy points to it */
};

enum options_result { OPTIONS_RUN, OPTIONS_HELP, OPTIONS_ERROR };

/* Reads the command line; prints help to stdout and errors to stderr. Strings point into argv.
 * Free with options_free in every case. */
enum options_result options_read(
    struct options *options, const struct options_task *task, int argc, char **argv);
void options_free(struct options *options);

/* The options that must be the same on all ranks, as words of at most `size` bytes. */
void options_words(const struct options *options, char *words, size_t size);

#endif
