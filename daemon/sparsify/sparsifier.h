/*
 * Sparsifiers: which entries of an accumulated gradient travel this turn, and what leaves the
 * residual once the exchange accepted them.
 *
 * One file a sparsifier, one table of operations. A sparsifier never touches gradients, files or
 * messages: it says which view of the tensor and how many entries of it are selected this turn
 * (kernels/cpu/fused.h does it), and after the round takes the accepted values out of the residual.
 */
#ifndef ADTOPK_SPARSIFIER_H
#define ADTOPK_SPARSIFIER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/sparse.h"
#include "kernels/cpu/view.h"

#define TENSOR_MAX_DIMS 8

/* How all-dimension top-k cuts a tensor into fibres. */
enum fibre_view {
    FIBRE_VIEW_FIBRE = 0, /* along axis 1, the paper's choice */
    FIBRE_VIEW_ROW,       /* [s0, rest]: one fibre per index of axis 0 */
    FIBRE_VIEW_LONGEST,   /* axis 0 when s0 > s1, else axis 1 */
    FIBRE_VIEW_COUNT
};

struct sparsifier_params {
    double density; /* in (0, 1] */
    enum fibre_view view;
    bool interleave; /* adtopk: all-dimension on even turns, global on odd ones */
};

struct tensor_shape {
    unsigned dims;
    uint64_t size[TENSOR_MAX_DIMS];
};

struct sparsifier_ops {
    const char *name;

    /** The view whose positions the turn's selection uses. The same on every node. */
    struct view (*view)(
        const struct tensor_shape *shape, const struct sparsifier_params *params, uint64_t turn);

    /** The number of entries that select() yields at this turn, or its upper bound. 0: the tensor
     * is not sparsified at all but travels dense. */
    uint64_t (*count)(
        const struct tensor_shape *shape, const struct sparsifier_params *params, uint64_t turn);

    /** Entries that every fibre of the view contributes, if that is fixed: the largest ones of each
     * fibre are selected. 0: the count() largest ones of the whole tensor are. A fixed number lets
     * the payload leave out row identities. */
    uint64_t (*per_fibre)(
        const struct tensor_shape *shape, const struct sparsifier_params *params, uint64_t turn);

    /** Takes what was sent and accepted out of the residual: sent->value is the *decoded* value
     * the others received, so what quantisation cut off stays. accepted: one bit an entry of
     * `sent`, lowest bit first; NULL means all. sums: the ledger's applied sums, which grow by
     * what left. */
    void (*settle)(float *residual, const struct view *view, const struct sparse *sent,
        const uint8_t *accepted, double sums[2]);
};

/** Elements of a shape; 0 if a size is 0 or the product exceeds 2^40. */
uint64_t tensor_numel(const struct tensor_shape *shape);

/** The sparsifier of that name, or NULL. */
const struct sparsifier_ops *sparsifier_find(const char *name);

/** All sparsifiers, NULL-terminated, in the order of their names' documentation. */
extern const struct sparsifier_ops *const sparsifier_table[];

/** The settle() of every sparsifier that has no rule of its own. */
void sparsifier_settle(float *residual, const struct view *view, const struct sparse *sent,
    const uint8_t *accepted, double sums[2]);

#endif
