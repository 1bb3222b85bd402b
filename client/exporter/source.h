/*
 * What the daemon says of itself, at one moment: its documents status and stats, and the ranks of
 * the jobs that train here.
 *
 * The happy path: whoever needs a snapshot calls source_want(). One that is younger than
 * SOURCE_FRESH_MS is told at once; otherwise the source asks for one document after the other, and
 * tells all who wait when the last one is there.
 * Failures: a daemon that is gone, or late with any of them (ASK_PATIENCE_MS for all together),
 * makes a snapshot without documents, whose `why` says so.
 */
#ifndef ADTOPK_EXPORTER_SOURCE_H
#define ADTOPK_EXPORTER_SOURCE_H

#include <cjson/cJSON.h>
#include <uv.h>

#include "proto/error.h"

#define SOURCE_FRESH_MS 1000

/* Documents as daemon/admin/README.md describes them. */
struct snapshot {
    uint64_t taken_ms; /* uv_now() */
    cJSON *status;     /* NULL: the daemon did not answer, and `why` says so */
    cJSON *stats;      /* NULL with status */
    cJSON *ranks;      /* an array; NULL with status */
    struct error why;
};

struct source;

/** Tells that source_snapshot() is fresh. */
typedef void source_told(void *owner);

/** path: of the control socket; it must live as long as the source. tensors: stats has those of all
 * jobs, 1024 at most. NULL: no memory. */
struct source *source_create(
    uv_loop_t *loop, const char *path, bool tensors, source_told *told, void *owner);

/** True: the snapshot is fresh. False: `told` will be called, once for all who want one. */
bool source_want(struct source *source);

/** The last one, until the next call of `told`. It has neither documents nor `why` before the
 * first. */
const struct snapshot *source_snapshot(const struct source *source);

#endif
