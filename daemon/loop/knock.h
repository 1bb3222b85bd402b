/*
 * Whether anything still listens at the address of a peer that does not answer.
 *
 * Silence alone does not tell a slow network from a daemon that has ended. A refused connection
 * does: the machine answers, and no program has the port.
 */
#ifndef ADTOPK_KNOCK_H
#define ADTOPK_KNOCK_H

#include <stdint.h>

#include <uv.h>

#include "proto/error.h"

struct knock;

/** Called on the loop's thread when a peer's address refused a connection. */
typedef void (*knock_refused_fn)(void *context, uint16_t node);

/** NULL without memory. The loop must outlive it. */
struct knock *knock_create(uv_loop_t *loop, knock_refused_fn refused, void *context);

/** Tries to connect to the endpoint (tcp://HOST:PORT) of a node, and hangs up. Does nothing while
 * an earlier attempt for this node is still running. An attempt without an answer ends after five
 * seconds, without a report. */
void knock_at(struct knock *knock, uint16_t node, const char *endpoint);

/** Gives up running attempts. The loop must run once more before it is closed. */
void knock_destroy(struct knock *knock);

#endif
