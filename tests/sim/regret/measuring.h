/*
 * Measures the table of costs.h on this machine: the real core's computes, of buckets of many sizes
 * under every choice, one after the other on one thread.
 */
#ifndef ADTOPK_REGRET_MEASURING_H
#define ADTOPK_REGRET_MEASURING_H

#include <stdbool.h>

#include "proto/error.h"

/** Prints the table: means of the middle half of `steps` steps, all nodes. False and an error if it
 * cannot. */
bool measuring_print(unsigned nodes, double density, unsigned steps, struct error *err);

#endif
