/*
 * One end of a link: the daemon's links over its ZeroMQ transport, driven by poll() as its loop
 * does.
 */
#ifndef PERF_LINK_END_H
#define PERF_LINK_END_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/transport/transport.h"

#define LINK_ENDPOINT_SIZE 64
#define LINK_END_SHORT 4096 /* bytes of a short message */

/* How a link is protected: a row of a table each. */
struct link_security {
    const char *name;
    bool keys;       /* CURVE, with the other end's key allowed */
    bool clear_bulk; /* only control under CURVE, bulk in the clear by a token */
};

extern const struct link_security link_security_table[]; /* ends with a name of NULL */
extern const char *const link_security_names[];          /* of the table; ends with NULL */

struct link_end {
    struct links *links;
    void *transport;
    uint16_t peer;                   /* there are two ends, 0 and 1 */
    const struct keyfile_pair *keys; /* of both ends; NULL: plain */
    char endpoint[LINK_ENDPOINT_SIZE];
    uint64_t bytes[LINK_LANES]; /* received so far */
    uint64_t messages[LINK_LANES];
    uint64_t short_messages; /* number of short messages on the bulk lane */
};

/** New keys for both ends. False if ZeroMQ was built without CURVE. */
bool link_end_keys(struct keyfile_pair keys[2]);

/** Both ends start, tell each other over the socket `fd` where they listen, and connect. End with
 * link_end_stop(), also on an error. */
enum adtopk_status link_end_meet(struct link_end *end, unsigned side,
    const struct link_security *security, const struct keyfile_pair keys[2], int fd,
    struct error *err);

/** Queues a bulk message of a class; it stays the caller's. */
bool link_end_send_as(
    struct link_end *end, const struct share_class *class, struct buffer *message);

/** Queues a message for the other end; it stays the caller's. */
bool link_end_send(struct link_end *end, enum link_lane lane, struct buffer *message);

/** One turn of the loop: sleeps until there is something to do, at most 20 ms. */
void link_end_turn(struct link_end *end);

void link_end_stop(struct link_end *end);

#endif
