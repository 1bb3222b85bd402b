/*
 * Three small models on real data: an LSTM and a transformer that predict the next character of a
 * text, and a convolutional network that reads digits.
 */
#ifndef ADTOPK_TEST_MODELS_H
#define ADTOPK_TEST_MODELS_H

#include "tests/integration/replay/capture.h"
#include "tests/integration/replay/tape.h"

#define MODEL_PARAMS_MAX 64

struct model {
    struct capture params; /* their names and shapes */
    struct mat param[MODEL_PARAMS_MAX];
    struct mat *(*loss)(struct model *model); /* of a batch */
    float learning_rate;
    uint64_t random;
    uint8_t *data;
    size_t size;
    struct tape tape;
};

/** kind: "lstm", "transformer" or "cnn". path: text, or lines of 64 pixels and a digit. False: it
 * could not, and said so. */
int model_init(struct model *model, const char *kind, const char *path);

/** Draws a batch by `seed`; returns its loss, and leaves the derivatives in the parameters. */
float model_batch(struct model *model, uint64_t seed);

void model_free(struct model *model);

#endif
