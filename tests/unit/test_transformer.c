/* The transformer example: the network against finite differences of a plain forward pass in double
 * precision, the causal mask, training, and the windows over the text. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/exponential.h"
#include "common/optimiser.h"
#include "model.h"
#include "tests/unit/model_check.h"
#include "windows.h"

enum { EXAMPLES = 3, MAX_CONTEXT = 20, MAX_WIDTH = 12, MAX_SYMBOLS = 19 };

struct fixture {
    struct model_check check;
    struct model_sizes sizes;
    uint8_t symbols[EXAMPLES * (MAX_CONTEXT + 1)];
    size_t scored[EXAMPLES];
    struct model_batch batch;
};

/* --- the plain network ------------------------------------------------------------------------ */

static void reference_linear(
    double *const *p, size_t inputs, size_t outputs, const double *in, double *out)
{
    for (size_t o = 0; o < outputs; o++) {
        out[o] = p[1][o];
        for (size_t i = 0; i < inputs; i++)
            out[o] += p[0][o * inputs + i] * in[i];
    }
}

static void reference_norm(double *const *p, size_t width, const double *in, double *out)
{
    double mean = 0, variance = 0;
    for (size_t i = 0; i < width; i++)
        mean += in[i] / (double)width;
    for (size_t i = 0; i < width; i++)
        variance += (in[i] - mean) * (in[i] - mean) / (double)width;
    for (size_t i = 0; i < width; i++)
        out[i] = (1 + p[0][i]) * (in[i] - mean) / sqrt(variance + 1e-5) + p[1][i];
}

static double reference_gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
}

/* Position i's values, mixed by its attention to positions 0 to i. */
static void reference_attend(
    const struct model_sizes *sizes, double (*qkv)[3 * MAX_WIDTH], size_t i, double *mixed)
{
    const size_t width = sizes->width, size = width / sizes->heads;
    for (size_t c = 0; c < width; c++) {
        const size_t head = c / size * size;
        double sum = 0, product = 0;
        for (size_t j = 0; j <= i; j++) {
            double score = 0;
            for (size_t k = head; k < head + size; k++)
                score += qkv[i][k] * qkv[j][width + k];
            const double weight = exp(score / sqrt((double)size));
            sum += weight;
            product += weight * qkv[j][2 * width + c];
        }
        mixed[c] = product / sum;
    }
}

static void reference_block(
    const struct model_sizes *sizes, double *const *p, double (*stream)[MAX_WIDTH])
{
    const size_t width = sizes->width;
    static double qkv[MAX_CONTEXT][3 * MAX_WIDTH];
    double in[MAX_WIDTH], out[MAX_WIDTH], wide[4 * MAX_WIDTH];
    for (size_t i = 0; i < sizes->context; i++) {
        reference_norm(p + BLOCK_NORM1_SCALE, width, stream[i], in);
        reference_linear(p + BLOCK_QKV, width, 3 * width, in, qkv[i]);
    }
    for (size_t i = 0; i < sizes->context; i++) {
        reference_attend(sizes, qkv, i, in);
        reference_linear(p + BLOCK_MIX, width, width, in, out);
        for (size_t c = 0; c < width; c++)
            stream[i][c] += out[c];
        reference_norm(p + BLOCK_NORM2_SCALE, width, stream[i], in);
        reference_linear(p + BLOCK_EXPAND, width, 4 * width, in, wide);
        for (size_t c = 0; c < 4 * width; c++)
            wide[c] = reference_gelu(wide[c]);
        reference_linear(p + BLOCK_CONTRACT, 4 * width, width, wide, out);
        for (size_t c = 0; c < width; c++)
            stream[i][c] += out[c];
    }
}

static void reference_logits(
    const struct fixture *fixture, const uint8_t *symbols, double (*logits)[MAX_SYMBOLS])
{
    const struct model_sizes *sizes = &fixture->sizes;
    double *const *p = fixture->check.parameters;
    static double stream[MAX_CONTEXT][MAX_WIDTH];
    const size_t width = sizes->width;
    for (size_t i = 0; i < sizes->context; i++)
        for (size_t c = 0; c < width; c++)
            stream[i][c] = p[0][symbols[i] * width + c] + p[1][i * width + c];
    p += 2;
    for (size_t l = 0; l < sizes->layers; l++, p += BLOCK_TENSORS)
        reference_block(sizes, p, stream);
    for (size_t i = 0; i < sizes->context; i++) {
        double out[MAX_WIDTH];
        reference_norm(p, width, stream[i], out);
        reference_linear(p + 2, width, sizes->symbols, out, logits[i]);
    }
}

static double reference_loss(const void *of)
{
    const struct fixture *fixture = of;
    const struct model_batch *batch = &fixture->batch;
    static double logits[MAX_CONTEXT][MAX_SYMBOLS];
    double loss = 0;
    for (size_t n = 0; n < batch->count; n++) {
        const uint8_t *symbols = batch->symbols + n * (fixture->sizes.context + 1);
        reference_logits(fixture, symbols, logits);
        for (size_t i = 0; i < batch->scored[n]; i++) {
            double sum = 0;
            for (size_t c = 0; c < fixture->sizes.symbols; c++)
                sum += exp(logits[i][c]);
            loss += log(sum) - logits[i][symbols[i + 1]];
        }
    }
    return loss;
}

