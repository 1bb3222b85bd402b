/*
 * The state that the files loop*.c share, and what each of them does for the others (README.md says
 * which file has what). No other folder includes this.
 */
#ifndef ADTOPK_LOOP_STATE_H
#define ADTOPK_LOOP_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "daemon/admin/control.h"
#include "daemon/admin/history.h"
#include "daemon/admin/rights.h"
#include "daemon/core/core.h"
#include "daemon/device/device.h"
#include "daemon/local/local.h"
#include "daemon/loop/iterations.h"
#include "daemon/loop/knock.h"
#include "daemon/loop/loop.h"
#include "daemon/loop/quota.h"
#include "daemon/loop/spin.h"
#include "daemon/loop/traces.h"
#include "daemon/loop/watch.h"
#include "daemon/loop/workers.h"
#include "daemon/remote/remote.h"
#include "daemon/seed/seed.h"
#include "daemon/session/answer.h"
#include "daemon/transport/transport.h"

#define LOOP_STATUS_SIZE 128

/* The sources that wake the loop. */
struct loop_handles {
    uv_async_t wake; /* loop_wake() was called */
    uv_poll_t transport_ready;
    uv_timer_t deadline;
    uv_timer_t tick;
    uv_timer_t reload; /* runs out when a SIGHUP is to be answered */
    uv_signal_t hangup;
    uv_signal_t terminate;
    uv_signal_t interrupt;
    bool open; /* all but transport_ready */
};

/* Engines on GPUs (loop_device.c). */
struct loop_device {
    struct device *device;    /* NULL: the processor makes the passes */
    struct core_memory inner; /* memory of this process */
    struct loop_part *parts;  /* that have addresses here and memory there */
    bool leaves;              /* that memory to the next daemon */
};

/* What looks after the other nodes; without `listen` there is none of it. */
struct loop_nodes {
    struct watch *watch;
    struct knock *knock;
    struct seeds *seeds;
};

/* How the daemon stops. */
struct stop {
    bool stopping;
    uint64_t end_us;   /* when to end at the latest */
    uint64_t queued;   /* bytes that peers had not acknowledged at the last look */
    uint64_t still_us; /* when to end if that number stays */
};

struct loop {
    struct config *config;
    struct log *log;
    uv_loop_t uv;
    struct core *core;
    struct doors doors; /* local and remote */
    struct local *local;
    struct remote *remote; /* NULL without `trainers_listen` */
    struct control *control;
    struct history history;
    struct workers *workers;
    struct loop_device gpu;
    struct quota *quota;
    struct quota_limits limits; /* the configuration's */
    struct rights openers;      /* who may open sessions, unless all users may */
    void *transport;            /* NULL without `listen` */

    struct loop_handles handles;
    struct loop_nodes nodes;
    struct traces *traces;

    unsigned received; /* packets in this pump */
    uint64_t reloaded_us;
    uint64_t watchdog_us;          /* 0: there is no watchdog */
    bool stuck;                    /* a compute is, and that has been logged */
    char status[LOOP_STATUS_SIZE]; /* the last status that was sent to the service manager */
    struct stop stop;
    struct spin spin;
    unsigned source; /* of events, with which the next iteration begins: see loop.c */
    struct iterations iterations;
    uint64_t polled_us; /* uv_run() was called last */
};

/** Microseconds of the monotonic clock. */
uint64_t loop_now_us(void);

/** Stamps an event with the time and hands it to the core. */
enum adtopk_status loop_raise(struct loop *loop, struct event *event, struct error *err);

/* The functions that modules around the core call; `context` is the loop. */

/** An event of a local session, see struct doors. */
enum adtopk_status loop_session_event(void *context, struct event *event, struct error *err);

/** Wakes the loop; callable from any thread. A worker or a device has finished something. */
void loop_wake(void *context);

/** A packet from the transport, see transport_receive_fn. */
void loop_receive(void *context, uint16_t peer, enum link_lane lane, const uint8_t *packet,
    size_t size, struct buffer *body);

/** Packets, lines and failed jobs from the core, see struct core_config. */
void loop_reopen(void *context, uint16_t peer, enum link_lane lane);
bool loop_transmit(void *context, uint16_t peer, enum link_lane lane, const uint8_t *header,
    size_t header_size, const uint8_t *body, size_t body_size, struct buffer *owner);
void loop_trace(void *context, const char *line);
void loop_note(void *context, const char *line);
void loop_warn(void *context, const char *line);
void loop_failed(void *context, uint64_t job);
void loop_stuck(void *context, uint64_t job, const char *reason);

