/*
 * Copies of delivered rounds.
 */
#ifndef ADTOPK_COMPUTE_COPY_H
#define ADTOPK_COMPUTE_COPY_H

#include "daemon/job/model.h"

struct buffer *copy_encode(const struct round *round, uint64_t number);
enum adtopk_status copy_decode(struct round *round, const struct buffer *frame, struct error *err);

#endif
