#include "lone_core.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/local.h"

static const struct job_key key = {.owner = 1000, .name = "lone", .run_id = "1"};

/* ------------------------------------------------------------------ events */

static void note_answer(struct lone_answer *answer, const struct action *action)
{
    answer->count++;
    answer->ticket = action->ticket;
    answer->status = action->status;
    answer->version = action->operation;
    answer->step = action->number;
    assert_true((action->status == ADTOPK_OK) == (action->error == NULL));
    if (action->error != NULL) {
        answer->error = *action->error;
        assert_int_equal(answer->error.code, action->status);
        assert_true(answer->error.text[0] != '\0');
    }
}

static void note(void *context, const struct action *action)
{
    struct lone_core *lone = context;

    switch (action->type) {
    case ACTION_READY:
        lone->ready++;
        lone->ready_status = action->status;
        lone->run = action->run;
        break;
    case ACTION_DELIVERED: lone->delivered++; break;
    case ACTION_STEP:
        assert_int_equal(action->status, lone->withdrawing ? ADTOPK_NONFINITE : ADTOPK_OK);
        assert_int_equal(action->number, lone->step);
        lone->steps++;
        break;
    case ACTION_FAILED:
        lone->failed++;
        lone->failure = *action->error;
        break;
    case ACTION_CLOSED: lone->closed++; break;
    case ACTION_POLICY: note_answer(&lone->policy, action); break;
    case ACTION_VERIFIED: note_answer(&lone->verified, action); break;
    default: break;
    }
}

void lone_compute_one(struct lone_core *lone)
{
    assert_int_equal(lone->host.helds, 1);
    host_compute_one(&lone->host);
}

void lone_compute_until(struct lone_core *lone, const struct work_kind *kind)
{
    assert_true(lone->host.helds > 0);
    while (((struct work *)lone->host.held[0])->kind != kind) {
        host_compute_one(&lone->host);
        assert_true(lone->host.helds > 0);
    }
}

enum adtopk_status lone_rank_event(struct lone_core *lone, unsigned rank, struct event event)
{
    event.session = rank + 1;
    return host_event(&lone->host, event);
}

/* ------------------------------------------------------------------ joining */

void lone_must(struct lone_core *lone, enum adtopk_status status)
{
    if (status != ADTOPK_OK) {
        fail_msg("%s", lone->host.refused.text);
    }
}

static void open_ranks(struct lone_core *lone, const struct tensor_spec *spec)
{
    for (unsigned r = 0; r < lone->ranks; r++) {
        struct event open = {.type = EVENT_RANK_OPEN,
            .open = {.key = key,
                .rank = r,
                .world_size = lone->ranks,
                .run = lone->run,
                .returns = true}};
        lone_must(lone, lone_rank_event(lone, r, open));
        for (unsigned t = 0; t < lone->tensors; t++) {
            struct event describe = {.type = EVENT_RANK_REGISTER, .spec = &spec[t]};
            lone_must(lone, lone_rank_event(lone, r, describe));
        }
    }
}

static bool asks_for_bf16(const char *policy)
{
    return policy != NULL && strstr(policy, "\"residual\":\"bf16\"") != NULL;
}

void lone_open(struct lone_core *lone, unsigned ranks, const char *policy,
    const struct tensor_spec *spec, unsigned tensors)
{
    *lone = (struct lone_core){
        .ranks = ranks, .tensors = tensors, .job = 1, .rounded = asks_for_bf16(policy)};
    lone->host = (struct host){.config = {.node = LONE_NODE, .policy = policy, .threads = 1},
        .tick_us = 1,
        .note = note,
        .context = lone,
        .memory = {.outlives = true, .keeps = true, .shared = true, .marks = true}};
    host_start(&lone->host);
    for (unsigned t = 0; t < tensors; t++) {
        lone->numel[t] = tensor_numel(&spec[t].shape);
        lone->pushed[t] = calloc(lone->numel[t], sizeof(double));
        lone->applied[t] = calloc(lone->numel[t], sizeof(double));
        assert_true(lone->pushed[t] != NULL && lone->applied[t] != NULL);
    }
    open_ranks(lone, spec);
}

void lone_commit(struct lone_core *lone)
{
    for (unsigned r = 0; r < lone->ranks; r++) {
        lone_must(lone, lone_rank_event(lone, r, (struct event){.type = EVENT_RANK_COMMIT}));
    }
    for (unsigned r = 0; r < lone->ranks; r++) {
        lone_must(lone, lone_rank_event(lone, r, (struct event){.type = EVENT_RANK_MAPPED}));
    }
}

