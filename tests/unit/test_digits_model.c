/* The digits example: the network against finite differences of a plain forward pass in double
 * precision, and the optimiser. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/gemm.h"
#include "common/optimiser.h"
#include "model.h"
#include "tests/unit/model_check.h"

enum { EXAMPLES = 3, LARGEST_TENSOR = 131072 };

struct fixture {
    struct model_check check;
    struct model_batch batch;
    float images[EXAMPLES * MODEL_PIXELS];
    uint8_t labels[EXAMPLES];
};

/* --- the plain network ------------------------------------------------------------------------ */

enum { TENSORS = 8 }; /* without batch normalisation */

/* input[channels][side][side] -> output[outputs][side][side] */
static void reference_convolution(
    const double *weight, int outputs, int channels, int side, const double *input, double *output)
{
    for (int o = 0; o < outputs; o++)
        for (int y = 0; y < side; y++)
            for (int x = 0; x < side; x++) {
                double sum = 0;
                for (int i = 0; i < channels; i++)
                    for (int ky = 0; ky < 3; ky++)
                        for (int kx = 0; kx < 3; kx++) {
                            const int iy = y + ky - 1, ix = x + kx - 1;
                            if (iy < 0 || iy >= side || ix < 0 || ix >= side)
                                continue;
                            sum += weight[((o * channels + i) * 3 + ky) * 3 + kx] *
                                   input[(i * side + iy) * side + ix];
                        }
                output[(o * side + y) * side + x] = sum;
            }
}

/* On values[count][channels][pixels]: normalises the channels if there is a scale, adds the bias,
 * applies ReLU. */
static void reference_activate(const double *scale, const double *bias, size_t count,
    size_t channels, size_t pixels, double *values)
{
    for (size_t c = 0; c < channels; c++) {
        double mean = 0, variance = 0;
        for (size_t n = 0; n < count; n++)
            for (size_t i = 0; i < pixels; i++)
                mean += values[(n * channels + c) * pixels + i] / (double)(count * pixels);
        for (size_t n = 0; n < count; n++)
            for (size_t i = 0; i < pixels; i++)
                variance += pow(values[(n * channels + c) * pixels + i] - mean, 2) /
                            (double)(count * pixels);
        const double factor = scale ? (1 + scale[c]) / sqrt(variance + 1e-5) : 1;
        for (size_t n = 0; n < count; n++)
            for (size_t i = 0; i < pixels; i++) {
                double *value = &values[(n * channels + c) * pixels + i];
                *value = fmax((*value - (scale ? mean : 0)) * factor + bias[c], 0);
            }
    }
}

static void reference_linear(double *const *p, const double *conv2, double *logits)
{
    double hidden[128];
    for (int h = 0; h < 128; h++) {
        double sum = p[5][h];
        for (int pixel = 0; pixel < 16; pixel++)
            for (int c = 0; c < 64; c++)
                sum += p[4][h * 1024 + pixel * 64 + c] * conv2[c * 16 + pixel];
        hidden[h] = fmax(sum, 0);
    }
    for (int o = 0; o < 10; o++) {
        logits[o] = p[7][o];
        for (int h = 0; h < 128; h++)
            logits[o] += p[6][o * 128 + h] * hidden[h];
    }
}

static void reference_logits(const struct fixture *fixture, double (*logits)[10])
{
    const struct model_batch *batch = &fixture->batch;
    double *const *p = fixture->check.parameters;
    const int norm = fixture->check.count > TENSORS;
    static double conv1[EXAMPLES][32 * 64], conv2[EXAMPLES][64 * 16];

    for (size_t n = 0; n < batch->count; n++) {
        double input[64];
        for (int i = 0; i < 64; i++)
            input[i] = batch->images[n * 64 + (size_t)i];
        reference_convolution(p[0], 32, 1, 8, input, conv1[n]);
    }
    reference_activate(norm ? p[8] : NULL, p[1], batch->count, 32, 64, conv1[0]);
    for (size_t n = 0; n < batch->count; n++) {
        double pooled[32 * 16];
        for (int c = 0; c < 32; c++)
            for (int y = 0; y < 4; y++)
                for (int x = 0; x < 4; x++) {
                    const double *at = conv1[n] + c * 64 + 2 * y * 8 + 2 * x;
                    pooled[c * 16 + y * 4 + x] = fmax(fmax(at[0], at[1]), fmax(at[8], at[9]));
                }
        reference_convolution(p[2], 64, 32, 4, pooled, conv2[n]);
    }
    reference_activate(norm ? p[9] : NULL, p[3], batch->count, 64, 16, conv2[0]);
    for (size_t n = 0; n < batch->count; n++)
        reference_linear(p, conv2[n], logits[n]);
}

