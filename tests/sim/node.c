/* A node of the simulator: the core, its network and its memory. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/job/hash.h"
#include "tests/sim/far.h"
#include "tests/sim/ghost.h"
#include "tests/sim/world.h"

#define SIM_THREADS 3u

/* Only computes touch residuals, so a node is checked after each, and after some other events in
 * case something else does. */
#define CHECK_EVERY 16u

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

/* Which job of the world the core of this node gave this number; -1: none. */
static int job_of(const struct node *node, uint64_t number)
{
    for (unsigned j = 0; j < node->world->jobs; j++) {
        if (node->memory[j].number == number) {
            return (int)j;
        }
    }
    return -1;
}

/* Which job of the world has this key, the last that may have begun; -1: none, a test made it up.
 */
static int job_of_key(struct world *world, const struct job_key *key)
{
    for (unsigned j = world->jobs; j-- > 0;) {
        unsigned after = world->job[j].after;
        if (core_same_job(&world->job[j].key, key) &&
            (after == 0 || world_job_over(world, after - 1))) {
            return (int)j;
        }
    }
    return -1;
}

/* A slow store delays the whole daemon, which asked for it. */
static bool refused(struct node *node, int job, enum node_memory what, struct error *err)
{
    if (node->world->scenario.slow_us > 0) {
        node_pause(
            node->world, node->number, world_random(node->world, node->world->scenario.slow_us));
    }
    if (job > 0 || node->refuses != what) {
        return false;
    }
    (void)error_set(
        err, ADTOPK_ERR_MEMORY, "node %u has no memory of kind %d", node->number, (int)what);
    return true;
}

static const void *memory_gradients(
    void *context, session_id session, unsigned batch, uint64_t size, struct error *err)
{
    struct node *node = context;
    struct trainer *trainer = by_session(node->world, session);

    if (refused(node, (int)trainer->job, MEMORY_NO_GRADIENTS, err)) {
        return NULL;
    }
    if (trainer->arena[batch] == NULL || trainer->arena_size[batch] != size) {
        free(trainer->arena[batch]);
        trainer->arena[batch] = sim_alloc(size);
        trainer->arena_size[batch] = size;
    }
    return trainer->arena[batch];
}

static void *memory_results(
    void *context, uint64_t id, unsigned batch, uint64_t size, bool *existing, struct error *err)
{
    struct node *node = context;
    int job = job_of(node, id);
    struct node_job *memory;

    if (job < 0 || refused(node, job, MEMORY_NO_RESULTS, err)) {
        return NULL;
    }
    memory = &node->memory[job];
    if (memory->results[batch] == NULL || memory->results_size[batch] != size ||
        !memory->results_old[batch]) {
        free(memory->results[batch]);
        memory->results[batch] = sim_alloc(size);
        memory->results_size[batch] = size;
        memory->results_old[batch] = false;
    }
    *existing = memory->results_old[batch];
    memory->results_old[batch] = true;
    return memory->results[batch];
}

/* At once or later, in an order of its own: no run of a seed changes for it. */
static enum adtopk_status memory_reserve(void *context, uint64_t id, unsigned batch,
    const struct core_piece *piece, unsigned pieces, bool *later, struct error *err)
{
    struct node *node = context;
    int job = job_of(node, id);
    uint64_t chance = hash_mix(node->world->scenario.seed ^ ++node->reservations);
    bool fails = job == 0 && node->refuses == MEMORY_NO_UPDATES;

    for (unsigned i = 0; job >= 0 && i < pieces; i++) {
        assert(piece[i].offset + piece[i].size <= node->memory[job].results_size[batch]);
    }
    *later = chance % 4 > 0;
    if (!*later) {
        return fails && refused(node, job, MEMORY_NO_UPDATES, err) ? ADTOPK_ERR_MEMORY : ADTOPK_OK;
    }
    world_at(node->world, 1 + chance / 4 % 3000,
        (struct sim_event){.type = SIM_RESERVED,
            .node = node->number,
            .incarnation = node->incarnation,
            .job = id,
            .failed = fails});
    return ADTOPK_OK;
}

