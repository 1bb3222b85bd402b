#include "kernels/cpu/slabs.h"

#include <string.h>

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/select.h"

/* Entries in a cache line. */
enum { LINE = 16 };

/* Elements of a fibre that are read together when the fibre is collected alone. */
enum { PART = 512 };

/* Slabs that are searched at most before guesses are tried again. */
enum { CROWD_SLABS = 8 };

/* The fraction of fibres whose guess should be too high. Such a fibre costs as much as this many
 * times more candidates. */
#define MISSED (1.0f / 128)

/* How much of its error a hint corrects: the difference of two turns' thresholds is mostly chance.
 */
#define LEARNED 0.25f

/* Guesses that thresholds exceed by more than that were none. */
#define FAR 16.0f

/* Entries of a fibre's list; a full one is pruned. */
static size_t slabs_room(uint64_t k)
{
    return 2 * k + 16;
}

/* Entries of an array with one for every fibre. */
static size_t slabs_table(const struct view *view)
{
    return view->stride + CHUNK_WORD;
}

/* Entries of the list: those that are dealt together, plus those of a piece. */
static size_t slabs_listed(void)
{
    return DEAL_LIST + CHUNK + CHUNK_SLACK;
}

size_t slabs_capacity(const struct view *view, uint64_t k)
{
    /* Even, so that the array behind it is aligned to 8. */
    return (slabs_listed() + view->stride * deal_pitch((uint32_t)slabs_room(k)) +
               3 * slabs_table(view) + 1) /
           2 * 2;
}

static void slabs_place(struct slabs *slabs, const struct sparse *all)
{
    const size_t table = slabs_table(&slabs->pass->view);
    uint32_t *next = all->position;
    slabs->count = next;
    slabs->below = (int32_t *)(next + table);
    slabs->open = next + 2 * table;
    slabs->last = all->value;
    slabs->list = (struct sparse){.position = next + 3 * table, .value = all->value + table};
    slabs->dealt = (struct sparse){.position = slabs->list.position + slabs_listed(),
        .value = slabs->list.value + slabs_listed()};
}

