/* A daemon on another machine: sending to it, and the memory that the library keeps. */
#include "client/src/remote.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "client/src/clock.h"
#include "client/src/comeback.h"
#include "client/src/tend.h"
#include "proto/codec.h"
#include "proto/remote.h"
#include "proto/retry.h"

#define REMOTE_RETRY_NS 1000000
#define REMOTE_IDLE 100      /* retries without an answer after which sleeps are longer */
#define REMOTE_IDLE_TIMES 20 /* how many times as long */
#define REMOTE_ALIGN 64u

/* Keeps what it takes to connect again. */
static bool remote_keep_options(struct client_remote *remote, const struct client_options *options)
{
    remote->options = *options;
    remote->options.connect_timeout_ms = 0;
    remote->options.policy = NULL;
    remote->key_file = options->key_file != NULL ? strdup(options->key_file) : NULL;
    remote->server_key = options->server_key != NULL ? strdup(options->server_key) : NULL;
    remote->options.key_file = remote->key_file;
    remote->options.server_key = remote->server_key;
    return (remote->key_file != NULL) == (options->key_file != NULL) &&
           (remote->server_key != NULL) == (options->server_key != NULL);
}

static enum adtopk_status remote_connect(
    adtopk_context *context, const struct client_options *options, struct error *err)
{
    context->remote = calloc(1, sizeof *context->remote);
    if (context->remote == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for a context");
    }
    context->remote->end = -1;
    if (!remote_keep_options(context->remote, options)) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for a context");
    }
    return client_gate_connect(context->remote, options, err);
}

/* ---- sending ---- */

static enum adtopk_status remote_gone(adtopk_context *context)
{
    const enum adtopk_status status = client_go_away(context, "");

    return status == ADTOPK_OK ? ADTOPK_ERR_UNREACHABLE : status;
}

/* Sends a message with its numbers filled in. False if there is no room. */
static bool remote_try_send(struct client_remote *remote, Adtopk__RemoteRequest *request,
    const void *part, size_t size, enum adtopk_status *status)
{
    const bool counts = request->kind_case != ADTOPK__REMOTE_REQUEST__KIND__NOT_SET;
    size_t header_size = 0;
    uint8_t *header;
    bool sent;
    int taken;

    request->sequence = remote->sent + (counts ? 1 : 0);
    request->acknowledged = remote->received;
    header = codec_pack(&request->base, &header_size);
    if (header == NULL) {
        *status = ADTOPK_ERR_MEMORY;
        return false;
    }
    if (header_size > REMOTE_HEADER_MAX) {
        free(header);
        *status = ADTOPK_ERR_ARGUMENT;
        return false;
    }
    sent = remote->zmq->send(remote->dealer, header, header_size,
               ZMQ_DONTWAIT | (size > 0 ? ZMQ_SNDMORE : 0)) >= 0;
    free(header);
    if (sent && size > 0) {
        /* Once begun, libzmq takes the whole message, and waits for the rest if a signal ends the
         * call. */
        RETRY(taken, remote->zmq->send(remote->dealer, part, size, ZMQ_DONTWAIT));
    }
    if (sent) {
        remote->sent = request->sequence;
        remote->answered = remote->received;
    }
    return sent;
}

/* Takes all messages that have come, and acknowledges them. A rank that comes back gets several
 * answers, and takes one at a time. */
static enum adtopk_status remote_progress(adtopk_context *context)
{
    struct client_remote *remote = context->remote;
    enum adtopk_status status = ADTOPK_OK;
    bool took = !client_is_away(context) || remote->reply == NULL;

    /* Before the messages, because messages that came before the end count. */
    client_gate_look(remote);
    while (status == ADTOPK_OK && took) {
        status = client_intake(context, &took);
        if (remote->received - remote->answered >= REMOTE_ACKNOWLEDGE) {
            Adtopk__RemoteRequest nothing = ADTOPK__REMOTE_REQUEST__INIT;
            enum adtopk_status ignored;

            (void)remote_try_send(remote, &nothing, NULL, 0, &ignored);
        }
        took = took && (!client_is_away(context) || remote->reply == NULL);
    }
    return status == ADTOPK_OK && remote->broken ? remote_gone(context) : status;
}

