#include "client/src/libzmq.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

/* The name of the library that version 4 of zmq.h describes. */
#define LIBZMQ_NAME "libzmq.so.5"

static pthread_once_t libzmq_once = PTHREAD_ONCE_INIT;
static struct libzmq libzmq;
static struct error libzmq_error;

static bool libzmq_find(void *library, const char *name, void *function)
{
    void *found = dlsym(library, name);

    /* ISO C cannot convert a pointer to an object into one to a function. */
    memcpy(function, &found, sizeof found);
    if (found == NULL) {
        (void)error_set(&libzmq_error, ADTOPK_ERR_SYSTEM,
            "a tcp:// address needs " LIBZMQ_NAME ", and the one of this machine has no %s", name);
    }
    return found != NULL;
}

static void libzmq_open(void)
{
    void *library = dlopen(LIBZMQ_NAME, RTLD_NOW | RTLD_LOCAL);

    if (library == NULL) {
        (void)error_set(&libzmq_error, ADTOPK_ERR_SYSTEM,
            "a tcp:// address needs " LIBZMQ_NAME " (Debian: libzmq5), which cannot be opened: %s",
            dlerror());
        return;
    }
#define LIBZMQ_FIND(name)                                                                          \
    if (!libzmq_find(library, "zmq_" #name, &libzmq.name)) {                                       \
        return;                                                                                    \
    }
    LIBZMQ_FUNCTIONS(LIBZMQ_FIND)
#undef LIBZMQ_FIND
}

const struct libzmq *client_libzmq(struct error *err)
{
    (void)pthread_once(&libzmq_once, libzmq_open); /* cannot fail */
    if (libzmq_error.code != ADTOPK_OK) {
        *err = libzmq_error;
        return NULL;
    }
    return &libzmq;
}
