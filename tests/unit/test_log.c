/* The log: nothing in a line can forge another one, JSON stays JSON, floods are cut and counted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/log.h"
#include "proto/utf8.h"

static int new_output(void)
{
    int fd = memfd_create("log", MFD_CLOEXEC);

    assert_true(fd >= 0);
    return fd;
}

/* What was written, and closes it. */
static char *take_output(int fd)
{
    off_t size = lseek(fd, 0, SEEK_END);
    char *text = calloc(1, (size_t)size + 1);

    assert_non_null(text);
    assert_int_equal(pread(fd, text, (size_t)size, 0), size);
    assert_int_equal(close(fd), 0);
    return text;
}

static unsigned count_lines(const char *text)
{
    unsigned lines = 0;

    for (; *text != '\0'; text++) {
        lines += *text == '\n' ? 1 : 0;
    }
    return lines;
}

static const char *field(const cJSON *line, const char *name)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItem(line, name));

    assert_non_null(text);
    return text;
}

static void test_text(void **state)
{
    int fd = new_output();
    struct log log;
    char *text;

    (void)state;
    log_init(&log, fd, LEVEL_INFO, LOG_FORMAT_TEXT);
    log_write(&log, LEVEL_DEBUG, LOG_LIFE, "not shown");
    log_write(&log, LEVEL_WARNING, LOG_SESSION, "job %s", "a\n2026 error: \x1B[31m \xC3\xBC \xFF");
    text = take_output(fd);
    assert_int_equal(count_lines(text), 1);
    assert_non_null(
        strstr(text, "Z warning session: job a\\x0a2026 error: \\x1b[31m \xC3\xBC ?\n"));
    free(text);
}

static void test_json(void **state)
{
    int fd = new_output();
    struct log log;
    char *text;
    cJSON *line;

    (void)state;
    log_init(&log, fd, LEVEL_DEBUG, LOG_FORMAT_JSON);
    log_write(&log, LEVEL_DEBUG, LOG_PEER, "a \"b\" \\ \n \xC3\xBC \xED\xA0\x80 \xC0\x80");
    text = take_output(fd);
    assert_int_equal(count_lines(text), 1);
    line = cJSON_Parse(text);
    assert_non_null(line);
    assert_string_equal(field(line, "level"), "debug");
    assert_string_equal(field(line, "kind"), "peer");
    assert_string_equal(field(line, "message"), "a \"b\" \\ \n \xC3\xBC ??? ??");
    assert_int_equal(strlen(field(line, "time")), strlen("2026-01-01T00:00:00.000000Z"));
    cJSON_Delete(line);
    free(text);
}

static void test_long_line(void **state)
{
    char *message = malloc(100001);
    char *text;
    cJSON *line;
    int fd = new_output();
    struct log log;

    (void)state;
    assert_non_null(message);
    memset(message, '\x01', 100000); /* each becomes six characters */
    message[100000] = '\0';
    log_init(&log, fd, LEVEL_INFO, LOG_FORMAT_JSON);
    log_write(&log, LEVEL_INFO, LOG_LIFE, "%s", message);
    text = take_output(fd);
    assert_int_equal(count_lines(text), 1);
    line = cJSON_Parse(text);
    assert_non_null(line);
    cJSON_Delete(line);
    free(text);
    free(message);
}

static void test_flood(void **state)
{
    int fd = new_output();
    struct log log;
    char *text;

    (void)state;
    log_init(&log, fd, LEVEL_INFO, LOG_FORMAT_TEXT);
    for (int i = 0; i < 1000; i++) {
        log_write(&log, LEVEL_INFO, LOG_SESSION, "line %d", i);
    }
    log_write(&log, LEVEL_INFO, LOG_PEER, "of another kind");
    for (int i = 0; i < 2 * LOG_BURST; i++) {
        log_write(&log, LEVEL_INFO, LOG_LIFE, "never limited");
    }
    (void)usleep(LOG_REFILL_MS * 1100);
    log_write(&log, LEVEL_INFO, LOG_SESSION, "afterwards");
    text = take_output(fd);
    /* A slow machine may have earned a line or two in the loop: then fewer were left out. */
    assert_in_range(count_lines(text), 3 * LOG_BURST + 3, 3 * LOG_BURST + 3 + 20);
    assert_non_null(strstr(text, "of another kind"));
    assert_non_null(strstr(text, "lines of this kind were left out"));
    assert_non_null(strstr(text, "afterwards"));
    free(text);
}

static void test_utf8(void **state)
{
    static const struct {
        const char *text;
        size_t length;
    } cases[] = {{"a", 1}, {"\x7F", 1}, {"\xC2\x80", 2}, {"\xE0\xA0\x80", 3}, {"\xED\x9F\xBF", 3},
        {"\xEF\xBF\xBF", 3}, {"\xF0\x90\x80\x80", 4}, {"\xF4\x8F\xBF\xBF", 4}, {"\x80", 0},
        {"\xC1\xBF", 0}, {"\xC2", 0}, {"\xE0\x9F\xBF", 0}, {"\xED\xA0\x80", 0}, {"\xE1\x80", 0},
        {"\xF0\x8F\xBF\xBF", 0}, {"\xF4\x90\x80\x80", 0}, {"\xF5\x80\x80\x80", 0}, {"\xFF", 0}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(utf8_length(cases[i].text), cases[i].length);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_long_line),
        cmocka_unit_test(test_flood),
        cmocka_unit_test(test_utf8),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
