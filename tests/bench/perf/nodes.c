/*
 * Start: make a folder, write a configuration a node, start the daemons, wait for READY=1 of each.
 * Failures: no program, a port that somebody else took meanwhile (tried again with others), a
 * daemon that ends or stays silent (its log is quoted), Ctrl-C (everything is ended).
 */
#include "tests/bench/perf/nodes.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bench/perf/clock.h"
#include "tests/bench/perf/process.h"
#include "tests/bench/perf/stop.h"

#define START_ATTEMPTS 3
#define READY_MS 20000
#define STOP_MS 3000
#define POLL_US 10000

static const char *const daemon_places[] = {
    "adtopkd", "../sbin/adtopkd", "../../daemon/adtopkd", NULL};
static const char *const ctl_places[] = {
    "adtopkctl", "../bin/adtopkctl", "../../client/adtopkctl/adtopkctl", NULL};

static void file_name(
    const struct nodes *nodes, unsigned node, const char *kind, char path[NODES_PATH_SIZE])
{
    (void)snprintf(path, NODES_PATH_SIZE, "%s/%u.%s", nodes->folder, node, kind);
}

void nodes_address(const struct nodes *nodes, unsigned node, char address[NODES_PATH_SIZE])
{
    (void)snprintf(address, NODES_PATH_SIZE, "unix:%s/%u.sock", nodes->folder, node);
}

/* Ports of loopback that are free right now. */
static bool free_ports(unsigned count, uint16_t ports[NODES_MAX])
{
    int fds[NODES_MAX];
    unsigned opened = 0;
    bool ok = true;

    for (; opened < count && ok; opened++) {
        struct sockaddr_in address = {
            .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t length = sizeof(address);

        fds[opened] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        ok = fds[opened] >= 0 &&
             bind(fds[opened], (struct sockaddr *)&address, sizeof(address)) == 0 &&
             getsockname(fds[opened], (struct sockaddr *)&address, &length) == 0;
        ports[opened] = ntohs(address.sin_port);
    }
    while (opened > 0) {
        if (fds[--opened] >= 0) {
            (void)close(fds[opened]);
        }
    }
    return ok;
}

static bool write_configuration(
    const struct nodes *nodes, unsigned node, unsigned count, const uint16_t ports[NODES_MAX])
{
    char path[NODES_PATH_SIZE];
    FILE *file;
    bool ok;

    file_name(nodes, node, "json", path);
    file = fopen(path, "we");
    if (file == NULL) {
        return false;
    }
    (void)fprintf(file,
        "{\"node\": %u, \"socket\": \"%s/%u.sock\", \"control_socket\": \"%s/%u.control\"", node,
        nodes->folder, node, nodes->folder, node);
    if (count > 1) {
        const unsigned peer = 1 - node;

        (void)fprintf(file,
            ", \"listen\": \"tcp://127.0.0.1:%u\",\n"
            " \"peers\": [{\"node\": %u, \"endpoint\": \"tcp://127.0.0.1:%u\"}]",
            ports[node], peer, ports[peer]);
    }
    if (nodes->gpu_name[0] != '\0') {
        (void)fprintf(file, ", \"engine\": \"cuda\"");
    }
    (void)fprintf(file, "}\n");
    ok = ferror(file) == 0;
    return fclose(file) == 0 && ok;
}

/* The last line of the node's log. */
static void last_line(const struct nodes *nodes, unsigned node, char *text, size_t size)
{
    char path[NODES_PATH_SIZE];
    char line[400];
    FILE *file;

    (void)snprintf(text, size, "its log is empty");
    file_name(nodes, node, "log", path);
    file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        (void)snprintf(text, size, "%.*s", (int)size - 1, line);
    }
    if (file != NULL) {
        (void)fclose(file);
    }
}

/* The socket on which a daemon says that it is ready. */
static int ready_socket(const struct nodes *nodes, char path[NODES_PATH_SIZE])
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    (void)snprintf(path, NODES_PATH_SIZE, "%s/ready", nodes->folder);
    memcpy(address.sun_path, path, strlen(path) + 1);
    (void)unlink(path);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
        (void)close(fd);
        fd = -1;
    }
    return fd;
}

/* Where the driver and the worker's program are does not depend on the daemon. */
static bool is_setting(const char *name)
{
    return strncmp(name, "ADTOPK_", 7) == 0 && strcmp(name, "ADTOPK_CUDA_LIBRARY") != 0 &&
           strcmp(name, "ADTOPK_DEVICE_PROGRAM") != 0;
}

/* Settings of the user's own daemon are not for ours. */
static void clear_environment(void)
{
    bool again = true;

    while (again) {
        again = false;
        for (char **entry = environ; *entry != NULL && !again; entry++) {
            char name[256];

            (void)snprintf(name, sizeof(name), "%.*s", (int)strcspn(*entry, "="), *entry);
            again = is_setting(name) && unsetenv(name) == 0;
        }
    }
}

static _Noreturn void become_daemon(
    const struct nodes *nodes, unsigned node, const char *ready, pid_t parent)
{
    char config[NODES_PATH_SIZE];
    char log[NODES_PATH_SIZE];
    int fd;

    process_detach(parent);
    clear_environment();
    file_name(nodes, node, "json", config);
    file_name(nodes, node, "log", log);
    fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (fd < 0 || dup2(fd, STDOUT_FILENO) < 0 || dup2(fd, STDERR_FILENO) < 0 ||
        setenv("NOTIFY_SOCKET", ready, 1) != 0 ||
        (nodes->gpu_name[0] != '\0' && setenv("CUDA_VISIBLE_DEVICES", nodes->gpu.uuid, 1) != 0)) {
        _exit(1);
    }
    (void)execl(nodes->daemon, nodes->daemon, "--config", config, (char *)NULL);
    perror(nodes->daemon);
    _exit(1);
}

