/*
 * Dense sums of a carrier whose values stay on the devices (collective/cargo.h): the residuals are
 * read there, and the update is written from there.
 */
#ifndef ADTOPK_COMPUTE_DEVICE_SUM_H
#define ADTOPK_COMPUTE_DEVICE_SUM_H

#include "daemon/compute/work.h"

/* Whether a dense round's values can stay on the devices. All nodes agree on it. */
bool device_sum_can(const struct round *round);

/* Adds its orders to the operation that the round's collective has just made. */
enum adtopk_status device_sum_order(struct work *work);

/* Whether the operation also writes the tensor's update where ranks see it on their GPUs. It does
 * not if the policy makes NaN of that update. */
bool device_sum_shows(const struct round *round, const struct exchange_tensor *entry);

#endif
