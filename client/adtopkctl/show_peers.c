/* peers, and the part of status that is about them. */
#include <string.h>

#include "client/adtopkctl/show.h"
#include "client/adtopkctl/text.h"

#define ENDPOINT_COLUMNS 64

static void show_strangers(FILE *out, const cJSON *document)
{
    const cJSON *strangers = text_member(document, "strangers");

    const double packets = text_number(strangers, "packets");
    const double unreadable = text_number(strangers, "unreadable");

    if (packets > 0) {
        (void)fprintf(out,
            "%.0f packet%s not for this node or not from one of its peers; the last\n"
            "one was from node %.0f for node %.0f: node ids or peers are configured wrongly\n",
            packets, packets > 1 ? "s were" : " was", text_number(strangers, "source"),
            text_number(strangers, "destination"));
    }
    if (unreadable > 0) {
        (void)fprintf(out, "%.0f packet%s could not be read: are all nodes of the same release?\n",
            unreadable, text_s(unreadable));
    }
}

/* Where a peer is, unless the configuration says it. */
static void show_origin(FILE *out, const cJSON *peer)
{
    const double node = text_number(peer, "node");
    char endpoint[TEXT_SIZE];

    (void)text_string(peer, "endpoint", ENDPOINT_COLUMNS, endpoint);
    if (text_is(peer, "origin", "seed")) {
        (void)fprintf(out, "node %.0f at %s is a seed of this node\n", node, endpoint);
    } else if (text_is(peer, "origin", "learned")) {
        (void)fprintf(out, "node %.0f at %s was introduced by node %.0f, a seed\n", node, endpoint,
            text_number(peer, "seed"));
    } else if (text_is(peer, "endpoint", "")) {
        (void)fprintf(out, "node %.0f has not joined yet\n", node);
    } else if (text_is(peer, "origin", "joined")) {
        (void)fprintf(out, "node %.0f joined at %s\n", node, endpoint);
    }
}

/* Without its seed a node may not know all others. */
static void show_silent_seeds(FILE *out, const cJSON *document)
{
    const cJSON *peer;
    char endpoint[TEXT_SIZE];

    cJSON_ArrayForEach(peer, text_member(document, "peers"))
    {
        if (text_is(peer, "origin", "seed") && !text_is(peer, "state", "up")) {
            (void)fprintf(out,
                "node %.0f, a seed at %s, does not answer: this node asks it again\n",
                text_number(peer, "node"),
                text_string(peer, "endpoint", ENDPOINT_COLUMNS, endpoint));
        }
    }
}

static void show_links_table(FILE *out, const cJSON *document)
{
    static const struct table_column columns[] = {{.title = "peer", .right = true},
        {.title = "state"}, {.title = "rtt", .right = true}, {.title = "queued", .right = true},
        {.title = "reopened", .right = true}};
    struct table table;
    const cJSON *peer;
    char text[TEXT_SIZE];

    if (cJSON_GetArraySize(text_member(document, "peers")) == 0) {
        (void)fprintf(out, "no peers\n");
        return;
    }
    table_begin(&table, columns, sizeof(columns) / sizeof(columns[0]));
    cJSON_ArrayForEach(peer, text_member(document, "peers"))
    {
        table_add(&table, peer);
        show_count(&table, peer, "node");
        table_text(&table, text_string(peer, "state", TEXT_SIZE, text));
        table_number(&table, text_round_trip(peer, text), text_number(peer, "round_trip_us"));
        show_bytes(&table, peer, "queued_bytes");
        show_count(&table, peer, "reopened");
    }
    show_table(out, &table);
    table_free(&table);
    show_silent_seeds(out, document);
}

/* How the links are protected, and what the daemon refused. */
static void show_network(FILE *out, const cJSON *document)
{
    const cJSON *network = text_member(document, "network");
    const cJSON *refused = text_member(network, "refused");
    const double keys = text_number(refused, "keys");
    const double handshakes = text_number(refused, "handshakes");
    const double tokens = text_number(refused, "tokens");
    const double packets = text_number(refused, "packets");
    char protection[TEXT_SIZE];

    if (network == NULL) {
        return;
    }
    (void)text_string(network, "protection", 20, protection);
    (void)fprintf(out, "links: %s\n",
        strcmp(protection, "curve") == 0          ? "encrypted (curve)"
        : strcmp(protection, "control only") == 0 ? "only control messages are encrypted"
        : strcmp(protection, "none") == 0         ? "not encrypted"
                                                  : protection);
    if (keys + handshakes + tokens + packets > 0) {
        (void)fprintf(out, "refused: %.0f key%s, %.0f handshake%s, %.0f token%s, %.0f packet%s\n",
            keys, text_s(keys), handshakes, text_s(handshakes), tokens, text_s(tokens), packets,
            text_s(packets));
    }
}

void show_links(FILE *out, const cJSON *document)
{
    show_links_table(out, document);
    show_strangers(out, document);
    show_network(out, document);
}

const struct table_column show_peers_columns[SHOW_PEERS_COLUMNS] = {
    {.title = "peer", .right = true}, {.title = "state"}, {.title = "rtt", .right = true},
    {.title = "sent", .right = true}, {.title = "received", .right = true},
    {.title = "queued", .right = true}, {.title = "resent", .right = true},
    {.title = "twice", .right = true}, {.title = "bad", .right = true},
    {.title = "reopened", .right = true}};

void show_peers_table(FILE *out, const cJSON *peers)
{
    struct table table;
    const cJSON *peer;
    char text[TEXT_SIZE];

    table_begin(&table, show_peers_columns, SHOW_PEERS_COLUMNS);
    cJSON_ArrayForEach(peer, peers)
    {
        if (!show_is_wanted(peer)) {
            continue;
        }
        table_add(&table, peer);
        show_count(&table, peer, "node");
        table_text(&table, text_string(peer, "state", TEXT_SIZE, text));
        table_number(&table, text_round_trip(peer, text), text_number(peer, "round_trip_us"));
        show_bytes(&table, peer, "bytes_sent");
        show_bytes(&table, peer, "bytes_received");
        show_bytes(&table, peer, "queued_bytes");
        show_count(&table, peer, "resent");
        show_count(&table, peer, "duplicates");
        show_count(&table, peer, "malformed");
        show_count(&table, peer, "reopened");
    }
    show_table(out, &table);
    table_free(&table);
}

void show_peers(FILE *out, const cJSON *document)
{
    const cJSON *peers = text_member(document, "peers");
    const cJSON *peer;

    if (cJSON_GetArraySize(peers) == 0) {
        (void)fprintf(out, "no peers\n");
        return;
    }
    show_peers_table(out, peers);
    cJSON_ArrayForEach(peer, peers)
    {
        if (show_is_wanted(peer)) {
            show_origin(out, peer);
        }
    }
    show_strangers(out, document);
}
