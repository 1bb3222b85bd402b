#include "daemon/config_json.h"

#include <stdbool.h>
#include <string.h>

static const char *skip_space(const char *at)
{
    while (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r') {
        at++;
    }
    return at;
}

/* cJSON takes every byte up to a blank for space and skips a byte order mark; JSON does not. Also
 * finds a NUL, which would hide what follows. */
static const char *find_foreign(const char *text, size_t size)
{
    if (strncmp(text, "\xEF\xBB\xBF", 3) == 0) {
        return text;
    }
    for (size_t i = 0; i < size; i++) {
        unsigned char byte = (unsigned char)text[i];

        if (byte < 0x20 && byte != '\t' && byte != '\n' && byte != '\r') {
            return text + i;
        }
        if (byte == '\\' && strncmp(text + i, "\\u0000", 6) == 0) {
            return text + i; /* cJSON's strings would end there and hide the rest */
        }
    }
    return NULL;
}

cJSON *json_parse(const char *source, const char *text, size_t size, struct error *err)
{
    const char *foreign = find_foreign(text, size);
    const char *stopped = text;
    cJSON *document;

    if (foreign != NULL) {
        (void)error_set(err, ADTOPK_ERR_ARGUMENT, "%s:%u: byte 0x%02x does not belong in JSON",
            source, json_line(text, foreign), (unsigned)(unsigned char)*foreign);
        return NULL;
    }
    document = cJSON_ParseWithLengthOpts(text, size + 1, &stopped, false);
    if (document == NULL) {
        (void)error_set(err, ADTOPK_ERR_ARGUMENT, "%s:%u: not JSON from \"%.12s\" on", source,
            json_line(text, stopped), stopped);
        return NULL;
    }
    if (*skip_space(stopped) != '\0') {
        stopped = skip_space(stopped);
        (void)error_set(err, ADTOPK_ERR_ARGUMENT, "%s:%u: \"%.12s\" after the end of the document",
            source, json_line(text, stopped), stopped);
        cJSON_Delete(document);
        return NULL;
    }
    return document;
}

static const char *string_end(const char *at)
{
    for (at++; *at != '"' && *at != '\0'; at++) {
        if (*at == '\\' && at[1] != '\0') {
            at++;
        }
    }
    return *at == '"' ? at + 1 : at;
}

const char *json_end(const char *value)
{
    const char *at = value;
    size_t depth = 0;

    do {
        if (*at == '"') {
            at = string_end(at);
        } else if (*at == '{' || *at == '[') {
            depth++;
            at++;
        } else if (depth > 0 && (*at == '}' || *at == ']')) {
            depth--;
            at++;
        } else if (depth == 0) { /* a number or a word */
            at += strcspn(at, ",:]} \t\r\n");
        } else {
            at++;
        }
    } while (depth > 0 && *at != '\0');
    return at;
}

const char *json_first(const char *container)
{
    return skip_space(skip_space(container) + 1);
}

const char *json_next(const char *place)
{
    const char *at = skip_space(json_end(place));

    if (*at == ':') {
        at = skip_space(json_end(skip_space(at + 1)));
    }
    return *at == ',' ? skip_space(at + 1) : NULL;
}

const char *json_value(const char *key)
{
    const char *at = skip_space(string_end(key));

    return skip_space(*at == ':' ? at + 1 : at);
}

unsigned json_line(const char *text, const char *place)
{
    unsigned line = 1;

    for (; text < place; text++) {
        line += *text == '\n' ? 1 : 0;
    }
    return line;
}
