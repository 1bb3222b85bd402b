/*
 * Sets up a round's collective, and sends the frames that it makes. An exchange is set up when the
 * round begins, for the view in force. It is dropped when the round is delivered or starts again.
 */
#include "daemon/compute/round_exchange.h"

#include <stdlib.h>

#include "daemon/compute/launch.h"
#include "daemon/compute/layout.h"
#include "daemon/job/actions.h"
#include "daemon/job/flight.h"
#include "daemon/job/job_state.h"
#include "daemon/job/measure.h"
#include "daemon/job/plan_query.h"

static enum adtopk_status begin_op(struct round *round)
{
    struct job *job = round->job;
    const struct rank *first = job->rank[0];
    const struct rank *root = job_rank(job, first->op_root);
    const bool watches = first->machine.state != RANK_READY;
    const void **input = calloc(job->ranks, sizeof(*input));

    if (input == NULL) {
        return ADTOPK_ERR_MEMORY;
    }
    for (unsigned r = 0; r < job->ranks; r++) {
        input[r] = job->rank[r]->gradients[0] + CORE_OP_GRADIENTS;
    }
    if (first->op_kind == OP_BROADCAST && root != NULL) {
        input[0] = root->gradients[0] + CORE_OP_GRADIENTS;
    }
    round->exchange_op = (struct exchange_op){
        .kind = first->op_kind,
        .root = first->op_root,
        .size = first->op_size,
        .step = step_number(job),
        .has_root = root != NULL && !watches,
        .inputs = watches ? 0 : job->ranks,
        .input = input,
        .result = job->layout.batch[0].results + job->layout.op_result_offset,
    };
    round->exchange.op = &round->exchange_op;
    round->exchange.ops = &collective_plain;
    return ADTOPK_OK;
}

/* Sets up a tensor whose values are sent as a dense vector: the whole tensor, or the values at
 * known positions. */
static void begin_dense(const struct job *job, uint32_t t, struct exchange_tensor *entry)
{
    const struct plan_tensor *planned = &job->plan->tensor[t];

    if (planned->known) {
        const struct sparsifier_choice choice = plan_choice(job, t);
        entry->numel = choice.count;
        entry->shape = plan_shape(job, t, &choice);
        entry->dense = planned->known_sum;
    } else {
        entry->dense = results_dense(job, t);
    }
}

/* The room for the rests of the round's sums: its tensors' room is one piece. */
static struct exchange_rest begin_rest(const struct round *round)
{
    const struct plan *plan = round->job->plan;
    struct exchange_rest rest = {.room = 0};

    for (unsigned i = 0; plan->rest != NULL && i < round->tensors; i++) {
        rest.room += plan->tensor[round->tensor[i]].rest_room;
    }
    if (rest.room > 0) {
        rest.low = plan->rest + plan->tensor[round->tensor[0]].rest_place;
    }
    return rest;
}

static void begin_tensors(struct round *round)
{
    const struct job *job = round->job;
    const struct plan_tensor *first = &job->plan->tensor[round->tensor[0]];
    struct exchange *exchange = &round->exchange;
    bool dense = first->dense || first->known;

    exchange->ops = dense ? first->policy.dense_collective : first->policy.sparse_collective;
    if (exchange->ops->traits.framed != NULL && !launch_carries(job)) {
        exchange->ops = exchange->ops->traits.framed;
    }
    exchange->value = first->dense ? first->policy.dense_values : first->policy.values;
    exchange->index = first->policy.indices;
    exchange->segment = job->core->config.segment > 0 ? job->core->config.segment : CORE_SEGMENT;
    if (exchange->ops->traits.framed != NULL) {
        exchange->segment = 0; /* a carrier moves whole lists */
    }
    exchange->scale = job->plan->policy.reduce == REDUCE_MEAN ? 1.0f / (float)job->run.ranks : 1.0f;
    exchange->tensors = round->tensors;
    exchange->rest = begin_rest(round);
    for (unsigned i = 0; i < round->tensors; i++) {
        uint32_t t = round->tensor[i];
        exchange->tensor[i] = (struct exchange_tensor){.numel = job->tensor[t].numel};
        if (dense) {
            begin_dense(job, t, &exchange->tensor[i]);
        } else {
            const struct sparsifier_choice choice = plan_choice(job, t);
            exchange->tensor[i].shape = plan_shape(job, t, &choice);
            exchange->tensor[i].select = choice.count;
            exchange->tensor[i].memory = &job->plan->tensor[t].memory;
        }
    }
}

enum adtopk_status round_begin_exchange(struct round *round)
{
    struct job *job = round->job;
    struct exchange *exchange = &round->exchange;
    size_t inputs;

