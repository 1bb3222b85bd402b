/*
 * A segment: a piece of memory that this daemon creates and shares by descriptor (memfd).
 *
 * Seals make it safe to share: SHRINK and GROW keep the other side from taking pages away under
 * our eyes (SIGBUS), FUTURE_WRITE, added once the last writer has mapped, makes every later
 * mapping read-only and refuses punched holes, and SEAL keeps the set as it is.
 */
#ifndef ADTOPK_LOCAL_SEGMENT_H
#define ADTOPK_LOCAL_SEGMENT_H

#include <stdint.h>

#include "proto/error.h"

struct segment {
    int fd;      /* -1: none, or given back while the mapping lives on */
    void *bytes; /* NULL: not mapped */
    uint64_t size;
};

/* What a segment is before segment_create() and after segment_drop(). */
extern const struct segment segment_none;

enum segment_seals {
    SEGMENT_SIZE_SEALED,  /* resizing and further seals are refused */
    SEGMENT_WRITER_SEALED /* ... and writable mappings other than those that exist */
};

/**
 * Creates a segment of `size` bytes, rounded up to pages, all zero, not mapped. `name` shows up in
 * /proc and in errors. On failure the segment is segment_none.
 */
enum adtopk_status segment_create(
    struct segment *segment, const char *name, uint64_t size, struct error *err);

/**
 * Takes the memory from the system now, or fails with ADTOPK_ERR_MEMORY and the numbers. Pages
 * that are there already stay as they are.
 */
enum adtopk_status segment_reserve(struct segment *segment, const char *name, struct error *err);

/** Maps the segment, with `protection` of mmap(). */
enum adtopk_status segment_map(
    struct segment *segment, int protection, const char *name, struct error *err);

/** Adds seals and verifies them, and that nobody changed the size before. */
enum adtopk_status segment_seal(
    struct segment *segment, enum segment_seals seals, const char *name, struct error *err);

/** Closes the descriptor; the mapping stays. */
void segment_close(struct segment *segment);

/** Unmaps and closes; segment_none is allowed. */
void segment_drop(struct segment *segment);

/**
 * Bytes that can be reserved without the system killing somebody for memory: what /proc/meminfo
 * calls available, and what the limits of this process's control groups (version 2) leave.
 * UINT64_MAX if neither can be read.
 */
uint64_t segment_available(void);

#endif
