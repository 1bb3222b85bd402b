/*
 * The core with real worker threads, for TSan: one node, several ranks, computes run on other
 * threads while this one goes on pushing. The updates are compared with a plain sum.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/core/core.h"
#include "daemon/core/inspect.h"
#include "daemon/workers.h"
#include "lone_host.h"
#include "proto/local.h"

#define RANKS 3u
#define TENSORS 6u
#define ELEMENTS 20000u /* several ranges */
#define STEPS 30u

struct host {
    struct core *core;
    struct workers *workers;
    uint8_t *arena[RANKS];
    uint8_t *results;
    uint8_t *store[CORE_STORE_PARTS];
    uint64_t now_us;
    unsigned ready;
    unsigned steps_heard; /* ACTION_STEP of all ranks */
    unsigned closed;
    unsigned changed, verified; /* requests of an operator that were done */
    uint64_t decisions;         /* of the planner */
};

static const void *host_gradients(
    void *context, session_id session, uint64_t size, struct error *err)
{
    struct host *host = context;

    (void)err;
    host->arena[session - 1] = calloc(1, size);
    return host->arena[session - 1];
}

static void *host_results(
    void *context, uint64_t job, uint64_t size, bool *existing, struct error *err)
{
    struct host *host = context;

    (void)job;
    (void)err;
    *existing = false;
    host->results = calloc(1, size);
    return host->results;
}

static enum adtopk_status host_reserve(void *context, uint64_t job, const struct core_piece *piece,
    unsigned pieces, bool *later, struct error *err)
{
    (void)context;
    (void)job;
    (void)piece;
    (void)pieces;
    (void)err;
    *later = false;
    return ADTOPK_OK;
}

static void *host_store(
    void *context, uint64_t job, unsigned part, uint64_t size, bool *existing, struct error *err)
{
    struct host *host = context;

    (void)job;
    (void)err;
    *existing = false;
    host->store[part] = calloc(1, size);
    return host->store[part];
}

static void host_drop_store(void *context, uint64_t job, unsigned part)
{
    struct host *host = context;

    (void)job;
    free(host->store[part]);
    host->store[part] = NULL;
}

static void notify(void *context)
{
    (void)context;
}

static void raise_event(struct host *host, struct event event)
{
    struct error err;

    event.now_us = ++host->now_us;
    assert_int_equal(core_event(host->core, &event, &err), ADTOPK_OK);
}

/* What an operator sees while computes run. */
static void look(struct host *host)
{
    struct job_info job;
    struct tensor_info tensor;
    struct planner_candidate candidate;
    struct choices copy;
    struct plan_info plan;

    if (core_job_info(host->core, 0, &job) && core_plan_info(host->core, job.id, &plan)) {
        host->decisions = plan.decisions > 0 ? plan.decisions : host->decisions;
    }
    for (unsigned i = 0; core_job_info(host->core, 0, &job) &&
                         core_plan_candidate(host->core, job.id, i, &candidate);
         i++) {
        assert_true(choices_init(&copy, TENSORS));
        choices_copy(&copy, candidate.plan);
        choices_free(&copy);
    }
    for (unsigned t = 0; core_job_info(host->core, 0, &job) && t < TENSORS; t++) {
        (void)core_tensor_info(host->core, job.id, t, &tensor);
    }
}

static void do_actions(struct host *host)
{
    struct compute *compute;
    struct action action;

    while ((compute = workers_take(host->workers)) != NULL) {
        raise_event(host, (struct event){.type = EVENT_COMPUTE_DONE, .compute = compute});
    }
    look(host);
    while (core_next_action(host->core, &action)) {
        assert_int_not_equal(action.type, ACTION_FAILED);
        host->ready += action.type == ACTION_READY ? 1 : 0;
        host->steps_heard += action.type == ACTION_STEP ? 1 : 0;
        host->closed += action.type == ACTION_CLOSED ? 1 : 0;
        host->changed += action.type == ACTION_POLICY && action.status == ADTOPK_OK ? 1 : 0;
        host->verified += action.type == ACTION_VERIFIED && action.status == ADTOPK_OK ? 1 : 0;
        if (action.type == ACTION_COMPUTE) {
            assert_true(workers_submit(host->workers, action.compute));
        }
    }
}

