#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/collective_group.h"

/* Runs the last part first, because the order must not matter. */
static void run_backwards(void *context, unsigned caller,
    void (*part)(void *arg, unsigned p, unsigned thread), void *arg, unsigned parts)
{
    (void)context;
    while (parts-- > 0) {
        part(arg, parts, caller);
    }
}

void group_init(struct group *group, const struct collective_ops *ops, unsigned members)
{
    *group = (struct group){
        .members = members, .ops = ops, .frame = calloc(GROUP_PHASES, sizeof(*group->frame))};
    assert_non_null(group->frame);
    for (unsigned m = 0; m < members; m++) {
        group->input[m] = calloc((size_t)GROUP_PHASES * members, sizeof(*group->input[m]));
        assert_non_null(group->input[m]);
        group->node[m] = (uint16_t)(300 + 7 * m);
        group->exchange[m] = (struct exchange){
            .ops = ops,
            .members = members,
            .self = m,
            .node = group->node,
            .header = {.run = 99, .number = 12, .view = 3, .bucket = 5, .source = group->node[m]},
            .index = PAYLOAD_INDEX_AUTO,
            .value = PAYLOAD_VALUE_F32,
            .scale = 1.0f,
            .input = group->input[m],
            .parallel = {.run = run_backwards, .threads = 4, .eager = m % 2 == 0},
        };
    }
}

void group_set_values(struct group *group, enum payload_value value, float scale)
{
    for (unsigned m = 0; m < group->members; m++) {
        group->exchange[m].value = value;
        group->exchange[m].scale = scale;
    }
}

static void hand_over(struct group *group, unsigned phase, unsigned from, unsigned to,
    const struct payload_writer *frame)
{
    /* The frames of an exchange carry the fields by which the core routes them. */
    struct payload_header header;

    assert_int_equal(payload_peek(&header, frame->bytes, frame->size, NULL), ADTOPK_OK);
    assert_in_range(header.phase, phase, GROUP_PHASES - 1);  /* it may be early */
    assert_null(group->frame[header.phase][from][to].bytes); /* one frame per phase and pair */
    assert_int_equal(header.source, group->node[from]);
    assert_int_equal(header.number, 12);
    group_replace(group, header.phase, from, to, frame->bytes, frame->size);
}

void group_replace(struct group *group, unsigned phase, unsigned from, unsigned to,
    const uint8_t *bytes, size_t size)
{
    struct group_frame *frame = &group->frame[phase][from][to];
    uint8_t *copy = malloc(size > 0 ? size : 1);

    assert_non_null(copy);
    if (size > 0) {
        memcpy(copy, bytes, size);
    }
    free(frame->bytes);
    *frame = (struct group_frame){copy, size};
    group->input[to][phase * group->members + from] = (struct exchange_input){
        .bytes = copy, .size = size, .known = to % 2 == 1, .crc = crc32c(0, copy, size)};
}

void group_produce(struct group *group, unsigned phase)
{
    for (unsigned i = 0; i < group->members; i++) {
        /* In odd phases the last member comes first, because the order must not matter. */
        unsigned m = phase % 2 == 0 ? i : group->members - 1 - i;
        struct exchange *exchange = &group->exchange[m];
        struct error err = {ADTOPK_OK, ""};

        if (group->ops->produce(exchange, phase, &err) != ADTOPK_OK) {
            fail_msg("member %u, phase %u: %s", m, phase, err.text);
        }
        for (unsigned f = 0; f < exchange->outgoing_count; f++) {
            const struct exchange_frame *frame = &exchange->outgoing[f];
            for (unsigned to = 0; to < group->members; to++) {
                if (to != m && (frame->to == to || frame->to == EXCHANGE_ALL)) {
                    hand_over(group, phase, m, to, &frame->frame);
                }
            }
        }
        exchange_drop_frames(exchange);
    }
    for (unsigned to = 0; to < group->members; to++) {
        for (unsigned from = 0; from < group->members; from++) {
            assert_int_equal(group->frame[phase][from][to].bytes != NULL,
                group->ops->expects(&group->exchange[to], phase, from));
        }
    }
}

/* What a carrier would do, in the order of the members. */
static void group_carry(struct group *group)
{
    const struct cargo *first = group->exchange[0].carried.cargo;
    float *sum = calloc(first->bytes / sizeof(float) + 1, sizeof(*sum));
    uint64_t at;

    assert_non_null(sum);
    for (unsigned m = 0; m < group->members; m++) {
        const struct cargo *from = group->exchange[m].carried.cargo;
        assert_int_equal(from->kind, first->kind);
        assert_int_equal(from->bytes, first->bytes);
        if (from->kind == CARGO_SUM) {
            dense_add(sum, (const float *)(const void *)from->input, from->bytes / sizeof(float));
        }
    }
    for (unsigned to = 0; to < group->members; to++) {
        const struct cargo *cargo = group->exchange[to].carried.cargo;
        if (cargo->kind == CARGO_SUM) {
            memcpy(cargo->input, sum, cargo->bytes);
        }
        at = cargo->kind == CARGO_DEAL ? to * cargo->bytes : 0;
        for (unsigned m = 0; cargo_has_pieces(cargo) && m < group->members; m++) {
            memcpy(cargo->output + m * cargo->bytes, group->exchange[m].carried.cargo->input + at,
                cargo->bytes);
        }
    }
    free(sum);
}

