#include "local_core.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/session/session.h"
#include "proto/local.h"

#define FAKE_ACTIONS 4096

struct fake_tensor {
    struct tensor_spec spec;
    uint64_t numel;
    uint64_t gradient_offset, update_offset;
    uint64_t pushed; /* step + 1 */
};

struct fake_rank {
    struct fake_rank *next;
    session_id session;
    struct job_key key;
    struct fake_tensor *tensor;
    uint32_t tensors;
    uint64_t op_gradient_offset, op_result_offset, results_size, gradients_size;
    const uint8_t *gradients;
    uint8_t *results;
    void *own; /* the results, if they are on the heap */
    uint64_t step, operation;
    enum adtopk_status step_status;
    bool ended; /* its job has ended; the session is forgotten */
};

struct fake_core {
    struct fake_rank *ranks;
    struct core_memory memory;
    struct daemon_view *view;
    struct action action[FAKE_ACTIONS];
    struct error ended; /* why jobs named "failing" or "failing300" end */
    unsigned first, count;
};

/* Gives every key a number. */
static uint64_t fake_job(const struct job_key *key)
{
    uint64_t hash = 14695981039346656037u ^ key->owner;

    for (const char *at = key->name; *at != '\0'; at++) {
        hash = (hash ^ (unsigned char)*at) * 1099511628211u;
    }
    for (const char *at = key->run_id; *at != '\0'; at++) {
        hash = (hash ^ (unsigned char)*at) * 1099511628211u;
    }
    return hash;
}

struct fake_core *fake_core_create(struct daemon_view *view)
{
    struct fake_core *core = calloc(1, sizeof *core);

    if (core != NULL) {
        core->view = view;
    }
    return core;
}

void fake_core_memory(struct fake_core *core, struct core_memory memory)
{
    core->memory = memory;
}

/* ---- memory for the sessions of doors ---- */

static const void *fake_gradients(
    void *context, session_id id, unsigned batch, uint64_t size, struct error *err)
{
    return session_lend(context, id, batch, size, err);
}

static void fake_release_session(void *context, session_id id)
{
    session_take_back(context, id);
}

void fake_core_serve(struct fake_core *core, struct doors *doors)
{
    core->memory = (struct core_memory){
        .context = doors, .gradients = fake_gradients, .release_session = fake_release_session};
}

const void *fake_core_results(void *context, uint64_t job, unsigned batch)
{
    const struct fake_core *core = context;
    const struct fake_rank *rank = core->ranks;

    while (rank != NULL && fake_job(&rank->key) != job) {
        rank = rank->next;
    }
    return rank != NULL && batch == 0 ? rank->results : NULL;
}

/* Makes the results and a store, as the core expects them at first. */
static enum adtopk_status fake_take_memory(
    struct fake_core *core, struct fake_rank *rank, struct error *err)
{
    const struct core_memory *memory = &core->memory;
    const uint64_t job = fake_job(&rank->key);
    bool existing = true;

    if (memory->results == NULL) {
        rank->own = calloc(1, rank->results_size);
        rank->results = rank->own;
        return rank->own != NULL ? ADTOPK_OK : error_set(err, ADTOPK_ERR_MEMORY, "no memory");
    }
    rank->results = memory->results(memory->context, job, 0, rank->results_size, &existing, err);
    if (rank->results == NULL || existing ||
        memory->store(memory->context, job, 0, 4096, false, &existing, err) == NULL || existing) {
        return ADTOPK_ERR_MEMORY;
    }
    return ADTOPK_OK;
}

static void fake_free(struct fake_rank *rank)
{
    free(rank->own);
    free(rank->tensor);
    free(rank);
}

/* ---- actions ---- */

static void fake_act(struct fake_core *core, struct action action)
{
    if (core->count == FAKE_ACTIONS) {
        abort();
    }
    core->action[(core->first + core->count++) % FAKE_ACTIONS] = action;
}

