#include "client/src/comeback.h"

#include "client/src/clock.h"

/* ---- the connection ---- */

/* Waits until then, as far as `patience` allows. */
static enum adtopk_status comeback_sleep(
    adtopk_context *context, const struct client_patience *patience, uint64_t until_ns)
{
    struct client_patience sooner = *patience;
    struct pollfd wake[1];
    enum adtopk_status status;

    sooner.deadline_ns = until_ns < patience->deadline_ns ? until_ns : patience->deadline_ns;
    status = client_sleep(context, wake, 1, &sooner);
    if (status == ADTOPK_OK) {
        status = client_wait_may_go_on(context);
    }
    return status == ADTOPK_PENDING && patience->deadline_ns > client_now_ns() ? ADTOPK_OK : status;
}

static enum adtopk_status comeback_connect(
    adtopk_context *context, const struct client_patience *patience)
{
    enum adtopk_status status;

    if (client_now_ns() < context->comeback.again_ns) {
        return comeback_sleep(context, patience, context->comeback.again_ns);
    }
    status = context->transport->reconnect(context);
    if (context->comeback.stage != CLIENT_AWAY) {
        context->comeback.connected_ns = client_now_ns();
    }
    return status;
}

/* ---- answers ---- */

/* Takes the next reply, which must be of this kind. */
static enum adtopk_status comeback_take(adtopk_context *context,
    const struct client_patience *patience, Adtopk__LocalReply__KindCase kind,
    struct client_reply *reply)
{
    enum adtopk_status status = client_receive(context, patience, reply);

    if (status != ADTOPK_OK || reply->message->kind_case == kind) {
        return status;
    }
    if (reply->message->kind_case == ADTOPK__LOCAL_REPLY__KIND_ERROR) {
        status =
            client_told(context, reply->message->error->status, reply->message->error->text, true);
    } else {
        status = client_fail(context, ADTOPK_ERR_PROTOCOL,
            "the daemon at %s sent reply %d to a rank that returns", context->place.address,
            (int)reply->message->kind_case);
    }
    client_reply_drop(reply);
    return status;
}

/* ---- joining ---- */

static enum adtopk_status comeback_open(
    adtopk_context *context, const struct client_patience *patience)
{
    const bool commits = context->commit != CLIENT_COMMIT_DONE;
    enum adtopk_status status;

    context->comeback.brings = context->batch.count + (commits ? 1 : 0);
    context->comeback.at = 0;
    status = client_say_hello(context, patience);
    if (status == ADTOPK_OK) {
        context->comeback.stage = CLIENT_OPENED;
    }
    return status;
}

static enum adtopk_status comeback_opened(
    adtopk_context *context, const struct client_patience *patience)
{
    struct client_reply reply;
    enum adtopk_status status =
        comeback_take(context, patience, ADTOPK__LOCAL_REPLY__KIND_OPENED, &reply);

    if (status != ADTOPK_OK) {
        return status;
    }
    status = context->transport->reopened(context, &reply);
    client_reply_drop(&reply);
    context->sent = 0;
    context->comeback.stage = CLIENT_COMMITS;
    return status;
}

static enum adtopk_status comeback_commit(
    adtopk_context *context, const struct client_patience *patience)
{
    enum adtopk_status status =
        client_send_tensors(context, context->batch.end[context->comeback.at], patience);

    if (status == ADTOPK_OK) {
        status = client_send_plain(context, ADTOPK__LOCAL_REQUEST__KIND_COMMIT, patience);
    }
    if (status == ADTOPK_OK) {
        context->comeback.stage = CLIENT_COMMITTED;
    }
    return status;
}

static enum adtopk_status comeback_committed(
    adtopk_context *context, const struct client_patience *patience)
{
    struct client_reply reply;
    enum adtopk_status status =
        comeback_take(context, patience, ADTOPK__LOCAL_REPLY__KIND_ARENA, &reply);

    if (status != ADTOPK_OK) {
        return status;
    }
    status = context->transport->rearena(context, &reply, context->comeback.at);
    client_reply_drop(&reply);
    context->comeback.stage = CLIENT_MAPS;
    return status;
}

static enum adtopk_status comeback_mapped(
    adtopk_context *context, const struct client_patience *patience)
{
    const enum adtopk_status status =
        client_send_plain(context, ADTOPK__LOCAL_REQUEST__KIND_MAPPED, patience);

    if (status == ADTOPK_OK && ++context->comeback.at < context->comeback.brings) {
        context->comeback.stage = CLIENT_COMMITS;
    } else if (status == ADTOPK_OK) {
        context->commit = context->comeback.brings > context->batch.count ? CLIENT_COMMIT_MAPPED
                                                                          : CLIENT_COMMIT_DONE;
        context->comeback.at = context->comeback.touches = 0;
        context->comeback.touched = 0;
        context->comeback.stage = CLIENT_MAPPED;
    }
    return status;
}

/* ---- the open step ---- */

/* Whether the new daemon's run goes on where this rank is: in its step, or behind it, if the step
 * was accepted before the old daemon was killed. */
static enum adtopk_status comeback_compare(adtopk_context *context, const Adtopk__LocalReady *ready)
{
    const struct client_unfinished *state = &context->unfinished;
    const bool ended = context->step_state == CLIENT_STEP_ENDED;
    const bool posted = state->operates && state->posted;

