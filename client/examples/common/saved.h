/* The trainer's half of a checkpoint: parameters and optimiser. The daemons' half, the gradients
 * that were not sent yet, is adtopk_checkpoint_save()'s. A folder has one folder per checkpoint,
 * step-N, and the file `latest` with the number of the last whole one. */
#ifndef EXAMPLE_SAVED_H
#define EXAMPLE_SAVED_H

#include <stddef.h>
#include <stdint.h>

#include "optimiser.h"

enum { SAVED_PATH = 4096, SAVED_ERROR = 256 };

/* What is saved of a trainer. */
struct saved {
    const struct tensor *tensors;
    size_t count;
    float *const *parameters;
    struct optimiser *optimiser;
    float *statistics; /* what the model gathers for tests */
    size_t statistics_count;
};

/* Writes the path of a checkpoint. -1: too long. */
int saved_folder(const char *folder, uint64_t step, char path[SAVED_PATH]);

/* Makes the folder of a checkpoint and writes the model to it. -1, and error says why. */
int saved_write(const struct saved *saved, const char *folder, uint64_t step, char *error);

/* Notes that a checkpoint is whole. -1, and error says why. */
int saved_note(const char *folder, uint64_t step, char *error);

/* The number of the last whole checkpoint. -1, and error says why. */
int saved_latest(const char *folder, uint64_t *step, char *error);

/* Reads the model of a checkpoint. -1, and error says why: the file is of another model, or
 * damaged. The trainer must not go on then. */
int saved_read(const struct saved *saved, const char *folder, uint64_t step, char *error);

#endif