/* Sleeps for a moment only, because another thread that waits may take the message first. If
 * nothing has moved for long it sleeps longer: a signal ends the call only if it comes in a sleep.
 */
static enum adtopk_status remote_pause(
    adtopk_context *context, unsigned idle, const struct client_patience *patience)
{
    const long times = idle < REMOTE_IDLE ? 1 : REMOTE_IDLE_TIMES;
    const struct timespec pause = {.tv_nsec = times * REMOTE_RETRY_NS};
    bool interrupted;

    if (patience->deadline_ns <= client_now_ns()) {
        return ADTOPK_PENDING;
    }
    client_let_go(context);
    interrupted = nanosleep(&pause, NULL) != 0;
    client_take_back(context);
    return interrupted && patience->interruptible ? ADTOPK_INTERRUPTED : ADTOPK_OK;
}

/* Takes messages, then wakes a waiting thread: its message may have been among them, or the end. If
 * the rank comes back, this is the thread that waits. */
static enum adtopk_status remote_progress_beside(adtopk_context *context)
{
    const bool waits = client_is_away(context);
    const enum adtopk_status status = remote_progress(context);

    if (!waits) {
        client_wait_wake(context);
    }
    return status;
}

/* Sends a message when the daemon has acknowledged enough of the earlier ones. UNREACHABLE also if
 * another thread has made a new connection meanwhile: `life` is the number of this one. */
static enum adtopk_status remote_send_within(adtopk_context *context, uint64_t life,
    Adtopk__RemoteRequest *request, const void *part, size_t size,
    const struct client_patience *patience)
{
    struct client_remote *remote = context->remote;
    enum adtopk_status status = remote_progress_beside(context);
    uint64_t acknowledged = remote->acknowledged;
    unsigned idle = 0;

    while (status == ADTOPK_OK) {
        const bool full = remote->sent - remote->acknowledged >= REMOTE_WINDOW;

        if (!full && remote_try_send(remote, request, part, size, &status)) {
            return ADTOPK_OK;
        }
        if (status == ADTOPK_ERR_MEMORY) {
            return client_fail(context, status, "no memory for a message");
        }
        if (status == ADTOPK_ERR_ARGUMENT) {
            return client_fail(context, status,
                "a message to the daemon would have more than %u bytes (is the policy that long?)",
                REMOTE_HEADER_MAX);
        }
        idle = remote->acknowledged == acknowledged ? idle + 1 : 0;
        acknowledged = remote->acknowledged;
        status = remote_pause(context, idle, patience);
        if (remote->life != life) {
            return ADTOPK_ERR_UNREACHABLE;
        }
        if (status == ADTOPK_OK) {
            status = remote_progress_beside(context);
        }
        if (status == ADTOPK_OK) {
            status = client_wait_may_go_on(context);
        }
    }
    return status;
}

static enum adtopk_status remote_send(adtopk_context *context, const Adtopk__LocalRequest *request,
    const struct client_patience *patience)
{
    Adtopk__RemoteRequest message = ADTOPK__REMOTE_REQUEST__INIT;
    Adtopk__LocalRequest copy = *request;
    Adtopk__LocalOpen open;

    if (copy.kind_case == ADTOPK__LOCAL_REQUEST__KIND_OPEN) {
        open = *copy.open;
        open.version = REMOTE_VERSION;
        copy.open = &open;
    }
    message.kind_case = ADTOPK__REMOTE_REQUEST__KIND_REQUEST;
    message.request = &copy;
    return remote_send_within(context, context->remote->life, &message, NULL, 0, patience);
}

/* ---- answers ---- */

