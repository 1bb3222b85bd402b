#include <math.h>
#include <string.h>

#include "daemon/sparsify/backend.h"

#define MAX_NUMEL (UINT64_C(1) << 40)

const struct sparsifier_ops *const sparsifier_table[] = {
    &sparsifier_dense,
    &sparsifier_topk,
    &sparsifier_adtopk,
    NULL,
};

const struct sparsifier_ops *sparsifier_find(const char *name)
{
    for (size_t i = 0; sparsifier_table[i] != NULL; i++) {
        if (strcmp(sparsifier_table[i]->name, name) == 0) {
            return sparsifier_table[i];
        }
    }
    return NULL;
}

uint64_t tensor_numel(const struct tensor_shape *shape)
{
    if (shape->dims > TENSOR_MAX_DIMS) {
        return 0;
    }
    uint64_t numel = 1;
    for (unsigned d = 0; d < shape->dims; d++) {
        if (shape->size[d] == 0 || shape->size[d] > MAX_NUMEL / numel) {
            return 0;
        }
        numel *= shape->size[d];
    }
    return numel;
}

uint64_t sparsifier_share(uint64_t length, double density)
{
    /* A decimal density is off by up to 2^-53 and the product by as much again; 2^-40 leaves room
     * for densities that were computed, and moves only products that close to an integer. */
    const double share = floor((double)length * density * (1.0 + 0x1p-40));
    if (share >= (double)length) {
        return length;
    }
    return share >= 1.0 ? (uint64_t)share : length > 0;
}

bool sparsifier_skips(const struct tensor_shape *shape)
{
    return shape->dims < 2 || tensor_numel(shape) == 0;
}

struct view sparsifier_identity(const struct tensor_shape *shape)
{
    return (struct view){.fibres = 1, .length = tensor_numel(shape), .stride = 1};
}

unsigned sparsifier_period(const struct sparsifier_params *params)
{
    return params->interleave ? 2 : 1;
}

double sparsifier_density(const struct sparsifier_params *params, uint64_t turn)
{
    (void)turn;
    return params->density;
}

void sparsifier_choose_global(
    const struct sparsifier_turn *turn, enum sparsifier_mode mode, struct sparsifier_choice *choice)
{
    *choice = (struct sparsifier_choice){.view = sparsifier_identity(turn->shape)};
    if (!sparsifier_skips(turn->shape)) {
        choice->mode = mode;
        choice->count =
            sparsifier_share(choice->view.length, sparsifier_density(turn->params, turn->turn));
    }
}

void sparsifier_settle(float *residual, const struct view *view, const struct sparse *sent,
    const uint8_t *accepted, double sums[2])
{
    for (size_t i = 0; i < sent->count; i++) {
        if (accepted != NULL && ((accepted[i / 8] >> (i % 8)) & 1) == 0) {
            continue;
        }
        const uint64_t element = view_element(view, sent->position[i]);
        const float value = sent->value[i];
        residual[element] -= value;
        sums[0] += (double)value;
        sums[1] += (double)value * ledger_sign(element);
    }
}
