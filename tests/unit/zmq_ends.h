/*
 * Two ends of the ZeroMQ transport with links on top, in one process. poll() drives them as a
 * daemon's loop does. Every error fails the test.
 */
#ifndef ADTOPK_TEST_ZMQ_ENDS_H
#define ADTOPK_TEST_ZMQ_ENDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/transport/transport.h"

/* The transport of the ends. */
extern const struct transport_ops *const end_transport;

#define SECOND_US 1000000U
#define PATIENCE_US (60 * SECOND_US) /* how long a test waits for what must happen */
#define ANY_PORT "tcp://127.0.0.1:*"

struct end {
    struct links *links;
    void *transport;
    char endpoint[64];
    uint64_t received[LINK_LANES], sent[LINK_LANES];
    uint64_t incarnation_seen;
    unsigned ups;
    unsigned warnings;
    char warning[512]; /* the last warning */
    char warned[8192]; /* all warnings, as far as they fit */
};

uint64_t ends_now_us(void);

/** Byte `at` of message `index`. A message begins with its number; the other bytes depend on it and
 * on their place. */
uint8_t ends_content(uint64_t index, size_t at);

/* Patient links send heartbeats and lost packets so late that a lost wake-up shows as a stall.
 * Daemon-like links send them as soon as a daemon's do. */
enum end_links { END_PATIENT, END_DAEMON };

/** Starts an end. Fills in self and warn of `options`. */
void end_start(struct end *end, uint16_t id, uint64_t incarnation, enum end_links links,
    const struct transport_config *options);
void end_stop(struct end *end);

/** key: NULL without keys. */
void end_connect(struct end *end, uint16_t peer, const char *endpoint, const char *key);

/** Queues a message whose content the other end checks. */
void end_send(struct end *end, uint16_t peer, enum link_lane lane, size_t size);

/** Takes one turn as a daemon's loop does: sleeps until a packet or a deadline. */
void ends_turn(struct end *ends, uint64_t until);

/** Takes turns until each end has received this many messages. */
void ends_run_until(struct end *ends, uint64_t control, uint64_t bulk);

/** Makes new pairs of CURVE keys in Z85, for nodes 0, 1, ... */
void ends_draw_keys(struct keyfile_pair *pairs, size_t count);

/** Starts nodes 0 and 1 with these keys, and waits until they see each other. clear: whether each
 * node accepts unencrypted bulk messages. */
void ends_start_keyed(struct end *ends, enum end_links links, const struct keyfile_pair *pairs,
    bool clear_0, bool clear_1);

/** Starts nodes 0 and 1 without keys, and waits until they see each other. */
void ends_start_pair(struct end *ends);
void ends_stop_pair(struct end *ends);

/** Makes a raw connection to an endpoint on loopback, which the caller closes. */
int tcp_connect(const char *endpoint);

/** Checks that nothing was sent twice. Loopback loses nothing, so a repetition is a bug. */
void ends_check_nothing_resent(const struct end *ends);

#endif
