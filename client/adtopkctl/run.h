/*
 * Carries a command out: asks the daemon and prints its answer.
 */
#ifndef ADTOPK_RUN_H
#define ADTOPK_RUN_H

#include "client/adtopkctl/options.h"

#define RUN_SCHEMA 1

enum exit_code {
    EXIT_OK = 0,
    EXIT_FAILED = 1,
    EXIT_USAGE = 2,
    EXIT_UNREACHABLE = 3,
    EXIT_DENIED = 4,
    EXIT_DEGRADED = 5,
    EXIT_UNKNOWN = 6 /* the answer could not be determined */
};

/** Prints documents to standard output and errors to standard error. */
enum exit_code run_command(const struct options *options);

/** Of an error; answered: it is the daemon's answer. */
enum exit_code run_exit_code(enum adtopk_status status, bool answered);

/* Shared with commands that need no daemon. */

/** "adtopkctl: SENTENCE" on standard error. */
void run_complain(const char *sentence);

/** Complains, and returns the exit code. */
enum exit_code run_failed(const struct error *err, bool answered);

/** `code` if all of standard output could be written, because its reader must have got all. */
enum exit_code run_flushed(enum exit_code code);

#endif
