#include "tests/cuda/placed.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Kills: fewer than this. Changes of thread before one: at most these. */
enum { KILLS = 3, SWITCHES = 20000 };

uint64_t placed_slots(const struct placed *residual, unsigned count)
{
    uint64_t slots = 1 + PLACED_SPARES;
    for (unsigned r = 0; r < count; r++) {
        slots += chunk_count(residual[r].numel);
    }
    return slots;
}

/* Numbers of slots in a random order. Slot 0 is nobody's. */
static uint32_t *placed_order(struct input *input, uint64_t slots)
{
    uint32_t *const order = input_memory(slots * sizeof *order, 0);
    for (uint32_t s = 0; s + 1 < slots; s++) {
        const uint32_t other = (uint32_t)input_below(input, s + 1);
        order[s] = order[other];
        order[other] = s + 1;
    }
    return order;
}

/* Elements of a chunk. */
static uint64_t placed_length(const struct placed *residual, uint64_t chunk)
{
    const uint64_t rest = residual->numel - chunk * CHUNK;
    return rest < CHUNK ? rest : CHUNK;
}

float *placed_draw(struct input *input, struct placed *residual, unsigned count)
{
    const uint64_t slots = placed_slots(residual, count);
    float *const element = input_memory(slots * CHUNK * sizeof(float), 0x55);
    uint32_t *const order = placed_order(input, slots);
    uint32_t next = 0;
    for (unsigned r = 0; r < count; r++) {
        struct placed *const one = &residual[r];
        one->host = placed_values(input, one->numel);
        placed_tame(one->host, one->numel);
        one->entry = input_memory(chunk_count(one->numel) * sizeof *one->entry, 0);
        for (uint64_t c = 0; c < chunk_count(one->numel); c++) {
            float *const to = element + (uint64_t)order[next] * CHUNK;
            one->entry[c] = slot_entry(PLACED_STAMP, order[next++]);
            memset(to, 0, CHUNK * sizeof *to);
            memcpy(to, one->host + c * CHUNK, placed_length(one, c) * sizeof *to);
        }
    }
    input_free(order);
    return element;
}

struct placed_halves placed_halves(const struct placed *residual, unsigned count)
{
    const uint64_t slots = placed_slots(residual, count);
    return (struct placed_halves){.half = input_memory(slots * CHUNK * sizeof(uint16_t), 0x55),
        .carry = input_memory(slots * sizeof(struct carry), 0x55)};
}

void placed_round(struct input *input, struct placed *residual, const struct placed_halves *halves)
{
    const uint64_t n = residual->numel;
    residual->rounded = rounded_at(input_memory(rounded_size(n), 0), n);
    residual->rounded.salt = input_next(input);
    residual->halves = halves;
    rounded_from(&residual->rounded, residual->host, n);
    for (uint64_t c = 0; c < chunk_count(n); c++) {
        const uint64_t slot = slot_of(residual->entry[c]);
        memset(halves->half + slot * CHUNK, 0, CHUNK * sizeof *halves->half);
        memcpy(halves->half + slot * CHUNK, residual->rounded.element + c * CHUNK,
            placed_length(residual, c) * sizeof *halves->half);
        halves->carry[slot] = residual->rounded.carry[c];
    }
}

static bool placed_same_halves(const struct placed *residual)
{
    const struct placed_halves *const halves = residual->halves;
    for (uint64_t c = 0; c < chunk_count(residual->numel); c++) {
        const uint64_t slot = slot_of(residual->entry[c]);
        uint16_t expected[CHUNK] = {0};
        memcpy(expected, residual->rounded.element + c * CHUNK,
            placed_length(residual, c) * sizeof *expected);
        if (memcmp(expected, halves->half + slot * CHUNK, sizeof expected) != 0 ||
            memcmp(&halves->carry[slot], &residual->rounded.carry[c], sizeof(struct carry)) != 0) {
            return false;
        }
    }
    return true;
}

bool placed_same(const float *element, const struct placed *residual)
{
    if (residual->halves != NULL) {
        return placed_same_halves(residual);
    }
    for (uint64_t c = 0; c < chunk_count(residual->numel); c++) {
        float expected[CHUNK] = {0};
        memcpy(expected, residual->host + c * CHUNK, placed_length(residual, c) * sizeof(float));
        if (memcmp(expected, element + (uint64_t)slot_of(residual->entry[c]) * CHUNK,
                sizeof expected) != 0) {
            return false;
        }
    }
    return true;
}

