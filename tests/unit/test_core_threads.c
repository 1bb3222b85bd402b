/*
 * The core with real worker threads, for TSan: one node, several ranks. Computes run on other
 * threads while this one goes on pushing. The test compares the updates with a plain sum.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/core/core.h"
#include "daemon/core/inspect.h"
#include "daemon/loop/workers.h"
#include "proto/local.h"
#include "tests/host/host.h"
#include "tests/host/inside.h"

#define RANKS 3u
#define TENSORS 6u
#define ELEMENTS 20000u /* several ranges */
#define STEPS 30u

struct scene {
    struct host host;
    struct workers *workers;
    unsigned ready;
    unsigned steps_heard; /* of all ranks */
    unsigned closed;
    unsigned changed, verified; /* finished requests of an operator */
    uint64_t decisions;         /* decisions of the planner */
};

static void notify(void *context)
{
    (void)context;
}

static bool submit(void *context, struct compute *compute)
{
    struct scene *scene = context;

    assert_true(workers_submit(scene->workers, compute));
    return true;
}

static void note(void *context, const struct action *action)
{
    struct scene *scene = context;
    const bool done = action->status == ADTOPK_OK;

    assert_int_not_equal(action->type, ACTION_FAILED);
    scene->ready += action->type == ACTION_READY ? 1 : 0;
    scene->steps_heard += action->type == ACTION_STEP ? 1 : 0;
    scene->closed += action->type == ACTION_CLOSED ? 1 : 0;
    scene->changed += action->type == ACTION_POLICY && done ? 1 : 0;
    scene->verified += action->type == ACTION_VERIFIED && done ? 1 : 0;
}

static void raise_event(struct scene *scene, struct event event)
{
    assert_int_equal(host_event(&scene->host, event), ADTOPK_OK);
}

/* Reads the state as an operator does, while computes run. */
static void look(struct scene *scene)
{
    struct job_info job;
    struct tensor_info tensor;
    struct planner_candidate candidate;
    struct choices copy;
    struct plan_info plan;

    if (core_job_info(scene->host.core, 0, &job) &&
        core_plan_info(scene->host.core, job.id, &plan)) {
        scene->decisions = plan.decisions > 0 ? plan.decisions : scene->decisions;
    }
    for (unsigned i = 0; core_job_info(scene->host.core, 0, &job) &&
                         core_plan_candidate(scene->host.core, job.id, i, &candidate);
         i++) {
        assert_true(choices_init(&copy, TENSORS));
        choices_copy(&copy, candidate.plan);
        choices_free(&copy);
    }
    for (unsigned t = 0; core_job_info(scene->host.core, 0, &job) && t < TENSORS; t++) {
        (void)core_tensor_info(scene->host.core, job.id, t, &tensor);
    }
}

static void do_actions(struct scene *scene)
{
    struct compute *compute;

    while ((compute = workers_take(scene->workers)) != NULL) {
        raise_event(scene, (struct event){.type = EVENT_COMPUTE_DONE, .compute = compute});
    }
    look(scene);
}

static void join(struct scene *scene, const char *policy)
{
    for (unsigned r = 0; r < RANKS; r++) {
        struct event event = {.type = EVENT_RANK_OPEN, .session = r + 1};
        event.open.key = (struct job_key){.owner = 1, .name = "threads", .run_id = "1"};
        event.open.rank = r;
        event.open.world_size = RANKS;
        event.open.policy = policy;
        raise_event(scene, event);
        for (unsigned t = 0; t < TENSORS; t++) {
            struct tensor_spec spec = {
                .name = "a", .forms = 3, .shape = {.dims = 2, .size = {50, ELEMENTS / 50}}};
            spec.name[0] = (char)('a' + t);
            event = (struct event){.type = EVENT_RANK_REGISTER, .session = r + 1, .spec = &spec};
            raise_event(scene, event);
        }
        raise_event(scene, (struct event){.type = EVENT_RANK_COMMIT, .session = r + 1});
        raise_event(scene, (struct event){.type = EVENT_RANK_MAPPED, .session = r + 1});
    }
    while (scene->ready < RANKS) { /* a worker may be making the plan */
        do_actions(scene);
    }
}

/* An operator changes the policy and verifies in the middle of the step. */
static void operate(struct scene *scene, uint64_t step)
{
    static const char *const texts[] = {"{\"scope\":\"rank\",\"bucket_bytes\":1}",
        "{\"scope\":\"node\",\"sparsifier\":\"dense\"}",
        "{\"sparsifier\":\"adtopk\",\"bucket_bytes\":30000}"};
    struct event event = {.type = EVENT_VERIFY};
    struct job_info job;

    assert_true(core_job_info(scene->host.core, 0, &job));
    event.asked.job = job.id;
    event.asked.ticket = 1;
    (void)host_event(&scene->host, event); /* refused if the last request is still under way */
    event = (struct event){.type = EVENT_POLICY};
    event.policy.job = job.id;
    event.policy.ticket = 2;
    event.policy.text = texts[step / 3 % 3];
    event.policy.merge = true;
    event.policy.if_version = UINT32_MAX;
    (void)host_event(&scene->host, event);
}

