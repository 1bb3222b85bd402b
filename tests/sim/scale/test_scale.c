/*
 * The model of a network against times worked out by hand, and the group against volumes that are
 * known, with every sparse collective there is.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/sim/scale/group.h"

/* Numbers that are exact: a byte takes 2^-20 s, a way 2^-4 s. */
#define BYTE 0x1p-20
#define WAY 0x1p-4

static const struct fabric_links full = {.latency = WAY, .bandwidth = 1 / BYTE, .narrowing = 1};

static void send(struct fabric *fabric, double now, unsigned from, unsigned to, uint64_t bytes)
{
    assert_true(fabric_send(fabric, now,
        &(struct fabric_message){.from = from, .to = to, .bytes = bytes, .cargo = fabric}));
}

static void arrives(struct fabric *fabric, unsigned from, unsigned to, double at)
{
    struct fabric_message message;
    double now;

    assert_true(fabric_next(fabric, &message, &now));
    assert_ptr_equal(message.cargo, fabric);
    assert_int_equal(message.from, from);
    assert_int_equal(message.to, to);
    assert_true(now == at);
}

static void closes(struct fabric *fabric)
{
    struct fabric_message message;
    double now;

    assert_false(fabric_next(fabric, &message, &now));
    fabric_close(fabric);
}

static void test_one_message(void **state)
{
    struct fabric_links links = full;
    struct fabric *fabric = fabric_open(&links, 2);

    (void)state;
    assert_non_null(fabric);
    send(fabric, 3, 0, 1, 1000);
    arrives(fabric, 0, 1, 3 + WAY + 1000 * BYTE);
    send(fabric, 5, 1, 0, 0);
    arrives(fabric, 1, 0, 5 + WAY);
    closes(fabric);
    links.overhead = 24;
    fabric = fabric_open(&links, 2);
    assert_non_null(fabric);
    send(fabric, 0, 0, 1, 1000);
    arrives(fabric, 0, 1, WAY + 1024 * BYTE);
    closes(fabric);
}

/* A node's link carries one after the other, out and in; both ways at a time. */
static void test_busy_links(void **state)
{
    struct fabric *fabric = fabric_open(&full, 4);

    (void)state;
    assert_non_null(fabric);
    send(fabric, 0, 0, 1, 1000);
    send(fabric, 0, 0, 2, 500);
    send(fabric, 0, 1, 0, 1000);
    arrives(fabric, 0, 1, WAY + 1000 * BYTE);
    arrives(fabric, 1, 0, WAY + 1000 * BYTE);
    arrives(fabric, 0, 2, WAY + 1500 * BYTE);
    closes(fabric);
    fabric = fabric_open(&full, 4); /* three to one: it takes them in turn */
    assert_non_null(fabric);
    send(fabric, 0, 1, 0, 1000);
    send(fabric, 0, 2, 0, 1000);
    send(fabric, 100 * BYTE, 3, 0, 10);
    arrives(fabric, 1, 0, WAY + 1000 * BYTE);
    arrives(fabric, 2, 0, WAY + 2000 * BYTE);
    arrives(fabric, 3, 0, WAY + 2010 * BYTE);
    closes(fabric);
}

/* Four nodes in racks of two, whose links carry a quarter: half a node's. */
static void test_narrowed_racks(void **state)
{
    const struct fabric_links links = {
        .latency = WAY, .bandwidth = 1 / BYTE, .rack = 2, .narrowing = 4};
    struct fabric *fabric = fabric_open(&links, 5);

    (void)state;
    assert_non_null(fabric);
    send(fabric, 0, 0, 1, 1000); /* within the rack: as ever */
    arrives(fabric, 0, 1, WAY + 1000 * BYTE);
    send(fabric, 1, 0, 2, 1000); /* as slow as the rack's link */
    arrives(fabric, 0, 2, 1 + WAY + 2000 * BYTE);
    send(fabric, 2, 0, 2, 1000); /* two share it */
    send(fabric, 2, 1, 3, 1000);
    arrives(fabric, 0, 2, 2 + WAY + 2000 * BYTE);
    arrives(fabric, 1, 3, 2 + WAY + 4000 * BYTE);
    send(fabric, 3, 0, 2, 1000); /* from two racks to one */
    send(fabric, 3, 4, 3, 1000);
    arrives(fabric, 0, 2, 3 + WAY + 2000 * BYTE);
    arrives(fabric, 4, 3, 3 + WAY + 4000 * BYTE);
    closes(fabric);
}

/* A rack's link that is as wide as those of its nodes together delays no message. */
static void test_full_tree(void **state)
{
    const struct fabric_links links = {
        .latency = WAY, .bandwidth = 1 / BYTE, .rack = 2, .narrowing = 1};
    struct fabric *fabric = fabric_open(&links, 4);

    (void)state;
    assert_non_null(fabric);
    for (unsigned round = 0; round < 3; round++) {
        send(fabric, 0, 0, 2, 1000);
        send(fabric, 0, 1, 3, 1000);
    }
    for (unsigned round = 1; round <= 3; round++) {
        arrives(fabric, 0, 2, WAY + 1000 * round * BYTE);
        /* The other's first byte waits for half of this one on the shared link, once. */
        arrives(fabric, 1, 3, WAY + (1000 * round + 500) * BYTE);
    }
    closes(fabric);
}

/* ------------------------------------------------------------------ the group */

