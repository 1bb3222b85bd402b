#include "daemon/config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/config_json.h"
#include "daemon/config_option.h"
#include "daemon/endpoint.h"
#include "daemon/log.h"

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
        .log_level = LEVEL_INFO,
        .log_format = LOG_FORMAT_TEXT,
        .chunk_size = 256u << 10,
        .window = 8u << 20,
        .peer_timeout_ms = 5000,
        .heartbeat_ms = 1000,
        .stop_timeout_ms = 10000,
    };
}

void config_free(struct config *config)
{
    free(config->peers);
    free(config->policy);
    trainers_clear(config);
    config->peers = NULL;
    config->peer_count = 0;
    config->policy = NULL;
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

const char *config_unknown_variable(char *const *environment, size_t *at)
{
    while (environment[*at] != NULL) {
        const char *variable = environment[(*at)++];

        if (strncmp(variable, "ADTOPK_", 7) == 0 &&
            !variable_is_known(variable, strcspn(variable, "="))) {
            return variable;
        }
    }
    return NULL;
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

static enum adtopk_status apply_document(struct config *config, const cJSON *document,
    const char *path, const char *text, struct error *err)
{
    bool seen[OPTION_COUNT] = {false};
    const char *key = json_first(text);
    const cJSON *item;

    if (!cJSON_IsObject(document)) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "%.100s:%u: an object, {...}, is needed here",
            path, json_line(text, key));
    }
    /* The tree and the text are walked side by side: the text knows the lines. */
    cJSON_ArrayForEach(item, document)
    {
        const struct option *option = option_find(item->string, strlen(item->string));
        char where[ERROR_TEXT_SIZE];
        enum adtopk_status status;

        (void)snprintf(
            where, sizeof(where), "%.100s:%u: \"%.40s\"", path, json_line(text, key), item->string);
        if (option == NULL || seen[option - option_table]) {
            return error_set(err, ADTOPK_ERR_ARGUMENT, "%s: %s", where,
                option == NULL ? "unknown key" : "this key occurs twice");
        }
        seen[option - option_table] = true;
        status = option_set_json(config, option, item, json_value(key), where, err);
        if (status != ADTOPK_OK) {
            return status;
        }
        config->source[option - option_table] =
            (struct config_source){.layer = LAYER_FILE, .line = json_line(text, json_value(key))};
        key = json_next(key);
    }
    return ADTOPK_OK;
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

static enum adtopk_status apply_file(struct config *config, const char *path, struct error *err)
{
    const char *name = path != NULL ? path : CONFIG_FILE;
    enum adtopk_status status;
    cJSON *document = NULL;
    FILE *stream;
    char *text;
    size_t size = 0;

    if (path == NULL && access(name, F_OK) != 0 && errno == ENOENT) {
        return ADTOPK_OK;
    }
    stream = open_file(name, err);
    if (stream == NULL) {
        return err->code;
    }
    (void)snprintf(config->file, sizeof(config->file), "%s", name);
    text = read_stream(stream, name, &size, err);
    (void)fclose(stream);
    if (text != NULL && size == strspn(text, " \t\r\n")) {
        (void)error_set(err, ADTOPK_ERR_ARGUMENT, "%.100s: the file is empty", name);
    } else if (text != NULL) {
        document = json_parse(name, text, size, err);
    }
    status = document != NULL ? apply_document(config, document, name, text, err) : err->code;
    cJSON_Delete(document);
    free(text);
    return status;
}

static enum adtopk_status apply_environment(
    struct config *config, char *(*environment)(const char *name), struct error *err)
{
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        char name[OPTION_NAME_SIZE];
        enum adtopk_status status;
        const char *value;

        option_variable(&option_table[i], name);
        value = environment(name);
        if (value == NULL) {
            continue;
        }
        status = option_set_text(config, &option_table[i], value, name, err);
        if (status != ADTOPK_OK) {
            return status;
        }
        config->source[i] = (struct config_source){.layer = LAYER_VARIABLE};
    }
    return ADTOPK_OK;
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

/* Walks the command line: for the commands with config NULL, for the settings otherwise. */
static enum adtopk_status apply_arguments(
    struct config *config, struct command *command, int argc, char *const *argv, struct error *err)
{
    for (int i = 1; i < argc; i++) {
        struct argument argument;
        const struct option *option;
        const char *value;
        bool takes_value;

        if (!argument_split(argv[i], &argument)) {
            return error_set(err, ADTOPK_ERR_STATE, "unexpected argument \"%.80s\"", argv[i]);
        }
        option = find_flag(argument.flag);
        takes_value =
            option != NULL ? option->argument != NULL : strcmp(argument.flag, "--config") == 0;
        value = argument.value;
        if (value == NULL && takes_value) {
            value = i + 1 < argc ? argv[++i] : NULL;
            if (value == NULL) {
                return error_set(err, ADTOPK_ERR_STATE, "%s needs a value", argument.flag);
            }
        }
        if (option == NULL && !take_command(command, &argument, value)) {
            return error_set(err, ADTOPK_ERR_STATE, "unknown option \"%.80s\"", argv[i]);
        }
        if (option != NULL && config != NULL) {
            if (option_set_text(config, option, value != NULL ? value : "true", argument.flag,
                    err) != ADTOPK_OK) {
                return err->code = ADTOPK_ERR_STATE;
            }
            config->source[option - option_table] = (struct config_source){.layer = LAYER_FLAG};
        }
    }
    return ADTOPK_OK;
}

static enum adtopk_status check_peers(const struct config *config, struct error *err)
{
    for (size_t i = 0; i < config->peer_count; i++) {
        const struct config_peer *peer = &config->peers[i];
        char what[32];
        enum adtopk_status status;

        (void)snprintf(what, sizeof(what), "peer %u", peer->node);
        status = endpoint_check(peer->endpoint, what, err);
        if (status != ADTOPK_OK) {
            return status;
        }
        if (strcmp(peer->endpoint, config->listen) == 0) {
            return error_set(err, ADTOPK_ERR_ARGUMENT,
                "peer %u: %.100s is where this node itself listens", peer->node, peer->endpoint);
        }
        if (peer->node == config->node) {
            return error_set(
                err, ADTOPK_ERR_ARGUMENT, "peer %u has this node's own id", peer->node);
        }
        for (size_t j = 0; j < i; j++) {
            if (config->peers[j].node == peer->node) {
                return error_set(err, ADTOPK_ERR_ARGUMENT, "peer %u occurs twice", peer->node);
            }
        }
    }
    return ADTOPK_OK;
}

/* What a relative path means depends on where the daemon was started: clients would not find it. */
static enum adtopk_status check_path(const char *key, const char *path, struct error *err)
{
    return path[0] == '/' ? ADTOPK_OK
                          : error_set(err, ADTOPK_ERR_ARGUMENT,
                                "%s: \"%s\" is not an absolute path", key, path);
}

static enum adtopk_status check_listen(const struct config *config, struct error *err)
{
    if (config->listen[0] != '\0') {
        return endpoint_check(config->listen, "listen", err);
    }
    return config->peer_count == 0
               ? ADTOPK_OK
               : error_set(err, ADTOPK_ERR_ARGUMENT,
                     "listen is needed, because peers are configured: they connect to it");
}

/* Puts in front of the sentence where the setting was made that it speaks of. */
static enum adtopk_status blame(const struct config *config, const char *key, struct error *err)
{
    char where[CONFIG_SOURCE_SIZE];
    struct error plain = *err;

    if (config->source[option_find(key, strlen(key)) - option_table].layer == LAYER_DEFAULT) {
        return err->code;
    }
    config_where(config, key, where);
    return error_set(err, plain.code, "%s: %s", where, plain.text);
}

static enum adtopk_status check(const struct config *config, struct error *err)
{
    const char *key = NULL;

    if (check_listen(config, err) != ADTOPK_OK) {
        return blame(config, config->listen[0] != '\0' ? "listen" : "peers", err);
    }
    if (check_peers(config, err) != ADTOPK_OK) {
        return blame(config, "peers", err);
    }
    if (config_check_keys(config, &key, err) != ADTOPK_OK) {
        return blame(config, key, err);
    }
    if (config_check_trainers(config, &key, err) != ADTOPK_OK) {
        return blame(config, key, err);
    }
    if (check_path("socket", config->socket, err) != ADTOPK_OK) {
        return blame(config, "socket", err);
    }
    if (check_path("control_socket", config->control_socket, err) != ADTOPK_OK) {
        return blame(config, "control_socket", err);
    }
    if (strcmp(config->socket, config->control_socket) == 0) {
        (void)error_set(
            err, ADTOPK_ERR_ARGUMENT, "socket and control_socket are both %s", config->socket);
        return blame(config, "control_socket", err);
    }
    if (config->heartbeat_ms * 2 > config->peer_timeout_ms) {
        (void)error_set(err, ADTOPK_ERR_ARGUMENT,
            "heartbeat_ms %llu is more than half of peer_timeout_ms %llu: peers would flap",
            (unsigned long long)config->heartbeat_ms, (unsigned long long)config->peer_timeout_ms);
        return blame(config, "heartbeat_ms", err);
    }
    if (config->chunk_size > config->window) {
        (void)error_set(err, ADTOPK_ERR_ARGUMENT, "chunk_size %llu is more than window %llu",
            (unsigned long long)config->chunk_size, (unsigned long long)config->window);
        return blame(config, "chunk_size", err);
    }
    return ADTOPK_OK;
}

enum adtopk_status config_load(struct config *config, int argc, char *const *argv,
    char *(*environment)(const char *name), enum config_action *action, struct error *err)
{
    struct command command = {.action = CONFIG_RUN};
    enum adtopk_status status;

    set_defaults(config);
    config->argc = argc;
    config->argv = argv;
    status = apply_arguments(NULL, &command, argc, argv, err);
    *action = command.action;
    if (status != ADTOPK_OK || command.action == CONFIG_HELP || command.action == CONFIG_VERSION) {
        return status;
    }
    if (command.file == NULL) {
        command.file = environment("ADTOPK_CONFIG");
    }
    status = apply_file(config, command.file, err);
    if (status == ADTOPK_OK) {
        status = apply_environment(config, environment, err);
    }
    if (status == ADTOPK_OK) {
        status = apply_arguments(config, &command, argc, argv, err);
    }
    return status == ADTOPK_OK ? check(config, err) : status;
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
