/* The output of a run: progress on stderr for people, JSON lines in the log for programs. */
#ifndef EXAMPLE_REPORT_H
#define EXAMPLE_REPORT_H

#include <stddef.h>
#include <stdint.h>

/* Seconds of one step in each phase. */
struct report_phases {
    double compute; /* forward and backward pass, pushes included */
    double wait;    /* for the exchange, as far as the backward pass did not hide it */
    double apply;   /* optimiser */
};

/* The model's results on test examples. */
struct report_test {
    double accuracy; /* 0..1 */
    double loss;     /* mean, in nats */
};

struct report_step {
    uint64_t step;
    double loss; /* mean over the global batch */
    double lr;
    int withdrawn;
    int tested; /* after this step, on a part of the test set: */
    struct report_test test;
    struct report_phases seconds;
};

struct report_final {
    uint64_t steps;
    uint64_t withdrawn;
    int world;
    struct report_test test; /* on the whole test set */
    uint64_t parameter_hash;
    double seconds; /* of the training loop */
    struct report_phases totals;
};

struct report;

/* program: for messages. log_path: NULL for no log. `steps` is the number of steps to come. NULL on
 * an error, which was printed to stderr. */
struct report *report_open(const char *program, const char *log_path, uint64_t steps);

/* Takes `count` steps in order. */
void report_steps(struct report *report, const struct report_step *steps, size_t count);

/* Writes the last line and a summary to stdout. */
void report_final(struct report *report, const struct report_final *final);

/* Flushes and closes; -1 if the log could not be written (printed to stderr). NULL is allowed. */
int report_close(struct report *report);

#endif
