/* Steps of the ranks, and checks of the sums afterwards. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/base/convert.h"
#include "lone_core.h"
#include "proto/local.h"
#include "proto/loss_scale.h"
#include "tests/host/inside.h"

float lone_gradient(uint64_t step, unsigned rank, uint32_t tensor, uint64_t element)
{
    uint64_t x = (step * 31 + rank * 7 + tensor * 13 + element) * 0x9e3779b97f4a7c15u;

    return ((float)(int)((x >> 40) % 15) - 7.0f) * 257; /* more digits than a bf16 has */
}

/* For tensors in 16 bits: a value that the type holds exactly. The sums may not fit. */
static float gradient_of(
    const struct lone_core *lone, uint64_t step, unsigned rank, uint32_t tensor, uint64_t element)
{
    float gradient = lone_gradient(step, rank, tensor, element);

    return lone->half && !lone_is_f16(tensor) ? gradient / 257 * 33 : gradient;
}

static void write_gradient(struct lone_core *lone, unsigned rank, uint32_t tensor)
{
    struct tensor_layout layout;

    assert_true(inside_layout(lone->host.core, rank + 1, tensor, &layout));
    for (uint64_t i = 0; i < lone->numel[tensor]; i++) {
        uint8_t *arena = lone->host.memory.arena[rank].bytes + layout.gradient_offset;
        float g = gradient_of(lone, lone->step, rank, tensor, i) * loss_scale_factor(lone->scale);
        uint16_t bits = lone_is_f16(tensor) ? convert_to_f16(g) : convert_to_bf16(g);
        if (lone->half) {
            memcpy(arena + 2 * i, &bits, sizeof(bits));
        } else {
            memcpy(arena + 4 * i, &g, sizeof(g));
        }
    }
}

static enum adtopk_status push(struct lone_core *lone, unsigned rank, uint32_t tensor)
{
    return lone_rank_event(lone, rank,
        (struct event){.type = EVENT_RANK_PUSH,
            .step = {.tensor = tensor, .number = lone->step, .scale = lone->scale}});
}

enum adtopk_status lone_push(struct lone_core *lone, unsigned rank, uint32_t tensor)
{
    write_gradient(lone, rank, tensor);
    return push(lone, rank, tensor);
}

enum adtopk_status lone_end(struct lone_core *lone, unsigned rank)
{
    return lone_rank_event(
        lone, rank, (struct event){.type = EVENT_RANK_STEP_END, .step.number = lone->step});
}

enum adtopk_status lone_wait(struct lone_core *lone, unsigned rank, uint32_t tensor)
{
    return lone_rank_event(lone, rank,
        (struct event){.type = EVENT_RANK_WAIT, .step = {.tensor = tensor, .number = lone->step}});
}

void lone_push_all(struct lone_core *lone)
{
    for (unsigned r = 0; r < lone->ranks; r++) {
        for (uint32_t t = 0; t < lone->tensors; t++) {
            lone_must(lone, lone_push(lone, r, t));
        }
    }
}

void lone_end_all(struct lone_core *lone)
{
    for (unsigned r = 0; r < lone->ranks; r++) {
        lone_must(lone, lone_end(lone, r));
    }
}

static void add_update(struct lone_core *lone, uint32_t t)
{
    const struct local_results *table = (const void *)lone->host.memory.results.bytes;
    const struct local_update *update =
        (const void *)(lone->host.memory.results.bytes + table->tensor[t].update_offset);
    const uint16_t *half = (const void *)(lone->host.memory.results.bytes + update->half_offset);
    const float *dense = (const void *)(lone->host.memory.results.bytes + update->dense_offset);
    const uint32_t *index = (const void *)(lone->host.memory.results.bytes + update->index_offset);
    const float *value = (const void *)(lone->host.memory.results.bytes + update->value_offset);
    const double scale = (double)loss_scale_factor(lone->scale);

    assert_int_equal(update->step, lone->step);
    assert_true(update->forms != 0 && update->count <= update->capacity);
    assert_int_equal((update->forms & LOCAL_FORM_DENSE16) != 0, lone->half);
    for (uint64_t i = 0; lone->half && i < lone->numel[t]; i++) {
        lone->applied[t][i] +=
            (double)(lone_is_f16(t) ? convert_f16(half[i]) : convert_bf16(half[i])) / scale;
    }
    if (lone->half) {
        return;
    }
    if ((update->forms & LOCAL_FORM_DENSE) != 0) {
        for (uint64_t i = 0; i < lone->numel[t]; i++) {
            lone->applied[t][i] += (double)dense[i] / scale;
        }
        return;
    }
    for (uint64_t i = 0; i < update->count; i++) {
        lone->applied[t][index[i]] += (double)value[i] / scale;
    }
}

void lone_close(struct lone_core *lone)
{
    assert_int_equal(lone->steps, lone->ranks);
    for (uint32_t t = 0; t < lone->tensors; t++) {
        add_update(lone, t);
        for (uint64_t i = 0; i < lone->numel[t]; i++) {
            for (unsigned r = 0; r < lone->ranks; r++) {
                lone->pushed[t][i] += (double)gradient_of(lone, lone->step, r, t, i);
            }
        }
    }
    lone->steps = 0;
    lone->delivered = 0;
    lone->step++;
}

