#include "daemon/settings/config_option.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "daemon/log.h"
#include "daemon/settings/endpoint.h"

_Static_assert(OPTION_COUNT <= CONFIG_OPTIONS_MAX, "struct config has no room for its sources");

static const char *const protection_names[PROTECTION_COUNT] = {
    [PROTECTION_CURVE] = "curve", [PROTECTION_NONE] = "none"};
static const char *const visible_names[VISIBLE_COUNT] = {
    [VISIBLE_ALL] = "all", [VISIBLE_OWN] = "own"};

static const char *const engine_names[CONFIG_ENGINE_COUNT] = {
    [CONFIG_ENGINE_AUTO] = "auto", [CONFIG_ENGINE_HOST] = "host", [CONFIG_ENGINE_CUDA] = "cuda"};

static const char *const prefixes[] = {
    [STYLE_KEY] = "", [STYLE_VARIABLE] = "ADTOPK_", [STYLE_FLAG] = "--"};

static void check_listen(const struct config *config, struct faults *faults)
{
    struct error err;

    if (config->listen[0] == '\0') {
        if (config->peer_count > 0) {
            config_fault(config, config->peers[0].seed ? "seeds" : "peers", faults,
                "listen is needed, because peers are configured and connect to it");
        }
    } else if (endpoint_check(config->listen, "listen", &err) != ADTOPK_OK) {
        config_fault(config, "listen", faults, "%s", err.text);
    }
}

/* A relative path depends on the folder where the daemon was started: clients would not find it. */
static void check_path(
    const struct config *config, const char *key, const char *path, struct faults *faults)
{
    if (path[0] != '/') {
        config_fault(config, key, faults, "%s: \"%s\" is not an absolute path", key, path);
    }
}

static void check_sockets(const struct config *config, struct faults *faults)
{
    check_path(config, "socket", config->socket, faults);
    check_path(config, "control_socket", config->control_socket, faults);
    if (strcmp(config->socket, config->control_socket) == 0) {
        config_fault(config, "control_socket", faults, "socket and control_socket are both %s",
            config->socket);
    }
}

static void check_store(const struct config *config, struct faults *faults)
{
    if (config->compute.store_folder[0] != '\0') {
        check_path(config, "store_folder", config->compute.store_folder, faults);
    }
}

static void check_traces(const struct config *config, struct faults *faults)
{
    if (config->compute.trace_folder[0] != '\0') {
        check_path(config, "trace_folder", config->compute.trace_folder, faults);
    }
}

static void check_sizes(const struct config *config, struct faults *faults)
{
    if (config->link.heartbeat_ms * 2 > config->link.peer_timeout_ms) {
        config_fault(config, "heartbeat_ms", faults,
            "heartbeat_ms %llu is more than half of peer_timeout_ms %llu: peers would seem to go "
            "down",
            (unsigned long long)config->link.heartbeat_ms,
            (unsigned long long)config->link.peer_timeout_ms);
    }
    if (config->link.part_size > config->link.window) {
        config_fault(config, "part_size", faults, "part_size %llu is more than window %llu",
            (unsigned long long)config->link.part_size, (unsigned long long)config->link.window);
    }
}

/* Where this node listens must not be taken twice, nor be the place of another node. */
static void check_endpoints(const struct config *config, struct faults *faults)
{
    char bulk[CONFIG_ENDPOINT_SIZE] = "";
    const char *own[] = {config->listen, bulk, config->trainers_listen};
    static const char *const keys[] = {"listen", "bulk_listen", "trainers_listen"};
    const size_t count = sizeof(own) / sizeof(own[0]);

    (void)config_bulk_endpoint(config, bulk);
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < i && own[i][0] != '\0'; j++) {
            if (strcmp(own[i], own[j]) == 0) {
                config_fault(
                    config, keys[i], faults, "%s and %s are both %.100s", keys[i], keys[j], own[i]);
            }
        }
        for (size_t p = 0; p < config->peer_count; p++) {
            const struct config_peer *peer = &config->peers[p];

            if (own[i][0] != '\0' && strcmp(own[i], peer->endpoint) == 0) {
                config_peer_fault(config, peer, faults,
                    "peer %u: %.100s is where this node itself listens", peer->node, own[i]);
            }
        }
    }
}

#define ROW_OF(name, member, kind, value, text, ...)                                               \
    {                                                                                              \
        .key = #name, .type = OPTION_##kind, .offset = offsetof(struct config, member),            \
        .size = sizeof(((struct config *)NULL)->member), .argument = value, .help = text,          \
        __VA_ARGS__                                                                                \
    }
