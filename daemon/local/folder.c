#include "daemon/local/folder.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/local/mark.h"
#include "proto/retry.h"

struct folder_store {
    struct folder_store *next;
    struct job_key key;
    uint32_t number;
    uint64_t job;                /* that uses it; 0: none does */
    bool found;                  /* an earlier daemon left it */
    bool unsealed;               /* a job uses it, or has used it in this daemon's life */
    bool guessed;                /* used_s is a stamp, up to FOLDER_LATE_S before the last use */
    uint64_t used_s;             /* when a daemon last used it: folder_now() */
    uint64_t size[FOLDER_PARTS]; /* 0: there is no such part */
    char fault[FOLDER_FAULT_SIZE];
};

struct folder {
    struct keeper *keeper; /* NULL while the folder is opened: nothing else goes on */
    struct files *files;
    struct handles handles;
    uint32_t numbers; /* given so far */
    uint32_t workers; /* of this daemon; 0: unknown */
    uint64_t noted_s; /* when stores in use were last marked */
    struct folder_store *first;
};

/* Seconds since the machine booted. Nobody can set that clock, and files in memory are not older.
 */
static uint64_t folder_now(void)
{
    struct timespec now = {.tv_sec = 0};

    (void)clock_gettime(CLOCK_BOOTTIME, &now); /* every kernel that we run on has it */
    return (uint64_t)now.tv_sec;
}

/* The time of a file says when its store was used, and outlives the daemon. */
static void folder_stamp(int fd, uint64_t used_s)
{
    const struct timespec used = {.tv_sec = (time_t)used_s};

    (void)futimens(fd, (const struct timespec[]){used, used});
}

static uint64_t folder_round(uint64_t size)
{
    return (size + MARK_PAGE - 1) / MARK_PAGE * MARK_PAGE;
}

static void folder_name(uint32_t number, unsigned part, char name[FILES_NAME_SIZE])
{
    (void)snprintf(name, FILES_NAME_SIZE, "%08x.%u", number, part);
}

/* ------------------------------------------------------------------ one file */

/* Opens a file; -1 and errno. */
static int folder_open_file(const struct folder *folder, const char *name)
{
    return folder->files->ops->open(folder->files, name);
}

static enum adtopk_status folder_failed(const char *call, int reason, struct error *err)
{
    return error_set(
        err, ADTOPK_ERR_SYSTEM, "%s a file of a store failed: %s", call, strerror(reason));
}

/* Writes a new file, which has no name yet. */
static enum adtopk_status folder_write(const struct folder_store *store, unsigned part,
    uint64_t size, uint64_t now, int fd, struct error *err)
{
    const struct segment content = {.fd = fd, .size = size};
    struct mark mark;
    enum adtopk_status status = ADTOPK_OK;
    int failed;

    mark_fill(&mark, &store->key, part, size);
    RETRY(failed, ftruncate(fd, (off_t)(size + MARK_PAGE)));
    if (failed != 0) {
        return errno == EFBIG ? segment_refuse(&content, "store", err)
                              : folder_failed("sizing", errno, err);
    }
    if (!mark_write(fd, &mark)) {
        return segment_refuse(&content, "store", err);
    }
    if (now > 0) {
        status = segment_fill(&content, "store", 0, now < size ? now : size, err);
    }
    return status;
}

/* Returns a descriptor of the new file; -1 and an error. */
static int folder_make(const struct folder *folder, struct folder_store *store, unsigned part,
    uint64_t size, uint64_t now, struct error *err)
{
    const struct files_ops *ops = folder->files->ops;
    const int fd = ops->make(folder->files);
    char name[FILES_NAME_SIZE];

    if (fd < 0) {
        (void)folder_failed("making", errno, err);
        return -1;
    }
    folder_name(store->number, part, name);
    if (folder_write(store, part, size, now, fd, err) == ADTOPK_OK &&
        ops->keep(folder->files, name, fd, err) == ADTOPK_OK) {
        store->size[part] = size;
        return fd;
    }
    (void)close(fd);
    return -1;
}

