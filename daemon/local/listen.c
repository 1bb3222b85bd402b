/* The session socket: which users may open a session on it, and what others are told. */
#include <stdio.h>
#include <unistd.h>

#include "daemon/local/local_session.h"

/* True if the user at the other end may open another session; else `text` says why not. */
static bool listen_admits(
    struct local *local, int socket, const struct ucred *peer, char text[ERROR_TEXT_SIZE])
{
    const struct local_config *config = &local->config;
    struct error err;

    if (config->admit != NULL && config->admit(local->context, socket, peer, &err) != ADTOPK_OK) {
        (void)snprintf(text, ERROR_TEXT_SIZE, "%s", err.text);
        return false;
    }
    return door_admit(&local->door, peer->uid, text);
}

static void listen_accepted(void *context, int socket, const struct ucred *who)
{
    struct local *local = context;
    struct error err;
    char text[ERROR_TEXT_SIZE], peer[SESSION_PEER_SIZE];

    local_name_process(who, peer);
    if (!listen_admits(local, socket, who, text)) {
        door_refused(&local->door, who->uid, peer, text);
        reply_refuse(socket, ADTOPK_ERR_DENIED, text);
        (void)close(socket);
    } else if (local_session_create(local, socket, who, &err) != ADTOPK_OK) {
        door_refused(&local->door, who->uid, peer, err.text);
    }
}

static void listen_exhausted(void *context, int socket, const char *why)
{
    struct local *local = context;

    reply_refuse(socket, ADTOPK_ERR_SYSTEM, why);
    local->door.stats.refused++;
}

enum adtopk_status listen_open(struct local *local, struct error *err)
{
    const struct listener_config config = {.path = local->config.path,
        .mode = (mode_t)local->config.mode,
        .accepted = listen_accepted,
        .exhausted = listen_exhausted,
        .context = local};

    return listener_open(&local->listener, local->loop, &config, err);
}
