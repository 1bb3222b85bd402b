#include "local_daemon.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemon/session/answer.h"
#include "local_core.h"

void sleep_ms(int ms)
{
    struct timespec left = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};

    while (nanosleep(&left, &left) != 0) {
    }
}

/* ---- the child ---- */

static void daemon_on_term(uv_signal_t *signal, int number)
{
    (void)number;
    *(bool *)signal->data = true;
}

static void daemon_on_closed(void *context)
{
    (void)context;
}

static void daemon_turn(
    uv_loop_t *loop, struct local *local, struct doors *doors, struct daemon_view *view)
{
    struct action action;
    struct fake_core *core = doors->context;
    const bool busy = local_poll(local);

    while (fake_core_next_action(core, &action)) {
        answer_apply(doors, &action);
    }
    answer_emptied(doors);
    local_stats(local, &view->stats);
    atomic_fetch_add(&view->iterations, 1);
    if (!busy && local_sleep(local)) {
        (void)uv_run(loop, UV_RUN_ONCE);
    } else {
        (void)uv_run(loop, UV_RUN_NOWAIT);
    }
    local_awake(local);
}

/* Runs the daemon and returns its exit status. */
static int daemon_main(const struct daemon *daemon, uint32_t max_sessions, int ready)
{
    const struct local_config config = {
        .path = daemon->path, .mode = 0666, .max_sessions = max_sessions};
    struct fake_core *core = fake_core_create(daemon->view);
    struct doors doors = {.event = fake_core_event, .context = core};
    struct error err = {0};
    uv_loop_t loop;
    uv_signal_t term;
    bool stop = false;
    struct local *local;

    if (core == NULL || uv_loop_init(&loop) != 0) {
        return 2;
    }
    local = local_create(&loop, &config, &doors, core, &err);
    if (local == NULL) {
        (void)fprintf(stderr, "%s\n", err.text);
        return 3;
    }
    fake_core_memory(core, local_memory(local));
    (void)uv_signal_init(&loop, &term);
    term.data = &stop;
    (void)uv_signal_start(&term, daemon_on_term, SIGTERM);
    if (write(ready, "r", 1) != 1) {
        return 4;
    }
    (void)close(ready);
    while (!stop) {
        daemon_turn(&loop, local, &doors, daemon->view);
    }
    fake_core_destroy(core);
    local_close(local, daemon_on_closed);
    uv_close((uv_handle_t *)&term, NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    return uv_loop_close(&loop) == 0 ? 0 : 5;
}

/* ---- the parent ---- */

int daemon_start(struct daemon *daemon, uint32_t max_sessions)
{
    int ready[2];
    char byte;

    memset(daemon, 0, sizeof *daemon);
    (void)snprintf(daemon->folder, sizeof daemon->folder, "/tmp/adtopk-test-XXXXXX");
    daemon->view =
        mmap(NULL, sizeof *daemon->view, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (mkdtemp(daemon->folder) == NULL || daemon->view == MAP_FAILED || pipe(ready) != 0) {
        return -1;
    }
    (void)snprintf(daemon->path, sizeof daemon->path, "%s/sock", daemon->folder);
    (void)snprintf(daemon->address, sizeof daemon->address, "unix:%s", daemon->path);
    (void)fflush(NULL);
    daemon->pid = fork();
    if (daemon->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)close(ready[0]);
        exit(daemon_main(daemon, max_sessions, ready[1]));
    }
    (void)close(ready[1]);
    byte = 0;
    if (daemon->pid < 0 || read(ready[0], &byte, 1) != 1) {
        byte = 0;
    }
    (void)close(ready[0]);
    return byte == 'r' ? 0 : -1;
}

int daemon_stop(struct daemon *daemon)
{
    int status = -1;

    (void)kill(daemon->pid, SIGTERM);
    (void)waitpid(daemon->pid, &status, 0);
    daemon->pid = 0;
    return status;
}

void daemon_remove(struct daemon *daemon)
{
    if (daemon->pid > 0) {
        (void)kill(daemon->pid, SIGKILL);
        (void)waitpid(daemon->pid, NULL, 0);
    }
    (void)unlink(daemon->path);
    (void)rmdir(daemon->folder);
    (void)munmap(daemon->view, sizeof *daemon->view);
}

int daemon_descriptors(const struct daemon *daemon)
{
    char path[64];
    int count = 0;
    DIR *folder;

    (void)snprintf(path, sizeof path, "/proc/%d/fd", (int)daemon->pid);
    folder = opendir(path);
    while (folder != NULL && readdir(folder) != NULL) {
        count++;
    }
    if (folder != NULL) {
        (void)closedir(folder);
    }
    return count;
}

int daemon_mappings(const struct daemon *daemon)
{
    char line[512];
    int count = 0;
    FILE *maps;

    (void)snprintf(line, sizeof line, "/proc/%d/maps", (int)daemon->pid);
    maps = fopen(line, "re");
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        count += strstr(line, "/memfd:") != NULL;
    }
    if (maps != NULL) {
        (void)fclose(maps);
    }
    return count;
}

int daemon_settle(const struct daemon *daemon, int descriptors, int mappings, int timeout_ms)
{
    for (int waited = 0; waited <= timeout_ms; waited += 10) {
        if (daemon_descriptors(daemon) <= descriptors && daemon_mappings(daemon) <= mappings) {
            return 0;
        }
        sleep_ms(10);
    }
    return -1;
}
