/*
 * Registration. The first rank's descriptions become the job's tensors. The descriptions of other
 * ranks are compared with them, one by one.
 *
 * While training runs, tensors come in further batches. They are kept apart until all nodes have
 * committed them (core/agree/batch.c), because computes read the tensors in force. Ranks that
 * return commit all batches before the job goes on. The store says how many of them are in force.
 */
#include "daemon/job/register.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/job/hash.h"
#include "daemon/job/job_fail.h"
#include "daemon/job/machine.h"
#include "daemon/job/names.h"
#include "proto/local.h"

#define MANY_TENSORS 1024u

/* The 16-bit form has the tensor's own type, and the dense form would show other bits. */
static enum adtopk_status check_forms(const struct tensor_spec *spec, struct error *err)
{
    if ((spec->forms & ~LOCAL_FORMS) != 0) {
        return error_set(
            err, ADTOPK_ERR_ARGUMENT, "tensor '%s' asks for unknown forms", spec->name);
    }
    if ((spec->forms & LOCAL_FORM_DENSE16) != 0 && spec->dtype == DTYPE_F32) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "tensor '%s' is f32: the 16-bit form of an update is for f16 and bf16", spec->name);
    }
    if ((spec->forms & LOCAL_FORM_DENSE16) != 0 && (spec->forms & LOCAL_FORM_DENSE) != 0) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "tensor '%s' asks for the dense form of updates in 16 bits and in f32", spec->name);
    }
    return ADTOPK_OK;
}

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
    if (check_forms(spec, err) != ADTOPK_OK) {
        return err->code;
    }
    if (rank->registered > 0 && spec->shown_on_gpu != rank->shown_on_gpu) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "rank %u sees updates of tensor '%s'%s on its GPU%s: it sees those of all tensors "
            "there, or of none",
            rank->number, spec->name, spec->shown_on_gpu != CORE_SHOWN_NOT ? "" : " not",
            spec->shown_on_gpu == CORE_SHOWN_LISTS ? " as lists" : "");
    }
    if (rank->registered >= CORE_MAX_TENSORS) {
        return error_set(
            err, ADTOPK_ERR_ARGUMENT, "a job has at most %u tensors", CORE_MAX_TENSORS);
    }
    return ADTOPK_OK;
}

struct tensor *register_at(const struct job *job, uint32_t t)
{
    return t < job->tensors ? &job->tensor[t] : &job->registering.next[t - job->tensors];
}

uint32_t register_count(const struct job *job)
{
    return job->tensors + job->registering.nexts;
}

uint32_t register_first(const struct job *job, unsigned batch)
{
    return batch > 0 ? job->registering.end[batch - 1] : 0;
}

uint32_t register_end(const struct job *job, unsigned batch)
{
    return batch < job->registering.fixed ? job->registering.end[batch] : register_count(job);
}

void register_fix(struct job *job, unsigned batch)
{
    struct registering *registering = &job->registering;

    assert(batch <= registering->fixed && batch < CORE_MAX_BATCHES);
    if (batch == registering->fixed) {
        registering->end[registering->fixed++] = register_count(job);
    }
}

enum adtopk_status register_part(struct job *job, unsigned batches)
{
    struct registering *registering = &job->registering;
    const uint32_t kept = register_end(job, batches - 1), more = job->tensors - kept;

    assert(!registering->parted && registering->nexts == 0);
    registering->room = 0;
    if (more > 0) {
        registering->next = malloc(more * sizeof(*registering->next));
        if (registering->next == NULL) {
            return ADTOPK_ERR_MEMORY;
        }
        (void)memcpy(registering->next, &job->tensor[kept], more * sizeof(*registering->next));
        registering->nexts = registering->room = more;
    }
    job->tensors = kept;
    registering->parted = true;
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

/* Whichever way ranks see updates, random choices are those with all elements. */
static uint64_t spec_seed(const struct tensor_spec *spec)
{
    struct tensor_spec dense = *spec;

    dense.forms = LOCAL_FORM_DENSE;
    return hash_spec(&dense);
}

/* Ranks that describe different tensors can never train together: the job ends for all. A process
 * that would take the place of a rank is refused alone. */
enum adtopk_status register_disagree(
    struct rank *rank, const char *what, const char *name, struct error *err)
{
    struct job *job = rank->job;
    const struct rank *other = job->rank[0] != rank ? job->rank[0] : job->rank[job->ranks - 1];

