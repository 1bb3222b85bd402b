/*
 * Fuzz target: the daemon's configuration. The first byte chooses the source of the rest: the file,
 * the environment or the command line. In the last two every line is one variable or argument.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/settings/config.h"
#include "daemon/settings/config_option.h"
#include "proto/json.h"

#define ARGUMENTS_MAX 64
#define WALK_MAX 200 /* values, since each is searched from the start */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The environment of the input that is tried now: config_load() passes no context on. */
static struct {
    char file[64];
    char *variable[OPTION_COUNT];
} environment;

/* Compares as strcmp() does, whose calls libFuzzer would look at: they took most of the time. */
static bool is_same(const char *text, const char *other)
{
    while (*text == *other && *text != '\0') {
        text++;
        other++;
    }
    return *text == *other;
}

static char *look_up(const char *name)
{
    static char variable[OPTION_COUNT][OPTION_NAME_SIZE]; /* made once: it took most of the time */

    if (variable[0][0] == '\0') {
        for (size_t i = 0; i < OPTION_COUNT; i++) {
            option_name(&option_table[i], STYLE_VARIABLE, variable[i]);
        }
    }
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        if (is_same(variable[i], name)) {
            return environment.variable[i];
        }
    }
    return is_same(name, "ADTOPK_CONFIG") ? environment.file : NULL;
}

/* A file in memory with these bytes; its name goes into the environment. */
static void put_file(const char *bytes, size_t size)
{
    static int file = -1;

    if (file < 0) {
        file = memfd_create("config", MFD_CLOEXEC);
        (void)snprintf(environment.file, sizeof(environment.file), "/proc/self/fd/%d", file);
    }
    if (file < 0 || ftruncate(file, 0) != 0 || pwrite(file, bytes, size, 0) != (ssize_t)size) {
        abort();
    }
}

static void check_config(const struct config *config)
{
    if (memchr(config->socket, '\0', sizeof(config->socket)) == NULL ||
        memchr(config->control_socket, '\0', sizeof(config->control_socket)) == NULL ||
        memchr(config->listen, '\0', sizeof(config->listen)) == NULL ||
        config->link.heartbeat_ms == 0 ||
        config->link.heartbeat_ms > config->link.peer_timeout_ms || config->link.part_size == 0 ||
        config->link.part_size > config->link.window) {
        abort();
    }
    for (size_t i = 0; i < config->peer_count; i++) {
        if (config->peers[i].node == config->node ||
            memchr(config->peers[i].endpoint, '\0', CONFIG_ENDPOINT_SIZE) == NULL) {
            abort();
        }
    }
}

static void print(const struct config *config)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    cJSON *document;

    if (out == NULL || config_print(config, out, NULL) != ADTOPK_OK || fclose(out) != 0) {
        abort();
    }
    document = cJSON_Parse(text);
    if (cJSON_GetArraySize(cJSON_GetObjectItem(document, "settings")) != OPTION_COUNT) {
        abort();
    }
    cJSON_Delete(document);
    free(text);
}

/* A configuration that is read again is the same, and prints as a document that names every
 * setting. */
static void check_use(const struct config *config)
{
    struct error err = {ADTOPK_OK, ""};
    struct config fresh;
    char changes[CONFIG_CHANGES_SIZE];
    struct faults faults = {.count = 0};
    enum adtopk_status policy, status;

    config_check_policy(config, &faults);
    policy = faults_first(&faults, &err);
    if (policy != ADTOPK_OK && err.text[0] == '\0') {
        abort();
    }
    status = config_reload(config, &fresh, look_up, &err);
    if (status != policy && status != ADTOPK_ERR_MEMORY) {
        abort();
    }
    config_changes(config, &fresh, changes);
    (void)config_unprotected(config);
    if (changes[0] != '\0') {
        abort();
    }
    config_free(&fresh);
    print(config);
}

