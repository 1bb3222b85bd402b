#include "daemon/config_option.h"

#include <ctype.h>
#include <errno.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config_json.h"
#include "daemon/log.h"
#include "daemon/workers.h"

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
        .help = "the other nodes: N=ENDPOINT,..."},
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
        .help = "their public keys and users: KEY=USER,..."},
    {.key = "key_file",
        .type = OPTION_TEXT,
        .offset = FIELD(key_file),
        .high = CONFIG_KEY_FILE_SIZE,
        .argument = "PATH",
        .help = "this node's pair of keys"},
    {.key = "trainers_owner",
        .type = OPTION_USER,
        .offset = FIELD(trainers_owner),
        .argument = "USER",
        .help = "whose trainers those are, without keys"},
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
        .help = "error, warning, info or debug (info)"},
    {.key = "log_format",
        .type = OPTION_CHOICE,
        .offset = FIELD(log_format),
        .high = LOG_FORMAT_COUNT - 1,
        .names = log_format_names,
        .argument = "FORMAT",
        .help = "text or json (text)"},
    {.key = "policy",
        .type = OPTION_POLICY,
        .offset = FIELD(policy),
        .argument = "JSON",
        .help = "policy of jobs that bring none (adtopk, 1%)"},
    {.key = "insecure",
        .type = OPTION_SWITCH,
        .offset = FIELD(insecure),
        .help = "allow traffic beyond loopback, in the clear"},
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

static enum adtopk_status store_number(struct config *config, const struct option *option,
    uint64_t number, const char *where, struct error *err)
{
    if (number < option->low || number > option->high) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "%s: %llu is not from %llu to %llu", where,
            (unsigned long long)number, (unsigned long long)option->low,
            (unsigned long long)option->high);
    }
    *(uint64_t *)field(config, option) = number;
    return ADTOPK_OK;
}

static enum adtopk_status store_choice(struct config *config, const struct option *option,
    const char *text, const char *where, struct error *err)
{
    for (uint64_t i = 0; i <= option->high; i++) {
        if (strcmp(text, option->names[i]) == 0) {
            *(uint64_t *)field(config, option) = i;
            return ADTOPK_OK;
        }
    }
    return error_set(err, ADTOPK_ERR_ARGUMENT, "%s: \"%.40s\" is not one of %s to %s", where, text,
        option->names[0], option->names[option->high]);
}

static enum adtopk_status store_text(struct config *config, const struct option *option,
    const char *text, const char *where, struct error *err)
{
    size_t length = strlen(text);

    if (length == 0 || length >= option->high) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "%s: a text of %zu bytes, 1 to %llu are possible", where, length,
            (unsigned long long)option->high - 1);
    }
    memcpy(field(config, option), text, length + 1);
    return ADTOPK_OK;
}

static enum adtopk_status store_policy(
    struct config *config, const char *text, size_t length, const char *where, struct error *err)
{
    char *copy = strndup(text, length);

    if (copy == NULL) {
        return error_set(
            err, ADTOPK_ERR_MEMORY, "%s: no memory for a policy of %zu bytes", where, length);
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

static enum adtopk_status add_peer(struct config *config, uint64_t node, const char *endpoint,
    size_t length, const char *where, struct error *err)
{
    struct config_peer *peers;

    if (node > MAX_NODE) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "%s: node %llu is not from 0 to %d", where,
            (unsigned long long)node, MAX_NODE);
    }
    if (length == 0 || length >= CONFIG_ENDPOINT_SIZE) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "%s: the endpoint of node %llu has %zu bytes",
            where, (unsigned long long)node, length);
    }
    if (config->peer_count >= CORE_MAX_NODES) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "%s: more than %d peers", where, CORE_MAX_NODES);
    }
    peers = realloc(config->peers, (config->peer_count + 1) * sizeof(*peers));
    if (peers == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "%s: no memory for the peers", where);
    }
    config->peers = peers;
    peers += config->peer_count++;
    peers->node = (uint16_t)node;
    memcpy(peers->endpoint, endpoint, length);
    peers->endpoint[length] = '\0';
    return ADTOPK_OK;
}

