#include "tests/sim/carrier.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/job/hash.h"
#include "tests/sim/world.h"

#define CARRIER_DELAY_US 400u

struct sim_cargo {
    struct sim_cargo *next;
    struct cargo *cargo;
};

uint32_t carrier_version(uint64_t seed, unsigned node)
{
    const uint64_t odd = hash_mix(seed) % 8;

    return node == 0 && odd < 2 ? (uint32_t)odd : 22809;
}

static uint64_t carrier_random(struct node *node, uint64_t below)
{
    return hash_mix(node->world->scenario.seed * 7 + ++node->carrier_draws * 1000003) % below;
}

/* ------------------------------------------------------------------ coming back */

static void carrier_return(struct node *node, struct cargo *cargo, bool failed)
{
    world_at(node->world, 1 + carrier_random(node, CARRIER_DELAY_US),
        (struct sim_event){.type = SIM_CARRIED,
            .node = node->number,
            .incarnation = node->incarnation,
            .cargo = cargo,
            .failed = failed});
}

void carrier_turn(struct node *node, const struct sim_event *event)
{
    if (node->incarnation != event->incarnation || node->core == NULL) {
        return; /* the core has freed it */
    }
    if (event->failed) {
        (void)error_set(&event->cargo->error, ADTOPK_ERR_SYSTEM, "the carrier has failed");
    }
    (void)node_event(node->world, node->number,
        &(struct event){.type = EVENT_CARRIED, .cargo = event->cargo}, NULL);
}

/* ------------------------------------------------------------------ an operation */

static struct cargo *carrier_head(const struct node *node)
{
    return node->cargos != NULL ? node->cargos->cargo : NULL;
}

static void carrier_pop(struct node *node)
{
    struct sim_cargo *first = node->cargos;

    node->cargos = first->next;
    free(first);
}

static bool carrier_same_group(const struct cargo *a, const struct cargo *b)
{
    return memcmp(a->group.name, b->group.name, sizeof(a->group.name)) == 0;
}

/* The node on whose device the operation of this member is the first; NULL: there is none. */
static struct node *carrier_member(struct world *world, const struct cargo *like, unsigned member)
{
    for (unsigned n = 0; n < world->scenario.nodes; n++) {
        const struct cargo *head = carrier_head(&world->node[n]);
        if (head != NULL && carrier_same_group(head, like) && head->group.self == member) {
            return &world->node[n];
        }
    }
    return NULL;
}

static uint64_t *carrier_group(struct node *node, uint64_t job)
{
    for (unsigned j = 0; j < node->world->jobs; j++) {
        if (node->memory[j].number == job) {
            return &node->memory[j].group;
        }
    }
    return NULL;
}

/* Whether this member may take part. A group that it says it has must be there. */
static bool carrier_check(struct node *node, const struct cargo *cargo, const struct cargo *first)
{
    if (cargo->kind != first->kind || cargo->bytes != first->bytes ||
        cargo->number != first->number || cargo->group.number != first->group.number ||
        cargo->group.members != first->group.members ||
        cargo->group.devices != first->group.devices) {
        world_violate(node->world,
            "node %u carries operation %llu of kind %d, %llu bytes in group %llu, and the first "
            "member %llu of kind %d, %llu bytes in group %llu",
            node->number, (unsigned long long)cargo->number, (int)cargo->kind,
            (unsigned long long)cargo->bytes, (unsigned long long)cargo->group.number,
            (unsigned long long)first->number, (int)first->kind, (unsigned long long)first->bytes,
            (unsigned long long)first->group.number);
        return false;
    }
    if (cargo->group.made != first->group.made) {
        world_violate(node->world, "node %u %s group %llu, and the first member not", node->number,
            cargo->group.made ? "has" : "lacks", (unsigned long long)cargo->group.number);
        return false;
    }
    return true;
}

static void carrier_sum(struct node *const *member, unsigned members)
{
    const struct cargo *first = carrier_head(member[0]);
    const size_t n = first->bytes / sizeof(float);
    float *sum = sim_alloc(first->bytes + 1);

    for (unsigned m = members; m-- > 0;) {
        const float *x = (const float *)(const void *)carrier_head(member[m])->input;
        for (size_t i = 0; i < n; i++) {
            sum[i] += x[i];
        }
    }
    for (unsigned m = 0; m < members; m++) {
        (void)memcpy(carrier_head(member[m])->input, sum, first->bytes);
    }
    free(sum);
}

