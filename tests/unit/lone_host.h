/*
 * What the host of a core without peers has in common in all tests: memory that lives until the
 * test ends, and nobody to send anything to.
 */
#ifndef ADTOPK_TESTS_LONE_HOST_H
#define ADTOPK_TESTS_LONE_HOST_H

#include "daemon/core/core.h"

/* Short messages and timeouts; the core fills in the rest. */
extern const struct links_config lone_links;

/** Operations of struct core_memory: they keep everything. */
void lone_release_session(void *context, session_id session);
void lone_release_job(void *context, uint64_t job);
void lone_drop_store(void *context, uint64_t job, unsigned part);

/** The transmit operation of struct core_config: the test fails. */
bool lone_transmit(void *context, uint16_t peer, enum link_lane lane, const uint8_t *header,
    size_t header_size, const uint8_t *body, size_t body_size);

#endif
