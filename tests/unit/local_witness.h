/*
 * For tests with misbehaving clients: a daemon, and a witness that trains on it before, beside and
 * after them.
 */
#ifndef ADTOPK_TESTS_LOCAL_WITNESS_H
#define ADTOPK_TESTS_LOCAL_WITNESS_H

#include <adtopk/adtopk.h>

#include "local_daemon.h"

#define SESSIONS 8 /* the most that the daemon takes */

extern struct daemon daemon_;
extern adtopk_context *witness;
extern int descriptors, mappings; /* of the daemon with nobody but the witness */

/** A test's set-up: the daemon lives, the witness has trained. */
int witness_start(void **state);

/**
 * A test's teardown: it fails unless everything that others cost the daemon is free within a
 * second and a half (a second is what a client has to read why its session ended), the witness
 * trains on, and the daemon ends cleanly.
 */
int witness_stop(void **state);

void assert_status(
    const adtopk_context *context, enum adtopk_status got, enum adtopk_status expected);
void assert_has(const char *text, const char *word);

/** Opens rank 0 of 1 of a job. */
enum adtopk_status try_open(const char *job, adtopk_context **context);

/** ... with one tensor "w" registered. */
adtopk_context *open_job(const char *job);

/** ... and committed. */
adtopk_context *open_ready(const char *job);

/** One step, whose update must be its gradient. */
void train(adtopk_context *context);

#endif
