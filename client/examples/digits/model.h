/* A small convolutional network for the 8x8 digits, with its own forward and backward pass:
 *
 *   image 8x8 -> conv 3x3, 1 to 32 -> ReLU -> 2x2 max pool -> conv 3x3, 32 to 64 -> ReLU
 *             -> linear 1024 to 128 -> ReLU -> linear 128 to 10 -> softmax cross entropy
 *
 * Everything is f32. A model belongs to one thread at a time. */
#ifndef DIGITS_MODEL_H
#define DIGITS_MODEL_H

#include <stddef.h>
#include <stdint.h>

enum {
    MODEL_PIXELS = 64, /* an image, row by row */
    MODEL_CLASSES = 10,
    MODEL_TENSORS = 8,
    MODEL_MAX_DIMS = 4
};

/* One trainable tensor in its native layout: [O, I, kh, kw], [O, I] or [O]. */
struct model_tensor {
    const char *name;
    size_t dims;
    size_t shape[MODEL_MAX_DIMS];
};

/* Examples side by side: `count` images of MODEL_PIXELS numbers in 0..1 and their classes. */
struct model_batch {
    const float *images;
    const uint8_t *labels;
    size_t count;
};

/* What a forward pass found, summed over the batch. */
struct model_score {
    double loss; /* cross entropy in nats */
    size_t correct;
};

struct model;

/* Told that the gradient of one tensor is complete. A result other than 0 ends the backward pass.
 */
typedef int (*model_ready_fn)(void *context, size_t tensor);

/* Describes tensor `index`, 0 <= index < MODEL_TENSORS, in the order of the forward pass. */
const struct model_tensor *model_tensor(size_t index);

/* Number of elements of tensor `index`. */
size_t model_tensor_size(size_t index);

/* Creates a model for batches of up to max_batch examples, with all parameters zero. NULL when
 * there is no memory. */
struct model *model_create(size_t max_batch);
void model_destroy(struct model *model);

/* Sets weights to He's uniform initialisation (He et al. 2015) and biases to zero; equal seeds
 * give equal bits on every machine. */
void model_init(struct model *model, uint64_t seed);

/* The parameters of tensor `index`, to read or to change between two passes. */
float *model_parameters(struct model *model, size_t index);

/* A 64-bit hash (FNV-1a) of the bits of all parameters: equal models have equal hashes. */
uint64_t model_hash(const struct model *model);

/* Forward pass. The batch's memory must stay as it is until model_backward has returned; its count
 * is at most max_batch. */
struct model_score model_forward(struct model *model, const struct model_batch *batch);

/* Backward pass of the last forward pass, each example's loss multiplied by `scale`.
 *
 * Writes (does not add) the gradient of tensor i to gradients[i], the last layer first, and calls
 * `ready` (unless NULL) as soon as a tensor's gradient is complete, so that its exchange overlaps
 * with the rest of the pass. From then on the pass neither reads nor writes this gradient.
 * Returns 0 or what `ready` returned. */
int model_backward(struct model *model, float scale, float *const gradients[MODEL_TENSORS],
    model_ready_fn ready, void *context);

#endif
