#include "client/adtopkctl/save.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum adtopk_status save_file(const char *path, void (*print)(FILE *file, const void *what),
    const void *what, struct error *err)
{
    char aside[4096];
    FILE *file = NULL;
    int fd = -1;
    bool good;

    if (snprintf(aside, sizeof(aside), "%s.XXXXXX", path) < (int)sizeof(aside)) {
        fd = mkostemp(aside, O_CLOEXEC);
        file = fd >= 0 ? fdopen(fd, "w") : NULL;
    }
    if (file == NULL) {
        (void)error_set(err, ADTOPK_ERR_SYSTEM, "%.200s: %s", path, strerror(errno));
        if (fd >= 0) {
            (void)close(fd);
            (void)unlink(aside);
        }
        return err->code;
    }
    print(file, what);
    good = fflush(file) == 0 && !ferror(file);
    good = fclose(file) == 0 && good;
    if (!good || rename(aside, path) != 0) {
        (void)error_set(err, ADTOPK_ERR_SYSTEM, "%.200s: %s", path, strerror(errno));
        (void)unlink(aside);
        return err->code;
    }
    return ADTOPK_OK;
}
