#include "tests/host/outage.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define PROCESSES 12 /* of which allocations are counted */

struct outage_plan {
    _Atomic pid_t process; /* 0: no plan */
    _Atomic enum outage kind;
    _Atomic uint64_t calls; /* of that kind in that process, so far */
    uint64_t from, to;      /* numbers of the calls that fail */
    _Atomic uint64_t failed;
    struct {
        _Atomic pid_t process;
        _Atomic int64_t held;
    } count[PROCESSES];
};

static struct outage_plan *plan;

const char *outage_name(enum outage kind)
{
    static const char *const names[OUTAGE_KINDS] = {
        [OUTAGE_MEMORY] = "no memory",
        [OUTAGE_DESCRIPTORS] = "no descriptors",
        [OUTAGE_SPACE] = "no space",
        [OUTAGE_SIGNALS] = "signals",
        [OUTAGE_SHORT] = "short reads and writes",
    };

    return names[kind];
}

/* ---- the test's side ---- */

bool outage_begin(void)
{
    void *memory =
        mmap(NULL, sizeof(*plan), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED) {
        return false;
    }
    plan = memory;
    return true;
}

void outage_plan(pid_t process, enum outage kind, uint64_t from, uint64_t count)
{
    atomic_store(&plan->process, 0);
    atomic_store(&plan->kind, kind);
    atomic_store(&plan->calls, 0);
    atomic_store(&plan->failed, 0);
    plan->from = from;
    plan->to = from + count;
    atomic_store(&plan->process, process);
}

uint64_t outage_end(void)
{
    atomic_store(&plan->process, 0);
    return atomic_load(&plan->failed);
}

/* The process's counter: a free one becomes its own. */
static _Atomic int64_t *outage_count(pid_t process)
{
    for (unsigned i = 0; i < PROCESSES; i++) {
        pid_t owner = 0;

        if (atomic_load(&plan->count[i].process) == process ||
            atomic_compare_exchange_strong(&plan->count[i].process, &owner, process) ||
            owner == process) {
            return &plan->count[i].held;
        }
    }
    abort(); /* the test has more processes than counters */
}

int64_t outage_held(pid_t process)
{
    return atomic_load(outage_count(process));
}

void outage_forget(pid_t process)
{
    for (unsigned i = 0; i < PROCESSES; i++) {
        if (atomic_load(&plan->count[i].process) == process) {
            atomic_store(&plan->count[i].held, 0);
            atomic_store(&plan->count[i].process, 0);
        }
    }
}

/* ---- the program's side ---- */

/* Whether this call fails. */
static bool outage_now(enum outage kind)
{
    uint64_t number;

    if (plan == NULL || atomic_load(&plan->process) == 0 || atomic_load(&plan->kind) != kind ||
        atomic_load(&plan->process) != getpid()) {
        return false;
    }
    number = atomic_fetch_add(&plan->calls, 1);
    if (number < plan->from || number >= plan->to) {
        return false;
    }
    atomic_fetch_add(&plan->failed, 1);
    return true;
}

bool outage_fails(enum outage kind, int reason)
{
    const bool fails = outage_now(kind);

    if (fails) {
        errno = reason;
    }
    return fails;
}

static bool no_memory(void)
{
    return outage_fails(OUTAGE_MEMORY, ENOMEM);
}

static bool no_descriptor(void)
{
    return outage_fails(OUTAGE_DESCRIPTORS, EMFILE);
}

static bool no_space(void)
{
    return outage_fails(OUTAGE_SPACE, ENOSPC);
}

static bool signalled(void)
{
    return outage_fails(OUTAGE_SIGNALS, EINTR);
}

static size_t shortened(size_t size)
{
    return size > 1 && outage_now(OUTAGE_SHORT) ? size / 2 : size;
}

/* ---- the allocator ---- */

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *pointer, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t size);
void __real_free(void *pointer);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *pointer, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t size);
void __wrap_free(void *pointer);

static void *counted(void *pointer, int64_t by)
{
    if (pointer != NULL && plan != NULL) {
        atomic_fetch_add(outage_count(getpid()), by);
    }
    return pointer;
}

void *__wrap_malloc(size_t size)
{
    return no_memory() ? NULL : counted(__real_malloc(size), 1);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return no_memory() ? NULL : counted(__real_calloc(count, size), 1);
}

void *__wrap_realloc(void *pointer, size_t size)
{
    return no_memory() ? NULL : counted(__real_realloc(pointer, size), pointer == NULL ? 1 : 0);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return no_memory() ? NULL : counted(__real_aligned_alloc(alignment, size), 1);
}

char *__wrap_strdup(const char *text)
{
    return no_memory() ? NULL : counted(__real_strdup(text), 1);
}

char *__wrap_strndup(const char *text, size_t size)
{
    return no_memory() ? NULL : counted(__real_strndup(text, size), 1);
}

