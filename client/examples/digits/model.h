/* A small convolutional network for the 8x8 digits, with its own forward and backward pass:
 *
 *   image 8x8 -> conv 3x3, 1 to 32 -> ReLU -> 2x2 max pool -> conv 3x3, 32 to 64 -> ReLU
 *             -> linear 1024 to 128 -> ReLU -> linear 128 to 10 -> softmax cross entropy
 *
 * With batch normalisation each channel of a convolution is normalised before its bias is added. */
#ifndef DIGITS_MODEL_H
#define DIGITS_MODEL_H

#include "../common/model.h"

enum {
    MODEL_PIXELS = 64, /* an image, row by row */
    MODEL_CLASSES = 10,
    MODEL_MAX_TENSORS = 10
};

/* Examples side by side: `count` images of MODEL_PIXELS numbers in 0..1 and their classes. */
struct model_batch {
    const float *images;
    const uint8_t *labels;
    size_t count;
    int training; /* normalise by this batch, as model_backward() expects; 0: by the averages */
};

/* Creates a model for batches of up to max_batch examples, with all parameters zero. NULL when
 * there is no memory. The scales of batch normalisation are the last of its tensors, so that the
 * others have the same numbers without. */
struct model *model_create(size_t max_batch, int batch_norm);

/* The averages of batch normalisation over past batches; *count is 0 without. */
float *model_statistics(struct model *model, size_t *count);

#endif