void lone_withdraw(struct lone_core *lone)
{
    struct tensor_layout layout;
    float nan = NAN;

    lone->withdrawing = true;
    for (unsigned r = 0; r < lone->ranks; r++) {
        for (uint32_t t = 0; t < lone->tensors; t++) {
            write_gradient(lone, r, t);
            assert_true(inside_layout(lone->host.core, r + 1, t, &layout));
            memcpy(lone->host.memory.arena[r].bytes + layout.gradient_offset, &nan, sizeof(nan));
            lone_must(lone, push(lone, r, t));
        }
    }
    lone_end_all(lone);
    assert_int_equal(lone->steps, lone->ranks);
    lone->withdrawing = false;
    lone->steps = 0;
    lone->delivered = 0;
    lone->step++;
}

void lone_train(struct lone_core *lone, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        lone_push_all(lone);
        lone_end_all(lone);
        lone_close(lone);
    }
}

/* Adds up a tensor's residuals, and the sums of each residual's ledger. */
static void add_residuals(
    const struct lone_core *lone, uint32_t t, double *elements, double sums[2])
{
    float *residual = calloc(lone->numel[t], sizeof(*residual));

    assert_non_null(residual);
    for (unsigned slot = 0; inside_residual_copy(lone->host.core, lone->job, t, slot, residual);
         slot++) {
        ledger_sums(residual, lone->numel[t], sums);
        for (uint64_t i = 0; i < lone->numel[t]; i++) {
            elements[i] += (double)residual[i];
        }
    }
    free(residual);
}

/* Checks that input == applied + lost + residual, to the bit if all values are integers. */
static void check_ledger(const struct lone_core *lone, uint32_t t, const double left[2])
{
    double input[2], applied[2], lost[2];

    assert_true(inside_ledger(lone->host.core, lone->job, t, input, applied, lost));
    for (unsigned k = 0; k < 2; k++) {
        if (fabs(input[k] - applied[k] - lost[k] - left[k]) > lone->tolerance) {
            fail_msg("ledger of tensor %u, sum %u: input %g, applied %g, left %g", t, k, input[k],
                applied[k], left[k]);
        }
    }
}

/* have: the residual of each element. */
static void check_elements(const struct lone_core *lone, uint32_t t, double *have)
{
    double all_have = 0, all_pushed = 0;

    for (uint64_t i = 0; i < lone->numel[t]; i++) {
        have[i] += lone->applied[t][i];
        all_have += have[i];
        all_pushed += lone->pushed[t][i];
        if (fabs(have[i] - lone->pushed[t][i]) > lone->tolerance && !lone->rounded) {
            fail_msg("tensor %u, element %llu: %g were pushed, %g are there", t,
                (unsigned long long)i, lone->pushed[t][i], have[i]);
        }
    }
    assert_true(fabs(all_have - all_pushed) <= lone->tolerance * (double)lone->numel[t]);
}

/* Results begin as zeros, so any other byte was written. */
static void check_reserved(const struct lone_core *lone)
{
    for (uint64_t i = 0; i < lone->host.memory.results.size; i++) {
        if (lone->host.memory.results.bytes[i] != 0 && lone->host.memory.reserved.bytes[i] == 0) {
            fail_msg(
                "byte %llu of the results was written, but not reserved", (unsigned long long)i);
        }
    }
}

void lone_check(const struct lone_core *lone)
{
    check_reserved(lone);
    for (uint32_t t = 0; t < lone->tensors; t++) {
        double *have = calloc(lone->numel[t] + 1, sizeof(*have)), left[2] = {0, 0};
        assert_non_null(have);
        add_residuals(lone, t, have, left);
        check_ledger(lone, t, left);
        if (!lone->changed) {
            check_elements(lone, t, have);
        }
        free(have);
    }
}

void lone_expect_change(struct lone_core *lone, uint64_t ticket, uint32_t version)
{
    unsigned before = lone->policy.count;
    uint64_t from = lone->step;

    lone_train(lone, 3);
    assert_int_equal(lone->policy.count, before + 1);
    assert_int_equal(lone->policy.ticket, ticket);
    if (lone->policy.status != ADTOPK_OK) {
        fail_msg("%s", lone->policy.error.text);
    }
    assert_int_equal(lone->policy.version, version);
    assert_int_equal(lone->policy.step, from + 2);
    assert_int_equal(lone_job(lone).policy.version, version);
    assert_int_equal(lone_job(lone).policy.step, from + 2);
    assert_int_equal(lone_job(lone).policy.next_version, 0);
    lone_check(lone);
}

void lone_must_change(struct lone_core *lone, const char *text)
{
    uint32_t version = lone_job(lone).policy.version;

    if (lone_change(lone, 100 + version, text) != ADTOPK_OK) {
        fail_msg("%s: %s", text, lone->host.refused.text);
    }
    lone_expect_change(lone, 100 + version, version + 1);
}
