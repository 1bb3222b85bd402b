/* Shares: the item that is next, compared with a plain reference that looks at every item every
 * time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/link/share.h"

#define JOBS 5u
#define ITEMS 60u
#define TURNS 3000u
#define SEEDS 200u

/* An item, and the reference's record of it. */
struct item {
    struct share_item item; /* first */
    bool queued, begun;
    uint64_t job, place, number;
    unsigned turns; /* turns that it still needs */
};

/* The reference. Its times are exact in double precision, because weights are powers of two. */
struct plain {
    struct item item[ITEMS];
    double time[JOBS], now;
    double weight[JOBS];
    unsigned passed[JOBS];
    uint64_t arrivals;
    unsigned slots; /* how many items may be begun at the same time */
};

static uint64_t state_of_dice;

static uint64_t dice(uint64_t below)
{
    state_of_dice = state_of_dice * 6364136223846793005u + 1442695040888963407u;
    return (state_of_dice >> 33) % below;
}

static unsigned count_begun(const struct plain *plain, uint64_t job)
{
    unsigned count = 0;

    for (unsigned i = 0; i < ITEMS; i++) {
        const struct item *item = &plain->item[i];
        count += item->queued && item->begun && (job == JOBS || item->job == job) ? 1 : 0;
    }
    return count;
}

static bool may_begin(const void *context, const struct share_item *item)
{
    const struct plain *plain = context;

    (void)item;
    return count_begun(plain, JOBS) < plain->slots;
}

static bool goes_before(const struct item *a, const struct item *b, bool by_age)
{
    return !by_age && a->place != b->place ? a->place < b->place : a->number < b->number;
}

/* The first item of a job, among those that have begun or among all. */
static struct item *first_of(struct plain *plain, uint64_t job, bool begun, bool by_age)
{
    struct item *first = NULL;

    for (unsigned i = 0; i < ITEMS; i++) {
        struct item *item = &plain->item[i];
        if (item->queued && item->job == job && (item->begun || !begun) &&
            (first == NULL || goes_before(item, first, by_age))) {
            first = item;
        }
    }
    return first;
}

static struct item *plain_next(struct plain *plain)
{
    struct item *next = NULL;

    for (uint64_t job = 0; job < JOBS; job++) {
        bool by_age = plain->passed[job] >= SHARE_PASSES;
        unsigned most = by_age ? SHARE_BEGUN_MAX : SHARE_BEGUN_MAX - 1;
        struct item *item = first_of(plain, job, false, by_age);

        if (item != NULL && !item->begun &&
            (count_begun(plain, job) >= most || count_begun(plain, JOBS) >= plain->slots)) {
            item = first_of(plain, job, true, by_age);
        }
        if (item != NULL &&
            (next == NULL || plain->time[job] < plain->time[next->job] ||
                (plain->time[job] == plain->time[next->job] && item->number < next->number))) {
            next = item;
        }
    }
    return next;
}

static void plain_charge(struct plain *plain, const struct item *item, uint64_t cost)
{
    const struct item *oldest = first_of(plain, item->job, false, true);

    if (plain->time[item->job] > plain->now) {
        plain->now = plain->time[item->job];
    }
    plain->time[item->job] += (double)cost / plain->weight[item->job];
    plain->passed[item->job] = item == oldest ? 0 : plain->passed[item->job] + 1;
}

static void put(struct share *share, struct plain *plain)
{
    unsigned at = (unsigned)dice(ITEMS);
    struct item *item = &plain->item[at];
    struct share_class class;

    if (item->queued) {
        return;
    }
    *item = (struct item){.job = dice(JOBS),
        .place = dice(6),
        .number = plain->arrivals++,
        .queued = true,
        .turns = 1 + (unsigned)dice(5)};
    class = (struct share_class){
        .job = item->job, .weight = (uint32_t)plain->weight[item->job], .place = item->place};
    if (share->items == 0) {
        for (unsigned job = 0; job < JOBS; job++) {
            plain->now = plain->time[job] > plain->now ? plain->time[job] : plain->now;
        }
    }
    if (first_of(plain, item->job, false, true) == item) {
        plain->passed[item->job] = 0;
        if (plain->time[item->job] < plain->now) {
            plain->time[item->job] = plain->now; /* an idle job saves nothing for later */
        }
    }
    assert_true(share_put(share, &item->item, &class));
}