    if (rank->succeeds) {
        return error_set(err, ADTOPK_ERR_MISMATCH,
            "rank %u comes back to job '%s' with other tensors: '%s' %s", rank->number,
            job->key.name, name, what);
    }
    (void)error_set(err, ADTOPK_ERR_MISMATCH, "ranks %u and %u: tensor '%s' %s", other->number,
        rank->number, name, what);
    job_fail(job, err, true);
    return ADTOPK_ERR_MISMATCH;
}

/* The rank describes another tensor than others did in the same place of the order. */
static enum adtopk_status register_other(struct rank *rank, const struct tensor_spec *known,
    const struct tensor_spec *spec, struct error *err)
{
    const struct spec_text before = spec_describe(known), now = spec_describe(spec);
    char what[2 * sizeof(before) + CORE_NAME_SIZE];

    if (strcmp(known->name, spec->name) != 0) {
        (void)snprintf(what, sizeof(what), "has the place of '%s'", known->name);
    } else if (strcmp(before.text, now.text) != 0) {
        (void)snprintf(what, sizeof(what), "is %s and not %s", now.text, before.text);
    } else {
        (void)snprintf(what, sizeof(what), "asks for other forms of its update");
    }
    return register_disagree(rank, what, spec->name, err);
}

/* The hash has a seed that no client knows, so that nobody can choose names that clash. */
static uint32_t name_hash(const struct job *job, const char *name)
{
    return (uint32_t)hash_mix(hash_text(hash_mix(job->core->config.secret), name));
}

/* The slot of a name in the job's hash table: the one of its tensor, or the empty one for it. */
static struct name_slot *name_slot(const struct job *job, uint32_t hash, const char *name)
{
    uint32_t mask = 2 * job->registering.capacity - 1, at = hash & mask;
    struct name_slot *slot = &job->registering.slot[at];

    while (
        slot->tensor != 0 &&
        (slot->hash != hash || strcmp(register_at(job, slot->tensor - 1)->spec.name, name) != 0)) {
        at = (at + 1) & mask;
        slot = &job->registering.slot[at];
    }
    return slot;
}

/* Copies the table to a larger one of so many slots. */
static void move_names(const struct job *job, struct name_slot *to, uint32_t slots)
{
    for (uint32_t i = 0; i < 2 * job->registering.capacity; i++) {
        const struct name_slot *from = &job->registering.slot[i];
        uint32_t at = from->hash & (slots - 1);

        while (from->tensor != 0 && to[at].tensor != 0) {
            at = (at + 1) & (slots - 1);
        }
        if (from->tensor != 0) {
            to[at] = *from;
        }
    }
}

/* With many tensors the array gets room for all that a job may have. Unused room costs no memory,
 * and copying half of the array would stop the loop for others. */
static uint32_t register_grown(uint32_t now)
{
    return now == 0 ? 16 : now < MANY_TENSORS ? 2 * now : CORE_MAX_TENSORS;
}

/* Makes room for one more name. */
static enum adtopk_status grow_names(struct job *job)
{
    uint32_t capacity = register_grown(job->registering.capacity);
    struct name_slot *slot;

    if (register_count(job) < job->registering.capacity) {
        return ADTOPK_OK;
    }
    slot = calloc(2 * (size_t)capacity, sizeof(*slot));
    if (slot == NULL) {
        return ADTOPK_ERR_MEMORY;
    }
    move_names(job, slot, 2 * capacity);
    free(job->registering.slot);
    job->registering.slot = slot;
    job->registering.capacity = capacity;
    return ADTOPK_OK;
}

/* Makes room for one more tensor in an array that has `*room`. */
static enum adtopk_status grow_tensors(struct tensor **array, uint32_t count, uint32_t *room)
{
    uint32_t capacity = register_grown(*room);
    struct tensor *tensor;

