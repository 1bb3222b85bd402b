/* The digits example: the reader of its data, and the batches. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/sampler.h"
#include "data.h"
#include "model.h"

static void *checked(void *memory)
{
    assert_non_null(memory);
    return memory;
}

static int parse(struct data *data, const char *text, size_t size, char error[DATA_ERROR_SIZE])
{
    FILE *stream = checked(tmpfile());
    assert_int_equal(fwrite(text, 1, size, stream), size);
    rewind(stream);
    error[0] = '\0';
    const int result = data_parse(data, stream, "test.csv", error);
    fclose(stream);
    return result;
}

/* Writes rows whose first pixel is row % 17 and whose label is row % 10. Returns the length. */
static size_t write_rows(char *text, size_t rows, const char *line_end)
{
    char *at = text;
    for (size_t row = 0; row < rows; row++) {
        at += sprintf(at, "%zu", row % 17);
        for (int pixel = 1; pixel < MODEL_PIXELS; pixel++)
            at += sprintf(at, ",%d", pixel % 17);
        at += sprintf(at, ",%zu%s", row % 10, line_end);
    }
    return (size_t)(at - text);
}

static void test_parse_splits_rows(void **state)
{
    (void)state;
    static char text[64 * 1024];
    char error[DATA_ERROR_SIZE];
    const char *ends[] = {"\n", "\r\n"};
    for (size_t variant = 0; variant < 4; variant++) {
        struct data data;
        const char *end = ends[variant % 2];
        size_t size = write_rows(text, 47, end);
        if (variant >= 2) /* the last line ends with the file */
            size -= strlen(end);
        assert_int_equal(parse(&data, text, size, error), 0);
        assert_int_equal(data.train.count, 38);
        assert_int_equal(data.test.count, 9);
        for (size_t row = 0; row < 47; row++) {
            const struct data_set *set = row % 5 == 4 ? &data.test : &data.train;
            const size_t at = row % 5 == 4 ? row / 5 : row - row / 5;
            assert_true(set->images[at * 64] == (float)(row % 17) / 16);
            assert_true(set->images[at * 64 + 16] == 1);
            assert_int_equal(set->labels[at], row % 10);
        }
        data_free(&data);
    }
}

/* Checks that parsing six good rows fails if this text replaces the bytes from `at` on. */
static void assert_parse_fails(
    size_t row, size_t field, const char *instead, size_t skip, const char *expected)
{
    static char text[64 * 1024], bad[64 * 1024];
    char error[DATA_ERROR_SIZE];
    struct data data;
    const size_t size = write_rows(text, 6, "\n");
    size_t at = 0;
    for (size_t line = 0; line < row; at++)
        line += text[at] == '\n';
    for (size_t comma = 0; comma < field; at++)
        comma += text[at] == ',';
    memcpy(bad, text, at);
    strcpy(bad + at, instead);
    const size_t middle = at + strlen(instead);
    const size_t rest = skip < size - at ? size - at - skip : 0;
    memcpy(bad + middle, text + size - rest, rest);
    assert_int_equal(parse(&data, bad, middle + rest, error), -1);
    if (!strstr(error, expected))
        fail_msg("got '%s', expected '%s'", error, expected);
    assert_null(data.train.images);
    assert_null(data.test.labels);
    assert_int_equal(data.train.count, 0);
}

static void test_parse_names_line_and_column(void **state)
{
    (void)state;
    const size_t all = SIZE_MAX;
    assert_parse_fails(0, 0, "x", 1, "test.csv: line 1, column 1: unexpected 'x'");
    assert_parse_fails(2, 5, "17", 1, "line 3, column 6: value is above 16");
    assert_parse_fails(2, 5, "99999999999999999999", 1, "line 3, column 6: value is above 16");
    assert_parse_fails(2, 5, "000", 1, "line 3, column 6: value has too many digits");
    assert_parse_fails(1, 64, "10", 1, "line 2, column 65: value is above 9");
    assert_parse_fails(1, 3, "-1", 1, "line 2, column 4: unexpected '-'");
    assert_parse_fails(1, 3, "1.5", 1, "line 2, column 4: unexpected '.'");
    assert_parse_fails(1, 3, " 1", 1, "line 2, column 4: unexpected byte 0x20");
    assert_parse_fails(1, 3, "", 1, "line 2, column 4: unexpected ','");
    assert_parse_fails(4, 64, "4,", 1, "line 5, column 65: more than 65 fields");
    assert_parse_fails(4, 64, "4 ", 1, "line 5, column 65: unexpected byte 0x20");
    assert_parse_fails(3, 10, "1\n", 1, "line 4, column 11: the line ends here");
    assert_parse_fails(3, 10, "1\r\n", 1, "line 4, column 11: the line ends here");
    assert_parse_fails(3, 0, "\n", 0, "line 4, column 1: the line ends here");
    assert_parse_fails(5, 64, "", all, "line 6, column 65: the file ends inside a line");
    assert_parse_fails(5, 3, "1", all, "line 6, column 4: the file ends inside a line");
    assert_parse_fails(0, 0, "\x1f\x8b\x08", 1, "line 1, column 1: not text; if the file is comp");
    assert_parse_fails(3, 0, "", all, "line 4, column 1: the file ends, expected at least 5 rows");
    assert_parse_fails(0, 0, "", all, "line 1, column 1: the file ends, expected at least 5 rows");
}

static void test_load_errors(void **state)
{
    (void)state;
    char error[DATA_ERROR_SIZE];
    struct data data;
    assert_int_equal(data_load(&data, "/nonexistent/digits.csv", error), -1);
    assert_non_null(strstr(error, "/nonexistent/digits.csv: cannot open: No such file"));
    assert_int_equal(data_load(&data, "/", error), -1);
    assert_non_null(strstr(error, "cannot read: Is a directory"));
    assert_int_equal(data_load(&data, "/dev/zero", error), -1);
    assert_non_null(strstr(error, "line 1, column 1: unexpected byte 0x00"));
}

/* Every epoch shows each example at most once, and the seed decides. */
static void test_sampler(void **state)
{
    (void)state;
    enum { COUNT = 23, BATCH = 6, BATCHES = 3, EPOCHS = 4 };
    size_t differences = 0;
    struct sampler *sampler = checked(sampler_create(COUNT, BATCH, 11));
    struct sampler *same = checked(sampler_create(COUNT, BATCH, 11));
    struct sampler *other = checked(sampler_create(COUNT, BATCH, 12));
    for (uint64_t epoch = 0; epoch < EPOCHS; epoch++) {
        unsigned seen[COUNT] = {0};
        for (uint64_t step = epoch * BATCHES; step < (epoch + 1) * BATCHES; step++) {
            const size_t *batch = sampler_batch(sampler, step);
            for (size_t i = 0; i < BATCH; i++) {
                assert_true(batch[i] < COUNT);
                assert_int_equal(seen[batch[i]]++, 0);
            }
            assert_memory_equal(sampler_batch(same, step), batch, BATCH * sizeof *batch);
            differences += memcmp(sampler_batch(other, step), batch, BATCH * sizeof *batch) != 0;
        }
    }
    /* Goes back to an earlier epoch. */
    assert_memory_equal(sampler_batch(sampler, 0), sampler_batch(same, 0), BATCH * sizeof(size_t));
    assert_true(differences > EPOCHS * BATCHES / 2);
    sampler_destroy(sampler);
    sampler_destroy(same);
    sampler_destroy(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse_splits_rows),
        cmocka_unit_test(test_parse_names_line_and_column),
        cmocka_unit_test(test_load_errors),
        cmocka_unit_test(test_sampler),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
