/*
 * What others do for the same job: residual += gradient, the k largest magnitudes, zeros where they
 * were. Peers are programs of their own, because what they need may not be there: a C++ library,
 * Python's torch. Each is started with the same residual and gradient that the pass had.
 *
 * Its command line: RESIDUAL GRADIENT TYPE N FIBRES LENGTH STRIDE K TURNS THREADS. The first two
 * are open descriptors of files with so many elements (f32; TYPE). K is of every fibre; a selection
 * of the whole tensor has one fibre. It prints the microseconds of TURNS turns, a line each, after
 * one that does not count; nothing, if what it needs is missing.
 */
#ifndef PERF_PEERS_H
#define PERF_PEERS_H

#include "proto/error.h"
#include "tests/bench/perf/series.h"
#include "tests/bench/perf/tensor.h"

enum peer { PEER_NTH, PEER_TORCH, PEERS_COUNT };

extern const char *const peers_names[]; /* of enum peer; ends with NULL */

/**
 * Adds `turns` samples of a peer. It adds none, and returns ADTOPK_OK, where the peer is not
 * installed or lacks what it needs. The tensor has one gradient. Errors: MEMORY, SYSTEM, STATE (the
 * peer failed, and said why on its own).
 */
enum adtopk_status peers_measure(enum peer peer, const struct tensor *tensor, unsigned threads,
    unsigned turns, struct series *times, struct error *err);

#endif
