#include "tests/sim/world.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/link/packet.h"
#include "proto/local.h"
#include "tests/sim/far.h"
#include "tests/sim/ghost.h"

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

void world_at(struct world *world, uint64_t after_us, struct sim_event event)
{
    event.at_us = world->now_us + after_us;
    queue_push(world, event);
}

void world_wake(struct world *world, struct trainer *trainer, uint64_t after_us)
{
    if (!trainer->awake) {
        trainer->awake = true;
        world_at(world, after_us,
            (struct sim_event){.type = SIM_TRAINER, .node = trainer->node, .trainer = trainer});
    }
}

bool world_job_over(struct world *world, unsigned number)
{
    struct sim_job *job = &world->job[number];

    for (unsigned i = 0; job->over_us == 0 && i < job->trainers; i++) {
        if (world->trainer[job->first + i].state < TRAINER_DONE) {
            return false;
        }
    }
    job->over_us = job->over_us == 0 ? world->now_us : job->over_us;
    return true;
}

/* Faults */

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
        if (trainer->node == number && !world->scenario.forsakes &&
            (trainer->state == TRAINER_LEAVING || trainer->state == TRAINER_DONE)) {
            return false;
        }
    }
    return world->node[number].core != NULL && world->stats.crashes < world->scenario.max_crashes;
}

/* The ranks that have left do not come back with their daemon. Others may miss what only that had:
 * their jobs end one way or the other. */
static void forsake(struct world *world, unsigned number)
{
    for (unsigned i = 0; i < world->trainers; i++) {
        const struct trainer *trainer = &world->trainer[i];
        if (trainer->node == number &&
            (trainer->state == TRAINER_LEAVING || trainer->state == TRAINER_DONE)) {
            struct sim_job *job = &world->job[trainer->job];
            job->may_fail = job->may_fail || !world_job_over(world, trainer->job);
            world->forsaken = true;
        }
    }
}

