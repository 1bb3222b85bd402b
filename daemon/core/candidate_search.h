/*
 * Which tensors should be dense while the others are sparse: for candidate.c.
 */
#ifndef ADTOPK_CANDIDATE_SEARCH_H
#define ADTOPK_CANDIDATE_SEARCH_H

#include "daemon/core/forecast.h"

/** Scratch for the config's tensors; NULL without memory. */
struct candidate_search *candidate_search_create(const struct planner_config *config);
void candidate_search_free(struct candidate_search *search);

/**
 * The best set that it finds: of the tensors that may travel by `dense` as well as by `sparse`,
 * each does one or the other; all others do as in `base`, as is the size of buckets. NULL if there
 * are no such tensors. The result is the search's, until its next call.
 */
const struct choices *candidate_search(struct candidate_search *search, struct forecast *forecast,
    const struct choices *base, enum choice dense, enum choice sparse);

#endif
