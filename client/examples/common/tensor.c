#include "tensor.h"

#include <math.h>
#include <string.h>

#include "random.h"

size_t tensor_size(const struct tensor *tensor)
{
    size_t size = 1;
    for (size_t d = 0; d < tensor->dims; d++) {
        size *= tensor->shape[d];
    }
    return size;
}

void tensors_init(const struct tensor *tensors, size_t count, uint64_t seed)
{
    for (size_t t = 0; t < count; t++) {
        const size_t size = tensor_size(&tensors[t]);
        if (tensors[t].dims == 1) {
            memset(tensors[t].values, 0, size * sizeof(float));
            continue;
        }
        const float inputs = (float)(size / tensors[t].shape[0]);
        const float limit = sqrtf(6.0f / inputs);
        struct random random = random_start(seed, t);
        for (size_t i = 0; i < size; i++) {
            tensors[t].values[i] = random_symmetric(&random, limit);
        }
    }
}

uint64_t tensors_hash(const struct tensor *tensors, size_t count)
{
    uint64_t hash = 0xCBF29CE484222325u;
    for (size_t t = 0; t < count; t++) {
        const size_t size = tensor_size(&tensors[t]);
        for (size_t i = 0; i < size; i++) {
            uint32_t bits;
            memcpy(&bits, &tensors[t].values[i], sizeof bits);
            for (int shift = 0; shift < 32; shift += 8) {
                hash = (hash ^ ((bits >> shift) & 0xFF)) * 0x100000001B3u;
            }
        }
    }
    return hash;
}
