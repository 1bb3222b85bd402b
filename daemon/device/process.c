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
#define END_MS 2000 /* for a worker whose socket is closed */
#define MPS_MS 3000 /* for the programs that ask MPS, all together */
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

/* The loop looks into the page, too. NULL: there is none any more. */
static struct page *process_set_page(struct worker *worker, struct page *page)
{
    struct page *before;

    (void)pthread_mutex_lock(&worker->device->mutex);
    before = worker->page;
    worker->page = page;
    (void)pthread_mutex_unlock(&worker->device->mutex);
    return before;
}

static enum adtopk_status process_make_page(struct worker *worker, struct error *err)
{
    struct page *page;

    worker->page_descriptor = memfd_create("adtopk device page", MFD_CLOEXEC);
    if (worker->page_descriptor < 0 ||
        ftruncate(worker->page_descriptor, (off_t)sizeof(struct page)) != 0) {
        return process_failed("memfd_create", errno, err);
    }
    page = mmap(
        NULL, sizeof(struct page), PROT_READ | PROT_WRITE, MAP_SHARED, worker->page_descriptor, 0);
    if (page == MAP_FAILED) {
        return process_failed("mmap", errno, err);
    }
    (void)snprintf(page->release, sizeof(page->release), "%s", PAGE_RELEASE);
    page->multiprocessors = worker->device->gpu[worker->gpu].multiprocessors;
    (void)process_set_page(worker, page);
    return ADTOPK_OK;
}

/* Starts the program with these descriptors as its 3, its 4 and its output; -1: none. SIGHUP and
 * the like are as for a new process. A program with an output leads a process group, so that its
 * children can be killed with it. */
static int process_spawn(
    const char *program, char *const *argv, int third, int fourth, int out, pid_t *pid)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t none, all;
    const short flags = POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF;
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
        (void)posix_spawnattr_setflags(
            &attributes, out < 0 ? flags : flags | POSIX_SPAWN_SETPGROUP);
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
    return lives_note(worker, err);
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

/* What came of a program that was run for its output. */
struct outcome {
    char text[2 * ERROR_TEXT_SIZE];
    int status;  /* as of waitpid() */
    bool killed; /* by process_output(), because it did not end */
};

/* Fills `err` with how a process that is called `what` has ended. */
static enum adtopk_status process_ended(const char *what, int status, struct error *err)
{
    if (WIFSIGNALED(status)) {
        return error_set(
            err, ADTOPK_ERR_SYSTEM, "%s was killed by signal %d", what, WTERMSIG(status));
    }
    return error_set(err, ADTOPK_ERR_SYSTEM, "%s ended with status %d", what, WEXITSTATUS(status));
}

/* Reads what a program prints. False: it has not ended within `limit_ms`, or the daemon stops. */
static bool process_read(
    struct device *device, int from, unsigned limit_ms, struct outcome *outcome)
{
    const uint64_t began = process_now_ms();
    const size_t room = sizeof(outcome->text) - 1;
    struct pollfd wait = {.fd = from, .events = POLLIN};
    size_t size = 0;
    ssize_t got = 1;

    while (got > 0 && size < room) {
        if (process_now_ms() - began >= limit_ms || (device != NULL && device_stops(device))) {
            return false;
        }
        if (poll(&wait, 1, LISTEN_MS) > 0) {
            got = read(from, outcome->text + size, room - size);
            size += got > 0 ? (size_t)got : 0;
        }
    }
    return true;
}

/* Runs a program, and reads what it prints. It is killed, with its children, when it has not ended
 * within `limit_ms`, or when the device stops. NULL: nothing stops it. */
static enum adtopk_status process_output(struct device *device, char *const *argv,
    unsigned limit_ms, struct outcome *outcome, struct error *err)
{
    int ends[2], code;
    pid_t pid;

    *outcome = (struct outcome){.killed = false};
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
    outcome->killed = !process_read(device, ends[0], limit_ms, outcome);
    (void)close(ends[0]);
    if (outcome->killed || !process_wait(pid, END_MS, &outcome->status)) {
        outcome->killed = true;
        (void)kill(-pid, SIGKILL);
        (void)process_wait(pid, END_MS, &outcome->status);
    }
    return ADTOPK_OK;
}

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

/* Has the MPS server whose client this process is end its work. A server has dropped a client that
 * was killed already, and then there is nothing to end. The control program prints errors of its
 * server, and ends with 0 then, too. */
static enum adtopk_status process_ask_mps(
    struct device *device, pid_t client, struct outcome *outcome, struct error *err)
{
    static const char script[] =
        "exec 2>&1; control() { echo \"$@\" | nvidia-cuda-mps-control; }; "
        "servers=$(control get_server_list) || { echo \"$servers\"; exit 1; }; "
        "for server in $servers; do for client in $(control get_client_list $server); do "
        "if [ \"$client\" = $0 ]; then control terminate_client $server $0; exit; fi; done; done";
    char number[16], *rest = outcome->text;
    char *argv[] = {(char *)(uintptr_t) "/bin/sh", (char *)(uintptr_t) "-c",
        (char *)(uintptr_t)script, number, NULL};
    const char *line;

    (void)snprintf(number, sizeof(number), "%d", (int)client);
    if (process_output(device, argv, MPS_MS, outcome, err) != ADTOPK_OK) {
        return err->code;
    }
    if (outcome->killed) {
        return error_set(err, ADTOPK_ERR_SYSTEM, "%s",
            device_stops(device) ? "the daemon stops" : "it has not answered in time");
    }
    line = process_line(&rest);
    if (outcome->status == 0) {
        return ADTOPK_OK;
    }
    return line[0] != '\0' ? error_set(err, ADTOPK_ERR_SYSTEM, "%.300s", line)
                           : process_ended("it", outcome->status, err);
}

