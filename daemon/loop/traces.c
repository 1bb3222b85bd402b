#include "daemon/loop/traces.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/admin/jobname.h"
#include "daemon/admin/report_trace.h"
#include "proto/retry.h"

#define NAME_SIZE 128
#define NAME_FORMAT "trace-%013" PRIu64 "-%" PRIu32 "-node%u-job%" PRIu64 ".json"
#define FILES_MAX 4096                    /* that are looked at in the folder */
#define TIME_LAST UINT64_C(9999999999999) /* in a name */

struct traces {
    uv_loop_t *loop;
    struct log *log;
    char *folder;
    struct trace *first, *last; /* to be written, in this order; a thread has the first one */
    unsigned pending;
    uint16_t node;
    bool missing; /* the log says that there is no such folder */
};

/* One file; a thread of the pool has it from trace_start() to trace_written(). */
struct trace {
    uv_work_t work;
    struct trace *next;
    struct traces *traces;
    char *text;
    uint32_t owner;
    char aside[NAME_SIZE];  /* while it is written; the next one there replaces what a kill left */
    uint64_t at_ms, number; /* when it was made, and of which job of the daemon */
    char name[NAME_SIZE];
    char job[JOBNAME_SIZE];
    int error; /* the number of the error; 0: it is written */
};

struct traces *traces_create(uv_loop_t *loop, const char *folder, uint16_t node, struct log *log)
{
    struct traces *traces = calloc(1, sizeof(*traces));

    if (traces == NULL) {
        return NULL;
    }
    *traces = (struct traces){.loop = loop, .log = log, .node = node, .folder = strdup(folder)};
    if (traces->folder == NULL) {
        free(traces);
        return NULL;
    }
    return traces;
}

void traces_destroy(struct traces *traces)
{
    if (traces != NULL) {
        free(traces->folder);
        free(traces);
    }
}

/* ------------------------------------------------------------------ on a thread of the pool */

struct trace_file {
    uint64_t at_ms;
    uint32_t owner;
    char name[NAME_SIZE];
};

struct trace_files {
    struct trace_file *file;
    size_t count;
};

static bool trace_file_read(const char *name, struct trace_file *file)
{
    unsigned node;
    uint64_t job;
    char again[NAME_SIZE];

    if (sscanf(name, "trace-%" SCNu64 "-%" SCNu32 "-node%u-job%" SCNu64 ".json", &file->at_ms,
            &file->owner, &node, &job) != 4) {
        return false;
    }
    (void)snprintf(again, sizeof(again), NAME_FORMAT, file->at_ms, file->owner, node, job);
    (void)snprintf(file->name, sizeof(file->name), "%s", again);
    return strcmp(name, again) == 0 && file->at_ms < TIME_LAST; /* it is one of ours */
}

static int trace_file_order(const void *one, const void *other)
{
    return strcmp(((const struct trace_file *)one)->name, ((const struct trace_file *)other)->name);
}