/* Hands over to the caller the answer that has come. */
static void remote_take_reply(struct client_remote *remote, struct client_reply *reply)
{
    reply->message = remote->reply->reply;
    remote->reply->reply = NULL; /* the caller owns it now */
    remote->reply->kind_case = ADTOPK__REMOTE_REPLY__KIND__NOT_SET;
    codec_free(&remote->reply->base);
    remote->reply = NULL;
}

static enum adtopk_status remote_receive(
    adtopk_context *context, const struct client_patience *patience, struct client_reply *reply)
{
    for (;;) {
        enum adtopk_status status = remote_progress(context);

        if (context->remote->reply != NULL) {
            remote_take_reply(context->remote, reply);
            if (!client_reply_is_stale(context, reply->message)) {
                return ADTOPK_OK;
            }
            client_reply_drop(reply);
        }
        if (status == ADTOPK_OK) {
            status = client_wait_may_go_on(context);
        }
        if (status == ADTOPK_OK) {
            status = client_gate_wait(context, patience);
        }
        if (status != ADTOPK_OK) {
            return status;
        }
    }
}

static enum adtopk_status remote_opened(adtopk_context *context, const struct client_reply *reply)
{
    struct client_remote *remote = context->remote;

    (void)reply;
    remote->page = calloc(1, sizeof(struct local_page) + CLIENT_MAX_TENSORS * sizeof(uint64_t));
    context->ring.page = remote->page;
    return remote->page != NULL
               ? ADTOPK_OK
               : client_fail(context, ADTOPK_ERR_MEMORY, "no memory for a context");
}

static uint64_t remote_align(uint64_t bytes)
{
    return (bytes + REMOTE_ALIGN - 1) / REMOTE_ALIGN * REMOTE_ALIGN;
}

/* Makes a record for the arriving updates of every tensor. */
static bool remote_make_arrivals(adtopk_context *context)
{
    struct client_remote *remote = context->remote;
    struct client_arrival *arrival =
        realloc(remote->arrival, context->tensors * sizeof *remote->arrival);

    if (arrival == NULL) {
        return false;
    }
    memset(arrival + remote->arrivals, 0,
        (context->tensors - remote->arrivals) * sizeof *remote->arrival);
    remote->arrival = arrival;
    remote->arrivals = context->tensors;
    return true;
}

/* Makes memory for the gradients of the batch. In the first batch they lie behind the areas of the
 * plain operations. */
static enum adtopk_status remote_arena(adtopk_context *context, const struct client_reply *reply)
{
    const uint64_t areas = context->batch.count == 0 ? 2 * CLIENT_OP_SIZE : 0;
    uint64_t size = areas;
    uint8_t *at;

    (void)reply;
    for (uint32_t i = context->batch.ready; i < context->tensors; i++) {
        size += remote_align(context->tensor[i].bytes);
    }
    at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED || !remote_make_arrivals(context)) {
        if (at != MAP_FAILED) {
            (void)munmap(at, size);
        }
        return client_fail(context, ADTOPK_ERR_MEMORY, "no memory for gradients of %llu bytes",
            (unsigned long long)size);
    }
    context->batch.gradients[context->batch.count] =
        (struct client_mapping){.bytes = at, .size = size};
    if (areas > 0) {
        context->op_in = at;
        context->op_out = context->remote->op_out = at + CLIENT_OP_SIZE;
    }
    at += areas;
    for (uint32_t i = context->batch.ready; i < context->tensors; i++) {
        context->tensor[i].gradient = at;
        at += remote_align(context->tensor[i].bytes);
    }
    return ADTOPK_OK;
}

static enum adtopk_status remote_ready(adtopk_context *context, const struct client_reply *reply)
{
    const Adtopk__LocalReady *ready = reply->message->ready;
    struct local_page *page = context->remote->page;

    atomic_store(&page->ranks, ready->ranks);
    atomic_store(&page->place, ready->place);
    atomic_store(&page->root, ready->root);
    atomic_store(&page->joined, ready->joined);
    atomic_store(&page->due, ready->due ? 1 : 0);
    atomic_store(&page->steps_done, ready->step);
    atomic_store(&page->ops_done, ready->operation);
    return client_watch_rank(context);
}

