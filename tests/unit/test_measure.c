/* The study's measures of one step, against plain sums over all indices of the tensor. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/random.h"
#include "tests/bench/convergence/measure.h"

enum { ELEMENTS = 5 * 7 * 3 * 2, FIBRES = 5 * 3 * 2, STEPS = 6 };

struct scene {
    float mean[ELEMENTS], total[ELEMENTS], sent[ELEMENTS], ideal[ELEMENTS];
    uint64_t last[FIBRES];
    uint64_t expected_last[FIBRES];
};

static void assert_close(double got, double expected)
{
    if (!(fabs(got - expected) <= 1e-12 * fabs(expected)))
        fail_msg("got %.17g, expected %.17g", got, expected);
}

/* About every twelfth element is sent. Fibres whose number is a multiple of 7 have no entries. */
static void scene_draw(struct scene *scene, const size_t shape[4], struct random *random)
{
    for (size_t i = 0; i < ELEMENTS; i++) {
        const size_t fibre =
            i / (shape[1] * shape[2] * shape[3]) * shape[2] * shape[3] + i % (shape[2] * shape[3]);
        const float scale = fibre % 7 == 0 ? 1e-8f : 1;
        const int taken = fibre % 7 != 0 && random_next(random) % 12 == 0;
        scene->mean[i] = scale * random_symmetric(random, 1);
        scene->total[i] = scale * random_symmetric(random, 3);
        scene->sent[i] = taken ? scene->total[i] : 0;
        scene->ideal[i] = random_symmetric(random, 1);
    }
}

static struct measure scene_expect(struct scene *scene, const size_t shape[4], uint64_t step)
{
    struct measure sum = {0};
    for (size_t o = 0; o < shape[0]; o++)
        for (size_t tap = 0; tap < shape[2] * shape[3]; tap++) {
            const size_t fibre = o * shape[2] * shape[3] + tap;
            double total = 0;
            for (size_t i = 0; i < shape[1]; i++) {
                const size_t at = (o * shape[1] + i) * shape[2] * shape[3] + tap;
                const double left = (double)scene->total[at] - (double)scene->sent[at];
                const double off = (double)scene->ideal[at] - (double)scene->sent[at];
                total += (double)scene->total[at] * (double)scene->total[at];
                sum.mean += (double)scene->mean[at] * (double)scene->mean[at];
                sum.left += left * left;
                sum.deviation += off * off;
                sum.nonzeros += scene->sent[at] != 0;
                if (scene->sent[at] != 0)
                    scene->expected_last[fibre] = step + 1;
            }
            sum.total += total;
            if (fibre % 7 == 0)
                continue;
            const uint64_t waited = step + 1 - scene->expected_last[fibre];
            sum.live++;
            sum.missed += waited != 0;
            sum.missed_total += waited != 0 ? total : 0;
            sum.never += scene->expected_last[fibre] == 0;
            sum.longest = waited > sum.longest ? waited : sum.longest;
        }
    return sum;
}

static void check_shape(const size_t shape[4], size_t dims)
{
    struct scene scene = {0};
    struct random random = random_start(3, dims);
    double totals[FIBRES];
    struct measure_tensor tensor = measure_shape(shape, dims);
    assert_int_equal(tensor.length, shape[1]);
    tensor.mean = scene.mean;
    tensor.total = scene.total;
    tensor.sent = scene.sent;
    tensor.ideal = scene.ideal;
    for (uint64_t step = 0; step < STEPS; step++) {
        scene_draw(&scene, shape, &random);
        measure_note(&tensor, step, scene.last);
        const struct measure got = measure_step(&tensor, step, scene.last, totals);
        const struct measure expected = scene_expect(&scene, shape, step);
        assert_memory_equal(scene.last, scene.expected_last, tensor.fibres * sizeof *scene.last);
        assert_close(got.mean, expected.mean);
        assert_close(got.total, expected.total);
        assert_close(got.left, expected.left);
        assert_close(got.deviation, expected.deviation);
        assert_close(got.missed_total, expected.missed_total);
        assert_int_equal(got.nonzeros, expected.nonzeros);
        assert_int_equal(got.live, expected.live);
        assert_int_equal(got.missed, expected.missed);
        assert_int_equal(got.never, expected.never);
        assert_int_equal(got.longest, expected.longest);
    }
}

static void test_measures_match_plain_sums(void **state)
{
    (void)state;
    check_shape((const size_t[]){5, 7, 3, 2}, 4);
    check_shape((const size_t[]){30, 7, 1, 1}, 2);
    check_shape((const size_t[]){15, 7, 2, 1}, 3);
    check_shape((const size_t[]){2, 105, 1, 1}, 2);
}

/* In a tensor of zeros nothing is live. */
static void test_zeros(void **state)
{
    (void)state;
    struct scene scene = {0};
    double totals[FIBRES];
    const size_t shape[] = {FIBRES, ELEMENTS / FIBRES};
    struct measure_tensor tensor = measure_shape(shape, 2);
    tensor.mean = tensor.total = tensor.sent = tensor.ideal = scene.mean;
    measure_note(&tensor, 0, scene.last);
    const struct measure got = measure_step(&tensor, 0, scene.last, totals);
    const struct measure nothing = {0};
    assert_memory_equal(&got, &nothing, sizeof got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_measures_match_plain_sums),
        cmocka_unit_test(test_zeros),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
