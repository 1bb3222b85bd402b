/*
 * The control socket: what adtopkctl asks, and the answers. AF_UNIX, SOCK_SEQPACKET, messages of
 * proto/control.proto. All requests that exist are read-only, so everybody who can connect may
 * ask. It never blocks, and what one client does or leaves undone harms nobody else.
 */
#ifndef ADTOPK_CONTROL_H
#define ADTOPK_CONTROL_H

#include <stdint.h>

#include <uv.h>

#include "daemon/admin/history.h"
#include "daemon/admin/report.h"
#include "daemon/core/core.h"
#include "proto/error.h"

#define CONTROL_CLIENTS 32       /* at once */
#define CONTROL_CLIENTS_A_USER 8 /* of them, but for root */
#define CONTROL_IDLE_MS 10000    /* without progress a client is dropped */

struct control_config {
    const char *path; /* copied */
    const struct core *core;
    const struct history *history;
    uint16_t node;
    uint64_t incarnation;
    uint32_t (*sessions)(void *context);
    struct report_network (*network)(void *context); /* may be NULL: no other nodes */
    void (*log)(void *context, const char *line);    /* may be NULL */
    void *context;
    uint64_t idle_ms; /* 0: CONTROL_IDLE_MS */
};

struct control;

/** Listens; a stale socket file is replaced. NULL and an err that names the path on failure. */
struct control *control_create(
    uv_loop_t *loop, const struct control_config *config, struct error *err);

/** Drops the clients and unlinks the socket. The core is not looked at any more; the memory is
 * freed when the handles have closed in the loop. */
void control_close(struct control *control);

#endif
