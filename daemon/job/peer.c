/*
 * Control messages to other nodes. core/dispatch.c handles messages from them.
 */
#include "daemon/job/peer.h"

#include "daemon/job/former.h"
#include "daemon/job/job_fail.h"
#include "daemon/job/job_state.h"
#include "daemon/job/members.h"
#include "daemon/job/newcomers.h"
#include "daemon/job/views_peer.h"
#include "proto/codec.h"

/* False without memory, or if *size, the bytes of the message, are too many. True also for a node
 * that was never met: it gets a join when it comes up. */
static bool peer_pack_and_send(
    struct core *core, uint16_t node, const Adtopk__PeerMessage *message, size_t *size)
{
    uint8_t *bytes;
    struct buffer *buffer;
    bool sent;

    *size = 0;
    if (links_incarnation(core->links, node) == 0) {
        return true;
    }
    bytes = codec_pack(&message->base, size);
    buffer = bytes != NULL ? buffer_adopt(bytes, *size) : NULL;
    sent = buffer != NULL && links_send(core->links, node, LINK_CONTROL, NULL, buffer);
    buffer_unref(buffer);
    return sent;
}

/* Fills in the job that the message is about, and sends it; *size: of the whole message. */
static bool peer_send_about(
    struct job *job, uint16_t node, Adtopk__PeerMessage *message, size_t *size)
{
    const struct member *member = members_find(job, node);
    Adtopk__PeerAbout about = ADTOPK__PEER_ABOUT__INIT;
    bool sent;

    about.owner = job->key.owner;
    about.name = job->key.name;
    about.run_id = job->key.run_id;
    about.run = job->run.id;
    about.sender_job = job->number;
    about.receiver_job = member != NULL && member->incarnation != 0 ? member->job : 0;
    message->about = &about;
    sent = peer_pack_and_send(job->core, node, message, size);
    message->about = NULL;
    return sent;
}

/* If a message is too long, or lost for want of memory, a node would wait for it, so the job fails.
 * It does so only when the event is over, because the caller is in the middle of something. */
void peer_send(struct job *job, uint16_t node, Adtopk__PeerMessage *message)
{
    size_t size;

    if (peer_send_about(job, node, message, &size)) {
        return;
    }
    if (size > job->core->config.links.max_control_message) {
        job->ending.control_too_long = size;
    } else {
        job->ending.out_of_memory = true;
    }
    job->core->starved = true;
}

bool peer_send_coordinator(
    struct job *job, const struct membership *members, Adtopk__PeerMessage *message)
{
    if (membership_coordinates(members)) {
        return false;
    }
    peer_send(job, membership_coordinator(members), message);
    return true;
}

void peer_offer(struct job *job, uint16_t node, Adtopk__PeerMessage *message)
{
    size_t size;

    (void)peer_send_about(job, node, message, &size);
}

/* Whether the member concerns what all others hear. Nodes without which the job is to go on, and
 * those that want to join it, only hear that it has ended. */
static bool peer_hears_all(const struct job *job, const struct member *member)
{
    return !member->loss.dropped &&
           (member_is_proposed(job, member) || !newcomers_have(job, member->node));
}

void peer_offer_all(struct job *job, Adtopk__PeerMessage *message)
{
    for (unsigned i = 0; i < job->in_force.nodes; i++) {
        if (i != job->in_force.self) {
            peer_offer(job, job->in_force.node[i], message);
        }
    }
}

/* Sends to every other node of the view. Before there is a view, sends to every known member. */
void peer_send_all(struct job *job, Adtopk__PeerMessage *message)
{
    for (unsigned i = 0; i < job->members; i++) {
        const struct member *member = job->member[i];
        if (member->node != job->core->config.node &&
            (message->kind_case == ADTOPK__PEER_MESSAGE__KIND_FAIL ||
                message->kind_case == ADTOPK__PEER_MESSAGE__KIND_LEAVE ||
                peer_hears_all(job, member))) {
            peer_send(job, member->node, message);
        }
    }
}

/* Whether the ranks can come back to the next daemon of this node. */
static bool peer_keeps(const struct job *job)
{
    bool keeps = job->core->config.memory.has_store != NULL;

    for (unsigned r = 0; r < job->ranks; r++) {
        keeps = keeps && job->rank[r]->client.returns;
    }
    return keeps;
}

