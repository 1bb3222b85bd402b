#include "windows.h"

#include <stdlib.h>

static int windows_allocate(struct windows *windows, size_t most)
{
    *windows = (struct windows){.list = calloc(most, sizeof *windows->list)};
    return windows->list ? 0 : -1;
}

int windows_to_train(struct windows *windows, const size_t *positions, size_t count, size_t context)
{
    if (windows_allocate(windows, count) != 0) {
        return -1;
    }
    for (size_t first = 0; first + context <= count; first++) {
        const size_t start = positions[first];
        if (positions[first + context - 1] == start + context - 1) {
            windows->list[windows->count++] = (struct window){start, context};
        }
    }
    return 0;
}

int windows_to_test(struct windows *windows, const size_t *positions, size_t count, size_t context)
{
    if (windows_allocate(windows, count) != 0) {
        return -1;
    }
    for (size_t first = 0; first < count;) {
        struct window *window = &windows->list[windows->count++];
        window->start = positions[first];
        while (window->scored < context && first < count &&
               positions[first] == window->start + window->scored) {
            window->scored++;
            first++;
        }
    }
    return 0;
}

void windows_free(struct windows *windows)
{
    free(windows->list);
    *windows = (struct windows){0};
}
