/* The log: no text can forge another line, JSON stays valid, floods are cut and counted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/log.h"

static int new_output(void)
{
    int fd = memfd_create("log", MFD_CLOEXEC);

    assert_true(fd >= 0);
    return fd;
}

/* The lines that were written. Closes the file. */
static char *take_output(int fd)
{
    off_t size = lseek(fd, 0, SEEK_END);
    char *text = calloc(1, (size_t)size + 1);

    assert_non_null(text);
    assert_int_equal(pread(fd, text, (size_t)size, 0), size);
    assert_int_equal(close(fd), 0);
    return text;
}

/* A log that is kept in memory, for take_output(log.fd). */
static struct log new_log(enum log_level level, enum log_format format)
{
    struct log log;

    log_init(&log, new_output(), level, format, NULL);
    return log;
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
    struct log log = new_log(LEVEL_INFO, LOG_FORMAT_TEXT);
    char *text;

    (void)state;
    log_write(&log, LEVEL_DEBUG, LOG_LIFE, "not shown");
    log_write(&log, LEVEL_WARNING, LOG_SESSION, "job %s", "a\n2026 error: \x1B[31m \xC3\xBC \xFF");
    text = take_output(log.fd);
    assert_int_equal(count_lines(text), 1);
    assert_non_null(
        strstr(text, "Z warning session: job a\\x0a2026 error: \\x1b[31m \xC3\xBC ?\n"));
    free(text);
}

static void test_json(void **state)
{
    struct log log = new_log(LEVEL_DEBUG, LOG_FORMAT_JSON);
    char *text;
    cJSON *line;

    (void)state;
    log_write(&log, LEVEL_DEBUG, LOG_PEER, "a \"b\" \\ \n \xC3\xBC \xED\xA0\x80 \xC0\x80");
    text = take_output(log.fd);
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
    struct log log = new_log(LEVEL_INFO, LOG_FORMAT_JSON);

    (void)state;
    assert_non_null(message);
    memset(message, '\x01', 100000); /* each becomes six characters */
    message[100000] = '\0';
    log_write(&log, LEVEL_INFO, LOG_LIFE, "%s", message);
    text = take_output(log.fd);
    assert_int_equal(count_lines(text), 1);
    line = cJSON_Parse(text);
    assert_non_null(line);
    cJSON_Delete(line);
    free(text);
    free(message);
}

static void test_flood(void **state)
{
    struct log log = new_log(LEVEL_INFO, LOG_FORMAT_TEXT);
    char *text;

    (void)state;
    for (int i = 0; i < 1000; i++) {
        log_write(&log, LEVEL_INFO, LOG_SESSION, "line %d", i);
    }
    log_write(&log, LEVEL_INFO, LOG_PEER, "of another kind");
    for (int i = 0; i < 2 * LOG_BURST; i++) {
        log_write(&log, LEVEL_INFO, LOG_LIFE, "never limited");
    }
    log_tick(&log); /* not yet: the flood may go on */
    (void)usleep(LOG_QUIET_MS * 1100);
    log_tick(&log);
    log_tick(&log); /* once is enough */
    log_write(&log, LEVEL_INFO, LOG_SESSION, "afterwards");
    text = take_output(log.fd);
    /* On a slow machine the loop may have allowed a line or two more, so fewer were left out. */
    assert_in_range(count_lines(text), 3 * LOG_BURST + 3, 3 * LOG_BURST + 3 + 20);
    assert_non_null(strstr(text, "of another kind"));
    assert_non_null(strstr(text, "warning session: and "));
    assert_non_null(strstr(text, " more lines of this kind in "));
    assert_ptr_equal(strstr(strstr(text, "more lines") + 1, "more lines"), NULL);
    assert_non_null(strstr(text, "afterwards"));
    free(text);
}

/* A flood is also reported while it goes on. */
static void test_flood_without_end(void **state)
{
    struct log log = new_log(LEVEL_INFO, LOG_FORMAT_TEXT);
    char *text;

    (void)state;
    for (int i = 0; i < 2 * LOG_BURST; i++) {
        log_write(&log, LEVEL_INFO, LOG_PEER, "line %d", i);
    }
    /* As if the flood had begun that long ago, however long the loop took. */
    log.budget[LOG_PEER].first_ms = log.budget[LOG_PEER].last_ms - LOG_SAY_MS;
    log_tick(&log);
    text = take_output(log.fd);
    assert_non_null(strstr(text, " more lines of this kind in 10 s were left out"));
    free(text);
}

