/*
 * Questions between two steps, about residuals and their memory: one message each way, and one
 * question at a time.
 *
 * Each question has a number, by which the library recognises, and drops, an answer for which no
 * call waits any more. The daemon may be busy with the residuals: then the question is asked again
 * after a pause.
 *
 * Only the caller's patience ends the wait for a daemon that is stopped or stuck, as in every call
 * that waits for a step. A daemon that ends is noticed at once.
 */
#ifndef ADTOPK_CLIENT_QUESTION_H
#define ADTOPK_CLIENT_QUESTION_H

#include "client/src/transport.h"

/** Sends a question and waits for its answer. Its number is unfinished.asked + 1. It is not sent
 * while the answer to an earlier one is still to come. Where the daemon went away, it comes back:
 * reply->message is NULL then, and the caller asks again. Errors: as client_send() and
 * client_receive(). */
enum adtopk_status client_question(adtopk_context *context, const Adtopk__LocalRequest *request,
    const struct client_patience *patience, struct client_reply *reply);

/** The daemon is busy: waits a moment, without the lock. Errors: PENDING, INTERRUPTED, and those of
 * client_wait_may_go_on(). */
enum adtopk_status client_question_pause(
    adtopk_context *context, const struct client_patience *patience);

/** A piece of what a checkpoint keeps (LocalKeep). */
struct client_piece {
    uint32_t section; /* enum local_section */
    uint32_t tensor, residual;
    uint64_t first;
    uint32_t count;
    bool writes;
    const void *in; /* writing: `size` bytes */
    void *out;      /* reading: room for `size` bytes; then `size` is how many came */
    size_t size;
};

/** Reads or writes a piece. Waits while the daemon is busy, and for a daemon that comes back.
 * Errors: those of the daemon (daemon/compute/keeping.h), and what ends the context. */
enum adtopk_status client_keep(adtopk_context *context, struct client_piece *piece);

#endif
