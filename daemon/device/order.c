#include "daemon/device/order.h"

#include "kernels/base/dtype.h"
#include "kernels/base/record.h"

/* DIRECT, PASSED, UPDATE and NARROW read gradients and lists, and write what ranks see in host
 * memory. What ranks see on their GPUs is written by SHOW. */
const struct order_kind order_kinds[ENGINE_KINDS] = {
    [ENGINE_ADD] = {.name = "add"},
    [ENGINE_WITHDRAW] = {.name = "withdraw"},
    [ENGINE_JOIN] = {.name = "join"},
    [ENGINE_TAKE] = {.name = "take"},
    [ENGINE_DIRECT] = {.name = "direct", .here = true},
    [ENGINE_PASSED] = {.name = "passed", .here = true},
    [ENGINE_LEAVE] = {.name = "leave"},
    [ENGINE_RETURN] = {.name = "return"},
    [ENGINE_GATHER] = {.name = "gather"},
    [ENGINE_READ] = {.name = "read"},
    [ENGINE_SAVE] = {.name = "save"},
    [ENGINE_LOAD] = {.name = "load"},
    [ENGINE_UPDATE] = {.name = "update", .here = true},
    [ENGINE_NARROW] = {.name = "narrow", .here = true},
    [ENGINE_SHOW] = {.name = "show"},
    [ENGINE_SUMMED] = {.name = "summed"},
    [ENGINE_SUMS] = {.name = "sums"},
    [ENGINE_CONVERT] = {.name = "convert"},
    [ENGINE_CARRY] = {.name = "carry"},
};

struct order_walk {
    order_visit visit;
    void *context;
};

/* Numbers of arenas. */
struct order_pools {
    bool parts;      /* there are such */
    uint32_t joined; /* of the parts */
    uint32_t filled; /* of what the order fills */
    bool rounded;    /* that is in bf16 */
};

static void order_place(
    const struct order_walk *walk, struct engine_place *place, uint64_t size, enum order_way way)
{
    if (engine_is_there(*place)) {
        walk->visit(walk->context, place, size, way);
    }
}

static void order_stays(const struct order_walk *walk, struct engine_place *place)
{
    order_place(walk, place, 0, ORDER_STAYS);
}

static void order_list(const struct order_walk *walk, struct engine_list *list)
{
    order_place(walk, &list->position, list->count * sizeof(uint32_t), ORDER_IN);
    order_place(walk, &list->value, list->count * sizeof(float), ORDER_IN);
}

/* One bit per entry of a list. */
static void order_bits(
    const struct order_walk *walk, struct engine_place *bits, const struct engine_list *list)
{
    order_place(walk, bits, (list->count + 7) / 8, ORDER_IN);
}

static void order_gradients(
    const struct order_walk *walk, struct engine_order *order, struct engine_part *part)
{
    for (unsigned i = 0; i < order->parts; i++) {
        order_place(walk, &part[i].element, order->numel * dtype_size(order->dtype), ORDER_IN);
    }
    order_place(walk, &order->ledger, 2 * sizeof(double), ORDER_IN); /* see order_result() */
    order_place(walk, &order->lost, 2 * sizeof(double), ORDER_IN);
}

struct sparsifier_turn order_turn(const struct engine_add *add)
{
    return (struct sparsifier_turn){.shape = &add->shape,
        .params = &add->params,
        .agreed = &add->agreed,
        .turn = add->turn,
        .seed = add->seed};
}

struct sparsifier_choice order_choice(const struct engine_order *order)
{
    const struct engine_add *add = &order->add;
    struct sparsifier_choice choice = {.mode = SPARSIFIER_DENSE};

    if (order->kind == ENGINE_ADD && add->selects) {
        const struct sparsifier_turn turn = order_turn(add);

        sparsifier_table[add->sparsifier]->choose(&turn, &choice);
    }
    return choice;
}

bool order_is_here(const struct engine_order *order)
{
    return order_kinds[order->kind].here ||
           (order->kind == ENGINE_SHOW && engine_is_there(order->show.whole)) ||
           (order->kind == ENGINE_READ && order->parts > 0 &&
               !engine_is_there(order->residual.element));
}

bool order_moves(const struct engine_order *order)
{
    const bool masks = order->kind == ENGINE_LEAVE && order->leave.masks;
    const bool adds = order->kind == ENGINE_ADD || order->kind == ENGINE_WITHDRAW;

    return (adds || masks) && engine_is_there(order->residual.momentum);
}

/* Where the other residuals or velocities are that an order reads or fills: in one pool for all of
 * its parts, and in another one, or none. */
static struct order_pools order_pools(
    const struct engine_order *order, const struct engine_part *part)
{
    struct order_pools pools = {.parts = order->parts > 0};

    switch (order->kind) {
    case ENGINE_JOIN: pools.joined = pools.parts ? part[0].element.arena : 0; break;
    case ENGINE_CONVERT:
        pools.filled = order->convert.element.arena;
        pools.rounded = order->convert.rounded;
        break;
    case ENGINE_CARRY:
        pools.filled = order->carry.momentum.arena;
        pools.joined = pools.parts ? part[0].momentum.arena : 0;
        break;
    default: pools.parts = false; break;
    }
    return pools;
}

