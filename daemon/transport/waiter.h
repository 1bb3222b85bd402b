/*
 * One descriptor for several ZeroMQ sockets.
 *
 * A ZeroMQ socket's descriptor becomes readable when libzmq's I/O thread has news for the socket,
 * which may be a message. It stays readable until the socket is asked. Then it may remain silent
 * until nothing is left to receive. So a socket stays pending here, whatever its descriptor says,
 * until its owner has received to the end.
 */
#ifndef ADTOPK_TRANSPORT_WAITER_H
#define ADTOPK_TRANSPORT_WAITER_H

#include <stdbool.h>

#define WAITER_SOURCES 7

struct waiter {
    int epoll; /* -1: closed */
    int descriptor[WAITER_SOURCES];
    bool used[WAITER_SOURCES], pending[WAITER_SOURCES];
};

/** False with errno. */
bool waiter_open(struct waiter *waiter);
void waiter_close(struct waiter *waiter);

/** Watches a ZeroMQ socket as source number `at`, pending at first. False with errno. */
bool waiter_add(struct waiter *waiter, unsigned at, void *socket);

/** The same for a descriptor. */
bool waiter_add_descriptor(struct waiter *waiter, unsigned at, int descriptor);

/** To be called before the source's socket is closed; nothing happens if there is none. */
void waiter_remove(struct waiter *waiter, unsigned at);

/** Looks which sources have something to say, and marks them pending. */
void waiter_look(struct waiter *waiter);

/** True if any source is pending. */
bool waiter_any(const struct waiter *waiter);

#endif
