#include "tests/bench/perf/machine.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

static void read_cpu(char cpu[MACHINE_TEXT])
{
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[512];

    (void)snprintf(cpu, MACHINE_TEXT, "unknown");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        const char *value = strstr(line, ": ");

        if (strncmp(line, "model name", 10) == 0 && value != NULL) {
            line[strcspn(line, "\n")] = '\0';
            (void)snprintf(cpu, MACHINE_TEXT, "%.*s", MACHINE_TEXT - 1, value + 2);
            break;
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
}

static void find_vectors(char vectors[MACHINE_TEXT])
{
#if defined(__x86_64__)
    (void)snprintf(vectors, MACHINE_TEXT, "sse2%s%s", __builtin_cpu_supports("avx2") ? " avx2" : "",
        __builtin_cpu_supports("avx512f") ? " avx512f" : "");
#else
    (void)snprintf(vectors, MACHINE_TEXT, "unknown");
#endif
}

void machine_describe(struct machine *machine)
{
    struct utsname name;

    read_cpu(machine->cpu);
    find_vectors(machine->vectors);
    (void)snprintf(machine->kernel, sizeof(machine->kernel), "unknown");
    if (uname(&name) == 0) {
        (void)snprintf(machine->kernel, sizeof(machine->kernel), "%.20s %.60s %.20s", name.sysname,
            name.release, name.machine);
    }
    machine->cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (getloadavg(&machine->load, 1) != 1) {
        machine->load = -1;
    }
}

uint64_t machine_available(void)
{
    FILE *file = fopen("/proc/meminfo", "re");
    uint64_t kilobytes = UINT64_MAX / 1024;
    char line[128];

    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        if (sscanf(line, "MemAvailable: %" SCNu64, &kilobytes) == 1) {
            break;
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return kilobytes * 1024;
}

double machine_idle_us(void)
{
    const double cores = (double)sysconf(_SC_NPROCESSORS_ONLN);
    const double per_second = (double)sysconf(_SC_CLK_TCK);
    FILE *file = fopen("/proc/stat", "re");
    uint64_t idle = 0, waiting = 0;
    bool found = false;

    if (file != NULL) {
        found = fscanf(file, "cpu %*u %*u %*u %" SCNu64 " %" SCNu64, &idle, &waiting) == 2;
        (void)fclose(file);
    }
    return found ? (double)(idle + waiting) * 1e6 / per_second / cores : NAN;
}
