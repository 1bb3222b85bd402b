/*
 * A buffer: immutable bytes with a reference count, so that one encoded frame can be queued for
 * many peers without a copy. A transport may hold references too, and drop them on a thread of its
 * own. Everything else about a buffer belongs to the core's thread. A compute may fill a buffer
 * that no other code has seen yet.
 */
#ifndef ADTOPK_BUFFER_H
#define ADTOPK_BUFFER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of so many bytes or more the CRC is kept, and joined with others: to read fewer costs less. */
#define BUFFER_KNOWN_MIN (64u << 10)

struct buffer {
    atomic_uint references;
    size_t size;
    uint8_t *bytes;
    void (*release)(void *context); /* frees the bytes */
    void *context;
    bool known;   /* whether `crc` is */
    uint32_t crc; /* crc32c() of all bytes */
};

/** A buffer with one reference and `size` writable bytes, or NULL without memory. */
struct buffer *buffer_new(size_t size);

/** Takes over malloc'ed `bytes` (also when it fails and returns NULL, which frees them). */
struct buffer *buffer_adopt(uint8_t *bytes, size_t size);

/** A buffer of bytes that release(context) frees, on whichever thread drops the last reference.
 * Without memory it returns NULL and releases nothing. */
struct buffer *buffer_wrap(
    uint8_t *bytes, size_t size, void (*release)(void *context), void *context);

struct buffer *buffer_ref(struct buffer *buffer);

/** Copies bytes into a buffer that nobody else holds. */
void buffer_put(struct buffer *buffer, size_t offset, const void *bytes, size_t size);

/** Drops a reference; NULL is allowed. Callable from any thread. */
void buffer_unref(struct buffer *buffer);

#endif