/* ---- training ---- */

/* Sends the gradient, or the rest of it: after PENDING or INTERRUPTED the tensor says how much was
 * sent, and the next call goes on from there. */
static enum adtopk_status remote_push(adtopk_context *context, const struct local_entry *entry,
    const struct client_patience *patience)
{
    const uint64_t bytes = context->tensor[entry->tensor].bytes;
    const uint8_t *gradient = context->tensor[entry->tensor].gradient;
    const uint64_t life = context->remote->life;
    Adtopk__RemotePush push = ADTOPK__REMOTE_PUSH__INIT;
    Adtopk__RemoteRequest request = ADTOPK__REMOTE_REQUEST__INIT;
    enum adtopk_status status = ADTOPK_OK;

    push.tensor = entry->tensor;
    push.step = entry->number;
    push.scale = entry->scale;
    request.kind_case = ADTOPK__REMOTE_REQUEST__KIND_PUSH;
    request.push = &push;
    if (context->tensor[entry->tensor].begun == entry->number + 1) {
        push.offset = context->tensor[entry->tensor].sent;
        push.scale = context->tensor[entry->tensor].scale; /* of the gradient that was begun */
    }
    while (status == ADTOPK_OK && push.offset < bytes) {
        const uint64_t left = bytes - push.offset;
        const size_t piece = left < REMOTE_PIECE ? (size_t)left : REMOTE_PIECE;

        status =
            remote_send_within(context, life, &request, gradient + push.offset, piece, patience);
        push.offset += status == ADTOPK_OK ? piece : 0;
    }
    if (context->remote->life == life) {
        const bool goes_on = status == ADTOPK_PENDING || status == ADTOPK_INTERRUPTED;
        context->tensor[entry->tensor].begun = goes_on ? entry->number + 1 : 0;
        context->tensor[entry->tensor].sent = push.offset;
        context->tensor[entry->tensor].scale = push.scale;
    }
    return status;
}

static enum adtopk_status remote_op(adtopk_context *context, const struct local_entry *entry,
    const struct client_patience *patience)
{
    Adtopk__RemoteOp op = ADTOPK__REMOTE_OP__INIT;
    Adtopk__RemoteRequest request = ADTOPK__REMOTE_REQUEST__INIT;
    const bool root = entry->root == (uint32_t)context->place.rank;
    const bool reduces = entry->tensor == CLIENT_ALLREDUCE;
    const bool gives = reduces || (entry->tensor == CLIENT_BROADCAST && root);

    op.number = entry->number;
    op.kind = entry->tensor;
    op.root = entry->root;
    op.size = entry->size;
    request.kind_case = ADTOPK__REMOTE_REQUEST__KIND_OP;
    request.op = &op;
    context->remote->op_bytes = reduces || !gives ? entry->size : 0;
    return remote_send_within(context, context->remote->life, &request, context->op_in,
        gives ? entry->size : 0, patience);
}

static enum adtopk_status remote_put(adtopk_context *context, const struct local_entry *entry,
    const struct client_patience *patience)
{
    Adtopk__RemoteStepEnd end = ADTOPK__REMOTE_STEP_END__INIT;
    Adtopk__RemoteWait wait = ADTOPK__REMOTE_WAIT__INIT;
    Adtopk__RemoteRequest request = ADTOPK__REMOTE_REQUEST__INIT;

    switch (entry->type) {
    case LOCAL_PUSH: return remote_push(context, entry, patience);
    case LOCAL_OP: return remote_op(context, entry, patience);
    case LOCAL_WAIT:
        wait.tensor = entry->tensor;
        wait.step = entry->number;
        request.kind_case = ADTOPK__REMOTE_REQUEST__KIND_WAIT;
        request.wait = &wait;
        break;
    default:
        end.step = entry->number;
        request.kind_case = ADTOPK__REMOTE_REQUEST__KIND_STEP_END;
        request.step_end = &end;
        break;
    }
    return remote_send_within(context, context->remote->life, &request, NULL, 0, patience);
}

