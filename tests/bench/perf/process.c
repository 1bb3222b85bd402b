#include "tests/bench/perf/process.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/bench/perf/stop.h"

#define POLL_US 20000 /* seldom: it would disturb what is measured */

void process_detach(pid_t parent)
{
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) { /* it died before we could ask for that */
        _exit(1);
    }
}

enum adtopk_status crew_start(struct crew *crew, int (*work)(void *context, unsigned index),
    void *context, unsigned index, struct error *err)
{
    const pid_t parent = getpid();
    pid_t pid;

    if (crew->count == CREW_MAX) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "at most %d processes", CREW_MAX);
    }
    (void)fflush(NULL); /* or the child prints it again */
    pid = fork();
    if (pid < 0) {
        return error_set(err, ADTOPK_ERR_SYSTEM, "cannot start a process: %s", strerror(errno));
    }
    if (pid == 0) {
        process_detach(parent);
        _exit(work(context, index));
    }
    crew->pid[crew->count++] = pid;
    return ADTOPK_OK;
}

static void forget(struct crew *crew, size_t at)
{
    crew->pid[at] = crew->pid[--crew->count];
}

/* Buries one that has ended; true if it had failed. */
static bool bury(struct crew *crew, size_t at, bool *buried)
{
    int status = 0;
    const pid_t pid = waitpid(crew->pid[at], &status, WNOHANG);

    *buried = pid != 0;
    if (*buried) {
        forget(crew, at);
    }
    return pid < 0 || (pid > 0 && (!WIFEXITED(status) || WEXITSTATUS(status) != 0));
}

enum adtopk_status crew_wait(struct crew *crew, struct error *err)
{
    bool failed = false;

    while (crew->count > 0 && !failed && !stop_requested()) {
        for (size_t i = 0; i < crew->count && !failed;) {
            bool buried;

            failed = bury(crew, i, &buried);
            i += buried ? 0 : 1;
        }
        if (crew->count > 0 && !failed) {
            process_sleep_us(POLL_US);
        }
    }
    crew_kill(crew);
    return failed ? error_set(err, ADTOPK_ERR_STATE, "a process of the benchmark failed")
                  : ADTOPK_OK;
}

void crew_kill(struct crew *crew)
{
    for (size_t i = 0; i < crew->count; i++) {
        (void)kill(crew->pid[i], SIGKILL);
    }
    while (crew->count > 0) {
        while (waitpid(crew->pid[0], NULL, 0) < 0 && errno == EINTR) {
        }
        forget(crew, 0);
    }
}

void process_sleep_us(uint64_t us)
{
    const struct timespec pause = {
        .tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000};

    (void)nanosleep(&pause, NULL);
}

static bool found(char *path, size_t size, const char *folder, const char *file)
{
    const int length = snprintf(path, size, "%s%s%s", folder, folder[0] != '\0' ? "/" : "", file);

    return length > 0 && (size_t)length < size && access(path, X_OK) == 0;
}

static bool found_on_path(const char *name, char *path, size_t size)
{
    const char *at = getenv("PATH");

    while (at != NULL && *at != '\0') {
        const size_t length = strcspn(at, ":");
        char folder[1024];

        (void)snprintf(folder, sizeof(folder), "%.*s", (int)length, at);
        if (length > 0 && length < sizeof(folder) && found(path, size, folder, name)) {
            return true;
        }
        at += length + (at[length] == ':' ? 1 : 0);
    }
    return false;
}

enum adtopk_status process_find(const char *name, const char *given, const char *const *beside,
    char *path, size_t size, struct error *err)
{
    char own[1024];
    const ssize_t length = readlink("/proc/self/exe", own, sizeof(own) - 1);

    if (given != NULL) {
        return found(path, size, "", given)
                   ? ADTOPK_OK
                   : error_set(err, ADTOPK_ERR_ARGUMENT, "cannot run \"%.150s\": %s", given,
                         strerror(errno));
    }
    if (length > 0) {
        own[length] = '\0';
        *strrchr(own, '/') = '\0';
        for (size_t i = 0; beside[i] != NULL; i++) {
            if (found(path, size, own, beside[i])) {
                return ADTOPK_OK;
            }
        }
    }
    return found_on_path(name, path, size)
               ? ADTOPK_OK
               : error_set(err, ADTOPK_ERR_ARGUMENT,
                     "no %s beside this program and none in $PATH: say where it is with --%s", name,
                     strcmp(name, "adtopkd") == 0 ? "daemon" : "ctl");
}
