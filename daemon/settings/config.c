#include "daemon/settings/config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/policy/policy.h"
#include "daemon/settings/config_option.h"
#include "proto/arguments.h"
#include "proto/json.h"
#include "proto/retry.h"
#include "proto/utf8.h"

#define FILE_LIMIT (1u << 20)

/* The parts of the command line that are not settings. */
struct command {
    const char *file; /* NULL: the default one */
    enum config_action action;
};

static const struct {
    const char *flag;
    const char *argument;
    enum config_action action;
    const char *help;
} commands[] = {
    {"--config", "FILE", CONFIG_RUN, "configuration file (" CONFIG_FILE ")"},
    {"--check-config", NULL, CONFIG_CHECK, "check the configuration and end"},
    {"--print-config", NULL, CONFIG_PRINT, "print all settings and their sources, and end"},
    {"--help", NULL, CONFIG_HELP, "print this text"},
    {"--version", NULL, CONFIG_VERSION, "print the version"},
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static void set_defaults(struct config *config, struct faults *faults)
{
    *config = (struct config){.trainers_owner = CONFIG_NOBODY, .user = CONFIG_NOBODY};
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        if (option_table[i].standard != NULL) {
            option_set_text(config, &option_table[i], option_table[i].standard, "default", faults);
        }
    }
}

void config_free(struct config *config)
{
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        if (option_table[i].list != NULL) {
            option_table[i].list->clear(config);
        }
    }
    free(config->policy);
    free(config->origin.text);
    config->policy = NULL;
    config->origin.text = NULL;
}

/* Variables of the client, of adtopkctl, of deploy/ and of daemon/device/. Those of tests begin
 * with a prefix. */
static const char *const foreign_variables[] = {"ADTOPK_CONFIG", "ADTOPK_ADDRESS",
    "ADTOPK_SERVER_KEY", "ADTOPK_JOB", "ADTOPK_RUN_ID", "ADTOPK_OS_RELEASE", "ADTOPK_CUDA_LIBRARY",
    "ADTOPK_NCCL_LIBRARY", "ADTOPK_DEVICE_PROGRAM", "ADTOPK_LIBRARY"};
static const char *const test_prefixes[] = {"ADTOPK_TEST_", "ADTOPK_SIM_"};

static bool variable_is_known(const char *name, size_t length)
{
    bool known = option_find(STYLE_VARIABLE, name, length) != NULL;

    for (size_t i = 0; i < COUNT(foreign_variables) && !known; i++) {
        known = strlen(foreign_variables[i]) == length &&
                strncmp(foreign_variables[i], name, length) == 0;
    }
    for (size_t i = 0; i < COUNT(test_prefixes) && !known; i++) {
        known = strncmp(test_prefixes[i], name, strlen(test_prefixes[i])) == 0;
    }
    return known;
}

