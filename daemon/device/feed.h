/*
 * One batch through a worker's page: for the feeder's thread.
 *
 * Happy path: for each order, its inputs are copied into staging memory in slices, the order
 * follows, and its outputs come back in slices. The worker's stream says what is done, and then
 * slots and staging memory are used again. Before an order of the same tensor as the one before it,
 * everything that is under way is awaited, since its inputs may be outputs of that one.
 *
 * Failures: the worker dies, says why it ends, or makes no progress for too long. Then the batch is
 * as it was given: to feed it to another worker from the start is right.
 */
#ifndef ADTOPK_DEVICE_FEED_H
#define ADTOPK_DEVICE_FEED_H

#include "daemon/device/state.h"

/** Feeds the batch and awaits its end. All parts of its job are mapped. OK: its results are filled
 * in. STATE: the daemon stops. Otherwise the worker is to be ended, for the reason in `err`. */
enum adtopk_status feed_batch(struct worker *worker, struct engine_batch *batch, struct error *err);

/** Has the worker make an operation of NCCL, and awaits its end. What goes wrong with NCCL is in
 * cargo->error. Otherwise as feed_batch(), but that nothing is begun again. */
enum adtopk_status feed_cargo(struct worker *worker, struct cargo *cargo, struct error *err);

#endif