static void serve(struct share *share, struct plain *plain)
{
    struct share_item *next = share_next(share, may_begin, plain);
    struct item *expected = plain_next(plain);
    uint64_t cost = 1 + dice(1000);
    bool was_oldest;

    assert_ptr_equal(next, expected);
    if (expected == NULL) {
        return;
    }
    if (!expected->begun) {
        share_begin(next);
        expected->begun = true;
    }
    share_charge(share, next, cost);
    plain_charge(plain, expected, cost);
    if (--expected->turns == 0) {
        was_oldest = first_of(plain, expected->job, false, true) == expected;
        share_remove(share, next);
        expected->queued = false;
        if (was_oldest) {
            plain->passed[expected->job] = 0;
        }
    }
}

/* Any order of arrivals and services, few slots and many. */
static void test_reference(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct share share = {0};
        struct plain plain = {.slots = seed % 3 == 0 ? 1 : seed % 3 == 1 ? 10 : ITEMS};

        state_of_dice = seed;
        for (unsigned job = 0; job < JOBS; job++) {
            plain.weight[job] = (double)(1u << dice(7));
        }
        for (unsigned turn = 0; turn < TURNS / SEEDS * 10; turn++) {
            if (dice(100) < 40) {
                put(&share, &plain);
            } else {
                serve(&share, &plain);
            }
        }
        share_reset(&share);
    }
}

/* Jobs that always have items get shares by their weights. The shares of two, divided by their
 * weights, differ by at most a turn of each. */
static void test_shares(void **state)
{
    static const uint32_t weight[JOBS] = {1, 3, 7, 50, SHARE_WEIGHT_MAX};
    struct share share = {0};
    struct share_item item[JOBS];
    double got[JOBS] = {0};
    const double largest = 1000;

    (void)state;
    state_of_dice = 1;
    for (unsigned job = 0; job < JOBS; job++) {
        const struct share_class class = {.job = job, .weight = weight[job]};
        assert_true(share_put(&share, &item[job], &class));
    }
    for (unsigned turn = 0; turn < 20000; turn++) {
        struct share_item *next = share_next(&share, NULL, NULL);
        uint64_t cost = 1 + dice((uint64_t)largest);
        unsigned job = (unsigned)(next - item);

        share_charge(&share, next, cost);
        got[job] += (double)cost / weight[job];
        for (unsigned a = 0; a < JOBS; a++) {
            for (unsigned b = 0; b < a; b++) {
                double most = largest / weight[a] + largest / weight[b];
                assert_true(got[a] - got[b] <= most && got[b] - got[a] <= most);
            }
        }
    }
    share_reset(&share);
}

/* A job that queues its next item only when the last is done gets its share, and no more. */
static void test_one_at_a_time(void **state)
{
    static const uint32_t weight[2] = {1, 9};
    struct share share = {0};
    struct share_item item[2];
    unsigned turns[2] = {0};

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        const struct share_class class = {.job = i, .weight = weight[i]};
        assert_true(share_put(&share, &item[i], &class));
    }
    for (unsigned turn = 0; turn < 1000; turn++) {
        struct share_item *next = share_next(&share, NULL, NULL);
        unsigned job = (unsigned)(next - item);
        const struct share_class class = {.job = job, .weight = weight[job]};

        turns[job]++;
        share_charge(&share, next, 100);
        share_remove(&share, next);
        assert_true(share_put(&share, &item[job], &class));
    }
    assert_in_range(turns[0], 99, 101);
    assert_int_equal(share.items, 2);
    share_reset(&share);
}

/* A job gets nothing for having been idle. A job that comes back in the middle of a turn pays for
 * that turn. */
