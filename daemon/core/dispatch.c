/*
 * Control messages from other nodes: finds the job of each, and checks that its sender may send it.
 *
 * The happy path: there is a job with the message's key. The message is of the sender's present
 * job, and for this node's present one. The sender is a member, and the message goes to the file
 * that handles it.
 *
 * What can go wrong:
 * - The message is of, or for, an earlier job with the same key, or of another run. It is late: it
 *   is dropped and counted.
 * - The sender has no part in the job: the message is dropped and counted as bad.
 * - The message cannot be read. It may have been a commit, so the job that it names fails instead
 *   of waiting. If it names no job it is counted, and time limits end the wait for it. If only
 *   memory was missing, the sender did nothing wrong, and the message may have been a join. Then
 *   the job that it names fails even if it still forms. If there is no memory to read the name,
 *   this happens to every job that the message may have been about.
 */
#include "daemon/core/dispatch.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/compute/recall.h"
#include "daemon/core/agree/coordinate.h"
#include "daemon/core/agree/fetch.h"
#include "daemon/core/agree/join.h"
#include "daemon/core/agree/switch.h"
#include "daemon/core/agree/switch_ask.h"
#include "daemon/core/agree/view.h"
#include "daemon/core/job.h"
#include "daemon/core/replan.h"
#include "daemon/core/split.h"
#include "daemon/core/waiting.h"
#include "daemon/job/declare.h"
#include "daemon/job/former.h"
#include "daemon/job/hash.h"
#include "daemon/job/job_fail.h"
#include "daemon/job/job_index.h"
#include "daemon/job/job_state.h"
#include "daemon/job/loss.h"
#include "daemon/job/machine.h"
#include "daemon/job/members.h"
#include "daemon/job/newcomers.h"
#include "daemon/job/peer.h"
#include "daemon/job/recording.h"
#include "daemon/job/roster.h"
#include "proto/codec.h"
#include "proto/utf8.h"

/* Bytes of another node's sentence. An error for a rank has room for these and a prefix. */
#define FAIL_TEXT_MAX 280
#define SWITCH_TEXT_MAX 230

/* The node on which the job ended first. Only members pass on other nodes' messages. */
static uint16_t dispatch_speaker(
    const struct job *job, uint16_t from, const Adtopk__PeerFail *failed)
{
    return members_include(job, from) && failed->node < UINT16_MAX ? (uint16_t)failed->node : from;
}

/* Passes a message on to other members, because they may not hear from its sender. */
static void dispatch_pass_on(
    struct job *job, uint16_t from, uint16_t speaker, const Adtopk__PeerFail *failed)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerFail fail = *failed;

    fail.node = speaker;
    fail.alone = false;
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_FAIL;
    message.fail = &fail;
    for (unsigned i = 0; i < job->members; i++) {
        const struct member *member = job->member[i];
        if (member->incarnation != 0 && member->node != job->core->config.node &&
            member->node != from && member->node != speaker) {
            peer_send(job, member->node, &message);
        }
    }
}

static void dispatch_fail(struct job *job, uint16_t from, const Adtopk__PeerFail *failed)
{
    uint16_t speaker = dispatch_speaker(job, from, failed);
    struct error error;

    if (newcomers_forget(job, from)) {
        return;
    }
    if (speaker == from &&
        (job_is_done_with(job, from) || (failed->alone && loss_for_ever(job, from)))) {
        return; /* its daemon stops, after its ranks left in order, or the job goes on without it */
    }
    (void)error_set(&error,
        error_is_failure(failed->status) ? (enum adtopk_status)failed->status : ADTOPK_ERR_PROTOCOL,
        "%s (said node %u)", failed->text[0] != '\0' ? failed->text : "it failed the job", speaker);
    if (speaker == from && failed->alone) {
        declare_add_to(&error, job, from);
    }
    if (job->ending.last_steps == 0 && members_self(job) != NULL && !failed->receiver &&
        !newcomers_doubt(job)) { /* otherwise all would send to all whatever each of them hears */
        dispatch_pass_on(job, from, speaker, failed);
    }
    if (failed->receiver) {
        job->ending.alone = job->ending.over = true;
        job_fail(job, &error, true);
    } else if (failed->steps_done > step_number(job) && job->machine.state == JOB_ACTIVE) {
        job_fail_later(job, &error, failed->steps_done);
    } else {
        newcomers_blame(job, from, &error, false);
    }
}

