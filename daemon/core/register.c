/*
 * Registration: the first rank's descriptions become the job's tensors, those of the others are
 * compared with them, one by one.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/core/hash.h"
#include "daemon/core/model.h"

static enum adtopk_status check_spec(
    const struct rank *rank, const struct tensor_spec *spec, struct error *err)
{
    uint64_t numel = tensor_numel(&spec->shape);

    if (spec->name[0] == '\0' || memchr(spec->name, '\0', sizeof(spec->name)) == NULL) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "tensor %u has no name, or one of more than %d bytes", rank->registered,
            CORE_NAME_SIZE - 1);
    }
    if (dtype_size(spec->dtype) == 0) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "tensor '%s' has the unknown type %d",
            spec->name, (int)spec->dtype);
    }
    if (numel == 0 || numel > VIEW_MAX_ELEMENTS) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "tensor '%s' has a size of zero, more than %u dimensions, or more than %u elements",
            spec->name, TENSOR_MAX_DIMS, VIEW_MAX_ELEMENTS);
    }
    if ((spec->forms & ~3u) != 0) {
        return error_set(
            err, ADTOPK_ERR_ARGUMENT, "tensor '%s' asks for unknown forms", spec->name);
    }
    if (rank->registered >= CORE_MAX_TENSORS) {
        return error_set(
            err, ADTOPK_ERR_ARGUMENT, "a job has at most %u tensors", CORE_MAX_TENSORS);
    }
    return ADTOPK_OK;
}

static bool same_spec(const struct tensor_spec *a, const struct tensor_spec *b)
{
    return strcmp(a->name, b->name) == 0 && a->dtype == b->dtype && a->forms == b->forms &&
           a->shape.dims == b->shape.dims &&
           memcmp(a->shape.size, b->shape.size, a->shape.dims * sizeof(a->shape.size[0])) == 0;
}

static uint64_t hash_spec(const struct tensor_spec *spec)
{
    uint32_t fixed[3] = {(uint32_t)spec->dtype, spec->forms, spec->shape.dims};
    uint64_t hash = hash_text(HASH_EMPTY, spec->name);

    hash = hash_bytes(hash, fixed, sizeof(fixed));
    return hash_bytes(hash, spec->shape.size, spec->shape.dims * sizeof(spec->shape.size[0]));
}

/* Ranks that describe different tensors can never train together: the job ends for all. */
enum adtopk_status register_disagree(
    struct rank *rank, const char *what, const char *name, struct error *err)
{
    struct job *job = rank->job;
    const struct rank *other = job->rank[0] != rank ? job->rank[0] : job->rank[job->ranks - 1];

    (void)error_set(err, ADTOPK_ERR_MISMATCH, "ranks %u and %u: tensor '%s' %s", other->number,
        rank->number, name, what);
    job_fail(job, err, true);
    return ADTOPK_ERR_MISMATCH;
}

/* The slot of a name in the job's hash table: its tensor's, or the empty one where it belongs. */
static uint32_t *name_slot(const struct job *job, const char *name)
{
    uint32_t mask = 2 * job->tensor_capacity - 1;
    /* Seeded with what no client knows, so that nobody can choose names that clash. */
    uint64_t hash = hash_text(hash_mix(job->core->config.incarnation), name);
    uint32_t at = (uint32_t)hash_mix(hash) & mask;

    while (job->name_slot[at] != 0 &&
           strcmp(job->tensor[job->name_slot[at] - 1].spec.name, name) != 0) {
        at = (at + 1) & mask;
    }
    return &job->name_slot[at];
}

/* Makes room for one more tensor. */
static enum adtopk_status grow_tensors(struct job *job)
{
    uint32_t capacity = job->tensor_capacity > 0 ? 2 * job->tensor_capacity : 16;
    struct tensor *tensor;
    uint32_t *slot;

    if (job->tensors < job->tensor_capacity) {
        return ADTOPK_OK;
    }
    tensor = realloc(job->tensor, capacity * sizeof(*tensor));
    job->tensor = tensor != NULL ? tensor : job->tensor;
    slot = calloc(2 * (size_t)capacity, sizeof(*slot));
    if (tensor == NULL || slot == NULL) {
        free(slot);
        return ADTOPK_ERR_MEMORY;
    }
    free(job->name_slot);
    job->name_slot = slot;
    job->tensor_capacity = capacity;
    for (uint32_t t = 0; t < job->tensors; t++) {
        *name_slot(job, job->tensor[t].spec.name) = t + 1;
    }
    return ADTOPK_OK;
}

static enum adtopk_status add_tensor(
    struct job *job, const struct tensor_spec *spec, struct error *err)
{
    uint32_t *slot;

    if (grow_tensors(job) != ADTOPK_OK) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for tensor '%s'", spec->name);
    }
    slot = name_slot(job, spec->name);
    if (*slot != 0) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "tensor '%s' is registered twice", spec->name);
    }
    job->tensor[job->tensors] = (struct tensor){.spec = *spec,
        .numel = tensor_numel(&spec->shape),
        .hash = hash_spec(spec),
        .verified_step = UINT64_MAX};
    job->tensors++;
    *slot = job->tensors;
    return ADTOPK_OK;
}

enum adtopk_status register_tensor(
    struct rank *rank, const struct tensor_spec *spec, struct error *err)
{
    struct job *job = rank->job;

    if (rank->machine.state != RANK_OPEN) {
        return error_set(err, ADTOPK_ERR_STATE, "tensors can only be registered before commit");
    }
    if (check_spec(rank, spec, err) != ADTOPK_OK) {
        return err->code;
    }
    if (rank->registered < job->tensors) {
        if (!same_spec(&job->tensor[rank->registered].spec, spec)) {
            return register_disagree(
                rank, "has another name, type, shape or form", spec->name, err);
        }
    } else if (job->fixed) {
        return register_disagree(rank, "is registered on only one of them", spec->name, err);
    } else if (add_tensor(job, spec, err) != ADTOPK_OK) {
        return err->code;
    }
    rank->registered++;
    machine_fire(&rank->machine, RANK_ON_REGISTER, RANK_OPEN);
    return ADTOPK_OK;
}
