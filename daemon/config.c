#include "daemon/config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/config_option.h"
#include "daemon/endpoint.h"
#include "daemon/log.h"
#include "proto/guess.h"
#include "proto/json.h"

#define FILE_LIMIT (1u << 20)

/* What the command line says apart from settings. */
struct command {
    const char *file; /* NULL: the default one */
    enum config_action action;
};

static const struct {
    const char *flag;
    const char *argument;
    const char *help;
} commands[] = {
    {"--config", "FILE", "configuration file (" CONFIG_FILE ")"},
    {"--check-config", NULL, "check the configuration and end"},
    {"--print-config", NULL, "print all settings and their sources, and end"},
    {"--help", NULL, "print this text"},
    {"--version", NULL, "print the version"},
};

static void set_defaults(struct config *config)
{
    *config = (struct config){
        .socket = "/run/adtopk/adtopkd.sock",
        .control_socket = "/run/adtopk/control.sock",
        .control_group = "adtopk",
        .trainers_owner = CONFIG_NOBODY,
        .user = CONFIG_NOBODY,
        .log_level = LEVEL_INFO,
        .log_format = LOG_FORMAT_TEXT,
        .chunk_size = 256u << 10,
        .window = 8u << 20,
        .peer_timeout_ms = 5000,
        .heartbeat_ms = 1000,
        .stop_timeout_ms = 10000,
        .stuck_after_ms = 60000,
        .commit_timeout_ms = 60000,
        .user_jobs = 256,
        .user_memory = 80,
        .user_requests = 16,
    };
}

void config_free(struct config *config)
{
    free(config->peers);
    free(config->policy);
    free(config->text);
    trainers_clear(config);
    config->peers = NULL;
    config->peer_count = 0;
    config->policy = NULL;
    config->text = NULL;
}

/* Variables of the client, of adtopkctl and of deploy/. Those of tests begin with a prefix. */
static const char *const foreign_variables[] = {"ADTOPK_CONFIG", "ADTOPK_ADDRESS",
    "ADTOPK_SERVER_KEY", "ADTOPK_JOB", "ADTOPK_RUN_ID", "ADTOPK_OS_RELEASE"};
static const char *const test_prefixes[] = {"ADTOPK_TEST_", "ADTOPK_SIM_"};

static bool variable_is_known(const char *name, size_t length)
{
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        char variable[OPTION_NAME_SIZE];

        option_variable(&option_table[i], variable);
        if (strlen(variable) == length && strncmp(variable, name, length) == 0) {
            return true;
        }
    }
    for (size_t i = 0; i < sizeof(foreign_variables) / sizeof(foreign_variables[0]); i++) {
        if (strlen(foreign_variables[i]) == length &&
            strncmp(foreign_variables[i], name, length) == 0) {
            return true;
        }
    }
    for (size_t i = 0; i < sizeof(test_prefixes) / sizeof(test_prefixes[0]); i++) {
        if (strncmp(test_prefixes[i], name, strlen(test_prefixes[i])) == 0) {
            return true;
        }
    }
    return false;
}

static void guess_variable(const char *name, size_t length, char text[CONFIG_VARIABLE_SIZE])
{
    char word[GUESS_SIZE], known[OPTION_NAME_SIZE], meant[GUESS_TEXT_SIZE];
    struct guess guess;

    (void)snprintf(word, sizeof(word), "%.*s", (int)length, name);
    guess_start(&guess, word, strlen("ADTOPK_"));
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        option_variable(&option_table[i], known);
        guess_name(&guess, known);
    }
    (void)snprintf(text, CONFIG_VARIABLE_SIZE, "there is no setting for the variable %.*s%s",
        (int)(length < 64 ? length : 64), name, guess_text(&guess, meant));
}

bool config_unknown_variable(char *const *environment, size_t *at, char text[CONFIG_VARIABLE_SIZE])
{
    while (environment[*at] != NULL) {
        const char *variable = environment[(*at)++];
        const size_t length = strcspn(variable, "=");

        if (strncmp(variable, "ADTOPK_", 7) == 0 && !variable_is_known(variable, length)) {
            guess_variable(variable, length, text);
            return true;
        }
    }
    return false;
}

