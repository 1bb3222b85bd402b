/*
 * The daemon's documents as text for people, as wide as text_set_width() says, 80 columns at first.
 * daemon/admin/README.md lists their fields. Any JSON may be given: missing fields show as 0 or
 * "-".
 */
#ifndef ADTOPK_SHOW_H
#define ADTOPK_SHOW_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdio.h>

#include "client/adtopkctl/table.h"

/* How tables are shown. */
struct show_view {
    const char *sort;  /* the title of a column; NULL: in the daemon's order */
    const char *state; /* only jobs and peers in this state; NULL: all */
    bool named;        /* the user named the jobs that are to be shown */
};

/** For all tables from now on; NULL everywhere until then. */
void show_set_view(const struct show_view *view);

/* Parts of tables. */

/** Whether two entries are about the same job. */
bool show_is_same_job(const cJSON *one, const cJSON *other);

/** Whether the user named the jobs. */
bool show_is_named(void);

/** Whether the job or peer is in the wanted state. */
bool show_is_wanted(const cJSON *object);

/** Sorts and prints a table. */
void show_table(FILE *out, struct table *table);

/** Adds a cell: a member as it is, or as bytes. */
void show_count(struct table *table, const cJSON *object, const char *name);
void show_bytes(struct table *table, const cJSON *object, const char *name);

/** Adds a row whose first cells are the job's name, run, owner and state. */
void show_job_row(struct table *table, const cJSON *job);

/** The tables, and a row of a tensor. */
#define SHOW_STATUS_COLUMNS 9 /* of its jobs */
#define SHOW_JOBS_COLUMNS 5
#define SHOW_PEERS_COLUMNS 10
extern const struct table_column show_status_columns[SHOW_STATUS_COLUMNS];
extern const struct table_column show_jobs_columns[SHOW_JOBS_COLUMNS];
extern const struct table_column show_peers_columns[SHOW_PEERS_COLUMNS];
#define SHOW_RANKS_COLUMNS 7
#define SHOW_TENSORS_COLUMNS 13
extern const struct table_column show_ranks_columns[SHOW_RANKS_COLUMNS];
extern const struct table_column show_tensors_columns[SHOW_TENSORS_COLUMNS];
void show_tensors_tensor(struct table *table, const cJSON *tensor);

/** A row for each rank, in the order of their numbers. */
void show_ranks_rows(struct table *table, const cJSON *ranks);

/** Prints a table of links, as documents list them under "peers" or "links". */
void show_peers_table(FILE *out, const cJSON *peers);

/** Prints what status says of the peers, and of who was refused on the way from them. */
void show_links(FILE *out, const cJSON *document);

/** The lines that `show` prints of an object, for table_below(); NULL without memory. */
char *show_below(const cJSON *object, void (*show)(FILE *out, const cJSON *object));

/** Tells it if the document has no tensor from its number `first` on: the job has fewer, or they
 * have not been committed on all ranks. */
bool show_is_beyond(FILE *out, const cJSON *document);

/** Which rules of the policy match no tensor, if the document says so. */
void show_unmatched(FILE *out, const cJSON *document);

/** The keys of the policy that are not as built in, if the document says so. */
void show_changes(FILE *out, const cJSON *job);

/** True if the peer is up. A node that may join, and has not done so yet, lacks nothing. */
bool show_is_peer_healthy(const cJSON *peer);

/** True if every peer is up and every job is running or over. */
bool show_is_healthy(const cJSON *document);

void show_status(FILE *out, const cJSON *document);
void show_jobs(FILE *out, const cJSON *document);
void show_peers(FILE *out, const cJSON *document);
void show_stores(FILE *out, const cJSON *document);
void show_drain(FILE *out, const cJSON *document);
void show_stats(FILE *out, const cJSON *document);
void show_ranks(FILE *out, const cJSON *document);
void show_tensors(FILE *out, const cJSON *document);
void show_plan(FILE *out, const cJSON *document);
void show_policy(FILE *out, const cJSON *document);
void show_policy_keys(FILE *out, const cJSON *document);
void show_sparsifiers(FILE *out, const cJSON *document);
void show_policy_change(FILE *out, const cJSON *document);
void show_policy_log(FILE *out, const cJSON *document);
void show_verify(FILE *out, const cJSON *document);
void show_checkpoint_ask(FILE *out, const cJSON *document);

/** The columns of show_rates(). */
void show_rates_header(FILE *out);

/** The work of each job between two documents of stats, one line per job. */
void show_rates(FILE *out, const cJSON *before, const cJSON *after);

#endif
