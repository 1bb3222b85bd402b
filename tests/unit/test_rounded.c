/*
 * Residuals in bf16. The rounding is compared with its definition, element by element. The fused
 * pass over several turns is compared with adding, rounding by that definition and selecting
 * plainly. Sums must stay.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/convert.h"
#include "kernels/cpu/chunk.h"
#include "kernels/cpu/fused.h"
#include "tests/host/fused_run.h"
#include "tests/unit/arrays.h"
#include "tests/unit/select_reference.h"

/* ---- the definition ---- */

/* The rounding errors that elements pass on, by sign (without that of the lane), half of the word,
 * and lane. */
struct errors {
    float of[2][2][16];
};

/* The first element of the tensor's chunk is in lane 0 of vector 0. */
static unsigned sign_of(uint64_t element)
{
    const uint64_t lane = element % 16;
    const uint64_t chunk = element / CHUNK;
    const bool negative = ledger_sign(element) < 0;
    const bool negative_lane = (ledger_lane_signs(chunk) >> lane & 1) != 0;
    return negative != negative_lane;
}

/* Rounds x to one of its neighbours in bf16. Let `share` be the share, in 65536ths, of their
 * distance by which x exceeds the nearer to zero. The farther one is taken if share + random is at
 * least 65536. */
static float round_one(float x, uint32_t random)
{
    const uint32_t bits = bits_of(x);
    const uint32_t cut = bits & 0xffffu;
    const uint16_t below = (uint16_t)(bits >> 16);
    if (!isfinite(x)) { /* no random number turns a NaN into infinity or zero */
        return convert_bf16(below);
    }
    return convert_bf16(cut + random >= 65536 ? (uint16_t)(below + 1) : below);
}

/* The 16 random bits of element i if the salt is 0: its word's hash, plus a multiple of the golden
 * ratio. */
static uint32_t random_of(uint64_t stamp, uint64_t i)
{
    const uint64_t seed = ledger_hash(ledger_hash(stamp + ledger_hash(0)) + i / CHUNK);
    const uint64_t hash = ledger_hash(seed + i % CHUNK / 64) % 4294967296u;
    return (uint32_t)((hash + i % 64 * 2654435769u) % 4294967296u / 65536);
}

/* Rounds x[0..n) in place; carries: of all chunks. */
static void round_plainly(float *x, uint64_t n, uint64_t stamp, struct carry *carries)
{
    struct errors e;
    for (uint64_t i = 0; i < n; i++) {
        struct carry *carry = &carries[i / CHUNK];
        if (i % CHUNK == 0) {
            memset(&e, 0, sizeof e);
            memcpy(e.of[0][0], carry->of[0], sizeof carry->of[0]);
            memcpy(e.of[1][0], carry->of[1], sizeof carry->of[1]);
        }
        float *mine = &e.of[sign_of(i)][i % 64 / 32][i % 16];
        const float exact = x[i] + *mine;
        x[i] = round_one(exact, random_of(stamp, i));
        *mine = isfinite(x[i]) ? exact - x[i] : 0;
        for (unsigned j = 0; (i + 1 == n || i % CHUNK == CHUNK - 1) && j < 32; j++) {
            carry->of[j / 16][j % 16] = e.of[j / 16][0][j % 16] + e.of[j / 16][1][j % 16];
        }
    }
}

static struct rounded rounded_make(uint64_t n)
{
    const size_t size = (rounded_size(n) + 63) / 64 * 64;
    void *memory = aligned_alloc(64, size > 0 ? size : 64);
    assert_non_null(memory);
    memset(memory, 0, size);
    return rounded_at(memory, n);
}

static void assert_rounded(
    const struct rounded *rounded, const float *x, const struct carry *carries, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        float element;
        rounded_read(rounded, i, 1, &element);
        assert_int_equal(bits_of(element), bits_of(x[i]));
    }
    assert_memory_equal(rounded->carry, carries, chunk_count(n) * sizeof *carries);
}