static double reference_loss(const void *of)
{
    const struct fixture *fixture = of;
    const struct model_batch *batch = &fixture->batch;
    double loss = 0, logits[EXAMPLES][10];
    reference_logits(fixture, logits);
    for (size_t n = 0; n < batch->count; n++) {
        double sum = 0;
        for (int c = 0; c < 10; c++)
            sum += exp(logits[n][c]);
        loss += log(sum) - logits[n][batch->labels[n]];
    }
    return loss;
}

/* --- a model with a batch --------------------------------------------------------------------- */

static void fixture_draw_batch(struct fixture *fixture, struct random *random)
{
    for (size_t i = 0; i < EXAMPLES * MODEL_PIXELS; i++)
        fixture->images[i] = fabsf(random_symmetric(random, 1));
    for (size_t n = 0; n < EXAMPLES; n++)
        fixture->labels[n] = (uint8_t)(random_next(random) % MODEL_CLASSES);
}

static void fixture_randomise(struct fixture *fixture, uint64_t seed)
{
    struct random random;
    model_check_draw(&fixture->check, seed, &random);
    fixture_draw_batch(fixture, &random);
}

static struct fixture *fixture_create(int batch_norm)
{
    struct fixture *fixture = checked(calloc(1, sizeof *fixture));
    struct random random;
    model_check_begin(&fixture->check, model_create(EXAMPLES, batch_norm), 7, &random);
    fixture->batch = (struct model_batch){fixture->images, fixture->labels, EXAMPLES, 1};
    fixture_draw_batch(fixture, &random);
    return fixture;
}

static int fixture_setup(void **state)
{
    *state = fixture_create(0);
    return 0;
}

static int fixture_setup_norm(void **state)
{
    *state = fixture_create(1);
    return 0;
}

static int fixture_teardown(void **state)
{
    struct fixture *fixture = *state;
    model_check_end(&fixture->check);
    free(fixture);
    return 0;
}

static void test_tensors(void **state)
{
    struct fixture *fixture = *state;
    const struct tensor *tensors = fixture->check.tensors;
    const size_t sizes[] = {288, 32, 18432, 64, LARGEST_TENSOR, 128, 1280, 10, 32, 64};
    assert_int_equal(fixture->check.count, MODEL_MAX_TENSORS);
    for (size_t t = 0; t < fixture->check.count; t++)
        assert_int_equal(tensor_size(&tensors[t]), sizes[t]);
    assert_string_equal(tensors[2].name, "conv2.weight");
    assert_int_equal(tensors[2].dims, 4);
    assert_int_equal(tensors[2].shape[1], 32);
}

static void test_forward_matches_reference(void **state)
{
    struct fixture *fixture = *state;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        fixture_randomise(fixture, seed);
        const struct score score = model_forward(fixture->check.model, &fixture->batch);
        size_t correct = 0;
        double logits[EXAMPLES][10];
        reference_logits(fixture, logits);
        for (size_t n = 0; n < EXAMPLES; n++) {
            int best = 0;
            for (int c = 1; c < 10; c++)
                best = logits[n][c] > logits[n][best] ? c : best;
            correct += best == fixture->labels[n];
        }
        assert_close(score.loss, reference_loss(fixture), 1e-4);
        assert_int_equal(score.correct, correct);
    }
}

static void test_backward_matches_finite_differences(void **state)
{
    struct fixture *fixture = *state;
    struct model_check *check = &fixture->check;
    const struct model_check_bounds bounds = {
        .scale = 0.5, .nudge = 1e-6, .relative = 2e-5, .absolute = 1e-7, .elements = 40};

    model_forward(check->model, &fixture->batch);
    assert_int_equal(model_backward(check->model, 0.5f, check->gradients, NULL, NULL), 0);
    model_check_gradients(check, &bounds, reference_loss, fixture);
}