void slabs_begin(struct slabs *slabs, struct fused *pass, unsigned range)
{
    const struct view *view = &pass->view;
    const uint64_t first = fused_first_chunk(pass, range) * CHUNK;
    const uint64_t size = view->length * view->stride;
    *slabs = (struct slabs){.pass = pass,
        .histogram = pass->histogram + (size_t)range * SELECT_BINS,
        .room = (uint32_t)slabs_room(pass->k),
        .reciprocal = UINT64_MAX / view->stride + 1,
        .slab = first / size,
        .done = first % size,
        .skip = first % size != 0,
        .patience = 1,
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

/* Repeats the begin of the pattern behind its end. */
void slabs_repeat(const struct slabs *slabs)
{
    const uint64_t end = slabs->pass->view.stride + CHUNK_WORD;
    uint64_t done = slabs->pass->view.stride;
    while (done < end) {
        const uint64_t more = done < end - done ? done : end - done;
        memcpy(slabs->below + done, slabs->below, more * sizeof *slabs->below);
        done += more;
    }
}

/* What a fibre's candidates exceed, all along the pattern. */
static void slabs_raise(struct slabs *slabs, uint64_t fibre, uint32_t below)
{
    const uint64_t stride = slabs->pass->view.stride;
    for (uint64_t i = fibre; i < stride + CHUNK_WORD; i += stride) {
        slabs->below[i] = (int32_t)below;
    }
}

static void slabs_first(struct slabs *slabs)
{
    const struct fused *pass = slabs->pass;
    const uint64_t stride = pass->view.stride;
    const float *last = slabs->last;
    const float *hints = pass->hints != NULL ? pass->hints + slabs->slab * stride : last;
    slabs_prefetch(slabs);
    slabs->skip = false;
    slabs->guess = slabs->next;
    slabs->begun = false;
    slabs->met = 0;
    slabs->guessed = 0;
    memset(slabs->count, 0, stride * sizeof *slabs->count);
    for (uint64_t f = 0; f < stride; f++) {
        const float known = hints[f] > 0 ? hints[f] : last[f];
        const float expected = hints[f] < 0 ? 0 : known;
        slabs->below[f] = (int32_t)guess_least(&slabs->guess, expected) - 1;
    }
    for (uint64_t f = 0; f < stride; f++) {
        slabs->guessed += convert_float((uint32_t)slabs->below[f]);
    }
    slabs_repeat(slabs);
}

static struct sparse slabs_candidates(const struct slabs *slabs, uint64_t fibre)
{
    const size_t start = fibre * deal_pitch(slabs->room);
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

/* Keeps a fibre's best and raises its bound to the last of them: equals that come later lose. They
 * are probably many: nothing is expected of the threshold. */
void slabs_prune(struct slabs *slabs, uint64_t fibre)
{
    const struct sparse list = slabs_candidates(slabs, fibre);
    const uint32_t least = (uint32_t)slabs->below[fibre];
    struct sparse kept = {.position = list.position, .value = list.value, .capacity = list.count};
    slabs_raise(slabs, fibre, slabs->pass->ops->best(&list, slabs->pass->k, least, 0, &kept));
    slabs->count[fibre] = (uint32_t)kept.count;
}

/* Deals the listed elements one by one. Copies of the constants stay in registers whatever is
 * stored. */
void slabs_deal_singly(struct slabs *slabs)
{
    const struct view *view = &slabs->pass->view;
    const struct sparse list = slabs->list;
    const struct sparse dealt = slabs->dealt;
    const uint64_t reciprocal = slabs->reciprocal;
    const uint32_t first = (uint32_t)(slabs->slab * slabs_size(slabs));
    const uint32_t stride = (uint32_t)view->stride;
    const uint32_t length = (uint32_t)view->length;
    const uint32_t room = slabs->room;
    for (size_t i = 0; i < list.count; i++) {
        const uint32_t at = list.position[i];
        const uint32_t row = slabs_divide(reciprocal, at);
        const uint32_t fibre = at - row * stride;
        if (slabs->count[fibre] == room) {
            slabs_prune(slabs, fibre);
        }
        const size_t next = fibre * deal_pitch(room) + slabs->count[fibre]++;
        dealt.position[next] = first + fibre * length + row;
        dealt.value[next] = list.value[i];
    }
    slabs->begun = true;
    slabs->met += list.count;
    slabs->list.count = 0;
}

/* Deals the slab's last listed elements. Returns the bits of the fibres that were selected from at
 * once, which it tries if no others are dealt yet. */
static uint32_t slabs_deal(struct slabs *slabs)
{
    const struct fused *pass = slabs->pass;
    const uint64_t stride = pass->view.stride;
    const uint64_t place = slabs->slab * stride * pass->k;
    const struct deal deal = {.stride = (uint32_t)stride,
        .length = (uint32_t)pass->view.length,
        .first = (uint32_t)(slabs->slab * slabs_size(slabs)),
        .room = slabs->room,
        .count = slabs->count,
        .dealt = slabs->dealt,
        .k = pass->k,
        .out = {.position = pass->out->position + place, .value = pass->out->value + place},
        .last = slabs->last};
    uint32_t settled = 0;
    if (!slabs->begun && pass->ops->deal != NULL &&
        pass->ops->deal(&slabs->list, &deal, &settled)) {
        slabs->list.count = 0;
        return settled;
    }
    slabs_deal_singly(slabs);
    return 0;
}

/* The listed elements wait until they are too many to be dealt together. */
void slabs_wait(struct slabs *slabs)
{
    if (slabs->list.count > DEAL_LIST) {
        slabs_deal_singly(slabs);
    }
}

/* A fibre whose candidates are all its elements that are not zero, and too few: the first zeros
 * fill up. */
static void slabs_fill(
    const struct slabs *slabs, const struct sparse *list, uint64_t fibre, struct sparse *out)
{
    const struct fused *pass = slabs->pass;
    const struct view *view = &pass->view;
    if (fused_is_rounded(pass)) {
        rounded_select(&pass->rounded, view, fibre, 1, pass->k, out, slabs->histogram);
        return;
    }
    select_rest(list,
        select_prefix(pass->residual + view_base(view, fibre), view->stride, pass->k - list->count,
            fibre * view->length, out),
        out);
}

/* Copies a list that is no longer than the selection; returns the least of its keys. */
static uint32_t slabs_all(const struct sparse *list, struct sparse *out)
{
    uint32_t least = INT32_MAX;
    memcpy(out->position, list->position, list->count * sizeof *out->position);
    memcpy(out->value, list->value, list->count * sizeof *out->value);
    for (size_t i = 0; i < list->count; i++) {
        const uint32_t key = select_key(list->value[i]);
        least = key < least ? key : least;
    }
    return least;
}

/* Selects from fibre f of the slab: the best of a list, or all and zeros. */
static void slabs_settle(struct slabs *slabs, uint64_t f, const struct sparse *list)
{
    const struct fused *pass = slabs->pass;
    const uint64_t fibre = slabs->slab * pass->view.stride + f;
    struct sparse out = {.position = pass->out->position + fibre * pass->k,
        .value = pass->out->value + fibre * pass->k,
        .capacity = pass->k};
    uint32_t key = 0;
    if (list->count == pass->k) {
        key = slabs_all(list, &out);
    } else if (list->count > pass->k) {
        key = slabs_best(slabs, f, list, &out);
    } else {
        slabs_fill(slabs, list, fibre, &out);
    }
    slabs->last[f] = convert_float(key);
}

static inline float slabs_element(const struct fused *pass, uint64_t element)
{
    return fused_is_rounded(pass) ? convert_bf16(pass->rounded.element[element])
                                  : pass->residual[element];
}

/* Lists fibre f's elements that reach a lower guess; false if there are too few or too many. */
static bool slabs_again(struct slabs *slabs, uint64_t f)
{
    const struct fused *pass = slabs->pass;
    const uint64_t stride = pass->view.stride;
    const uint64_t length = pass->view.length;
    const uint64_t fibre = slabs->slab * stride + f;
    const uint64_t base = view_base(&pass->view, fibre);
    const uint32_t least = guess_lower(&slabs->guess, (uint32_t)slabs->below[f]);
    const struct chunk_bound bound = {.least = least};
    struct sparse *list = &slabs->list;
    list->count = 0;
    slabs->below[f] = (int32_t)least;
    for (uint64_t at = 0; at < length && list->count <= CHUNK - PART; at += PART) {
        const unsigned count = length - at < PART ? (unsigned)(length - at) : PART;
        float part[PART];
        for (unsigned i = 0; i < count; i++) {
            part[i] = slabs_element(pass, base + (at + i) * stride);
        }
        chunk_collect(pass->ops, part, count, &bound, (uint32_t)(fibre * length + at), list);
    }
    return list->count >= pass->k && list->count <= CHUNK - PART;
}

/* Looks again at fibres that are few among many, each alone. */
static void slabs_few(struct slabs *slabs)
{
    uint64_t opens = 0;
    for (uint64_t i = 0; i < slabs->opens; i++) {
        const uint32_t f = slabs->open[i];
        if (slabs_again(slabs, f)) {
            slabs_settle(slabs, f, &slabs->list);
        } else {
            slabs->open[opens++] = f;
        }
    }
    slabs->list.count = 0;
    slabs->opens = opens;
}

/* Selects from the open fibres by the listed and dealt elements. Fibres that have too few stay
 * open. */
void slabs_close_fibres(struct slabs *slabs)
{
    const uint32_t settled = slabs_deal(slabs);
    uint64_t opens = 0;
    for (uint64_t i = 0; i < slabs->opens; i++) {
        const uint32_t f = slabs->open[i];
        const struct sparse list = slabs_candidates(slabs, f);
        if (f < DEAL_NARROW && (settled >> f & 1) != 0) {
            continue;
        }
        if (list.count >= slabs->pass->k || slabs->below[f] == 0) {
            slabs_settle(slabs, f, &list);
        } else {
            slabs->open[opens++] = f;
        }
    }
    slabs->opens = opens;
}

/* Moves the hints towards the thresholds; hints that are far off jump. -1: fewer than k were not
 * zero. */
static void slabs_hint(const struct slabs *slabs, float *hints)
{
    for (uint64_t f = 0; f < slabs->pass->view.stride; f++) {
        const float last = slabs->last[f];
        const bool near = last > 0.5f * hints[f] && last < 2.0f * hints[f];
        hints[f] = near ? hints[f] + (last - hints[f]) * LEARNED : last > 0 ? last : -1;
    }
}

/* Guesses the next slab's thresholds from this slab's, whose guesses were too high for some fibres.
 */
static void slabs_learn(struct slabs *slabs, uint64_t missed)
{
    const uint64_t stride = slabs->pass->view.stride;
    const uint32_t guessed = select_key(slabs->guessed);
    const bool crowded = slabs->crowd > 0 || missed > stride / 2;
    float sum = 0;
    for (uint64_t f = 0; f < stride; f++) {
        sum += slabs->last[f];
    }
    if (sum < FAR * slabs->guessed && crowded) {
        guess_far(&slabs->next, &slabs->guess, guessed, sum);
    } else if (sum < FAR * slabs->guessed) {
        guess_adjust(&slabs->next, (float)missed / (float)stride, MISSED);
        guess_spread(&slabs->next, guessed, sum);
    }
    slabs->crowd -= slabs->crowd > 0;
    slabs->patience = crowded ? slabs->patience : 1;
}

static void slabs_select(struct slabs *slabs)
{
    const uint64_t stride = slabs->pass->view.stride;
    slabs->opens = stride;
    for (uint64_t f = 0; f < stride; f++) {
        slabs->open[f] = (uint32_t)f;
    }
    if (slabs->crowd == 0) {
        slabs_close_fibres(slabs);
    }
    const uint64_t missed = slabs->opens;
    if (missed < stride / LINE) {
        slabs_few(slabs);
    }
    if (slabs->opens > 0) {
        slabs_search(slabs);
    }
    if (slabs->pass->hints != NULL) {
        slabs_hint(slabs, slabs->pass->hints + slabs->slab * stride);
    }
    slabs_learn(slabs, missed);
}

struct piece slabs_open(struct slabs *slabs, unsigned length)
{
    const struct view *view = &slabs->pass->view;
    const uint64_t rest = slabs_size(slabs) - slabs->done;
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

/* Selects from the listed elements. If they are too many, the slab is searched, and so are some
 * more. */
static void slabs_take(struct slabs *slabs)
{
    if (slabs->list.count + slabs->met <= slabs->pass->view.stride * slabs->room) {
        slabs_wait(slabs);
        return;
    }
    slabs->list.count = 0;
    slabs->crowd = slabs->patience;
    slabs->patience = 2 * slabs->patience < CROWD_SLABS ? 2 * slabs->patience : CROWD_SLABS;
}

void slabs_close(struct slabs *slabs, unsigned length)
{
    if (slabs->crowd == 0) {
        slabs_take(slabs);
    }
    slabs->done += length;
    if (slabs->done < slabs_size(slabs)) {
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
                float expanded[CHUNK];
                const uint64_t first = border / size * size + at;
                chunk_collect(pass->ops, fused_elements(pass, first, piece.length, expanded),
                    piece.length, piece.bound, piece.position, piece.list);
            }
            slabs_close(&slabs, piece.length);
            at += piece.length;
        }
        next = slabs.slab;
    }
    pass->out->count = pass->view.fibres * pass->k;
}
