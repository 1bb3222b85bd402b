/*
 * The control socket: adtopkctl's requests and their answers. AF_UNIX, SOCK_SEQPACKET, messages of
 * proto/control.proto. A client that can connect may read about all jobs, or about those of its
 * user. Changes need a right (rights.h). The socket never blocks, and no client can harm another by
 * what it sends or does not send.
 *
 * A request whose outcome takes time goes into the core as an event with a ticket. Its client waits
 * until control_apply() brings the action with that ticket, or until the time limit that it sent.
 * If the client goes away, the ticket is forgotten, and the core finishes what it began.
 */
#ifndef ADTOPK_CONTROL_H
#define ADTOPK_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "daemon/admin/history.h"
#include "daemon/admin/report.h"
#include "daemon/core/core.h"
#include "proto/error.h"

#define CONTROL_CLIENTS 32           /* at once */
#define CONTROL_CLIENTS_A_USER 8     /* of them per user; administrators have no limit */
#define CONTROL_CLIENTS_FREE 4       /* kept free for administrators */
#define CONTROL_ITERATION_NS 2000000 /* of the loop, for the requests of all clients */
#define CONTROL_IDLE_MS 10000        /* without progress a client is dropped, unless it waits */
#define CONTROL_WAIT_MS 600000       /* the longest time limit of a ticket */
#define CONTROL_NOTE_MS 1000         /* before a client is told what its job waits for */
#define CONTROL_PENDING 64           /* tickets without an outcome, at once */
#define CONTROL_PENDING_FREE 16      /* of them, which only administrators may use */
#define CONTROL_PENDING_A_USER 16
#define CONTROL_GROUP "adtopk" /* the default of control_config.group */

/* The subject of a line of the log. */
enum control_topic {
    CONTROL_DEBUG,
    CONTROL_INFO,
    CONTROL_WARNING,
    CONTROL_REFUSED, /* a request that the user may not make */
    CONTROL_CHANGE   /* a change that a user made */
};

struct control_config {
    const char *path; /* copied */
    const struct core *core;
    const struct history *history;
    uint16_t node;
    uint64_t incarnation;
    const char *group; /* members of this group may change things; NULL: CONTROL_GROUP */
    struct report_trainers (*trainers)(void *context);
    struct report_network (*network)(void *context); /* may be NULL: no other nodes */
    struct report_load (*load)(void *context);
    uint64_t (*memory)(void *context, uint64_t job); /* see struct report_daemon */
    /* GPUs and their workers, see struct report_devices. May be NULL. */
    bool (*gpu)(void *context, unsigned index, struct report_device *found);
    bool (*gpu_worker)(void *context, unsigned index, struct report_worker *found);
    bool (*gpu_shard)(void *context, uint64_t job, unsigned index, struct report_shard *found);
    /* The index-th store that outlives the daemon; false if there are fewer. May be NULL. */
    bool (*store)(void *context, unsigned index, struct report_store *found);
    /* How the daemon knows a peer; false if there is no such peer. May be NULL. */
    bool (*peer)(void *context, uint16_t node, struct report_peer *found);
    /* Takes an event of an operator: stamps it and passes it to core_event(). */
    enum adtopk_status (*event)(void *context, struct event *event, struct error *err);
    const char *(*policy)(void *context); /* the default for jobs, JSON or NULL; may be NULL */
    /* uid: the user who caused the line. May be NULL. */
    void (*log)(void *context, enum control_topic topic, uint32_t uid, const char *line);
    void *context;
    uint64_t idle_ms; /* 0: CONTROL_IDLE_MS */
};

struct control;

/** Listens; a stale socket file is replaced. NULL and an err that names the path on failure. */
struct control *control_create(
    uv_loop_t *loop, const struct control_config *config, struct error *err);

/** Takes the outcome of a request to the client that waits for it, if it still does. Not to be
 * called inside config->event(). */
void control_apply(struct control *control, const struct action *action);

/* Limits of users who are not administrators. */
struct control_limits {
    unsigned requests; /* without an outcome, at most CONTROL_PENDING less CONTROL_PENDING_FREE */
    bool own_jobs;     /* no answer names jobs of others */
};

/** Limits from now on; CONTROL_PENDING_A_USER and false before. */
void control_limit(struct control *control, const struct control_limits *limits);

/** True while an operator wants no new ranks here, but for the jobs that are here. */
bool control_is_draining(const struct control *control);

/** Drops the clients and unlinks the socket. It does not use the core any more. The memory is freed
 * when the handles have closed in the loop. */
void control_close(struct control *control);

#endif
