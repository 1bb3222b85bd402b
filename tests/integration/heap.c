/*
 * Tells how many bytes a process has from malloc(), for test_soak.py. Preloaded into a daemon, it
 * counts what is given and taken back, and writes that into the file "$ADTOPK_TEST_HEAP.PID" ten
 * times a second. What glibc tells of itself (mallinfo2()) counts the chunks that its threads keep
 * for later as used, and what the process has of the system contains all that was once used.
 *
 * The file has the bytes without the blocks of libzmq's queues, and then the number of these. A
 * queue has blocks of 256 messages, and keeps an empty one once it has needed two. So they come and
 * go with what was last under way, and a queue with few messages gets its second one late.
 */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* glibc's own functions, by the names that stay when a program has others of these. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *memory);

/* A block has 256 messages and pointers to both neighbours. glibc may add some bytes to it. */
#define QUEUE_BLOCK (256U * 64 + 2 * sizeof(void *))
#define QUEUE_SLACK 48U

static _Atomic size_t heap_bytes, queue_blocks;

/* Counts a block of so many bytes that is given, or taken back. */
static void heap_count(size_t size, bool given)
{
    if (size >= QUEUE_BLOCK && size < QUEUE_BLOCK + QUEUE_SLACK) {
        queue_blocks += given ? 1 : (size_t)-1;
    } else {
        heap_bytes += given ? size : 0 - size;
    }
}

static void *heap_given(void *memory)
{
    heap_count(malloc_usable_size(memory), true);
    return memory;
}

void *malloc(size_t size)
{
    return heap_given(__libc_malloc(size));
}

void *calloc(size_t count, size_t size)
{
    return heap_given(__libc_calloc(count, size));
}

void *realloc(void *old, size_t size)
{
    const size_t before = malloc_usable_size(old);
    void *memory = __libc_realloc(old, size);

    if (memory != NULL || size == 0) {
        heap_count(before, false);
    }
    return heap_given(memory);
}

void *memalign(size_t alignment, size_t size)
{
    return heap_given(__libc_memalign(alignment, size));
}

void *aligned_alloc(size_t alignment, size_t size)
{
    return memalign(alignment, size);
}

int posix_memalign(void **memory, size_t alignment, size_t size)
{
    *memory = memalign(alignment, size);
    return *memory != NULL ? 0 : ENOMEM;
}

void free(void *memory)
{
    heap_count(malloc_usable_size(memory), false);
    __libc_free(memory);
}

static void *heap_tell(void *argument)
{
    const struct timespec pause = {.tv_nsec = 100000000};
    const int file = (int)(long)argument;

    for (;;) {
        char line[48];
        const int size = snprintf(line, sizeof(line), "%20zu %20zu\n", atomic_load(&heap_bytes),
            atomic_load(&queue_blocks));

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
