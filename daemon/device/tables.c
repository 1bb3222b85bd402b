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

struct tables tables_in(void *memory, unsigned parts)
{
    uint64_t at = 0;
    struct tables tables;

    tables.tensor = tables_next(memory, &at, 1, sizeof(*tables.tensor));
    tables.filled = tables_next(memory, &at, 1, sizeof(*tables.filled));
    tables.joined = tables_next(memory, &at, parts, sizeof(*tables.joined));
    tables.take = tables_next(memory, &at, 1, sizeof(*tables.take));
    tables.clip = tables_next(memory, &at, 1, sizeof(*tables.clip));
    tables.nothing = tables_next(memory, &at, 2, sizeof(*tables.nothing));
    tables.entries = tables_next(memory, &at, 1, sizeof(*tables.entries));
    tables.rank = tables_next(memory, &at, parts, sizeof(*tables.rank));
    tables.whole = tables_next(memory, &at, 1, sizeof(*tables.whole));
    tables.cleared = tables_next(memory, &at, parts, sizeof(*tables.cleared));
    tables.address = tables_next(memory, &at, parts, sizeof(*tables.address));
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

/* The same of a fibre. All elements of a short one are candidates. */
static uint32_t tables_room_of_fibre(const struct engine_order *order, const struct view *view)
{
    const uint64_t k = order_choice(order).per_fibre;
    const uint64_t room = k + k / 2 + 32;

    return (
        uint32_t)(room < view->length && view->fibres <= order->add.fibres ? room : view->length);
}

void tables_select(struct add_tensor *tensor, const struct engine_order *order)
{
    const struct sparsifier_choice choice = order_choice(order);

    tensor->numel = order->numel;
    tensor->mode = ADD_NOTHING;
    if (choice.mode == SPARSIFIER_TOP) {
        tensor->mode = ADD_TOP;
        tensor->k = choice.count;
        tensor->room = tables_room_of_chunk(tensor->k, tensor->numel);
    } else if (choice.mode == SPARSIFIER_FIBRES) {
        tensor->mode = ADD_FIBRES;
        tensor->view = choice.view;
        tensor->k = choice.per_fibre;
        tensor->room = tables_room_of_fibre(order, &tensor->view);
    }
}

/* Memory for hints of fibres that are too short to remember thresholds. */
static uint64_t tables_hints(const struct engine_order *order, const struct add_tensor *tensor)
{
    return tensor->mode == ADD_FIBRES && tensor->view.fibres > order->add.fibres
               ? tensor->view.fibres * sizeof(float)
               : 0;
}

bool tables_clips(const struct engine_order *order)
{
    return (order->kind == ENGINE_ADD || order->kind == ENGINE_WITHDRAW) && order->add.clip > 0;
}

struct tables_scratch tables_scratch(
    const struct engine_order *order, uint64_t copies, unsigned blocks)
{
    struct tables_scratch at = {.tables = page_align(copies)};
    struct add_tensor tensor = {.scratch = NULL};
    uint64_t kept;

    tables_select(&tensor, order);
    kept = order->kind == ENGINE_SUMS ? chunk_count(order->numel) * sizeof(struct whole_sums)
                                      : scratch_size(&tensor);
    at.spare = at.tables + page_align(tables_in(NULL, order->parts).size);
    at.velocity_spare = at.spare + page_align((1 + (uint64_t)blocks) * sizeof(uint32_t));
    at.squares = at.velocity_spare + page_align((1 + (uint64_t)blocks) * sizeof(uint32_t));
    at.hints = at.squares +
               (tables_clips(order) ? page_align(chunk_count(order->numel) * sizeof(double)) : 0);
    at.hints_size = tables_hints(order, &tensor);
    at.kernels = at.hints + page_align(at.hints_size);
    at.size = at.kernels + page_align(kept);
    return at;
}