static void dispatch_message(struct job *job, uint16_t from, const Adtopk__PeerMessage *message)
{
    switch (message->kind_case) {
    case ADTOPK__PEER_MESSAGE__KIND_JOIN:
        join_message(job, from, message->about, message->join);
        break;
    case ADTOPK__PEER_MESSAGE__KIND_PREPARE: view_prepare(job, from, message->prepare); break;
    case ADTOPK__PEER_MESSAGE__KIND_STATE: coordinate_state(job, from, message->state); break;
    case ADTOPK__PEER_MESSAGE__KIND_COMMIT: view_commit(job, from, message->commit); break;
    case ADTOPK__PEER_MESSAGE__KIND_FETCH: fetch_message(job, from, message->fetch); break;
    case ADTOPK__PEER_MESSAGE__KIND_SPLIT: split_message(job, message->split); break;
    case ADTOPK__PEER_MESSAGE__KIND_FAIL: dispatch_fail(job, from, message->fail); break;
    case ADTOPK__PEER_MESSAGE__KIND_LEAVE:
        job_peer_left(job, from, message->leave->steps_done, message->leave->ops_done);
        break;
    case ADTOPK__PEER_MESSAGE__KIND_POLICY_ASK: switch_asked(job, from, message->policy_ask); break;
    case ADTOPK__PEER_MESSAGE__KIND_POLICY_PROPOSE:
        switch_propose(job, from, message->policy_propose);
        break;
    case ADTOPK__PEER_MESSAGE__KIND_POLICY_ANSWER:
        switch_answer(job, from, message->policy_answer);
        break;
    case ADTOPK__PEER_MESSAGE__KIND_POLICY_END: switch_end(job, from, message->policy_end); break;
    case ADTOPK__PEER_MESSAGE__KIND_ESTIMATES:
        replan_estimates(job, from, message->estimates);
        break;
    case ADTOPK__PEER_MESSAGE__KIND_WAITING: waiting_message(job, from, message->waiting); break;
    case ADTOPK__PEER_MESSAGE__KIND_RESIDUAL: declare_hear(job, from, message->residual); break;
    case ADTOPK__PEER_MESSAGE__KIND_RECORDS_ASK:
        recording_asked(job, from, message->records_ask);
        break;
    case ADTOPK__PEER_MESSAGE__KIND_RECORDS: recording_answered(job, from, message->records); break;
    case ADTOPK__PEER_MESSAGE__KIND_RANKS_ASK: roster_asked(job, from, message->ranks_ask); break;
    case ADTOPK__PEER_MESSAGE__KIND_CHECKPOINT_ASK: job->agreement.due.asked = true; break;
    case ADTOPK__PEER_MESSAGE__KIND_RANKS: roster_answered(job, from, message->ranks); break;
    default: job->core->bad_messages++; break;
    }
}

/* Whether the sender, which has not joined, speaks of an earlier job with this key, or says that it
 * lacks a run to which this node returns, and it had no part there. A join is accepted if the
 * sender's job may still be there: this node's ranks may have left while it formed and be back. */
static bool dispatch_is_of_former(
    const struct job *job, uint16_t from, const Adtopk__PeerMessage *message)
{
    const Adtopk__PeerAbout *about = message->about;

    if (message->kind_case == ADTOPK__PEER_MESSAGE__KIND_JOIN) {
        return former_ended(job, from, about->sender_job);
    }
    return message->kind_case == ADTOPK__PEER_MESSAGE__KIND_FAIL &&
           ((message->fail->alone && recall_has_no_part(job, from)) ||
               (about->receiver_job == 0 && former_had(job, from, about->sender_job)));
}

/* Whether the message is of an earlier job of the sender, for an earlier one of this node, or of
 * another run. Before the first commit a member can know no other run than the proposed one, or the
 * one to which it returns or in which it trains. Joins and proposals bring new runs. Only a join
 * may speak of a job that the sender did not announce before. */
