#include "daemon/transport/visitors.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#define VISITORS_EVENTS                                                                            \
    (ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED |                 \
        ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)

bool visitors_open(struct visitors *visitors, void *zmq, void *socket, unsigned allowance)
{
    int reason;

    *visitors = (struct visitors){.handshakes = 0};
    if (inflow_open(&visitors->inflow, allowance) &&
        monitor_open(&visitors->monitor, zmq, socket, VISITORS_EVENTS)) {
        return true;
    }
    reason = errno;
    visitors_close(visitors);
    errno = reason;
    return false;
}

void visitors_close(struct visitors *visitors)
{
    monitor_close(&visitors->monitor);
    inflow_close(&visitors->inflow);
    free(visitors->accepted);
    *visitors = (struct visitors){.handshakes = 0};
}

/* Room for the descriptor; without memory its connection is just not watched. */
static bool visitors_reserve(struct visitors *visitors, uint32_t descriptor)
{
    size_t size = (size_t)descriptor + 64;
    uint64_t *accepted;

    if (descriptor < visitors->size) {
        return true;
    }
    accepted = realloc(visitors->accepted, size * sizeof(*accepted));
    if (accepted == NULL) {
        return false;
    }
    memset(accepted + visitors->size, 0, (size - visitors->size) * sizeof(*accepted));
    visitors->accepted = accepted;
    visitors->size = size;
    return true;
}

/* A connection has ended. It was refused if no handshake succeeded since it was accepted, and no
 * event reported that its own failed. */
static enum visitors_report visitors_ended(struct visitors *visitors, uint32_t descriptor)
{
    const bool known = descriptor < visitors->size;
    const bool accepted = !known || visitors->accepted[descriptor] != visitors->handshakes + 1;
    const bool reported = visitors->reported > 0;

    inflow_remove(&visitors->inflow, descriptor);
    visitors->reported -= reported ? 1 : 0;
    if (known) {
        visitors->accepted[descriptor] = 0;
    }
    return accepted || reported ? VISITORS_LEFT : VISITORS_REFUSED;
}

bool visitors_next(struct visitors *visitors, enum visitors_report *report)
{
    struct monitor_event event;

    *report = VISITORS_NOTHING;
    if (!monitor_next(&visitors->monitor, &event)) {
        return false;
    }
    switch (event.type) {
    case ZMQ_EVENT_ACCEPTED:
        inflow_add(&visitors->inflow, event.value);
        if (visitors_reserve(visitors, event.value)) {
            visitors->accepted[event.value] = visitors->handshakes + 1;
        }
        break;
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED: visitors->handshakes++; break;
    case ZMQ_EVENT_DISCONNECTED: *report = visitors_ended(visitors, event.value); break;
    case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH: visitors->reported++; break;
    case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
        visitors->reported++;
        *report = VISITORS_SILENT;
        break;
    default: break;
    }
    return true;
}
