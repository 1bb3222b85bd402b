/* A descriptor for programs that sleep in a loop of their own. */
#include "client/src/transport.h"

static enum adtopk_status arm_check(adtopk_context *context, const char *call)
{
    const enum adtopk_status status = client_enter(context);

    if (status == ADTOPK_OK && context->socket < 0) {
        return client_refuse(context, ADTOPK_ERR_ARGUMENT,
            "%s: a tcp:// address has no descriptor; use calls with a time-out", call);
    }
    return status;
}

static enum adtopk_status arm_descriptor(adtopk_context *context, int *descriptor)
{
    enum adtopk_status status = arm_check(context, "adtopk_descriptor()");

    if (status == ADTOPK_OK && descriptor == NULL) {
        status =
            client_refuse(context, ADTOPK_ERR_ARGUMENT, "adtopk_descriptor(): descriptor is NULL");
    }
    if (status == ADTOPK_OK) {
        *descriptor = context->socket;
    }
    return status;
}

enum adtopk_status adtopk_descriptor(adtopk_context *context, int *descriptor)
{
    client_lock(context);
    return client_unlock(context, arm_descriptor(context, descriptor));
}

/* Before the end of adtopk_commit() the socket brings answers, and only adtopk_commit() may take
 * them. */
static enum adtopk_status arm(adtopk_context *context)
{
    enum adtopk_status status = arm_check(context, "adtopk_arm()");

    if (status != ADTOPK_OK || context->commit != CLIENT_COMMIT_DONE) {
        return status == ADTOPK_OK ? ADTOPK_PENDING : status;
    }
    client_withdraw(context);
    status = client_wait_begin(context); /* refuses if another thread waits */
    if (status != ADTOPK_OK) {
        return status;
    }
    client_wait_end(context);
    context->sharing.armed = true;
    /* Before the caller looks, so that one of the two sides sees what the other wrote. */
    ring_writer_sleep(&context->ring);
    if (atomic_load(&context->ring.page->progress) == context->sharing.seen) {
        status = client_check_page(context);
        return status == ADTOPK_OK ? ADTOPK_PENDING : status;
    }
    return client_disarm(context);
}

enum adtopk_status adtopk_arm(adtopk_context *context)
{
    client_lock(context);
    return client_unlock(context, arm(context));
}
