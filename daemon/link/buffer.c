#include "daemon/link/buffer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct buffer *buffer_wrap(
    uint8_t *bytes, size_t size, void (*release)(void *context), void *context)
{
    struct buffer *buffer = calloc(1, sizeof(*buffer));

    if (buffer != NULL) {
        buffer->size = size;
        buffer->bytes = bytes;
        buffer->release = release;
        buffer->context = context;
        atomic_store_explicit(&buffer->references, 1, memory_order_release);
    }
    return buffer;
}

struct buffer *buffer_adopt(uint8_t *bytes, size_t size)
{
    struct buffer *buffer = buffer_wrap(bytes, size, free, bytes);

    if (buffer == NULL) {
        free(bytes);
    }
    return buffer;
}

struct buffer *buffer_new(size_t size)
{
    uint8_t *bytes = malloc(size > 0 ? size : 1);

    return bytes != NULL ? buffer_adopt(bytes, size) : NULL;
}

/* A thread of libzmq may drop the last reference. So whatever was written before is to be seen
 * there. */
struct buffer *buffer_ref(struct buffer *buffer)
{
    const unsigned references =
        atomic_fetch_add_explicit(&buffer->references, 1, memory_order_release);

    assert(references > 0);
    (void)references;
    return buffer;
}

void buffer_put(struct buffer *buffer, size_t offset, const void *bytes, size_t size)
{
    assert(buffer->references == 1);
    assert(offset <= buffer->size && size <= buffer->size - offset);
    if (size > 0) {
        memcpy(buffer->bytes + offset, bytes, size);
    }
}

void buffer_unref(struct buffer *buffer)
{
    unsigned references;

    if (buffer == NULL) {
        return;
    }
    references = atomic_fetch_sub_explicit(&buffer->references, 1, memory_order_acq_rel);
    assert(references > 0);
    if (references == 1) {
        buffer->release(buffer->context);
        free(buffer);
    }
}
