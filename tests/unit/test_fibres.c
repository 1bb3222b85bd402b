/* Rows and strided fibres in the fused pass over several turns, compared with adding first and
 * selecting plainly. The pass has its memory of earlier turns, or misleading hints. Gradients may
 * stay the same from turn to turn: then whole rows tie, or a whole row exceeds its former
 * threshold. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/fused.h"
#include "tests/host/fused_run.h"
#include "tests/unit/arrays.h"
#include "tests/unit/select_reference.h"

enum { TURNS = 3, STILL_TURNS = 7 };

/* One tensor on which the pass and the plain functions work side by side. */
struct world {
    struct view view;
    uint64_t n;
    uint64_t k;
    float *gradient;
    float *plain; /* the residual of the plain functions */
    struct fused pass;
    struct sparse out;
    struct sparse expected;
    double sums[2];
};

static void world_make(struct world *world, struct view view, uint64_t k)
{
    const uint64_t n = view_size(&view);
    *world = (struct world){.view = view,
        .n = n,
        .k = k,
        .gradient = allocate(n, sizeof(float)),
        .plain = allocate(n, sizeof(float)),
        .out = sparse_make(view.fibres * k),
        .expected = sparse_make(view.fibres * k)};
    world->pass = (struct fused){.residual = allocate(n, sizeof(float)),
        .view = view,
        .k = k,
        .per_fibre = true,
        .count = 1,
        .dtype = DTYPE_F32,
        .progress = allocate(1, progress_size(n)),
        .hints = random_below(4) == 0 ? NULL : allocate(view.fibres, sizeof(float))};
}

static void world_drop(struct world *world)
{
    free(world->gradient);
    free(world->plain);
    free(world->pass.residual);
    free(world->pass.progress);
    free(world->pass.hints);
    sparse_drop(&world->out);
    sparse_drop(&world->expected);
}

static void expect(struct world *world)
{
    const void *const gradients[] = {world->gradient};
    double sums[2] = {0, 0};
    void *scratch = allocate(1, select_scratch(world->n));
    (void)accumulate(world->plain, gradients, 1, DTYPE_F32, world->n, sums);
    select_fibres(world->plain, &world->view, world->k, &world->expected, scratch);
    free(scratch);
}

static void run(struct world *world)
{
    const void *const gradients[] = {world->gradient};
    struct fused *pass = &world->pass;
    pass->ranges = 1 + (unsigned)random_below(4);
    pass->stamp++;
    pass->gradients = gradients;
    pass->out = &world->out;
    const size_t scratch = fused_scratch(&world->view, world->k, true, pass->ranges);
    pass->scratch = aligned_alloc(64, (scratch + 63) / 64 * 64);
    assert_non_null(pass->scratch);
    memset(pass->scratch, 0xab, scratch);
    (void)fused_run(pass, NULL, world->sums);
    if (random_below(4) == 0) { /* a repetition, which only looks */
        memset(world->out.position, 0xff, world->out.count * sizeof *world->out.position);
        (void)fused_run(pass, NULL, world->sums);
    }
    free(pass->scratch);
}

static void compare(const struct world *world)
{
    assert_same_bits(world->pass.residual, world->plain, world->n);
    assert_int_equal(world->out.count, world->expected.count);
    for (size_t i = 0; i < world->out.count; i++) {
        assert_int_equal(world->out.position[i], world->expected.position[i]);
        assert_int_equal(bits_of(world->out.value[i]), bits_of(world->expected.value[i]));
    }
}

/* Subtracts the selected entries from both residuals. */
static void settle(struct world *world)
{
    for (size_t i = 0; i < world->out.count; i++) {
        const uint64_t element = view_element(&world->view, world->out.position[i]);
        world->pass.residual[element] = 0;
        world->plain[element] = 0;
    }
}

/* Sets hints that were never true. */
static void mislead(struct world *world)
{
    static const float odd[] = {0, 1e-30f, 1e30f, INFINITY, NAN, -1.0f};
    for (uint64_t f = 0; world->pass.hints != NULL && f < world->view.fibres; f++) {
        world->pass.hints[f] = random_below(2) == 0 ? odd[random_below(6)] : fabsf(random_value());
    }
}

