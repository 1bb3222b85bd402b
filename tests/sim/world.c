#include "tests/sim/world.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *must(void *pointer)
{
    if (pointer == NULL) {
        (void)fprintf(stderr, "simulator: out of memory\n");
        abort();
    }
    return pointer;
}

uint64_t world_random(struct world *world, uint64_t below)
{
    uint64_t x = world->random += 0x9e3779b97f4a7c15u;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    return below > 0 ? x % below : 0;
}

bool world_chance(struct world *world, double chance)
{
    return (double)world_random(world, 1u << 30) < chance * (double)(1u << 30);
}

void world_violate(struct world *world, const char *format, ...)
{
    va_list args;

    if (world->violated) {
        return;
    }
    world->violated = true;
    va_start(args, format);
    (void)vsnprintf(world->violation, sizeof(world->violation), format, args);
    va_end(args);
}

/* The queue of events to come: a binary heap by time, then by order of creation. */

static bool before(const struct sim_event *a, const struct sim_event *b)
{
    return a->at_us != b->at_us ? a->at_us < b->at_us : a->order < b->order;
}

static void heap_push(struct world *world, struct sim_event event)
{
    size_t at = world->heap_size++;

    if (world->heap_size > world->heap_capacity) {
        world->heap_capacity = world->heap_capacity * 2 + 64;
        world->heap = must(realloc(world->heap, world->heap_capacity * sizeof(*world->heap)));
    }
    event.order = world->order++;
    while (at > 0 && before(&event, &world->heap[(at - 1) / 2])) {
        world->heap[at] = world->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    world->heap[at] = event;
}

static struct sim_event heap_pop(struct world *world)
{
    struct sim_event top = world->heap[0];
    struct sim_event last = world->heap[--world->heap_size];
    size_t at = 0;

    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= world->heap_size) {
            break;
        }
        if (child + 1 < world->heap_size && before(&world->heap[child + 1], &world->heap[child])) {
            child++;
        }
        if (!before(&world->heap[child], &last)) {
            break;
        }
        world->heap[at] = world->heap[child];
        at = child;
    }
    world->heap[at] = last;
    return top;
}

/* The network */

static void send_packet(struct world *world, unsigned node, uint16_t from, enum link_lane lane,
    const uint8_t *header, size_t header_size, const uint8_t *body, size_t body_size)
{
    struct sim_event event = {
        .at_us = world->now_us + 10 + world_random(world, world->scenario.delay_us + 1),
        .type = SIM_PACKET,
        .node = node,
        .from = from,
        .lane = lane,
        .bytes = must(malloc(header_size + body_size + 1)),
        .size = header_size + body_size,
    };

    (void)memcpy(event.bytes, header, header_size);
    if (body_size > 0) {
        (void)memcpy(event.bytes + header_size, body, body_size);
    }
    world->stats.packets++;
    heap_push(world, event);
}

static bool transmit(void *context, uint16_t peer, enum link_lane lane, const uint8_t *header,
    size_t header_size, const uint8_t *body, size_t body_size)
{
    struct node *slot = context;
    struct world *world = slot->world;

    if (world_chance(world, world->scenario.refuse)) {
        return false;
    }
    if (slot->cut || world->node[peer].cut || world_chance(world, world->scenario.loss)) {
        world->stats.lost++;
        world->faults++;
        return true;
    }
    send_packet(world, peer, (uint16_t)slot->number, lane, header, header_size, body, body_size);
    if (world_chance(world, world->scenario.duplicate)) {
        world->stats.duplicated++;
        world->faults++;
        send_packet(
            world, peer, (uint16_t)slot->number, lane, header, header_size, body, body_size);
    }
    return true;
}

/* Memory */

static struct trainer *by_session(struct world *world, session_id session)
{
    for (unsigned i = 0; i < world->trainers; i++) {
        if (world->trainer[i].session == session && session != 0) {
            return &world->trainer[i];
        }
    }
    return NULL;
}

static const void *memory_gradients(
    void *context, session_id session, uint64_t size, struct error *err)
{
    struct trainer *trainer = by_session(((struct node *)context)->world, session);

    (void)err;
    if (trainer->arena == NULL) {
        trainer->arena = must(calloc(1, size));
        trainer->arena_size = size;
    }
    return trainer->arena;
}

