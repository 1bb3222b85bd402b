/* What a run of adtopk-perf cluster concludes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "tests/bench/perf/cluster_judge.h"

static void test_median(void **state)
{
    double odd[] = {9, NAN, 1, 5}, even[] = {4, 1, 3, 2}, none[] = {NAN, NAN};

    (void)state;
    assert_true(judge_median(odd, 4) == 5);
    assert_true(judge_median(even, 4) == 2.5);
    assert_true(isnan(judge_median(none, 2)));
    assert_true(isnan(judge_median(none, 0)));
}

static void test_slow(void **state)
{
    (void)state;
    assert_true(judge_is_slow(151, 100));
    assert_false(judge_is_slow(149, 100));
    assert_false(judge_is_slow(NAN, 100));
    assert_false(judge_is_slow(100, NAN));
}

/* The first cause that holds counts: a thread that is full, then cores that are, else the network.
 */
static void test_bounds(void **state)
{
    static const struct {
        struct judge_link link;
        const char *says;
    } cases[] = {
        {{.network = 0.97, .loop = 0.9, .idle = 0.01, .encrypts = 1},
            "CURVE bounds it: the network thread of one end was busy for 97% of the time."},
        {{.network = 0.81, .loop = 0.3, .idle = 0.5, .encrypts = 0},
            "The processor bounds it: the network thread"},
        {{.network = 0.2, .loop = 0.85, .idle = 0.5, .encrypts = 1},
            "The processor bounds it: the daemon's loop at one end was busy for 85%"},
        {{.network = 0.2, .loop = 0.3, .idle = 0.04, .encrypts = 1},
            "The processors of one end bound it: they were idle for 4% of the time."},
        {{.network = 0.2, .loop = 0.3, .idle = 0.6, .encrypts = 1},
            "The network bounds it: its thread at one end was busy for only 20% of the time"},
        {{.network = NAN, .loop = 0.3, .idle = 0.6}, "What bounds it is not known"},
        {{.network = 0.9, .loop = 0.3, .idle = NAN}, "What bounds it is not known"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct judge_link link = cases[i].link;
        char text[300], begin[] = "The slowest link, 3-17, carried 118 MB/s. ";

        link.low = 3;
        link.high = 17;
        link.bytes_s = 118e6;
        judge_bound(&link, text, sizeof(text));
        assert_memory_equal(text, begin, strlen(begin));
        assert_memory_equal(text + strlen(begin), cases[i].says, strlen(cases[i].says));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_median), cmocka_unit_test(test_slow), cmocka_unit_test(test_bounds)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
