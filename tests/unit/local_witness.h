/*
 * For tests with misbehaving clients: a daemon and a witness. The witness trains on the daemon
 * before, beside and after those clients.
 */
#ifndef ADTOPK_TESTS_LOCAL_WITNESS_H
#define ADTOPK_TESTS_LOCAL_WITNESS_H

#include "local_rank.h"

#define SESSIONS 8 /* sessions that the daemon can have */

extern adtopk_context *witness;
extern int descriptors, mappings; /* those of the daemon when it serves the witness only */

/** A test's set-up: starts the daemon, and lets the witness train. */
int witness_start(void **state);

/**
 * A test's teardown. It fails unless the daemon frees, within a second and a half, everything that
 * the other clients cost it. (A client has a second to read why its session ended.) Also, the
 * witness must be able to train on, and the daemon to end cleanly.
 */
int witness_stop(void **state);

void assert_has(const char *text, const char *word);

/** Opens rank 0 of 1 of a job. */
enum adtopk_status try_open(const char *job, adtopk_context **context);

/** Opens a job and registers one tensor "w0". */
adtopk_context *open_job(const char *job);

/** Opens a job, registers one tensor "w0" and commits. */
adtopk_context *open_ready(const char *job);

#endif