static bool dispatch_is_late(
    const struct job *job, uint16_t from, const Adtopk__PeerMessage *message)
{
    const Adtopk__PeerAbout *about = message->about;
    const struct member *member = members_find(job, from);
    bool known = member != NULL && member->incarnation != 0;
    bool join = message->kind_case == ADTOPK__PEER_MESSAGE__KIND_JOIN;
    bool news = join || message->kind_case == ADTOPK__PEER_MESSAGE__KIND_PREPARE;
    uint64_t run = job->run.id != 0 ? job->run.id : job->agreement.run;

    run = run == 0 && known ? member->run : run;
    return (about->receiver_job != 0 && about->receiver_job != job->number) ||
           (known && about->sender_job != 0 && about->sender_job < member->job) ||
           (known && !join && about->sender_job > member->job) ||
           (!news && about->run != 0 && about->run != run) ||
           (!known && dispatch_is_of_former(job, from, message));
}

/* Whether the node has a part in the job. A node whose ranks have not committed is not known yet.
 * But it may report a failure as long as ranks are missing, and so may a newcomer. */
static bool dispatch_may_say(struct job *job, uint16_t from, const Adtopk__PeerMessage *message)
{
    if (message->kind_case == ADTOPK__PEER_MESSAGE__KIND_JOIN) {
        return true; /* join.c compares it */
    }
    if (members_include(job, from)) {
        return true;
    }
    if (message->kind_case != ADTOPK__PEER_MESSAGE__KIND_FAIL || newcomers_wait_with(job, from)) {
        return false;
    }
    return job->in_force.nodes > 0 ? newcomers_are_known(job, from)
                                   : job->agreement.members.nodes == 0 && !members_complete(job);
}

static bool dispatch_key(const Adtopk__PeerAbout *about, struct job_key *key)
{
    size_t name = about != NULL ? strlen(about->name) : CORE_KEY_SIZE;
    size_t run_id = about != NULL ? strlen(about->run_id) : CORE_KEY_SIZE;

    if (name >= CORE_KEY_SIZE || run_id >= CORE_KEY_SIZE) {
        return false;
    }
    *key = (struct job_key){.owner = about->owner};
    (void)memcpy(key->name, about->name, name);
    (void)memcpy(key->run_id, about->run_id, run_id);
    return true;
}

/* The sender relies on this node, or returns to a run, and this node does not know the job. Its
 * daemon has restarted, and its residuals did not outlive the old one; or the job has ended here.
 */
static bool dispatch_is_lost(
    const struct core *core, const struct job_key *key, const Adtopk__PeerMessage *message)
{
    const struct core_memory *memory = &core->config.memory;

    return message->kind_case == ADTOPK__PEER_MESSAGE__KIND_JOIN &&
           (message->join->member || message->about->run != 0) && !job_is_ending(core, key) &&
           (memory->has_store == NULL || !memory->has_store(memory->context, key));
}

/* The job of a message: the one whose number it has, or the last one with its key. */
static struct job *dispatch_job(
    struct core *core, const struct job_key *key, const Adtopk__PeerAbout *about)
{
    struct job *named = job_by_number(core, about->receiver_job);

    return named != NULL && core_same_job(&named->key, key) ? named : job_find(core, key);
}

static void dispatch_deny(struct core *core, uint16_t node, const Adtopk__PeerMessage *message)
{
    const char *why = former_why(core, message->about->run);
    struct error error;

    (void)error_set(&error, ADTOPK_ERR_LOST,
        message->join->member && why[0] == '\0'
            ? "node %u restarted and has lost the residuals of this job%s"
            : "node %u has no part in this run of the job any more%s",
        core->config.node, why);
    peer_refuse(core, node, message->about, &error, REFUSE_SENDER);
}