/* A user's flood silences only that user, and never the changes of root. */
static void test_users(void **state)
{
    struct log log = new_log(LEVEL_INFO, LOG_FORMAT_TEXT);
    char *text;

    (void)state;
    for (unsigned i = 0; i < 2 * LOG_BURST; i++) {
        log_write_by(&log, LEVEL_INFO, LOG_CHANGE, 4002, "flood");
        log_write_by(&log, LEVEL_INFO, LOG_CHANGE, 0, "root %u.", i);
        log_write_by(&log, LEVEL_INFO, LOG_SESSION, 0, "rank");
    }
    log_write_by(&log, LEVEL_INFO, LOG_CHANGE, 4001, "another user");
    log_write_by(&log, LEVEL_INFO, LOG_REFUSED, 4002, "of another kind");
    (void)usleep(LOG_QUIET_MS * 1100);
    log_tick(&log);
    text = take_output(log.fd);
    /* The two users, twice the change of root, and the reports of two floods. */
    assert_in_range(count_lines(text), 4 * LOG_BURST + 4, 4 * LOG_BURST + 4 + 20);
    assert_non_null(strstr(text, "change: root 199.\n"));
    assert_non_null(strstr(text, "change: another user\n"));
    assert_non_null(strstr(text, "refused: of another kind\n"));
    assert_non_null(strstr(text, "were left out, of uid 4002\n"));
    assert_non_null(strstr(text, "were left out, of uid 0\n"));
    free(text);
}

/* There are more users than places. The lost lines of the quietest are reported before it is
 * forgotten. */
static void test_many_users(void **state)
{
    struct log log = new_log(LEVEL_INFO, LOG_FORMAT_TEXT);
    char *text;

    (void)state;
    for (unsigned i = 0; i < 2 * LOG_BURST; i++) {
        log_write_by(&log, LEVEL_INFO, LOG_CHANGE, 4002, "flood");
    }
    (void)usleep(2000);
    for (uint32_t uid = 10000; uid < 10000 + LOG_USERS; uid++) {
        log_write_by(&log, LEVEL_INFO, LOG_CHANGE, uid, "change of %u.", uid);
    }
    text = take_output(log.fd);
    /* On a slow machine the loop may have allowed a line or two more, so fewer were left out. */
    assert_in_range(count_lines(text), LOG_BURST + LOG_USERS + 1, LOG_BURST + LOG_USERS + 1 + 20);
    assert_in_range(log.left_out_ever, LOG_BURST - 20, LOG_BURST);
    assert_non_null(strstr(text, "were left out, of uid 4002\n"));
    free(text);
}

static void test_high_controls(void **state)
{
    struct log log = new_log(LEVEL_INFO, LOG_FORMAT_TEXT);
    char *text;

    (void)state;
    log_write(&log, LEVEL_INFO, LOG_PEER,
        "a\xC2\x9B"
        "31m \xC2\xA0");
    log.format = LOG_FORMAT_JSON;
    log_write(&log, LEVEL_INFO, LOG_PEER,
        "a\xC2\x9B"
        "31m");
    text = take_output(log.fd);
    assert_non_null(strstr(text, "peer: a\\x9b31m \xC2\xA0\n"));
    assert_non_null(strstr(text, "\"message\":\"a\\u009b31m\"}"));
    free(text);
}

static void test_journal(void **state)
{
    int fd = new_output();
    struct log log;
    struct stat file;
    char stream[64];
    char *text;

    (void)state;
    assert_int_equal(fstat(fd, &file), 0);
    (void)snprintf(stream, sizeof(stream), "%llu:%llu", (unsigned long long)file.st_dev,
        (unsigned long long)file.st_ino);
    log_init(&log, fd, LEVEL_DEBUG, LOG_FORMAT_TEXT, stream);
    log_write(&log, LEVEL_ERROR, LOG_LIFE, "e");
    log_write(&log, LEVEL_WARNING, LOG_LIFE, "w");
    log_write(&log, LEVEL_INFO, LOG_LIFE, "i");
    log_write(&log, LEVEL_DEBUG, LOG_LIFE, "d");
    log.format = LOG_FORMAT_JSON;
    log_write(&log, LEVEL_INFO, LOG_LIFE, "j");
    log_init(&log, fd, LEVEL_DEBUG, LOG_FORMAT_TEXT, "1:1");
    log_write(&log, LEVEL_ERROR, LOG_LIFE, "elsewhere");
    text = take_output(fd);
    assert_memory_equal(
        text, "<3>life: e\n<4>life: w\n<6>life: i\n<7>life: d\n<6>{\"time\":\"", 53);
    assert_null(strstr(text, "<3>life: elsewhere"));
    free(text);
}