static bool order_has_pools(const struct order_pools *one, const struct order_pools *other)
{
    return one->parts == other->parts && one->joined == other->joined &&
           one->filled == other->filled && one->rounded == other->rounded;
}

/* Residuals and velocities that orders of a run change are in one pool each. */
bool order_goes_with(const struct engine_order *order, const struct engine_part *part,
    const struct engine_order *next, const struct engine_part *next_part)
{
    const bool moves = order_moves(order);
    struct order_pools pools, next_pools;

    if (order->kind != next->kind || order->residual.rounded != next->residual.rounded ||
        order->residual.element.arena != next->residual.element.arena ||
        moves != order_moves(next) ||
        (moves && order->residual.momentum.arena != next->residual.momentum.arena)) {
        return false;
    }
    pools = order_pools(order, part);
    next_pools = order_pools(next, next_part);
    return order_has_pools(&pools, &next_pools);
}

void order_prepare(const struct engine_memory *memory, const struct engine_order *order)
{
    if (order_choice(order).mode == SPARSIFIER_KNOWN) {
        const struct engine_add *add = &order->add;
        const struct sparsifier_turn turn = order_turn(add);
        struct sparse list = {.position = engine_address(memory, add->list.position),
            .value = engine_address(memory, add->list.value),
            .capacity = add->list.count};

        sparsifier_table[add->sparsifier]->known(&turn, &list);
    }
}

/* Entries of its list that a turn may fill. */
static uint64_t order_selected(const struct engine_order *order)
{
    const struct sparsifier_choice choice = order_choice(order);
    const uint64_t room = order->add.list.count;

    return choice.count < room ? choice.count : room;
}

static void order_of_add(
    const struct order_walk *walk, struct engine_order *order, struct engine_part *part)
{
    struct engine_add *add = &order->add;

    order_gradients(walk, order, part);
    if (add->selects && order_choice(order).mode != SPARSIFIER_RULE) {
        const uint64_t entries = order_selected(order);

        order_place(walk, &add->list.position, entries * sizeof(uint32_t),
            order_choice(order).mode == SPARSIFIER_KNOWN ? ORDER_IN : ORDER_OUT);
        order_place(walk, &add->list.value, entries * sizeof(float), ORDER_OUT);
    }
}

static void order_of_join(
    const struct order_walk *walk, struct engine_order *order, struct engine_part *part)
{
    for (unsigned i = 0; i < order->parts; i++) {
        order_stays(walk, &part[i].element);
        order_stays(walk, &part[i].momentum);
    }
}

static void order_of_take(
    const struct order_walk *walk, struct engine_order *order, struct engine_part *part)
{
    struct engine_take_out *take = &order->take;

    (void)part;
    order_place(walk, &take->sums.rounded, take->sums.count * sizeof(float), ORDER_IN);
    order_place(walk, &take->sums.low, take->sums.count * sizeof(int16_t), ORDER_IN);
    order_place(walk, &take->update.exact, take->update.count * sizeof(float), ORDER_IN);
}

static void order_of_leave(
    const struct order_walk *walk, struct engine_order *order, struct engine_part *part)
{
    struct engine_leave *leave = &order->leave;

    order_list(walk, &leave->sent);
    order_bits(walk, &leave->accepted, &leave->sent);
    if (order->parts == 0) {
        order_place(walk, &leave->before, leave->sent.count * sizeof(float), ORDER_IN);
    }
    for (unsigned i = 0; i < order->parts; i++) {
        order_stays(walk, &part[i].element);
        order_stays(walk, &part[i].momentum);
        order_list(walk, &part[i].list);
    }
}

static void order_of_return(
    const struct order_walk *walk, struct engine_order *order, struct engine_part *part)
{
    struct engine_return *back = &order->back;

    (void)part;
    order_list(walk, &back->list);
    order_bits(walk, &back->taken, &back->list);
    order_place(walk, &back->before, back->list.count * sizeof(float), ORDER_IN);
    order_list(walk, &back->sent);
    order_list(walk, &back->own);
    order_bits(walk, &back->accepted, &back->sent);
}

static void order_of_gather(
    const struct order_walk *walk, struct engine_order *order, struct engine_part *part)
{
    struct engine_list *list = &order->gather.list;

    order_place(walk, &list->position, list->count * sizeof(uint32_t), ORDER_IN);
    order_place(walk, &list->value, list->count * sizeof(float), ORDER_OUT);
    for (unsigned i = 0; i < order->parts; i++) {
        order_stays(walk, &part[i].element);
    }
}

static void order_of_image(
    const struct order_walk *walk, struct engine_order *order, struct engine_part *part)
{
    struct engine_image *image = &order->image;
    const enum order_way way = order->kind == ENGINE_LOAD ? ORDER_IN : ORDER_OUT;
    const uint64_t element = order->residual.rounded ? sizeof(uint16_t) : sizeof(float);

    (void)part;
    order_place(walk, &image->element, image->count * element, way);
    order_place(walk, &image->carry, chunk_count(image->count) * sizeof(struct carry), way);
    order_place(walk, &image->progress, progress_size(order->numel), way);
}

