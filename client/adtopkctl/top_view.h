/* What top shows: documents of the daemon as tables. */
#ifndef ADTOPK_TOP_VIEW_H
#define ADTOPK_TOP_VIEW_H

#include <cjson/cJSON.h>

#include "client/adtopkctl/table.h"

enum top_kind { TOP_JOBS, TOP_RANKS, TOP_TENSORS, TOP_PEERS, TOP_KINDS };

/* NULL: it is not there. */
struct top_documents {
    const cJSON *status;
    const cJSON *stats;   /* the last one */
    const cJSON *earlier; /* the one before, for rates */
    const cJSON *job;     /* ranks or tensors of the chosen job */
};

/** "jobs", ... */
const char *top_view_name(enum top_kind kind);

/** Fills a table, to be freed, whose rows are about members of `documents`. */
void top_view_fill(struct table *table, enum top_kind kind, const struct top_documents *documents);

/** The node and what is wrong with it, in one line. */
void top_view_head(FILE *out, const struct top_documents *documents);

#endif
