/*
 * encode and decode: payload frames of one tensor, in every encoding of indices and values.
 */
#include "tests/bench/perf/frames.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/policy/policy.h"
#include "kernels/base/partition.h"
#include "proto/payload.h"
#include "tests/bench/perf/clock.h"
#include "tests/bench/perf/data.h"
#include "tests/bench/perf/perf.h"
#include "tests/bench/perf/stop.h"

static const char *index_name(enum payload_index index)
{
    return index == PAYLOAD_INDEX_DENSE ? "dense" : policy_index_name(index);
}

void frames_list(const char *indices[FRAMES_NAMES_MAX], const char *values[FRAMES_NAMES_MAX])
{
    unsigned i;

    for (i = 0; i < PAYLOAD_INDEX_COUNT; i++) {
        indices[i] = index_name((enum payload_index)i);
    }
    indices[i] = NULL;
    for (i = 0; i < PAYLOAD_VALUE_COUNT; i++) {
        values[i] = policy_value_name((enum payload_value)i);
    }
    values[i] = NULL;
}

/* What a list has positions of. */
enum frame_list {
    LIST_TENSOR, /* anything */
    LIST_FIBRES, /* the same number in every fibre */
    LIST_PART,   /* one partition of PARTS, as a node sends to each owner of one */
    LIST_KINDS
};

static const char *const list_names[LIST_KINDS] = {"list", "fibres", "part"};

#define PARTS 16

/* One tensor with one frame of it. */
struct frame {
    enum frame_list kind;
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

static enum adtopk_status frame_encode(struct frame *frame)
{
    const struct payload_header header = {.run = 1};
    enum adtopk_status status = payload_begin(&frame->writer, &header);

    if (status == ADTOPK_OK && frame->dense != NULL) {
        status = payload_put_dense(&frame->writer, frame->dense, frame->n, frame->value, NULL);
    } else if (status == ADTOPK_OK) {
        status = payload_put_list(
            &frame->writer, &frame->shape, &frame->list, frame->index, frame->value);
    }
    if (status == ADTOPK_OK) {
        payload_end(&frame->writer);
    }
    return status;
}

static enum adtopk_status frame_decode(struct frame *frame, struct error *err)
{
    struct payload_reader reader;
    enum adtopk_status status = payload_open(&reader, frame->writer.bytes, frame->writer.size, err);

    if (status == ADTOPK_OK && frame->dense != NULL) {
        status = payload_get_dense(&reader, frame->dense, frame->n, err);
    } else if (status == ADTOPK_OK) {
        status = payload_get_list(&reader, &frame->shape, &frame->list, err);
    }
    return status == ADTOPK_OK ? payload_close(&reader, err) : status;
}

/* Bytes of what is encoded. */
static size_t plain_size(const struct frame *frame)
{
    return frame->dense != NULL ? frame->n * sizeof(float)
                                : frame->list.count * (sizeof(uint32_t) + sizeof(float));
}

/* The floor of decoding: writing as many bytes as come in. */
static uint64_t floor_decode(struct frame *frame)
{
    memcpy(frame->copy, frame->writer.bytes, frame->writer.size);
    return frame->copy[0];
}

/* The floor of encoding: reading what is encoded. */
static uint64_t floor_encode(const struct frame *frame)
{
    if (frame->dense != NULL) {
        return data_read(frame->dense, frame->n * sizeof(float));
    }
    return data_read(frame->list.position, frame->list.count * sizeof(uint32_t)) ^
           data_read(frame->list.value, frame->list.count * sizeof(float));
}

static enum adtopk_status sample(
    struct frame *frame, bool decode, double *time, double *floor, struct error *err)
{
    volatile uint64_t sink; /* what was read is needed */
    uint64_t begin = clock_ns();
    enum adtopk_status status;

