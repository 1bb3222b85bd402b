#include "daemon/device/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PROGRAM_VARIABLE "ADTOPK_DEVICE_PROGRAM"
#define SOCKET_THERE "3" /* descriptors of the worker */
#define PAGE_THERE "4"
#define END_MS 2000 /* for a worker whose socket is closed */
#define LISTEN_MS 100

const char *process_program(const struct device_config *config)
{
    const char *named = config->program != NULL ? config->program : getenv(PROGRAM_VARIABLE);

    return named != NULL && named[0] != '\0' ? named : ADTOPK_DEVICE_PROGRAM;
}

/* ------------------------------------------------------------------ starting */

static enum adtopk_status process_failed(const char *call, int reason, struct error *err)
{
    return error_set(err, ADTOPK_ERR_SYSTEM, "%s for a device worker: %s", call, strerror(reason));
}

static enum adtopk_status process_make_page(struct worker *worker, struct error *err)
{
    worker->page_descriptor = memfd_create("adtopk device page", MFD_CLOEXEC);
    if (worker->page_descriptor < 0 ||
        ftruncate(worker->page_descriptor, (off_t)sizeof(struct page)) != 0) {
        return process_failed("memfd_create", errno, err);
    }
    worker->page = mmap(
        NULL, sizeof(struct page), PROT_READ | PROT_WRITE, MAP_SHARED, worker->page_descriptor, 0);
    if (worker->page == MAP_FAILED) {
        worker->page = NULL;
        return process_failed("mmap", errno, err);
    }
    worker->page->size = sizeof(struct page);
    return ADTOPK_OK;
}

/* Starts the program with these descriptors as its 3 and 4; -1: none. SIGHUP and the like are as
 * for a new process. */
static int process_spawn(
    const char *program, char *const *argv, int third, int fourth, int out, pid_t *pid)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t none, all;
    int code = posix_spawn_file_actions_init(&files);

    (void)sigemptyset(&none);
    (void)sigfillset(&all);
    if (code != 0) {
        return code;
    }
    code = posix_spawnattr_init(&attributes);
    if (code == 0) {
        (void)posix_spawnattr_setsigmask(&attributes, &none);
        (void)posix_spawnattr_setsigdefault(&attributes, &all);
        (void)posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
        if ((out < 0 || posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO) == 0) &&
            (third < 0 || posix_spawn_file_actions_adddup2(&files, third, 3) == 0) &&
            (fourth < 0 || posix_spawn_file_actions_adddup2(&files, fourth, 4) == 0) &&
            posix_spawn_file_actions_addclosefrom_np(&files, fourth < 0 ? 3 : 5) == 0) {
            code = posix_spawn(pid, program, &files, &attributes, argv, environ);
        } else {
            code = ENOMEM;
        }
        (void)posix_spawnattr_destroy(&attributes);
    }
    (void)posix_spawn_file_actions_destroy(&files);
    return code;
}

/* Descriptors above those that the worker gets, so that dup2() of one does not close another. */
static int process_raise(int descriptor)
{
    int high = descriptor >= 0 ? fcntl(descriptor, F_DUPFD_CLOEXEC, 10) : -1;

    if (descriptor >= 0) {
        (void)close(descriptor);
    }
    return high;
}

static enum adtopk_status process_run(struct worker *worker, struct error *err)
{
    const char *program = process_program(&worker->device->config);
    char *uuid = worker->device->gpu[worker->gpu].uuid;
    char *argv[] = {(char *)(uintptr_t)program, (char *)(uintptr_t) "--serve", uuid, NULL};
    int ends[2], page, code;
    pid_t pid = 0;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        return process_failed("socketpair", errno, err);
    }
    worker->socket = ends[0];
    ends[1] = process_raise(ends[1]);
    page = fcntl(worker->page_descriptor, F_DUPFD_CLOEXEC, 10);
    code =
        ends[1] >= 0 && page >= 0 ? process_spawn(program, argv, ends[1], page, -1, &pid) : EMFILE;
    if (ends[1] >= 0) {
        (void)close(ends[1]);
    }
    if (page >= 0) {
        (void)close(page);
    }
    if (code != 0) {
        return error_set(
            err, ADTOPK_ERR_SYSTEM, "cannot start %.200s: %s", program, strerror(code));
    }
    worker->client = pid;
    (void)pthread_mutex_lock(&worker->device->mutex);
    worker->pid = pid;
    worker->starts++;
    (void)pthread_mutex_unlock(&worker->device->mutex);
    return ADTOPK_OK;
}

/* ------------------------------------------------------------------ ending */

/* Whether the process has ended, within so many milliseconds. */
static bool process_wait(pid_t pid, int wait_ms, int *status)
{
    for (int waited = 0; waited <= wait_ms; waited++) {
        if (waitpid(pid, status, WNOHANG) == pid) {
            return true;
        }
        (void)usleep(1000);
    }
    return false;
}