/** A peer as the transport wants it; the texts stay the configuration's. */
struct transport_peer loop_transport_peer(const struct config_peer *peer);

/** Connects to a peer, in the core and in the transport. */
enum adtopk_status loop_add_peer(
    struct loop *loop, const struct config_peer *peer, struct error *err);

/** The keys of the configuration's peers, and of the nodes that were learned, hold from now on. */
enum adtopk_status loop_change_keys(struct loop *loop, const struct config *config,
    const struct keyfile_pair *pair, struct error *err);

/** Begins to ask seeds, and to answer as one. Connections to the configuration's peers are open. */
enum adtopk_status loop_open_seeds(struct loop *loop, uint64_t incarnation, struct error *err);

/** Takes the peers of a configuration that loop_change_keys() has taken. */
void loop_configure_seeds(struct loop *loop, const struct config *config);

/** How a peer is known, for reports; false if there is no such peer. */
bool loop_describe_peer(void *context, uint16_t node, struct report_peer *found);

/** A connection was refused, of a node or of a trainer on another machine. */
void loop_log_refused(void *context, const char *line);

/** Opens the devices, if the configuration wants them. */
enum adtopk_status loop_open_device(struct loop *loop, struct error *err);

/** Takes the memory on devices that an earlier daemon left (loop_left.c). To be called before the
 * loop serves. */
void loop_take_left(struct loop *loop);

/** The number under which memory of the job's parts is left to the next daemon; 0: it is not. */
uint64_t loop_left_store(const struct loop *loop, uint64_t job);

/** Leaves a part's new memory to the next daemon. */
void loop_leave_part(struct loop *loop, uint64_t job, const struct device_left *left);

/** Leaves no memory of this part any more (HANDLES_ALL: of no part). */
void loop_leave_no_part(struct loop *loop, uint64_t job, unsigned number);

/** Gives back what waits on devices for stores and parts that are gone. */
void loop_drop_left(struct loop *loop);

/** The core's memory: that of `inner`, and on a device what its engine works on. */
struct core_memory loop_device_memory(struct loop *loop, const struct core_memory *inner);

/** Lets ranks on this node have their gradients on its devices. */
void loop_set_gpu(const struct loop *loop, struct local_config *local);

/** Takes what devices have done; true if there was something. */
bool loop_poll_device(struct loop *loop);

/* NCCL moves values between nodes, where there is one. */
void loop_set_carrier(const struct loop *loop, struct core_config *core);

/** What status shows of devices; false: there is no such one. */
bool loop_describe_device(void *context, unsigned index, struct report_device *found);
bool loop_describe_worker(void *context, unsigned index, struct report_worker *found);
bool loop_describe_shard(void *context, uint64_t job, unsigned index, struct report_shard *found);

/** Ends the device workers, before the core goes; and the rest, after it. */
void loop_stop_device(struct loop *loop);
void loop_close_device(struct loop *loop);

/** Opens the socket for trainers on other machines, if it is configured. */
enum adtopk_status loop_open_remote(struct loop *loop, struct error *err);

/** Takes this node's and the trainers' keys from a new configuration. */
enum adtopk_status loop_reload_remote(struct loop *loop, const struct config *fresh,
    const struct keyfile_pair *pair, struct error *err);

/** Takes the limits of users from the configuration. */
void loop_set_limits(struct loop *loop, const struct config *config);

/** A store that outlives the daemon, for reports; false if there are fewer. */
bool loop_describe_store(void *context, unsigned index, struct report_store *found);

/** Logs the stores that an earlier daemon left, and why one cannot be used. */
void loop_log_stores(struct loop *loop);

/** Logs that a store is removed because its job begins anew. */
void loop_log_replaced(void *context, const struct folder_info *old);

/** How often loop_tick() is to be called, in milliseconds. */
uint64_t loop_tick_ms(const struct loop *loop);

/** A knock at a peer's address was refused; see knock_refused_fn. */
void loop_peer_gone(void *context, uint16_t node);

/** Checks peers and workers, for the log and the service manager. */
void loop_tick(struct loop *loop);

/** Begins to stop: jobs end at their next step boundary, until stop_timeout_ms has passed. */
void loop_stop(struct loop *loop, const char *reason);

/** While stopping, after an iteration: whether all ranks and peers have been told, or no peer
 * acknowledges anything any more, or the time is over. */
bool loop_may_end(struct loop *loop, bool busy);

/** Reads the configuration again and takes it, or keeps the old one and logs why. */
void loop_reload(struct loop *loop);

#endif
