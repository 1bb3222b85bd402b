/*
 * Joining by a seed. A node asks the seeds of its configuration who the other nodes are, and tells
 * them its own endpoint. A seed answers with the nodes of its configuration, and sends its list
 * again whenever that changes. So a node that joins, and all that ask the same seed, learn of each
 * other.
 *
 * Only the word of a node that this node's configuration names as a seed counts. Who may ask is the
 * transport's matter: with keys, the peers whose keys the seed has. known.h has the rules by which
 * an introduction is taken.
 *
 * The messages (PeerSeedMessage of proto/peer.proto) are packets of their own, outside the links: a
 * node that joins has no link yet. They may be lost. A node asks again at every tick until its seed
 * answers. A seed sends its list when that changes, to some nodes at each tick. Until a node says
 * that it has the list, it is sent again after pauses that double, or at once if the node asks.
 * Messages only change the table of nodes. seeds_settle() does what follows, so that no connection
 * is opened or closed while the transport hands packets out.
 */
#ifndef ADTOPK_SEED_H
#define ADTOPK_SEED_H

#include "daemon/link/packet.h"
#include "daemon/settings/config.h"

#define SEED_VERSION 1

/* The functions that the seeds need. */
struct seed_ops {
    /* Connects to a node that was learned; its keys may connect from now on. */
    enum adtopk_status (*add)(void *context, const struct config_peer *peer, struct error *err);
    /* Connects to a node at another endpoint. */
    enum adtopk_status (*move)(
        void *context, uint16_t node, const char *endpoint, struct error *err);
    /* The keys of some nodes have changed: takes those of all (seeds_peer()). */
    enum adtopk_status (*rekey)(void *context, struct error *err);
    /* The incarnation of a node that answers; 0 if it does not. */
    uint64_t (*answers)(void *context, uint16_t node);
    /* Sends a packet, which may be lost. False if it cannot be sent now. */
    bool (*send)(void *context, uint16_t node, const uint8_t header[PACKET_HEADER_SIZE],
        const uint8_t *body, size_t size);
    /* Takes a line for the log; warning: something is wrong. */
    void (*log)(void *context, bool warning, const char *line);
};

struct seeds;

/** The nodes of the configuration, to which the caller has connected. key: this node's public one,
 * "" without keys. NULL without memory. */
struct seeds *seeds_create(const struct config *config, const char *key, uint64_t incarnation,
    const struct seed_ops *ops, void *context);

void seeds_destroy(struct seeds *seeds);

/** Whether the nodes of another configuration go with those that were learned. */
enum adtopk_status seeds_check(struct seeds *seeds, const struct config *config, struct error *err);

/** Takes a node of another configuration, which seeds_check() has found to fit. The caller has just
 * connected to it, because seeds_has() did not have it. */
void seeds_take(struct seeds *seeds, const struct config_peer *peer);

/** Takes that configuration. All its nodes have been taken by themselves, or were there. */
void seeds_configure(struct seeds *seeds, const struct config *config, const char *key);

/** Whether this daemon connects to the node. */
bool seeds_has(struct seeds *seeds, uint16_t node);

/** Takes a packet if it is of a known node and about nodes; false if it is for the links. peer: the
 * sender as the transport knows it, UINT16_MAX if it cannot tell. */
bool seeds_receive(
    struct seeds *seeds, uint16_t peer, const uint8_t *packet, size_t size, struct buffer *body);

/** Connects to nodes that packets have told of; false if they told nothing new. Not to be called
 * while the transport hands packets out. */
bool seeds_settle(struct seeds *seeds);

/** Asks and answers, and settles what could not be settled before. To be called about twice a
 * second, and not while the transport hands packets out. */
void seeds_tick(struct seeds *seeds, uint64_t now_us);

/** The node with this number, however it is known; NULL if it is not. Valid until the next tick. */
const struct config_peer *seeds_peer(struct seeds *seeds, uint16_t node);

/** The next node that was learned and that connections were opened to; NULL: there are no more.
 * at: 0 for the first; goes behind the node. */
const struct config_peer *seeds_learned(const struct seeds *seeds, size_t *at);

/* How a node is known, for people. */
struct seed_view {
    const char *endpoint; /* "": not known yet */
    const char *origin;   /* "configured", "seed", "joined" or "learned" */
    int seed;             /* that introduced it; -1: none did */
};

/** False if the node is not known. */
bool seeds_describe(struct seeds *seeds, uint16_t node, struct seed_view *view);

#endif