static void schedule_fault(struct world *world, enum sim_event_type type, uint64_t mean_us)
{
    struct sim_event event = {.type = type};

    if (mean_us > 0) {
        uint64_t after_us = 1 + world_random(world, 2 * mean_us);
        event.node = (unsigned)world_random(world, world->scenario.nodes);
        world_at(world, after_us, event);
    }
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

#define EVERYWHERE SIM_MAX_NODES
#define ENDING_US 120000000u /* within which jobs end after their last rank */
#define STORM_US 3000000u    /* the longest that lasts */

/* Packets of a node to a peer are lost from now on (1), or no longer (-1); to and from EVERYWHERE.
 */
static void change_cut(struct world *world, unsigned node, unsigned peer, int by)
{
    for (unsigned n = 0; n < world->scenario.nodes; n++) {
        if (peer == EVERYWHERE) {
            flow_of(world, n, node)->cuts += (unsigned)by;
        }
        if (peer == EVERYWHERE || peer == n) {
            flow_of(world, node, n)->cuts += (unsigned)by;
        }
    }
}

static void cut(struct world *world, unsigned node, uint64_t for_us)
{
    unsigned peer = world_chance(world, 0.5) ? EVERYWHERE
                                             : (unsigned)world_random(world, world->scenario.nodes);

    world->stats.cuts++;
    change_cut(world, node, peer, 1);
    world_at(
        world, for_us, (struct sim_event){.type = SIM_HEAL, .node = node, .from = (uint16_t)peer});
}

static void storm(struct world *world)
{
    world->stats.storms++;
    world->storms++;
    world_at(world, 1 + world_random(world, STORM_US), (struct sim_event){.type = SIM_CALM});
}

static void fault(struct world *world, const struct sim_event *event)
{
    uint64_t longest = world->scenario.away_us > 0 ? world->scenario.away_us : 30000;
    uint64_t pause = 500 + world_random(world, longest);

    if (event->type == SIM_CRASH) {
        if (may_crash(world, event->node)) {
            forsake(world, event->node);
            node_crash(world, event->node);
            world_at(world, pause, (struct sim_event){.type = SIM_RESTART, .node = event->node});
        }
        schedule_fault(world, SIM_CRASH, world->scenario.crash_every_us);
    } else if (event->type == SIM_RESTART) {
        node_start(world, event->node);
    } else if (event->type == SIM_OPERATOR) {
        if (!all_out(world)) {
            operator_turn(world, event->node);
            schedule_fault(world, SIM_OPERATOR, world->scenario.operator_every_us);
        }
    } else if (event->type == SIM_PAUSE) {
        if (!all_out(world)) {
            node_pause(world, event->node, pause);
            schedule_fault(world, SIM_PAUSE, world->scenario.pause_every_us);
        }
    } else if (event->type == SIM_STORM) {
        if (!all_out(world)) {
            storm(world);
        }
    } else if (event->type == SIM_CALM) {
        world->storms--;
        schedule_fault(world, SIM_STORM, world->scenario.storm_every_us);
    } else if (event->type == SIM_CUT) {
        if (!all_out(world)) {
            cut(world, event->node, pause);
            schedule_fault(world, SIM_CUT, world->scenario.cut_every_us);
        }
    } else {
        change_cut(world, event->node, event->from, -1);
    }
}

/* Events */

/* The body of a packet as a transport hands it over that does not copy it; NULL if there is none,
 * or no memory. */
static struct buffer *body_apart(const struct sim_event *event)
{
    struct buffer *body =
        event->size > PACKET_HEADER_SIZE ? buffer_new(event->size - PACKET_HEADER_SIZE) : NULL;

    if (body != NULL) {
        buffer_put(body, 0, event->bytes + PACKET_HEADER_SIZE, body->size);
    }
    return body;
}

static void core_turn(struct world *world, const struct sim_event *event)
{
    struct node *node = &world->node[event->node];
    struct event core = {0};
    struct error error;

    if (node->ghost != NULL) {
        ghost_event(node->ghost, event);
        return;
    }
    if (node->core == NULL ||
        (event->incarnation != 0 && event->incarnation != node->incarnation)) {
        return;
    }
    if (event->type == SIM_PACKET) {
        bounds_received(world, event->node, event->bytes, event->size);
        core.type = EVENT_PACKET;
        core.packet.peer = event->from;
        core.packet.lane = event->lane;
        core.packet.bytes = event->bytes;
        core.packet.size = event->size;
        core.packet.body = event->size % 2 == 0 ? body_apart(event) : NULL;
        if (core.packet.body != NULL) {
            core.packet.size = PACKET_HEADER_SIZE;
        }
    } else if (event->type == SIM_COMPUTE) {
        if (!event->ran) {
            event->compute->run(event->compute);
            event->compute->took_us = world_random(world, 300);
        }
        core.type = EVENT_COMPUTE_DONE;
        core.compute = event->compute;
    } else if (event->type == SIM_ENGINE) {
        core.type = EVENT_ENGINE_DONE;
        core.batch = event->batch;
    } else if (event->type == SIM_RESERVED) {
        (void)error_set(
            &error, ADTOPK_ERR_MEMORY, "node %u has no memory for results", event->node);
        core.type = EVENT_RESERVED;
        core.reserved.job = event->job;
        core.reserved.error = event->failed ? &error : NULL;
    } else {
        if (node->timer_us <= world->now_us) {
            node->timer_us = UINT64_MAX;
        }
        core.type = EVENT_TIMER;
    }
    (void)node_event(world, event->node, &core, NULL);
    if (core.type == EVENT_PACKET) {
        buffer_unref(core.packet.body);
    }
}

/* An event for a node that is stopped waits. */
static bool waits(struct world *world, const struct sim_event *event)
{
    const struct node *node = &world->node[event->node];

    if (event->type > SIM_TRAINER || node->paused_until <= world->now_us) {
        return false;
    }
    world_at(world, node->paused_until - world->now_us, *event);
    return true;
}

bool world_turn(struct world *world)
{
    struct sim_event event;

    if (world->heap_size == 0) {
        return false;
    }
    event = queue_pop(world);
    world->now_us = event.at_us;
    if (waits(world, &event)) {
        return true;
    }
    switch (event.type) {
    case SIM_PACKET:
    case SIM_COMPUTE:
    case SIM_RESERVED:
    case SIM_ENGINE:
    case SIM_TIMER: core_turn(world, &event); break;
    case SIM_CARRIED: carrier_turn(&world->node[event.node], &event); break;
    case SIM_ORDER: far_turn(&world->node[event.node], &event); break;
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

static bool all_over(const struct world *world)
{
    return all_out(world) && world->tickets == 0;
}

static void hang(struct world *world)
{
    for (unsigned i = 0; i < world->trainers; i++) {
        const struct trainer *t = &world->trainer[i];
        if (t->state < TRAINER_DONE) {
            world_violate(world, "rank %u of job %u hangs in state %d at step %llu (blocked on %d)",
                t->rank, t->job, (int)t->state, (unsigned long long)t->step, t->blocked_on);
        }
    }
    if (world->tickets > 0) {
        world_violate(world, "node %u never answers a request", world->ticket[0].node);
    }
    world_violate(world, "what the test waits for does not come");
}

bool world_until(struct world *world, bool (*holds)(const struct world *world))
{
    while (!world->violated && !holds(world)) {
        if (!world_turn(world)) {
            world_violate(world, "nothing happens any more");
        } else if (world->now_us > world->scenario.max_us) {
            hang(world);
        }
    }
    return !world->violated;
}

/* A job for which a node has no memory fails on all nodes, and the error of some rank says why. */
static void check_refused(struct world *world)
{
    bool told = false;

    for (unsigned i = 0; i < world->job[0].trainers; i++) {
        const struct trainer *trainer = &world->trainer[i];
        if (trainer->state != TRAINER_FAILED || trainer->error.text[0] == '\0') {
            world_violate(world, "rank %u goes on without the memory of a node", i);
        }
        told = told || strstr(trainer->error.text, "has no memory of kind") != NULL;
    }
    if (!told) {
        world_violate(world, "a node had no memory, and no rank was told so: %.200s",
            world->trainer[0].error.text);
    }
}

/* The job on some node that has not ended; NULL: there is none. */
static const char *goes_on(const struct world *world, unsigned *number, struct job_info *info)
{
    for (unsigned n = 0; n < world->scenario.nodes; n++) {
        const struct core *core = world->node[n].core;
        for (uint32_t i = 0; core != NULL && core_job_info(core, i, info); i++) {
            if (strcmp(info->state, JOB_DONE) != 0 && strcmp(info->state, JOB_FAILED) != 0) {
                *number = n;
                return info->waiting_for;
            }
        }
    }
    return NULL;
}

/* After the last rank, every node's part of every job ends. */
static void end_jobs(struct world *world)
{
    uint64_t due_us = world->now_us + (world->forsaken ? world->scenario.max_us : ENDING_US);
    struct job_info info;
    unsigned number;
    const char *waits_for;

    while ((waits_for = goes_on(world, &number, &info)) != NULL && !world->violated) {
        if (world->now_us > due_us || !world_turn(world)) {
            world_violate(world, "node %u does not end job %u, which waits for %s", number,
                info.key.owner, waits_for);
        }
    }
}

bool world_run(struct world *world)
{
    schedule_fault(world, SIM_CRASH, world->scenario.crash_every_us);
    schedule_fault(world, SIM_CUT, world->scenario.cut_every_us);
    schedule_fault(world, SIM_PAUSE, world->scenario.pause_every_us);
    schedule_fault(world, SIM_OPERATOR, world->scenario.operator_every_us);
    if (world->scenario.storm_every_us > 0) {
        storm(world);
    }
    (void)world_until(world, all_over);
    end_jobs(world);
    for (unsigned i = 0; i < world->trainers; i++) {
        const struct trainer *trainer = &world->trainer[i];
        if (trainer->state == TRAINER_FAILED && !world->job[trainer->job].may_fail) {
            world_violate(world, "rank %u of job %u: %.200s", trainer->rank, trainer->job,
                trainer->error.text);
        }
    }
    if (world->scenario.refuses != MEMORY_ALL) {
        check_refused(world);
    }
    if (world->scenario.loses) {
        history_check(world);
    }
    for (unsigned j = 0; j < world->jobs && !world->violated; j++) {
        if (!world->job[j].may_fail) {
            check_end(world, j);
        }
    }
    return !world->violated;
}

/* The tensors that runs choose from: all kinds of shape, small enough to check all the time. */
static const struct tensor_spec specs[SIM_MAX_TENSORS] = {
    {.name = "fc.weight", .forms = 3, .shape = {.dims = 2, .size = {12, 40}}},
    {.name = "fc.bias", .forms = 2, .shape = {.dims = 1, .size = {12}}},
    {.name = "conv.weight", .forms = 10, .shape = {.dims = 4, .size = {4, 16, 2, 2}}},
    {.name = "head.weight", .forms = 1, .shape = {.dims = 2, .size = {5, 60}}},
    {.name = "head.bias", .forms = 2, .shape = {.dims = 1, .size = {5}}},
    {.name = "scale", .forms = 2, .shape = {.dims = 1, .size = {1}}},
    {.name = "temperature", .forms = 1, .shape = {.dims = 0}},
    {.name = "embedding", .forms = 11, .shape = {.dims = 2, .size = {97, 3}}},
    {.name = "norm.weight", .forms = 3, .shape = {.dims = 1, .size = {131}}},
    {.name = "attention", .forms = 1, .shape = {.dims = 3, .size = {3, 7, 11}}},
    {.name = "row", .forms = 2, .shape = {.dims = 2, .size = {1, 200}}},
    {.name = "column", .forms = 1, .shape = {.dims = 2, .size = {200, 1}}},
};

/* Gradients and updates in 16 bits. Ranks that would read the list still do. */
static void make_half(const struct scenario *scenario, struct tensor_spec *spec, unsigned t)
{
    spec->dtype = t % 4 == 1 && scenario->scales == SCALES_NONE ? DTYPE_F16 : DTYPE_BF16;
    spec->forms = (spec->forms & (LOCAL_FORM_LIST | LOCAL_FORM_PENDING)) | LOCAL_FORM_DENSE16;
}

/* In some runs a tensor is seen as a list, in others as all elements, or as both. */
static void choose_forms(const struct scenario *scenario, struct tensor_spec *spec)
{
    const unsigned both = LOCAL_FORM_LIST | LOCAL_FORM_DENSE;
    const unsigned forms =
        1 + ((spec->forms & both) - 1 + (unsigned)(scenario->seed % both)) % both;

    spec->forms = (spec->forms & ~both) | (scenario->forms != 0 ? scenario->forms : forms);
}

static void make_tensors(const struct scenario *scenario, struct sim_job *job, unsigned chosen)
{
    for (unsigned t = 0; t < SIM_MAX_TENSORS; t++) {
        if ((chosen & 1u << t) != 0) {
            job->tensor[job->tensors] = specs[t];
            choose_forms(scenario, &job->tensor[job->tensors]);
            if ((scenario->half & 1u << t) != 0) {
                make_half(scenario, &job->tensor[job->tensors], t);
            }
            job->numel[job->tensors] = tensor_numel(&specs[t].shape);
            job->elements += job->numel[job->tensors++];
        }
    }
}

static unsigned ranks_of(const struct scenario *scenario, unsigned node)
{
    return scenario->uneven ? 1 + (unsigned)(scenario->seed + node) % scenario->ranks_per_node
                            : scenario->ranks_per_node;
}

static void make_ranks(struct world *world, unsigned number)
{
    const struct scenario *scenario = &world->scenario;
    struct sim_job *job = &world->job[number];

    job->first = world->trainers;
    for (unsigned n = 0; n < scenario->nodes; n++) {
        job->node_first[n] = job->trainers;
        job->node_ranks[n] = ranks_of(scenario, n);
        for (unsigned i = 0; i < job->node_ranks[n]; i++) {
            struct trainer *trainer = &world->trainer[world->trainers++];
            trainer->job = number;
            trainer->node = n;
            trainer->rank = job->trainers++;
        }
    }
    for (unsigned i = 0; i < job->trainers; i++) {
        trainer_init(&world->trainer[job->first + i], world);
    }
}

static void make_job(struct world *world, unsigned number, unsigned keys)
{
    const struct scenario *scenario = &world->scenario;
    struct sim_job *job = &world->job[number];
    unsigned chosen = scenario->tensors != 0 ? scenario->tensors : 0x1f;

    job->after = number >= keys ? 1 + number - keys : 0;
    job->may_fail = (scenario->dies && number < keys) || scenario->loses;
    job->key = (struct job_key){.owner = 1000 + number % keys, .name = "job", .run_id = "1"};
    job->brings = scenario->policy;
    if (scenario->mixed) {
        job->brings = scenario_policy(world, world_random(world, 1000));
        chosen = scenario_tensors(world);
    }
    world->rounded = world->rounded || scenario_is_rounded(job->brings);
    make_tensors(scenario, job, chosen);
    job->first_batch = job->tensors;
    job->later_step = UINT64_MAX;
    if (scenario->later && job->tensors > 1 && scenario->steps > 1) {
        job->first_batch = (job->tensors + 1) / 2;
        job->later_step = 1 + scenario->seed % (scenario->steps - 1);
    }
    make_ranks(world, number);
    job->update_hash = sim_alloc((scenario->steps + 1) * sizeof(*job->update_hash));
    job->update_status = sim_alloc(scenario->steps + 1);
    job->policy = sim_alloc((scenario->steps + 1) * sizeof(*job->policy));
    job->due = sim_alloc(scenario->steps + 1);
    if (scenario->loses) {
        job->outcome = sim_alloc(scenario->nodes * (scenario->steps + 1) * sizeof(*job->outcome));
    }
    job->applied = sim_alloc(job->elements * sizeof(*job->applied));
    job->residual = sim_alloc(scenario->nodes * job->elements * sizeof(double));
}

/* Some node has too little memory for job 0. */
static void refuse_memory(struct world *world)
{
    if (world->scenario.refuses != MEMORY_ALL) {
        world->job[0].may_fail = true;
        world->node[world_random(world, world->scenario.nodes)].refuses = world->scenario.refuses;
    }
}

struct world *world_create(const struct scenario *scenario)
{
    struct world *world = sim_alloc(sizeof(*world));

    world->scenario = *scenario;

    world->random = scenario->seed * 0x9e3779b97f4a7c15u + 1;
    world->now_us = 1;
    world->heap_base = bounds_heap();
    world->flow = sim_alloc(scenario->nodes * scenario->nodes * sizeof(*world->flow));
    unsigned keys = scenario->jobs > 0 ? scenario->jobs : 1;
    world->jobs = scenario->again ? 2 * keys : keys;
    for (unsigned j = 0; j < world->jobs; j++) {
        make_job(world, j, keys);
    }
    for (unsigned n = 0; n < scenario->nodes; n++) {
        world->node[n].bulk_last = UINT64_MAX;
        node_start(world, n);
    }
    refuse_memory(world);
    world->stats.runs = 1;
    world->stats.fleeting = scenario->fleeting ? 1 : 0;
    world->stats.nodes = scenario->nodes;
    return world;
}

void world_destroy(struct world *world)
{
    for (unsigned n = 0; n < world->scenario.nodes; n++) {
        core_destroy(world->node[n].core);
        far_forget(&world->node[n]);
        carrier_forget(&world->node[n]);
        for (unsigned j = 0; j < world->jobs; j++) {
            for (unsigned part = 0; part < CORE_STORE_PARTS; part++) {
                free(world->node[n].memory[j].store[part]);
                free(world->node[n].memory[j].far[part]);
                free(world->node[n].memory[j].image[part]);
            }
            for (unsigned batch = 0; batch < CORE_MAX_BATCHES; batch++) {
                free(world->node[n].memory[j].results[batch]);
            }
            free(world->node[n].memory[j].before);
        }
    }
    for (unsigned i = 0; i < world->trainers; i++) {
        for (unsigned batch = 0; batch < CORE_MAX_BATCHES; batch++) {
            free(world->trainer[i].arena[batch]);
        }
    }
    node_free_orphans(world, 0);
    for (size_t i = 0; i < world->heap_size; i++) {
        free(world->heap[i].bytes);
    }
    for (unsigned j = 0; j < world->jobs; j++) {
        free(world->job[j].update_hash);
        free(world->job[j].update_status);
        free(world->job[j].outcome);
        free(world->job[j].policy);
        free(world->job[j].due);
        free(world->job[j].applied);
        free(world->job[j].residual);
    }
    free(world->heap);
    free(world->flow);
    free(world);
}
