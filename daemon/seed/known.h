/*
 * The nodes that this daemon knows, and the rules by which it comes to know more.
 *
 * Nodes of the configuration are there from the start. Their numbers and keys are as it says, and
 * no message changes them. A node that the configuration names without an endpoint tells that
 * itself. Nodes that a seed introduces are added with the keys that the seed names.
 *
 * A number stays with its keys: another introduction must share a key with what is known, so that a
 * node can change its key in two steps. A node that answers stays where it is. If it, or a seed,
 * names another endpoint meanwhile, that one is tried once the node is silent. So two daemons with
 * one number do not take each other's place.
 *
 * Nothing here does I/O. seed.c has the conversation, and does what these rules decide.
 */
#ifndef ADTOPK_SEED_KNOWN_H
#define ADTOPK_SEED_KNOWN_H

#include "daemon/core/core.h"
#include "daemon/settings/config.h"

/* Where this daemon knows a node from. */
enum known_origin {
    KNOWN_CONFIGURED, /* the configuration, with its endpoint */
    KNOWN_SEED,       /* the configuration, as a seed */
    KNOWN_JOINED,     /* the configuration; it tells its endpoint itself */
    KNOWN_LEARNED     /* a seed introduced it */
};

struct known_node {
    struct config_peer peer;
    enum known_origin origin;
    uint16_t from;                   /* LEARNED: the seed */
    char next[CONFIG_ENDPOINT_SIZE]; /* where to try it next; "": it stays where it is */
    bool added;                      /* to the peers that this daemon connects to */
    bool rekeyed;                    /* its keys have changed, and connections have the old ones */
    /* Of the conversation in seed.c. */
    bool moved;            /* to an endpoint at which it has not answered yet */
    uint64_t asked;        /* its incarnation that takes this node as its seed; 0: none does */
    unsigned logged;       /* what the log says of it: bits of enum seed_complaint in seed.c */
    uint64_t has;          /* it asks: number of the list that it has */
    uint64_t told;         /* number of the list that it was sent last */
    uint64_t tell_us;      /* when it is sent that again */
    uint64_t pause_us;     /* between the last two times */
    uint64_t took;         /* a seed: number of the last list taken from it */
    uint64_t told_by;      /* a seed: its incarnation that sent that list; 0: none has */
    uint64_t silent_since; /* a seed: when it stopped to answer, in us; 0: it answers */
};

/* This node, as the rules see it. */
struct known_self {
    uint16_t node;
    char endpoint[CONFIG_ENDPOINT_SIZE]; /* that it advertises */
    char key[KEYFILE_KEY_SIZE];          /* its public key; "": nodes have no keys */
    bool insecure;                       /* endpoints beyond this machine need no keys */
};

struct known {
    struct known_self self;
    size_t count;
    struct known_node node[CORE_MAX_NODES];
    uint16_t place[UINT16_MAX + 1]; /* of each number in `node`, plus 1; 0: it is not known */
};

/** The node with this number, or NULL. */
struct known_node *known_find(struct known *known, uint16_t node);

/** ADTOPK_ERR_ARGUMENT if there would be more than CORE_MAX_NODES with those of the configuration,
 * or if one of them has the key of another node, which was learned. */
enum adtopk_status known_check(struct known *known, const struct config *config, struct error *err);

/** Takes the nodes of a configuration, which has passed its checks and known_check(). Nodes that
 * were learned stay. If the configuration has one of them too, its word counts. */
void known_configure(struct known *known, const struct config *config, const char *key);

/** Takes one node of such a configuration. */
struct known_node *known_configure_node(struct known *known, const struct config_peer *peer);

/** A known node says where it is, in numbers: looking a name up could stop all connections, for as
 * long as the sender's name server likes. up: it answers where it was. */
enum adtopk_status known_hear_endpoint(
    struct known *known, struct known_node *node, const char *endpoint, bool up, struct error *err);

/**
 * A seed introduces a node. up: the node is known, and answers. An error says why this node does
 * not take the seed's word; then nothing has changed.
 */
enum adtopk_status known_hear_node(struct known *known, uint16_t seed,
    const struct config_peer *introduced, bool up, struct error *err);

#endif
