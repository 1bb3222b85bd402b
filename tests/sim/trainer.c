/*
 * A scripted rank: joins, calls some plain operations, trains, leaves. When its daemon restarts it
 * joins again and repeats the open step with the same bytes.
 */
#include <math.h>
#include <string.h>

#include "kernels/base/convert.h"
#include "proto/utf8.h"
#include "tests/host/inside.h"
#include "tests/sim/world.h"

#define SIM_RETURNS 4u /* most times that a rank comes back by itself */

static uint64_t hash_on(uint64_t x, uint64_t word)
{
    x = (x ^ word) * 0xbf58476d1ce4e5b9u + 0x9e3779b97f4a7c15u;
    return x ^ x >> 29;
}

static uint64_t hash_end(uint64_t x, uint64_t word)
{
    x = hash_on(x, word) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t hash(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e)
{
    return hash_end(hash_on(hash_on(hash_on(a, b), c), d), e);
}

static bool chance(uint64_t x, double p)
{
    return (double)(x >> 34) < p * (double)(1u << 30);
}

static uint64_t seed_of(const struct world *world, unsigned job)
{
    return world->scenario.seed + job * 1000003u;
}

uint64_t trainer_draw(const struct trainer *trainer, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    return hash(seed_of(trainer->world, trainer->job), a, b, c, d);
}

static unsigned node_of(const struct world *world, unsigned job, uint32_t rank)
{
    const struct sim_job *about = &world->job[job];
    unsigned node = 0;

    while (rank < about->node_first[node] ||
           rank >= about->node_first[node] + about->node_ranks[node]) {
        node++;
    }
    return node;
}

/* Whether the ranks of a node, or all, leave a tensor alone in this step. */
static bool is_idle(
    const struct world *world, unsigned job, uint64_t step, unsigned node, unsigned tensor)
{
    uint64_t seed = seed_of(world, job);

    return chance(hash(seed, step, 0, tensor, 1u << 22), world->scenario.idle / 2) ||
           chance(hash(seed, step, node, tensor, 1u << 23), world->scenario.idle);
}

bool trainer_takes_part(const struct world *world, unsigned job, uint64_t step, uint32_t rank)
{
    const struct trainer *trainer = &world->trainer[world->job[job].first + rank];

    return step < trainer->absent_from || step >= trainer->absent_to;
}

unsigned trainer_tensors(const struct world *world, unsigned job, uint64_t step)
{
    const struct sim_job *about = &world->job[job];

    return step < about->later_step ? about->first_batch : about->tensors;
}

bool trainer_pushes(
    const struct world *world, unsigned job, uint64_t step, uint32_t rank, unsigned tensor)
{
    return tensor < trainer_tensors(world, job, step) &&
           trainer_takes_part(world, job, step, rank) &&
           !chance(hash(seed_of(world, job), step, rank, tensor, 1u << 20), world->scenario.skip) &&
           (world->scenario.idle == 0 ||
               !is_idle(world, job, step, node_of(world, job, rank), tensor));
}

bool trainer_node_pushes(
    const struct world *world, unsigned job, uint64_t step, unsigned node, unsigned tensor)
{
    const struct sim_job *about = &world->job[job];
    unsigned first = about->node_first[node];

    for (unsigned r = first; r < first + about->node_ranks[node]; r++) {
        if (trainer_pushes(world, job, step, r, tensor)) {
            return true;
        }
    }
    return false;
}

bool trainer_any_pushes(const struct world *world, unsigned job, uint64_t step, unsigned tensor)
{
    for (unsigned node = 0; node < world->scenario.nodes; node++) {
        if (trainer_node_pushes(world, job, step, node, tensor)) {
            return true;
        }
    }
    return false;
}

/* The element of a rank's gradient that is not finite, if `spoils`. */
static uint64_t bad_element(const struct world *world, unsigned job, uint64_t step, uint32_t rank,
    unsigned tensor, bool *spoils)
{
    uint64_t bad = hash(seed_of(world, job), step, rank, tensor, 1u << 21);

    *spoils = chance(bad, world->scenario.nonfinite);
    return bad;
}

bool trainer_spoils(const struct world *world, unsigned job, uint64_t step, unsigned tensor)
{
    for (uint32_t r = 0; r < world->job[job].trainers; r++) {
        bool spoils;
        (void)bad_element(world, job, step, r, tensor, &spoils);
        if (spoils && trainer_pushes(world, job, step, r, tensor)) {
            return true;
        }
    }
    return false;
}

/* What a rank pushes of a tensor in a step, as far as its elements have it in common. */
struct gradient {
    uint64_t begun, bad; /* the hash of the step; the element that is not finite, or UINT64_MAX */
    float size, spoilt;
};

static struct gradient gradient_begin(
    const struct world *world, unsigned job, uint64_t step, uint32_t rank, unsigned tensor)
{
    bool spoils;
    const uint64_t bad = bad_element(world, job, step, rank, tensor, &spoils);
    /* Some are so large that 16 bits round sums of them. */
    const bool half = world->job[job].tensor[tensor].dtype != DTYPE_F32;
    const float size = tensor % 2 == 0 && !half ? 1.0f : 85.0f;

    return (struct gradient){
        .begun = hash_on(hash_on(hash_on(seed_of(world, job), step), rank), tensor),
        .bad = spoils ? bad % world->job[job].numel[tensor] : UINT64_MAX,
        .size = size * (world->scenario.scale > 0 ? (float)world->scenario.scale : 1.0f),
        .spoilt = bad % 2 == 0 ? NAN : -INFINITY};
}

/* Small integers, so that every sum is exact; rarely one element that is not finite. */
static float gradient_at(const struct gradient *gradient, uint64_t element)
{
    return element == gradient->bad
               ? gradient->spoilt
               : gradient->size * ((float)(int)(hash_end(gradient->begun, element) % 7) - 3.0f);
}

float trainer_gradient(const struct world *world, unsigned job, uint64_t step, uint32_t rank,
    unsigned tensor, uint64_t element)
{
    const struct gradient gradient = gradient_begin(world, job, step, rank, tensor);

    return gradient_at(&gradient, element);
}

void trainer_add_gradient(const struct world *world, unsigned job, uint64_t step, uint32_t rank,
    unsigned tensor, float *sum)
{
    const struct gradient gradient = gradient_begin(world, job, step, rank, tensor);

    for (uint64_t i = 0; i < world->job[job].numel[tensor]; i++) {
        sum[i] += gradient_at(&gradient, i);
    }
}

static bool any_pushes(const struct world *world, unsigned job, uint64_t step)
{
    for (unsigned t = 0; t < world->job[job].tensors; t++) {
        if (trainer_any_pushes(world, job, step, t)) {
            return true;
        }
    }
    return false;
}

float trainer_scale(const struct world *world, unsigned job, uint64_t step)
{
    static const float exact[] = {0x1p16f, 1, 0x1p-3f, 0x1p10f, 0x1p5f};
    static const float any[] = {1000, 0.3f, 65536, 1, 7};
    uint64_t drawn = hash(seed_of(world, job), step, 1u << 24, 0, 0) % 5;

    if (world->scenario.scales == SCALES_NONE || !any_pushes(world, job, step)) {
        return 1;
    }
    return world->scenario.scales == SCALES_EXACT ? exact[drawn] : any[drawn];
}

void trainer_init(struct trainer *trainer, struct world *world)
{
    trainer->world = world;
    trainer->blocked_on = -1;
    trainer->absent_from = trainer->absent_to = UINT64_MAX;
    trainer->says_rank = trainer->rank;
    trainer->says_world_size = world->job[trainer->job].trainers;
    trainer->says_owner = world->job[trainer->job].key.owner;
    trainer->says_policy = world->scenario.mixed || world->scenario.default_policy != NULL
                               ? world->job[trainer->job].brings
                               : NULL;
    trainer->tensors = world->job[trainer->job].tensors;
    (void)memcpy(trainer->tensor, world->job[trainer->job].tensor, sizeof(trainer->tensor));
}

static bool others_train(const struct trainer *trainer)
{
    const struct world *world = trainer->world;

    for (unsigned i = 0; i < world->job[trainer->job].trainers; i++) {
        const struct trainer *other = &world->trainer[world->job[trainer->job].first + i];
        if (other->node != trainer->node && other->state == TRAINER_RUNNING) {
            return true;
        }
    }
    return false;
}

void trainer_come_back(struct trainer *trainer, uint64_t after_us)
{
    trainer->absent_from = trainer->step + 1; /* it may have taken part in the open step */
    trainer->absent_to = UINT64_MAX;
    trainer->state = TRAINER_OUT;
    trainer->session = 0;
    trainer->lost = trainer->lingered = trainer->ended = trainer->op_pending = false;
    trainer->next_push = 0;
    trainer->blocked_on = -1;
    trainer->step = trainer->operation = trainer->run = trainer->called = 0;
    trainer->newcomer = true;
    trainer->returns++;
    world_wake(trainer->world, trainer, after_us);
}

static void count_node(struct world *world, uint64_t *all, uint64_t *many)
{
    ++*all;
    *many += world->scenario.nodes > MANY_NODES ? 1 : 0;
}

static void fail(struct trainer *trainer, const struct error *error)
{
    struct sim_stats *stats = &trainer->world->stats;
    char fault[UTF8_FAULT_SIZE], text[ERROR_TEXT_SIZE];

    (void)memcpy(text, error->text, sizeof(text));
    trainer->state = TRAINER_FAILED;
    trainer->error = *error;
    trainer->session = 0;
    if (strstr(text, "went on without it") != NULL) {
        count_node(trainer->world, &stats->left_out, &stats->many_left_out);
    }
    for (char *end = text; (end = strchr(end, '\n')) != NULL;) {
        *end = ' '; /* between a sentence and the line of JSON that it is about */
    }
    if (utf8_name_fault(text, fault)) {
        world_violate(trainer->world, "an error of node %u has %s", trainer->node, fault);
    }
    if (trainer->world->scenario.grows && trainer->returns < SIM_RETURNS && others_train(trainer)) {
        trainer_come_back(trainer, 1 + world_random(trainer->world, 2000000));
    } else if (trainer->world->scenario.grows) {
        trainer->absent_from = trainer->step + 1;
        trainer->absent_to = UINT64_MAX;
    }
}

enum adtopk_status trainer_request(struct trainer *trainer, struct event *event, struct error *err)
{
    event->session = trainer->session;
    return node_event(trainer->world, trainer->node, event, err);
}

/* A refused request ends this kind of trainer: it closes its session, as a process that ends would,
 * unless the daemon has ended it already. */
static enum adtopk_status request(struct trainer *trainer, struct event *event)
{
    struct event gone = {.type = EVENT_RANK_LOST, .session = trainer->session};
    struct error err = {0};
    enum adtopk_status status = trainer_request(trainer, event, &err);

    if (status != ADTOPK_OK && trainer->state != TRAINER_FAILED) {
        gone.reason = "its request was refused";
        fail(trainer, &err);
        (void)node_event(trainer->world, trainer->node, &gone, NULL);
    }
    return status;
}

static bool open_session(struct trainer *trainer)
{
    struct world *world = trainer->world;
    struct event event = {.type = EVENT_RANK_OPEN};

    trainer->session = ++world->next_session;
    trainer->state = TRAINER_FORMING;
    trainer->joined = JOINED_OPEN;
    event.open.key = world->job[trainer->job].key;
    event.open.key.owner = trainer->says_owner;
    event.open.rank = trainer->says_rank;
    event.open.world_size = trainer->says_world_size;
    event.open.policy = trainer->says_policy;
    event.open.run = trainer->run;
    event.open.returns = event.open.here = true;
    event.open.batches = trainer->batches > 0 || trainer->committing ? 2 : 1;
    event.open.comes_back = trainer->comes_back;
    event.open.first_step = trainer->step;
    return request(trainer, &event) == ADTOPK_OK;
}

/* Registers these tensors, and commits them. */
static bool commit(struct trainer *trainer, unsigned first, unsigned end)
{
    struct event event = {.type = EVENT_RANK_COMMIT};

    for (unsigned t = first; t < end; t++) {
        struct event tensor = {.type = EVENT_RANK_REGISTER, .spec = &trainer->tensor[t]};
        if (request(trainer, &tensor) != ADTOPK_OK) {
            return false;
        }
    }
    return request(trainer, &event) == ADTOPK_OK;
}

static unsigned first_batch(const struct trainer *trainer)
{
    const struct sim_job *job = &trainer->world->job[trainer->job];

    return job->later_step == UINT64_MAX ? trainer->tensors : job->first_batch;
}

/* The rest of the tensors, before the step in which they are pushed first, or as the rank returns.
 */
static void commit_later(struct trainer *trainer)
{
    struct event mapped = {.type = EVENT_RANK_MAPPED};

    trainer->committing = true;
    if (commit(trainer, first_batch(trainer), trainer->tensors)) {
        (void)request(trainer, &mapped);
    }
}

/* Whether the job that had the key of this one is not over, or not for so long. */
static bool must_wait(const struct trainer *trainer)
{
    struct world *world = trainer->world;
    unsigned after = world->job[trainer->job].after;

    return after > 0 && (!world_job_over(world, after - 1) ||
                            world->now_us < world->job[after - 1].over_us + world->scenario.gap_us);
}

/* Goes on with joining, up to where it is held. */
static void join(struct trainer *trainer)
{
    struct event event = {.type = EVENT_RANK_MAPPED};

    if (must_wait(trainer)) {
        world_wake(trainer->world, trainer, 1000);
        return;
    }
    if (trainer->hold == HOLD_OUT || (trainer->state == TRAINER_OUT && !open_session(trainer)) ||
        trainer->hold == HOLD_OPEN) {
        return;
    }
    if (trainer->joined == JOINED_OPEN) {
        trainer->joined = JOINED_COMMITTED;
        if (!commit(trainer, 0, first_batch(trainer))) {
            return;
        }
    }
    if (trainer->hold == HOLD_COMMITTED) {
        return;
    }
    if (trainer->joined == JOINED_COMMITTED) {
        trainer->joined = JOINED_MAPPED;
        if (request(trainer, &event) == ADTOPK_OK &&
            (trainer->batches > 0 || trainer->committing)) {
            commit_later(trainer);
        }
    }
}

void trainer_disconnected(struct trainer *trainer)
{
    trainer->session = 0;
    if (trainer->state == TRAINER_LEAVING) {
        trainer->state = TRAINER_DONE;
    }
    if (trainer->state == TRAINER_FORMING || trainer->state == TRAINER_RUNNING) {
        trainer->state = TRAINER_OUT;
        trainer->next_push = 0;
        trainer->blocked_on = -1;
        trainer->ended = false;
        trainer->op_pending = false;
    }
}

static void step_over(struct trainer *trainer)
{
    trainer->step++;
    trainer->next_push = 0;
    trainer->blocked_on = -1;
    trainer->ended = false;
}

static void op_submit(struct trainer *trainer)
{
    struct event event = {.type = EVENT_RANK_OP};

    operation_begin(trainer, &event);
    trainer->op_pending = true;
    (void)request(trainer, &event);
}

static void op_over(struct trainer *trainer)
{
    operation_check(trainer);
    trainer->operation++;
    trainer->called = trainer->step + 1;
    trainer->op_pending = false;
}

/* The others have taken the rank in. */
static void begin_again(struct trainer *trainer, const struct action *action)
{
    struct node_job *memory = &trainer->world->node[trainer->node].memory[trainer->job];
    struct sim_stats *stats = &trainer->world->stats;

    count_node(trainer->world, &stats->taken_in, &stats->many_taken_in);
    trainer->newcomer = false;
    trainer->step = trainer->since = trainer->absent_to = action->number;
    trainer->operation = action->operation;
    memory->step_mark = 0;
    memory->failed = false;
}

void trainer_action(struct trainer *trainer, const struct action *action)
{
    struct world *world = trainer->world;
    bool paced;

    switch (action->type) {
    case ACTION_READY:
        trainer->batches = action->batches - 1;
        trainer->committing &= trainer->batches == 0; /* it may have returned while it committed */
        trainer->state = TRAINER_RUNNING;
        trainer->run = action->run;
        trainer->grown = action->members.joined;
        trainer->back = trainer->comes_back ? trainer->step + 1 : trainer->back;
        trainer->comes_back = false;
        if (trainer->newcomer) {
            begin_again(trainer, action);
        }
        while (trainer->step < action->number) {
            step_over(trainer); /* accepted before the daemon restarted */
        }
        if (trainer->operation < action->operation) {
            op_over(trainer);
        }
        break;
    case ACTION_DELIVERED:
        trainer->delivered[action->tensor] = action->number + 1;
        if (trainer->blocked_on == (int)action->tensor) {
            trainer->blocked_on = -1;
        }
        break;
    case ACTION_STEP:
        trainer->grown = action->members.joined;
        step_over(trainer);
        break;
    case ACTION_OP_DONE: op_over(trainer); break;
    case ACTION_FAILED: fail(trainer, action->error); return;
    case ACTION_CLOSED: trainer->state = TRAINER_DONE; return;
    default: return; /* it is for an operator */
    }
    paced = action->type == ACTION_STEP && world->scenario.pace_us > 0;
    world_wake(world, trainer, 1 + world_random(world, paced ? world->scenario.pace_us : 100));
}

/* The order of pushes differs from step to step, and from rank to rank unless they block on
 * tensors. Ranks that wait in different orders would wait for each other, whatever the daemon does.
 */
static unsigned pushed_at(const struct trainer *trainer, unsigned position)
{
    const struct world *world = trainer->world;
    uint64_t x = hash(seed_of(world, trainer->job), trainer->step,
        world->scenario.wait > 0 ? 0 : trainer->rank, 9, 9);
    unsigned tensors = trainer_tensors(world, trainer->job, trainer->step);
    unsigned order[SIM_MAX_TENSORS];

    for (unsigned t = 0; t < tensors; t++) {
        order[t] = t;
    }
    for (unsigned t = tensors - 1; t > 0; t--) {
        unsigned other = (unsigned)(x % (t + 1)), swap = order[t];
        x /= t + 1;
        order[t] = order[other];
        order[other] = swap;
    }
    return order[position];
}

/* Writes one element, which its type can say. */
static void write_element(uint8_t *arena, enum dtype dtype, uint64_t i, float g)
{
    const uint16_t f16 = isinf(g) ? (g < 0 ? 0xfc00u : 0x7c00u) : convert_to_f16(g);
    const uint16_t half = dtype == DTYPE_F16 ? f16 : convert_to_bf16(g);

    if (dtype == DTYPE_F32) {
        (void)memcpy(arena + 4 * i, &g, 4);
    } else {
        (void)memcpy(arena + 2 * i, &half, 2);
    }
}

static void push(struct trainer *trainer, unsigned tensor)
{
    struct world *world = trainer->world;
    const float scale = trainer_scale(world, trainer->job, trainer->step) *
                        (trainer->other_scale != 0 ? trainer->other_scale : 1);
    const struct gradient gradient =
        gradient_begin(world, trainer->job, trainer->step, trainer->rank, tensor);
    struct event event = {.type = EVENT_RANK_PUSH};
    struct tensor_layout layout;

    if (!inside_layout(world->node[trainer->node].core, trainer->session, tensor, &layout)) {
        return;
    }
    for (uint64_t i = 0; i < world->job[trainer->job].numel[tensor]; i++) {
        write_element(trainer->arena[layout.batch] + layout.gradient_offset,
            trainer->tensor[tensor].dtype, i, scale * gradient_at(&gradient, i));
    }
    event.step.tensor = tensor;
    event.step.number = trainer->step;
    event.step.scale = scale;
    if (request(trainer, &event) == ADTOPK_OK && trainer->session != 0 &&
        world_chance(world, world->scenario.wait)) {
        event.type = EVENT_RANK_WAIT;
        trainer->blocked_on = trainer->delivered[tensor] == trainer->step + 1 ? -1 : (int)tensor;
        (void)request(trainer, &event);
    }
}

static void die(struct trainer *trainer)
{
    struct event gone = {
        .type = EVENT_RANK_LOST, .session = trainer->session, .reason = "it was killed"};

    trainer->lost = true;
    trainer->state = TRAINER_FAILED;
    (void)node_event(trainer->world, trainer->node, &gone, NULL);
    trainer->session = 0;
}

/* The arena of a process that ends stays until the core needs it no more. */
static void leave_arena(struct trainer *trainer)
{
    struct sim_orphan *orphan = trainer->world->orphan;

    while (orphan->session != 0) {
        orphan++;
    }
    *orphan = (struct sim_orphan){.session = trainer->session, .arena = trainer->arena[0]};
    trainer->arena[0] = NULL;
    trainer->arena_size[0] = 0;
}

void trainer_end(struct trainer *trainer, uint64_t back_after_us)
{
    struct event gone = {
        .type = EVENT_RANK_LOST, .session = trainer->session, .reason = "it was killed"};

    leave_arena(trainer);
    trainer->session = 0;
    trainer->state = TRAINER_OUT;
    trainer->next_push = 0;
    trainer->blocked_on = -1;
    trainer->ended = false;
    trainer->comes_back = true;
    (void)node_event(trainer->world, trainer->node, &gone, NULL);
    world_wake(trainer->world, trainer, back_after_us);
}

/* Whether the process may end now. Another one can repeat the step, unless it does so already, or
 * a rank has left. */
static bool may_end(const struct trainer *trainer)
{
    const struct world *world = trainer->world;
    const struct sim_job *job = &world->job[trainer->job];

    for (unsigned i = 0; i < job->trainers; i++) {
        if (world->trainer[job->first + i].state >= TRAINER_LEAVING) {
            return false;
        }
    }
    return trainer->step < world->scenario.steps && trainer->back != trainer->step + 1;
}

void trainer_turn(struct trainer *trainer)
{
    struct world *world = trainer->world;
    struct event event = {0};

    switch (trainer->state) {
    case TRAINER_OUT:
    case TRAINER_FORMING: join(trainer); return;
    case TRAINER_RUNNING: break;
    default: return;
    }
    if (trainer->op_pending || trainer->blocked_on >= 0 || trainer->ended || trainer->committing) {
        return; /* an action wakes it */
    }
    if (trainer->hold == HOLD_STEP && trainer->step == trainer->hold_step &&
        trainer->next_push == trainer->hold_pushes) {
        return;
    }
    if (world->scenario.ends > 0 && world_chance(world, world->scenario.ends) && may_end(trainer)) {
        trainer_end(trainer, 1 + world_random(world, 300000));
        return;
    }
    if (world->job[trainer->job].may_fail && world->scenario.dies && trainer->rank == 0 &&
        trainer->next_push > 0) {
        die(trainer);
        return;
    }
    if (trainer->operation < world->scenario.operations) {
        op_submit(trainer);
        return;
    }
    if (trainer->step == world->scenario.steps && !trainer->lingered) {
        trainer->lingered = true;
        world_wake(world, trainer, 1 + world_random(world, world->scenario.linger_us + 1));
        return;
    }
    if (trainer->step == world->scenario.steps) {
        trainer->state = TRAINER_LEAVING;
        check_residuals(world, trainer->node, trainer->job);
        event.type = EVENT_RANK_LEAVE;
        (void)request(trainer, &event);
        return;
    }
    if (trainer->called != trainer->step + 1 &&
        (world->scenario.calls || (trainer->step > 0 && trainer->grown == trainer->step))) {
        op_submit(trainer);
        return;
    }
    if (trainer->step == world->job[trainer->job].later_step && trainer->batches == 0) {
        commit_later(trainer);
        return;
    }
    if (trainer->next_push < trainer_tensors(world, trainer->job, trainer->step)) {
        unsigned tensor = pushed_at(trainer, trainer->next_push++);
        if (trainer_pushes(world, trainer->job, trainer->step, trainer->rank, tensor)) {
            push(trainer, tensor);
        }
    } else {
        trainer->ended = true;
        event.type = EVENT_RANK_STEP_END;
        event.step.number = trainer->step;
        (void)request(trainer, &event);
    }
    if (trainer->state == TRAINER_RUNNING) {
        world_wake(world, trainer, 1 + world_random(world, 100));
    }
}
