/*
 * The line between the k largest sums and the others, compared with sorting all sums. Also the
 * format of votes.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/collective/vote.h"
#include "tests/unit/arrays.h"

#define NODES 5
#define SUMS 400

/* The sums of the nodes. */
struct poll {
    struct sparse sums[NODES];
    struct vote vote[NODES];
    struct vote total;
};

static void poll_make(struct poll *poll, unsigned kind)
{
    *poll = (struct poll){0};
    for (unsigned m = 0; m < NODES; m++) {
        poll->sums[m] = sparse_make(SUMS);
        poll->sums[m].count = random_below(SUMS + 1);
        for (size_t i = 0; i < poll->sums[m].count; i++) {
            float value = random_value();
            poll->sums[m].value[i] = kind == 0   ? value
                                     : kind == 1 ? ldexpf(value, (int)random_below(250) - 140)
                                                 : (float)((int)random_below(3) - 1);
        }
    }
}

static void poll_free(struct poll *poll)
{
    for (unsigned m = 0; m < NODES; m++) {
        sparse_drop(&poll->sums[m]);
    }
}

static void count(struct poll *poll, uint32_t first, uint32_t cells)
{
    poll->total = (struct vote){.first = first, .cells = cells};
    for (unsigned m = 0; m < NODES; m++) {
        poll->vote[m] = (struct vote){.first = first, .cells = cells, .sent = m};
        vote_count(&poll->vote[m], &poll->sums[m]);
        vote_add(&poll->total, &poll->vote[m]);
    }
    assert_int_equal(poll->total.sent, NODES * (NODES - 1) / 2);
}

static int downwards(const void *a, const void *b)
{
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;

    return left > right ? -1 : left < right;
}

/* Sorts all cells except 0, the largest first. */
static size_t sort_cells(const struct poll *poll, uint32_t cells[NODES * SUMS])
{
    size_t count = 0;

    for (unsigned m = 0; m < NODES; m++) {
        for (size_t i = 0; i < poll->sums[m].count; i++) {
            uint32_t cell = (bits_of(poll->sums[m].value[i]) & 0x7fffffffu) >> 15;
            assert_int_equal(vote_cell(poll->sums[m].value[i]), cell);
            if (cell > 0) {
                cells[count++] = cell;
            }
        }
    }
    qsort(cells, count, sizeof(*cells), downwards);
    return count;
}

/* The nodes' shares add up to k. */
static void check_split(const struct poll *poll, const struct vote_line *line, uint64_t k)
{
    uint64_t all = 0, on = 0;

    for (unsigned m = 0; m < NODES; m++) {
        uint64_t above, in, expected = 0, equal = 0;
        vote_split(&poll->vote[m], line, &above, &in);
        for (size_t i = 0; i < poll->sums[m].count; i++) {
            uint32_t cell = vote_cell(poll->sums[m].value[i]);
            expected += cell > line->cell;
            equal += cell > 0 && cell == line->cell;
        }
        assert_int_equal(above, expected);
        assert_int_equal(in, equal);
        all += above;
        on += in;
    }
    assert_true(line->quota <= on);
    assert_int_equal(all + line->quota, k);
}

static void check_line(struct poll *poll, uint64_t k)
{
    uint32_t cells[NODES * SUMS], octave = 0;
    size_t all = sort_cells(poll, cells);
    struct vote_line line = {.cell = 0}, again;

    count(poll, 0, 0);
    if (!vote_octave(&poll->total, k, &octave)) {
        assert_true(all < k);
        check_split(poll, &line, all);
        return;
    }
    assert_true(all >= k);
    assert_int_equal(octave, cells[k - 1] / VOTE_OCTAVE_CELLS);
    assert_false(vote_find(&poll->total, k, &line)); /* there is no window */
    count(poll, octave * VOTE_OCTAVE_CELLS, VOTE_OCTAVE_CELLS);
    assert_true(vote_find(&poll->total, k, &line));
    assert_int_equal(line.cell, cells[k - 1]);
    check_split(poll, &line, k);
    /* A window with the line gives the same line; a window beside it gives none. */
    for (uint32_t before = 0; before < VOTE_WINDOW; before += 9) {
        count(poll, line.cell > before ? line.cell - before : 1, VOTE_WINDOW);
        assert_true(vote_find(&poll->total, k, &again));
        assert_true(again.cell == line.cell && again.quota == line.quota);
        check_split(poll, &again, k);
    }
    count(poll, line.cell + 1, VOTE_WINDOW);
    assert_false(vote_find(&poll->total, k, &again));
    count(poll, line.cell > VOTE_WINDOW ? line.cell - VOTE_WINDOW : 0,
        line.cell > VOTE_WINDOW ? VOTE_WINDOW : line.cell);
    assert_false(vote_find(&poll->total, k, &again));
}

static void test_line(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 600; i++) {
        struct poll poll;
        poll_make(&poll, i % 3);
        check_line(&poll, 1 + random_below(NODES * SUMS / (1 + i % 7)));
        poll_free(&poll);
    }
}

static bool same(const struct vote *a, const struct vote *b, bool octaves)
{
    return a->above == b->above && memcmp(a->cell, b->cell, sizeof(a->cell)) == 0 &&
           (!octaves ||
               (a->sent == b->sent && memcmp(a->octave, b->octave, sizeof(a->octave)) == 0));
}

static void test_wire(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 600; i++) {
        bool octaves = i % 2 == 0;
        uint8_t bytes[VOTE_BYTES];
        struct poll poll;
        struct vote read = {.cells = VOTE_WINDOW};
        size_t size;
        poll_make(&poll, i % 3);
        count(&poll, 0x3f00, VOTE_WINDOW);
        size = vote_write(&poll.vote[1], octaves, bytes);
        assert_true(vote_read(&read, octaves, bytes, size));
        assert_true(same(&read, &poll.vote[1], octaves));
        for (size_t cut = 0; cut < size; cut++) {
            assert_false(vote_read(&read, octaves, bytes, cut));
        }
        bytes[size] = 0;
        assert_false(vote_read(&read, octaves, bytes, size + 1));
        poll_free(&poll);
    }
}

/* The longest vote fits, and wrong bytes do no harm. */
static void test_limits(void **state)
{
    struct vote vote = {.cells = VOTE_OCTAVE_CELLS, .sent = UINT32_MAX, .above = UINT32_MAX}, read;
    uint8_t bytes[VOTE_BYTES];

    (void)state;
    for (unsigned i = 0; i < VOTE_OCTAVES; i++) {
        vote.octave[i] = vote.cell[i] = UINT32_MAX;
    }
    assert_in_range(vote_write(&vote, true, bytes), 2560, VOTE_BYTES);
    for (unsigned i = 0; i < 20000; i++) {
        size_t size = random_below(60);
        for (size_t b = 0; b < size; b++) {
            bytes[b] = (uint8_t)random_below(random_below(2) == 0 ? 256 : 8);
        }
        read = (struct vote){.cells = VOTE_WINDOW};
        (void)vote_read(&read, i % 2 == 0, bytes, size);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_line),
        cmocka_unit_test(test_wire),
        cmocka_unit_test(test_limits),
    };

    return cmocka_run_group_tests_name("vote", tests, NULL, NULL);
}
