#include "daemon/compute/keeping.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/compute/keeping_array.h"
#include "daemon/compute/layout.h"
#include "daemon/compute/orders.h"
#include "daemon/compute/reading.h"
#include "daemon/job/job_state.h"
#include "daemon/job/plan_query.h"
#include "kernels/kernels.h"
#include "proto/checkpoint_content.h"
#include "proto/codec.h"

static_assert(CHECKPOINT_BLOCK == CORE_READ_STEP, "a block is a piece");
static_assert(KEEP_VELOCITY - KEEP_ELEMENTS == CHECKPOINT_VELOCITY, "the same arrays");

#define KEEP_NUMBERS (sizeof(((struct sparsifier_state *)0)->number) / sizeof(uint32_t))
#define KEEP_REALS (sizeof(((struct sparsifier_state *)0)->real) / sizeof(double))

/* ------------------------------------------------------------------ who may, and when */

static enum adtopk_status keeping_check_moment(const struct rank *rank, struct error *err)
{
    const struct job *job = rank->job;

    if (rank->machine.state != RANK_READY) {
        return error_set(err, ADTOPK_ERR_STATE,
            "rank %u saves or loads a checkpoint before its job runs", rank->number);
    }
    for (unsigned r = 0; r < job->ranks; r++) {
        if (reading_in_step(job->rank[r])) {
            return error_set(err, ADTOPK_ERR_STATE,
                "rank %u saves or loads a checkpoint, and rank %u is in step %llu: wait for its "
                "end on all ranks",
                rank->number, job->rank[r]->number, (unsigned long long)step_number(job));
        }
    }
    return residuals_are_free(job) ? ADTOPK_OK
                                   : error_set(err, ADTOPK_PENDING, "a compute has the residuals");
}

/* The end may come twice: if the daemon is killed before it answers, the rank asks the next one. */
static enum adtopk_status keeping_check_writer(
    const struct rank *rank, const struct event_keep *keep, struct error *err)
{
    const struct job *job = rank->job;
    const struct store_header *store = job->store;
    const bool again = store->restore == RESTORE_DONE && keep->section == KEEP_END;

    if (rank->index != 0) {
        return error_set(err, ADTOPK_ERR_STATE,
            "rank %u loads a checkpoint, and only the first rank of its node may", rank->number);
    }
    if (store->steps_done > 0 || (store->restore == RESTORE_DONE && !again)) {
        return error_set(err, ADTOPK_ERR_STATE,
            "a checkpoint is loaded once, before the first step of a run: job '%s' %s",
            job->key.name, store->steps_done > 0 ? "has done steps" : "has loaded one");
    }
    if (keep->section != KEEP_JOB && store->restore != RESTORE_BEGUN && !again) {
        return error_set(err, ADTOPK_ERR_STATE, "the loading of a checkpoint has not begun");
    }
    return ADTOPK_OK;
}

/* Bytes of the carries of so many elements. */
static size_t keeping_carry_bytes(uint32_t elements)
{
    return chunk_count(elements) * sizeof(struct carry);
}

/* Carries may come behind elements. */
static bool keeping_has_size(const struct event_keep *keep)
{
    const size_t floats = keep->count * sizeof(float);

    return keep->size == floats || (keep->section == KEEP_ELEMENTS &&
                                       keep->size == floats + keeping_carry_bytes(keep->count));
}

static enum adtopk_status keeping_check_piece(
    const struct job *job, const struct event_keep *keep, struct error *err)
{
    const bool array = keep->section >= KEEP_ELEMENTS && keep->section <= KEEP_VELOCITY;
    bool wrong = (unsigned)keep->section >= KEEP_SECTIONS;

    if (keep->section == KEEP_TENSOR || array) {
        wrong = keep->tensor >= job->tensors ||
                keep->residual >= plan_residuals(job, &job->plan->tensor[keep->tensor]);
    }
    if (array && !wrong) {
        const uint64_t room = keeping_floats(job, keep->tensor, keep->section);
        wrong = keep->first % CORE_READ_STEP != 0 || keep->count > CORE_READ_STEP ||
                keep->first > room || keep->count > room - keep->first ||
                (keep->writes && !keeping_has_size(keep));
    }
    if (keep->writes) {
        wrong |= keep->section == KEEP_POLICY || keep->section == KEEP_CARRIES ||
                 keep->size > CORE_KEEP_SIZE;
    }
    return wrong ? error_set(err, ADTOPK_ERR_ARGUMENT,
                       "piece %u, %llu of section %u of tensor %u of a checkpoint cannot be %s",
                       keep->residual, (unsigned long long)keep->first, (unsigned)keep->section,
                       keep->tensor, keep->writes ? "written" : "read")
                 : ADTOPK_OK;
}

