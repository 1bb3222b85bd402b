#include "daemon/transport/receiver.h"

#include <errno.h>
#include <stdio.h>
#include <zmq.h>

#define RECEIVER_REPORTS 64u /* of the monitor, that are read at once */

bool receiver_open(struct receiver *receiver, void *zmq, const char *endpoint,
    enum receiver_door door, const struct keyfile_pair *pair, bool again)
{
    char wanted[SOCKET_ENDPOINT_SIZE];
    int reason;

    (void)snprintf(wanted, sizeof(wanted), "%s", endpoint); /* it may be our own field */
    *receiver = (struct receiver){.door = door};
    receiver->pull = door == RECEIVER_TOKEN ? socket_new_bulk_pull(zmq, wanted)
                                            : socket_new_pull(zmq, wanted, pair);
    if (receiver->pull != NULL && visitors_open(&receiver->visitors, zmq, receiver->pull, 0) &&
        socket_bind(receiver->pull, wanted, again, receiver->endpoint)) {
        inflow_bound(&receiver->visitors.inflow, receiver->endpoint);
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
    visitors_close(&receiver->visitors);
    if (receiver->pull != NULL) {
        (void)zmq_close(receiver->pull);
        receiver->pull = NULL;
    }
}

static const char *receiver_reason(enum receiver_door door, enum visitors_report report)
{
    if (report == VISITORS_SILENT) {
        return "it ended before its handshake, as when a peer stops or restarts";
    }
    switch (door) {
    case RECEIVER_KEY:
        return "it does not speak CURVE, or it was encrypted for another key than this node's";
    case RECEIVER_TOKEN: return "it presents no token";
    case RECEIVER_OPEN: break;
    }
    return "it does not speak ZeroMQ, or it speaks CURVE, and this node has no keys";
}

bool receiver_watch(struct receiver *receiver, unsigned budget, struct refusals *refusals)
{
    enum visitors_report report;

    for (; budget > 0 && visitors_next(&receiver->visitors, &report); budget--) {
        char line[SOCKET_ENDPOINT_SIZE + 128];

        if (report == VISITORS_REFUSED || report == VISITORS_SILENT) {
            (void)snprintf(line, sizeof(line), "refused a connection to %s: %s", receiver->endpoint,
                receiver_reason(receiver->door, report));
            refusals_add(refusals, REFUSAL_HANDSHAKE, line);
        }
    }
    return budget == 0;
}

static void receiver_tell_cut(
    const struct receiver *receiver, const char *who, const char *why, struct refusals *refusals)
{
    char line[SOCKET_ENDPOINT_SIZE + 192];

    (void)snprintf(
        line, sizeof(line), "cut off a connection to %s: %s %s", receiver->endpoint, who, why);
    refusals_add(refusals, REFUSAL_PACKET, line);
}

void receiver_skip(struct receiver *receiver, zmq_msg_t *first, struct refusals *refusals)
{
    char who[INFLOW_WHO_SIZE];
    bool cut = inflow_end(&receiver->visitors.inflow, first, who);

    if (!cut) { /* nobody has read yet that the connection was accepted */
        (void)receiver_watch(receiver, RECEIVER_REPORTS, refusals);
        cut = inflow_end(&receiver->visitors.inflow, first, who);
    }
    if (cut) {
        receiver_tell_cut(receiver, who, "sends a message of too many parts", refusals);
    } else {
        refusals_add(refusals, REFUSAL_PACKET, "a message of too many parts came");
    }
    receiver->skipping = true;
}

void receiver_judge(struct receiver *receiver, bool drained, struct refusals *refusals)
{
    char who[INFLOW_WHO_SIZE];

    while (inflow_judge(&receiver->visitors.inflow, drained, who)) {
        receiver_tell_cut(
            receiver, who, "sends a message that is too long or does not end", refusals);
    }
}
