/*
 * The ways in which a context reaches its daemon: one table of operations per way, chosen by the
 * address.
 *
 *   unix:   local.c    a socket, and memory that both sides share
 *   tcp://  remote.c   messages over ZeroMQ, and memory of this process alone
 *
 * Both ways show the daemon's progress in context->ring.page, so the files above this table do not
 * know the difference. Operations that return a status end the context (client_fail()) on an error,
 * unless their comment says otherwise.
 */
#ifndef ADTOPK_CLIENT_TRANSPORT_H
#define ADTOPK_CLIENT_TRANSPORT_H

#include "client/src/patience.h"

/* How far the thread of watch.c is with a rank whose daemon has gone away. */
enum client_tending {
    CLIENT_IS_TENDED,   /* the rank is back, and has settled there */
    CLIENT_TENDS,       /* it is on its way */
    CLIENT_TENDS_LATER, /* a call of another thread has the context, or the device is at work */
    CLIENT_FAILED       /* the context has failed */
};

struct client_transport {
    /* Reaches the daemon. Waits for it as long as the options say. Errors: in err only. */
    enum adtopk_status (*connect)(
        adtopk_context *context, const struct client_options *options, struct error *err);
    /* Does what client_send() does. */
    enum adtopk_status (*send)(adtopk_context *context, const Adtopk__LocalRequest *request,
        const struct client_patience *patience);
    /* Does what client_receive() does, in a thread that waits (client_wait_begin()). `reply` is
     * empty.
     */
    enum adtopk_status (*receive)(adtopk_context *context, const struct client_patience *patience,
        struct client_reply *reply);
    /* Sets up the memory that an answer announces. The answer to open brings the page, the answer
     * to commit the gradients, and the end of the commit the results. */
    enum adtopk_status (*opened)(adtopk_context *context, const struct client_reply *reply);
    enum adtopk_status (*arena)(adtopk_context *context, const struct client_reply *reply);
    enum adtopk_status (*ready)(adtopk_context *context, const struct client_reply *reply);
    /* Submits an entry. May wait until the daemon has taken earlier ones, but not for an exchange.
     */
    enum adtopk_status (*submit)(adtopk_context *context, const struct local_entry *entry);
    /* Does what client_wait() does. */
    enum adtopk_status (*wait)(adtopk_context *context, client_done *done, uint64_t argument,
        const struct client_patience *patience);
    /* Sets the pointers to the forms of an update that is there. */
    void (*update)(const adtopk_context *context, uint32_t tensor, struct adtopk_update *update);
    /* Whether nothing can withdraw the tensor's last update any more, whatever becomes of its step.
     */
    bool (*is_final)(const adtopk_context *context, uint32_t tensor);
    /* Optional. Points at the residual with which the rank looks ahead, if there is one. */
    enum adtopk_status (*pending)(
        adtopk_context *context, uint32_t tensor, struct adtopk_update *update);
    /* Does what client_miss() does. */
    enum adtopk_status (*come_back)(
        adtopk_context *context, const struct client_patience *patience);
    /* The steps in which a rank comes back to another daemon (comeback.h). Connects; the next stage
     * shows that it has. Then what opened, arena, ready and submit do, for memory that the program
     * has already. They also return UNREACHABLE if that daemon went away, too. */
    enum adtopk_status (*reconnect)(adtopk_context *context);
    enum adtopk_status (*reopened)(adtopk_context *context, const struct client_reply *reply);
    enum adtopk_status (*rearena)(
        adtopk_context *context, const struct client_reply *reply, unsigned batch);
    enum adtopk_status (*reready)(
        adtopk_context *context, const struct client_reply *reply, unsigned batch);
    enum adtopk_status (*resubmit)(adtopk_context *context, const struct client_patience *patience,
        const struct local_entry *entry);
    /* Does what client_tend() does. */
    enum client_tending (*tend)(adtopk_context *context);
    /* The descriptor that shows the connection's end, and what to poll it for. It stays the same
     * when the rank comes back. Any thread. */
    struct pollfd (*end)(const adtopk_context *context);
    /* Takes what the daemon has sent, if no thread waits. The rank is away if that is over. */
    enum adtopk_status (*drain)(adtopk_context *context);
    /* Frees everything that the operations above made. `ours`: false in a forked child. */
    void (*close)(adtopk_context *context, bool ours);
};

extern const struct client_transport client_local;
extern const struct client_transport client_remote;

#endif