/* Each member's piece, or in a DEAL the one that is for this member. */
static void carrier_gather(struct node *const *member, unsigned members)
{
    for (unsigned m = 0; m < members; m++) {
        const struct cargo *to = carrier_head(member[m]);
        const uint64_t at = to->kind == CARGO_DEAL ? m * to->bytes : 0;
        for (unsigned from = 0; from < members; from++) {
            (void)memcpy(
                to->output + from * to->bytes, carrier_head(member[from])->input + at, to->bytes);
        }
    }
}

/* Makes the operation that is the first on this node, if it is on all. */
static bool carrier_try(struct world *world, const struct cargo *cargo)
{
    struct node *member[SIM_MAX_NODES] = {NULL};
    const unsigned members = cargo->group.members;

    for (unsigned m = 0; m < members; m++) {
        member[m] = carrier_member(world, cargo, m);
        if (member[m] == NULL || member[m]->carrier_fault == CARRIER_SILENT ||
            !carrier_check(member[m], carrier_head(member[m]), carrier_head(member[0]))) {
            return false;
        }
    }
    if (cargo->kind == CARGO_SUM) {
        carrier_sum(member, members);
    } else {
        carrier_gather(member, members);
    }
    world->stats.carried++;
    for (unsigned m = 0; m < members; m++) {
        struct cargo *done = carrier_head(member[m]);
        const bool fails = member[m]->carrier_fault == CARRIER_FAILS;

        member[m]->carrier_fault = CARRIER_WELL;
        carrier_pop(member[m]);
        carrier_return(member[m], done, fails);
    }
    return true;
}

static void carrier_go_on(struct world *world)
{
    for (unsigned n = 0; n < world->scenario.nodes;) {
        const struct cargo *head = carrier_head(&world->node[n]);
        n = head != NULL && carrier_try(world, head) ? 0 : n + 1;
    }
}

/* ------------------------------------------------------------------ the interface */

static void carrier_start(void *context, struct cargo *cargo)
{
    struct node *node = context;
    struct sim_cargo **at = &node->cargos;
    uint64_t *group = carrier_group(node, cargo->job);
    const uint64_t name[2] = {node->world->next_name, node->number};

    if (cargo->kind == CARGO_NAME) {
        node->world->next_name++;
        (void)memcpy(cargo->input, name, sizeof(name));
        carrier_return(node, cargo, node->carrier_fault == CARRIER_NAMELESS);
        return;
    }
    if (cargo->group.made && *group != cargo->group.number) {
        carrier_return(node, cargo, true); /* its process has died since */
        return;
    }
    if (cargo->group.made && cargo->group.members != node->carrier_members) {
        world_violate(node->world, "node %u: a group that was made with %u members carries for %u",
            node->number, node->carrier_members, cargo->group.members);
    }
    node->carrier_members = cargo->group.members;
    *group = cargo->group.number;
    while (*at != NULL) {
        at = &(*at)->next;
    }
    *at = sim_alloc(sizeof(**at));
    **at = (struct sim_cargo){.cargo = cargo};
    carrier_go_on(node->world);
}

/* With an operation ends its group, and what the node has started in that. */
static void carrier_abort(void *context, struct cargo *cargo)
{
    struct node *node = context;
    struct sim_cargo **at = &node->cargos;
    uint64_t *group = carrier_group(node, cargo->job);

    while (*at != NULL && (*at)->cargo != cargo) {
        at = &(*at)->next;
    }
    if (*at == NULL) {
        return; /* it has happened, and is on its way back */
    }
    if (group != NULL) {
        *group = 0;
    }
    while (*at != NULL) {
        struct sim_cargo *gone = *at;
        if (!carrier_same_group(gone->cargo, cargo)) {
            at = &gone->next;
            continue;
        }
        *at = gone->next;
        carrier_return(node, gone->cargo, true);
        free(gone);
    }
    carrier_go_on(node->world);
}

static bool carrier_has(void *context, uint64_t job, uint64_t group)
{
    const uint64_t *there = carrier_group(context, job);

    return there != NULL && *there == group;
}

const struct carrier_ops sim_carrier = {
    .name = "NCCL", .start = carrier_start, .abort = carrier_abort, .has = carrier_has};

void carrier_dies(struct node *node)
{
    while (node->cargos != NULL) {
        carrier_return(node, carrier_head(node), true);
        carrier_pop(node);
    }
    for (unsigned j = 0; j < node->world->jobs; j++) {
        node->memory[j].group = 0;
    }
}

void carrier_forget(struct node *node)
{
    while (node->cargos != NULL) {
        carrier_pop(node);
    }
    for (unsigned j = 0; j < node->world->jobs; j++) {
        node->memory[j].group = 0;
    }
    node->carrier_fault = CARRIER_WELL;
}
