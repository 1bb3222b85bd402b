#include "outage_node.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <cjson/cJSON.h>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PORTS (2 * OUTAGE_NODES)
#define PORT_FIRST 5000
#define PORT_BLOCK 50
#define PORT_BLOCKS 100
#define START_MS 20000 /* within which a daemon serves, or has said why not */
#define ANSWER_MS 100
#define REST_MS 2000 /* within which it has freed what a session cost */

int adtopkd_main(int argc, char **argv); /* daemon/main.c, under another name */

static char folder[32];

const char *nodes_folder(void)
{
    return folder;
}

static void node_pause(void)
{
    (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* ---- the configuration ---- */

/* Returns the first port of a block that no other test takes. A socket whose name tells so stays
 * open while this process lives (own_ports() of tests/integration/cluster.py). */
static int own_ports(void)
{
    const int mark = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0), turn = getpid() % PORT_BLOCKS;

    assert_true(mark >= 0);
    for (int i = 0; i < PORT_BLOCKS; i++) {
        const int first = PORT_FIRST + (turn + i) % PORT_BLOCKS * PORT_BLOCK;
        struct sockaddr_un name = {.sun_family = AF_UNIX};
        const int size =
            snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1, "adtopk-test-ports-%d", first);

        if (bind(mark, (struct sockaddr *)&name,
                (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)size)) == 0) {
            return first;
        }
    }
    fail_msg("other processes have all ports");
    return 0;
}

static bool port_is_free(int port)
{
    const struct sockaddr_in address = {.sin_family = AF_INET,
        .sin_port = htons((uint16_t)port),
        .sin_addr = {htonl(INADDR_LOOPBACK)}};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    const bool is_free = setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
                         bind(fd, (const struct sockaddr *)&address, sizeof(address)) == 0;

    (void)close(fd);
    return is_free;
}

static void draw_ports(int port[PORTS])
{
    static int first;
    unsigned count = 0;

    first = first != 0 ? first : own_ports();
    for (int i = 0; i < PORT_BLOCK && count < PORTS; i++) {
        port[count] = first + i;
        count += port_is_free(first + i) ? 1 : 0;
    }
    assert_int_equal(count, PORTS);
}

static void write_config(unsigned node, const int port[PORTS])
{
    char path[96];
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/%u.json", folder, node);
    file = fopen(path, "we");
    assert_non_null(file);
    (void)fprintf(file,
        "{\"node\":%u,\"socket\":\"%s/%u.sock\",\"control_socket\":\"%s/%u.control\","
        "\"listen\":\"tcp://127.0.0.1:%d\",\"peers\":[{\"node\":%u,"
        "\"endpoint\":\"tcp://127.0.0.1:%d\"}],\"trainers_listen\":\"tcp://127.0.0.1:%d\","
        "\"trainers_owner\":%u,\"insecure\":true,\"stop_timeout_ms\":100,\"workers\":1,"
        "\"store_folder\":\"%s/%u.stores\",\"trace_folder\":\"%s/traces\"}",
        node, folder, node, folder, node, port[node], 1 - node, port[1 - node], port[2 + node],
        geteuid(), folder, node, folder);
    assert_int_equal(fclose(file), 0);
}

void nodes_prepare(struct outage_node nodes[OUTAGE_NODES])
{
    int port[PORTS];
    char traces[64];

    (void)snprintf(folder, sizeof(folder), "/dev/shm/adtopk-XXXXXX");
    assert_non_null(mkdtemp(folder));
    (void)snprintf(traces, sizeof(traces), "%s/traces", folder);
    assert_int_equal(mkdir(traces, 0700), 0);
    draw_ports(port);
    for (unsigned i = 0; i < OUTAGE_NODES; i++) {
        write_config(i, port);
        memset(&nodes[i], 0, sizeof(nodes[i]));
        (void)snprintf(nodes[i].config, sizeof(nodes[i].config), "%s/%u.json", folder, i);
        (void)snprintf(nodes[i].control, sizeof(nodes[i].control), "%s/%u.control", folder, i);
        (void)snprintf(nodes[i].log, sizeof(nodes[i].log), "%s/%u.log", folder, i);
        (void)snprintf(nodes[i].local, sizeof(nodes[i].local), "unix:%s/%u.sock", folder, i);
        (void)snprintf(nodes[i].remote, sizeof(nodes[i].remote), "tcp://127.0.0.1:%d", port[2 + i]);
    }
}

void nodes_remove(void)
{
    char command[64];

    (void)snprintf(command, sizeof(command), "rm -rf %s", folder);
    assert_int_equal(system(command), 0);
}

/* ---- processes ---- */

/* What the child does: the daemon's main(), whose log goes to a file. */
static void node_run(const struct outage_node *node)
{
    char name[] = "adtopkd", option[] = "--config", path[64];
    char *arguments[] = {name, option, path, NULL};
    const int log = open(node->log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    cJSON_Hooks hooks = {.malloc_fn = malloc, .free_fn = free}; /* the wrapped ones */

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)dup2(log, STDERR_FILENO);
    (void)close(log);
    cJSON_InitHooks(&hooks);
    (void)snprintf(path, sizeof(path), "%s", node->config);
    exit(adtopkd_main(3, arguments));
}

/* Prints the end of the node's log and fails the test. */
static void node_fail(const struct outage_node *node, const char *what, int status)
{
    char command[96];

    (void)outage_end();
    (void)snprintf(command, sizeof(command), "tail -n 30 %s >&2", node->log);
    (void)system(command);
    fail_msg("%s: the daemon %s, status 0x%x", node->config, what, (unsigned)status);
}

