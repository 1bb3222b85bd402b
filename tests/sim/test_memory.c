/*
 * No memory: the same small run again and again, each time with other allocations failing. Every
 * run must end, by itself or with an error that says so, and nothing may be lost or differ on the
 * way. The linker puts these functions before the allocator's (--wrap).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sim/world.h"

#define RUNS 400u  /* of each kind, spread over all allocations of a run */
#define OUTAGE 30u /* allocations that fail in a row in an outage; below sim_alloc()'s patience */

static uint64_t allocations;
static uint64_t fail_from, fail_to; /* numbers of the allocations that fail */

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *pointer, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *pointer, size_t size);

static bool fails(void)
{
    uint64_t number = allocations++;

    return number >= fail_from && number < fail_to;
}

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return fails() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *pointer, size_t size)
{
    return fails() ? NULL : __real_realloc(pointer, size);
}

static const struct scenario scenario = {
    .seed = 11,
    .nodes = 2,
    .ranks_per_node = 2,
    .steps = 2,
    .operations = 2,
    .policy = "{\"reduce\":\"sum\",\"density\":0.05,\"bucket_bytes\":1500,\"sparsifier\":\"auto\"}",
    .delay_us = 100,
    .loss = 0.02,
    .max_us = 600000000,
};

/* All ranks ended well, or some rank was told of the lack of memory. (A rank that is refused only
 * a request hears of it alone; the others then miss it.) */
static bool ended_well(const struct world *world)
{
    bool all_done = true, told = false;

    for (unsigned i = 0; i < world->trainers; i++) {
        const struct trainer *trainer = &world->trainer[i];
        all_done = all_done && trainer->state == TRAINER_DONE;
        told = told || strstr(trainer->error.text, "memory") != NULL;
    }
    for (unsigned i = 0; !all_done && !told && i < world->trainers; i++) {
        (void)printf("# rank %u: %s\n", i, world->trainer[i].error.text);
    }
    return all_done || told;
}

static bool run(uint64_t from, uint64_t to)
{
    struct world *world = world_create(&scenario);
    bool ok;

    allocations = 0;
    fail_from = from;
    fail_to = to;
    world->job[0].may_fail = from != UINT64_MAX;
    ok = world_run(world);
    fail_from = fail_to = UINT64_MAX;
    ok = ok && ended_well(world);
    if (!ok) {
        (void)printf("# allocations %llu to %llu fail: %s\n", (unsigned long long)from,
            (unsigned long long)to, world->violation);
    }
    world_destroy(world);
    return ok;
}

static void run_all(uint64_t outage)
{
    uint64_t total, step;
    unsigned failed = 0;

    assert_true(run(UINT64_MAX, UINT64_MAX));
    total = allocations;
    step = total / RUNS + 1;
    for (uint64_t from = 0; from < total; from += step) {
        failed += run(from, from + outage) ? 0 : 1;
    }
    (void)printf("# %llu allocations in a run, failed in turn by %llu\n", (unsigned long long)total,
        (unsigned long long)outage);
    assert_int_equal(failed, 0);
}

static void test_one_fails(void **state)
{
    (void)state;
    run_all(1);
}

static void test_outage(void **state)
{
    (void)state;
    run_all(OUTAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_fails),
        cmocka_unit_test(test_outage),
    };

    fail_from = fail_to = UINT64_MAX;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