static void memory_open_job(
    void *context, uint64_t number, const struct job_key *key, bool returning)
{
    struct node *node = context;
    int job = job_of_key(node->world, key);

    if (job < 0) {
        return;
    }
    if (!returning) {
        node_forget(node->world, node->number, (unsigned)job);
    }
    node->memory[job].number = number;
}

static void *memory_store(void *context, uint64_t id, unsigned part, uint64_t size, bool shown,
    bool *existing, struct error *err)
{
    struct node *node = context;
    int job = job_of(node, id);
    struct node_job *memory;

    if (job < 0 && node->world->scenario.fleeting) { /* the core says of no job that it opens it */
        memory_open_job(node, id, core_job_key(node->core, id), false);
        job = job_of(node, id);
    }

    if (job < 0 || refused(node, job, MEMORY_NO_STORE, err)) {
        return NULL;
    }
    memory = &node->memory[job];
    if (memory->store[part] == NULL || memory->store_size[part] != size) {
        free(memory->store[part]);
        memory->store[part] = sim_alloc(size);
        memory->store_size[part] = size;
        memory->store_old[part] = false;
        far_part(node, memory, part, size);
    }
    far_join(node, memory, part);
    *existing = memory->store_old[part];
    assert(!*existing || memory->store_shown[part] == shown);
    memory->store_shown[part] = shown;
    memory->store_old[part] = true;
    return memory->store[part];
}

static void memory_drop_store(void *context, uint64_t id, unsigned part)
{
    struct node *node = context;
    int job = job_of(node, id);

    if (job >= 0) {
        free(node->memory[job].store[part]);
        node->memory[job].store[part] = NULL;
        far_part(node, &node->memory[job], part, 0);
        far_drop_keep(context, id, part);
    }
}

static bool memory_has_store(void *context, const struct job_key *key)
{
    struct node *node = context;
    int job = job_of_key(node->world, key);

    return job >= 0 && node->memory[job].store[0] != NULL && node->memory[job].store_old[0];
}

/* The arena of a process that lives is the trainer's. */
static void memory_release_session(void *context, session_id session)
{
    struct node *node = context;

    node_free_orphans(node->world, session);
}

void node_free_orphans(struct world *world, session_id session)
{
    for (unsigned i = 0; i < SIM_MAX_RANKS; i++) {
        struct sim_orphan *orphan = &world->orphan[i];
        if (session == 0 || orphan->session == session) {
            free(orphan->arena);
            *orphan = (struct sim_orphan){.session = 0};
        }
    }
}

void node_forget(struct world *world, unsigned number, unsigned job)
{
    struct node_job *memory = &world->node[number].memory[job];

    for (unsigned part = 0; part < CORE_STORE_PARTS; part++) {
        free(memory->store[part]);
        memory->store[part] = NULL;
        far_part(&world->node[number], memory, part, 0);
    }
    for (unsigned part = 0; part < CORE_STORE_PARTS; part++) {
        free(memory->image[part]);
        memory->image[part] = NULL;
        memory->image_open[part] = false;
    }
    memory->left = false;
    for (unsigned batch = 0; batch < CORE_MAX_BATCHES; batch++) {
        memory->results_old[batch] = false; /* trainers still have the old results mapped */
    }
}

static void memory_release_job(void *context, uint64_t id)
{
    struct node *node = context;
    int job = job_of(node, id);

    if (job >= 0) {
        node_forget(node->world, node->number, (unsigned)job);
        node->memory[job].number = 0;
    }
}

static void memory_leave_job(void *context, uint64_t id)
{
    struct node *node = context;
    int job = job_of(node, id);

    if (job >= 0) {
        node->memory[job].number = 0;
        node->memory[job].left = true;
    }
}

/* The core */

static void note_failed(void *context, uint64_t job)
{
    struct node *node = context;
    int number = job_of(node, job);

    if (number >= 0) {
        node->memory[number].failed = true;
    }
}

static void print_trace(void *context, const char *line)
{
    const struct node *node = context;

    (void)printf(
        "%8llu node %u: %s\n", (unsigned long long)node->world->now_us, node->number, line);
}

static void set_timer(struct world *world, struct node *node, uint64_t due_us)
{
    node->timer_us = due_us;
    world_at(world, due_us > world->now_us ? due_us - world->now_us : 0,
        (struct sim_event){
            .type = SIM_TIMER, .node = node->number, .incarnation = node->incarnation});
}

