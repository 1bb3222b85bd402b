/*
 * Finding one's way in the text of a JSON document that cJSON has accepted: cJSON itself does not
 * say where a value stood, and errors shall name the line.
 */
#ifndef ADTOPK_CONFIG_JSON_H
#define ADTOPK_CONFIG_JSON_H

#include <cjson/cJSON.h>
#include <stddef.h>

#include "proto/error.h"

/** Parses `size` bytes as exactly one JSON value; `text` has a NUL behind them. `source` names
 * the document in errors. Free with cJSON_Delete(). */
cJSON *json_parse(const char *source, const char *text, size_t size, struct error *err);

/** The text of the first element of the array, or the first key of the object, whose text starts at
 * `container`. */
const char *json_first(const char *container);

/** The text of the element, or key, behind the one at `place`; NULL if it is the last. */
const char *json_next(const char *place);

/** The text of the value that belongs to the key at `key`. */
const char *json_value(const char *key);

/** The first byte behind the value at `value`. */
const char *json_end(const char *value);

/** The line, counted from 1, of a place in the text. */
unsigned json_line(const char *text, const char *place);

#endif
