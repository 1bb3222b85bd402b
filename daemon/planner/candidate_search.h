/*
 * Which tensors should be dense while the others are sparse: for candidate.c.
 */
#ifndef ADTOPK_CANDIDATE_SEARCH_H
#define ADTOPK_CANDIDATE_SEARCH_H

#include "daemon/planner/forecast.h"

/** Scratch for the config's tensors; NULL without memory. */
struct candidate_search *candidate_search_create(const struct planner_config *config);
void candidate_search_free(struct candidate_search *search);

/**
 * Finds the best set. A tensor that may be sent by `dense` as well as by `sparse` gets one of the
 * two. All other tensors, and the size of buckets, stay as in `base`. Returns NULL if there are no
 * such tensors. The result belongs to the search and is valid until its next call.
 */
const struct choices *candidate_search(struct candidate_search *search, struct forecast *forecast,
    const struct choices *base, enum choice dense, enum choice sparse);

#endif
