#include "client/src/copy.h"

#include <stdint.h>
#include <string.h>

#ifdef __x86_64__
#include <emmintrin.h>
#endif

/* Of such an array little would be left in the caches, whichever way it is copied. */
#define COPY_LARGE ((size_t)2 << 20)

#define COPY_LINE 64u
/* Elements that are put together in the nearest cache. */
#define COPY_BLOCK 1024u

#ifdef __x86_64__
/* memcpy() first reads the lines that it writes. Streaming stores do not. */
static void copy_lines(uint8_t *to, const uint8_t *from, size_t lines)
{
    for (size_t i = 0; i < lines * COPY_LINE; i += COPY_LINE) {
        for (size_t j = i; j < i + COPY_LINE; j += sizeof(__m128i)) {
            _mm_stream_si128((__m128i *)(void *)(to + j),
                _mm_loadu_si128((const __m128i *)(const void *)(from + j)));
        }
    }
}

/* Before other threads may read what copy_lines() has written. */
static void copy_done(void)
{
    _mm_sfence();
}
#else
static void copy_lines(uint8_t *to, const uint8_t *from, size_t lines)
{
    memcpy(to, from, lines * COPY_LINE);
}

static void copy_done(void)
{
}
#endif

static size_t copy_before_line(const void *to)
{
    return (COPY_LINE - (uintptr_t)to % COPY_LINE) % COPY_LINE;
}

static void copy_large(uint8_t *to, const uint8_t *from, size_t bytes)
{
    const size_t unaligned = copy_before_line(to);
    const size_t before = unaligned < bytes ? unaligned : bytes;
    const size_t lines = (bytes - before) / COPY_LINE;
    const size_t done = before + lines * COPY_LINE;

    memcpy(to, from, before);
    copy_lines(to + before, from + before, lines);
    memcpy(to + done, from + done, bytes - done);
}

void client_copy(void *to, const void *from, size_t bytes)
{
    if (bytes >= COPY_LARGE) {
        copy_large(to, from, bytes);
        copy_done();
    } else {
        memcpy(to, from, bytes);
    }
}

/* Writes all elements, block by block. Returns how many entries were among them: those before the
 * first one that is in an earlier block than its predecessor. */
static size_t copy_entries(
    float *to, size_t numel, const uint32_t *index, const float *value, size_t count)
{
    float block[COPY_BLOCK] = {0};
    /* Every block but the first begins with a line. */
    size_t size = copy_before_line(to) / sizeof *to;
    size_t done = 0;

    for (size_t begin = 0; begin < numel; begin += size, size = COPY_BLOCK) {
        const size_t first = done;

        size = size < numel - begin ? size : numel - begin;
        for (; done < count && index[done] >= begin && index[done] - begin < size; done++) {
            block[index[done] - begin] = value[done];
        }
        copy_large((uint8_t *)(to + begin), (const uint8_t *)block, size * sizeof *to);
        for (size_t i = first; i < done; i++) {
            block[index[i] - begin] = 0;
        }
    }
    copy_done();
    return done;
}

void client_copy_list(
    float *to, size_t numel, const uint32_t *index, const float *value, size_t count)
{
    size_t done = 0;

    if (numel * sizeof *to >= COPY_LARGE) {
        done = copy_entries(to, numel, index, value, count);
    } else {
        memset(to, 0, numel * sizeof *to);
    }
    for (; done < count; done++) {
        to[index[done]] = value[done];
    }
}
