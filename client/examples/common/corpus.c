#include "corpus.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum {
    HELD_OUT_EVERY = 10,
    HELD_OUT_LINE = 9,
    MAX_BYTES = 64 << 20 /* keeps a wrong file from eating the memory */
};

struct reader {
    FILE *stream;
    const char *name;
    char *error;
};

static int corpus_fail(const struct reader *reader, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static int corpus_fail(const struct reader *reader, const char *format, ...)
{
    char what[CORPUS_ERROR_SIZE / 2];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    snprintf(reader->error, CORPUS_ERROR_SIZE, "%.100s: %s", reader->name, what);
    return -1;
}

/* Reads all of the stream behind `context` bytes of room; one byte more than allowed is too much.
 */
static int corpus_bytes(struct corpus *corpus, const struct reader *reader, size_t context)
{
    size_t room = 1 << 16;
    for (;; room *= 2) {
        uint8_t *memory = realloc(corpus->memory, context + room);
        if (!memory) {
            return corpus_fail(reader, "no memory");
        }
        corpus->memory = memory;
        corpus->length +=
            fread(memory + context + corpus->length, 1, room - corpus->length, reader->stream);
        if (corpus->length < room || corpus->length > MAX_BYTES) {
            break;
        }
    }
    if (ferror(reader->stream)) {
        return corpus_fail(reader, "cannot read: %s", strerror(errno));
    }
    if (corpus->length > MAX_BYTES) {
        return corpus_fail(reader, "larger than %d MiB", MAX_BYTES >> 20);
    }
    corpus->text = corpus->memory + context;
    return 0;
}

/* Refuses files that are no text, and counts the held-out examples. */
static int corpus_check(struct corpus *corpus, const struct reader *reader)
{
    size_t line = 0, start = 0;
    if (corpus->length >= 2 && corpus->text[0] == 0x1F && corpus->text[1] == 0x8B) {
        return corpus_fail(reader, "not text; if the file is compressed, gunzip it first");
    }
    for (size_t i = 0; i < corpus->length; i++) {
        const uint8_t byte = corpus->text[i];
        if (byte == 0x7F || (byte < 0x20 && byte != '\n' && byte != '\t')) {
            return corpus_fail(reader, "line %zu, column %zu: unexpected byte 0x%02x", line + 1,
                i - start + 1, byte);
        }
        corpus->test_count += line % HELD_OUT_EVERY == HELD_OUT_LINE;
        if (byte == '\n') {
            line++;
            start = i + 1;
        }
    }
    if (corpus->test_count == 0) {
        return corpus_fail(
            reader, "the file ends in line %zu, expected at least %d", line + 1, HELD_OUT_EVERY);
    }
    corpus->train_count = corpus->length - corpus->test_count;
    return 0;
}

/* Lists the examples of both parts. */
static int corpus_split(struct corpus *corpus, const struct reader *reader)
{
    corpus->train = malloc(corpus->train_count * sizeof *corpus->train);
    corpus->test = malloc(corpus->test_count * sizeof *corpus->test);
    if (!corpus->train || !corpus->test) {
        return corpus_fail(reader, "no memory");
    }
    size_t line = 0, train = 0, test = 0;
    for (size_t i = 0; i < corpus->length; i++) {
        if (line % HELD_OUT_EVERY == HELD_OUT_LINE) {
            corpus->test[test++] = i;
        } else {
            corpus->train[train++] = i;
        }
        line += corpus->text[i] == '\n';
    }
    return 0;
}

/* Bytes become symbols; line ends fill the room before the text. */
static void corpus_encode(struct corpus *corpus, size_t context)
{
    uint8_t symbol[256] = {0};
    int seen[256] = {0};
    for (size_t i = 0; i < corpus->length; i++) {
        seen[corpus->text[i]] = 1;
    }
    for (size_t byte = 0; byte < 256; byte++) {
        if (seen[byte]) {
            symbol[byte] = (uint8_t)corpus->symbols;
            corpus->bytes[corpus->symbols++] = (uint8_t)byte;
        }
    }
    memset(corpus->memory, '\n', context);
    for (size_t i = 0; i < context + corpus->length; i++) {
        corpus->memory[i] = symbol[corpus->memory[i]];
    }
}

int corpus_read(struct corpus *corpus, FILE *stream, const char *name, size_t context,
    char error[CORPUS_ERROR_SIZE])
{
    const struct reader reader = {.stream = stream, .name = name, .error = error};
    *corpus = (struct corpus){0};
    if (corpus_bytes(corpus, &reader, context) != 0 || corpus_check(corpus, &reader) != 0 ||
        corpus_split(corpus, &reader) != 0) {
        corpus_free(corpus);
        return -1;
    }
    corpus_encode(corpus, context);
    return 0;
}

int corpus_load(
    struct corpus *corpus, const char *path, size_t context, char error[CORPUS_ERROR_SIZE])
{
    *corpus = (struct corpus){0};
    FILE *stream = fopen(path, "r");
    if (!stream) {
        snprintf(error, CORPUS_ERROR_SIZE, "%.100s: cannot open: %s", path, strerror(errno));
        return -1;
    }
    const int result = corpus_read(corpus, stream, path, context, error);
    fclose(stream);
    return result;
}

void corpus_free(struct corpus *corpus)
{
    free(corpus->memory);
    free(corpus->train);
    free(corpus->test);
    *corpus = (struct corpus){0};
}
