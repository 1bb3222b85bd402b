/* The session socket: connecting, requests, replies with their descriptors. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "client/src/clock.h"
#include "client/src/comeback.h"
#include "client/src/transport.h"
#include "proto/codec.h"
#include "proto/retry.h"

#define CONNECT_PAUSE_NS 20000000

enum take_result {
    TAKE_REPLY,
    TAKE_WAKE,
    TAKE_NOTHING,
    TAKE_END,
    TAKE_BROKEN,
    TAKE_NO_MEMORY,
    TAKE_NO_DESCRIPTOR
};

static bool connect_may_come(int reason)
{
    return reason == ENOENT || reason == ECONNREFUSED || reason == EAGAIN || reason == EINTR;
}

int client_connect(const char *path, int timeout_ms, bool interruptible, struct error *err)
{
    const uint64_t deadline =
        client_now_ns() + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0) * 1000000;
    const struct timespec pause = {.tv_nsec = CONNECT_PAUSE_NS};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int reason;

    memcpy(address.sun_path, path, strlen(path) + 1);
    for (;;) {
        const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

        if (fd < 0) {
            (void)error_set(err, ADTOPK_ERR_SYSTEM, "socket failed: %s", strerror(errno));
            return -1;
        }
        if (connect(fd, (const struct sockaddr *)&address, sizeof address) == 0) {
            return fd;
        }
        reason = errno;
        (void)close(fd);
        if (!connect_may_come(reason) || client_now_ns() >= deadline) {
            break;
        }
        if (nanosleep(&pause, NULL) != 0 && interruptible) {
            (void)error_set(err, ADTOPK_INTERRUPTED, "a signal ended adtopk_open()");
            return -1;
        }
    }
    if (reason == EACCES || reason == EPERM) {
        (void)error_set(err, ADTOPK_ERR_DENIED,
            "no permission to connect to unix:%s (this may be the control socket)", path);
    } else {
        (void)error_set(err, ADTOPK_ERR_UNREACHABLE,
            "no daemon at unix:%s: %s ($ADTOPK_ADDRESS or an option says where one is)", path,
            strerror(reason));
    }
    return -1;
}

/* ---- sending ---- */

static enum adtopk_status drain_socket(adtopk_context *context);

/* The connection has ended, and the daemon may have said why. */
static enum adtopk_status send_failed(adtopk_context *context, int reason)
{
    const enum adtopk_status status = drain_socket(context);

    if (status != ADTOPK_OK) {
        return status;
    }
    return client_is_away(context) ? ADTOPK_ERR_UNREACHABLE
                                   : client_fail(context, ADTOPK_ERR_UNREACHABLE,
                                         "sending to the daemon at %s failed: %s",
                                         context->place.address, strerror(reason));
}

/* Sleeps until the daemon has read something from the socket. */
static enum adtopk_status send_wait(adtopk_context *context, const struct client_patience *patience)
{
    struct pollfd writable[2] = {[1] = {.fd = context->socket, .events = POLLOUT}};
    const bool waits = client_is_away(context); /* already: see client_come_back() */
    enum adtopk_status status = waits ? ADTOPK_OK : client_wait_begin(context);

    if (status == ADTOPK_OK) {
        status = client_wait_may_go_on(context);
        if (status == ADTOPK_OK) {
            status = client_sleep(context, writable, 2, patience);
        }
        if (!waits) {
            client_wait_end(context);
        }
    }
    return status;
}

