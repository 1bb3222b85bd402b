/*
 * A rank reads its residual between two of its steps. No compute of a round uses the residuals
 * then. A round begins when all local ranks have pushed its tensors or ended the step. Other
 * computes of the job may run.
 */
#include "daemon/compute/reading.h"

#include <assert.h>
#include <string.h>

#include "daemon/compute/keeping_array.h"
#include "daemon/job/job_state.h"
#include "daemon/job/ranks.h"

static_assert(CORE_READ_STEP == ENGINE_READ_STEP, "a part of one is a part of the other");

bool reading_in_step(const struct rank *rank)
{
    return rank->job->step.machine.state > STEP_OPEN || rank_has_begun(rank);
}

static enum adtopk_status reading_check(
    const struct rank *rank, const struct event_read *read, struct error *err)
{
    const struct job *job = rank->job;

    if (rank->machine.state != RANK_READY) {
        return error_set(
            err, ADTOPK_ERR_STATE, "rank %u reads a residual before the job runs", rank->number);
    }
    if (read->tensor >= job->tensors || read->first % CORE_READ_STEP != 0 ||
        read->count > CORE_READ_STEP || read->first > job->tensor[read->tensor].numel ||
        read->count > job->tensor[read->tensor].numel - read->first) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "rank %u reads %u elements from %llu on of the residual of tensor %u, which is not "
            "possible",
            rank->number, read->count, (unsigned long long)read->first, read->tensor);
    }
    if (reading_in_step(rank)) {
        return error_set(err, ADTOPK_ERR_STATE,
            "rank %u reads a residual in step %llu: wait for its end", rank->number,
            (unsigned long long)step_number(job));
    }
    if (!residuals_are_free(job)) {
        return error_set(err, ADTOPK_PENDING, "a compute has the residuals");
    }
    return ADTOPK_OK;
}

enum adtopk_status reading_take(
    const struct rank *rank, const struct event_read *read, struct error *err)
{
    struct job *job = rank->job;
    struct event_keep piece = {.tensor = read->tensor,
        .first = read->first,
        .count = read->count,
        .bytes = (uint8_t *)read->values};

    if (reading_check(rank, read, err) != ADTOPK_OK) {
        return err->code;
    }
    if (job->plan->tensor[read->tensor].residual == NULL) {
        memset(read->values, 0, read->count * sizeof *read->values);
        return ADTOPK_OK;
    }
    piece.residual = job->plan->tensor[read->tensor].by_rank ? rank->index : 0;
    return keeping_read_elements(job, &piece, err);
}