static void load(int argc, char **argv)
{
    struct faults faults = {.count = 0};
    enum config_action action;
    struct config config;

    config_load(&config, argc, argv, look_up, &action, &faults);
    for (unsigned i = 0; i < faults_kept(&faults); i++) {
        if (faults.fault[i].code == ADTOPK_OK || faults.fault[i].text[0] == '\0') {
            abort();
        }
    }
    if (faults.count > 0) {
        config_free(&config);
        return;
    }
    if (action == CONFIG_RUN || action == CONFIG_CHECK || action == CONFIG_PRINT) {
        check_config(&config);
        check_use(&config);
    }
    config_free(&config);
}

/* Each value of the tree stands in the text where json_place() says. */
static void walk(const struct json *json, const cJSON *tree, unsigned *left)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, tree)
    {
        const char *value = json_place(json, item, JSON_VALUE);

        if (*left == 0) {
            return;
        }
        --*left;
        if ((cJSON_IsArray(item) && *value != '[') || (cJSON_IsObject(item) && *value != '{') ||
            (cJSON_IsString(item) && *value != '"') || (cJSON_IsTrue(item) && *value != 't') ||
            (cJSON_IsObject(tree) && *json_place(json, item, JSON_KEY) != '"') ||
            json_end(value) <= value || json_line(json->text, value) == 0) {
            abort();
        }
        walk(json, item, left);
    }
}

/* A sentence, or one with two more lines, all of it printable. */
static void check_sentence(const char *text)
{
    unsigned lines = 0;

    for (const char *at = text; *at != '\0'; at++) {
        lines += *at == '\n' ? 1 : 0;
        if (((unsigned char)*at < 0x20 && *at != '\n') || (*at == '\n' && at[1] != ' ')) {
            abort();
        }
    }
    if (lines != 0 && lines != 2) {
        abort();
    }
}

static void check_json(const char *text, size_t size)
{
    struct faults faults = {.count = 0};
    struct json json;
    unsigned left = WALK_MAX;

    if (json_read(&json, "input", text, size, ADTOPK_ERR_ARGUMENT, &faults) == ADTOPK_OK) {
        walk(&json, json.root, &left);
    } else if (faults.count != 1 || strstr(faults.fault[0].text, "input:") == NULL) {
        abort();
    }
    for (unsigned i = 0; i < faults.count; i++) {
        check_sentence(faults.fault[i].text);
    }
    json_free(&json);
}

/* Lines of an environment, of which the last one is NULL. */
static void check_variables(char *const *lines)
{
    char sentence[CONFIG_VARIABLE_SIZE];
    size_t at = 0;

    while (config_unknown_variable(lines, &at, sentence)) {
        if (sentence[0] == '\0' || memchr(sentence, '\0', sizeof(sentence)) == NULL) {
            abort();
        }
    }
}

static void run(unsigned where, char *text, size_t size)
{
    char name[] = "adtopkd";
    char *argv[ARGUMENTS_MAX + 1] = {name};
    int argc = 1;
    size_t variable = 0;

    memset(environment.variable, 0, sizeof(environment.variable));
    put_file("{}", 2);
    if (where == 0) {
        put_file(text, size);
        check_json(text, size);
    } else {
        char *lines[OPTION_COUNT + 1] = {NULL};
        char *rest = NULL;
        for (char *line = strtok_r(text, "\n", &rest); line != NULL;
             line = strtok_r(NULL, "\n", &rest)) {
            if (where == 1 && variable < OPTION_COUNT) {
                environment.variable[variable] = line;
                lines[variable++] = line;
            } else if (where == 2 && argc < ARGUMENTS_MAX && strncmp(line, "--config", 8) != 0) {
                argv[argc++] = line; /* no other files are opened */
            }
        }
        check_variables(lines);
    }
    load(argc, argv);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text;

    if (size == 0) {
        return 0;
    }
    text = malloc(size);
    if (text != NULL) {
        memcpy(text, data + 1, size - 1);
        text[size - 1] = '\0';
        run(data[0] % 3, text, size - 1);
    }
    free(text);
    return 0;
}
