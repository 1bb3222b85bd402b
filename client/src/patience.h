/*
 * How long a call waits, and who else uses the context meanwhile.
 *
 * Every call holds the context's lock but while it waits. So one thread may wait for updates while
 * another pushes: the thread that waits reads only the page of counters, which is atomic, and
 * sleeps on descriptors. adtopk_close() ends a wait through a descriptor of its own.
 */
#ifndef ADTOPK_CLIENT_PATIENCE_H
#define ADTOPK_CLIENT_PATIENCE_H

#include <poll.h>

#include "client/src/context.h"

#define PATIENCE_FOR_EVER UINT64_MAX

struct client_patience {
    uint64_t deadline_ns; /* 0: only look; PATIENCE_FOR_EVER: none */
    bool interruptible;   /* a signal ends the wait */
};

/** The patience of a call with this time-out, which is negative for none. */
struct client_patience client_patience(const adtopk_context *context, int timeout_ms);

/** The same for a wait that signals do not end. */
struct client_patience client_stubborn(int timeout_ms);

/** Takes the context for a call, and gives it back; nothing in a forked child or of NULL. The
 * second returns `status`. */
void client_lock(const adtopk_context *context);
enum adtopk_status client_unlock(const adtopk_context *context, enum adtopk_status status);

/** Says that this thread is going to wait. Errors: STATE (another thread waits already). */
enum adtopk_status client_wait_begin(adtopk_context *context);
void client_wait_end(adtopk_context *context);

/** Wakes the thread that waits, if there is one. */
void client_wait_wake(adtopk_context *context);

/** Sleeps without the lock until a descriptor is readable or client_wait_wake() was called:
 * ADTOPK_OK. ADTOPK_PENDING: the patience is over. ADTOPK_INTERRUPTED: a signal came. An
 * interruptible wait ends with each signal, another goes on, which is ADTOPK_OK too. descriptor[0]
 * is the function's own; its caller fills the others. */
enum adtopk_status client_sleep(adtopk_context *context, struct pollfd *descriptor, nfds_t count,
    const struct client_patience *patience);

/** Submits an entry after those that other threads are submitting: a push may wait for room, and
 * the end of its step must not overtake it. Errors: what ends the context. */
enum adtopk_status client_hand_in(adtopk_context *context, const struct local_entry *entry);

/** ADTOPK_OK, or what ends every wait: the session's failure, or adtopk_close() of another thread.
 */
enum adtopk_status client_wait_may_go_on(adtopk_context *context);

#endif
