#include "daemon/config_option.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/log.h"
#include "daemon/workers.h"
#include "proto/guess.h"
#include "proto/json.h"

_Static_assert(OPTION_COUNT <= CONFIG_OPTIONS_MAX, "struct config has no room for its sources");

#define FIELD(name) offsetof(struct config, name)
#define MAX_NODE (UINT16_MAX - 1)

const struct option option_table[OPTION_COUNT] = {
    {.key = "node",
        .type = OPTION_NUMBER,
        .offset = FIELD(node),
        .high = MAX_NODE,
        .argument = "N",
        .help = "this node's id, unique among its peers (0)"},
    {.key = "listen",
        .type = OPTION_TEXT,
        .offset = FIELD(listen),
        .high = CONFIG_ENDPOINT_SIZE,
        .argument = "ENDPOINT",
        .help = "where peers reach this node: tcp://HOST:PORT"},
    {.key = "peers",
        .type = OPTION_PEERS,
        .offset = FIELD(peers),
        .argument = "LIST",
        .help = "the other nodes: N=ENDPOINT[#KEY[;KEY]],...",
        .live = true},
    {.key = "key_file",
        .type = OPTION_TEXT,
        .offset = FIELD(key_file),
        .high = CONFIG_KEY_FILE_SIZE,
        .argument = "PATH",
        .help = "this node's keys, from adtopkctl keygen (none)",
        .live = true},
    {.key = "data_protection",
        .type = OPTION_CHOICE,
        .offset = FIELD(data_protection),
        .high = PROTECTION_COUNT - 1,
        .names = config_protection_names,
        .argument = "KIND",
        .help = "curve; none: bulk in the clear, control not (curve)"},
    {.key = "bulk_listen",
        .type = OPTION_TEXT,
        .offset = FIELD(bulk_listen),
        .high = CONFIG_ENDPOINT_SIZE,
        .argument = "ENDPOINT",
        .help = "where bulk comes in the clear (listen's port + 1)"},
    {.key = "trainers_listen",
        .type = OPTION_TEXT,
        .offset = FIELD(trainers_listen),
        .high = CONFIG_ENDPOINT_SIZE,
        .argument = "ENDPOINT",
        .help = "where trainers without a daemon reach this one"},
    {.key = "trainers",
        .type = OPTION_TRAINERS,
        .offset = FIELD(trainers),
        .argument = "LIST",
        .help = "their public keys and users: KEY=USER,...",
        .live = true},
    {.key = "trainers_owner",
        .type = OPTION_USER,
        .offset = FIELD(trainers_owner),
        .argument = "USER",
        .help = "whose trainers those are, without keys (insecure)"},
    {.key = "socket",
        .type = OPTION_TEXT,
        .offset = FIELD(socket),
        .high = CONFIG_PATH_SIZE,
        .argument = "PATH",
        .help = "socket for trainers (/run/adtopk/adtopkd.sock)"},
    {.key = "control_socket",
        .type = OPTION_TEXT,
        .offset = FIELD(control_socket),
        .high = CONFIG_PATH_SIZE,
        .argument = "PATH",
        .help = "socket for adtopkctl (/run/adtopk/control.sock)"},
    {.key = "control_group",
        .type = OPTION_TEXT,
        .offset = FIELD(control_group),
        .high = CONFIG_GROUP_SIZE,
        .argument = "NAME",
        .help = "group whose members may change things (adtopk)"},
    {.key = "user",
        .type = OPTION_USER,
        .offset = FIELD(user),
        .argument = "USER",
        .help = "user that a daemon started by root becomes"},
    {.key = "workers",
        .type = OPTION_NUMBER,
        .offset = FIELD(workers),
        .high = WORKERS_MAX,
        .argument = "N",
        .help = "worker threads; 0: cores - 1, from 1 to 4 (0)"},
    {.key = "log_level",
        .type = OPTION_CHOICE,
        .offset = FIELD(log_level),
        .high = LEVEL_COUNT - 1,
        .names = log_level_names,
        .argument = "LEVEL",
        .help = "error, warning, info or debug (info)",
        .live = true},
    {.key = "log_format",
        .type = OPTION_CHOICE,
        .offset = FIELD(log_format),
        .high = LOG_FORMAT_COUNT - 1,
        .names = log_format_names,
        .argument = "FORMAT",
        .help = "text or json (text)",
        .live = true},
    {.key = "policy",
        .type = OPTION_POLICY,
        .offset = FIELD(policy),
        .argument = "JSON",
        .help = "policy of jobs that bring none (adtopk, 1%)",
        .live = true},
    {.key = "insecure",
        .type = OPTION_SWITCH,
        .offset = FIELD(insecure),
        .help = "allow what is neither encrypted nor authenticated"},
    {.key = "chunk_size",
        .type = OPTION_NUMBER,
        .offset = FIELD(chunk_size),
        .low = 4096,
        .high = 1u << 20,
        .argument = "BYTES",
        .help = "of one bulk packet between nodes (262144)"},
    {.key = "window",
        .type = OPTION_NUMBER,
        .offset = FIELD(window),
        .low = 1u << 16,
        .high = UINT64_C(1) << 32,
        .argument = "BYTES",
        .help = "bytes a peer may have in flight to us (8388608)"},
    {.key = "peer_timeout_ms",
        .type = OPTION_NUMBER,
        .offset = FIELD(peer_timeout_ms),
        .low = 100,
        .high = 3600000,
        .argument = "MS",
        .help = "silence after which a peer counts as down (5000)"},
    {.key = "heartbeat_ms",
        .type = OPTION_NUMBER,
        .offset = FIELD(heartbeat_ms),
        .low = 10,
        .high = 600000,
        .argument = "MS",
        .help = "between signs of life on an idle link (1000)"},
    {.key = "stop_timeout_ms",
        .type = OPTION_NUMBER,
        .offset = FIELD(stop_timeout_ms),
        .high = 3600000,
        .argument = "MS",
        .help = "for steps under way to end after SIGTERM (10000)",
        .live = true},
    {.key = "stuck_after_ms",
        .type = OPTION_NUMBER,
        .offset = FIELD(stuck_after_ms),
        .low = 100,
        .high = 86400000,
        .argument = "MS",
        .help = "a job that waits so long is stuck (60000)",
        .live = true},
    {.key = "commit_timeout_ms",
        .type = OPTION_NUMBER,
        .offset = FIELD(commit_timeout_ms),
        .low = 1000,
        .high = 86400000,
        .argument = "MS",
        .help = "from opening a session to its commit (60000)",
        .live = true},
    {.key = "user_sessions",
        .type = OPTION_NUMBER,
        .offset = FIELD(user_sessions),
        .high = 65536,
        .argument = "N",
        .help = "sessions of one user; 0: 3/4 of all (0)",
        .live = true},
    {.key = "user_jobs",
        .type = OPTION_NUMBER,
        .offset = FIELD(user_jobs),
        .low = 1,
        .high = 65536,
        .argument = "N",
        .help = "jobs of one user at a time (256)",
        .live = true},
    {.key = "user_memory",
        .type = OPTION_NUMBER,
        .offset = FIELD(user_memory),
        .low = 1,
        .high = 100,
        .argument = "PERCENT",
        .help = "of this node's memory, for one user's jobs (80)",
        .live = true},
    {.key = "user_requests",
        .type = OPTION_NUMBER,
        .offset = FIELD(user_requests),
        .low = 1,
        .high = 48,
        .argument = "N",
        .help = "changes and checks of one user under way (16)",
        .live = true},
};

