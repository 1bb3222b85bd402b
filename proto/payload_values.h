/*
 * The value encodings: how the values of a list, or all elements, are written. proto/README.md has
 * the bytes. Internal to proto.
 */
#ifndef ADTOPK_PAYLOAD_VALUES_H
#define ADTOPK_PAYLOAD_VALUES_H

#include "proto/payload.h"
#include "proto/payload_index.h"

/** Bytes of n values; n is at most the greatest count of a section. */
uint64_t payload_values_size(uint64_t n, enum payload_value value);

/** A limit of how many values fit into so many bytes. */
uint64_t payload_values_most(uint64_t bytes, enum payload_value value);

/** Writes values, rounded if needed. `decoded` (NULL, or x itself) gets the values that the
 * receiver will read. */
void payload_values_write(
    uint8_t *to, const float *x, uint64_t n, enum payload_value value, float *decoded);

/** Reads n values and moves input->next behind them, or fails (ADTOPK_ERR_PROTOCOL) on bytes that
 * payload_values_write() does not make of finite numbers. `x` may have been written on failure. */
enum adtopk_status payload_values_read(
    struct payload_input *input, float *x, uint64_t n, enum payload_value value, struct error *err);

/** Does what payload_add_dense() says. */
enum adtopk_status payload_values_add(
    const struct payload_dense *dense, uint64_t first, float *sum, uint64_t n, struct error *err);

#endif
