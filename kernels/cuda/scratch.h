/*
 * What the kernels of ADD keep between two launches, for one tensor. It begins with words that
 * add_begin clears.
 */
#ifndef ADTOPK_KERNELS_SCRATCH_H
#define ADTOPK_KERNELS_SCRATCH_H

#include "kernels/base/ledger.h"
#include "kernels/cuda/add.h"

/* The ledger's sums of groups of chunks, in any mode. Cleared at first. */
struct ledger_scratch {
    struct slot_record *group;
    uint32_t *summed; /* chunks whose groups are done */
    uint64_t size;    /* a multiple of 16 */
};

/* The search for the k-th key of a tensor. Cleared at first. */
struct top_counts {
    uint32_t bins[ADD_BINS + 1]; /* candidates from `least` on, in bins of 2^shift keys */
    uint32_t fine[ADD_BINS];     /* those of the bin with the k-th, key by key */
    uint32_t all[ADD_BINS];      /* all elements, in bins of 2^20 keys */
    uint32_t streamed, histogrammed, collected, bordered; /* chunks that are done */
    uint32_t spoiled; /* not 0: some candidates are not those of the residual */
};

struct top_state {
    uint32_t least, shift; /* candidates reach the key `least` */
    uint32_t again;        /* the bound was wrong: the residual is read again */
    uint32_t candidates;   /* all of them */
    uint32_t bin, rank;    /* where the k-th is, and its rank in this bin */
    uint32_t cut;          /* its key */
    uint32_t ties;         /* so many elements that equal it are selected, the first ones */
};

/* How many keys are above the cut, and how many equal it. */
struct top_tally {
    uint32_t above, equal;
};

struct top_chunk {
    uint32_t count;          /* candidates. The slice holds them if it has the room */
    struct top_tally own;    /* of the chunk's candidates */
    struct top_tally before; /* of those of the chunks before it in its part */
    uint64_t told; /* a part's first chunk: the part's tally as top_told() packs it, or 0 */
};

struct top_scratch {
    struct top_counts *counts;
    struct top_state *state;
    struct top_chunk *chunk;
    uint32_t *position; /* of candidates: `room` per chunk */
    float *value;
    uint64_t size; /* bytes in all */
};

/* Cleared at first: one word, then one per fibre. */
struct fibres_scratch {
    uint32_t *open;     /* how many fibres wait for SEARCH */
    uint32_t *dealt;    /* candidates of each fibre */
    uint32_t *list;     /* the fibres that wait */
    uint32_t *position; /* of candidates: `room` per fibre, counted in the fibre */
    float *value;
    uint64_t size;
};

/* Addresses are numbers here, as no object lies where a tensor has no scratch yet. */
BASE_INLINE struct ledger_scratch scratch_ledger(const struct add_tensor *tensor)
{
    const uint64_t groups = ledger_groups(chunk_count(tensor->numel));
    uintptr_t at = (uintptr_t)tensor->scratch;
    struct ledger_scratch ledger;
    ledger.group = (struct slot_record *)at;
    ledger.summed = (uint32_t *)(at += groups * sizeof(struct slot_record));
    ledger.size = (at + sizeof(uint32_t) - (uintptr_t)tensor->scratch + 15) / 16 * 16;
    return ledger;
}

BASE_INLINE struct top_scratch scratch_top(const struct add_tensor *tensor)
{
    const uint64_t chunks = chunk_count(tensor->numel);
    const uint64_t each = chunks * tensor->room * sizeof(uint32_t);
    uintptr_t at = (uintptr_t)tensor->scratch + scratch_ledger(tensor).size;
    struct top_scratch top;
    top.counts = (struct top_counts *)at;
    top.state = (struct top_state *)(at += sizeof(struct top_counts));
    top.chunk = (struct top_chunk *)(at += sizeof(struct top_state));
    top.position = (uint32_t *)(at += chunks * sizeof(struct top_chunk));
    top.value = (float *)(at += each);
    top.size = at + each - (uintptr_t)tensor->scratch;
    return top;
}

BASE_INLINE struct fibres_scratch scratch_fibres(const struct add_tensor *tensor)
{
    const uint64_t fibres = tensor->view.fibres;
    const uint64_t each = fibres * tensor->room * sizeof(uint32_t);
    uintptr_t at = (uintptr_t)tensor->scratch + scratch_ledger(tensor).size;
    struct fibres_scratch scratch;
    scratch.open = (uint32_t *)at;
    scratch.dealt = (uint32_t *)(at += sizeof(uint32_t));
    scratch.list = (uint32_t *)(at += fibres * sizeof(uint32_t));
    scratch.position = (uint32_t *)(at += fibres * sizeof(uint32_t));
    scratch.value = (float *)(at += each);
    scratch.size = at + each - (uintptr_t)tensor->scratch;
    return scratch;
}

/** Bytes of scratch for a tensor whose mode, view, numel, k and room are set. */
BASE_INLINE uint64_t scratch_size(const struct add_tensor *tensor)
{
    switch (tensor->mode) {
    case ADD_TOP: return scratch_top(tensor).size;
    case ADD_FIBRES: return scratch_fibres(tensor).size;
    default: return scratch_ledger(tensor).size;
    }
}

/** Words at its beginning that are cleared. */
BASE_INLINE uint64_t scratch_cleared(const struct add_tensor *tensor)
{
    const uint64_t ledger = scratch_ledger(tensor).size / sizeof(uint32_t);
    switch (tensor->mode) {
    case ADD_TOP: return ledger + sizeof(struct top_counts) / sizeof(uint32_t);
    case ADD_FIBRES: return ledger + 1 + tensor->view.fibres;
    default: return ledger;
    }
}

#endif
