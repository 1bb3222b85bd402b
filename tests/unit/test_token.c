/* Tokens: the messages that carry them, and the reasons for which one becomes void. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/transport/token.h"

#define KEY_A "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
#define KEY_B "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
#define NOW 1000000

static void test_messages(void **state)
{
    const struct token_message request = {.type = TOKEN_REQUEST, .number = 0x0123456789ABCDEF};
    struct token_message grant = {.type = TOKEN_GRANT, .number = UINT64_MAX, .port = 0x1234};
    struct token_message read;
    uint8_t bytes[TOKEN_GRANT_SIZE + 1] = {0};
    const uint8_t expected[] = {
        'A', 'D', 'B', 'K', 1, 1, 0, 0, 0xEF, 0xCD, 0xAB, 0x89, 0x67, 0x45, 0x23, 0x01};

    (void)state;
    assert_int_equal(token_encode(&request, bytes), TOKEN_REQUEST_SIZE);
    assert_memory_equal(bytes, expected, sizeof(expected));
    assert_true(token_decode(&read, bytes, TOKEN_REQUEST_SIZE));
    assert_int_equal(read.type, TOKEN_REQUEST);
    assert_true(read.number == request.number);

    for (size_t i = 0; i < TOKEN_BYTES; i++) {
        grant.token[i] = (uint8_t)(i * 7 + 1);
    }
    assert_int_equal(token_encode(&grant, bytes), TOKEN_GRANT_SIZE);
    assert_int_equal(bytes[6], 0x34);
    assert_int_equal(bytes[7], 0x12);
    assert_true(token_decode(&read, bytes, TOKEN_GRANT_SIZE));
    assert_int_equal(read.port, 0x1234);
    assert_memory_equal(read.token, grant.token, TOKEN_BYTES);
}

/* Every other length, version and type. */
static void test_malformed_messages(void **state)
{
    const struct token_message grant = {.type = TOKEN_GRANT, .port = 1};
    uint8_t bytes[TOKEN_GRANT_SIZE + 1] = {0};
    struct token_message read;

    (void)state;
    (void)token_encode(&grant, bytes);
    for (size_t size = 0; size <= sizeof(bytes); size++) {
        assert_int_equal(token_decode(&read, bytes, size), size == TOKEN_GRANT_SIZE);
        assert_int_equal(token_is_message(bytes, size), size >= 4);
    }
    for (unsigned value = 0; value < 256; value++) {
        bytes[4] = (uint8_t)value;
        assert_int_equal(token_decode(&read, bytes, TOKEN_GRANT_SIZE), value == TOKEN_VERSION);
        bytes[4] = TOKEN_VERSION;
        bytes[5] = (uint8_t)value;
        assert_int_equal(token_decode(&read, bytes, TOKEN_GRANT_SIZE), value == TOKEN_GRANT);
        assert_false(token_decode(&read, bytes, TOKEN_REQUEST_SIZE)); /* a request has port 0 */
        bytes[5] = TOKEN_GRANT;
    }
    bytes[0] ^= 1;
    assert_false(token_decode(&read, bytes, TOKEN_GRANT_SIZE));
    assert_false(token_is_message(bytes, TOKEN_GRANT_SIZE));
}

static void test_once(void **state)
{
    struct token_table table = {.count = 0};
    uint8_t token[TOKEN_BYTES], other[TOKEN_BYTES];
    char key[KEYFILE_KEY_SIZE];

    (void)state;
    assert_false(token_take(&table, 1, (const uint8_t[TOKEN_BYTES]){0}, NOW, key));
    assert_true(token_issue(&table, 1, KEY_A, NOW, token));
    assert_true(token_issue(&table, 2, KEY_B, NOW, other));
    assert_memory_not_equal(token, other, TOKEN_BYTES);
    assert_false(token_take(&table, 2, token, NOW, key)); /* it belongs to another node */
    assert_true(token_take(&table, 1, token, NOW, key));
    assert_string_equal(key, KEY_A);
    assert_false(token_take(&table, 1, token, NOW, key));
    assert_false(token_take(&table, 1, (const uint8_t[TOKEN_BYTES]){0}, NOW, key)); /* wiped */
    assert_true(token_take(&table, 2, other, NOW, key)); /* wrong tokens did not void it */
    assert_string_equal(key, KEY_B);
    token_clear(&table);
}

static void test_every_bit_counts(void **state)
{
    struct token_table table = {.count = 0};
    uint8_t token[TOKEN_BYTES];
    char key[KEYFILE_KEY_SIZE];

    (void)state;
    assert_true(token_issue(&table, 1, KEY_A, NOW, token));
    for (size_t bit = 0; bit < 8 * TOKEN_BYTES; bit++) {
        token[bit / 8] ^= (uint8_t)(1U << bit % 8);
        assert_false(token_take(&table, 1, token, NOW, key));
        token[bit / 8] ^= (uint8_t)(1U << bit % 8);
    }
    assert_true(token_take(&table, 1, token, NOW, key));
    token_clear(&table);
}

static void test_expiry_and_replacement(void **state)
{
    struct token_table table = {.count = 0};
    uint8_t first[TOKEN_BYTES], second[TOKEN_BYTES];
    char key[KEYFILE_KEY_SIZE];

    (void)state;
    assert_true(token_issue(&table, 1, KEY_A, NOW, first));
    assert_false(token_take(&table, 1, first, NOW + TOKEN_LIFE_US, key));
    assert_true(token_issue(&table, 1, KEY_A, NOW, second));
    assert_int_equal(table.count, 1); /* a node has one place, however often it asks */
    assert_false(token_take(&table, 1, first, NOW, key));
    assert_true(token_take(&table, 1, second, NOW + TOKEN_LIFE_US - 1, key));
    assert_true(token_issue(&table, 1, KEY_A, NOW, first));
    token_clear(&table);
    assert_false(token_take(&table, 1, first, NOW, key));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_malformed_messages),
        cmocka_unit_test(test_once),
        cmocka_unit_test(test_every_bit_counts),
        cmocka_unit_test(test_expiry_and_replacement),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
