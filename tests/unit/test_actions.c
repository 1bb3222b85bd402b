/* The queue of actions has room for all actions that may wait, and takes memory only for those that
 * do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include <string.h>

#include "daemon/job/actions.h"
#include "daemon/job/model.h"
#include "lone_core.h"

#define STEPS 100u
#define MARK 0xa5

/* However long a job trains, the queue writes no slot beyond those of its longest burst. */
static void test_bursts(void **state)
{
    struct tensor_spec spec[LONE_TENSORS];
    char name[LONE_TENSORS][8];
    struct lone_core lone;
    const uint8_t *slots;
    size_t size, used = 0;

    (void)state;
    for (unsigned t = 0; t < LONE_TENSORS; t++) {
        (void)snprintf(name[t], sizeof(name[t]), "t%u", t);
        spec[t] = lone_spec(name[t], 1, (const uint64_t[]){8});
    }
    lone_start(&lone, LONE_RANKS, "{\"bucket_bytes\":1}", spec, LONE_TENSORS);
    assert_int_equal(lone.host.core->queue_count, 0);
    slots = (const uint8_t *)lone.host.core->queue;
    size = lone.host.core->queue_size * sizeof(*lone.host.core->queue);
    (void)memset(lone.host.core->queue, MARK, size);
    lone_train(&lone, STEPS);
    assert_ptr_equal(lone.host.core->queue, slots);
    for (size_t i = 0; i < size; i++) {
        used = slots[i] != MARK ? i : used;
    }
    assert_true(STEPS * LONE_RANKS * LONE_TENSORS > lone.host.core->queue_size);
    assert_in_range(used / sizeof(*lone.host.core->queue), 0, LONE_RANKS * LONE_TENSORS);
    lone_free(&lone);
}

static void count_failed(void *context, const struct action *action)
{
    *(unsigned *)context += action->type == ACTION_FAILED ? 1 : 0;
}

/* More ranks have opened than the queue has room for at first, and all hear that one of them is
 * lost before any could commit. */
static void test_many_open(void **state)
{
    const unsigned ranks = ACTIONS_MIN + 100;
    unsigned failed = 0;
    struct host host = {.config = {.node = LONE_NODE, .threads = 1},
        .tick_us = 1,
        .note = count_failed,
        .context = &failed};

    (void)state;
    host_start(&host);
    for (unsigned r = 0; r < ranks; r++) {
        const struct event open = {.type = EVENT_RANK_OPEN,
            .session = r + 1,
            .open = {.key = {.name = "job", .run_id = "1"}, .rank = r, .world_size = ranks}};

        assert_int_equal(host_event(&host, open), ADTOPK_OK);
    }
    assert_int_equal(
        host_event(&host, (struct event){.type = EVENT_RANK_LOST, .session = 1}), ADTOPK_OK);
    assert_int_equal(failed, ranks - 1);
    host_stop(&host);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bursts),
        cmocka_unit_test(test_many_open),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
