#include "daemon/device/tables.h"

#include "daemon/device/order.h"
#include "kernels/cuda/scratch.h"

/* The next array of the tables. */
static void *tables_next(uint8_t *memory, uint64_t *at, uint64_t count, uint64_t size)
{
    void *here = memory != NULL ? memory + *at : NULL;

    *at += (count * size + 7) / 8 * 8;
    return here;
}

struct tables tables_in(void *memory, unsigned orders, unsigned parts)
{
    uint64_t at = 0;
    struct tables tables;

    tables.tensor = tables_next(memory, &at, orders, sizeof(*tables.tensor));
    tables.filled = tables_next(memory, &at, orders, sizeof(*tables.filled));
    tables.joined = tables_next(memory, &at, parts, sizeof(*tables.joined));
    tables.take = tables_next(memory, &at, orders, sizeof(*tables.take));
    tables.clip = tables_next(memory, &at, orders, sizeof(*tables.clip));
    tables.nothing = tables_next(memory, &at, 3, sizeof(*tables.nothing));
    tables.entries = tables_next(memory, &at, orders, sizeof(*tables.entries));
    tables.rank = tables_next(memory, &at, parts, sizeof(*tables.rank));
    tables.whole = tables_next(memory, &at, orders, sizeof(*tables.whole));
    tables.cleared = tables_next(memory, &at, parts, sizeof(*tables.cleared));
    tables.survey = tables_next(memory, &at, 2 * (uint64_t)orders, sizeof(*tables.survey));
    tables.ranked = tables_next(memory, &at, orders, sizeof(*tables.ranked));
    tables.update = tables_next(memory, &at, parts, sizeof(*tables.update));
    tables.summed = tables_next(memory, &at, orders, sizeof(*tables.summed));
    tables.address = tables_next(memory, &at, parts, sizeof(*tables.address));
    tables.counted = tables_next(memory, &at, parts, sizeof(*tables.counted));
    tables.from = tables_next(memory, &at, orders, sizeof(*tables.from));
    tables.size = at;
    return tables;
}

/* Room for twice as many candidates of a chunk as are selected of it on average, and some. With
 * less than there are the list is right, too, but chunks are read again. */
static uint32_t tables_room_of_chunk(uint64_t k, uint64_t numel)
{
    const double share = (double)k / (double)numel;
    const uint32_t room = (uint32_t)(2 * share * CHUNK) + 64;

    return room < CHUNK ? room : CHUNK;
}

bool tables_hints(const struct engine_order *order, const struct view *view)
{
    return view->fibres <= order->add.fibres &&
           1 + view->fibres <= pool_hints(order->numel, order->residual.rounded);
}

/* The same of a fibre. Without hints all elements are candidates. */
static uint32_t tables_room_of_fibre(const struct engine_order *order, const struct view *view)
{
    const uint64_t k = order_choice(order).per_fibre;
    const uint64_t room = 2 * k + 32;

    return (uint32_t)(room < view->length && tables_hints(order, view) ? room : view->length);
}

void tables_select(
    struct add_tensor *tensor, const struct engine_order *order, const struct page_ask *ask)
{
    const struct sparsifier_choice choice = order_choice(order);
    const bool asked = ask->question == PAGE_TOP;

    tensor->numel = order->numel;
    tensor->mode = ADD_NOTHING;
    if (choice.mode == SPARSIFIER_TOP || asked) {
        tensor->mode = ADD_TOP;
        tensor->k = asked ? ask->rank : choice.count;
        tensor->room = tables_room_of_chunk(tensor->k, tensor->numel);
    } else if (choice.mode == SPARSIFIER_FIBRES) {
        tensor->mode = ADD_FIBRES;
        tensor->view = choice.view;
        tensor->k = choice.per_fibre;
        tensor->room = tables_room_of_fibre(order, &tensor->view);
    }
}

bool tables_clips(const struct engine_order *order)
{
    return (order->kind == ENGINE_ADD || order->kind == ENGINE_WITHDRAW) && order->add.clip > 0;
}

uint64_t tables_survey(uint64_t numel)
{
    return page_align(chunk_count(numel) * (sizeof(struct stats) + sizeof(uint32_t)));
}

/* Bytes that kernels keep between two launches. A question comes behind the pass. */
static uint64_t tables_kept(
    const struct engine_order *order, const struct page_ask *ask, const struct add_tensor *tensor)
{
    switch (ask->question) {
    case PAGE_BESIDE:
    case PAGE_REACH: return 2 * tables_survey(order->numel);
    default:
        return order->kind == ENGINE_SUMS ? chunk_count(order->numel) * sizeof(struct whole_sums)
                                          : scratch_size(tensor);
    }
}

struct tables_scratch tables_scratch(
    uint64_t copies, unsigned orders, unsigned parts, unsigned blocks)
{
    const uint64_t spares = page_align((1 + (uint64_t)blocks) * sizeof(uint32_t));
    struct tables_scratch at = {.tables = page_align(copies)};

    at.steps = at.tables + page_align(tables_in(NULL, orders, parts).size);
    at.spare = at.steps + page_align(sizeof(struct add_steps));
    at.velocity_spare = at.spare + spares;
    at.size = at.velocity_spare + spares;
    return at;
}

struct tables_own tables_own(
    struct tables_scratch *scratch, const struct engine_order *order, const struct page_ask *ask)
{
    struct tables_own own = {.squares = scratch->size};
    struct add_tensor tensor = {.scratch = NULL};

    tables_select(&tensor, order, ask);
    own.kernels =
        own.squares +
        (tables_clips(order) ? page_align(chunk_count(order->numel) * sizeof(double)) : 0);
    scratch->size = own.kernels + page_align(tables_kept(order, ask, &tensor));
    return own;
}
