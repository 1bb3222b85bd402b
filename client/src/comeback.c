#include "client/src/comeback.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "client/src/clock.h"

#define COMEBACK_PAUSE_MS 20    /* between two attempts to connect */
#define COMEBACK_ROOM_NS 100000 /* between two looks for room in the ring */
#define COMEBACK_MS_NS UINT64_C(1000000)

/* ---- the connection ---- */

/* Waits a moment before the next attempt. */
static enum adtopk_status comeback_pause(
    adtopk_context *context, const struct client_patience *patience)
{
    const uint64_t soon = client_now_ns() + COMEBACK_PAUSE_MS * COMEBACK_MS_NS;
    struct client_patience sooner = *patience;
    struct pollfd wake[1];
    enum adtopk_status status;

    sooner.deadline_ns = soon < patience->deadline_ns ? soon : patience->deadline_ns;
    status = client_sleep(context, wake, 1, &sooner);
    if (status == ADTOPK_OK) {
        status = client_wait_may_go_on(context);
    }
    return status == ADTOPK_PENDING && patience->deadline_ns > client_now_ns() ? ADTOPK_OK : status;
}

static enum adtopk_status comeback_connect(
    adtopk_context *context, const struct client_patience *patience)
{
    struct client_comeback *comeback = &context->comeback;
    struct error err;
    const int fd = client_connect(context->place.address + strlen("unix:"), 0, false, &err);

    if (fd >= 0) {
        const bool moved = dup3(fd, context->socket, O_CLOEXEC) >= 0; /* programs may poll it */
        const int reason = errno;

        (void)close(fd);
        comeback->stage = CLIENT_OPENS;
        return moved ? ADTOPK_OK
                     : client_fail(context, ADTOPK_ERR_SYSTEM, "dup3 failed: %s", strerror(reason));
    }
    if (err.code != ADTOPK_ERR_UNREACHABLE) {
        return client_fail(
            context, err.code, "the daemon at %s went away; %s", context->place.address, err.text);
    }
    if (client_now_ns() >= comeback->deadline_ns) {
        return client_fail(context, ADTOPK_ERR_UNREACHABLE,
            "the daemon at %s went away, and no other one was started within %d ms "
            "(return_timeout_ms)",
            context->place.address, comeback->connect_ms > 0 ? comeback->connect_ms : 0);
    }
    return comeback_pause(context, patience);
}

/* ---- answers ---- */

