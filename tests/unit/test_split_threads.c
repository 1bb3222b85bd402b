/*
 * Two cores with real worker threads, for TSan: a peer splits a bucket while this node's compute
 * still works on it. The core's thread must not look at what the compute writes, or it takes a
 * tensor for delivered that is not.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/core/core.h"
#include "daemon/workers.h"
#include "lone_host.h"
#include "proto/local.h"

#define NODES 2u
#define TENSORS 8u
#define ELEMENTS 20000u
#define RUNS 20u
#define STEPS 2u
#define PATIENCE 10000000u /* turns */

struct packet {
    struct packet *next;
    enum link_lane lane;
    uint16_t from;
    size_t size;
    uint8_t bytes[];
};

/* A node with one rank. Packets of the other wait in its inbox. */
struct pair_host {
    struct pair_host *other;
    uint16_t node;
    struct core *core;
    struct workers *workers;
    struct packet *inbox, **inbox_end;
    uint8_t *arena, *results, *store[CORE_STORE_PARTS];
    bool ready;
    uint64_t steps;
};

static uint64_t now_us;

static void *keep(uint8_t **memory, uint64_t size)
{
    *memory = calloc(1, size);
    return *memory;
}

static const void *pair_gradients(
    void *context, session_id session, uint64_t size, struct error *err)
{
    (void)session;
    (void)err;
    return keep(&((struct pair_host *)context)->arena, size);
}

static void *pair_results(
    void *context, uint64_t job, uint64_t size, bool *existing, struct error *err)
{
    (void)job;
    (void)err;
    *existing = false;
    return keep(&((struct pair_host *)context)->results, size);
}

static void *pair_store(
    void *context, uint64_t job, unsigned part, uint64_t size, bool *existing, struct error *err)
{
    (void)job;
    (void)err;
    *existing = false;
    return keep(&((struct pair_host *)context)->store[part], size);
}

static bool pair_transmit(void *context, uint16_t peer, enum link_lane lane, const uint8_t *header,
    size_t header_size, const uint8_t *body, size_t body_size)
{
    struct pair_host *host = context;
    struct packet *packet = malloc(sizeof(*packet) + header_size + body_size);

    (void)peer;
    assert_non_null(packet);
    packet->next = NULL;
    packet->lane = lane;
    packet->from = host->node;
    packet->size = header_size + body_size;
    (void)memcpy(packet->bytes, header, header_size);
    if (body_size > 0) {
        (void)memcpy(packet->bytes + header_size, body, body_size);
    }
    *host->other->inbox_end = packet;
    host->other->inbox_end = &packet->next;
    return true;
}

static void notify(void *context)
{
    (void)context;
}

static void raise_event(struct pair_host *host, struct event event)
{
    struct error err;

    event.now_us = ++now_us;
    assert_int_equal(core_event(host->core, &event, &err), ADTOPK_OK);
}

static void take_packet(struct pair_host *host)
{
    struct packet *packet = host->inbox;
    struct event event = {.type = EVENT_PACKET};

    if (packet == NULL) {
        return;
    }
    host->inbox = packet->next;
    if (host->inbox == NULL) {
        host->inbox_end = &host->inbox;
    }
    event.packet.peer = packet->from;
    event.packet.lane = packet->lane;
    event.packet.bytes = packet->bytes;
    event.packet.size = packet->size;
    raise_event(host, event);
    free(packet);
}

static void turn(struct pair_host *host)
{
    struct compute *compute;
    struct action action;

    take_packet(host);
    while ((compute = workers_take(host->workers)) != NULL) {
        raise_event(host, (struct event){.type = EVENT_COMPUTE_DONE, .compute = compute});
    }
    while (core_next_action(host->core, &action)) {
        assert_int_not_equal(action.type, ACTION_FAILED);
        host->ready |= action.type == ACTION_READY;
        host->steps += action.type == ACTION_STEP ? 1 : 0;
        if (action.type == ACTION_COMPUTE) {
            assert_true(workers_submit(host->workers, action.compute));
        }
    }
    if (core_deadline(host->core) <= ++now_us) {
        raise_event(host, (struct event){.type = EVENT_TIMER});
    }
}

static void open_host(struct pair_host *host, struct pair_host *other, uint16_t node)
{
    struct error err;
    struct core_config config = {
        .node = node,
        .incarnation = node + 1u,
        .links = {.chunk_size = 1u << 16,
            .window = 1u << 20,
            .max_control_message = 1u << 16,
            .max_bulk_message = 1u << 24,
            .heartbeat_us = 1000000,
            .timeout_us = 1000000000,
            .resend_us = 1000000},
        .memory = {.context = host,
            .gradients = pair_gradients,
            .results = pair_results,
            .store = pair_store,
            .drop_store = lone_drop_store,
            .release_session = lone_release_session,
            .release_job = lone_release_job},
        .transmit = pair_transmit,
        .transmit_context = host,
        .policy = "{\"sparsifier\":\"dense\",\"reduce\":\"sum\",\"push_timeout\":100000,"
                  "\"join_timeout\":100000}",
    };

    *host = (struct pair_host){.other = other, .node = node};
    host->inbox_end = &host->inbox;
    host->core = core_create(&config, &err);
    host->workers = workers_create(2, notify, host, &err);
    assert_non_null(host->core);
    assert_non_null(host->workers);
    assert_int_equal(core_add_peer(host->core, other->node, ++now_us), ADTOPK_OK);
}