/* Whether clients of MPS may share the device: an older driver does not say. */
static bool process_may_share(const struct driver_device *gpu)
{
    return gpu->mps != DRIVER_MPS_OFF;
}

/* Under MPS kernels of a client that is killed may run on, beside those of its successor. */
static void process_terminate(const struct worker *worker)
{
    const bool known = worker->device->gpu[worker->gpu].mps == DRIVER_MPS_ON;
    struct outcome outcome;
    struct error err;

    if (process_ask_mps(worker->device, worker->client, &outcome, &err) != ADTOPK_OK) {
        device_log(worker, true, "was not terminated by nvidia-cuda-mps-control%s: %s",
            known ? "" : ", and the driver does not say whether MPS shares the GPU", err.text);
    } else if (outcome.text[0] != '\0') {
        device_log(worker, true,
            "was to be terminated by nvidia-cuda-mps-control, which said: %.300s", outcome.text);
    }
}

enum adtopk_status process_end_client(struct device *device, pid_t client, struct error *err)
{
    struct outcome outcome;
    enum adtopk_status status;
    bool asks = false, known = false;

    for (unsigned i = 0; i < device->gpus; i++) {
        asks = asks || process_may_share(&device->gpu[i]);
        known = known || device->gpu[i].mps == DRIVER_MPS_ON;
    }
    status = asks ? process_ask_mps(device, client, &outcome, err) : ADTOPK_OK;
    /* Where the driver does not say, there is no MPS if nothing answers to its name. */
    return status == ADTOPK_OK || known || outcome.killed ? status : ADTOPK_OK;
}

void process_end(struct worker *worker, bool kill_it)
{
    struct page *page;
    int status;

    if (kill_it && worker->client > 0 && process_may_share(&worker->device->gpu[worker->gpu])) {
        process_terminate(worker);
    }
    if (worker->socket >= 0) {
        (void)close(worker->socket);
    }
    if (worker->pid > 0 && (kill_it || !process_wait(worker->pid, END_MS, &status))) {
        (void)kill(worker->pid, SIGKILL);
        if (!process_wait(worker->pid, END_MS, &status)) {
            device_log(worker, true, "was killed and does not end: process %d sleeps in the driver",
                (int)worker->pid);
            while (!device_stops(worker->device) && !process_wait(worker->pid, END_MS, &status)) {
            }
        }
    }
    page = process_set_page(worker, NULL);
    if (page != NULL) {
        (void)munmap(page, sizeof(struct page));
    }
    if (worker->page_descriptor >= 0) {
        (void)close(worker->page_descriptor);
    }
    lives_forget(worker);
    worker->socket = worker->page_descriptor = -1;
    worker->client = 0;
    worker->refused = (struct refusal){.least = 0};
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
    return process_ended("it", status, err);
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
    part->reached = part->reached || part->mapped;
    part->gone = part->mapped && mapped.fresh != 0;
    part->untold = part->untold || (part->gone && part->used); /* feeder_empty() sees to it */
    if (part->mapped) {
        left_vouch(worker->device, part);
    }
    part->used = part->used || part->mapped;
    return status;
}

/* The worker does not answer. It takes messages in their order, so it unmaps the arena before it
 * maps another one under that number, or at that place. The daemon may give the memory back at
 * once: the device keeps it for as long as a mapping of it lives. While the worker clears it, the
 * device is a little fuller than the daemon counts. */
void process_unmap(struct worker *worker, struct part *part)
{
    const struct message message = {.type = MESSAGE_UNMAP, .arena = part->arena};

    (void)message_send(worker->socket, &message, -1); /* a dead worker has unmapped it */
    part->mapped = false;
}

/* ------------------------------------------------------------------ trying the program */

/* Calls of the driver that fail name the device. */
static enum adtopk_status process_refuses(
    const struct driver_device *device, struct outcome *outcome, struct error *err)
{
    char *rest = outcome->text;
    const char *text = process_line(&rest);
    struct error how;

    if (strstr(text, device->uuid) != NULL) {
        return error_set(err, ADTOPK_ERR_SYSTEM, "%s", text);
    }
    if (outcome->killed) {
        (void)error_set(&how, ADTOPK_ERR_SYSTEM,
            "the program that tries it has not ended in time: it hangs in a call of the driver");
    } else if (text[0] != '\0') {
        (void)error_set(&how, ADTOPK_ERR_SYSTEM, "%.300s", text);
    } else {
        (void)process_ended("the program that tries it", outcome->status, &how);
    }
    return error_set(
        err, ADTOPK_ERR_SYSTEM, "%s (%s): %.300s", device->uuid, device->name, how.text);
}

enum adtopk_status process_probe(const char *program, const struct driver_device *device,
    struct device_probe *probe, struct error *err)
{
    char *argv[] = {(char *)(uintptr_t)program, (char *)(uintptr_t) "--probe",
        (char *)(uintptr_t)device->uuid, NULL};
    struct outcome outcome;
    char *rest = outcome.text;

    if (process_output(NULL, argv, DEVICE_START_MS, &outcome, err) != ADTOPK_OK) {
        return err->code;
    }
    if (outcome.killed || outcome.status != 0) {
        return process_refuses(device, &outcome, err);
    }
    (void)snprintf(probe->missing, sizeof(probe->missing), "%.300s", process_line(&rest));
    probe->nccl = (unsigned)strtoul(process_line(&rest), NULL, 10);
    (void)snprintf(probe->no_nccl, sizeof(probe->no_nccl), "%.300s", process_line(&rest));
    probe->context = strtoull(process_line(&rest), NULL, 10);
    return ADTOPK_OK;
}
