/*
 * Code that the tests of remote sessions share: a host, and a trainer that nothing may disturb.
 * That trainer takes a step at the end of each test.
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

/** The host's counts now. */
struct remote_stats stats(void);

/** Takes one step of a trainer with one tensor, whose update is the gradient. */
void take_step(struct raw_trainer *raw, uint64_t step);

/** Joins a job with two tensors. */
void join(struct raw_trainer *raw);

#endif