/* True once the daemon said so; false if it ended, stays silent or the user wants to stop. */
static bool wait_ready(struct nodes *nodes, unsigned node, int ready)
{
    const uint64_t limit = clock_ns() + READY_MS * UINT64_C(1000000);
    struct pollfd entry = {.fd = ready, .events = POLLIN};
    char text[200] = "";

    while (clock_ns() < limit && !stop_requested()) {
        if (poll(&entry, 1, 20) > 0 && recv(ready, text, sizeof(text) - 1, 0) > 0 &&
            strncmp(text, "READY=1", 7) == 0) {
            return true;
        }
        if (waitpid(nodes->pid[node], NULL, WNOHANG) != 0) {
            nodes->pid[node] = 0;
            return false;
        }
    }
    return false;
}

static enum adtopk_status start_one(struct nodes *nodes, unsigned node, struct error *err)
{
    char path[NODES_PATH_SIZE];
    char line[160];
    const pid_t parent = getpid();
    const int ready = ready_socket(nodes, path);
    bool ok;

    if (ready < 0) {
        return error_set(
            err, ADTOPK_ERR_SYSTEM, "cannot make the socket %s: %s", path, strerror(errno));
    }
    (void)fflush(NULL);
    nodes->pid[node] = fork();
    if (nodes->pid[node] == 0) {
        become_daemon(nodes, node, path, parent);
    }
    nodes->count = node + 1;
    ok = nodes->pid[node] > 0 && wait_ready(nodes, node, ready);
    (void)close(ready);
    (void)unlink(path);
    if (ok) {
        return ADTOPK_OK;
    }
    last_line(nodes, node, line, sizeof(line));
    return error_set(err, ADTOPK_ERR_SYSTEM, "adtopkd does not start: %.180s", line);
}

static enum adtopk_status start_all(struct nodes *nodes, unsigned count, struct error *err)
{
    uint16_t ports[NODES_MAX] = {0};
    enum adtopk_status status = ADTOPK_OK;

    if (!free_ports(count, ports)) {
        return error_set(err, ADTOPK_ERR_SYSTEM, "no free port: %s", strerror(errno));
    }
    for (unsigned node = 0; node < count && status == ADTOPK_OK; node++) {
        status = write_configuration(nodes, node, count, ports)
                     ? start_one(nodes, node, err)
                     : error_set(err, ADTOPK_ERR_SYSTEM, "cannot write to %s: %s", nodes->folder,
                           strerror(errno));
    }
    return status;
}

static void end_daemons(struct nodes *nodes)
{
    const uint64_t limit = clock_ns() + STOP_MS * UINT64_C(1000000);

    for (unsigned node = 0; node < nodes->count; node++) {
        if (nodes->pid[node] > 0) {
            (void)kill(nodes->pid[node], SIGTERM);
        }
    }
    for (unsigned node = 0; node < nodes->count; node++) {
        bool killed = false;

        while (nodes->pid[node] > 0 && waitpid(nodes->pid[node], NULL, WNOHANG) == 0) {
            if (!killed && clock_ns() > limit) {
                killed = kill(nodes->pid[node], SIGKILL) == 0;
            }
            process_sleep_us(POLL_US);
        }
        nodes->pid[node] = 0;
    }
    nodes->count = 0;
}

static void remove_folder(const struct nodes *nodes)
{
    DIR *folder = opendir(nodes->folder);
    const struct dirent *entry;

    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        (void)unlinkat(dirfd(folder), entry->d_name, 0); /* fails for "." and ".." */
    }
    if (folder != NULL) {
        (void)closedir(folder);
    }
    (void)rmdir(nodes->folder);
}

enum adtopk_status nodes_start(
    struct nodes *nodes, unsigned count, const struct options *options, struct error *err)
{
    enum adtopk_status status;

    memset(nodes, 0, sizeof(*nodes));
    status = process_find(
        "adtopkd", options->daemon, daemon_places, nodes->daemon, sizeof(nodes->daemon), err);
    if (status == ADTOPK_OK && options->device != NULL) {
        status = gpu_find(options->device, &nodes->gpu, nodes->gpu_name, err);
    }
    if (status == ADTOPK_OK && count > 1) {
        status = process_find(
            "adtopkctl", options->ctl, ctl_places, nodes->ctl, sizeof(nodes->ctl), err);
    }
    if (status != ADTOPK_OK) {
        return status;
    }
    /* Not below $TMPDIR: a socket's path has at most 107 bytes. */
    (void)snprintf(
        nodes->folder, sizeof(nodes->folder), "/tmp/adtopk-perf-%ld-XXXXXX", (long)getpid());
    if (mkdtemp(nodes->folder) == NULL) {
        return error_set(
            err, ADTOPK_ERR_SYSTEM, "cannot make a folder in /tmp: %s", strerror(errno));
    }
    for (int attempt = 1;; attempt++) {
        status = start_all(nodes, count, err);
        if (status == ADTOPK_OK) {
            return status;
        }
        end_daemons(nodes);
        if (attempt == START_ATTEMPTS || strstr(err->text, "in use") == NULL) {
            remove_folder(nodes);
            return status;
        }
    }
}

void nodes_stop(struct nodes *nodes)
{
    end_daemons(nodes);
    remove_folder(nodes);
}
