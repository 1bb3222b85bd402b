/*
 * Rules that select from residuals on a device: for the feeder's thread.
 *
 * Happy path: the order of an ADD goes to the worker with a question, which asks for the statistics
 * that the rule needs, and for the elements that reach its guess. When both are here, the rule
 * selects in memory of the daemon. It is a survey (kernels/base/survey.h) whose candidates are that
 * list. So with a guess as good as the last turn's the rule needs nothing else of the device.
 * Where the candidates leave a question open, this thread asks the worker, and waits.
 *
 * Failures: where the worker dies meanwhile, the rule gets answers of which nothing is used. The
 * batch begins again, and with it the rule: it changes nothing that it reads.
 */
#ifndef ADTOPK_DEVICE_RULE_H
#define ADTOPK_DEVICE_RULE_H

#include "daemon/device/feed.h"

struct rule;

/** Nothing is asked. */
extern const struct question rule_none;

/** Adds the rule of an order. The result is the question that goes with the order; NULL: there is
 * no memory. */
const struct question *rule_add(struct rule **rules, struct engine_batch *batch, unsigned at);

/** Takes a rule off the list. If its order was carried out, it selects, unless `selects` is false.
 */
void rule_select(struct rule **rules, struct feed *feed, bool selects);

#endif
