/* adtopk-exporter: shows what the daemon of this node does, over HTTP. It only reads. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/control/exchange.h"
#include "client/exporter/metrics.h"
#include "client/exporter/server.h"
#include "proto/arguments.h"
#include "proto/passed_sockets.h"

#define LISTEN "127.0.0.1:9477"

enum exit_code { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

enum option {
    OPTION_LISTEN,
    OPTION_SOCKET,
    OPTION_TENSORS,
    OPTION_METRICS,
    OPTION_HELP,
    OPTION_VERSION,
    OPTIONS
};

static const struct {
    const char *name, *value, *help;
} known[OPTIONS] = {
    [OPTION_LISTEN] = {"--listen", "ADDRESS:PORT",
        "where to answer HTTP, unless systemd passes a socket\n"
        "                          (" LISTEN ")"},
    [OPTION_SOCKET] = {"--socket", "PATH",
        "the daemon's control socket\n"
        "                          (" CONTROL_DEFAULT_SOCKET ")"},
    [OPTION_TENSORS] = {"--tensors", NULL,
        "metrics of tensors too: of 1024 at most, of all\n"
        "                          jobs together"},
    [OPTION_METRICS] = {"--metrics", NULL, "print a table of the metrics"},
    [OPTION_HELP] = {"--help", NULL, "print this text"},
    [OPTION_VERSION] = {"--version", NULL, "print the version"},
};

static bool option_known(size_t index, struct arguments_flag *flag)
{
    if (index >= OPTIONS) {
        return false;
    }
    (void)snprintf(flag->name, sizeof(flag->name), "%s", known[index].name);
    flag->value = known[index].value;
    flag->optional = false;
    return true;
}

static void help(void)
{
    (void)puts("usage: adtopk-exporter [OPTION]...\n\n"
               "Answers HTTP requests with what the adtopk daemon of this node says of itself:\n"
               "/metrics for Prometheus, /healthz, a page at /, and documents below /api.\n");
    for (int i = 0; i < OPTIONS; i++) {
        char flag[40];

        (void)snprintf(flag, sizeof(flag), "%s%s%s", known[i].name,
            known[i].value != NULL ? " " : "", known[i].value != NULL ? known[i].value : "");
        (void)printf("  %-22s  %s\n", flag, known[i].help);
    }
    (void)puts("\nExit status: 0 ended by SIGTERM or SIGINT, 1 failure, 2 usage.");
}

/* value: of each option that was given, "" for those without one. */
static enum adtopk_status read_options(
    int argc, char *const *argv, const char *value[OPTIONS], struct error *err)
{
    struct arguments words = {.argc = argc, .argv = argv};

    while (++words.at < argc) {
        struct arguments_option given = {.index = 0};

        if (argv[words.at][0] != '-') {
            return error_set(err, ADTOPK_ERR_ARGUMENT, "\"%s\" is no option", argv[words.at]);
        }
        if (arguments_option(&words, option_known, &given, err) != ADTOPK_OK) {
            return err->code;
        }
        value[given.index] = given.value != NULL ? given.value : "";
    }
    return ADTOPK_OK;
}

static void stop(uv_signal_t *handle, int number)
{
    (void)number;
    uv_stop(handle->loop);
}

/* *socket: the one that systemd has opened (adtopk-exporter.socket); -1: it has none. */
static enum adtopk_status passed_socket(int *socket, struct error *err)
{
    *socket = passed_end() > PASSED_FIRST ? PASSED_FIRST : -1;
    if (*socket < 0) {
        return ADTOPK_OK;
    }
    if (passed_end() > PASSED_FIRST + 1 || !passed_listens(*socket, SOCK_STREAM)) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "the service manager passed something else (LISTEN_FDS) than one socket that listens "
            "for streams: use ListenStream=");
    }
    return passed_take(*socket, err);
}

/* Listens where the options say, or on a socket that was passed. */
static enum adtopk_status exporter_start(
    uv_loop_t *loop, const char *const value[OPTIONS], struct server **server, struct error *err)
{
    struct server_config config = {.address = value[OPTION_LISTEN],
        .path = value[OPTION_SOCKET],
        .tensors = value[OPTION_TENSORS] != NULL};
    char place[SERVER_PLACE_SIZE];

    if (loop == NULL) {
        return error_set(err, ADTOPK_ERR_SYSTEM, "no loop");
    }
    if (passed_socket(&config.socket, err) != ADTOPK_OK ||
        server_start(loop, &config, server, err) != ADTOPK_OK) {
        return err->code;
    }
    (void)fprintf(stderr, "adtopk-exporter: listens on %s%s\n",
        config.socket >= 0 ? "the socket that was passed, " : "", server_place(*server, place));
    if (access(config.path, F_OK) != 0) {
        (void)fprintf(stderr,
            "adtopk-exporter: there is no control socket %s (%s): /healthz answers 503 until a "
            "daemon makes it\n",
            config.path, strerror(errno));
    }
    return ADTOPK_OK;
}

static enum exit_code exporter_run(const char *const value[OPTIONS])
{
    uv_loop_t *loop = uv_default_loop();
    uv_signal_t signals[2];
    const int numbers[2] = {SIGTERM, SIGINT};
    struct error err = {.code = ADTOPK_OK};
    struct server *server;

    (void)signal(SIGPIPE, SIG_IGN);
    if (exporter_start(loop, value, &server, &err) != ADTOPK_OK) {
        (void)fprintf(stderr, "adtopk-exporter: %s\n", err.text);
        return err.code == ADTOPK_ERR_ARGUMENT ? EXIT_USAGE : EXIT_FAILED;
    }
    for (int i = 0; i < 2; i++) {
        (void)uv_signal_init(loop, &signals[i]);
        (void)uv_signal_start(&signals[i], stop, numbers[i]);
    }
    (void)uv_run(loop, UV_RUN_DEFAULT);
    server_stop(server);
    return EXIT_OK;
}

static int flushed(void)
{
    return fflush(stdout) == 0 && !ferror(stdout) ? EXIT_OK : EXIT_FAILED;
}

int main(int argc, char **argv)
{
    const char *value[OPTIONS] = {
        [OPTION_LISTEN] = LISTEN, [OPTION_SOCKET] = CONTROL_DEFAULT_SOCKET};
    struct error err = {.code = ADTOPK_OK};

    if (read_options(argc, argv, value, &err) != ADTOPK_OK) {
        (void)fprintf(
            stderr, "adtopk-exporter: %s\nadtopk-exporter --help lists the options\n", err.text);
        return EXIT_USAGE;
    }
    if (value[OPTION_HELP] != NULL) {
        help();
        return flushed();
    }
    if (value[OPTION_VERSION] != NULL) {
        (void)puts("adtopk-exporter " ADTOPK_VERSION);
        return flushed();
    }
    if (value[OPTION_METRICS] != NULL) {
        metrics_list(stdout);
        return flushed();
    }
    return (int)exporter_run(value);
}
