/*
 * Counts refused connections and packets by reason, and describes them to the log. Each reason has
 * its own limit, so that a flood of one sort cannot hide the others.
 */
#ifndef ADTOPK_TRANSPORT_REFUSALS_H
#define ADTOPK_TRANSPORT_REFUSALS_H

#include <stdint.h>

#include "daemon/transport/transport.h"

enum refusal { REFUSAL_KEY, REFUSAL_HANDSHAKE, REFUSAL_TOKEN, REFUSAL_PACKET, REFUSALS };

#define REFUSAL_BURST 10           /* lines of a reason at once */
#define REFUSAL_REFILL_US 10000000 /* time after which another line is allowed */

struct refusal_budget {
    uint64_t count;       /* since the start */
    uint64_t unsaid;      /* those since the last line */
    uint64_t used;        /* lines that have not been refilled yet */
    uint64_t refilled_us; /* when `used` was brought up to date */
};

/* Zero-initialised except `warn` and `context`. */
struct refusals {
    struct refusal_budget budget[REFUSALS];
    transport_warn_fn warn; /* may be NULL */
    void *context;
};

void refusals_add(struct refusals *refusals, enum refusal reason, const char *line);

#endif
