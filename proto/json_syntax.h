/* Checks whether a text is JSON, and says what is wrong if it is not. Part of json.c. */
#ifndef ADTOPK_JSON_SYNTAX_H
#define ADTOPK_JSON_SYNTAX_H

#include "proto/json.h"

/** ADTOPK_OK, or one fault, if the bytes from json->start to `end` are not exactly one value. */
enum adtopk_status json_check_syntax(
    const struct json *json, const char *end, struct faults *faults);

#endif
