/*
 * The last hour, for the page: every HISTORY_PERIOD_MS a few numbers of each job that is on the
 * node.
 */
#ifndef ADTOPK_EXPORTER_HISTORY_H
#define ADTOPK_EXPORTER_HISTORY_H

#include "client/exporter/source.h"

#define HISTORY_PERIOD_MS 10000
#define HISTORY_SAMPLES 361 /* an hour, with both ends */
#define HISTORY_JOBS 64     /* of a sample */

/* Begins with zeros. */
struct history {
    char *sample[HISTORY_SAMPLES]; /* a ring of their texts */
    unsigned next, count;
};

/** Adds a sample of the snapshot; of one without documents, that the daemon did not answer. A
 * sample for which there is no memory is left out. */
void history_add(struct history *history, const struct snapshot *snapshot);

/** {"period_s", "samples": [...]}, the oldest first. Each sample has `t` (seconds of this machine's
 * clock since it booted), `up` and `jobs`, with owner, name, run_id, state, steps, wire_bytes_sent,
 * dense_bytes, nonzeros_sent, sparse_elements, phase_seconds and residual_mean as in the document
 * stats. To be freed with free(); NULL: no memory. size: without the final zero. */
char *history_document(const struct history *history, size_t *size);

void history_free(struct history *history);

#endif
