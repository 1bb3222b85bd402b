/*
 * Two cores with real worker threads, for TSan: a peer splits a bucket while this node's compute
 * still works on it. The core's thread must not read memory that the compute writes, or it takes a
 * tensor for delivered that is not.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/loop/workers.h"
#include "proto/local.h"
#include "tests/host/host.h"
#include "tests/host/inside.h"

#define NODES 2u
#define TENSORS 8u
#define ELEMENTS 20000u
#define RUNS 20u
#define STEPS 2u
#define PATIENCE 1000000000u /* turns */

/* A node with one rank. */
struct end {
    struct host host;
    struct host_queue inbox;
    struct workers *workers;
    bool ready;
    uint64_t steps;
};

static void notify(void *context)
{
    (void)context;
}

static bool submit(void *context, struct compute *compute)
{
    struct end *end = context;

    assert_true(workers_submit(end->workers, compute));
    return true;
}

static void note(void *context, const struct action *action)
{
    struct end *end = context;

    assert_int_not_equal(action->type, ACTION_FAILED);
    end->ready |= action->type == ACTION_READY;
    end->steps += action->type == ACTION_STEP ? 1 : 0;
}

static void raise_event(struct end *end, struct event event)
{
    assert_int_equal(host_event(&end->host, event), ADTOPK_OK);
}

static void turn(struct end *end)
{
    struct compute *compute;

    (void)host_receive(&end->host, &end->inbox);
    while ((compute = workers_take(end->workers)) != NULL) {
        raise_event(end, (struct event){.type = EVENT_COMPUTE_DONE, .compute = compute});
    }
    end->host.now_us++;
    host_timer(&end->host);
}

static void open_end(struct end *end, struct end *other, uint16_t node)
{
    const uint16_t peer = (uint16_t)(1 - node);
    struct error err;

    *end = (struct end){.host = {.config = {.node = node,
                                     .incarnation = node,
                                     .links = {.part_size = 1u << 16,
                                         .window = 1u << 20,
                                         .max_control_message = 1u << 16,
                                         .max_bulk_message = 1u << 24,
                                         .heartbeat_us = 1000000,
                                         .timeout_us = 1000000000,
                                         .resend_us = 1000000},
                                     .policy = "{\"sparsifier\":\"dense\",\"reduce\":\"sum\","
                                               "\"push_timeout\":100000,\"join_timeout\":100000}"},
                            .tick_us = 1,
                            .submit = submit,
                            .note = note,
                            .context = end,
                            .to = {&other->inbox, &other->inbox}}};
    host_start(&end->host);
    end->workers = workers_create(2, notify, end, &err);
    assert_non_null(end->workers);
    assert_int_equal(core_add_peer(end->host.core, peer, end->host.now_us), ADTOPK_OK);
}

static void join(struct end *end)
{
    struct event event = {.type = EVENT_RANK_OPEN, .session = 1};

    event.open.key = (struct job_key){.owner = 1, .name = "pair", .run_id = "1"};
    event.open.rank = end->host.config.node;
    event.open.world_size = NODES;
    raise_event(end, event);
    for (unsigned t = 0; t < TENSORS; t++) {
        struct tensor_spec spec = {.name = "a", .shape = {.dims = 1, .size = {ELEMENTS}}};
        spec.name[0] = (char)('a' + t);
        raise_event(end, (struct event){.type = EVENT_RANK_REGISTER, .session = 1, .spec = &spec});
    }
    raise_event(end, (struct event){.type = EVENT_RANK_COMMIT, .session = 1});
    raise_event(end, (struct event){.type = EVENT_RANK_MAPPED, .session = 1});
}

static void tell(struct end *end, enum event_type type, uint32_t tensor, uint64_t step)
{
    struct event event = {.type = type, .session = 1};

    event.step.tensor = tensor;
    event.step.number = step;
    raise_event(end, event);
}

static float gradient(unsigned node, unsigned tensor, unsigned i, uint64_t step)
{
    return (float)((i + 3 * tensor + 5 * node + step) % 13);
}

static void push(struct end *end, unsigned tensor, uint64_t step)
{
    struct tensor_layout layout;

    assert_true(inside_layout(end->host.core, 1, tensor, &layout));
    for (unsigned i = 0; i < ELEMENTS; i++) {
        float g = gradient(end->host.config.node, tensor, i, step);
        (void)memcpy(
            end->host.memory.arena[0].bytes + layout.gradient_offset + 4 * i, &g, sizeof(g));
    }
    tell(end, EVENT_RANK_PUSH, tensor, step);
}

static void check_sum(const struct end *end, uint64_t step)
{
    const struct local_results *table = (const void *)end->host.memory.results.bytes;

    for (unsigned t = 0; t < TENSORS; t++) {
        const struct local_update *update =
            (const void *)(end->host.memory.results.bytes + table->tensor[t].update_offset);
        const float *dense = (const void *)(end->host.memory.results.bytes + update->dense_offset);
        for (unsigned i = 0; i < ELEMENTS; i++) {
            assert_true(dense[i] == gradient(0, t, i, step) + gradient(1, t, i, step));
        }
    }
}

/* Node 0 has pushed everything and computes; node 1 pushes one tensor and waits for it. */
static void run_step(struct end *end, uint64_t step, unsigned turns_before)
{
    for (unsigned t = 0; t < TENSORS; t++) {
        push(&end[0], t, step);
    }
    tell(&end[0], EVENT_RANK_STEP_END, 0, step);
    while (end[0].inbox.first != NULL) {
        turn(&end[0]);
    }
    push(&end[1], 0, step);
    turn(&end[0]); /* now the compute runs */
    tell(&end[1], EVENT_RANK_WAIT, 0, step);
    for (unsigned i = 0; i <= turns_before; i++) {
        turn(&end[i % NODES]);
    }
    for (unsigned t = 1; t < TENSORS; t++) {
        push(&end[1], t, step);
        turn(&end[0]);
        turn(&end[1]);
    }
    tell(&end[1], EVENT_RANK_STEP_END, 0, step);
    for (unsigned i = 0; end[0].steps + end[1].steps < NODES * (step + 1); i++) {
        assert_true(i < PATIENCE);
        turn(&end[i % NODES]);
    }
    check_sum(&end[0], step);
    check_sum(&end[1], step);
}

static void close_end(struct end *end)
{
    workers_destroy(end->workers);
    host_stop(&end->host);
    host_queue_drop(&end->inbox);
}

static void test_peer_splits_while_computing(void **state)
{
    (void)state;
    for (unsigned run = 0; run < RUNS; run++) {
        struct end end[NODES] = {0};
        open_end(&end[0], &end[1], 0);
        open_end(&end[1], &end[0], 1);
        join(&end[0]);
        join(&end[1]);
        for (unsigned i = 0; !end[0].ready || !end[1].ready; i++) {
            assert_true(i < PATIENCE);
            turn(&end[i % NODES]);
        }
        for (uint64_t step = 0; step < STEPS; step++) {
            run_step(end, step, run);
        }
        close_end(&end[0]);
        close_end(&end[1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_peer_splits_while_computing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
