/*
 * The CRC-32C of a frame (encode.h). A thread has a piece of the frame. What the bytes behind a
 * piece make of its remainder is a product of polynomials over GF(2), so the pieces' remainders are
 * multiplied and then added. (Adler, zlib's crc32_combine().)
 *
 * Polynomials are bit-reversed: the highest bit is the factor of x^0.
 */
#include "kernels/cuda/batch.cuh"
#include "kernels/cuda/encode.h"

#define CRC_POLYNOMIAL 0x82f63b78u
#define CRC_ONE 0x80000000u

/* a * x. */
DEVICE uint32_t crc_shift(uint32_t a)
{
    return (a & 1u) != 0 ? a >> 1 ^ CRC_POLYNOMIAL : a >> 1;
}

DEVICE uint32_t crc_product(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (uint32_t bit = CRC_ONE; bit != 0; bit >>= 1) {
        product ^= (a & bit) != 0 ? b : 0;
        b = crc_shift(b);
    }
    return product;
}

/* The remainder so many bytes later. */
DEVICE uint32_t crc_later(uint32_t remainder, uint64_t bytes)
{
    uint32_t power = CRC_ONE >> 8; /* x^8, then its squares */
    for (; bytes != 0; bytes >>= 1) {
        remainder = (bytes & 1u) != 0 ? crc_product(remainder, power) : remainder;
        power = crc_product(power, power);
    }
    return remainder;
}

/* All bytes but those of the CRC itself. */
DEVICE uint32_t crc_byte(const struct encode_batch *batch, uint64_t i)
{
    return batch->frame[i < ENCODE_AT_CRC ? i : i + sizeof(uint32_t)];
}

DEVICE uint64_t crc_bytes(const struct encode_batch *batch)
{
    return *batch->size - sizeof(uint32_t);
}

DEVICE uint64_t crc_pieces(const struct encode_batch *batch)
{
    return (crc_bytes(batch) + ENCODE_PIECE - 1) / ENCODE_PIECE;
}

/* The first remainder is all ones. */
KERNEL encode_crc(const struct encode_batch batch)
{
    SHARED(uint32_t, table, BLOCK);
    const uint64_t bytes = crc_bytes(&batch);
    uint32_t remainder = threadIdx.x;
    for (uint32_t bit = 0; bit < 8; bit++) {
        remainder = crc_shift(remainder);
    }
    table[threadIdx.x] = remainder;
    __syncthreads();
    for (uint64_t p = device_thread(); p < crc_pieces(&batch); p += device_threads()) {
        const uint64_t begin = p * ENCODE_PIECE;
        const uint64_t end = bytes - begin < ENCODE_PIECE ? bytes : begin + ENCODE_PIECE;
        uint32_t crc = p == 0 ? UINT32_MAX : 0;
        for (uint64_t i = begin; i < end; i++) {
            crc = crc >> 8 ^ table[(crc ^ crc_byte(&batch, i)) & 0xffu];
        }
        batch.piece[p] = crc_later(crc, bytes - end);
    }
}

KERNEL encode_end(const struct encode_batch batch)
{
    SHARED(uint32_t, of_warp, WARPS);
    const uint64_t pieces = crc_pieces(&batch);
    uint32_t crc = 0;
    for (uint64_t p = threadIdx.x; p < pieces; p += BLOCK) {
        crc ^= batch.piece[p];
    }
    for (uint32_t distance = WARP / 2; distance > 0; distance /= 2) {
        crc ^= __shfl_xor_sync(WARP_ALL, crc, distance);
    }
    if (device_lane() == 0) {
        of_warp[device_warp()] = crc;
    }
    __syncthreads();
    for (uint32_t w = 1; w < WARPS; w++) {
        crc ^= threadIdx.x == 0 ? of_warp[w] : 0;
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        for (uint32_t i = 0; i < sizeof crc; i++) {
            batch.frame[ENCODE_AT_CRC + i] = (uint8_t)(~crc >> 8 * i);
        }
    }
}
