/*
 * Functions in headers that device code calls too. The CUDA compiler wants to be told; any other
 * compiler sees an ordinary inline function.
 */
#ifndef ADTOPK_KERNELS_INLINE_H
#define ADTOPK_KERNELS_INLINE_H

#ifdef __CUDACC__
#define BASE_INLINE static inline __host__ __device__
#else
#define BASE_INLINE static inline
#endif

#endif
