/*
 * The daemon's documents as text for people, at most 80 columns wide.
 */
#ifndef ADTOPK_SHOW_H
#define ADTOPK_SHOW_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdio.h>

/** True if every peer is up and every job is running or over. */
bool show_is_healthy(const cJSON *document);

void show_status(FILE *out, const cJSON *document);

void show_stats(FILE *out, const cJSON *document);

#endif