static void push_step(struct scene *scene, uint64_t step, bool changes)
{
    for (unsigned t = 0; t < TENSORS; t++) {
        for (unsigned r = 0; r < RANKS; r++) {
            struct event event = {.type = EVENT_RANK_PUSH, .session = r + 1};
            struct tensor_layout layout;
            if (changes && t * RANKS + r == step * 7 % (TENSORS * RANKS)) {
                operate(scene, step); /* at another moment of every step */
            }
            assert_true(inside_layout(scene->host.core, r + 1, t, &layout));
            for (unsigned i = 0; i < ELEMENTS; i++) {
                float g = (float)((i * 7 + r + t + step) % 11);
                (void)memcpy(scene->host.memory.arena[r].bytes + layout.gradient_offset + 4 * i, &g,
                    sizeof(g));
            }
            event.step.tensor = t;
            event.step.number = step;
            raise_event(scene, event);
            do_actions(scene);
        }
    }
    for (unsigned r = 0; r < RANKS; r++) {
        struct event event = {.type = EVENT_RANK_STEP_END, .session = r + 1};
        event.step.number = step;
        raise_event(scene, event);
    }
    while (scene->steps_heard < RANKS * (step + 1)) {
        do_actions(scene);
    }
}

/* With density 1 everything is sent, so every update is the plain sum. */
static void check_sum(const struct scene *scene, uint64_t step)
{
    const struct local_results *table = (const void *)scene->host.memory.results.bytes;

    for (unsigned t = 0; t < TENSORS; t++) {
        const struct local_update *update =
            (const void *)(scene->host.memory.results.bytes + table->tensor[t].update_offset);
        const float *dense =
            (const void *)(scene->host.memory.results.bytes + update->dense_offset);
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
static uint64_t hash_updates(const struct scene *scene, uint64_t hash)
{
    const struct local_results *table = (const void *)scene->host.memory.results.bytes;

    for (unsigned t = 0; t < TENSORS; t++) {
        const struct local_update *update =
            (const void *)(scene->host.memory.results.bytes + table->tensor[t].update_offset);
        const uint8_t *bytes = scene->host.memory.results.bytes + update->dense_offset;
        for (unsigned i = 0; i < ELEMENTS * sizeof(float); i++) {
            hash = (hash ^ bytes[i]) * 0x100000001b3u;
        }
    }
    return hash;
}

/* Trains, with ranges of this size for the workers. Returns a hash of all updates. */
static uint64_t run(const char *policy, bool check, bool changes, uint64_t range)
{
    struct scene scene = {.host = {.config = {.links = {.part_size = 1024,
                                                  .window = 4096,
                                                  .max_control_message = 4096,
                                                  .max_bulk_message = 1u << 20,
                                                  .heartbeat_us = 1000,
                                                  .timeout_us = 100000,
                                                  .resend_us = 1000},
                                       .range = range,
                                       .plan_every = 2,
                                       /* Plans are made and freed by workers, too. */
                                       .inline_tensors = 1},
                              .tick_us = 1,
                              .submit = submit,
                              .note = note,
                              .context = &scene}};
    uint64_t hash = 0xcbf29ce484222325u;
    struct error err;

    scene.workers = workers_create(3, notify, &scene, &err);
    assert_non_null(scene.workers);
    scene.host.config.parallel = workers_parallel(scene.workers);
    host_start(&scene.host);
    join(&scene, policy);
    for (uint64_t step = 0; step < STEPS; step++) {
        push_step(&scene, step, changes);
        if (check) {
            check_sum(&scene, step);
        }
        hash = hash_updates(&scene, hash);
    }
    assert_true(changes || strstr(policy, "auto") == NULL || scene.decisions > STEPS / 4);
    assert_true(!changes || (scene.changed >= STEPS / 4 && scene.verified >= STEPS / 4));
    for (unsigned r = 0; r < RANKS; r++) {
        raise_event(&scene, (struct event){.type = EVENT_RANK_LEAVE, .session = r + 1});
    }
    do_actions(&scene);
    assert_int_equal(scene.closed, RANKS);
    workers_destroy(scene.workers);
    host_stop(&scene.host);
    return hash;
}

static void test_dense(void **state)
{
    (void)state;
    (void)run(
        "{\"sparsifier\":\"dense\",\"reduce\":\"sum\",\"bucket_bytes\":1}", true, false, 5000);
}

/* The updates have the same bits, whichever workers run the ranges of a pass, and in whatever
 * order. */
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

/* The planner works while steps go on and policies change. */
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
