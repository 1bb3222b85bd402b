/*
 * A JSON document under construction. If memory runs out at any item, the document remembers it,
 * and the caller checks once at the end. Adding to an object that is NULL is harmless.
 */
#ifndef ADTOPK_DOCUMENT_H
#define ADTOPK_DOCUMENT_H

#include <stdbool.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#define DOCUMENT_SCHEMA 1

struct document {
    cJSON *root;
    bool failed;
};

/** An object whose first field is "schema". */
void document_begin(struct document *document);

/** The text, to be freed with free(); NULL if memory was short. */
char *document_end(struct document *document);

/** A new object or array in `parent`, which owns it; NULL without memory. */
cJSON *document_object(struct document *document, cJSON *parent, const char *name);
cJSON *document_array(struct document *document, cJSON *parent, const char *name);

/** A new object at the end of `array`. */
cJSON *document_append(struct document *document, cJSON *array);

/** A text at the end of `array`, as document_text() makes it. */
void document_append_text(struct document *document, cJSON *array, const char *text);

void document_number(struct document *document, cJSON *parent, const char *name, double number);
/** Exact up to 2^53. */
void document_count(struct document *document, cJSON *parent, const char *name, uint64_t count);
#define DOCUMENT_COUNTS_MAX 32u
/** A list of them: 1 to DOCUMENT_COUNTS_MAX. */
void document_counts(struct document *document, cJSON *parent, const char *name,
    const uint64_t *count, unsigned counts);
void document_bool(struct document *document, cJSON *parent, const char *name, bool value);
void document_null(struct document *document, cJSON *parent, const char *name);
/** The number if it is known, otherwise null. */
void document_optional(
    struct document *document, cJSON *parent, const char *name, double number, bool known);
void document_pair(
    struct document *document, cJSON *parent, const char *name, const double pair[2]);
/** Adds at most 255 bytes of the text. Invalid UTF-8 becomes question marks. */
void document_text(struct document *document, cJSON *parent, const char *name, const char *text);
/** 16 hexadecimal digits: 64 bits do not survive as a number. */
void document_identity(
    struct document *document, cJSON *parent, const char *name, uint64_t identity);
/** `json` as it is: valid JSON of our own making. */
void document_raw(struct document *document, cJSON *parent, const char *name, const char *json);

#endif