static enum adtopk_status send_bytes(adtopk_context *context, const uint8_t *bytes, size_t size,
    const struct client_patience *patience)
{
    for (;;) {
        enum adtopk_status status = ADTOPK_OK;

        if (send(context->socket, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) {
            return ADTOPK_OK;
        }
        if (errno == EAGAIN || errno == ENOBUFS) {
            status = send_wait(context, patience);
        } else if (errno != EINTR) {
            return send_failed(context, errno);
        }
        if (status != ADTOPK_OK) {
            return status;
        }
    }
}

enum adtopk_status client_send(adtopk_context *context, const Adtopk__LocalRequest *request,
    const struct client_patience *patience)
{
    enum adtopk_status status;
    size_t size = 0;
    uint8_t *bytes = codec_pack(&request->base, &size);

    if (bytes == NULL) {
        return client_fail(context, ADTOPK_ERR_MEMORY, "no memory for a message");
    }
    if (size > CODEC_LOCAL_MAX) {
        status = client_fail(context, ADTOPK_ERR_ARGUMENT,
            "a message to the daemon would have %zu bytes; %u are allowed (is the policy that "
            "long?)",
            size, CODEC_LOCAL_MAX);
    } else {
        status = send_bytes(context, bytes, size, patience);
    }
    free(bytes);
    return status;
}

void client_wake(adtopk_context *context)
{
    const uint8_t wake = LOCAL_WAKE;
    ssize_t sent = 0;

    /* If the wake-up does not fit, the daemon has something to read already. */
    if (ring_writer_must_wake(&context->ring)) {
        RETRY(sent, send(context->socket, &wake, sizeof wake, MSG_DONTWAIT | MSG_NOSIGNAL));
    }
}

/* ---- receiving ---- */

static void take_descriptors(struct msghdr *message, struct client_reply *reply)
{
    for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part != NULL;
         part = CMSG_NXTHDR(message, part)) {
        if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS) {
            const size_t bytes = part->cmsg_len - CMSG_LEN(0);

            memcpy(reply->descriptor, CMSG_DATA(part), bytes);
            reply->descriptors = (unsigned)(bytes / sizeof(int));
        }
    }
}

/* Takes the next message as it is. The daemon may have closed before it read all our messages: then
 * its last words follow one ECONNRESET. */
static ssize_t take_bytes(const adtopk_context *context, struct msghdr *message)
{
    ssize_t size;
    int resets = 0;

    do {
        size = recvmsg(context->socket, message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (size < 0 && (errno == EINTR || (errno == ECONNRESET && resets++ == 0)));
    return size;
}

/* Unpacks a message whose descriptors the reply has already. */
static enum take_result take_unpack(
    const uint8_t *bytes, size_t size, int flags, struct client_reply *reply)
{
    struct error err = {.code = ADTOPK_OK};

    if ((flags & MSG_CTRUNC) != 0 &&
        reply->descriptors < sizeof reply->descriptor / sizeof reply->descriptor[0]) {
        client_reply_drop(reply);
        return TAKE_NO_DESCRIPTOR; /* the kernel drops those for which there is none */
    }
    if ((flags & (MSG_TRUNC | MSG_CTRUNC)) == 0) {
        reply->message = (Adtopk__LocalReply *)(void *)codec_unpack(
            &adtopk__local_reply__descriptor, bytes, size, CODEC_LOCAL_MAX, &err);
    }
    if (reply->message == NULL) {
        client_reply_drop(reply);
        return err.code == ADTOPK_ERR_MEMORY ? TAKE_NO_MEMORY : TAKE_BROKEN;
    }
    return TAKE_REPLY;
}

static enum take_result take_message(const adtopk_context *context, struct client_reply *reply)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof reply->descriptor)];
    } control;
    uint8_t bytes[CODEC_LOCAL_MAX];
    struct iovec part = {.iov_base = bytes, .iov_len = sizeof bytes};
    struct msghdr message = {.msg_iov = &part,
        .msg_iovlen = 1,
        .msg_control = &control,
        .msg_controllen = sizeof control};
    ssize_t size;

    memset(reply, 0, sizeof *reply);
    size = take_bytes(context, &message);
    if (size < 0) {
        return errno == EAGAIN ? TAKE_NOTHING : TAKE_END;
    }
    take_descriptors(&message, reply);
    if (size == 0) {
        return TAKE_END;
    }
    if (size == 1 && bytes[0] == LOCAL_WAKE) {
        return TAKE_WAKE;
    }
    return take_unpack(bytes, (size_t)size, message.msg_flags, reply);
}

bool client_reply_is_stale(const adtopk_context *context, const Adtopk__LocalReply *reply)
{
    uint64_t number;

    switch (reply->kind_case) {
    case ADTOPK__LOCAL_REPLY__KIND_PART: number = reply->part->number; break;
    case ADTOPK__LOCAL_REPLY__KIND_SHOWN: number = reply->shown->number; break;
    default: return false;
    }
    /* A daemon of before LocalShown had a number sends 0. */
    return !context->unfinished.answers || (number != context->unfinished.asked && number != 0);
}

void client_reply_drop(struct client_reply *reply)
{
    for (unsigned i = 0; i < reply->descriptors; i++) {
        if (reply->descriptor[i] >= 0) {
            (void)close(reply->descriptor[i]);
        }
    }
    if (reply->message != NULL) {
        codec_free(&reply->message->base);
    }
    memset(reply, 0, sizeof *reply);
}