bool fake_core_next_action(struct fake_core *core, struct action *action)
{
    if (core->count == 0) {
        return false;
    }
    *action = core->action[core->first];
    core->first = (core->first + 1) % FAKE_ACTIONS;
    core->count--;
    return true;
}

/* Forgets the first rank of the list at `link`. */
static void fake_forget(struct fake_core *core, struct fake_rank **link)
{
    struct fake_rank *rank = *link;

    *link = rank->next;
    core->memory.release_session(core->memory.context, rank->session);
    if (core->memory.release_job != NULL) {
        core->memory.release_job(core->memory.context, fake_job(&rank->key));
    }
    fake_free(rank);
}

void fake_core_destroy(struct fake_core *core)
{
    while (core->ranks != NULL) {
        struct fake_rank *rank = core->ranks;

        core->ranks = rank->next; /* as in a crash: the memory is not released */
        fake_free(rank);
    }
    free(core);
}

static enum adtopk_status fake_open(
    struct fake_core *core, const struct event *event, struct error *err)
{
    struct fake_rank *rank;

    if (strcmp(event->open.key.name, "refused") == 0) {
        return error_set(err, ADTOPK_ERR_DENIED, "job \"refused\" is refused");
    }
    rank = calloc(1, sizeof *rank);
    if (rank == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory");
    }
    rank->session = event->session;
    rank->key = event->open.key;
    rank->next = core->ranks;
    core->ranks = rank;
    return ADTOPK_OK;
}

static enum adtopk_status fake_register(
    struct fake_rank *rank, const struct tensor_spec *spec, struct error *err)
{
    struct fake_tensor *grown = rank->tensor;

    if ((rank->tensors & (rank->tensors - 1)) == 0) { /* the room for a power of two is full */
        grown = realloc(rank->tensor, (2 * (uint64_t)rank->tensors + 1) * sizeof *grown);
        if (grown == NULL) {
            return error_set(err, ADTOPK_ERR_MEMORY, "no memory");
        }
    }
    rank->tensor = grown;
    memset(&grown[rank->tensors], 0, sizeof *grown);
    grown[rank->tensors].spec = *spec;
    grown[rank->tensors].numel = 1;
    for (unsigned i = 0; i < spec->shape.dims; i++) {
        grown[rank->tensors].numel *= spec->shape.size[i];
    }
    if (grown[rank->tensors].numel == 0) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "tensor \"%s\" has no elements", spec->name);
    }
    rank->tensors++;
    return ADTOPK_OK;
}

static uint64_t fake_place(uint64_t *end, uint64_t bytes)
{
    const uint64_t at = (*end + 63) / 64 * 64;

    *end = at + bytes;
    return at;
}

static enum adtopk_status fake_commit(
    struct fake_core *core, struct fake_rank *rank, struct error *err)
{
    uint64_t in = 0, out = 0;

    if (rank->gradients != NULL) {
        return error_set(err, ADTOPK_ERR_STATE, "the fake has no later batches");
    }
    (void)fake_place(&out, sizeof(struct local_results) +
                               rank->tensors * sizeof(((struct local_results *)0)->tensor[0]));
    rank->op_gradient_offset = fake_place(&in, CORE_OP_SIZE);
    rank->op_result_offset = fake_place(&out, CORE_OP_SIZE);
    for (uint32_t i = 0; i < rank->tensors; i++) {
        struct fake_tensor *tensor = &rank->tensor[i];

        tensor->gradient_offset = fake_place(&in, tensor->numel * 4);
        tensor->update_offset =
            fake_place(&out, sizeof(struct local_update) + 12 * tensor->numel + 64);
    }
    in = (in + 63) / 64 * 64; /* as the core's plan: every tensor's end is aligned */
    rank->gradients_size = in;
    rank->results_size = out;
    rank->gradients = core->memory.gradients(core->memory.context, rank->session, 0, in, err);
    return rank->gradients != NULL ? ADTOPK_OK : err->code;
}

