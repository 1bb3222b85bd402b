#include "kernels/cpu/slabs.h"

#include <string.h>

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/select.h"

/* Entries in a cache line. */
enum { LINE = 16 };

/* Elements of a fibre that are looked at together where it is selected from alone. */
enum { PART = 512 };

/* Slabs that are searched before guesses are tried again. */
enum { CROWD_SLABS = 8 };

/* Entries of a fibre's list; a full one is pruned. */
static size_t slabs_room(uint64_t k)
{
    return 2 * k + 16;
}

/* Entries of an array with one for every fibre, and of the plain selection's scratch. */
static size_t slabs_table(const struct view *view)
{
    return view->stride + CHUNK_WORD;
}

static size_t slabs_plain(const struct view *view)
{
    return select_scratch(view->length) / sizeof(float);
}

size_t slabs_capacity(const struct view *view, uint64_t k)
{
    /* Even, so that what lies behind it is aligned to 8. */
    return (CHUNK + CHUNK_SLACK + view->stride * slabs_room(k) + 2 * slabs_table(view) +
               slabs_plain(view) + 1) /
           2 * 2;
}

static void slabs_place(struct slabs *slabs, const struct sparse *all)
{
    const struct view *view = &slabs->pass->view;
    const size_t table = slabs_table(view);
    slabs->scratch = all->position; /* aligned */
    uint32_t *next = all->position + slabs_plain(view);
    slabs->count = next;
    slabs->below = (int32_t *)(next + table);
    slabs->last = all->value;
    slabs->list = (struct sparse){.position = next + 2 * table, .value = all->value + table};
    slabs->dealt = (struct sparse){.position = slabs->list.position + CHUNK + CHUNK_SLACK,
        .value = slabs->list.value + CHUNK + CHUNK_SLACK};
}

void slabs_begin(struct slabs *slabs, struct fused *pass, unsigned range)
{
    const struct view *view = &pass->view;
    const uint64_t first = fused_first_chunk(pass, range) * CHUNK;
    const uint64_t size = view->length * view->stride;
    *slabs = (struct slabs){.pass = pass,
        .room = (uint32_t)slabs_room(pass->k),
        .reciprocal = UINT64_MAX / view->stride + 1,
        .slab = first / size,
        .done = first % size,
        .skip = first % size != 0,
        .next = guess_first(pass->k)};
    slabs_place(slabs, &pass->candidate[range]);
    slabs->bound = (struct chunk_bound){
        .least = 1, .period = (uint32_t)view->stride, .step = CHUNK_WORD % (uint32_t)view->stride};
    memset(slabs->last, 0, view->stride * sizeof *slabs->last);
}

/* A position in the slab divided by the stride, by the high half of a product: exact for 32-bit
 * numbers (Lemire, Kaser and Kurz 2019). */
static inline uint32_t slabs_divide(uint64_t reciprocal, uint32_t position)
{
    return (uint32_t)(((unsigned __int128)reciprocal * position) >> 64);
}

/* What a fibre's candidates have to reach at first; the same for all of the slab. */
static uint32_t slabs_least(const struct slabs *slabs, uint64_t fibre)
{
    const uint64_t number = slabs->slab * slabs->pass->view.stride + fibre;
    const float hint = slabs->pass->hints != NULL ? slabs->pass->hints[number] : 0;
    return guess_least(&slabs->guess, hint > 0 ? hint : slabs->last[fibre]);
}

/* Fetches where a slab's entries go: a store that waits for memory would hold up all that follow. A
 * wide slab takes its time anyway. */
static void slabs_prefetch(const struct slabs *slabs)
{
    const struct fused *pass = slabs->pass;
    const uint64_t entries = pass->view.stride * pass->k;
    const uint64_t first = slabs->slab * entries;
    for (uint64_t i = 0; i < entries && entries <= CHUNK; i += LINE) {
        __builtin_prefetch(pass->out->position + first + i, 1);
        __builtin_prefetch(pass->out->value + first + i, 1);
    }
}

/* What a fibre's candidates exceed, all along the pattern, whose begin is repeated. */
static void slabs_raise(struct slabs *slabs, uint64_t fibre, uint32_t below)
{
    const uint64_t stride = slabs->pass->view.stride;
    for (uint64_t i = fibre; i < stride + CHUNK_WORD; i += stride) {
        slabs->below[i] = (int32_t)below;
    }
}

static void slabs_first(struct slabs *slabs)
{
    const uint64_t stride = slabs->pass->view.stride;
    slabs_prefetch(slabs);
    slabs->skip = false;
    slabs->guess = slabs->next;
    slabs->met = slabs->misfits = 0;
    memset(slabs->count, 0, stride * sizeof *slabs->count);
    for (uint64_t f = 0; f < stride; f++) {
        slabs->below[f] = (int32_t)slabs_least(slabs, f) - 1;
    }
    for (unsigned i = 0; i < CHUNK_WORD; i++) {
        slabs->below[stride + i] = slabs->below[i];
    }
}