static uint64_t process_now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Reads what a program prints until it ends, or hangs. */
static size_t process_read(int from, char *text, size_t room)
{
    const uint64_t began = process_now_ms();
    struct pollfd wait = {.fd = from, .events = POLLIN};
    size_t size = 0;
    ssize_t got = 1;

    while (got > 0 && size < room - 1 && process_now_ms() - began < DEVICE_START_MS &&
           poll(&wait, 1, DEVICE_START_MS) > 0) {
        got = read(from, text + size, room - 1 - size);
        size += got > 0 ? (size_t)got : 0;
    }
    text[size] = '\0';
    return size;
}

/* Runs a program, and reads what it prints. `status` is how it ended: one that hangs was killed. */
static enum adtopk_status process_output(
    char *const *argv, char *text, size_t room, int *status, struct error *err)
{
    int ends[2], code;
    pid_t pid;

    if (pipe2(ends, O_CLOEXEC) != 0) {
        return process_failed("pipe2", errno, err);
    }
    code = process_spawn(argv[0], argv, -1, -1, ends[1], &pid);
    (void)close(ends[1]);
    if (code != 0) {
        (void)close(ends[0]);
        return error_set(
            err, ADTOPK_ERR_SYSTEM, "cannot start %.200s: %s", argv[0], strerror(code));
    }
    (void)process_read(ends[0], text, room);
    (void)close(ends[0]);
    if (!process_wait(pid, END_MS, status)) {
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, status, 0);
    }
    return ADTOPK_OK;
}

/* Under MPS kernels of a client that is killed may run on, beside those of its successor. */
static void process_terminate(const struct worker *worker)
{
    static const char script[] =
        "servers=$(echo get_server_list | nvidia-cuda-mps-control) && for server in $servers; do "
        "echo terminate_client $server $0 | nvidia-cuda-mps-control; done";
    char client[16], text[ERROR_TEXT_SIZE];
    char *argv[] = {(char *)(uintptr_t) "/bin/sh", (char *)(uintptr_t) "-c",
        (char *)(uintptr_t)script, client, NULL};
    struct error err;
    int status = 0;

    (void)snprintf(client, sizeof(client), "%d", (int)worker->client);
    if (process_output(argv, text, sizeof(text), &status, &err) != ADTOPK_OK || status != 0) {
        device_log(worker, true, "was not terminated by nvidia-cuda-mps-control (status %#x)",
            (unsigned)status);
    }
}

void process_end(struct worker *worker, bool kill_it)
{
    int status;

    if (kill_it && worker->client > 0 && worker->device->gpu[worker->gpu].mps == DRIVER_MPS_ON) {
        process_terminate(worker);
    }
    if (worker->socket >= 0) {
        (void)close(worker->socket);
    }
    if (worker->pid > 0 && (kill_it || !process_wait(worker->pid, END_MS, &status))) {
        (void)kill(worker->pid, SIGKILL);
        (void)waitpid(worker->pid, &status, 0);
    }
    if (worker->page != NULL) {
        (void)munmap(worker->page, sizeof(struct page));
    }
    if (worker->page_descriptor >= 0) {
        (void)close(worker->page_descriptor);
    }
    worker->socket = worker->page_descriptor = -1;
    worker->page = NULL;
    worker->client = 0;
    (void)pthread_mutex_lock(&worker->device->mutex);
    worker->pid = 0;
    worker->scratch = 0;
    for (struct part *part = worker->parts; part != NULL; part = part->next) {
        part->mapped = false;
        part->group = 0;
    }
    (void)pthread_mutex_unlock(&worker->device->mutex);
}

/* ------------------------------------------------------------------ messages */

/* Whether it has said why it ends. */
static bool process_has_said(const struct worker *worker, struct error *err)
{
    struct message message = {.type = 0};
    int descriptor;

    while (message.type != MESSAGE_FAILED &&
           message_take(worker->socket, 0, &message, &descriptor) == MESSAGE_GOT) {
        if (descriptor >= 0) {
            (void)close(descriptor);
        }
    }
    if (message.type == MESSAGE_FAILED) {
        (void)error_set(err, ADTOPK_ERR_SYSTEM, "%.*s", ERROR_TEXT_SIZE - 1, message.text);
    }
    return message.type == MESSAGE_FAILED;
}

static enum adtopk_status process_gone(struct worker *worker, struct error *err)
{
    int status = 0;

    if (process_has_said(worker, err)) {
        return err->code;
    }
    if (!process_wait(worker->pid, END_MS, &status)) {
        return error_set(err, ADTOPK_ERR_SYSTEM, "it has closed its socket");
    }
    (void)pthread_mutex_lock(&worker->device->mutex);
    worker->pid = 0;
    (void)pthread_mutex_unlock(&worker->device->mutex);
    if (WIFSIGNALED(status)) {
        return error_set(err, ADTOPK_ERR_SYSTEM, "it was killed by signal %d", WTERMSIG(status));
    }
    return error_set(err, ADTOPK_ERR_SYSTEM, "it ended with status %d", WEXITSTATUS(status));
}

enum adtopk_status process_hangs(
    struct worker *worker, const char *doing, unsigned waited_ms, struct error *err)
{
    const struct driver_device *gpu = &worker->device->gpu[worker->gpu];