static enum adtopk_status fake_mapped(
    struct fake_core *core, struct fake_rank *rank, struct error *err)
{
    const uint64_t job = fake_job(&rank->key);
    struct local_results *table;

    if (fake_take_memory(core, rank, err) != ADTOPK_OK) {
        return ADTOPK_ERR_MEMORY;
    }
    table = (struct local_results *)(void *)rank->results;
    table->tensors = rank->tensors;
    table->op_gradient_offset = rank->op_gradient_offset;
    table->op_result_offset = rank->op_result_offset;
    for (uint32_t i = 0; i < rank->tensors; i++) {
        table->tensor[i].gradient_offset = rank->tensor[i].gradient_offset;
        table->tensor[i].update_offset = rank->tensor[i].update_offset;
    }
    fake_act(core,
        (struct action){.type = ACTION_READY, .session = rank->session, .job = job, .batches = 1});
    return ADTOPK_OK;
}

/* Makes the update, which is the gradient: dense, and as a list of the elements that are not zero.
 */
static enum adtopk_status fake_update(const struct fake_rank *rank, struct fake_tensor *tensor)
{
    const float *gradient =
        (const float *)(const void *)(rank->gradients + tensor->gradient_offset);
    struct local_update *update =
        (struct local_update *)(void *)(rank->results + tensor->update_offset);
    uint64_t at = tensor->update_offset + sizeof *update;
    enum adtopk_status status = ADTOPK_OK;
    uint32_t *index;
    float *value, *dense;

    update->dense_offset = at;
    update->index_offset = at + 4 * tensor->numel;
    update->value_offset = at + 8 * tensor->numel;
    dense = (float *)(void *)(rank->results + update->dense_offset);
    index = (uint32_t *)(void *)(rank->results + update->index_offset);
    value = (float *)(void *)(rank->results + update->value_offset);
    update->count = 0;
    for (uint64_t i = 0; i < tensor->numel; i++) {
        dense[i] = gradient[i];
        if (gradient[i] < 0 || gradient[i] > 0) {
            index[update->count] = (uint32_t)i;
            value[update->count++] = gradient[i];
        }
        if (!isfinite(gradient[i])) {
            status = ADTOPK_NONFINITE;
        }
    }
    update->numel = update->capacity = tensor->numel;
    update->step = rank->step;
    update->forms = tensor->spec.forms & ~(uint32_t)LOCAL_FORM_PENDING;
    return status;
}

static enum adtopk_status fake_push(
    struct fake_core *core, struct fake_rank *rank, const struct event *event, struct error *err)
{
    const uint32_t t = event->step.tensor;
    struct fake_tensor *tensor = t < rank->tensors ? &rank->tensor[t] : NULL;
    enum adtopk_status status;

    if (tensor == NULL || event->step.number != rank->step || tensor->pushed == rank->step + 1) {
        return error_set(err, ADTOPK_ERR_PROTOCOL, "push of tensor %u in step %llu",
            event->step.tensor, (unsigned long long)event->step.number);
    }
    tensor->pushed = rank->step + 1;
    status = fake_update(rank, tensor);
    if (status != ADTOPK_OK) {
        rank->step_status = status;
    }
    fake_act(core, (struct action){.type = ACTION_DELIVERED,
                       .session = rank->session,
                       .tensor = event->step.tensor,
                       .number = rank->step,
                       .status = status});
    return ADTOPK_OK;
}

static enum adtopk_status fake_step_end(
    struct fake_core *core, struct fake_rank *rank, const struct event *event, struct error *err)
{
    struct action action = {.type = ACTION_STEP, .session = rank->session, .number = rank->step};

