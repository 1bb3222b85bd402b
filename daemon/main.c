/* adtopkd: reads the configuration, prepares the process, runs the loop until it is told to stop.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <malloc.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include "daemon/log.h"
#include "daemon/loop/loop.h"
#include "daemon/loop/notify.h"
#include "daemon/settings/config.h"
#include "daemon/settings/privilege.h"
#include "proto/retry.h"

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

/* A socket that got descriptor 2 would be sent our log. */
static bool open_standard_streams(void)
{
    int fd;

    do {
        RETRY(fd, open("/dev/null", O_RDWR | O_CLOEXEC));
    } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd < 0) {
        (void)dprintf(STDERR_FILENO, "adtopkd: cannot open /dev/null: %s\n", strerror(errno));
        return false;
    }
    (void)close(fd);
    return true;
}

/* A peer or client that goes away must be an error code, not a signal; so must a memory file that
 * RLIMIT_FSIZE refuses. */
static void ignore_signals(void)
{
    struct sigaction ignore = {.sa_handler = SIG_IGN};

    (void)sigaction(SIGPIPE, &ignore, NULL);
    (void)sigaction(SIGXFSZ, &ignore, NULL);
}

/* SIGHUP means something to the loop only; one that comes before or after it must not kill us. */
static void take_hangups(int how)
{
    sigset_t hangup;

    (void)sigemptyset(&hangup);
    (void)sigaddset(&hangup, SIGHUP);
    (void)sigprocmask(how, &hangup, NULL);
}

static void raise_descriptor_limit(struct log *log)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return;
    }
    if (limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
    log_write(
        log, LEVEL_DEBUG, LOG_LIFE, "up to %llu descriptors", (unsigned long long)limit.rlim_cur);
}

static enum adtopk_status draw_incarnation(uint64_t *incarnation, struct error *err)
{
    do {
        if (getrandom(incarnation, sizeof(*incarnation), 0) != (ssize_t)sizeof(*incarnation)) {
            return error_set(err, ADTOPK_ERR_SYSTEM, "no random numbers: %s", strerror(errno));
        }
    } while (*incarnation == 0);
    return ADTOPK_OK;
}

static void notify(struct log *log, const char *state)
{
    struct error err = {.code = ADTOPK_OK};

    if (notify_send(state, &err) != ADTOPK_OK) {
        log_write(log, LEVEL_WARNING, LOG_LIFE, "%s", err.text);
    }
}

/* What is possible and probably not meant. */
static void warn_of_settings(const struct config *config, struct log *log)
{
    const char *const warnings[] = {config_unprotected(config), config_unreachable(config),
        config_is_unset(config)
            ? "there is no " CONFIG_FILE
              " and no other setting of `node`, `peers` or `seeds`: this is node 0, alone"
            : NULL};

    for (size_t i = 0; i < sizeof(warnings) / sizeof(warnings[0]); i++) {
        if (warnings[i] != NULL) {
            log_write(log, LEVEL_WARNING, LOG_LIFE, "%s", warnings[i]);
        }
    }
}

static enum adtopk_status serve(struct config *config, struct log *log, struct error *err)
{
    uint64_t incarnation = 0;
    struct loop *loop;

    if (draw_incarnation(&incarnation, err) != ADTOPK_OK) {
        return err->code;
    }
    raise_descriptor_limit(log);
    loop = loop_create(config, log, incarnation, err);
    if (loop == NULL) {
        return err->code;
    }
    log_write(log, LEVEL_INFO, LOG_LIFE,
        "adtopkd " ADTOPK_VERSION " serves node %" PRIu64 " on %s, control on %s, %zu peer%s%s%s",
        config->node, config->socket, config->control_socket, config->peer_count,
        error_s(config->peer_count), config->listen[0] != '\0' ? ", listening on " : "",
        config->listen);
    warn_of_settings(config, log);
    notify(log, "READY=1");
    take_hangups(SIG_UNBLOCK);
    loop_run(loop);
    take_hangups(SIG_BLOCK);
    loop_destroy(loop);
    log_write(log, LEVEL_INFO, LOG_LIFE, "stopped");
    return ADTOPK_OK;
}