/* Plain and signed sum of elements and carries, in double. */
static void sums_of(const float *x, const struct carry *carries, uint64_t n, double sums[2])
{
    sums[0] = sums[1] = 0;
    for (uint64_t i = 0; i < n; i++) {
        sums[0] += (double)x[i];
        sums[1] += (double)x[i] * ledger_sign(i);
    }
    for (uint64_t j = 0; j < chunk_count(n) * 32; j++) {
        const double lane = (ledger_lane_signs(j / 32) >> j % 16 & 1) != 0 ? -1.0 : 1.0;
        const double value = (double)carries[j / 32].of[j % 32 / 16][j % 16];
        sums[0] += value;
        sums[1] += value * lane * (j % 32 < 16 ? 1 : -1);
    }
}

static double magnitude_of(const float *x, uint64_t n)
{
    double sum = 0;
    for (uint64_t i = 0; i < n; i++) {
        sum += fabs((double)x[i]);
    }
    return sum;
}

static const uint64_t lengths[] = {1, 5, 15, 16, 17, 47, 63, 64, 65, 100, 128, 200, 1000, CHUNK - 1,
    CHUNK, CHUNK + 1, 3 * CHUNK + 777};

/* Every implementation reads bf16 as f32 with the same upper half: any number of elements from any
 * place. It writes no more than these. */
static void test_expand(void **state)
{
    enum { ELEMENTS = 150 };
    uint16_t element[ELEMENTS];
    float out[ELEMENTS + 1];

    (void)state;
    for (unsigned i = 0; i < ELEMENTS; i++) {
        element[i] = (uint16_t)(i * 40503u);
    }
    for (size_t o = 0; rounded_table[o] != NULL; o++) {
        for (unsigned first = 0; rounded_table[o]->supported() && first < 20; first++) {
            for (unsigned length = 0; first + length <= ELEMENTS; length++) {
                memset(out, 0x5a, sizeof out);
                rounded_table[o]->expand(element + first, length, out);
                for (unsigned i = 0; i < length; i++) {
                    assert_int_equal(bits_of(out[i]), (uint32_t)element[first + i] << 16);
                }
                assert_int_equal(bits_of(out[length]), 0x5a5a5a5a);
            }
        }
    }
}

/* Every implementation gives the result of the definition, again and again, and the sums stay. */
static void test_definition(void **state)
{
    (void)state;
    for (size_t j = 0; j < sizeof lengths / sizeof *lengths; j++) {
        const uint64_t n = lengths[j];
        for (size_t o = 0; rounded_table[o] != NULL; o++) {
            struct rounded rounded = rounded_make(n);
            struct carry *carries = allocate(chunk_count(n), sizeof *carries);
            float *x = allocate(n, sizeof *x);
            float *copy = allocate(n, sizeof *copy);
            double sums[2], after[2], ledger[2] = {0, 0};
            for (int turn = 0; rounded_table[o]->supported() && turn < 4; turn++) {
                for (uint64_t i = 0; i < n; i++) {
                    copy[i] = x[i] += random_value();
                }
                const double size = magnitude_of(x, n) + 1;
                sums_of(x, carries, n, sums);
                for (uint64_t c = 0; c < chunk_count(n); c++) {
                    const uint64_t rest = n - c * CHUNK;
                    rounded_put(rounded_table[o], &rounded, c, (uint64_t)turn, copy + c * CHUNK,
                        rest < CHUNK ? (unsigned)rest : CHUNK);
                }
                round_plainly(x, n, (uint64_t)turn, carries);
                assert_same_bits(copy, x, n);
                assert_rounded(&rounded, x, carries, n);
                sums_of(x, carries, n, after);
                ledger[0] = ledger[1] = 0;
                rounded_sums(&rounded, n, ledger);
                for (int s = 0; s < 2; s++) {
                    assert_true(fabs(after[s] - sums[s]) < 1e-6 * size);
                    assert_true(fabs(ledger[s] - sums[s]) < 1e-6 * size);
                }
            }
            free(rounded.element);
            free(carries);
            free(x);
            free(copy);
        }
    }
}

