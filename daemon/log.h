/*
 * The daemon's log: one line an event on a descriptor, as text for people or as JSON for
 * programs; where the descriptor leads to systemd's journal, with its priority in front. Used by
 * the loop's thread only.
 *
 * Logging never stops the daemon. A flood is bounded per kind of line, and for what users do per
 * user. A descriptor that takes nothing at the moment (a pipe that nobody reads, a full disk) loses
 * the line. Both are counted, and said as soon as the log takes lines again.
 *
 * The lines of kind `change` are the trail of who changed what. Nobody else's lines count against
 * them, and root's are never left out.
 */
#ifndef ADTOPK_LOG_H
#define ADTOPK_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum log_level { LEVEL_ERROR, LEVEL_WARNING, LEVEL_INFO, LEVEL_DEBUG, LEVEL_COUNT };

enum log_format { LOG_FORMAT_TEXT, LOG_FORMAT_JSON, LOG_FORMAT_COUNT };

/* What a line is about. Each kind has its own limit, so that one cannot silence another. */
enum log_kind {
    LOG_LIFE,    /* start, stop, what the daemon is configured to do: never limited */
    LOG_SESSION, /* ranks that come and go */
    LOG_PEER,    /* other nodes */
    LOG_REFUSED, /* connections, packets and requests that were turned away */
    LOG_CONTROL, /* the control socket itself */
    LOG_CHANGE,  /* what operators and owners changed, jobs that failed */
    LOG_PLAN,    /* what the planner changed, and what came of it */
    LOG_TRACE,   /* the core's decisions, at level debug: never limited */
    LOG_KIND_COUNT
};

#define LOG_BURST 100     /* lines of a kind at once */
#define LOG_REFILL_MS 100 /* after which another one is allowed */
#define LOG_QUIET_MS 1000 /* what was left out is said once nothing was for so long, */
#define LOG_SAY_MS 10000  /* or after so long */

#define LOG_USERS 64 /* users whose lines are counted at once, per kind */

struct log_budget {
    unsigned left;
    uint64_t refilled_ms; /* monotonic, like all times here */
    uint64_t dropped;     /* lines left out, not said yet, */
    uint64_t first_ms;    /* from then */
    uint64_t last_ms;     /* to then */
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
    struct log_budget budget[LOG_KIND_COUNT];
    struct log_user user[LOG_USERS];
};

/** Level names from "error" to "debug", format names "text" and "json". */
extern const char *const log_level_names[LEVEL_COUNT];
extern const char *const log_format_names[LOG_FORMAT_COUNT];

/** journal_stream: the variable $JOURNAL_STREAM, or NULL; it says which socket is the journal's. */
void log_init(struct log *log, int fd, enum log_level level, enum log_format format,
    const char *journal_stream);

/** Writes one line; control characters and invalid UTF-8 in it are escaped or replaced, and what
 * is too long is cut. Never blocks. */
void log_write(struct log *log, enum log_level level, enum log_kind kind, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/** Likewise a line that this user caused: the limit holds for each user alone. Root has none for
 * the kind `change`. */
void log_write_by(struct log *log, enum log_level level, enum log_kind kind, uint32_t uid,
    const char *format, ...) __attribute__((format(printf, 5, 6)));

/** Says what was left out or lost, if it is time to. To be called about once a second. */
void log_tick(struct log *log);

#endif