static void renew(struct world *world, enum pattern pattern)
{
    float *fresh = pattern_make(random_below(8) == 0 ? RANDOM : pattern, world->n);
    memcpy(world->gradient, fresh, world->n * sizeof *fresh);
    free(fresh);
}

/* still: the gradient of the first turn repeats. */
static void check(
    struct view view, uint64_t k, const struct chunk_ops *ops, enum pattern pattern, bool still)
{
    struct world world;
    world_make(&world, view, k);
    world.pass.ops = ops;
    for (int turn = 0; turn < (still ? STILL_TURNS : TURNS); turn++) {
        if (turn == 0 || !still) {
            renew(&world, pattern);
        }
        if (random_below(6) == 0) {
            mislead(&world);
        }
        expect(&world);
        run(&world);
        assert_int_equal(world.pass.mode, view.stride == 1 ? FUSED_ROWS : FUSED_SLABS);
        compare(&world);
        settle(&world);
    }
    world_drop(&world);
}

static void check_all(struct view view, uint64_t k)
{
    for (size_t i = 0; chunk_table[i] != NULL; i++) {
        if (chunk_table[i]->supported()) {
            const enum pattern pattern = (enum pattern)random_below(PATTERN_COUNT);
            check(view, k, chunk_table[i], pattern, random_below(4) == 0);
        }
    }
}

static const struct chunk_ops *any_ops(void)
{
    size_t supported = 0;
    while (chunk_table[supported] != NULL && chunk_table[supported]->supported()) {
        supported++;
    }
    return chunk_table[random_below(supported)];
}

static void check_rows(uint64_t fibres, uint64_t length)
{
    const struct view view = {.fibres = fibres, .length = length, .stride = 1};
    check_all(view, 1 + random_below(length / 8));
}

static void check_slabs(uint64_t outer, uint64_t length, uint64_t stride)
{
    const struct view view = {.fibres = outer * stride, .length = length, .stride = stride};
    check_all(view, 1 + random_below(length / 8));
}

static void test_rows(void **state)
{
    (void)state;
    for (int round = 0; round < 400; round++) {
        check_rows(1 + random_below(60), 16 + random_below(200));
        /* A row is a whole number of words. */
        check_rows(1 + random_below(40), 64 * (1 + random_below(8)));
    }
    for (int round = 0; round < 25; round++) {
        check_rows(1 + random_below(12), 4096);
        check_rows(1 + random_below(5), 1000 + random_below(12000));
        check_rows(1 + random_below(4), 64 * (60 + random_below(140)));
    }
}

static void test_slabs(void **state)
{
    (void)state;
    for (int round = 0; round < 500; round++) {
        check_slabs(1 + random_below(6), 16 + random_below(60), 2 + random_below(12));
        check_slabs(1 + random_below(3), 16 + random_below(40), 2 + random_below(150));
    }
    for (int round = 0; round < 15; round++) {
        check_slabs(1 + random_below(8), 512, 9);
        check_slabs(1 + random_below(2), 16 + random_below(30), 300 + random_below(2000));
        check_slabs(1, 2000 + random_below(3000), 2 + random_below(5));
    }
}

/* Few large elements and sparse selections over many fibres, for which the guesses are made. */
static void test_learning(void **state)
{
    (void)state;
    static const struct view views[] = {{200, 1024, 1}, {64 * 9, 256, 9}, {700, 300, 700}};
    for (size_t v = 0; v < sizeof views / sizeof *views; v++) {
        check_all(views[v], views[v].length / 100);
    }
}

/* Sorted and constant tensors with many rows: later elements exceed all earlier ones, or none does.
 */