static struct sparse slabs_candidates(const struct slabs *slabs, uint64_t fibre)
{
    const size_t start = fibre * slabs->room;
    return (struct sparse){.position = slabs->dealt.position + start,
        .value = slabs->dealt.value + start,
        .count = slabs->count[fibre]};
}

/* Writes the k best of a fibre's candidates; returns its threshold. What was pruned has entries
 * that equal the bound. */
static uint32_t slabs_best(
    const struct slabs *slabs, uint64_t fibre, const struct sparse *list, struct sparse *out)
{
    const uint32_t least = (uint32_t)slabs->below[fibre];
    return slabs->pass->ops->best(
        list, slabs->pass->k, least, guess_likely(&slabs->guess, least), out);
}

/* Keeps a fibre's best and raises its bound to the last of them: equals that come later lose. */
static void slabs_prune(struct slabs *slabs, uint64_t fibre)
{
    const struct sparse list = slabs_candidates(slabs, fibre);
    struct sparse kept = {.position = list.position, .value = list.value, .capacity = list.count};
    slabs_raise(slabs, fibre, slabs_best(slabs, fibre, &list, &kept));
    slabs->count[fibre] = (uint32_t)kept.count;
}

/* Deals the listed elements to their fibres. Copies of what does not change stay in registers
 * whatever is stored. */
static void slabs_deal(struct slabs *slabs)
{
    const struct view *view = &slabs->pass->view;
    const struct sparse list = slabs->list;
    const struct sparse dealt = slabs->dealt;
    uint32_t *const count = slabs->count;
    const uint64_t reciprocal = slabs->reciprocal;
    const uint32_t stride = (uint32_t)view->stride;
    const uint32_t length = (uint32_t)view->length;
    const uint32_t first = (uint32_t)(slabs->slab * stride * length);
    const uint32_t room = slabs->room;
    for (size_t i = 0; i < list.count; i++) {
        const uint32_t at = list.position[i];
        const uint32_t row = slabs_divide(reciprocal, at);
        const uint32_t fibre = at - row * stride;
        if (count[fibre] == room) {
            slabs_prune(slabs, fibre);
        }
        const size_t to = (size_t)fibre * room + count[fibre]++;
        dealt.position[to] = first + fibre * length + row;
        dealt.value[to] = list.value[i];
    }
    slabs->met += list.count;
    slabs->list.count = 0;
}

/* Lists a fibre's elements that reach a lower guess; false if there are too few or too many. */
static bool slabs_again(struct slabs *slabs, uint64_t fibre, uint32_t least)
{
    const struct fused *pass = slabs->pass;
    const uint64_t stride = pass->view.stride;
    const uint64_t length = pass->view.length;
    const float *x = pass->residual + view_base(&pass->view, fibre);
    const struct chunk_bound bound = {.least = least};
    struct sparse *list = &slabs->list;
    list->count = 0;
    for (uint64_t at = 0; at < length && list->count <= CHUNK - PART; at += PART) {
        const unsigned count = length - at < PART ? (unsigned)(length - at) : PART;
        float part[PART];
        for (unsigned i = 0; i < count; i++) {
            part[i] = x[(at + i) * stride];
        }
        chunk_collect(pass->ops, part, count, &bound, (uint32_t)(fibre * length + at), list);
    }
    return list->count >= pass->k && list->count <= CHUNK - PART;
}

/* Selects from one long fibre without a guess; returns its threshold. */
static uint32_t slabs_plainly(const struct slabs *slabs, uint64_t fibre, struct sparse *out)
{
    const struct fused *pass = slabs->pass;
    const struct view one = {.fibres = 1, .length = pass->view.length, .stride = pass->view.stride};
    uint32_t least = UINT32_MAX;
    select_fibres(
        pass->residual + view_base(&pass->view, fibre), &one, pass->k, out, slabs->scratch);
    for (size_t i = 0; i < out->count; i++) {
        const uint32_t key = select_key(out->value[i]);
        out->position[i] += (uint32_t)(fibre * one.length);
        least = key < least ? key : least;
    }
    return least;
}

/* Selects from one fibre by searching a copy of it; returns its threshold. In a crowd the guess
 * follows, and in its last slab the misfits are counted: fibres that it would not have suited. */
static uint32_t slabs_search(struct slabs *slabs, uint64_t f, uint64_t fibre, struct sparse *out)
{
    const struct fused *pass = slabs->pass;
    const uint64_t stride = pass->view.stride;
    const uint64_t length = pass->view.length;
    const float *x = pass->residual + view_base(&pass->view, fibre);
    const uint32_t least = (uint32_t)slabs->below[f] + 1;
    float *const copy = slabs->scratch;
    for (uint64_t i = 0; i < length; i++) {
        copy[i] = x[i * stride];
    }
    const uint32_t key =
        chunk_top(pass->ops, copy, length, pass->k, (uint32_t)(fibre * length), &slabs->list, out);
    if (slabs->crowd > 0 && least > 1 && key > 0) {
        guess_far(&slabs->next, &slabs->guess, least, convert_float(key));
    }
    if (slabs->crowd == 1) {
        slabs->misfits +=
            least > key || pass->ops->count(copy, length, least) > length / 8 + pass->k;
    }
    return key;
}

