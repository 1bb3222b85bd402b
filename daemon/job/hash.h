/*
 * FNV-1a, for comparing descriptions between ranks and nodes. It does not resist hostile input: a
 * user who forges a description only hurts his own job.
 */
#ifndef ADTOPK_JOB_HASH_H
#define ADTOPK_JOB_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define HASH_EMPTY 0xcbf29ce484222325u

/* splitmix64's finaliser: spreads a hash over all bits. */
static inline uint64_t hash_mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static inline uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t size)
{
    const uint8_t *byte = bytes;

    for (size_t i = 0; i < size; i++) {
        hash = (hash ^ byte[i]) * 0x100000001b3u;
    }
    return hash;
}

static inline uint64_t hash_text(uint64_t hash, const char *text)
{
    return hash_bytes(hash, text, strlen(text) + 1);
}

#endif