static int folder_reopen(
    const struct folder *folder, const struct folder_store *store, unsigned part, struct error *err)
{
    struct mark mark;
    struct stat status;
    char name[FILES_NAME_SIZE];
    const char *fault;
    int fd;

    folder_name(store->number, part, name);
    fd = folder_open_file(folder, name);
    if (fd < 0) {
        (void)folder_failed("opening", errno, err);
        return -1;
    }
    fault = mark_read(fd, part, &mark, &status);
    if (fault == NULL && mark.size == store->size[part] &&
        (mark.sealed == 0 || mark_seal(fd, &mark, false))) {
        return fd;
    }
    (void)error_set(err, ADTOPK_ERR_LOST, "the file %s of the job's store %s", name,
        fault != NULL ? fault : "was changed");
    (void)close(fd);
    return -1;
}

/* ------------------------------------------------------------------ a store */

static struct folder_store *folder_find(const struct folder *folder, uint64_t job)
{
    struct folder_store *store = folder->first;

    while (store != NULL && store->job != job) {
        store = store->next;
    }
    return store;
}

static struct folder_store *folder_find_number(const struct folder *folder, uint32_t number)
{
    struct folder_store *store = folder->first;

    while (store != NULL && store->number != number) {
        store = store->next;
    }
    return store;
}

/* The kernel frees a file's memory when its last descriptor closes: the keeper closes it, because
 * that may take long. */
static void folder_unlink(const struct folder *folder, struct folder_store *store, unsigned part)
{
    struct segment file = {.size = store->size[part]};
    char name[FILES_NAME_SIZE];

    if (store->size[part] > 0) {
        folder_name(store->number, part, name);
        file.fd = folder_open_file(folder, name);
        folder->files->ops->remove(folder->files, name);
        if (folder->keeper != NULL) {
            keeper_release(folder->keeper, &file, segment_taken(&file));
        } else {
            segment_drop(&file);
        }
        store->size[part] = 0;
    }
}

static void folder_remove(struct folder *folder, struct folder_store *store)
{
    struct folder_store **link = &folder->first;

    while (*link != store) {
        link = &(*link)->next;
    }
    *link = store->next;
    for (unsigned part = 0; part < FOLDER_PARTS; part++) {
        folder_unlink(folder, store, part);
    }
    handles_drop(&folder->handles, store->number, HANDLES_ALL);
    free(store);
}

static struct folder_store *folder_add(struct folder *folder, uint32_t number)
{
    struct folder_store *store = calloc(1, sizeof *store);

    if (store != NULL) {
        store->number = number;
        store->next = folder->first;
        folder->first = store;
        folder->numbers = number >= folder->numbers ? number + 1 : folder->numbers;
    }
    return store;
}

static bool folder_suits(const struct folder_store *store, const struct job_key *key)
{
    return store->job == 0 && store->fault[0] == '\0' && core_same_job(&store->key, key);
}

static struct folder_store *folder_find_key(const struct folder *folder, const struct job_key *key)
{
    struct folder_store *store = folder->first;

    while (store != NULL && !folder_suits(store, key)) {
        store = store->next;
    }
    return store;
}

static void folder_describe(const struct folder_store *store, struct folder_info *info)
{
    const uint64_t now = folder_now();

    *info = (struct folder_info){.key = store->key,
        .idle_s = store->job == 0 && now > store->used_s ? now - store->used_s : 0,
        .used = store->job != 0,
        .guessed = store->guessed,
        .fault = store->fault};
    for (unsigned part = 0; part < FOLDER_PARTS; part++) {
        info->bytes += store->size[part];
    }
}

bool folder_has(const struct folder *folder, const struct job_key *key)
{
    return folder_find_key(folder, key) != NULL;
}

bool folder_replaces(
    const struct folder *folder, uint64_t job, const struct job_key *key, struct folder_info *old)
{
    const struct folder_store *store = folder_find_key(folder, key);

    if (store == NULL || folder_find(folder, job) != NULL) {
        return false;
    }
    folder_describe(store, old);
    return true;
}

void folder_begin(struct folder *folder, uint64_t job, const struct job_key *key, bool returning)
{
    struct folder_store *store = folder_find_key(folder, key);

    if (folder_find(folder, job) != NULL) {
        return;
    }
    while (!returning && store != NULL) {
        folder_remove(folder, store);
        store = folder_find_key(folder, key);
    }
    if (store == NULL) {
        store = folder_add(folder, folder->numbers);
    }
    if (store != NULL) { /* else folder_part() says that there is no memory */
        store->key = *key;
        store->job = job;
        store->unsealed = true;
        folder->noted_s = 0; /* soon */
    }
}

