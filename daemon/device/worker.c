/*
 * adtopk-device: the process that runs kernels, on one device, for the jobs of one user. adtopkd
 * starts it; nobody else needs to.
 *
 *   adtopk-device --serve UUID   takes orders: descriptor 3 is the socket, 4 the page (page.h)
 *   adtopk-device --probe UUID   tries the device (worker_probe.c)
 *
 * Happy path: entries of the page go into the stream as they come. When there is no new one, the
 * process waits for the stream, wakes the daemon if that sleeps, looks around for a moment, and
 * sleeps on the socket.
 */
#include "daemon/device/worker.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define SOCKET 3
#define PAGE 4

static int worker_fails(const struct worker_state *state)
{
    struct message message = {.type = MESSAGE_FAILED};

    (void)snprintf(message.text, sizeof(message.text), "%s", state->error.text);
    (void)message_send(SOCKET, &message, -1);
    return EXIT_FAILURE;
}

/* Everything is done: the daemon may be waiting for it. */
static bool worker_settle(struct worker_state *state)
{
    const struct message wake = {.type = MESSAGE_WAKE};

    if (!WORKER_TRY(state, cuStreamSynchronize, state->stream)) {
        return false;
    }
    if (atomic_load(&state->page->daemon_asleep) != 0) {
        (void)message_send(SOCKET, &wake, -1);
    }
    return true;
}

/* False: the process is to end; with an error if something is wrong. */
static bool worker_obey(struct worker_state *state)
{
    struct message mapped = {.type = MESSAGE_MAPPED};
    struct message message;
    bool cleared = false;
    int descriptor;

    switch (message_take(SOCKET, -1, &message, &descriptor)) {
    case MESSAGE_GONE: return false;
    case MESSAGE_NONE: return true;
    case MESSAGE_GOT: break;
    }
    if (message.type == MESSAGE_MAP) {
        if (!worker_map(state, &message, descriptor, &cleared)) {
            return false;
        }
        mapped.fresh = cleared && message.fresh == 0;
        return message_send(SOCKET, &mapped, -1);
    }
    return message.type != MESSAGE_UNMAP || worker_unmap(state, message.arena);
}

static bool worker_has_entry(const struct worker_state *state, uint32_t done)
{
    return atomic_load(&state->page->tail) != done;
}

/* Sleeps until the daemon says something, unless there is an entry. */
static bool worker_sleep(struct worker_state *state, uint32_t done)
{
    bool goes_on = true;

    state->spin.active_us = 0;
    do {
        if (worker_has_entry(state, done)) {
            return true;
        }
    } while (page_pass_time(&state->spin));
    atomic_store(&state->page->worker_asleep, 1);
    if (!worker_has_entry(state, done)) {
        goes_on = worker_obey(state);
    }
    atomic_store(&state->page->worker_asleep, 0);
    return goes_on;
}

static int worker_serve(struct worker_state *state)
{
    const struct message ready = {.type = MESSAGE_READY};
    uint32_t done = 0;
    bool goes_on = message_send(SOCKET, &ready, -1), busy = false;

    while (goes_on) {
        if (worker_has_entry(state, done)) {
            goes_on = worker_entry(state, ++done);
            busy = true;
        } else if (busy) {
            goes_on = worker_settle(state);
            busy = false;
        } else {
            goes_on = worker_sleep(state, done);
        }
    }
    return state->error.code != ADTOPK_OK ? worker_fails(state) : EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    static struct worker_state state;
    const pid_t parent = getppid();

    if (argc != 3 || (strcmp(argv[1], "--serve") != 0 && strcmp(argv[1], "--probe") != 0)) {
        (void)fprintf(stderr, "usage: adtopk-device --serve|--probe UUID\nadtopkd starts it.\n");
        return 2;
    }
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* also while it hangs in a call of the driver */
    if (getppid() != parent) {
        return EXIT_FAILURE;
    }
    if (strcmp(argv[1], "--probe") == 0) {
        return worker_probe(&state, argv[2]);
    }
    return worker_enter(&state, argv[2]) && worker_open(&state) && worker_share(&state, PAGE)
               ? worker_serve(&state)
               : worker_fails(&state);
}