/* The parts of a loop, in any order and as if on any thread. */
static void run_parts(void *context, unsigned caller,
    void (*part)(void *arg, unsigned p, unsigned thread), void *arg, unsigned parts)
{
    const struct node *node = context;
    unsigned *order = sim_alloc(parts * sizeof(*order));

    (void)caller;
    for (unsigned p = 0; p < parts; p++) {
        unsigned at = (unsigned)world_random(node->world, p + 1);
        order[p] = order[at];
        order[at] = p;
    }
    for (unsigned p = 0; p < parts; p++) {
        part(arg, order[p], (unsigned)world_random(node->world, SIM_THREADS));
    }
    free(order);
}

static void note_stuck(void *context, uint64_t job, const char *reason)
{
    struct node *node = context;

    if (core_job_key(node->core, job) == NULL || reason[0] == '\0') {
        world_violate(node->world, "node %u: job %llu is stuck, and nobody knows why", node->number,
            (unsigned long long)job);
    }
}

static void count_note(void *context, const char *line)
{
    struct node *node = context;

    node->world->stats.replanned += strstr(line, " -> ") != NULL ? 1 : 0;
}

static void keep_warning(void *context, const char *line)
{
    struct node *node = context;

    (void)snprintf(node->warning, sizeof(node->warning), "%s", line);
}

static void count_move(void *context, const struct machine_table *table, uint64_t id, unsigned from,
    unsigned event, unsigned to)
{
    bounds_moved(context, table, event);
    coverage_move(NULL, table, id, from, event, to);
}

/* The switches that a daemon sets (README.md names the differences), and this run's own. */
static struct core_config node_config(const struct world *world, struct node *node, unsigned number)
{
    struct core_config config = {
        .node = (uint16_t)number,
        .incarnation = world->next_incarnation,
        .links = SIM_LINKS,
        .memory = {.context = node,
            .gradients = memory_gradients,
            .results = memory_results,
            .reserve_results = memory_reserve,
            .store = memory_store,
            .drop_store = memory_drop_store,
            .has_store = memory_has_store,
            .open_job = memory_open_job,
            .release_session = memory_release_session,
            .release_job = memory_release_job,
            .leave_job = memory_leave_job},
        .engine = far_is_chosen(world->scenario.seed, number) ? &far_engine : NULL,
        .engine_context = node,
        .devices = 1 + (unsigned)(world->scenario.seed % 2), /* nodes with one rank use one */
        .carrier = carrier_version(world->scenario.seed, number) != 0 ? &sim_carrier : NULL,
        .carrier_context = node,
        .carrier_version = carrier_version(world->scenario.seed, number),
        .transmit = node_transmit,
        .transmit_context = node,
        .threads = SIM_THREADS,
        .parallel = {.run = run_parts, .context = node, .threads = SIM_THREADS, .eager = true},
        .inline_tensors = world->scenario.seed % 2 == 0 ? 1 : 0,
        .segment = 1 + world->scenario.seed % SIM_SEGMENTS,
        .policy = world->scenario.default_policy != NULL ? world->scenario.default_policy
                  : world->scenario.mixed                ? NULL
                                                         : world->scenario.policy,
        .plan_every = 1 + world->scenario.seed % 3,
        .note = count_note,
        .warn = keep_warning,
        .moved = count_move,
        .trace = getenv("ADTOPK_SIM_TRACE") != NULL ? print_trace : NULL,
        .failed = note_failed,
        .stuck = note_stuck,
        .trace_context = node,
    };

    if (world->scenario.max_message > 0) {
        config.links.max_bulk_message = world->scenario.max_message;
    }
    if (world->scenario.max_control > 0) {
        config.links.max_control_message = world->scenario.max_control;
    }
    if (world->scenario.whole) {
        config.links.part_size = config.links.window = 1u << 20;
    }
    if (config.engine != NULL) {
        config.memory.keep = far_keep;
        config.memory.drop_keep = far_drop_keep;
        config.memory.leave_engine = far_leave;
    }
    if (world->scenario.fleeting) {
        core_config_keep_nothing(&config);
    }
    return config;
}

