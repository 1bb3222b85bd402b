/*
 * Processes of workers, noted where the next daemon finds them.
 *
 * A worker dies with its daemon. But the driver may take a while to end its kernels, and these must
 * not write beside those of the next worker that has the same memory (left.c). So the next daemon
 * waits for it. A life is a process and when it began, because numbers of processes are used again.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/pidfd.h>
#include <unistd.h>

#include "daemon/device/process.h"

#define LIVES_PID_BITS 22 /* Linux has no more of them */
#define LIVES_WAIT_MS 5000

/* When a process began, in ticks since the machine booted: the 22nd field of its line in /proc,
 * where the name, the second one, may have spaces. 0: there is no such process. */
static uint64_t lives_began(pid_t pid)
{
    unsigned long long began = 0;
    char path[32], line[512] = "";
    const char *rest = NULL;
    FILE *file;

    (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    file = fopen(path, "re");
    if (file != NULL) {
        rest = fgets(line, sizeof(line), file) != NULL ? strrchr(line, ')') : NULL;
        (void)fclose(file);
    }
    if (rest != NULL) {
        (void)sscanf(rest,
            ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
            &began);
    }
    return began;
}

static pid_t lives_pid(uint64_t life)
{
    return (pid_t)(life & ((UINT64_C(1) << LIVES_PID_BITS) - 1));
}

enum adtopk_status lives_note(struct worker *worker, struct error *err)
{
    struct device_notes *notes = worker->device->notes;
    const uint64_t began = lives_began(worker->client);
    const uint64_t life = began << LIVES_PID_BITS | (uint64_t)(unsigned)worker->client;

    if (notes != NULL && began == 0) { /* the next daemon would take it for another process */
        return error_set(
            err, ADTOPK_ERR_SYSTEM, "cannot find out when process %d began", (int)worker->client);
    }
    for (unsigned i = 0; notes != NULL && i < DEVICE_LIVES; i++) {
        uint64_t none = 0;

        if (atomic_compare_exchange_strong(&notes->life[i], &none, life)) {
            return ADTOPK_OK;
        }
    }
    return notes == NULL ? ADTOPK_OK
                         : error_set(err, ADTOPK_ERR_MEMORY,
                               "more than %u device workers at a time", DEVICE_LIVES);
}

void lives_forget(struct worker *worker)
{
    struct device_notes *notes = worker->device->notes;

    for (unsigned i = 0; notes != NULL && worker->client > 0 && i < DEVICE_LIVES; i++) {
        if (lives_pid(atomic_load(&notes->life[i])) == worker->client) {
            atomic_store(&notes->life[i], 0);
        }
    }
}

/* Whether the number is another process's, or thread's, by now. */
static bool lives_is_anothers(uint64_t life)
{
    const uint64_t began = lives_began(lives_pid(life));

    return began != 0 && began != life >> LIVES_PID_BITS;
}

/* Waits until a process with all of its threads has ended. False: it has not in time. */
static bool lives_await(uint64_t life, uint64_t until_us)
{
    struct pollfd wait = {.fd = pidfd_open(lives_pid(life), 0), .events = POLLIN};
    bool ended;
    uint64_t now;

    if (wait.fd < 0) {
        return errno == ESRCH;
    }
    ended = lives_is_anothers(life); /* the descriptor may be that one's */
    do {
        now = page_now_us();
        ended =
            ended || poll(&wait, 1, now < until_us ? (int)((until_us - now) / 1000) + 1 : 0) == 1;
    } while (!ended && now < until_us);
    (void)close(wait.fd);
    return ended;
}

static enum adtopk_status lives_end(
    struct device *device, uint64_t life, uint64_t until_us, struct error *err)
{
    if (lives_is_anothers(life)) { /* MPS would end the other's work */
        return ADTOPK_OK;
    }
    if (!lives_await(life, until_us)) {
        return error_set(err, ADTOPK_ERR_TIMEOUT,
            "a device worker of the daemon before, process %d, has not ended within %u ms",
            (int)lives_pid(life), LIVES_WAIT_MS);
    }
    return process_end_client(device, lives_pid(life), err);
}

enum adtopk_status device_outlive(
    struct device *device, struct device_notes *notes, struct error *err)
{
    const uint64_t until_us = page_now_us() + LIVES_WAIT_MS * UINT64_C(1000);
    enum adtopk_status status = ADTOPK_OK;

    for (unsigned i = 0; i < DEVICE_LIVES; i++) {
        const uint64_t life = atomic_load(&notes->life[i]);

        if (life != 0 && status == ADTOPK_OK) { /* after one that has not, nothing is used */
            status = lives_end(device, life, until_us, err);
        }
        atomic_store(&notes->life[i], 0);
    }
    device->notes = notes;
    return status;
}