#define ROW(name, ...) ROW_OF(name, name, __VA_ARGS__)
#define LINK(name, ...) ROW_OF(name, link.name, __VA_ARGS__)
#define LIMIT(name, ...) ROW_OF(name, limits.name, __VA_ARGS__)
#define COMPUTE(name, ...) ROW_OF(name, compute.name, __VA_ARGS__)
#define FROM(least, most) .low = (least), .high = (most)
#define ONE_OF(all, count) .names = (all), .high = (count)-1

/* --help adds the default to the sentence of a row that names one. */
const struct option option_table[OPTION_COUNT] = {
    ROW(node, NUMBER, "N", "this node's id, unique among its peers", FROM(0, CONFIG_NODE_MAX),
        .standard = "0"),
    ROW(listen, TEXT, "ENDPOINT", "address for peers: tcp://HOST:PORT", .check = check_listen,
        .reads = {"peers", "seeds"}),
    ROW(advertise, TEXT, "ENDPOINT", "address that this node tells its seeds (listen)",
        .check = check_advertise, .reads = {"listen", "peers", "seeds"}),
    ROW(peers, LIST, "LIST", "the other nodes: N=ENDPOINT[#KEY[;KEY]],...", .list = &peer_list,
        .live = true, .check = check_peers, .reads = {"node", "seeds"}),
    ROW_OF(seeds, peers, LIST, "LIST", "peers that name the other nodes; as --peers",
        .list = &seed_list, .live = true),
    ROW(key_file, TEXT, "PATH", "this node's keys, from adtopkctl keygen (none)", .live = true,
        .check = check_keys,
        .reads = {"listen", "peers", "seeds", "bulk_listen", "data_protection", "insecure"}),
    ROW(data_protection, CHOICE, "KIND", "curve; none: bulk data unencrypted",
        ONE_OF(protection_names, PROTECTION_COUNT), .standard = "curve"),
    ROW(bulk_listen, TEXT, "ENDPOINT", "address for unencrypted bulk (listen's port + 1)",
        .check = check_endpoints,
        .reads = {"listen", "data_protection", "trainers_listen", "peers", "seeds"}),
    ROW(trainers_listen, TEXT, "ENDPOINT", "address for trainers on other machines",
        .check = check_trainers,
        .reads = {"listen", "trainers", "trainers_owner", "key_file", "insecure"}),
    ROW(trainers, LIST, "LIST", "their public keys and users: KEY=USER,...", .list = &trainer_list,
        .live = true),
    ROW(trainers_owner, USER, "USER", "owner of trainers without keys (needs insecure)"),
    ROW(socket, TEXT, "PATH", "trainer socket", .standard = "/run/adtopk/trainers/adtopkd.sock",
        .check = check_sockets, .reads = {"control_socket"}),
    ROW(control_socket, TEXT, "PATH", "adtopkctl socket",
        .standard = "/run/adtopk/control/adtopkd.sock"),
    ROW(control_group, TEXT, "NAME", "group whose members may make changes", .standard = "adtopk"),
    ROW(session_group, TEXT, "NAME", "group whose members may open sessions (all users)"),
    ROW(jobs_visible, CHOICE, "WHOSE", "jobs that a user may see: all or own",
        ONE_OF(visible_names, VISIBLE_COUNT), .standard = "all", .live = true),
    ROW(user, USER, "USER", "user to run as when root starts the daemon"),
    COMPUTE(store_folder, TEXT, "PATH", "folder on a tmpfs where stores outlive the daemon",
        .check = check_store, .reads = {"engine"}),
    COMPUTE(residual_ttl_s, NUMBER, "S", "how long a store without its job is kept",
        FROM(1, UINT64_C(31536000)), .standard = "3600", .live = true),
    COMPUTE(workers, NUMBER, "N", "worker threads; 0: cores - 1, from 1 to 4",
        FROM(0, CONFIG_WORKERS_MAX), .standard = "0"),
    COMPUTE(engine, CHOICE, "KIND", "where residuals live: host, cuda; auto: host",
        ONE_OF(engine_names, CONFIG_ENGINE_COUNT), .standard = "auto"),
    COMPUTE(gpu_memory_limit, NUMBER, "BYTES", "memory for jobs and workers per GPU; 0: all",
        FROM(0, UINT64_C(1) << 50), .standard = "0"),
    ROW(log_level, CHOICE, "LEVEL", "error, warning, info or debug",
        ONE_OF(log_level_names, LEVEL_COUNT), .standard = "info", .live = true),
    ROW(log_format, CHOICE, "FORMAT", "text or json", ONE_OF(log_format_names, LOG_FORMAT_COUNT),
        .standard = "text", .live = true),
    COMPUTE(trace_folder, TEXT, "PATH", "traces of jobs that failed",
        .standard = "/var/lib/adtopk/traces", .check = check_traces),
    ROW(policy, POLICY, "JSON", "policy of jobs that bring none (topk, bytes of 1%)", .live = true),
    ROW(insecure, SWITCH, NULL, "allow traffic without encryption and keys"),
    LINK(part_size, NUMBER, "BYTES", "size of a bulk packet between nodes", FROM(4096, 1u << 20),
        .standard = "1048576"),
    LINK(window, NUMBER, "BYTES", "bytes a peer may have in flight to us",
        FROM(1u << 16, UINT64_C(1) << 32), .standard = "8388608"),
    LINK(peer_timeout_ms, NUMBER, "MS", "silence after which a peer counts as down",
        FROM(100, 3600000), .standard = "5000"),
    LINK(heartbeat_ms, NUMBER, "MS", "interval of heartbeats on an idle link", FROM(10, 600000),
        .standard = "1000", .check = check_sizes,
        .reads = {"peer_timeout_ms", "part_size", "window"}),
    LINK(network_threads, NUMBER, "N", "threads for packets; 0: one per 8 cores, 1 to 4",
        FROM(0, 16), .standard = "0"),
    ROW(stop_timeout_ms, NUMBER, "MS", "time for open steps to end after SIGTERM", FROM(0, 3600000),
        .standard = "10000", .live = true),
    ROW(stuck_after_ms, NUMBER, "MS", "a job is stuck after waiting so long", FROM(100, 86400000),
        .standard = "60000", .live = true),
    LIMIT(commit_timeout_ms, NUMBER, "MS", "time from opening a session to its commit",
        FROM(1000, 86400000), .standard = "60000", .live = true),
    LIMIT(user_sessions, NUMBER, "N", "sessions of one user; 0: 3/4 of all", FROM(0, 65536),
        .standard = "0", .live = true),
    LIMIT(user_jobs, NUMBER, "N", "jobs of one user at a time", FROM(1, 65536), .standard = "256",
        .live = true),
    LIMIT(user_memory, NUMBER, "PERCENT", "share of memory for one user's jobs", FROM(1, 100),
        .standard = "80", .live = true),
    LIMIT(user_requests, NUMBER, "N", "pending requests of one user", FROM(1, 48), .standard = "16",
        .live = true),
};