/* ------------------------------------------------------------------ messages */

/* Packs a message into the piece, whose room is enough for the most ranks of a node. */
static enum adtopk_status keeping_pack(
    const ProtobufCMessage *message, struct event_keep *keep, struct error *err)
{
    keep->size = protobuf_c_message_get_packed_size(message);
    if (keep->size > CORE_KEEP_SIZE) {
        return error_set(err, ADTOPK_ERR_MEMORY,
            "a node has too many ranks for a checkpoint: its record takes %zu bytes", keep->size);
    }
    (void)protobuf_c_message_pack(message, keep->bytes);
    return ADTOPK_OK;
}

static enum adtopk_status keeping_read_job(
    const struct job *job, struct event_keep *keep, struct error *err)
{
    Adtopk__CheckpointJob message = ADTOPK__CHECKPOINT_JOB__INIT;
    enum adtopk_status status;

    message.ranks = malloc(job->ranks * sizeof(*message.ranks));
    if (message.ranks == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for a checkpoint");
    }
    for (unsigned r = 0; r < job->ranks; r++) {
        message.ranks[message.n_ranks++] = job->rank[r]->number;
    }
    message.owner = job->key.owner;
    message.name = (char *)(uintptr_t)job->key.name;
    message.run_id = (char *)(uintptr_t)job->key.run_id;
    message.world_size = job->run.world_size;
    message.members = job->run.ranks;
    message.node = job->core->config.node;
    message.step = job->store->base + job->store->steps_done;
    message.seed = plan_seed(job);
    message.mean = job->plan->policy.reduce == REDUCE_MEAN;
    message.tensors = job->tensors;
    message.policy = job->plan->change.version;
    message.policy_size = (uint32_t)strlen(job->plan->text);
    status = keeping_pack(&message.base, keep, err);
    free(message.ranks);
    return status;
}

static void keeping_read_policy(const struct job *job, struct event_keep *keep)
{
    const size_t size = strlen(job->plan->text);
    const size_t first = keep->first < size ? (size_t)keep->first : size;
    const size_t most = keep->count < CORE_KEEP_SIZE ? keep->count : CORE_KEEP_SIZE;

    keep->size = size - first < most ? size - first : most;
    (void)memcpy(keep->bytes, job->plan->text + first, keep->size);
}

/* The states of a tensor's residuals, in memory of the caller. */
struct keep_states {
    Adtopk__CheckpointState *message, **list;
    struct sparsifier_state *state;
};

static enum adtopk_status keeping_read_states(
    const struct job *job, uint32_t t, struct keep_states *states)
{
    const unsigned count = plan_residuals(job, &job->plan->tensor[t]);

    states->message = malloc(count * sizeof(*states->message));
    states->list = malloc(count * sizeof(*states->list));
    states->state = malloc(count * sizeof(*states->state));
    if (states->message == NULL || states->list == NULL || states->state == NULL) {
        return ADTOPK_ERR_MEMORY;
    }
    for (unsigned r = 0; r < count; r++) {
        states->state[r] = orders_state(job, t, r);
        adtopk__checkpoint_state__init(&states->message[r]);
        states->message[r].threshold = states->state[r].threshold;
        states->message[r].n_number = KEEP_NUMBERS;
        states->message[r].number = states->state[r].number;
        states->message[r].n_real = KEEP_REALS;
        states->message[r].real = states->state[r].real;
        states->list[r] = &states->message[r];
    }
    return ADTOPK_OK;
}

static void keeping_fill_tensor(
    const struct job *job, uint32_t t, Adtopk__CheckpointTensor *message)
{
    const struct tensor *tensor = &job->tensor[t];

    message->name = (char *)(uintptr_t)tensor->spec.name;
    message->dtype = (uint32_t)tensor->spec.dtype;
    message->n_shape = tensor->spec.shape.dims;
    message->shape = (uint64_t *)(uintptr_t)tensor->spec.shape.size;
    message->residuals = plan_residuals(job, &job->plan->tensor[t]);
    message->rounded = keeping_floats(job, t, KEEP_CARRIES) > 0;
    message->velocity = keeping_floats(job, t, KEEP_VELOCITY) > 0;
    message->turn = tensor->store->turn;
    message->n_input = message->n_applied = message->n_lost = 2;
    message->input = tensor->store->input;
    message->applied = (double *)(uintptr_t)store_applied(tensor->store);
    message->lost = tensor->store->lost;
}

