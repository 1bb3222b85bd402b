/*
 * A carrier, as NCCL is one to the core. Each node has one device, which makes one operation at a
 * time, in the order in which they were started. An operation happens when it is the first on the
 * devices of all members; so nodes that start two in different orders wait for ever.
 *
 * Operations and names take random times. Sums are formed in an order that no other collective has.
 * What members tell of an operation must fit: its kind, its size, its group and who has that.
 */
#ifndef ADTOPK_SIM_CARRIER_H
#define ADTOPK_SIM_CARRIER_H

#include "daemon/collective/cargo.h"

struct node;
struct sim_event;

/** What a test makes of a node's carrier. */
enum carrier_fault {
    CARRIER_WELL,
    CARRIER_FAILS,   /* the next operation ends with an error on this node */
    CARRIER_SILENT,  /* the next operation never happens */
    CARRIER_NAMELESS /* it makes no names */
};

/** Its context is the struct node. */
extern const struct carrier_ops sim_carrier;

/** Its version; 0: the node has none. In some scenarios one node has none, or another one. */
uint32_t carrier_version(uint64_t seed, unsigned node);

/** SIM_CARRIED: an operation comes back. */
void carrier_turn(struct node *node, const struct sim_event *event);

/** Its process dies: operations fail, and groups are gone. */
void carrier_dies(struct node *node);

/** The daemon has died, and its carrier with it. */
void carrier_forget(struct node *node);

#endif