void option_name(const struct option *option, enum option_style style, char name[OPTION_NAME_SIZE])
{
    (void)snprintf(name, OPTION_NAME_SIZE, "%s%s", prefixes[style], option->key);
    for (char *at = name; *at != '\0' && style != STYLE_KEY; at++) {
        *at = style == STYLE_VARIABLE ? (char)toupper((unsigned char)*at) : *at == '_' ? '-' : *at;
    }
}

const struct option *option_find(enum option_style style, const char *name, size_t length)
{
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        char known[OPTION_NAME_SIZE];

        option_name(&option_table[i], style, known);
        if (strlen(known) == length && strncmp(known, name, length) == 0) {
            return &option_table[i];
        }
    }
    return NULL;
}

void option_guess(enum option_style style, const char *word, struct guess *guess)
{
    guess_start(guess, word, (unsigned)strlen(prefixes[style]));
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        char known[OPTION_NAME_SIZE];

        option_name(&option_table[i], style, known);
        guess_name(guess, known);
    }
}

const struct config_source *option_source(const struct config *config, const char *key)
{
    return &config->origin.source[option_find(STYLE_KEY, key, strlen(key)) - option_table];
}

/* Whether the setting and all that its check reads could be read: other checks would confuse. */
static bool is_sound(const struct config *config, const struct option *option)
{
    bool sound = !option_source(config, option->key)->faulty;

    for (size_t i = 0; i < OPTION_READS_MAX && option->reads[i] != NULL; i++) {
        sound = sound && !option_source(config, option->reads[i])->faulty;
    }
    return sound;
}

void option_check_all(const struct config *config, struct faults *faults)
{
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        if (option_table[i].check != NULL && is_sound(config, &option_table[i])) {
            option_table[i].check(config, faults);
        }
    }
}