/* A daemon with the settings that this store was made with can still use it, so it stays. */
static enum adtopk_status folder_refuse(
    struct folder_store *store, uint64_t needed, struct error *err)
{
    if (store->fault[0] == '\0') {
        (void)snprintf(store->fault, sizeof store->fault,
            "it has %llu bytes, and this daemon needs %llu: it has other workers, or is of another "
            "release",
            (unsigned long long)store->size[0], (unsigned long long)needed);
    }
    return error_set(err, ADTOPK_ERR_LOST, "the store of this job is not used: %s", store->fault);
}

enum adtopk_status folder_part(struct folder *folder, uint64_t job, unsigned part, uint64_t size,
    uint64_t now, struct segment *segment, bool *existing, struct error *err)
{
    struct folder_store *store = folder_find(folder, job);
    const uint64_t rounded = folder_round(size);

    *segment = segment_none;
    if (store == NULL || !segment_is_possible(size)) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for a store of %llu bytes",
            (unsigned long long)size);
    }
    *existing = store->size[part] == rounded;
    if (store->fault[0] != '\0' || (store->found && part == 0 && !*existing)) {
        return folder_refuse(store, rounded, err);
    }
    if (!*existing) {
        folder_unlink(folder, store, part);
    }
    segment->fd = *existing ? folder_reopen(folder, store, part, err)
                            : folder_make(folder, store, part, rounded, now, err);
    if (segment->fd < 0) {
        return err->code;
    }
    if (part == CORE_STORE_MAIN && folder->workers > 0) {
        mark_note_workers(segment->fd, rounded, folder->workers);
    }
    segment->size = rounded;
    if (segment_map(segment, PROT_READ | PROT_WRITE, "store", err) != ADTOPK_OK) {
        segment_drop(segment);
        return err->code;
    }
    (void)madvise(segment->bytes, segment->size, MADV_HUGEPAGE); /* if the file system has them */
    return ADTOPK_OK;
}

int folder_descriptor(const struct folder *folder, uint64_t job, unsigned part)
{
    const struct folder_store *store = folder_find(folder, job);
    char name[FILES_NAME_SIZE];

    if (store == NULL || store->size[part] == 0) {
        return -1;
    }
    folder_name(store->number, part, name);
    return folder_open_file(folder, name);
}

void folder_drop(struct folder *folder, uint64_t job, unsigned part)
{
    struct folder_store *store = folder_find(folder, job);

    if (store != NULL && store->fault[0] == '\0') {
        folder_unlink(folder, store, part);
        store->found = store->found && part > 0; /* without its first part it begins anew */
    }
}

/* Removes the oldest of the stores that jobs of this one's owner have left in the daemon's life, if
 * they are too many: they count for no user. */
static void folder_limit_left(struct folder *folder, const struct folder_store *newest)
{
    struct folder_store *oldest = NULL;
    unsigned count = 0;

    for (struct folder_store *store = folder->first; store != NULL; store = store->next) {
        if (store->job != 0 || store->found || store->key.owner != newest->key.owner) {
            continue;
        }
        count++;
        if (store != newest && (oldest == NULL || store->used_s < oldest->used_s)) {
            oldest = store;
        }
    }
    if (count > FOLDER_LEFT_MAX) {
        folder_remove(folder, oldest);
    }
}

void folder_leave(struct folder *folder, uint64_t job)
{
    struct folder_store *store = folder_find(folder, job);

    if (store != NULL) {
        store->job = 0;
        store->used_s = folder_now();
        store->guessed = false;
        folder_limit_left(folder, store);
    }
}

void folder_end(struct folder *folder, uint64_t job)
{
    struct folder_store *store = folder_find(folder, job);

    if (store != NULL && store->fault[0] != '\0') {
        folder_leave(folder, job);
    } else if (store != NULL) {
        folder_remove(folder, store);
    }
}

/* ------------------------------------------------------------------ all stores */

bool folder_look(const struct folder *folder, unsigned index, struct folder_info *info)
{
    const struct folder_store *store = folder->first;

    for (; store != NULL && index > 0; index--) {
        store = store->next;
    }
    if (store != NULL) {
        folder_describe(store, info);
    }
    return store != NULL;
}

