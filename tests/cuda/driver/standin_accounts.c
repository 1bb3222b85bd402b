/*
 * What each process has of each device. With ADTOPK_TEST_CUDA_ACCOUNTS, a file, the processes that
 * name it share their devices' memory, as on a machine. Without, each has all of it.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/cuda/driver/standin.h"

#define PROCESSES_MAX 256

struct account {
    _Atomic int pid; /* 0: nobody has it */
    _Atomic uint64_t bytes[STANDIN_DEVICES_MAX];
};

static struct account alone;
static struct account *all; /* NULL: nothing was taken yet */
static struct account *own;
static unsigned accounts;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static bool account_is_dead(int pid)
{
    return pid != 0 && kill(pid, 0) != 0 && errno == ESRCH;
}

/* An account that nobody has, or whose process has ended: what it had is free. */
static struct account *account_claim(void)
{
    for (unsigned i = 0; i < accounts; i++) {
        int pid = all[i].pid;

        if ((pid == 0 || account_is_dead(pid)) &&
            atomic_compare_exchange_strong(&all[i].pid, &pid, (int)getpid())) {
            for (int d = 0; d < STANDIN_DEVICES_MAX; d++) {
                all[i].bytes[d] = 0;
            }
            return &all[i];
        }
    }
    abort();
}

static void account_open(void)
{
    const char *path = getenv("ADTOPK_TEST_CUDA_ACCOUNTS");
    const size_t size = PROCESSES_MAX * sizeof(struct account);
    const int fd = path != NULL ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;

    accounts = path != NULL ? PROCESSES_MAX : 1;
    all = &alone;
    if (path != NULL) {
        if (fd < 0 || ftruncate(fd, (off_t)size) != 0) {
            abort();
        }
        all = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (all == MAP_FAILED) {
            abort();
        }
        (void)close(fd);
    }
    own = account_claim();
}

/* What other programs have of a device, if a test wants that. */
static uint64_t account_of_others(void)
{
    const char *path = getenv("ADTOPK_TEST_CUDA_OTHERS");
    struct stat file;

    return path != NULL && stat(path, &file) == 0 ? (uint64_t)file.st_size : 0;
}

/* The caller has the mutex. */
static uint64_t account_left(int device)
{
    const uint64_t memory = standin_state()->memory;
    const int number = standin_state()->number[device];
    uint64_t used = account_of_others();

    if (all == NULL) {
        account_open();
    }
    for (unsigned i = 0; i < accounts; i++) {
        used += all[i].pid != 0 && !account_is_dead(all[i].pid) ? all[i].bytes[number] : 0;
    }
    return used < memory ? memory - used : 0;
}

uint64_t standin_left(int device)
{
    uint64_t left;

    (void)pthread_mutex_lock(&mutex);
    left = account_left(device);
    (void)pthread_mutex_unlock(&mutex);
    return left;
}

bool standin_take(int device, uint64_t bytes)
{
    bool there;

    (void)pthread_mutex_lock(&mutex);
    there = bytes <= account_left(device);
    if (there) {
        own->bytes[standin_state()->number[device]] += bytes;
    }
    (void)pthread_mutex_unlock(&mutex);
    return there;
}

void standin_give_back(int device, uint64_t bytes)
{
    (void)pthread_mutex_lock(&mutex);
    own->bytes[standin_state()->number[device]] -= bytes;
    (void)pthread_mutex_unlock(&mutex);
}
