/*
 * ADTopk: all-dimension top-k, every fibre of the tensor contributes its largest magnitudes. With
 * `interleave` the odd turns take the traditional top-k of the whole tensor instead; one residual
 * serves both. After the paper of HPDC 2024, doi 10.1145/3625549.3658678.
 */
#include "daemon/sparsify/backend.h"

static bool adtopk_is_global(const struct sparsifier_params *params, uint64_t turn)
{
    return params->interleave && turn % 2 == 1;
}

/* The fibres along `axis`, 0 or 1, in the tensor's native layout. */
static struct view adtopk_axis(const struct tensor_shape *shape, unsigned axis)
{
    const uint64_t numel = tensor_numel(shape);
    const uint64_t outer = axis == 0 ? 1 : shape->size[0];
    const uint64_t length = shape->size[axis];
    return (struct view){
        .fibres = numel / length, .length = length, .stride = numel / (outer * length)};
}

static struct view adtopk_view(
    const struct tensor_shape *shape, const struct sparsifier_params *params, uint64_t turn)
{
    if (sparsifier_skips(shape) || adtopk_is_global(params, turn)) {
        return sparsifier_identity(shape, params, turn);
    }
    if (params->view == FIBRE_VIEW_ROW) {
        const uint64_t rows = shape->size[0];
        return (struct view){.fibres = rows, .length = tensor_numel(shape) / rows, .stride = 1};
    }
    const bool along_0 = params->view == FIBRE_VIEW_LONGEST && shape->size[0] > shape->size[1];
    return adtopk_axis(shape, along_0 ? 0 : 1);
}

static uint64_t adtopk_per_fibre(
    const struct tensor_shape *shape, const struct sparsifier_params *params, uint64_t turn)
{
    if (sparsifier_skips(shape) || adtopk_is_global(params, turn)) {
        return 0;
    }
    return sparsifier_share(adtopk_view(shape, params, turn).length, params->density);
}

static uint64_t adtopk_count(
    const struct tensor_shape *shape, const struct sparsifier_params *params, uint64_t turn)
{
    if (adtopk_is_global(params, turn)) {
        return sparsifier_topk.count(shape, params, turn);
    }
    const struct view view = adtopk_view(shape, params, turn);
    return view.fibres * adtopk_per_fibre(shape, params, turn);
}

const struct sparsifier_ops sparsifier_adtopk = {
    .name = "adtopk",
    .view = adtopk_view,
    .count = adtopk_count,
    .per_fibre = adtopk_per_fibre,
    .settle = sparsifier_settle,
};
