#include "daemon/transport/allow.h"

#include <stdlib.h>
#include <string.h>

/* The index of the first entry that is not below `key`. */
static size_t allow_index(const struct allow *allow, const char *key)
{
    size_t low = 0, high = allow->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (strcmp(allow->entries[middle].key, key) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static bool allow_is_at(const struct allow *allow, size_t at, const char *key)
{
    return at < allow->count && strcmp(allow->entries[at].key, key) == 0;
}

enum adtopk_status allow_add(struct allow *allow, const char *key, uint16_t node, struct error *err)
{
    size_t at = allow_index(allow, key);
    struct allow_entry *entries;

    if (!keyfile_is_key(key)) {
        return error_set(
            err, ADTOPK_ERR_ARGUMENT, "node %u: \"%.60s\" is not a key in Z85", node, key);
    }
    if (allow_is_at(allow, at, key)) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "node %u has the key %s, which node %u has too",
            node, key, allow->entries[at].node);
    }
    entries = realloc(allow->entries, (allow->count + 1) * sizeof(*entries));
    if (entries == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for the key of node %u", node);
    }
    allow->entries = entries;
    memmove(&entries[at + 1], &entries[at], (allow->count - at) * sizeof(*entries));
    entries[at].node = node;
    memcpy(entries[at].key, key, KEYFILE_KEY_SIZE);
    allow->count++;
    return ADTOPK_OK;
}

uint16_t allow_find(const struct allow *allow, const char *key)
{
    size_t at;

    if (key == NULL) {
        return UINT16_MAX;
    }
    at = allow_index(allow, key);
    return allow_is_at(allow, at, key) ? allow->entries[at].node : UINT16_MAX;
}

void allow_remove(struct allow *allow, uint16_t node)
{
    size_t kept = 0;

    for (size_t i = 0; i < allow->count; i++) {
        if (allow->entries[i].node != node) {
            allow->entries[kept++] = allow->entries[i];
        }
    }
    allow->count = kept;
}

void allow_clear(struct allow *allow)
{
    free(allow->entries);
    *allow = (struct allow){.count = 0};
}
