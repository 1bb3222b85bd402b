#include "proto/json.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "proto/json_syntax.h"
#include "proto/utf8.h"

#define KEY_LEAST 38 /* of a CURVE key in Z85, which has 40 characters, with a slip of the pen */
#define KEY_MOST 42
#define EXCERPT_MAX 64   /* characters of a line that are shown */
#define EXCERPT_LEAST 16 /* with room for less, no line is shown */
#define MARGIN "\n  "
#define CUT "..."

/* ------------------------------------------------------------------ walking through valid JSON */

static const char *skip_space(const char *at)
{
    return at + strspn(at, " \t\r\n");
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

/* Where the value behind the key at `key` starts. */
static const char *json_value_of(const char *key)
{
    return skip_space(skip_space(string_end(key)) + 1);
}

/* The item's place among the items below `parent`, whose text starts at `text`; NULL if it is not
 * one of them. */
static const char *find_below(
    const cJSON *parent, const char *text, const cJSON *item, enum json_part part)
{
    const char *at = skip_space(text + 1);

    for (const cJSON *child = parent->child; child != NULL; child = child->next) {
        const char *value = cJSON_IsObject(parent) ? json_value_of(at) : at;
        const char *found = NULL;

        if (child == item) {
            return part == JSON_KEY ? at : value;
        }
        if (child->child != NULL) {
            found = find_below(child, value, item, part);
        }
        if (found != NULL) {
            return found;
        }
        at = skip_space(skip_space(json_end(value)) + 1);
    }
    return NULL;
}

const char *json_place(const struct json *json, const cJSON *item, enum json_part part)
{
    const char *found = item != json->root ? find_below(json->root, json->start, item, part) : NULL;

    return found != NULL ? found : json->start;
}

/* ------------------------------------------------------------------ showing a place */

static bool begins_character(char byte)
{
    return ((unsigned char)byte & 0xC0) != 0x80;
}

unsigned json_line(const char *text, const char *place)
{
    unsigned line = 1;

    for (; text < place; text++) {
        line += *text == '\n' ? 1 : 0;
    }
    return line;
}

static const char *line_start(const char *text, const char *place)
{
    while (place > text && place[-1] != '\n') {
        place--;
    }
    return place;
}

/* Characters from the start of the line to the place. */
static size_t characters_before(const char *start, const char *place)
{
    size_t count = 0;

    for (; start < place; start++) {
        count += begins_character(*start) ? 1 : 0;
    }
    return count;
}

/* Bytes of the text in quotes that starts with the quote at `quote` if it may be a key, else 0. */
static size_t key_length(const char *quote)
{
    const size_t length = strcspn(quote + 1, "\" \\\t\r\n");

    return length >= KEY_LEAST && length <= KEY_MOST && quote[1 + length] == '"' ? length : 0;
}

/* A text that is written bit by bit and ends where its room does. */
struct writer {
    char *at;
    const char *end;
};

static void write_bytes(struct writer *writer, const char *bytes, size_t size)
{
    if (size <= (size_t)(writer->end - writer->at)) {
        memcpy(writer->at, bytes, size);
        writer->at += size;
    }
}

/* One character of the line, printable, and its bytes in the line. */
static size_t write_character(struct writer *writer, const char *at, bool hidden, bool shown)
{
    const size_t length = utf8_length(at);
    const unsigned char first = (unsigned char)*at;
    const bool control =
        first < 0x20 || first == 0x7F || (first == 0xC2 && (unsigned char)at[1] < 0xA0);

    if (shown && hidden) {
        write_bytes(writer, "*", 1);
    } else if (shown && (length == 0 || control)) {
        write_bytes(writer, first == '\t' ? " " : "?", 1);
    } else if (shown) {
        write_bytes(writer, at, length);
    }
    return length > 0 ? length : 1;
}

/* Writes `width` characters of the line, from character `from` on. */
static void json_write_line(struct writer *writer, const char *line, size_t from, size_t width)
{
    const char *key = line; /* behind a key that is hidden */
    size_t number = 0;

    write_bytes(writer, CUT, from > 0 ? strlen(CUT) : 0);
    while (*line != '\0' && *line != '\n' && *line != '\r' && number < from + width) {
        const bool hidden = line < key;

        if (!hidden && *line == '"') {
            key = line + 1 + key_length(line);
        }
        line += write_character(writer, line, hidden, number >= from);
        number++;
    }
    write_bytes(writer, CUT, *line != '\0' && *line != '\n' && *line != '\r' ? strlen(CUT) : 0);
}

/* Appends the line of the place, and a mark below it, to a sentence. */
static void show_place(char text[ERROR_TEXT_SIZE], const char *document, const char *place)
{
    const char *line = line_start(document, place);
    const size_t before = characters_before(line, place);
    const size_t used = strlen(text);
    const size_t room = ERROR_TEXT_SIZE - 1 - used;
    const size_t frame = 2 * (strlen(MARGIN) + strlen(CUT)) + strlen(CUT) + 1;
    size_t width = room > frame ? (room - frame) / 2 : 0;
    size_t from;
    struct writer writer = {.at = text + used, .end = text + ERROR_TEXT_SIZE - 1};

    if (width < EXCERPT_LEAST || line[strspn(line, " \t\r")] == '\n' ||
        line[strspn(line, " \t\r")] == '\0') {
        return;
    }
    width = width < EXCERPT_MAX ? width : EXCERPT_MAX;
    from = before < width ? 0 : before - width / 2;
    writer.end -= strlen(MARGIN) + strlen(CUT) + width + 1; /* the mark's line */
    write_bytes(&writer, MARGIN, strlen(MARGIN));
    json_write_line(&writer, line, from, width);
    writer.end = text + ERROR_TEXT_SIZE - 1;
    write_bytes(&writer, MARGIN, strlen(MARGIN));
    for (size_t i = 0; i < before - from + (from > 0 ? strlen(CUT) : 0); i++) {
        write_bytes(&writer, " ", 1);
    }
    write_bytes(&writer, "^", 1);
    *writer.at = '\0';
}

/* Makes the text of the document in the sentence printable. */
static void clean(char *text)
{
    char copy[ERROR_TEXT_SIZE];
    struct writer writer = {.at = copy, .end = copy + sizeof(copy) - 1};

    for (const char *at = text; *at != '\0';) {
        at += write_character(&writer, at, false, true);
    }
    *writer.at = '\0';
    (void)strcpy(text, copy);
}

static enum adtopk_status add_fault(const struct json *json, const char *place,
    struct faults *faults, const char *format, va_list args)
{
    char sentence[ERROR_TEXT_SIZE];
    const size_t column = characters_before(line_start(json->text, place), place) + 1;

    (void)vsnprintf(sentence, sizeof(sentence), format, args);
    (void)faults_add(faults, json->code, "%.100s:%u:%zu: %s", json->name,
        json_line(json->text, place), column, sentence);
    if (faults->count <= FAULTS_MAX) {
        clean(faults->fault[faults->count - 1].text);
        show_place(faults->fault[faults->count - 1].text, json->text, place);
    }
    return json->code;
}

enum adtopk_status json_fault(const struct json *json, const cJSON *item, enum json_part part,
    struct faults *faults, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)add_fault(json, json_place(json, item, part), faults, format, args);
    va_end(args);
    return json->code;
}

