/*
 * Pieces of a checkpoint on one node driven by hand: what goes out comes in again, at which
 * moments, and what is refused. No piece may crash the daemon or change a residual in another
 * state.
 */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lone_core.h"
#include "proto/checkpoint_content.h"
#include "proto/codec.h"

static float room[CORE_KEEP_SIZE / sizeof(float)];

/* Hands over a piece as the first rank. A piece that is read lies in `room`. */
static enum adtopk_status keep(struct lone_core *lone, struct event_keep *piece)
{
    struct event event = {.type = EVENT_RANK_KEEP, .session = 1, .keep = piece};

    if (piece->bytes == NULL) {
        piece->bytes = (uint8_t *)room;
    }
    return host_event(&lone->host, event);
}

static void must_keep(struct lone_core *lone, struct event_keep piece)
{
    lone_must(lone, keep(lone, &piece));
}

static void refused(
    struct lone_core *lone, struct event_keep piece, enum adtopk_status status, const char *word)
{
    assert_int_equal(keep(lone, &piece), status);
    lone_assert_refused(lone, status, word, "");
}

/* What a node keeps. */
struct kept {
    uint8_t job[CORE_KEEP_SIZE], tensor[3][CORE_KEEP_SIZE];
    size_t job_size, tensor_size[3];
    float element[3][2][CORE_READ_STEP], carry[3][256], velocity[3][2][CORE_READ_STEP];
    uint64_t residuals[3], carries[3], velocities[3];
};

static size_t keep_bytes(struct lone_core *lone, enum keep_section section, uint32_t tensor,
    uint8_t bytes[CORE_KEEP_SIZE])
{
    struct event_keep piece = {.section = section, .tensor = tensor};

    lone_must(lone, keep(lone, &piece));
    (void)memcpy(bytes, room, piece.size);
    return piece.size;
}

static void keep_floats(struct lone_core *lone, enum keep_section section, uint32_t tensor,
    uint32_t residual, uint64_t count, float *out)
{
    struct event_keep piece = {
        .section = section, .tensor = tensor, .residual = residual, .count = (uint32_t)count};

    lone_must(lone, keep(lone, &piece));
    assert_int_equal(piece.size, count * sizeof(float));
    (void)memcpy(out, room, piece.size);
}

static void keep_all(struct lone_core *lone, struct kept *kept)
{
    kept->job_size = keep_bytes(lone, KEEP_JOB, 0, kept->job);
    for (uint32_t t = 0; t < 3; t++) {
        Adtopk__CheckpointTensor *message;
        kept->tensor_size[t] = keep_bytes(lone, KEEP_TENSOR, t, kept->tensor[t]);
        message = (Adtopk__CheckpointTensor *)codec_unpack(&adtopk__checkpoint_tensor__descriptor,
            kept->tensor[t], kept->tensor_size[t], CORE_KEEP_SIZE, NULL);
        assert_non_null(message);
        assert_int_equal(checkpoint_check_tensor(message, NULL), ADTOPK_OK);
        assert_int_equal(checkpoint_numel(message), lone->numel[t]);
        kept->residuals[t] = message->residuals;
        kept->carries[t] = checkpoint_floats(message, CHECKPOINT_CARRIES);
        kept->velocities[t] = checkpoint_floats(message, CHECKPOINT_VELOCITY);
        for (uint32_t r = 0; r < kept->residuals[t]; r++) {
            keep_floats(lone, KEEP_ELEMENTS, t, r, lone->numel[t], kept->element[t][r]);
            if (kept->velocities[t] > 0) {
                keep_floats(lone, KEEP_VELOCITY, t, r, lone->numel[t], kept->velocity[t][r]);
            }
        }
        if (kept->carries[t] > 0) {
            keep_floats(lone, KEEP_CARRIES, t, 0, kept->carries[t], kept->carry[t]);
        }
        codec_free(&message->base);
    }
}

static void load_elements(struct lone_core *lone, struct kept *kept, uint32_t t, uint32_t r)
{
    const uint64_t numel = lone->numel[t];
    struct event_keep piece = {.writes = true,
        .section = KEEP_ELEMENTS,
        .tensor = t,
        .residual = r,
        .count = (uint32_t)numel,
        .size = numel * sizeof(float)};

    (void)memcpy(room, kept->element[t][r], piece.size);
    if (kept->carries[t] > 0) {
        (void)memcpy(room + numel, kept->carry[t], CHECKPOINT_CARRY * sizeof(float));
        piece.size += CHECKPOINT_CARRY * sizeof(float);
    }
    lone_must(lone, keep(lone, &piece));
    if (kept->velocities[t] > 0) {
        piece.section = KEEP_VELOCITY;
        piece.size = numel * sizeof(float);
        piece.bytes = (uint8_t *)kept->velocity[t][r];
        lone_must(lone, keep(lone, &piece));
    }
}

