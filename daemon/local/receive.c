/* Reads and unpacks the messages that clients send over the socket. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>

#include "daemon/local/local_session.h"
#include "daemon/session/joining.h"
#include "proto/codec.h"
#include "proto/local.h"
#include "proto/local.pb-c.h"

#define RECEIVE_MESSAGES 16 /* per iteration, so that a flood does not delay other sessions */

static void receive_message(
    struct local_session *session, const uint8_t *bytes, size_t size, int flags)
{
    Adtopk__LocalRequest *request = NULL;
    struct error err;

    if (session->base.state >= SESSION_LEAVING ||
        (size == 1 && bytes[0] == LOCAL_WAKE && flags == 0)) {
        return; /* a wake-up has done its work; after goodbye messages do not count */
    }
    if ((flags & MSG_CTRUNC) != 0) {
        (void)error_set(&err, ADTOPK_ERR_PROTOCOL, "a message came with file descriptors");
    } else if (size == 0 || (flags & MSG_TRUNC) != 0) {
        (void)error_set(&err, ADTOPK_ERR_PROTOCOL, "a message is %s",
            size == 0 ? "empty" : "longer than 60000 bytes");
    } else {
        request = (Adtopk__LocalRequest *)(void *)codec_unpack(
            &adtopk__local_request__descriptor, bytes, size, CODEC_LOCAL_MAX, &err);
    }
    if (request == NULL) {
        session_refuse(&session->base, &err);
        return;
    }
    joining_take(&session->base, request);
    codec_free(&request->base);
}

/* Whether the client has hung up. recvmsg() returns 0 for that, and for an empty message too. */
static bool receive_at_end(const struct local_session *session)
{
    struct pollfd socket = {.fd = session->socket, .events = POLLRDHUP};

    return poll(&socket, 1, 0) > 0 && (socket.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void receive_messages(struct local_session *session)
{
    const struct session *base = &session->base;
    uint8_t bytes[CODEC_LOCAL_MAX];

    for (int i = 0; i < RECEIVE_MESSAGES; i++) {
        struct iovec part = {.iov_base = bytes, .iov_len = sizeof bytes};
        /* Without room for control data the kernel drops descriptors and sets MSG_CTRUNC. */
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
        ssize_t size;

        if (base->state == SESSION_CLOSED || base->state == SESSION_RESERVING ||
            base->verdict != VERDICT_NONE) {
            return;
        }
        if (i > 0 && local_session_is_late(session->local)) {
            local_session_postpone(session);
            return;
        }
        size = recvmsg(session->socket, &message, MSG_DONTWAIT);
        if (size < 0 && (errno == EAGAIN || errno == EINTR)) {
            return;
        }
        if (size < 0 && errno == ECONNRESET) {
            continue; /* reported once: the client closed before it read all messages */
        }
        if (size < 0 || (size == 0 && receive_at_end(session))) {
            session_lost(&session->base, "closed its connection without leaving");
            return;
        }
        session->local->stats.messages++;
        receive_message(session, bytes, (size_t)size, message.msg_flags & (MSG_TRUNC | MSG_CTRUNC));
    }
}
