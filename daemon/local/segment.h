/*
 * A segment: a piece of memory that this daemon creates and shares by descriptor (memfd).
 *
 * Seals make it safe to share: SHRINK and GROW keep the other side from taking pages away under
 * our eyes (SIGBUS), FUTURE_WRITE, added once the last writer has mapped, makes every later
 * mapping read-only and refuses punched holes, and SEAL keeps the set as it is.
 */
#ifndef ADTOPK_LOCAL_SEGMENT_H
#define ADTOPK_LOCAL_SEGMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/error.h"

struct segment {
    int fd;      /* -1: private, or given back while the mapping lives on */
    void *bytes; /* NULL: not mapped */
    uint64_t size;
};

/* What a segment is before segment_create() and after segment_drop(). */
extern const struct segment segment_none;

enum segment_seals {
    SEGMENT_SIZE_SEALED,  /* resizing and further seals are refused */
    SEGMENT_WRITER_SEALED /* the same, and further writable mappings are refused */
};

/**
 * Creates a segment of `size` bytes, rounded up to pages, all zero, not mapped. `name` shows up in
 * /proc and in errors. On failure the segment is segment_none.
 */
enum adtopk_status segment_create(
    struct segment *segment, const char *name, uint64_t size, struct error *err);

/** Bytes of a segment with a descriptor that have no memory yet. */
uint64_t segment_missing(const struct segment *segment);

/**
 * ADTOPK_ERR_MEMORY with the numbers unless `missing` of the `size` bytes of a segment can be taken
 * from the system, which has promised `promised` bytes to others that have not taken them yet.
 */
enum adtopk_status segment_afford(
    const char *name, uint64_t size, uint64_t missing, uint64_t promised, struct error *err);

/**
 * Takes the memory of `size` bytes at `offset` from the system now, or fails with ADTOPK_ERR_MEMORY
 * and the numbers. Pages that are there already stay as they are. The kernel clears what it gives:
 * 0.2 to 2 seconds a GiB. Any thread.
 */
enum adtopk_status segment_fill(
    struct segment *segment, const char *name, uint64_t offset, uint64_t size, struct error *err);

/** segment_afford() what is missing, then segment_fill() all. */
enum adtopk_status segment_reserve(
    struct segment *segment, const char *name, uint64_t promised, struct error *err);

/**
 * Memory of this process alone: mapped and zero, but taken from the system only when touched.
 * Errors: as segment_afford().
 */
enum adtopk_status segment_private(
    struct segment *segment, const char *name, uint64_t size, uint64_t promised, struct error *err);

/**
 * The same, but with a descriptor, so that segment_show() can show it to others. Nobody but this
 * user and root can open it for writing.
 */
enum adtopk_status segment_shown(
    struct segment *segment, const char *name, uint64_t size, uint64_t promised, struct error *err);

/** A new descriptor of the segment, for reading; -1 and an error if there is none. The caller
 * closes it. */
int segment_show(const struct segment *segment, const char *name, struct error *err);

#define SEGMENT_STRIDE (UINT64_C(64) << 20) /* worked on at a time */

/** Bytes of a private segment that were touched, in its index-th stride. */
uint64_t segment_touched(const struct segment *segment, uint64_t index);

/** Bytes of a private segment that were not touched yet. */
uint64_t segment_untouched(const struct segment *segment);

/** Maps the segment, with `protection` of mmap(). */
enum adtopk_status segment_map(
    struct segment *segment, int protection, const char *name, struct error *err);

/** Adds seals and verifies them, and that nobody changed the size before. */
enum adtopk_status segment_seal(
    struct segment *segment, enum segment_seals seals, const char *name, struct error *err);

/** Closes the descriptor; the mapping stays. */
void segment_close(struct segment *segment);

/** Unmaps the last `piece` bytes, a multiple of the page size; false if no more than these are
 * left.
 */
bool segment_trim(struct segment *segment, uint64_t piece);

/** Unmaps and closes; segment_none is allowed. */
void segment_drop(struct segment *segment);

/**
 * Bytes that can be reserved without the system killing somebody for memory: what /proc/meminfo
 * calls available, and what the limits of this process's control groups (version 2) leave.
 * UINT64_MAX if neither can be read.
 */
uint64_t segment_available(void);

#endif
