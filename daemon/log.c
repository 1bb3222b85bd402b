#include "daemon/log.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "proto/error.h"
#include "proto/retry.h"
#include "proto/utf8.h"

#define MESSAGE_SIZE 1024

const char *const log_level_names[LEVEL_COUNT] = {
    [LEVEL_ERROR] = "error",
    [LEVEL_WARNING] = "warning",
    [LEVEL_INFO] = "info",
    [LEVEL_DEBUG] = "debug",
};

const char *const log_format_names[LOG_FORMAT_COUNT] = {
    [LOG_FORMAT_TEXT] = "text",
    [LOG_FORMAT_JSON] = "json",
};

static const char *const kind_names[LOG_KIND_COUNT] = {
    [LOG_LIFE] = "life",
    [LOG_SESSION] = "session",
    [LOG_PEER] = "peer",
    [LOG_REFUSED] = "refused",
    [LOG_CONTROL] = "control",
    [LOG_CHANGE] = "change",
    [LOG_PLAN] = "plan",
    [LOG_TRACE] = "trace",
};

/* A line under construction. A pipe takes PIPE_BUF bytes as a whole, or not at all. */
struct line {
    char text[PIPE_BUF];
    size_t size;
};

/* Room for the end of a line is always kept. False if the text does not fit. */
static bool line_add(struct line *line, const char *text, size_t size)
{
    if (size > sizeof(line->text) - 8 - line->size) {
        return false;
    }
    memcpy(line->text + line->size, text, size);
    line->size += size;
    return true;
}

static bool line_text(struct line *line, const char *text)
{
    return line_add(line, text, strlen(text));
}

static bool line_character(struct line *line, const char *text, size_t length, bool json)
{
    unsigned char byte = (unsigned char)*text;
    char code[8];

    if (length == 0) {
        return line_text(line, "?");
    }
    if (utf8_is_format(text)) {
        return line_text(line, "?");
    }
    if (utf8_is_control(text)) {
        (void)snprintf(code, sizeof(code), json ? "\\u%04x" : "\\x%02x",
            byte == 0xC2 ? (unsigned)(unsigned char)text[1] : byte);
        return line_text(line, code);
    }
    if (json && (byte == '"' || byte == '\\')) {
        code[0] = '\\';
        code[1] = *text;
        return line_add(line, code, 2);
    }
    return line_add(line, text, length);
}

/* Names come from clients and peers: nothing in them may forge a line or upset a terminal. */
static void line_escaped(struct line *line, const char *text, bool json)
{
    while (*text != '\0') {
        size_t length = utf8_length(text);

        if (!line_character(line, text, length, json)) {
            return;
        }
        text += length > 0 ? length : 1;
    }
}

static uint64_t monotonic_ms(void)
{
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static bool budget_take(struct log *log, struct log_budget *budget)
{
    const uint64_t now = monotonic_ms();
    const uint64_t earned = (now - budget->refilled_ms) / LOG_REFILL_MS;

    if (earned > 0) {
        budget->left =
            earned >= LOG_BURST - budget->left ? LOG_BURST : budget->left + (unsigned)earned;
        budget->refilled_ms += earned * LOG_REFILL_MS;
    }
    if (budget->left == 0) {
        budget->first_ms = budget->dropped > 0 ? budget->first_ms : now;
        budget->last_ms = now;
        budget->dropped++;
        log->left_out_ever++;
        return false;
    }
    budget->left--;
    return true;
}

static void line_time(struct line *line)
{
    struct timespec now = {0};
    struct tm parts = {0};
    char date[32];
    char text[64];

    (void)clock_gettime(CLOCK_REALTIME, &now);
    if (gmtime_r(&now.tv_sec, &parts) == NULL ||
        strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &parts) == 0) {
        return;
    }
    (void)snprintf(text, sizeof(text), "%s.%06ldZ", date, now.tv_nsec / 1000);
    (void)line_text(line, text);
}

/* Writes one line with one write(), and only if the descriptor takes it now. It may be a pipe that
 * no process reads. It cannot be made non-blocking, because other processes may share it. Lines are
 * never longer than what a pipe takes at once. */