static void test_crowded(void **state)
{
    (void)state;
    static const enum pattern patterns[] = {
        CONSTANT, ASCENDING, DESCENDING, QUANTISED, MOSTLY_ZERO, ZERO, NOT_FINITE};
    static const struct view views[] = {{150, 256, 1}, {40, 1024, 1}, {11, 4096, 1}, {30, 1000, 1},
        {4, 16384, 1}, {2, 70000, 1}, {20 * 9, 128, 9}, {3 * 25, 512, 25}, {300, 400, 300},
        {2 * 2, 5000, 2}, {3, 70000, 3}, {9 * 16, 300, 16}, {3 * 17, 300, 17}};
    for (size_t v = 0; v < sizeof views / sizeof *views; v++) {
        for (size_t p = 0; p < sizeof patterns / sizeof *patterns; p++) {
            const uint64_t k = 1 + random_below(views[v].length / 50);
            check(views[v], k, any_ops(), patterns[p], true);
        }
    }
}

/* Equal elements at any place, some of which are the largest of their fibre. A slab has enough of
 * them early, but some fibres still have too few. */
static void test_scattered_ties(void **state)
{
    (void)state;
    static const struct view views[] = {{7 * 9, 128, 9}, {5 * 16, 300, 16}, {3 * 25, 130, 25}};
    for (size_t i = 0; i < 12 * sizeof views / sizeof *views; i++) {
        const struct view view = views[i / 12];
        struct world world;
        world_make(&world, view, 1 + i % 6);
        world.pass.ops = any_ops();
        for (int turn = 0; turn < STILL_TURNS; turn++) {
            for (uint64_t e = 0; e < world.n; e++) {
                const float value = random_below(8) == 0 ? 4.0f : (float)random_below(3);
                world.gradient[e] = random_below(2) == 0 ? value : -value;
            }
            if (turn % 2 == 0) { /* the turn before leaves nothing */
                memset(world.plain, 0, world.n * sizeof *world.plain);
                memset(world.pass.residual, 0, world.n * sizeof *world.plain);
            }
            expect(&world);
            run(&world);
            compare(&world);
            settle(&world);
        }
        world_drop(&world);
    }
}

/* Some fibres have only the smallest number, and late. It is their largest element, but the first
 * elements that equal it are in other fibres. */
static void test_least_ties(void **state)
{
    (void)state;
    for (size_t i = 0; chunk_table[i] != NULL; i++) {
        if (!chunk_table[i]->supported()) {
            continue;
        }
        struct world world;
        world_make(&world, (struct view){.fibres = 4 * 9, .length = 128, .stride = 9}, 2);
        world.pass.ops = chunk_table[i];
        for (uint64_t e = 0; e < world.n; e++) {
            const uint64_t row = e / 9 % 128;
            const float late = row < 64 ? 0.0f : 0x1p-149f;
            world.gradient[e] = e % 9 < 3 ? 1.0f : late;
        }
        for (int turn = 0; turn < TURNS; turn++) {
            expect(&world);
            run(&world);
            compare(&world);
            settle(&world);
        }
        world_drop(&world);
    }
}

enum { DEAL_ROOM = 40 };

/* A list of elements of a slab, and its parts by fibre. */
struct hand {
    struct sparse list;
    struct deal deal;
    uint32_t count[DEAL_NARROW + 1];
    float last[DEAL_NARROW + 1];
};

static void hand_make(struct hand *hand, uint32_t stride, uint32_t length, uint64_t k)
{
    *hand = (struct hand){.list = sparse_make(2 * DEAL_LIST)};
    hand->deal = (struct deal){.stride = stride,
        .length = length,
        .first = (uint32_t)random_below(1000000),
        .room = DEAL_ROOM,
        .count = hand->count,
        .dealt = sparse_make(stride * deal_pitch(DEAL_ROOM)),
        .k = k,
        .out = sparse_make(stride * DEAL_ROOM),
        .last = hand->last};
}

static void hand_fill(struct hand *hand, uint64_t entries)
{
    const uint32_t size = hand->deal.stride * hand->deal.length;
    const uint32_t gap = 1 + (uint32_t)random_below(2 * hand->deal.stride);
    const bool ties = random_below(3) == 0;
    for (uint32_t at = 0; hand->list.count < entries && at < size;
         at += 1 + (uint32_t)random_below(gap)) {
        hand->list.position[hand->list.count] = at;
        hand->list.value[hand->list.count++] =
            ties ? 1.0f + (float)random_below(2) : random_value() + 3.0f;
    }
}

