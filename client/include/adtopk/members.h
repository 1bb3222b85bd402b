/*
 * The ranks of a job whose nodes come and go: for trainers that go on with fewer ranks, and take
 * new ones in.
 *
 *     for each training step:
 *         adtopk_members()             after adtopk_commit() or adtopk_step_wait()
 *         if joined == adtopk_step():  adtopk_broadcast() of the parameters, from rank root
 *         take the share of the data that belongs to place, of ranks
 *         gradients, adtopk_push_tensor(), adtopk_step_wait(), adtopk_update()
 *
 * Everything that adtopk.h says of structures, errors and threads holds here, too.
 */
#ifndef ADTOPK_MEMBERS_H
#define ADTOPK_MEMBERS_H

#include <adtopk/adtopk.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The ranks that take part in a job. They are fewer than its world size while nodes are lost,
 * under the policy on_peer_loss "shrink". */
struct adtopk_members {
    /** sizeof(struct adtopk_members), set before adtopk_members(). */
    size_t size;
    /** How many ranks take part in step adtopk_step(), and how many of the world do not. A mean is
     * over those that do. */
    uint32_t ranks;
    uint32_t lost;
    /** This rank's place among them, from 0 to ranks - 1, in the order of their numbers. */
    uint32_t place;
    /** The lowest of them that took part in the step before. */
    uint32_t root;
    /** The step from which those ranks take part that joined last, under the policy "grow"; 0: none
     * joined. All ranks hear of it before that step. If it is adtopk_step(), the new ranks have
     * other parameters: all ranks call adtopk_broadcast() for them, from rank `root`, before they
     * push. A push before any plain operation is an error. */
    uint64_t joined;
};

/**
 * Tells which ranks take part in the next step. Call it after adtopk_commit() or
 * adtopk_step_wait(), before other operations: another rank calls the same ones then. A rank that
 * joins a job which trains gets its number of steps from adtopk_step() after its commit.
 *
 * Errors: what ends the job, ARGUMENT (a pointer is NULL, or the size is wrong), STATE (before
 * commit).
 */
enum adtopk_status adtopk_members(adtopk_context *context, struct adtopk_members *members);

#ifdef __cplusplus
}
#endif

#endif
