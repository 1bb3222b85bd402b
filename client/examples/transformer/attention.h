/* Causal self-attention of several heads (Vaswani et al. 2017), without its linear layers. A
 * position attends to itself and to the positions before it. */
#ifndef TRANSFORMER_ATTENTION_H
#define TRANSFORMER_ATTENTION_H

#include <stddef.h>

/* All at least 1; heads divides width. */
struct attention_sizes {
    size_t context; /* positions of an example */
    size_t width;
    size_t heads;
};

/* Number of floats of the room that both passes work in, which need not keep its content. */
size_t attention_room(const struct attention_sizes *sizes);

/* One example. qkv[context][3][width] are queries, keys and values; head h has the numbers from h *
 * width / heads of each. Writes probabilities[heads][context][context] and mixed[context][width]:
 * the values, weighted by the probabilities. */
void attention_forward(const struct attention_sizes *sizes, const float *qkv, float *room,
    float *probabilities, float *mixed);

/* Writes d_qkv, from the forward pass's qkv and probabilities and the gradient of its result. */
void attention_backward(const struct attention_sizes *sizes, const float *qkv,
    const float *probabilities, const float *d_mixed, float *room, float *d_qkv);

#endif