static enum adtopk_status keeping_read_tensor(
    const struct job *job, struct event_keep *keep, struct error *err)
{
    Adtopk__CheckpointTensor message = ADTOPK__CHECKPOINT_TENSOR__INIT;
    struct sparsifier_agreed agreed = *plan_turn(job, keep->tensor).agreed;
    struct keep_states states = {.message = NULL};
    enum adtopk_status status = keeping_read_states(job, keep->tensor, &states);

    if (status == ADTOPK_OK) {
        keeping_fill_tensor(job, keep->tensor, &message);
        message.n_agreed_real = sizeof(agreed.real) / sizeof(*agreed.real);
        message.agreed_real = agreed.real;
        message.n_agreed_number = sizeof(agreed.number) / sizeof(*agreed.number);
        message.agreed_number = agreed.number;
        message.n_state = message.residuals;
        message.state = states.list;
        status = keeping_pack(&message.base, keep, err);
    } else {
        (void)error_set(err, status, "no memory for a checkpoint");
    }
    free(states.message);
    free(states.list);
    free(states.state);
    return status;
}

/* ------------------------------------------------------------------ writing messages */

/* Elements of another checkpoint may be here already, and this one need not replace them all. */
static enum adtopk_status keeping_check_same(
    const struct store_header *store, const Adtopk__CheckpointJob *message, struct error *err)
{
    return store->restore != RESTORE_BEGUN ||
                   (store->seed == message->seed && store->base == message->step)
               ? ADTOPK_OK
               : error_set(err, ADTOPK_ERR_STATE,
                     "the loading of another checkpoint has begun and not ended: open the job "
                     "again");
}

/* That it has begun comes last: a daemon that is killed before that knows no checkpoint yet. */
static enum adtopk_status keeping_begin_loading(
    const struct job *job, const struct event_keep *keep, struct error *err)
{
    Adtopk__CheckpointJob *message = (Adtopk__CheckpointJob *)codec_unpack(
        &adtopk__checkpoint_job__descriptor, keep->bytes, keep->size, CORE_KEEP_SIZE, err);
    enum adtopk_status status = message != NULL ? checkpoint_check_job(message, err) : err->code;

    if (status == ADTOPK_OK) {
        status = keeping_check_same(job->store, message, err);
    }
    if (status == ADTOPK_OK) {
        store_publish64(&job->store->seed, message->seed);
        store_publish64(&job->store->base, message->step);
        store_publish(&job->store->restore, RESTORE_BEGUN);
    }
    codec_free(message != NULL ? &message->base : NULL);
    return status;
}

static bool keeping_is_tensor(const struct tensor *tensor, const Adtopk__CheckpointTensor *message)
{
    bool same = strcmp(message->name, tensor->spec.name) == 0 &&
                message->dtype == (uint32_t)tensor->spec.dtype &&
                message->n_shape == tensor->spec.shape.dims;

    for (unsigned d = 0; same && d < tensor->spec.shape.dims; d++) {
        same = message->shape[d] == tensor->spec.shape.size[d];
    }
    return same;
}

static void keeping_put_states(
    const struct job *job, uint32_t t, const Adtopk__CheckpointTensor *message)
{
    const unsigned now = (unsigned)(message->turn % 2);

    for (unsigned r = 0; r < plan_residuals(job, &job->plan->tensor[t]); r++) {
        const Adtopk__CheckpointState *from = message->state[r < message->n_state ? r : 0];
        struct store_states *states = layout_states(job, t, r);
        struct sparsifier_state *to = &states->state[now];
        to->threshold = from->threshold;
        (void)memcpy(to->number, from->number, sizeof(to->number));
        (void)memcpy(to->real, from->real, sizeof(to->real));
        states->after[now] = job->store->policies;
    }
}

/* The turn comes last: it puts the rest in force. */
static void keeping_put_tensor(
    const struct job *job, uint32_t t, const Adtopk__CheckpointTensor *message)
{
    struct store_tensor *store = job->tensor[t].store;
    const unsigned now = (unsigned)(message->turn % 2);
    struct sparsifier_agreed *agreed = &store->agreed[now];

    keeping_put_states(job, t, message);
    (void)memcpy(agreed->real, message->agreed_real, sizeof(agreed->real));
    (void)memcpy(agreed->number, message->agreed_number, sizeof(agreed->number));
    store->agreed_after[now] = job->store->policies;
    (void)memcpy(store->input, message->input, sizeof(store->input));
    (void)memcpy(store->lost, message->lost, sizeof(store->lost));
    (void)memcpy(store->applied[now], message->applied, sizeof(store->applied[now]));
    store->settled = message->turn;
    store_publish64(&store->turn, message->turn);
    job->tensor[t].at_rest = *store;
}

