/*
 * The documents behind status and stats: JSON, with "schema": 1 first. A schema's fields keep
 * their meaning; fields may be added. README.md beside this file lists them.
 */
#ifndef ADTOPK_REPORT_H
#define ADTOPK_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/admin/history.h"
#include "daemon/core/inspect.h"

#define REPORT_SCHEMA 1
#define REPORT_MAX_TENSORS 1024u /* described one by one, a job; the rest is only counted */

/* What the transport says of its protection, and how much it refused since the start. */
struct report_network {
    const char *protection;            /* "curve", "control only" or "none"; NULL: no other nodes */
    uint64_t keys, handshakes, tokens; /* connections, by the reason */
    uint64_t packets;
};

/* What the documents are about: the core, and what it does not know of its daemon. */
struct report_daemon {
    const struct core *core;
    const struct history *history;
    uint16_t node;
    uint64_t incarnation;
    uint64_t uptime_s;
    uint32_t sessions;
    struct report_network network;
};

/** The text of the document, to be freed with free(); NULL without memory. */
char *report_status(const struct report_daemon *daemon);

/** `job`: only jobs of this name, or all if it is empty. NULL without memory; *found tells
 * whether there was such a job. */
char *report_stats(const struct report_daemon *daemon, const char *job, bool *found);

#endif