void group_exchange(struct group *group)
{
    unsigned phases = group->ops->phases(&group->exchange[0]);

    assert_in_range(phases, 1, GROUP_PHASES);
    for (unsigned phase = 0; phase < phases; phase++) {
        group_produce(group, phase);
        if (group->exchange[0].carried.cargo != NULL) { /* each phase makes one, or uses one up */
            group_carry(group);
        }
    }
}

void group_finish(struct group *group)
{
    for (unsigned m = 0; m < group->members; m++) {
        struct error err = {ADTOPK_OK, ""};
        if (group->ops->finish(&group->exchange[m], &err) != ADTOPK_OK) {
            fail_msg("member %u: %s", m, err.text);
        }
    }
}

struct payload_writer group_begin(const struct group *group, unsigned phase, unsigned from)
{
    struct payload_header header = group->exchange[from].header;
    struct payload_writer writer = {0};

    header.phase = (uint8_t)phase;
    assert_int_equal(payload_begin(&writer, &header), ADTOPK_OK);
    return writer;
}

void group_end(
    struct group *group, unsigned phase, unsigned from, unsigned to, struct payload_writer *writer)
{
    payload_end(writer);
    group_replace(group, phase, from, to, writer->bytes, writer->size);
    payload_free(writer);
}

/* A collective of a carrier has put pieces in the place of frames that it had read. */
static void group_point(struct group *group, unsigned to, unsigned phases)
{
    for (unsigned i = 0; i < phases * group->members; i++) {
        const struct group_frame *frame = &group->frame[i / group->members][i % group->members][to];

        group->input[to][i] = (struct exchange_input){.bytes = frame->bytes, .size = frame->size};
    }
}

enum adtopk_status group_judge(struct group *group, unsigned phase, unsigned to, struct error *err)
{
    struct exchange *exchange = &group->exchange[to];
    unsigned phases = group->ops->phases(exchange);
    enum adtopk_status status = ADTOPK_OK;

    *err = (struct error){ADTOPK_OK, ""};
    exchange_drop(exchange);
    group_point(group, to, phases);
    for (unsigned t = 0; t < exchange->tensors; t++) {
        exchange->tensor[t].update.count = exchange->tensor[t].rests.count = 0;
        exchange->tensor[t].nonfinite = false;
    }
    for (unsigned p = 0; p <= phase + 1 && p < phases; p++) {
        assert_int_equal(status, ADTOPK_OK);
        status = group->ops->produce(exchange, p, err);
        exchange_drop_frames(exchange);
    }
    return phase + 1 < phases ? status : group->ops->finish(exchange, err);
}

void group_assert_blamed(struct group *group, unsigned phase, unsigned from, unsigned to)
{
    struct error err;
    char name[16];

    (void)snprintf(name, sizeof(name), "node %u ", group->node[from]);
    assert_int_equal(group_judge(group, phase, to, &err), ADTOPK_ERR_PROTOCOL);
    assert_int_equal(err.code, ADTOPK_ERR_PROTOCOL);
    if (strstr(err.text, name) == NULL) {
        fail_msg("\"%s\" does not name %s", err.text, name);
    }
}

void group_spoil(struct group *group, unsigned phase, unsigned from, unsigned to)
{
    size_t size = group->frame[phase][from][to].size;
    uint8_t *good = calloc(size + 1, 1);
    struct error err;

    assert_non_null(good);
    memcpy(good, group->frame[phase][from][to].bytes, size);
    for (size_t cut = 0; cut < size; cut++) {
        group_replace(group, phase, from, to, good, cut);
        group_assert_blamed(group, phase, from, to);
    }
    group_replace(group, phase, from, to, good, size + 1);
    group_assert_blamed(group, phase, from, to);
    for (size_t at = 0; at < size; at++) {
        good[at] ^= 0x20;
        group_replace(group, phase, from, to, good, size);
        group_assert_blamed(group, phase, from, to);
        good[at] ^= 0x20;
    }
    group_replace(group, phase, from, to, good, size);
    assert_int_equal(group_judge(group, phase, to, &err), ADTOPK_OK); /* the frame was at fault */
    free(good);
}

unsigned group_each_frame(struct group *group,
    void (*visit)(struct group *group, unsigned phase, unsigned from, unsigned to))
{
    const unsigned pairs = group->members * group->members;
    unsigned frames = 0;

    for (unsigned i = 0; i < GROUP_PHASES * pairs; i++) {
        unsigned from = i / group->members % group->members, to = i % group->members;
        if (group->frame[i / pairs][from][to].bytes != NULL) {
            visit(group, i / pairs, from, to);
            frames++;
        }
    }
    return frames;
}

void group_free(struct group *group)
{
    for (unsigned phase = 0; phase < GROUP_PHASES; phase++) {
        for (unsigned from = 0; from < group->members; from++) {
            for (unsigned to = 0; to < group->members; to++) {
                free(group->frame[phase][from][to].bytes);
            }
        }
    }
    for (unsigned m = 0; m < group->members; m++) {
        exchange_drop(&group->exchange[m]);
        free(group->input[m]);
    }
    free(group->frame);
}