/* Steps that are small relative to the resolution of bf16, always the same. No element stays
 * unchanged, and none grows at the cost of another. */
static void test_small_steps(void **state)
{
    (void)state;
    enum { N = 2 * CHUNK + 100, TURNS = 400, KINDS = 4 };
    static const float step[KINDS] = {1e-4f, 3e-4f, -2e-4f, 0};
    struct rounded rounded = rounded_make(N);
    float x[N];
    double mean[KINDS] = {0}, worst = 0;
    for (unsigned i = 0; i < N; i++) {
        x[i] = 1; /* its neighbours are 2^-7 and 2^-8 away */
    }
    rounded_from(&rounded, x, N);
    for (uint64_t turn = 1; turn <= TURNS; turn++) {
        rounded_read(&rounded, 0, N, x);
        for (unsigned i = 0; i < N; i++) {
            x[i] += step[i / 64 % KINDS]; /* along every chain */
        }
        for (unsigned c = 0; c < chunk_count(N); c++) {
            rounded_put(rounded_best(), &rounded, c, turn, x + c * CHUNK, c < 2 ? CHUNK : 100);
        }
    }
    for (unsigned i = 0; i < N; i++) {
        const unsigned kind = i / 64 % KINDS;
        const double off = (double)x[i] - (1 + TURNS * (double)step[kind]);
        worst = fmax(worst, fabs(off));
        mean[kind] += off / N * KINDS;
    }
    /* A random walk of 400 steps, each about half of 2^-7: a deviation of 0.08. */
    assert_true(worst > 0 && worst < 0.4);
    for (unsigned kind = 0; kind < KINDS; kind++) {
        assert_true(fabs(mean[kind]) < 0.01);
    }
    free(rounded.element);
}

/* The error that rounding adds to one element of many chunks, in a residual of its own. */
static void added(uint64_t salt, double error[], uint64_t chunks)
{
    const uint64_t n = chunks * CHUNK;
    struct rounded rounded = rounded_make(n);
    float *x = allocate(n, sizeof *x);
    rounded.salt = salt;
    for (uint64_t i = 0; i < n; i++) {
        x[i] = 1 + (float)random_below(65536) / 65536;
    }
    for (uint64_t c = 0; c < chunks; c++) {
        error[c] = -(double)x[c * CHUNK];
    }
    rounded_from(&rounded, x, n);
    for (uint64_t c = 0; c < chunks; c++) {
        error[c] += (double)convert_bf16(rounded.element[c * CHUNK]);
    }
    free(rounded.element);
    free(x);
}

/* Residuals with different salts, such as those of several nodes, have different errors. In a sum
 * these errors make a random walk. */
