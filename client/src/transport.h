/*
 * How a context reaches its daemon: one table of operations a way, chosen by the address.
 *
 *   unix:   local.c    a socket, and memory that both sides share
 *   tcp://  remote.c   messages over ZeroMQ, and memory of this process alone
 *
 * Either way the daemon's progress can be read in context->ring.page, so whatever sits above this
 * table does not know the difference. Operations that return a status end the context
 * (client_fail()) where they do not say otherwise.
 */
#ifndef ADTOPK_CLIENT_TRANSPORT_H
#define ADTOPK_CLIENT_TRANSPORT_H

#include "client/src/patience.h"

struct client_transport {
    /* Reaches the daemon, waiting for it as long as the options say. Errors: in err only. */
    enum adtopk_status (*connect)(
        adtopk_context *context, const struct client_options *options, struct error *err);
    /* As client_send(). */
    enum adtopk_status (*send)(adtopk_context *context, const Adtopk__LocalRequest *request,
        const struct client_patience *patience);
    /* As client_receive(). */
    enum adtopk_status (*receive)(adtopk_context *context, const struct client_patience *patience,
        struct client_reply *reply);
    /* Sets up what belongs to an answer: to open the page, to commit the gradients, to its end the
     * results. */
    enum adtopk_status (*opened)(adtopk_context *context, const struct client_reply *reply);
    enum adtopk_status (*arena)(adtopk_context *context, const struct client_reply *reply);
    enum adtopk_status (*ready)(adtopk_context *context, const struct client_reply *reply);
    /* Submits an entry; may wait for the daemon to take earlier ones, not for an exchange. */
    enum adtopk_status (*submit)(adtopk_context *context, const struct local_entry *entry);
    /* As client_wait(). */
    enum adtopk_status (*wait)(adtopk_context *context, client_done *done, uint64_t argument,
        const struct client_patience *patience);
    /* Points at the forms of an update that is there. */
    void (*update)(const adtopk_context *context, uint32_t tensor, struct adtopk_update *update);
    /* Whether the tensor's last update is not withdrawn any more, whatever becomes of its step. */
    bool (*is_final)(const adtopk_context *context, uint32_t tensor);
    /* Optional. Points at the residual with which the rank looks ahead, if there is one. */
    enum adtopk_status (*pending)(
        adtopk_context *context, uint32_t tensor, struct adtopk_update *update);
    /* Lets go of everything that the operations above made. `ours`: false in a forked child. */
    void (*close)(adtopk_context *context, bool ours);
};

extern const struct client_transport client_local;
extern const struct client_transport client_remote;

#endif
