/*
 * What the ZeroMQ transport consists of, shared by zmq.c (packets) and zmq_peers.c (peers and
 * keys).
 */
#ifndef ADTOPK_TRANSPORT_ZMQ_STATE_H
#define ADTOPK_TRANSPORT_ZMQ_STATE_H

#include "daemon/transport/allow.h"
#include "daemon/transport/receiver.h"
#include "daemon/transport/refusals.h"
#include "daemon/transport/sender.h"
#include "daemon/transport/token.h"
#include "daemon/transport/transport.h"
#include "daemon/transport/waiter.h"
#include "daemon/transport/zap.h"

/* In this order: inflow counts bytes before messages are taken. */
enum transport_zmq_source {
    SOURCE_ZAP,
    SOURCE_INFLOW,
    SOURCE_PULL,
    SOURCE_WATCH,
    SOURCE_BULK_INFLOW,
    SOURCE_BULK,
    SOURCE_BULK_WATCH
};

struct transport_zmq {
    void *zmq;
    struct waiter waiter;
    struct receiver receiver;
    struct receiver bulk; /* closed unless bulk comes in the clear */
    struct keyfile_pair pair;
    struct sender_home home;
    struct allow allow;
    struct token_table tokens;
    struct zap zap; /* closed without keys */
    struct refusals refusals;
    transport_receive_fn receive;
    void *context;
    struct sender *peers; /* in ascending order of id */
    size_t count;
};

/** The peer with this id; NULL if there is none. */
struct sender *transport_zmq_find(const struct transport_zmq *transport, uint16_t id);

/** The operations of the table. */
enum adtopk_status transport_zmq_add_peer(
    void *handle, const struct transport_peer *peer, struct error *err);
void transport_zmq_drop_peer(void *handle, uint16_t id);
enum adtopk_status transport_zmq_move_peer(
    void *handle, uint16_t id, const char *endpoint, struct error *err);
enum adtopk_status transport_zmq_reload(void *handle, const struct keyfile_pair *pair,
    const struct transport_peer *peers, size_t count, struct error *err);

/** Refuses endpoints that are not tcp://. */
enum adtopk_status transport_zmq_check_endpoint(const char *endpoint, struct error *err);

/** Makes errno the error: WHAT "ENDPOINT": reason. */
enum adtopk_status transport_zmq_failed(struct error *err, const char *what, const char *endpoint);

/** Opens the doors: one for everything, and one for bulk in the clear unless `bulk` is NULL.
 * again: this transport listened there until now. Nothing is open after an error. */
enum adtopk_status transport_zmq_listen(struct transport_zmq *transport, const char *listen,
    const char *bulk, bool again, struct error *err);

void transport_zmq_close_receivers(struct transport_zmq *transport);

#endif
