#include "kernels/cpu/scatter.h"

#include <stdbool.h>

#include <string.h>

#include "kernels/cpu/stream.h"

#define ELEMENTS_PER_PART (UINT64_C(1) << 19) /* fewer are not worth a thread's attention */
#define ENTRIES_PER_PART (UINT64_C(1) << 15)
#define PARTS 64u
#define WINDOW 8192u /* elements that stay in the first-level cache */

/* A fibre that spreads over the whole tensor touches a cache line and a page per entry. Where
 * entries of other fibres use the same lines, the fibres are filled in together, band after band of
 * memory. A band stays in the cache. */
#define FAR (UINT64_C(1) << 16) /* elements from a fibre's first to its last */
#define FEW 50u                 /* fewer than one element in so many: lines are hardly shared */
#define GROUP 1024u             /* fibres */
#define BAND 32u                /* elements of each */

struct scatter {
    const struct view *view;
    const struct sparse *list;
    float *dense;
    uint32_t *index;
    unsigned parts;
};

static uint64_t share(uint64_t total, unsigned part, unsigned parts)
{
    return total / parts * part + total % parts * part / parts;
}

/* view_element() for ascending positions: it divides only where a fibre begins. */
struct walk {
    const struct view *view;
    uint64_t first, end; /* positions of the fibre at hand */
    uint64_t base;       /* the element of its first one */
};

static inline uint64_t walk_element(struct walk *walk, uint64_t position)
{
    if (position >= walk->end) {
        const uint64_t fibre = position / walk->view->length;

        walk->first = fibre * walk->view->length;
        walk->end = walk->first + walk->view->length;
        walk->base = view_base(walk->view, fibre);
    }
    return walk->base + (position - walk->first) * walk->view->stride;
}

/* ------------------------------------------------------------------ the dense form */

static void clear_part(void *arg, unsigned part, unsigned thread)
{
    const struct scatter *scatter = arg;
    const uint64_t size = view_size(scatter->view);
    const uint64_t first = share(size, part, scatter->parts);
    const uint64_t end = share(size, part + 1, scatter->parts);

    (void)thread;
    (void)memset(scatter->dense + first, 0, (end - first) * sizeof(*scatter->dense));
}

/* Memory in which positions follow one another is written once, past the caches, window by window.
 */
static void stream_part(void *arg, unsigned part, unsigned thread)
{
    const struct scatter *scatter = arg;
    const struct sparse *list = scatter->list;
    const uint64_t size = view_size(scatter->view), windows = (size + WINDOW - 1) / WINDOW;
    const uint64_t end = share(windows, part + 1, scatter->parts);
    uint64_t w = share(windows, part, scatter->parts);
    size_t i = sparse_find(list, w * WINDOW);
    float window[WINDOW] = {0};

    (void)thread;
    for (; w < end; w++) {
        const uint64_t base = w * WINDOW, left = size - base;

        for (; i < list->count && list->position[i] < base + WINDOW; i++) {
            window[list->position[i] - base] = list->value[i];
        }
        stream_taken(
            scatter->dense + base, window, left < WINDOW ? (unsigned)left : WINDOW, 1, size);
    }
}

static void fill_part(void *arg, unsigned part, unsigned thread)
{
    const struct scatter *scatter = arg;
    const struct sparse *list = scatter->list;
    const size_t end = (size_t)share(list->count, part + 1, scatter->parts);
    struct walk walk = {.view = scatter->view};

    (void)thread;
    for (size_t i = (size_t)share(list->count, part, scatter->parts); i < end; i++) {
        scatter->dense[walk_element(&walk, list->position[i])] = list->value[i];
    }
}

/* Fills in `count` fibres of one block from `fibre` on; `entry` is their first. Returns the first
 * entry behind them. */
static size_t fill_group(
    const struct scatter *scatter, uint64_t fibre, unsigned count, size_t entry)
{
    const struct sparse *list = scatter->list;
    const uint64_t length = scatter->view->length, stride = scatter->view->stride;
    float *dense = scatter->dense + view_base(scatter->view, fibre);
    size_t next[GROUP], end[GROUP];

    for (unsigned f = 0; f < count; f++) {
        next[f] = entry;
        while (entry < list->count && list->position[entry] < (fibre + f + 1) * length) {
            entry++;
        }
        end[f] = entry;
    }
    for (uint64_t band = BAND; next[0] < entry && band < length + BAND; band += BAND) {
        for (unsigned f = 0; f < count; f++) {
            const uint64_t first = (fibre + f) * length;
            size_t i = next[f];

            for (; i < end[f] && list->position[i] - first < band; i++) {
                dense[f + (list->position[i] - first) * stride] = list->value[i];
            }
            next[f] = i;
        }
    }
    return entry;
}

/* Groups, of which one block of `stride` fibres has so many. */
static uint64_t groups_a_block(const struct view *view)
{
    return (view->stride + GROUP - 1) / GROUP;
}

static void fill_bands_part(void *arg, unsigned part, unsigned thread)
{
    const struct scatter *scatter = arg;
    const struct view *view = scatter->view;
    const uint64_t each = groups_a_block(view), groups = view->fibres / view->stride * each;
    const uint64_t end = share(groups, part + 1, scatter->parts);
    uint64_t group = share(groups, part, scatter->parts);
    uint64_t fibre = group / each * view->stride + group % each * GROUP;
    size_t entry = sparse_find(scatter->list, fibre * view->length);

    (void)thread;
    for (; group < end; group++) {
        const uint64_t left = view->stride - group % each * GROUP;
        const unsigned count = left < GROUP ? (unsigned)left : GROUP;

        entry = fill_group(scatter, fibre, count, entry);
        fibre += count;
    }
}

void scatter_dense(float *dense, const struct view *view, const struct sparse *list,
    const struct parallel *parallel)
{
    struct scatter scatter = {.view = view, .list = list, .dense = dense};
    const uint64_t size = view_size(view);
    const bool banded =
        view->stride > 1 && view->length * view->stride > FAR && list->count > size / FEW;

    scatter.parts = parallel_parts(parallel, size, ELEMENTS_PER_PART, PARTS);
    if (view->stride == 1 && size >= STREAM_LEAST) {
        parallel_for(parallel, stream_part, &scatter, scatter.parts);
        return;
    }
    parallel_for(parallel, clear_part, &scatter, scatter.parts);
    scatter.parts = parallel_parts(parallel, list->count, ENTRIES_PER_PART, PARTS);
    parallel_for(parallel, banded ? fill_bands_part : fill_part, &scatter, scatter.parts);
}

/* ------------------------------------------------------------------ elements */

static void index_part(void *arg, unsigned part, unsigned thread)
{
    const struct scatter *scatter = arg;
    const size_t end = (size_t)share(scatter->list->count, part + 1, scatter->parts);
    struct walk walk = {.view = scatter->view};

    (void)thread;
    for (size_t i = (size_t)share(scatter->list->count, part, scatter->parts); i < end; i++) {
        scatter->index[i] = (uint32_t)walk_element(&walk, scatter->list->position[i]);
    }
}

void scatter_index(uint32_t *index, const struct view *view, const struct sparse *list,
    const struct parallel *parallel)
{
    struct scatter scatter = {.view = view, .list = list, .index = index};

    if (view->stride == 1) {
        if (index != list->position && list->count > 0) {
            (void)memcpy(index, list->position, list->count * sizeof(*index));
        }
        return;
    }
    scatter.parts = parallel_parts(parallel, list->count, ENTRIES_PER_PART, PARTS);
    parallel_for(parallel, index_part, &scatter, scatter.parts);
}