    sink = decode ? floor_decode(frame) : floor_encode(frame);
    *floor = clock_us_between(begin, clock_ns());
    (void)sink;
    begin = clock_ns();
    status = decode ? frame_decode(frame, err) : frame_encode(frame);
    *time = clock_us_between(begin, clock_ns());
    return status;
}

static enum adtopk_status measure(struct perf *perf, struct frame *frame, bool decode,
    struct series *times, struct series *floors, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;
    const uint64_t all = perf->options.warmup + perf->options.iterations;

    for (uint64_t i = 0; i < all && status == ADTOPK_OK && !stop_requested(); i++) {
        double time;
        double floor;

        status = sample(frame, decode, &time, &floor, err);
        if (status == ADTOPK_OK && i >= perf->options.warmup &&
            (!series_add(times, time) || !series_add(floors, floor))) {
            return perf_no_memory(err, sizeof(double));
        }
    }
    return status;
}

static enum adtopk_status report_frame(struct perf *perf, const struct frame *frame, bool decode,
    const struct series *times, const struct series *floors, struct error *err)
{
    const bool dense = frame->dense != NULL;
    char variant[32];
    struct row row = {.benchmark = perf->benchmark,
        .variant = variant,
        .input = dense ? "" : list_names[frame->kind],
        .size = frame->n * sizeof(float),
        .count = frame->n,
        .type = "f32",
        .density = frame->density,
        .alg_bytes = (double)(frame->n * sizeof(float)),
        .bus_bytes = (double)(plain_size(frame) + frame->writer.size),
        .wire_bytes = (double)frame->writer.size,
        .nonzeros = (double)(dense ? frame->n : frame->list.count),
        .target_us = NAN,
        .time = times,
        .floor_name = decode ? "memcpy" : "read",
        .floor = floors,
        .paired = true};

    (void)snprintf(variant, sizeof(variant), "%s %s", index_name(frame->index),
        policy_value_name(frame->value));
    return perf_row(perf, &row, err);
}

/* Keeps the positions of the first partition. */
static void keep_part(struct frame *frame)
{
    struct sparse *list = &frame->list;
    size_t kept = 0;

    frame->shape.parts = PARTS;
    for (size_t i = 0; i < list->count; i++) {
        if (partition_of(list->position[i], PARTS) == 0) {
            list->position[kept] = list->position[i];
            list->value[kept++] = list->value[i];
        }
    }
    list->count = kept;
}

static bool frame_fill(struct frame *frame, uint64_t fibre)
{
    const uint64_t length = frame->kind == LIST_FIBRES ? fibre : frame->n;
    const uint64_t k = data_share(length, frame->density);

    if (frame->index == PAYLOAD_INDEX_DENSE) {
        frame->dense = malloc(frame->n * sizeof(float));
        if (frame->dense != NULL) {
            data_fill(frame->dense, frame->n, DATA_NORMAL, 1);
        }
        return frame->dense != NULL;
    }
    frame->shape.view = (struct view){.fibres = frame->n / fibre, .length = fibre, .stride = 1};
    frame->shape.per_fibre = frame->kind == LIST_FIBRES ? k : 0;
    frame->shape.max_count = frame->n / length * k;
    if (!data_list(&frame->list, frame->n, length, k, 1)) {
        return false;
    }
    if (frame->kind == LIST_PART) {
        keep_part(frame);
    }
    return true;
}

static void frame_free(struct frame *frame)
{
    data_list_free(&frame->list);
    free(frame->dense);
    free(frame->copy);
    payload_free(&frame->writer);
}

static enum adtopk_status one_frame(
    struct perf *perf, const struct frame *kind, bool decode, struct error *err)
{
    struct frame frame = *kind;
    struct series times = {0};
    struct series floors = {0};
    const uint64_t fibre = perf->options.fibre < kind->n ? perf->options.fibre : kind->n;
    enum adtopk_status status = ADTOPK_ERR_MEMORY;

    frame.n -= frame.n % fibre;
    if (frame_fill(&frame, fibre) && frame_encode(&frame) == ADTOPK_OK) {
        frame.copy = malloc(frame.writer.size);
        status = frame.copy != NULL ? ADTOPK_OK : ADTOPK_ERR_MEMORY;
    }
    if (status == ADTOPK_OK) {
        status = measure(perf, &frame, decode, &times, &floors, err);
    } else {
        (void)perf_no_memory(err, frame.n * sizeof(float));
    }
    if (status == ADTOPK_OK) {
        status = report_frame(perf, &frame, decode, &times, &floors, err);
    }
    series_free(&times);
    series_free(&floors);
    frame_free(&frame);
    return status;
}

/* Rows need fixed counts in every fibre, hash bitmaps are made for partitions; auto chooses anew
 * for every kind of list. */
static bool has_list(enum payload_index index, enum frame_list kind)
{
    switch (index) {
    case PAYLOAD_INDEX_AUTO: return true;
    case PAYLOAD_INDEX_ROWS: return kind == LIST_FIBRES;
    case PAYLOAD_INDEX_HASHMAP: return kind == LIST_PART;
    default: return kind == LIST_TENSOR;
    }
}

static enum adtopk_status all_lists(
    struct perf *perf, const struct frame *kind, bool decode, struct error *err)
{
    const struct options *options = &perf->options;
    struct frame frame = *kind;
    enum adtopk_status status = ADTOPK_OK;

    for (uint64_t size = options->min; size > 0; size = perf_next_size(options, size)) {
        perf_progress(perf, index_name(kind->index), size, 0);
        frame.n = size / sizeof(float);
        for (size_t i = 0; i < options->densities.count; i++) {
            const bool dense = kind->index == PAYLOAD_INDEX_DENSE;

            frame.density = dense ? 1 : options->densities.value[i];
            if (dense && i > 0) {
                break;
            }
            status = one_frame(perf, &frame, decode, err);
            if (status != ADTOPK_OK || stop_requested()) {
                return status;
            }
        }
    }
    return status;
}

static enum adtopk_status all_frames(struct perf *perf, bool decode, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;

    for (unsigned i = 0; i < PAYLOAD_INDEX_COUNT * PAYLOAD_VALUE_COUNT * LIST_KINDS; i++) {
        const unsigned index = i / LIST_KINDS % PAYLOAD_INDEX_COUNT;
        const unsigned value = i / LIST_KINDS / PAYLOAD_INDEX_COUNT;
        const struct frame frame = {.kind = (enum frame_list)(i % LIST_KINDS),
            .index = (enum payload_index)index,
            .value = (enum payload_value)value};

        if (perf_has(perf->options.indices, index) && perf_has(perf->options.values, value) &&
            has_list(frame.index, frame.kind)) {
            status = all_lists(perf, &frame, decode, err);
        }
        perf_progress_end(perf);
        if (status != ADTOPK_OK || stop_requested()) {
            return status;
        }
    }
    return status;
}

enum adtopk_status encode_run(struct perf *perf, struct error *err)
{
    return all_frames(perf, false, err);
}

enum adtopk_status decode_run(struct perf *perf, struct error *err)
{
    return all_frames(perf, true, err);
}
