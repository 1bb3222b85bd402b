/*
 * The control socket: what adtopkctl asks, and the answers. AF_UNIX, SOCK_SEQPACKET, messages of
 * proto/control.proto. Whoever can connect may look; changes need a right (rights.h). It never
 * blocks, and what one client does or leaves undone harms nobody else.
 *
 * A request whose outcome takes time goes into the core as an event with a ticket. Its client
 * waits until control_apply() brings the action with that ticket, until the time limit that it
 * sent, or until it goes away, which forgets the ticket: the core finishes what it began.
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

#define CONTROL_CLIENTS 32       /* at once */
#define CONTROL_CLIENTS_A_USER 8 /* of them, but for root, */
#define CONTROL_CLIENTS_FREE 4   /* whom the others leave so many */
#define CONTROL_IDLE_MS 10000    /* without progress a client is dropped, unless it waits */
#define CONTROL_WAIT_MS 600000   /* the longest time limit of a ticket */
#define CONTROL_NOTE_MS 1000     /* until who waits for an outcome is told what for */
#define CONTROL_PENDING 64       /* tickets without an outcome, at once */
#define CONTROL_PENDING_FREE 16  /* of them, which only administrators may use */
#define CONTROL_PENDING_A_USER 16
#define CONTROL_GROUP "adtopk" /* the default of control_config.group */

/* What a line of the log is about. */
enum control_topic {
    CONTROL_DEBUG,
    CONTROL_INFO,
    CONTROL_WARNING,
    CONTROL_REFUSED, /* somebody who may not do what he asked for */
    CONTROL_CHANGE   /* what somebody changed */
};

struct control_config {
    const char *path; /* copied */
    const struct core *core;
    const struct history *history;
    uint16_t node;
    uint64_t incarnation;
    const char *group; /* whose members may change things; NULL: CONTROL_GROUP */
    uint32_t (*sessions)(void *context);
    struct report_network (*network)(void *context); /* may be NULL: no other nodes */
    struct report_turns (*turns)(void *context);
    /* Takes an event of an operator: stamps it and passes it to core_event(). */
    enum adtopk_status (*event)(void *context, struct event *event, struct error *err);
    const char *(*policy)(void *context); /* the default for jobs, JSON or NULL; may be NULL */
    /* uid: who caused the line. May be NULL. */
    void (*log)(void *context, enum control_topic topic, uint32_t uid, const char *line);
    void *context;
    uint64_t idle_ms; /* 0: CONTROL_IDLE_MS */
};

struct control;

/** Listens; a stale socket file is replaced. NULL and an err that names the path on failure. */
struct control *control_create(
    uv_loop_t *loop, const struct control_config *config, struct error *err);

/** Takes an ACTION_POLICY or ACTION_VERIFIED to the client that waits for it, if it still does. Not
 * to be called inside config->event(). */
void control_apply(struct control *control, const struct action *action);

/** How many requests without an outcome one user may have, at most CONTROL_PENDING less
 * CONTROL_PENDING_FREE; CONTROL_PENDING_A_USER by default. Administrators may have all. */
void control_limit(struct control *control, unsigned requests);

/** True while an operator wants no new ranks here. */
bool control_is_draining(const struct control *control);

/** Drops the clients and unlinks the socket. The core is not looked at any more; the memory is
 * freed when the handles have closed in the loop. */
void control_close(struct control *control);

#endif
