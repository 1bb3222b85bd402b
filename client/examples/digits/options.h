/* The command line. */
#ifndef DIGITS_OPTIONS_H
#define DIGITS_OPTIONS_H

#include <stdint.h>

#include "exchange.h"

struct options {
    const char *data;
    const char *log; /* NULL: none */
    uint64_t steps;
    uint64_t seed;
    uint64_t batch; /* over all ranks */
    uint64_t warmup;
    float lr;
    struct exchange_options exchange;
    char *policy_text; /* owned; what exchange.policy points to */
};

enum options_result { OPTIONS_RUN, OPTIONS_HELP, OPTIONS_ERROR };

/* Reads the command line; prints help to stdout and errors to stderr. Strings point into argv.
 * Free with options_free in every case. */
enum options_result options_read(struct options *options, int argc, char **argv);
void options_free(struct options *options);

#endif
