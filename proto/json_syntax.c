/*
 * A reader of JSON that only checks. It knows the mistakes that people make and says how to mend
 * the one that it meets; it stops at the first.
 */
#include "proto/json_syntax.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "proto/utf8.h"

#define SHOWN 32 /* bytes of a word that a sentence quotes */

struct syntax {
    const struct json *json;
    const char *at, *end;
    unsigned depth;
    struct faults *faults;
};

static bool read_value(struct syntax *syntax);

/* Always false: the reader has failed. */
static bool wrong(const struct syntax *syntax, const char *place, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static bool wrong(const struct syntax *syntax, const char *place, const char *format, ...)
{
    char sentence[ERROR_TEXT_SIZE];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(sentence, sizeof(sentence), format, args);
    va_end(args);
    (void)json_blame(syntax->json, place, syntax->faults, "%s", sentence);
    return false;
}

/* The byte that is read now; 0 behind the last one. */
static char now(const struct syntax *syntax)
{
    return syntax->at < syntax->end ? *syntax->at : '\0';
}

static bool at_end(const struct syntax *syntax)
{
    return syntax->at >= syntax->end;
}

/* Bytes of the word at this place: what a person would take for one value. */
static int word_size(const struct syntax *syntax, const char *place)
{
    int size = 0;

    while (place + size < syntax->end && size < SHOWN && (unsigned char)place[size] > ' ' &&
           strchr(",:;{}[]\"", place[size]) == NULL) {
        size++;
    }
    return size;
}

/* Moves over blanks; false at a comment. */
static bool skip_blanks(struct syntax *syntax)
{
    while (!at_end(syntax) && (*syntax->at == ' ' || *syntax->at == '\t' || *syntax->at == '\n' ||
                                  *syntax->at == '\r')) {
        syntax->at++;
    }
    return now(syntax) == '#' || now(syntax) == '/'
               ? wrong(syntax, syntax->at, "JSON has no comments: remove this one")
               : true;
}

/* ------------------------------------------------------------------ texts */

/* Reads the four digits behind \u; -1 if they are not there. */
static long hex_code(const struct syntax *syntax, const char *at)
{
    long code = 0;

    for (int i = 0; i < 4; i++) {
        if (at + i >= syntax->end || !isxdigit((unsigned char)at[i])) {
            return -1;
        }
        code =
            code * 16 + (isdigit((unsigned char)at[i]) ? at[i] - '0'
                                                       : tolower((unsigned char)at[i]) - 'a' + 10);
    }
    return code;
}

static bool read_unicode(struct syntax *syntax)
{
    const char *start = syntax->at;
    const long code = hex_code(syntax, start + 2);
    long second = -1;

    if (code < 0) {
        return wrong(syntax, start, "four hexadecimal digits are needed behind \\u");
    }
    if (code == 0) {
        return wrong(syntax, start, "\\u0000 does not belong in a text");
    }
    syntax->at += 6;
    if (code < 0xD800 || code > 0xDFFF) {
        return true;
    }
    if (code < 0xDC00 && syntax->at + 1 < syntax->end && strncmp(syntax->at, "\\u", 2) == 0) {
        second = hex_code(syntax, syntax->at + 2);
    }
    if (second < 0xDC00 || second > 0xDFFF) {
        return wrong(syntax, start, "half a surrogate pair: the other half is missing");
    }
    syntax->at += 6;
    return true;
}

static bool read_escape(struct syntax *syntax)
{
    const char next = syntax->at + 1 < syntax->end ? syntax->at[1] : '\0';

    if (next == 'u') {
        return read_unicode(syntax);
    }
    if (next == '\0' || strchr("\"\\/bfnrt", next) == NULL) {
        return wrong(syntax, syntax->at, "no such escape: write \\\\ for a backslash");
    }
    syntax->at += 2;
    return true;
}

static bool read_string(struct syntax *syntax)
{
    const char *quote = syntax->at++;

    while (now(syntax) != '"' || at_end(syntax)) {
        const unsigned char byte = (unsigned char)now(syntax);

        if (at_end(syntax) || byte == '\n' || byte == '\r') {
            return wrong(
                syntax, quote, "a closing quote is missing: this text does not end in its line");
        }
        if (byte < 0x20) {
            return wrong(syntax, syntax->at, "byte 0x%02x does not belong in a text%s", byte,
                byte == '\t' ? ": write \\t for a tab" : "");
        }
        if (byte == '\\') {
            if (!read_escape(syntax)) {
                return false;
            }
        } else if (utf8_length(syntax->at) == 0) {
            return wrong(syntax, syntax->at, "byte 0x%02x is not UTF-8", byte);
        } else {
            syntax->at += utf8_length(syntax->at);
        }
    }
    syntax->at++;
    return true;
}

/* ------------------------------------------------------------------ numbers and words */

static bool read_digits(struct syntax *syntax)
{
    const char *start = syntax->at;

    while (isdigit((unsigned char)now(syntax))) {
        syntax->at++;
    }
    return syntax->at > start;
}

static bool json_syntax_read_number(struct syntax *syntax)
{
    const char *start = syntax->at;
    const char *digits = start + (*start == '-' ? 1 : 0);
    bool good;

    syntax->at = digits;
    good = read_digits(syntax);
    if (good && *digits == '0' && syntax->at > digits + 1) {
        return wrong(syntax, start, "a number does not begin with 0");
    }
    if (good && now(syntax) == '.') {
        syntax->at++;
        good = read_digits(syntax);
    }
    if (good && (now(syntax) == 'e' || now(syntax) == 'E')) {
        syntax->at++;
        syntax->at += now(syntax) == '+' || now(syntax) == '-' ? 1 : 0;
        good = read_digits(syntax);
    }
    if (!good || word_size(syntax, syntax->at) > 0) {
        return wrong(syntax, start,
            "%.*s is not a number as JSON has it; a text stands in double quotes",
            word_size(syntax, start), start);
    }
    return true;
}

/* A word that other languages have for one of JSON's three. */
static const char *meant_word(const char *word, int size)
{
    static const char *const words[][2] = {{"true", "true"}, {"false", "false"}, {"null", "null"},
        {"none", "null"}, {"yes", "true"}, {"no", "false"}, {"on", "true"}, {"off", "false"}};

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if ((size_t)size == strlen(words[i][0]) &&
            strncasecmp(word, words[i][0], (size_t)size) == 0) {
            return words[i][1];
        }
    }
    return NULL;
}

