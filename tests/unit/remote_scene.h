/*
 * What the tests of remote sessions share: a host, and a trainer beside whom nothing that others do
 * may disturb: it takes a step at the end of each test.
 */
#ifndef ADTOPK_TESTS_REMOTE_SCENE_H
#define ADTOPK_TESTS_REMOTE_SCENE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "remote_host.h"

#define NUMEL 1000u /* elements of each tensor */

extern struct remote_host host;
extern float ones[NUMEL];

/** Set-up and tear-down of a test. */
int start(void **state);
int stop(void **state);

/** The host's, as of now. */
struct remote_stats stats(void);

/** One step of a trainer with one tensor, whose update is the gradient. */
void take_step(struct raw_trainer *raw, uint64_t step);

/** Joins a job with two tensors. */
void join(struct raw_trainer *raw);

#endif
