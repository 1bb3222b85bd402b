/*
 * A clock of the day that jumps, for test_clock.py. Preloaded into a process, it adds seconds to
 * what the process reads of that clock. The file "$ADTOPK_TEST_CLOCK" says how many, in eight bytes
 * that may change at any time. Other clocks are those of the machine.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *clock_ahead;

__attribute__((constructor)) static void clock_begin(void)
{
    const char *path = getenv("ADTOPK_TEST_CLOCK");
    const int file = path != NULL ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *map = mmap(NULL, sizeof *clock_ahead, PROT_READ, MAP_SHARED, file, 0);

    if (map == MAP_FAILED) {
        abort();
    }
    (void)close(file);
    clock_ahead = map;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    const int failed = (int)syscall(SYS_clock_gettime, clock, now);

    if (failed == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        now->tv_sec += clock_ahead != NULL ? *clock_ahead : 0;
    }
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec precise;

    (void)zone;
    (void)clock_gettime(CLOCK_REALTIME, &precise);
    *now = (struct timeval){.tv_sec = precise.tv_sec, .tv_usec = precise.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *now)
{
    struct timespec precise;

    (void)clock_gettime(CLOCK_REALTIME, &precise);
    if (now != NULL) {
        *now = precise.tv_sec;
    }
    return precise.tv_sec;
}