/* --- a model with a batch --------------------------------------------------------------------- */

static const struct model_sizes all_sizes[] = {
    {.symbols = 7, .context = 5, .width = 6, .layers = 1, .heads = 2},
    {.symbols = 2, .context = 1, .width = 4, .layers = 2, .heads = 4},
    {.symbols = MAX_SYMBOLS, .context = MAX_CONTEXT, .width = MAX_WIDTH, .layers = 2, .heads = 1},
};
enum { SIZES = sizeof all_sizes / sizeof all_sizes[0] };

/* The last example is scored in part. */
static struct fixture *fixture_create(const struct model_sizes *sizes)
{
    struct fixture *fixture = checked(calloc(1, sizeof *fixture));
    struct random random;
    model_check_begin(&fixture->check, model_create(sizes, EXAMPLES), 5, &random);
    fixture->sizes = *sizes;
    for (size_t i = 0; i < EXAMPLES * (sizes->context + 1); i++)
        fixture->symbols[i] = (uint8_t)(random_next(&random) % sizes->symbols);
    for (size_t n = 0; n < EXAMPLES; n++)
        fixture->scored[n] = n + 1 < EXAMPLES ? sizes->context : (sizes->context + 1) / 2;
    fixture->batch = (struct model_batch){fixture->symbols, fixture->scored, EXAMPLES};
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
    const struct model_sizes usual = {
        .symbols = 62, .context = 64, .width = 96, .layers = 2, .heads = 4};
    size_t count = 0, elements = 0;
    struct model *model = checked(model_create(&usual, 1));
    const struct tensor *tensors = model_tensors(model, &count);
    assert_int_equal(count, 2 + 2 * 12 + 4);
    for (size_t t = 0; t < count; t++) {
        elements += tensor_size(&tensors[t]);
        for (size_t other = 0; other < t; other++)
            assert_string_not_equal(tensors[t].name, tensors[other].name);
    }
    assert_int_equal(elements, 241982);
    assert_string_equal(tensors[2 + 12 + BLOCK_QKV].name, "block2.qkv.weight");
    assert_string_equal(tensors[count - 1].name, "output.bias");
    model_destroy(model);
}

static void test_forward_matches_reference(void **state)
{
    (void)state;
    for (size_t s = 0; s < SIZES; s++) {
        struct fixture *fixture = fixture_create(&all_sizes[s]);
        const struct score score = model_forward(fixture->check.model, &fixture->batch);
        size_t correct = 0, predictions = 0;
        for (size_t n = 0; n < EXAMPLES; n++) {
            static double logits[MAX_CONTEXT][MAX_SYMBOLS];
            const uint8_t *symbols = fixture->symbols + n * (all_sizes[s].context + 1);
            reference_logits(fixture, symbols, logits);
            for (size_t i = 0; i < fixture->scored[n]; i++) {
                size_t best = 0;
                for (size_t c = 1; c < all_sizes[s].symbols; c++)
                    best = logits[i][c] > logits[i][best] ? c : best;
                correct += best == symbols[i + 1];
                predictions++;
            }
        }
        assert_close(score.loss, reference_loss(fixture), 1e-4);
        assert_int_equal(score.correct, correct);
        assert_int_equal(score.predictions, predictions);
        fixture_destroy(fixture);
    }
}

static void test_backward_matches_finite_differences(void **state)
{
    (void)state;
    const struct model_check_bounds bounds = {
        .scale = 0.5, .nudge = 1e-5, .relative = 3e-5, .absolute = 1e-6, .elements = 40};
    for (size_t s = 0; s < SIZES; s++) {
        struct fixture *fixture = fixture_create(&all_sizes[s]);
        struct model_check *check = &fixture->check;
        const float scale = 0.5f * (float)all_sizes[s].context;
        model_forward(check->model, &fixture->batch);
        assert_int_equal(model_backward(check->model, scale, check->gradients, NULL, NULL), 0);
        model_check_gradients(check, &bounds, reference_loss, fixture);
        fixture_destroy(fixture);
    }
}

static void test_announcements(void **state)
{
    (void)state;
    const size_t order[] = {17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0};
    struct fixture *fixture = fixture_create(&all_sizes[0]);
    assert_int_equal(fixture->check.count, sizeof order / sizeof order[0]);
    model_check_announcements(&fixture->check, &fixture->batch, order);
    fixture_destroy(fixture);
}

