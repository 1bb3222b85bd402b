/*
 * Clipping: the norm of the gradients' sum, and the factor that limits it. The order of summation
 * is that of fused_gradient_norm() of kernels/cpu/fused.h.
 */
#include <float.h>
#include <math.h>

#include "kernels/cuda/batch.cuh"

/* Lanes of a chunk, each summed by a thread; the chunks of a large tensor are summed in so many
 * parts. */
enum { CLIP_LANES = 16, CLIP_PARTS = 64, CLIP_WHOLE = 256 };

/* The squares of a lane's elements, without those that are not finite. */
DEVICE double clip_lane(const struct add_tensor *tensor, uint32_t chunk, uint32_t lane)
{
    const uint32_t length = batch_length(tensor, chunk);
    double squares = 0;
    for (uint32_t i = lane; i < length; i += CLIP_LANES) {
        float sum = -0.0f;
        for (uint32_t g = 0; g < tensor->gradients; g++) {
            sum += batch_gradient(tensor, g, (uint64_t)chunk * CHUNK + i);
        }
        squares += batch_is_fault(sum) ? 0 : (double)sum * (double)sum;
    }
    return squares;
}

/* Half a warp has a chunk at a time. */
KERNEL clip_squares(const struct add_batch batch)
{
    const uint64_t all = ((uint64_t)batch.chunks + 1) / 2 * WARP;
    for (uint64_t i = device_thread(); i < all; i += device_threads()) {
        const uint64_t number = i / CLIP_LANES;
        const uint64_t there = number < batch.chunks ? number : batch.chunks - 1ull;
        const struct add_tensor *const tensor = batch_find(batch.tensor, batch.tensors, there);
        const uint32_t chunk = (uint32_t)(there - tensor->first);
        const bool clips = number < batch.chunks && tensor->clip != NULL;
        double squares = clips ? clip_lane(tensor, chunk, (uint32_t)(i % CLIP_LANES)) : 0;
        for (uint32_t distance = CLIP_LANES / 2; distance > 0; distance /= 2) {
            squares += __shfl_xor_sync(WARP_ALL, squares, distance);
        }
        if (clips && i % CLIP_LANES == 0) {
            tensor->clip->chunk[chunk] = squares;
        }
    }
}

/* The sum of a part of the chunks. */
DEVICE double clip_part(const struct add_tensor *tensor, uint32_t part, uint32_t parts)
{
    const uint32_t chunks = (uint32_t)chunk_count(tensor->numel);
    const uint32_t each = (chunks + parts - 1) / parts;
    double sum = 0;
    for (uint32_t c = part * each; c < chunks && c < (part + 1) * each; c++) {
        sum += tensor->clip->chunk[c];
    }
    return sum;
}

DEVICE float clip_limit(const struct add_tensor *tensor, double squares)
{
    const double norm = sqrt(squares) * (double)tensor->scale;
    const float factor = norm > tensor->clip->limit ? (float)(tensor->clip->limit / norm) : 1.0f;
    const float clipped = fmaxf(factor * tensor->scale, FLT_MIN);
    const float after = tensor->clip->after;
    return after != 0 && after != 1 ? fmaxf(after * clipped, FLT_MIN) : clipped;
}

KERNEL clip_factor(const struct add_batch batch)
{
    SHARED(double, part, CLIP_PARTS);
    for (uint32_t t = blockIdx.x; t < batch.tensors; t += gridDim.x) {
        const struct add_tensor *const tensor = &batch.tensor[t];
        const uint32_t parts = chunk_count(tensor->numel) < CLIP_WHOLE ? 1 : (uint32_t)CLIP_PARTS;
        if (tensor->clip != NULL && threadIdx.x < parts) {
            part[threadIdx.x] = clip_part(tensor, threadIdx.x, parts);
        }
        __syncthreads();
        if (tensor->clip != NULL && threadIdx.x == 0) {
            double squares = 0;
            for (uint32_t p = 0; p < parts; p++) {
                squares += part[p];
            }
            tensor->clip->factor = clip_limit(tensor, squares);
        }
        __syncthreads();
    }
}
