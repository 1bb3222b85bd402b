/*
 * JSON documents that people write. They are read strictly, and a fault is told with its line, its
 * column, that line and a mark under the column:
 *
 *     node0.json:3:12: "log_level": "inof" is not one of: error, warning, info, debug; did you
 *     mean "info"?
 *       "log_level": "inof",
 *                    ^
 *
 * The lines of such a text end with a newline and those behind the first one begin with two blanks.
 * All of it is printable UTF-8 and fits into struct error; a long line is cut around the mark. A
 * text of 38 to 42 characters without blanks may be a secret key and is shown as asterisks.
 *
 * All functions may be called from any thread.
 */
#ifndef ADTOPK_JSON_H
#define ADTOPK_JSON_H

#include <cjson/cJSON.h>
#include <stddef.h>

#include "proto/faults.h"

#define JSON_DEPTH_MAX 64 /* objects and arrays in each other */

struct json {
    const char *name;        /* names the document in faults; not copied */
    const char *text;        /* where lines are counted from; a NUL ends it; not copied */
    const char *start;       /* of the document, in text */
    cJSON *root;             /* NULL if the document could not be read */
    enum adtopk_status code; /* of its faults */
};

/** Which part of a member of an object a fault is about. Elements of arrays are JSON_VALUE. */
enum json_part { JSON_KEY, JSON_VALUE };

/**
 * Reads `size` bytes at `text`, behind which is a NUL, as one JSON value. The tree has no key and
 * no string with a NUL in it. `code` is that of all faults of the document. Free with json_free()
 * in either case; name and text must live as long.
 */
enum adtopk_status json_read(struct json *json, const char *name, const char *text, size_t size,
    enum adtopk_status code, struct faults *faults);

/** The same for the value that starts at `start` inside a text that is valid JSON. */
enum adtopk_status json_read_part(struct json *json, const char *name, const char *text,
    const char *start, enum adtopk_status code, struct faults *faults);

void json_free(struct json *json);

/** Adds a fault of `item`, which is in the tree. */
enum adtopk_status json_fault(const struct json *json, const cJSON *item, enum json_part part,
    struct faults *faults, const char *format, ...) __attribute__((format(printf, 5, 6)));

/** Adds a fault that a place in the text has. */
enum adtopk_status json_blame(const struct json *json, const char *place, struct faults *faults,
    const char *format, ...) __attribute__((format(printf, 4, 5)));

/** Where the item, which is in the tree, stands in the text. */
const char *json_place(const struct json *json, const cJSON *item, enum json_part part);

/** The first byte behind the value at `value` in a text that is valid JSON. */
const char *json_end(const char *value);

/** The line, counted from 1, of a place in the text. */
unsigned json_line(const char *text, const char *place);

#endif