/* Fills a join from this node's own member entry; its arrays are borrowed. */
static void peer_fill_join(const struct job *job, bool reply, Adtopk__PeerJoin *join)
{
    const struct member *self = members_self(job);

    adtopk__peer_join__init(join);
    join->world_size = self->world_size;
    join->ranks = self->rank;
    join->n_ranks = self->ranks;
    join->policy = self->policy_hash;
    join->exchanges = self->exchanges;
    join->carrier = self->carrier.version;
    join->devices = self->carrier.devices;
    join->tensors = self->tensor;
    join->n_tensors = self->tensors;
    join->batches = self->batches;
    join->keeps = peer_keeps(job);
    join->view = job->agreement.promised;
    join->reply = reply;
}

/* Where the job goes on without lost nodes, or did, a node that has restarted must know who is in
 * the view. */
static bool peer_tells_view(const struct job *job)
{
    return job->view != 0 && (job->plan->policy.on_peer_loss == PEER_LOSS_SHRINK ||
                                 job->run.ranks < job->run.world_size);
}

void peer_send_join(struct job *job, uint16_t node, bool reply)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerJoin join;
    Adtopk__PeerView known = ADTOPK__PEER_VIEW__INIT;

    peer_fill_join(job, reply, &join);
    join.member = membership_index(&job->in_force, node) >= 0;
    join.grows = newcomers_are_welcome(job);
    if (peer_tells_view(job)) {
        join.known = &known;
        if (!views_fill_known(job->agreement.views, &known)) {
            job_fail_with(
                job, ADTOPK_ERR_MEMORY, "no memory for a join of job '%s'", job->key.name);
            return;
        }
    }
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_JOIN;
    message.join = &join;
    peer_send(job, node, &message);
    views_drop_message(&known);
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

/* Reports the end of a job. While it forms, this node does not know all nodes with ranks of it, so
 * it tells every peer. Afterwards it tells the members only. */
void peer_send_fail(struct job *job, const struct error *error)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerFail fail = ADTOPK__PEER_FAIL__INIT;

    fail.status = (uint32_t)error->code;
    fail.text = (char *)(uintptr_t)error->text;
    fail.steps_done = job->ending.last_steps;
    fail.node = job->core->config.node;
    fail.alone = job->ending.alone;
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_FAIL;
    message.fail = &fail;
    if (job->in_force.nodes > 0) {
        peer_send_all(job, &message);
        return;
    }
    for (unsigned i = 0; i < job->core->peers; i++) {
        peer_send(job, job->core->peer[i].node, &message);
    }
}

void peer_refuse(struct core *core, uint16_t node, const Adtopk__PeerAbout *asked,
    const struct error *error, enum peer_refusal whose)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerAbout about = *asked;
    Adtopk__PeerFail fail = ADTOPK__PEER_FAIL__INIT;
    size_t size;

    about.run = 0;
    about.sender_job = 0;
    about.receiver_job = asked->sender_job;
    fail.status = (uint32_t)error->code;
    fail.text = (char *)(uintptr_t)error->text;
    fail.node = core->config.node;
    fail.alone = whose == REFUSE_SENDER;
    fail.receiver = whose == REFUSE_RECEIVER;
    message.about = &about;
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_FAIL;
    message.fail = &fail;
    (void)peer_pack_and_send(core, node, &message, &size);
}

void peer_tell_left_out(
    struct core *core, const struct job_key *key, uint16_t node, const Adtopk__PeerMessage *message)
{
    struct error error;

    if (message->kind_case == ADTOPK__PEER_MESSAGE__KIND_FAIL ||
        !former_is_left_out(core, key, node, message->about->sender_job)) {
        return;
    }
    (void)error_set(&error, ADTOPK_ERR_PEER,
        "the other nodes of job '%s' lost node %u and went on without it", key->name, node);
    peer_refuse(core, node, message->about, &error, REFUSE_RECEIVER);
}

void peer_send_leave(struct job *job)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerLeave leave = ADTOPK__PEER_LEAVE__INIT;

    leave.steps_done = step_number(job);
    leave.ops_done = job->store->ops_done + 1;
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