static bool read_word(struct syntax *syntax)
{
    const char *start = syntax->at;
    const int size = word_size(syntax, start);
    const char *meant = meant_word(start, size);

    if (meant != NULL && (size_t)size == strlen(meant) &&
        strncmp(start, meant, strlen(meant)) == 0) {
        syntax->at += size;
        return true;
    }
    if (meant != NULL) {
        return wrong(syntax, start, "%.*s is no value of JSON: write %s", size, start, meant);
    }
    if (syntax->depth == 0) {
        return wrong(syntax, start, "not JSON: a \"{\" is missing before this");
    }
    return wrong(syntax, start, "a text stands in double quotes: write \"%.*s\"", size, start);
}

/* Reports a byte that begins no value and no word. */
static bool refuse_byte(const struct syntax *syntax)
{
    const char *at = syntax->at;
    const unsigned char byte = (unsigned char)now(syntax);

    if (at == syntax->json->text && strncmp(at, "\xEF\xBB\xBF", 3) == 0) {
        return wrong(
            syntax, at, "byte 0xef: the file begins with a byte order mark; save it without");
    }
    if (byte == '\'' || byte == '`' || strncmp(at, "\xE2\x80\x98", 3) == 0 ||
        strncmp(at, "\xE2\x80\x9C", 3) == 0) {
        return wrong(syntax, at, "texts stand in double quotes, \"like this\"");
    }
    if (byte == ',' || byte == '}' || byte == ']' || byte == ':') {
        return wrong(syntax, at, "a value is missing before \"%c\"", byte);
    }
    return byte > 0x20 && byte < 0x7F
               ? wrong(syntax, at, "\"%c\" begins no value of JSON", byte)
               : wrong(syntax, at, "byte 0x%02x does not belong in JSON", byte);
}

/* ------------------------------------------------------------------ objects and arrays */

static bool is_closer(char byte)
{
    return byte == '}' || byte == ']';
}

/* The object or array that begins at `open` goes on neither with a comma nor with its end. */
static bool refuse_next(const struct syntax *syntax, const char *open, const char *value_end)
{
    const char closer = *open == '{' ? '}' : ']';
    const char byte = now(syntax);

    if (at_end(syntax)) {
        return wrong(syntax, open, "this \"%c\" is never closed: \"%c\" is missing", *open, closer);
    }
    if (is_closer(byte)) {
        return wrong(syntax, syntax->at, "\"%c\" is needed here, for the \"%c\" in line %u", closer,
            *open, json_line(syntax->json->text, open));
    }
    if (byte == ';') {
        return wrong(syntax, syntax->at, "write \",\" and not \";\"");
    }
    return byte == '"' || byte == '{' || byte == '[' || isalnum((unsigned char)byte) || byte == '-'
               ? wrong(syntax, value_end, "a comma is missing here")
               : wrong(syntax, syntax->at, "\",\" or \"%c\" is needed here", closer);
}

