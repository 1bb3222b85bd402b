/*
 * An error is a status code and one sentence for a person. The first function that decides an
 * error fills it; everybody else passes it on.
 */
#ifndef ADTOPK_ERROR_H
#define ADTOPK_ERROR_H

#include <adtopk/status.h>

#define ERROR_TEXT_SIZE 400

struct error {
    enum adtopk_status code;
    char text[ERROR_TEXT_SIZE];
};

/** Fills `err` (which may be NULL) and returns `code`, so that a caller can `return error_set()`.
 */
enum adtopk_status error_set(struct error *err, enum adtopk_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
