/* Memory that the system can still give. The kernel lets a program reserve more shared memory than
 * there is, and then kills a process. So the daemon asks first. */
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/local/segment.h"
#include "proto/retry.h"

#define AVAILABLE_TEXT 8192

/* Reads the start of a small file; false if it cannot be read. */
static bool available_read(const char *folder, const char *name, char text[AVAILABLE_TEXT])
{
    char path[PATH_MAX];
    ssize_t size;
    int fd;

    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) {
        return false;
    }
    RETRY(fd, open(path, O_RDONLY | O_CLOEXEC));
    if (fd < 0) {
        return false;
    }
    RETRY(size, read(fd, text, AVAILABLE_TEXT - 1));
    (void)close(fd);
    text[size > 0 ? size : 0] = '\0';
    return size > 0;
}

/* The number after `key` at the start of a line; 0 if there is none. */
static uint64_t available_field(const char *text, const char *key)
{
    const size_t length = strlen(key);

    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, length) == 0) {
            return strtoull(line + length, NULL, 10);
        }
    }
    return 0;
}

/* Memory that one control group can still give: its limit, minus its use that it cannot reclaim. */
static uint64_t available_group(const char *folder)
{
    char text[AVAILABLE_TEXT];
    uint64_t limit, used, cache;

    if (!available_read(folder, "memory.max", text) || text[0] < '0' || text[0] > '9') {
        return UINT64_MAX; /* the limit is "max", or there is no such controller */
    }
    limit = strtoull(text, NULL, 10);
    if (!available_read(folder, "memory.current", text)) {
        return UINT64_MAX;
    }
    used = strtoull(text, NULL, 10);
    if (available_read(folder, "memory.stat", text)) {
        cache = available_field(text, "inactive_file ") + available_field(text, "active_file ");
        used -= cache < used ? cache : used;
    }
    return limit > used ? limit - used : 0;
}

/* The least that this process's control group and the groups above it can still give. */
static uint64_t available_groups(void)
{
    char text[AVAILABLE_TEXT];
    char folder[PATH_MAX];
    uint64_t least = UINT64_MAX;
    char *name, *end;

    if (!available_read("/proc/self", "cgroup", text) || (name = strstr(text, "0::/")) == NULL) {
        return least;
    }
    name += strlen("0::");
    name[strcspn(name, "\n")] = '\0';
    (void)snprintf(folder, sizeof folder, "/sys/fs/cgroup%.2000s", name);
    do {
        const uint64_t left = available_group(folder);
        least = left < least ? left : least;
        end = strrchr(folder, '/');
        *end = '\0';
    } while (strlen(folder) >= strlen("/sys/fs/cgroup"));
    return least;
}

uint64_t segment_available(void)
{
    char text[AVAILABLE_TEXT];
    const uint64_t groups = available_groups();
    uint64_t system = UINT64_MAX;

    if (available_read("/proc", "meminfo", text)) {
        system = available_field(text, "MemAvailable:") * 1024;
    }
    return groups < system ? groups : system;
}
