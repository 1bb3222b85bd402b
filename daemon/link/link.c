/*
 * Links: greeting, acknowledgement and liveness of every peer. lane.c has the streams, packet.c the
 * bytes of a packet.
 *
 * Greeting. Each side finds out on its own which incarnation of the peer is alive. It sends
 * HELLO(challenge) until a node answers WELCOME(its own incarnation, that challenge), and adopts
 * the incarnation that answered. A HELLO is always answered, a WELCOME never, so two sides may
 * begin at once without an endless exchange. A packet from an incarnation that was not adopted
 * proves nothing: the peer may have restarted, or an old packet may have surfaced. Then the peer is
 * challenged, and only an answer counts.
 *
 * Why an old packet cannot bring back an old connection. A WELCOME names our incarnation, which no
 * node knew before this start. It also names the number of our challenge, which changes with every
 * adoption. Let B' be an incarnation of the peer that lives after B is dead. Only an answer that B'
 * gave after B's death can get it adopted, and from then on the challenge is one that B never saw.
 * HELLOs change no state; DATA and ACK must name the current pair of incarnations. So no list of
 * old incarnations is needed.
 *
 * Adoption is followed by an ACK. A side sends data once it has received a DATA or ACK of the
 * connection, which proves that the peer adopted it and tells its credit. Until then it goes on
 * with HELLOs.
 *
 * Failure. A packet that the transport refuses is offered again after 1 ms, then 2, 4, 8 and at
 * most 10 ms. When a timeout passes, a probe finds out whether data were lost; if so, they are
 * resent from the last acknowledged position. While the peer is silent only heartbeats are sent,
 * and the probe follows as soon as the peer is heard again. If there is no memory for a message,
 * its packets are dropped, and the sender tries again. Connections that take packets but deliver
 * none are opened anew (link_heal.c).
 */
#include "daemon/link/link_state.h"

#define LINK_HELLO_LAST_US 1000000
/* One acknowledgement answers what arrives within this time. After whole messages of bulk it only
 * lets the sender give memory back. So it waits longer, but not nearly until the sender's probe. */
#define LINK_ACK_DELAY_US 1000
#define LINK_BULK_ACK_DELAY_US 20000
#define LINK_DELAYS_PER_PROBE 10
#define LINK_RETRY_LAST_US 10000
#define LINK_ACK_PARTS 4          /* bulk bytes, in parts, that are acknowledged without delay */
#define LINK_CONTROL_QUEUE 16     /* control messages of the longest size that may be in flight */
#define LINK_PARTS_PER_SECOND 100 /* at least: a part holds the link for at most 10 ms */
#define LINK_PART_MIN 1024        /* a part is at least so large */

/* Sending */

static void link_retry(const struct links *links, struct link_peer *peer, enum link_lane lane)
{
    peer->retry_at[lane] = links->now + peer->retry_interval[lane];
    peer->retry_interval[lane] = link_min(2 * peer->retry_interval[lane], LINK_RETRY_LAST_US);
}

static bool link_transmit(struct links *links, struct link_peer *peer, struct packet *packet)
{
    uint8_t header[PACKET_HEADER_SIZE];
    enum link_lane lane = packet->lane;
    struct buffer *owner = packet->body_size >= LINK_KEEP_MIN ? packet->owner : NULL;
    bool taken;

    packet->source = links->config.self;
    packet->destination = peer->id;
    packet->source_incarnation = links->config.incarnation;
    packet_encode(packet, header);
    links->use = LINK_TRANSMITTING;
    taken = links->ops.transmit(links->context, peer->id, lane, header, sizeof(header),
        packet->body, packet->body_size, owner);
    links->use = LINK_BUSY;
    if (!taken) {
        link_retry(links, peer, lane);
        return false;
    }
    peer->retry_at[lane] = 0;
    peer->retry_interval[lane] = LINK_RETRY_FIRST_US;
    peer->stats.packets_sent++;
    peer->stats.bytes_sent += sizeof(header) + packet->body_size;
    peer->stats.copied_bytes += owner == NULL ? packet->body_size : 0;
    peer->stats.checked_bytes += packet_is_known(packet) ? 0 : packet->body_size;
    return true;
}

