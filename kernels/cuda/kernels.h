/*
 * All kernels: X(name, type of its parameter), in the order in which they are launched.
 */
#ifndef ADTOPK_KERNELS_CUDA_KERNELS_H
#define ADTOPK_KERNELS_CUDA_KERNELS_H

#include "kernels/cuda/add.h"

#define CUDA_ADD(X)                                                                                \
    X(add_begin, struct add_batch)                                                                 \
    X(add_stream, struct add_batch)                                                                \
    X(top_histogram, struct add_batch)                                                             \
    X(top_collect, struct add_batch)                                                               \
    X(top_border, struct add_batch)                                                                \
    X(top_count, struct add_batch)                                                                 \
    X(top_emit, struct add_batch)                                                                  \
    X(fibres_pick, struct add_batch)                                                               \
    X(fibres_search, struct add_batch)                                                             \
    X(add_ledger, struct add_batch)

#define CUDA_KERNELS(X) CUDA_ADD(X)

#endif
