/*
 * ADTopk: all-dimension top-k, every fibre of the tensor contributes its largest magnitudes. With
 * `interleave` the odd turns take the traditional top-k of the whole tensor instead; one residual
 * serves both. After the paper of HPDC 2024, doi 10.1145/3625549.3658678.
 */
#include "daemon/sparsify/backend.h"

/* The fibres along `axis`, 0 or 1, in the tensor's native layout. */
static struct view adtopk_axis(const struct tensor_shape *shape, unsigned axis)
{
    const uint64_t numel = tensor_numel(shape);
    const uint64_t outer = axis == 0 ? 1 : shape->size[0];
    const uint64_t length = shape->size[axis];
    return (struct view){
        .fibres = numel / length, .length = length, .stride = numel / (outer * length)};
}

static struct view adtopk_view(const struct tensor_shape *shape, enum fibre_view view)
{
    if (view == FIBRE_VIEW_ROW) {
        const uint64_t rows = shape->size[0];
        return (struct view){.fibres = rows, .length = tensor_numel(shape) / rows, .stride = 1};
    }
    const bool along_0 = view == FIBRE_VIEW_LONGEST && shape->size[0] > shape->size[1];
    return adtopk_axis(shape, along_0 ? 0 : 1);
}

static void adtopk_choose(const struct sparsifier_turn *turn, struct sparsifier_choice *choice)
{
    const struct sparsifier_params *params = turn->params;
    if (sparsifier_skips(turn->shape) || (params->interleave && turn->turn % 2 == 1)) {
        sparsifier_choose_global(turn, SPARSIFIER_TOP, choice);
        return;
    }
    const struct view view = adtopk_view(turn->shape, params->view);
    const uint64_t each = sparsifier_share(view.length, sparsifier_density(params, turn->turn));
    *choice = (struct sparsifier_choice){
        .mode = SPARSIFIER_FIBRES, .view = view, .per_fibre = each, .count = view.fibres * each};
}

const struct sparsifier_ops sparsifier_adtopk = {
    .name = "adtopk",
    .help = "the largest magnitudes of every fibre, and of the tensor by turns",
    .source = "ADTopk, HPDC 2024, doi 10.1145/3625549.3658678",
    .choose = adtopk_choose,
};
