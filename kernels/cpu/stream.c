#include "kernels/cpu/stream.h"

#include <string.h>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#define LINE 16u /* elements of a cache line */

static void put(float *to, const float *x, unsigned first, unsigned end, float scale)
{
    for (unsigned i = first; i < end; i++) {
        to[i] = x[i] * scale;
    }
}

#ifdef __x86_64__
/* Lines from `first` on; returns the end of the last whole one. */
static unsigned lines_sse2(float *to, const float *x, unsigned first, unsigned count, float scale)
{
    const __m128 factor = _mm_set1_ps(scale);
    unsigned i = first;

    for (; i + LINE <= count; i += LINE) {
        for (unsigned j = i; j < i + LINE; j += 4) {
            _mm_stream_ps(to + j, _mm_mul_ps(_mm_loadu_ps(x + j), factor));
        }
    }
    return i;
}

__attribute__((target("avx512f"))) static unsigned lines_avx512(
    float *to, const float *x, unsigned first, unsigned count, float scale)
{
    const __m512 factor = _mm512_set1_ps(scale);
    unsigned i = first;

    for (; i + LINE <= count; i += LINE) {
        _mm512_stream_ps(to + i, _mm512_mul_ps(_mm512_loadu_ps(x + i), factor));
    }
    return i;
}

__attribute__((target("avx512f"))) static unsigned taken_avx512(
    float *to, float *x, unsigned first, unsigned count, float scale)
{
    const __m512 factor = _mm512_set1_ps(scale), none = _mm512_setzero_ps();
    unsigned i = first;

    for (; i + LINE <= count; i += LINE) {
        _mm512_stream_ps(to + i, _mm512_mul_ps(_mm512_loadu_ps(x + i), factor));
        _mm512_storeu_ps(x + i, none);
    }
    return i;
}

/* Elements before the first whole line. */
static unsigned before_line(const float *to, unsigned count)
{
    const unsigned past = (unsigned)((uintptr_t)to / sizeof(*to) % LINE);
    const unsigned before = (LINE - past) % LINE;

    return before < count ? before : count;
}
#endif

void stream_scaled(float *to, const float *x, unsigned count, float scale, uint64_t whole)
{
    unsigned i = 0;

#ifdef __x86_64__
    if (whole >= STREAM_LEAST) {
        const unsigned first = before_line(to, count);

        put(to, x, 0, first, scale);
        i = (__builtin_cpu_supports("avx512f") ? lines_avx512 : lines_sse2)(
            to, x, first, count, scale);
        _mm_sfence();
    }
#endif
    (void)whole;
    put(to, x, i, count, scale);
}

void stream_taken(float *to, float *x, unsigned count, float scale, uint64_t whole)
{
#ifdef __x86_64__
    if (whole >= STREAM_LEAST && __builtin_cpu_supports("avx512f")) {
        const unsigned first = before_line(to, count);
        const unsigned end = taken_avx512(to, x, first, count, scale);

        _mm_sfence();
        put(to, x, 0, first, scale);
        put(to, x, end, count, scale);
        (void)memset(x, 0, first * sizeof(*x));
        (void)memset(x + end, 0, (count - end) * sizeof(*x));
        return;
    }
#endif
    stream_scaled(to, x, count, scale, whole);
    (void)memset(x, 0, count * sizeof(*x));
}
