/*
 * A node that lies, for test_liar.py: declarations that liar.c, its links (liar_links.c) and its
 * lies (liar_lies.c) share.
 */
#ifndef ADTOPK_LIAR_H
#define ADTOPK_LIAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/link/link.h"

#define PEERS 2
#define SECOND_US UINT64_C(1000000)
#define PATIENCE_US (15 * SECOND_US)
#define TENSORS_MAX 16

/* The content of a peer's join of the job. */
struct heard {
    char name[64];
    uint64_t job;
    uint64_t policy;
    uint64_t tensor[TENSORS_MAX];
    size_t tensors;
};

struct liar {
    struct links *links;
    void *transport;
    uint16_t node;
    uint64_t random;
    char name[64], run_id[64];
    uint32_t owner;
    struct heard heard[PEERS];
};

/** Ends the program. */
_Noreturn void fail(const char *what);
/** Returns the memory, or ends the program if it is NULL. */
void *need(void *memory);
uint64_t now_us(void);

/** Opens links as the node liar->node. keys: each peer's endpoint and key. */
void liar_open(struct liar *liar, const char *key_file, const char *listen, char **peers);
void liar_close(struct liar *liar);
/** Sleeps until a packet, a line of input or a deadline, and lets the links do their work. Returns
 * true if there is a line. */
bool liar_turn(struct liar *liar, bool sleep);
/** Takes turns until no peer has more than `most` bytes of lies on their way to it. */
void liar_drain(struct liar *liar, uint64_t most);
void liar_send(
    struct liar *liar, uint16_t peer, enum link_lane lane, const void *bytes, size_t size);

/** Tells a peer a lie of this kind, such as "commit". */
void liar_tell(struct liar *liar, const char *kind, uint16_t peer);

#endif