/* N=ENDPOINT,N=ENDPOINT,... */
static enum adtopk_status set_peers_text(
    struct config *config, const char *text, const char *where, struct error *err)
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
            return error_set(err, ADTOPK_ERR_ARGUMENT,
                "%s: \"%.60s\" is not of the form N=ENDPOINT", where, text);
        }
        status = add_peer(config, node, end + 1, length - (size_t)(end + 1 - text), where, err);
        text += length;
        text += *text == ',' ? 1 : 0;
    }
    return status;
}

static enum adtopk_status set_number_text(struct config *config, const struct option *option,
    const char *text, const char *where, struct error *err)
{
    char *end = NULL;
    unsigned long long number = 0;

    errno = 0;
    if (isdigit((unsigned char)*text)) {
        number = strtoull(text, &end, 10);
    }
    if (end == NULL || *end != '\0' || errno != 0) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "%s: \"%.40s\" is not a whole number from %llu to %llu", where, text,
            (unsigned long long)option->low, (unsigned long long)option->high);
    }
    return store_number(config, option, number, where, err);
}

/* A user's name or number. */
static enum adtopk_status read_user(
    const char *text, uint64_t *uid, const char *where, struct error *err)
{
    const size_t digits = strspn(text, "0123456789");
    const struct passwd *user;

    if (digits > 0 && digits <= 10 && text[digits] == '\0') {
        *uid = strtoull(text, NULL, 10);
        return *uid < UINT32_MAX ? ADTOPK_OK
                                 : error_set(err, ADTOPK_ERR_ARGUMENT,
                                       "%s: %.20s is no user's number", where, text);
    }
    user = *text != '\0' ? getpwnam(text) : NULL;
    if (user == NULL) {
        return error_set(
            err, ADTOPK_ERR_ARGUMENT, "%s: this system has no user \"%.60s\"", where, text);
    }
    *uid = user->pw_uid;
    return ADTOPK_OK;
}

static void clear_trainers(struct config *config)
{
    free(config->trainers);
    config->trainers = NULL;
    config->trainer_count = 0;
}

static enum adtopk_status add_trainer(struct config *config, const char *key, size_t length,
    uint64_t owner, const char *where, struct error *err)
{
    struct config_trainer *trainers;
    struct config_trainer added = {.owner = (uint32_t)owner};

    if (length == KEYFILE_KEY_SIZE - 1) {
        memcpy(added.key, key, length);
    }
    if (!keyfile_is_key(added.key)) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "%s: \"%.*s\" is no key: 40 characters (Z85)",
            where, (int)(length < 60 ? length : 60), key);
    }
    if (config->trainer_count >= CONFIG_MAX_TRAINERS) {
        return error_set(
            err, ADTOPK_ERR_ARGUMENT, "%s: more than %d trainers", where, CONFIG_MAX_TRAINERS);
    }
    for (size_t i = 0; i < config->trainer_count; i++) {
        if (strcmp(config->trainers[i].key, added.key) == 0) {
            return error_set(
                err, ADTOPK_ERR_ARGUMENT, "%s: the key %s occurs twice", where, added.key);
        }
    }
    trainers = realloc(config->trainers, (config->trainer_count + 1) * sizeof(*trainers));
    if (trainers == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "%s: no memory for the trainers", where);
    }
    config->trainers = trainers;
    trainers[config->trainer_count++] = added;
    return ADTOPK_OK;
}

/* KEY=USER,KEY=USER,...; '=' may be part of a key, ',' may not. */
static enum adtopk_status set_trainers_text(
    struct config *config, const char *text, const char *where, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;

    clear_trainers(config);
    while (status == ADTOPK_OK && *text != '\0') {
        const size_t length = strcspn(text, ",");
        char user[64] = "";
        uint64_t owner;

        if (length <= KEYFILE_KEY_SIZE || text[KEYFILE_KEY_SIZE - 1] != '=' ||
            length - KEYFILE_KEY_SIZE >= sizeof(user)) {
            return error_set(err, ADTOPK_ERR_ARGUMENT,
                "%s: \"%.60s\" is not of the form KEY=USER, with a key of 40 characters", where,
                text);
        }
        memcpy(user, text + KEYFILE_KEY_SIZE, length - KEYFILE_KEY_SIZE);
        status = read_user(user, &owner, where, err);
        if (status == ADTOPK_OK) {
            status = add_trainer(config, text, KEYFILE_KEY_SIZE - 1, owner, where, err);
        }
        text += length;
        text += *text == ',' ? 1 : 0;
    }
    return status;
}

