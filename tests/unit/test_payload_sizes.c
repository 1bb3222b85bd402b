/* The sizes of index encodings: exact, AUTO never far from the best, and the promise for 1%. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/base/partition.h"
#include "tests/unit/payload_lists.h"

/* A list of one kind: how many of n positions, and which. */
struct kind {
    const char *name;
    void (*fill)(struct sparse *list, uint64_t n, uint64_t count, uint64_t *seed);
};

static void fill_uniform(struct sparse *list, uint64_t n, uint64_t count, uint64_t *seed)
{
    list_sample(list, 0, n, count, seed);
}

/* The same distance everywhere. */
static void fill_strided(struct sparse *list, uint64_t n, uint64_t count, uint64_t *seed)
{
    for (uint64_t i = 0; i < count; i++) {
        list_push(list, i * (n / count), seed);
    }
}

/* All in one place. */
static void fill_block(struct sparse *list, uint64_t n, uint64_t count, uint64_t *seed)
{
    for (uint64_t i = 0; i < count; i++) {
        list_push(list, (n - count) / 2 + i, seed);
    }
}

/* Runs of up to 16 neighbours. */
static void fill_runs(struct sparse *list, uint64_t n, uint64_t count, uint64_t *seed)
{
    uint64_t cell = n * 16 / (count + 15);

    for (uint64_t base = 0; list->count < count; base += cell) {
        uint64_t left = count - list->count, run = left < 16 ? left : 16;
        uint64_t first = base + random_below(seed, cell > run ? cell - run + 1 : 1);

        for (uint64_t j = 0; j < run; j++) {
            list_push(list, first + j, seed);
        }
    }
}

/* Half of them in the first 64th. */
static void fill_layered(struct sparse *list, uint64_t n, uint64_t count, uint64_t *seed)
{
    uint64_t part = n / 64, most = part < count / 2 ? part : count / 2;

    list_sample(list, 0, part, most, seed);
    list_sample(list, part, n - part, count - most, seed);
}

/* The last position there is, and the rest at the beginning. */
static void fill_far(struct sparse *list, uint64_t n, uint64_t count, uint64_t *seed)
{
    for (uint64_t i = 0; i + 1 < count; i++) {
        list_push(list, i, seed);
    }
    list_push(list, n - 1, seed);
}

static const struct kind kinds[] = {{"uniform", fill_uniform}, {"strided", fill_strided},
    {"block", fill_block}, {"runs", fill_runs}, {"layered", fill_layered}, {"far", fill_far}};

enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static uint64_t delta(const struct sparse *list, size_t i)
{
    return list->position[i] - (i == 0 ? 0 : (uint64_t)list->position[i - 1] + 1);
}

/* Bits of a number in base 2. */
static unsigned digits(uint64_t x)
{
    unsigned count = 0;

    for (; x > 0; x /= 2) {
        count++;
    }
    return count;
}

/* Bytes of the positions by the definition of each encoding; SIZE_MAX if it does not have this
 * list. */
static size_t plain_size(
    const struct payload_shape *shape, const struct sparse *list, enum payload_index index)
{
    uint64_t n = view_size(&shape->view), bits = 0, best = UINT64_MAX;
    size_t bytes = 0;

    switch (index) {
    case PAYLOAD_INDEX_RAW: return 4 * list->count;
    case PAYLOAD_INDEX_ROWS:
        return shape->per_fibre == 0 ? SIZE_MAX
                                     : (list->count * digits(shape->view.length - 1) + 7) / 8;
    case PAYLOAD_INDEX_DELTA:
        for (size_t i = 0; i < list->count; i++) {
            uint64_t width = digits(delta(list, i));

            bits = i % 128 == 0 || width > bits ? width : bits;
            if (i % 128 == 127 || i + 1 == list->count) {
                bytes += 1 + (bits * (i % 128 + 1) + 7) / 8;
            }
        }
        return bytes;
    case PAYLOAD_INDEX_RICE:
        for (unsigned k = 0; k < 32; k++) {
            bits = 0;
            for (size_t i = 0; i < list->count; i++) {
                bits += k + (delta(list, i) >> k) + 1;
            }
            best = bits < best ? bits : best;
        }
        return 1 + (best + 7) / 8;
    case PAYLOAD_INDEX_HASHMAP:
        for (uint64_t p = 0; p < n && shape->parts > 1; p++) {
            bits += partition_of(p, shape->parts) == shape->part;
        }
        return ((shape->parts > 1 ? bits : n) + 7) / 8;
    default: return (n + 7) / 8;
    }
}

static size_t frame_size(const struct payload_shape *shape, struct sparse *list,
    enum payload_index index, enum payload_value value)
{
    struct payload_writer writer = {0};
    size_t size;

    frame_begin(&writer);
    assert_int_equal(payload_put_list(&writer, shape, list, index, value), ADTOPK_OK);
    size = writer.size;
    payload_free(&writer);
    return size;
}