static void hand_drop(struct hand *hand)
{
    sparse_drop(&hand->list);
    sparse_drop(&hand->deal.dealt);
    sparse_drop(&hand->deal.out);
}

/* The list's entries of one fibre. */
static void hand_part(const struct hand *hand, uint32_t fibre, struct sparse *part)
{
    const struct deal *deal = &hand->deal;
    part->count = 0;
    for (size_t i = 0; i < hand->list.count; i++) {
        const uint32_t at = hand->list.position[i];
        if (at % deal->stride == fibre) {
            part->position[part->count] = deal->first + fibre * deal->length + at / deal->stride;
            part->value[part->count++] = hand->list.value[i];
        }
    }
}

/* Whether entry i is among the k best of a list: fewer than k entries are better. */
static bool is_best(const struct sparse *list, size_t i, uint64_t k)
{
    uint64_t rank = 0;
    for (size_t j = 0; j < list->count; j++) {
        const uint32_t key = bits_of(list->value[i]) & 0x7fffffffu;
        const uint32_t other = bits_of(list->value[j]) & 0x7fffffffu;
        rank += other > key || (other == key && j < i);
    }
    return rank < k;
}

static void check_selected(const struct hand *hand, uint32_t f, const struct sparse *part)
{
    const struct deal *deal = &hand->deal;
    uint64_t found = 0;
    float last = INFINITY;
    assert_true(part->count >= deal->k);
    for (size_t i = 0; i < part->count; i++) {
        if (is_best(part, i, deal->k)) {
            assert_int_equal(deal->out.position[f * deal->k + found], part->position[i]);
            assert_int_equal(
                bits_of(deal->out.value[f * deal->k + found]), bits_of(part->value[i]));
            last = fminf(last, fabsf(part->value[i]));
            found++;
        }
    }
    assert_int_equal(found, deal->k);
    assert_int_equal(bits_of(hand->last[f]), bits_of(last));
}

static void check_dealt(const struct hand *hand, uint32_t f, const struct sparse *part)
{
    assert_int_equal(hand->count[f], part->count);
    for (size_t i = 0; i < part->count; i++) {
        const size_t at = f * deal_pitch(DEAL_ROOM) + i;
        assert_int_equal(hand->deal.dealt.position[at], part->position[i]);
        assert_int_equal(bits_of(hand->deal.dealt.value[at]), bits_of(part->value[i]));
    }
}

static void check_deal(const struct chunk_ops *ops, uint32_t stride, uint32_t length, uint64_t k)
{
    struct hand hand;
    struct sparse part = sparse_make(2 * DEAL_LIST);
    uint32_t settled = 0;
    bool fits = stride <= DEAL_NARROW && stride * length <= DEAL_SHORT;
    hand_make(&hand, stride, length, k);
    hand_fill(&hand, random_below(DEAL_LIST + 10));
    for (uint32_t f = 0; f < stride; f++) {
        hand_part(&hand, f, &part);
        fits = fits && part.count <= DEAL_ROWS;
    }
    fits = fits && hand.list.count > 0 && hand.list.count <= DEAL_LIST && k <= DEAL_BEST;
    assert_int_equal(ops->deal(&hand.list, &hand.deal, &settled), fits);
    for (uint32_t f = 0; f < stride && fits; f++) {
        hand_part(&hand, f, &part);
        assert_int_equal(settled >> f & 1, part.count >= k);
        if ((settled >> f & 1) != 0) {
            check_selected(&hand, f, &part);
        } else {
            check_dealt(&hand, f, &part);
        }
    }
    sparse_drop(&part);
    hand_drop(&hand);
}