/* If the daemon goes away meanwhile, the rank submits the entry again when it is back. */
static enum adtopk_status remote_submit(adtopk_context *context, const struct local_entry *entry)
{
    const struct client_patience patience = client_patience(context, -1);
    enum adtopk_status status = client_note_entry(context, entry);

    if (status == ADTOPK_OK && !client_is_away(context)) {
        status = remote_put(context, entry, &patience);
    }
    if (status == ADTOPK_INTERRUPTED) {
        client_forget_entry(context, entry);
    }
    return client_went_away(context, status) ? ADTOPK_OK : status;
}

static enum adtopk_status remote_wait_until(adtopk_context *context, client_done *done,
    uint64_t argument, const struct client_patience *patience)
{
    for (;;) {
        enum adtopk_status status =
            client_is_away(context) ? client_miss(context, patience) : ADTOPK_OK;

        if (status == ADTOPK_OK) {
            status = remote_progress(context);
        }
        /* A result from before the end counts: the next call returns the failure. */
        if (done(context, argument)) {
            return ADTOPK_OK;
        }
        if (client_went_away(context, status)) {
            continue;
        }
        if (status == ADTOPK_OK) {
            status = client_wait_may_go_on(context);
        }
        if (status == ADTOPK_OK) {
            status = client_gate_wait(context, patience);
        }
        if (status != ADTOPK_OK) {
            return status;
        }
    }
}

/* Looks while another thread waits and takes the messages. */
static enum adtopk_status remote_look_beside(
    adtopk_context *context, client_done *done, uint64_t argument)
{
    enum adtopk_status status = ADTOPK_OK;

    if (!done(context, argument)) {
        context->comeback.missed = context->comeback.missed || client_is_away(context);
        status = client_wait_may_go_on(context);
        status = status == ADTOPK_OK ? ADTOPK_PENDING : status;
    }
    return status;
}

static enum adtopk_status remote_wait(adtopk_context *context, client_done *done, uint64_t argument,
    const struct client_patience *patience)
{
    enum adtopk_status status;

    if (patience->deadline_ns == 0 && context->sharing.waits != CLIENT_WAITS_NOT) {
        return remote_look_beside(context, done, argument);
    }
    status = client_wait_begin(context);
    if (status == ADTOPK_OK) {
        status = remote_wait_until(context, done, argument, patience);
        client_wait_end(context);
    }
    return status;
}

static bool remote_is_final(const adtopk_context *context, uint32_t tensor)
{
    return context->remote->arrival[tensor].final;
}

static void remote_update(
    const adtopk_context *context, uint32_t tensor, struct adtopk_update *update)
{
    const struct client_arrival *arrival = &context->remote->arrival[tensor];
    const unsigned forms = context->tensor[tensor].forms;
    const bool half = (arrival->forms & LOCAL_FORM_DENSE16) != 0;

    update->unpushed = arrival->unpushed;
    update->dense16 = half ? arrival->half : NULL;
    if ((arrival->forms & LOCAL_FORM_LIST) != 0 && (!half || (forms & ADTOPK_FORM_LIST) != 0)) {
        update->count = arrival->count;
        update->index = arrival->index;
        update->value = arrival->value;
    }
    if ((arrival->forms & LOCAL_FORM_DENSE) != 0) {
        update->dense = arrival->dense;
    }
}

/* ---- coming back ---- */

/* Forgets the connection that broke, and begins to make another one. */
static enum adtopk_status remote_begin_again(adtopk_context *context, struct error *err)
{
    struct client_remote *remote = context->remote;

