/*
 * The last page of a store's file. Its *mark* says what the file is: the part, its size and the
 * job's whole key, with a checksum.
 *
 * A *seal* is a checksum of the content. It holds as long as no daemon uses the file. A file in use
 * has none, because it is memory at work.
 *
 * In the page of a main part follows with how many workers it was made, because that decides how it
 * is laid out. Releases that do not know of it leave it at zero, and read files that have it.
 */
#ifndef ADTOPK_LOCAL_MARK_H
#define ADTOPK_LOCAL_MARK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "daemon/core/core.h"
#include "daemon/job/store_version.h"

#define MARK_PAGE 4096u

struct mark {
    uint64_t magic;
    uint32_t format;
    uint32_t part;
    uint64_t size; /* of the content, which the page follows */
    uint32_t owner;
    char name[CORE_KEY_SIZE];
    char run_id[CORE_KEY_SIZE];
    uint32_t sealed;  /* 1: the file is */
    uint32_t content; /* checksum of the content, if it is */
    uint32_t crc;     /* of everything above */
};

/** The mark of a new file. */
void mark_fill(struct mark *mark, const struct job_key *key, unsigned part, uint64_t size);

/** False: no space, or another error in errno. */
bool mark_write(int fd, const struct mark *mark);

/** Reads the mark of a file, also of the format before. NULL, or why it cannot be used. */
const char *mark_read(int fd, unsigned part, struct mark *mark, struct stat *status);

/* What a file of a store says. */
struct mark_file {
    struct mark mark;
    struct stat status;
    uint32_t workers;               /* for a main part that noted them; 0: unknown */
    char unknown[STORE_FAULT_SIZE]; /* the reason, if a core cannot read the store */
};

/** Reads what a file is, all of it if it has a seal. NULL, or why it cannot be used. A main part
 * whose first bytes are zero was just begun, and a core begins it anew. A newer daemon can use a
 * store of another version, so it stays. */
const char *mark_examine(int fd, unsigned part, struct mark_file *file);

/** Notes with how many workers a file of this size is laid out. If that fails, nothing is noted. */
void mark_note_workers(int fd, uint64_t size, uint32_t workers);

/** Seals a file, which reads all of it, or breaks its seal, before the content changes. */
bool mark_seal(int fd, struct mark *mark, bool sealed);

#endif