    exchange->members = job->in_force.nodes;
    exchange->self = job->in_force.self;
    exchange->node = job->in_force.node;
    exchange->header = (struct payload_header){
        .run = job->run.id,
        .number = round_number(round),
        .view = job->view,
        .bucket = round->bucket,
        .source = job->core->config.node,
        .kind = round->op ? FRAME_OP : FRAME_STEP,
        .loss_scale = round->op ? 0 : job->step.loss_scale,
        .loss_rank = round->op ? 0 : job->step.loss_rank,
    };
    exchange->other = (struct exchange_loss){.scale = 0};
    if (round->op) {
        if (begin_op(round) != ADTOPK_OK) {
            return ADTOPK_ERR_MEMORY;
        }
    } else {
        begin_tensors(round);
    }
    measure_round_begins(round);
    launch_begin(round);
    round->phase = 0;
    round->view = job->view;
    round->phases = exchange->ops->phases(exchange);
    inputs = (size_t)round->phases * exchange->members;
    round->received = calloc(inputs, sizeof(struct buffer *));
    exchange->input = calloc(inputs, sizeof(*exchange->input));
    return round->received != NULL && exchange->input != NULL ? ADTOPK_OK : ADTOPK_ERR_MEMORY;
}

void round_drop_inputs(struct round *round, unsigned phase)
{
    for (unsigned m = 0; m < round->exchange.members; m++) {
        unsigned at = phase * round->exchange.members + m;
        buffer_unref(round->received[at]);
        round->received[at] = NULL;
        if (round->exchange.input != NULL) { /* memory may have been too short for it */
            round->exchange.input[at] = (struct exchange_input){0};
        }
    }
}

void round_drop_exchange(struct round *round)
{
    launch_drop(round);
    for (unsigned phase = 0; round->received != NULL && phase < round->phases; phase++) {
        round_drop_inputs(round, phase);
    }
    free(round->received);
    round->received = NULL;
    exchange_drop(&round->exchange);
    free(round->exchange.input);
    round->exchange.input = NULL;
    if (round->exchange.op != NULL) {
        free((void *)round->exchange_op.input);
        round->exchange_op.input = NULL;
        round->exchange.op = NULL;
    }
}

/* Takes over a frame that the collective made. NULL without memory. */
static struct buffer *round_adopt(struct exchange_frame *out)
{
    struct buffer *frame = buffer_adopt(out->frame.bytes, out->frame.size);

    out->frame = (struct payload_writer){0};
    if (frame != NULL && frame->size >= BUFFER_KNOWN_MIN) {
        frame->known = true;
        frame->crc = payload_crc(frame->bytes, frame->size);
    }
    return frame;
}

/* Counts a frame once, however many nodes get it. */
static void round_count(const struct round *round, size_t size, uint64_t values)
{
    struct job_info *counters = &round->job->figures.counters;

    if (round->op) {
        return;
    }
    counters->payload_bytes += size;
    if (!round->job->plan->tensor[round->tensor[0]].dense) {
        counters->sparse.bytes += size;
        counters->sparse.nonzeros += values;
    }
}

/* Not all nodes send to the same one first. */
static void round_send(struct round *round, uint32_t to, struct buffer *frame)
{
    const struct exchange *exchange = &round->exchange;

    for (unsigned r = 1; r < exchange->members; r++) {
        const unsigned m = (exchange->self + r) % exchange->members;
        if (to == EXCHANGE_ALL || to == m) {
            core_send_frame(round, exchange->node[m], frame);
            measure_sent(round, frame->size);
        }
    }
}

enum adtopk_status round_send_frames(struct round *round)
{
    struct exchange *exchange = &round->exchange;

    for (unsigned i = 0; i < exchange->outgoing_count; i++) {
        struct exchange_frame *out = &exchange->outgoing[i];
        const uint64_t values = out->frame.values;
        struct buffer *frame = round_adopt(out);
        if (frame == NULL) {
            return ADTOPK_ERR_MEMORY;
        }
        round_count(round, frame->size, values);
        round_send(round, out->to, frame);
        buffer_unref(frame);
    }
    exchange_drop_frames(exchange);
    return ADTOPK_OK;
}

void core_send_frame(const struct round *round, uint16_t node, struct buffer *frame)
{
    struct job_info *counters = &round->job->figures.counters;
    struct links *links = round->job->core->links;
    const struct share_class class = core_class_of(round->job, round);
    struct payload_header header;

    if (payload_peek(&header, frame->bytes, frame->size, NULL) == ADTOPK_OK) {
        flight_frame(round->job, RECORD_SENT, node, &header, frame->size);
    }
    if (round->op) {
        counters->op_bytes_sent += frame->size;
    } else {
        counters->bytes_sent += frame->size;
    }
    if (frame->size > round->job->core->config.links.max_bulk_message) {
        round->job->ending.too_long = frame->size;
        round->job->core->starved = true;
    } else if (links_incarnation(links, node) != 0 &&
               !links_send(links, node, LINK_BULK, &class, frame)) {
        round->job->ending.out_of_memory = true;
        round->job->core->starved = true;
    }
}
