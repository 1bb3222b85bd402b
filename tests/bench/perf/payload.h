/*
 * What `encode` and `decode` share: frames of one tensor, in every encoding.
 */
#ifndef PERF_PAYLOAD_H
#define PERF_PAYLOAD_H

#include "proto/payload.h"
#include "tests/bench/perf/perf.h"

extern const char *const payload_index_names[]; /* of enum payload_index; ends with NULL */
extern const char *const payload_value_names[]; /* of enum payload_value; ends with NULL */

/* One tensor with one frame of it. */
struct frame {
    enum payload_index index;
    enum payload_value value;
    uint64_t n;
    double density;
    struct payload_shape shape;
    struct sparse list; /* what is encoded, and what is decoded into; empty if dense */
    float *dense;       /* the same for DENSE; else NULL */
    struct payload_writer writer;
    uint8_t *copy; /* as long as the frame */
};

/** Writes the whole frame again. */
enum adtopk_status frame_encode(struct frame *frame);

/** Reads the whole frame back. */
enum adtopk_status frame_decode(struct frame *frame, struct error *err);

/** Runs over all tensors and encodings that were asked for. */
enum adtopk_status payload_run(struct perf *perf, bool decode, struct error *err);

#endif