/* The whole file with a NUL behind it, or NULL. */
static char *read_stream(FILE *stream, const char *path, size_t *size, struct error *err)
{
    char *text = malloc(FILE_LIMIT + 1);

    if (text == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory to read %.100s", path);
        return NULL;
    }
    *size = fread(text, 1, FILE_LIMIT + 1, stream);
    if (ferror(stream) != 0) {
        (void)error_set(err, ADTOPK_ERR_SYSTEM, "cannot read %.100s: %s", path, strerror(errno));
    } else if (*size > FILE_LIMIT) {
        (void)error_set(
            err, ADTOPK_ERR_ARGUMENT, "%.100s is longer than %u bytes", path, FILE_LIMIT);
    } else {
        text[*size] = '\0';
        return text;
    }
    free(text);
    return NULL;
}

static void refuse_key(const struct option_json *in, const cJSON *item, bool known)
{
    struct guess guess;
    char meant[GUESS_TEXT_SIZE];

    guess_start(&guess, item->string, 0);
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        guess_name(&guess, option_table[i].key);
    }
    (void)json_fault(in->json, item, JSON_KEY, in->faults, "\"%.40s\": %s%s", item->string,
        known ? "this key occurs twice" : "unknown key", known ? "" : guess_text(&guess, meant));
}

static void apply_item(
    struct config *config, const struct option_json *in, const cJSON *item, bool seen[OPTION_COUNT])
{
    const struct option *option = option_find(item->string, strlen(item->string));
    const unsigned before = in->faults->count;
    const char *place = json_place(in->json, item, JSON_VALUE);

    if (option == NULL || seen[option - option_table]) {
        refuse_key(in, item, option != NULL);
        return;
    }
    seen[option - option_table] = true;
    option_set_json(config, option, in, item);
    config->source[option - option_table] = (struct config_source){.layer = LAYER_FILE,
        .faulty = in->faults->count > before,
        .line = json_line(in->json->text, place),
        .place = (size_t)(place - in->json->text)};
}

static void apply_document(struct config *config, const struct option_json *in)
{
    bool seen[OPTION_COUNT] = {false};

    for (const cJSON *item = in->json->root->child; item != NULL && !faults_full(in->faults);
         item = item->next) {
        apply_item(config, in, item, seen);
    }
}

/* Only a regular file: opening or reading anything else could stop a running daemon for ever. */
static FILE *open_file(const char *path, struct error *err)
{
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    FILE *stream = NULL;
    struct stat file;

    if (fd >= 0 && fstat(fd, &file) == 0 && !S_ISREG(file.st_mode)) {
        (void)error_set(err, ADTOPK_ERR_ARGUMENT, "%.100s is not a regular file", path);
        (void)close(fd);
        return NULL;
    }
    stream = fd >= 0 ? fdopen(fd, "r") : NULL;
    if (stream == NULL) {
        (void)error_set(err, ADTOPK_ERR_SYSTEM, "cannot open %.100s: %s", path, strerror(errno));
        if (fd >= 0) {
            (void)close(fd);
        }
    }
    return stream;
}

/* False if nothing of the file could be applied; the same below. */
static bool read_file(struct config *config, const char *name, FILE *stream, struct faults *faults)
{
    struct error err = {.code = ADTOPK_OK};
    struct json json;
    size_t size = 0;
    bool applied;

    config->text = read_stream(stream, name, &size, &err);
    if (config->text == NULL) {
        (void)faults_add(faults, err.code, "%s", err.text);
        return false;
    }
    if (size == strspn(config->text, " \t\r\n")) {
        (void)faults_add(faults, ADTOPK_ERR_ARGUMENT, "%.100s: the file is empty", name);
        return false;
    }
    (void)json_read(&json, config->file, config->text, size, ADTOPK_ERR_ARGUMENT, faults);
    applied = cJSON_IsObject(json.root);
    if (applied) {
        apply_document(config, &(struct option_json){.json = &json, .faults = faults});
    } else if (json.root != NULL) {
        (void)json_fault(&json, json.root, JSON_VALUE, faults, "an object, {...}, is needed here");
    }
    json_free(&json);
    return applied;
}

static bool apply_file(struct config *config, const char *path, struct faults *faults)
{
    const char *name = path != NULL ? path : CONFIG_FILE;
    struct error err = {.code = ADTOPK_OK};
    FILE *stream;
    bool applied;

    if (path == NULL && access(name, F_OK) != 0 && errno == ENOENT) {
        return true;
    }
    stream = open_file(name, &err);
    if (stream == NULL) {
        (void)faults_add(faults, err.code, "%s", err.text);
        return false;
    }
    (void)snprintf(config->file, sizeof(config->file), "%s", name);
    applied = read_file(config, name, stream, faults);
    (void)fclose(stream);
    return applied;
}

