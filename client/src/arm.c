/*
 * A descriptor for programs that sleep in a loop of their own: an epoll instance, because it stays
 * the same when the rank comes back and its socket is another one. While the rank is away and its
 * next attempt to connect has to wait, the descriptor becomes readable when it is time for that.
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "client/src/clock.h"
#include "client/src/comeback.h"

#define ARM_SECOND_NS 1000000000u

static bool arm_show(const adtopk_context *context, int shown)
{
    struct epoll_event event = {.events = EPOLLIN};

    return epoll_ctl(context->sharing.descriptor, EPOLL_CTL_ADD, shown, &event) == 0;
}

/* Sets the alarm; 0: none. This fails for no valid time. */
static void arm_alarm(const adtopk_context *context, uint64_t at_ns)
{
    const struct itimerspec at = {.it_value = {.tv_sec = (time_t)(at_ns / ARM_SECOND_NS),
                                      .tv_nsec = (long)(at_ns % ARM_SECOND_NS)}};

    (void)timerfd_settime(context->sharing.alarm, TFD_TIMER_ABSTIME, &at, NULL);
}

void client_descriptor_hide(const adtopk_context *context)
{
    if (context->sharing.descriptor >= 0) { /* fails if it is hidden already */
        (void)epoll_ctl(context->sharing.descriptor, EPOLL_CTL_DEL, context->socket, NULL);
    }
}

enum adtopk_status client_descriptor_show(adtopk_context *context)
{
    if (context->sharing.descriptor < 0) {
        return ADTOPK_OK;
    }
    if (!context->sharing.called) {
        arm_alarm(context, 0);
    }
    return arm_show(context, context->socket)
               ? ADTOPK_OK
               : client_fail(context, ADTOPK_ERR_SYSTEM, "epoll_ctl failed: %s", strerror(errno));
}

void client_descriptor_call(adtopk_context *context)
{
    if (context->sharing.descriptor >= 0) {
        context->sharing.called = true;
        arm_alarm(context, 1);
    }
}

void client_descriptor_close(adtopk_context *context)
{
    int *const both[] = {&context->sharing.descriptor, &context->sharing.alarm};

    for (unsigned i = 0; i < 2; i++) {
        if (*both[i] >= 0) {
            (void)close(*both[i]);
            *both[i] = -1;
        }
    }
}

static enum adtopk_status arm_check(adtopk_context *context, const char *call)
{
    const enum adtopk_status status = client_enter(context);

    if (status == ADTOPK_OK && context->socket < 0) {
        return client_refuse(context, ADTOPK_ERR_ARGUMENT,
            "%s: a tcp:// address has no descriptor; use calls with a time-out", call);
    }
    return status;
}

static enum adtopk_status arm_make(adtopk_context *context)
{
    struct client_sharing *sharing = &context->sharing;
    int reason;

    sharing->alarm = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    sharing->descriptor = sharing->alarm >= 0 ? epoll_create1(EPOLL_CLOEXEC) : -1;
    if (sharing->descriptor >= 0 && arm_show(context, sharing->alarm) &&
        arm_show(context, context->socket)) {
        return ADTOPK_OK;
    }
    reason = errno;
    client_descriptor_close(context);
    return client_refuse(
        context, ADTOPK_ERR_SYSTEM, "adtopk_descriptor() has none: %s", strerror(reason));
}

static enum adtopk_status arm_descriptor(adtopk_context *context, int *descriptor)
{
    enum adtopk_status status = arm_check(context, "adtopk_descriptor()");

    if (status == ADTOPK_OK && descriptor == NULL) {
        status =
            client_refuse(context, ADTOPK_ERR_ARGUMENT, "adtopk_descriptor(): descriptor is NULL");
    }
    if (status == ADTOPK_OK && context->sharing.descriptor < 0) {
        status = arm_make(context);
    }
    if (status == ADTOPK_OK) {
        *descriptor = context->sharing.descriptor;
    }
    return status;
}

enum adtopk_status adtopk_descriptor(adtopk_context *context, int *descriptor)
{
    client_lock(context);
    return client_unlock(context, arm_descriptor(context, descriptor));
}

/* The program has come. */
static void arm_answer(adtopk_context *context)
{
    if (context->sharing.called) {
        context->sharing.called = false;
        arm_alarm(context, 0);
    }
}

/* The next attempt to connect may be due at once. */
static void arm_away(const adtopk_context *context)
{
    if (context->sharing.descriptor >= 0) {
        client_descriptor_hide(context);
        arm_alarm(context, context->comeback.again_ns > 0 ? context->comeback.again_ns : 1);
    }
}

/* A rank that comes back submits its step again, which may have more entries than the ring takes.
 */
static bool arm_may_submit(const adtopk_context *context)
{
    return context->comeback.stage == CLIENT_SUBMITS && ring_writer_has_room(&context->ring);
}

/* Before the end of adtopk_commit() the socket brings answers, and only adtopk_commit() may take
 * them. */
static enum adtopk_status arm(adtopk_context *context)
{
    enum adtopk_status status = arm_check(context, "adtopk_arm()");

    if (status == ADTOPK_OK) {
        arm_answer(context);
    }
    if (status == ADTOPK_OK && context->comeback.stage == CLIENT_AWAY) {
        arm_away(context);
    }
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
    context->sharing.armed_ns = client_now_ns();
    /* Before the caller looks, so that one of the two sides sees what the other wrote. */
    ring_writer_sleep(&context->ring);
    if (atomic_load(&context->ring.page->progress) == context->sharing.seen &&
        !arm_may_submit(context)) {
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
