/* adtopkctl: asks the daemon of this node how things are. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/adtopkctl/connection.h"
#include "client/adtopkctl/show.h"

#define DEFAULT_SOCKET "/run/adtopk/control.sock"
#define DEFAULT_TIMEOUT_MS 5000
#define MAX_TIMEOUT_MS 3600000
#define SCHEMA 1

enum {
    EXIT_OK = 0,
    EXIT_FAILED = 1,
    EXIT_USAGE = 2,
    EXIT_UNREACHABLE = 3,
    EXIT_DENIED = 4,
    EXIT_DEGRADED = 5
};

enum option_id {
    OPTION_SOCKET,
    OPTION_JSON,
    OPTION_TIMEOUT,
    OPTION_JOB,
    OPTION_HELP,
    OPTION_VERSION
};

static const struct option {
    const char *flag;
    const char *argument; /* NULL: takes no value */
    const char *help;
} options[] = {
    [OPTION_SOCKET] = {"--socket", "PATH",
        "control socket of the daemon ($ADTOPK_CONTROL_SOCKET, else\n"
        "                   " DEFAULT_SOCKET ")"},
    [OPTION_JSON] = {"--json", NULL, "print the daemon's document, with its \"schema\""},
    [OPTION_TIMEOUT] = {"--timeout", "MS", "give up after so long (5000)"},
    [OPTION_JOB] = {"--job", "NAME", "stats: only of jobs with this name ('': of all)"},
    [OPTION_HELP] = {"--help", NULL, "print this text"},
    [OPTION_VERSION] = {"--version", NULL, "print the version"},
};

#define OPTION_COUNT (sizeof(options) / sizeof(options[0]))

static const struct command {
    const char *name;
    enum request_kind kind;
    const char *help;
} commands[] = {
    {"status", REQUEST_STATUS, "the daemon, its peers and its jobs, and what they wait for"},
    {"stats", REQUEST_STATS, "what each job sent, and where its time went"},
};

#define COMMAND_COUNT (sizeof(commands) / sizeof(commands[0]))

struct request {
    const struct command *command;
    const char *value[OPTION_COUNT]; /* NULL: not given; "" for those without a value */
    int timeout_ms;
};

static void print_help(FILE *out)
{
    (void)fprintf(out, "usage: adtopkctl [OPTION]... COMMAND\n\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        (void)fprintf(out, "  %-16s %s\n", commands[i].name, commands[i].help);
    }
    (void)fprintf(out, "\n");
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        char left[32];

        (void)snprintf(left, sizeof(left), "%s%s%s", options[i].flag,
            options[i].argument != NULL ? " " : "",
            options[i].argument != NULL ? options[i].argument : "");
        (void)fprintf(out, "  %-16s %s\n", left, options[i].help);
    }
    (void)fprintf(out,
        "\nExit status: 0 all is well, 1 failure, 2 usage, 3 no daemon to reach,\n"
        "4 not allowed, 5 degraded (status: a peer is down, or a job is not running or\n"
        "waits for a node).\n");
}

static int usage(const char *format, const char *what)
{
    (void)fprintf(stderr, "adtopkctl: ");
    (void)fprintf(stderr, format, what);
    (void)fprintf(stderr, "\nadtopkctl --help lists commands and options\n");
    return EXIT_USAGE;
}

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(commands[i].name, name) == 0) {
            return &commands[i];
        }
    }
    return NULL;
}

static size_t find_option(const char *text, size_t length)
{
    size_t i = 0;

    while (i < OPTION_COUNT &&
           (strlen(options[i].flag) != length || strncmp(options[i].flag, text, length) != 0)) {
        i++;
    }
    return i;
}

static int take_option(struct request *request, int argc, char *const *argv, int *at)
{
    const char *given = argv[*at];
    size_t length = strcspn(given, "=");
    size_t option = find_option(given, length);
    const char *value = given[length] == '=' ? given + length + 1 : NULL;

    if (option == OPTION_COUNT || (value != NULL && options[option].argument == NULL)) {
        return usage("unknown option \"%s\"", given);
    }
    if (options[option].argument == NULL) {
        value = "";
    } else if (value == NULL) {
        if (*at + 1 >= argc) {
            return usage("%s needs a value", options[option].flag);
        }
        value = argv[++*at];
    }
    request->value[option] = value;
    return EXIT_OK;
}

