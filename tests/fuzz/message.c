#include "tests/fuzz/message.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/heap.h"

#define LIMIT 60000u
#define GROWN_MOST 20u /* a leak grows the heap every time */

/* An unpacked message packs again, and unpacks to the same. */
static void check_again(const ProtobufCMessageDescriptor *type, const ProtobufCMessage *message)
{
    size_t size = 0, again_size = 0;
    uint8_t *bytes = codec_pack(message, &size), *again_bytes;
    ProtobufCMessage *again;

    if (bytes == NULL || !protobuf_c_message_check(message)) {
        abort();
    }
    again = codec_unpack(type, bytes, size, SIZE_MAX, NULL);
    if (again == NULL) {
        free(bytes); /* packing may take more bytes, and nested lengths more heap, than the input
                      * had */
        return;
    }
    again_bytes = codec_pack(again, &again_size);
    if (again_bytes == NULL || again_size != size || memcmp(bytes, again_bytes, size) != 0) {
        abort();
    }
    free(again_bytes);
    free(bytes);
    codec_free(again);
}

/* Whether the heap has grown. */
static bool check_grows(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t size)
{
    struct error err = {ADTOPK_OK, ""};
    size_t before = heap_used();
    ProtobufCMessage *message = codec_unpack(type, bytes, size, LIMIT, &err);
    size_t after = heap_used();

    if (size > 0 && codec_unpack(type, bytes, size, size - 1, NULL) != NULL) {
        abort(); /* it is larger than that */
    }
    if (message == NULL) {
        if (err.code != ADTOPK_ERR_PROTOCOL || err.text[0] == '\0') {
            abort();
        }
    } else {
        if (size > LIMIT ||
            (after > before && after - before > size * CODEC_EXPANSION + CODEC_SLACK)) {
            abort();
        }
        check_again(type, message);
    }
    codec_free(message);
    return heap_used() > before;
}

void message_check(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t size)
{
    unsigned grown = 0;

    /* Now and then it may be the allocation of another thread: libFuzzer starts one beside the
     * first inputs. */
    while (check_grows(type, bytes, size)) {
        if (++grown == GROWN_MOST) {
            abort();
        }
    }
}

void message_check_dialogue(const ProtobufCMessageDescriptor *request,
    const ProtobufCMessageDescriptor *reply, const uint8_t *bytes, size_t size)
{
    if (size > 0) {
        message_check(bytes[0] % 2 == 0 ? request : reply, bytes + 1, size - 1);
    }
}