/* The daemon's loop runs as soon as it answers a client. */
static bool node_serves(const struct outage_node *node)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    struct pollfd answer = {.fd = fd, .events = POLLIN};
    char byte = 'x'; /* no request, so the daemon refuses it */
    bool serves;

    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", node->control);
    serves = connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0 &&
             send(fd, &byte, 1, MSG_NOSIGNAL) == 1 && poll(&answer, 1, ANSWER_MS) == 1 &&
             recv(fd, &byte, 1, 0) == 1;
    (void)close(fd);
    return serves;
}

static void node_ended(struct outage_node *node)
{
    outage_forget(node->pid);
    node->pid = 0;
}

/* Waits until the daemon serves. If it has ended instead, returns false and its status. */
static bool node_await(struct outage_node *node, int *status)
{
    for (unsigned ms = 0; ms < START_MS; ms++) {
        if (waitpid(node->pid, status, WNOHANG) == node->pid) {
            node_ended(node);
            return false;
        }
        if (node_serves(node)) {
            return true;
        }
        node_pause();
    }
    node_fail(node, "neither serves nor ends", 0);
    return false;
}

void node_start(struct outage_node *node)
{
    int status = 0;

    (void)fflush(NULL);
    node->pid = fork();
    if (node->pid == 0) {
        node_run(node);
    }
    if (!node_await(node, &status)) {
        node_fail(node, "does not start", status);
    }
}

/* The log must have a sentence on why the daemon did not start. */
static void node_must_say_why(const struct outage_node *node, int status)
{
    char text[4096] = "";
    FILE *log = fopen(node->log, "re");
    size_t size = 0;

    if (log != NULL) {
        size = fread(text, 1, sizeof(text) - 1, log);
        (void)fclose(log);
    }
    text[size] = '\0';
    if (!WIFEXITED(status) || (WEXITSTATUS(status) != 1 && WEXITSTATUS(status) != 2) ||
        (strstr(text, "cannot start: ") == NULL && strstr(text, "adtopkd: ") == NULL)) {
        node_fail(node, "does not say why it does not start", status);
    }
}

uint64_t node_try_start(
    struct outage_node *node, enum outage kind, uint64_t from, uint64_t count, bool must)
{
    int status = 0;
    uint64_t failed;

    (void)unlink(node->log);
    (void)fflush(NULL);
    node->pid = fork();
    if (node->pid == 0) {
        outage_plan(getpid(), kind, from, count);
        node_run(node);
    }
    if (node_await(node, &status)) {
        failed = outage_end();
        node_stop(node);
    } else {
        failed = outage_end();
        node_must_say_why(node, status);
        if (must) {
            node_fail(node, "does not start", status);
        }
    }
    return failed;
}

void node_stop(struct outage_node *node)
{
    int status = -1;

    assert_int_equal(kill(node->pid, SIGTERM), 0);
    for (unsigned ms = 0; ms < START_MS; ms++) {
        if (waitpid(node->pid, &status, WNOHANG) == node->pid) {
            node_ended(node);
            if (status != 0) {
                node_fail(node, "does not end well", status);
            }
            return;
        }
        node_pause();
    }
    node_fail(node, "does not end", status);
}

void node_must_live(const struct outage_node *node)
{
    int status = 0;

    if (waitpid(node->pid, &status, WNOHANG) != 0) {
        node_fail(node, "has ended", status);
    }
}

/* ---- what it holds ---- */

static int node_descriptors(const struct outage_node *node)
{
    char path[64];
    int count = 0;
    DIR *list;

    (void)snprintf(path, sizeof(path), "/proc/%d/fd", (int)node->pid);
    list = opendir(path);
    while (list != NULL && readdir(list) != NULL) {
        count++;
    }
    if (list != NULL) {
        (void)closedir(list);
    }
    return count;
}

/* Mappings of memory that it shares: memory files, and files of the store. */
static int node_mappings(const struct outage_node *node)
{
    char line[512];
    int count = 0;
    FILE *maps;

    (void)snprintf(line, sizeof(line), "/proc/%d/maps", (int)node->pid);
    maps = fopen(line, "re");
    while (maps != NULL && fgets(line, sizeof(line), maps) != NULL) {
        count += strstr(line, "/memfd:") != NULL || strstr(line, ".stores/") != NULL;
    }
    if (maps != NULL) {
        (void)fclose(maps);
    }
    return count;
}

/* Stores in its folder. One that a node may come back to stays (policy "grow"). */
static int node_stores(const struct outage_node *node)
{
    char path[96];
    int count = 0;
    DIR *list;

    (void)snprintf(path, sizeof(path), "%.*s.stores", (int)(strlen(node->config) - strlen(".json")),
        node->config);
    list = opendir(path);
    for (const struct dirent *file; list != NULL && (file = readdir(list)) != NULL;) {
        const char *part = strrchr(file->d_name, '.');
        count += part != NULL && strcmp(part, ".0") == 0;
    }
    if (list != NULL) {
        (void)closedir(list);
    }
    return count;
}

/* Its allocations, without the one for each store. */
static int64_t node_held(const struct outage_node *node)
{
    return outage_held(node->pid) - node_stores(node);
}

void node_rest(struct outage_node *node)
{
    node->descriptors = node_descriptors(node);
    node->mappings = node_mappings(node);
    node->held = node_held(node);
}

bool node_settle(const struct outage_node *node)
{
    for (unsigned ms = 0; ms < REST_MS; ms++) {
        if (node_descriptors(node) <= node->descriptors && node_mappings(node) <= node->mappings &&
            node_held(node) <= node->held) {
            return true;
        }
        node_pause();
    }
    (void)fprintf(stderr, "%d of %d descriptors, %d of %d mappings, %lld of %lld allocations\n",
        node_descriptors(node), node->descriptors, node_mappings(node), node->mappings,
        (long long)node_held(node), (long long)node->held);
    return false;
}