/* Deals entries together, each to its place in its fibre, or selects from them at once. */
static void test_deal(void **state)
{
    (void)state;
    for (size_t i = 0; chunk_table[i] != NULL; i++) {
        const struct chunk_ops *ops = chunk_table[i];
        for (uint32_t round = 0; round < 4000 && ops->supported() && ops->deal != NULL; round++) {
            const uint32_t stride = 1 + round % (DEAL_NARROW + 1);
            const uint64_t k = 1 + random_below(random_below(4) == 0 ? DEAL_BEST + 2 : 6);
            check_deal(ops, stride, round % 2 == 0 ? 20 : DEAL_SHORT / stride, k);
        }
    }
}

/* All rows of the longest slabs, with each entry alone in its list. */
static void test_deal_rows(void **state)
{
    (void)state;
    for (size_t i = 0; chunk_table[i] != NULL; i++) {
        const struct chunk_ops *ops = chunk_table[i];
        for (uint32_t stride = 1; stride <= DEAL_NARROW && ops->supported() && ops->deal != NULL;
             stride++) {
            struct hand hand;
            uint32_t settled = 0;
            hand_make(&hand, stride, DEAL_SHORT / stride, 1);
            hand.list.count = 1;
            hand.list.value[0] = 1.0f;
            for (uint32_t at = 0; at < stride * hand.deal.length; at++) {
                const uint32_t fibre = at % stride;
                hand.list.position[0] = at;
                assert_true(ops->deal(&hand.list, &hand.deal, &settled));
                assert_int_equal(settled, UINT32_C(1) << fibre);
                assert_int_equal(hand.deal.out.position[fibre],
                    hand.deal.first + fibre * hand.deal.length + at / stride);
            }
            hand_drop(&hand);
        }
    }
}

static int descending(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a;
    const int32_t y = *(const int32_t *)b;
    return (x < y) - (x > y);
}

static void test_columns(void **state)
{
    (void)state;
    for (int round = 0; round < 300; round++) {
        const size_t rows = 1 + random_below(40);
        const size_t stride = 1 + random_below(50);
        const size_t k = 1 + random_below(rows);
        int32_t *x = allocate(rows * stride, sizeof *x);
        int32_t *best = allocate((k + 1) * stride, sizeof *best);
        int32_t column[40];
        for (size_t i = 0; i < rows * stride; i++) {
            x[i] = (int32_t)random_below(random_below(2) == 0 ? 5 : INT32_MAX);
        }
        any_ops()->columns(x, rows, stride, k, best);
        for (size_t f = 0; f < stride; f++) {
            for (size_t r = 0; r < rows; r++) {
                column[r] = x[r * stride + f];
            }
            qsort(column, rows, sizeof *column, descending);
            for (size_t r = 0; r < k; r++) {
                assert_int_equal(best[r * stride + f], column[r]);
            }
        }
        free(best);
        free(x);
    }
}

static void test_peaks(void **state)
{
    (void)state;
    for (int round = 0; round < 300; round++) {
        const size_t n = random_below(700);
        const size_t period = 1 + random_below(300);
        float *x = pattern_make((enum pattern)random_below(PATTERN_COUNT), n + 1);
        int32_t *peak = allocate(period, sizeof *peak);
        const struct chunk_ops *ops = any_ops();
        for (size_t j = 0; j < period; j++) {
            peak[j] = (int32_t)random_below(2) * 0x3f800000;
        }
        int32_t *expected = allocate(period, sizeof *expected);
        memcpy(expected, peak, period * sizeof *peak);
        for (size_t i = 0; i < n; i++) {
            const int32_t key = (int32_t)(bits_of(x[i]) & 0x7fffffffu);
            expected[i % period] = key > expected[i % period] ? key : expected[i % period];
        }
        ops->peaks(x, n, peak, period);
        assert_memory_equal(peak, expected, period * sizeof *peak);
        free(expected);
        free(peak);
        free(x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_slabs),
        cmocka_unit_test(test_learning),
        cmocka_unit_test(test_crowded),
        cmocka_unit_test(test_scattered_ties),
        cmocka_unit_test(test_least_ties),
        cmocka_unit_test(test_deal),
        cmocka_unit_test(test_deal_rows),
        cmocka_unit_test(test_peaks),
        cmocka_unit_test(test_columns),
    };
    return cmocka_run_group_tests_name("fibres", tests, NULL, NULL);
}
