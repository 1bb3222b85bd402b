#include "daemon/transport/waiter.h"

#include <stddef.h>
#include <sys/epoll.h>
#include <unistd.h>
#include <zmq.h>

bool waiter_open(struct waiter *waiter)
{
    *waiter = (struct waiter){.epoll = epoll_create1(EPOLL_CLOEXEC)};
    return waiter->epoll >= 0;
}

void waiter_close(struct waiter *waiter)
{
    if (waiter->epoll >= 0) {
        (void)close(waiter->epoll);
        waiter->epoll = -1;
    }
}

bool waiter_add(struct waiter *waiter, unsigned at, void *socket)
{
    int descriptor;
    size_t size = sizeof(descriptor);

    return zmq_getsockopt(socket, ZMQ_FD, &descriptor, &size) == 0 &&
           waiter_add_descriptor(waiter, at, descriptor);
}

bool waiter_add_descriptor(struct waiter *waiter, unsigned at, int descriptor)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = at};

    if (epoll_ctl(waiter->epoll, EPOLL_CTL_ADD, descriptor, &event) != 0) {
        return false;
    }
    waiter->descriptor[at] = descriptor;
    waiter->used[at] = waiter->pending[at] = true;
    return true;
}

void waiter_remove(struct waiter *waiter, unsigned at)
{
    if (waiter->used[at]) {
        (void)epoll_ctl(waiter->epoll, EPOLL_CTL_DEL, waiter->descriptor[at], NULL);
        waiter->used[at] = waiter->pending[at] = false;
    }
}

void waiter_look(struct waiter *waiter)
{
    struct epoll_event events[WAITER_SOURCES];
    int ready = epoll_wait(waiter->epoll, events, WAITER_SOURCES, 0);

    for (int i = 0; i < ready; i++) {
        waiter->pending[events[i].data.u32] = true;
    }
}

bool waiter_any(const struct waiter *waiter)
{
    for (unsigned i = 0; i < WAITER_SOURCES; i++) {
        if (waiter->pending[i]) {
            return true;
        }
    }
    return false;
}
