/*
 * `checkpoint check`: what a folder has of a checkpoint, and whether all of it is good.
 */
#ifndef ADTOPK_CTL_CHECKPOINT_H
#define ADTOPK_CTL_CHECKPOINT_H

#include <cjson/cJSON.h>
#include <stdio.h>

#include "proto/error.h"

/** Reads all files of a checkpoint, to their ends, into a document: those that the lowest
 * rank's file names. *complete: there was memory for all of it. *good: every file is there and fits
 * the others. NULL and err: the lowest rank's file cannot be read. */
cJSON *checkpoint_document(const char *folder, bool *complete, bool *good, struct error *err);

/** Shows such a document. */
void checkpoint_show(FILE *out, const cJSON *document);

#endif
