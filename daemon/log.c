#include "daemon/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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
    [LOG_CONTROL] = "control",
    [LOG_TRACE] = "trace",
};

/* A line under construction; what does not fit is cut, with room kept for the end. */
struct line {
    char text[6 * MESSAGE_SIZE + 256];
    size_t size;
};

static void line_add(struct line *line, const char *text, size_t size)
{
    size_t room = sizeof(line->text) - 8 - line->size;

    if (size > room) {
        size = room;
    }
    memcpy(line->text + line->size, text, size);
    line->size += size;
}

static void line_text(struct line *line, const char *text)
{
    line_add(line, text, strlen(text));
}

/* Names come from clients and peers: nothing in them may forge a line or upset a terminal. */
static void line_escaped(struct line *line, const char *text, bool json)
{
    char code[8];

    while (*text != '\0') {
        size_t length = utf8_length(text);
        unsigned char byte = (unsigned char)*text;

        if (byte < 0x20 || byte == 0x7F) {
            (void)snprintf(code, sizeof(code), json ? "\\u%04x" : "\\x%02x", byte);
            line_text(line, code);
        } else if (length == 0) {
            line_text(line, "?");
        } else {
            if (json && (byte == '"' || byte == '\\')) {
                line_text(line, "\\");
            }
            line_add(line, text, length);
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

static bool budget_take(struct log_budget *budget)
{
    uint64_t now = monotonic_ms();
    uint64_t earned = (now - budget->refilled_ms) / LOG_REFILL_MS;

    if (earned > 0) {
        budget->left =
            earned >= LOG_BURST - budget->left ? LOG_BURST : budget->left + (unsigned)earned;
        budget->refilled_ms += earned * LOG_REFILL_MS;
    }
    if (budget->left == 0) {
        budget->dropped++;
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
    line_text(line, text);
}

static void write_all(int fd, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t done = write(fd, bytes, size);

        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done <= 0) {
            return;
        }
        bytes += done;
        size -= (size_t)done;
    }
}

static void emit(
    const struct log *log, enum log_level level, enum log_kind kind, const char *message)
{
    bool json = log->format == LOG_FORMAT_JSON;
    struct line line = {.size = 0};

    line_text(&line, json ? "{\"time\":\"" : "");
    line_time(&line);
    line_text(&line, json ? "\",\"level\":\"" : " ");
    line_text(&line, log_level_names[level]);
    line_text(&line, json ? "\",\"kind\":\"" : " ");
    line_text(&line, kind_names[kind]);
    line_text(&line, json ? "\",\"message\":\"" : ": ");
    line_escaped(&line, message, json);
    memcpy(line.text + line.size, json ? "\"}\n" : "\n", json ? 3 : 1); /* room is kept */
    line.size += json ? 3 : 1;
    write_all(log->fd, line.text, line.size);
}

void log_init(struct log *log, int fd, enum log_level level, enum log_format format)
{
    *log = (struct log){.fd = fd, .level = level, .format = format};
    for (int kind = 0; kind < LOG_KIND_COUNT; kind++) {
        log->budget[kind] = (struct log_budget){.left = LOG_BURST, .refilled_ms = monotonic_ms()};
    }
}

void log_write(struct log *log, enum log_level level, enum log_kind kind, const char *format, ...)
{
    char message[MESSAGE_SIZE];
    struct log_budget *budget = &log->budget[kind];
    va_list args;

    if (level > log->level) {
        return;
    }
    if (kind != LOG_LIFE && kind != LOG_TRACE && !budget_take(budget)) {
        return;
    }
    if (budget->dropped > 0) {
        (void)snprintf(message, sizeof(message), "%llu lines of this kind were left out",
            (unsigned long long)budget->dropped);
        budget->dropped = 0;
        emit(log, LEVEL_WARNING, kind, message);
    }
    va_start(args, format);
    (void)vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    emit(log, level, kind, message);
}
