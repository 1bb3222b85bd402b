/*
 * libnccl.so.2 for tests: README.md beside this file. One thread of a process makes all calls.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "daemon/device/nccl.h"

#define RANKS_MAX 16
#define VERSION 22809
#define LATE_US 20000
#define POLLS 4 /* an operation is in progress for fewer */
#define PATH_SIZE 512

#define STANDIN_PROTOTYPE(type, name, parameters) type name parameters;
NCCL_CALLS(STANDIN_PROTOTYPE)
#undef STANDIN_PROTOTYPE

/* A file that the members of a communicator share. */
struct board {
    _Atomic int pid[RANKS_MAX];         /* 0: the rank has not come */
    _Atomic bool gone[RANKS_MAX];       /* it has aborted */
    _Atomic uint64_t posted[RANKS_MAX]; /* operations whose values it has written */
    _Atomic uint64_t bytes[RANKS_MAX];  /* of the last of these */
};

struct ncclComm {
    struct ncclComm *next;
    int rank, ranks;
    bool ready, aborted;
    ncclResult_t state;
    uint64_t operations;
    struct operation *begun; /* in progress, and not in its stream yet; NULL: none */
    unsigned polls;          /* how often it still says so */
    uint64_t memory;         /* bytes that it has of the device */
    unsigned kinds;          /* of operations that it has begun, a bit for each */
    struct board *board;
    char path[PATH_SIZE / 2];
};

enum operation_kind { SUMS, GATHERS, DEALS };

struct operation {
    ncclComm_t comm;
    enum operation_kind kind;
    uint64_t number; /* in the communicator */
    uint64_t bytes;  /* of one rank; of one piece */
    const void *from;
    void *to;
    const void *give[RANKS_MAX]; /* DEALS: the piece for each rank, and where its piece goes */
    void *take[RANKS_MAX];
    CUstream stream;
    bool posted;
    unsigned nth; /* in this process */
    uint64_t due_us;
};

static void put_in_stream(struct operation *operation);

static ncclComm_t comms; /* also those that were aborted: operations may be left in a stream */
static unsigned nth;

/* ------------------------------------------------------------------ faults */

static bool has_fault(const char *name)
{
    const char *fault = getenv("ADTOPK_TEST_NCCL_FAULT");

    return fault != NULL && strcmp(fault, name) == 0;
}

static bool has_fault_in(const char *name, unsigned operation)
{
    char wanted[32];

    (void)snprintf(wanted, sizeof(wanted), "%s:%u", name, operation);
    return has_fault(wanted);
}