const struct option *option_find(const char *key, size_t length)
{
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        if (strlen(option_table[i].key) == length &&
            strncmp(option_table[i].key, key, length) == 0) {
            return &option_table[i];
        }
    }
    return NULL;
}

void option_variable(const struct option *option, char name[OPTION_NAME_SIZE])
{
    int length = snprintf(name, OPTION_NAME_SIZE, "ADTOPK_%s", option->key);

    for (int i = 0; i < length && i < OPTION_NAME_SIZE; i++) {
        name[i] = (char)toupper((unsigned char)name[i]);
    }
}

void option_flag(const struct option *option, char name[OPTION_NAME_SIZE])
{
    int length = snprintf(name, OPTION_NAME_SIZE, "--%s", option->key);

    for (int i = 0; i < length && i < OPTION_NAME_SIZE; i++) {
        if (name[i] == '_') {
            name[i] = '-';
        }
    }
}

static void *field(struct config *config, const struct option *option)
{
    return (char *)config + option->offset;
}

static enum adtopk_status store_number(
    struct config *config, const struct option *option, uint64_t number, struct error *err)
{
    if (number < option->low || number > option->high) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "%llu is not from %llu to %llu",
            (unsigned long long)number, (unsigned long long)option->low,
            (unsigned long long)option->high);
    }
    *(uint64_t *)field(config, option) = number;
    return ADTOPK_OK;
}

