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
    char name[FILES_NAME_SIZE];
};

struct files_manager {
    struct files files;
    files_tell *tell;
    unsigned limit, count;
    struct kept_file *first;
};

static struct kept_file **files_manager_find(struct files_manager *manager, const char *name)
{
    struct kept_file **link = &manager->first;

    while (*link != NULL && strcmp((*link)->name, name) != 0) {
        link = &(*link)->next;
    }
    return link;
}

static int files_manager_open(const struct files *files, const char *name)
{
    const struct kept_file *file = ((const struct files_manager *)files)->first;
    int fd;

    while (file != NULL && strcmp(file->name, name) != 0) {
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

static void files_manager_remove(struct files *files, const char *name)
{
    struct files_manager *manager = (struct files_manager *)files;
    struct kept_file **link = files_manager_find(manager, name);

    if (*link != NULL && manager->tell(name, -1, NULL) == ADTOPK_OK) {
        files_manager_drop(manager, link);
    } /* otherwise the manager has it, until files_manager_keep() wants the name */
}

static enum adtopk_status files_manager_keep(
    struct files *files, const char *name, int fd, struct error *err)
{
    struct files_manager *manager = (struct files_manager *)files;
    int ours;

    files->ops->remove(files, name);
    if (*files_manager_find(manager, name) != NULL) { /* the next daemon must not find both */
        return error_set(err, ADTOPK_ERR_SYSTEM, "the service manager does not hear");
    }
    if (manager->count >= manager->limit) { /* the manager would close the descriptor */
        return error_set(err, ADTOPK_ERR_MEMORY,
            "the service manager keeps at most %u files of stores (FDSTORE)", manager->limit);
    }
    RETRY(ours, fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (ours < 0 || !files_manager_add(manager, name, ours)) {
        if (ours >= 0) {
            (void)close(ours);
        }
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory, or no descriptor, for a store");
    }
    if (manager->tell(name, fd, err) != ADTOPK_OK) {
        files->ops->remove(files, name);
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
    .open = files_manager_open,
    .make = files_manager_make,
    .keep = files_manager_keep,
    .remove = files_manager_remove,
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
