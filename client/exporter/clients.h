/*
 * The connections of the server, so that none is kept for nothing and none keeps others out.
 *
 * The happy path: clients_add() for each connection; clients_expect() when the client has to do
 * something, clients_hold() when it waits for the server; clients_remove() when it is closed.
 * Failures: a client that does nothing in time is dropped by clients_check(). Where CLIENTS_MAX
 * others are there already, clients_add() drops the one that has been expected to do something for
 * longest.
 */
#ifndef ADTOPK_EXPORTER_CLIENTS_H
#define ADTOPK_EXPORTER_CLIENTS_H

#include <stdint.h>
#include <sys/queue.h>

#define CLIENTS_MAX 900
#define CLIENTS_PATIENCE_MS 5000 /* for a whole request, and for reading an answer */
#define CLIENTS_NEVER UINT64_MAX

struct client {
    enum { CLIENT_EXPECTED, CLIENT_HELD, CLIENT_DROPPED } state;
    int fd;
    uint64_t since_ms; /* EXPECTED: when that began */
    TAILQ_ENTRY(client) entry;
};

struct clients {
    TAILQ_HEAD(, client) expected; /* in the order of since_ms */
    unsigned count;                /* without the dropped ones */
};

void clients_init(struct clients *clients);

/** A client that is expected to send a request. fd must stay open until clients_remove(): to drop
 * a client is to shut its connection down. NULL: no memory. */
struct client *clients_add(struct clients *clients, int fd, uint64_t now_ms);

/** From now on the client has CLIENTS_PATIENCE_MS. Does nothing if it was dropped, or is NULL. */
void clients_expect(struct clients *clients, struct client *client, uint64_t now_ms);

/** The client has done its part, and may stay. Does nothing if it was dropped, or is NULL. */
void clients_hold(struct clients *clients, struct client *client);

/** Frees the client. */
void clients_remove(struct clients *clients, struct client *client);

/** Drops the clients that are late. Returns in how many ms the next one will be, or CLIENTS_NEVER.
 */
uint64_t clients_check(struct clients *clients, uint64_t now_ms);

#endif
