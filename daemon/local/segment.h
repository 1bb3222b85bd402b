/*
 * A segment: a piece of memory that this daemon creates and shares by descriptor (memfd).
 *
 * Seals make it safe to share. SHRINK and GROW keep the other side from taking away pages that the
 * daemon uses (SIGBUS). The daemon adds FUTURE_WRITE when the last writer has mapped: every later
 * mapping is read-only, and nobody can punch holes. SEAL keeps the set of seals as it is.
 */
#ifndef ADTOPK_LOCAL_SEGMENT_H
#define ADTOPK_LOCAL_SEGMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/error.h"

struct segment {
    int fd;      /* -1: private, or closed while the mapping stays */
    void *bytes; /* NULL: not mapped */
    uint64_t size;
};

/* A segment before segment_create() and after segment_drop(). */
extern const struct segment segment_none;

/** Whether a segment may have this size. The sum of two such sizes fits into off_t. */
static inline bool segment_is_possible(uint64_t size)
{
    return size > 0 && size <= INT64_MAX / 2;
}

enum segment_seals {
    SEGMENT_SIZE_SEALED,  /* nobody can resize it or add seals */
    SEGMENT_WRITER_SEALED /* also, nobody can make further writable mappings */
};

/** Makes an empty file in memory, without a path. -1, and errno. */
int segment_file(const char *name);

/**
 * Creates a segment of `size` bytes, rounded up to pages, all zero, not mapped. /proc and errors
 * show `name`. On failure the segment is segment_none.
 */
enum adtopk_status segment_create(
    struct segment *segment, const char *name, uint64_t size, struct error *err);

/** Bytes of a segment with a descriptor that have no memory yet. */
uint64_t segment_missing(const struct segment *segment);

/**
 * Fails with ADTOPK_ERR_MEMORY and the numbers if the system cannot give `missing` of a segment's
 * `size` bytes. The system has promised `promised` other bytes, which are not taken yet.
 */
enum adtopk_status segment_afford(
    const char *name, uint64_t size, uint64_t missing, uint64_t promised, struct error *err);

/**
 * Takes the memory of `size` bytes at `offset` from the system now, or fails with ADTOPK_ERR_MEMORY
 * and the numbers. Pages that have memory already stay as they are. The kernel clears the memory:
 * 0.2 to 2 seconds per GiB. Any thread may call it.
 */
enum adtopk_status segment_fill(const struct segment *segment, const char *name, uint64_t offset,
    uint64_t size, struct error *err);

/** Says that there is no memory for the segment: where its file system has a size, how much of that
 * is left, otherwise how much memory. Returns ADTOPK_ERR_MEMORY. */
enum adtopk_status segment_refuse(
    const struct segment *segment, const char *name, struct error *err);

/** Calls segment_afford() for the missing bytes, then segment_fill() for all. */
enum adtopk_status segment_reserve(
    struct segment *segment, const char *name, uint64_t promised, struct error *err);

/**
 * Makes memory of this process alone: mapped and zero, but taken from the system only when touched.
 * Errors: as segment_afford().
 */
enum adtopk_status segment_private(
    struct segment *segment, const char *name, uint64_t size, uint64_t promised, struct error *err);

/**
 * Does the same, but with a descriptor, so that segment_show() can show the memory to others.
 * Nobody can resize it or map it for writing again.
 */
enum adtopk_status segment_shown(
    struct segment *segment, const char *name, uint64_t size, uint64_t promised, struct error *err);

/** Returns a new descriptor of the segment, for reading, which the caller closes. -1 and an error
 * if there is none. */
int segment_show(const struct segment *segment, const char *name, struct error *err);

#define SEGMENT_STRIDE (UINT64_C(64) << 20) /* size of the pieces in which segments are handled */

/** Touched bytes in the index-th stride of a private segment. */
uint64_t segment_touched(const struct segment *segment, uint64_t index);

/** Untouched bytes of a private segment. */
uint64_t segment_untouched(const struct segment *segment);

/** Bytes of a segment with a descriptor, or of a private one, that were taken from the system. */
uint64_t segment_taken(const struct segment *segment);

/** Maps the segment, with `protection` of mmap(). */
enum adtopk_status segment_map(
    struct segment *segment, int protection, const char *name, struct error *err);

/** The same, in place of whatever is mapped at these addresses. */
enum adtopk_status segment_map_over(
    struct segment *segment, void *at, int protection, const char *name, struct error *err);

/** Adds seals. Verifies that they are in force and that nobody changed the size before. */
enum adtopk_status segment_seal(
    struct segment *segment, enum segment_seals seals, const char *name, struct error *err);

/** Closes the descriptor; the mapping stays. */
void segment_close(struct segment *segment);

/** Unmaps the last `piece` bytes, a multiple of the page size. False if no more bytes than these
 * are left. */
bool segment_trim(struct segment *segment, uint64_t piece);

/** Unmaps and closes; segment_none is allowed. */
void segment_drop(struct segment *segment);

/**
 * Bytes that the daemon can reserve before the system kills a process for memory: the available
 * memory in /proc/meminfo, and what the limits of this process's control groups (version 2) leave.
 * UINT64_MAX if neither can be read.
 */
uint64_t segment_available(void);

#endif