/* Fills the fields that every packet of a connection has. */
static void link_begin_packet(const struct links *links, const struct link_peer *peer,
    enum packet_type type, enum link_lane lane, struct packet *packet)
{
    *packet = (struct packet){
        .type = type,
        .lane = lane,
        .destination_incarnation = peer->incarnation,
        .acknowledged = {peer->in[LINK_CONTROL].position, peer->in[LINK_BULK].position},
        .credit = peer->in[LINK_BULK].position + links->config.window,
    };
}

/* Acknowledgements that ride on bulk packets may arrive late, so only the control lane counts. */
static void link_told(const struct links *links, struct link_peer *peer)
{
    peer->ack_at = links->now + links->config.heartbeat_us;
    peer->bulk_acked = peer->in[LINK_BULK].position;
}

static void link_send_hello(struct links *links, struct link_peer *peer)
{
    struct packet packet = {
        .type = PACKET_HELLO, .lane = LINK_CONTROL, .position = peer->challenge};

    (void)link_transmit(links, peer, &packet);
    peer->hello_last = links->now;
    peer->hello_at = peer->confirmed ? LANE_NEVER : links->now + peer->hello_interval;
    peer->hello_interval = link_min(2 * peer->hello_interval, LINK_HELLO_LAST_US);
}

static void link_send_welcome(
    struct links *links, struct link_peer *peer, const struct packet *hello)
{
    struct packet packet = {.type = PACKET_WELCOME,
        .lane = LINK_CONTROL,
        .destination_incarnation = hello->source_incarnation,
        .position = hello->position};

    (void)link_transmit(links, peer, &packet);
}

static void link_send_ack(struct links *links, struct link_peer *peer)
{
    struct packet packet;

    link_begin_packet(links, peer, PACKET_ACK, LINK_CONTROL, &packet);
    packet.position = links->now - peer->heard_at;
    if (link_transmit(links, peer, &packet)) {
        link_told(links, peer);
    } else if (!peer->up) {
        peer->ack_at = links->now + links->config.heartbeat_us;
        peer->retry_at[LINK_CONTROL] = 0;
    }
}

static size_t link_part_size(const struct links *links, const struct link_peer *peer)
{
    uint64_t rate = peer->out[LINK_BULK].meter.rate;
    uint64_t most = rate > 0 ? link_max(rate / LINK_PARTS_PER_SECOND, LINK_PART_MIN) : UINT64_MAX;

    return (size_t)link_min(links->config.part_size, most);
}

/* Cuts the next part of a lane, as far as both windows allow. */
static bool link_cut(const struct links *links, const struct link_peer *peer, enum link_lane lane,
    struct packet *packet)
{
    const struct lane_out *out = &peer->out[lane];
    uint64_t limit;

    if (!peer->up || !peer->confirmed) {
        return false;
    }
    if (lane == LINK_CONTROL) {
        limit = out->acknowledged + LINK_CONTROL_QUEUE * (links->config.max_control_message + 1);
        return lane_out_cut(out, links->config.max_control_message, limit, packet);
    }
    limit = link_min(peer->credit, out->acknowledged + links->config.window);
    return lane_out_cut(out, link_part_size(links, peer), limit, packet);
}

static bool link_send_part(struct links *links, struct link_peer *peer, enum link_lane lane)
{
    struct packet packet;

    link_begin_packet(links, peer, PACKET_DATA, lane, &packet);
    if (peer->retry_at[lane] > links->now || !link_cut(links, peer, lane, &packet)) {
        return false;
    }
    if (!lane_out_reserve(&peer->out[lane])) {
        link_retry(links, peer, lane);
        return false;
    }
    if (!link_transmit(links, peer, &packet)) {
        return false;
    }
    if (lane_out_advance(&peer->out[lane], &packet, links->now)) {
        peer->stats.resent++;
        peer->stats.resent_bytes += PACKET_HEADER_SIZE + packet.body_size;
    }
    if (lane == LINK_CONTROL) {
        link_told(links, peer);
    }
    return true;
}