/* The status of a program that has printed. */
static int printed(void)
{
    return fflush(stdout) == 0 && !ferror(stdout) ? EXIT_OK : EXIT_FAILED;
}

static int report(const struct faults *faults)
{
    bool usage = false;

    for (unsigned i = 0; i < faults_kept(faults); i++) {
        (void)fprintf(stderr, "adtopkd: %s\n", faults->fault[i].text);
        usage = usage || faults->fault[i].code == ADTOPK_ERR_STATE;
    }
    if (faults->count > FAULTS_MAX) {
        (void)fprintf(stderr, "adtopkd: and more\n");
    }
    if (usage) {
        (void)fprintf(stderr, "adtopkd --help lists the options\n");
    }
    return usage ? EXIT_USAGE : EXIT_FAILED;
}

static void log_unknown_variables(struct log *log)
{
    char text[CONFIG_VARIABLE_SIZE];
    size_t at = 0;

    while (config_unknown_variable(environ, &at, text)) {
        log_write(log, LEVEL_WARNING, LOG_LIFE, "%s", text);
    }
}

static void print_unknown_variables(void)
{
    char text[CONFIG_VARIABLE_SIZE];
    size_t at = 0;

    while (config_unknown_variable(environ, &at, text)) {
        (void)fprintf(stderr, "adtopkd: warning: %s\n", text);
    }
}

/* Before the first thread, the first socket and the first key: all of them are the user's own. */
static enum adtopk_status become_user(const struct config *config, struct error *err)
{
    return config->user != CONFIG_NOBODY ? privilege_drop(config->user, err) : ADTOPK_OK;
}

/* The unit starts the daemon as this user. */
#define SERVICE_USER "adtopk"

/* Root may read more than the daemon that the unit starts. */
static void check_as_service(const struct config *config, struct faults *faults)
{
    const char *file = config->origin.file;
    const struct passwd *user = strcmp(file, CONFIG_FILE) == 0 ? getpwnam(SERVICE_USER) : NULL;
    struct error err = {.code = ADTOPK_OK};

    if (user == NULL) {
        return; /* this is not the unit's file: root would start that daemon itself */
    }
    (void)fprintf(stderr, "adtopkd: checking as user " SERVICE_USER
                          ", like the unit; --user=NAME checks as another\n");
    if (privilege_drop(user->pw_uid, &err) != ADTOPK_OK) {
        (void)faults_add(faults, err.code, "%s", err.text);
    } else if (access(file, R_OK) != 0) {
        (void)faults_add(faults, ADTOPK_ERR_SYSTEM, "%.200s: %s", file, strerror(errno));
    }
}

/* Root may have read what the daemon's user cannot. */
static void warn_of_file(const struct config *config)
{
    const char *file = config->origin.file;
    const struct passwd *user =
        config->user != CONFIG_NOBODY ? getpwuid((uid_t)config->user) : NULL;

    if (user != NULL && file[0] != '\0' && access(file, R_OK) != 0) {
        (void)fprintf(stderr,
            "adtopkd: warning: %s: %s: user %s cannot read it again after a SIGHUP\n", file,
            strerror(errno), user->pw_name);
    }
}

/* --check-config tells of everything that is wrong, also on this machine. */
static int check(const struct config *config, struct faults *faults)
{
    struct error err;

    print_unknown_variables();
    if (config->user == CONFIG_NOBODY && geteuid() == 0) {
        check_as_service(config, faults);
    } else if (become_user(config, &err) != ADTOPK_OK) {
        (void)faults_add(faults, err.code, "%s", err.text);
    }
    config_check_policy(config, faults);
    config_check_machine(config, faults);
    loop_check(config, faults);
    if (faults->count > 0) {
        return report(faults);
    }
    if (config_unreachable(config) != NULL) {
        (void)fprintf(stderr, "adtopkd: warning: %s\n", config_unreachable(config));
    }
    warn_of_file(config);
    (void)printf("the configuration is correct%s\n",
        config->origin.file[0] == '\0' ? "; there is no " CONFIG_FILE : "");
    return printed();
}

