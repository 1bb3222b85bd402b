/*
 * Carries a command out: asks the daemon and prints what it says.
 */
#ifndef ADTOPK_RUN_H
#define ADTOPK_RUN_H

#include "client/adtopkctl/options.h"

enum exit_code {
    EXIT_OK = 0,
    EXIT_FAILED = 1,
    EXIT_USAGE = 2,
    EXIT_UNREACHABLE = 3,
    EXIT_DENIED = 4,
    EXIT_DEGRADED = 5
};

/** Prints documents to standard output and what went wrong to standard error. */
enum exit_code run_command(const struct options *options);

/** Of an error; answered: it is the daemon's answer. */
enum exit_code run_exit_code(enum adtopk_status status, bool answered);

/** "adtopkctl: SENTENCE" on standard error. */
void run_complain(const char *sentence);

#endif
