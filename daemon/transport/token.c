#include "daemon/transport/token.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "proto/bits.h"

static const uint8_t token_magic[4] = {'A', 'D', 'B', 'K'};

size_t token_encode(const struct token_message *message, uint8_t bytes[TOKEN_GRANT_SIZE])
{
    memcpy(bytes, token_magic, sizeof(token_magic));
    bytes[4] = TOKEN_VERSION;
    bytes[5] = (uint8_t)message->type;
    store_u16(bytes + 6, message->port);
    store_u64(bytes + 8, message->number);
    if (message->type == TOKEN_REQUEST) {
        return TOKEN_REQUEST_SIZE;
    }
    memcpy(bytes + TOKEN_REQUEST_SIZE, message->token, TOKEN_BYTES);
    return TOKEN_GRANT_SIZE;
}

bool token_is_message(const uint8_t *bytes, size_t size)
{
    return size >= sizeof(token_magic) && memcmp(bytes, token_magic, sizeof(token_magic)) == 0;
}

bool token_decode(struct token_message *message, const uint8_t *bytes, size_t size)
{
    if (size < TOKEN_REQUEST_SIZE || !token_is_message(bytes, size) || bytes[4] != TOKEN_VERSION) {
        return false;
    }
    *message = (struct token_message){.type = (enum token_type)bytes[5],
        .port = load_u16(bytes + 6),
        .number = load_u64(bytes + 8)};
    if (message->type == TOKEN_REQUEST) {
        return size == TOKEN_REQUEST_SIZE && message->port == 0;
    }
    if (message->type != TOKEN_GRANT || size != TOKEN_GRANT_SIZE) {
        return false;
    }
    memcpy(message->token, bytes + TOKEN_REQUEST_SIZE, TOKEN_BYTES);
    return true;
}

static struct token_slot *token_find(const struct token_table *table, uint16_t node)
{
    for (size_t i = 0; i < table->count; i++) {
        if (table->slots[i].node == node) {
            return &table->slots[i];
        }
    }
    return NULL;
}

/* The slot of a node, which is made if there is none; NULL without memory. */
static struct token_slot *token_slot_of(struct token_table *table, uint16_t node)
{
    struct token_slot *slot = token_find(table, node);
    struct token_slot *slots;

    if (slot != NULL) {
        return slot;
    }
    slots = realloc(table->slots, (table->count + 1) * sizeof(*slots));
    if (slots == NULL) {
        return NULL;
    }
    table->slots = slots;
    slots[table->count] = (struct token_slot){.node = node};
    return &slots[table->count++];
}

bool token_issue(struct token_table *table, uint16_t node, const char *key, uint64_t now_us,
    uint8_t token[TOKEN_BYTES])
{
    struct token_slot *slot = token_slot_of(table, node);

    if (slot == NULL) {
        return false;
    }
    slot->expires_us = 0;
    if (getrandom(slot->token, TOKEN_BYTES, GRND_NONBLOCK) != TOKEN_BYTES) {
        return false;
    }
    memcpy(slot->key, key, KEYFILE_KEY_SIZE);
    slot->expires_us = now_us + TOKEN_LIFE_US;
    memcpy(token, slot->token, TOKEN_BYTES);
    return true;
}

/* Takes as long wherever the difference is: time must not tell how much of a guess was right. */
static bool token_equal(const uint8_t *a, const uint8_t *b)
{
    volatile uint8_t different = 0;

    for (size_t i = 0; i < TOKEN_BYTES; i++) {
        different = (uint8_t)(different | (a[i] ^ b[i]));
    }
    return different == 0;
}

bool token_take(struct token_table *table, uint16_t node, const uint8_t token[TOKEN_BYTES],
    uint64_t now_us, char key[KEYFILE_KEY_SIZE])
{
    struct token_slot *slot = token_find(table, node);

    if (slot == NULL || now_us >= slot->expires_us || !token_equal(slot->token, token)) {
        return false;
    }
    memcpy(key, slot->key, KEYFILE_KEY_SIZE);
    *slot = (struct token_slot){.node = node};
    return true;
}

void token_clear(struct token_table *table)
{
    free(table->slots);
    *table = (struct token_table){.count = 0};
}