static uint64_t now_us(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* ------------------------------------------------------------------ the driver that stands in */

static void *in_driver(const char *name)
{
    void *driver = dlopen(getenv("ADTOPK_CUDA_LIBRARY"), RTLD_NOW | RTLD_NOLOAD);
    void *found = driver != NULL ? dlsym(driver, name) : NULL;

    if (found == NULL) {
        abort();
    }
    return found;
}

/* A communicator takes memory when it is made, and as much with its first operation of each kind.
 * False: the device has no more. */
static bool take_memory(ncclComm_t comm)
{
    const char *bytes = getenv("ADTOPK_TEST_NCCL_MEMORY");
    const uint64_t more = bytes != NULL ? strtoull(bytes, NULL, 10) : 0;
    bool (*standin_take)(int device, uint64_t bytes);
    int (*standin_device)(void);
    void *take = in_driver("standin_take"), *device = in_driver("standin_device");

    (void)memcpy(&standin_take, &take, sizeof(take));
    (void)memcpy(&standin_device, &device, sizeof(device));
    if (!standin_take(standin_device(), more)) {
        return false;
    }
    comm->memory += more;
    return true;
}

static void give_memory_back(ncclComm_t comm)
{
    void (*standin_give_back)(int device, uint64_t bytes);
    int (*standin_device)(void);
    void *give = in_driver("standin_give_back"), *device = in_driver("standin_device");

    (void)memcpy(&standin_give_back, &give, sizeof(give));
    (void)memcpy(&standin_device, &device, sizeof(device));
    standin_give_back(standin_device(), comm->memory);
    comm->memory = 0;
}

/* ------------------------------------------------------------------ communicators */

ncclResult_t ncclGetVersion(int *version)
{
    const char *told = getenv("ADTOPK_TEST_NCCL_VERSION");

    *version = told != NULL ? atoi(told) : VERSION;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    uint64_t number;

    if (has_fault("nameless") || getrandom(&number, sizeof(number), 0) != (ssize_t)sizeof(number)) {
        return ncclSystemError;
    }
    (void)memset(id, 0, sizeof(*id));
    (void)snprintf(id->internal, sizeof(id->internal), "%016llx", (unsigned long long)number);
    return ncclSuccess;
}

static bool open_board(ncclComm_t comm)
{
    int fd = open(comm->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

    if (fd < 0 || ftruncate(fd, sizeof(struct board)) != 0) {
        return false;
    }
    comm->board = mmap(NULL, sizeof(struct board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    (void)close(fd);
    return comm->board != MAP_FAILED;
}

ncclResult_t ncclCommInitRankConfig(
    ncclComm_t *made, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    const char *folder = getenv("ADTOPK_TEST_NCCL_DIR");
    ncclComm_t comm;

    *made = NULL;
    if (ranks > RANKS_MAX || rank < 0 || rank >= ranks || config->blocking != 0 ||
        config->magic != NCCL_CONFIG_MAGIC || config->size != sizeof(*config) || folder == NULL) {
        return ncclInvalidArgument;
    }
    comm = calloc(1, sizeof(*comm));
    if (comm == NULL) {
        return ncclSystemError;
    }
    *comm = (struct ncclComm){.next = comms, .rank = rank, .ranks = ranks, .state = ncclInProgress};
    comms = comm;
    (void)snprintf(comm->path, sizeof(comm->path), "%.200s/%.16s", folder, id.internal);
    if (!open_board(comm)) {
        return ncclSystemError;
    }
    if (!take_memory(comm)) {
        return ncclUnhandledCudaError;
    }
    if (!has_fault("absent")) {
        comm->board->pid[rank] = getpid();
    }
    *made = comm;
    return ncclInProgress;
}

static bool is_dead(const ncclComm_t comm, int rank)
{
    const int pid = comm->board->pid[rank];

    return comm->board->gone[rank] || (pid != 0 && kill(pid, 0) != 0 && errno == ESRCH);
}

static void look_around(ncclComm_t comm)
{
    bool all = true;

    for (int r = 0; r < comm->ranks; r++) {
        all = all && comm->board->pid[r] != 0;
        if (is_dead(comm, r)) {
            comm->state = ncclRemoteError;
        }
    }
    if (comm->state == ncclInProgress && all) {
        comm->state = ncclSuccess;
        comm->ready = true;
    }
}

/* The operation comes into its stream when it has been asked for often enough. */
static void go_on(ncclComm_t comm)
{
    if (comm->begun != NULL && comm->polls-- == 0) {
        put_in_stream(comm->begun);
        comm->begun = NULL;
    }
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *result)
{
    if (comm->state == ncclInProgress && !comm->ready) {
        look_around(comm);
    }
    go_on(comm);
    *result = comm->state == ncclSuccess && comm->begun != NULL ? ncclInProgress : comm->state;
    return ncclSuccess;
}

static void value_path(const ncclComm_t comm, int rank, uint64_t number, char path[PATH_SIZE])
{
    (void)snprintf(path, PATH_SIZE, "%s.%d.%llu", comm->path, rank, (unsigned long long)number);
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    char path[PATH_SIZE];

    free(comm->begun);
    comm->begun = NULL;
    comm->aborted = true;
    give_memory_back(comm);
    comm->board->gone[comm->rank] = true;
    for (uint64_t n = comm->operations > 2 ? comm->operations - 2 : 0; n <= comm->operations; n++) {
        value_path(comm, comm->rank, n, path);
        (void)unlink(path);
    }
    return ncclSuccess;
}

/* ------------------------------------------------------------------ operations */

/* The rank's own values into its file. */
static bool write_all(const struct operation *operation, int fd)
{
    const int pieces = operation->kind == DEALS ? operation->comm->ranks : 1;
    bool written = fd >= 0;

    for (int p = 0; written && p < pieces; p++) {
        const void *from = operation->kind == DEALS ? operation->give[p] : operation->from;

        written = write(fd, from, operation->bytes) == (ssize_t)operation->bytes;
    }
    return written;
}

static bool write_value(const struct operation *operation)
{
    const ncclComm_t comm = operation->comm;
    const uint64_t less = has_fault_in("count", operation->nth) ? sizeof(float) : 0;
    char path[PATH_SIZE];
    int fd;
    bool written;

    if (operation->number > 2) { /* all have read what is two operations old */
        value_path(comm, comm->rank, operation->number - 2, path);
        (void)unlink(path);
    }
    value_path(comm, comm->rank, operation->number, path);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    written = write_all(operation, fd);
    (void)close(fd);
    comm->board->bytes[comm->rank] = operation->bytes - less;
    comm->board->posted[comm->rank] = operation->number;
    return written;
}

static bool read_value(const struct operation *operation, int rank, void *to)
{
    const off_t own = (off_t)((uint64_t)operation->comm->rank * operation->bytes);
    char path[PATH_SIZE];
    int fd;
    bool got;

    value_path(operation->comm, rank, operation->number, path);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    got = fd >= 0 && pread(fd, to, operation->bytes, operation->kind == DEALS ? own : 0) ==
                         (ssize_t)operation->bytes;
    if (fd >= 0) {
        (void)close(fd);
    }
    return got;
}

static bool gather_values(const struct operation *operation)
{
    bool got = true;

    for (int r = 0; r < operation->comm->ranks; r++) {
        got =
            read_value(operation, r, (char *)operation->to + (uint64_t)r * operation->bytes) && got;
    }
    return got;
}

static bool deal_values(const struct operation *operation)
{
    bool got = true;

    for (int r = 0; r < operation->comm->ranks; r++) {
        got = read_value(operation, r, operation->take[r]) && got;
    }
    return got;
}

static bool sum_values(const struct operation *operation)
{
    const uint64_t n = operation->bytes / sizeof(float);
    float *x = malloc(operation->bytes + 1), *sum = calloc(n + 1, sizeof(*sum));
    bool got = x != NULL && sum != NULL;

    for (int r = operation->comm->ranks; got && r-- > 0;) {
        got = read_value(operation, r, x);
        for (uint64_t i = 0; i < n; i++) {
            sum[i] += x[i];
        }
    }
    if (got) {
        (void)memcpy(operation->to, sum, operation->bytes);
    }
    free(x);
    free(sum);
    return got;
}

/* Whether all ranks have written their values, of this size. */
static bool all_posted(const struct operation *operation)
{
    const ncclComm_t comm = operation->comm;

    for (int r = 0; r < comm->ranks; r++) {
        if (comm->board->posted[r] < operation->number) {
            if (is_dead(comm, r)) {
                comm->state = ncclRemoteError;
            }
            return false;
        }
        if (comm->board->posted[r] == operation->number &&
            comm->board->bytes[r] != operation->bytes) {
            return false; /* and so it stays */
        }
    }
    return true;
}

static bool make_values(const struct operation *operation)
{
    switch (operation->kind) {
    case SUMS: return sum_values(operation);
    case GATHERS: return gather_values(operation);
    default: return deal_values(operation);
    }
}

/* The stream asks for it again and again, until it is done. */
static bool poll_operation(void *argument)
{
    struct operation *operation = argument;
    ncclComm_t comm = operation->comm;

    if (comm->aborted) {
        return true;
    }
    if (comm->state != ncclSuccess || has_fault_in("never", operation->nth)) {
        return false;
    }
    if (has_fault_in("fail", operation->nth)) {
        comm->state = ncclInternalError;
        return false;
    }
    if (has_fault_in("die", operation->nth)) {
        (void)kill(getpid(), SIGKILL);
    }
    if (!operation->posted) {
        operation->posted = true;
        operation->due_us = now_us() + (has_fault("late") ? LATE_US : 0);
        if (!write_value(operation)) {
            comm->state = ncclSystemError;
        }
    }
    if (!all_posted(operation) || now_us() < operation->due_us) {
        return false;
    }
    if (!make_values(operation)) {
        comm->state = ncclSystemError;
        return false;
    }
    free(operation);
    return true;
}

static void put_in_stream(struct operation *operation)
{
    void (*standin_poll)(CUstream stream, bool (*poll)(void *argument), void *argument);
    void *found = in_driver("standin_poll");

    (void)memcpy(&standin_poll, &found, sizeof(found));
    standin_poll(operation->stream, poll_operation, operation);
}

/* A communicator takes no call while it is in progress with another one. */
static bool is_free(const ncclComm_t comm)
{
    return comm->state == ncclSuccess && comm->begun == NULL;
}

static ncclResult_t enqueue(const struct operation *like, CUstream stream)
{
    ncclComm_t comm = like->comm;
    struct operation *operation = is_free(comm) ? malloc(sizeof(*operation)) : NULL;

    if (operation == NULL) {
        return ncclInvalidUsage;
    }
    *operation = *like;
    operation->stream = stream;
    operation->number = ++comm->operations;
    operation->nth = ++nth;
    if ((comm->kinds >> like->kind & 1) == 0 && !take_memory(comm)) {
        free(operation);
        return ncclUnhandledCudaError;
    }
    comm->kinds |= 1u << like->kind;
    comm->polls = (operation->nth + 2) % POLLS; /* 2 of the one that has a fault in tests */
    if (comm->polls == 0) {
        put_in_stream(operation);
        return ncclSuccess;
    }
    comm->begun = operation;
    return ncclInProgress;
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, int type, int operation,
    ncclComm_t comm, CUstream stream)
{
    return type != ncclFloat32 || operation != ncclSum
               ? ncclInvalidArgument
               : enqueue(
                     &(struct operation){
                         .comm = comm, .bytes = count * sizeof(float), .from = from, .to = to},
                     stream);
}

ncclResult_t ncclAllGather(
    const void *from, void *to, size_t count, int type, ncclComm_t comm, CUstream stream)
{
    return type != ncclUint8
               ? ncclInvalidArgument
               : enqueue(
                     &(struct operation){
                         .comm = comm, .bytes = count, .from = from, .to = to, .kind = GATHERS},
                     stream);
}

/* ------------------------------------------------------------------ groups of calls */

/* What the calls of a group have told so far; comm NULL: nothing. */
static struct operation grouped;
static CUstream grouped_stream;
static bool in_group;
static ncclResult_t grouped_result;

/* All pieces of a group are of one size here, and each rank gives every rank one. */
static ncclResult_t add_to_group(ncclComm_t comm, size_t count, int type, int peer, CUstream stream)
{
    const bool first = grouped.comm == NULL;

    if (!is_free(comm) || !in_group || type != ncclUint8 || peer < 0 || peer >= comm->ranks ||
        (!first && (grouped.comm != comm || grouped.bytes != count || grouped_stream != stream))) {
        grouped_result = ncclInvalidArgument;
        return ncclInvalidArgument;
    }
    grouped.comm = comm;
    grouped.kind = DEALS;
    grouped.bytes = count;
    grouped_stream = stream;
    return ncclInProgress;
}

ncclResult_t ncclGroupStart(void)
{
    grouped = (struct operation){.comm = NULL};
    grouped_result = ncclSuccess;
    in_group = true;
    return ncclSuccess;
}

ncclResult_t ncclSend(
    const void *from, size_t count, int type, int peer, ncclComm_t comm, CUstream stream)
{
    const ncclResult_t result = add_to_group(comm, count, type, peer, stream);

    if (result == ncclInProgress) {
        grouped.give[peer] = from;
    }
    return result;
}

ncclResult_t ncclRecv(void *to, size_t count, int type, int peer, ncclComm_t comm, CUstream stream)
{
    const ncclResult_t result = add_to_group(comm, count, type, peer, stream);

    if (result == ncclInProgress) {
        grouped.take[peer] = to;
    }
    return result;
}

ncclResult_t ncclGroupEnd(void)
{
    in_group = false;
    for (int r = 0; grouped.comm != NULL && r < grouped.comm->ranks; r++) {
        if (grouped.give[r] == NULL || grouped.take[r] == NULL) {
            return ncclInvalidUsage;
        }
    }
    return grouped_result != ncclSuccess || grouped.comm == NULL
               ? grouped_result
               : enqueue(&grouped, grouped_stream);
}

/* ------------------------------------------------------------------ words */

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const text[] = {"no error", "unhandled cuda error", "unhandled system error",
        "internal error", "invalid argument", "invalid usage", "remote process exited",
        "in progress"};

    return result >= 0 && result < (int)(sizeof(text) / sizeof(text[0])) ? text[result] : "unknown";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return "";
}
