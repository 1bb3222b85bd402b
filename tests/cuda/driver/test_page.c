/* Messages between the daemon and a worker. */
#include "daemon/device/page.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static int ends[2];

static int setup(void **state)
{
    (void)state;
    return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends);
}

static int teardown(void **state)
{
    (void)state;
    (void)close(ends[0]);
    (void)close(ends[1]);
    return 0;
}

static enum message_outcome take(struct message *message)
{
    int descriptor;
    enum message_outcome outcome = message_take(ends[0], 0, message, &descriptor);

    assert_int_equal(descriptor, -1);
    return outcome;
}

static void test_descriptor(void **state)
{
    const struct message map = {.type = MESSAGE_MAP, .arena = 7, .size = 99, .fresh = 1};
    struct message got;
    int pipes[2], descriptor;
    char byte = 'x';

    (void)state;
    assert_int_equal(pipe(pipes), 0);
    assert_true(message_send(ends[1], &map, pipes[1]));
    (void)close(pipes[1]);
    assert_int_equal(message_take(ends[0], 0, &got, &descriptor), MESSAGE_GOT);
    assert_memory_equal(&got, &map, sizeof(map));
    assert_int_equal(write(descriptor, &byte, 1), 1);
    assert_int_equal(read(pipes[0], &byte, 1), 1);
    (void)close(descriptor);
    (void)close(pipes[0]);
    assert_int_equal(take(&got), MESSAGE_NONE);
}

/* What a worker says of its daemon's release, which may be none. */
static void test_release(void **state)
{
    static const char *const words[][2] = {{"1.2.3-rc4", "1.2.3-rc4"}, {"", "an earlier one"},
        {"\x40\x01\xff", "an earlier one"}, {"\x80", "an earlier one"}};
    struct page *page = aligned_alloc(_Alignof(struct page), sizeof(*page));
    char text[PAGE_RELEASE_SIZE];

    (void)state;
    assert_non_null(page);
    for (unsigned i = 0; i < 4; i++) {
        (void)memcpy(page->release, words[i][0], strlen(words[i][0]) + 1);
        assert_string_equal(page_release(page, text), words[i][1]);
    }
    (void)memset(page->release, '7', sizeof(page->release)); /* without an end */
    assert_int_equal(strlen(page_release(page, text)), PAGE_RELEASE_SIZE - 1);
    free(page);
}

/* The other end is gone, and has not read what it was sent: its last words come all the same. */
static void test_last_words(void **state)
{
    const struct message wake = {.type = MESSAGE_WAKE};
    const struct message failed = {.type = MESSAGE_FAILED, .text = "why"};
    struct message got;

    (void)state;
    assert_true(message_send(ends[0], &wake, -1));
    assert_true(message_send(ends[1], &failed, -1));
    (void)close(ends[1]);
    assert_int_equal(take(&got), MESSAGE_GOT);
    assert_string_equal(got.text, "why");
    assert_int_equal(take(&got), MESSAGE_GONE);
    assert_false(message_send(ends[0], &wake, -1));
}

/* A wake-up never waits for an end that does not read. */
static void test_wakes_that_nobody_reads(void **state)
{
    const struct message wake = {.type = MESSAGE_WAKE};
    unsigned sent = 0;

    (void)state;
    while (sent < 100000 && message_send(ends[0], &wake, -1)) {
        sent++;
    }
    assert_in_range(sent, 1, 99999);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_descriptor, setup, teardown),
        cmocka_unit_test(test_release),
        cmocka_unit_test_setup_teardown(test_last_words, setup, teardown),
        cmocka_unit_test_setup_teardown(test_wakes_that_nobody_reads, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
