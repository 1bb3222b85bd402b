/*
 * The version of a store. Each begins with two fields that no version moves: STORE_MAGIC in 64 bits
 * and the version in 32.
 *
 * A change of what store.h describes raises STORE_VERSION, and still reads the version before. A
 * change of the digest by which a job knows its store does so as well, such as a new key of
 * policies. local/folder.c asks store_is_known(). It then converts the main parts of an older store
 * before any job uses it, each to a new file, which takes the old one's name when it is complete.
 * So the core knows one layout, and a daemon that is killed leaves a store of one version.
 *
 * Version 15 is the first one that is kept, and no lower one was released. So there is no version
 * before it that could be converted: it alone is read. unit/test_restart.c goes on from a stored
 * file of the present version, tests/data/store-15.
 */
#ifndef ADTOPK_JOB_STORE_VERSION_H
#define ADTOPK_JOB_STORE_VERSION_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define STORE_MAGIC 0x314b505444414b41u
#define STORE_VERSION 15u
#define STORE_FAULT_SIZE 80

/** Whether this release reads a store that begins like this; otherwise `fault` says why not: "has
 * version ...". The driver's files ask this too, and the core is no part of them. */
static inline bool store_is_known(uint64_t magic, uint32_t version, char fault[STORE_FAULT_SIZE])
{
    if (magic != STORE_MAGIC) {
        (void)snprintf(fault, STORE_FAULT_SIZE, "is damaged");
    } else if (version != STORE_VERSION) {
        (void)snprintf(fault, STORE_FAULT_SIZE, "has version %u, and this daemon reads version %u",
            version, STORE_VERSION);
    }
    return magic == STORE_MAGIC && version == STORE_VERSION;
}

#endif