struct handles *folder_handles(struct folder *folder)
{
    return folder->files->ops->others ? &folder->handles : NULL;
}

bool folder_number(const struct folder *folder, uint64_t job, uint32_t *number)
{
    const struct folder_store *store = folder_find(folder, job);

    *number = store != NULL ? store->number : 0;
    return store != NULL;
}

bool folder_look_at(const struct folder *folder, uint32_t number, struct folder_info *info)
{
    const struct folder_store *store = folder_find_number(folder, number);

    if (store != NULL) {
        folder_describe(store, info);
    }
    return store != NULL;
}

static void folder_stamp_files(const struct folder *folder, const struct folder_store *store)
{
    char name[FILES_NAME_SIZE];

    for (unsigned part = 0; part < FOLDER_PARTS; part++) {
        int fd = -1;

        if (store->size[part] > 0) {
            folder_name(store->number, part, name);
            fd = folder_open_file(folder, name);
        }
        if (fd >= 0) {
            folder_stamp(fd, store->used_s);
            (void)close(fd);
        }
    }
}

static void folder_note(struct folder *folder, uint64_t now)
{
    folder->noted_s = now;
    for (struct folder_store *store = folder->first; store != NULL; store = store->next) {
        if (store->job != 0) {
            store->used_s = now;
            folder_stamp_files(folder, store);
        }
    }
}

bool folder_expire(struct folder *folder, uint64_t ttl_s, struct folder_info *gone)
{
    const uint64_t now = folder_now();

    folder->files->ops->settle(folder->files);
    if (folder->noted_s == 0 || now - folder->noted_s >= FOLDER_NOTE_S) {
        folder_note(folder, now);
    }
    for (struct folder_store *store = folder->first; store != NULL; store = store->next) {
        const uint64_t kept_s = ttl_s + (store->guessed ? FOLDER_LATE_S : 0);

        if (store->job == 0 && now - store->used_s >= kept_s) {
            folder_describe(store, gone);
            gone->fault = "";
            folder_remove(folder, store);
            return true;
        }
    }
    return false;
}

/* ------------------------------------------------------------------ opening */

static struct folder_store *folder_store_of(struct folder *folder, uint32_t number)
{
    struct folder_store *store = folder_find_number(folder, number);

    return store != NULL ? store : folder_add(folder, number);
}

static void folder_take_mark(struct folder_store *store, const struct mark *mark)
{
    struct job_key key = {.owner = mark->owner};

    memcpy(key.name, mark->name, sizeof key.name);
    memcpy(key.run_id, mark->run_id, sizeof key.run_id);
    store->found = true;
    if (store->key.name[0] != '\0' && !core_same_job(&store->key, &key)) {
        (void)snprintf(store->fault, sizeof store->fault, "its files are of different jobs");
    }
    store->key = key;
}

/* A file that was written since it was stamped has the system's time, decades later than any stamp.
 * It counts as used now. */
static void folder_take_time(struct folder_store *store, int fd, time_t stamp)
{
    const uint64_t now = folder_now();
    const bool stamped = stamp > 0 && (uint64_t)stamp <= now;
    const uint64_t used_s = stamped ? (uint64_t)stamp : now;

    store->used_s = used_s > store->used_s ? used_s : store->used_s;
    store->guessed = true;
    if (fd >= 0 && !stamped) {
        folder_stamp(fd, now);
    }
}

/* A store is laid out for the workers that it was made with; 0: unknown. */
static void folder_take_workers(
    const struct folder *folder, struct folder_store *store, uint32_t workers)
{
    if (workers > 0 && folder->workers > 0 && workers != folder->workers &&
        store->fault[0] == '\0') {
        (void)snprintf(store->fault, sizeof store->fault,
            "it was made with %u worker%s, and this daemon has %u", workers, workers > 1 ? "s" : "",
            folder->workers);
    }
}

