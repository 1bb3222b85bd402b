/*
 * Empty callbacks for links_ops.peer_up and peer_down. A test uses them if it does not need to know
 * which peers come and go.
 */
#ifndef ADTOPK_TESTS_DEAF_H
#define ADTOPK_TESTS_DEAF_H

#include <stdint.h>

static inline void deaf_peer_up(void *context, uint16_t peer, uint64_t incarnation)
{
    (void)context;
    (void)peer;
    (void)incarnation;
}

static inline void deaf_peer_down(void *context, uint16_t peer)
{
    (void)context;
    (void)peer;
}

#endif
