/*
 * Files of a checkpoint: what a job's nodes keep between two steps, one file per node.
 *
 * A file has a fixed beginning, a head and blocks. Numbers are little-endian.
 *
 *   8 bytes   "adtkckpt"
 *   u32       version, 1
 *   u32       bytes of the head
 *   u64       bytes of the file
 *   u32       CRC-32C of the head
 *   u32       CRC-32C of the bytes so far
 *   head      a CheckpointFile of checkpoint.proto
 *   blocks    every array in turn, CHECKPOINT_BLOCK floats to a block; the last one of an array may
 *             be shorter. Behind each block its CRC-32C, which begins with the head's and the
 *             block's number (u64), so that no block of another place or file passes.
 *
 * The head says which arrays follow. Every residual of a tensor has its elements, then its carries
 * if the tensor says that it is rounded, then its velocity if the tensor has one.
 *
 * Writing: checkpoint_create() makes a file with a name of its own. checkpoint_put() appends,
 * checkpoint_finish() brings everything to the disk, checkpoint_publish() gives the file its name.
 * A process that is killed meanwhile leaves its file, which the next publisher of that name
 * removes. Reading: checkpoint_open() checks the head and the size, checkpoint_verify() every
 * block. checkpoint_get() checks what it reads again. Functions keep no memory of their own:
 * different files may be used by different threads.
 */
#ifndef ADTOPK_PROTO_CHECKPOINT_H
#define ADTOPK_PROTO_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/checkpoint_content.h"

#define CHECKPOINT_VERSION 1u
#define CHECKPOINT_ID 16u
#define CHECKPOINT_FIXED 32u  /* bytes before the head */
#define CHECKPOINT_PATH 4096u /* bytes of a path, with the NUL */

/* Where a tensor's arrays begin. */
struct checkpoint_place {
    uint64_t block; /* number of its first block */
    uint64_t bytes; /* behind the head */
};

/** An open file. The caller owns it; checkpoint_close() frees what it has. */
struct checkpoint {
    int file;                        /* -1: not open */
    char path[CHECKPOINT_PATH];      /* the name that it has, or gets */
    char aside[CHECKPOINT_PATH];     /* writing: the name that it has meanwhile */
    Adtopk__CheckpointFile *head;    /* reading: owned */
    struct checkpoint_place *tensor; /* reading: where each tensor begins */
    uint32_t head_crc;
    uint64_t blocks_at; /* where the blocks begin */
    uint64_t place;     /* writing: bytes so far */
    uint64_t block;     /* writing: number of the next block */
    uint64_t size;      /* bytes of the whole file */
};

/** The path of the file of the node whose lowest rank this is. Errors: ARGUMENT (too long). */
enum adtopk_status checkpoint_path(
    const char *folder, uint32_t rank, char path[CHECKPOINT_PATH], struct error *err);

/** Whether a file of a folder is one of a checkpoint, by its name, and of which rank. */
bool checkpoint_is_name(const char *name, uint32_t *rank);

/** The lowest rank that has a file in the folder. Errors: LOST (no such file, or folder),
 * SYSTEM (the folder cannot be read). */
enum adtopk_status checkpoint_lowest(const char *folder, uint32_t *lowest, struct error *err);

/* ------------------------------------------------------------------ writing */

/** Creates a file beside `path`, readable for its owner only, and writes the head. Errors: SYSTEM
 * (names path and reason), DENIED, MEMORY, ARGUMENT. Then there is nothing to close. */
enum adtopk_status checkpoint_create(struct checkpoint *checkpoint, const char *path,
    const Adtopk__CheckpointFile *head, struct error *err);

/** Appends the next floats: a whole block, or the rest of an array. Errors: SYSTEM. */
enum adtopk_status checkpoint_put(
    struct checkpoint *checkpoint, const float *values, uint32_t count, struct error *err);

/** Waits until all bytes are on the disk. Errors: SYSTEM, also if arrays are missing. */
enum adtopk_status checkpoint_finish(struct checkpoint *checkpoint, struct error *err);

/** Gives the file its name, in place of an earlier file, and closes it. Removes what saves of this
 * name left that did not end. Errors: SYSTEM. */
enum adtopk_status checkpoint_publish(struct checkpoint *checkpoint, struct error *err);

/** Removes the file of a rank, if there is one. Errors: as checkpoint_create(). */
enum adtopk_status checkpoint_remove(const char *folder, uint32_t rank, struct error *err);

/** Removes a file that was not published, and closes it. */
void checkpoint_discard(struct checkpoint *checkpoint);

/** Whether a file has this name while `file` is saved: both are names in the same folder. */
bool checkpoint_is_aside(const char *name, const char *file);

/* ------------------------------------------------------------------ reading */

/** Opens a file and checks its head and its size. Errors: LOST (there is none, or it is damaged;
 * says what is wrong), DENIED, SYSTEM, MEMORY. Then there is nothing to close. */
enum adtopk_status checkpoint_open(
    struct checkpoint *checkpoint, const char *path, struct error *err);

/** Checks every block. Errors: as checkpoint_get(). */
enum adtopk_status checkpoint_verify(const struct checkpoint *checkpoint, struct error *err);

/** Reads a block of an array: floats from `first` on, a multiple of CHECKPOINT_BLOCK, as many as a
 * block or the rest of the array has. Returns their number in *count. The file must have the array.
 * Errors: LOST (damaged, or cut short since it was opened), SYSTEM. */
enum adtopk_status checkpoint_get(const struct checkpoint *checkpoint, uint32_t tensor,
    uint32_t residual, enum checkpoint_array array, uint64_t first, float values[CHECKPOINT_BLOCK],
    uint32_t *count, struct error *err);

/** Closes a file; nothing if it is not open. */
void checkpoint_close(struct checkpoint *checkpoint);

#endif
