/*
 * The daemon's documents as text for people, at most 80 columns wide for ordinary numbers.
 * daemon/admin/README.md lists their fields. Any JSON may be given: missing fields show as 0 or
 * "-".
 */
#ifndef ADTOPK_SHOW_H
#define ADTOPK_SHOW_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdio.h>

/** Which rules of the policy match no tensor, if the document says so. */
void show_unmatched(FILE *out, const cJSON *document);

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

/** The columns of show_rates(). */
void show_rates_header(FILE *out);

/** The work of each job between two documents of stats, one line per job. */
void show_rates(FILE *out, const cJSON *before, const cJSON *after);

#endif
