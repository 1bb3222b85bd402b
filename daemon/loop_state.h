/*
 * The loop's state, shared by the files that make up the loop: loop.c takes turns, loop_open.c
 * opens and closes what it drives. Nobody else includes this.
 */
#ifndef ADTOPK_LOOP_STATE_H
#define ADTOPK_LOOP_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "daemon/admin/control.h"
#include "daemon/admin/history.h"
#include "daemon/core/core.h"
#include "daemon/local/local.h"
#include "daemon/loop.h"
#include "daemon/remote/remote.h"
#include "daemon/spin.h"
#include "daemon/transport/transport.h"
#include "daemon/watch.h"
#include "daemon/workers.h"

struct loop {
    const struct config *config;
    struct log *log;
    uv_loop_t uv;
    struct core *core;
    struct local *local;
    struct remote *remote; /* NULL without `trainers_listen` */
    struct control *control;
    struct history history;
    struct workers *workers;
    void *transport; /* NULL without `listen` */

    uv_async_t worker_done;
    uv_poll_t transport_ready;
    uv_timer_t deadline;
    uv_timer_t watch;
    uv_signal_t terminate;
    uv_signal_t interrupt;
    bool handles_open; /* all of the above but transport_ready */
    struct watch *watcher;

    unsigned received; /* packets in this pump */
    bool stopping;
    struct spin spin;
    uint64_t polled_us; /* uv_run() was called last */
};
/** Microseconds of the monotonic clock. */
uint64_t loop_now_us(void);

/* What the modules around the core call; `context` is the loop. */

/** An event of a local session, see struct local_ops. */
enum adtopk_status loop_session_event(void *context, struct event *event, struct error *err);

/** A packet from the transport, see transport_receive_fn. */
void loop_receive(
    void *context, uint16_t peer, enum link_lane lane, const uint8_t *packet, size_t size);

/** A packet, a line and a move of a state machine from the core, see struct core_config. */
bool loop_transmit(void *context, uint16_t peer, enum link_lane lane, const uint8_t *header,
    size_t header_size, const uint8_t *body, size_t body_size);
void loop_trace(void *context, const char *line);
void loop_moved(
    void *context, const struct machine_table *table, unsigned from, unsigned event, unsigned to);

#endif