static bool read_key(struct syntax *syntax, const char *open)
{
    const int size = word_size(syntax, syntax->at);

    if (at_end(syntax)) {
        return refuse_next(syntax, open, syntax->at);
    }
    if (now(syntax) == '"') {
        return read_string(syntax);
    }
    return isalpha((unsigned char)now(syntax)) || now(syntax) == '_'
               ? wrong(syntax, syntax->at, "a key stands in double quotes: write \"%.*s\"", size,
                     syntax->at)
               : refuse_byte(syntax);
}

static bool read_colon(struct syntax *syntax)
{
    if (!skip_blanks(syntax)) {
        return false;
    }
    if (now(syntax) != ':') {
        return wrong(syntax, syntax->at,
            now(syntax) == '=' ? "write \":\" and not \"=\"" : "\":\" is missing behind the key");
    }
    syntax->at++;
    return skip_blanks(syntax);
}

/* Moves behind a comma and to the next value. */
static bool read_comma(struct syntax *syntax)
{
    const char *comma = syntax->at++;

    if (!skip_blanks(syntax)) {
        return false;
    }
    return is_closer(now(syntax))
               ? wrong(syntax, comma, "a comma before \"%c\": remove it", now(syntax))
               : true;
}

static bool read_members(struct syntax *syntax)
{
    const char *open = syntax->at++;
    const char closer = *open == '{' ? '}' : ']';
    bool more = skip_blanks(syntax);

    if (more && now(syntax) == closer) {
        syntax->at++;
        return true;
    }
    while (more) {
        const char *value_end;

        if ((*open == '{' && (!read_key(syntax, open) || !read_colon(syntax))) ||
            (at_end(syntax) && !refuse_next(syntax, open, syntax->at)) || !read_value(syntax)) {
            return false;
        }
        value_end = syntax->at;
        if (!skip_blanks(syntax)) {
            return false;
        }
        if (now(syntax) == closer) {
            syntax->at++;
            return true;
        }
        more = now(syntax) == ',' ? read_comma(syntax) : refuse_next(syntax, open, value_end);
    }
    return false;
}

static bool read_value(struct syntax *syntax)
{
    const char byte = now(syntax);
    bool good;

    if (byte == '{' || byte == '[') {
        if (syntax->depth == JSON_DEPTH_MAX) {
            return wrong(syntax, syntax->at, "more than %d objects and arrays in each other",
                JSON_DEPTH_MAX);
        }
        syntax->depth++;
        good = read_members(syntax);
        syntax->depth--;
        return good;
    }
    if (byte == '"') {
        return read_string(syntax);
    }
    if (isdigit((unsigned char)byte) || byte == '-' || byte == '+' || byte == '.') {
        return json_syntax_read_number(syntax);
    }
    return isalpha((unsigned char)byte) || byte == '_' ? read_word(syntax) : refuse_byte(syntax);
}

static bool json_syntax_read_document(struct syntax *syntax)
{
    const char *start;

    if (!skip_blanks(syntax)) {
        return false;
    }
    if (at_end(syntax)) {
        return wrong(syntax, syntax->json->start, "the document is empty");
    }
    start = syntax->at;
    if (!read_value(syntax) || !skip_blanks(syntax)) {
        return false;
    }
    if (at_end(syntax)) {
        return true;
    }
    if (*start == '"' && now(syntax) == ':') {
        return wrong(syntax, start, "not JSON: a \"{\" is missing before this");
    }
    if ((unsigned char)now(syntax) < ' ') {
        return refuse_byte(syntax);
    }
    return is_closer(now(syntax))
               ? wrong(syntax, syntax->at, "one \"%c\" too many, after the end of the document",
                     now(syntax))
               : wrong(syntax, syntax->at, "this stands after the end of the document");
}

enum adtopk_status json_check_syntax(
    const struct json *json, const char *end, struct faults *faults)
{
    struct syntax syntax = {.json = json, .at = json->start, .end = end, .faults = faults};

    return json_syntax_read_document(&syntax) ? ADTOPK_OK : json->code;
}
