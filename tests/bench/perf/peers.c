#include "tests/bench/perf/peers.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/bench/perf/process.h"
#include "tests/bench/perf/stop.h"

#define ARGUMENTS 10
#define ARGUMENT_SIZE 24

const char *const peers_names[] = {
    [PEER_NTH] = "nth", [PEER_TORCH] = "torch", [PEERS_COUNT] = NULL};

/* Where they lie, seen from this program: in a build folder, and installed. */
static const struct {
    const char *program;
    const char *beside[3];
} programs[] = {
    [PEER_NTH] = {"adtopk-perf-nth", {"adtopk-perf-nth", "../libexec/adtopk/adtopk-perf-nth"}},
    [PEER_TORCH] = {"adtopk-perf-torch",
        {"adtopk-perf-torch", "../libexec/adtopk/adtopk-perf-torch"}},
};

/* What the child process needs. */
struct start {
    const char *path;
    int out;      /* where it prints */
    int files[2]; /* residual and gradient */
    char argument[ARGUMENTS][ARGUMENT_SIZE];
};

/* A file in memory with these bytes; -1: see errno. */
static int file_of(const void *bytes, size_t size)
{
    const char *from = bytes;
    const int fd = memfd_create("adtopk-perf-peer", 0);

    for (size_t done = 0; fd >= 0 && done < size;) {
        const ssize_t wrote = write(fd, from + done, size - done);

        if (wrote < 0 && errno != EINTR) {
            (void)close(fd);
            return -1;
        }
        done += wrote > 0 ? (size_t)wrote : 0;
    }
    return fd;
}

static void write_arguments(
    struct start *start, const struct tensor *tensor, unsigned threads, unsigned turns)
{
    const struct fused *pass = &tensor->pass;
    const struct view view = pass->per_fibre ? pass->view : (struct view){1, tensor->n, 1};
    const uint64_t number[ARGUMENTS] = {(uint64_t)start->files[0], (uint64_t)start->files[1], 0,
        tensor->n, view.fibres, view.length, view.stride, pass->k, turns, threads};

    for (unsigned i = 0; i < ARGUMENTS; i++) {
        (void)snprintf(start->argument[i], ARGUMENT_SIZE, "%" PRIu64, number[i]);
    }
    (void)snprintf(start->argument[2], ARGUMENT_SIZE, "%s", data_dtype_names[tensor->kind.dtype]);
}

static int run_peer(void *context, unsigned index)
{
    struct start *start = context;
    char *argv[ARGUMENTS + 2] = {NULL};

    (void)index;
    argv[0] = (char *)(uintptr_t)start->path;
    for (unsigned i = 0; i < ARGUMENTS; i++) {
        argv[i + 1] = start->argument[i];
    }
    if (dup2(start->out, STDOUT_FILENO) >= 0) {
        (void)execv(start->path, argv);
    }
    return 1;
}

/* One number a line, until the peer closes its output. */
static bool read_times(int fd, struct series *times)
{
    FILE *file = fdopen(fd, "r");
    char line[64];
    bool ok = file != NULL;

    while (ok && !stop_requested() && fgets(line, sizeof(line), file) != NULL) {
        ok = series_add(times, strtod(line, NULL));
    }
    if (file == NULL) {
        (void)close(fd);
    } else {
        (void)fclose(file);
    }
    return ok;
}

static enum adtopk_status run_and_read(struct start *start, struct series *times, struct error *err)
{
    struct crew crew = {.count = 0};
    int ends[2];
    enum adtopk_status status;
    bool ok;

    if (pipe2(ends, O_CLOEXEC) != 0) {
        return error_set(err, ADTOPK_ERR_SYSTEM, "cannot make a pipe: %s", strerror(errno));
    }
    start->out = ends[1];
    status = crew_start(&crew, run_peer, start, 0, err);
    (void)close(ends[1]);
    ok = read_times(ends[0], times);
    if (status == ADTOPK_OK) {
        status = crew_wait(&crew, err);
    }
    crew_kill(&crew);
    return status == ADTOPK_OK && !ok ? error_set(err, ADTOPK_ERR_MEMORY, "no memory for samples")
                                      : status;
}

enum adtopk_status peers_measure(enum peer peer, const struct tensor *tensor, unsigned threads,
    unsigned turns, struct series *times, struct error *err)
{
    char path[PATH_MAX];
    struct start start = {.path = path};
    enum adtopk_status status = ADTOPK_OK;

    if (process_find(programs[peer].program, NULL, programs[peer].beside, path, sizeof(path),
            err) != ADTOPK_OK) {
        return ADTOPK_OK;
    }
    start.files[0] = file_of(tensor->start, tensor->n * sizeof(float));
    start.files[1] = file_of(tensor->gradient[0], tensor->n * dtype_size(tensor->kind.dtype));
    if (start.files[0] < 0 || start.files[1] < 0) {
        status = error_set(err, ADTOPK_ERR_SYSTEM, "no memory for a peer: %s", strerror(errno));
    } else {
        write_arguments(&start, tensor, threads, turns);
        status = run_and_read(&start, times, err);
    }
    for (unsigned i = 0; i < 2; i++) {
        if (start.files[i] >= 0) {
            (void)close(start.files[i]);
        }
    }
    return status;
}
