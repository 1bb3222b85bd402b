/*
 * The plan of a job: which tensors travel dense, which together, and where everything lies.
 *
 * It is a function of the registrations, the policy and the view alone, so that all nodes and a
 * restarted daemon make the same one.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/core/hash.h"
#include "daemon/core/model.h"

#define ALIGNMENT 64u

/* The period after which a sparsifier's counts repeat: interleaving alternates. */
#define TURN_PERIOD 2u

static uint64_t align(uint64_t size)
{
    return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

enum adtopk_status plan_gradients(struct job *job, uint64_t *size, struct error *err)
{
    uint64_t offset = 0;

    for (uint32_t t = 0; t < job->tensors; t++) {
        struct tensor *tensor = &job->tensor[t];
        uint64_t bytes = align(tensor->numel * dtype_size(tensor->spec.dtype));
        tensor->layout.gradient_offset = offset;
        if (offset + bytes > UINT64_MAX / 4) {
            return error_set(
                err, ADTOPK_ERR_MEMORY, "the gradients of job '%s' are too large", job->key.name);
        }
        offset += bytes;
    }
    job->op_gradient_offset = offset;
    *size = offset + CORE_OP_SIZE;
    return ADTOPK_OK;
}

/* How many entries this node may contribute at most, given that each residual selects `count`. */
static uint64_t contribution_count(const struct job *job, const struct tensor *tensor)
{
    uint64_t count = tensor->count;

    if (job->policy.scope == SCOPE_RANK) {
        count *= job->world_size; /* other nodes may have more ranks than this one */
    }
    return count < tensor->numel ? count : tensor->numel;
}

struct payload_shape plan_shape(const struct job *job, const struct tensor *tensor)
{
    const struct policy *policy = &job->policy;
    const struct sparsifier_ops *ops = policy->sparsifier;
    const struct tensor_shape *shape = &tensor->spec.shape;
    uint64_t turn = tensor->store->turn;

    return (struct payload_shape){
        .view = ops->view(shape, &policy->params, turn),
        .per_fibre = policy->scope == SCOPE_NODE ? ops->per_fibre(shape, &policy->params, turn) : 0,
        .max_count = contribution_count(job, tensor),
    };
}

/* Dense where the sparsifier says so, and where its payload would not be the smaller one. */
static void choose(const struct job *job, struct tensor *tensor)
{
    const struct policy *policy = &job->policy;
    const struct sparsifier_ops *ops = policy->sparsifier;
    size_t dense = payload_dense_size(tensor->numel, policy->dense_values);
    size_t sparse = 0;

    for (uint64_t turn = 0; turn < TURN_PERIOD; turn++) {
        const struct tensor_shape *shape = &tensor->spec.shape;
        uint64_t count = ops->count(shape, &policy->params, turn);
        struct payload_shape payload = {
            .view = ops->view(shape, &policy->params, turn),
            .per_fibre = ops->per_fibre(shape, &policy->params, turn),
            .max_count = count,
        };
        size_t size = payload_list_bound(&payload, count, policy->values);
        sparse = size > sparse ? size : sparse;
        tensor->count = count > tensor->count ? count : tensor->count;
    }
    tensor->dense = tensor->count == 0 || sparse >= dense;
    tensor->slots = !tensor->dense && policy->scope == SCOPE_RANK ? job->ranks : 1;
}

static enum adtopk_status list_alloc(struct sparse *list, uint64_t capacity)
{
    list->capacity = capacity;
    list->count = 0;
    list->position = malloc((size_t)capacity * sizeof(*list->position));
    list->value = malloc((size_t)capacity * sizeof(*list->value));
    return list->position != NULL && list->value != NULL ? ADTOPK_OK : ADTOPK_ERR_MEMORY;
}

static enum adtopk_status lists_alloc(const struct job *job, struct tensor *tensor)
{
    if (tensor->dense) {
        return ADTOPK_OK;
    }
    if (list_alloc(&tensor->sent, contribution_count(job, tensor)) != ADTOPK_OK) {
        return ADTOPK_ERR_MEMORY;
    }
    if (job->policy.scope == SCOPE_NODE) {
        return ADTOPK_OK;
    }
    tensor->rank_sent = calloc(job->ranks, sizeof(*tensor->rank_sent));
    for (unsigned r = 0; tensor->rank_sent != NULL && r < job->ranks; r++) {
        if (list_alloc(&tensor->rank_sent[r], tensor->count) != ADTOPK_OK) {
            return ADTOPK_ERR_MEMORY;
        }
    }
    return tensor->rank_sent != NULL ? ADTOPK_OK : ADTOPK_ERR_MEMORY;
}

/* Assigns tensors of one kind to buckets of about policy.bucket_bytes, in order of registration. */
static uint32_t assign_buckets(struct job *job, bool dense, uint32_t bucket)
{
    uint64_t bytes = 0;
    bool begun = false;

    for (uint32_t t = 0; t < job->tensors; t++) {
        struct tensor *tensor = &job->tensor[t];
        uint64_t size = tensor->numel * sizeof(float);
        if (tensor->dense != dense) {
            continue;
        }
        if (begun && bytes + size > job->policy.bucket_bytes) {
            bucket++;
            bytes = 0;
        }
        tensor->bucket = bucket;
        bytes += size;
        begun = true;
    }
    return bucket + (begun ? 1 : 0);
}

/* Lists the tensors by bucket: those of bucket b are list[first[b]] to list[first[b + 1]]. */
static void sort_by_bucket(const struct job *job, uint32_t *first, uint32_t *list)
{
    for (uint32_t t = 0; t < job->tensors; t++) {
        first[job->tensor[t].bucket + 1]++;
    }
    for (uint32_t b = 0; b < job->buckets; b++) {
        first[b + 1] += first[b];
    }
    for (uint32_t t = job->tensors; t-- > 0;) {
        uint32_t *end = &first[job->tensor[t].bucket + 1];
        list[--*end] = t;
    }
    /* Every end has become its bucket's beginning: they are one place too far. */
    for (uint32_t b = 0; b < job->buckets; b++) {
        first[b] = first[b + 1];
    }
    first[job->buckets] = job->tensors;
}

static enum adtopk_status init_rounds(struct job *job, const uint32_t *first, const uint32_t *list)
{
    enum adtopk_status status = round_init(&job->op_round, job, 0, NULL, 0);

    for (uint32_t b = 0; status == ADTOPK_OK && b < job->buckets; b++) {
        status = round_init(&job->round[b], job, b, list + first[b], first[b + 1] - first[b]);
    }
    for (uint32_t t = 0; status == ADTOPK_OK && t < job->tensors; t++) {
        status = round_init(&job->round[job->buckets + t], job, job->buckets + t, &t, 1);
    }
    return status;
}

static enum adtopk_status make_rounds(struct job *job)
{
    uint32_t *first, *list;
    enum adtopk_status status = ADTOPK_ERR_MEMORY;

    job->buckets = assign_buckets(job, false, 0);
    job->buckets = assign_buckets(job, true, job->buckets);
    first = calloc((size_t)job->buckets + 1, sizeof(*first));
    list = malloc(job->tensors * sizeof(*list));
    job->round = calloc((size_t)job->buckets + job->tensors, sizeof(*job->round));
    if (first != NULL && list != NULL && job->round != NULL) {
        job->rounds = job->buckets + job->tensors;
        sort_by_bucket(job, first, list);
        status = init_rounds(job, first, list);
    }
    free(first);
    free(list);
    return status;
}

static uint64_t hash_plan(const struct job *job)
{
    uint64_t hash = hash_text(HASH_EMPTY, job->policy_text);

    for (uint32_t t = 0; t < job->tensors; t++) {
        hash = hash_bytes(hash, &job->tensor[t].hash, sizeof(job->tensor[t].hash));
    }
    for (unsigned r = 0; r < job->ranks; r++) {
        hash = hash_bytes(hash, &job->rank[r]->number, sizeof(job->rank[r]->number));
    }
    return hash;
}

/* Chooses, makes the rounds, and opens the store. Once, when the local ranks are known. */
enum adtopk_status plan_store(struct job *job, struct error *err)
{
    const struct core_memory *memory = &job->core->config.memory;
    enum adtopk_status status = ADTOPK_OK;
    uint64_t elements = 0;
    bool existing;
    float *residual;

    for (uint32_t t = 0; status == ADTOPK_OK && t < job->tensors; t++) {
        struct tensor *tensor = &job->tensor[t];
        choose(job, tensor);
        elements += align(tensor->numel * tensor->slots * sizeof(float)) / sizeof(float);
        status = lists_alloc(job, tensor);
    }
    if (status == ADTOPK_OK) {
        status = make_rounds(job);
    }
    if (status != ADTOPK_OK) {
        return error_set(err, status, "no memory for the plan of job '%s'", job->key.name);
    }
    job->store =
        memory->store(memory->context, job->id, store_size(job->tensors, elements), &existing, err);
    if (job->store == NULL) {
        return err->code;
    }
    job->store_fresh = !existing;
    job->counters.elements = 0;
    for (uint32_t t = 0; t < job->tensors; t++) {
        job->counters.elements += job->tensor[t].numel;
    }
    status = store_open(job->store, existing, job->id, hash_plan(job), job->tensors, err);
    if (status != ADTOPK_OK) {
        return status;
    }
    residual = store_residuals(job->store);
    for (uint32_t t = 0; t < job->tensors; t++) {
        struct tensor *tensor = &job->tensor[t];
        tensor->store = &job->store->tensor[t];
        tensor->residual = residual;
        residual += align(tensor->numel * tensor->slots * sizeof(float)) / sizeof(float);
    }
    for (uint32_t b = 0; b < job->buckets; b++) {
        uint64_t split = job->tensor[job->round[b].tensor[0]].store->split;
        job->round[b].split_step = split > 0 ? split - 1 : UINT64_MAX;
    }
    return ADTOPK_OK;
}

/* Lays out one update after `offset` and returns its end. */
static uint64_t lay_update(
    const struct job *job, struct tensor *tensor, uint64_t offset, struct local_update *update)
{
    unsigned forms = tensor->spec.forms != 0 ? tensor->spec.forms : LOCAL_FORM_DENSE;
    uint64_t factor = job->policy.scope == SCOPE_RANK ? 1 : job->view_nodes;
    uint64_t capacity = contribution_count(job, tensor) * factor;

    tensor->list_capacity = capacity < tensor->numel ? capacity : tensor->numel;
    tensor->layout.update_offset = offset;
    *update = (struct local_update){.numel = tensor->numel};
    offset += align(sizeof(*update));
    if (!tensor->dense && (forms & LOCAL_FORM_LIST) != 0) {
        update->capacity = tensor->list_capacity;
        update->index_offset = offset;
        offset += align(tensor->list_capacity * sizeof(uint32_t));
        update->value_offset = offset;
        offset += align(tensor->list_capacity * sizeof(float));
    }
    if (tensor->dense || (forms & LOCAL_FORM_DENSE) != 0) {
        update->dense_offset = offset;
        offset += align(tensor->numel * sizeof(float));
    }
    return offset;
}

struct local_update *plan_update(const struct job *job, uint32_t tensor)
{
    return (struct local_update *)(void *)(job->results + job->tensor[tensor].layout.update_offset);
}

/* Lays out the results and maps them. Once, when the first view is in force. */
enum adtopk_status plan_results(struct job *job, struct error *err)
{
    const struct core_memory *memory = &job->core->config.memory;
    struct local_update *updates = calloc(job->tensors, sizeof(*updates));
    struct local_results *table;
    uint64_t size;
    bool existing;

    if (updates == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory to lay out the results");
    }
    size = align(sizeof(*table) + (uint64_t)job->tensors * sizeof(table->tensor[0]));
    job->op_result_offset = size;
    size += CORE_OP_SIZE;
    for (uint32_t t = 0; t < job->tensors; t++) {
        size = lay_update(job, &job->tensor[t], size, &updates[t]);
    }
    job->results = memory->results(memory->context, job->id, size, &existing, err);
    if (job->results == NULL) {
        free(updates);
        return err->code;
    }
    if (!existing) {
        table = (struct local_results *)(void *)job->results;
        table->tensors = job->tensors;
        table->op_gradient_offset = job->op_gradient_offset;
        table->op_result_offset = job->op_result_offset;
        for (uint32_t t = 0; t < job->tensors; t++) {
            table->tensor[t].gradient_offset = job->tensor[t].layout.gradient_offset;
            table->tensor[t].update_offset = job->tensor[t].layout.update_offset;
            *plan_update(job, t) = updates[t];
        }
    }
    free(updates);
    if (!existing && job->store->steps_done + job->store->ops_done > 0) {
        return error_set(err, ADTOPK_ERR_LOST,
            "the updates of job '%s' that belong to its residuals are gone", job->key.name);
    }
    return ADTOPK_OK;
}
