/*
 * The survey of a fused pass whose selection is a rule's. It keeps statistics of every chunk while
 * the chunk is in the cache, and the candidates that reach a guess. Internal to kernels/cpu.
 *
 * A full list keeps its better half, and is then complete only from a higher magnitude on. So a
 * guess that is far too low costs time, never a wrong answer. Small tensors have no candidates,
 * because reading them again is cheap.
 */
#ifndef ADTOPK_KERNELS_RULE_H
#define ADTOPK_KERNELS_RULE_H

#include "kernels/cpu/fused.h"
#include "kernels/cpu/stats.h"

/** Entries of each range's list of candidates; 0: there are none. */
size_t rule_capacity(uint64_t n, uint64_t k, unsigned ranges);

/** Chooses pass->least, from which all ranges collect. */
void rule_start(struct fused *pass);

/** Makes room for a chunk's candidates; NULL if the range has no list. *least, from which it
 * collects, grows if entries have to go. */
struct sparse *rule_list(struct fused *pass, unsigned range, uint32_t *least);

/** The next elements of a chunk are complete. lanes: of the chunk. */
void rule_look(struct fused *pass, struct stats_lanes *lanes, const float *x, unsigned length);

/** All elements of a chunk are. */
void rule_close(struct fused *pass, uint64_t chunk, const struct stats_lanes *lanes);

#endif