static void test_announcements(void **state)
{
    struct fixture *fixture = *state;
    const size_t plain[] = {7, 6, 5, 4, 3, 2, 1, 0}, normed[] = {7, 6, 5, 4, 3, 9, 2, 1, 8, 0};

    model_check_announcements(
        &fixture->check, &fixture->batch, fixture->check.count > TENSORS ? normed : plain);
}

/* A gradient that is not finite must reach the exchange, which withdraws the step. */
static void test_nan_is_not_hidden(void **state)
{
    struct fixture *fixture = *state;
    fixture->check.tensors[1].values[0] = NAN;
    const struct score score = model_forward(fixture->check.model, &fixture->batch);
    assert_true(isnan(score.loss));
    model_backward(fixture->check.model, 1, fixture->check.gradients, NULL, NULL);
    assert_true(isnan(fixture->check.gradients[7][0]));
    assert_true(isnan(fixture->check.gradients[0][0]));
}

/* --- the same computation for any number of ranks --------------------------------------------- */

static void test_ranks_add_up(void **state)
{
    struct fixture *fixture = *state;
    double *sum = checked(calloc(LARGEST_TENSOR, sizeof *sum));
    float *whole[TENSORS];

    for (size_t t = 0; t < TENSORS; t++)
        whole[t] = checked(malloc(tensor_size(&fixture->check.tensors[t]) * sizeof(float)));
    model_forward(fixture->check.model, &fixture->batch);
    model_backward(fixture->check.model, 1.0f / EXAMPLES, whole, NULL, NULL);

    /* Two ranks with one and two examples; the mean of their scaled gradients. */
    for (size_t t = 0; t < TENSORS; t++) {
        const size_t size = tensor_size(&fixture->check.tensors[t]);
        memset(sum, 0, size * sizeof *sum);
        for (size_t rank = 0; rank < 2; rank++) {
            const size_t begin = EXAMPLES * rank / 2, end = EXAMPLES * (rank + 1) / 2;
            const struct model_batch part = {
                fixture->images + begin * MODEL_PIXELS, fixture->labels + begin, end - begin, 1};
            model_forward(fixture->check.model, &part);
            model_backward(
                fixture->check.model, 2.0f / EXAMPLES, fixture->check.gradients, NULL, NULL);
            for (size_t i = 0; i < size; i++)
                sum[i] += fixture->check.gradients[t][i] / 2.0;
        }
        const double most = largest(whole[t], size);
        for (size_t i = 0; i < size; i++)
            assert_close(whole[t][i], sum[i], 1e-5 * most);
    }
    for (size_t t = 0; t < TENSORS; t++)
        free(whole[t]);
    free(sum);
}

static void test_seed_decides_parameters(void **state)
{
    struct fixture *fixture = *state;
    tensors_init(fixture->check.tensors, fixture->check.count, 5);
    const uint64_t first = tensors_hash(fixture->check.tensors, fixture->check.count);
    tensors_init(fixture->check.tensors, fixture->check.count, 6);
    assert_true(tensors_hash(fixture->check.tensors, fixture->check.count) != first);
    tensors_init(fixture->check.tensors, fixture->check.count, 5);
    assert_true(tensors_hash(fixture->check.tensors, fixture->check.count) == first);
    fixture->check.tensors[7].values[9] = -0.0f;
    assert_true(tensors_hash(fixture->check.tensors, fixture->check.count) != first);
    assert_true(largest(fixture->check.tensors[4].values, LARGEST_TENSOR) <= sqrt(6.0 / 1024));
    assert_true(
        largest(fixture->check.tensors[4].values, LARGEST_TENSOR) > 0.99 * sqrt(6.0 / 1024));
    assert_null(model_create(0, 0));
    assert_null(model_create(SIZE_MAX, 1));
}