static void guess_variable(const char *name, size_t length, char text[CONFIG_VARIABLE_SIZE])
{
    char word[GUESS_SIZE], meant[GUESS_TEXT_SIZE];
    struct guess guess;

    (void)snprintf(word, sizeof(word), "%.*s", (int)length, name);
    option_guess(STYLE_VARIABLE, word, &guess);
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

/* The whole file with a NUL behind it, or NULL. It must be a regular file: to open or read anything
 * else could stop a running daemon for ever. */
static char *read_whole(const char *path, size_t *size, struct error *err)
{
    char *text = NULL;
    struct stat file;
    ssize_t got = 1;
    int fd;

    RETRY(fd, open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    if (fd < 0) {
        (void)error_set(err, ADTOPK_ERR_SYSTEM, "cannot open %.100s: %s", path, strerror(errno));
    } else if (fstat(fd, &file) != 0) {
        (void)error_set(err, ADTOPK_ERR_SYSTEM, "cannot read %.100s: %s", path, strerror(errno));
    } else if (!S_ISREG(file.st_mode)) {
        (void)error_set(err, ADTOPK_ERR_ARGUMENT, "%.100s is not a regular file", path);
    } else if (file.st_size > FILE_LIMIT) {
        (void)error_set(
            err, ADTOPK_ERR_ARGUMENT, "%.100s is longer than %u bytes", path, FILE_LIMIT);
    } else if ((text = malloc((size_t)file.st_size + 1)) == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory to read %.100s", path);
    } else {
        for (*size = 0; got > 0; *size += got > 0 ? (size_t)got : 0) {
            RETRY(got, read(fd, text + *size, (size_t)file.st_size - *size));
        }
        if (got < 0) {
            (void)error_set(
                err, ADTOPK_ERR_SYSTEM, "cannot read %.100s: %s", path, strerror(errno));
        } else {
            text[*size] = '\0';
        }
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    if (err->code != ADTOPK_OK) {
        free(text);
        text = NULL;
    }
    return text;
}

static void config_refuse_key(const struct option_json *in, const cJSON *item, bool known)
{
    struct guess guess;
    char meant[GUESS_TEXT_SIZE];

    option_guess(STYLE_KEY, item->string, &guess);
    (void)json_fault(in->json, item, JSON_KEY, in->faults, "\"%.*s\": %s%s",
        UTF8_FIT(40, item->string), known ? "this key occurs twice" : "unknown key",
        known ? "" : guess_text(&guess, meant));
}

static void apply_item(
    struct config *config, const struct option_json *in, const cJSON *item, bool seen[OPTION_COUNT])
{
    const struct option *option = option_find(STYLE_KEY, item->string, strlen(item->string));
    const unsigned before = in->faults->count;
    const char *place = json_place(in->json, item, JSON_VALUE);

    if (option == NULL || seen[option - option_table]) {
        config_refuse_key(in, item, option != NULL);
        return;
    }
    seen[option - option_table] = true;
    option_set_json(config, option, in, item);
    config->origin.source[option - option_table] = (struct config_source){.layer = LAYER_FILE,
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

/* False if nothing of the file could be applied. */
static bool apply_file(struct config *config, const char *path, struct faults *faults)
{
    const char *name = path != NULL ? path : CONFIG_FILE;
    struct error err = {.code = ADTOPK_OK};
    struct json json;
    size_t size = 0;
    bool applied;

    if (path == NULL && access(name, F_OK) != 0 && errno == ENOENT) {
        return true;
    }
    config->origin.text = read_whole(name, &size, &err);
    if (config->origin.text == NULL) {
        (void)faults_add(faults, err.code, "%s", err.text);
        return false;
    }
    (void)snprintf(config->origin.file, sizeof(config->origin.file), "%s", name);
    if (size == strspn(config->origin.text, " \t\r\n")) {
        (void)faults_add(faults, ADTOPK_ERR_ARGUMENT, "%.100s: the file is empty", name);
        return false;
    }
    (void)json_read(
        &json, config->origin.file, config->origin.text, size, ADTOPK_ERR_ARGUMENT, faults);
    applied = cJSON_IsObject(json.root);
    if (applied) {
        apply_document(config, &(struct option_json){.json = &json, .faults = faults});
    } else if (json.root != NULL) {
        (void)json_fault(&json, json.root, JSON_VALUE, faults, "an object, {...}, is needed here");
    }
    json_free(&json);
    return applied;
}

static void apply_environment(
    struct config *config, char *(*environment)(const char *name), struct faults *faults)
{
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        const unsigned before = faults->count;
        char name[OPTION_NAME_SIZE];
        const char *value;

        option_name(&option_table[i], STYLE_VARIABLE, name);
        value = environment(name);
        if (value != NULL) {
            option_set_text(config, &option_table[i], value, name, faults);
            config->origin.source[i] =
                (struct config_source){.layer = LAYER_VARIABLE, .faulty = faults->count > before};
        }
    }
}

void config_where(const struct config *config, const char *key, char where[CONFIG_SOURCE_SIZE])
{
    const struct config_source *source = option_source(config, key);
    const struct option *option = &option_table[source - config->origin.source];

    if (source->layer == LAYER_FILE) {
        (void)snprintf(where, CONFIG_SOURCE_SIZE, "%s:%u", config->origin.file, source->line);
    } else if (source->layer == LAYER_DEFAULT) {
        (void)snprintf(where, CONFIG_SOURCE_SIZE, "default");
    } else {
        option_name(option, source->layer == LAYER_FLAG ? STYLE_FLAG : STYLE_VARIABLE, where);
    }
}

/* The settings, and behind them the commands. */
static bool known_flag(size_t index, struct arguments_flag *flag)
{
    const size_t command = index - OPTION_COUNT;

    if (index < OPTION_COUNT) {
        option_name(&option_table[index], STYLE_FLAG, flag->name);
        flag->value = option_table[index].argument;
    } else if (command < COUNT(commands)) {
        (void)snprintf(flag->name, sizeof(flag->name), "%s", commands[command].flag);
        flag->value = commands[command].argument;
    }
    flag->optional = index < OPTION_COUNT;
    return index < OPTION_COUNT + COUNT(commands);
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
    config->origin.source[option - option_table] =
        (struct config_source){.layer = LAYER_FLAG, .faulty = faults->count > all};
}

static void config_take_command(struct command *command, size_t number, const char *value)
{
    if (value != NULL) {
        command->file = value;
    } else {
        command->action = commands[number].action;
    }
}

/* Walks the command line: for the commands with config NULL, for the settings otherwise. A word
 * that is no option at all is a fault of the first walk. */
static void apply_arguments(struct config *config, struct command *command, int argc,
    char *const *argv, struct faults *faults)
{
    struct faults mute = {.count = 0}, *odd = config == NULL ? faults : &mute;
    struct arguments words = {.argc = argc, .argv = argv};

    while (++words.at < argc) {
        const char *word = argv[words.at];
        char flag[OPTION_NAME_SIZE];
        struct arguments_option given;
        struct error err;

        if (strncmp(word, "--", 2) != 0 || strcspn(word, "=") >= sizeof(flag)) {
            (void)faults_add(odd, ADTOPK_ERR_STATE, "unexpected argument \"%.80s\"", word);
            continue;
        }
        (void)snprintf(flag, sizeof(flag), "%.*s", (int)strcspn(word, "="), word);
        if (arguments_option(&words, known_flag, &given, &err) != ADTOPK_OK) {
            (void)faults_add(odd, ADTOPK_ERR_STATE, "%s", err.text);
            if (given.index < OPTION_COUNT + COUNT(commands)) {
                return;
            }
            words.at += words.at + 1 < argc && argv[words.at + 1][0] != '-' ? 1 : 0; /* its value */
        } else if (given.index >= OPTION_COUNT) {
            config_take_command(command, given.index - OPTION_COUNT, given.value);
        } else if (config != NULL) {
            set_flag(config, &option_table[given.index], given.value != NULL ? given.value : "true",
                flag, faults);
        }
    }
}

/* ------------------------------------------------------------------ checking */

void config_fault_at(const struct config *config, const char *key, size_t place,
    struct faults *faults, const char *format, ...)
{
    const enum config_layer layer = option_source(config, key)->layer;
    char sentence[ERROR_TEXT_SIZE], where[CONFIG_SOURCE_SIZE];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(sentence, sizeof(sentence), format, args);
    va_end(args);
    if (layer == LAYER_FILE) {
        const struct json json = {.name = config->origin.file,
            .text = config->origin.text,
            .start = config->origin.text,
            .code = ADTOPK_ERR_ARGUMENT};

        (void)json_blame(&json, config->origin.text + place, faults, "%s", sentence);
    } else if (layer == LAYER_DEFAULT) {
        (void)faults_add(faults, ADTOPK_ERR_ARGUMENT, "%s", sentence);
    } else {
        config_where(config, key, where);
        (void)faults_add(faults, ADTOPK_ERR_ARGUMENT, "%s: %s", where, sentence);
    }
}

void config_check_policy(const struct config *config, struct faults *faults)
{
    const struct config_source *source = option_source(config, "policy");
    struct policy policy;
    char where[CONFIG_SOURCE_SIZE];

    if (config->policy == NULL) {
        return;
    }
    policy_default(&policy);
    if (source->layer == LAYER_FILE) {
        (void)policy_read_part(&policy, config->origin.file, config->origin.text,
            config->origin.text + source->place, faults);
    } else {
        config_where(config, "policy", where);
        (void)policy_read(&policy, where, config->policy, faults);
    }
}

void config_load(struct config *config, int argc, char *const *argv,
    char *(*environment)(const char *name), enum config_action *action, struct faults *faults)
{
    struct command command = {.action = CONFIG_RUN};
    bool applied;

    set_defaults(config, faults);
    config->origin.argc = argc;
    config->origin.argv = argv;
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
        option_check_all(config, faults);
    }
}

static void help_line(
    FILE *out, const char *margin, const char *flag, const char *argument, const char *help)
{
    int width = fprintf(out, "%s%s%s%s", margin, flag, argument != NULL ? " " : "",
        argument != NULL ? argument : "");

    (void)fprintf(out, "%*s %s", width < 28 ? 28 - width : 0, "", help);
}

void config_help(FILE *out)
{
    (void)fprintf(out,
        "usage: adtopkd [OPTION]...\n\n"
        "The adtopk daemon of one node. It takes the gradients of its ranks, exchanges\n"
        "their largest entries with other nodes, and gives every rank the same update.\n\n");
    for (size_t i = 0; i < COUNT(commands); i++) {
        help_line(out, "  ", commands[i].flag, commands[i].argument, commands[i].help);
        (void)fprintf(out, "\n");
    }
    (void)fprintf(out, "\nSettings, with their defaults:\n");
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        const struct option *option = &option_table[i];
        char flag[OPTION_NAME_SIZE];

        option_name(option, STYLE_FLAG, flag);
        help_line(out, option->live ? "* " : "  ", flag, option->argument, option->help);
        (void)(option->standard != NULL ? fprintf(out, " (%s)\n", option->standard)
                                        : fprintf(out, "\n"));
    }
    (void)fprintf(out,
        "\nEach setting is also a key of the configuration file (JSON, with _ for -)\n"
        "and a variable (ADTOPK_LOG_LEVEL for --log-level); flags win over variables,\n"
        "variables over the file, which $ADTOPK_CONFIG may name too. Those marked * may\n"
        "change while the daemon runs: SIGHUP makes it read everything again (peers can\n"
        "be added, not removed).\n\n"
        "Exit status: 0 ended by SIGTERM or SIGINT, 1 failure, 2 usage or an error in\n"
        "configuration, keys or passed sockets, which another start would meet again;\n"
        "--check-config and --print-config end with 1 for that.\n");
}

unsigned config_default_workers(long cores)
{
    return cores <= 2 ? 1 : cores > 5 ? 4 : (unsigned)(cores - 1);
}

unsigned config_default_network_threads(long cores)
{
    return cores < 16 ? 1 : cores >= 32 ? 4 : (unsigned)(cores / 8);
}
