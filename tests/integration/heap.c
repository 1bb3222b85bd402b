/*
 * Tells how many bytes a process has from malloc(), for test_soak.py. Preloaded into a daemon, it
 * writes that number into the file "$ADTOPK_TEST_HEAP.PID" ten times a second. What a process has
 * of the system does not tell: a heap keeps what was once used of it.
 */
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void *heap_tell(void *argument)
{
    const struct timespec pause = {.tv_nsec = 100000000};
    const int file = (int)(long)argument;

    for (;;) {
        const struct mallinfo2 heap = mallinfo2();
        char line[32];
        const int size = snprintf(line, sizeof(line), "%20zu\n", heap.uordblks + heap.hblkhd);

        (void)!pwrite(file, line, (size_t)size, 0);
        (void)nanosleep(&pause, NULL);
    }
    return NULL;
}

/* The thread gets none of the daemon's signals. */
__attribute__((constructor)) static void heap_begin(void)
{
    const char *prefix = getenv("ADTOPK_TEST_HEAP");
    char path[256];
    sigset_t all, before;
    pthread_t thread;
    int file;

    if (prefix == NULL) {
        return;
    }
    (void)snprintf(path, sizeof(path), "%s.%d", prefix, (int)getpid());
    file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    if (file < 0 || pthread_create(&thread, NULL, heap_tell, (void *)(long)file) != 0) {
        abort();
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
}
