/*
 * Fuzz target: the example's CSV of digits. Accepted values are in range, and stay the same when
 * they are written and read again.
 */
#include <stdlib.h>
#include <string.h>

#include "data.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_set(const struct data_set *set)
{
    for (size_t i = 0; i < set->count; i++) {
        if (set->labels[i] >= MODEL_CLASSES) {
            abort();
        }
        for (size_t p = 0; p < MODEL_PIXELS; p++) {
            float pixel = set->images[i * MODEL_PIXELS + p];
            if (!(pixel >= 0.0f && pixel <= 1.0f)) {
                abort();
            }
        }
    }
}

/* The rows as they stood in the file. */
static char *write_out(const struct data *digits, size_t *size)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, size);
    size_t rows = digits->train.count + digits->test.count;

    if (out == NULL) {
        abort();
    }
    for (size_t row = 0; row < rows; row++) {
        const struct data_set *set = row % 5 == 4 ? &digits->test : &digits->train;
        size_t at = row % 5 == 4 ? row / 5 : row / 5 * 4 + row % 5;
        for (size_t p = 0; p < MODEL_PIXELS; p++) {
            (void)fprintf(out, "%d,", (int)(set->images[at * MODEL_PIXELS + p] * 16.0f));
        }
        (void)fprintf(out, "%d\n", set->labels[at]);
    }
    (void)fclose(out);
    return text;
}

static int parse(struct data *digits, const void *bytes, size_t size, char *error)
{
    FILE *stream = fmemopen((void *)(uintptr_t)bytes, size, "r");
    int result;

    if (stream == NULL) {
        abort();
    }
    result = data_parse(digits, stream, "input", error);
    (void)fclose(stream);
    return result;
}

static void check_again(const struct data *digits)
{
    char error[DATA_ERROR_SIZE] = "";
    size_t size = 0;
    char *text = write_out(digits, &size);
    struct data again;

    if (parse(&again, text, size, error) != 0 || again.train.count != digits->train.count ||
        again.test.count != digits->test.count ||
        memcmp(again.train.images, digits->train.images,
            again.train.count * MODEL_PIXELS * sizeof(float)) != 0 ||
        memcmp(again.test.labels, digits->test.labels, again.test.count) != 0) {
        abort();
    }
    data_free(&again);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char error[DATA_ERROR_SIZE] = "";
    struct data digits;

    if (size == 0) {
        return 0;
    }
    if (parse(&digits, data, size, error) == 0) {
        check_set(&digits.train);
        check_set(&digits.test);
        check_again(&digits);
        data_free(&digits);
    } else if (strstr(error, "input: line ") == NULL || digits.train.images != NULL ||
               digits.test.images != NULL) {
        abort();
    }
    return 0;
}
