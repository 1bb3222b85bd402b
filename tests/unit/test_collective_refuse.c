/*
 * Frames that a collective must refuse. Also plain operations: their results, and members that call
 * different ones.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/arrays.h"
#include "tests/unit/collective_group.h"

#define MEMBERS 3
#define NUMEL 30

/* Three members and one tensor of 30 elements, with memory for every member's contribution. */
struct fixture {
    struct group group;
    struct exchange_tensor tensor[MEMBERS];
    uint32_t position[MEMBERS][NUMEL], update_position[MEMBERS][NUMEL];
    float value[MEMBERS][NUMEL], update_value[MEMBERS][NUMEL];
    float acc[MEMBERS][NUMEL], dense[MEMBERS][NUMEL];
    int16_t low[MEMBERS][NUMEL];
};

static void fixture_init(struct fixture *fixture, const struct collective_ops *ops)
{
    memset(fixture, 0, sizeof(*fixture));
    group_init(&fixture->group, ops, MEMBERS);
    for (unsigned m = 0; m < MEMBERS; m++) {
        for (unsigned i = 0; i < NUMEL; i++) {
            fixture->acc[m][i] = random_value();
            fixture->position[m][i] = i;
        }
        fixture->tensor[m] = (struct exchange_tensor){
            .shape = {.view = {1, NUMEL, 1}, .max_count = 4},
            .numel = NUMEL,
            .acc = fixture->acc[m],
            .sent = {fixture->position[m], fixture->value[m], 4, NUMEL},
            .update = {fixture->update_position[m], fixture->update_value[m], 0, 4 * MEMBERS},
            .dense = fixture->dense[m],
        };
        fixture->group.exchange[m].rest =
            (struct exchange_rest){.low = fixture->low[m], .room = NUMEL};
        fixture->group.exchange[m].tensors = 1;
        fixture->group.exchange[m].tensor = &fixture->tensor[m];
    }
}

/* Spoils all frames of an exchange. */
static void spoil_frames(const struct collective_ops *ops, enum payload_value value)
{
    static struct fixture fixture;

    fixture_init(&fixture, ops);
    group_set_values(&fixture.group, value, 1);
    group_exchange(&fixture.group);
    assert_true(group_each_frame(&fixture.group, group_spoil) >= MEMBERS);
    group_free(&fixture.group);
}

static void test_spoiled_frames(void **state)
{
    const struct collective_ops *const kinds[] = {&collective_allgather, &collective_balanced,
        &collective_hierarchical, &collective_pairwise, &collective_ring, &collective_halving};

    (void)state;
    for (unsigned k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        spoil_frames(kinds[k], PAYLOAD_VALUE_F32);
    }
    spoil_frames(&collective_pairwise, PAYLOAD_VALUE_BF16);
    spoil_frames(&collective_ring, PAYLOAD_VALUE_BF16);
    spoil_frames(&collective_ring, PAYLOAD_VALUE_F16);
}

enum section {
    SECTION_NONE,
    SECTION_LIST,
    SECTION_LONG_LIST,
    SECTION_DENSE,
    SECTION_SHORT_DENSE,
    SECTION_BYTES
};

/* Appends a section about the fixture's tensor, or about the slice that the frame should have. */
static void put_section(struct payload_writer *writer, enum section section, unsigned slice)
{
    static const float values[NUMEL];
    const struct payload_shape shape = {.view = {1, NUMEL, 1}, .max_count = NUMEL};
    uint32_t position[NUMEL];
    float value[NUMEL] = {0};
    struct sparse list = {position, value, section == SECTION_LONG_LIST ? 5 : 4, NUMEL};
    enum adtopk_status status = ADTOPK_OK;

    for (unsigned i = 0; i < NUMEL; i++) {
        position[i] = i;
    }
    switch (section) {
    case SECTION_NONE: break;
    case SECTION_LIST:
    case SECTION_LONG_LIST:
        status = payload_put_list(writer, &shape, &list, PAYLOAD_INDEX_AUTO, PAYLOAD_VALUE_F32);
        break;
    case SECTION_DENSE:
    case SECTION_SHORT_DENSE:
        status = payload_put_dense(
            writer, values, section == SECTION_DENSE ? slice : slice - 1, PAYLOAD_VALUE_F32, NULL);
        break;
    case SECTION_BYTES: status = payload_put_bytes(writer, values, 16); break;
    }
    assert_int_equal(status, ADTOPK_OK);
}