void node_start(struct world *world, unsigned number)
{
    struct node *node = &world->node[number];
    struct core_config config;
    struct error err;

    world->next_incarnation++;
    config = node_config(world, node, number);
    node->world = world;
    node->number = number;
    node->incarnation = config.incarnation;
    node->computing = 0;
    node->computed = true;
    node->far = config.engine != NULL;
    node->leaves = false;
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
    for (unsigned i = 0; i < world->trainers; i++) {
        if (world->trainer[i].node == number) {
            world_wake(world, &world->trainer[i], world_random(world, 2000));
        }
    }
    set_timer(world, node, world->now_us);
}

/* While it is stopped its events wait. Its clock goes on, and timers come first. */
void node_pause(struct world *world, unsigned number, uint64_t for_us)
{
    struct node *node = &world->node[number];

    if (node->core != NULL && node->paused_until < world->now_us + for_us) {
        node->paused_until = world->now_us + for_us;
        world->stats.pauses++;
        set_timer(world, node, node->paused_until);
    }
}

void node_crash(struct world *world, unsigned number)
{
    struct node *node = &world->node[number];
    struct job_info info;

    bounds_check(world, number);
    for (unsigned j = 0; j < world->jobs; j++) {
        if (check_find(world, number, j, &info) && info.policy.next_version != 0) {
            node->memory[j].moved = true;
        }
    }
    core_destroy(node->core);
    node->core = NULL;
    far_forget(node);
    carrier_forget(node);
    node->incarnation = 0;
    for (unsigned j = 0; j < world->jobs; j++) {
        node->memory[j].number = 0;
        (void)memset(node->memory[j].image_open, 0, sizeof(node->memory[j].image_open));
    }
    world->faults++;
    world->stats.crashes++;
    node->paused_until = 0;
    operator_crashed(world, number);
    for (unsigned i = 0; i < world->trainers; i++) {
        if (world->trainer[i].node == number) {
            trainer_disconnected(&world->trainer[i]);
        }
    }
}

static void compute(struct world *world, struct node *node, struct compute *compute)
{
    uint64_t longest = world->scenario.compute_us;
    bool now = world_chance(world, 0.5);

    compute->thread = (unsigned)world_random(world, SIM_THREADS);
    if (now) {
        compute->run(compute);
        node->computed = true;
    }
    node->computing++;
    world_at(world, 1 + world_random(world, longest > 0 ? longest : 300),
        (struct sim_event){
            .type = SIM_COMPUTE,
            .node = node->number,
            .incarnation = node->incarnation,
            .compute = compute,
            .ran = now,
        });
}

/* Carries out the core's actions. */
static void drain(struct world *world, struct node *node)
{
    struct action action;

    while (node->core != NULL && core_next_action(node->core, &action)) {
        struct trainer *trainer = by_session(world, action.session);
        if (action.type == ACTION_COMPUTE) {
            compute(world, node, action.compute);
            continue;
        }
        if (action.ticket != 0) {
            operator_action(world, node->number, &action);
            continue;
        }
        if (action.type == ACTION_STEP && trainer != NULL) {
            check_step(world, node->number, trainer->job, action.number, action.status);
        }
        if (trainer != NULL) {
            operator_check_due(trainer, &action);
            trainer_action(trainer, &action);
        }
    }
    if (node->core != NULL && core_deadline(node->core) < node->timer_us) {
        set_timer(world, node, core_deadline(node->core));
    }
}

enum adtopk_status node_event(
    struct world *world, unsigned number, struct event *event, struct error *err)
{
    struct node *node = &world->node[number];
    enum adtopk_status status;

    event->now_us = world->now_us;
    world->stats.events++;
    if (event->type == EVENT_ENGINE_DONE) {
        node->far_ending--;
    }
    if (event->type == EVENT_COMPUTE_DONE) {
        node->computing--;
        node->computed = true;
    }
    status = core_event(node->core, event, err);
    drain(world, node);
    if (node->computed || world->stats.events % CHECK_EVERY == 0) {
        node->computed = false;
        operator_watch(world, number);
        check_node(world, number);
        bounds_check(world, number);
    }
    return status;
}
