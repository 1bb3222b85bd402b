/* Passes learn whether to fetch memory ahead of its use. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <time.h>

#include "kernels/base/ahead.h"

enum { STRETCH = 16, MANY = 16 };

static uint64_t clock_ns(void)
{
    struct timespec now = {0};
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int points_of(const struct ahead *learned)
{
    return atomic_load(&learned->of[AHEAD_BF16].points);
}

static void rest_us(long us)
{
    const struct timespec pause = {.tv_nsec = us * 1000};
    (void)nanosleep(&pause, NULL);
}

/* A range whose chunks are slower if memory is fetched ahead as `slow` says. Returns how many were
 * fetched ahead. */
static unsigned run_range(struct ahead *learned, unsigned chunks, bool slow)
{
    struct ahead_range range = ahead_begin(learned, AHEAD_BF16, chunks);
    unsigned fetched = 0;
    for (unsigned c = 0; c < chunks; c++) {
        const bool fetches = ahead_next(&range);
        fetched += fetches ? 1 : 0;
        if (fetches == slow && c % STRETCH == STRETCH - 1) {
            rest_us(500); /* once a stretch: less of it is the clock's */
        }
    }
    ahead_end(&range);
    return fetched;
}

/* The faster way wins, whichever it is, and is given up when the machine changes. */
static void test_learns(void **state)
{
    struct ahead learned = {.now_ns = clock_ns, .of[AHEAD_BF16].points = 16};
    (void)state;
    for (unsigned round = 0; round < 4; round++) {
        const bool slow = round % 2 == 0;
        for (unsigned i = 0; i < 400 && (points_of(&learned) > 0) == slow; i++) {
            (void)run_range(&learned, 2 * MANY * STRETCH, slow);
        }
        assert_int_equal(points_of(&learned) > 0, !slow);
    }
}

/* Points stay in their limits. Then few stretches are measured, and the others go the way that is
 * known to be faster. */
static void test_seldom_measures(void **state)
{
    struct ahead learned = {.now_ns = clock_ns};
    (void)state;
    for (unsigned i = 0; i < 40; i++) {
        (void)run_range(&learned, MANY * STRETCH, true);
    }
    assert_in_range(-points_of(&learned), 6, 16);
    assert_in_range(run_range(&learned, 128 * STRETCH, true), STRETCH, 4 * STRETCH);
}

/* Ranges of less than three stretches measure nothing and do what is known. */
static void test_short_ranges(void **state)
{
    struct ahead learned = {.now_ns = clock_ns};
    (void)state;
    for (unsigned chunks = 0; chunks < 3 * STRETCH; chunks++) {
        assert_int_equal(run_range(&learned, chunks, false), 0);
    }
    assert_int_equal(atomic_load(&learned.of[AHEAD_BF16].choices), 0);
    atomic_store(&learned.of[AHEAD_BF16].points, 9);
    assert_int_equal(run_range(&learned, 3 * STRETCH - 1, true), 3 * STRETCH - 1);
    assert_int_equal(points_of(&learned), 9);
}

/* Both ways are measured, each as the first as often as not, and the last pair counts. */
static void test_pairs(void **state)
{
    struct ahead learned = {.now_ns = clock_ns};
    unsigned first = 0;
    (void)state;
    for (unsigned i = 0; i < 128; i++) {
        struct ahead_range range = ahead_begin(&learned, AHEAD_BF16, 3 * STRETCH);
        bool fetches = false;
        atomic_store(&learned.of[AHEAD_BF16].points, 0);
        for (unsigned c = 0; c < 3 * STRETCH; c++) {
            const bool now = ahead_next(&range);
            fetches = c == STRETCH ? now : fetches;
            assert_int_equal(now, c >= STRETCH && fetches == (c < 2 * STRETCH));
        }
        first += fetches ? 1 : 0;
        assert_int_equal(points_of(&learned), 0);
        ahead_end(&range);
        assert_int_not_equal(points_of(&learned), 0);
        assert_int_equal(atomic_load(&learned.of[AHEAD_BF16].choices), i + 1);
    }
    assert_int_equal(first, 64);
}

/* Nobody learns from others' kinds, and where nobody learns nothing is fetched ahead. */
static void test_nobody_learns(void **state)
{
    (void)state;
    struct ahead learned = {.now_ns = clock_ns, .of[AHEAD_F32].points = 9};
    assert_int_equal(run_range(&learned, STRETCH, false), 0);
    assert_int_equal(run_range(NULL, MANY * STRETCH, false), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_learns),
        cmocka_unit_test(test_seldom_measures),
        cmocka_unit_test(test_short_ranges),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_nobody_learns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