/* Takes the next reply, which must be of this kind. */
static enum adtopk_status comeback_take(adtopk_context *context,
    const struct client_patience *patience, Adtopk__LocalReply__KindCase kind,
    struct client_reply *reply)
{
    enum adtopk_status status = context->transport->receive(context, patience, reply);

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

/* Maps a descriptor in the place of an old mapping. The kernel replaces that at once, so another
 * thread that reads there sees the old memory or the new one. */
static enum adtopk_status comeback_map(adtopk_context *context, const struct client_reply *reply,
    unsigned index, int protection, const struct client_mapping *mapping)
{
    struct stat status;

    if (index >= reply->descriptors || fstat(reply->descriptor[index], &status) != 0 ||
        (uint64_t)status.st_size < mapping->size) {
        return client_fail(context, ADTOPK_ERR_PROTOCOL,
            "the daemon at %s has less memory for this rank than the one before",
            context->place.address);
    }
    if (mmap(mapping->bytes, mapping->size, protection, MAP_SHARED | MAP_FIXED,
            reply->descriptor[index], 0) == MAP_FAILED) {
        return client_fail(context, ADTOPK_ERR_MEMORY, "cannot map %llu bytes shared by the daemon",
            (unsigned long long)mapping->size);
    }
    return ADTOPK_OK;
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
    status = comeback_map(context, &reply, 0, PROT_READ | PROT_WRITE, &context->ring_map);
    if (status == ADTOPK_OK) {
        status = comeback_map(context, &reply, 1, PROT_READ, &context->page_map);
    }
    client_reply_drop(&reply);
    context->ring.tail = 0;
    context->ring.answered = 0;
    context->sent = 0;
    context->comeback.stage = CLIENT_COMMITS;
    return status;
}

static enum adtopk_status comeback_commit(
    adtopk_context *context, const struct client_patience *patience)
{
    Adtopk__LocalCommit commit = ADTOPK__LOCAL_COMMIT__INIT;
    Adtopk__LocalRequest request = ADTOPK__LOCAL_REQUEST__INIT;
    enum adtopk_status status =
        client_send_tensors(context, context->batch.end[context->comeback.at], patience);

    request.kind_case = ADTOPK__LOCAL_REQUEST__KIND_COMMIT;
    request.commit = &commit;
    if (status == ADTOPK_OK) {
        status = context->transport->send(context, &request, patience);
    }
    if (status == ADTOPK_OK) {
        context->comeback.stage = CLIENT_COMMITTED;
    }
    return status;
}

static enum adtopk_status comeback_committed(
    adtopk_context *context, const struct client_patience *patience)
{
    const unsigned at = context->comeback.at;
    const bool ready = at < context->batch.count;
    struct client_mapping *arena =
        ready ? &context->comeback.arena[at] : &context->batch.gradients[at];
    struct client_reply reply;
    enum adtopk_status status =
        comeback_take(context, patience, ADTOPK__LOCAL_REPLY__KIND_ARENA, &reply);

    if (status != ADTOPK_OK) {
        return status;
    }
    client_unmap(arena); /* of a daemon that went away before the rank was back */
    status = client_map(context, &reply, 0, PROT_READ | PROT_WRITE,
        ready ? context->batch.gradients[at].size : reply.message->arena->size, arena);
    client_reply_drop(&reply);
    context->comeback.stage = CLIENT_MAPS;
    return status;
}

static enum adtopk_status comeback_mapped(
    adtopk_context *context, const struct client_patience *patience)
{
    Adtopk__LocalMapped mapped = ADTOPK__LOCAL_MAPPED__INIT;
    Adtopk__LocalRequest request = ADTOPK__LOCAL_REQUEST__INIT;
    enum adtopk_status status;

    request.kind_case = ADTOPK__LOCAL_REQUEST__KIND_MAPPED;
    request.mapped = &mapped;
    status = context->transport->send(context, &request, patience);
    if (status == ADTOPK_OK && ++context->comeback.at < context->comeback.brings) {
        context->comeback.stage = CLIENT_COMMITS;
    } else if (status == ADTOPK_OK) {
        context->commit = context->comeback.brings > context->batch.count ? CLIENT_COMMIT_MAPPED
                                                                          : CLIENT_COMMIT_DONE;
        context->comeback.at = 0;
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
    comeback->operates = comeback->operates && comeback->operation.number >= ready->operation;
    for (uint32_t i = comeback->submitted; i < comeback->entries; i++) {
        client_copy_entry(context, &comeback->entry[i]);
    }
    if (comeback->operates) {
        client_copy_entry(context, &comeback->operation);
    }
    comeback->stage = CLIENT_SUBMITS;
}

/* The next batch is ready. */
static enum adtopk_status comeback_take_ready(
    adtopk_context *context, const struct client_reply *reply)
{
    struct client_comeback *comeback = &context->comeback;
    enum adtopk_status status = comeback_compare(context, reply->message->ready);

    if (status == ADTOPK_OK) {
        status = comeback_map(context, reply, 0, PROT_READ, &context->batch.results[comeback->at]);
    }
    if (status == ADTOPK_OK && ++comeback->at == context->batch.count) {
        comeback_begin(context, reply->message->ready);
    }
    return status;
}

static enum adtopk_status comeback_ready(
    adtopk_context *context, const struct client_patience *patience)
{
    struct client_reply reply;
    enum adtopk_status status =
        comeback_take(context, patience, ADTOPK__LOCAL_REPLY__KIND_READY, &reply);

    if (status == ADTOPK_OK) {
        status = comeback_take_ready(context, &reply);
        client_reply_drop(&reply);
    }
    return status;
}

/* Waits for room in the ring. */
static enum adtopk_status comeback_room(
    adtopk_context *context, const struct client_patience *patience)
{
    const struct timespec pause = {.tv_nsec = COMEBACK_ROOM_NS};

    client_wake(context);
    if (patience->deadline_ns <= client_now_ns()) {
        return ADTOPK_PENDING;
    }
    client_let_go(context);
    (void)nanosleep(&pause, NULL);
    client_take_back(context);
    return client_wait_may_go_on(context);
}

/* Submits the step's entries again. Other threads may add some meanwhile. */
static enum adtopk_status comeback_submit(
    adtopk_context *context, const struct client_patience *patience)
{
    struct client_comeback *comeback = &context->comeback;

    while (comeback->operates || comeback->submitted < comeback->entries) {
        if (!ring_writer_has_room(&context->ring)) {
            return comeback_room(context, patience);
        }
        if (comeback->operates) {
            ring_writer_put(&context->ring, &comeback->operation);
            comeback->operates = false;
        } else {
            ring_writer_put(&context->ring, &comeback->entry[comeback->submitted++]);
        }
    }
    comeback->operates = context->unfinished.posted; /* the daemon may go away again */
    comeback->stage = CLIENT_HERE;
    client_wake(context);
    return ADTOPK_OK;
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
        if (status == ADTOPK_ERR_UNREACHABLE && context->failure.code == ADTOPK_OK) {
            status = ADTOPK_OK; /* this daemon went away, too */
        }
    }
    return status;
}