static struct event_keep writing(enum keep_section section, uint32_t t, void *bytes, size_t size)
{
    return (struct event_keep){
        .writes = true, .section = section, .tensor = t, .bytes = bytes, .size = size};
}

static void load_all(struct lone_core *lone, struct kept *kept)
{
    must_keep(lone, writing(KEEP_JOB, 0, kept->job, kept->job_size));
    for (uint32_t t = 0; t < 3; t++) {
        for (uint32_t r = 0; r < kept->residuals[t]; r++) {
            load_elements(lone, kept, t, r);
            load_elements(lone, kept, t, r); /* again changes nothing */
        }
        must_keep(lone, writing(KEEP_TENSOR, t, kept->tensor[t], kept->tensor_size[t]));
    }
    must_keep(lone, writing(KEEP_END, 0, NULL, 0));
}

/* What a second core has loaded is what the first one keeps. */
static void go_round(const char *policy)
{
    static struct kept first, second;
    struct lone_core lone;

    (void)memset(&first, 0, sizeof(first));
    (void)memset(&second, 0, sizeof(second));
    lone_begin(&lone, policy);
    lone_train(&lone, 5);
    keep_all(&lone, &first);
    lone_free(&lone);
    lone_begin(&lone, policy);
    load_all(&lone, &first);
    keep_all(&lone, &second);
    assert_memory_equal(&first, &second, sizeof(first));
    lone_verify(&lone, 1);
    for (uint32_t t = 0; t < 3; t++) {
        const struct verified verified = lone_tensor(&lone, t).verified;
        assert_true(fabs(verified.input[1] - verified.applied[1] - verified.lost[1] -
                         verified.residual[1]) <= 1e-4 * (1 + verified.magnitude));
    }
    lone_free(&lone);
}

static void test_round(void **state)
{
    (void)state;
    go_round("{" LONE_EXACT "}");
    go_round("{" LONE_EXACT ",\"scope\":\"rank\"}");
    go_round("{" LONE_EXACT ",\"residual\":\"bf16\",\"sparsifier\":\"topk\"}");
    go_round("{" LONE_EXACT ",\"momentum\":0.5,\"sparsifier\":\"topk\"}");
    go_round("{" LONE_EXACT ",\"estimate\":true,\"interleave\":true}");
    go_round("{\"sparsifier\":\"dense\"}");
}

/* A job cannot get a part of one checkpoint and the rest of another. */
static void refuse_another(struct lone_core *lone, const struct kept *kept)
{
    uint8_t bytes[CORE_KEEP_SIZE];
    Adtopk__CheckpointJob *message = (Adtopk__CheckpointJob *)codec_unpack(
        &adtopk__checkpoint_job__descriptor, kept->job, kept->job_size, CORE_KEEP_SIZE, NULL);

    assert_non_null(message);
    message->step++;
    refused(lone, writing(KEEP_JOB, 0, bytes, protobuf_c_message_pack(&message->base, bytes)),
        ADTOPK_ERR_STATE, "another checkpoint");
    codec_free(&message->base);
}

static void test_moments(void **state)
{
    static struct kept kept;
    struct lone_core lone;
    struct event_keep piece = {.section = KEEP_JOB};
    struct event other = {.type = EVENT_RANK_KEEP, .session = 2, .keep = &piece};

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT "}");
    lone_train(&lone, 2);
    keep_all(&lone, &kept);
    refused(&lone, writing(KEEP_JOB, 0, kept.job, kept.job_size), ADTOPK_ERR_STATE, "has done");
    lone_push(&lone, 1, 0);
    refused(&lone, piece, ADTOPK_ERR_STATE, "rank 1 is in step 2");
    lone_free(&lone);

    lone_begin(&lone, "{" LONE_EXACT "}");
    refused(&lone, writing(KEEP_END, 0, NULL, 0), ADTOPK_ERR_STATE, "has not begun");
    refused(&lone, writing(KEEP_TENSOR, 0, kept.tensor[0], kept.tensor_size[0]), ADTOPK_ERR_STATE,
        "has not begun");
    piece = writing(KEEP_JOB, 0, kept.job, kept.job_size);
    assert_int_equal(host_event(&lone.host, other), ADTOPK_ERR_STATE);
    lone_assert_refused(&lone, ADTOPK_ERR_STATE, "first rank", "rank 1");
    must_keep(&lone, piece);
    refuse_another(&lone, &kept);
    assert_int_equal(lone_push(&lone, 0, 0), ADTOPK_ERR_STATE);
    lone_assert_refused(&lone, ADTOPK_ERR_STATE, "loading of a checkpoint", "rank 0");
    assert_int_equal(lone_end(&lone, 1), ADTOPK_ERR_STATE);
    load_all(&lone, &kept);
    must_keep(&lone, writing(KEEP_END, 0, NULL, 0)); /* the first answer may have been lost */
    refused(&lone, writing(KEEP_JOB, 0, kept.job, kept.job_size), ADTOPK_ERR_STATE, "has loaded");
    lone.host.hold = true;
    assert_int_equal(lone_verify(&lone, 1), ADTOPK_OK);
    piece = (struct event_keep){.section = KEEP_JOB};
    assert_int_equal(keep(&lone, &piece), ADTOPK_PENDING);
    lone.host.hold = false;
    host_compute(&lone.host);
    must_keep(&lone, (struct event_keep){.section = KEEP_JOB});
    lone_free(&lone);
}