static void test_training_learns(void **state)
{
    struct fixture *fixture = *state;
    const struct optimiser_options options = {
        .lr = 0.02f, .momentum = 0.9f, .weight_decay = 1e-4f, .warmup = 5, .steps = 60};
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
    const struct score after = model_forward(fixture->check.model, &fixture->batch);
    assert_true(after.loss < 0.05 * before);
    assert_int_equal(after.correct, EXAMPLES);
    optimiser_destroy(optimiser);
}

/* --- batch normalisation ---------------------------------------------------------------------- */

/* Tests use the averages of the first batch only, so they see the values that training saw. */
static void test_averages_serve_tests(void **state)
{
    struct fixture *fixture = *state;
    struct model_batch test = fixture->batch;
    size_t count = 0;
    const float *averages = model_statistics(fixture->check.model, &count);
    test.training = 0;
    assert_int_equal(count, 2 * (32 + 64));

    const double first = model_forward(fixture->check.model, &fixture->batch).loss;
    assert_close(model_forward(fixture->check.model, &test).loss, first, 1e-4);
    const float mean = averages[3], variance = averages[32 + 3];
    assert_true(variance > 0);

    fixture_randomise(fixture, 8); /* the second batch counts half */
    model_forward(fixture->check.model, &fixture->batch);
    const float both[] = {averages[3], averages[32 + 3]};
    for (int batch = 3; batch <= 400; batch++)
        model_forward(fixture->check.model, &fixture->batch);
    assert_close(both[0], (mean + averages[3]) / 2, 1e-5);
    assert_close(both[1], (variance + averages[32 + 3]) / 2, 1e-5);
    assert_close(model_forward(fixture->check.model, &test).loss,
        model_forward(fixture->check.model, &fixture->batch).loss, 1e-3);
}

/* A withdrawn step changes no average. */
static void test_averages_stay_finite(void **state)
{
    struct fixture *fixture = *state;
    size_t count = 0;
    const float *averages = model_statistics(fixture->check.model, &count);
    model_forward(fixture->check.model, &fixture->batch);
    fixture->images[5] = NAN;
    assert_true(isnan(model_forward(fixture->check.model, &fixture->batch).loss));
    for (size_t i = 0; i < count; i++)
        assert_true(isfinite(averages[i]));
}

static void test_no_averages(void **state)
{
    struct fixture *fixture = *state;
    size_t count = 1;
    model_statistics(fixture->check.model, &count);
    assert_int_equal(count, 0);
}

/* --- the optimiser ---------------------------------------------------------------------------- */

static void check_sgd(struct fixture *fixture, int corrected)
{
    const struct optimiser_options options = {.lr = 0.1f,
        .momentum = 0.9f,
        .corrected = corrected,
        .weight_decay = 0.01f,
        .warmup = 4,
        .steps = 20};
    struct optimiser *optimiser =
        checked(optimiser_create(&options, fixture->check.tensors, fixture->check.count));
    struct random random = random_start(9, 0);

    for (size_t t = 6; t < TENSORS; t++) { /* a weight and a bias */
        double parameter = fixture->check.tensors[t].values[3], velocity = 0;
        const double decay = t != 6 ? 0 : corrected ? 0.1 : 0.01;
        for (uint64_t step = 0; step < options.steps; step++) {
            const double rate =
                step < 4 ? 0.1 * (double)(step + 1) / 4 : 0.1 * (double)(20 - step) / 16;
            assert_close(optimiser_rate(&options, step), rate, 1e-8);
            fixture->check.gradients[t][3] = random_symmetric(&random, 1);
            velocity = (corrected ? 0 : 0.9) * velocity + fixture->check.gradients[t][3] +
                       decay * parameter;
            parameter -= rate * velocity;
            optimiser_apply(optimiser, t, fixture->check.tensors[t].values,
                fixture->check.gradients[t], optimiser_rate(&options, step));
            assert_close(fixture->check.tensors[t].values[3], parameter, 1e-5);
        }
    }
    assert_close(optimiser_rate(&options, 20), 0, 0);
    optimiser_destroy(optimiser);
}

static void test_sgd_matches_reference(void **state)
{
    check_sgd(*state, 0);
    check_sgd(*state, 1);
}

