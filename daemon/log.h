/*
 * The daemon's log: one line an event on a descriptor, as text for people or as JSON for
 * programs. A flood is bounded per kind of line, and what was left out is counted in the next
 * line of that kind. Used by the loop's thread only.
 */
#ifndef ADTOPK_LOG_H
#define ADTOPK_LOG_H

#include <stdint.h>

enum log_level { LEVEL_ERROR, LEVEL_WARNING, LEVEL_INFO, LEVEL_DEBUG, LEVEL_COUNT };

enum log_format { LOG_FORMAT_TEXT, LOG_FORMAT_JSON, LOG_FORMAT_COUNT };

/* What a line is about. Each kind has its own limit, so that one cannot silence another. */
enum log_kind {
    LOG_LIFE,    /* start, stop, what the daemon is configured to do: never limited */
    LOG_SESSION, /* ranks that come and go */
    LOG_PEER,    /* other nodes */
    LOG_CONTROL, /* the control socket */
    LOG_TRACE,   /* the core's decisions, at level debug: never limited */
    LOG_KIND_COUNT
};

#define LOG_BURST 100     /* lines of a kind at once */
#define LOG_REFILL_MS 100 /* after which another one is allowed */

struct log_budget {
    unsigned left;
    uint64_t refilled_ms; /* monotonic */
    uint64_t dropped;
};

struct log {
    int fd;
    enum log_level level; /* the most detailed one that is written */
    enum log_format format;
    struct log_budget budget[LOG_KIND_COUNT];
};

/** Level names from "error" to "debug", format names "text" and "json". */
extern const char *const log_level_names[LEVEL_COUNT];
extern const char *const log_format_names[LOG_FORMAT_COUNT];

void log_init(struct log *log, int fd, enum log_level level, enum log_format format);

/** Writes one line; control characters and invalid UTF-8 in it are escaped or replaced. Errors of
 * the descriptor are ignored: there is nobody left to tell. */
void log_write(struct log *log, enum log_level level, enum log_kind kind, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif
