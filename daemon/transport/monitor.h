/*
 * The reports of libzmq's I/O thread on a socket's connections.
 *
 * The reports wait in a queue without limit; with a limit, a full queue would stop that thread. So
 * the owner must take them regularly. Close a monitor before its socket.
 */
#ifndef ADTOPK_TRANSPORT_MONITOR_H
#define ADTOPK_TRANSPORT_MONITOR_H

#include <stdbool.h>
#include <stdint.h>

struct monitor {
    void *pair; /* NULL: closed */
    void *socket;
};

struct monitor_event {
    uint16_t type;  /* ZMQ_EVENT_* */
    uint32_t value; /* a descriptor or a reason, by type */
};

/** Reports of `types` are kept from now on. False with errno, and closed, on failure. */
bool monitor_open(struct monitor *monitor, void *zmq, void *socket, int types);

/** The next report; false if there is none. */
bool monitor_next(struct monitor *monitor, struct monitor_event *event);

void monitor_close(struct monitor *monitor);

#endif
