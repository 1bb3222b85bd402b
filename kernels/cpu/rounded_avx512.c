/* Residuals in bf16 with AVX-512, for x86-64 processors that have it: a vector in a register, and
 * what the four of a word hand on in four more. */
#ifdef __x86_64__
#include <immintrin.h>

#include "kernels/cpu/rounded.h"
#include "kernels/cpu/rounded_avx512.h"

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq")))

static bool avx512_supported(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq");
}

AVX512 static void avx512_expand(const uint16_t *from, unsigned length, float *to)
{
    unsigned i = 0;
    for (; i + LEDGER_LANES <= length; i += LEDGER_LANES) {
        const __m256i half = _mm256_loadu_si256((const void *)(from + i));
        _mm512_storeu_si512(to + i, _mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
    }
    for (; i < length; i++) {
        to[i] = convert_bf16(from[i]);
    }
}

AVX512 static void avx512_round(struct rounding *rounding, float *x, unsigned words)
{
    struct rounded_lanes lanes = rounded_lanes_of(rounding);
    for (unsigned w = 0; w < words; w++, x += LEDGER_WORD) {
        __m512 word[4];
        for (unsigned v = 0; v < 4; v++) {
            word[v] = _mm512_loadu_ps(x + v * LEDGER_LANES);
        }
        rounded_register(&lanes, rounding, w, word);
        for (unsigned v = 0; v < 4; v++) {
            _mm512_storeu_ps(x + v * LEDGER_LANES, word[v]);
        }
    }
    rounded_keep(&lanes, rounding);
}

extern const struct rounded_ops rounded_avx512;
const struct rounded_ops rounded_avx512 = {.name = "avx512",
    .supported = avx512_supported,
    .expand = avx512_expand,
    .round = avx512_round};
#endif