static enum adtopk_status store_choice(
    struct config *config, const struct option *option, const char *text, struct error *err)
{
    char known[80] = "", meant[GUESS_TEXT_SIZE];
    struct guess guess;
    size_t used = 0;

    guess_start(&guess, text, 0);
    for (uint64_t i = 0; i <= option->high; i++) {
        if (strcmp(text, option->names[i]) == 0) {
            *(uint64_t *)field(config, option) = i;
            return ADTOPK_OK;
        }
        guess_name(&guess, option->names[i]);
        if (used < sizeof(known)) {
            used += (size_t)snprintf(
                known + used, sizeof(known) - used, "%s%s", i > 0 ? ", " : "", option->names[i]);
        }
    }
    return error_set(err, ADTOPK_ERR_ARGUMENT, "\"%.40s\" is not one of: %s%s", text, known,
        guess_text(&guess, meant));
}

static enum adtopk_status store_text(
    struct config *config, const struct option *option, const char *text, struct error *err)
{
    size_t length = strlen(text);

    if (length == 0 || length >= option->high) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "a text of %zu bytes, 1 to %llu are possible",
            length, (unsigned long long)option->high - 1);
    }
    memcpy(field(config, option), text, length + 1);
    return ADTOPK_OK;
}

static enum adtopk_status store_policy(
    struct config *config, const char *text, size_t length, struct error *err)
{
    char *copy = strndup(text, length);

    if (copy == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for a policy of %zu bytes", length);
    }
    free(config->policy);
    config->policy = copy;
    return ADTOPK_OK;
}

static void clear_peers(struct config *config)
{
    free(config->peers);
    config->peers = NULL;
    config->peer_count = 0;
}

static enum adtopk_status add_peer(
    struct config *config, uint64_t node, const char *endpoint, size_t length, struct error *err)
{
    struct config_peer peer = {.node = (uint16_t)node};

    if (node > MAX_NODE) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "node %llu is not from 0 to %d",
            (unsigned long long)node, MAX_NODE);
    }
    if (length == 0 || length >= CONFIG_ENDPOINT_SIZE) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "the endpoint of node %llu has %zu bytes",
            (unsigned long long)node, length);
    }
    if (config->peer_count >= CORE_MAX_NODES) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "more than %d peers", CORE_MAX_NODES);
    }
    memcpy(peer.endpoint, endpoint, length);
    if (config_add_peer(config, &peer) != ADTOPK_OK) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for the peers");
    }
    return ADTOPK_OK;
}

/* One more key of the peer that was added last. */
static enum adtopk_status add_key(
    struct config *config, const char *text, size_t length, struct error *err)
{
    struct config_peer *peer = &config->peers[config->peer_count - 1];
    char key[KEYFILE_KEY_SIZE] = "";
    size_t count = 0;

