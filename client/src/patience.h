/*
 * How long a call waits, and which other threads use the context meanwhile.
 *
 * Every call holds the context's lock except while it waits. So one thread may wait for updates
 * while another pushes. The waiting thread sleeps on descriptors and reads only the page of
 * counters, which is atomic. adtopk_close() ends the calls of other threads through a descriptor of
 * its own.
 */
#ifndef ADTOPK_CLIENT_PATIENCE_H
#define ADTOPK_CLIENT_PATIENCE_H

#include <poll.h>

#include "client/src/context.h"

#define PATIENCE_FOR_EVER UINT64_MAX

struct client_patience {
    uint64_t deadline_ns; /* 0: only look; PATIENCE_FOR_EVER: no deadline */
    bool interruptible;   /* a signal ends the wait */
};

/** The patience of a call with this time-out; a negative time-out means no deadline. */
struct client_patience client_patience(const adtopk_context *context, int timeout_ms);

/** The patience of a wait with this time-out that signals do not end. */
struct client_patience client_stubborn(int timeout_ms);

/** Lock and unlock the context for a call. They do nothing in a forked child, or if the context is
 * NULL. The second returns `status`. */
void client_lock(const adtopk_context *context);
enum adtopk_status client_unlock(const adtopk_context *context, enum adtopk_status status);

/** Lets go of the lock in the middle of a call, and takes it back. In between a call may sleep and
 * read the page. adtopk_close() frees the context only when no call has let go of the lock, so each
 * call looks at client_wait_may_go_on() before it lets go again. */
void client_let_go(adtopk_context *context);
void client_take_back(adtopk_context *context);

/** For a call that takes the lock often: with the lock, at its beginning and at its end. In between
 * adtopk_close() does not free the context. Each part of the call looks at client_wait_may_go_on().
 */
void client_parts_begin(adtopk_context *context);
void client_parts_end(adtopk_context *context);

/** Notes that this thread is going to wait. Errors: STATE (another thread waits already, or calls
 * adtopk_close()). */
enum adtopk_status client_wait_begin(adtopk_context *context);
void client_wait_end(adtopk_context *context);

/** For a call that goes on to the next step or operation when it has waited: while another thread
 * waits, that is for the other thread to do. Errors: PENDING (the call only looks), STATE. */
enum adtopk_status client_wait_may_take(
    adtopk_context *context, const struct client_patience *patience);

/** Wakes the thread that waits, if there is one. */
void client_wait_wake(adtopk_context *context);

/** For adtopk_close(): ends the calls of other threads that have let go of the lock. */
void client_end_calls(adtopk_context *context);

/** Sleeps without the lock until a descriptor is readable or client_wait_wake() was called. Returns
 * ADTOPK_OK then, ADTOPK_PENDING when the patience is over, ADTOPK_INTERRUPTED if a signal came. A
 * wait that is not interruptible returns ADTOPK_OK after a signal. The function fills in
 * descriptor[0], its caller the others. */
enum adtopk_status client_sleep(adtopk_context *context, struct pollfd *descriptor, nfds_t count,
    const struct client_patience *patience);

/** Submits an entry after the entries that other threads are submitting. A push may wait for room,
 * and the end of its step must not overtake it. Errors: what ends the context, INTERRUPTED (nothing
 * was submitted), STATE (another thread calls adtopk_close()). */
enum adtopk_status client_hand_in(adtopk_context *context, const struct local_entry *entry);

/** ADTOPK_OK, or the error that ends every wait: the session's failure, or adtopk_close() in
 * another thread. */
enum adtopk_status client_wait_may_go_on(adtopk_context *context);

#endif
