#include "data.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum {
    FIELDS = MODEL_PIXELS + 1,
    LARGEST_PIXEL = 16,
    MAX_ROWS = 1 << 20, /* keeps a wrong file from eating the memory */
    TEST_EVERY = 5,
    TEST_ROW = 4
};

struct reader {
    FILE *stream;
    const char *name;
    char *error;
    size_t line;   /* from 1 */
    size_t column; /* field number, from 1 */
};

static int data_fail(const struct reader *reader, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static int data_fail(const struct reader *reader, const char *format, ...)
{
    char what[DATA_ERROR_SIZE / 2];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    snprintf(reader->error, DATA_ERROR_SIZE, "%.100s: line %zu, column %zu: %s", reader->name,
        reader->line, reader->column, what);
    return -1;
}

static int data_fail_character(const struct reader *reader, int c)
{
    if (c == EOF && ferror(reader->stream)) {
        return data_fail(reader, "cannot read: %s", strerror(errno));
    }
    if (c == EOF) {
        return data_fail(reader, "the file ends inside a line of %d fields", FIELDS);
    }
    if (c == '\n') {
        return data_fail(reader, "the line ends here, expected %d fields", FIELDS);
    }
    if (c == 0x1F && reader->line == 1 && reader->column == 1) {
        return data_fail(reader, "not text; if the file is compressed, gunzip it first");
    }
    if (c > 0x20 && c < 0x7F) {
        return data_fail(reader, "unexpected '%c', expected a whole number", c);
    }
    return data_fail(reader, "unexpected byte 0x%02x, expected a whole number", (unsigned)c);
}

/* Reads the digits of one field and the character after them. */
static int data_field(struct reader *reader, int first, int largest, int *value, int *after)
{
    int c = first, sum = 0, digits = 0;
    for (; c >= '0' && c <= '9'; c = getc(reader->stream), digits++) {
        sum = sum * 10 + (c - '0');
        if (sum > largest) {
            return data_fail(reader, "value is above %d", largest);
        }
        if (digits == 2) {
            return data_fail(reader, "value has too many digits");
        }
    }
    if (digits == 0) {
        return data_fail_character(reader, c);
    }
    *value = sum;
    *after = c;
    return 0;
}

/* Checks the text behind the last field of a line. */
static int data_line_end(struct reader *reader, int c)
{
    if (c == '\r') {
        c = getc(reader->stream);
    }
    if (c == '\n' || (c == EOF && !ferror(reader->stream))) {
        return 0;
    }
    if (c == ',') {
        return data_fail(reader, "more than %d fields", FIELDS);
    }
    return data_fail_character(reader, c);
}

static int data_row(struct reader *reader, int first, float *image, uint8_t *label)
{
    int value = 0, c = first;
    for (size_t field = 0; field < FIELDS; field++) {
        reader->column = field + 1;
        const int is_label = field == MODEL_PIXELS;
        if (data_field(reader, c, is_label ? MODEL_CLASSES - 1 : LARGEST_PIXEL, &value, &c) != 0) {
            return -1;
        }
        if (is_label) {
            *label = (uint8_t)value;
            return data_line_end(reader, c);
        }
        image[field] = (float)value / LARGEST_PIXEL;
        if (c != ',') {
            return data_fail_character(reader, c == '\r' ? '\n' : c);
        }
        c = getc(reader->stream);
    }
    return 0;
}

static void data_set_free(struct data_set *set)
{
    free(set->images);
    free(set->labels);
    *set = (struct data_set){0};
}

/* Makes room for one more example; capacities are powers of two. */
static int data_set_grow(struct data_set *set)
{
    if (set->count != 0 && (set->count & (set->count - 1)) != 0) {
        return 0;
    }
    const size_t capacity = set->count == 0 ? 1 : 2 * set->count;
    float *images = realloc(set->images, capacity * MODEL_PIXELS * sizeof *images);
    if (images) {
        set->images = images;
    }
    uint8_t *labels = realloc(set->labels, capacity * sizeof *labels);
    if (labels) {
        set->labels = labels;
    }
    return images && labels ? 0 : -1;
}

static int data_rows(struct data *data, struct reader *reader)
{
    for (size_t row = 0;; row++) {
        reader->line = row + 1;
        reader->column = 1;
        int c = getc(reader->stream);
        if (c == EOF && !ferror(reader->stream)) {
            break;
        }
        if (row == MAX_ROWS) {
            return data_fail(reader, "more than %d rows", MAX_ROWS);
        }
        struct data_set *set = row % TEST_EVERY == TEST_ROW ? &data->test : &data->train;
        if (data_set_grow(set) != 0) {
            return data_fail(reader, "no memory");
        }
        if (data_row(reader, c, set->images + set->count * MODEL_PIXELS,
                set->labels + set->count) != 0) {
            return -1;
        }
        set->count++;
    }
    if (data->test.count == 0) {
        return data_fail(reader, "the file ends, expected at least %d rows", TEST_EVERY);
    }
    return 0;
}

int data_parse(struct data *data, FILE *stream, const char *name, char error[DATA_ERROR_SIZE])
{
    struct reader reader = {.stream = stream, .name = name, .error = error};
    *data = (struct data){0};
    if (data_rows(data, &reader) == 0) {
        return 0;
    }
    data_free(data);
    return -1;
}

int data_load(struct data *data, const char *path, char error[DATA_ERROR_SIZE])
{
    *data = (struct data){0};
    FILE *stream = fopen(path, "r");
    if (!stream) {
        snprintf(error, DATA_ERROR_SIZE, "%.100s: cannot open: %s", path, strerror(errno));
        return -1;
    }
    int result = data_parse(data, stream, path, error);
    fclose(stream);
    return result;
}

void data_free(struct data *data)
{
    data_set_free(&data->train);
    data_set_free(&data->test);
}
