/*
 * Messages of every kind, with every field, as release 0.1 writes them: tests/data/messages-0.1. A
 * later release reads them without a field that it does not know, finds in each field what was
 * written there, and writes the same bytes. The value of a field follows from its name, so that a
 * number that has another meaning is noticed; but a bool is always true.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "control.pb-c.h"
#include "local.pb-c.h"
#include "peer.pb-c.h"
#include "proto/codec.h"
#include "proto/payload.h"
#include "remote.pb-c.h"

#define BYTES_MAX 4096
#define LINE_MAX_CHARS (3 * BYTES_MAX)
#define STORED TEST_DATA "/messages-0.1"

/* What is unpacked by itself somewhere. Messages in others are parts of these. */
static const ProtobufCMessageDescriptor *const types[] = {&adtopk__peer_message__descriptor,
    &adtopk__peer_head__descriptor, &adtopk__peer_newcomer__descriptor,
    &adtopk__peer_seed_message__descriptor, &adtopk__local_request__descriptor,
    &adtopk__local_reply__descriptor, &adtopk__remote_request__descriptor,
    &adtopk__remote_reply__descriptor, &adtopk__control_request__descriptor,
    &adtopk__control_reply__descriptor};

#define TYPES (sizeof(types) / sizeof(types[0]))

struct bytes {
    size_t size;
    uint8_t data[BYTES_MAX];
};

static uint64_t number_of(const ProtobufCFieldDescriptor *field)
{
    const uint32_t crc = crc32c(0, field->name, strlen(field->name));

    switch (field->type) {
    case PROTOBUF_C_TYPE_BOOL: return 1;
    case PROTOBUF_C_TYPE_UINT32: return crc;
    default: return (uint64_t)crc << 32 | crc;
    }
}

static double real_of(const ProtobufCFieldDescriptor *field)
{
    return (double)crc32c(0, field->name, strlen(field->name)) / 256;
}