static size_t values_size(size_t count, enum payload_value value)
{
    size_t blocks = (count + 127) / 128, plane = (count + 7) / 8;

    switch (value) {
    case PAYLOAD_VALUE_F32: return 4 * count;
    case PAYLOAD_VALUE_INT8: return count + 2 * blocks;
    case PAYLOAD_VALUE_TWO: return 2 * plane + 4 * blocks;
    case PAYLOAD_VALUE_SIGN: return plane + 2 * blocks;
    case PAYLOAD_VALUE_INT4: return 4 * plane + 2 * blocks;
    case PAYLOAD_VALUE_INT3: return 3 * plane + 2 * blocks;
    default: return 2 * count;
    }
}

/* Every encoding takes the bytes of its definition, and AUTO at most 2% more than the best
 * encoding. The section's header and values count, the frame's header does not. */
static void check_sizes(const struct payload_shape *shape, struct sparse *list, const char *what)
{
    for (unsigned v = 0; v < PAYLOAD_VALUE_COUNT; v++) {
        enum payload_value value = (enum payload_value)v;
        size_t rest = PAYLOAD_SECTION_MAX + values_size(list->count, value), best = SIZE_MAX, size;

        for (int i = PAYLOAD_INDEX_RAW; i < PAYLOAD_INDEX_COUNT; i++) {
            size_t wanted = plain_size(shape, list, (enum payload_index)i);

            if (wanted == SIZE_MAX) {
                continue;
            }
            size = frame_size(shape, list, (enum payload_index)i, value) - PAYLOAD_HEADER_SIZE;
            if (size != wanted + rest) {
                fail_msg("%s: encoding %d takes %zu bytes, not %zu", what, i, size, wanted + rest);
            }
            best = size < best ? size : best;
        }
        size = frame_size(shape, list, PAYLOAD_INDEX_AUTO, value) - PAYLOAD_HEADER_SIZE;
        if (size < best || size * 50 > best * 51 || (shape->per_fibre == 0 && size != best)) {
            fail_msg("%s: auto takes %zu bytes, the best %zu", what, size, best);
        }
    }
}

static const double densities[] = {0.05, 0.01, 0.001, 0.0001};
static const uint64_t sizes[] = {1, 30, 1000, 40009, 300000};

enum { DENSITIES = 4, SIZES = 5 };

static void test_global(void **state)
{
    uint64_t seed = 1;

    (void)state;
    for (int i = 0; i < KINDS * DENSITIES * SIZES; i++) {
        const struct kind *kind = &kinds[i % KINDS];
        uint64_t n = sizes[i / KINDS % SIZES];
        uint64_t count = (uint64_t)((double)n * densities[i / KINDS / SIZES]);
        struct payload_shape shape = shape_of(1, n, 1);
        struct sparse list;

        count = count > 0 ? count : 1;
        list = list_make(count);
        kind->fill(&list, n, count, &seed);
        assert_int_equal(list.count, count);
        check_sizes(&shape, &list, kind->name);
        list_free(&list);
    }
}

static void test_rows(void **state)
{
    static const uint64_t lengths[] = {1, 9, 100, 128, 500, 1024, 4096};
    uint64_t seed = 2;

    (void)state;
    for (int i = 0; i < KINDS * DENSITIES * 7; i++) {
        const struct kind *kind = &kinds[i % KINDS];
        uint64_t length = lengths[i / KINDS % 7], fibres = 40000 / length;
        uint64_t each = (uint64_t)((double)length * densities[i / KINDS / 7]);
        struct payload_shape shape = shape_of(fibres, length, 1);
        struct sparse list;

        shape.per_fibre = each > 0 ? each : 1;
        list = list_make(fibres * shape.per_fibre);
        for (uint64_t fibre = 0; fibre < fibres; fibre++) {
            struct sparse row = {.position = list.position + list.count,
                .value = list.value + list.count,
                .capacity = shape.per_fibre};

            kind->fill(&row, length, shape.per_fibre, &seed);
            for (uint64_t j = 0; j < shape.per_fibre; j++) {
                row.position[j] += (uint32_t)(fibre * length);
            }
            list.count += row.count;
        }
        check_sizes(&shape, &list, kind->name);
        list_free(&list);
    }
}

/* A share of one partition, up to all of it. */
static void test_partitions(void **state)
{
    uint64_t seed = 3;

    (void)state;
    for (uint32_t parts = 2; parts < 70; parts = parts * 3 / 2 + 1) {
        for (int d = 0; d < 4; d++) {
            uint64_t n = 40000 + random_below(&seed, 100);
            struct payload_shape shape = shape_of(1, n, 1);
            struct sparse list = list_make(n);

            shape.parts = parts;
            shape.part = (uint32_t)random_below(&seed, parts);
            for (uint64_t p = 0; p < n; p++) {
                if (partition_of(p, parts) == shape.part &&
                    random_below(&seed, 1000) < (uint64_t[]){0, 20, 400, 1000}[d]) {
                    list_push(&list, p, &seed);
                }
            }
            check_sizes(&shape, &list, "partition");
            list_free(&list);
        }
    }
}