    if (count < *room) {
        return ADTOPK_OK;
    }
    tensor = calloc(capacity, sizeof(*tensor));
    if (tensor == NULL) {
        return ADTOPK_ERR_MEMORY;
    }
    if (count > 0) {
        (void)memcpy(tensor, *array, count * sizeof(*tensor));
    }
    free(*array);
    *array = tensor;
    *room = capacity;
    return ADTOPK_OK;
}

/* Makes room for the next tensor and returns it; NULL without memory. */
static struct tensor *next_tensor(struct job *job)
{
    struct registering *registering = &job->registering;
    struct tensor **array = registering->parted ? &registering->next : &job->tensor;
    const uint32_t count = registering->parted ? registering->nexts : job->tensors;

    if (grow_names(job) != ADTOPK_OK ||
        grow_tensors(array, count, &registering->room) != ADTOPK_OK) {
        return NULL;
    }
    return &(*array)[count];
}

static enum adtopk_status add_tensor(
    struct job *job, const struct tensor_spec *spec, struct error *err)
{
    const uint32_t hash = name_hash(job, spec->name);
    struct tensor *tensor = next_tensor(job);
    struct name_slot *slot;

    if (tensor == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for tensor '%s'", spec->name);
    }
    slot = name_slot(job, hash, spec->name);
    if (slot->tensor != 0) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "tensor '%s' is registered twice", spec->name);
    }
    *tensor = (struct tensor){.spec = *spec,
        .numel = tensor_numel(&spec->shape),
        .hash = hash_spec(spec),
        .seed = spec_seed(spec),
        .layout.batch = job->registering.fixed,
        .verified.step = UINT64_MAX,
        .read.step = UINT64_MAX};
    *(job->registering.parted ? &job->registering.nexts : &job->tensors) += 1;
    *slot = (struct name_slot){.hash = hash, .tensor = register_count(job)};
    return ADTOPK_OK;
}

/* Whether the rank may describe a tensor now. */
static enum adtopk_status check_state(const struct rank *rank, struct error *err)
{
    if (rank->machine.state != RANK_OPEN &&
        (rank->machine.state != RANK_READY || rank->committed != rank->ready)) {
        return error_set(
            err, ADTOPK_ERR_STATE, "no tensor can be registered before the commit is complete");
    }
    if (rank->committed == CORE_MAX_BATCHES) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "a job commits tensors at most %u times",
            (unsigned)CORE_MAX_BATCHES);
    }
    return ADTOPK_OK;
}

enum adtopk_status register_tensor(
    struct rank *rank, const struct tensor_spec *spec, struct error *err)
{
    struct job *job = rank->job;

    if (check_state(rank, err) != ADTOPK_OK || check_spec(rank, spec, err) != ADTOPK_OK) {
        return err->code;
    }
    if (rank->registered < (rank->succeeds ? job->tensors : register_end(job, rank->committed))) {
        const struct tensor_spec *known = &register_at(job, rank->registered)->spec;

        if (!same_spec(known, spec)) {
            return register_other(rank, known, spec, err);
        }
    } else if (rank->committed < job->registering.fixed || rank->succeeds) {
        return register_disagree(rank, "is registered on only one of them", spec->name, err);
    } else if (add_tensor(job, spec, err) != ADTOPK_OK) {
        return err->code;
    }
    rank->registered++;
    rank->on_gpu |= spec->on_gpu;
    rank->client.returns = rank->client.returns && !spec->stays;
    rank->shown_on_gpu = spec->shown_on_gpu;
    machine_fire(&rank->machine, RANK_ON_REGISTER, rank->machine.state);
    return ADTOPK_OK;
}
