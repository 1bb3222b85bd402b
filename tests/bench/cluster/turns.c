#include "tests/bench/cluster/turns.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/bench/perf/clock.h"

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
static bool open_streams(struct turns_talk *talk, const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int copy = fd < 0 ? -1 : dup(fd);

    talk->out = fd < 0 ? NULL : fdopen(fd, "w");
    talk->in = copy < 0 ? NULL : fdopen(copy, "r");
    if (strlen(path) >= sizeof(address.sun_path)) {
        errno = ENAMETOOLONG;
        return false;
    }
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    return talk->out != NULL && talk->in != NULL &&
           connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0;
}

bool turns_open(struct turns_talk *talk, const char *path, const char *team, unsigned rank)
{
    *talk = (struct turns_talk){.team = team, .rank = rank};
    return (open_streams(talk, path) &&
               fprintf(talk->out, "%s %u %ld\n", team, rank, (long)getpid()) > 0 &&
               fflush(talk->out) == 0) ||
           turns_fail(team, rank, "cannot reach the conductor at %s: %s", path, strerror(errno));
}

void turns_close(struct turns_talk *talk)
{
    if (talk->out != NULL) {
        (void)fclose(talk->out);
    }
    if (talk->in != NULL) {
        (void)fclose(talk->in);
    }
}

enum turns_order turns_next(struct turns_talk *talk, const char **what)
{
    if (fgets(talk->line, sizeof(talk->line), talk->in) == NULL) {
        return TURNS_END;
    }
    talk->line[strcspn(talk->line, "\n")] = '\0';
    if (strncmp(talk->line, "prepare ", 8) == 0) {
        *what = talk->line + 8;
        return TURNS_PREPARE;
    }
    if (strncmp(talk->line, "step ", 5) == 0) {
        *what = talk->line + 5;
        return TURNS_STEP;
    }
    (void)turns_fail(talk->team, talk->rank, "no order: '%s'", talk->line);
    return TURNS_FAILED;
}

bool turns_ready(struct turns_talk *talk)
{
    return fputs("ready\n", talk->out) >= 0 && fflush(talk->out) == 0;
}

bool turns_made(struct turns_talk *talk, uint64_t begin_ns, const uint64_t *end_ns, unsigned count)
{
    bool ok = fprintf(talk->out, "%" PRIu64, begin_ns) > 0;

    for (unsigned i = 0; i < count && ok; i++) {
        ok = fprintf(talk->out, " %" PRIu64, end_ns[i]) > 0;
    }
    return ok && fputc('\n', talk->out) != EOF && fflush(talk->out) == 0;
}

static bool make_step(
    struct turns_talk *talk, const struct turns *turns, void *context, const char *what)
{
    const uint64_t begin = clock_ns();
    bool ok = turns->step(context, what);
    const uint64_t end = clock_ns();

    return ok && turns_made(talk, begin, &end, 1);
}

bool turns_serve(
    const char *path, const char *team, unsigned rank, const struct turns *turns, void *context)
{
    struct turns_talk talk;
    bool ok = turns_open(&talk, path, team, rank);
    enum turns_order order = TURNS_FAILED;
    const char *what = NULL;

    while (ok && (order = turns_next(&talk, &what)) > TURNS_END) {
        ok = order == TURNS_PREPARE ? turns->prepare(context, what) && turns_ready(&talk)
                                    : make_step(&talk, turns, context, what);
        if (!ok) {
            (void)turns_fail(team, rank, "failed at '%s'", talk.line);
        }
    }
    turns_close(&talk);
    return ok && order == TURNS_END;
}