static void join(struct host *host, const char *policy)
{
    for (unsigned r = 0; r < RANKS; r++) {
        struct event event = {.type = EVENT_RANK_OPEN, .session = r + 1};
        event.open.key = (struct job_key){.owner = 1, .name = "threads", .run_id = "1"};
        event.open.rank = r;
        event.open.world_size = RANKS;
        event.open.policy = policy;
        raise_event(host, event);
        for (unsigned t = 0; t < TENSORS; t++) {
            struct tensor_spec spec = {
                .name = "a", .forms = 3, .shape = {.dims = 2, .size = {50, ELEMENTS / 50}}};
            spec.name[0] = (char)('a' + t);
            event = (struct event){.type = EVENT_RANK_REGISTER, .session = r + 1, .spec = &spec};
            raise_event(host, event);
        }
        raise_event(host, (struct event){.type = EVENT_RANK_COMMIT, .session = r + 1});
        raise_event(host, (struct event){.type = EVENT_RANK_MAPPED, .session = r + 1});
    }
    do_actions(host);
    assert_int_equal(host->ready, RANKS);
}

/* An operator changes the policy and verifies in the middle of the step. */
static void operate(struct host *host, uint64_t step)
{
    static const char *const texts[] = {"{\"scope\":\"rank\",\"bucket_bytes\":1}",
        "{\"scope\":\"node\",\"sparsifier\":\"dense\"}",
        "{\"sparsifier\":\"adtopk\",\"bucket_bytes\":30000}"};
    struct event event = {.type = EVENT_VERIFY, .now_us = ++host->now_us};
    struct job_info job;
    struct error err;

    assert_true(core_job_info(host->core, 0, &job));
    event.verify.job = job.id;
    event.verify.ticket = 1;
    (void)core_event(host->core, &event, &err); /* or the last one is still under way */
    event = (struct event){.type = EVENT_POLICY, .now_us = host->now_us};
    event.policy.job = job.id;
    event.policy.ticket = 2;
    event.policy.text = texts[step / 3 % 3];
    event.policy.merge = true;
    event.policy.if_version = UINT32_MAX;
    (void)core_event(host->core, &event, &err);
}

static void push_step(struct host *host, uint64_t step, bool changes)
{
    for (unsigned t = 0; t < TENSORS; t++) {
        for (unsigned r = 0; r < RANKS; r++) {
            struct event event = {.type = EVENT_RANK_PUSH, .session = r + 1};
            struct tensor_layout layout;
            if (changes && t * RANKS + r == step * 7 % (TENSORS * RANKS)) {
                operate(host, step); /* at another moment of every step */
            }
            assert_true(core_tensor_layout(host->core, r + 1, t, &layout));
            for (unsigned i = 0; i < ELEMENTS; i++) {
                float g = (float)((i * 7 + r + t + step) % 11);
                (void)memcpy(host->arena[r] + layout.gradient_offset + 4 * i, &g, sizeof(g));
            }
            event.step.tensor = t;
            event.step.number = step;
            raise_event(host, event);
            do_actions(host);
        }
    }
    for (unsigned r = 0; r < RANKS; r++) {
        struct event event = {.type = EVENT_RANK_STEP_END, .session = r + 1};
        event.step.number = step;
        raise_event(host, event);
    }
    while (host->steps_heard < RANKS * (step + 1)) {
        do_actions(host);
    }
}

/* With density 1 everything is sent, so that every update is the plain sum. */
static void check_sum(const struct host *host, uint64_t step)
{
    const struct local_results *table = (const void *)host->results;

    for (unsigned t = 0; t < TENSORS; t++) {
        const struct local_update *update =
            (const void *)(host->results + table->tensor[t].update_offset);
        const float *dense = (const void *)(host->results + update->dense_offset);
        for (unsigned i = 0; i < ELEMENTS; i++) {
            float want = 0;
            for (unsigned r = 0; r < RANKS; r++) {
                want += (float)((i * 7 + r + t + step) % 11);
            }
            assert_true(dense[i] == want);
        }
    }
}

