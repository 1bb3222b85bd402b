/*
 * An error is a status code and one sentence for a person. The first function that detects an error
 * fills it in; all others pass it on.
 */
#ifndef ADTOPK_ERROR_H
#define ADTOPK_ERROR_H

#include <adtopk/status.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

#define ERROR_TEXT_SIZE 400
#define ERROR_STATUSES (ADTOPK_INTERRUPTED + 1) /* codes; later versions append some */

struct error {
    enum adtopk_status code;
    char text[ERROR_TEXT_SIZE];
};

/** True for codes that stand for a failure: all but OK, NONFINITE, PENDING and INTERRUPTED. */
bool error_is_failure(uint32_t code);

/** Fills `err` (which may be NULL) and returns `code`, so that a caller can `return error_set()`.
 */
enum adtopk_status error_set(struct error *err, enum adtopk_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/** The same with arguments that a caller was given. */
enum adtopk_status error_set_args(
    struct error *err, enum adtopk_status code, const char *format, va_list args);

/** The ending of a plural, as of "3 jobs": "" for 1, otherwise "s". */
const char *error_s(uint64_t count);

#endif
