#include "tests/bench/perf/stop.h"

#include <signal.h>
#include <stddef.h>

/* A signal handler can reach nothing but a global. */
static volatile sig_atomic_t requested;

static void handle(int number)
{
    (void)number;
    requested = 1;
}

bool stop_install(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = handle, .sa_flags = (int)SA_RESETHAND};

    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        if (sigaction(numbers[i], &action, NULL) != 0) {
            return false;
        }
    }
    return true;
}

bool stop_requested(void)
{
    return requested != 0;
}