/* FNV-1a over all updates. */
static uint64_t hash_updates(const struct host *host, uint64_t hash)
{
    const struct local_results *table = (const void *)host->results;

    for (unsigned t = 0; t < TENSORS; t++) {
        const struct local_update *update =
            (const void *)(host->results + table->tensor[t].update_offset);
        const uint8_t *bytes = host->results + update->dense_offset;
        for (unsigned i = 0; i < ELEMENTS * sizeof(float); i++) {
            hash = (hash ^ bytes[i]) * 0x100000001b3u;
        }
    }
    return hash;
}

/* Trains, with ranges of so many elements for the workers. Returns a hash of all updates. */
static uint64_t run(const char *policy, bool check, bool changes, uint64_t range)
{
    struct host host = {0};
    uint64_t hash = 0xcbf29ce484222325u;
    struct error err;
    struct core_config config = {
        .incarnation = 1,
        .links = {.chunk_size = 1024,
            .window = 4096,
            .max_control_message = 4096,
            .max_bulk_message = 1u << 20,
            .heartbeat_us = 1000,
            .timeout_us = 100000,
            .resend_us = 1000},
        .memory = {.context = &host,
            .gradients = host_gradients,
            .results = host_results,
            .reserve_results = host_reserve,
            .store = host_store,
            .drop_store = host_drop_store,
            .release_session = lone_release_session,
            .release_job = lone_release_job},
        .transmit = lone_transmit,
        .range = range,
        .plan_every = 2,
    };

    host.workers = workers_create(3, notify, &host, &err);
    assert_non_null(host.workers);
    config.parallel = workers_parallel(host.workers);
    host.core = core_create(&config, &err);
    assert_non_null(host.core);
    join(&host, policy);
    for (uint64_t step = 0; step < STEPS; step++) {
        push_step(&host, step, changes);
        if (check) {
            check_sum(&host, step);
        }
        hash = hash_updates(&host, hash);
    }
    assert_true(changes || strstr(policy, "auto") == NULL || host.decisions > STEPS / 4);
    assert_true(!changes || (host.changed >= STEPS / 4 && host.verified >= STEPS / 4));
    for (unsigned r = 0; r < RANKS; r++) {
        raise_event(&host, (struct event){.type = EVENT_RANK_LEAVE, .session = r + 1});
    }
    do_actions(&host);
    assert_int_equal(host.closed, RANKS);
    workers_destroy(host.workers);
    core_destroy(host.core);
    for (unsigned r = 0; r < RANKS; r++) {
        free(host.arena[r]);
    }
    free(host.results);
    for (unsigned part = 0; part < CORE_STORE_PARTS; part++) {
        free(host.store[part]);
    }
    return hash;
}

static void test_dense(void **state)
{
    (void)state;
    (void)run(
        "{\"sparsifier\":\"dense\",\"reduce\":\"sum\",\"bucket_bytes\":1}", true, false, 5000);
}

/* Whoever runs which range of a pass when, the updates have the same bits. */
static void same_in_ranges(const char *policy)
{
    assert_true(run(policy, false, false, 5000) == run(policy, false, false, UINT64_MAX));
}

static void test_sparse(void **state)
{
    (void)state;
    same_in_ranges("{\"density\":0.05,\"bucket_bytes\":30000}");
}

static void test_sparse_by_rank(void **state)
{
    (void)state;
    same_in_ranges("{\"density\":0.05,\"scope\":\"rank\",\"bucket_bytes\":1}");
}

static void test_rule(void **state)
{
    (void)state;
    same_in_ranges("{\"sparsifier\":\"sidco\",\"density\":0.05,\"momentum\":0.9,\"clip\":50}");
}

static void test_changes(void **state)
{
    (void)state;
    (void)run("{\"density\":0.05,\"bucket_bytes\":30000}", false, true, 5000);
}

/* The planner thinks while steps go on, and policies change. */
static void test_planner(void **state)
{
    static const char *const policy =
        "{\"density\":0.05,\"sparsifier\":\"auto\",\"sparse_collective\":\"auto\","
        "\"bucket_bytes\":30000}";

    (void)state;
    (void)run(policy, false, false, 5000);
    (void)run(policy, false, true, 5000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense),
        cmocka_unit_test(test_sparse),
        cmocka_unit_test(test_sparse_by_rank),
        cmocka_unit_test(test_rule),
        cmocka_unit_test(test_changes),
        cmocka_unit_test(test_planner),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
