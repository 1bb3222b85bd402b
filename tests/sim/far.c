#include "tests/sim/far.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/job/hash.h"
#include "kernels/base/record.h"
#include "tests/sim/world.h"

#define FAR_DELAY_US 400u
#define FAR_AWAY_US 5000u
#define FAR_DEATHS 50u    /* it dies after one in so many orders */
#define FAR_FORGETFUL 20u /* the same if it may come back without the content of its memory */
#define FAR_FORGETS 2u    /* which it does one in so many times */

/* Bits of a tensor whose residuals were lost. */
enum {
    FAR_UNTOLD = 1,  /* no result has said so */
    FAR_NOTHING = 2, /* nothing was added since, so nothing is withdrawn */
    FAR_UNNOTED = 4  /* a result has said so, which the core may not have read */
};

struct far_batch {
    struct far_batch *next;
    struct engine_batch *batch;
    uint64_t since_us;
    unsigned left; /* orders that are not done */
    uint64_t life; /* of the engine, in which it began the batch */
};

bool far_is_chosen(uint64_t seed, unsigned node)
{
    return seed % 3 == 2 && (seed / 3 + node) % 3 != 0;
}

/* Runs without a far engine draw as they would if there were none. */
static uint64_t far_random(struct node *node, uint64_t below)
{
    return hash_mix(node->world->scenario.seed + ++node->far_draws * 1000003) % below;
}

/* ------------------------------------------------------------------ its memory */

/* What plans keep is the core's own. */
static bool far_owns(unsigned part)
{
    return part < STORE_PLAN || part >= STORE_RESIDUALS;
}

static bool far_is_main(unsigned part)
{
    return part == STORE_MAIN || (part >= STORE_LATER && (part - STORE_LATER) % 4 == STORE_MAIN);
}

static bool far_is_residuals(unsigned part)
{
    return part >= STORE_RESIDUALS && (part < STORE_LATER || (part - STORE_LATER) % 4 > 1);
}

void far_part(struct node *node, struct node_job *memory, unsigned part, uint64_t size)
{
    free(memory->far[part]);
    memory->far[part] = NULL;
    if (size > 0 && node->far && far_owns(part)) {
        memory->far[part] = sim_alloc(size);
        if (far_is_residuals(part)) {
            (void)memset(memory->store[part], 0xff, size);
        }
    }
}

static struct node_job *memory_of(const struct node *node, uint64_t number)
{
    unsigned j = 0;

    while (node->memory[j].number != number) {
        j++;
    }
    return (struct node_job *)(uintptr_t)&node->memory[j];
}

void *far_keep(
    void *context, uint64_t number, unsigned part, uint64_t size, bool *existing, struct error *err)
{
    struct node_job *memory = memory_of(context, number);

    if (((struct node *)context)->refuses == MEMORY_NO_STORE) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "there is no memory for what a far engine has");
        return NULL;
    }
    if (memory->image_open[part]) {
        world_violate(((struct node *)context)->world, "image %u is opened twice", part);
    }
    memory->image_open[part] = true;
    *existing = memory->image[part] != NULL;
    if (!*existing) {
        memory->image[part] = sim_alloc(size);
    }
    return memory->image[part];
}

void far_drop_keep(void *context, uint64_t number, unsigned part)
{
    struct node_job *memory = memory_of(context, number);

    free(memory->image[part]);
    memory->image[part] = NULL;
    memory->image_open[part] = false;
}

void far_leave(void *context, uint64_t number)
{
    struct node_job *memory = memory_of(context, number);

    for (unsigned part = 0; part < CORE_STORE_PARTS; part++) {
        free(memory->far[part]);
        memory->far[part] = NULL;
        if (far_is_residuals(part)) {
            free(memory->store[part]);
            memory->store[part] = NULL;
        }
    }
    (void)memset(memory->emptied, 0, sizeof(memory->emptied));
}

void far_join(struct node *node, struct node_job *memory, unsigned opened)
{
    for (unsigned part = 0; far_is_residuals(opened) && part < CORE_STORE_PARTS; part++) {
        if (memory->store[part] != NULL && memory->far[part] == NULL) {
            far_part(node, memory, part, memory->store_size[part]);
        }
    }
}

