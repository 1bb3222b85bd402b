/*
 * Files without a path, of which the service manager keeps descriptors. This daemon keeps one of
 * each as well, because the manager passes descriptors only to a process that it starts.
 */
#include "daemon/local/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/local/segment.h"
#include "daemon/session/passed.h"
#include "proto/retry.h"

struct kept_file {
    struct kept_file *next;
    int fd;
    bool removed; /* the manager has yet to hear it: until then it keeps the file */
    char name[FILES_NAME_SIZE];
};

struct files_manager {
    struct files files;
    files_tell *tell;
    unsigned limit, count;
    bool deaf; /* it did not hear the last removal */
    struct kept_file *first;
};

static int files_manager_open(const struct files *files, const char *name)
{
    const struct kept_file *file = ((const struct files_manager *)files)->first;
    int fd;

    while (file != NULL && (file->removed || strcmp(file->name, name) != 0)) {
        file = file->next;
    }
    if (file == NULL) {
        errno = ENOENT;
        return -1;
    }
    RETRY(fd, fcntl(file->fd, F_DUPFD_CLOEXEC, 0));
    return fd;
}

static int files_manager_make(const struct files *files)
{
    const int fd = segment_file("store");

    (void)files;
    if (fd >= 0 && fchmod(fd, S_IRUSR | S_IWUSR) != 0) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

/* Adds a file to the list, which then owns the descriptor. */
static bool files_manager_add(struct files_manager *manager, const char *name, int fd)
{
    struct kept_file *file = malloc(sizeof *file);

    if (file == NULL) {
        return false;
    }
    file->fd = fd;
    file->removed = false;
    (void)snprintf(file->name, sizeof file->name, "%s", name);
    file->next = manager->first;
    manager->first = file;
    manager->count++;
    return true;
}

static void files_manager_drop(struct files_manager *manager, struct kept_file **link)
{
    struct kept_file *file = *link;

    *link = file->next;
    manager->count--;
    (void)close(file->fd);
    free(file);
}

/* Tells the manager what was removed. If it does not hear, which may take a moment to find out, the
 * rest waits for the next call. */
static void files_manager_settle(struct files *files)
{
    struct files_manager *manager = (struct files_manager *)files;
    struct kept_file **link = &manager->first;

    manager->deaf = false;
    while (*link != NULL && !manager->deaf) {
        if (!(*link)->removed) {
            link = &(*link)->next;
        } else if (manager->tell((*link)->name, -1, NULL) == ADTOPK_OK) {
            files_manager_drop(manager, link);
        } else {
            manager->deaf = true;
        }
    }
}

/* The manager may have passed several files of one name, and removes them together. */
static void files_manager_mark(struct files_manager *manager, const char *name)
{
    for (struct kept_file *file = manager->first; file != NULL; file = file->next) {
        file->removed = file->removed || strcmp(file->name, name) == 0;
    }
}

static void files_manager_remove(struct files *files, const char *name)
{
    struct files_manager *manager = (struct files_manager *)files;

    files_manager_mark(manager, name);
    if (!manager->deaf) {
        files_manager_settle(files);
    }
}

static enum adtopk_status files_manager_keep(
    struct files *files, const char *name, int fd, struct error *err)
{
    struct files_manager *manager = (struct files_manager *)files;
    int ours;

    files_manager_mark(manager, name);
    files_manager_settle(files);
    if (manager->deaf) { /* the next daemon must not find two files of one name */
        return error_set(err, ADTOPK_ERR_SYSTEM, "the service manager does not hear");
    }
    if (manager->count >= manager->limit) { /* the manager would close the descriptor */
        return error_set(err, ADTOPK_ERR_MEMORY,
            "the service manager keeps at most %u files of stores and parts on GPUs (FDSTORE)",
            manager->limit);
    }
    RETRY(ours, fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (ours < 0) {
        return error_set(err, ADTOPK_ERR_SYSTEM, "no descriptor for a store: %s", strerror(errno));
    }
    if (!files_manager_add(manager, name, ours)) {
        (void)close(ours);
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for a store");
    }
    if (manager->tell(name, fd, err) != ADTOPK_OK) {
        files_manager_drop(manager, &manager->first); /* the manager never had it */
        return err->code;
    }
    return ADTOPK_OK;
}

static enum adtopk_status files_manager_list(struct files *files,
    bool (*take)(void *context, const char *name), void *context, struct error *err)
{
    const struct kept_file *file = ((const struct files_manager *)files)->first;

    (void)err;
    while (file != NULL && take(context, file->name)) {
        file = file->next;
    }
    return ADTOPK_OK;
}

static void files_manager_close(struct files *files)
{
    struct files_manager *manager = (struct files_manager *)files;

    while (manager->first != NULL) {
        files_manager_drop(manager, &manager->first);
    }
    free(manager);
}

static const struct files_ops files_manager_ops = {
    .others = true,
    .open = files_manager_open,
    .make = files_manager_make,
    .keep = files_manager_keep,
    .remove = files_manager_remove,
    .settle = files_manager_settle,
    .list = files_manager_list,
    .close = files_manager_close,
};

struct files *files_at_manager(files_tell *tell, unsigned limit, struct error *err)
{
    struct files_manager *manager = calloc(1, sizeof *manager);
    char name[FILES_NAME_SIZE];
    int fd = -1;

    if (manager != NULL) {
        manager->files.ops = &files_manager_ops;
        manager->tell = tell;
        manager->limit = limit;
        fd = passed_file(-1, name, sizeof name);
    }
    for (; fd >= 0; fd = passed_file(fd, name, sizeof name)) {
        if (!files_manager_add(manager, name, fd)) {
            files_manager_close(&manager->files);
            manager = NULL;
            break;
        }
    }
    if (manager == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for the stores of the service manager");
        return NULL;
    }
    return &manager->files;
}

void files_forget(files_tell *tell)
{
    char name[FILES_NAME_SIZE];

    for (int fd = passed_file(-1, name, sizeof name); fd >= 0;
         fd = passed_file(fd, name, sizeof name)) {
        (void)tell(name, -1, NULL);
        (void)close(fd);
    }
}
