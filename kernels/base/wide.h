/*
 * Loops that are compiled twice: for any processor, and for one with AVX2. Write the loop as a
 * WIDE_BODY, call it from a plain function and from a WIDE one, and choose by wide_is_there(). Both
 * give the same bits, because WIDE allows no fused multiplication and addition. Only the sum of two
 * NaN may be either of them: compilers exchange operands.
 */
#ifndef ADTOPK_KERNELS_WIDE_H
#define ADTOPK_KERNELS_WIDE_H

#include <stdbool.h>

#define WIDE_BODY static inline __attribute__((always_inline))

#ifdef __x86_64__
#define WIDE __attribute__((target("avx2")))
#else
#define WIDE
#endif

static inline bool wide_is_there(void)
{
#ifdef __x86_64__
    return __builtin_cpu_supports("avx2");
#else
    return false;
#endif
}

#endif