/* The promise for 1% and at least 10,000 non-zeros, with the frame: 26 bits with bf16, 42 with f32.
 */
static void check_promise(const struct payload_shape *shape, struct sparse *list, const char *what)
{
    double bf16 = 8.0 * (double)frame_size(shape, list, PAYLOAD_INDEX_AUTO, PAYLOAD_VALUE_BF16) /
                  (double)list->count;
    double f32 = 8.0 * (double)frame_size(shape, list, PAYLOAD_INDEX_AUTO, PAYLOAD_VALUE_F32) /
                 (double)list->count;

    print_message("# %s, %zu: %.2f bits with bf16, %.2f with f32\n", what, list->count, bf16, f32);
    assert_true(list->count >= 10000);
    assert_true(bf16 <= 26);
    assert_true(f32 <= 42);
}

static void test_bits_per_nonzero(void **state)
{
    static const uint64_t lengths[] = {100, 256, 500, 1024, 4096};
    uint64_t seed = 4;

    (void)state;
    for (uint64_t n = 1000000; n <= 4000000; n *= 4) {
        for (int k = 0; k < KINDS; k++) {
            struct payload_shape shape = shape_of(1, n, 1);
            struct sparse list = list_make(n / 100);

            kinds[k].fill(&list, n, n / 100, &seed);
            check_promise(&shape, &list, kinds[k].name);
            list_free(&list);
        }
    }
    for (int l = 0; l < 5; l++) {
        uint64_t length = lengths[l], each = length / 100, fibres = 10000 / each + 1;
        struct payload_shape shape = shape_of(fibres, length, 1);
        struct sparse list = list_make(fibres * each);

        shape.per_fibre = each;
        for (uint64_t fibre = 0; fibre < fibres; fibre++) {
            list_sample(&list, fibre * length, length, each, &seed);
        }
        check_promise(&shape, &list, "rows");
        list_free(&list);
    }
}

/* The bounds keep the same promise for every list of this length, whatever its positions, and for
 * tensors and rows of all sizes. */
static void test_bounds_keep_the_promise(void **state)
{
    (void)state;
    for (uint64_t length = 100; length < 6000; length++) {
        for (uint64_t rows = 0; rows < 2; rows++) {
            uint64_t each = length / 100, fibres = rows ? 10000 / each + 1 : 1;
            uint64_t n = rows ? length : 10000 * length, count = rows ? fibres * each : n / 100;
            struct payload_shape shape = shape_of(fibres, n, 1);
            size_t bf16, f32;

            shape.per_fibre = rows ? each : 0;
            bf16 = PAYLOAD_HEADER_SIZE + payload_list_bound(&shape, count, PAYLOAD_VALUE_BF16);
            f32 = PAYLOAD_HEADER_SIZE + payload_list_bound(&shape, count, PAYLOAD_VALUE_F32);
            assert_true(count >= 10000 && 8 * bf16 <= 26 * count && 8 * f32 <= 42 * count);
        }
    }
}

/* A bucket of many tensors takes a frame's header, positions and values as in their definition, and
 * at most 8 bytes per tensor besides. */
static void test_bytes_per_tensor(void **state)
{
    enum { TENSORS = 1000 };
    uint64_t seed = 5;
    struct payload_writer writer = {0};
    size_t bodies = 0;

    (void)state;
    frame_begin(&writer);
    for (unsigned t = 0; t < TENSORS; t++) {
        uint64_t n = 1 + random_below(&seed, 5000), count = 1 + random_below(&seed, n);
        enum payload_index index =
            (enum payload_index[]){PAYLOAD_INDEX_RAW, PAYLOAD_INDEX_DELTA, PAYLOAD_INDEX_BITMAP,
                PAYLOAD_INDEX_RICE, PAYLOAD_INDEX_HASHMAP}[random_below(&seed, 5)];
        enum payload_value value = (enum payload_value)random_below(&seed, PAYLOAD_VALUE_COUNT);
        struct payload_shape shape = shape_of(1, n, 1);
        struct sparse list = list_make(count);

        fill_uniform(&list, n, count, &seed);
        if (t % 4 == 0) {
            assert_int_equal(payload_put_dense(&writer, list.value, count, value, NULL), ADTOPK_OK);
        } else {
            assert_int_equal(payload_put_list(&writer, &shape, &list, index, value), ADTOPK_OK);
            bodies += plain_size(&shape, &list, index);
        }
        bodies += values_size(count, value);
        list_free(&list);
    }
    payload_end(&writer);
    assert_int_equal(PAYLOAD_HEADER_SIZE, 64);
    assert_true(writer.size - PAYLOAD_HEADER_SIZE - bodies <= (size_t)8 * TENSORS);
    payload_free(&writer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_global),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_partitions),
        cmocka_unit_test(test_bits_per_nonzero),
        cmocka_unit_test(test_bounds_keep_the_promise),
        cmocka_unit_test(test_bytes_per_tensor),
    };

    return cmocka_run_group_tests_name("payload_sizes", tests, NULL, NULL);
}
