/* Selection from a slab's open fibres without a guess: it finds bounds from their peaks, then lists
 * the elements that reach the bounds. */
#include <string.h>

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/slabs.h"

/* Elements that are read together for ties: the entries that they add to a list can still be dealt
 * at once. */
enum { TIES = 2 * CHUNK_WORD };

/* Up to so many peaks of each fibre are found for all fibres together. */
enum { FEW_PEAKS = 16 };

/* Elements of a fibre that are a peak together are so many rows apart: enough peaks that few other
 * elements reach the k-th. */
static size_t slabs_peaks(uint64_t k)
{
    return k < 8 ? 16 : 2 * k;
}

/* Divides the slab's rows among `rows` peaks of each fibre: the largest keys. They lie where
 * entries are dealt afterwards. */
static int32_t *slabs_find_peaks(struct slabs *slabs, size_t rows)
{
    const struct fused *pass = slabs->pass;
    const uint64_t size = slabs_size(slabs);
    const uint64_t period = rows * pass->view.stride;
    int32_t *const peak = (int32_t *)slabs->dealt.position;
    uint64_t length;
    memset(peak, 0, period * sizeof *peak);
    for (uint64_t at = 0; at < size; at += length) {
        const uint64_t phase = at % period;
        float expanded[CHUNK];
        length = size - at < CHUNK ? size - at : CHUNK;
        if (phase + length > period) {
            length -= phase == 0 ? length % period : phase + length - period;
        }
        pass->ops->peaks(fused_elements(pass, slabs->slab * size + at, (unsigned)length, expanded),
            length, peak + phase, period);
    }
    return peak;
}

/* The k-th largest of a fibre's peaks. */
static uint32_t slabs_cut(const struct slabs *slabs, const int32_t *peak, size_t rows)
{
    const struct fused *pass = slabs->pass;
    float *const own = slabs->dealt.value;
    for (size_t j = 0; j < rows; j++) {
        own[j] = convert_float((uint32_t)peak[j * pass->view.stride]);
    }
    return pass->ops->cut(own, rows, pass->k).key;
}

/* Sets bounds that at least k elements of every open fibre reach, if so many are not zero: the k-th
 * of its peaks. No element of another fibre reaches a bound. Returns whether nothing exceeds the
 * bounds either. Where a bound is 0, all elements have to be read, because the search treats those
 * that reach it as all that are not zero. */
static bool slabs_bound(struct slabs *slabs)
{
    const struct fused *pass = slabs->pass;
    const uint64_t stride = pass->view.stride;
    const size_t rows = slabs_peaks(pass->k);
    int32_t *const peak = slabs_find_peaks(slabs, rows);
    int32_t *const best = peak + rows * stride;
    const bool few = pass->k <= FEW_PEAKS;
    bool flat = few;
    if (few) {
        pass->ops->columns(peak, rows, stride, pass->k, best);
    }
    for (uint64_t f = 0; f < stride; f++) {
        slabs->below[f] = INT32_MAX;
    }
    for (uint64_t i = 0; i < slabs->opens; i++) {
        const uint32_t f = slabs->open[i];
        const uint32_t key =
            few ? (uint32_t)best[(pass->k - 1) * stride + f] : slabs_cut(slabs, peak + f, rows);
        slabs->below[f] = key > 0 ? (int32_t)key - 1 : 0;
        flat = flat && key > 1 && best[f] == (int32_t)key;
    }
    slabs_repeat(slabs);
    memset(slabs->count, 0, stride * sizeof *slabs->count);
    slabs->begun = false;
    return flat;
}

/* Lists the elements among the slab's next ones that reach the bounds. */
static void slabs_list(struct slabs *slabs, uint64_t at, unsigned length)
{
    const struct fused *pass = slabs->pass;
    const uint64_t first = slabs->slab * slabs_size(slabs) + at;
    float expanded[CHUNK];
    slabs->bound.pattern = slabs->below;
    slabs->bound.phase = (uint32_t)(at % pass->view.stride);
    chunk_collect(pass->ops, fused_elements(pass, first, length, expanded), length, &slabs->bound,
        (uint32_t)at, &slabs->list);
}

/* The same where it may be much: then fibres keep their best, as of equals no more have a place.
 * Returns whether all of them have enough. */
static bool slabs_collect(struct slabs *slabs, uint64_t at, unsigned length)
{
    const struct fused *pass = slabs->pass;
    const size_t before = slabs->list.count;
    bool enough = true;
    slabs_list(slabs, at, length);
    if (slabs->list.count - before <= length / 8 || slabs->list.count <= DEAL_LIST / 2) {
        slabs_wait(slabs);
        return false;
    }
    slabs->tied = true;
    slabs_deal_singly(slabs);
    for (uint64_t i = 0; i < slabs->opens; i++) {
        const uint32_t f = slabs->open[i];
        if (slabs->count[f] > pass->k) {
            slabs_prune(slabs, f);
        }
        enough = enough && slabs->count[f] >= pass->k;
    }
    return enough;
}

/* Finds the first elements that equal the largest, where no others reach the bounds. The search
 * stops behind enough of them. Fibres that have too few stay open. */
static void slabs_ties(struct slabs *slabs)
{
    const uint64_t size = slabs_size(slabs);
    const uint64_t enough = slabs->opens * slabs->pass->k;
    for (uint64_t at = 0; at < size && slabs->list.count < enough; at += TIES) {
        slabs_list(slabs, at, (unsigned)(size - at < TIES ? size - at : TIES));
    }
    slabs_close_fibres(slabs);
}

/* Selects from the open fibres, without a guess. If the slab before had ties, the parts of this one
 * are short until all fibres have enough, so that the first elements can be dealt together. */
void slabs_search(struct slabs *slabs)
{
    const uint64_t size = slabs_size(slabs);
    bool enough = !slabs->tied;
    uint64_t part = DEAL_LIST;
    if (slabs_bound(slabs) && slabs->opens * slabs->pass->k <= DEAL_LIST - TIES) {
        slabs_ties(slabs);
        if (slabs->opens == 0) {
            return;
        }
        (void)slabs_bound(slabs);
    }
    slabs->tied = false;
    for (uint64_t at = 0; at < size; at += part) {
        const uint64_t brief = slabs->list.count > 0 ? DEAL_LIST / 2 : DEAL_LIST;
        part = enough ? 4 * part : brief;
        part = part < CHUNK ? part : CHUNK;
        part = part < size - at ? part : size - at;
        enough = slabs_collect(slabs, at, (unsigned)part) || enough;
    }
    slabs_close_fibres(slabs);
}