static void apply_environment(
    struct config *config, char *(*environment)(const char *name), struct faults *faults)
{
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        const unsigned before = faults->count;
        char name[OPTION_NAME_SIZE];
        const char *value;

        option_variable(&option_table[i], name);
        value = environment(name);
        if (value != NULL) {
            option_set_text(config, &option_table[i], value, name, faults);
            config->source[i] =
                (struct config_source){.layer = LAYER_VARIABLE, .faulty = faults->count > before};
        }
    }
}

/* One argument, cut into its flag and its value. */
struct argument {
    char flag[OPTION_NAME_SIZE];
    const char *value; /* behind '=', or NULL */
};

static bool argument_split(const char *text, struct argument *argument)
{
    size_t length = strcspn(text, "=");

    if (strncmp(text, "--", 2) != 0 || length >= sizeof(argument->flag)) {
        return false;
    }
    memcpy(argument->flag, text, length);
    argument->flag[length] = '\0';
    argument->value = text[length] == '=' ? text + length + 1 : NULL;
    return true;
}

void config_where(const struct config *config, const char *key, char where[CONFIG_SOURCE_SIZE])
{
    const struct option *option = option_find(key, strlen(key));
    const struct config_source *source = &config->source[option - option_table];
    char name[OPTION_NAME_SIZE] = "default";

    if (source->layer == LAYER_FILE) {
        (void)snprintf(where, CONFIG_SOURCE_SIZE, "%s:%u", config->file, source->line);
        return;
    }
    if (source->layer == LAYER_VARIABLE) {
        option_variable(option, name);
    } else if (source->layer == LAYER_FLAG) {
        option_flag(option, name);
    }
    (void)snprintf(where, CONFIG_SOURCE_SIZE, "%s", name);
}

static const struct option *find_flag(const char *flag)
{
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        char name[OPTION_NAME_SIZE];

        option_flag(&option_table[i], name);
        if (strcmp(name, flag) == 0) {
            return &option_table[i];
        }
    }
    return NULL;
}

static bool take_command(
    struct command *command, const struct argument *argument, const char *value)
{
    if (strcmp(argument->flag, "--config") == 0 && value != NULL) {
        command->file = value;
    } else if (strcmp(argument->flag, "--check-config") == 0 && argument->value == NULL) {
        command->action = CONFIG_CHECK;
    } else if (strcmp(argument->flag, "--print-config") == 0 && argument->value == NULL) {
        command->action = CONFIG_PRINT;
    } else if (strcmp(argument->flag, "--help") == 0 && argument->value == NULL) {
        command->action = CONFIG_HELP;
    } else if (strcmp(argument->flag, "--version") == 0 && argument->value == NULL) {
        command->action = CONFIG_VERSION;
    } else {
        return false;
    }
    return true;
}

static void refuse_flag(const char *flag, struct faults *faults)
{
    struct guess guess;
    char name[OPTION_NAME_SIZE], meant[GUESS_TEXT_SIZE];

    guess_start(&guess, flag, strlen("--"));
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        option_flag(&option_table[i], name);
        guess_name(&guess, name);
    }
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        guess_name(&guess, commands[i].flag);
    }
    (void)faults_add(
        faults, ADTOPK_ERR_STATE, "unknown option \"%.80s\"%s", flag, guess_text(&guess, meant));
}

/* A fault of a flag's value is one of the command line. */
static void set_flag(struct config *config, const struct option *option, const char *value,
    const char *flag, struct faults *faults)
{
    const unsigned before = faults_kept(faults), all = faults->count;

    option_set_text(config, option, value, flag, faults);
    for (unsigned i = before; i < faults_kept(faults); i++) {
        faults->fault[i].code = ADTOPK_ERR_STATE;
    }
    config->source[option - option_table] =
        (struct config_source){.layer = LAYER_FLAG, .faulty = faults->count > all};
}

/* The value of argument i, which may be the next one; NULL with a fault if there is none. */
static const char *argument_value(
    const struct argument *argument, int argc, char *const *argv, int *i, struct faults *faults)
{
    if (argument->value != NULL) {
        return argument->value;
    }
    if (*i + 1 < argc) {
        return argv[++*i];
    }
    (void)faults_add(faults, ADTOPK_ERR_STATE, "%s needs a value", argument->flag);
    return NULL;
}

/* Walks the command line: for the commands with config NULL, for the settings otherwise. What is
 * no option at all is a fault of the first walk. */