/* Faults that another start would only meet again. */
static void check_start(const struct config *config, struct faults *faults)
{
    struct keyfile_pair pair = {.secret_key = ""};
    struct error err = {.code = ADTOPK_OK};

    config_check_policy(config, faults);
    if (become_user(config, &err) != ADTOPK_OK ||
        config_load_keys(config, &pair, &err) != ADTOPK_OK) {
        (void)faults_add(faults, err.code, "%s", err.text);
    }
    keyfile_wipe(&pair);
}

/* --print-config */
static int main_print(const struct config *config, struct faults *faults)
{
    struct error err = {.code = ADTOPK_OK};

    print_unknown_variables();
    check_start(config, faults);
    if (faults->count == 0 && config_print(config, stdout, &err) != ADTOPK_OK) {
        (void)faults_add(faults, err.code, "%s", err.text);
    }
    if (faults->count > 0) {
        return report(faults);
    }
    return printed();
}

static int run(struct config *config)
{
    struct faults faults = {.count = 0};
    struct error err = {.code = ADTOPK_OK};
    struct log log;

    log_init(&log, STDERR_FILENO, (enum log_level)config->log_level,
        (enum log_format)config->log_format, getenv("JOURNAL_STREAM"));
    log_unknown_variables(&log);
    if (loop_take_passed(config, &err) != ADTOPK_OK) {
        (void)faults_add(&faults, err.code, "%s", err.text);
    }
    check_start(config, &faults);
    config_check_hosts(config, true, &faults);
    if (faults_first(&faults, &err) != ADTOPK_OK || serve(config, &log, &err) != ADTOPK_OK) {
        /* the first line names the place; the log shows no lines of documents */
        log_write(&log, LEVEL_ERROR, LOG_LIFE, "cannot start: %.*s", (int)strcspn(err.text, "\n"),
            err.text);
        return faults.count > 0 || err.code == ADTOPK_ERR_ARGUMENT ? EXIT_USAGE : EXIT_FAILED;
    }
    return EXIT_OK;
}

/* Frames and lists are allocated in every step: to map and fault them anew each time took a fifth
 * of it. Up to so many bytes of them stay with the process, in one heap; more goes back at once. */
#define KEPT_MEMORY (32 << 20)

static void main_keep_memory(void)
{
#ifdef __GLIBC__
    (void)mallopt(M_MMAP_THRESHOLD, KEPT_MEMORY);
    (void)mallopt(M_TRIM_THRESHOLD, KEPT_MEMORY);
    (void)mallopt(M_ARENA_MAX, 1);
#endif
}

static int act(enum config_action action, struct config *config, struct faults *faults)
{
    switch (action) {
    case CONFIG_HELP: config_help(stdout); return printed();
    case CONFIG_VERSION: (void)printf("adtopkd " ADTOPK_VERSION "\n"); return printed();
    case CONFIG_CHECK: return check(config, faults);
    case CONFIG_PRINT: return main_print(config, faults);
    case CONFIG_RUN: break;
    }
    return run(config);
}

int main(int argc, char **argv)
{
    struct config config;
    struct faults faults = {.count = 0};
    enum config_action action = CONFIG_RUN;
    int code;

    if (!open_standard_streams()) {
        return EXIT_FAILED;
    }
    main_keep_memory();
    ignore_signals();
    take_hangups(SIG_BLOCK);
    config_load(&config, argc, argv, getenv, &action, &faults);
    if (faults.count == 0 || action == CONFIG_CHECK) {
        code = act(action, &config, &faults);
    } else {
        code = report(&faults);
        /* Also where a file is wrong: to start again would not help. */
        code = action == CONFIG_RUN ? EXIT_USAGE : code;
    }
    config_free(&config);
    return code;
}