/* Takes note of one file. False without memory or descriptors. */
static bool folder_take(struct folder *folder, const char *name, uint32_t number, unsigned part)
{
    struct folder_store *store = folder_store_of(folder, number);
    struct mark_file file = {.workers = 0};
    const char *fault;
    int fd;

    if (store == NULL) {
        return false;
    }
    fd = folder_open_file(folder, name);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) {
        return false; /* the file may be well: a daemon that starts later can tell */
    }
    fault = fd >= 0 ? mark_examine(fd, part, &file) : strerror(errno);
    if (fault != NULL) {
        (void)snprintf(store->fault, sizeof store->fault, "its file %s %s", name, fault);
    } else {
        folder_take_mark(store, &file.mark);
        folder_take_workers(folder, store, file.workers);
    }
    /* Never 0: that is no part. */
    store->size[part] = fault == NULL ? file.mark.size : (uint64_t)file.status.st_size + 1;
    folder_take_time(store, fd, file.status.st_mtime);
    if (fd >= 0) {
        (void)close(fd);
    }
    return true;
}

struct folder_scan {
    struct folder *folder;
    bool known; /* false without memory or descriptors */
};

static bool folder_take_name(void *context, const char *name)
{
    struct folder_scan *scan = context;
    char wanted[FILES_NAME_SIZE];
    uint32_t number;
    unsigned part;

    if (sscanf(name, "%8x.%2u", &number, &part) == 2 && part < FOLDER_PARTS) {
        folder_name(number, part, wanted);
        scan->known = strcmp(name, wanted) != 0 || folder_take(scan->folder, name, number, part);
    } /* otherwise it is a handle, the lock, or a file of others */
    scan->known = scan->known && handles_take(&scan->folder->handles, name);
    return scan->known;
}

/* Removes what a killed daemon left of stores that it was removing, or had just begun. */
static void folder_sweep(struct folder *folder)
{
    struct folder_store *next;

    for (struct folder_store *store = folder->first; store != NULL; store = next) {
        next = store->next;
        if (store->size[0] == 0 && store->fault[0] == '\0') {
            folder_remove(folder, store);
        }
    }
    for (struct handle *handle = folder->handles.first, *after; handle != NULL; handle = after) {
        after = handle->next;
        if (folder_find_number(folder, handle->store) == NULL) {
            handles_drop(&folder->handles, handle->store, HANDLES_ALL);
            after = folder->handles.first; /* others of that store have gone, too */
        }
    }
}

struct folder *folder_open(
    struct files *files, struct keeper *keeper, uint32_t workers, struct error *err)
{
    struct folder *folder = calloc(1, sizeof *folder);
    struct folder_scan scan = {.folder = folder, .known = true};

    if (folder == NULL) {
        files->ops->close(files);
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for the stores");
        return NULL;
    }
    folder->files = folder->handles.files = files;
    folder->workers = workers;
    if (files->ops->list(files, folder_take_name, &scan, err) == ADTOPK_OK) {
        if (scan.known) {
            folder_sweep(folder);
            folder->keeper = keeper;
            return folder;
        }
        (void)error_set(err, ADTOPK_ERR_MEMORY,
            "no memory, or no descriptors, for the stores that the daemon before left");
    }
    folder_close(folder);
    return NULL;
}

/* The files of a store that a job has used, where others could change them. Without a seal the next
 * daemon takes the content as it is. */
static void folder_seal(const struct folder *folder, const struct folder_store *store)
{
    struct mark mark;
    struct stat status;
    char name[FILES_NAME_SIZE];

    const bool needed = folder->files->ops->exposed && store->unsealed;

    for (unsigned part = 0; needed && part < FOLDER_PARTS; part++) {
        int fd;

        if (store->size[part] == 0) {
            continue;
        }
        folder_name(store->number, part, name);
        fd = folder_open_file(folder, name);
        if (fd >= 0 && mark_read(fd, part, &mark, &status) == NULL) {
            (void)mark_seal(fd, &mark, true);
        }
        if (fd >= 0) {
            (void)close(fd);
        }
    }
}

void folder_close(struct folder *folder)
{
    if (folder == NULL) {
        return;
    }
    while (folder->first != NULL) {
        struct folder_store *store = folder->first;

        folder_seal(folder, store);
        store->used_s = store->job != 0 ? folder_now() : store->used_s;
        folder_stamp_files(folder, store);
        folder->first = store->next;
        free(store);
    }
    handles_close(&folder->handles);
    folder->files->ops->close(folder->files);
    free(folder);
}
