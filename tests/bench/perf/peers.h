/*
 * Other programs that do the same job: residual += gradient, the k largest magnitudes, zeros in
 * their places. They are separate programs, because their requirements may be missing: a C++
 * library, Python's torch. Each starts with the same residual and gradient as the pass.
 *
 * Its command line: RESIDUAL GRADIENT TYPE N FIBRES LENGTH STRIDE K TURNS THREADS. The first two
 * are open descriptors of files with so many elements (f32; TYPE). K is per fibre; a selection of
 * the whole tensor has one fibre. It prints the microseconds of TURNS turns, one per line, after
 * one that does not count. It prints nothing if a requirement is missing.
 */
#ifndef PERF_PEERS_H
#define PERF_PEERS_H

#include "proto/error.h"
#include "tests/bench/perf/series.h"
#include "tests/bench/perf/tensor.h"

enum peer { PEER_NTH, PEER_TORCH, PEERS_COUNT };

extern const char *const peers_names[]; /* of enum peer; ends with NULL */

/**
 * Adds `turns` samples of a peer. Adds none, and returns ADTOPK_OK, if the peer is not installed or
 * a requirement is missing. The tensor has one gradient. Errors: MEMORY, SYSTEM, STATE (the peer
 * failed and reported why itself).
 */
enum adtopk_status peers_measure(enum peer peer, const struct tensor *tensor, unsigned threads,
    unsigned turns, struct series *times, struct error *err);

#endif