static void *memory_results(
    void *context, uint64_t job, uint64_t size, bool *existing, struct error *err)
{
    struct node *node = context;

    (void)job;
    (void)err;
    if (node->results == NULL || node->results_size != size) {
        free(node->results);
        node->results = must(calloc(1, size));
        node->results_size = size;
        node->results_old = false;
    }
    *existing = node->results_old;
    node->results_old = true;
    return node->results;
}

static void *memory_store(
    void *context, uint64_t job, uint64_t size, bool *existing, struct error *err)
{
    struct node *node = context;

    (void)job;
    (void)err;
    if (node->store == NULL || node->store_size != size) {
        free(node->store);
        node->store = must(calloc(1, size));
        node->store_size = size;
        node->store_old = false;
    }
    *existing = node->store_old;
    node->store_old = true;
    return node->store;
}

static void memory_release_session(void *context, session_id session)
{
    (void)context;
    (void)session;
}

static void memory_release_job(void *context, uint64_t job, bool keep)
{
    (void)context;
    (void)job;
    (void)keep;
}

/* Nodes */

static void print_trace(void *context, const char *line)
{
    const struct node *node = context;

    (void)printf(
        "%8llu node %u: %s\n", (unsigned long long)node->world->now_us, node->number, line);
}

void world_restart(struct world *world, unsigned number)
{
    struct node *node = &world->node[number];
    struct error err;
    struct core_config config = {
        .node = (uint16_t)number,
        .incarnation = ++world->next_incarnation,
        .links = {.chunk_size = 256,
            .window = 4096,
            .max_control_message = 1u << 20,
            .max_bulk_message = 1u << 24,
            .heartbeat_us = 20000,
            .timeout_us = 200000,
            .resend_us = 3000},
        .memory = {.context = node,
            .gradients = memory_gradients,
            .results = memory_results,
            .store = memory_store,
            .release_session = memory_release_session,
            .release_job = memory_release_job},
        .transmit = transmit,
        .transmit_context = node,
        .policy = world->scenario.policy,
        .moved = coverage_move,
        .trace = getenv("ADTOPK_SIM_TRACE") != NULL ? print_trace : NULL,
        .trace_context = node,
    };

    node->world = world;
    node->number = number;
    node->incarnation = config.incarnation;
    node->core = core_create(&config, &err);
    if (node->core == NULL) {
        world_violate(world, "node %u does not start: %s", number, err.text);
        return;
    }
    for (unsigned peer = 0; peer < world->scenario.nodes; peer++) {
        if (peer != number) {
            (void)core_add_peer(node->core, (uint16_t)peer, world->now_us);
        }
    }
    node->timer_us = UINT64_MAX;
    for (unsigned i = 0; i < world->trainers; i++) {
        if (world->trainer[i].node == number) {
            world_wake(world, &world->trainer[i], world_random(world, 2000));
        }
    }
    heap_push(world, (struct sim_event){.at_us = world->now_us,
                         .type = SIM_TIMER,
                         .node = number,
                         .incarnation = node->incarnation});
}

void world_crash(struct world *world, unsigned number)
{
    struct node *node = &world->node[number];

    core_destroy(node->core);
    node->core = NULL;
    node->incarnation = 0;
    world->faults++;
    world->stats.crashes++;
    for (unsigned i = 0; i < world->trainers; i++) {
        if (world->trainer[i].node == number) {
            trainer_disconnected(&world->trainer[i]);
        }
    }
}

void world_wake(struct world *world, struct trainer *trainer, uint64_t after_us)
{
    if (!trainer->awake) {
        trainer->awake = true;
        heap_push(world, (struct sim_event){.at_us = world->now_us + after_us,
                             .type = SIM_TRAINER,
                             .node = trainer->node,
                             .trainer = trainer});
    }
}

