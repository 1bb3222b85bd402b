/* Messages whose strings have a NUL in them. The tests of the codec's callers cover the rest of it.
 */
#include "proto/codec.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/local.pb-c.h"
#include "proto/peer.pb-c.h"

/* Unpacks `message` after turning the first `mark` in it into a NUL. Returns the error. */
static struct error without(const ProtobufCMessage *message, char mark)
{
    struct error err = {.code = ADTOPK_OK};
    size_t size = 0;
    uint8_t *bytes = codec_pack(message, &size);
    uint8_t *at = bytes != NULL ? memchr(bytes, mark, size) : NULL;
    ProtobufCMessage *unpacked;

    assert_non_null(at);
    *at = '\0';
    unpacked = codec_unpack(message->descriptor, bytes, size, CODEC_PEER_MAX, &err);
    assert_null(unpacked);
    assert_int_equal(err.code, ADTOPK_ERR_PROTOCOL);
    free(bytes);
    return err;
}

static void test_nul(void **state)
{
    Adtopk__LocalOpen open = ADTOPK__LOCAL_OPEN__INIT;
    Adtopk__LocalRequest request = ADTOPK__LOCAL_REQUEST__INIT;
    struct error err;

    (void)state;
    open.version = 300;
    open.job = "job!b";
    open.run_id = "7";
    request.kind_case = ADTOPK__LOCAL_REQUEST__KIND_OPEN;
    request.open = &open;
    err = without(&request.base, '!');
    assert_string_equal(err.text, "the field job of a LocalRequest message has a NUL, byte 4");
    err = without(&request.base, '7');
    assert_string_equal(err.text, "the field run_id of a LocalRequest message has a NUL, byte 1");
}

/* Bytes and numbers may have NULs. */
static void test_nul_elsewhere(void **state)
{
    Adtopk__PeerEstimates estimates = ADTOPK__PEER_ESTIMATES__INIT;
    Adtopk__PeerAbout about = ADTOPK__PEER_ABOUT__INIT;
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerMessage *unpacked;
    struct error err;
    size_t size = 0;
    uint8_t *bytes;

    (void)state;
    estimates.packed.data = (uint8_t *)(uintptr_t) "a\0b";
    estimates.packed.len = 3;
    about.run = 1ull << 63;
    message.about = &about;
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_ESTIMATES;
    message.estimates = &estimates;
    bytes = codec_pack(&message.base, &size);
    unpacked = (Adtopk__PeerMessage *)(void *)codec_unpack(
        &adtopk__peer_message__descriptor, bytes, size, CODEC_PEER_MAX, &err);
    assert_non_null(unpacked);
    assert_int_equal(unpacked->estimates->packed.len, 3);
    codec_free(&unpacked->base);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nul),
        cmocka_unit_test(test_nul_elsewhere),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
