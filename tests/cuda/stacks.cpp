/*
 * To map and to protect stacks takes longer than a small launch, so a few sets are kept.
 */
#include "tests/cuda/stacks.h"

#include <cstdlib>
#include <sys/mman.h>

#if defined(SHIM_ASAN)
#include <sanitizer/asan_interface.h>
#endif

enum : unsigned { KEPT = 4 };

static char *stacks_kept[KEPT];
static unsigned stacks_count;

char *stacks_take(unsigned fibres)
{
    if (stacks_count > 0) {
        return stacks_kept[--stacks_count];
    }
    void *bytes = mmap(nullptr, fibres * STACK, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (bytes == MAP_FAILED) {
        std::abort();
    }
    for (unsigned f = 0; f < fibres; f++) {
        if (mprotect(static_cast<char *>(bytes) + f * STACK, 4096, PROT_NONE) != 0) {
            std::abort();
        }
    }
    return static_cast<char *>(bytes);
}

void stacks_give(char *stacks, unsigned fibres, bool cut)
{
    if (cut) {
#if defined(SHIM_ASAN)
        __asan_unpoison_memory_region(stacks, fibres * STACK);
#endif
    }
    if (stacks_count < KEPT) {
        stacks_kept[stacks_count++] = stacks;
        return;
    }
    (void)munmap(stacks, fibres * STACK);
}
