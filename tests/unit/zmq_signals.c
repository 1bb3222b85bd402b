#include "zmq_signals.h"

#include <errno.h>
#include <zmq.h>

static bool signals;
static unsigned interrupted;

int __real_zmq_msg_send(zmq_msg_t *message, void *socket, int flags);
int __wrap_zmq_msg_send(zmq_msg_t *message, void *socket, int flags);

int __wrap_zmq_msg_send(zmq_msg_t *message, void *socket, int flags)
{
    static bool now;

    now = signals && (flags & ZMQ_SNDMORE) == 0 && !now;
    if (now) {
        interrupted++;
        errno = EINTR;
        return -1;
    }
    return __real_zmq_msg_send(message, socket, flags);
}

void zmq_signals(bool come)
{
    signals = come;
}

unsigned zmq_signals_count(void)
{
    return interrupted;
}
