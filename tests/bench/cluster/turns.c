#include "tests/bench/cluster/turns.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/bench/perf/clock.h"

#define LINE 128

bool turns_fail(const char *team, unsigned rank, const char *format, ...)
{
    va_list arguments;

    (void)fprintf(stderr, "%s rank %u: ", team, rank);
    va_start(arguments, format);
    (void)vfprintf(stderr, format, arguments);
    va_end(arguments);
    (void)fputc('\n', stderr);
    return false;
}

/* A stream to the conductor and one from it; false with errno. */
static bool open_streams(const char *path, FILE **out, FILE **in)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int copy = fd < 0 ? -1 : dup(fd);

    *out = fd < 0 ? NULL : fdopen(fd, "w");
    *in = copy < 0 ? NULL : fdopen(copy, "r");
    if (strlen(path) >= sizeof(address.sun_path)) {
        errno = ENAMETOOLONG;
        return false;
    }
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    return *out != NULL && *in != NULL &&
           connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0;
}

/* Does what a line says and answers it; false if it failed. */
static bool obey(FILE *out, const char *line, const struct turns *turns, void *context)
{
    const char *what = strchr(line, ' ');
    uint64_t begin;

    if (what != NULL && strncmp(line, "prepare ", 8) == 0) {
        return turns->prepare(context, what + 1) && fputs("ready\n", out) >= 0 && fflush(out) == 0;
    }
    if (what == NULL || strncmp(line, "step ", 5) != 0) {
        return false;
    }
    begin = clock_ns();
    return turns->step(context, what + 1) &&
           fprintf(out, "%" PRIu64 " %" PRIu64 "\n", begin, clock_ns()) > 0 && fflush(out) == 0;
}

bool turns_serve(
    const char *path, const char *team, unsigned rank, const struct turns *turns, void *context)
{
    FILE *out = NULL;
    FILE *in = NULL;
    char line[LINE];
    bool ok = open_streams(path, &out, &in) &&
              fprintf(out, "%s %u %ld\n", team, rank, (long)getpid()) > 0 && fflush(out) == 0;

    if (!ok) {
        (void)turns_fail(team, rank, "cannot reach the conductor at %s: %s", path, strerror(errno));
    }
    while (ok && fgets(line, sizeof(line), in) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        ok = obey(out, line, turns, context);
        if (!ok) {
            (void)turns_fail(team, rank, "failed at '%s'", line);
        }
    }
    if (out != NULL) {
        (void)fclose(out);
    }
    if (in != NULL) {
        (void)fclose(in);
    }
    return ok;
}