static void step(const struct collective_ops *ops, unsigned nodes, const struct group_input *input,
    struct group_step *out)
{
    char text[ERROR_TEXT_SIZE] = "";
    struct group *group = group_open(ops, nodes, input, nodes);

    assert_non_null(group);
    group_encode(group, PAYLOAD_INDEX_RAW, PAYLOAD_VALUE_F32);
    for (unsigned i = 0; i < 2; i++) {
        if (!group_run(group, &full, out, text)) {
            fail_msg("%s, %u nodes, %llu entries: %s", ops->name, nodes,
                (unsigned long long)input->entries, text);
        }
    }
    group_close(group);
}

static void check(const struct collective_ops *ops, unsigned nodes, uint64_t entries)
{
    const struct group_input input = {.numel = 3000,
        .entries = entries,
        .overlap = 0.5,
        .first_eighth = 0.6,
        .drift = 1,
        .seed = nodes};
    struct group_step out;

    step(ops, nodes, &input, &out);
    assert_true(out.entries <= (double)entries);
    assert_true(out.entries >= 0.3 * (double)entries);
    assert_true(out.update <= (uint64_t)(out.entries * nodes + 0.5));
    if (nodes == 1) {
        assert_true(out.seconds == 0 && out.bytes == 0 && out.messages == 0 && out.imbalance == 1);
        assert_int_equal(out.update, (uint64_t)out.entries);
    } else {
        assert_true(out.seconds > WAY && out.messages > 0 && out.imbalance >= 1);
        assert_true((double)out.bytes_max >= out.bytes && (double)out.sent_max >= out.bytes);
    }
}

static void test_every_collective(void **state)
{
    (void)state;
    for (unsigned c = 0; collective_table[c] != NULL; c++) {
        for (unsigned nodes = 1; nodes <= 17 && group_takes(collective_table[c]); nodes++) {
            check(collective_table[c], nodes, 0);
            check(collective_table[c], nodes, 1);
            check(collective_table[c], nodes, 300);
            check(collective_table[c], nodes, 3000);
        }
    }
}

/* All-gather has one message from every node to every other: its volume and time are known. */
static void test_known(void **state)
{
    const struct group_input input = {.numel = 100000,
        .entries = 100,
        .overlap = 1,
        .first_eighth = 0.125,
        .drift = 1,
        .seed = 1};
    const double nodes = 9;
    struct group_step out;
    double list, frame;

    (void)state;
    step(&collective_allgather, 9, &input, &out);
    assert_true(out.entries == 100);
    assert_int_equal(out.update, 100); /* all overlap */
    assert_int_equal(out.messages, 8);
    assert_true(out.headers == (nodes - 1) * PAYLOAD_HEADER_SIZE);
    list = out.bytes / (nodes - 1);
    frame = list + PAYLOAD_HEADER_SIZE;
    assert_true(list >= 8 * 100 && list < 8 * 100 + 32);
    assert_true(out.imbalance == 1);
    assert_true(fabs(out.seconds - (WAY + (nodes - 1) * frame * BYTE)) < 1e-12);
}

/* A received byte takes its time, in each phase. */
static void test_compute(void **state)
{
    const struct group_input input = {
        .numel = 1000, .entries = 100, .overlap = 1, .first_eighth = 0.125, .drift = 1, .seed = 1};
    struct group *group = group_open(&collective_allgather, 4, &input, 1);
    struct group_step without, with;
    char text[ERROR_TEXT_SIZE];

    (void)state;
    assert_non_null(group);
    assert_true(group_run(group, &full, &without, text));
    group_close(group);
    group = group_open(&collective_allgather, 4, &input, 1);
    assert_non_null(group);
    group_compute(group, 0x1p-8);
    assert_true(group_run(group, &full, &with, text));
    group_close(group);
    assert_true(fabs(with.seconds - without.seconds - with.bytes * 0x1p-8) < 1e-9);
}

/* Everything of a step that fails is freed: no node gets a frame that this one never sends. */
static bool expects_more(const struct exchange *exchange, unsigned phase, unsigned from)
{
    return exchange->self == 0 || collective_allgather.expects(exchange, phase, from);
}

static bool expects_none(const struct exchange *exchange, unsigned phase, unsigned from)
{
    return exchange->self != 2 && collective_allgather.expects(exchange, phase, from);
}

static void test_broken_collective(void **state)
{
    const struct group_input input = {
        .numel = 1000, .entries = 100, .overlap = 1, .first_eighth = 0.125, .drift = 1, .seed = 1};
    struct collective_ops ops = collective_allgather;
    char text[ERROR_TEXT_SIZE];

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct group_step out;
        struct group *group;
        ops.expects = i == 0 ? expects_more : expects_none;
        group = group_open(&ops, 5, &input, 1);
        assert_non_null(group);
        assert_false(group_run(group, &full, &out, text));
        assert_string_equal(text, i == 0 ? "some members wait for frames that nobody sent"
                                         : "a member got a frame that it does not expect");
        group_close(group);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_message),
        cmocka_unit_test(test_busy_links),
        cmocka_unit_test(test_narrowed_racks),
        cmocka_unit_test(test_full_tree),
        cmocka_unit_test(test_every_collective),
        cmocka_unit_test(test_known),
        cmocka_unit_test(test_compute),
        cmocka_unit_test(test_broken_collective),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