/* Before the daemon has answered at all, another program may own the socket at that path. */
static const char *take_hint(const adtopk_context *context)
{
    return context->ring.page == NULL ? " (this may be the control socket)" : "";
}

/* Checks a message, for every receiver: OK if there is none or an ordinary reply. */
static enum adtopk_status take_check(
    adtopk_context *context, enum take_result result, const struct client_reply *reply)
{
    const Adtopk__LocalError *error;

    if (result == TAKE_END) {
        const enum adtopk_status status = client_check_page(context);
        return status != ADTOPK_OK ? status : client_go_away(context, take_hint(context));
    }
    if (result == TAKE_BROKEN) {
        return client_fail(context, ADTOPK_ERR_PROTOCOL,
            "the daemon at %s sent a malformed message%s", context->place.address,
            take_hint(context));
    }
    if (result == TAKE_NO_MEMORY) {
        return client_fail(context, ADTOPK_ERR_MEMORY, "no memory to read a message");
    }
    if (result == TAKE_NO_DESCRIPTOR) {
        return client_fail(context, ADTOPK_ERR_SYSTEM,
            "this process has no descriptor left for memory that the daemon at %s shares "
            "(RLIMIT_NOFILE, ulimit -n)",
            context->place.address);
    }
    if (result == TAKE_REPLY && reply->message->kind_case == ADTOPK__LOCAL_REPLY__KIND_ERROR) {
        error = reply->message->error;
        if (error->final) {
            return client_told(context, error->status, error->text, true);
        }
    }
    return ADTOPK_OK;
}

enum adtopk_status client_receive_local(
    adtopk_context *context, const struct client_patience *patience, struct client_reply *reply)
{
    for (;;) {
        struct pollfd readable[2] = {[1] = {.fd = context->socket, .events = POLLIN}};
        const enum take_result result = take_message(context, reply);
        enum adtopk_status status = take_check(context, result, reply);

        if (status == ADTOPK_OK && result == TAKE_REPLY &&
            !client_reply_is_stale(context, reply->message)) {
            return ADTOPK_OK;
        }
        client_reply_drop(reply);
        if (status == ADTOPK_OK && result == TAKE_END) {
            return ADTOPK_ERR_UNREACHABLE; /* and the rank comes back */
        }
        if (status == ADTOPK_OK && result == TAKE_NOTHING) {
            status = client_wait_may_go_on(context);
        }
        if (status == ADTOPK_OK && result == TAKE_NOTHING) {
            status = client_sleep(context, readable, 2, patience);
        }
        if (status != ADTOPK_OK) {
            return status;
        }
    }
}

enum adtopk_status client_receive(
    adtopk_context *context, const struct client_patience *patience, struct client_reply *reply)
{
    enum adtopk_status status;

    memset(reply, 0, sizeof *reply);
    if (client_is_away(context)) {
        return context->transport->receive(context, patience, reply); /* it waits already */
    }
    status = client_wait_begin(context);
    if (status == ADTOPK_OK) {
        status = context->transport->receive(context, patience, reply);
        client_wait_end(context);
    }
    return status;
}

bool client_read_end(adtopk_context *context)
{
    enum take_result result = TAKE_WAKE;
    struct client_reply reply;
    bool told = false;

    while (!told && (result == TAKE_REPLY || result == TAKE_WAKE)) {
        result = take_message(context, &reply);
        told = result == TAKE_REPLY &&
               reply.message->kind_case == ADTOPK__LOCAL_REPLY__KIND_ERROR &&
               reply.message->error->final;
        if (told) {
            (void)client_told(
                context, reply.message->error->status, reply.message->error->text, true);
        }
        client_reply_drop(&reply);
    }
    return told;
}

/* Reads all messages. At the end of the connection the rank may go away. */
static enum adtopk_status drain_socket(adtopk_context *context)
{
    for (;;) {
        struct client_reply reply;
        const enum take_result result = take_message(context, &reply);
        const enum adtopk_status status = take_check(context, result, &reply);

        if (result == TAKE_REPLY && !client_reply_is_stale(context, reply.message)) {
            context->unfinished.answers = false; /* a call that reads a residual asks again */
        }
        client_reply_drop(&reply);
        if (status != ADTOPK_OK || result == TAKE_NOTHING || result == TAKE_END) {
            return status;
        }
    }
}

enum adtopk_status client_drain(adtopk_context *context)
{
    /* While the rank comes back, its answers are in the socket. */
    return client_is_away(context) ? ADTOPK_OK : drain_socket(context);
}
