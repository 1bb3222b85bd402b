/*
 * Internals of the control socket: control.c keeps the connections, request.c knows the requests.
 */
#ifndef ADTOPK_ADMIN_CLIENT_H
#define ADTOPK_ADMIN_CLIENT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include <uv.h>

#include "daemon/admin/control.h"
#include "daemon/admin/rights.h"
#include "daemon/session/listener.h"

struct client {
    uv_poll_t poll;
    struct control *control;
    int fd;
    struct ucred who;
    char *document; /* being sent; NULL between requests and while it waits */
    size_t size;
    size_t sent;
    uint32_t status;
    bool last; /* drop the client once the document is sent */
    uint64_t progress_ms;
    uint64_t ticket; /* of the outcome it waits for; 0: none */
    uint64_t job;    /* the job of that outcome */
    uint64_t limit_ms;
    uint64_t deadline_ms;        /* when it has waited for limit_ms */
    char noted[ERROR_TEXT_SIZE]; /* for what the outcome waits, as the client knows it; "" */
    struct client *next;
};

/* A question to the core. */
struct control_request {
    uint64_t ticket;
    uint64_t job; /* its id */
    uint32_t uid; /* who asked */
};

struct control {
    uv_loop_t *loop;
    struct control_config config;
    struct rights rights;
    struct listener listener;
    uv_timer_t timer;
    bool closing;
    bool draining;
    unsigned handles; /* that have not closed yet */
    uint64_t started_ms;
    uint64_t served_ms, served_ns; /* the iteration that served clients last, and since when */
    uint64_t tickets;              /* given out so far */
    struct control_limits limits;
    unsigned pending; /* of them without an outcome, their clients gone or not: */
    struct control_request request[CONTROL_PENDING];
    struct client *clients;
};

/** Sends a document, which it takes over; without one (NULL), memory was short. The client may be
 * gone afterwards. */
void client_reply(struct client *client, uint32_t status, char *document);

/** Sends an error, then hangs up. The client may be gone afterwards. */
void control_refuse(struct client *client, enum adtopk_status status, const char *why);

/** Nothing is read from the client, and it may stay, until its ticket has an outcome. It may be
 * gone afterwards. */
void client_await(struct client *client);

/** One line for the log, of the daemon itself. */
void control_note(const struct control *control, enum control_topic topic, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define CLIENT_NAME_SIZE 40
/** The client's name in the log: "uid 1000, pid 42", or only its user if the daemon does not see
 * its pid namespace. */
const char *client_name(const struct client *client, char name[CLIENT_NAME_SIZE]);

/** One line for the log that a client caused. */
void client_log(const struct client *client, enum control_topic topic, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ------------------------------------------------------------------ request.c */

/** Takes one request's bytes and answers it, or lets the client wait for its ticket. */
void request_take(struct client *client, const uint8_t *bytes, size_t size);

/** The outcome that the client waits for. */
void request_finish(struct client *client, const struct action *action);

/** A sentence on what the client's job waits for, or "". */
void request_waits(const struct client *client, char text[ERROR_TEXT_SIZE]);

#endif
