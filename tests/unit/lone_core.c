#include "lone_core.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "daemon/core/store.h"
#include "lone_host.h"

static const struct job_key key = {.owner = 1000, .name = "lone", .run_id = "1"};

/* ------------------------------------------------------------------ memory */

/* Shared with processes that are forked. */
static void *zeroed(uint64_t size)
{
    void *memory = mmap(NULL, size + 1, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_ptr_not_equal(memory, MAP_FAILED);
    return memory;
}

static void release(void *memory, uint64_t size)
{
    assert_true(memory == NULL || munmap(memory, size + 1) == 0);
}

/* A copy that is not shared any more. */
static void *own_copy(const void *memory, uint64_t size)
{
    return memory != NULL ? memcpy(zeroed(size), memory, size) : NULL;
}

void lone_own_memory(struct lone_core *lone)
{
    lone->results = own_copy(lone->results, lone->results_size);
    for (unsigned part = 0; part < CORE_STORE_PARTS; part++) {
        lone->store[part] = own_copy(lone->store[part], lone->store_size[part]);
    }
}

static const void *gradients(void *context, session_id session, uint64_t size, struct error *err)
{
    struct lone_core *lone = context;
    uint8_t **arena = &lone->arena[(session - 1) % LONE_RANKS];

    (void)err;
    release(*arena, lone->arena_size);
    *arena = zeroed(size);
    lone->arena_size = size;
    return *arena;
}

static void *results(void *context, uint64_t job, uint64_t size, bool *existing, struct error *err)
{
    struct lone_core *lone = context;

    (void)job;
    (void)err;
    *existing = lone->results != NULL;
    assert_true(!*existing || lone->results_size == size);
    lone->results = *existing ? lone->results : zeroed(size);
    lone->results_size = size;
    return lone->results;
}

static enum adtopk_status reserve_results(void *context, uint64_t job,
    const struct core_piece *piece, unsigned pieces, bool *later, struct error *err)
{
    struct lone_core *lone = context;

    (void)job;
    *later = false;
    for (unsigned i = 0; i < pieces; i++) {
        assert_true(piece[i].offset + piece[i].size <= lone->results_size);
    }
    return lone->no_results ? error_set(err, ADTOPK_ERR_MEMORY, "no room for %u pieces", pieces)
                            : ADTOPK_OK;
}

static void drop_store(void *context, uint64_t job, unsigned part)
{
    struct lone_core *lone = context;

    (void)job;
    release(lone->store[part], lone->store_size[part]);
    lone->store[part] = NULL;
}

static void *store(
    void *context, uint64_t job, unsigned part, uint64_t size, bool *existing, struct error *err)
{
    struct lone_core *lone = context;

    (void)job;
    if (part == 1 && lone->no_more) {
        (void)error_set(
            err, ADTOPK_ERR_MEMORY, "no memory for %llu bytes", (unsigned long long)size);
        return NULL;
    }
    *existing = lone->store[part] != NULL;
    if (*existing && lone->store_size[part] != size) {
        assert_true(part >= STORE_PLAN);
        drop_store(context, job, part);
        *existing = false;
    }
    lone->store[part] = *existing ? lone->store[part] : zeroed(size);
    lone->store_size[part] = size;
    return lone->store[part];
}

static bool has_store(void *context, const struct job_key *of)
{
    const struct lone_core *lone = context;

    assert_true(core_same_job(of, &key));
    return lone->store[0] != NULL;
}

static void open_job(void *context, uint64_t job, const struct job_key *of, bool returning)
{
    assert_true(core_same_job(of, &key));
    for (unsigned part = 0; part < CORE_STORE_PARTS && !returning; part++) {
        drop_store(context, job, part);
    }
}

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

static void note(struct lone_core *lone, const struct action *action)
{
    switch (action->type) {
    case ACTION_COMPUTE:
        assert_true(lone->helds < sizeof(lone->held) / sizeof(lone->held[0]));
        lone->held[lone->helds++] = action->compute;
        break;
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
    case ACTION_OP_DONE: break;
    }
}

static void drain(struct lone_core *lone)
{
    struct action action;

    while (core_next_action(lone->core, &action)) {
        note(lone, &action);
    }
    if (!lone->hold) {
        lone_compute(lone);
    }
}

static void compute_first(struct lone_core *lone)
{
    struct event done = {.type = EVENT_COMPUTE_DONE, .compute = lone->held[0]};
    struct action action;

    memmove(lone->held, lone->held + 1, --lone->helds * sizeof(lone->held[0]));
    done.compute->run(done.compute);
    done.now_us = ++lone->now_us;
    assert_int_equal(core_event(lone->core, &done, NULL), ADTOPK_OK);
    while (core_next_action(lone->core, &action)) {
        note(lone, &action);
    }
}

void lone_compute(struct lone_core *lone)
{
    while (lone->helds > 0) {
        compute_first(lone);
    }
}

void lone_compute_one(struct lone_core *lone)
{
    assert_int_equal(lone->helds, 1);
    compute_first(lone);
}

void lone_compute_until(struct lone_core *lone, void (*run)(struct compute *compute))
{
    assert_true(lone->helds > 0);
    while (lone->held[0]->run != run) {
        compute_first(lone);
        assert_true(lone->helds > 0);
    }
}

enum adtopk_status lone_event(struct lone_core *lone, struct event event)
{
    enum adtopk_status status;

    event.now_us = ++lone->now_us;
    lone->refused = (struct error){.code = ADTOPK_OK};
    status = core_event(lone->core, &event, &lone->refused);
    assert_int_equal(lone->refused.code, status);
    drain(lone);
    return status;
}

enum adtopk_status lone_rank_event(struct lone_core *lone, unsigned rank, struct event event)
{
    event.session = rank + 1;
    return lone_event(lone, event);
}

/* ------------------------------------------------------------------ joining */

void lone_must(struct lone_core *lone, enum adtopk_status status)
{
    if (status != ADTOPK_OK) {
        fail_msg("%s", lone->refused.text);
    }
}

static void create(struct lone_core *lone)
{
    lone->config.incarnation++;
    lone->core = core_create(&lone->config, NULL);
    assert_non_null(lone->core);
}

static void open_ranks(struct lone_core *lone, const struct tensor_spec *spec)
{
    for (unsigned r = 0; r < lone->ranks; r++) {
        struct event open = {.type = EVENT_RANK_OPEN,
            .open = {.key = key, .rank = r, .world_size = lone->ranks, .run = lone->run}};
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
    lone->config = (struct core_config){.node = LONE_NODE,
        .links = lone_links,
        .memory = {.context = lone,
            .gradients = gradients,
            .results = results,
            .reserve_results = reserve_results,
            .store = store,
            .drop_store = drop_store,
            .open_job = open_job,
            .has_store = has_store,
            .release_session = lone_release_session,
            .release_job = lone_release_job},
        .policy = policy,
        .threads = 1,
        .transmit = lone_transmit};
    create(lone);
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

void lone_begin(struct lone_core *lone, const char *policy)
{
    const struct tensor_spec spec[] = {
        lone_spec("fc.weight", 2, (const uint64_t[]){16, 40}),
        lone_spec("fc.bias", 1, (const uint64_t[]){40}),
        lone_spec("conv.weight", 4, (const uint64_t[]){4, 5, 3, 3}),
    };

    lone_start(lone, 2, policy, spec, 3);
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
    core_destroy(lone->core);
    lone->helds = 0;
    create(lone);
    open_ranks(lone, spec);
    lone_commit(lone);
}

void lone_free(struct lone_core *lone)
{
    core_destroy(lone->core);
    for (unsigned r = 0; r < LONE_RANKS; r++) {
        release(lone->arena[r], lone->arena_size);
    }
    for (unsigned t = 0; t < lone->tensors; t++) {
        free(lone->pushed[t]);
        free(lone->applied[t]);
    }
    release(lone->results, lone->results_size);
    for (unsigned part = 0; part < CORE_STORE_PARTS; part++) {
        release(lone->store[part], lone->store_size[part]);
    }
}

/* ------------------------------------------------------------------ requests */

enum adtopk_status lone_change(struct lone_core *lone, uint64_t ticket, const char *text)
{
    lone->rounded = lone->rounded || asks_for_bf16(text);
    return lone_event(lone, (struct event){.type = EVENT_POLICY,
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
    return lone_event(
        lone, (struct event){.type = EVENT_VERIFY, .verify = {.ticket = ticket, .job = lone->job}});
}

void lone_assert_refused(
    const struct lone_core *lone, enum adtopk_status status, const char *first, const char *second)
{
    assert_int_equal(lone->refused.code, status);
    if (strstr(lone->refused.text, first) == NULL || strstr(lone->refused.text, second) == NULL) {
        fail_msg("\"%s\" does not say %s and %s", lone->refused.text, first, second);
    }
}

struct job_info lone_job(const struct lone_core *lone)
{
    struct job_info info;

    assert_true(core_job_info(lone->core, 0, &info));
    assert_int_equal(info.id, lone->job);
    return info;
}

struct tensor_info lone_tensor(const struct lone_core *lone, uint32_t tensor)
{
    struct tensor_info info;

    assert_true(core_tensor_info(lone->core, lone->job, tensor, &info));
    return info;
}

struct tensor_spec lone_spec(const char *name, unsigned dims, const uint64_t *size)
{
    struct tensor_spec spec = {.forms = 3, .shape = {.dims = dims}};

    (void)snprintf(spec.name, sizeof(spec.name), "%s", name);
    memcpy(spec.shape.size, size, dims * sizeof(*size));
    return spec;
}
