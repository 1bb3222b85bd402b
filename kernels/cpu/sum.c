#include <assert.h>
#include <string.h>

#include "kernels/cpu/kernels.h"

/* Appends the entries of `list` from index `from` on. */
static void sparse_append(struct sparse *out, const struct sparse *list, size_t from)
{
    const size_t rest = list->count - from;
    if (rest == 0) {
        return; /* an empty list may have no arrays */
    }
    memcpy(out->position + out->count, list->position + from, rest * sizeof *out->position);
    memcpy(out->value + out->count, list->value + from, rest * sizeof *out->value);
    out->count += rest;
}

void sparse_add(const struct sparse *a, const struct sparse *b, struct sparse *out)
{
    size_t i = 0;
    size_t j = 0;
    size_t count = 0;
    while (i < a->count && j < b->count) {
        const uint32_t p = a->position[i];
        const uint32_t q = b->position[j];
        if (p < q) {
            out->value[count] = a->value[i++];
        } else if (q < p) {
            out->value[count] = b->value[j++];
        } else {
            out->value[count] = a->value[i++] + b->value[j++];
        }
        out->position[count++] = p < q ? p : q;
    }
    out->count = count;
    sparse_append(out, a, i);
    sparse_append(out, b, j);
    assert(out->count <= out->capacity);
}

void sparse_scatter(float *dense, const struct view *view, const struct sparse *list)
{
    for (size_t i = 0; i < list->count; i++) {
        dense[view_element(view, list->position[i])] += list->value[i];
    }
}

void dense_add(float *acc, const float *x, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        acc[i] += x[i];
    }
}

void dense_scale(float *x, uint64_t n, float factor)
{
    for (uint64_t i = 0; i < n; i++) {
        x[i] *= factor;
    }
}
