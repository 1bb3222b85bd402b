/*
 * A daemon waits for the device workers of the one before it, which may still run kernels in memory
 * that both have. It waits for no other process, even one that has the number of a worker.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/device/state.h"
#include "tests/cuda/driver/sides.h"

#define LIFE 3u         /* a place in the notes */
#define PID_BITS 22     /* as in lives.c */
#define ENDS_US 300000u /* when a child ends by itself */

static struct device_notes *notes;

/* ------------------------------------------------------------------ processes */

/* When a process began: the 22nd field of its line. This program's name has no spaces. */
static uint64_t began(pid_t pid)
{
    unsigned long long ticks = 0;
    char path[32];
    FILE *file;

    (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    file = fopen(path, "re");
    assert_non_null(file);
    assert_int_equal(fscanf(file,
                         "%*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
                         "%*s %*s %*s %llu",
                         &ticks),
        1);
    (void)fclose(file);
    assert_true(ticks > 0);
    return ticks;
}

static uint64_t life_of(uint64_t ticks, pid_t pid)
{
    return ticks << PID_BITS | (uint64_t)pid;
}

/* A process that ends after a while, or never before the test. */
static pid_t child_of(unsigned ends_us)
{
    const pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (ends_us == 0) {
            (void)pause();
        }
        (void)usleep(ends_us);
        _exit(0);
    }
    return child;
}

static bool has_ended(pid_t child)
{
    const pid_t found = waitpid(child, NULL, WNOHANG);

    assert_true(found == child || found == 0);
    return found == child;
}

static void end(pid_t child)
{
    (void)kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
}

static void assert_no_lives(void)
{
    for (unsigned i = 0; i < DEVICE_LIVES; i++) {
        assert_int_equal(atomic_load(&notes->life[i]), 0);
    }
}

static int setup(void **state)
{
    (void)state;
    notes = calloc(1, sizeof(*notes));
    sides_prepare(SIDES_MEDIUM);
    sides_start("late", "", 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    sides_close();
    free(notes);
    return 0;
}

static void outlive(void)
{
    struct error err;

    if (device_outlive(sides.device, notes, &err) != ADTOPK_OK) {
        fail_msg("%s", err.text);
    }
    assert_no_lives();
}

/* ------------------------------------------------------------------ tests */

static void test_waits(void **state)
{
    const pid_t child = child_of(ENDS_US);

    (void)state;
    atomic_store(&notes->life[LIFE], life_of(began(child), child));
    outlive();
    assert_true(has_ended(child));
}

/* The last place in the notes is looked at as well. */
static void test_gone(void **state)
{
    const pid_t child = child_of(ENDS_US);

    (void)state;
    atomic_store(&notes->life[DEVICE_LIVES - 1], life_of(began(child), child));
    end(child);
    outlive();
}

/* One that does not end is no reason to forget another one, nor to name that. */
static void test_does_not_end(void **state)
{
    const pid_t child = child_of(0), gone = child_of(ENDS_US);
    char wanted[64];
    struct error err;

    (void)state;
    atomic_store(&notes->life[LIFE], life_of(began(child), child));
    atomic_store(&notes->life[LIFE + 1], life_of(began(gone), gone));
    assert_int_equal(device_outlive(sides.device, notes, &err), ADTOPK_ERR_TIMEOUT);
    (void)snprintf(wanted, sizeof(wanted), "process %d, has not ended within 5000 ms", (int)child);
    assert_non_null(strstr(err.text, wanted));
    assert_no_lives();
    assert_true(has_ended(gone));
    assert_false(has_ended(child));
    end(child);
}

static void test_number_of_another_process(void **state)
{
    const pid_t child = child_of(0);

    (void)state;
    atomic_store(&notes->life[LIFE], life_of(began(child) + 1, child));
    outlive();
    assert_false(has_ended(child));
    end(child);
}

static void *lives_on(void *context)
{
    int *ends = context, number = (int)gettid();

    assert_int_equal(write(ends[1], &number, sizeof(number)), sizeof(number));
    assert_int_equal(read(ends[2], &number, 1), 0);
    return NULL;
}

/* Threads have numbers, too, and a descriptor cannot stand for one of them. */
static void test_number_of_a_thread(void **state)
{
    int ends[4], number = 0; /* to the test, to the thread */
    pthread_t thread;

    (void)state;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(pipe(ends + 2), 0);
    assert_int_equal(pthread_create(&thread, NULL, lives_on, ends), 0);
    assert_int_equal(read(ends[0], &number, sizeof(number)), sizeof(number));
    atomic_store(&notes->life[LIFE], life_of(began(number) + 1, number));
    outlive();
    (void)close(ends[3]);
    assert_int_equal(pthread_join(thread, NULL), 0);
    for (unsigned i = 0; i < 3; i++) {
        (void)close(ends[i]);
    }
}

/* The worker of this daemon is noted while it runs. */
static void test_noted(void **state)
{
    static const unsigned numbers[] = {MAIN, RANK, RESIDUALS, VELOCITIES};
    struct device_worker_info info;

    (void)state;
    outlive();
    for (unsigned i = 0; i < 4; i++) {
        sides_open_part(numbers[i], sides_size(numbers[i]));
    }
    sides_step(1, NULL);
    assert_true(device_worker_info(sides.device, 0, &info));
    assert_int_equal(atomic_load(&notes->life[0]), life_of(began(info.pid), info.pid));
    device_stop(sides.device);
    assert_no_lives();
    device_destroy(sides.device);
    sides_start("late", "", 0);
}

/* A daemon that cannot look when a worker began does not note it, and so does not have it map
 * memory: the next daemon would take it for another process. */
static void test_without_descriptors(void **state)
{
    struct device device = {.notes = notes};
    struct worker worker = {.device = &device, .client = child_of(0)};
    struct rlimit before, none;
    enum adtopk_status status;
    struct error err;

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    status = lives_note(&worker, &err);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(status, ADTOPK_ERR_SYSTEM);
    assert_no_lives();
    assert_int_equal(lives_note(&worker, &err), ADTOPK_OK);
    assert_int_equal(atomic_load(&notes->life[0]), life_of(began(worker.client), worker.client));
    lives_forget(&worker);
    assert_no_lives();
    end(worker.client);
}

/* ------------------------------------------------------------------ MPS */

/* A control program that notes what it is asked for. MPS has two clients. */
static void write_file(const char *folder, const char *name, pid_t one, pid_t other)
{
    char path[96];
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    file = fopen(path, "we");
    assert_non_null(file);
    assert_true(fprintf(file,
                    "#!/bin/sh\n"
                    "read command\n"
                    "echo \"$command\" >>\"$CUDA_MPS_PIPE_DIRECTORY/commands\"\n"
                    "case $command in\n"
                    "    get_server_list) echo 4711 ;;\n"
                    "    get_client_list*) echo %d; echo %d ;;\n"
                    "esac\n",
                    (int)one, (int)other) > 0);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, S_IRWXU), 0);
}