    if (ready->step == context->step + (ended && ready->step > context->step ? 1 : 0) &&
        ready->operation == state->number + (posted && ready->operation > state->number ? 1 : 0)) {
        return ADTOPK_OK;
    }
    if (ready->step == 0 && ready->operation == 0) {
        return client_fail(context, ADTOPK_ERR_LOST,
            "the daemon at %s has lost what it had of this job (its log says why): start anew, "
            "from a checkpoint",
            context->place.address);
    }
    return client_fail(context, ADTOPK_ERR_LOST,
        "the daemon at %s returned to step %llu and operation %llu, and this rank is in step %llu "
        "and operation %llu",
        context->place.address, (unsigned long long)ready->step,
        (unsigned long long)ready->operation, (unsigned long long)context->step,
        (unsigned long long)state->number);
}

/* All batches are ready: finds what has to be submitted again. */
static void comeback_begin(adtopk_context *context, const Adtopk__LocalReady *ready)
{
    struct client_comeback *comeback = &context->comeback;

    context->pending.index = ready->index;
    comeback->submitted = comeback->step == ready->step ? 0 : comeback->entries;
    /* The result of one that is done lies in shared memory. Another machine has to ask for it, but
     * not for one that this rank has already. */
    comeback->operates =
        comeback->operates && context->unfinished.posted &&
        comeback->operation.number + (context->remote != NULL ? 1 : 0) >= ready->operation;
    comeback->stage = CLIENT_SUBMITS;
}

/* The next batch is ready. */
static enum adtopk_status comeback_take_ready(
    adtopk_context *context, const struct client_reply *reply)
{
    struct client_comeback *comeback = &context->comeback;
    enum adtopk_status status = comeback_compare(context, reply->message->ready);

    if (status == ADTOPK_OK) {
        status = context->transport->reready(context, reply, comeback->at);
    }
    if (status == ADTOPK_OK && ++comeback->at == context->batch.count) {
        comeback_begin(context, reply->message->ready);
    }
    return status;
}

/* Whether the call has done enough, and others may have the context. */
static bool comeback_pauses(const struct client_patience *patience)
{
    return patience->deadline_ns <= client_now_ns();
}

static enum adtopk_status comeback_ready(
    adtopk_context *context, const struct client_patience *patience)
{
    struct client_reply reply;
    enum adtopk_status status;

    while (client_touch_arenas(context)) { /* while the daemons agree on a view */
        if (comeback_pauses(patience)) {
            return ADTOPK_PENDING;
        }
    }
    status = comeback_take(context, patience, ADTOPK__LOCAL_REPLY__KIND_READY, &reply);
    if (status == ADTOPK_OK) {
        status = comeback_take_ready(context, &reply);
        client_reply_drop(&reply);
    }
    return status;
}

/* Submits the step's entries again. Other threads may add some meanwhile. */
static enum adtopk_status comeback_submit(
    adtopk_context *context, const struct client_patience *patience)
{
    struct client_comeback *comeback = &context->comeback;
    enum adtopk_status status = ADTOPK_OK;
    uint64_t copied = 0;

    while (status == ADTOPK_OK && (comeback->operates || comeback->submitted < comeback->entries)) {
        const bool operates = comeback->operates;
        const struct local_entry entry =
            operates ? comeback->operation : comeback->entry[comeback->submitted];

        if (copied >= CLIENT_COMEBACK_PIECE && comeback_pauses(patience)) {
            return ADTOPK_PENDING;
        }
        /* The daemon reads one while the next one is copied. */
        copied += client_copy_entry(context, &entry);
        status = context->transport->resubmit(context, patience, &entry);
        if (status == ADTOPK_OK) {
            comeback->operates = false;
            comeback->submitted += operates ? 0 : 1;
        }
    }
    if (status == ADTOPK_OK) {
        comeback->operates = context->unfinished.posted; /* the daemon may go away again */
        comeback->stage = CLIENT_HERE;
    }
    return status;
}

enum adtopk_status client_come_back(adtopk_context *context, const struct client_patience *patience)
{
    static enum adtopk_status (*const stages[])(
        adtopk_context * context, const struct client_patience *patience) = {
        [CLIENT_AWAY] = comeback_connect,
        [CLIENT_OPENS] = comeback_open,
        [CLIENT_OPENED] = comeback_opened,
        [CLIENT_COMMITS] = comeback_commit,
        [CLIENT_COMMITTED] = comeback_committed,
        [CLIENT_MAPS] = comeback_mapped,
        [CLIENT_MAPPED] = comeback_ready,
        [CLIENT_SUBMITS] = comeback_submit,
    };
    enum adtopk_status status = ADTOPK_OK;

    while (status == ADTOPK_OK && client_is_away(context)) {
        status = stages[context->comeback.stage](context, patience);
        if (client_went_away(context, status)) {
            status = ADTOPK_OK; /* this daemon, too: the stage is CLIENT_AWAY again */
        }
    }
    return status;
}

enum adtopk_status client_miss(adtopk_context *context, const struct client_patience *patience)
{
    context->comeback.missed = context->comeback.missed || client_is_away(context);
    return client_come_back(context, patience);
}