static void apply_arguments(struct config *config, struct command *command, int argc,
    char *const *argv, struct faults *faults)
{
    struct faults mute = {.count = 0};

    for (int i = 1; i < argc; i++) {
        struct argument argument;
        const struct option *option;
        const char *value;
        bool takes_value;

        if (!argument_split(argv[i], &argument)) {
            (void)faults_add(config == NULL ? faults : &mute, ADTOPK_ERR_STATE,
                "unexpected argument \"%.80s\"", argv[i]);
            continue;
        }
        option = find_flag(argument.flag);
        takes_value =
            option != NULL ? option->argument != NULL : strcmp(argument.flag, "--config") == 0;
        value = argument.value;
        if (takes_value) {
            value = argument_value(&argument, argc, argv, &i, config == NULL ? faults : &mute);
            if (value == NULL) {
                return;
            }
        }
        if (option == NULL && !take_command(command, &argument, value)) {
            refuse_flag(argument.flag, config == NULL ? faults : &mute);
            i += i + 1 < argc && argv[i + 1][0] != '-' ? 1 : 0; /* its value, most likely */
        }
        if (option != NULL && config != NULL) {
            set_flag(config, option, value != NULL ? value : "true", argument.flag, faults);
        }
    }
}

/* ------------------------------------------------------------------ checking */

static void fault_at(const struct config *config, const char *key, size_t place,
    struct faults *faults, const char *format, va_list args)
{
    const struct option *option = option_find(key, strlen(key));
    const enum config_layer layer = config->source[option - option_table].layer;
    char sentence[ERROR_TEXT_SIZE], where[CONFIG_SOURCE_SIZE];

    (void)vsnprintf(sentence, sizeof(sentence), format, args);
    if (layer == LAYER_FILE) {
        const struct json json = {.name = config->file,
            .text = config->text,
            .start = config->text,
            .code = ADTOPK_ERR_ARGUMENT};

        (void)json_blame(&json, config->text + place, faults, "%s", sentence);
    } else if (layer == LAYER_DEFAULT) {
        (void)faults_add(faults, ADTOPK_ERR_ARGUMENT, "%s", sentence);
    } else {
        config_where(config, key, where);
        (void)faults_add(faults, ADTOPK_ERR_ARGUMENT, "%s: %s", where, sentence);
    }
}

void config_fault(
    const struct config *config, const char *key, struct faults *faults, const char *format, ...)
{
    const size_t number = (size_t)(option_find(key, strlen(key)) - option_table);
    va_list args;

    va_start(args, format);
    fault_at(config, key, config->source[number].place, faults, format, args);
    va_end(args);
}

void config_peer_fault(const struct config *config, const struct config_peer *peer,
    struct faults *faults, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fault_at(config, "peers", peer->place, faults, format, args);
    va_end(args);
}

static void check_peer(const struct config *config, size_t at, struct faults *faults)
{
    const struct config_peer *peer = &config->peers[at];
    char what[32];
    struct error err;

    (void)snprintf(what, sizeof(what), "peer %u", peer->node);
    if (endpoint_check(peer->endpoint, what, &err) != ADTOPK_OK) {
        config_peer_fault(config, peer, faults, "%s", err.text);
    }
    if (peer->node == config->node) {
        config_peer_fault(config, peer, faults, "peer %u has this node's own id", peer->node);
    }
    for (size_t i = 0; i < at; i++) {
        const struct config_peer *other = &config->peers[i];

        if (other->node == peer->node) {
            config_peer_fault(config, peer, faults, "peer %u occurs twice", peer->node);
        } else if (strcmp(other->endpoint, peer->endpoint) == 0) {
            config_peer_fault(config, peer, faults,
                "peer %u: %.100s is the endpoint of peer %u too", peer->node, peer->endpoint,
                other->node);
        }
    }
}

static void check_peers(const struct config *config, struct faults *faults)
{
    for (size_t i = 0; i < config->peer_count && !faults_full(faults); i++) {
        check_peer(config, i, faults);
    }
}

/* What a relative path means depends on where the daemon was started: clients would not find it. */
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

static void check_listen(const struct config *config, struct faults *faults)
{
    struct error err;

    if (config->listen[0] == '\0') {
        if (config->peer_count > 0) {
            config_fault(config, "peers", faults,
                "listen is needed, because peers are configured: they connect to it");
        }
    } else if (endpoint_check(config->listen, "listen", &err) != ADTOPK_OK) {
        config_fault(config, "listen", faults, "%s", err.text);
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

            if (strcmp(own[i], peer->endpoint) == 0) {
                config_peer_fault(config, peer, faults,
                    "peer %u: %.100s is where this node itself listens", peer->node, own[i]);
            }
        }
    }
}