static bool try_write(struct log *log, const char *bytes, size_t size)
{
    struct pollfd ready = {.fd = log->fd, .events = POLLOUT};
    ssize_t done = -1;
    int takes;

    RETRY(takes, poll(&ready, 1, 0));
    if (takes == 1) {
        RETRY(done, write(log->fd, bytes, size));
    } else if (takes == 0) {
        errno = EAGAIN;
    }
    if (done == (ssize_t)size) {
        log->torn = false;
        return true;
    }
    log->lost_errno = done < 0 ? errno : ENOSPC;
    log->torn = log->torn || done > 0;
    return false;
}

/* Priorities of syslog(3), as the journal reads them from the start of a line. */
static void line_priority(struct line *line, enum log_level level)
{
    static const char *const priorities[LEVEL_COUNT] = {
        [LEVEL_ERROR] = "<3>",
        [LEVEL_WARNING] = "<4>",
        [LEVEL_INFO] = "<6>",
        [LEVEL_DEBUG] = "<7>",
    };

    (void)line_text(line, priorities[level]);
}

static bool emit(struct log *log, enum log_level level, enum log_kind kind, const char *message)
{
    bool json = log->format == LOG_FORMAT_JSON;
    struct line line = {.size = 0};

    (void)line_text(&line, log->torn ? "\n" : "");
    if (log->journal) {
        line_priority(&line, level);
    }
    if (json || !log->journal) { /* the journal adds times and levels itself */
        (void)line_text(&line, json ? "{\"time\":\"" : "");
        line_time(&line);
        (void)line_text(&line, json ? "\",\"level\":\"" : " ");
        (void)line_text(&line, log_level_names[level]);
        (void)line_text(&line, json ? "\",\"kind\":\"" : " ");
    }
    (void)line_text(&line, kind_names[kind]);
    (void)line_text(&line, json ? "\",\"message\":\"" : ": ");
    line_escaped(&line, message, json);
    memcpy(line.text + line.size, json ? "\"}\n" : "\n", json ? 3 : 1); /* room is kept */
    line.size += json ? 3 : 1;
    return try_write(log, line.text, line.size);
}

/* False while the log still takes nothing. */
static bool say_lost(struct log *log)
{
    char message[128];

    if (log->lost == 0) {
        return true;
    }
    (void)snprintf(message, sizeof(message), "%" PRIu64 " line%s of the log %s lost: %s", log->lost,
        error_s(log->lost), log->lost == 1 ? "is" : "are",
        log->lost_errno == EAGAIN ? "no process read them" : strerror(log->lost_errno));
    if (!emit(log, LEVEL_WARNING, LOG_LIFE, message)) {
        return false;
    }
    log->lost = 0;
    return true;
}

static void log_put(struct log *log, enum log_level level, enum log_kind kind, const char *message)
{
    if (!say_lost(log) || !emit(log, level, kind, message)) {
        log->lost++;
        log->lost_ever++;
    }
}

/* `whose` ends the sentence with the user, or is "". */
static void say_dropped(
    struct log *log, struct log_budget *budget, enum log_kind kind, const char *whose)
{
    const uint64_t seconds = (budget->last_ms - budget->first_ms + 999) / 1000;
    char message[128];

    (void)snprintf(message, sizeof(message),
        "and %" PRIu64 " more line%s of this kind in %" PRIu64 " s %s left out%s", budget->dropped,
        error_s(budget->dropped), seconds > 0 ? seconds : 1, budget->dropped == 1 ? "was" : "were",
        whose);
    budget->dropped = 0;
    log_put(log, LEVEL_WARNING, kind, message);
}

/* The daemon waits before it reports lost lines: otherwise a flood would cause a report per line.
 */
static bool is_time_to_say(const struct log_budget *budget)
{
    const uint64_t now = monotonic_ms();

    return budget->dropped > 0 &&
           (now - budget->last_ms >= LOG_QUIET_MS || now - budget->first_ms >= LOG_SAY_MS);
}

static void say_dropped_by(struct log *log, struct log_user *user)
{
    char whose[32];

    (void)snprintf(whose, sizeof(whose), ", of uid %u", user->uid);
    say_dropped(log, &user->budget, user->kind, whose);
}

