/*
 * The parts of the index encodings: the row of their table, and what their decoders share. Internal
 * to payload_index.c, payload_delta.c and payload_bitmap.c.
 */
#ifndef ADTOPK_PAYLOAD_CODING_H
#define ADTOPK_PAYLOAD_CODING_H

#include "proto/payload_index.h"

#define PAYLOAD_IMPOSSIBLE UINT64_MAX

/* The functions of payload_index.h for one encoding. */
struct index_coding {
    bool scanned; /* size and write look at the scan */
    uint64_t (*bound)(const struct payload_shape *shape, uint64_t count);
    /* NULL where the bound is exact and every list of this count fits. */
    uint64_t (*size)(const struct payload_shape *shape, const struct sparse *list,
        const struct payload_scan *scan);
    void (*write)(const struct payload_shape *shape, const struct sparse *list,
        const struct payload_scan *scan, uint8_t *out);
    enum adtopk_status (*read)(const struct payload_shape *shape, struct payload_input *input,
        uint32_t *position, size_t count, struct error *err);
};

extern const struct index_coding payload_coding_delta;
extern const struct index_coding payload_coding_rice;
extern const struct index_coding payload_coding_bitmap;
extern const struct index_coding payload_coding_hashmap;

/** Fails because this entry's position is not above the one before, or outside the tensor. */
enum adtopk_status payload_refuse_position(
    const struct payload_input *input, size_t entry, uint64_t position, struct error *err);

/** Fails because bits behind the positions are set. */
enum adtopk_status payload_refuse_padding(const struct payload_input *input, struct error *err);

#endif