static void check_sizes(const struct config *config, struct faults *faults)
{
    if (config->heartbeat_ms * 2 > config->peer_timeout_ms) {
        config_fault(config, "heartbeat_ms", faults,
            "heartbeat_ms %llu is more than half of peer_timeout_ms %llu: peers would flap",
            (unsigned long long)config->heartbeat_ms, (unsigned long long)config->peer_timeout_ms);
    }
    if (config->chunk_size > config->window) {
        config_fault(config, "chunk_size", faults, "chunk_size %llu is more than window %llu",
            (unsigned long long)config->chunk_size, (unsigned long long)config->window);
    }
}

/* Checks of several settings, and the settings that they read. */
static const struct {
    void (*check)(const struct config *config, struct faults *faults);
    const char *reads[8];
} checks[] = {
    {check_listen, {"listen", "peers"}},
    {check_peers, {"node", "peers"}},
    {check_endpoints, {"listen", "bulk_listen", "data_protection", "trainers_listen", "peers"}},
    {config_check_keys,
        {"listen", "peers", "key_file", "bulk_listen", "data_protection", "insecure"}},
    {config_check_trainers,
        {"listen", "trainers_listen", "trainers", "trainers_owner", "key_file", "insecure"}},
    {check_sockets, {"socket", "control_socket"}},
    {check_sizes, {"heartbeat_ms", "peer_timeout_ms", "chunk_size", "window"}},
};

/* Whether all these settings could be read: checks of others would only confuse. */
static bool are_sound(const struct config *config, const char *const *keys, size_t count)
{
    for (size_t i = 0; i < count && keys[i] != NULL; i++) {
        if (config->source[option_find(keys[i], strlen(keys[i])) - option_table].faulty) {
            return false;
        }
    }
    return true;
}

static void check(const struct config *config, struct faults *faults)
{
    for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++) {
        if (are_sound(config, checks[i].reads, sizeof(checks[i].reads) / sizeof(char *))) {
            checks[i].check(config, faults);
        }
    }
}

void config_load(struct config *config, int argc, char *const *argv,
    char *(*environment)(const char *name), enum config_action *action, struct faults *faults)
{
    struct command command = {.action = CONFIG_RUN};
    bool applied;

    set_defaults(config);
    config->argc = argc;
    config->argv = argv;
    apply_arguments(NULL, &command, argc, argv, faults);
    *action = command.action;
    if (command.action == CONFIG_HELP || command.action == CONFIG_VERSION) {
        return;
    }
    if (command.file == NULL) {
        command.file = environment("ADTOPK_CONFIG");
    }
    applied = apply_file(config, command.file, faults);
    apply_environment(config, environment, faults);
    apply_arguments(config, &command, argc, argv, faults);
    if (applied) { /* otherwise most settings are unknown */
        check(config, faults);
    }
}

static void help_line(
    FILE *out, const char *margin, const char *flag, const char *argument, const char *help)
{
    char left[64];

    (void)snprintf(left, sizeof(left), "%s%s%s", flag, argument != NULL ? " " : "",
        argument != NULL ? argument : "");
    (void)fprintf(out, "%s%-26s %s\n", margin, left, help);
}

void config_help(FILE *out)
{
    (void)fprintf(out,
        "usage: adtopkd [OPTION]...\n\n"
        "The adtopk daemon of one node: takes the gradients of its ranks, exchanges\n"
        "what counts with the other nodes, gives every rank the same update.\n\n");
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        help_line(out, "  ", commands[i].flag, commands[i].argument, commands[i].help);
    }
    (void)fprintf(out, "\nSettings, with their defaults:\n");
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        char flag[OPTION_NAME_SIZE];

        option_flag(&option_table[i], flag);
        help_line(out, option_table[i].live ? "* " : "  ", flag, option_table[i].argument,
            option_table[i].help);
    }
    (void)fprintf(out,
        "\nEach setting is also a key of the configuration file (JSON, with _ for -)\n"
        "and a variable (ADTOPK_LOG_LEVEL for --log-level); flags win over variables,\n"
        "variables over the file, which $ADTOPK_CONFIG may name too. Those marked * may\n"
        "change while the daemon runs: SIGHUP makes it read everything again (peers can\n"
        "be added, not removed).\n");
}

unsigned config_default_workers(long cores)
{
    return cores <= 2 ? 1 : cores > 5 ? 4 : (unsigned)(cores - 1);
}
