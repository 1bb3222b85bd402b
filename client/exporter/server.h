/*
 * The HTTP side of the exporter, on libmicrohttpd. It answers GET and HEAD alone, from memory.
 *
 * The happy path: libmicrohttpd has one descriptor, which the loop watches. A request that needs a
 * snapshot wants one from the source; if none is fresh its connection is suspended until the source
 * tells that there is one. The first request of a snapshot has an answer made, and others get the
 * same (answers.h).
 * Failures: libmicrohttpd refuses more than SERVER_PER_ADDRESS connections of one address, and
 * requests beyond SERVER_MEMORY bytes. A client that is too slow, or the slowest of too many, is
 * dropped (clients.h). If slow readers hold too much, others get status 503. A daemon that does not
 * answer is an answer of its own: adtopk_up 0, and status 503 of /healthz.
 */
#ifndef ADTOPK_EXPORTER_SERVER_H
#define ADTOPK_EXPORTER_SERVER_H

#include <stdbool.h>
#include <sys/un.h>
#include <uv.h>

#include "client/exporter/clients.h"
#include "proto/error.h"

#define SERVER_CONNECTIONS (CLIENTS_MAX + 100) /* with those that are being dropped */
#define SERVER_WAITERS (CLIENTS_MAX / 2)       /* requests that wait for the daemon */
#define SERVER_PER_ADDRESS 200
#define SERVER_MEMORY 16384
#define SERVER_PLACE_SIZE (sizeof(((struct sockaddr_un *)0)->sun_path) + 1)

struct server;

/* Where a server gets its connections and its answers. */
struct server_config {
    const char *address; /* "127.0.0.1:9477", "[::1]:9477", port 0: any */
    int socket;          /* one that listens already, instead; it is the server's. -1: none */
    const char *path;    /* of the daemon's control socket; it must live as long */
    bool tensors;        /* answer about tensors, too */
};

/** Listens and answers. Errors: ARGUMENT (the address), SYSTEM, MEMORY. Everything runs in the
 * loop's thread. */
enum adtopk_status server_start(
    uv_loop_t *loop, const struct server_config *config, struct server **server, struct error *err);

/** Where it listens: "127.0.0.1:9477", "[::1]:9477", or "/run/exporter.sock". */
const char *server_place(const struct server *server, char place[SERVER_PLACE_SIZE]);

/** Answers what waits, closes all connections and gives the memory back. The process ends next:
 * what the daemon was asked for may still come into the source. */
void server_stop(struct server *server);

#endif
