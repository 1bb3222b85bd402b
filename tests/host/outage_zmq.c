/*
 * Calls to libzmq that fail as a test has planned. The client library finds them by their names at
 * run time, so dlsym() is wrapped, too.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <zmq.h>

#include "tests/host/outage.h"

void *__real_zmq_ctx_new(void);
void *__real_zmq_socket(void *context, int type);
int __real_zmq_msg_init_size(zmq_msg_t *message, size_t size);
int __real_zmq_bind(void *socket, const char *endpoint);
int __real_zmq_connect(void *socket, const char *endpoint);
int __real_zmq_getsockopt(void *socket, int option, void *value, size_t *size);
int __real_zmq_msg_recv(zmq_msg_t *message, void *socket, int flags);
int __real_zmq_msg_send(zmq_msg_t *message, void *socket, int flags);
int __real_zmq_recv(void *socket, void *bytes, size_t size, int flags);
int __real_zmq_send(void *socket, const void *bytes, size_t size, int flags);
int __real_zmq_poll(zmq_pollitem_t *items, int count, long timeout);
void *__real_dlsym(void *library, const char *name);
void *__wrap_zmq_ctx_new(void);
void *__wrap_zmq_socket(void *context, int type);
int __wrap_zmq_msg_init_size(zmq_msg_t *message, size_t size);
int __wrap_zmq_bind(void *socket, const char *endpoint);
int __wrap_zmq_connect(void *socket, const char *endpoint);
int __wrap_zmq_getsockopt(void *socket, int option, void *value, size_t *size);
int __wrap_zmq_msg_recv(zmq_msg_t *message, void *socket, int flags);
int __wrap_zmq_msg_send(zmq_msg_t *message, void *socket, int flags);
int __wrap_zmq_recv(void *socket, void *bytes, size_t size, int flags);
int __wrap_zmq_send(void *socket, const void *bytes, size_t size, int flags);
int __wrap_zmq_poll(zmq_pollitem_t *items, int count, long timeout);
void *__wrap_dlsym(void *library, const char *name);

static bool signal_ends(void)
{
    return outage_fails(OUTAGE_SIGNALS, EINTR);
}

void *__wrap_zmq_ctx_new(void)
{
    return outage_fails(OUTAGE_DESCRIPTORS, EMFILE) ? NULL : __real_zmq_ctx_new();
}

void *__wrap_zmq_socket(void *context, int type)
{
    return outage_fails(OUTAGE_DESCRIPTORS, EMFILE) ? NULL : __real_zmq_socket(context, type);
}

int __wrap_zmq_msg_init_size(zmq_msg_t *message, size_t size)
{
    return outage_fails(OUTAGE_MEMORY, ENOMEM) ? -1 : __real_zmq_msg_init_size(message, size);
}

/* These begin with the commands that wait for the socket, and a signal may end that. */

int __wrap_zmq_bind(void *socket, const char *endpoint)
{
    return signal_ends() ? -1 : __real_zmq_bind(socket, endpoint);
}

int __wrap_zmq_connect(void *socket, const char *endpoint)
{
    return signal_ends() ? -1 : __real_zmq_connect(socket, endpoint);
}

int __wrap_zmq_getsockopt(void *socket, int option, void *value, size_t *size)
{
    return option == ZMQ_EVENTS && signal_ends()
               ? -1
               : __real_zmq_getsockopt(socket, option, value, size);
}

int __wrap_zmq_msg_recv(zmq_msg_t *message, void *socket, int flags)
{
    return signal_ends() ? -1 : __real_zmq_msg_recv(message, socket, flags);
}

int __wrap_zmq_msg_send(zmq_msg_t *message, void *socket, int flags)
{
    return signal_ends() ? -1 : __real_zmq_msg_send(message, socket, flags);
}

int __wrap_zmq_recv(void *socket, void *bytes, size_t size, int flags)
{
    return signal_ends() ? -1 : __real_zmq_recv(socket, bytes, size, flags);
}

int __wrap_zmq_send(void *socket, const void *bytes, size_t size, int flags)
{
    return signal_ends() ? -1 : __real_zmq_send(socket, bytes, size, flags);
}

int __wrap_zmq_poll(zmq_pollitem_t *items, int count, long timeout)
{
    return signal_ends() ? -1 : __real_zmq_poll(items, count, timeout);
}

/* ISO C cannot convert a pointer to a function into one to an object. */
#define WRAPPED(function)                                                                          \
    if (strcmp(name, #function) == 0) {                                                            \
        __typeof__(function) *wrapped = __wrap_##function;                                         \
        void *address;                                                                             \
        memcpy(&address, &wrapped, sizeof(address));                                               \
        return address;                                                                            \
    }

static void *zmq_wrapped(const char *name)
{
    WRAPPED(zmq_ctx_new)
    WRAPPED(zmq_socket)
    WRAPPED(zmq_connect)
    WRAPPED(zmq_getsockopt)
    WRAPPED(zmq_msg_recv)
    WRAPPED(zmq_recv)
    WRAPPED(zmq_send)
    WRAPPED(zmq_poll)
    return NULL;
}

/* clang's TSan follows calls of functions that it does not watch, except those with this attribute.
 */
#if __has_attribute(disable_sanitizer_instrumentation)
#define UNWATCHED                                                                                  \
    __attribute__((no_sanitize("address", "undefined"), disable_sanitizer_instrumentation))
#else
#define UNWATCHED __attribute__((no_sanitize("address", "thread", "undefined")))
#endif

/* The runtime of a sanitizer asks before it can serve code that it watches, and by no library. */
UNWATCHED void *__wrap_dlsym(void *library, const char *name)
{
    void *const found = library == RTLD_DEFAULT || library == RTLD_NEXT ? NULL : zmq_wrapped(name);

    return found != NULL ? found : __real_dlsym(library, name);
}
