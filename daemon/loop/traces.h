/*
 * Traces of jobs that failed or are stuck, as files in `trace_folder`: the document that adtopkctl
 * trace gets, of this node alone, with the reason. A job that never began a step leaves none. A
 * thread of libuv's pool writes them aside and renames them, one after the other, so a full or slow
 * disk never holds up the loop or the other threads' work. Of the files the newest TRACES_MAX stay,
 * and of one user the newest TRACES_A_USER.
 */
#ifndef ADTOPK_TRACES_H
#define ADTOPK_TRACES_H

#include <uv.h>

#include "daemon/core/inspect.h"
#include "daemon/log.h"

#define TRACES_MAX 32
#define TRACES_A_USER 8
#define TRACES_PENDING 4 /* written or waiting at once; others are left out, and logged */

struct traces;

/** folder: where they go, copied; "": nowhere. NULL without memory. */
struct traces *traces_create(uv_loop_t *loop, const char *folder, uint16_t node, struct log *log);

/** Writes what this node has recorded of a live job, or of one that is just failing. */
void traces_write(
    struct traces *traces, const struct core *core, const struct job_info *job, const char *reason);

/** Call it when the loop has ended: then nothing is being written any more. NULL does nothing. */
void traces_destroy(struct traces *traces);

#endif