void lone_start(struct lone_core *lone, unsigned ranks, const char *policy,
    const struct tensor_spec *spec, unsigned tensors)
{
    lone_open(lone, ranks, policy, spec, tensors);
    lone_commit(lone);
    if (lone->ready != ranks) {
        fail_msg("not ready: %s", lone->failure.text);
    }
}

static void small_tensors(struct tensor_spec spec[3])
{
    spec[0] = lone_spec("fc.weight", 2, (const uint64_t[]){16, 40});
    spec[1] = lone_spec("fc.bias", 1, (const uint64_t[]){40});
    spec[2] = lone_spec("conv.weight", 4, (const uint64_t[]){4, 5, 3, 3});
}

void lone_begin(struct lone_core *lone, const char *policy)
{
    struct tensor_spec spec[3];

    small_tensors(spec);
    lone_start(lone, 2, policy, spec, 3);
}

bool lone_is_f16(uint32_t tensor)
{
    return tensor == 1;
}

void lone_begin_half(struct lone_core *lone, const char *policy)
{
    struct tensor_spec spec[3];

    small_tensors(spec);
    for (uint32_t t = 0; t < 3; t++) {
        spec[t].dtype = lone_is_f16(t) ? DTYPE_F16 : DTYPE_BF16;
        spec[t].forms = LOCAL_FORM_DENSE16 | (t == 0 ? LOCAL_FORM_LIST : 0u);
    }
    lone_start(lone, 2, policy, spec, 3);
    lone->half = true;
}

void lone_leave(struct lone_core *lone)
{
    for (unsigned r = 0; r < lone->ranks; r++) {
        lone_must(lone, lone_rank_event(lone, r, (struct event){.type = EVENT_RANK_LEAVE}));
    }
}

void lone_restart(struct lone_core *lone)
{
    struct tensor_spec spec[LONE_TENSORS];

    for (unsigned t = 0; t < lone->tensors; t++) {
        spec[t] = lone_tensor(lone, t).spec;
    }
    host_kill(&lone->host);
    host_start(&lone->host);
    open_ranks(lone, spec);
    lone_commit(lone);
}

void lone_free(struct lone_core *lone)
{
    host_stop(&lone->host);
    for (unsigned t = 0; t < lone->tensors; t++) {
        free(lone->pushed[t]);
        free(lone->applied[t]);
    }
}

/* ------------------------------------------------------------------ requests */

enum adtopk_status lone_change(struct lone_core *lone, uint64_t ticket, const char *text)
{
    lone->rounded = lone->rounded || asks_for_bf16(text);
    return host_event(&lone->host, (struct event){.type = EVENT_POLICY,
                                       .policy = {.ticket = ticket,
                                           .job = lone->job,
                                           .text = text,
                                           .merge = true,
                                           .if_version = UINT32_MAX,
                                           .uid = 1000,
                                           .pid = (uint32_t)ticket}});
}

enum adtopk_status lone_verify(struct lone_core *lone, uint64_t ticket)
{
    return host_event(&lone->host,
        (struct event){.type = EVENT_VERIFY, .asked = {.ticket = ticket, .job = lone->job}});
}

void lone_assert_refused(
    const struct lone_core *lone, enum adtopk_status status, const char *first, const char *second)
{
    assert_int_equal(lone->host.refused.code, status);
    if (strstr(lone->host.refused.text, first) == NULL ||
        strstr(lone->host.refused.text, second) == NULL) {
        fail_msg("\"%s\" does not say %s and %s", lone->host.refused.text, first, second);
    }
}

struct job_info lone_job(const struct lone_core *lone)
{
    struct job_info info;

    assert_true(core_job_info(lone->host.core, 0, &info));
    assert_int_equal(info.id, lone->job);
    return info;
}

struct tensor_info lone_tensor(const struct lone_core *lone, uint32_t tensor)
{
    struct tensor_info info;

    assert_true(core_tensor_info(lone->host.core, lone->job, tensor, &info));
    return info;
}

struct tensor_spec lone_spec(const char *name, unsigned dims, const uint64_t *size)
{
    struct tensor_spec spec = {.forms = 3, .shape = {.dims = dims}};

    (void)snprintf(spec.name, sizeof(spec.name), "%s", name);
    memcpy(spec.shape.size, size, dims * sizeof(*size));
    return spec;
}
