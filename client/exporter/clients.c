#include "client/exporter/clients.h"

#include <stdlib.h>
#include <sys/socket.h>

void clients_init(struct clients *clients)
{
    TAILQ_INIT(&clients->expected);
    clients->count = 0;
}

static void client_forget(struct clients *clients, struct client *client)
{
    if (client->state == CLIENT_EXPECTED) {
        TAILQ_REMOVE(&clients->expected, client, entry);
    }
}

/* Ends the connection; the server notices, and then calls clients_remove(). */
static void client_drop(struct clients *clients, struct client *client)
{
    client_forget(clients, client);
    client->state = CLIENT_DROPPED;
    clients->count--;
    (void)shutdown(client->fd, SHUT_RDWR);
}

struct client *clients_add(struct clients *clients, int fd, uint64_t now_ms)
{
    struct client *client = calloc(1, sizeof(*client));

    if (client == NULL) {
        return NULL;
    }
    if (clients->count >= CLIENTS_MAX && !TAILQ_EMPTY(&clients->expected)) {
        client_drop(clients, TAILQ_FIRST(&clients->expected));
    }
    *client = (struct client){.state = CLIENT_HELD, .fd = fd};
    clients->count++;
    clients_expect(clients, client, now_ms);
    return client;
}

void clients_expect(struct clients *clients, struct client *client, uint64_t now_ms)
{
    if (client != NULL && client->state != CLIENT_DROPPED) {
        client_forget(clients, client);
        client->state = CLIENT_EXPECTED;
        client->since_ms = now_ms;
        TAILQ_INSERT_TAIL(&clients->expected, client, entry);
    }
}

void clients_hold(struct clients *clients, struct client *client)
{
    if (client != NULL && client->state != CLIENT_DROPPED) {
        client_forget(clients, client);
        client->state = CLIENT_HELD;
    }
}

void clients_remove(struct clients *clients, struct client *client)
{
    client_forget(clients, client);
    clients->count -= client->state != CLIENT_DROPPED;
    free(client);
}

uint64_t clients_check(struct clients *clients, uint64_t now_ms)
{
    struct client *first;

    while ((first = TAILQ_FIRST(&clients->expected)) != NULL) {
        const uint64_t end_ms = first->since_ms + CLIENTS_PATIENCE_MS;

        if (now_ms < end_ms) {
            return end_ms - now_ms;
        }
        client_drop(clients, first);
    }
    return CLIENTS_NEVER;
}