    while (count < CONFIG_PEER_KEYS && peer->keys[count][0] != '\0') {
        count++;
    }
    if (count == CONFIG_PEER_KEYS) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "node %u has more than %d keys", peer->node,
            CONFIG_PEER_KEYS);
    }
    if (length < sizeof(key)) {
        memcpy(key, text, length);
    }
    if (!keyfile_is_key(key)) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "the key of node %u has %zu bytes: a key is 40 characters of Z85", peer->node, length);
    }
    memcpy(peer->keys[count], key, sizeof(key));
    return ADTOPK_OK;
}

/* KEY or KEY;KEY; neither sign is one of Z85's. */
static enum adtopk_status add_keys_text(
    struct config *config, const char *text, size_t length, struct error *err)
{
    const char *end = text + length;
    enum adtopk_status status = ADTOPK_OK;

    for (bool more = true; more && status == ADTOPK_OK;) {
        const char *stop = memchr(text, ';', (size_t)(end - text));

        more = stop != NULL;
        stop = more ? stop : end;
        status = add_key(config, text, (size_t)(stop - text), err);
        text = more ? stop + 1 : stop;
    }
    return status;
}

/* ENDPOINT or ENDPOINT#KEYS. */
static enum adtopk_status add_peer_text(
    struct config *config, uint64_t node, const char *text, size_t length, struct error *err)
{
    const char *sign = memchr(text, '#', length);
    size_t endpoint = sign != NULL ? (size_t)(sign - text) : length;
    enum adtopk_status status = add_peer(config, node, text, endpoint, err);

    return status == ADTOPK_OK && sign != NULL
               ? add_keys_text(config, sign + 1, length - endpoint - 1, err)
               : status;
}

/* N=ENDPOINT#KEYS,N=ENDPOINT#KEYS,... */
static enum adtopk_status set_peers_text(struct config *config, const char *text, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;

    clear_peers(config);
    while (status == ADTOPK_OK && *text != '\0') {
        size_t length = strcspn(text, ",");
        char *end = NULL;
        unsigned long long node = 0;

        errno = 0;
        if (isdigit((unsigned char)*text)) {
            node = strtoull(text, &end, 10);
        }
        if (end == NULL || errno != 0 || *end != '=') {
            return error_set(err, ADTOPK_ERR_ARGUMENT, "\"%.*s\" is not of the form N=ENDPOINT#KEY",
                (int)strcspn(text, "#,"), text);
        }
        status = add_peer_text(config, node, end + 1, length - (size_t)(end + 1 - text), err);
        text += length;
        text += *text == ',' ? 1 : 0;
    }
    return status;
}

static enum adtopk_status set_number_text(
    struct config *config, const struct option *option, const char *text, struct error *err)
{
    char *end = NULL;
    unsigned long long number = 0;

    errno = 0;
    if (isdigit((unsigned char)*text)) {
        number = strtoull(text, &end, 10);
    }
    if (end == NULL || *end != '\0' || errno != 0) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "\"%.40s\" is not a whole number from %llu to %llu", text,
            (unsigned long long)option->low, (unsigned long long)option->high);
    }
    return store_number(config, option, number, err);
}

static enum adtopk_status set_switch_text(
    struct config *config, const struct option *option, const char *text, struct error *err)
{
    bool on = strcmp(text, "true") == 0 || strcmp(text, "1") == 0;

    if (!on && strcmp(text, "false") != 0 && strcmp(text, "0") != 0) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "\"%.40s\" is neither true nor false", text);
    }
    *(bool *)field(config, option) = on;
    return ADTOPK_OK;
}

/* Also checks that it is JSON; config_check_policy() does the rest. */
static void set_policy_text(
    struct config *config, const char *text, const char *where, struct faults *faults)
{
    struct json json;
    struct error err;

    if (json_read(&json, where, text, strlen(text), ADTOPK_ERR_ARGUMENT, faults) == ADTOPK_OK) {
        if (!cJSON_IsObject(json.root)) {
            (void)json_fault(&json, json.root, JSON_VALUE, faults, "a policy is an object, {...}");
        } else if (store_policy(config, text, strlen(text), &err) != ADTOPK_OK) {
            (void)faults_add(faults, err.code, "%s: %s", where, err.text);
        }
    }
    json_free(&json);
}