    if (event->step.number != rank->step) {
        return error_set(
            err, ADTOPK_ERR_PROTOCOL, "end of step %llu", (unsigned long long)event->step.number);
    }
    if (strcmp(rank->key.name, "silent") == 0) {
        return ADTOPK_OK;
    }
    if (strncmp(rank->key.name, "failing", 7) == 0) {
        action.type = ACTION_FAILED;
        rank->ended = true;
        (void)error_set(&core->ended, ADTOPK_ERR_PEER, "rank 7 (process 42) ended: %0*d",
            atoi(rank->key.name + 7), 0);
        action.error = &core->ended;
    }
    action.status = rank->step_status;
    rank->step_status = ADTOPK_OK;
    rank->step++;
    fake_act(core, action);
    return ADTOPK_OK;
}

static enum adtopk_status fake_op(
    struct fake_core *core, struct fake_rank *rank, const struct event *event, struct error *err)
{
    if (event->op.number != rank->operation || event->op.root != 0) {
        return error_set(err, ADTOPK_ERR_PROTOCOL, "operation %llu of root %u",
            (unsigned long long)event->op.number, event->op.root);
    }
    if (strcmp(rank->key.name, "silent") == 0) {
        return ADTOPK_OK;
    }
    memcpy(rank->results + rank->op_result_offset, rank->gradients + rank->op_gradient_offset,
        event->op.size);
    fake_act(
        core, (struct action){
                  .type = ACTION_OP_DONE, .session = rank->session, .number = rank->operation++});
    return ADTOPK_OK;
}

/* Element i of tensor t is i + t. The function checks the same bounds as the real core. */
static enum adtopk_status fake_read(
    const struct fake_rank *rank, const struct event *event, struct error *err)
{
    if (event->read.tensor >= rank->tensors || event->read.count > CORE_READ_STEP ||
        event->read.first > rank->tensor[event->read.tensor].numel ||
        event->read.count > rank->tensor[event->read.tensor].numel - event->read.first) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "a part of a residual that is not there");
    }
    for (uint32_t i = 0; i < event->read.count; i++) {
        event->read.values[i] = (float)(event->read.first + i + event->read.tensor);
    }
    return ADTOPK_OK;
}

static void fake_gone(struct fake_core *core, struct fake_rank **link, const struct event *event)
{
    if (event->type == EVENT_RANK_LEAVE) {
        fake_act(core, (struct action){.type = ACTION_CLOSED, .session = event->session});
    } else {
        (void)snprintf(core->view->reason, sizeof core->view->reason, "%s", event->reason);
        atomic_fetch_add(&core->view->lost, 1);
    }
    fake_forget(core, link);
}

enum adtopk_status fake_core_event(void *context, struct event *event, struct error *err)
{
    struct fake_core *core = context;
    struct fake_rank **link = &core->ranks;

    if (event->type == EVENT_RANK_OPEN) {
        return fake_open(core, event, err);
    }
    while (*link != NULL && (*link)->session != event->session) {
        link = &(*link)->next;
    }
    if (*link == NULL || ((*link)->ended && event->type != EVENT_RANK_LOST)) {
        return error_set(err, ADTOPK_ERR_STATE, "no such session");
    }
    switch (event->type) {
    case EVENT_RANK_REGISTER: return fake_register(*link, event->spec, err);
    case EVENT_RANK_COMMIT: return fake_commit(core, *link, err);
    case EVENT_RANK_MAPPED: return fake_mapped(core, *link, err);
    case EVENT_RANK_PUSH: return fake_push(core, *link, event, err);
    case EVENT_RANK_STEP_END: return fake_step_end(core, *link, event, err);
    case EVENT_RANK_WAIT: return ADTOPK_OK;
    case EVENT_RANK_READ: return fake_read(*link, event, err);
    case EVENT_RANK_OP: return fake_op(core, *link, event, err);
    case EVENT_RANK_LEAVE:
    case EVENT_RANK_LOST: fake_gone(core, link, event); return ADTOPK_OK;
    default: abort();
    }
}
