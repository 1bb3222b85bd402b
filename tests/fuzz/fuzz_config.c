/*
 * Fuzz target: the daemon's configuration. The first byte says where the rest is: the file, the
 * environment or the command line; of those two every line is one variable or argument.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/config.h"
#include "daemon/config_json.h"
#include "daemon/config_option.h"

#define ARGUMENTS_MAX 64
#define DEPTH_MAX 100

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The environment of the input that is tried now: config_load() passes no context on. */
static struct {
    char file[64];
    char *variable[OPTION_COUNT];
} environment;

static char *look_up(const char *name)
{
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        char variable[OPTION_NAME_SIZE];
        option_variable(&option_table[i], variable);
        if (strcmp(variable, name) == 0) {
            return environment.variable[i];
        }
    }
    return strcmp(name, "ADTOPK_CONFIG") == 0 ? environment.file : NULL;
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
        memchr(config->listen, '\0', sizeof(config->listen)) == NULL || config->heartbeat_ms == 0 ||
        config->heartbeat_ms > config->peer_timeout_ms || config->chunk_size == 0 ||
        config->chunk_size > config->window) {
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

/* What is read again is the same, and prints as a document that names every setting. */
static void check_use(const struct config *config)
{
    struct error err = {ADTOPK_OK, ""};
    struct config fresh;
    char changes[CONFIG_CHANGES_SIZE];
    enum adtopk_status policy = config_check_policy(config, &err);
    enum adtopk_status status;

    if (policy != ADTOPK_OK && err.text[0] == '\0') {
        abort();
    }
    status = config_reload(config, &fresh, look_up, &err);
    if (status != policy && status != ADTOPK_ERR_MEMORY) {
        abort();
    }
    config_changes(config, &fresh, changes);
    if (changes[0] != '\0') {
        abort();
    }
    config_free(&fresh);
    print(config);
}

static void load(int argc, char **argv)
{
    struct error err = {ADTOPK_OK, ""};
    enum config_action action;
    struct config config;
    enum adtopk_status status = config_load(&config, argc, argv, look_up, &action, &err);

    if (status != ADTOPK_OK) {
        if (err.code != status || err.text[0] == '\0') {
            abort();
        }
    } else if (action == CONFIG_RUN || action == CONFIG_CHECK || action == CONFIG_PRINT) {
        check_config(&config);
        check_use(&config);
    }
    config_free(&config);
}

/* The tree and the text side by side, as config.c walks them. */
static void walk(const cJSON *tree, const char *text, unsigned depth)
{
    const char *place = json_first(text);
    const cJSON *item;

    if (depth == DEPTH_MAX || (!cJSON_IsArray(tree) && !cJSON_IsObject(tree))) {
        return;
    }
    cJSON_ArrayForEach(item, tree)
    {
        const char *value;
        if (place == NULL) {
            abort();
        }
        value = cJSON_IsObject(tree) ? json_value(place) : place;
        if ((cJSON_IsArray(item) && *value != '[') || (cJSON_IsObject(item) && *value != '{') ||
            (cJSON_IsString(item) && *value != '"') || (cJSON_IsTrue(item) && *value != 't') ||
            json_end(value) <= value) {
            abort();
        }
        walk(item, value, depth + 1);
        place = json_next(place);
    }
    if (place != NULL && tree->child != NULL) {
        abort(); /* the text has more elements than the tree */
    }
}

static void check_json(const char *text, size_t size)
{
    struct error err = {ADTOPK_OK, ""};
    cJSON *tree = json_parse("input", text, size, &err);

    if (tree != NULL) {
        const char *start = text + strspn(text, " \t\r\n");
        walk(tree, start, 0);
    } else if (err.code == ADTOPK_OK || strstr(err.text, "input:") == NULL) {
        abort();
    }
    cJSON_Delete(tree);
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
        char *rest = NULL;
        for (char *line = strtok_r(text, "\n", &rest); line != NULL;
             line = strtok_r(NULL, "\n", &rest)) {
            if (where == 1 && variable < OPTION_COUNT) {
                environment.variable[variable++] = line;
            } else if (where == 2 && argc < ARGUMENTS_MAX && strncmp(line, "--config", 8) != 0) {
                argv[argc++] = line; /* no other files are opened */
            }
        }
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