static void test_full_disk(void **state)
{
    int disk = open("/dev/full", O_WRONLY | O_CLOEXEC);
    int fd = new_output();
    struct log log;
    char *text;

    (void)state;
    assert_true(disk >= 0);
    log_init(&log, disk, LEVEL_INFO, LOG_FORMAT_TEXT, NULL);
    for (int i = 0; i < 5; i++) {
        log_write(&log, LEVEL_INFO, LOG_LIFE, "lost %d", i);
    }
    log_tick(&log);
    log.fd = fd; /* there is room again */
    log_tick(&log);
    log_write(&log, LEVEL_INFO, LOG_LIFE, "kept");
    text = take_output(fd);
    assert_int_equal(count_lines(text), 2);
    assert_non_null(strstr(text, "life: 5 lines of the log are lost: No space left on device\n"));
    assert_int_equal(log.lost_ever, 5);
    assert_int_equal(log.left_out_ever, 0);
    assert_non_null(strstr(text, "life: kept\n"));
    free(text);
    assert_int_equal(close(disk), 0);
}

/* A line that was cut in the middle does not run into the next one. */
static void test_torn_line(void **state)
{
    char path[] = "/tmp/adtopk-test-log-XXXXXX";
    int fd = mkstemp(path);
    struct rlimit unlimited;
    struct rlimit limit;
    struct log log;
    char *text;

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &unlimited), 0);
    assert_true(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    limit = unlimited;
    limit.rlim_cur = 70;
    log_init(&log, fd, LEVEL_INFO, LOG_FORMAT_TEXT, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    log_write(&log, LEVEL_INFO, LOG_LIFE, "one");
    log_write(&log, LEVEL_INFO, LOG_LIFE, "a line that is cut somewhere, and never goes on");
    log_write(&log, LEVEL_INFO, LOG_LIFE, "three");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &unlimited), 0);
    log_write(&log, LEVEL_INFO, LOG_LIFE, "four");
    text = take_output(fd);
    assert_int_equal(count_lines(text), 4);
    assert_non_null(strstr(text, "life: 2 lines of the log are lost: File too large\n"));
    assert_null(strstr(text, "goes on"));
    assert_non_null(strstr(text, "life: four\n"));
    free(text);
}

static void test_pipe_nobody_reads(void **state)
{
    static char buffer[1 << 20];
    struct log log;
    ssize_t size;
    int pipes[2];

    (void)state;
    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    log_init(&log, pipes[1], LEVEL_INFO, LOG_FORMAT_TEXT, NULL);
    for (int i = 0; i < 10000; i++) {
        log_write(&log, LEVEL_INFO, LOG_LIFE, "line %d", i); /* would block for ever */
    }
    assert_true(log.lost > 0);
    size = read(pipes[0], buffer, sizeof(buffer) - 1);
    assert_true(size > 0);
    log_write(&log, LEVEL_INFO, LOG_LIFE, "read again");
    size = read(pipes[0], buffer, sizeof(buffer) - 1);
    assert_true(size > 0);
    buffer[size] = '\0';
    assert_int_equal(count_lines(buffer), 2);
    assert_non_null(strstr(buffer, "lines of the log are lost: no process read them\n"));
    assert_non_null(strstr(buffer, "life: read again\n"));
    assert_int_equal(close(pipes[0]), 0);
    assert_true(signal(SIGPIPE, SIG_IGN) != SIG_ERR);
    log_write(&log, LEVEL_INFO, LOG_LIFE, "to nobody");
    assert_int_equal(log.lost, 1);
    assert_int_equal(log.lost_errno, EPIPE);
    assert_int_equal(close(pipes[1]), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_long_line),
        cmocka_unit_test(test_flood),
        cmocka_unit_test(test_flood_without_end),
        cmocka_unit_test(test_users),
        cmocka_unit_test(test_many_users),
        cmocka_unit_test(test_high_controls),
        cmocka_unit_test(test_journal),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_torn_line),
        cmocka_unit_test(test_pipe_nobody_reads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
