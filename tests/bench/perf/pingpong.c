#include "tests/bench/perf/pingpong.h"

#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/bench/perf/clock.h"
#include "tests/bench/perf/data.h"
#include "tests/bench/perf/process.h"

#define PAUSES_PER_YIELD 32
#define LINE 64

/* Shared by both processes; `ball` is 2 * trip + (1 on the way out, 2 on the way back). */
struct table {
    _Alignas(LINE) _Atomic uint32_t ball;
    _Alignas(LINE) uint64_t count;
    enum pingpong_wait wait;
    uint64_t pause_us;
    double time[];
};

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void wait_for(struct table *table, uint32_t wanted)
{
    uint32_t seen = atomic_load_explicit(&table->ball, memory_order_acquire);

    for (unsigned spins = 0; seen != wanted; spins++) {
        if (table->wait == PINGPONG_FUTEX) {
            (void)syscall(SYS_futex, &table->ball, FUTEX_WAIT, seen, NULL, NULL, 0);
        } else if (spins % PAUSES_PER_YIELD == PAUSES_PER_YIELD - 1) {
            (void)sched_yield();
        } else {
            relax();
        }
        seen = atomic_load_explicit(&table->ball, memory_order_acquire);
    }
}

static void throw(struct table * table, uint32_t ball)
{
    atomic_store_explicit(&table->ball, ball, memory_order_release);
    if (table->wait == PINGPONG_FUTEX) {
        (void)syscall(SYS_futex, &table->ball, FUTEX_WAKE, 1, NULL, NULL, 0);
    }
}

static int play(void *context, unsigned side)
{
    struct table *table = context;

    for (uint32_t trip = 0; trip < table->count; trip++) {
        if (side == 0) {
            uint64_t begin;

            if (table->pause_us > 0) {
                process_sleep_us(table->pause_us);
            }
            begin = clock_ns();
            throw(table, 2 * trip + 1);
            wait_for(table, 2 * trip + 2);
            table->time[trip] = clock_us_between(begin, clock_ns());
        } else {
            wait_for(table, 2 * trip + 1);
            throw(table, 2 * trip + 2);
        }
    }
    return 0;
}

enum adtopk_status pingpong_run(uint64_t count, enum pingpong_wait wait, uint64_t pause_us,
    struct series *times, struct error *err)
{
    const size_t size = sizeof(struct table) + count * sizeof(double);
    struct table *table = data_map(size);
    struct crew crew = {.count = 0};
    enum adtopk_status status = ADTOPK_OK;

    if (table == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for %zu bytes", size);
    }
    table->count = count;
    table->wait = wait;
    table->pause_us = pause_us;
    for (unsigned side = 0; side < 2 && status == ADTOPK_OK; side++) {
        status = crew_start(&crew, play, table, side, err);
    }
    if (status == ADTOPK_OK) {
        status = crew_wait(&crew, err);
    }
    crew_kill(&crew);
    for (uint64_t i = 0; i < count && status == ADTOPK_OK && table->time[i] > 0; i++) {
        if (!series_add(times, table->time[i])) {
            status = error_set(err, ADTOPK_ERR_MEMORY, "no memory for the samples");
        }
    }
    data_unmap(table, size);
    return status;
}
