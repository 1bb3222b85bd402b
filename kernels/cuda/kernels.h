/*
 * All kernels of orders: X(name, type of its parameter), those of one order in the order in which
 * they are launched.
 */
#ifndef ADTOPK_KERNELS_CUDA_KERNELS_H
#define ADTOPK_KERNELS_CUDA_KERNELS_H

#include "kernels/cuda/add.h"
#include "kernels/cuda/bench.h"
#include "kernels/cuda/entries.h"
#include "kernels/cuda/survey.h"
#include "kernels/cuda/update.h"
#include "kernels/cuda/whole.h"

#define CUDA_ADD(X)                                                                                \
    X(slots_begin, struct add_batch)                                                               \
    X(slots_spare, struct add_batch)                                                               \
    X(add_begin, struct add_batch)                                                                 \
    X(add_plain, struct add_batch)                                                                 \
    X(add_stream, struct add_batch)                                                                \
    X(add_finish, struct add_batch)

/* Before these, where a tensor is clipped. */
#define CUDA_CLIP(X)                                                                               \
    X(clip_squares, struct add_batch)                                                              \
    X(clip_factor, struct add_batch)

#define CUDA_KERNELS(X)                                                                            \
    CUDA_ADD(X)                                                                                    \
    CUDA_CLIP(X)                                                                                   \
    X(take_stream, struct add_batch)                                                               \
    X(entries_leave, struct entries_batch)                                                         \
    X(entries_return, struct entries_batch)                                                        \
    X(entries_gather, struct entries_batch)                                                        \
    X(whole_read, struct whole_batch)                                                              \
    X(whole_save, struct whole_batch)                                                              \
    X(whole_load, struct whole_batch)                                                              \
    X(whole_fill, struct whole_batch)                                                              \
    X(whole_sums, struct whole_batch)                                                              \
    X(whole_total, struct whole_batch)                                                             \
    X(survey_stats, struct survey_batch)                                                           \
    X(survey_total, struct survey_batch)                                                           \
    X(survey_list, struct survey_batch)                                                            \
    X(survey_ranked, struct survey_batch)                                                          \
    X(update_elements, struct update_batch)                                                        \
    X(update_entries, struct update_batch)                                                         \
    X(update_summed, struct update_sums)

/* What they are compared with; no order needs them. */
#define CUDA_BENCH(X)                                                                              \
    X(bench_add, struct bench_add)                                                                 \
    X(bench_work, struct bench_work)

#define CUDA_EVERY(X)                                                                              \
    CUDA_KERNELS(X)                                                                                \
    CUDA_BENCH(X)

#endif