/* A frame that some phase waits for. */
struct due {
    const struct collective_ops *ops;
    unsigned phase, from, to;
    unsigned right; /* sections that it may have, a bit each */
    unsigned slice; /* elements */
};

/* Makes a well-formed frame with these two sections. */
static void forge(
    struct group *group, const struct due *due, enum section first, enum section second)
{
    struct payload_writer writer = group_begin(group, due->phase, due->from);

    put_section(&writer, first, due->slice);
    put_section(&writer, second, due->slice);
    group_end(group, due->phase, due->from, due->to, &writer);
}

static void check_sections(const struct due *due, enum section first, enum section second)
{
    static struct fixture fixture;
    struct error err;

    fixture_init(&fixture, due->ops);
    group_exchange(&fixture.group);
    forge(&fixture.group, due, first, second);
    if ((due->right >> first & 1) != 0 && second == SECTION_NONE) {
        assert_int_equal(group_judge(&fixture.group, due->phase, due->to, &err), ADTOPK_OK);
    } else {
        group_assert_blamed(&fixture.group, due->phase, due->from, due->to);
    }
    group_free(&fixture.group);
}

#define LIST (1u << SECTION_LIST)
#define DENSE (1u << SECTION_DENSE)
/* A sum of several lists may be longer than a list, and may be sent as all elements. */
#define SUM (LIST | 1u << SECTION_LONG_LIST | DENSE)

static void test_wrong_sections(void **state)
{
    static const struct due dues[] = {
        {&collective_allgather, 0, 1, 0, LIST, 10},
        {&collective_pairwise, 0, 1, 0, DENSE, 10},
        {&collective_pairwise, 1, 1, 0, DENSE, 10},
        {&collective_ring, 0, 2, 0, DENSE, 10},
        {&collective_ring, 1, 0, 1, DENSE, 10},
        {&collective_ring, 2, 1, 2, DENSE, 10},
        {&collective_ring, 3, 2, 0, DENSE, 10},
        {&collective_halving, 0, 1, 0, DENSE, 30}, /* 1 is an extra, 0 and 2 are cores */
        {&collective_halving, 1, 2, 0, DENSE, 15},
        {&collective_halving, 2, 0, 2, DENSE, 15},
        {&collective_halving, 3, 0, 1, DENSE, 30},
        {&collective_hierarchical, 0, 1, 0, LIST, 30},
        {&collective_hierarchical, 1, 2, 0, LIST, 30},
        {&collective_hierarchical, 1, 0, 2, SUM, 30},
        {&collective_hierarchical, 2, 0, 1, SUM, 30},
    };

    (void)state;
    for (unsigned d = 0; d < sizeof(dues) / sizeof(dues[0]); d++) {
        for (int section = SECTION_NONE; section <= SECTION_BYTES; section++) {
            check_sections(&dues[d], (enum section)section, SECTION_NONE);
            if (section != SECTION_NONE) { /* one section too many */
                check_sections(&dues[d], (dues[d].right & LIST) != 0 ? SECTION_LIST : SECTION_DENSE,
                    (enum section)section);
            }
        }
    }
}

/* Plain operations. Each member has `m % 3 + 1` local ranks with 10 values each. */

#define VALUES 10
#define OP_BYTES (VALUES * sizeof(float))

struct plain {
    struct group group;
    struct exchange_op op[GROUP_MAX];
    float input[GROUP_MAX][3][VALUES];
    const void *inputs[GROUP_MAX][3];
    float result[GROUP_MAX][VALUES];
};

