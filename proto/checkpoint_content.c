#include "proto/checkpoint_content.h"

#include <math.h>
#include <string.h>

#define CONTENT_NUMEL_MAX UINT64_C(0xffffffff)
#define CONTENT_WORLD_MAX 65536u
#define CONTENT_TEXT_MAX 127u /* bytes of a name */

uint64_t checkpoint_numel(const Adtopk__CheckpointTensor *tensor)
{
    uint64_t numel = tensor->n_shape > 0 && tensor->n_shape <= CHECKPOINT_DIMS ? 1 : 0;

    for (size_t d = 0; numel > 0 && d < tensor->n_shape; d++) {
        const uint64_t size = tensor->shape[d];
        numel = size == 0 || size > CONTENT_NUMEL_MAX / numel ? 0 : numel * size;
    }
    return numel;
}

uint64_t checkpoint_floats(const Adtopk__CheckpointTensor *tensor, enum checkpoint_array array)
{
    const uint64_t numel = checkpoint_numel(tensor);

    switch (array) {
    case CHECKPOINT_CARRIES:
        return tensor->rounded
                   ? (numel + CHECKPOINT_CHUNK - 1) / CHECKPOINT_CHUNK * CHECKPOINT_CARRY
                   : 0;
    case CHECKPOINT_VELOCITY: return tensor->velocity ? numel : 0;
    default: return numel;
    }
}

/* ------------------------------------------------------------------ what a head may say */

static bool content_is_finite(const double *real, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(real[i])) {
            return false;
        }
    }
    return true;
}

static bool content_is_text(const char *text)
{
    const size_t size = strnlen(text, CONTENT_TEXT_MAX + 1);

    for (size_t i = 0; i < size; i++) {
        if ((unsigned char)text[i] < ' ' || text[i] == 0x7f) {
            return false; /* it would end up in messages */
        }
    }
    return size > 0 && size <= CONTENT_TEXT_MAX;
}

static bool content_state_is_valid(const Adtopk__CheckpointState *state)
{
    return isfinite(state->threshold) && state->threshold >= 0 && state->n_number == 5 &&
           state->n_real == 3 && content_is_finite(state->real, state->n_real);
}

static const char *content_wrong_sums(const Adtopk__CheckpointTensor *tensor)
{
    if (tensor->n_input != 2 || tensor->n_applied != 2 || tensor->n_lost != 2 ||
        !content_is_finite(tensor->input, 2) || !content_is_finite(tensor->applied, 2) ||
        !content_is_finite(tensor->lost, 2)) {
        return "ledger";
    }
    return tensor->n_agreed_real != 3 || tensor->n_agreed_number != 2 ||
                   !content_is_finite(tensor->agreed_real, 3)
               ? "agreed values"
               : NULL;
}

/* The field that is wrong; NULL: none is. */
static const char *content_wrong_field(const Adtopk__CheckpointTensor *tensor)
{
    if (!content_is_text(tensor->name)) {
        return "name";
    }
    if (tensor->dtype > 2 || checkpoint_numel(tensor) == 0) {
        return "type or shape";
    }
    if (tensor->residuals == 0 || tensor->residuals > CONTENT_WORLD_MAX ||
        tensor->turn >= CHECKPOINT_TURNS) {
        return "turn or number of residuals";
    }
    if (tensor->n_state != tensor->residuals) {
        return "number of states";
    }
    for (size_t i = 0; i < tensor->n_state; i++) {
        if (!content_state_is_valid(tensor->state[i])) {
            return "state";
        }
    }
    return content_wrong_sums(tensor);
}

enum adtopk_status checkpoint_check_tensor(
    const Adtopk__CheckpointTensor *tensor, struct error *err)
{
    const char *wrong = content_wrong_field(tensor);

    return wrong == NULL
               ? ADTOPK_OK
               : error_set(err, ADTOPK_ERR_PROTOCOL, "the %s of tensor \"%.127s\" cannot be", wrong,
                     content_is_text(tensor->name) ? tensor->name : "?");
}

bool checkpoint_are_ranks(const uint32_t *rank, size_t ranks, uint32_t world)
{
    bool valid = ranks > 0 && ranks <= world;

    for (size_t i = 0; valid && i < ranks; i++) {
        valid = rank[i] < world && (i == 0 || rank[i] > rank[i - 1]);
    }
    return valid;
}

uint32_t checkpoint_members(const Adtopk__CheckpointJob *job)
{
    return job->members != 0 ? job->members : job->world_size;
}

enum adtopk_status checkpoint_check_job(const Adtopk__CheckpointJob *job, struct error *err)
{
    if (!content_is_text(job->name) || !content_is_text(job->run_id)) {
        return error_set(err, ADTOPK_ERR_PROTOCOL, "the name of the job cannot be");
    }
    if (job->world_size == 0 || job->world_size > CONTENT_WORLD_MAX ||
        !checkpoint_are_ranks(job->ranks, job->n_ranks, job->world_size) ||
        checkpoint_members(job) > job->world_size || checkpoint_members(job) < job->n_ranks) {
        return error_set(err, ADTOPK_ERR_PROTOCOL, "the ranks of job \"%s\" cannot be", job->name);
    }
    if (job->step >= CHECKPOINT_STEPS) {
        return error_set(err, ADTOPK_ERR_PROTOCOL, "the step of job \"%s\" cannot be", job->name);
    }
    return ADTOPK_OK;
}

bool checkpoint_are_valid(const float *values, uint32_t count)
{
    bool valid = true;

    for (uint32_t i = 0; i < count; i++) {
        valid &= fabsf(values[i]) <= CHECKPOINT_LIMIT; /* false for NaN */
    }
    return valid;
}
