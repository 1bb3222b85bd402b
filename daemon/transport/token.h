/*
 * Tokens bind a bulk connection in the clear to a node that has proved its key. The node asks for a
 * token over its encrypted control connection, and presents it when it connects. A token is good
 * for one connection of one node, once, and for a few seconds. Not thread-safe.
 *
 * The two messages, little-endian, which are sent among the packets of the control lane:
 *
 *   bytes  field
 *    0- 3  magic "ADBK"
 *    4     version
 *    5     type: 1 request, 2 grant
 *    6- 7  grant: the port for bulk; 0: bulk, too, goes over encrypted connections. request: 0
 *    8-15  number that the asker chose; the grant repeats it
 *   16-47  grant: the token (zeros with port 0)
 */
#ifndef ADTOPK_TRANSPORT_TOKEN_H
#define ADTOPK_TRANSPORT_TOKEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/keyfile.h"

#define TOKEN_VERSION 1
#define TOKEN_BYTES 32
#define TOKEN_TEXT_SIZE 41 /* in Z85, with a NUL */
#define TOKEN_REQUEST_SIZE 16
#define TOKEN_GRANT_SIZE (TOKEN_REQUEST_SIZE + TOKEN_BYTES)
#define TOKEN_LIFE_US 10000000

enum token_type { TOKEN_REQUEST = 1, TOKEN_GRANT = 2 };

struct token_message {
    enum token_type type;
    uint16_t port;
    uint64_t number;
    uint8_t token[TOKEN_BYTES];
};

/** Writes the message; returns its size. */
size_t token_encode(const struct token_message *message, uint8_t bytes[TOKEN_GRANT_SIZE]);

/** True if the bytes begin like one of these messages, rather than like a packet. */
bool token_is_message(const uint8_t *bytes, size_t size);

/** False if anything is not as a correct sender would have written it. */
bool token_decode(struct token_message *message, const uint8_t *bytes, size_t size);

struct token_slot {
    uint16_t node;
    char key[KEYFILE_KEY_SIZE]; /* the key under which it was requested */
    uint8_t token[TOKEN_BYTES];
    uint64_t expires_us; /* 0: there is none */
};

/* The tokens that were granted and not presented yet, at most one per node. A zeroed table is
 * empty. */
struct token_table {
    struct token_slot *slots;
    size_t count;
};

/** Draws a token for a node and voids its earlier one. Returns false without memory or random
 * numbers. */
bool token_issue(struct token_table *table, uint16_t node, const char *key, uint64_t now_us,
    uint8_t token[TOKEN_BYTES]);

/** Takes back what token_issue() gave to this node. Returns true, with the key, if it is that token
 * and in time; the token is void then. A wrong token leaves the right one valid, so guessing does
 * not disturb other connections. */
bool token_take(struct token_table *table, uint16_t node, const uint8_t token[TOKEN_BYTES],
    uint64_t now_us, char key[KEYFILE_KEY_SIZE]);

/** All tokens are void. */
void token_clear(struct token_table *table);

#endif
