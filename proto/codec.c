#include "proto/codec.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct budget {
    size_t left;
    bool starved; /* the system had no memory for it */
};

static void *budget_alloc(void *data, size_t size)
{
    struct budget *budget = data;
    void *memory;

    if (size > budget->left) {
        return NULL;
    }
    budget->left -= size;
    memory = malloc(size > 0 ? size : 1);
    budget->starved = budget->starved || memory == NULL;
    return memory;
}

static void budget_free(void *data, void *pointer)
{
    (void)data;
    free(pointer);
}

/* Reads an integer of up to 10 bytes and moves `at` behind it. */
static uint64_t read_varint(const uint8_t **at, const uint8_t *end)
{
    uint64_t value = 0;

    for (unsigned shift = 0; *at < end && shift < 64; shift += 7) {
        const uint8_t byte = *(*at)++;

        value |= (uint64_t)(byte & 0x7F) << shift;
        if ((byte & 0x80) == 0) {
            break;
        }
    }
    return value;
}

/* Moves `at` behind a field's value. Returns how many bytes a delimited field holds; they end
 * where `at` is then. */
static uint64_t skip_value(const uint8_t **at, const uint8_t *end, unsigned wire)
{
    uint64_t size = wire == PROTOBUF_C_WIRE_TYPE_64BIT   ? 8
                    : wire == PROTOBUF_C_WIRE_TYPE_32BIT ? 4
                                                         : 0;

    if (wire == PROTOBUF_C_WIRE_TYPE_VARINT || wire == PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED) {
        const uint64_t value = read_varint(at, end);

        size = wire == PROTOBUF_C_WIRE_TYPE_VARINT ? 0 : value;
    }
    size = size < (uint64_t)(end - *at) ? size : (uint64_t)(end - *at);
    *at += size;
    return size;
}

/* Finds a field whose string has a NUL in it, and the NUL's place; NULL if there is none. One
 * name would have many spellings, because protobuf-c takes such a string for the part before the
 * NUL. */
static const ProtobufCFieldDescriptor *find_nul(
    const ProtobufCMessageDescriptor *type, const uint8_t *at, const uint8_t *end, size_t *byte)
{
    while (at < end) {
        const uint64_t tag = read_varint(&at, end);
        const ProtobufCFieldDescriptor *field =
            protobuf_c_message_descriptor_get_field(type, (unsigned)(tag >> 3));
        const uint64_t size = skip_value(&at, end, tag & 7);
        const uint8_t *value = at - size;
        const uint8_t *nul = NULL;

        if (field == NULL || (tag & 7) != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED) {
            continue;
        }
        if (field->type == PROTOBUF_C_TYPE_STRING && size > 0 &&
            (nul = memchr(value, '\0', size)) != NULL) {
            *byte = (size_t)(nul - value) + 1;
            return field;
        }
        if (field->type == PROTOBUF_C_TYPE_MESSAGE &&
            (field = find_nul(field->descriptor, value, at, byte)) != NULL) {
            return field;
        }
    }
    return NULL;
}

/* True, with err, if a string of the message has a NUL in it. */
static bool has_nul(
    const ProtobufCMessageDescriptor *type, const void *bytes, size_t size, struct error *err)
{
    size_t byte = 0;
    const ProtobufCFieldDescriptor *field =
        size > 0 ? find_nul(type, bytes, (const uint8_t *)bytes + size, &byte) : NULL;

    if (field == NULL) {
        return false;
    }
    (void)error_set(err, ADTOPK_ERR_PROTOCOL, "the field %s of a %s message has a NUL, byte %zu",
        field->name, type->short_name, byte);
    return true;
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
    if (has_nul(type, bytes, size, err)) {
        return NULL;
    }
    message = protobuf_c_message_unpack(type, &allocator, size, bytes);
    if (message == NULL && budget.starved) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory to read a %s message of %zu bytes",
            type->short_name, size);
    } else if (message == NULL) {
        (void)error_set(err, ADTOPK_ERR_PROTOCOL, "a malformed %s message of %zu bytes",
            type->short_name, size);
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