/* One part of whichever lane can send; control goes first. */
static bool link_send_next(struct links *links, struct link_peer *peer)
{
    return link_send_part(links, peer, LINK_CONTROL) || link_send_part(links, peer, LINK_BULK);
}

static void link_send_due(struct links *links, struct link_peer *peer)
{
    if (peer->hello_at <= links->now) {
        link_send_hello(links, peer);
    }
    if (peer->incarnation != 0 && peer->ack_at <= links->now &&
        peer->retry_at[LINK_CONTROL] <= links->now) {
        link_send_ack(links, peer);
    }
}

/* Receiving */

/* Challenges a peer that is not adopted or has not answered yet, to find out whether it is alive.
 */
static void link_challenge(const struct links *links, struct link_peer *peer)
{
    uint64_t earliest = peer->hello_last + LINK_HELLO_FIRST_US;

    peer->hello_at = link_min(peer->hello_at, link_max(earliest, links->now));
}

static void link_came_up(const struct links *links, struct link_peer *peer)
{
    link_heal_progress(links, peer, LINK_CONTROL);
    link_heal_progress(links, peer, LINK_BULK);
}

static void link_adopt(struct links *links, struct link_peer *peer, const struct packet *welcome)
{
    peer->incarnation = welcome->source_incarnation;
    peer->challenge++;
    peer->up = true;
    peer->confirmed = false;
    peer->heard_at = links->now;
    peer->hello_interval = LINK_HELLO_FIRST_US;
    peer->hello_at = links->now + LINK_HELLO_FIRST_US;
    peer->ack_at = links->now;
    link_reset_lanes(links, peer);
    link_came_up(links, peer);
    links->ops.peer_up(links->context, peer->id, peer->incarnation);
}

static void link_receive_hello(
    struct links *links, struct link_peer *peer, const struct packet *packet)
{
    link_send_welcome(links, peer, packet);
    if (packet->source_incarnation != peer->incarnation) {
        link_challenge(links, peer);
    } else {
        peer->ack_at = links->now; /* it waits for a sign that we adopted it */
    }
}

static void link_receive_welcome(
    struct links *links, struct link_peer *peer, const struct packet *packet)
{
    if (packet->destination_incarnation != links->config.incarnation ||
        packet->position != peer->challenge) {
        peer->stats.stale++;
    } else if (packet->source_incarnation != peer->incarnation) {
        link_adopt(links, peer, packet);
    }
}

/* A packet of the current connection is a sign of life. */
static void link_heard(struct links *links, struct link_peer *peer)
{
    peer->heard_at = links->now;
    if (!peer->confirmed || !peer->up) {
        peer->ack_at = links->now; /* the peer waits for the same */
    }
    if (!peer->confirmed) {
        peer->confirmed = true;
        peer->hello_at = LANE_NEVER;
    }
    if (!peer->up) {
        peer->up = true;
        link_came_up(links, peer);
        links->ops.peer_up(links->context, peer->id, peer->incarnation);
    }
}

static bool link_acknowledged(
    struct links *links, struct link_peer *peer, const struct packet *packet)
{
    for (int lane = 0; lane < LINK_LANES; lane++) {
        if (packet->acknowledged[lane] > peer->out[lane].sent) {
            return false;
        }
    }
    for (int lane = 0; lane < LINK_LANES; lane++) {
        uint64_t before = peer->out[lane].acknowledged;

        lane_out_acknowledge(&peer->out[lane], packet->acknowledged[lane], links->now);
        if (peer->out[lane].acknowledged > before) {
            link_heal_progress(links, peer, (enum link_lane)lane);
        }
    }
    peer->credit = link_max(peer->credit, packet->credit);
    return true;
}

/* The most that the peer may have in flight to us. It keeps to its own window, too, which is its
 * credit beyond what it has acknowledged. */