static void plain_init(struct plain *plain, unsigned members, enum op_kind kind, unsigned root)
{
    memset(plain, 0, sizeof(*plain));
    group_init(&plain->group, &collective_plain, members);
    for (unsigned m = 0; m < members; m++) {
        for (unsigned r = 0; r < 3; r++) {
            plain->inputs[m][r] = plain->input[m][r];
            for (unsigned i = 0; i < VALUES; i++) {
                plain->input[m][r][i] = random_value();
            }
        }
        plain->op[m] = (struct exchange_op){
            .kind = kind,
            .root = root,
            .size = kind == OP_BARRIER ? 0 : OP_BYTES,
            .has_root = m == root,
            .inputs = kind == OP_BROADCAST ? m == root : m % 3 + 1,
            .input = plain->inputs[m],
            .result = plain->result[m],
        };
        plain->group.exchange[m].op = &plain->op[m];
    }
}

static void test_broadcast(void **state)
{
    static struct plain plain;

    (void)state;
    for (unsigned members = 1; members <= GROUP_MAX; members++) {
        for (unsigned root = 0; root < members; root++) {
            plain_init(&plain, members, OP_BROADCAST, root);
            group_exchange(&plain.group);
            group_finish(&plain.group);
            for (unsigned m = 0; m < members; m++) {
                assert_memory_equal(plain.result[m], plain.input[root][0], OP_BYTES);
            }
            group_free(&plain.group);
        }
    }
}

/* Sums within a node in the order of its ranks, then in the order of the nodes. */
static float plain_sum(const struct plain *plain, unsigned i, double *wide)
{
    float sum = 0;

    *wide = 0;
    for (unsigned m = 0; m < plain->group.members; m++) {
        float node = plain->input[m][0][i];
        *wide += (double)plain->input[m][0][i];
        for (unsigned r = 1; r < plain->op[m].inputs; r++) {
            node += plain->input[m][r][i];
            *wide += (double)plain->input[m][r][i];
        }
        sum = m == 0 ? node : sum + node;
    }
    return sum;
}

static void test_plain_allreduce(void **state)
{
    static struct plain plain;

    (void)state;
    for (unsigned members = 1; members <= GROUP_MAX; members++) {
        plain_init(&plain, members, OP_ALLREDUCE, 0);
        group_exchange(&plain.group);
        group_finish(&plain.group);
        for (unsigned m = 0; m < members; m++) {
            for (unsigned i = 0; i < VALUES; i++) {
                double wide, got = (double)plain.result[m][i];
                float sum = plain_sum(&plain, i, &wide);
                assert_true(got - wide < 1e-5 && wide - got < 1e-5);
                assert_int_equal(bits_of(plain.result[m][i]), bits_of(sum));
            }
        }
        group_free(&plain.group);
    }
}

static void test_barrier(void **state)
{
    static const float untouched[VALUES];
    static struct plain plain;

    (void)state;
    for (unsigned members = 1; members <= GROUP_MAX; members++) {
        plain_init(&plain, members, OP_BARRIER, 0);
        group_exchange(&plain.group);
        group_finish(&plain.group);
        for (unsigned m = 0; m < members; m++) {
            assert_memory_equal(plain.result[m], untouched, sizeof(untouched));
        }
        group_free(&plain.group);
    }
}

/* Operations without bytes are barriers. */
static void test_empty_operations(void **state)
{
    static const enum op_kind kinds[] = {OP_BROADCAST, OP_ALLREDUCE};
    static struct plain plain;

    (void)state;
    for (unsigned k = 0; k < 2; k++) {
        plain_init(&plain, 4, kinds[k], 2);
        for (unsigned m = 0; m < 4; m++) {
            plain.op[m].size = 0;
        }
        group_exchange(&plain.group);
        group_finish(&plain.group);
        group_free(&plain.group);
    }
}

