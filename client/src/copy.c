#include "client/src/copy.h"

#include <stdint.h>
#include <string.h>

#ifdef __x86_64__
#include <emmintrin.h>
#endif

/* Of such an array little would be left in the caches, whichever way it is copied. */
#define COPY_LARGE ((size_t)2 << 20)

#ifdef __x86_64__
#define COPY_LINE 64u

/* memcpy() first reads the lines that it writes. Streaming stores do not. */
static void copy_lines(uint8_t *to, const uint8_t *from, size_t lines)
{
    for (size_t i = 0; i < lines * COPY_LINE; i += COPY_LINE) {
        for (size_t j = i; j < i + COPY_LINE; j += sizeof(__m128i)) {
            _mm_stream_si128((__m128i *)(void *)(to + j),
                _mm_loadu_si128((const __m128i *)(const void *)(from + j)));
        }
    }
    _mm_sfence();
}

static void copy_large(uint8_t *to, const uint8_t *from, size_t bytes)
{
    const size_t before = (COPY_LINE - (uintptr_t)to % COPY_LINE) % COPY_LINE;
    const size_t lines = (bytes - before) / COPY_LINE;
    const size_t done = before + lines * COPY_LINE;

    memcpy(to, from, before);
    copy_lines(to + before, from + before, lines);
    memcpy(to + done, from + done, bytes - done);
}
#else
static void copy_large(uint8_t *to, const uint8_t *from, size_t bytes)
{
    memcpy(to, from, bytes);
}
#endif

void client_copy(void *to, const void *from, size_t bytes)
{
    if (bytes >= COPY_LARGE) {
        copy_large(to, from, bytes);
    } else {
        memcpy(to, from, bytes);
    }
}