static uint64_t link_peer_window(const struct links *links, const struct link_peer *peer)
{
    return link_min(links->config.window, peer->credit - peer->out[LINK_BULK].acknowledged);
}

/* The acknowledgement is late only while the peer has room for another part. */
static void link_schedule_ack(
    const struct links *links, struct link_peer *peer, enum link_lane lane)
{
    uint64_t pending = peer->in[LINK_BULK].position - peer->bulk_acked;
    uint64_t window = link_peer_window(links, peer);
    uint64_t enough = link_min(window / 4, (uint64_t)LINK_ACK_PARTS * links->config.part_size);
    uint64_t delay = LINK_ACK_DELAY_US;

    if (pending > 0 && pending >= enough) {
        delay = 0;
    } else if (lane == LINK_BULK && peer->in[LINK_BULK].bytes == 0 &&
               pending + links->config.part_size < window) {
        delay = link_min(LINK_BULK_ACK_DELAY_US, links->config.resend_us / LINK_DELAYS_PER_PROBE);
    }
    peer->ack_at = link_min(peer->ack_at, links->now + delay);
}

static void link_receive_part(
    struct links *links, struct link_peer *peer, const struct packet *packet)
{
    enum link_lane lane = packet->lane;
    struct buffer *message;

    switch (lane_in_take(&peer->in[lane], packet, link_longest(links, lane), &message)) {
    case LANE_TAKEN: break;
    case LANE_DUPLICATE: peer->stats.duplicates++; break;
    case LANE_GAP:
    case LANE_NO_MEMORY: peer->stats.dropped++; break;
    case LANE_MALFORMED: peer->stats.malformed++; return;
    }
    link_schedule_ack(links, peer, lane);
    if (message != NULL) {
        links->ops.deliver(links->context, peer->id, lane, message);
    }
}

static void link_receive_connected(
    struct links *links, struct link_peer *peer, const struct packet *packet)
{
    if (packet->destination_incarnation != links->config.incarnation) {
        peer->stats.stale++;
    } else if (packet->source_incarnation != peer->incarnation) {
        peer->stats.stale++;
        link_challenge(links, peer);
    } else if (!link_acknowledged(links, peer, packet)) {
        peer->stats.malformed++;
    } else {
        link_heard(links, peer);
        if (packet->type == PACKET_DATA) {
            link_receive_part(links, peer, packet);
        } else {
            link_heal_unheard(links, peer, packet->position);
        }
    }
}

/* The peer that sent a packet, which is counted as malformed and refused if NULL is returned. */
static struct link_peer *link_accept(struct links *links, uint16_t id, enum link_lane lane,
    bool decoded, const struct packet *packet)
{
    struct link_peer *peer = id != UINT16_MAX ? link_find(links, id) : NULL;
    bool whole = decoded && packet->lane == lane;
    bool valid = whole && packet->destination == links->config.self;

    if (valid && id == UINT16_MAX) {
        peer = link_find(links, packet->source);
    }
    if (peer == NULL) {
        links->refused.packets++;
        if (whole) {
            links->refused.strangers++;
            links->refused.source = packet->source;
            links->refused.destination = packet->destination;
        }
    } else if (valid && packet->source == peer->id) {
        return peer;
    } else {
        peer->stats.malformed++;
    }
    return NULL;
}

static void link_receive(struct links *links, struct link_peer *peer, const struct packet *packet)
{
    peer->stats.packets_received++;
    peer->stats.bytes_received += PACKET_HEADER_SIZE + packet->body_size;
    peer->stats.checked_bytes += packet->body_size;
    if (packet->type == PACKET_HELLO) {
        link_receive_hello(links, peer, packet);
    } else if (packet->type == PACKET_WELCOME) {
        link_receive_welcome(links, peer, packet);
    } else {
        link_receive_connected(links, peer, packet);
    }
    while (link_send_next(links, peer)) {
    }
    link_send_due(links, peer);
}

