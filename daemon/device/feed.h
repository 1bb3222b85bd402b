/*
 * Batches through a worker's page: for the feeder's thread.
 *
 * Happy path: orders of one kind for different tensors become a run. Their inputs are copied into
 * staging memory in slices, the run follows, and the outputs come back in slices. A rule then
 * selects on this thread, and asks the residual what it wants to know (rule.h). The worker's stream
 * says what is done, and then slots and staging memory are used again. Batches go in waves: the
 * first order of each tensor, then the second, and so on. Between two waves everything is awaited,
 * since inputs may be outputs of the order before.
 *
 * Failures: the worker dies, says why it ends, or makes no progress for too long. Then the batches
 * are as they were given: to feed them to another worker from the start is right.
 */
#ifndef ADTOPK_DEVICE_FEED_H
#define ADTOPK_DEVICE_FEED_H

#include "daemon/device/state.h"

/** What a worker's feeder needs for it; NULL without memory. So feeding needs no memory. */
struct feed *feed_create(void);
void feed_destroy(struct feed *feed); /* NULL is allowed */

/** Feeds the orders of one shard of batches that go together (companions.h), and awaits their end.
 * All parts of the shard are mapped. OK: the results are filled in. STATE: the daemon stops.
 * Otherwise the worker is to be ended, for the reason in `err`. */
enum adtopk_status feed_batches(
    struct worker *worker, const struct engine_wait *waiting, struct error *err);

/** Has the worker make its part of an operation of NCCL, that of device number `device`, and awaits
 * its end. The job's first part is mapped. What goes wrong with NCCL is in *said. Otherwise as
 * feed_batches(), but that nothing is begun again. */
enum adtopk_status feed_cargo(struct worker *worker, struct cargo *cargo, unsigned device,
    struct error *said, struct error *err);

/* ------------------------------------------------------------------ for rules */

struct feed;

/* What is asked of a residual, and where the answer goes. */
struct question {
    struct page_ask ask; /* its list is in memory of the daemon, and receives `count` entries,
                          * however many there are */
    struct page_answer *answer; /* unless the status of the order is MEMORY */
};

/** Asks it, and awaits the answer. *order: an ADD without gradients. result: of the order. False:
 * the worker is to be ended, and there is no answer. */
bool feed_ask(struct feed *feed, struct engine_order *order, const struct question *question,
    struct engine_result *result);

#endif