/* An engine may tell by their stamps which of two passes came later. */
static void check_stamp(
    const struct node *node, const struct engine_memory *memory, const struct engine_order *order)
{
    const struct progress *progress = engine_address(memory, order->residual.progress);

    if (order->kind <= ENGINE_TAKE && order->stamp < progress->stamp) {
        world_violate(node->world, "node %u: a pass over tensor %u has stamp %llu after %llu",
            node->number, order->tensor, (unsigned long long)order->stamp,
            (unsigned long long)progress->stamp);
    }
}

/* Notes what comes in, and whether there is nothing to withdraw. */
static bool far_lacks(struct node_job *memory, const struct engine_order *order)
{
    uint8_t *bits = &memory->emptied[order->tensor];
    const bool replaces = order->kind == ENGINE_LOAD && order->image.count == order->numel;

    *bits = replaces ? 0 : *bits & (uint8_t)~FAR_UNNOTED;
    if (order->kind == ENGINE_ADD) {
        *bits &= (uint8_t)~FAR_NOTHING;
    }
    return order->kind == ENGINE_WITHDRAW && (*bits & FAR_NOTHING) != 0;
}

/* Carries one order out in its own memory: the elements, and the progress of their passes. */
static void carry_out(const struct node *node, const struct engine_batch *batch, unsigned at)
{
    const struct parallel alone = {.threads = 0};
    struct node_job *own = memory_of(node, batch->memory->job);
    struct engine_memory memory = *batch->memory;
    struct engine_order order = batch->order[at];
    const struct engine_batch single = {.memory = &memory,
        .order = &order,
        .result = &batch->result[at],
        .count = 1,
        .part = batch->part};

    memory.journal = NULL; /* it dies between orders only */
    for (unsigned part = 0; part < CORE_STORE_PARTS; part++) {
        if (own->far[part] != NULL && !far_is_main(part)) {
            memory.store[part] = (uint8_t *)own->far[part];
        }
    }
    if (order.residual.progress.arena < CORE_STORE_PARTS &&
        far_is_main(order.residual.progress.arena)) {
        order.residual.progress = engine_here(
            (uint8_t *)own->far[order.residual.progress.arena] + order.residual.progress.offset);
    }
    check_stamp(node, &memory, &order);
    batch->result[at] = (struct engine_result){.status = ADTOPK_OK};
    if (!engine_leaves_out(batch, at) && !far_lacks(own, &order)) {
        engine_host.run(NULL, &single, &alone);
    }
    batch->result[at].emptied =
        engine_is_there(order.residual.element) && (own->emptied[order.tensor] & FAR_UNTOLD) != 0;
}

static void far_run(
    void *context, const struct engine_batch *batch, const struct parallel *parallel)
{
    (void)parallel;
    for (unsigned i = 0; i < batch->count; i++) {
        carry_out(context, batch, i);
    }
}

/* ------------------------------------------------------------------ its queue */

static void order_later(struct node *node, struct far_batch *far, unsigned at, uint64_t after_us)
{
    world_at(node->world, after_us + 1 + far_random(node, FAR_DELAY_US),
        (struct sim_event){.type = SIM_ORDER,
            .node = node->number,
            .incarnation = node->incarnation,
            .far = far,
            .life = node->far_life,
            .at = at});
}

/* The first order of each tensor; the next follows when it is done. */
static void begin(struct node *node, struct far_batch *far, uint64_t after_us)
{
    const struct engine_batch *batch = far->batch;

    far->left = batch->count;
    far->life = node->far_life;
    for (unsigned i = 0; i < batch->count; i++) {
        if (i == 0 || batch->order[i].tensor != batch->order[i - 1].tensor) {
            order_later(node, far, i, after_us);
        }
    }
}

static void far_submit(void *context, struct engine_batch *batch)
{
    struct node *node = context;
    struct far_batch *far = sim_alloc(sizeof(*far));

    assert(engine_passes_once(batch));
    *far = (struct far_batch){
        .next = node->far_batches, .batch = batch, .since_us = node->world->now_us};
    node->far_batches = far;
    begin(node, far, 0);
}

const struct engine_ops far_engine = {
    .name = "far", .alignment = 4096, .run = far_run, .submit = far_submit};