static enum adtopk_status set_switch_text(struct config *config, const struct option *option,
    const char *text, const char *where, struct error *err)
{
    bool on = strcmp(text, "true") == 0 || strcmp(text, "1") == 0;

    if (!on && strcmp(text, "false") != 0 && strcmp(text, "0") != 0) {
        return error_set(
            err, ADTOPK_ERR_ARGUMENT, "%s: \"%.40s\" is neither true nor false", where, text);
    }
    *(bool *)field(config, option) = on;
    return ADTOPK_OK;
}

static enum adtopk_status set_policy_text(
    struct config *config, const char *text, const char *where, struct error *err)
{
    cJSON *document = json_parse(where, text, strlen(text), err);
    bool object = cJSON_IsObject(document);

    if (document == NULL) {
        return err->code;
    }
    cJSON_Delete(document);
    if (!object) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "%s: a policy is an object, {...}", where);
    }
    (void)snprintf(config->policy_source, sizeof(config->policy_source), "%.100s", where);
    return store_policy(config, text, strlen(text), where, err);
}

enum adtopk_status option_set_text(struct config *config, const struct option *option,
    const char *text, const char *where, struct error *err)
{
    switch (option->type) {
    case OPTION_NUMBER: return set_number_text(config, option, text, where, err);
    case OPTION_CHOICE: return store_choice(config, option, text, where, err);
    case OPTION_TEXT: return store_text(config, option, text, where, err);
    case OPTION_SWITCH: return set_switch_text(config, option, text, where, err);
    case OPTION_POLICY: return set_policy_text(config, text, where, err);
    case OPTION_PEERS: return set_peers_text(config, text, where, err);
    case OPTION_TRAINERS: return set_trainers_text(config, text, where, err);
    case OPTION_USER: return read_user(text, field(config, option), where, err);
    }
    return error_set(err, ADTOPK_ERR_STATE, "%s: an option without a type", where);
}

static enum adtopk_status wrong_type(const char *where, const char *wanted, struct error *err)
{
    return error_set(err, ADTOPK_ERR_ARGUMENT, "%s: %s is needed here", where, wanted);
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

static enum adtopk_status set_peer_json(
    struct config *config, const cJSON *peer, const char *where, struct error *err)
{
    const cJSON *node = NULL;
    const cJSON *endpoint = NULL;
    const cJSON *item;
    uint64_t number = 0;

    cJSON_ArrayForEach(item, peer)
    {
        const cJSON **seen = strcmp(item->string, "node") == 0       ? &node
                             : strcmp(item->string, "endpoint") == 0 ? &endpoint
                                                                     : NULL;

        if (seen == NULL || *seen != NULL) {
            return error_set(err, ADTOPK_ERR_ARGUMENT, "%s: %s key \"%.40s\" of a peer", where,
                seen == NULL ? "unknown" : "repeated", item->string);
        }
        *seen = item;
    }
    if (!cJSON_IsObject(peer) || node == NULL || endpoint == NULL) {
        return wrong_type(where, "{\"node\": N, \"endpoint\": \"tcp://HOST:PORT\"}", err);
    }
    if (!whole_number(node, &number) || !cJSON_IsString(endpoint)) {
        return wrong_type(where, "a whole number as \"node\" and a text as \"endpoint\"", err);
    }
    return add_peer(
        config, number, endpoint->valuestring, strlen(endpoint->valuestring), where, err);
}

static enum adtopk_status set_peers_json(
    struct config *config, const cJSON *value, const char *where, struct error *err)
{
    const cJSON *peer;
    char which[ERROR_TEXT_SIZE];
    unsigned index = 0;

