/*
 * Links that heal: connections that take packets but deliver none are opened anew.
 *
 * A transport's connection can be dead without notice: its other end no longer reads, or TCP waits
 * ever longer before it tries again. So each lane is watched. A lane *waits* while the peer is not
 * up, and while a message is queued or in flight. A lane that waits for `reopen_us` without a new
 * acknowledgement is opened anew. It is opened again after twice that time, and so on, up to
 * REOPEN_SLOWEST times reopen_us, because a slow connection must have time to deliver something. An
 * acknowledgement ends that backoff. While the peer is not up the time is at most twice reopen_us,
 * so that a network that works again is used soon.
 *
 * Heartbeats are not acknowledged, so a lane on which only heartbeats are lost does not wait. But
 * then the peer hears nothing, and its own heartbeats say for how long. After reopen_us of that the
 * control lane is opened anew.
 *
 * A stop of the whole daemon (SIGSTOP, a virtual machine that is paused) looks like silence of all
 * peers, until the packets that they sent meanwhile are read. After such a stop all waiting times
 * start again.
 */
#include "daemon/link/link_state.h"

#define REOPEN_SLOWEST 20
#define REOPEN_ROUND_TRIPS 4 /* so long, at least, a lane may take for an acknowledgement */
#define STALL_HEARTBEATS 2   /* ticks are at most one apart once a peer has answered */

static uint64_t link_patience(
    const struct links *links, const struct link_peer *peer, enum link_lane lane)
{
    uint64_t patience_us = peer->watch[lane].patience_us;

    if (!peer->up) {
        return link_min(patience_us, 2 * links->config.reopen_us);
    }
    return link_max(patience_us, REOPEN_ROUND_TRIPS * peer->out[lane].timer.smoothed_us);
}

static bool link_waits(const struct link_peer *peer, enum link_lane lane)
{
    const struct lane_out *out = &peer->out[lane];

    return !peer->up || out->share.items > 0 || out->count > 0;
}

static void link_reopen(struct links *links, struct link_peer *peer, enum link_lane lane)
{
    struct link_watch *watch = &peer->watch[lane];

    watch->patience_us = link_min(2 * watch->patience_us, REOPEN_SLOWEST * links->config.reopen_us);
    watch->reopened_at = links->now;
    watch->since = LANE_NEVER;
    peer->stats.reopened += peer->up ? 1 : 0; /* of a peer that is down, none delivers */
    if (peer->out[lane].count > 0) {
        lane_out_rewind(&peer->out[lane]);
    }
    if (links->ops.reopen != NULL) {
        links->ops.reopen(links->context, peer->id, lane);
    }
}

void link_heal_progress(const struct links *links, struct link_peer *peer, enum link_lane lane)
{
    peer->watch[lane].since = link_waits(peer, lane) ? links->now : LANE_NEVER;
    peer->watch[lane].patience_us = links->config.reopen_us;
}

void link_heal_unheard(struct links *links, struct link_peer *peer, uint64_t silence_us)
{
    uint64_t earliest =
        peer->watch[LINK_CONTROL].reopened_at + link_patience(links, peer, LINK_CONTROL);

    if (links->config.reopen_us > 0 && silence_us >= links->config.reopen_us &&
        links->now >= earliest) {
        link_reopen(links, peer, LINK_CONTROL);
    }
}

void link_heal(struct links *links, struct link_peer *peer)
{
    if (links->config.reopen_us == 0) {
        return;
    }
    for (int i = 0; i < LINK_LANES; i++) {
        enum link_lane lane = (enum link_lane)i;
        struct link_watch *watch = &peer->watch[lane];

        if (watch->since != LANE_NEVER && link_waits(peer, lane) &&
            links->now - watch->since >= link_patience(links, peer, lane)) {
            link_reopen(links, peer, lane);
        }
        if (!link_waits(peer, lane)) {
            watch->since = LANE_NEVER;
        } else if (watch->since == LANE_NEVER) {
            watch->since = links->now;
        }
    }
}

uint64_t link_heal_deadline(const struct links *links, const struct link_peer *peer)
{
    uint64_t deadline = LANE_NEVER;

    for (int lane = 0; lane < LINK_LANES && links->config.reopen_us > 0; lane++) {
        uint64_t since = peer->watch[lane].since;

        if (since == LANE_NEVER && link_waits(peer, (enum link_lane)lane)) {
            return links->now;
        }
        if (since != LANE_NEVER) {
            deadline = link_min(deadline, since + link_patience(links, peer, (enum link_lane)lane));
        }
    }
    return deadline;
}

void link_forgive_stall(struct links *links)
{
    uint64_t longest_us = STALL_HEARTBEATS * links->config.heartbeat_us;
    bool stalled = links->now - links->ticked_at > longest_us;
    bool beating = false;

    links->ticked_at = links->now;
    for (size_t i = 0; stalled && i < links->count; i++) {
        beating = beating || links->peers[i]->incarnation != 0;
    }
    for (size_t i = 0; beating && i < links->count; i++) {
        struct link_peer *peer = links->peers[i];

        peer->heard_at = links->now;
        peer->watch[LINK_CONTROL].since = peer->watch[LINK_BULK].since = LANE_NEVER;
    }
}
