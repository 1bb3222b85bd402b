/*
 * Connects the seeds with the transport, the core and the log.
 */
#include <stdlib.h>

#include "daemon/core/inspect.h"
#include "daemon/loop/loop_state.h"

static enum adtopk_status loop_seed_add(
    void *context, const struct config_peer *peer, struct error *err)
{
    return loop_add_peer(context, peer, err);
}

static enum adtopk_status loop_seed_move(
    void *context, uint16_t node, const char *endpoint, struct error *err)
{
    const struct loop *loop = context;

    return transport_zmq.move_peer(loop->transport, node, endpoint, err);
}

enum adtopk_status loop_change_keys(struct loop *loop, const struct config *config,
    const struct keyfile_pair *pair, struct error *err)
{
    struct transport_peer *peers = calloc(CORE_MAX_NODES + config->peer_count, sizeof(*peers));
    bool *given = calloc(UINT16_MAX + 1, sizeof(*given)); /* by the configuration */
    const struct config_peer *learned;
    enum adtopk_status status = ADTOPK_ERR_MEMORY;
    size_t count = 0, at = 0;

    if (peers == NULL || given == NULL) {
        (void)error_set(err, status, "no memory for the peers' keys");
    } else {
        for (size_t i = 0; i < config->peer_count; i++) {
            given[config->peers[i].node] = true;
            peers[count++] = loop_transport_peer(&config->peers[i]);
        }
        while ((learned = seeds_learned(loop->nodes.seeds, &at)) != NULL) {
            if (!given[learned->node]) {
                peers[count++] = loop_transport_peer(learned);
            }
        }
        status = transport_zmq.reload(loop->transport, pair, peers, count, err);
    }
    free(given);
    free(peers);
    return status;
}

static enum adtopk_status loop_seed_rekey(void *context, struct error *err)
{
    struct loop *loop = context;

    return loop_change_keys(loop, loop->config, transport_zmq.pair(loop->transport), err);
}

static uint64_t loop_seed_answers(void *context, uint16_t node)
{
    const struct loop *loop = context;

    return core_peer_answers(loop->core, node);
}

static bool loop_seed_send(void *context, uint16_t node, const uint8_t header[PACKET_HEADER_SIZE],
    const uint8_t *body, size_t size)
{
    return size <= TRANSPORT_BODY_MAX &&
           loop_transmit(context, node, LINK_CONTROL, header, PACKET_HEADER_SIZE, body, size, NULL);
}

static void loop_seed_log(void *context, bool warning, const char *line)
{
    const struct loop *loop = context;

    log_write(loop->log, warning ? LEVEL_WARNING : LEVEL_INFO, LOG_PEER, "%s", line);
}

/* This node's public key; "" without keys. */
static const char *loop_seed_key(const struct loop *loop)
{
    const struct keyfile_pair *pair = transport_zmq.pair(loop->transport);

    return pair != NULL ? pair->public_key : "";
}

void loop_configure_seeds(struct loop *loop, const struct config *config)
{
    if (loop->nodes.seeds != NULL) {
        seeds_configure(loop->nodes.seeds, config, loop_seed_key(loop));
    }
}

enum adtopk_status loop_open_seeds(struct loop *loop, uint64_t incarnation, struct error *err)
{
    static const struct seed_ops ops = {.add = loop_seed_add,
        .move = loop_seed_move,
        .rekey = loop_seed_rekey,
        .answers = loop_seed_answers,
        .send = loop_seed_send,
        .log = loop_seed_log};

    loop->nodes.seeds = seeds_create(loop->config, loop_seed_key(loop), incarnation, &ops, loop);
    return loop->nodes.seeds != NULL ? ADTOPK_OK
                                     : error_set(err, ADTOPK_ERR_MEMORY, "no memory for the peers");
}

bool loop_describe_peer(void *context, uint16_t node, struct report_peer *found)
{
    const struct loop *loop = context;
    struct seed_view view;

    if (loop->nodes.seeds == NULL || !seeds_describe(loop->nodes.seeds, node, &view)) {
        return false;
    }
    *found =
        (struct report_peer){.endpoint = view.endpoint, .origin = view.origin, .seed = view.seed};
    return true;
}