static enum adtopk_status keeping_write_tensor(
    const struct job *job, const struct event_keep *keep, struct error *err)
{
    const struct tensor *tensor = &job->tensor[keep->tensor];
    Adtopk__CheckpointTensor *message = (Adtopk__CheckpointTensor *)codec_unpack(
        &adtopk__checkpoint_tensor__descriptor, keep->bytes, keep->size, CORE_KEEP_SIZE, err);
    enum adtopk_status status = message != NULL ? checkpoint_check_tensor(message, err) : err->code;

    if (status == ADTOPK_OK && !keeping_is_tensor(tensor, message)) {
        status = error_set(err, ADTOPK_ERR_MISMATCH,
            "the checkpoint's tensor '%s' is not the job's tensor '%s', or has another type or "
            "shape",
            message->name, tensor->spec.name);
    }
    if (status == ADTOPK_OK) {
        keeping_put_tensor(job, keep->tensor, message);
    }
    codec_free(message != NULL ? &message->base : NULL);
    return status;
}

/* ------------------------------------------------------------------ the event */

enum adtopk_status keeping_check_push(const struct rank *rank, const char *what, struct error *err)
{
    return rank->job->store->restore == RESTORE_BEGUN
               ? error_set(err, ADTOPK_ERR_STATE,
                     "rank %u may not %s: the loading of a checkpoint on its node has not ended",
                     rank->number, what)
               : ADTOPK_OK;
}

/* The next step declares what a far engine has lost. A checkpoint that is saved before that would
 * have ledgers which know nothing of it. */
static enum adtopk_status keeping_check_losses(const struct job *job, struct error *err)
{
    for (uint32_t t = 0; t < job->tensors; t++) {
        if (store_is_emptied(job->tensor[t].store)) {
            return error_set(err, ADTOPK_ERR_STATE,
                "the engine '%s' of node %u has just lost residuals of job '%s': save the "
                "checkpoint again after a step",
                job->core->config.engine->name, job->core->config.node, job->key.name);
        }
    }
    return ADTOPK_OK;
}

/* The record of the job is read first and last. */
static enum adtopk_status keeping_read(struct job *job, struct event_keep *keep, struct error *err)
{
    switch (keep->section) {
    case KEEP_JOB:
        if (keeping_flush(job, err) != ADTOPK_OK || keeping_check_losses(job, err) != ADTOPK_OK) {
            return err->code;
        }
        keeping_free(job);
        return keeping_read_job(job, keep, err);
    case KEEP_POLICY: keeping_read_policy(job, keep); return ADTOPK_OK;
    case KEEP_TENSOR:
        if (job->store->restore != RESTORE_BEGUN) { /* else it is for loading one */
            job->figures.counters.checkpoint.read = job->store->base + step_number(job);
        }
        return keeping_read_tensor(job, keep, err);
    default: return keeping_read_array(job, keep, err);
    }
}

static enum adtopk_status keeping_end(struct job *job, struct error *err)
{
    const enum adtopk_status status = keeping_flush(job, err);

    if (status == ADTOPK_OK) {
        keeping_free(job);
        store_publish(&job->store->restore, RESTORE_DONE);
    }
    return status;
}

static enum adtopk_status keeping_write(
    struct job *job, const struct event_keep *keep, struct error *err)
{
    switch (keep->section) {
    case KEEP_JOB: return keeping_begin_loading(job, keep, err);
    case KEEP_TENSOR:
        return keeping_flush(job, err) == ADTOPK_OK ? keeping_write_tensor(job, keep, err)
                                                    : err->code;
    case KEEP_END: return keeping_end(job, err);
    default: return keeping_write_array(job, keep, err);
    }
}

enum adtopk_status keeping_take(const struct rank *rank, struct event_keep *keep, struct error *err)
{
    struct job *job = rank->job;

    /* All ranks have saved, so others may be in the next step already. */
    if (!keep->writes && keep->section == KEEP_END) {
        job->figures.counters.checkpoint.saved = job->figures.counters.checkpoint.read;
        return ADTOPK_OK;
    }
    if (keeping_check_moment(rank, err) != ADTOPK_OK ||
        (keep->writes && keeping_check_writer(rank, keep, err) != ADTOPK_OK) ||
        keeping_check_piece(job, keep, err) != ADTOPK_OK) {
        return err->code;
    }
    return keep->writes ? keeping_write(job, keep, err) : keeping_read(job, keep, err);
}