/* Where ranks see an update. */
static void order_seen(
    const struct order_walk *walk, const struct engine_order *order, struct engine_part *part)
{
    for (unsigned i = 0; i < order->parts; i++) {
        order_stays(walk, &part[i].element);
        order_stays(walk, &part[i].list.position);
        order_stays(walk, &part[i].list.value);
    }
}

static void order_of_show(
    const struct order_walk *walk, struct engine_order *order, struct engine_part *part)
{
    order_list(walk, &order->show.list);
    order_seen(walk, order, part);
}

static void order_of_summed(
    const struct order_walk *walk, struct engine_order *order, struct engine_part *part)
{
    order_stays(walk, &order->summed.sum);
    order_seen(walk, order, part);
}

static void order_of_convert(
    const struct order_walk *walk, struct engine_order *order, struct engine_part *part)
{
    (void)part;
    order_stays(walk, &order->convert.element);
}

static void order_of_carry(
    const struct order_walk *walk, struct engine_order *order, struct engine_part *part)
{
    order_stays(walk, &order->carry.momentum);
    for (unsigned i = 0; i < order->parts; i++) {
        order_stays(walk, &part[i].momentum);
    }
}

void order_places(
    struct engine_order *order, struct engine_part *part, order_visit visit, void *context)
{
    static void (*const of[ENGINE_KINDS])(
        const struct order_walk *walk, struct engine_order *order, struct engine_part *part) = {
        [ENGINE_ADD] = order_of_add,
        [ENGINE_WITHDRAW] = order_gradients,
        [ENGINE_JOIN] = order_of_join,
        [ENGINE_TAKE] = order_of_take,
        [ENGINE_LEAVE] = order_of_leave,
        [ENGINE_RETURN] = order_of_return,
        [ENGINE_GATHER] = order_of_gather,
        [ENGINE_READ] = order_of_gather,
        [ENGINE_SAVE] = order_of_image,
        [ENGINE_LOAD] = order_of_image,
        [ENGINE_SHOW] = order_of_show,
        [ENGINE_SUMMED] = order_of_summed,
        [ENGINE_CONVERT] = order_of_convert,
        [ENGINE_CARRY] = order_of_carry,
    };
    const struct order_walk walk = {.visit = visit, .context = context};

    order_stays(&walk, &order->residual.element);
    order_stays(&walk, &order->residual.progress);
    order_stays(&walk, &order->residual.momentum);
    if (of[order->kind] != NULL) {
        of[order->kind](&walk, order, part);
    }
}

/* ------------------------------------------------------------------ results */

static void order_passed(
    const struct engine_order *order, const struct add_result *found, struct engine_result *result)
{
    result->nonfinite = found->nonfinite;
    if (order->kind == ENGINE_ADD) {
        result->state = order->add.state;
        result->count =
            order_choice(order).mode == SPARSIFIER_KNOWN ? order_selected(order) : found->count;
        result->fault = (struct engine_fault){.found = found->fault.found != 0,
            .part = found->fault.part,
            .element = found->fault.element,
            .value = found->fault.value};
    }
    if (order->kind == ENGINE_TAKE) { /* of what was subtracted */
        result->sums[0] = -found->sums[0];
        result->sums[1] = -found->sums[1];
    }
}

static void order_sums(double *to, const double found[2])
{
    if (to != NULL) {
        to[0] = found[0];
        to[1] = found[1];
    }
}

void order_result(const struct engine_order *order, const union page_result *found,
    struct engine_result *result, const struct order_ledger *ledger)
{
    switch (order->kind) {
    case ENGINE_ADD:
    case ENGINE_WITHDRAW:
        order_sums(ledger->sums, found->add.sums);
        order_sums(ledger->lost, found->add.lost);
        order_passed(order, &found->add, result);
        break;
    case ENGINE_JOIN:
    case ENGINE_TAKE: order_passed(order, &found->add, result); break;
    case ENGINE_SUMS:
        result->sums[0] = found->whole.sums[0];
        result->sums[1] = found->whole.sums[1];
        result->magnitude = found->whole.magnitude;
        break;
    default: break;
    }
}

bool order_has_selected(const struct engine_memory *memory, const struct engine_order *order,
    const struct engine_result *result)
{
    const bool selects = order->kind == ENGINE_ADD && order->add.selects &&
                         order_choice(order).mode != SPARSIFIER_DENSE;
    const uint32_t *position = selects ? engine_address(memory, order->add.list.position) : NULL;
    const uint64_t count = result->count;
    bool ascends = true;

    if (!selects || result->status != ADTOPK_OK || count == 0) {
        return true;
    }
    if (count > order->add.list.count) {
        return false;
    }
    for (uint64_t i = 1; i < count; i++) { /* without a branch: there are millions */
        ascends &= position[i - 1] < position[i];
    }
    return ascends && position[count - 1] < order->numel;
}