/* Does what the core asks for. */
static void drain(struct world *world, unsigned number)
{
    struct node *node = &world->node[number];
    struct action action;

    while (node->core != NULL && core_next_action(node->core, &action)) {
        if (action.type == ACTION_COMPUTE) {
            bool now = world_chance(world, 0.5);
            if (now) {
                action.compute->run(action.compute);
            }
            heap_push(world, (struct sim_event){
                                 .at_us = world->now_us + 1 + world_random(world, 300),
                                 .type = SIM_COMPUTE,
                                 .node = number,
                                 .incarnation = node->incarnation,
                                 .compute = action.compute,
                                 .ran = now,
                             });
            continue;
        }
        if (action.type == ACTION_STEP) {
            check_step(world, number, action.number, action.status);
        }
        struct trainer *trainer = by_session(world, action.session);
        if (trainer != NULL) {
            trainer_action(trainer, &action);
        }
    }
    if (node->core != NULL && core_deadline(node->core) < node->timer_us) {
        uint64_t due = core_deadline(node->core);
        node->timer_us = due;
        heap_push(world, (struct sim_event){.at_us = due > world->now_us ? due : world->now_us,
                             .type = SIM_TIMER,
                             .node = number,
                             .incarnation = node->incarnation});
    }
}

enum adtopk_status world_core_event(
    struct world *world, unsigned number, struct event *event, struct error *err)
{
    enum adtopk_status status;

    event->now_us = world->now_us;
    world->stats.events++;
    status = core_event(world->node[number].core, event, err);
    drain(world, number);
    check_event(world);
    return status;
}

/* Crashes only hit nodes all of whose trainers are still there to come back, and seldom while the
 * job recovers from the last one. */
static bool may_crash(struct world *world, unsigned number)
{
    for (unsigned i = 0; i < world->trainers; i++) {
        if (world->trainer[i].state < TRAINER_RUNNING && !world_chance(world, 0.05)) {
            return false;
        }
    }
    for (unsigned i = 0; i < world->trainers; i++) {
        const struct trainer *trainer = &world->trainer[i];
        if (trainer->node == number &&
            (trainer->state == TRAINER_LEAVING || trainer->state == TRAINER_DONE)) {
            return false;
        }
    }
    return world->node[number].core != NULL && world->stats.crashes < world->scenario.max_crashes;
}

static bool all_out(const struct world *world)
{
    for (unsigned i = 0; i < world->trainers; i++) {
        if (world->trainer[i].state < TRAINER_DONE) {
            return false;
        }
    }
    return true;
}

static void schedule_fault(struct world *world, enum sim_event_type type, uint64_t mean_us)
{
    if (mean_us > 0) {
        heap_push(world, (struct sim_event){
                             .at_us = world->now_us + 1 + world_random(world, 2 * mean_us),
                             .type = type,
                             .node = (unsigned)world_random(world, world->scenario.nodes),
                         });
    }
}

static void fault(struct world *world, const struct sim_event *event)
{
    struct node *node = &world->node[event->node];
    uint64_t pause = 500 + world_random(world, 30000);

    if (event->type == SIM_CRASH) {
        if (may_crash(world, event->node)) {
            world_crash(world, event->node);
            heap_push(world,
                (struct sim_event){
                    .at_us = world->now_us + pause, .type = SIM_RESTART, .node = event->node});
        }
        schedule_fault(world, SIM_CRASH, world->scenario.crash_every_us);
    } else if (event->type == SIM_RESTART) {
        world_restart(world, event->node);
    } else {
        node->cut = event->type == SIM_CUT;
        world->stats.cuts += node->cut ? 1 : 0;
        if (node->cut) {
            heap_push(
                world, (struct sim_event){
                           .at_us = world->now_us + pause, .type = SIM_HEAL, .node = event->node});
            schedule_fault(world, SIM_CUT, world->scenario.cut_every_us);
        }
    }
}

static void node_event(struct world *world, const struct sim_event *event)
{
    struct node *node = &world->node[event->node];
    struct event core = {0};

    if (node->core == NULL ||
        (event->incarnation != 0 && event->incarnation != node->incarnation)) {
        return;
    }
    if (event->type == SIM_PACKET) {
        core.type = EVENT_PACKET;
        core.packet.peer = event->from;
        core.packet.lane = event->lane;
        core.packet.bytes = event->bytes;
        core.packet.size = event->size;
    } else if (event->type == SIM_COMPUTE) {
        if (!event->ran) {
            event->compute->run(event->compute);
        }
        core.type = EVENT_COMPUTE_DONE;
        core.compute = event->compute;
    } else {
        if (node->timer_us <= world->now_us) {
            node->timer_us = UINT64_MAX;
        }
        core.type = EVENT_TIMER;
    }
    (void)world_core_event(world, event->node, &core, NULL);
}

