/*
 * Residuals in slots, beside the same ones as the host has them; and launches that are killed.
 *
 * Happy path: placed_draw() makes some residuals in one pool of slots. The test lets the host and
 * the device change them, the latter with placed_run(), and compares with placed_same().
 */
#ifndef ADTOPK_TESTS_CUDA_PLACED_H
#define ADTOPK_TESTS_CUDA_PLACED_H

#include <stdbool.h>
#include <stdlib.h>

#include "kernels/base/chunks.h"
#include "kernels/base/view.h"
#include "kernels/cpu/rounded.h"
#include "kernels/cuda/slots.h"
#include "tests/cuda/input.h"

enum { PLACED_SPARES = INPUT_BLOCKS, PLACED_STAMP = 3 }; /* of all chunks at first */

/* Slots of residuals in bf16. */
struct placed_halves {
    uint16_t *half;
    struct carry *carry;
};

/* A residual on both sides. */
struct placed {
    uint64_t numel;
    float *host;
    uint64_t *entry;                    /* of its chunks */
    struct rounded rounded;             /* element not NULL: it is in bf16, on the host here */
    const struct placed_halves *halves; /* and on the device here */
};

/** How many slots placed_draw() makes. */
uint64_t placed_slots(const struct placed *residual, unsigned count);

/** Draws the elements of `count` residuals, whose numel is set, and puts them into slots. Returns
 * the slots' elements. */
float *placed_draw(struct input *input, struct placed *residual, unsigned count);

/** Makes slots for residuals in bf16, as many as placed_draw() has made for others. */
struct placed_halves placed_halves(const struct placed *residual, unsigned count);

/** Makes a residual one in bf16, on both sides. */
void placed_round(struct input *input, struct placed *residual, const struct placed_halves *halves);

/** Whether both sides have the same bits, zeros behind the last element included. */
bool placed_same(const float *element, const struct placed *residual);

/** The same of `count` residuals, `each` of them per order. Names those that differ. */
bool placed_all_same(
    const float *element, const struct placed *residual, unsigned count, unsigned each);

/** Draws the sizes of `count` residuals, `each` of them with one size, `most` elements in all
 * orders. */
void placed_sizes(
    struct input *input, struct placed *residual, unsigned count, unsigned each, uint64_t most);

void placed_drop(float *element, struct placed *residual, unsigned count);

/** Makes a value of each that is not finite, or nearly infinite. */
void placed_tame(float *value, uint64_t count);

/** Ascending positions below n, now and then none. Returns how many; *position is to be freed. */
uint64_t placed_positions(struct input *input, uint64_t n, uint32_t **position);

/** Values of any kind. */
float *placed_values(struct input *input, uint64_t count);

/** A bit per entry, or NULL: all. */
uint8_t *placed_bits(struct input *input, uint64_t count);

/** A view of n elements. */
struct view placed_view(struct input *input, uint64_t n);

/** Runs kernels one after the other. Now and then the first attempts at all of them are killed
 * somewhere. */
void placed_run(struct input *input, launch_kernel *const *kernel, const void *const *parameter,
    unsigned kernels);

#endif