static enum adtopk_status set_text(
    struct config *config, const struct option *option, const char *text, struct error *err)
{
    switch (option->type) {
    case OPTION_NUMBER: return set_number_text(config, option, text, err);
    case OPTION_CHOICE: return store_choice(config, option, text, err);
    case OPTION_TEXT: return store_text(config, option, text, err);
    case OPTION_SWITCH: return set_switch_text(config, option, text, err);
    case OPTION_PEERS: return set_peers_text(config, text, err);
    case OPTION_TRAINERS: return trainers_read_text(config, text, err);
    case OPTION_USER: return user_read_text(text, field(config, option), err);
    case OPTION_POLICY: break;
    }
    return error_set(err, ADTOPK_ERR_STATE, "an option without a type");
}

void option_set_text(struct config *config, const struct option *option, const char *text,
    const char *where, struct faults *faults)
{
    struct error err = {.code = ADTOPK_OK};

    if (option->type == OPTION_POLICY) {
        set_policy_text(config, text, where, faults);
    } else if (set_text(config, option, text, &err) != ADTOPK_OK) {
        (void)faults_add(faults, err.code, "%s: %s", where, err.text);
    }
}

/* ------------------------------------------------------------------ JSON */

static enum adtopk_status wrong_type(const char *wanted, struct error *err)
{
    return error_set(err, ADTOPK_ERR_ARGUMENT, "%s is needed here", wanted);
}

/* Numbers are doubles in cJSON, so whole numbers are exact only up to 2^53. */
static bool whole_number(const cJSON *value, uint64_t *number)
{
    if (!cJSON_IsNumber(value) || !(value->valuedouble >= 0) ||
        !(value->valuedouble <= 9007199254740992.0)) {
        return false;
    }
    *number = (uint64_t)value->valuedouble;
    return (double)*number == value->valuedouble;
}

bool object_fields(const struct option_json *in, const cJSON *object, const char *prefix,
    const char *const *names, size_t count, const cJSON **found)
{
    const unsigned before = in->faults->count;
    const cJSON *item;

    cJSON_ArrayForEach(item, object)
    {
        struct guess guess;
        char meant[GUESS_TEXT_SIZE];
        size_t at = 0;

        guess_start(&guess, item->string, 0);
        while (at < count && strcmp(item->string, names[at]) != 0) {
            guess_name(&guess, names[at++]);
        }
        if (at == count || found[at] != NULL) {
            (void)json_fault(in->json, item, JSON_KEY, in->faults, "%s: %s key \"%.40s\"%s", prefix,
                at == count ? "unknown" : "repeated", item->string,
                at == count ? guess_text(&guess, meant) : "");
        } else {
            found[at] = item;
        }
    }
    return in->faults->count == before;
}

/* A key, or an array of keys. */
static enum adtopk_status add_keys_json(
    struct config *config, const cJSON *value, struct error *err)
{
    const cJSON *key = cJSON_IsArray(value) ? value->child : value;
    enum adtopk_status status = ADTOPK_OK;

    if (key == NULL) {
        return wrong_type("a text, or an array of texts, as \"key\"", err);
    }
    for (; key != NULL && status == ADTOPK_OK; key = key == value ? NULL : key->next) {
        status = cJSON_IsString(key)
                     ? add_key(config, key->valuestring, strlen(key->valuestring), err)
                     : wrong_type("a text, or an array of texts, as \"key\"", err);
    }
    return status;
}

/* The fields of a peer, in the order of this list. */
enum { PEER_NODE, PEER_ENDPOINT, PEER_KEY, PEER_FIELDS };
static const char *const peer_fields[PEER_FIELDS] = {"node", "endpoint", "key"};

