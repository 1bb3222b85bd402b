/*
 * When the tensors of a gradient become ready in a step, as recorded from a real backward pass.
 */
#ifndef CLUSTER_ARRIVALS_H
#define CLUSTER_ARRIVALS_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/bench/cluster/shapes.h"

/** Puts the tensors into the order in which they become ready and fills at_ns[] in that order, from
 * the step's beginning. text: NUMBER:NS,NUMBER:NS,... with every tensor's number once, from 0 as in
 * *shapes, and rising times; NULL: as they are, all at once. False: it is not that; *shapes has
 * changed. */
bool arrivals_order(const char *text, struct shapes *shapes, uint64_t at_ns[SHAPES_MAX]);

/** Sleeps until so many nanoseconds after begin_ns of clock_ns(). */
void arrivals_await(uint64_t begin_ns, uint64_t at_ns);

#endif