enum adtopk_status json_blame(
    const struct json *json, const char *place, struct faults *faults, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)add_fault(json, place, faults, format, args);
    va_end(args);
    return json->code;
}

/* ------------------------------------------------------------------ reading */

static enum adtopk_status read_checked(struct json *json, const char *end, struct faults *faults)
{
    enum adtopk_status status = json_check_syntax(json, end, faults);

    if (status != ADTOPK_OK) {
        return status;
    }
    json->start = skip_space(json->start);
    json->root = cJSON_ParseWithLengthOpts(json->start, (size_t)(end - json->start), NULL, false);
    return json->root != NULL ? ADTOPK_OK
                              : faults_add(faults, ADTOPK_ERR_MEMORY,
                                    "%.100s: no memory to read the document", json->name);
}

enum adtopk_status json_read(struct json *json, const char *name, const char *text, size_t size,
    enum adtopk_status code, struct faults *faults)
{
    *json = (struct json){.name = name, .text = text, .start = text, .code = code};
    return read_checked(json, text + size, faults);
}

enum adtopk_status json_read_part(struct json *json, const char *name, const char *text,
    const char *start, enum adtopk_status code, struct faults *faults)
{
    *json = (struct json){.name = name, .text = text, .start = start, .code = code};
    return read_checked(json, json_end(start), faults);
}

void json_free(struct json *json)
{
    cJSON_Delete(json->root);
    json->root = NULL;
}
