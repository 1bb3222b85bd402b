/*
 * The loop's state, shared by the files that make up the loop: loop.c takes turns, loop_open.c
 * opens and closes what it drives, loop_service.c stops it and speaks to the service manager,
 * loop_reload.c takes a new configuration. Nobody else includes this.
 */
#ifndef ADTOPK_LOOP_STATE_H
#define ADTOPK_LOOP_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "daemon/admin/control.h"
#include "daemon/admin/history.h"
#include "daemon/core/core.h"
#include "daemon/knock.h"
#include "daemon/local/local.h"
#include "daemon/loop.h"
#include "daemon/quota.h"
#include "daemon/remote/remote.h"
#include "daemon/spin.h"
#include "daemon/transport/transport.h"
#include "daemon/turns.h"
#include "daemon/watch.h"
#include "daemon/workers.h"

#define LOOP_STATUS_SIZE 128

struct loop {
    struct config *config;
    struct log *log;
    uv_loop_t uv;
    struct core *core;
    struct local *local;
    struct remote *remote; /* NULL without `trainers_listen` */
    struct control *control;
    struct history history;
    struct workers *workers;
    struct quota *quota;
    struct quota_limits limits; /* the configuration's */
    void *transport;            /* NULL without `listen` */

    uv_async_t worker_done;
    uv_poll_t transport_ready;
    uv_timer_t deadline;
    uv_timer_t tick;
    uv_timer_t reload; /* runs out when a SIGHUP is to be answered */
    uv_signal_t hangup;
    uv_signal_t terminate;
    uv_signal_t interrupt;
    bool handles_open; /* all of the above but transport_ready */
    struct watch *watcher;
    struct knock *knock; /* NULL without `listen` */

    unsigned received; /* packets in this pump */
    uint64_t reloaded_us;
    uint64_t watchdog_us;          /* 0: nobody watches */
    bool stuck;                    /* a compute is, and that has been logged */
    char status[LOOP_STATUS_SIZE]; /* as the service manager was told last */
    bool stopping;
    uint64_t stop_us; /* when to end at the latest; set while stopping */
    struct spin spin;
    struct turns turns;
    uint64_t polled_us; /* uv_run() was called last */
};
/** Microseconds of the monotonic clock. */
uint64_t loop_now_us(void);

/** Stamps an event with the time and hands it to the core. */
enum adtopk_status loop_raise(struct loop *loop, struct event *event, struct error *err);

/* What the modules around the core call; `context` is the loop. */

/** An event of a local session, see struct local_ops. */
enum adtopk_status loop_session_event(void *context, struct event *event, struct error *err);

/** A packet from the transport, see transport_receive_fn. */
void loop_receive(
    void *context, uint16_t peer, enum link_lane lane, const uint8_t *packet, size_t size);

/** A packet, a line and a move of a state machine from the core, see struct core_config. */
void loop_reopen(void *context, uint16_t peer, enum link_lane lane);
bool loop_transmit(void *context, uint16_t peer, enum link_lane lane, const uint8_t *header,
    size_t header_size, const uint8_t *body, size_t body_size);
void loop_trace(void *context, const char *line);
void loop_note(void *context, const char *line);
void loop_warn(void *context, const char *line);
void loop_moved(void *context, const struct machine_table *table, uint64_t id, unsigned from,
    unsigned event, unsigned to);

/** A peer as the transport wants it; the texts stay the configuration's. */
struct transport_peer loop_transport_peer(const struct config_peer *peer);

/** Connects to a peer, in the core and in the transport. */
enum adtopk_status loop_add_peer(
    struct loop *loop, const struct config_peer *peer, struct error *err);

/** Opens what serves trainers on other machines, if it is configured. */
enum adtopk_status loop_open_remote(struct loop *loop, struct error *err);

/** Takes this node's and the trainers' keys from a new configuration. */
enum adtopk_status loop_reload_remote(struct loop *loop, const struct config *fresh,
    const struct keyfile_pair *pair, struct error *err);

/** Takes the limits of users from the configuration. */
void loop_set_limits(struct loop *loop, const struct config *config);

/** Sessions on this node and elsewhere. */
uint32_t loop_count_sessions(const struct loop *loop);

/** How often loop_tick() is to be called, in milliseconds. */
uint64_t loop_tick_ms(const struct loop *loop);

/** A knock at a peer's address was refused; see knock_refused_fn. */
void loop_peer_gone(void *context, uint16_t node);

/** Looks at peers and workers, for the log and the service manager. */
void loop_tick(struct loop *loop);

/** Begins to stop: jobs end at their next step boundary, until stop_timeout_ms has passed. */
void loop_stop(struct loop *loop, const char *reason);

/** While stopping, after a turn: whether everybody has been told, or the time is over. */
bool loop_may_end(const struct loop *loop, bool busy);

/** Reads the configuration again and takes it, or keeps the old one and logs why. */
void loop_reload(struct loop *loop);

#endif