/* A character changes no prediction before its own. It changes the one after it. */
static void test_later_characters_are_not_seen(void **state)
{
    (void)state;
    struct fixture *fixture = fixture_create(&all_sizes[2]);
    const size_t context = fixture->sizes.context;
    for (size_t changed = 2; changed < context; changed++) {
        fixture->batch.count = 1;
        fixture->scored[0] = changed - 1; /* predicts characters 1 to changed - 1 */
        const double before = model_forward(fixture->check.model, &fixture->batch).loss;
        fixture->scored[0] = changed + 1;
        const double with = model_forward(fixture->check.model, &fixture->batch).loss;
        uint8_t *symbol = &fixture->symbols[changed];
        *symbol = (uint8_t)((*symbol + 1) % fixture->sizes.symbols);
        fixture->scored[0] = changed - 1;
        assert_true(model_forward(fixture->check.model, &fixture->batch).loss == before);
        fixture->scored[0] = changed + 1;
        assert_true(model_forward(fixture->check.model, &fixture->batch).loss != with);
    }
    fixture_destroy(fixture);
}

/* A gradient that is not finite must reach the exchange, which withdraws the step. */
static void test_nan_is_not_hidden(void **state)
{
    (void)state;
    for (size_t t = 2; t < 2 + BLOCK_TENSORS; t++) {
        struct fixture *fixture = fixture_create(&all_sizes[0]);
        fixture->check.tensors[t].values[0] = NAN;
        assert_true(isnan(model_forward(fixture->check.model, &fixture->batch).loss));
        model_backward(fixture->check.model, 1, fixture->check.gradients, NULL, NULL);
        assert_true(isnan(fixture->check.gradients[0][fixture->symbols[0] * fixture->sizes.width]));
        fixture_destroy(fixture);
    }
}

static void test_training_learns(void **state)
{
    (void)state;
    struct fixture *fixture = fixture_create(&all_sizes[2]);
    const struct optimiser_options options = {
        .kind = OPTIMISER_ADAMW, .lr = 0.01f, .warmup = 5, .steps = 150};
    struct optimiser *optimiser =
        checked(optimiser_create(&options, fixture->check.tensors, fixture->check.count));
    const double before = model_forward(fixture->check.model, &fixture->batch).loss;
    for (uint64_t step = 0; step < options.steps; step++) {
        model_forward(fixture->check.model, &fixture->batch);
        model_backward(fixture->check.model, 1.0f / EXAMPLES, fixture->check.gradients, NULL, NULL);
        for (size_t t = 0; t < fixture->check.count; t++)
            optimiser_apply(optimiser, t, fixture->check.tensors[t].values,
                fixture->check.gradients[t], optimiser_rate(&options, step));
    }
    assert_true(model_forward(fixture->check.model, &fixture->batch).loss < 0.1 * before);
    optimiser_destroy(optimiser);
    fixture_destroy(fixture);
}

static void test_exponential_matches_libm(void **state)
{
    (void)state;
    for (int i = -87000; i <= 88000; i += 7) {
        const float x = (float)i / 1000;
        assert_close(exponential(x) / exp((double)x), 1, 3e-7);
    }
    assert_true(exponential(0) == 1);
    assert_true(exponential(-INFINITY) == exponential(-87));
    assert_true(exponential(INFINITY) == exponential(88));
    assert_true(isnan(exponential(NAN)));
}

/* --- the windows ------------------------------------------------------------------------------ */

static void check_windows(
    const struct windows *windows, const struct window *expected, size_t count)
{
    assert_int_equal(windows->count, count);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(windows->list[i].start, expected[i].start);
        assert_int_equal(windows->list[i].scored, expected[i].scored);
    }
}

static void test_windows(void **state)
{
    (void)state;
    const size_t positions[] = {0, 1, 2, 3, 4, 10, 11, 20, 30, 31, 32, 33};
    const size_t count = sizeof positions / sizeof positions[0];
    const struct window to_train[] = {{0, 3}, {1, 3}, {2, 3}, {30, 3}, {31, 3}};
    const struct window to_test[] = {{0, 3}, {3, 2}, {10, 2}, {20, 1}, {30, 3}, {33, 1}};
    struct windows windows;

    assert_int_equal(windows_to_train(&windows, positions, count, 3), 0);
    check_windows(&windows, to_train, 5);
    windows_free(&windows);
    assert_int_equal(windows_to_test(&windows, positions, count, 3), 0);
    check_windows(&windows, to_test, 6);
    windows_free(&windows);
    assert_int_equal(windows_to_train(&windows, positions, count, 6), 0);
    check_windows(&windows, NULL, 0);
    windows_free(&windows);
    assert_int_equal(windows_to_train(&windows, positions, count, 100), 0);
    check_windows(&windows, NULL, 0);
    windows_free(&windows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_forward_matches_reference),
        cmocka_unit_test(test_backward_matches_finite_differences),
        cmocka_unit_test(test_announcements),
        cmocka_unit_test(test_later_characters_are_not_seen),
        cmocka_unit_test(test_nan_is_not_hidden),
        cmocka_unit_test(test_training_learns),
        cmocka_unit_test(test_exponential_matches_libm),
        cmocka_unit_test(test_windows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
