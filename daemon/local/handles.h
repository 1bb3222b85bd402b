/*
 * Handles: descriptors of device memory, which the service manager keeps for the next daemon beside
 * the files of a store (files.h). Only a manager can: such memory has no path.
 *
 * Each belongs to a part of a store, and to one of the devices over which that is spread. What else
 * the next daemon must know of the memory is a text, which is not read here. All of it is the
 * handle's name: NUMBER.PART.SHARD@TEXT. So it never differs from the descriptor.
 */
#ifndef ADTOPK_LOCAL_HANDLES_H
#define ADTOPK_LOCAL_HANDLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/error.h"

#define HANDLE_TEXT_SIZE 128
#define HANDLES_ALL UINT32_MAX /* as a part: all of them */

struct files;

struct handle {
    struct handle *next;
    uint32_t store; /* its number */
    unsigned part, shard;
    bool useless;                /* to this daemon, so its store's go together */
    char text[HANDLE_TEXT_SIZE]; /* without colons and spaces */
};

struct handles {
    struct files *files;
    struct handle *first;
};

/** Takes note of one that an earlier daemon left. False without memory; other names are no handles.
 */
bool handles_take(struct handles *handles, const char *name);

/** Has the manager keep a descriptor, which stays the caller's, in the place of an earlier one of
 * this shard of the part. Errors: MEMORY, SYSTEM. */
enum adtopk_status handles_keep(
    struct handles *handles, const struct handle *handle, int fd, struct error *err);

/** The manager keeps those of a part no longer. */
void handles_drop(struct handles *handles, uint32_t store, unsigned part);

/** Drops all handles of stores that have a useless one. */
void handles_drop_useless(struct handles *handles);

/** Whether there is one. */
bool handles_has(const struct handles *handles, uint32_t store, unsigned part, unsigned shard);

/** A new descriptor, which the caller closes; -1: there is none. */
int handles_open(const struct handles *handles, const struct handle *handle);

/** Memory of `size` bytes, which outlives this daemon, too. It stays mapped. *found: it is an
 * earlier daemon's; otherwise it is new, and all zero. NULL with an error. */
void *handles_shared(struct handles *handles, size_t size, bool *found, struct error *err);

/** Leaves them to the next daemon. */
void handles_close(struct handles *handles);

#endif
