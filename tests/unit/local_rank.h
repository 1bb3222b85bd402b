/*
 * Ranks at a daemon of local_daemon.h, for tests of the client library. Each job has one rank, and
 * the update of a step is the rank's gradient.
 */
#ifndef ADTOPK_TESTS_LOCAL_RANK_H
#define ADTOPK_TESTS_LOCAL_RANK_H

#include <signal.h>

#include <adtopk/adtopk.h>

#include "client/src/context.h"
#include "local_daemon.h"

#define RANK_NUMEL_MAX 20000u /* elements of a tensor that rank_fill() and the like take */

extern struct daemon daemon_; /* the daemon of the test that runs */

/** A test's set-up: starts the daemon. */
int rank_daemon_start(void **state);

/** A test's teardown. It fails unless the daemon, if it still runs, has freed everything. */
int rank_daemon_stop(void **state);

/** Kills the daemon, stops its process, or lets it go on. */
void rank_daemon_kill(void);
void rank_daemon_pause(void);
void rank_daemon_continue(void);

/** Sends this process SIGALRM every `us` microseconds; 0: no more. Counts them in rank_alarms. */
void rank_alarm_every(int us);
extern volatile sig_atomic_t rank_alarms;

void assert_status(
    const adtopk_context *context, enum adtopk_status got, enum adtopk_status expected);

/** Checks that the last error of the context contains these words. */
void assert_says(const adtopk_context *context, const char *words);

/** How a test opens and registers. */
struct rank_wish {
    uint32_t tensors; /* "w0", "w1" and so on */
    uint64_t numel;   /* elements of each */
    unsigned forms;   /* 0: the default */
    bool interruptible;
};

/** The options of rank 0 of 1 of a job. */
struct adtopk_options rank_options(const char *job);

/** Opens rank 0 of 1 of a job. */
adtopk_context *rank_open(const char *job);

/** Opens and registers. */
adtopk_context *rank_registered(const char *job, struct rank_wish wish);

/** Opens, registers and commits. */
adtopk_context *rank_ready(const char *job, struct rank_wish wish);

/** Waits for the next reply of the daemon. */
enum adtopk_status rank_receive(adtopk_context *context, struct client_reply *reply);

/** Writes the gradient that a tensor has in a step. A third of its elements are 0, so that lists
 * are shorter. */
void rank_fill(float *gradient, uint64_t numel, uint64_t step, uint32_t tensor);

/** Fills and pushes a tensor's gradient, which is already in shared memory. */
void rank_push(adtopk_context *context, uint32_t tensor);

/** Checks that the update of that step is the gradient, in each form that was registered. */
void rank_assert_update(adtopk_context *context, uint64_t step, uint32_t tensor);

/** Takes one step and checks all updates. The library copies every second tensor's gradient; the
 * others are in shared memory. */
void rank_train(adtopk_context *context);

#endif
