#include "daemon/loop/threads.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define THREADS_STAT_SIZE 1024

/* User and system time in the text of a "stat" file, if the thread's name begins with `prefix`. The
 * name stands in brackets, and may contain some itself. */
static uint64_t threads_ticks(const char *stat, const char *prefix)
{
    const char *name = strchr(stat, '(');
    const char *rest = strrchr(stat, ')');
    uint64_t user, system;

    if (name == NULL || rest == NULL || strncmp(name + 1, prefix, strlen(prefix)) != 0 ||
        sscanf(rest + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %" SCNu64 " %" SCNu64, &user,
            &system) != 2) {
        return 0;
    }
    return user + system;
}

static uint64_t threads_read(int tasks, const char *thread, const char *prefix)
{
    char path[64], stat[THREADS_STAT_SIZE];
    ssize_t size;
    int fd;

    (void)snprintf(path, sizeof(path), "%.20s/stat", thread);
    fd = openat(tasks, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return 0; /* it has ended */
    }
    size = read(fd, stat, sizeof(stat) - 1);
    (void)close(fd);
    stat[size > 0 ? size : 0] = '\0';
    return threads_ticks(stat, prefix);
}

uint64_t threads_cpu_us(const char *prefix)
{
    const long per_second = sysconf(_SC_CLK_TCK);
    DIR *tasks = opendir("/proc/self/task");
    const struct dirent *entry;
    uint64_t ticks = 0;

    while (tasks != NULL && (entry = readdir(tasks)) != NULL) {
        ticks += entry->d_name[0] != '.' ? threads_read(dirfd(tasks), entry->d_name, prefix) : 0;
    }
    if (tasks != NULL) {
        (void)closedir(tasks);
    }
    return per_second > 0 ? ticks * (UINT64_C(1000000) / (uint64_t)per_second) : 0;
}