/* Opens the folder anew, to read its entries from the first one on. */
static int trace_open_folder(int folder)
{
    int copy;

    RETRY(copy, openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    return copy;
}

/* The traces in the folder, the oldest first. */
static void trace_list(int folder, struct trace_files *files)
{
    const int copy = trace_open_folder(folder);
    DIR *list = copy >= 0 ? fdopendir(copy) : NULL;
    const struct dirent *entry;

    *files = (struct trace_files){.file = calloc(FILES_MAX, sizeof(struct trace_file))};
    while (list != NULL && files->file != NULL && files->count < FILES_MAX &&
           (entry = readdir(list)) != NULL) {
        files->count += trace_file_read(entry->d_name, &files->file[files->count]) ? 1 : 0;
    }
    if (files->count > 0) {
        qsort(files->file, files->count, sizeof(*files->file), trace_file_order);
    }
    if (list != NULL) {
        (void)closedir(list);
    } else if (copy >= 0) {
        (void)close(copy);
    }
}

/* Removes the oldest files until one more fits, of this user and of all. Returns the time of the
 * newest one. */
static uint64_t trace_make_room(int folder, uint32_t owner)
{
    struct trace_files files;
    uint64_t newest_ms;
    size_t all, own = 0;

    trace_list(folder, &files);
    all = files.count;
    newest_ms = all > 0 ? files.file[all - 1].at_ms : 0;
    for (size_t i = 0; i < files.count; i++) {
        own += files.file[i].owner == owner ? 1 : 0;
    }
    for (size_t i = 0; i < files.count && (all >= TRACES_MAX || own >= TRACES_A_USER); i++) {
        const bool ours = files.file[i].owner == owner;

        if (ours || all >= TRACES_MAX) {
            (void)unlinkat(folder, files.file[i].name, 0);
            all--;
            own -= ours ? 1 : 0;
        }
    }
    free(files.file);
    return newest_ms;
}

static int trace_write_all(int file, const char *text)
{
    size_t left = strlen(text);

    while (left > 0) {
        const ssize_t written = write(file, text, left);

        if (written < 0 && errno != EINTR) {
            return errno;
        }
        if (written > 0) {
            text += written;
            left -= (size_t)written;
        }
    }
    return 0;
}

/* Writes the text aside, and gives it its name. What lies there goes first: it may be what a kill
 * left, or, in a folder where others may write, a pipe, a link or a file of theirs. */
static int trace_put(int folder, const char *aside, const char *name, const char *text)
{
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    int file, error;

    (void)unlinkat(folder, aside, 0);
    RETRY(file, openat(folder, aside, flags, 0600));
    if (file < 0) {
        return errno;
    }
    error = trace_write_all(file, text);
    if (close(file) != 0 && error == 0) {
        error = errno;
    }
    if (error == 0 && renameat(folder, aside, folder, name) != 0) {
        error = errno;
    }
    if (error != 0) {
        (void)unlinkat(folder, aside, 0);
    }
    return error;
}

static void trace_run(uv_work_t *work)
{
    struct trace *trace = work->data;
    uint64_t newest_ms;
    int folder;

    RETRY(folder, open(trace->traces->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (folder < 0) {
        trace->error = errno;
        return;
    }
    newest_ms = trace_make_room(folder, trace->owner);
    /* The clock may have been ahead when that was written. A new file is the newest one. */
    (void)snprintf(trace->name, sizeof(trace->name), NAME_FORMAT,
        trace->at_ms > newest_ms ? trace->at_ms : newest_ms + 1, trace->owner,
        (unsigned)trace->traces->node, trace->number);
    trace->error = trace_put(folder, trace->aside, trace->name, trace->text);
    (void)close(folder);
}

/* ------------------------------------------------------------------ on the loop's thread */

static void trace_free(struct trace *trace)
{
    if (trace != NULL) {
        free(trace->text);
        free(trace);
    }
}

static void trace_written(uv_work_t *work, int status);

/* Starts the next write. There is one at a time: the pool's other threads stay free for the stores
 * of jobs, however slow this disk is. */
static void trace_start(struct traces *traces)
{
    if (traces->first != NULL) {
        traces->first->work.data = traces->first;
        /* Fails only without a function to run. */
        (void)uv_queue_work(traces->loop, &traces->first->work, trace_run, trace_written);
    }
}

static void trace_add(struct traces *traces, struct trace *trace)
{
    if (traces->first != NULL) {
        traces->last->next = trace;
        traces->last = trace;
    } else {
        traces->first = trace;
        traces->last = trace;
        trace_start(traces);
    }
    traces->pending++;
}

static void trace_written(uv_work_t *work, int status)
{
    struct trace *trace = work->data;
    struct traces *traces = trace->traces;

    (void)status; /* no call cancels it */
    traces->first = trace->next;
    traces->pending--;
    trace_start(traces);
    if (trace->error == 0) {
        traces->missing = false;
        log_write_by(traces->log, LEVEL_INFO, LOG_CHANGE, trace->owner,
            "the trace of job %s is %s/%s", trace->job, traces->folder, trace->name);
    } else if (trace->error != ENOENT || !traces->missing) {
        traces->missing = trace->error == ENOENT;
        log_write_by(traces->log, trace->error == ENOENT ? LEVEL_INFO : LEVEL_WARNING, LOG_CHANGE,
            trace->owner, "cannot write a trace of job %s to the trace_folder %s: %s", trace->job,
            traces->folder, strerror(trace->error));
    }
    trace_free(trace);
}

static uint64_t trace_now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Whether this node has recorded anything of the job: a job that never trained has no trace. */
static bool trace_has_records(const struct recorded *records)
{
    bool any = false;

    for (unsigned i = 0; i < records->parts; i++) {
        any = any || records->part[i].records > 0;
    }
    return any;
}

/* NULL without memory. */
static struct trace *trace_create(struct traces *traces, const struct job_info *job,
    const char *reason, const struct recorded *records)
{
    struct trace *trace = calloc(1, sizeof(*trace));

    if (trace != NULL) {
        trace->text = report_trace(traces->node, job, reason, records);
    }
    if (trace == NULL || trace->text == NULL) {
        trace_free(trace);
        return NULL;
    }
    trace->traces = traces;
    trace->owner = job->key.owner;
    jobname_print(&job->key, trace->job);
    trace->at_ms = trace_now_ms();
    trace->number = job->id;
    (void)snprintf(trace->aside, sizeof(trace->aside), ".trace-node%u", (unsigned)traces->node);
    return trace;
}

static void trace_leave_out(struct traces *traces, const struct job_info *job, const char *why)
{
    log_write_by(traces->log, LEVEL_WARNING, LOG_CHANGE, job->key.owner,
        "no trace of job %.63s: %s", job->key.name, why);
}

void traces_write(
    struct traces *traces, const struct core *core, const struct job_info *job, const char *reason)
{
    struct recorded *records;
    struct trace *trace = NULL;

    if (traces->folder[0] == '\0') {
        return;
    }
    if (traces->pending == TRACES_PENDING) {
        trace_leave_out(traces, job, "others are still being written");
        return;
    }
    records = core_read_records(core, job->id);
    if (records != NULL && !trace_has_records(records)) {
        recorded_free(records);
        return;
    }
    if (records != NULL) {
        trace = trace_create(traces, job, reason, records);
        recorded_free(records);
    }
    if (trace == NULL) {
        trace_leave_out(traces, job, "no memory");
        return;
    }
    trace_add(traces, trace);
}