static int take_timeout(struct request *request)
{
    const char *text = request->value[OPTION_TIMEOUT];
    char *end = NULL;
    long timeout;

    request->timeout_ms = DEFAULT_TIMEOUT_MS;
    if (text == NULL) {
        return EXIT_OK;
    }
    errno = 0;
    timeout = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || timeout < 1 || timeout > MAX_TIMEOUT_MS) {
        return usage("--timeout: \"%s\" is not a number of milliseconds from 1 to 3600000", text);
    }
    request->timeout_ms = (int)timeout;
    return EXIT_OK;
}

static int parse(struct request *request, int argc, char *const *argv)
{
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-') {
            int code = take_option(request, argc, argv, &i);

            if (code != EXIT_OK) {
                return code;
            }
        } else if (request->command != NULL) {
            return usage("unexpected argument \"%s\"", argv[i]);
        } else {
            request->command = find_command(argv[i]);
            if (request->command == NULL) {
                return usage("unknown command \"%s\"", argv[i]);
            }
        }
    }
    if (request->value[OPTION_HELP] != NULL || request->value[OPTION_VERSION] != NULL) {
        return EXIT_OK;
    }
    if (request->command == NULL) {
        return usage("a command is %s", "needed");
    }
    if (request->value[OPTION_JOB] != NULL && request->command->kind != REQUEST_STATS) {
        return usage("%s belongs to stats", "--job");
    }
    return take_timeout(request);
}

static int exit_code(enum adtopk_status status)
{
    switch (status) {
    case ADTOPK_ERR_UNREACHABLE:
    case ADTOPK_ERR_TIMEOUT: return EXIT_UNREACHABLE;
    case ADTOPK_ERR_DENIED: return EXIT_DENIED;
    default: return EXIT_FAILED;
    }
}

/* Asked the same, the socket for trainers answers, but with no document. */
static int no_document(const char *path, bool has_schema)
{
    (void)fprintf(
        stderr, "adtopkctl: the daemon's answer is not a document of schema %d\n", SCHEMA);
    if (!has_schema) {
        (void)fprintf(stderr,
            "adtopkctl: %s may be the socket for trainers; adtopkctl needs the control socket\n",
            path);
    }
    return EXIT_FAILED;
}

static int show(const struct request *request, const char *path, const char *text)
{
    cJSON *document = cJSON_Parse(text);
    const cJSON *schema = cJSON_GetObjectItemCaseSensitive(document, "schema");
    bool healthy = true;

    if (!cJSON_IsNumber(schema) || schema->valuedouble != SCHEMA) {
        bool has_schema = cJSON_IsNumber(schema);

        cJSON_Delete(document);
        return no_document(path, has_schema);
    }
    if (request->command->kind == REQUEST_STATUS) {
        healthy = show_is_healthy(document);
    }
    if (request->value[OPTION_JSON] != NULL) {
        (void)printf("%s\n", text);
    } else if (request->command->kind == REQUEST_STATUS) {
        show_status(stdout, document);
    } else {
        show_stats(stdout, document);
    }
    cJSON_Delete(document);
    if (fflush(stdout) != 0 || ferror(stdout) != 0) {
        (void)fprintf(stderr, "adtopkctl: cannot write the answer: %s\n", strerror(errno));
        return EXIT_FAILED;
    }
    return healthy ? EXIT_OK : EXIT_DEGRADED;
}

static int ask(const struct request *request)
{
    const char *path = request->value[OPTION_SOCKET];
    const char *job = request->value[OPTION_JOB];
    struct error err = {.code = ADTOPK_OK};
    char *document = NULL;
    enum adtopk_status status;
    int code;

    if (path == NULL) {
        path = getenv("ADTOPK_CONTROL_SOCKET");
    }
    path = path != NULL ? path : DEFAULT_SOCKET;
    status = connection_ask(
        path, request->timeout_ms, request->command->kind, job != NULL ? job : "", &document, &err);
    if (status != ADTOPK_OK) {
        (void)fprintf(stderr, "adtopkctl: %s\n", err.text);
        return exit_code(status);
    }
    code = show(request, path, document);
    free(document);
    return code;
}

int main(int argc, char **argv)
{
    struct request request = {.command = NULL};
    int code = parse(&request, argc, argv);

    if (code != EXIT_OK) {
        return code;
    }
    if (request.value[OPTION_HELP] != NULL) {
        print_help(stdout);
        return EXIT_OK;
    }
    if (request.value[OPTION_VERSION] != NULL) {
        (void)printf("adtopkctl " ADTOPK_VERSION "\n");
        return EXIT_OK;
    }
    return ask(&request);
}