/* Each piece with one thing wrong. */
static void test_wrong_pieces(void **state)
{
    static const float wrong[] = {NAN, INFINITY, -FLT_MAX};
    static struct kept kept;
    struct lone_core lone;
    const struct event_keep element = {
        .writes = true, .section = KEEP_ELEMENTS, .count = 4, .size = 16};
    struct event_keep piece;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT "}");
    keep_all(&lone, &kept);
    must_keep(&lone, writing(KEEP_JOB, 0, kept.job, kept.job_size));
    (void)memset(room, 0, sizeof(room));
    must_keep(&lone, element);
    for (unsigned field = 0; field < 9; field++) {
        piece = element;
        piece.section = field == 0 ? KEEP_SECTIONS : field == 8 ? KEEP_VELOCITY : piece.section;
        piece.tensor = field == 1 ? 3 : 0;
        piece.residual = field == 2 ? 1 : 0;
        piece.first = field == 3 ? 1 : field == 4 ? CORE_READ_STEP : 0;
        piece.count = field == 5 ? CORE_READ_STEP + 1 : field == 6 ? UINT32_MAX : 4;
        piece.size = field == 7 ? 12 : piece.count == 4 ? 16 : CORE_KEEP_SIZE;
        refused(&lone, piece, ADTOPK_ERR_ARGUMENT, "cannot be written");
    }
    refused(&lone, writing(KEEP_POLICY, 0, kept.job, 1), ADTOPK_ERR_ARGUMENT, "section 1");
    refused(&lone, writing(KEEP_CARRIES, 0, kept.job, 4), ADTOPK_ERR_ARGUMENT, "section 4");
    refused(&lone, (struct event_keep){.section = KEEP_ELEMENTS, .first = UINT64_MAX - 8191},
        ADTOPK_ERR_ARGUMENT, "read");
    for (unsigned w = 0; w < sizeof(wrong) / sizeof(*wrong); w++) {
        room[2] = wrong[w];
        refused(&lone, element, ADTOPK_ERR_ARGUMENT, "not finite");
    }
    refused(&lone, writing(KEEP_TENSOR, 1, kept.tensor[0], kept.tensor_size[0]),
        ADTOPK_ERR_MISMATCH, "fc.weight");
    lone_free(&lone);
}

/* Every cut and every changed byte of a message: taken or refused, and the core goes on. */
static void test_wrong_messages(void **state)
{
    static struct kept kept;
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT ",\"interleave\":true,\"adaptive\":true}");
    lone_train(&lone, 4);
    keep_all(&lone, &kept);
    lone_free(&lone);
    lone_begin(&lone, "{" LONE_EXACT ",\"interleave\":true,\"adaptive\":true}");
    must_keep(&lone, writing(KEEP_JOB, 0, kept.job, kept.job_size));
    for (size_t i = 0; i < 2 * kept.tensor_size[0]; i++) {
        const size_t at = i / 2;
        struct event_keep piece = writing(KEEP_TENSOR, 0, kept.tensor[0], at);
        (void)keep(&lone, &piece);
        kept.tensor[0][at] ^= i % 2 == 0 ? 0xff : 1;
        piece = writing(KEEP_TENSOR, 0, kept.tensor[0], kept.tensor_size[0]);
        (void)keep(&lone, &piece);
        kept.tensor[0][at] ^= i % 2 == 0 ? 0xff : 1;
    }
    for (size_t at = 0; at < kept.job_size; at++) {
        struct event_keep piece = writing(KEEP_JOB, 0, kept.job, at);
        (void)keep(&lone, &piece);
    }
    must_keep(&lone, writing(KEEP_TENSOR, 0, kept.tensor[0], kept.tensor_size[0]));
    must_keep(&lone, writing(KEEP_END, 0, NULL, 0));
    lone_push_all(&lone);
    lone_end_all(&lone);
    lone_free(&lone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round),
        cmocka_unit_test(test_moments),
        cmocka_unit_test(test_wrong_pieces),
        cmocka_unit_test(test_wrong_messages),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
