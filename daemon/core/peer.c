/*
 * Control messages between nodes: packing and sending, unpacking and handing on.
 */
#include <stdio.h>
#include <stdlib.h>

#include "daemon/core/view.h"
#include "proto/codec.h"

/* False without memory; true also to a node that was never met: it gets a join when it comes up. */
static bool pack_and_send(struct core *core, uint16_t node, const Adtopk__PeerMessage *message)
{
    size_t size = 0;
    uint8_t *bytes;
    struct buffer *buffer;
    bool sent;

    if (links_incarnation(core->links, node) == 0) {
        return true;
    }
    bytes = codec_pack(&message->base, &size);
    buffer = bytes != NULL ? buffer_adopt(bytes, size) : NULL;
    sent = buffer != NULL && links_send(core->links, node, LINK_CONTROL, NULL, buffer);
    buffer_unref(buffer);
    return sent;
}

/* A message that is lost for want of memory would leave somebody waiting: the job fails, but only
 * when the event is over, because the caller is in the middle of something. */
void peer_send(struct job *job, uint16_t node, Adtopk__PeerMessage *message)
{
    message->job = job->id;
    job->out_of_memory |= !pack_and_send(job->core, node, message);
}

/* To every other node of the view, or, before there is one, to every member that is known. */
void peer_send_all(struct job *job, Adtopk__PeerMessage *message)
{
    for (unsigned i = 0; i < job->members; i++) {
        if (job->member[i]->node != job->core->config.node) {
            peer_send(job, job->member[i]->node, message);
        }
    }
}

void peer_send_split(struct job *job, uint64_t step, uint32_t bucket)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerSplit split = ADTOPK__PEER_SPLIT__INIT;

    split.step = step;
    split.bucket = bucket;
    split.policy = job->plan->change.version;
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_SPLIT;
    message.split = &split;
    peer_send_all(job, &message);
}

/* While the job forms, some nodes that have ranks of it are not known yet: so to every peer. */
void peer_send_fail(struct job *job, const struct error *error)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerFail fail = ADTOPK__PEER_FAIL__INIT;

    fail.status = (uint32_t)error->code;
    fail.text = (char *)(uintptr_t)error->text;
    fail.steps_done = job->last_steps;
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_FAIL;
    message.fail = &fail;
    for (unsigned i = 0; i < job->core->peers; i++) {
        peer_send(job, job->core->peer[i].node, &message);
    }
}

void peer_send_leave(struct job *job)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerLeave leave = ADTOPK__PEER_LEAVE__INIT;

    leave.steps_done = step_number(job);
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_LEAVE;
    message.leave = &leave;
    peer_send_all(job, &message);
}

void peer_send_fetch(struct job *job, uint16_t holder, uint64_t number, uint32_t bucket, bool op)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerFetch fetch = ADTOPK__PEER_FETCH__INIT;
    Adtopk__PeerRound round = ADTOPK__PEER_ROUND__INIT;

    round.number = number;
    round.bucket = bucket;
    round.operation = op;
    fetch.round = &round;
    fetch.view = job->view;
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_FETCH;
    message.fetch = &fetch;
    peer_send(job, holder, &message);
}

/* A split of a plan that is not in force here yet. */
static void keep_split(struct job *job, const Adtopk__PeerSplit *message)
{
    struct split *split;
    uint32_t kept = 0;

    for (split = job->early_splits; split != NULL; split = split->next) {
        if (split->bucket == message->bucket && split->policy == message->policy) {
            return;
        }
        kept++;
    }
    split = kept < job->tensors ? malloc(sizeof(*split)) : NULL;
    if (split == NULL) {
        view_fail(
            job, ADTOPK_ERR_MEMORY, "no room for a split of a bucket of job '%s'", job->key.name);
        return;
    }
    *split = (struct split){.next = job->early_splits,
        .policy = message->policy,
        .bucket = message->bucket,
        .step = message->step};
    job->early_splits = split;
}

static void on_split(struct job *job, const Adtopk__PeerSplit *split)
{
    if (job->plan->round != NULL && split->policy == job->plan->change.version + 1) {
        keep_split(job, split);
        return;
    }
    if (job->plan->round == NULL || split->policy != job->plan->change.version ||
        split->bucket >= job->plan->buckets || split->step > job->store->steps_done + 1) {
        return; /* before the plan: the commit repeats it */
    }
    round_split(&job->plan->round[split->bucket], split->step);
}

