#include "daemon/loop/turns.h"

#include <string.h>
#include <time.h>

static uint64_t turns_cpu_us(void)
{
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

void turns_begin(struct turns *turns, uint64_t now_us)
{
    *turns = (struct turns){.now_us = now_us,
        .mark_us = now_us,
        .mark_cpu_us = turns_cpu_us(),
        .slot = now_us / TURNS_SLOT_US};
}

/* Clears the slots whose time began since the last call. */
static void turns_advance(struct turns *turns, uint64_t now_us)
{
    const uint64_t slot = now_us / TURNS_SLOT_US;

    if (slot - turns->slot >= TURNS_SLOTS) {
        (void)memset(turns->recent_us, 0, sizeof(turns->recent_us));
        turns->slot = slot;
    }
    while (turns->slot < slot) {
        turns->slot++;
        turns->recent_us[turns->slot % TURNS_SLOTS] = 0;
    }
}

void turns_measure(struct turns *turns, uint64_t now_us)
{
    const uint64_t cpu_us = turns_cpu_us();
    const uint64_t wall_us = now_us - turns->now_us;
    const uint64_t spent_us = cpu_us - turns->mark_cpu_us;
    const uint64_t turn_us = spent_us < wall_us ? spent_us : wall_us;
    uint64_t *recent_us;

    turns_advance(turns, now_us);
    recent_us = &turns->recent_us[turns->slot % TURNS_SLOTS];
    *recent_us = turn_us > *recent_us ? turn_us : *recent_us;
    turns->longest_us = turn_us > turns->longest_us ? turn_us : turns->longest_us;
    turns->mark_us = now_us;
    turns->mark_cpu_us = cpu_us;
}

uint64_t turns_last_minute_us(const struct turns *turns)
{
    uint64_t longest_us = 0;

    for (unsigned i = 0; i < TURNS_SLOTS; i++) {
        longest_us = turns->recent_us[i] > longest_us ? turns->recent_us[i] : longest_us;
    }
    return longest_us;
}