void __wrap_free(void *pointer)
{
    (void)counted(pointer, -1);
    __real_free(pointer);
}

void *__real_mmap64(void *at, size_t size, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap64(void *at, size_t size, int protection, int flags, int fd, off_t offset);

void *__wrap_mmap64(void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
    return no_memory() ? MAP_FAILED : __real_mmap64(at, size, protection, flags, fd, offset);
}

/* ---- descriptors ---- */

int __real_socket(int domain, int type, int protocol);
int __real_accept4(int fd, struct sockaddr *address, socklen_t *size, int flags);
int __real_memfd_create(const char *name, unsigned flags);
int __real_epoll_create1(int flags);
int __real_eventfd(unsigned count, int flags);
int __real_timerfd_create(int clock, int flags);
int __real_open64(const char *path, int flags, ...);
int __real_openat64(int folder, const char *path, int flags, ...);
int __real_fcntl64(int fd, int command, ...);
int __wrap_socket(int domain, int type, int protocol);
int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *size, int flags);
int __wrap_memfd_create(const char *name, unsigned flags);
int __wrap_epoll_create1(int flags);
int __wrap_eventfd(unsigned count, int flags);
int __wrap_timerfd_create(int clock, int flags);
int __wrap_open64(const char *path, int flags, ...);
int __wrap_openat64(int folder, const char *path, int flags, ...);
int __wrap_fcntl64(int fd, int command, ...);

int __wrap_socket(int domain, int type, int protocol)
{
    return no_descriptor() ? -1 : __real_socket(domain, type, protocol);
}

int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *size, int flags)
{
    return no_descriptor() || signalled() ? -1 : __real_accept4(fd, address, size, flags);
}

int __wrap_memfd_create(const char *name, unsigned flags)
{
    return no_memory() || no_descriptor() ? -1 : __real_memfd_create(name, flags);
}

int __wrap_epoll_create1(int flags)
{
    return no_descriptor() ? -1 : __real_epoll_create1(flags);
}

int __wrap_eventfd(unsigned count, int flags)
{
    return no_descriptor() ? -1 : __real_eventfd(count, flags);
}

int __wrap_timerfd_create(int clock, int flags)
{
    return no_descriptor() ? -1 : __real_timerfd_create(clock, flags);
}

/* A file that is opened needs a descriptor, and space if it is new. */
static bool open_fails(int flags)
{
    return no_descriptor() || ((flags & O_CREAT) != 0 && no_space()) || signalled();
}

int __wrap_open64(const char *path, int flags, ...)
{
    va_list rest;
    mode_t mode;

    va_start(rest, flags);
    mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return open_fails(flags) ? -1 : __real_open64(path, flags, mode);
}

int __wrap_openat64(int folder, const char *path, int flags, ...)
{
    va_list rest;
    mode_t mode;

    va_start(rest, flags);
    mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return open_fails(flags) ? -1 : __real_openat64(folder, path, flags, mode);
}

int __wrap_fcntl64(int fd, int command, ...)
{
    va_list rest;
    long argument;

    va_start(rest, command);
    argument = va_arg(rest, long); /* callers give an int, which is passed like a long */
    va_end(rest);
    if (command == F_DUPFD_CLOEXEC && no_descriptor()) {
        return -1;
    }
    return __real_fcntl64(fd, command, argument);
}

/* ---- files ---- */

int __real_ftruncate64(int fd, off_t size);
int __real_fallocate64(int fd, int mode, off_t offset, off_t size);
int __real_mkdir(const char *path, mode_t mode);
int __real_rename(const char *from, const char *to);
int __real_renameat(int from_folder, const char *from, int to_folder, const char *to);
int __real_linkat(int from_folder, const char *from, int to_folder, const char *to, int flags);
int __real_fsync(int fd);
ssize_t __real_pread64(int fd, void *bytes, size_t size, off_t offset);
ssize_t __real_pwrite64(int fd, const void *bytes, size_t size, off_t offset);
ssize_t __real_read(int fd, void *bytes, size_t size);
ssize_t __real_write(int fd, const void *bytes, size_t size);
int __wrap_ftruncate64(int fd, off_t size);
int __wrap_fallocate64(int fd, int mode, off_t offset, off_t size);
int __wrap_mkdir(const char *path, mode_t mode);
int __wrap_rename(const char *from, const char *to);
int __wrap_renameat(int from_folder, const char *from, int to_folder, const char *to);
int __wrap_linkat(int from_folder, const char *from, int to_folder, const char *to, int flags);
int __wrap_fsync(int fd);
ssize_t __wrap_pread64(int fd, void *bytes, size_t size, off_t offset);
ssize_t __wrap_pwrite64(int fd, const void *bytes, size_t size, off_t offset);
ssize_t __wrap_read(int fd, void *bytes, size_t size);
ssize_t __wrap_write(int fd, const void *bytes, size_t size);