static void on_fail(struct job *job, uint16_t from, const Adtopk__PeerFail *failed)
{
    struct error error;

    (void)error_set(&error,
        failed->status > ADTOPK_NONFINITE && failed->status < ADTOPK_STATUS_COUNT
            ? (enum adtopk_status)failed->status
            : ADTOPK_ERR_PROTOCOL,
        "%.200s (said node %u)", failed->text[0] != '\0' ? failed->text : "it failed the job",
        from);
    if (failed->steps_done > step_number(job) && job->machine.state == JOB_ACTIVE) {
        job_fail_later(job, &error, failed->steps_done);
    } else {
        job_fail(job, &error, false);
    }
}

static void dispatch(struct job *job, uint16_t from, const Adtopk__PeerMessage *message)
{
    switch (message->kind_case) {
    case ADTOPK__PEER_MESSAGE__KIND_JOIN: join_message(job, from, message->join); break;
    case ADTOPK__PEER_MESSAGE__KIND_PREPARE: view_prepare(job, from, message->prepare); break;
    case ADTOPK__PEER_MESSAGE__KIND_STATE: coordinate_state(job, from, message->state); break;
    case ADTOPK__PEER_MESSAGE__KIND_COMMIT: view_commit(job, from, message->commit); break;
    case ADTOPK__PEER_MESSAGE__KIND_FETCH: fetch_message(job, from, message->fetch); break;
    case ADTOPK__PEER_MESSAGE__KIND_SPLIT: on_split(job, message->split); break;
    case ADTOPK__PEER_MESSAGE__KIND_FAIL: on_fail(job, from, message->fail); break;
    case ADTOPK__PEER_MESSAGE__KIND_LEAVE:
        job_peer_left(job, from, message->leave->steps_done);
        break;
    case ADTOPK__PEER_MESSAGE__KIND_POLICY_ASK: switch_asked(job, from, message->policy_ask); break;
    case ADTOPK__PEER_MESSAGE__KIND_POLICY_PROPOSE:
        switch_propose(job, from, message->policy_propose);
        break;
    case ADTOPK__PEER_MESSAGE__KIND_POLICY_ANSWER:
        switch_answer(job, from, message->policy_answer);
        break;
    case ADTOPK__PEER_MESSAGE__KIND_POLICY_END: switch_end(job, from, message->policy_end); break;
    default: job->core->bad_messages++; break;
    }
}

/* What cannot be read may have been a commit: the jobs that share the node fail rather than wait.
 */
static void unreadable(struct core *core, uint16_t node, const struct error *err)
{
    core->bad_messages++;
    for (struct job *job = core->jobs; job != NULL; job = job->next) {
        if (!job_ended(job) && join_member(job, node) != NULL) {
            view_fail(job, err->code, "node %u: %s", node, err->text);
        }
    }
}

static bool has_store(const struct core *core, uint64_t job)
{
    const struct core_memory *memory = &core->config.memory;

    return memory->has_store != NULL && memory->has_store(memory->context, job);
}

/* The sender counts on this node, which knows nothing of the job: its daemon has restarted, and its
 * residuals did not outlive it. */
static void deny(struct core *core, uint16_t node, uint64_t job)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerFail fail = ADTOPK__PEER_FAIL__INIT;
    struct error err;

    (void)error_set(&err, ADTOPK_ERR_LOST,
        "node %u restarted and has lost the residuals of this job", core->config.node);
    fail.status = (uint32_t)err.code;
    fail.text = err.text;
    message.job = job;
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_FAIL;
    message.fail = &fail;
    (void)pack_and_send(core, node, &message);
}

void peer_message(struct core *core, uint16_t node, struct buffer *buffer)
{
    struct error err;
    Adtopk__PeerMessage *message = (Adtopk__PeerMessage *)codec_unpack(
        &adtopk__peer_message__descriptor, buffer->bytes, buffer->size, CODEC_PEER_MAX, &err);
    struct job *job = message != NULL ? job_find(core, message->job) : NULL;

    if (message == NULL) {
        unreadable(core, node, &err);
    } else if (job != NULL) {
        dispatch(job, node, message);
    } else if (message->kind_case == ADTOPK__PEER_MESSAGE__KIND_JOIN && message->join->member &&
               !job_is_ending(core, message->job) && !has_store(core, message->job)) {
        deny(core, node, message->job);
    }
    codec_free((ProtobufCMessage *)message);
}