/* Checks that both nodes get the error, and that each error names both nodes. */
static void assert_mismatch(struct group *group)
{
    for (unsigned m = 0; m < 2; m++) {
        struct error err;
        char names[48];
        (void)snprintf(names, sizeof(names), "nodes %u and %u", group->node[m], group->node[1 - m]);
        if (group_judge(group, 0, m, &err) != ADTOPK_ERR_MISMATCH ||
            strstr(err.text, names) == NULL) {
            fail_msg("node %u says \"%s\"", group->node[m], err.text);
        }
    }
}

static void test_different_operations(void **state)
{
    static const struct {
        enum op_kind kind[2];
        uint32_t root[2], size[2];
    } cases[] = {
        {{OP_BARRIER, OP_ALLREDUCE}, {0, 0}, {0, OP_BYTES}},
        {{OP_BROADCAST, OP_ALLREDUCE}, {0, 0}, {OP_BYTES, OP_BYTES}},
        {{OP_BROADCAST, OP_BARRIER}, {0, 0}, {OP_BYTES, 0}},
        {{OP_BROADCAST, OP_BROADCAST}, {0, 1}, {OP_BYTES, OP_BYTES}},
        {{OP_BROADCAST, OP_BROADCAST}, {0, 0}, {OP_BYTES, OP_BYTES - 4}},
        {{OP_ALLREDUCE, OP_ALLREDUCE}, {0, 0}, {OP_BYTES, OP_BYTES - 4}},
        {{OP_ALLREDUCE, OP_ALLREDUCE}, {0, 0}, {0, OP_BYTES}},
    };
    static struct plain plain;

    (void)state;
    for (unsigned c = 0; c < 2 * sizeof(cases) / sizeof(cases[0]); c++) {
        plain_init(&plain, 2, OP_ALLREDUCE, 0);
        for (unsigned m = 0; m < 2; m++) {
            unsigned side = (m + c) % 2; /* either node may be the one that differs */
            plain.op[m].kind = cases[c / 2].kind[side];
            plain.op[m].root = cases[c / 2].root[side];
            plain.op[m].size = cases[c / 2].size[side];
            plain.op[m].has_root = plain.op[m].root == m;
        }
        group_exchange(&plain.group);
        assert_mismatch(&plain.group);
        group_free(&plain.group);
    }
}

static void test_spoiled_operations(void **state)
{
    static struct plain plain;

    (void)state;
    for (int kind = OP_BARRIER; kind < OP_KIND_COUNT; kind++) {
        plain_init(&plain, 2, (enum op_kind)kind, 1);
        group_exchange(&plain.group);
        group_spoil(&plain.group, 0, 0, 1);
        group_spoil(&plain.group, 0, 1, 0);
        for (int section = SECTION_NONE; section <= SECTION_SHORT_DENSE; section++) {
            const struct due due = {.from = 1, .slice = 10};
            forge(&plain.group, &due, (enum section)section, SECTION_NONE);
            group_assert_blamed(&plain.group, 0, 1, 0);
        }
        group_free(&plain.group);
    }
}

#define DESCRIBED 20u /* kind, root, size, step */

/* Node 1's frame with a right descriptor and `size` bytes of data. */
static void forge_data(struct plain *plain, size_t size)
{
    struct payload_writer writer = group_begin(&plain->group, 0, 1);
    uint8_t bytes[DESCRIBED + 2 * OP_BYTES] = {0};
    const struct exchange_op *op = &plain->op[1];

    bytes[0] = (uint8_t)op->kind;
    bytes[4] = (uint8_t)op->root;
    bytes[8] = (uint8_t)op->size;
    assert_int_equal(payload_put_bytes(&writer, bytes, DESCRIBED + size), ADTOPK_OK);
    group_end(&plain->group, 0, 1, 0, &writer);
}

