#include "daemon/transport/receiver.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#define RECEIVER_REPORTS                                                                           \
    (ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED |                 \
        ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |               \
        ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)

bool receiver_open(struct receiver *receiver, void *zmq, const char *endpoint,
    enum receiver_door door, const struct keyfile_pair *pair, bool again)
{
    char wanted[SOCKET_ENDPOINT_SIZE];
    int reason;

    (void)snprintf(wanted, sizeof(wanted), "%s", endpoint); /* it may be our own field */
    *receiver = (struct receiver){.door = door};
    receiver->pull = door == RECEIVER_TOKEN ? socket_new_bulk_pull(zmq, wanted)
                                            : socket_new_pull(zmq, wanted, pair);
    if (receiver->pull != NULL &&
        monitor_open(&receiver->monitor, zmq, receiver->pull, RECEIVER_REPORTS) &&
        socket_bind(receiver->pull, wanted, again, receiver->endpoint)) {
        return true;
    }
    reason = errno;
    receiver_close(receiver);
    (void)snprintf(receiver->endpoint, sizeof(receiver->endpoint), "%s", wanted);
    errno = reason;
    return false;
}

void receiver_close(struct receiver *receiver)
{
    monitor_close(&receiver->monitor);
    if (receiver->pull != NULL) {
        (void)zmq_close(receiver->pull);
        receiver->pull = NULL;
    }
    free(receiver->accepted);
    receiver->accepted = NULL;
    receiver->accepted_size = 0;
}

static const char *receiver_reason(enum receiver_door door, uint32_t protocol_error)
{
    if (protocol_error == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH) {
        return door == RECEIVER_KEY     ? "it does not speak CURVE"
               : door == RECEIVER_TOKEN ? "it presents no token"
                                        : "it speaks CURVE, and this node has no keys";
    }
    if (protocol_error == ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC) {
        return "it was encrypted for another key than this node's";
    }
    return "it breaks the protocol";
}

/* Room for the descriptor; without memory its connection is just not watched. */
static bool receiver_reserve(struct receiver *receiver, uint32_t descriptor)
{
    size_t size = (size_t)descriptor + 64;
    uint64_t *accepted;

    if (descriptor < receiver->accepted_size) {
        return true;
    }
    accepted = realloc(receiver->accepted, size * sizeof(*accepted));
    if (accepted == NULL) {
        return false;
    }
    memset(accepted + receiver->accepted_size, 0,
        (size - receiver->accepted_size) * sizeof(*accepted));
    receiver->accepted = accepted;
    receiver->accepted_size = size;
    return true;
}

/* Why a connection that has ended was none of ours; NULL if it was, or if that is not sure. */
static const char *receiver_ended(struct receiver *receiver, uint32_t descriptor)
{
    bool counted = receiver->counted > 0;
    uint64_t accepted;

    receiver->counted -= counted ? 1 : 0;
    if (descriptor >= receiver->accepted_size) {
        return NULL;
    }
    accepted = receiver->accepted[descriptor];
    receiver->accepted[descriptor] = 0;
    return !counted && accepted == receiver->handshakes + 1 ? "it made no handshake" : NULL;
}

/* Why a connection is turned away; NULL if this report is not about that. */
static const char *receiver_report(struct receiver *receiver, const struct monitor_event *event)
{
    switch (event->type) {
    case ZMQ_EVENT_ACCEPTED:
        if (receiver_reserve(receiver, event->value)) {
            receiver->accepted[event->value] = receiver->handshakes + 1;
        }
        return NULL;
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED: receiver->handshakes++; return NULL;
    case ZMQ_EVENT_DISCONNECTED: return receiver_ended(receiver, event->value);
    case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH: receiver->counted++; return NULL;
    case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
        receiver->counted++;
        return receiver_reason(receiver->door, event->value);
    case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
        receiver->counted++;
        return "it ended before it said who it is";
    default: return NULL;
    }
}

bool receiver_watch(struct receiver *receiver, unsigned budget, struct refusals *refusals)
{
    struct monitor_event event;

    for (; budget > 0 && monitor_next(&receiver->monitor, &event); budget--) {
        const char *reason = receiver_report(receiver, &event);
        char line[SOCKET_ENDPOINT_SIZE + 128];

        if (reason != NULL) {
            (void)snprintf(
                line, sizeof(line), "refused a connection to %s: %s", receiver->endpoint, reason);
            refusals_add(refusals, REFUSAL_HANDSHAKE, line);
        }
    }
    return budget == 0;
}