    return error_set(err, ADTOPK_ERR_SYSTEM,
        "it has not finished %s on %s (%s) for %u ms: it hangs in a call of the driver", doing,
        gpu->uuid, gpu->name, waited_ms);
}

static enum adtopk_status process_hear(
    struct worker *worker, int wait_ms, struct message *message, struct error *err)
{
    int descriptor;

    message->type = 0;
    switch (message_take(worker->socket, wait_ms, message, &descriptor)) {
    case MESSAGE_NONE: message->type = 0; break;
    case MESSAGE_GONE: return process_gone(worker, err);
    case MESSAGE_GOT: break;
    }
    if (descriptor >= 0) {
        (void)close(descriptor);
    }
    if (message->type == MESSAGE_FAILED) {
        return error_set(err, ADTOPK_ERR_SYSTEM, "%.*s", ERROR_TEXT_SIZE - 1, message->text);
    }
    return ADTOPK_OK;
}

enum adtopk_status process_listen(struct worker *worker, int wait_ms, struct error *err)
{
    struct message message;

    return process_hear(worker, wait_ms, &message, err);
}

/* Waits for a message of this type. */
static enum adtopk_status process_await(struct worker *worker, uint32_t type, const char *doing,
    struct message *message, struct error *err)
{
    const uint64_t began = process_now_ms();
    enum adtopk_status status = ADTOPK_OK;

    message->type = 0;
    while (status == ADTOPK_OK && message->type != type) {
        const uint64_t waited = process_now_ms() - began;

        if (waited >= DEVICE_START_MS) {
            return process_hangs(worker, doing, DEVICE_START_MS, err);
        }
        if (device_stops(worker->device)) {
            return error_set(err, ADTOPK_ERR_STATE, "the daemon stops");
        }
        status = process_hear(worker, LISTEN_MS, message, err);
    }
    return status;
}

enum adtopk_status process_start(struct worker *worker, struct error *err)
{
    enum adtopk_status status = process_make_page(worker, err);
    struct message ready;

    if (status == ADTOPK_OK) {
        status = process_run(worker, err);
    }
    if (status == ADTOPK_OK) {
        status = process_await(worker, MESSAGE_READY, "its start", &ready, err);
    }
    if (status == ADTOPK_OK) {
        device_log(worker, false, "is ready, process %d", (int)worker->pid);
    }
    return status;
}

enum adtopk_status process_map(struct worker *worker, struct part *part, struct error *err)
{
    const struct message message = {.type = MESSAGE_MAP,
        .arena = part->arena,
        .size = part->size,
        .place = part->place,
        .mark = part->mark,
        .pool = part->pool,
        .fresh = !part->used};
    struct message mapped;
    enum adtopk_status status;

    if (!message_send(worker->socket, &message, part->descriptor)) {
        return process_gone(worker, err);
    }
    status = process_await(worker, MESSAGE_MAPPED, "mapping memory", &mapped, err);
    part->mapped = status == ADTOPK_OK;
    part->gone = part->mapped && mapped.fresh != 0;
    part->used = part->used || part->mapped;
    return status;
}

void process_unmap(struct worker *worker, struct part *part)
{
    const struct message message = {.type = MESSAGE_UNMAP, .arena = part->arena};

    (void)message_send(worker->socket, &message, -1); /* a dead worker has unmapped it */
    part->mapped = false;
}

/* ------------------------------------------------------------------ trying the program */

/* The text's first line; `text` becomes what is behind it. */
static const char *process_line(char **text)
{
    char *line = *text;

    *text += strcspn(line, "\n");
    if (**text == '\n') {
        *(*text)++ = '\0';
    }
    return line;
}

/* Calls of the driver that fail name the device. */
static enum adtopk_status process_refuses(
    const struct driver_device *device, const char *text, struct error *err)
{
    if (strstr(text, device->uuid) != NULL) {
        return error_set(err, ADTOPK_ERR_SYSTEM, "%s", text);
    }
    return error_set(err, ADTOPK_ERR_SYSTEM, "%s (%s): %.300s", device->uuid, device->name,
        text[0] != '\0' ? text
                        : "the program that tries it was killed, or hangs in a call of the driver");
}

enum adtopk_status process_probe(const char *program, const struct driver_device *device,
    struct device_probe *probe, struct error *err)
{
    char *argv[] = {(char *)(uintptr_t)program, (char *)(uintptr_t) "--probe",
        (char *)(uintptr_t)device->uuid, NULL};
    char text[2 * ERROR_TEXT_SIZE], *rest = text;
    int status = 0;

    if (process_output(argv, text, sizeof(text), &status, err) != ADTOPK_OK) {
        return err->code;
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        return process_refuses(device, process_line(&rest), err);
    }
    (void)snprintf(probe->missing, sizeof(probe->missing), "%.300s", process_line(&rest));
    probe->nccl = (unsigned)strtoul(process_line(&rest), NULL, 10);
    (void)snprintf(probe->no_nccl, sizeof(probe->no_nccl), "%.300s", process_line(&rest));
    return ADTOPK_OK;
}