/* The field of a oneof that a message within a message has; NULL: it has no oneof. */
static const ProtobufCFieldDescriptor *first_kind(const ProtobufCMessageDescriptor *type)
{
    for (unsigned i = 0; i < type->n_fields; i++) {
        if ((type->fields[i].flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0) {
            return &type->fields[i];
        }
    }
    return NULL;
}

/* ---------------------------------------------------------------- writing, for a new version */

static void put_bytes(struct bytes *out, const void *data, size_t size)
{
    assert_true(out->size + size <= sizeof(out->data));
    memcpy(out->data + out->size, data, size);
    out->size += size;
}

static void put_varint(struct bytes *out, uint64_t number)
{
    for (; number >= 128; number >>= 7) {
        put_bytes(out, &(uint8_t){(uint8_t)(number | 128)}, 1);
    }
    put_bytes(out, &(uint8_t){(uint8_t)number}, 1);
}

static void put_message(struct bytes *out, const ProtobufCMessageDescriptor *type,
    const ProtobufCFieldDescriptor *kind);

/* Returns the wire type. */
static unsigned put_value(struct bytes *out, const ProtobufCFieldDescriptor *field)
{
    const uint64_t number = number_of(field);
    const double real = real_of(field);
    const float narrow = (float)real;

    switch (field->type) {
    case PROTOBUF_C_TYPE_BOOL:
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_UINT64: put_varint(out, number); return 0;
    case PROTOBUF_C_TYPE_FIXED64: put_bytes(out, &number, sizeof(number)); return 1;
    case PROTOBUF_C_TYPE_DOUBLE: put_bytes(out, &real, sizeof(real)); return 1;
    case PROTOBUF_C_TYPE_FLOAT: put_bytes(out, &narrow, sizeof(narrow)); return 5;
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES: put_bytes(out, field->name, strlen(field->name)); return 2;
    case PROTOBUF_C_TYPE_MESSAGE:
        put_message(out, field->descriptor, first_kind(field->descriptor));
        return 2;
    default: fail_msg("%s has a type that this test does not know", field->name); return 0;
    }
}

static void put_field(struct bytes *out, const ProtobufCFieldDescriptor *field)
{
    struct bytes value = {.size = 0};
    const bool packed = (field->flags & PROTOBUF_C_FIELD_FLAG_PACKED) != 0;
    const unsigned wire = put_value(&value, field);

    put_varint(out, field->id << 3 | (packed ? 2 : wire));
    if (packed || wire == 2) {
        put_varint(out, value.size);
    }
    put_bytes(out, value.data, value.size);
}

/* All fields, and of a oneof the one that is `kind`. */
static void put_message(
    struct bytes *out, const ProtobufCMessageDescriptor *type, const ProtobufCFieldDescriptor *kind)
{
    for (unsigned i = 0; i < type->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &type->fields[i];

        if ((field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) == 0 || field == kind) {
            put_field(out, field);
        }
    }
}

static void write_line(
    FILE *file, const ProtobufCMessageDescriptor *type, const ProtobufCFieldDescriptor *kind)
{
    struct bytes out = {.size = 0};

    put_message(&out, type, kind);
    (void)fprintf(file, "%s %s ", type->short_name, kind != NULL ? kind->name : "-");
    for (size_t i = 0; i < out.size; i++) {
        (void)fprintf(file, "%02x", out.data[i]);
    }
    (void)fprintf(file, "\n");
}

static int write_all(const char *path)
{
    FILE *file = fopen(path, "w");

    if (file == NULL) {
        perror(path);
        return 1;
    }
    for (size_t t = 0; t < TYPES; t++) {
        if (first_kind(types[t]) == NULL) {
            write_line(file, types[t], NULL);
        }
        for (unsigned i = 0; i < types[t]->n_fields; i++) {
            if ((types[t]->fields[i].flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0) {
                write_line(file, types[t], &types[t]->fields[i]);
            }
        }
    }
    return fclose(file) == 0 ? 0 : 1;
}

/* ---------------------------------------------------------------- reading */

static const void *member(const ProtobufCMessage *message, unsigned offset)
{
    return (const uint8_t *)message + offset;
}

static void check_message(const ProtobufCMessage *message, const char *kind);

static void check_value(const ProtobufCFieldDescriptor *field, const void *value)
{
    const uint64_t number = number_of(field);
    const double real = real_of(field);
    const float narrow = (float)real;
    const ProtobufCBinaryData *binary = value;

    switch (field->type) {
    case PROTOBUF_C_TYPE_BOOL:
    case PROTOBUF_C_TYPE_UINT32: assert_int_equal(*(const uint32_t *)value, number); break;
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64: assert_int_equal(*(const uint64_t *)value, number); break;
    case PROTOBUF_C_TYPE_DOUBLE: assert_memory_equal(value, &real, sizeof(real)); break;
    case PROTOBUF_C_TYPE_FLOAT: assert_memory_equal(value, &narrow, sizeof(narrow)); break;
    case PROTOBUF_C_TYPE_STRING:
        assert_string_equal(*(const char *const *)value, field->name);
        break;
    case PROTOBUF_C_TYPE_BYTES:
        assert_int_equal(binary->len, strlen(field->name));
        assert_memory_equal(binary->data, field->name, binary->len);
        break;
    default: check_message(*(const ProtobufCMessage *const *)value, NULL); break;
    }
}

/* A field that is added later is absent, and reads as nothing. */
static bool is_absent(const ProtobufCFieldDescriptor *field, const void *value)
{
    static const uint8_t zeros[sizeof(uint64_t)];
    const ProtobufCBinaryData *binary = value;

    switch (field->type) {
    case PROTOBUF_C_TYPE_BOOL:
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FLOAT: return memcmp(value, zeros, sizeof(uint32_t)) == 0;
    case PROTOBUF_C_TYPE_STRING: return (*(const char *const *)value)[0] == '\0';
    case PROTOBUF_C_TYPE_BYTES: return binary->len == 0;
    case PROTOBUF_C_TYPE_MESSAGE: return *(const void *const *)value == NULL;
    default: return memcmp(value, zeros, sizeof(uint64_t)) == 0;
    }
}

/* Returns false if the field is absent. `kind`: the field that a oneof has. */
static bool check_field(
    const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field, const char *kind)
{
    const void *value = member(message, field->offset);
    const void *quantifier = member(message, field->quantifier_offset);

    if (field->label == PROTOBUF_C_LABEL_REPEATED) {
        if (*(const size_t *)quantifier == 0) {
            return false;
        }
        assert_int_equal(*(const size_t *)quantifier, 1);
        value = *(const void *const *)value;
    } else if ((field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0) {
        if (*(const uint32_t *)quantifier != field->id) {
            return false;
        }
        assert_true(kind == NULL || strcmp(kind, field->name) == 0);
    } else if (is_absent(field, value)) {
        return false;
    }
    check_value(field, value);
    return true;
}

static void check_message(const ProtobufCMessage *message, const char *kind)
{
    assert_int_equal(message->n_unknown_fields, 0);
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        (void)check_field(message, &message->descriptor->fields[i], kind);
    }
}

static const ProtobufCMessageDescriptor *type_named(const char *name)
{
    for (size_t t = 0; t < TYPES; t++) {
        if (strcmp(types[t]->short_name, name) == 0) {
            return types[t];
        }
    }
    fail_msg("there is no message %s any more", name);
    return NULL;
}

static size_t read_hex(const char *text, uint8_t *bytes)
{
    size_t size = 0;
    unsigned byte;

    while (sscanf(text + 2 * size, "%2x", &byte) == 1) {
        assert_true(size < BYTES_MAX);
        bytes[size++] = (uint8_t)byte;
    }
    return size;
}

static void check_line(const char *name, const char *kind, const char *hex)
{
    static uint8_t bytes[BYTES_MAX];
    const size_t size = read_hex(hex, bytes);
    struct error err = {.text = ""};
    ProtobufCMessage *message = codec_unpack(type_named(name), bytes, size, CODEC_PEER_MAX, &err);
    uint8_t *again;
    size_t again_size;

    print_message("# %s %s %s\n", name, kind, err.text);
    assert_non_null(message);
    check_message(message, kind);
    again = codec_pack(message, &again_size);
    assert_non_null(again);
    assert_int_equal(again_size, size);
    assert_memory_equal(again, bytes, size);
    free(again);
    codec_free(message);
}

static void test_stored(void **state)
{
    static char line[LINE_MAX_CHARS], hex[LINE_MAX_CHARS];
    char name[64], kind[64];
    FILE *file = fopen(STORED, "r");
    unsigned lines = 0;

    (void)state;
    assert_non_null(file);
    while (fgets(line, sizeof(line), file) != NULL) {
        hex[0] = '\0'; /* a message may be empty */
        assert_true(sscanf(line, "%63s %63s %s", name, kind, hex) >= 2);
        check_line(name, kind, hex);
        lines++;
    }
    assert_true(lines >= TYPES);
    (void)fclose(file);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_stored)};

    if (argc == 2) { /* writes the file of tests/data of a new version */
        return write_all(argv[1]);
    }
    return cmocka_run_group_tests_name("messages", tests, NULL, NULL);
}
