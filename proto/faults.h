/*
 * The faults of one input that a person wrote, such as a file. A reader goes on behind a fault, so
 * that the person can mend all of them at once.
 */
#ifndef ADTOPK_FAULTS_H
#define ADTOPK_FAULTS_H

#include <stdbool.h>

#include "proto/error.h"

#define FAULTS_MAX 32

struct faults {
    bool first_only;                /* the reader shall stop at the first fault */
    unsigned count;                 /* of all faults; only FAULTS_MAX of them are kept */
    struct error fault[FAULTS_MAX]; /* in the order in which they were found */
};

/** Appends a fault and returns its code. */
enum adtopk_status faults_add(struct faults *faults, enum adtopk_status code, const char *format,
    ...) __attribute__((format(printf, 3, 4)));

/** Copies the first fault to `err`, which may be NULL. Returns its code, or ADTOPK_OK if there is
 * no fault. */
enum adtopk_status faults_first(const struct faults *faults, struct error *err);

/** Whether a reader shall stop, so that hostile input costs no more than honest input. */
bool faults_full(const struct faults *faults);

/** How many faults are kept. */
unsigned faults_kept(const struct faults *faults);

#endif