/* A folder for pipes and programs, as if MPS served these two processes. */
static void serve(const char *folder, pid_t one, pid_t other)
{
    char path[4096];

    write_file(folder, "nvidia-cuda-mps-control", one, other);
    write_file(folder, "control", one, other);
    (void)snprintf(path, sizeof(path), "%s:%s", folder, getenv("PATH"));
    (void)setenv("PATH", path, 1);
    (void)setenv("CUDA_MPS_PIPE_DIRECTORY", folder, 1);
}

/* Takes what the control program was asked for. */
static void read_commands(const char *folder, char *text, size_t size)
{
    char path[96], command[64];
    int fd;
    ssize_t got;

    (void)snprintf(path, sizeof(path), "%s/commands", folder);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    got = read(fd, text, size - 1);
    assert_true(got >= 0);
    text[got] = '\0';
    (void)close(fd);
    (void)snprintf(command, sizeof(command), "rm -r %s", folder);
    assert_int_equal(system(command), 0);
    (void)unsetenv("CUDA_MPS_PIPE_DIRECTORY");
}

/* MPS ends what a worker has left there, but not the work of a process that has the number now. */
static void test_mps(void **state)
{
    const pid_t child = child_of(0), gone = child_of(ENDS_US);
    char folder[] = "/tmp/adtopk-mps-XXXXXX", commands[256], ends[64];

    (void)state;
    assert_non_null(mkdtemp(folder));
    serve(folder, child, gone);
    device_destroy(sides.device);
    sides_start("late", "", 0);
    atomic_store(&notes->life[LIFE], life_of(began(gone), gone));
    atomic_store(&notes->life[LIFE + 1], life_of(began(child) + 1, child));
    outlive();
    read_commands(folder, commands, sizeof(commands));
    (void)snprintf(ends, sizeof(ends), "terminate_client 4711 %d\n", (int)gone);
    assert_non_null(strstr(commands, ends));
    (void)snprintf(ends, sizeof(ends), "terminate_client 4711 %d\n", (int)child);
    assert_null(strstr(commands, ends));
    assert_true(has_ended(gone));
    end(child);
}

#define LIVES_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        LIVES_TEST(test_waits),
        LIVES_TEST(test_gone),
        LIVES_TEST(test_does_not_end),
        LIVES_TEST(test_number_of_another_process),
        LIVES_TEST(test_number_of_a_thread),
        LIVES_TEST(test_noted),
        LIVES_TEST(test_without_descriptors),
        LIVES_TEST(test_mps),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