/* ------------------------------------------------------------------ users */

static struct log_budget full_budget(void)
{
    return (struct log_budget){.left = LOG_BURST, .refilled_ms = monotonic_ms()};
}

/* A free place, or that of the user who was quiet for longest, whose lost lines are reported first.
 */
static struct log_user *oldest_user(struct log *log)
{
    struct log_user *oldest = &log->user[0];

    for (unsigned i = 0; i < LOG_USERS; i++) {
        struct log_user *user = &log->user[i];

        if (!user->used) {
            return user;
        }
        oldest = user->written_ms < oldest->written_ms ? user : oldest;
    }
    if (oldest->budget.dropped > 0) {
        say_dropped_by(log, oldest);
    }
    return oldest;
}

static struct log_user *find_user(struct log *log, enum log_kind kind, uint32_t uid)
{
    struct log_user *user;

    for (unsigned i = 0; i < LOG_USERS; i++) {
        user = &log->user[i];
        if (user->used && user->kind == kind && user->uid == uid) {
            return user;
        }
    }
    user = oldest_user(log);
    *user = (struct log_user){.used = true, .kind = kind, .uid = uid, .budget = full_budget()};
    return user;
}

/* ------------------------------------------------------------------ lines */

/* systemd sets JOURNAL_STREAM to "device:inode" of the socket that it made standard error. */
static bool is_journal(int fd, const char *journal_stream)
{
    struct stat file;
    char name[64];

    if (journal_stream == NULL || fstat(fd, &file) != 0) {
        return false;
    }
    (void)snprintf(name, sizeof(name), "%llu:%llu", (unsigned long long)file.st_dev,
        (unsigned long long)file.st_ino);
    return strcmp(name, journal_stream) == 0;
}

void log_init(struct log *log, int fd, enum log_level level, enum log_format format,
    const char *journal_stream)
{
    *log = (struct log){
        .fd = fd, .level = level, .format = format, .journal = is_journal(fd, journal_stream)};
    for (int kind = 0; kind < LOG_KIND_COUNT; kind++) {
        log->budget[kind] = full_budget();
    }
}

static void log_write_line(
    struct log *log, enum log_level level, enum log_kind kind, const char *format, va_list args)
{
    char message[MESSAGE_SIZE];

    (void)vsnprintf(message, sizeof(message), format, args);
    log_put(log, level, kind, message);
}

void log_write(struct log *log, enum log_level level, enum log_kind kind, const char *format, ...)
{
    struct log_budget *budget = &log->budget[kind];
    va_list args;

    if (level > log->level) {
        return;
    }
    if (kind != LOG_LIFE && kind != LOG_TRACE && !budget_take(log, budget)) {
        return;
    }
    if (is_time_to_say(budget)) {
        say_dropped(log, budget, kind, "");
    }
    va_start(args, format);
    log_write_line(log, level, kind, format, args);
    va_end(args);
}

void log_write_by(struct log *log, enum log_level level, enum log_kind kind, uint32_t uid,
    const char *format, ...)
{
    struct log_user *user;
    va_list args;

    if (level > log->level) {
        return;
    }
    if (kind != LOG_CHANGE || uid != 0) {
        user = find_user(log, kind, uid);
        user->written_ms = monotonic_ms();
        if (!budget_take(log, &user->budget)) {
            return;
        }
        if (is_time_to_say(&user->budget)) {
            say_dropped_by(log, user);
        }
    }
    va_start(args, format);
    log_write_line(log, level, kind, format, args);
    va_end(args);
}

void log_tick(struct log *log)
{
    (void)say_lost(log);
    for (int kind = 0; kind < LOG_KIND_COUNT; kind++) {
        if (is_time_to_say(&log->budget[kind])) {
            say_dropped(log, &log->budget[kind], (enum log_kind)kind, "");
        }
    }
    for (unsigned i = 0; i < LOG_USERS; i++) {
        if (is_time_to_say(&log->user[i].budget)) {
            say_dropped_by(log, &log->user[i]);
        }
    }
}