static void test_wrong_data(void **state)
{
    static struct plain plain;
    struct error err;

    (void)state;
    plain_init(&plain, 2, OP_ALLREDUCE, 0);
    group_exchange(&plain.group);
    forge_data(&plain, OP_BYTES);
    assert_int_equal(group_judge(&plain.group, 0, 0, &err), ADTOPK_OK);
    forge_data(&plain, 0); /* a node that has nothing to contribute */
    assert_int_equal(group_judge(&plain.group, 0, 0, &err), ADTOPK_OK);
    forge_data(&plain, OP_BYTES - 4);
    group_assert_blamed(&plain.group, 0, 1, 0);
    forge_data(&plain, OP_BYTES + 4);
    group_assert_blamed(&plain.group, 0, 1, 0);
    group_free(&plain.group);

    plain_init(&plain, 2, OP_BROADCAST, 1);
    group_exchange(&plain.group);
    forge_data(&plain, 0); /* the root has no bytes */
    assert_int_equal(group_judge(&plain.group, 0, 0, &err), ADTOPK_ERR_PROTOCOL);
    assert_non_null(strstr(err.text, "broadcast root 1"));
    group_free(&plain.group);
}

/* Each list is short enough for a member with many ranks, but together they are too long for the
 * update. */
static void test_too_many_entries(void **state)
{
    static struct fixture fixture;
    struct error err;

    (void)state;
    for (unsigned to = 0; to < MEMBERS; to++) {
        unsigned greedy = (to + 1) % MEMBERS;
        fixture_init(&fixture, &collective_allgather);
        for (unsigned m = 0; m < MEMBERS; m++) {
            fixture.tensor[m].shape.max_count = 12;
            fixture.tensor[m].sent.count = m == greedy ? 12 : 4;
            for (unsigned i = 0; i < NUMEL; i++) {
                fixture.position[m][i] = m == greedy ? i : 15 + 4 * m + i;
            }
        }
        group_produce(&fixture.group, 0);
        group_assert_blamed(&fixture.group, 0, greedy, to);
        fixture.tensor[to].update.capacity = 20; /* as many as the lists have */
        assert_int_equal(group_judge(&fixture.group, 0, to, &err), ADTOPK_OK);
        assert_int_equal(fixture.tensor[to].update.count, 20);
        group_free(&fixture.group);
    }
}

/* The same with sums. Only the whole is too long, so the error blames the member that added the
 * last. */
static void test_too_many_sums(void **state)
{
    static const unsigned blamed[MEMBERS] = {2, 0, 0};
    static struct fixture fixture;

    (void)state;
    for (unsigned to = 0; to < MEMBERS; to++) {
        struct error err;
        fixture_init(&fixture, &collective_hierarchical);
        for (unsigned m = 0; m < MEMBERS; m++) {
            fixture.tensor[m].shape.max_count = 12;
            fixture.tensor[m].sent.count = m == 1 ? 12 : 4;
            for (unsigned i = 0; i < NUMEL; i++) {
                fixture.position[m][i] = m == 1 ? i : 15 + 4 * m + i;
                fixture.value[m][i] = 1;
            }
        }
        for (unsigned phase = 0; phase < 3; phase++) {
            group_produce(&fixture.group, phase);
        }
        fixture.tensor[to].update.capacity = 20; /* as many as the sums have */
        assert_int_equal(group_judge(&fixture.group, 2, to, &err), ADTOPK_OK);
        assert_int_equal(fixture.tensor[to].update.count, 20);
        fixture.tensor[to].update.capacity = 19;
        group_assert_blamed(&fixture.group, 2, blamed[to], to);
        group_free(&fixture.group);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spoiled_frames),
        cmocka_unit_test(test_wrong_sections),
        cmocka_unit_test(test_too_many_entries),
        cmocka_unit_test(test_too_many_sums),
        cmocka_unit_test(test_broadcast),
        cmocka_unit_test(test_plain_allreduce),
        cmocka_unit_test(test_barrier),
        cmocka_unit_test(test_empty_operations),
        cmocka_unit_test(test_different_operations),
        cmocka_unit_test(test_spoiled_operations),
        cmocka_unit_test(test_wrong_data),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
