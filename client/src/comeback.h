/*
 * Coming back to a run after the daemon on this node was killed and started again.
 *
 * Happy path: the connection breaks. The library connects to the new daemon, joins the run with the
 * same tensors, committed in the same batches, and maps the new memory at the old addresses, so
 * that pointers stay valid. Then it submits the entries of the open step again. The daemon knows
 * what it has of them, and does nothing twice.
 *
 * Only one thing is not mapped at once: the gradient arenas, because the program may be writing to
 * them. Until the step is over every push copies the tensor to the new arena. Then the rest is
 * copied, and the new arena takes the place of the old one. Those on a GPU are in beside.c.
 *
 * A rank that was committing another batch commits it again, too. The old daemon may have put it in
 * force, or another node may have. Then the new daemon needs it at once. adtopk_commit() goes on to
 * wait for the batch to be ready.
 *
 * If a connection breaks again before the rank is back, the next attempt waits a little, and longer
 * each time: something may accept connections that cannot serve them.
 *
 * What can go wrong: the daemon keeps no store, no daemon is started within return_timeout_ms,
 * those that are started end before the rank is back, or the new one has lost the run. Then the
 * context ends, with a sentence that says so.
 */
#ifndef ADTOPK_CLIENT_COMEBACK_H
#define ADTOPK_CLIENT_COMEBACK_H

#include "client/src/transport.h"

/** Whether the rank is on its way back. */
static inline bool client_is_away(const adtopk_context *context)
{
    return context->comeback.stage != CLIENT_HERE;
}

/** Whether a call failed only because the daemon went away: the rank is away, and comes back. */
static inline bool client_went_away(const adtopk_context *context, enum adtopk_status status)
{
    return status == ADTOPK_ERR_UNREACHABLE && context->failure.code == ADTOPK_OK;
}

/** The connection has ended. ADTOPK_OK: the rank is away from now on. Otherwise ends the context.
 * `hint` goes behind the sentence. */
enum adtopk_status client_go_away(adtopk_context *context, const char *hint);

/** Comes back, as far as `patience` allows; ADTOPK_OK at once if the rank is not away. Only the
 * thread that waits (client_wait_begin()) may call it. Errors: what ends the context, PENDING,
 * INTERRUPTED. */
enum adtopk_status client_come_back(
    adtopk_context *context, const struct client_patience *patience);

/** The same for a call that misses the daemon: from the first one on, the rank gives up in time. */
enum adtopk_status client_miss(adtopk_context *context, const struct client_patience *patience);

/** The same for a thread that does not wait yet (wait.c). */
enum adtopk_status client_be_here(adtopk_context *context, const struct client_patience *patience);

/** Between two attempts to connect. After connections that broke before the rank was back the pause
 * doubles from one to the next, up to the longest one: a daemon that is started meanwhile is found
 * within 3 s. */
#define CLIENT_COMEBACK_PAUSE_NS UINT64_C(20000000)
#define CLIENT_COMEBACK_LONGEST_NS UINT64_C(1000000000)

/** Ends the context if no daemon was started in time. (away.c) */
enum adtopk_status client_comeback_late(adtopk_context *context);

/** The same if none was there. Else the next attempt to connect comes after a moment. (away.c) */
enum adtopk_status client_comeback_later(adtopk_context *context);

/** Counts the time for which the rank waits for another daemon from now on, unless a call has
 * missed the daemon already. (away.c) */
void client_comeback_put_off(adtopk_context *context);

/** The operations of the transport to a daemon on this machine (comeback_local.c). */
enum adtopk_status client_local_reconnect(adtopk_context *context);
enum adtopk_status client_local_reopened(adtopk_context *context, const struct client_reply *reply);
enum adtopk_status client_local_rearena(
    adtopk_context *context, const struct client_reply *reply, unsigned batch);
enum adtopk_status client_local_reready(
    adtopk_context *context, const struct client_reply *reply, unsigned batch);
enum adtopk_status client_local_resubmit(adtopk_context *context,
    const struct client_patience *patience, const struct local_entry *entry);

/** A call that comes back looks after so many bytes whether its time is over. */
#define CLIENT_COMEBACK_PIECE UINT64_C(8388608)

/** Copies what an entry submits from host memory to the new gradient arena, if there is one.
 * Returns how many bytes these were. */
uint64_t client_copy_entry(adtopk_context *context, const struct local_entry *entry);

/** Lets the kernel map the pages of the next piece of the new arenas at once. A copy would need
 * twice as long if it met each page for the first time. False: all were mapped. */
bool client_touch_arenas(adtopk_context *context);

/** The next daemon's arena of this batch has no gradients yet. */
void client_forget_moved(adtopk_context *context, unsigned batch);

/** Notes an entry that is submitted, so that it can be submitted again. */
enum adtopk_status client_note_entry(adtopk_context *context, const struct local_entry *entry);

/** Forgets the entry that was noted last, because it was not submitted after all. */
void client_forget_entry(adtopk_context *context, const struct local_entry *entry);

/** The step is over: new gradient arenas take the place of the old ones. Errors: what ends the
 * context. */
enum adtopk_status client_settle_arenas(adtopk_context *context);

/** Frees everything. */
void client_drop_comeback(adtopk_context *context);

#endif
