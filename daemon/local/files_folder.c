/* Files in a folder on a tmpfs. A file gets its name by a link, when it is complete. */
#include "daemon/local/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "proto/retry.h"

struct files_folder {
    struct files files;
    int fd;
    int lock;
    char path[101]; /* for errors */
};

static const struct files_folder *files_folder_of(const struct files *files)
{
    return (const struct files_folder *)files;
}

static int files_folder_open_with(const struct files_folder *folder, const char *name, int flags)
{
    int fd;

    RETRY(fd, openat(folder->fd, name, flags | O_NOFOLLOW | O_CLOEXEC, 0600));
    return fd;
}

static int files_folder_open(const struct files *files, const char *name)
{
    return files_folder_open_with(files_folder_of(files), name, O_RDWR | O_NONBLOCK);
}

static int files_folder_make(const struct files *files)
{
    return files_folder_open_with(files_folder_of(files), ".", O_RDWR | O_TMPFILE);
}

static enum adtopk_status files_folder_keep(
    struct files *files, const char *name, int fd, struct error *err)
{
    const struct files_folder *folder = files_folder_of(files);
    char path[64];

    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return linkat(AT_FDCWD, path, folder->fd, name, AT_SYMLINK_FOLLOW) == 0
               ? ADTOPK_OK
               : error_set(err, ADTOPK_ERR_SYSTEM, "linkat in store_folder %s failed: %s",
                     folder->path, strerror(errno));
}

static void files_folder_remove(struct files *files, const char *name)
{
    (void)unlinkat(files_folder_of(files)->fd, name, 0);
}

/* What is removed is gone. */
static void files_folder_settle(struct files *files)
{
    (void)files;
}

static enum adtopk_status files_folder_list(struct files *files,
    bool (*take)(void *context, const char *name), void *context, struct error *err)
{
    const struct files_folder *folder = files_folder_of(files);
    const int fd = files_folder_open_with(folder, ".", O_RDONLY | O_DIRECTORY);
    DIR *entries = fd >= 0 ? fdopendir(fd) : NULL;
    const struct dirent *entry;

    if (entries == NULL) {
        const int reason = errno;

        if (fd >= 0) {
            (void)close(fd);
        }
        return error_set(err, ADTOPK_ERR_SYSTEM, "cannot list store_folder %s: %s", folder->path,
            strerror(reason));
    }
    do {
        entry = readdir(entries);
    } while (entry != NULL && take(context, entry->d_name));
    (void)closedir(entries);
    return ADTOPK_OK;
}

static void files_folder_close(struct files *files)
{
    struct files_folder *folder = (struct files_folder *)files;

    if (folder->lock >= 0) {
        (void)close(folder->lock);
    }
    if (folder->fd >= 0) {
        (void)close(folder->fd);
    }
    free(folder);
}

static const struct files_ops files_folder_ops = {
    .exposed = true,
    .open = files_folder_open,
    .make = files_folder_make,
    .keep = files_folder_keep,
    .remove = files_folder_remove,
    .settle = files_folder_settle,
    .list = files_folder_list,
    .close = files_folder_close,
};

/* ------------------------------------------------------------------ opening */

static enum adtopk_status files_folder_failed(
    const char *what, const char *path, int reason, struct error *err)
{
    return error_set(
        err, ADTOPK_ERR_SYSTEM, "%s store_folder %.100s: %s", what, path, strerror(reason));
}

static int files_folder_enter(const char *path, int flags)
{
    int fd;

    RETRY(fd, open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | flags));
    return fd;
}

/* fd: the folder, or the one in which it will be made. */
static enum adtopk_status files_folder_check_memory(int fd, const char *path, struct error *err)
{
    struct statfs system;

    if (fstatfs(fd, &system) != 0) {
        return files_folder_failed("cannot look at", path, errno, err);
    }
    return system.f_type == TMPFS_MAGIC
               ? ADTOPK_OK
               : error_set(err, ADTOPK_ERR_ARGUMENT,
                     "store_folder %.100s is not in memory: it must be on a tmpfs", path);
}

static enum adtopk_status files_folder_check(int fd, const char *path, struct error *err)
{
    struct stat status;

    if (fstat(fd, &status) != 0) {
        return files_folder_failed("cannot look at", path, errno, err);
    }
    if (status.st_uid != geteuid() || (status.st_mode & 077) != 0) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "store_folder %.100s must be of user %u and closed to others (mode 0700)", path,
            (unsigned)geteuid());
    }
    return files_folder_check_memory(fd, path, err);
}

/* What making it would meet. */
static enum adtopk_status files_folder_check_parent(const char *path, struct error *err)
{
    char copy[PATH_MAX];
    int fd;
    enum adtopk_status status;

    (void)snprintf(copy, sizeof copy, "%s", path);
    fd = files_folder_enter(dirname(copy), 0);
    if (fd < 0) {
        return files_folder_failed("cannot make", path, errno, err);
    }
    status = faccessat(fd, ".", W_OK | X_OK, AT_EACCESS) == 0
                 ? files_folder_check_memory(fd, path, err)
                 : files_folder_failed("cannot make", path, errno, err);
    if (status == ADTOPK_ERR_ARGUMENT) {
        (void)error_set(err, status,
            "store_folder %.100s does not exist, and the folder in which it would be made is not "
            "on a tmpfs",
            path);
    }
    (void)close(fd);
    return status;
}

enum adtopk_status files_check_folder(const char *path, struct error *err)
{
    const int fd = files_folder_enter(path, O_NOFOLLOW);
    enum adtopk_status status;

    if (fd < 0) {
        return errno == ENOENT ? files_folder_check_parent(path, err)
                               : files_folder_failed("cannot open", path, errno, err);
    }
    status = files_folder_check(fd, path, err);
    (void)close(fd);
    return status;
}

static enum adtopk_status files_folder_lock(struct files_folder *folder, struct error *err)
{
    folder->lock = files_folder_open_with(folder, "lock", O_RDWR | O_CREAT);
    if (folder->lock < 0) {
        return files_folder_failed("cannot lock", folder->path, errno, err);
    }
    if (flock(folder->lock, LOCK_EX | LOCK_NB) != 0) {
        return error_set(
            err, ADTOPK_ERR_STATE, "another daemon uses store_folder %s", folder->path);
    }
    return ADTOPK_OK;
}

struct files *files_in_folder(const char *path, struct error *err)
{
    struct files_folder *folder = calloc(1, sizeof *folder);

    if (folder == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for the folder of stores");
        return NULL;
    }
    folder->files.ops = &files_folder_ops;
    folder->lock = -1;
    (void)snprintf(folder->path, sizeof folder->path, "%s", path);
    (void)mkdir(path, 0700); /* what follows finds an error of this call */
    folder->fd = files_folder_enter(path, O_NOFOLLOW);
    if (folder->fd < 0) {
        (void)files_folder_failed("cannot open", path, errno, err);
    } else if (files_folder_check(folder->fd, path, err) == ADTOPK_OK &&
               files_folder_lock(folder, err) == ADTOPK_OK) {
        return &folder->files;
    }
    files_folder_close(&folder->files);
    return NULL;
}