bool placed_all_same(
    const float *element, const struct placed *residual, unsigned count, unsigned each)
{
    bool same = true;
    for (unsigned r = 0; r < count; r++) {
        if (!placed_same(element, &residual[r])) {
            (void)fprintf(stderr, "order %u: residual %u of %u\n", r / each, r % each, each);
            same = false;
        }
    }
    return same;
}

void placed_sizes(
    struct input *input, struct placed *residual, unsigned count, unsigned each, uint64_t most)
{
    for (unsigned r = 0; r < count; r++) {
        residual[r].numel =
            r % each == 0 ? input_size(input, most * each / count) : residual[r - 1].numel;
    }
}

void placed_drop(float *element, struct placed *residual, unsigned count)
{
    for (unsigned r = 0; r < count; r++) {
        input_free(residual[r].host);
        input_free(residual[r].rounded.element);
        input_free(residual[r].entry);
    }
    input_free(element);
}

void placed_tame(float *value, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        value[i] = fabsf(value[i]) < 0x1p120f ? value[i] : 0.75f;
    }
}

uint64_t placed_positions(struct input *input, uint64_t n, uint32_t **position)
{
    const uint64_t one_in = 1 + input_below(input, input_below(input, 2) == 0 ? 4 : 200);
    const bool none = input_below(input, 12) == 0;
    uint64_t count = 0;
    *position = input_memory(n * sizeof **position, 0);
    for (uint32_t p = 0; p < n && !none; p++) {
        if (input_below(input, one_in) == 0 || (p == n - 1 && count == 0)) {
            (*position)[count++] = p;
        }
    }
    return count;
}

float *placed_values(struct input *input, uint64_t count)
{
    float *const value = input_memory(count * sizeof *value, 0);
    input_fill(input, (enum input_kind)input_below(input, INPUT_KINDS), DTYPE_F32, count, value);
    return value;
}

uint8_t *placed_bits(struct input *input, uint64_t count)
{
    uint8_t *bits = NULL;
    if (input_below(input, 2) == 0) {
        bits = input_memory((count + 7) / 8, 0);
        for (uint64_t i = 0; i < (count + 7) / 8; i++) {
            bits[i] = (uint8_t)input_next(input);
        }
    }
    return bits;
}

struct view placed_view(struct input *input, uint64_t n)
{
    uint64_t stride = 1 + input_below(input, 40);
    uint64_t length = 1 + input_below(input, 20);
    if (n % stride != 0 || input_below(input, 3) == 0) {
        stride = 1;
    }
    if (n / stride % length != 0) {
        length = n / stride;
    }
    return (struct view){.fibres = n / length, .length = length, .stride = stride};
}

/* Runs the first `count` of them to their ends. */
static void placed_launch(
    struct input *input, launch_kernel *const *kernel, const void *const *parameter, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        const struct launch how = input_launch(input);
        launch(&how, kernel[i], parameter[i]);
    }
}

#ifdef CUDA_NO_KILLS
static void placed_kills(struct input *input, launch_kernel *const *kernel,
    const void *const *parameter, unsigned kernels)
{
    (void)input;
    (void)kernel;
    (void)parameter;
    (void)kernels;
}
#else
/* Attempts that are killed somewhere, or none. */
static void placed_kills(struct input *input, launch_kernel *const *kernel,
    const void *const *parameter, unsigned kernels)
{
    for (uint64_t kills = input_below(input, KILLS); kills > 0; kills--) {
        const unsigned last = (unsigned)input_below(input, kernels);
        placed_launch(input, kernel, parameter, last);
        const struct launch how = input_launch(input);
        struct launched *const launched = launch_begin(&how, kernel[last], parameter[last]);
        (void)launch_go_on(launched, input_below(input, SWITCHES));
        launch_end(launched);
    }
}
#endif

void placed_run(struct input *input, launch_kernel *const *kernel, const void *const *parameter,
    unsigned kernels)
{
    placed_kills(input, kernel, parameter, kernels);
    placed_launch(input, kernel, parameter, kernels);
}
