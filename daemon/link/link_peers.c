/*
 * The table of peers: adding, finding and querying them.
 */
#include "daemon/link/link_state.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* The index of the first peer whose id is not below `id`. */
static size_t link_index(const struct links *links, uint16_t id)
{
    size_t low = 0, high = links->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (links->peers[middle]->id < id) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

struct link_peer *link_find(const struct links *links, uint16_t id)
{
    size_t at = link_index(links, id);

    return at < links->count && links->peers[at]->id == id ? links->peers[at] : NULL;
}

struct links *links_create(
    const struct links_config *config, const struct links_ops *ops, void *context)
{
    struct links *links = calloc(1, sizeof(*links));

    if (links == NULL) {
        return NULL;
    }
    assert(config->incarnation != 0 && config->part_size > 0);
    assert(config->max_control_message <= UINT32_MAX && config->resend_us > 0);
    assert(config->heartbeat_us > 0 && config->heartbeat_us < config->timeout_us);
    links->config = *config;
    links->config.part_size = (size_t)link_min(config->part_size, UINT32_MAX);
    links->config.window = (size_t)link_max(config->window, LANE_WINDOW_MIN);
    links->ops = *ops;
    links->context = context;
    return links;
}

uint64_t link_longest(const struct links *links, enum link_lane lane)
{
    return lane == LINK_CONTROL ? links->config.max_control_message
                                : links->config.max_bulk_message;
}

void link_reset_lanes(const struct links *links, struct link_peer *peer)
{
    const struct links_config *config = &links->config;

    for (int lane = 0; lane < LINK_LANES; lane++) {
        const struct lane_limits limits = {.floor_us = config->resend_us,
            .ceiling_us = config->timeout_us,
            .slots = lane == LINK_BULK ? LANE_SLOTS : 1,
            .message_max = link_longest(links, (enum link_lane)lane)};

        lane_out_reset(&peer->out[lane], &limits);
        lane_in_reset(&peer->in[lane]);
    }
    peer->bulk_acked = 0;
    peer->credit = 0;
}

void links_destroy(struct links *links)
{
    if (links == NULL) {
        return;
    }
    link_must_be_idle(links);
    for (size_t i = 0; i < links->count; i++) {
        link_reset_lanes(links, links->peers[i]);
        free(links->peers[i]);
    }
    free(links->peers);
    free(links);
}

enum adtopk_status links_add_peer(struct links *links, uint16_t id, uint64_t now_us)
{
    size_t at = link_index(links, id);
    struct link_peer *peer, **peers;

    link_must_be_idle(links);
    links->deadline_known = false;
    links->now = link_max(links->now, now_us);
    if (id == links->config.self || id == UINT16_MAX || link_find(links, id) != NULL) {
        return ADTOPK_ERR_ARGUMENT;
    }
    peers = realloc(links->peers, (links->count + 1) * sizeof(struct link_peer *));
    if (peers == NULL) {
        return ADTOPK_ERR_MEMORY;
    }
    links->peers = peers;
    peer = calloc(1, sizeof(*peer));
    if (peer == NULL) {
        return ADTOPK_ERR_MEMORY;
    }
    peer->id = id;
    peer->challenge = 1;
    peer->hello_at = links->now;
    peer->hello_interval = LINK_HELLO_FIRST_US;
    peer->ack_at = LANE_NEVER;
    link_reset_lanes(links, peer);
    for (int lane = 0; lane < LINK_LANES; lane++) {
        peer->retry_interval[lane] = LINK_RETRY_FIRST_US;
        link_heal_progress(links, peer, (enum link_lane)lane);
    }
    memmove(&peers[at + 1], &peers[at], (links->count - at) * sizeof(struct link_peer *));
    peers[at] = peer;
    links->count++;
    return ADTOPK_OK;
}

uint64_t links_incarnation(const struct links *links, uint16_t id)
{
    const struct link_peer *peer = link_find(links, id);

    return peer != NULL ? peer->incarnation : 0;
}

bool links_is_up(const struct links *links, uint16_t id)
{
    const struct link_peer *peer = link_find(links, id);

    return peer != NULL && peer->up;
}

bool links_stats(const struct links *links, uint16_t id, struct link_stats *stats)
{
    const struct link_peer *peer = link_find(links, id);
    uint64_t control_us;

    if (peer == NULL) {
        return false;
    }
    control_us = peer->out[LINK_CONTROL].timer.smoothed_us;
    *stats = peer->stats;
    for (int lane = 0; lane < LINK_LANES; lane++) {
        stats->copied_bytes += peer->in[lane].copied;
        stats->checked_bytes += peer->in[lane].checked;
    }
    stats->queued_bytes = peer->out[LINK_CONTROL].queued_bytes + peer->out[LINK_BULK].queued_bytes;
    stats->bulk_rate = peer->out[LINK_BULK].meter.rate;
    stats->round_trip_us = control_us > 0 ? control_us : peer->out[LINK_BULK].timer.smoothed_us;
    return true;
}

uint64_t links_queued(const struct links *links, uint16_t id, uint64_t job)
{
    const struct link_peer *peer = link_find(links, id);

    return peer != NULL ? lane_out_queued(&peer->out[LINK_BULK], job) : 0;
}

uint64_t links_queued_control(const struct links *links, uint16_t id)
{
    const struct link_peer *peer = link_find(links, id);

    return peer != NULL ? peer->out[LINK_CONTROL].queued_bytes : 0;
}

uint64_t links_begun(const struct links *links, uint16_t id,
    bool (*counts)(const void *context, const uint8_t *bytes, size_t size), const void *context)
{
    const struct link_peer *peer = link_find(links, id);
    uint64_t begun = 0;

    for (unsigned i = 0; peer != NULL && i < LANE_SLOTS; i++) {
        const struct lane_slot *slot = &peer->in[LINK_BULK].slot[i];
        if (slot->message != NULL && counts(context, slot->message->bytes, slot->filled)) {
            begun += slot->filled;
        }
    }
    return begun;
}

struct link_refused links_refused(const struct links *links)
{
    return links->refused;
}
