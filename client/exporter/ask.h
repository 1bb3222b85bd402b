/*
 * One request to the daemon's control socket, answered through the loop.
 *
 * The happy path: ask_start() connects and sends; whenever a piece of the answer is there, the loop
 * has it read; the last piece calls `done` with the document.
 * Failures: no daemon, or one whose queue is full, is told by ask_start() itself. A daemon that
 * goes away, or does not answer in time, is told to `done`.
 */
#ifndef ADTOPK_EXPORTER_ASK_H
#define ADTOPK_EXPORTER_ASK_H

#include <uv.h>

#include "client/control/exchange.h"

#define ASK_PATIENCE_MS 5000 /* for the answers to all questions of a snapshot */

/** Gets the answer, once: `document` with status OK, to be freed by the receiver; otherwise NULL,
 * and err says why. refused: the daemon itself answered with that error. Never called by
 * ask_start(). */
typedef void ask_done(
    void *owner, enum adtopk_status status, bool refused, char *document, const struct error *err);

/** Asks the daemon at `path`, which must live until `done` was called. end_ms: when the answer is
 * too late, as uv_now() tells it. Errors: those of control_open() and control_send(), TIMEOUT (the
 * daemon's queue of connections is full), MEMORY; then nothing was begun. */
enum adtopk_status ask_start(uv_loop_t *loop, const char *path,
    const Adtopk__ControlRequest *request, uint64_t end_ms, ask_done *done, void *owner,
    struct error *err);

#endif
