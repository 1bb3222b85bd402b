#include "proto/codec.h"

#include <stdlib.h>

struct budget {
    size_t left;
};

static void *budget_alloc(void *data, size_t size)
{
    struct budget *budget = data;

    if (size > budget->left) {
        return NULL;
    }
    budget->left -= size;
    return malloc(size > 0 ? size : 1);
}

static void budget_free(void *data, void *pointer)
{
    (void)data;
    free(pointer);
}

ProtobufCMessage *codec_unpack(const ProtobufCMessageDescriptor *type, const void *bytes,
    size_t size, size_t limit, struct error *err)
{
    struct budget budget = {.left = size * CODEC_EXPANSION + CODEC_SLACK};
    ProtobufCAllocator allocator = {
        .alloc = budget_alloc, .free = budget_free, .allocator_data = &budget};
    ProtobufCMessage *message;

    if (size > limit) {
        (void)error_set(err, ADTOPK_ERR_PROTOCOL,
            "a %s message of %zu bytes is over the %zu allowed", type->short_name, size, limit);
        return NULL;
    }
    message = protobuf_c_message_unpack(type, &allocator, size, bytes);
    if (message == NULL) {
        (void)error_set(err, ADTOPK_ERR_PROTOCOL,
            "a malformed %s message of %zu bytes, or no memory to read it", type->short_name, size);
    }
    return message;
}

void codec_free(ProtobufCMessage *message)
{
    ProtobufCAllocator allocator = {.alloc = budget_alloc, .free = budget_free};

    if (message != NULL) {
        protobuf_c_message_free_unpacked(message, &allocator);
    }
}

uint8_t *codec_pack(const ProtobufCMessage *message, size_t *size)
{
    size_t length = protobuf_c_message_get_packed_size(message);
    uint8_t *bytes = malloc(length > 0 ? length : 1);

    if (bytes != NULL) {
        *size = protobuf_c_message_pack(message, bytes);
    }
    return bytes;
}
