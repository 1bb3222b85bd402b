/* Residuals: read, looked ahead with, shown, saved and loaded, and the totals that they must agree
 * with. */
#include <adtopk/checkpoint.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/integration/ahead.h"
#include "tests/integration/trainer.h"

/* For a rank alone: the gradients must equal the updates and the residual. */
bool trainer_residual(struct trainer *trainer, char **word)
{
    const uint32_t t = (uint32_t)strtoul(word[1], NULL, 10);
    const struct trainer_tensor *tensor = &trainer->tensor[t < trainer->tensors ? t : 0];
    const enum adtopk_status status = adtopk_residual(trainer->context, t, tensor->scratch);
    uint64_t entries = 0;

    if (status != ADTOPK_OK) {
        return trainer_fail(trainer, status);
    }
    for (uint64_t i = 0; i < tensor->numel; i++) {
        const double residual = (double)tensor->scratch[i];

        if (tensor->given == NULL || fabs(tensor->given[i] - tensor->got[i] - residual) > 1e-9) {
            return trainer_refuse("the residual is not what is missing");
        }
        entries += residual > 0 || residual < 0;
    }
    return printf("ok %" PRIu64 "\n", entries) > 0;
}

/* What the residuals of all tensors add up to, and their magnitudes. */
bool trainer_mass(struct trainer *trainer, char **word)
{
    double mass = 0, magnitude = 0;

    (void)word;
    for (uint32_t t = 0; t < trainer->tensors; t++) {
        const struct trainer_tensor *tensor = &trainer->tensor[t];
        const enum adtopk_status status = adtopk_residual(trainer->context, t, tensor->scratch);
        if (status != ADTOPK_OK) {
            return trainer_fail(trainer, status);
        }
        for (uint64_t i = 0; i < tensor->numel; i++) {
            mass += (double)tensor->scratch[i];
            magnitude += fabs((double)tensor->scratch[i]);
        }
    }
    return printf("ok %.17g %.17g\n", mass, magnitude) > 0;
}

bool trainer_ahead(struct trainer *trainer, char **word)
{
    const uint32_t t = (uint32_t)strtoul(word[1], NULL, 10);
    const enum ahead_kind kind = strcmp(word[3], "adam") == 0       ? AHEAD_ADAM
                                 : strcmp(word[3], "overflow") == 0 ? AHEAD_OVERFLOW
                                                                    : AHEAD_SGD;

    return t < trainer->tensors ? ahead_check(trainer->context, t, trainer->tensor[t].numel,
                                      strtof(word[2], NULL), kind)
                                : trainer_refuse("no such tensor");
}

/* Keeps the update of a tensor. */
bool trainer_hold(struct trainer *trainer, char **word)
{
    const uint32_t t = (uint32_t)strtoul(word[1], NULL, 10);
    enum adtopk_status status;

    trainer->held = (struct adtopk_update){.size = sizeof trainer->held};
    status = adtopk_update(trainer->context, t, &trainer->held);
    if (status != ADTOPK_OK) {
        return trainer_fail(trainer, status);
    }
    return printf("ok %s\n", trainer->held.pending != NULL ? "shown" : "none") > 0;
}

/* Reads all held elements, f32, after another tensor was looked at. */
bool trainer_held(struct trainer *trainer, char **word)
{
    const uint32_t t = (uint32_t)strtoul(word[1], NULL, 10);
    const float *pending = trainer->held.pending;
    struct adtopk_update other = {.size = sizeof other};
    double sum = 0;

    if (pending == NULL || adtopk_update(trainer->context, t, &other) != ADTOPK_OK) {
        return trainer_refuse("nothing is held");
    }
    for (uint64_t i = 0; i < trainer->held.numel; i++) {
        sum += fabs((double)pending[i]);
    }
    return printf("ok %g\n", sum) > 0;
}

/* Writes, for every tensor, the sums of gradients and then those of updates, as doubles. */
bool trainer_write_totals(struct trainer *trainer, char **word)
{
    FILE *out = fopen(word[1], "wb");
    bool written = out != NULL;

    for (uint32_t t = 0; written && t < trainer->tensors; t++) {
        const struct trainer_tensor *tensor = &trainer->tensor[t];
        written = tensor->given != NULL &&
                  fwrite(tensor->given, sizeof(double), tensor->numel, out) == tensor->numel &&
                  fwrite(tensor->got, sizeof(double), tensor->numel, out) == tensor->numel;
    }
    if (out != NULL && fclose(out) != 0) {
        written = false;
    }
    return written ? printf("ok\n") > 0 : trainer_refuse("cannot write the totals");
}

bool trainer_due(struct trainer *trainer, char **word)
{
    int due = -1;
    const enum adtopk_status status = adtopk_checkpoint_due(trainer->context, &due);

    (void)word;
    return status == ADTOPK_OK ? printf("ok %d\n", due) > 0 : trainer_fail(trainer, status);
}

static const char *trainer_folder(const char *word)
{
    return strcmp(word, "none") == 0 ? NULL : strcmp(word, "empty") == 0 ? "" : word;
}

bool trainer_save(struct trainer *trainer, char **word)
{
    return trainer_done(trainer, adtopk_checkpoint_save(trainer->context, trainer_folder(word[1])));
}

bool trainer_saved(struct trainer *trainer, char **word)
{
    return trainer_done(trainer, adtopk_checkpoint_saved(trainer->context, atoi(word[1])));
}

bool trainer_load(struct trainer *trainer, char **word)
{
    struct adtopk_checkpoint loaded = {
        .size = strcmp(word[0], "load-unsized") == 0 ? 0 : sizeof loaded};
    const enum adtopk_status status =
        adtopk_checkpoint_load(trainer->context, trainer_folder(word[1]), &loaded);

    return status == ADTOPK_OK ? printf("ok %" PRIu64 " %" PRIu32 " %" PRIu32 "\n", loaded.step,
                                     loaded.world_size, loaded.exact) > 0
                               : trainer_fail(trainer, status);
}
