/*
 * A buffer: immutable bytes with a reference count, so that one encoded frame can be queued for
 * many peers without a copy. The count is not atomic: buffers belong to the core's thread. A
 * compute may fill a buffer that no other code has seen yet.
 */
#ifndef ADTOPK_BUFFER_H
#define ADTOPK_BUFFER_H

#include <stddef.h>
#include <stdint.h>

struct buffer {
    uint32_t references;
    size_t size;
    uint8_t *bytes;
};

/** A buffer with one reference and `size` writable bytes, or NULL without memory. */
struct buffer *buffer_new(size_t size);

/** Takes over malloc'ed `bytes` (also when it fails and returns NULL, which frees them). */
struct buffer *buffer_adopt(uint8_t *bytes, size_t size);

struct buffer *buffer_ref(struct buffer *buffer);

/** Copies bytes into a buffer that nobody else holds. */
void buffer_put(struct buffer *buffer, size_t offset, const void *bytes, size_t size);

/** Drops a reference; NULL is allowed. */
void buffer_unref(struct buffer *buffer);

#endif
