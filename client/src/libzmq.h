/*
 * libzmq, opened at run time: only a tcp:// address needs it, and a trainer on the daemon's node
 * should not have to install it. Types and constants come from zmq.h.
 */
#ifndef ADTOPK_CLIENT_LIBZMQ_H
#define ADTOPK_CLIENT_LIBZMQ_H

#include <zmq.h>

#include "proto/error.h"

/* The functions that the library calls. */
#define LIBZMQ_FUNCTIONS(X)                                                                        \
    X(close)                                                                                       \
    X(connect)                                                                                     \
    X(ctx_new)                                                                                     \
    X(ctx_term)                                                                                    \
    X(curve_public)                                                                                \
    X(getsockopt)                                                                                  \
    X(msg_close)                                                                                   \
    X(msg_data)                                                                                    \
    X(msg_init)                                                                                    \
    X(msg_more)                                                                                    \
    X(msg_recv)                                                                                    \
    X(msg_size)                                                                                    \
    X(poll)                                                                                        \
    X(recv)                                                                                        \
    X(send)                                                                                        \
    X(setsockopt)                                                                                  \
    X(socket)                                                                                      \
    X(socket_monitor)                                                                              \
    X(strerror)

struct libzmq {
#define LIBZMQ_FIELD(name) __typeof__(zmq_##name) *name;
    LIBZMQ_FUNCTIONS(LIBZMQ_FIELD)
#undef LIBZMQ_FIELD
};

/** Opens libzmq, once per process, and never closes it. NULL and err if it is not installed:
 * SYSTEM, naming the library and the problem. Any thread may call it. */
const struct libzmq *client_libzmq(struct error *err);

#endif