static void test_idle_and_held(void **state)
{
    struct share share = {0};
    struct share_item item[2], late;
    const struct share_class class[2] = {{.job = 1, .weight = 1}, {.job = 2, .weight = 1}};
    struct share_job *held;
    unsigned in_a_row = 0;

    (void)state;
    assert_true(share_put(&share, &item[0], &class[0]));
    for (unsigned turn = 0; turn < 100; turn++) {
        share_charge(&share, share_next(&share, NULL, NULL), 10);
    }
    assert_true(share_put(&share, &item[1], &class[1]));
    while (share_next(&share, NULL, NULL) == &item[1]) {
        share_charge(&share, &item[1], 10);
        in_a_row++;
    }
    assert_in_range(in_a_row, 1, 2);
    held = share_hold(&item[1]);
    share_charge(&share, &item[1], 1);
    share_remove(&share, &item[1]);
    for (unsigned turn = 0; turn < 5; turn++) {
        share_charge(&share, &item[0], 10);
    }
    share_correct(held, 1000);
    assert_true(share_put(&share, &late, &class[1]));
    for (unsigned turn = 0; turn < 95; turn++) {
        assert_ptr_equal(share_next(&share, NULL, NULL), &item[0]);
        share_charge(&share, &item[0], 10);
    }
    share_reset(&share);
}

/* A job owes nothing for turns that it had while no other job had items. An exception is a turn
 * that is still under way. */
static void test_alone(void **state)
{
    const struct share_class class[2] = {{.job = 1, .weight = 1}, {.job = 2, .weight = 1}};

    (void)state;
    for (unsigned holds = 0; holds < 2; holds++) {
        struct share share = {0};
        struct share_item item[2];
        struct share_job *held;

        assert_true(share_put(&share, &item[0], &class[0]));
        share_charge(&share, &item[0], 1000);
        held = share_hold(&item[0]);
        share_remove(&share, &item[0]);
        if (holds == 0) {
            share_correct(held, 0);
        }
        assert_true(share_put(&share, &item[1], &class[1]));
        assert_true(share_put(&share, &item[0], &class[0]));
        for (unsigned turn = 0; turn < 100; turn++) {
            assert_ptr_equal(
                share_next(&share, NULL, NULL), holds == 1 ? &item[1] : &item[(turn + 1) % 2]);
            share_charge(&share, share_next(&share, NULL, NULL), 10);
        }
        share_reset(&share);
    }
}

/* There are always urgent items, queued after the others. Every item is done within the bound of
 * share.h. */
static void test_nobody_starves(void **state)
{
    enum { OLD = 20, TURNS_EACH = 5 };
    struct share share = {0};
    struct share_item old[OLD], urgent[3];
    unsigned left[OLD];
    unsigned turn = 0;
    bool queued[3] = {false};

    (void)state;
    for (unsigned i = 0; i < OLD; i++) {
        const struct share_class class = {.job = 1, .place = 1000 + i % 3};
        assert_true(share_put(&share, &old[i], &class));
        left[i] = TURNS_EACH;
    }
    for (unsigned done = 0; done < OLD; turn++) {
        struct share_item *next;

        for (unsigned i = 0; i < 3; i++) {
            const struct share_class class = {.job = 1, .place = i};
            assert_true(queued[i] || share_put(&share, &urgent[i], &class));
            queued[i] = true;
        }
        next = share_next(&share, NULL, NULL);
        if (!next->begun) {
            share_begin(next);
        }
        share_charge(&share, next, 1);
        if (next >= urgent && next < urgent + 3) {
            queued[next - urgent] = false;
            share_remove(&share, next);
        } else if (--left[next - old] == 0) {
            share_remove(&share, next);
            assert_true(turn < (SHARE_PASSES + 1) * ((unsigned)(next - old) + 1) * TURNS_EACH);
            done++;
        }
    }
    assert_true(turn > OLD * TURNS_EACH * SHARE_PASSES); /* the urgent items had the rest */
    share_reset(&share);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_one_at_a_time),
        cmocka_unit_test(test_idle_and_held),
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_nobody_starves),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
