#include "daemon/transport/monitor.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

#include "daemon/transport/socket.h"

#define MONITOR_REPORT_SIZE 6

bool monitor_open(struct monitor *monitor, void *zmq, void *socket, int types)
{
    const int none = 0;
    char endpoint[64];
    int reason;

    /* A socket's address names it as long as it lives, and its monitor does not live longer. */
    (void)snprintf(endpoint, sizeof(endpoint), "inproc://monitor.%p", socket);
    *monitor = (struct monitor){.socket = socket};
    if (zmq_socket_monitor(socket, endpoint, types) != 0) {
        return false;
    }
    monitor->pair = zmq_socket(zmq, ZMQ_PAIR);
    if (monitor->pair != NULL &&
        zmq_setsockopt(monitor->pair, ZMQ_RCVHWM, &none, sizeof(none)) == 0 &&
        zmq_setsockopt(monitor->pair, ZMQ_LINGER, &none, sizeof(none)) == 0 &&
        socket_reach(monitor->pair, endpoint)) {
        return true;
    }
    reason = errno;
    (void)zmq_socket_monitor(socket, NULL, 0);
    monitor_close(monitor);
    errno = reason;
    return false;
}

bool monitor_next(struct monitor *monitor, struct monitor_event *event)
{
    bool found = false;
    zmq_msg_t message;

    if (monitor->pair == NULL || zmq_msg_init(&message) != 0) {
        return false;
    }
    /* Two parts: the report, and the endpoint, which the owner knows. */
    while (!found && socket_receive_part(monitor->pair, &message)) {
        const uint8_t *bytes = zmq_msg_data(&message);

        if (zmq_msg_more(&message) != 0 && zmq_msg_size(&message) == MONITOR_REPORT_SIZE) {
            memcpy(&event->type, bytes, sizeof(event->type));
            memcpy(&event->value, bytes + sizeof(event->type), sizeof(event->value));
            found = true;
        }
    }
    (void)zmq_msg_close(&message);
    return found;
}

void monitor_close(struct monitor *monitor)
{
    if (monitor->pair != NULL) {
        /* In this order: a report without a reader would stop the I/O thread. */
        (void)zmq_socket_monitor(monitor->socket, NULL, 0);
        (void)zmq_close(monitor->pair);
    }
    *monitor = (struct monitor){.pair = NULL};
}
