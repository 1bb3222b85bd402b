/* The updates of a step: their forms must agree. Adds them to the totals and to the hash. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/base/convert.h"
#include "kernels/base/dtype.h"
#include "tests/integration/trainer.h"

void trainer_add_given(struct trainer *trainer, uint32_t t)
{
    struct trainer_tensor *tensor = &trainer->tensor[t];

    for (uint64_t i = 0; tensor->pushed && tensor->given != NULL && i < tensor->numel; i++) {
        tensor->given[i] += (double)gradients_value(&trainer->source, tensor->dtype, t, i);
    }
}

static enum adtopk_status trainer_wrong(struct trainer *trainer, uint32_t t, const char *what)
{
    (void)snprintf(
        trainer->problem, sizeof trainer->problem, "update of tensor %" PRIu32 ": %s", t, what);
    return ADTOPK_ERR_PROTOCOL;
}

/* Scatters the list into scratch, and compares it with the dense form if there is one. */
static enum adtopk_status trainer_scatter(
    struct trainer *trainer, uint32_t t, const struct adtopk_update *update)
{
    struct trainer_tensor *tensor = &trainer->tensor[t];

    memset(tensor->scratch, 0, tensor->numel * sizeof(float));
    for (uint64_t i = 0; i < update->count; i++) {
        if (update->index[i] >= tensor->numel || tensor->scratch[update->index[i]] != 0) {
            return trainer_wrong(trainer, t, "an index is out of range or comes twice");
        }
        tensor->scratch[update->index[i]] = update->value[i];
    }
    for (uint64_t i = 0; update->dense != NULL && i < tensor->numel; i++) {
        if (tensor->scratch[i] != update->dense[i] &&
            !(isnan(tensor->scratch[i]) && isnan(update->dense[i]))) {
            return trainer_wrong(trainer, t, "list and dense form differ");
        }
    }
    return ADTOPK_OK;
}

/* Widens the 16-bit form into scratch. The list, if there is one, has the same values. */
static enum adtopk_status trainer_widen(
    struct trainer *trainer, uint32_t t, const struct adtopk_update *update)
{
    struct trainer_tensor *tensor = &trainer->tensor[t];

    if (update->dtype16 != (uint32_t)tensor->dtype || update->dense != NULL) {
        return trainer_wrong(trainer, t, "the 16-bit form is of another type, or not alone");
    }
    for (uint64_t i = 0; i < tensor->numel; i++) {
        tensor->scratch[i] = tensor->dtype == ADTOPK_F16 ? convert_f16(update->dense16[i])
                                                         : convert_bf16(update->dense16[i]);
    }
    for (uint64_t i = 0; i < update->count; i++) {
        if (update->index[i] >= tensor->numel ||
            update->value[i] != tensor->scratch[update->index[i]]) {
            return trainer_wrong(trainer, t, "list and 16-bit form differ");
        }
    }
    return ADTOPK_OK;
}

/* All elements in host memory are on the device, too, if the rank asked for that. */
static enum adtopk_status trainer_compare_shown(
    struct trainer *trainer, uint32_t t, const struct adtopk_update *update, const float *dense)
{
    const uint64_t numel = update->numel;
    const bool same = update->dense16 != NULL
                          ? update->device_dense == NULL &&
                                trainer_device_shows(trainer, t, update->device_dense16,
                                    update->dense16, numel * sizeof(uint16_t))
                          : update->device_dense16 == NULL &&
                                trainer_device_shows(
                                    trainer, t, update->device_dense, dense, numel * sizeof(float));

    if (!trainer_device_lists(trainer, t, update)) {
        return trainer_wrong(trainer, t, "the list on the device differs, or is not there");
    }
    return same ? ADTOPK_OK
                : trainer_wrong(trainer, t, "what is on the device differs, or is not there");
}

/* Sets *dense to all elements of the update. Error: its forms differ or are wrong, or the update is
 * marked as unpushed and is not. */
static enum adtopk_status trainer_dense(
    struct trainer *trainer, uint32_t t, const float **dense, bool *unpushed)
{
    const struct trainer_tensor *tensor = &trainer->tensor[t];
    struct adtopk_update update = {.size = sizeof update};
    enum adtopk_status status = adtopk_update(trainer->context, t, &update);

    *unpushed = update.unpushed != 0;
    if (status != ADTOPK_OK) {
        return status;
    }
    if (update.numel != tensor->numel ||
        (update.index == NULL && update.dense == NULL && update.dense16 == NULL)) {
        return trainer_wrong(trainer, t, "has no form, or another size");
    }
    if (*unpushed && tensor->pushed) {
        return trainer_wrong(trainer, t, "unpushed, but this rank pushed it");
    }
    if (update.dense16 != NULL) {
        *dense = tensor->scratch;
        status = trainer_widen(trainer, t, &update);
    } else {
        *dense = update.index != NULL ? tensor->scratch : update.dense;
        status = update.index != NULL ? trainer_scatter(trainer, t, &update) : ADTOPK_OK;
    }
    return status == ADTOPK_OK ? trainer_compare_shown(trainer, t, &update, *dense) : status;
}

enum adtopk_status trainer_take(struct trainer *trainer, uint32_t t)
{
    struct trainer_tensor *tensor = &trainer->tensor[t];
    const float *update = NULL;
    bool unpushed = false;
    const enum adtopk_status status = trainer_dense(trainer, t, &update, &unpushed);

    for (uint64_t i = 0; status == ADTOPK_OK && i < tensor->numel; i++) {
        const float value = update[i] / trainer_factor(trainer);
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        trainer->hash = (trainer->hash ^ bits) * 0x100000001b3u;
        if (unpushed && bits != 0) {
            return trainer_wrong(trainer, t, "unpushed, but not empty");
        }
        if (tensor->got != NULL && !unpushed) {
            tensor->got[i] += (double)value;
        }
    }
    if (status == ADTOPK_OK && trainer->trace != NULL &&
        fwrite(update, sizeof *update, tensor->numel, trainer->trace) != tensor->numel) {
        return trainer_wrong(trainer, t, "cannot write the trace");
    }
    return status;
}
