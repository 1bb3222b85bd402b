#include "kernels/base/ahead.h"

#include <stddef.h>

enum {
    STRETCH = 16,      /* chunks: a quarter of a MiB of a residual in f32 */
    POINTS_MOST = 16,  /* more are not counted, because the machine may change */
    POINTS_ENOUGH = 6, /* with fewer, every pair is measured */
    CHOICES_APART = 64 /* with more, one pair in so many choices is */
};

struct ahead_range ahead_begin(struct ahead *ahead, enum ahead_kind kind, uint64_t chunks)
{
    return ahead == NULL
               ? (struct ahead_range){.learned = NULL}
               : (struct ahead_range){
                     .now_ns = ahead->now_ns, .learned = &ahead->of[kind], .left = chunks};
}

/* Points may get lost if two threads change them at once: there will be more. */
static void ahead_point(struct ahead_points *learned, bool fetching)
{
    const int points =
        atomic_load_explicit(&learned->points, memory_order_relaxed) + (fetching ? 1 : -1);

    if (points >= -POINTS_MOST && points <= POINTS_MOST) {
        atomic_store_explicit(&learned->points, points, memory_order_relaxed);
    }
}

/* Whether the next two stretches are measured. */
static bool ahead_is_due(struct ahead_points *learned, unsigned choice)
{
    const int points = atomic_load_explicit(&learned->points, memory_order_relaxed);

    return choice % CHOICES_APART == 0 || (points > -POINTS_ENOUGH && points < POINTS_ENOUGH);
}

/* The measured stretch is over. */
static void ahead_measured(struct ahead_range *range)
{
    const uint64_t now_ns = range->now_ns();
    const uint64_t took_ns = now_ns - range->begun_ns;

    if (range->measured == 1) {
        range->first_ns = took_ns;
        range->fetches = !range->fetches;
        range->begun_ns = now_ns;
        range->measured = 2;
        return;
    }
    ahead_point(range->learned, range->fetches == (took_ns < range->first_ns));
    range->measured = 0;
}

/* Begins a stretch that belongs to no pair yet. */
static void ahead_choose(struct ahead_range *range)
{
    struct ahead_points *const learned = range->learned;

    range->fetches = atomic_load_explicit(&learned->points, memory_order_relaxed) > 0;
    if (!range->begun || range->left < 2 * STRETCH) {
        range->begun = true;
        return;
    }
    const unsigned choice = atomic_fetch_add_explicit(&learned->choices, 1, memory_order_relaxed);
    if (ahead_is_due(learned, choice)) {
        range->fetches = (choice + choice / CHOICES_APART) % 2 == 0; /* each is first as often */
        range->measured = 1;
        range->begun_ns = range->now_ns();
    }
}

bool ahead_next(struct ahead_range *range)
{
    if (range->learned == NULL) {
        return false;
    }
    if (range->in_stretch == 0) {
        if (range->measured > 0) {
            ahead_measured(range);
        }
        if (range->measured == 0) {
            ahead_choose(range);
        }
        range->in_stretch = STRETCH;
    }
    range->in_stretch--;
    range->left--;
    return range->fetches;
}

void ahead_end(struct ahead_range *range)
{
    if (range->measured == 2 && range->in_stretch == 0) {
        ahead_measured(range);
    }
}
