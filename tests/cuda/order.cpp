/*
 * The thread sanitizer has no fences. So each fence releases an object of its own. An atomic access
 * leaves the thread's last fence with the word, and takes along those that it finds there; the
 * thread's next fence acquires them. All of this lives until no launch is left.
 */
#include "tests/cuda/order.h"

#if defined(SHIM_TSAN)
#include <sanitizer/tsan_interface.h>

#include <cstdint>
#include <cstdlib>

struct order_seen {
    char *fence;
    unsigned by; /* whose */
    order_seen *next;
};

enum : unsigned { FENCES = 1 << 16, NOTES = 1 << 20, WORDS = 1 << 16 };

/* Where they lie is the same for all launches; a fence of an earlier launch is before all of this
 * one. */
static char fence[FENCES][8];
static order_seen note[NOTES];
static struct word {
    const void *address;
    order_seen *seen;
} word[WORDS];
static unsigned used[WORDS]; /* words in the table */
static unsigned fences, notes, words, launches;

void order_begin()
{
    if (launches++ == 0) {
        for (unsigned w = 0; w < words; w++) {
            word[used[w]] = {nullptr, nullptr};
        }
        fences = notes = words = 0;
    }
}

void order_end()
{
    launches--;
}

void order_release(char *object)
{
    __tsan_release(object);
}

void order_acquire(char *object)
{
    __tsan_acquire(object);
}

/* Only the last fence of a thread counts: it orders what the earlier ones did. */
static void order_add(order_seen **list, char *last, unsigned by)
{
    for (order_seen *s = *list; s != nullptr; s = s->next) {
        if (s->by == by) {
            s->fence = last;
            return;
        }
    }
    if (notes == NOTES) {
        std::abort();
    }
    note[notes] = {last, by, *list};
    *list = &note[notes++];
}

static struct word *order_word(const void *address)
{
    const uint64_t hash = reinterpret_cast<uintptr_t>(address) / 4 * 0x9e3779b97f4a7c15u;
    unsigned at = static_cast<unsigned>(hash >> 40) % WORDS;
    while (word[at].address != nullptr && word[at].address != address) {
        at = (at + 1) % WORDS;
    }
    if (word[at].address == nullptr) {
        if (words == WORDS - 1) {
            std::abort();
        }
        used[words++] = at;
        word[at].address = address;
    }
    return &word[at];
}

void order_touch(order_thread *thread, const void *address)
{
    struct word *const there = order_word(address);
    for (order_seen *s = there->seen; s != nullptr; s = s->next) {
        order_add(&thread->seen, s->fence, s->by);
    }
    if (thread->fence != nullptr) {
        order_add(&there->seen, thread->fence, thread->number);
    }
}

void order_fence(order_thread *thread)
{
    for (order_seen *s = thread->seen; s != nullptr; s = s->next) {
        __tsan_acquire(s->fence);
    }
    thread->seen = nullptr;
    if (fences == FENCES) {
        std::abort();
    }
    thread->fence = fence[fences++];
    __tsan_release(thread->fence);
}

#else

void order_begin()
{
}

void order_end()
{
}

void order_release(char *)
{
}

void order_acquire(char *)
{
}

void order_touch(order_thread *, const void *)
{
}

void order_fence(order_thread *)
{
}

#endif
