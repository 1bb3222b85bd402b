/*
 * The daemon's log: one line per event on a descriptor, as text for people or as JSON for programs.
 * If the descriptor leads to systemd's journal, each line begins with its priority. Used by the
 * loop's thread only.
 *
 * Logging never stops the daemon. Lines are limited per kind, and for users' actions per user. If a
 * descriptor takes nothing at the moment (a pipe that no process reads, a full disk), the line is
 * lost. Both are counted, and reported as soon as the log takes lines again.
 *
 * The lines of kind `change` record who changed what. Other kinds do not count against them, and
 * root's are never left out.
 */
#ifndef ADTOPK_LOG_H
#define ADTOPK_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum log_level { LEVEL_ERROR, LEVEL_WARNING, LEVEL_INFO, LEVEL_DEBUG, LEVEL_COUNT };

enum log_format { LOG_FORMAT_TEXT, LOG_FORMAT_JSON, LOG_FORMAT_COUNT };

/* The subject of a line. Each kind has its own limit, so that one cannot silence another. */
enum log_kind {
    LOG_LIFE,    /* start, stop, what the daemon is configured to do: never limited */
    LOG_SESSION, /* ranks that come and go */
    LOG_PEER,    /* other nodes */
    LOG_REFUSED, /* connections, packets and requests that were refused */
    LOG_CONTROL, /* the control socket itself */
    LOG_CHANGE,  /* changes by operators and owners, jobs that failed */
    LOG_PLAN,    /* changes by the planner, and their outcomes */
    LOG_TRACE,   /* the core's decisions, at level debug: never limited */
    LOG_KIND_COUNT
};

#define LOG_BURST 100     /* lines of a kind at once */
#define LOG_REFILL_MS 100 /* time after which another line is allowed */
#define LOG_QUIET_MS 1000 /* lost lines are reported after so long without more of them */
#define LOG_SAY_MS 10000  /* and at the latest after so long */

#define LOG_USERS 64 /* users whose lines are counted at once, per kind */

struct log_budget {
    unsigned left;
    uint64_t refilled_ms; /* monotonic, like all times here */
    uint64_t dropped;     /* lines left out and not reported yet */
    uint64_t first_ms;    /* when the first of them was left out */
    uint64_t last_ms;     /* when the last of them was left out */
};

/* The lines of one kind that one user caused. */
struct log_user {
    bool used;
    enum log_kind kind;
    uint32_t uid;
    uint64_t written_ms; /* the last line, or the last one that was left out */
    struct log_budget budget;
};

struct log {
    int fd;
    enum log_level level; /* the most detailed one that is written */
    enum log_format format;
    bool journal;  /* the descriptor leads to systemd's journal */
    bool torn;     /* the last line was written in part */
    uint64_t lost; /* lines that could not be written, not said yet */
    int lost_errno;
    uint64_t lost_ever;     /* lines that could not be written, since log_init() */
    uint64_t left_out_ever; /* lines that a limit left out, since log_init() */
    struct log_budget budget[LOG_KIND_COUNT];
    struct log_user user[LOG_USERS];
};

/** Level names from "error" to "debug", format names "text" and "json". */
extern const char *const log_level_names[LEVEL_COUNT];
extern const char *const log_format_names[LOG_FORMAT_COUNT];

/** journal_stream: the variable $JOURNAL_STREAM, or NULL; it says which socket is the journal's. */
void log_init(struct log *log, int fd, enum log_level level, enum log_format format,
    const char *journal_stream);

/** Writes one line. Control characters and invalid UTF-8 in it are escaped or replaced, and a line
 * that is too long is cut. Never blocks. */
void log_write(struct log *log, enum log_level level, enum log_kind kind, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/** Likewise a line that this user caused: the limit holds for each user alone. Root has none for
 * the kind `change`. */
void log_write_by(struct log *log, enum log_level level, enum log_kind kind, uint32_t uid,
    const char *format, ...) __attribute__((format(printf, 5, 6)));

/** Reports lines that were left out or lost, if it is time to. Call it about once a second. */
void log_tick(struct log *log);

#endif
