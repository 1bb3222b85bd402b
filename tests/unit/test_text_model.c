/* The text example: the network against finite differences of a plain forward pass in double
 * precision, and the reader of the text. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/corpus.h"
#include "model.h"
#include "tests/unit/model_check.h"

enum { EXAMPLES = 4, MAX_CONTEXT = 5, MAX_WIDTH = 64 };

struct fixture {
    struct model_check check;
    struct model_sizes sizes;
    uint8_t contexts[EXAMPLES * MAX_CONTEXT];
    uint8_t labels[EXAMPLES];
    struct model_batch batch;
};

/* --- the plain network ------------------------------------------------------------------------ */

static void reference_logits(const struct fixture *fixture, const uint8_t *context, double *logits)
{
    const struct model_sizes *sizes = &fixture->sizes;
    double in[MAX_WIDTH], out[MAX_WIDTH];
    size_t inputs = sizes->context * sizes->embedding;
    for (size_t i = 0; i < inputs; i++)
        in[i] = fixture->check.parameters[0][context[i / sizes->embedding] * sizes->embedding +
                                             i % sizes->embedding];
    for (size_t l = 0; l <= sizes->layers; l++) {
        const size_t outputs = l == sizes->layers ? sizes->symbols : sizes->hidden;
        const double *weight = fixture->check.parameters[1 + 2 * l];
        for (size_t o = 0; o < outputs; o++) {
            out[o] = fixture->check.parameters[2 + 2 * l][o];
            for (size_t i = 0; i < inputs; i++)
                out[o] += weight[o * inputs + i] * in[i];
            if (l < sizes->layers)
                out[o] = fmax(out[o], 0);
        }
        memcpy(in, out, outputs * sizeof *in);
        inputs = outputs;
    }
    memcpy(logits, in, inputs * sizeof *in);
}

static double reference_loss(const void *of)
{
    const struct fixture *fixture = of;
    const struct model_batch *batch = &fixture->batch;
    double loss = 0;
    for (size_t n = 0; n < batch->count; n++) {
        double logits[MAX_WIDTH], sum = 0;
        reference_logits(fixture, batch->contexts + n * fixture->sizes.context, logits);
        for (size_t c = 0; c < fixture->sizes.symbols; c++)
            sum += exp(logits[c]);
        loss += log(sum) - logits[batch->labels[n]];
    }
    return loss;
}

/* --- a model with a batch --------------------------------------------------------------------- */

static const struct model_sizes all_sizes[] = {
    {.symbols = 7, .context = 5, .embedding = 3, .hidden = 11, .layers = 1},
    {.symbols = 2, .context = 1, .embedding = 1, .hidden = 9, .layers = 2},
    {.symbols = 19, .context = 4, .embedding = 8, .hidden = 16, .layers = MODEL_MAX_LAYERS},
};
enum { SIZES = sizeof all_sizes / sizeof all_sizes[0] };

static struct fixture *fixture_create(const struct model_sizes *sizes)
{
    struct fixture *fixture = checked(calloc(1, sizeof *fixture));
    struct random random;
    model_check_begin(&fixture->check, model_create(sizes, EXAMPLES), 5, &random);
    fixture->sizes = *sizes;
    for (size_t i = 0; i < EXAMPLES * MAX_CONTEXT; i++)
        fixture->contexts[i] = (uint8_t)(random_next(&random) % sizes->symbols);
    for (size_t n = 0; n < EXAMPLES; n++)
        fixture->labels[n] = (uint8_t)(random_next(&random) % sizes->symbols);
    fixture->batch = (struct model_batch){fixture->contexts, fixture->labels, EXAMPLES};
    return fixture;
}

static void fixture_destroy(struct fixture *fixture)
{
    model_check_end(&fixture->check);
    free(fixture);
}

static void test_tensors(void **state)
{
    (void)state;
    struct fixture *fixture = fixture_create(&all_sizes[0]);
    const char *names[] = {
        "embedding.weight", "hidden1.weight", "hidden1.bias", "output.weight", "output.bias"};
    const size_t sizes[] = {7 * 3, 11 * 15, 11, 7 * 11, 7};
    assert_int_equal(fixture->check.count, 5);
    for (size_t t = 0; t < fixture->check.count; t++) {
        assert_string_equal(fixture->check.tensors[t].name, names[t]);
        assert_int_equal(tensor_size(&fixture->check.tensors[t]), sizes[t]);
    }
    fixture_destroy(fixture);
}

static void test_forward_matches_reference(void **state)
{
    (void)state;
    for (size_t s = 0; s < SIZES; s++) {
        struct fixture *fixture = fixture_create(&all_sizes[s]);
        const struct score score = model_forward(fixture->check.model, &fixture->batch);
        size_t correct = 0;
        for (size_t n = 0; n < EXAMPLES; n++) {
            double logits[MAX_WIDTH];
            size_t best = 0;
            reference_logits(fixture, fixture->contexts + n * all_sizes[s].context, logits);
            for (size_t c = 1; c < all_sizes[s].symbols; c++)
                best = logits[c] > logits[best] ? c : best;
            correct += best == fixture->labels[n];
        }
        assert_close(score.loss, reference_loss(fixture), 1e-4);
        assert_int_equal(score.correct, correct);
        fixture_destroy(fixture);
    }
}

static void test_backward_matches_finite_differences(void **state)
{
    (void)state;
    const struct model_check_bounds bounds = {
        .scale = 0.5, .nudge = 1e-6, .relative = 2e-5, .absolute = 1e-7};
    for (size_t s = 0; s < SIZES; s++) {
        struct fixture *fixture = fixture_create(&all_sizes[s]);
        struct model_check *check = &fixture->check;
        model_forward(check->model, &fixture->batch);
        assert_int_equal(model_backward(check->model, 0.5f, check->gradients, NULL, NULL), 0);
        model_check_gradients(check, &bounds, reference_loss, fixture);
        fixture_destroy(fixture);
    }
}

static void test_announcements(void **state)
{
    (void)state;
    const size_t order[] = {4, 3, 2, 1, 0};
    struct fixture *fixture = fixture_create(&all_sizes[0]);
    model_check_announcements(&fixture->check, &fixture->batch, order);
    fixture_destroy(fixture);
}

/* A gradient that is not finite must reach the exchange, which withdraws the step. */
static void test_nan_is_not_hidden(void **state)
{
    (void)state;
    struct fixture *fixture = fixture_create(&all_sizes[0]);
    fixture->check.tensors[2].values[0] = NAN;
    assert_true(isnan(model_forward(fixture->check.model, &fixture->batch).loss));
    model_backward(fixture->check.model, 1, fixture->check.gradients, NULL, NULL);
    assert_true(isnan(fixture->check.gradients[0][fixture->contexts[0] * 3]));
    fixture_destroy(fixture);
}

/* --- the text --------------------------------------------------------------------------------- */

static int read_text(struct corpus *corpus, const char *text, size_t size, size_t context,
    char error[CORPUS_ERROR_SIZE])
{
    FILE *stream = checked(tmpfile());
    assert_int_equal(fwrite(text, 1, size, stream), size);
    rewind(stream);
    error[0] = '\0';
    const int result = corpus_read(corpus, stream, "test.txt", context, error);
    fclose(stream);
    return result;
}

/* Twenty-five lines, line i of i % 4 letters: some are empty. */
static size_t write_lines(char *text)
{
    size_t size = 0;
    for (size_t line = 0; line < 25; line++) {
        for (size_t i = 0; i < line % 4; i++)
            text[size++] = (char)('a' + (line + i) % 26);
        text[size++] = '\n';
    }
    return size;
}

static void check_part(const struct corpus *corpus, const char *text, const size_t *positions,
    size_t count, int held_out)
{
    size_t line = 0, next = 0;
    for (size_t i = 0; i < corpus->length; i++) {
        if ((line % 10 == 9) == held_out) {
            assert_true(next < count);
            assert_int_equal(positions[next++], i);
        }
        line += text[i] == '\n';
    }
    assert_int_equal(next, count);
}

static void test_text_is_split_and_numbered(void **state)
{
    (void)state;
    char text[256], error[CORPUS_ERROR_SIZE];
    const size_t size = write_lines(text);
    for (size_t cut = 0; cut < 2; cut++) { /* the last line may end with the file */
        struct corpus corpus;
        assert_int_equal(read_text(&corpus, text, size - cut, 3, error), 0);
        assert_int_equal(corpus.length, size - cut);
        for (size_t i = 0; i < corpus.length; i++)
            assert_int_equal(corpus.bytes[corpus.text[i]], text[i]);
        for (size_t i = 1; i < corpus.symbols; i++)
            assert_true(corpus.bytes[i - 1] < corpus.bytes[i]);
        for (size_t i = 1; i <= 3; i++)
            assert_int_equal(corpus.bytes[*(corpus.text - i)], '\n');
        check_part(&corpus, text, corpus.train, corpus.train_count, 0);
        check_part(&corpus, text, corpus.test, corpus.test_count, 1);
        corpus_free(&corpus);
        assert_null(corpus.memory);
    }
}

static void assert_refused(const char *text, size_t size, const char *expected)
{
    char error[CORPUS_ERROR_SIZE];
    struct corpus corpus;
    assert_int_equal(read_text(&corpus, text, size, 16, error), -1);
    if (!strstr(error, expected))
        fail_msg("got '%s', expected '%s'", error, expected);
    assert_null(corpus.memory);
    assert_null(corpus.train);
    assert_int_equal(corpus.length, 0);
}

static void test_bad_texts_are_named(void **state)
{
    (void)state;
    assert_refused("", 0, "test.txt: the file ends in line 1, expected at least 10");
    assert_refused("x", 1, "the file ends in line 1, expected at least 10");
    assert_refused("\n\n\n\n\n\n\n\n\n", 9, "the file ends in line 10, expected at least 10");
    assert_refused("a\nbc\x01", 5, "test.txt: line 2, column 3: unexpected byte 0x01");
    assert_refused("a\r\n", 3, "line 1, column 2: unexpected byte 0x0d");
    assert_refused("a\x7f", 2, "line 1, column 2: unexpected byte 0x7f");
    assert_refused("a\n\0", 3, "line 2, column 1: unexpected byte 0x00");
    assert_refused("\x1f\x8b\x08\n", 4, "not text; if the file is compressed, gunzip it first");
}

static void test_load_errors(void **state)
{
    (void)state;
    char error[CORPUS_ERROR_SIZE];
    struct corpus corpus;
    assert_int_equal(corpus_load(&corpus, "/nonexistent/a.txt", 1, error), -1);
    assert_non_null(strstr(error, "/nonexistent/a.txt: cannot open: No such file"));
    assert_int_equal(corpus_load(&corpus, "/", 1, error), -1);
    assert_non_null(strstr(error, "/: cannot read: Is a directory"));
    assert_int_equal(corpus_load(&corpus, "/dev/zero", 1, error), -1);
    assert_non_null(strstr(error, "/dev/zero: larger than 64 MiB"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_forward_matches_reference),
        cmocka_unit_test(test_backward_matches_finite_differences),
        cmocka_unit_test(test_announcements),
        cmocka_unit_test(test_nan_is_not_hidden),
        cmocka_unit_test(test_text_is_split_and_numbered),
        cmocka_unit_test(test_bad_texts_are_named),
        cmocka_unit_test(test_load_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