static void ended(struct node *node, struct far_batch *far)
{
    struct far_batch **at = &node->far_batches;

    while (*at != far) {
        at = &(*at)->next;
    }
    *at = far->next;
    for (unsigned i = 0; i < far->batch->count; i++) {
        uint8_t *bits =
            &memory_of(node, far->batch->memory->job)->emptied[far->batch->order[i].tensor];

        if (far->batch->result[i].emptied != 0) {
            *bits = (*bits & (uint8_t)~FAR_UNTOLD) | FAR_UNNOTED;
        }
    }
    far->batch->took_us = node->world->now_us - far->since_us;
    world_at(node->world, far_random(node, FAR_DELAY_US),
        (struct sim_event){.type = SIM_ENGINE,
            .node = node->number,
            .incarnation = node->incarnation,
            .batch = far->batch});
    node->far_ending++;
    free(far);
}

static void far_clear_job(struct node_job *memory)
{
    memory->torn = true;
    for (unsigned part = 0; part < CORE_STORE_PARTS; part++) {
        if (memory->far[part] != NULL) {
            (void)memset(memory->far[part], 0, memory->store_size[part]);
        }
    }
}

void far_clear(struct node *node)
{
    for (unsigned j = 0; j < node->world->jobs; j++) {
        far_clear_job(&node->memory[j]);
    }
}

static void far_forget_all(struct node *node)
{
    far_clear(node);
    for (unsigned j = 0; j < node->world->jobs; j++) {
        node->memory[j].forgot = node->world->job[j].bent = true;
        (void)memset(
            node->memory[j].emptied, FAR_UNTOLD | FAR_NOTHING, node->world->job[j].tensors);
    }
}

/* It comes back with its memory, or all zeros, and begins anew what it had. */
static void dies(struct node *node)
{
    uint64_t away = far_random(node, FAR_AWAY_US);

    if (node->far_forgets && far_random(node, FAR_FORGETS) == 0) {
        far_forget_all(node);
    }
    node->far_life++;
    node->world->stats.deaths++;
    for (struct far_batch *far = node->far_batches; far != NULL; far = far->next) {
        begin(node, far, away);
    }
}

void far_turn(struct node *node, const struct sim_event *event)
{
    struct far_batch *far = event->far;
    const struct engine_batch *batch;
    unsigned next = event->at + 1;

    if (node->incarnation != event->incarnation || node->far_life != event->life) {
        return; /* the batch is gone, or was begun anew */
    }
    batch = far->batch;
    if (node->far_deaf) {
        return;
    }
    carry_out(node, batch, event->at);
    node->computed = true;
    if (--far->left == 0) {
        ended(node, far);
    } else if (next < batch->count && batch->order[next].tensor == batch->order[event->at].tensor) {
        order_later(node, far, next, 0);
    }
    if (far_random(node, node->far_forgets ? FAR_FORGETFUL : FAR_DEATHS) == 0) {
        dies(node);
    }
}

void far_lose(struct node *node)
{
    far_clear(node);
    (void)node_event(node->world, node->number, &(struct event){.type = EVENT_ENGINE_LOST}, NULL);
    dies(node);
}

bool far_has_untold(const struct node_job *memory)
{
    bool any = false;

    for (unsigned t = 0; t < SIM_MAX_TENSORS; t++) {
        any = any || (memory->emptied[t] & FAR_UNTOLD) != 0;
    }
    return any;
}

/* The next daemon takes no memory for residuals while the store may lack a loss of it. */
static void far_give_up(struct node_job *memory, unsigned tensors)
{
    bool unnoted = false;

    for (unsigned t = 0; t < tensors; t++) {
        unnoted = unnoted || (memory->emptied[t] & (FAR_UNTOLD | FAR_UNNOTED)) != 0;
    }
    if (unnoted) {
        far_clear_job(memory);
        (void)memset(memory->emptied, FAR_UNTOLD | FAR_NOTHING, tensors);
    }
}

bool far_is_busy(const struct node *node)
{
    return node->far && (node->far_batches != NULL || node->far_ending > 0 || node->computing > 0);
}

void far_forget(struct node *node)
{
    node->far_life++;
    node->far_ending = 0;
    for (unsigned j = 0; node->far && j < node->world->jobs; j++) {
        node->memory[j].torn = true;
        far_give_up(&node->memory[j], node->world->job[j].tensors);
    }
    while (node->far_batches != NULL) {
        struct far_batch *far = node->far_batches;
        node->far_batches = far->next;
        free(far);
    }
}