    if (!cJSON_IsArray(value)) {
        return wrong_type(where, "an array of peers, [...],", err);
    }
    clear_peers(config);
    cJSON_ArrayForEach(peer, value)
    {
        enum adtopk_status status;

        (void)snprintf(which, sizeof(which), "%.200s[%u]", where, index++);
        status = set_peer_json(config, peer, which, err);
        if (status != ADTOPK_OK) {
            return status;
        }
    }
    return ADTOPK_OK;
}

static enum adtopk_status read_user_json(
    const cJSON *value, uint64_t *uid, const char *where, struct error *err)
{
    if (cJSON_IsString(value)) {
        return read_user(value->valuestring, uid, where, err);
    }
    if (!whole_number(value, uid) || *uid >= UINT32_MAX) {
        return wrong_type(where, "a user's name or number", err);
    }
    return ADTOPK_OK;
}

static enum adtopk_status set_trainer_json(
    struct config *config, const cJSON *trainer, const char *where, struct error *err)
{
    const cJSON *key = NULL;
    const cJSON *owner = NULL;
    const cJSON *item;
    uint64_t uid = 0;

    cJSON_ArrayForEach(item, trainer)
    {
        const cJSON **seen = strcmp(item->string, "key") == 0     ? &key
                             : strcmp(item->string, "owner") == 0 ? &owner
                                                                  : NULL;

        if (seen == NULL || *seen != NULL) {
            return error_set(err, ADTOPK_ERR_ARGUMENT, "%s: %s key \"%.40s\" of a trainer", where,
                seen == NULL ? "unknown" : "repeated", item->string);
        }
        *seen = item;
    }
    if (!cJSON_IsObject(trainer) || !cJSON_IsString(key) || owner == NULL) {
        return wrong_type(where, "{\"key\": \"PUBLIC KEY\", \"owner\": USER}", err);
    }
    if (read_user_json(owner, &uid, where, err) != ADTOPK_OK) {
        return err->code;
    }
    return add_trainer(config, key->valuestring, strlen(key->valuestring), uid, where, err);
}

static enum adtopk_status set_trainers_json(
    struct config *config, const cJSON *value, const char *where, struct error *err)
{
    const cJSON *trainer;
    char which[ERROR_TEXT_SIZE];
    unsigned index = 0;

    if (!cJSON_IsArray(value)) {
        return wrong_type(where, "an array of trainers, [...],", err);
    }
    clear_trainers(config);
    cJSON_ArrayForEach(trainer, value)
    {
        enum adtopk_status status;

        if (!cJSON_IsObject(trainer)) {
            return wrong_type(where, "an array of objects, [{...}, ...],", err);
        }
        (void)snprintf(which, sizeof(which), "%.200s[%u]", where, index++);
        status = set_trainer_json(config, trainer, which, err);
        if (status != ADTOPK_OK) {
            return status;
        }
    }
    return ADTOPK_OK;
}

enum adtopk_status option_set_json(struct config *config, const struct option *option,
    const cJSON *value, const char *text, const char *where, struct error *err)
{
    uint64_t number = 0;

    switch (option->type) {
    case OPTION_NUMBER:
        return whole_number(value, &number) ? store_number(config, option, number, where, err)
                                            : wrong_type(where, "a whole number", err);
    case OPTION_CHOICE:
        return cJSON_IsString(value) ? store_choice(config, option, value->valuestring, where, err)
                                     : wrong_type(where, "a text", err);
    case OPTION_TEXT:
        return cJSON_IsString(value) ? store_text(config, option, value->valuestring, where, err)
                                     : wrong_type(where, "a text", err);
    case OPTION_SWITCH:
        if (!cJSON_IsBool(value)) {
            return wrong_type(where, "true or false", err);
        }
        *(bool *)field(config, option) = cJSON_IsTrue(value);
        return ADTOPK_OK;
    case OPTION_POLICY:
        return cJSON_IsObject(value)
                   ? store_policy(config, text, (size_t)(json_end(text) - text), where, err)
                   : wrong_type(where, "an object, {...},", err);
    case OPTION_PEERS: return set_peers_json(config, value, where, err);
    case OPTION_TRAINERS: return set_trainers_json(config, value, where, err);
    case OPTION_USER: return read_user_json(value, field(config, option), where, err);
    }
    return error_set(err, ADTOPK_ERR_STATE, "%s: an option without a type", where);
}