static void join(struct pair_host *host)
{
    struct event event = {.type = EVENT_RANK_OPEN, .session = 1};

    event.open.key = (struct job_key){.owner = 1, .name = "pair", .run_id = "1"};
    event.open.rank = host->node;
    event.open.world_size = NODES;
    raise_event(host, event);
    for (unsigned t = 0; t < TENSORS; t++) {
        struct tensor_spec spec = {.name = "a", .shape = {.dims = 1, .size = {ELEMENTS}}};
        spec.name[0] = (char)('a' + t);
        raise_event(host, (struct event){.type = EVENT_RANK_REGISTER, .session = 1, .spec = &spec});
    }
    raise_event(host, (struct event){.type = EVENT_RANK_COMMIT, .session = 1});
    raise_event(host, (struct event){.type = EVENT_RANK_MAPPED, .session = 1});
}

static void tell(struct pair_host *host, enum event_type type, uint32_t tensor, uint64_t step)
{
    struct event event = {.type = type, .session = 1};

    event.step.tensor = tensor;
    event.step.number = step;
    raise_event(host, event);
}

static float gradient(unsigned node, unsigned tensor, unsigned i, uint64_t step)
{
    return (float)((i + 3 * tensor + 5 * node + step) % 13);
}

static void push(struct pair_host *host, unsigned tensor, uint64_t step)
{
    struct tensor_layout layout;

    assert_true(core_tensor_layout(host->core, 1, tensor, &layout));
    for (unsigned i = 0; i < ELEMENTS; i++) {
        float g = gradient(host->node, tensor, i, step);
        (void)memcpy(host->arena + layout.gradient_offset + 4 * i, &g, sizeof(g));
    }
    tell(host, EVENT_RANK_PUSH, tensor, step);
}

static void check_sum(const struct pair_host *host, uint64_t step)
{
    const struct local_results *table = (const void *)host->results;

    for (unsigned t = 0; t < TENSORS; t++) {
        const struct local_update *update =
            (const void *)(host->results + table->tensor[t].update_offset);
        const float *dense = (const void *)(host->results + update->dense_offset);
        for (unsigned i = 0; i < ELEMENTS; i++) {
            assert_true(dense[i] == gradient(0, t, i, step) + gradient(1, t, i, step));
        }
    }
}

/* Node 0 has pushed everything and computes; node 1 pushes one tensor and waits for it. */
static void run_step(struct pair_host *host, uint64_t step, unsigned turns_before)
{
    for (unsigned t = 0; t < TENSORS; t++) {
        push(&host[0], t, step);
    }
    tell(&host[0], EVENT_RANK_STEP_END, 0, step);
    while (host[0].inbox != NULL) {
        turn(&host[0]);
    }
    push(&host[1], 0, step);
    turn(&host[0]); /* now the compute runs */
    tell(&host[1], EVENT_RANK_WAIT, 0, step);
    for (unsigned i = 0; i <= turns_before; i++) {
        turn(&host[i % NODES]);
    }
    for (unsigned t = 1; t < TENSORS; t++) {
        push(&host[1], t, step);
        turn(&host[0]);
        turn(&host[1]);
    }
    tell(&host[1], EVENT_RANK_STEP_END, 0, step);
    for (unsigned i = 0; host[0].steps + host[1].steps < NODES * (step + 1); i++) {
        assert_true(i < PATIENCE);
        turn(&host[i % NODES]);
    }
    check_sum(&host[0], step);
    check_sum(&host[1], step);
}

static void close_host(struct pair_host *host)
{
    workers_destroy(host->workers);
    core_destroy(host->core);
    while (host->inbox != NULL) {
        struct packet *packet = host->inbox;
        host->inbox = packet->next;
        free(packet);
    }
    free(host->arena);
    free(host->results);
    for (unsigned part = 0; part < CORE_STORE_PARTS; part++) {
        free(host->store[part]);
    }
}

static void test_peer_splits_while_computing(void **state)
{
    (void)state;
    for (unsigned run = 0; run < RUNS; run++) {
        struct pair_host host[NODES] = {{.node = 0}, {.node = 1}};
        open_host(&host[0], &host[1], 0);
        open_host(&host[1], &host[0], 1);
        join(&host[0]);
        join(&host[1]);
        for (unsigned i = 0; !host[0].ready || !host[1].ready; i++) {
            assert_true(i < PATIENCE);
            turn(&host[i % NODES]);
        }
        for (uint64_t step = 0; step < STEPS; step++) {
            run_step(host, step, run);
        }
        close_host(&host[0]);
        close_host(&host[1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_peer_splits_while_computing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
