/* The examples of the transformer: stretches of the text whose characters it predicts. */
#ifndef TRANSFORMER_WINDOWS_H
#define TRANSFORMER_WINDOWS_H

#include <stddef.h>

/* Predicts text[start] to text[start + scored - 1], each from the characters from start - 1 on. */
struct window {
    size_t start;
    size_t scored; /* 1 to context */
};

struct windows {
    struct window *list;
    size_t count;
};

/* Windows over characters that all are in `positions`, which rise. The caller frees with
 * windows_free(); -1 if there is no memory.
 *
 * To train: all windows of `context` characters, which overlap; perhaps none. To test: as few
 * windows as have every position once. */
int windows_to_train(
    struct windows *windows, const size_t *positions, size_t count, size_t context);
int windows_to_test(struct windows *windows, const size_t *positions, size_t count, size_t context);

void windows_free(struct windows *windows);

#endif
