/*
 * The process of a worker: started, spoken with, ended. For the feeder's thread only.
 *
 * Happy path: the worker is started with one end of a socket and the page; it says that it is
 * ready; it maps parts as it is told. It ends when the socket is closed, and is then waited for.
 *
 * Failures: a worker that says why it ends, is killed by a signal, or does not answer in time, is
 * killed and waited for. Each function then returns an error with that sentence.
 */
#ifndef ADTOPK_DEVICE_PROCESS_H
#define ADTOPK_DEVICE_PROCESS_H

#include "daemon/device/state.h"

/** Makes the page, starts the program and waits until it is ready. */
enum adtopk_status process_start(struct worker *worker, struct error *err);

/** Ends it, kindly or not, and drops the page. A worker that does not run is allowed. */
void process_end(struct worker *worker, bool kill_it);

/** Has it map a part, and clear it if it is new, or has lost its content (part->gone). */
enum adtopk_status process_map(struct worker *worker, struct part *part, struct error *err);

/** Tells it that a part is no longer used. */
void process_unmap(struct worker *worker, struct part *part);

/** Takes its messages for up to `wait_ms`. OK: it lives; otherwise `err` says why it does not. */
enum adtopk_status process_listen(struct worker *worker, int wait_ms, struct error *err);

/** Fills `err` with why a worker, which has just been found dead or hanging, is to be ended. */
enum adtopk_status process_hangs(
    struct worker *worker, const char *doing, unsigned waited_ms, struct error *err);

/** Has MPS, where a device uses it or may do so, end what a killed process of an earlier daemon
 * left there. */
enum adtopk_status process_end_client(struct device *device, pid_t client, struct error *err);

/** Has the program try a device, without a feeder. For the loop's thread, before it serves. */
enum adtopk_status process_probe(const char *program, const struct driver_device *device,
    struct device_probe *probe, struct error *err);

/** The program's path: the configured one, $ADTOPK_DEVICE_PROGRAM, or the installed one. */
const char *process_program(const struct device_config *config);

#endif
