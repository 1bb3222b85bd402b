#include "daemon/loop/iterations.h"

#include <string.h>
#include <time.h>

static uint64_t iterations_cpu_us(void)
{
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

void iterations_begin(struct iterations *iterations, uint64_t now_us)
{
    *iterations = (struct iterations){.now_us = now_us,
        .mark_us = now_us,
        .mark_cpu_us = iterations_cpu_us(),
        .slot = now_us / ITERATIONS_SLOT_US};
}

/* Clears the slots whose time began since the last call. */
static void iterations_advance(struct iterations *iterations, uint64_t now_us)
{
    const uint64_t slot = now_us / ITERATIONS_SLOT_US;

    if (slot - iterations->slot >= ITERATIONS_SLOTS) {
        (void)memset(iterations->recent_us, 0, sizeof(iterations->recent_us));
        iterations->slot = slot;
    }
    while (iterations->slot < slot) {
        iterations->slot++;
        iterations->recent_us[iterations->slot % ITERATIONS_SLOTS] = 0;
    }
}

void iterations_measure(struct iterations *iterations, uint64_t now_us)
{
    const uint64_t cpu_us = iterations_cpu_us();
    const uint64_t wall_us = now_us - iterations->now_us;
    const uint64_t spent_us = cpu_us - iterations->mark_cpu_us;
    const uint64_t iteration_us = spent_us < wall_us ? spent_us : wall_us;
    uint64_t *recent_us;

    iterations_advance(iterations, now_us);
    recent_us = &iterations->recent_us[iterations->slot % ITERATIONS_SLOTS];
    *recent_us = iteration_us > *recent_us ? iteration_us : *recent_us;
    iterations->longest_us =
        iteration_us > iterations->longest_us ? iteration_us : iterations->longest_us;
    iterations->mark_us = now_us;
    iterations->mark_cpu_us = cpu_us;
}

uint64_t iterations_last_minute_us(const struct iterations *iterations)
{
    uint64_t longest_us = 0;

    for (unsigned i = 0; i < ITERATIONS_SLOTS; i++) {
        longest_us = iterations->recent_us[i] > longest_us ? iterations->recent_us[i] : longest_us;
    }
    return longest_us;
}
