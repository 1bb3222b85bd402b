/*
 * A rank of a job: every call of the public header that the replay makes.
 */
#ifndef ADTOPK_TEST_RANK_H
#define ADTOPK_TEST_RANK_H

#include <stdint.h>

struct rank;

/** An update, until the next rank_push(). Either form may be NULL. */
struct rank_update {
    const float *dense;
    const uint32_t *index;
    const float *value;
    uint64_t count;
};

/** Opens the job. NULL: it could not, and said so, as all of these do. */
struct rank *rank_open(
    const char *address, const char *job, int number, int world, const char *policy);

/** The next tensor, of f32, whose updates come as a list and dense. False on errors. */
int rank_register(struct rank *rank, const char *name, unsigned dims, const uint64_t *shape);
int rank_commit(struct rank *rank);
int rank_push(struct rank *rank, uint32_t tensor, const float *gradient);
int rank_step(struct rank *rank);
int rank_update(struct rank *rank, uint32_t tensor, struct rank_update *update);
void rank_close(struct rank *rank);

#endif
