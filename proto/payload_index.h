/*
 * The index encodings: how the positions of a sparse list are written.
 *
 * One table of operations, one row an encoding; proto/README.md has the bytes. Internal to proto.
 */
#ifndef ADTOPK_PAYLOAD_INDEX_H
#define ADTOPK_PAYLOAD_INDEX_H

#include "proto/payload.h"

#define PAYLOAD_DELTA_BLOCK 128
#define PAYLOAD_RICE_MAX 31 /* the parameter */

/* Bytes to decode from, and the number of their section for messages. */
struct payload_input {
    const uint8_t *next;
    const uint8_t *end;
    uint32_t section;
};

/** Hands out `bytes` of the input, or NULL with an error that names the field they were for. */
const uint8_t *payload_input_take(
    struct payload_input *input, uint64_t bytes, const char *field, struct error *err);

/* The result of one pass over a list's deltas, for the encodings that depend on all deltas. */
struct payload_scan {
    uint64_t delta_bytes;
    unsigned rice_parameter; /* the best one, the least of equals */
    uint64_t rice_bits;      /* of all codes, with that parameter */
};

/** Scans `count` ascending positions. */
void payload_scan(const uint32_t *position, size_t count, struct payload_scan *scan);

/** True for the encodings of a list: not AUTO, not DENSE, no unknown number. */
bool payload_index_is_list(unsigned index);

/** True for encodings whose size and bytes depend on a scan; the others do not read it. */
bool payload_index_is_scanned(enum payload_index index);

/** Most bytes that `count` positions can take; UINT64_MAX if no such list can be encoded so. */
uint64_t payload_index_bound(
    enum payload_index index, const struct payload_shape *shape, uint64_t count);

/** Bytes that this list's positions take, exactly; UINT64_MAX if it cannot be encoded so. `scan` is
 * of this list. */
uint64_t payload_index_size(enum payload_index index, const struct payload_shape *shape,
    const struct sparse *list, const struct payload_scan *scan);

/** Writes the positions to `out`, which has payload_index_size() bytes. */
void payload_index_write(enum payload_index index, const struct payload_shape *shape,
    const struct sparse *list, const struct payload_scan *scan, uint8_t *out);

/**
 * Reads `count` positions and moves input->next behind them. The positions must be strictly
 * ascending, inside the view, and encoded in the one way that payload_index_write() would choose.
 * Otherwise fails with ADTOPK_ERR_PROTOCOL, the section and the field. `position` may have been
 * written on failure.
 */
enum adtopk_status payload_index_read(enum payload_index index, const struct payload_shape *shape,
    struct payload_input *input, uint32_t *position, size_t count, struct error *err);

#endif
