#include "daemon/link/buffer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct buffer *buffer_adopt(uint8_t *bytes, size_t size)
{
    struct buffer *buffer = malloc(sizeof(*buffer));

    if (buffer == NULL) {
        free(bytes);
        return NULL;
    }
    *buffer = (struct buffer){.references = 1, .size = size, .bytes = bytes};
    return buffer;
}

struct buffer *buffer_new(size_t size)
{
    uint8_t *bytes = malloc(size > 0 ? size : 1);

    return bytes != NULL ? buffer_adopt(bytes, size) : NULL;
}

struct buffer *buffer_ref(struct buffer *buffer)
{
    assert(buffer->references > 0);
    buffer->references++;
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
    if (buffer == NULL) {
        return;
    }
    assert(buffer->references > 0);
    if (--buffer->references == 0) {
        free(buffer->bytes);
        free(buffer);
    }
}
