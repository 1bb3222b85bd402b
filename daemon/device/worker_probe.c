/*
 * adtopk-device --probe: tries a device. It prints what is wrong with it, or four lines: which
 * kernels are missing, NCCL's version, why NCCL cannot be used, and what a worker's context takes.
 * That is in bytes of the device, 0 where it is not known.
 *
 * No call of the driver says what a context takes, and without a context none says what the device
 * has left. So a child of this process makes a context first, and looks before and after this
 * process makes that of a worker, with its kernels. If other processes take memory or give it back
 * in between, the difference is wrong by that much.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/device/worker.h"

struct observer {
    pid_t pid;
    int socket;
};

/* The child: it answers until the socket is closed. */
static void observer_run(struct worker_state *state, const char *uuid, int socket)
{
    uint8_t asked;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* also while it hangs in a call of the driver */
    (void)close(STDOUT_FILENO);
    if (worker_enter(state, uuid)) {
        while (recv(socket, &asked, sizeof(asked), 0) == (ssize_t)sizeof(asked)) {
            const uint64_t left = worker_left(state);

            (void)send(socket, &left, sizeof(left), MSG_NOSIGNAL);
        }
    }
    _exit(EXIT_SUCCESS);
}

/* Before the first call of the driver, which a child cannot use any more. */
static struct observer observer_start(struct worker_state *state, const char *uuid)
{
    struct observer observer = {.pid = -1, .socket = -1};
    int ends[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        return observer;
    }
    observer.socket = ends[0];
    observer.pid = fork();
    if (observer.pid == 0) {
        (void)close(ends[0]);
        observer_run(state, uuid, ends[1]);
    }
    (void)close(ends[1]);
    return observer;
}

/* What the device has left; 0: the observer has no context. */
static uint64_t observer_ask(const struct observer *observer)
{
    const uint8_t asks = 1;
    uint64_t left = 0;

    if (send(observer->socket, &asks, sizeof(asks), MSG_NOSIGNAL) != (ssize_t)sizeof(asks) ||
        recv(observer->socket, &left, sizeof(left), 0) != (ssize_t)sizeof(left)) {
        return 0;
    }
    return left;
}

static void observer_end(struct observer *observer)
{
    if (observer->socket >= 0) {
        (void)close(observer->socket);
    }
    if (observer->pid > 0) {
        (void)waitpid(observer->pid, NULL, 0);
    }
    *observer = (struct observer){.pid = -1, .socket = -1};
}

/* A device that has room for one context and its kernels only, or that one process may use at a
 * time, is tried without an observer. */
static bool probe_open(
    struct worker_state *state, const char *uuid, struct observer *observer, bool observes)
{
    const bool enters = worker_enter(state, uuid);

    if (enters && worker_open(state)) {
        return true;
    }
    observer_end(observer);
    return observes && (!enters || state->error.code == ADTOPK_ERR_MEMORY) &&
           worker_enter(state, uuid) && worker_open(state);
}

int worker_probe(struct worker_state *state, const char *uuid)
{
    struct observer observer = observer_start(state, uuid);
    const uint64_t before = observer_ask(&observer);
    const bool open = probe_open(state, uuid, &observer, before != 0);
    const uint64_t after = open ? observer_ask(&observer) : 0;
    char missing[ERROR_TEXT_SIZE];

    observer_end(&observer);
    if (!open) {
        (void)printf("%s\n", state->error.text);
        return EXIT_FAILURE;
    }
    worker_missing(state, missing);
    (void)printf("%s\n%d\n%s\n%llu\n", missing, state->nccl.version, state->no_nccl,
        (unsigned long long)(after != 0 && after < before ? before - after : 0));
    return EXIT_SUCCESS;
}