/* Adds the peer; `culprit` gets the item that an error is about. */
static enum adtopk_status set_peer(struct config *config, const cJSON *peer,
    const cJSON *const found[PEER_FIELDS], const cJSON **culprit, struct error *err)
{
    const cJSON *endpoint = found[PEER_ENDPOINT];
    uint64_t number = 0;

    *culprit = peer;
    if (found[PEER_NODE] == NULL || endpoint == NULL) {
        return wrong_type("{\"node\": N, \"endpoint\": \"tcp://HOST:PORT\"}", err);
    }
    *culprit = found[PEER_NODE];
    if (!whole_number(found[PEER_NODE], &number) || number > MAX_NODE) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "a whole number from 0 to %d is needed as \"node\"", MAX_NODE);
    }
    *culprit = endpoint;
    if (!cJSON_IsString(endpoint)) {
        return wrong_type("a text as \"endpoint\"", err);
    }
    if (add_peer(config, number, endpoint->valuestring, strlen(endpoint->valuestring), err) !=
        ADTOPK_OK) {
        return err->code;
    }
    *culprit = found[PEER_KEY];
    return *culprit != NULL ? add_keys_json(config, *culprit, err) : ADTOPK_OK;
}

static void set_peers_json(struct config *config, const struct option_json *in, const cJSON *value)
{
    const cJSON *peer;
    unsigned index = 0;

    clear_peers(config);
    cJSON_ArrayForEach(peer, value)
    {
        const cJSON *found[PEER_FIELDS] = {NULL}, *culprit = NULL;
        struct error err;
        char prefix[32];

        (void)snprintf(prefix, sizeof(prefix), "\"peers\"[%u]", index++);
        if (cJSON_IsObject(peer) &&
            !object_fields(in, peer, prefix, peer_fields, PEER_FIELDS, found)) {
            continue;
        }
        if (set_peer(config, peer, found, &culprit, &err) != ADTOPK_OK) {
            (void)json_fault(in->json, culprit, JSON_VALUE, in->faults, "%s: %s", prefix, err.text);
        } else {
            config->peers[config->peer_count - 1].place =
                (size_t)(json_place(in->json, peer, JSON_VALUE) - in->json->text);
        }
    }
}

static enum adtopk_status set_policy_json(
    struct config *config, const struct option_json *in, const cJSON *value, struct error *err)
{
    const char *text = json_place(in->json, value, JSON_VALUE);

    return cJSON_IsObject(value) ? store_policy(config, text, (size_t)(json_end(text) - text), err)
                                 : wrong_type("an object, {...},", err);
}

static enum adtopk_status set_json(struct config *config, const struct option *option,
    const struct option_json *in, const cJSON *value, struct error *err)
{
    uint64_t number = 0;

    switch (option->type) {
    case OPTION_NUMBER:
        return whole_number(value, &number) ? store_number(config, option, number, err)
                                            : wrong_type("a whole number", err);
    case OPTION_CHOICE:
        return cJSON_IsString(value) ? store_choice(config, option, value->valuestring, err)
                                     : wrong_type("a text", err);
    case OPTION_TEXT:
        return cJSON_IsString(value) ? store_text(config, option, value->valuestring, err)
                                     : wrong_type("a text", err);
    case OPTION_SWITCH:
        if (!cJSON_IsBool(value)) {
            return wrong_type("true or false", err);
        }
        *(bool *)field(config, option) = cJSON_IsTrue(value);
        return ADTOPK_OK;
    case OPTION_POLICY: return set_policy_json(config, in, value, err);
    case OPTION_USER: return user_read_json(value, field(config, option), err);
    case OPTION_PEERS:
    case OPTION_TRAINERS:
        return cJSON_IsArray(value) ? ADTOPK_OK : wrong_type("an array, [...],", err);
    }
    return error_set(err, ADTOPK_ERR_STATE, "an option without a type");
}

void option_set_json(struct config *config, const struct option *option,
    const struct option_json *in, const cJSON *value)
{
    struct error err;

    if (set_json(config, option, in, value, &err) != ADTOPK_OK) {
        (void)json_fault(
            in->json, value, JSON_VALUE, in->faults, "\"%s\": %s", option->key, err.text);
    } else if (option->type == OPTION_PEERS) {
        set_peers_json(config, in, value);
    } else if (option->type == OPTION_TRAINERS) {
        trainers_read_json(config, in, value);
    }
}