void links_receive(struct links *links, uint16_t id, enum link_lane lane, const uint8_t *bytes,
    size_t size, struct buffer *body, uint64_t now_us)
{
    struct packet packet;
    struct link_peer *peer;
    bool decoded;

    link_must_be_idle(links);
    links->use = LINK_BUSY;
    links->deadline_known = false;
    links->now = link_max(links->now, now_us);
    decoded = body != NULL ? packet_decode_apart(&packet, bytes, size, body)
                           : packet_decode(&packet, bytes, size);
    peer = link_accept(links, id, lane, decoded, &packet);
    if (peer != NULL) {
        link_receive(links, peer, &packet);
    }
    links->use = LINK_IDLE;
}

bool links_send(struct links *links, uint16_t id, enum link_lane lane,
    const struct share_class *class, struct buffer *message)
{
    static const struct share_class none;
    struct link_peer *peer = link_find(links, id);

    assert(links->use != LINK_TRANSMITTING);
    links->deadline_known = false;
    return peer != NULL && peer->incarnation != 0 && message->size <= link_longest(links, lane) &&
           lane_out_push(
               &peer->out[lane], message, class != NULL && lane == LINK_BULK ? class : &none);
}

void links_drop_job(struct links *links, uint64_t job)
{
    link_must_be_idle(links);
    links->deadline_known = false;
    for (size_t i = 0; i < links->count; i++) {
        lane_out_drop(&links->peers[i]->out[LINK_BULK], job);
    }
}

static void link_expire(struct links *links, struct link_peer *peer)
{
    if (!peer->up) {
        return;
    }
    if (links->now - peer->heard_at >= links->config.timeout_us) {
        peer->up = false;
        links->ops.peer_down(links->context, peer->id);
        return;
    }
    for (int lane = 0; lane < LINK_LANES; lane++) {
        lane_out_expire(&peer->out[lane], links->now);
    }
}

void links_tick(struct links *links, uint64_t now_us)
{
    link_must_be_idle(links);
    links->use = LINK_BUSY;
    links->deadline_known = false;
    links->now = link_max(links->now, now_us);
    link_forgive_stall(links);
    for (size_t i = 0; i < links->count; i++) {
        link_expire(links, links->peers[i]);
        link_heal(links, links->peers[i]);
    }
    for (bool progress = true; progress;) {
        progress = false;
        for (size_t i = 0; i < links->count; i++) {
            struct link_peer *peer = links->peers[(links->next_peer + i) % links->count];

            progress = link_send_next(links, peer) || progress;
        }
    }
    for (size_t i = 0; i < links->count; i++) {
        link_send_due(links, links->peers[i]);
    }
    links->next_peer = links->count > 0 ? (links->next_peer + 1) % links->count : 0;
    links->use = LINK_IDLE;
}

static uint64_t link_deadline(const struct links *links, const struct link_peer *peer)
{
    uint64_t deadline = link_min(peer->hello_at, link_heal_deadline(links, peer));
    struct packet part;

    if (peer->incarnation != 0) {
        deadline = link_min(deadline, link_max(peer->ack_at, peer->retry_at[LINK_CONTROL]));
    }
    if (!peer->up) {
        return deadline;
    }
    deadline = link_min(deadline, peer->heard_at + links->config.timeout_us);
    for (int lane = 0; lane < LINK_LANES; lane++) {
        deadline = link_min(deadline, peer->out[lane].resend_at);
        if (link_cut(links, peer, (enum link_lane)lane, &part)) {
            deadline = link_min(deadline, link_max(peer->retry_at[lane], links->now));
        }
    }
    return deadline;
}

uint64_t links_deadline(struct links *links)
{
    uint64_t deadline = LANE_NEVER;

    if (links->deadline_known) {
        return links->deadline;
    }
    for (size_t i = 0; i < links->count; i++) {
        deadline = link_min(deadline, link_deadline(links, links->peers[i]));
    }
    links->deadline = deadline;
    links->deadline_known = true;
    return deadline;
}
