#include "client/adtopkctl/save.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Whether the path is there and no regular file: a device, a pipe, or a link to anything. It stays
 * what it is. */
static bool save_is_special(const char *path)
{
    struct stat status;

    return lstat(path, &status) == 0 && !S_ISREG(status.st_mode);
}

/* The permissions of the file that is replaced, or those of a new file. */
static mode_t save_mode(const char *path)
{
    struct stat status;
    mode_t mask;

    if (stat(path, &status) == 0) {
        return status.st_mode & 0777;
    }
    mask = umask(0);
    (void)umask(mask);
    return 0666 & ~mask;
}

static FILE *save_open_aside(const char *path, char *aside, size_t size)
{
    FILE *file;
    int fd;

    if (snprintf(aside, size, "%s.XXXXXX", path) >= (int)size) {
        errno = ENAMETOOLONG;
        return NULL;
    }
    fd = mkostemp(aside, O_CLOEXEC);
    file = fd >= 0 && fchmod(fd, save_mode(path)) == 0 ? fdopen(fd, "w") : NULL;
    if (fd >= 0 && file == NULL) {
        (void)close(fd);
        (void)unlink(aside);
    }
    return file;
}

enum adtopk_status save_file(const char *path, void (*print)(FILE *file, const void *what),
    const void *what, struct error *err)
{
    const bool special = save_is_special(path);
    char aside[4096];
    FILE *file = special ? fopen(path, "we") : save_open_aside(path, aside, sizeof(aside));
    bool good;

    if (file == NULL) {
        return error_set(err, ADTOPK_ERR_SYSTEM, "cannot write %.200s: %s", path, strerror(errno));
    }
    print(file, what);
    good = fflush(file) == 0 && !ferror(file);
    good = fclose(file) == 0 && good;
    if (!good || (!special && rename(aside, path) != 0)) {
        (void)error_set(err, ADTOPK_ERR_SYSTEM, "cannot write %.200s: %s", path, strerror(errno));
        if (!special) {
            (void)unlink(aside);
        }
        return err->code;
    }
    return ADTOPK_OK;
}
