/*
 * The folder of stores: files in memory (files.h) in which a daemon leaves the stores and results
 * of its jobs. The next daemon of this node finds them, so a job goes on after its daemon was
 * killed.
 *
 * Each part of a store is a file NUMBER.PART. The content comes first, so that ranks can map it.
 * The last page says what the file is: the part, its size and the job's whole key, with a checksum.
 * A file gets its name when that page is complete. A store is removed with its first part first, so
 * files without a first part are what a killed daemon did not remove any more.
 *
 * A daemon that ends in order *seals* the files of its jobs, if others can reach them: the last
 * page gets a checksum of the content. The next daemon compares it when it starts, and breaks the
 * seal when a job returns to the store. A daemon that is killed leaves no seal: its files were
 * memory at work. To read all files takes long, and ranks wait, so those without a path are not
 * sealed.
 *
 * A store that no job uses expires. When it was used last is the time of its files, in seconds
 * since the machine booted: they do not outlive that, and nobody sets that clock. Stores in use are
 * marked every FOLDER_NOTE_S seconds only, and a daemon that is killed marks nothing. So a store
 * that an earlier daemon left is kept FOLDER_LATE_S longer.
 *
 * What can go wrong: a file is cut short, damaged, of another format or of another user, or its
 * content does not fit its seal. Or the store has another version (job/store_version.h), or was
 * made with another number of workers. Then its store is not used, the reason is kept for reports,
 * and the files stay as they are until residual_ttl_s has passed.
 */
#ifndef ADTOPK_LOCAL_FOLDER_H
#define ADTOPK_LOCAL_FOLDER_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/core/core.h"
#include "daemon/local/files.h"
#include "daemon/local/handles.h"
#include "daemon/local/keeper.h"
#include "proto/error.h"

#define FOLDER_RESULTS CORE_STORE_PARTS /* the part of the first batch's results */
#define FOLDER_PARTS (CORE_STORE_PARTS + CORE_MAX_BATCHES)
#define FOLDER_FAULT_SIZE 160
#define FOLDER_NOTE_S 10u /* how often stores in use are marked */
#define FOLDER_LATE_S                                                                              \
    (FOLDER_NOTE_S + 2u) /* a mark lacks a second's parts, and a tick may be late */

/* A store, for reports. */
struct folder_info {
    struct job_key key; /* all zero if no file says it */
    uint64_t bytes;     /* of its files */
    uint64_t idle_s;    /* since a daemon last used it */
    bool used;          /* a job of this daemon uses it */
    bool guessed;       /* idle_s may be up to FOLDER_LATE_S too long */
    const char *fault;  /* why no job can use it; "": one can */
};

struct folder;

/** Looks at the stores in these files, which folder_close() closes, as this function does if it
 * fails: SYSTEM, MEMORY. The keeper gives back the memory of removed files. Stores that were made
 * with another number of workers are not used; 0: none is noted or compared. */
struct folder *folder_open(
    struct files *files, struct keeper *keeper, uint32_t workers, struct error *err);

/** Leaves the files, sealed if need be; nobody may write to them any more. NULL is allowed.
 */
void folder_close(struct folder *folder);

/** Whether there is a store of this key that a job can return to. */
bool folder_has(const struct folder *folder, const struct job_key *key);

/** Whether folder_begin() removes a store if the job is not returning; `old` gets it. */
bool folder_replaces(
    const struct folder *folder, uint64_t job, const struct job_key *key, struct folder_info *old);

/** Gives the job a store: with `returning` the one of this key, if there is one. Otherwise it
 * removes stores of this key that no job uses, and the job begins with a new one. A job that has a
 * store keeps it. */
void folder_begin(struct folder *folder, uint64_t job, const struct job_key *key, bool returning);

/**
 * Opens and maps a part of the job's store. A part that is not there, or has another size, is made
 * anew: all zero, with at most `now` of its bytes reserved. segment_fill() reserves the rest.
 * A main part that an earlier daemon left with another size is refused, and its store is not used
 * from then on, nor removed when the job ends.
 * Errors: LOST, MEMORY with the numbers, SYSTEM.
 */
enum adtopk_status folder_part(struct folder *folder, uint64_t job, unsigned part, uint64_t size,
    uint64_t now, struct segment *segment, bool *existing, struct error *err);

/** A new descriptor of a part that the job has, which the caller closes; -1 if there is none. */
int folder_descriptor(const struct folder *folder, uint64_t job, unsigned part);

/** Removes a part's file, if there is one. A segment of it stays usable. */
void folder_drop(struct folder *folder, uint64_t job, unsigned part);

#define FOLDER_LEFT_MAX 2u

/** The job does not use its store any more, which stays for another one that returns to it. Of the
 * stores that were made and left in this daemon's life, FOLDER_LEFT_MAX stay per owner. */
void folder_leave(struct folder *folder, uint64_t job);

/** Handles of stores, which go with them; NULL: nobody can keep such descriptors. */
struct handles *folder_handles(struct folder *folder);

/** The number of the store that the job uses; false: it uses none. */
bool folder_number(const struct folder *folder, uint64_t job, uint32_t *number);

/** The store of this number; false: there is none. */
bool folder_look_at(const struct folder *folder, uint32_t number, struct folder_info *info);

/** The job's run has ended: removes its store. */
void folder_end(struct folder *folder, uint64_t job);

/** Notes which stores are in use, now and then, and removes one that has surely not been used for
 * `ttl_s` seconds: true, and `gone` says which. */
bool folder_expire(struct folder *folder, uint64_t ttl_s, struct folder_info *gone);

/** The index-th store; false if there are fewer. */
bool folder_look(const struct folder *folder, unsigned index, struct folder_info *info);

#endif