static void test_adamw_matches_reference(void **state)
{
    struct fixture *fixture = *state;
    const struct optimiser_options options = {
        .kind = OPTIMISER_ADAMW, .lr = 0.1f, .weight_decay = 0.01f, .warmup = 4, .steps = 20};
    struct optimiser *optimiser =
        checked(optimiser_create(&options, fixture->check.tensors, fixture->check.count));
    struct random random = random_start(9, 0);

    for (size_t t = 6; t < TENSORS; t++) { /* a weight and a bias */
        double parameter = fixture->check.tensors[t].values[3], first = 0, second = 0;
        for (uint64_t step = 0; step < options.steps; step++) {
            const float rate = optimiser_rate(&options, step);
            const double update = random_symmetric(&random, 1), n = (double)step + 1;
            fixture->check.gradients[t][3] = (float)update;
            first = 0.9 * first + 0.1 * update;
            second = 0.999 * second + 0.001 * update * update;
            parameter -= (double)rate *
                         (first / (1 - pow(0.9, n)) / (sqrt(second / (1 - pow(0.999, n))) + 1e-8) +
                             (t != 6 ? 0 : 0.01) * parameter);
            optimiser_apply(
                optimiser, t, fixture->check.tensors[t].values, fixture->check.gradients[t], rate);
            assert_close(fixture->check.tensors[t].values[3], parameter, 1e-4);
            const struct optimiser_reach reach = optimiser_reach(optimiser, t, rate);
            assert_close(
                reach.second_moment[3] / reach.correction, second / (1 - pow(0.999, n)), 1e-4);
        }
    }
    optimiser_destroy(optimiser);
}

/* Shapes around the blocks' edges, and transposed matrices, bit by bit: each sum is in order. */
static void test_gemm_matches_reference(void **state)
{
    (void)state;
    enum { M = 11, N = 35, K = 513 };
    static float a[M * K], b[K * N], c[M * N], expected[M * N];
    static const size_t depths[] = {0, 1, 13, 256, K};
    struct random random = random_start(4, 0);
    for (size_t i = 0; i < K * N; i++)
        b[i] = random_symmetric(&random, 1);
    for (size_t i = 0; i < M * K; i++)
        a[i] = random_symmetric(&random, 1);

    for (size_t m = 0; m <= M; m++)
        for (size_t n = 0; n <= N; n++)
            for (size_t turned = 0; turned < 4; turned++) {
                const size_t k = depths[(m + n) % (sizeof depths / sizeof depths[0])];
                const struct gemm_matrix left = {a, turned & 1 ? 1 : k, turned & 1 ? m : 1};
                const struct gemm_matrix right = {b, turned & 2 ? 1 : n, turned & 2 ? k : 1};
                for (size_t i = 0; i < M * N; i++) {
                    expected[i] = c[i] = random_symmetric(&random, 1);
                    for (size_t p = 0; i < m * n && p < k; p++)
                        expected[i] += a[i / n * left.row + p * left.col] *
                                       b[p * right.row + i % n * right.col];
                }
                gemm_add(m, n, k, left, right, c);
                assert_memory_equal(c, expected, sizeof c);
            }
}

#define WITH_MODEL(test) cmocka_unit_test_setup_teardown(test, fixture_setup, fixture_teardown)
#define WITH_NORM(test) cmocka_unit_test_setup_teardown(test, fixture_setup_norm, fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_NORM(test_tensors),
        WITH_NORM(test_averages_serve_tests),
        WITH_NORM(test_averages_stay_finite),
        WITH_MODEL(test_no_averages),
        cmocka_unit_test(test_gemm_matches_reference),
        WITH_MODEL(test_forward_matches_reference),
        WITH_NORM(test_forward_matches_reference),
        WITH_MODEL(test_backward_matches_finite_differences),
        WITH_NORM(test_backward_matches_finite_differences),
        WITH_MODEL(test_announcements),
        WITH_NORM(test_announcements),
        WITH_MODEL(test_nan_is_not_hidden),
        WITH_NORM(test_nan_is_not_hidden),
        WITH_MODEL(test_ranks_add_up),
        WITH_MODEL(test_seed_decides_parameters),
        WITH_MODEL(test_training_learns),
        WITH_NORM(test_training_learns),
        WITH_MODEL(test_sgd_matches_reference),
        WITH_MODEL(test_adamw_matches_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