static void test_independent(void **state)
{
    (void)state;
    enum { CHUNKS = 2000, RESIDUALS = 4 };
    static double error[RESIDUALS][CHUNKS];
    for (unsigned r = 0; r < RESIDUALS; r++) {
        added(r, error[r], CHUNKS);
    }
    for (unsigned r = 1; r < RESIDUALS; r++) {
        double one = 0, other = 0, both = 0;
        for (unsigned c = 0; c < CHUNKS; c++) {
            one += error[r - 1][c] * error[r - 1][c];
            other += error[r][c] * error[r][c];
            both += error[r - 1][c] * error[r][c];
        }
        /* Four deviations; equal random numbers make it 0.5. */
        assert_true(fabs(both) < 4 / sqrt(CHUNKS) * sqrt(one * other));
    }
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Infinity and NaN stay where they are. */
static void check_infinity(const struct rounded_ops *ops)
{
    enum { N = 300 };
    struct rounded rounded = rounded_make(N);
    float x[N], plain[N];
    struct carry carries[1] = {{{{0}}}};
    for (int i = 0; i < N; i++) {
        static const uint32_t odd[] = {0x7f800000, 0xff800000, 0, 0x7f7fffff, 31, 0x80000000,
            0x7fc00000, 0x7fffffff, 0xffffffff, 0x7fffff00, 0xffc0ffff};
        plain[i] = x[i] = i % 7 == 0 ? float_of(odd[i / 7 % 11]) : random_value();
    }
    rounded_put(ops, &rounded, 0, 5, x, N);
    round_plainly(plain, N, 5, carries);
    for (int i = 0; i < N; i++) {
        float element;
        rounded_read(&rounded, (uint64_t)i, 1, &element);
        assert_int_equal(bits_of(element), bits_of(plain[i]));
        assert_int_equal(bits_of(element), bits_of(x[i]));
        assert_true(isfinite(element) || i % 7 == 0);
    }
    assert_memory_equal(rounded.carry, carries, sizeof carries);
    free(rounded.element);
}

static void test_infinity(void **state)
{
    (void)state;
    for (size_t i = 0; rounded_table[i] != NULL; i++) {
        if (rounded_table[i]->supported()) {
            check_infinity(rounded_table[i]);
        }
    }
}

/* From f32 and back: integers have the same sums to the bit. */
static void test_conversion(void **state)
{
    (void)state;
    for (size_t j = 0; j < sizeof lengths / sizeof *lengths; j++) {
        const uint64_t n = lengths[j];
        struct rounded rounded = rounded_make(n);
        float *x = allocate(n, sizeof *x);
        float *back = allocate(n, sizeof *back);
        double sums[2] = {0, 0}, kept[2] = {0, 0}, after[2] = {0, 0};
        for (uint64_t i = 0; i < n; i++) {
            x[i] = (float)random_below(5000) - 2500;
        }
        rounded_from(&rounded, x, n);
        rounded_to(&rounded, n, back);
        ledger_sums(x, n, sums);
        ledger_sums(back, n, after);
        rounded_sums(&rounded, n, kept);
        for (int s = 0; s < 2; s++) {
            assert_true(kept[s] == sums[s] && after[s] == sums[s]);
        }
        for (uint64_t i = 0; i < n; i++) {
            assert_true(fabsf(back[i] - x[i]) <= 50);
        }
        free(rounded.element);
        free(x);
        free(back);
    }
}

/* ---- the pass ---- */

enum { TURNS = 4 };

/* One residual on which the pass and the plain functions work side by side. */
struct world {
    uint64_t n;
    float *gradient;
    float *plain;
    struct carry *carries;
    struct fused pass;
    struct sparse out;
    struct sparse expected;
    double sums[2];
    double plain_sums[2];
};

static void world_make(struct world *world, struct view view, uint64_t k, bool per_fibre)
{
    const uint64_t n = view_size(&view);
    const size_t entries = per_fibre ? view.fibres * k : k;
    *world = (struct world){.n = n,
        .gradient = allocate(n, sizeof(float)),
        .plain = allocate(n, sizeof(float)),
        .carries = allocate(chunk_count(n), sizeof(struct carry)),
        .out = sparse_make(entries),
        .expected = sparse_make(entries)};
    world->pass = (struct fused){.rounded = rounded_make(n),
        .view = view,
        .k = k,
        .per_fibre = per_fibre,
        .count = 1,
        .dtype = DTYPE_F32,
        .progress = allocate(1, progress_size(n)),
        .hints = random_below(4) == 0 ? NULL : allocate(view.fibres, sizeof(float))};
}

static void world_drop(struct world *world)
{
    free(world->gradient);
    free(world->plain);
    free(world->carries);
    free(world->pass.rounded.element);
    free(world->pass.progress);
    free(world->pass.hints);
    sparse_drop(&world->out);
    sparse_drop(&world->expected);
}

static void expect(struct world *world, struct view view)
{
    const void *const gradients[] = {world->gradient};
    void *scratch = allocate(1, select_scratch(world->n));
    (world->pass.withdraw
            ? (void)withdraw(world->plain, gradients, 1, DTYPE_F32, world->n, world->plain_sums)
            : (void)accumulate(world->plain, gradients, 1, DTYPE_F32, world->n, world->plain_sums));
    round_plainly(world->plain, world->n, world->pass.stamp + 1, world->carries);
    if (world->pass.k > 0) {
        (world->pass.per_fibre ? select_fibres : select_top)(
            world->plain, &view, world->pass.k, &world->expected, scratch);
    }
    free(scratch);
}

static void run(struct world *world, struct view view, struct journal *journal)
{
    const void *const gradients[] = {world->gradient};
    struct fused *pass = &world->pass;
    pass->view = view;
    pass->ranges = 1 + (unsigned)random_below(4);
    pass->stamp++;
    pass->gradients = gradients;
    pass->out = &world->out;
    const size_t scratch = fused_scratch(&view, pass->k, pass->per_fibre, pass->ranges);
    pass->scratch = aligned_alloc(64, (scratch + 63) / 64 * 64);
    assert_non_null(pass->scratch);
    memset(pass->scratch, 0xab, scratch);
    (void)fused_run(pass, journal, world->sums);
    if (random_below(4) == 0) { /* a repetition, which only looks */
        memset(world->out.position, 0xff, world->out.count * sizeof *world->out.position);
        pass->view = view;
        (void)fused_run(pass, journal, world->sums);
    }
    free(pass->scratch);
}

static void compare(const struct world *world)
{
    assert_rounded(&world->pass.rounded, world->plain, world->carries, world->n);
    assert_memory_equal(world->sums, world->plain_sums, sizeof world->sums);
    assert_int_equal(world->out.count, world->expected.count);
    for (size_t i = 0; i < world->out.count; i++) {
        assert_int_equal(world->out.position[i], world->expected.position[i]);
        assert_int_equal(bits_of(world->out.value[i]), bits_of(world->expected.value[i]));
    }
}

/* Subtracts the selected entries from both residuals. */
static void settle(struct world *world, const struct view *view)
{
    for (size_t i = 0; i < world->out.count; i++) {
        const uint64_t element = view_element(view, world->out.position[i]);
        world->pass.rounded.element[element] = 0;
        world->plain[element] = 0;
    }
}

/* Sets hints that were never true. */
static void mislead(struct world *world, uint64_t hints)
{
    static const float odd[] = {0, 1e-30f, 1e30f, INFINITY, NAN, -1.0f};
    for (uint64_t f = 0; world->pass.hints != NULL && f < hints; f++) {
        world->pass.hints[f] = random_below(2) == 0 ? odd[random_below(6)] : fabsf(random_value());
    }
}

/* Withdraws a step on both sides. */
static void undo(struct world *world, struct view view, struct journal *journal)
{
    const uint64_t k = world->pass.k;
    world->pass.k = 0;
    world->pass.withdraw = true;
    world->out.count = world->expected.count = 0;
    expect(world, view);
    run(world, view, journal);
    compare(world);
    world->pass.k = k;
    world->pass.withdraw = false;
}

static void check(
    struct view view, uint64_t k, bool per_fibre, const struct chunk_ops *ops, enum fused_mode mode)
{
    static struct journal journal;
    const enum pattern pattern = (enum pattern)random_below(PATTERN_COUNT);
    struct world world;
    world_make(&world, view, k, per_fibre);
    world.pass.ops = ops;
    for (int turn = 0; turn < TURNS; turn++) {
        struct journal *with = random_below(2) == 0 ? &journal : NULL;
        float *fresh = pattern_make(random_below(8) == 0 ? RANDOM : pattern, world.n);
        memcpy(world.gradient, fresh, world.n * sizeof *fresh);
        free(fresh);
        if (random_below(6) == 0) {
            mislead(&world, per_fibre ? view.fibres : 1);
        }
        expect(&world, view);
        run(&world, view, with);
        assert_true(world.pass.mode == mode || mode == FUSED_BRACKET);
        compare(&world);
        if (random_below(4) == 0) {
            undo(&world, view, with);
        } else {
            settle(&world, &view);
        }
    }
    world_drop(&world);
}

static void check_all(struct view view, uint64_t k, bool per_fibre, enum fused_mode mode)
{
    for (size_t i = 0; chunk_table[i] != NULL; i++) {
        if (chunk_table[i]->supported()) {
            check(view, k, per_fibre, chunk_table[i], mode);
        }
    }
}

static struct view whole(uint64_t n)
{
    return (struct view){.fibres = 1, .length = n, .stride = 1};
}

static void test_global(void **state)
{
    (void)state;
    for (int round = 0; round < 60; round++) {
        const uint64_t n = 16 + random_below(20000);
        check_all(whole(n), 1 + random_below(n / 8), false, FUSED_ROWS);
    }
    for (int round = 0; round < 6; round++) {
        const uint64_t n = 70000 + random_below(200000);
        check_all(whole(n), 1 + random_below(n / 10), false, FUSED_BRACKET);
        check_all(whole(n), 1 + random_below(n / 1000), false, FUSED_BRACKET);
    }
}

/* A global selection from a view of many rows. */
static void test_many_rows(void **state)
{
    (void)state;
    for (int round = 0; round < 10; round++) {
        const struct view view = {2 + random_below(100), 700 + random_below(100), 1};
        const uint64_t n = view_size(&view);
        check_all(view, n / 10, false, n > 1 << 16 ? FUSED_BRACKET : FUSED_ROWS);
        check_all(view, n / 4, false, FUSED_AFTER);
    }
}

/* Selections that the fused pass does not do: dense ones and tiny fibres. */
static void test_plain_selection(void **state)
{
    (void)state;
    for (int round = 0; round < 60; round++) {
        const uint64_t n = 9 + random_below(round % 4 == 0 ? 30000 : 1500);
        const uint64_t k = n / 8 + 1 + random_below(n - n / 8 - 1);
        check_all(whole(n), k, false, FUSED_AFTER);
        const uint64_t length = 1 + random_below(15);
        const uint64_t stride = 1 + random_below(9);
        check_all((struct view){stride * (1 + random_below(100)), length, stride},
            1 + random_below(length), true, FUSED_AFTER);
        check_all((struct view){2, 2000, 2}, 1000 + random_below(1000), true, FUSED_AFTER);
    }
}

static void test_rows(void **state)
{
    (void)state;
    for (int round = 0; round < 100; round++) {
        const uint64_t length =
            round % 10 == 0 ? 1000 + random_below(9000) : 16 + random_below(300);
        check_all((struct view){1 + random_below(30), length, 1}, 1 + random_below(length / 8),
            true, FUSED_ROWS);
        check_all(
            (struct view){1 + random_below(20), 256, 1}, 1 + random_below(32), true, FUSED_ROWS);
    }
}

static void test_slabs(void **state)
{
    (void)state;
    for (int round = 0; round < 100; round++) {
        const uint64_t length = round % 10 == 0 ? 512 : 16 + random_below(100);
        const uint64_t stride = 2 + random_below(round % 5 == 0 ? 300 : 12);
        check_all((struct view){(1 + random_below(4)) * stride, length, stride},
            1 + random_below(length / 8), true, FUSED_SLABS);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expand),
        cmocka_unit_test(test_definition),
        cmocka_unit_test(test_small_steps),
        cmocka_unit_test(test_independent),
        cmocka_unit_test(test_infinity),
        cmocka_unit_test(test_conversion),
        cmocka_unit_test(test_global),
        cmocka_unit_test(test_many_rows),
        cmocka_unit_test(test_plain_selection),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_slabs),
    };
    return cmocka_run_group_tests_name("rounded", tests, NULL, NULL);
}