    client_gate_close(remote);
    if (remote->reply != NULL) {
        codec_free(&remote->reply->base);
        remote->reply = NULL;
    }
    for (uint32_t i = 0; i < remote->arrivals; i++) {
        remote->arrival[i].first = 0; /* pieces of an update come from the first one on */
        context->tensor[i].begun = 0; /* and so do those of a gradient */
    }
    remote->sent = remote->acknowledged = remote->received = remote->answered = 0;
    remote->broken = false;
    remote->connects = true;
    remote->life++;
    return client_gate_begin(remote, &remote->options, err);
}

static enum adtopk_status remote_reconnect(adtopk_context *context)
{
    struct client_remote *remote = context->remote;
    enum adtopk_status status = ADTOPK_OK;
    struct error err;

    if (!remote->connects) {
        status = remote_begin_again(context, &err);
    }
    if (status == ADTOPK_OK) {
        status = client_gate_try(remote, &remote->options, &err);
    }
    if (status == ADTOPK_OK) {
        remote->connects = false;
        context->comeback.stage = CLIENT_OPENS;
        return ADTOPK_OK;
    }
    if (status != ADTOPK_PENDING) {
        return client_fail(
            context, status, "the daemon at %s went away; %s", context->place.address, err.text);
    }
    return client_comeback_later(context);
}

/* Pages, gradients and updates are this process's. */
static enum adtopk_status remote_reopened(adtopk_context *context, const struct client_reply *reply)
{
    (void)context;
    (void)reply;
    return ADTOPK_OK;
}

static enum adtopk_status remote_rearena(
    adtopk_context *context, const struct client_reply *reply, unsigned batch)
{
    return context->batch.gradients[batch].bytes == NULL ? remote_arena(context, reply) : ADTOPK_OK;
}

/* Steps and operations that are done meanwhile count when their results have come. */
static enum adtopk_status remote_reready(
    adtopk_context *context, const struct client_reply *reply, unsigned batch)
{
    (void)context;
    (void)reply;
    (void)batch;
    return ADTOPK_OK;
}

static enum adtopk_status remote_resubmit(adtopk_context *context,
    const struct client_patience *patience, const struct local_entry *entry)
{
    return remote_put(context, entry, patience);
}

static struct pollfd remote_end(const adtopk_context *context)
{
    return (struct pollfd){.fd = context->remote->end, .events = POLLIN};
}

/* A forked child only frees memory: it has no thread of libzmq, and the connection is its parent's.
 */
static void remote_close(adtopk_context *context, bool ours)
{
    struct client_remote *remote = context->remote;

    if (remote == NULL) {
        return;
    }
    client_watch_end(&context->batch.watch, ours);
    if (ours) {
        client_gate_close(remote);
    }
    if (remote->end >= 0) {
        (void)close(remote->end);
    }
    for (uint32_t i = 0; i < remote->arrivals; i++) {
        free(remote->arrival[i].dense);
        free(remote->arrival[i].half);
        free(remote->arrival[i].index);
        free(remote->arrival[i].value);
    }
    for (unsigned b = 0; b < CLIENT_MAX_BATCHES && context->batch.gradients[b].bytes != NULL; b++) {
        (void)munmap(context->batch.gradients[b].bytes, context->batch.gradients[b].size);
    }
    if (remote->reply != NULL) {
        codec_free(&remote->reply->base);
    }
    free(remote->arrival);
    free(remote->page);
    free(remote->key_file);
    free(remote->server_key);
    free(remote);
}

const struct client_transport client_remote = {
    .connect = remote_connect,
    .send = remote_send,
    .receive = remote_receive,
    .opened = remote_opened,
    .arena = remote_arena,
    .ready = remote_ready,
    .submit = remote_submit,
    .wait = remote_wait,
    .update = remote_update,
    .is_final = remote_is_final,
    .come_back = client_miss,
    .reconnect = remote_reconnect,
    .reopened = remote_reopened,
    .rearena = remote_rearena,
    .reready = remote_reready,
    .resubmit = remote_resubmit,
    .tend = client_tend,
    .end = remote_end,
    .drain = remote_progress,
    .close = remote_close,
};