int __wrap_ftruncate64(int fd, off_t size)
{
    return no_space() || signalled() ? -1 : __real_ftruncate64(fd, size);
}

int __wrap_fallocate64(int fd, int mode, off_t offset, off_t size)
{
    return no_space() || signalled() ? -1 : __real_fallocate64(fd, mode, offset, size);
}

int __wrap_mkdir(const char *path, mode_t mode)
{
    return no_space() ? -1 : __real_mkdir(path, mode);
}

int __wrap_rename(const char *from, const char *to)
{
    return no_space() ? -1 : __real_rename(from, to);
}

int __wrap_renameat(int from_folder, const char *from, int to_folder, const char *to)
{
    return no_space() ? -1 : __real_renameat(from_folder, from, to_folder, to);
}

int __wrap_linkat(int from_folder, const char *from, int to_folder, const char *to, int flags)
{
    return no_space() ? -1 : __real_linkat(from_folder, from, to_folder, to, flags);
}

int __wrap_fsync(int fd)
{
    return no_space() || signalled() ? -1 : __real_fsync(fd);
}

ssize_t __wrap_pread64(int fd, void *bytes, size_t size, off_t offset)
{
    return signalled() ? -1 : __real_pread64(fd, bytes, shortened(size), offset);
}

ssize_t __wrap_pwrite64(int fd, const void *bytes, size_t size, off_t offset)
{
    return no_space() || signalled() ? -1 : __real_pwrite64(fd, bytes, shortened(size), offset);
}

/* Descriptors of events and timers have no half. */
static size_t readable(int fd, size_t size)
{
    struct stat status;

    return fstat(fd, &status) == 0 && (status.st_mode & S_IFMT) != 0 ? shortened(size) : size;
}

ssize_t __wrap_read(int fd, void *bytes, size_t size)
{
    return signalled() ? -1 : __real_read(fd, bytes, readable(fd, size));
}

ssize_t __wrap_write(int fd, const void *bytes, size_t size)
{
    struct stat status;
    const bool file = fstat(fd, &status) == 0 && S_ISREG(status.st_mode);

    if ((file && no_space()) || signalled()) {
        return -1;
    }
    return __real_write(fd, bytes, readable(fd, size));
}

/* ---- waiting, and messages ---- */

int __real_poll(struct pollfd *polls, nfds_t count, int timeout);
int __real_epoll_wait(int fd, struct epoll_event *events, int most, int timeout);
int __real_nanosleep(const struct timespec *time, struct timespec *left);
int __real_connect(int fd, const struct sockaddr *address, socklen_t size);
ssize_t __real_send(int fd, const void *bytes, size_t size, int flags);
ssize_t __real_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __real_recvmsg(int fd, struct msghdr *message, int flags);
ssize_t __real_recv(int fd, void *bytes, size_t size, int flags);
int __wrap_poll(struct pollfd *polls, nfds_t count, int timeout);
int __wrap_epoll_wait(int fd, struct epoll_event *events, int most, int timeout);
int __wrap_nanosleep(const struct timespec *time, struct timespec *left);
int __wrap_connect(int fd, const struct sockaddr *address, socklen_t size);
ssize_t __wrap_send(int fd, const void *bytes, size_t size, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *message, int flags);
ssize_t __wrap_recv(int fd, void *bytes, size_t size, int flags);

int __wrap_poll(struct pollfd *polls, nfds_t count, int timeout)
{
    return signalled() ? -1 : __real_poll(polls, count, timeout);
}

int __wrap_epoll_wait(int fd, struct epoll_event *events, int most, int timeout)
{
    return signalled() ? -1 : __real_epoll_wait(fd, events, most, timeout);
}

int __wrap_nanosleep(const struct timespec *time, struct timespec *left)
{
    if (signalled()) {
        if (left != NULL) {
            *left = *time;
        }
        return -1;
    }
    return __real_nanosleep(time, left);
}

int __wrap_connect(int fd, const struct sockaddr *address, socklen_t size)
{
    return signalled() ? -1 : __real_connect(fd, address, size);
}

ssize_t __wrap_send(int fd, const void *bytes, size_t size, int flags)
{
    return signalled() ? -1 : __real_send(fd, bytes, size, flags);
}

ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags)
{
    return signalled() ? -1 : __real_sendmsg(fd, message, flags);
}

ssize_t __wrap_recvmsg(int fd, struct msghdr *message, int flags)
{
    return signalled() ? -1 : __real_recvmsg(fd, message, flags);
}

ssize_t __wrap_recv(int fd, void *bytes, size_t size, int flags)
{
    return signalled() ? -1 : __real_recv(fd, bytes, size, flags);
}