static void dispatch_read(struct core *core, uint16_t node, const Adtopk__PeerMessage *message)
{
    struct job_key key;
    struct job *job;

    if (!dispatch_key(message->about, &key)) {
        core->bad_messages++;
        return;
    }
    job = dispatch_job(core, &key, message->about);
    if (job == NULL) {
        if (dispatch_is_lost(core, &key, message)) {
            dispatch_deny(core, node, message);
        } else {
            peer_tell_left_out(core, &key, node, message);
        }
    } else if (job->advance.frozen || dispatch_is_late(job, node, message)) {
        core->late_messages++;
    } else if (dispatch_may_say(job, node, message)) {
        dispatch_message(job, node, message);
        job_touch(job);
    } else if (!job_ended(job)) {
        core->bad_messages++;
        peer_tell_left_out(core, &key, node, message);
    }
}

/* The job that an unreadable message names; NULL: none. False without memory to read the name. */
static bool dispatch_named(struct core *core, const struct buffer *buffer, struct job **job)
{
    struct error err = {.code = ADTOPK_OK};
    Adtopk__PeerHead *head = (Adtopk__PeerHead *)codec_unpack(
        &adtopk__peer_head__descriptor, buffer->bytes, buffer->size, CODEC_PEER_MAX, &err);
    struct job_key key;

    *job = head != NULL && dispatch_key(head->about, &key) ? dispatch_job(core, &key, head->about)
                                                           : NULL;
    codec_free((ProtobufCMessage *)head);
    return err.code != ADTOPK_ERR_MEMORY;
}

/* Fails the job if the message that could not be read may have mattered to it. */
static void dispatch_starve(struct job *job, uint16_t node, const struct error *err)
{
    if (!job_ended(job) && (job->in_force.nodes == 0 || members_include(job, node))) {
        job_fail_with(job, err->code, "node %u: %s", job->core->config.node, err->text);
    }
}

static void dispatch_starved(
    struct core *core, uint16_t node, const struct buffer *buffer, const struct error *err)
{
    struct job *named;

    if (dispatch_named(core, buffer, &named)) {
        if (named != NULL) {
            dispatch_starve(named, node, err);
        }
        return;
    }
    for (struct job *job = core->jobs; job != NULL; job = job->places.next) {
        dispatch_starve(job, node, err);
    }
}

/* Fails the job that an unreadable message names, if its sender is a member. */
static void dispatch_unreadable(
    struct core *core, uint16_t node, const struct buffer *buffer, const struct error *err)
{
    struct job *job;

    core->bad_messages++;
    if (dispatch_named(core, buffer, &job) && job != NULL && members_include(job, node)) {
        job_fail_with(job, err->code, "node %u: %s", node, err->text);
    }
}

/* Cleans a sentence of another node, which may go to errors, logs and terminals. */
static void dispatch_clean_text(char *text, size_t size)
{
    utf8_clean(text);
    utf8_cut(text, size);
}

static void dispatch_clean(Adtopk__PeerMessage *message)
{
    switch (message->kind_case) {
    case ADTOPK__PEER_MESSAGE__KIND_FAIL:
        dispatch_clean_text(message->fail->text, FAIL_TEXT_MAX);
        break;
    case ADTOPK__PEER_MESSAGE__KIND_POLICY_ANSWER:
        dispatch_clean_text(message->policy_answer->text, SWITCH_TEXT_MAX);
        break;
    case ADTOPK__PEER_MESSAGE__KIND_POLICY_END:
        dispatch_clean_text(message->policy_end->text, SWITCH_TEXT_MAX);
        break;
    default: break;
    }
}

void dispatch_control(struct core *core, uint16_t node, const struct buffer *buffer)
{
    struct error err;
    Adtopk__PeerMessage *message = (Adtopk__PeerMessage *)codec_unpack(
        &adtopk__peer_message__descriptor, buffer->bytes, buffer->size, CODEC_PEER_MAX, &err);

    if (message == NULL && err.code == ADTOPK_ERR_MEMORY) {
        dispatch_starved(core, node, buffer, &err);
    } else if (message == NULL) {
        dispatch_unreadable(core, node, buffer, &err);
    } else {
        dispatch_clean(message);
        dispatch_read(core, node, message);
    }
    codec_free((ProtobufCMessage *)message);
}