/* A fibre whose candidates are all that is not zero, and too few: the first zeros fill up. */
static void slabs_fill(
    const struct slabs *slabs, const struct sparse *list, uint64_t fibre, struct sparse *out)
{
    const struct fused *pass = slabs->pass;
    const struct view *view = &pass->view;
    select_rest(list,
        select_prefix(pass->residual + view_base(view, fibre), view->stride, pass->k - list->count,
            fibre * view->length, out),
        out);
}

/* Selects from a fibre that has too few candidates; returns its threshold. */
static uint32_t slabs_alone(struct slabs *slabs, uint64_t f, uint64_t fibre, struct sparse *out)
{
    const bool searchable = slabs->pass->view.length <= SLABS_SEARCHED;
    if (slabs->crowd == 0) {
        const struct sparse list = slabs_candidates(slabs, f);
        if (slabs->below[f] == 0) {
            slabs_fill(slabs, &list, fibre, out);
            return 0;
        }
        const uint32_t lower = guess_lower(&slabs->guess, (uint32_t)slabs->below[f]);
        guess_missed(&slabs->next);
        slabs->below[f] = (int32_t)lower;
        if (slabs_again(slabs, fibre, lower)) {
            return slabs_best(slabs, f, &slabs->list, out);
        }
    }
    return searchable ? slabs_search(slabs, f, fibre, out) : slabs_plainly(slabs, fibre, out);
}

/* Whether the next slabs are searched. */
static void slabs_learn(struct slabs *slabs)
{
    const struct view *view = &slabs->pass->view;
    const uint64_t crowd = view->stride * (view->length / 4 + 2 * slabs->pass->k);
    if (slabs->crowd > 1) {
        slabs->crowd--;
    } else if (slabs->crowd == 1) {
        slabs->crowd = slabs->misfits > view->stride / 4 ? CROWD_SLABS : 0;
    } else if (slabs->met > crowd && view->length <= SLABS_SEARCHED) {
        slabs->crowd = CROWD_SLABS;
    }
}

static void slabs_select(struct slabs *slabs)
{
    const struct fused *pass = slabs->pass;
    const uint64_t stride = pass->view.stride;
    for (uint64_t f = 0; f < stride; f++) {
        const uint64_t fibre = slabs->slab * stride + f;
        const struct sparse list = slabs_candidates(slabs, f);
        struct sparse out = {.position = pass->out->position + fibre * pass->k,
            .value = pass->out->value + fibre * pass->k,
            .capacity = pass->k};
        if (list.count >= pass->k) {
            slabs->last[f] = convert_float(slabs_best(slabs, f, &list, &out));
            guess_met(&slabs->next, (uint32_t)slabs->below[f] + 1, slabs->last[f]);
        } else {
            slabs->last[f] = convert_float(slabs_alone(slabs, f, fibre, &out));
        }
        if (pass->hints != NULL) {
            pass->hints[fibre] = slabs->last[f];
        }
    }
    slabs->list.count = 0;
    slabs_learn(slabs);
}

struct piece slabs_open(struct slabs *slabs, unsigned length)
{
    const struct view *view = &slabs->pass->view;
    const uint64_t rest = view->length * view->stride - slabs->done;
    if (slabs->done == 0) {
        slabs_first(slabs);
    }
    slabs->bound.pattern = slabs->crowd > 0 ? NULL : slabs->below;
    slabs->bound.phase = (uint32_t)(slabs->done % view->stride);
    return (struct piece){.length = rest < length ? (unsigned)rest : length,
        .position = (uint32_t)slabs->done,
        .bound = &slabs->bound,
        .list = slabs->skip || slabs->crowd > 0 ? NULL : &slabs->list};
}

void slabs_close(struct slabs *slabs, unsigned length)
{
    const struct view *view = &slabs->pass->view;
    slabs_deal(slabs);
    slabs->done += length;
    if (slabs->done < view->length * view->stride) {
        return;
    }
    if (!slabs->skip) {
        slabs_select(slabs);
    }
    slabs->done = 0;
    slabs->slab++;
}

void slabs_finish(struct fused *pass)
{
    const uint64_t size = pass->view.length * pass->view.stride;
    uint64_t next = 0; /* no slab before this one is left */
    struct slabs slabs;
    slabs_begin(&slabs, pass, 0);
    for (unsigned r = 1; r < pass->ranges; r++) {
        const uint64_t border = fused_first_chunk(pass, r) * CHUNK;
        if (border % size == 0 || border / size < next) {
            continue;
        }
        slabs.slab = border / size;
        for (uint64_t at = 0; at < size;) {
            const struct piece piece = slabs_open(&slabs, CHUNK);
            if (piece.list != NULL) {
                chunk_collect(pass->ops, pass->residual + border / size * size + at, piece.length,
                    piece.bound, piece.position, piece.list);
            }
            slabs_close(&slabs, piece.length);
            at += piece.length;
        }
        next = slabs.slab;
    }
    pass->out->count = pass->view.fibres * pass->k;
}
