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
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "outage_manager.h"

#define SEED 1u
#define PORTS (3 * OUTAGE_NODES) /* of peers, of trainers, of bulk in the clear */
#define NEW_NODE 7u              /* which a changed configuration has */
#define PORT_FIRST 5000
#define PORT_BLOCK 50
#define PORT_BLOCKS 100
#define START_MS 20000 /* within which a daemon serves, or has said why not */
#define ANSWER_MS 100

int adtopkd_main(int argc, char **argv); /* daemon/main.c, under another name */

/* What the test tells the processes that stand by for a node, and hears of them. */
struct relay {
    _Atomic bool begins;  /* the daemon has ended */
    _Atomic bool in_vain; /* the first one could not start */
};

static char folder[32];
static int ports[PORTS];
static enum nodes_kind doors;
static char trainer_key_file[64], trainer_key[KEYFILE_KEY_SIZE];
static struct relay *relay; /* NULL: nobody stands by */
static pid_t standby[2];

const char *nodes_folder(void)
{
    return folder;
}

const char *nodes_trainer_key(void)
{
    return trainer_key_file;
}

static bool nodes_have_seed(void)
{
    return doors == NODES_SEEDS || doors == NODES_LEARN;
}

unsigned nodes_count(void)
{
    return nodes_have_seed() || doors == NODES_THREE ? 3 : 2;
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

static void draw_ports(void)
{
    static int first;
    unsigned count = 0;

    first = first != 0 ? first : own_ports();
    for (int i = 0; i < PORT_BLOCK && count < PORTS; i++) {
        ports[count] = first + i;
        count += port_is_free(first + i) ? 1 : 0;
    }
    assert_int_equal(count, PORTS);
}

static void make_key(const char *path, char key[KEYFILE_KEY_SIZE])
{
    struct error err;

    assert_int_equal(keyfile_generate(path, key, &err), ADTOPK_OK);
}

static void make_keys(struct outage_node nodes[OUTAGE_NODES])
{
    char path[64];

    (void)snprintf(trainer_key_file, sizeof(trainer_key_file), "%s/trainer.key", folder);
    make_key(trainer_key_file, trainer_key);
    for (unsigned i = 0; i < nodes_count(); i++) {
        (void)snprintf(path, sizeof(path), "%s/%u.key", folder, i);
        make_key(path, nodes[i].key);
    }
}

static bool nodes_have_keys(void)
{
    return doors == NODES_KEYS || doors == NODES_SEEDS;
}

/* What says who may connect. */
static void write_doors(FILE *file, const struct outage_node *nodes, unsigned node, bool changed)
{
    if (!nodes_have_keys()) {
        (void)fprintf(file, "\"insecure\":true,\"trainers_owner\":%u,", geteuid());
        return;
    }
    (void)fprintf(file, "\"key_file\":\"%s/%u.key\",\"trainers\":[{\"key\":\"%s\",\"owner\":%u}",
        folder, node, trainer_key, geteuid());
    if (changed) {
        (void)fprintf(file, ",{\"key\":\"%s\",\"owner\":1}", nodes[node == 0 ? 1 : 0].key);
    }
    (void)fprintf(file, "],\"data_protection\":\"none\",\"bulk_listen\":\"tcp://127.0.0.1:%d\",",
        ports[2 * OUTAGE_NODES + node]);
}

/* Of a node that this one knows. An address of port 0 is none: a seed is told whom it may
 * introduce. */
static void write_peer(FILE *file, unsigned node, int at, const char *key)
{
    (void)fprintf(file, "{\"node\":%u", node);
    if (at != 0) {
        (void)fprintf(file, ",\"endpoint\":\"tcp://127.0.0.1:%d\"", at);
    }
    if (key[0] != '\0') {
        (void)fprintf(file, ",\"key\":\"%s\"", key);
    }
    (void)fputc('}', file);
}

/* The seed, or all others. A seed does not know where they are. */
static void write_known(FILE *file, const struct outage_node *nodes, unsigned node)
{
    const bool seeds = nodes_have_seed();
    const char *separator = "";

    for (unsigned i = 0; i < nodes_count(); i++) {
        if (i != node && (!seeds || node == SEED || i == SEED)) {
            (void)fputs(separator, file);
            write_peer(file, i, seeds && node == SEED ? 0 : ports[i], nodes[i].key);
            separator = ",";
        }
    }
}

static void write_nodes(FILE *file, const struct outage_node *nodes, unsigned node, bool changed)
{
    const bool learns = nodes_have_seed() && node != SEED;

    (void)fprintf(file, learns ? "\"seeds\":[" : "\"peers\":[");
    write_known(file, nodes, node);
    if (changed && learns) {
        (void)fprintf(file, "],\"peers\":[");
    }
    if (changed) {
        (void)fputs(learns ? "" : ",", file);
        write_peer(file, NEW_NODE, ports[PORTS - 1], nodes_have_keys() ? trainer_key : "");
    }
    (void)fprintf(file, "],");
}

/* changed: what SIGHUP may change is another one. */
static void write_config(const struct outage_node *nodes, unsigned node, bool changed)
{
    FILE *file = fopen(nodes[node].config, "we");

    assert_non_null(file);
    (void)fprintf(file,
        "{\"node\":%u,\"socket\":\"%s/%u.sock\",\"control_socket\":\"%s/%u.control\","
        "\"listen\":\"tcp://127.0.0.1:%d\",\"trainers_listen\":\"tcp://127.0.0.1:%d\",",
        node, folder, node, folder, node, ports[node], ports[OUTAGE_NODES + node]);
    write_nodes(file, nodes, node, changed);
    write_doors(file, nodes, node, changed);
    if (changed) {
        (void)fprintf(file, "\"policy\":{\"density\":0.02},\"log_level\":\"debug\",");
    }
    if (doors == NODES_DEVICES) {
        (void)fprintf(file, "\"engine\":\"cuda\",");
    }
    if (nodes[node].keeps) {
        (void)fprintf(file, "\"store_folder\":\"%s/%u.stores\",", folder, node);
    }
    (void)fprintf(
        file, "\"stop_timeout_ms\":100,\"workers\":1,\"trace_folder\":\"%s/traces\"}", folder);
    assert_int_equal(fclose(file), 0);
}

void nodes_prepare(struct outage_node nodes[OUTAGE_NODES], enum nodes_kind kind)
{
    char traces[64];

    (void)snprintf(folder, sizeof(folder), "/dev/shm/adtopk-XXXXXX");
    assert_non_null(mkdtemp(folder));
    (void)snprintf(traces, sizeof(traces), "%s/traces", folder);
    assert_int_equal(mkdir(traces, 0700), 0);
    draw_ports();
    doors = kind;
    memset(nodes, 0, OUTAGE_NODES * sizeof(*nodes));
    if (nodes_have_keys()) {
        make_keys(nodes);
    }
    nodes[0].managed = kind == NODES_KEPT || kind == NODES_DEVICES;
    if (nodes[0].managed) {
        outage_manager_start(folder);
    }
    for (unsigned i = 0; i < nodes_count(); i++) {
        nodes[i].keeps = !nodes[i].managed && (kind != NODES_THREE || i != LOST_NODE);
        (void)snprintf(nodes[i].config, sizeof(nodes[i].config), "%s/%u.json", folder, i);
        (void)snprintf(nodes[i].control, sizeof(nodes[i].control), "%s/%u.control", folder, i);
        (void)snprintf(nodes[i].log, sizeof(nodes[i].log), "%s/%u.log", folder, i);
        (void)snprintf(nodes[i].local, sizeof(nodes[i].local), "unix:%s/%u.sock", folder, i);
        (void)snprintf(nodes[i].remote, sizeof(nodes[i].remote), "tcp://127.0.0.1:%d",
            ports[OUTAGE_NODES + i]);
        write_config(nodes, i, false);
    }
}

void nodes_configure(struct outage_node nodes[OUTAGE_NODES], unsigned node, bool changed)
{
    char path[64];

    write_config(nodes, node, changed);
    if (nodes_have_keys() && changed) {
        (void)snprintf(path, sizeof(path), "%s/%u.key", folder, node);
        assert_int_equal(unlink(path), 0);
        make_key(path, nodes[node].key);
    }
}

void nodes_remove(void)
{
    char command[64];

    outage_manager_stop();
    (void)snprintf(command, sizeof(command), "rm -rf %s", folder);
    assert_int_equal(system(command), 0);
}

/* ---- processes ---- */

/* cmocka's handlers would go on with the test in the child: a crash shall end it. */
static void node_take_crashes(void)
{
    static const int signals[] = {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS};

    for (unsigned i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
        (void)signal(signals[i], SIG_DFL);
    }
}

/* What the child does: the daemon's main(), whose log goes to a file. */
static void node_run(const struct outage_node *node)
{
    char name[] = "adtopkd", option[] = "--config", path[64];
    char *arguments[] = {name, option, path, NULL};
    cJSON_Hooks hooks = {.malloc_fn = malloc, .free_fn = free}; /* the wrapped ones */
    int code, log;

    node_take_crashes();
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (node->managed) {
        outage_manager_pass();
    }
    log = open(node->log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    (void)dup2(log, STDERR_FILENO);
    (void)close(log);
    cJSON_InitHooks(&hooks);
    (void)snprintf(path, sizeof(path), "%s", node->config);
    code = adtopkd_main(3, arguments);
    if (code != 0 && relay != NULL) {
        atomic_store(&relay->in_vain, true);
    }
    exit(code);
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

/* The end of the log, of which so much is read. */
#define LOG_SIZE 65536

static void node_read_log(const struct outage_node *node, char text[LOG_SIZE])
{
    FILE *log = fopen(node->log, "re");
    size_t size = 0;

    if (log != NULL) {
        (void)(fseek(log, -(long)LOG_SIZE + 1, SEEK_END) == 0 || fseek(log, 0, SEEK_SET) == 0);
        size = fread(text, 1, LOG_SIZE - 1, log);
        (void)fclose(log);
    }
    text[size] = '\0';
}

/* The log must have a sentence on why the daemon did not start. */
static void node_must_say_why(const struct outage_node *node, int status)
{
    char text[LOG_SIZE];

    node_read_log(node, text);
    if (!WIFEXITED(status) || (WEXITSTATUS(status) != 1 && WEXITSTATUS(status) != 2) ||
        (strstr(text, "cannot start: ") == NULL && strstr(text, "adtopkd: ") == NULL)) {
        node_fail(node, "does not say why it does not start", status);
    }
}

/* Whether the log has one of so many texts. */
static bool node_says(const char *text, const char *const *these, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        if (strstr(text, these[i]) != NULL) {
            return true;
        }
    }
    return false;
}

bool node_read_again(const struct outage_node *node)
{
    static const char *const taken[] = {"the configuration has been taken"};
    static const char *const refused[] = {
        "the old configuration stays: ", "the new configuration is taken only in part, ",
        "of the log is lost: ", "of the log are lost: "};
    char text[LOG_SIZE];

    assert_int_equal(truncate(node->log, 0), 0);
    assert_int_equal(kill(node->pid, SIGHUP), 0);
    for (unsigned ms = 0; ms < START_MS; ms++) {
        node_must_live(node);
        node_read_log(node, text);
        if (node_says(text, taken, 1)) {
            return true;
        }
        if (node_says(text, refused, sizeof(refused) / sizeof(refused[0]))) {
            return false;
        }
        node_pause();
    }
    node_fail(node, "does not read its configuration again", 0);
    return false;
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

/* ---- daemons that are ended, and come back ---- */

/* As node_pause(), by a call that is not wrapped. */
static void node_pause_well(void)
{
    const struct timespec pause = {.tv_nsec = 1000000};

    (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
}

/* What a process that stands by does: it becomes the daemon when it shall. */
static void node_wait_for(const struct outage_node *node, const _Atomic bool *begins)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (!atomic_load(begins)) {
        node_pause_well();
    }
    node_run(node);
}

/* Stores of walks that failed would make each start longer than the one before. */
static void node_forget_stores(const struct outage_node *node)
{
    char command[128];

    (void)snprintf(command, sizeof(command), "rm -f %.*s.stores/*",
        (int)(strlen(node->config) - strlen(".json")), node->config);
    assert_int_equal(system(command), 0);
}

pid_t node_stand_by(struct outage_node *node)
{
    if (node->managed) {
        outage_manager_age();
    } else if (node_stores(node) > 0) {
        node_forget_stores(node);
    }
    relay = mmap(NULL, sizeof(*relay), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(relay, MAP_FAILED);
    (void)fflush(NULL);
    for (unsigned i = 0; i < 2; i++) {
        standby[i] = fork();
        assert_true(standby[i] >= 0);
        if (standby[i] == 0) {
            node_wait_for(node, i == 0 ? &relay->begins : &relay->in_vain);
        }
    }
    return standby[0];
}

void node_exchange(struct outage_node *node, int how)
{
    int status = 0;

    (void)kill(node->pid, how);
    while (waitpid(node->pid, &status, WNOHANG) == 0) {
        node_pause_well(); /* a daemon that hangs is noticed by the alarm of the walk */
    }
    node_ended(node);
    if (WIFSIGNALED(status) ? WTERMSIG(status) != how : WEXITSTATUS(status) > 1) {
        node_fail(node, "has crashed", status);
    }
    atomic_store(&relay->begins, true);
}

static void node_dismiss(pid_t process)
{
    (void)kill(process, SIGKILL);
    (void)waitpid(process, NULL, 0);
    outage_forget(process);
}

void node_relieve(struct outage_node *node)
{
    int status = 0;

    if (!atomic_load(&relay->begins)) {
        node_dismiss(standby[0]);
        node_dismiss(standby[1]);
    } else {
        node->pid = standby[0];
        if (node_await(node, &status)) {
            node_dismiss(standby[1]);
        } else {
            node_must_say_why(node, status);
            node->pid = standby[1];
            if (!node_await(node, &status)) {
                node_fail(node, "does not start after another one", status);
            }
        }
    }
    (void)munmap(relay, sizeof(*relay));
    relay = NULL;
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
    return node->managed ? count - outage_manager_descriptors() : count;
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

/* Its allocations, without those for stores that are kept. */
static int64_t node_held(const struct outage_node *node)
{
    return outage_held(node->pid) -
           (node->managed ? outage_manager_allocations() : node_stores(node));
}

void node_rest(struct outage_node *node)
{
    for (unsigned ms = 0; node->managed && outage_manager_descriptors() > 0; ms++) {
        if (ms == START_MS) {
            node_fail(node, "leaves stores to its manager", 0);
        }
        node_pause(); /* the daemon may have closed what the manager has not heard of */
    }
    node->descriptors = node_descriptors(node);
    node->mappings = node_mappings(node);
    node->held = node_held(node);
}

bool node_settle(const struct outage_node *node, unsigned limit_ms)
{
    for (unsigned ms = 0; ms < limit_ms; ms++) {
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
