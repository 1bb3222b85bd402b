/*
 * The allow-list: which keys may connect, and which node each of them is. Not thread-safe.
 */
#ifndef ADTOPK_TRANSPORT_ALLOW_H
#define ADTOPK_TRANSPORT_ALLOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/error.h"
#include "proto/keyfile.h"

struct allow_entry {
    char key[KEYFILE_KEY_SIZE];
    uint16_t node;
};

/* Zero-initialised it is empty. */
struct allow {
    struct allow_entry *entries; /* in ascending order of key */
    size_t count;
};

/** ADTOPK_ERR_ARGUMENT if it is no key, or allowed already; ADTOPK_ERR_MEMORY. */
enum adtopk_status allow_add(
    struct allow *allow, const char *key, uint16_t node, struct error *err);

/** The node that a key belongs to; UINT16_MAX if the key (which may be NULL) is not allowed. */
uint16_t allow_find(const struct allow *allow, const char *key);

/** Forgets all keys of a node. */
void allow_remove(struct allow *allow, uint16_t node);

void allow_clear(struct allow *allow);

#endif