bool world_turn(struct world *world)
{
    struct sim_event event;

    if (world->heap_size == 0) {
        return false;
    }
    event = heap_pop(world);
    world->now_us = event.at_us;
    switch (event.type) {
    case SIM_PACKET:
    case SIM_COMPUTE:
    case SIM_TIMER: node_event(world, &event); break;
    case SIM_TRAINER:
        event.trainer->awake = false;
        if (world->node[event.node].core != NULL) {
            trainer_turn(event.trainer);
        }
        break;
    default: fault(world, &event); break;
    }
    free(event.bytes);
    return true;
}

bool world_run(struct world *world)
{
    schedule_fault(world, SIM_CRASH, world->scenario.crash_every_us);
    schedule_fault(world, SIM_CUT, world->scenario.cut_every_us);
    while (!world->violated && !all_out(world)) {
        if (!world_turn(world)) {
            world_violate(world, "nothing happens any more");
        } else if (world->now_us > world->scenario.max_us) {
            for (unsigned i = 0; i < world->trainers; i++) {
                const struct trainer *t = &world->trainer[i];
                if (t->state < TRAINER_DONE) {
                    world_violate(world, "rank %u hangs in state %d at step %llu (blocked on %d)",
                        t->rank, (int)t->state, (unsigned long long)t->step, t->blocked_on);
                }
            }
        }
    }
    for (unsigned i = 0; i < world->trainers; i++) {
        if (world->trainer[i].state == TRAINER_FAILED) {
            world_violate(
                world, "rank %u: %.200s", world->trainer[i].rank, world->trainer[i].error.text);
        }
    }
    if (!world->violated) {
        check_end(world);
    }
    return !world->violated;
}

/* The tensors of every run: all kinds of shape, small enough to check after every event. */
static void make_tensors(struct world *world)
{
    static const struct tensor_spec specs[] = {
        {.name = "fc.weight", .forms = 3, .shape = {.dims = 2, .size = {12, 40}}},
        {.name = "fc.bias", .forms = 2, .shape = {.dims = 1, .size = {12}}},
        {.name = "conv.weight", .forms = 2, .shape = {.dims = 4, .size = {4, 16, 2, 2}}},
        {.name = "head.weight", .forms = 1, .shape = {.dims = 2, .size = {5, 60}}},
        {.name = "head.bias", .forms = 2, .shape = {.dims = 1, .size = {5}}},
    };

    world->tensors = sizeof(specs) / sizeof(specs[0]);
    for (unsigned t = 0; t < world->tensors; t++) {
        world->tensor[t] = specs[t];
        world->numel[t] = tensor_numel(&specs[t].shape);
        world->elements += world->numel[t];
    }
}

struct world *world_create(const struct scenario *scenario)
{
    struct world *world = must(calloc(1, sizeof(*world)));

    world->scenario = *scenario;
    world->random = scenario->seed * 0x9e3779b97f4a7c15u + 1;
    world->now_us = 1;
    make_tensors(world);
    world->update_hash = must(calloc(scenario->steps + 1, sizeof(*world->update_hash)));
    world->update_status = must(calloc(scenario->steps + 1, 1));
    world->applied = must(calloc(world->elements, sizeof(*world->applied)));
    world->residual = must(calloc(scenario->nodes * world->elements, sizeof(double)));
    world->trainers = scenario->nodes * scenario->ranks_per_node;
    for (unsigned i = 0; i < world->trainers; i++) {
        world->trainer[i] = (struct trainer){
            .world = world, .node = i / scenario->ranks_per_node, .rank = i, .blocked_on = -1};
    }
    for (unsigned n = 0; n < scenario->nodes; n++) {
        world_restart(world, n);
    }
    world->stats.runs = 1;
    return world;
}

void world_destroy(struct world *world)
{
    for (unsigned n = 0; n < world->scenario.nodes; n++) {
        core_destroy(world->node[n].core);
        free(world->node[n].store);
        free(world->node[n].results);
    }
    for (unsigned i = 0; i < world->trainers; i++) {
        free(world->trainer[i].arena);
    }
    for (size_t i = 0; i < world->heap_size; i++) {
        free(world->heap[i].bytes);
    }
    free(world->heap);
    free(world->update_hash);
    free(world->update_status);
    free(world->applied);
    free(world->residual);
    free(world);
}
