/* The options for joining: the caller's, else the variables that launchers set. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/src/context.h"
#include "client/src/sized.h"
#include "proto/utf8.h"

#define OPTIONS_ADDRESS "unix:/run/adtopk/trainers/adtopkd.sock"
#define OPTIONS_MAX_WORLD 65536
#define OPTIONS_CONNECT_MS 10000

/* torchrun comes first. MPI launchers come before Slurm: inside an allocation they start one
 * process per node by srun, and the ranks inherit its SLURM_PROCID. */
static const char *const options_rank[] = {
    "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", NULL};
static const char *const options_world[] = {
    "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", NULL};

/* The variable's value if it is set and not empty, or NULL. */
static const char *options_variable(const char *name)
{
    const char *value = getenv(name);

    return value != NULL && value[0] != '\0' ? value : NULL;
}

/* The given text, else the variable's, else the default. */
static const char *options_text(const char *given, const char *variable, const char *otherwise)
{
    const char *value = given != NULL ? given : options_variable(variable);

    return value != NULL ? value : otherwise;
}

/* Parses a number: digits and nothing else, at most `limit`. */
static enum adtopk_status options_number(
    const char *name, const char *text, int limit, int *number, struct error *err)
{
    const size_t digits = strspn(text, "0123456789");
    long value = 0;

    errno = 0;
    if (digits > 0 && text[digits] == '\0') {
        value = strtol(text, NULL, 10);
    }
    if (digits == 0 || text[digits] != '\0' || errno != 0 || value > limit) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "the variable %s is \"%.60s\", not a number from 0 to %d", name, text, limit);
    }
    *number = (int)value;
    return ADTOPK_OK;
}

/* The first of the variables that is set, or NULL. */
static const char *options_first(const char *const *names)
{
    while (*names != NULL && options_variable(*names) == NULL) {
        names++;
    }
    return *names;
}

/* Reads the first of the variables that is set. *number stays as it is if none is. */
static enum adtopk_status options_first_number(
    const char *const *names, int limit, int *number, struct error *err)
{
    const char *name = options_first(names);

    return name != NULL ? options_number(name, options_variable(name), limit, number, err)
                        : ADTOPK_OK;
}

static enum adtopk_status options_key_size(const char *field, size_t bytes, struct error *err)
{
    return error_set(err, ADTOPK_ERR_ARGUMENT, "the %s has %zu bytes; 1 to %d are allowed", field,
        bytes, CLIENT_KEY_MAX);
}

static enum adtopk_status options_key(
    char to[CLIENT_KEY_MAX + 1], const char *field, const char *text, struct error *err)
{
    const size_t length = strlen(text);
    char fault[UTF8_FAULT_SIZE];

    if (length == 0 || length > CLIENT_KEY_MAX) {
        return options_key_size(field, length, err);
    }
    if (utf8_name_fault(text, fault)) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "the %s has %s", field, fault);
    }
    memcpy(to, text, length + 1);
    return ADTOPK_OK;
}

/* The job's name; "JOB@GROUP" if there is a group. */
static enum adtopk_status options_job(
    const struct adtopk_options *options, char to[CLIENT_KEY_MAX + 1], struct error *err)
{
    const char *job = options_text(options->job, "ADTOPK_JOB", "default");
    char text[2 * CLIENT_KEY_MAX];
    int length;

    if (options->group == NULL) {
        return options_key(to, "job's name", job, err);
    }
    if (options->group[0] == '\0' || strchr(options->group, '@') != NULL) {
        return error_set(
            err, ADTOPK_ERR_ARGUMENT, "the group \"%.63s\" is empty or has an @", options->group);
    }
    length = snprintf(text, sizeof text, "%s@%s", job, options->group);
    if ((size_t)length >= sizeof text) {
        return options_key_size("job's name with its group", (size_t)length, err);
    }
    return options_key(to, "job's name with its group", text, err);
}

/* torchrun's default id is the same for all runs. To tell runs apart, use the address at which the
 * ranks meet. Returns the length that the text would need. */
static int options_run_text(char *to, size_t size, const char *id, const char *count)
{
    const char *host = options_variable("MASTER_ADDR"), *port = options_variable("MASTER_PORT");

    if (strcmp(id, "none") == 0 && host != NULL && port != NULL) {
        return snprintf(to, size, "%.40s:%s%s%s", host, port, count != NULL ? "." : "",
            count != NULL ? count : "");
    }
    return snprintf(to, size, "%s%s%s", id, count != NULL ? "." : "", count != NULL ? count : "");
}

/* Makes the run id from the launcher's id and, where there is one, a count within it. */
static enum adtopk_status options_run_id(
    const char *given, char to[CLIENT_KEY_MAX + 1], struct error *err)
{
    static const char *const source[][2] = {{"ADTOPK_RUN_ID", NULL},
        {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}, {"SLURM_JOB_ID", "SLURM_STEP_ID"},
        {"PMIX_NAMESPACE", NULL}, {"OMPI_MCA_ess_base_jobid", NULL}};
    char text[2 * CLIENT_KEY_MAX];
    int length;

    if (given != NULL) {
        return options_key(to, "run id", given, err);
    }
    for (size_t i = 0; i < sizeof source / sizeof source[0]; i++) {
        const char *id = options_variable(source[i][0]);
        const char *count = source[i][1] != NULL ? options_variable(source[i][1]) : NULL;

        if (id != NULL) {
            length = options_run_text(text, sizeof text, id, count);
            if ((size_t)length >= sizeof text) {
                return options_key_size(source[i][0], (size_t)length, err);
            }
            return options_key(to, source[i][0], text, err);
        }
    }
    return options_key(to, "run id", "0", err);
}

/* Whether the text has the form HOST:PORT. Only connecting shows whether the host exists. */
static bool options_is_remote(const char *place)
{
    const char *colon = strrchr(place, ':');
    const char *port = colon != NULL ? colon + 1 : "";
    const size_t digits = strspn(port, "0123456789");
    const long number = digits > 0 && digits < 6 ? strtol(port, NULL, 10) : 0;

    return colon != place && port[digits] == '\0' && number >= 1 && number <= 65535;
}

static enum adtopk_status options_address(
    const char *address, struct client_options *resolved, struct error *err)
{
    const bool local = strncmp(address, "unix:", strlen("unix:")) == 0;
    const char *path = address + strlen("unix:");

    if (!local && strncmp(address, "tcp://", strlen("tcp://")) != 0) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "the address \"%.100s\" does not begin with \"unix:\" or \"tcp://\"%s", address,
            address[0] == '/' ? ": a path needs \"unix:\"" : "");
    }
    if (local && (path[0] == '\0' || strlen(path) >= sizeof resolved->path)) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "the path in the address \"%.120s\" has %zu bytes; 1 to %zu are allowed", address,
            strlen(path), sizeof resolved->path - 1);
    }
    if (strlen(address) >= sizeof resolved->address) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "the address \"%.60s...\" has %zu bytes; %zu are allowed", address, strlen(address),
            sizeof resolved->address - 1);
    }
    if (!local && !options_is_remote(address + strlen("tcp://"))) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "the address \"%.100s\" is not tcp://HOST:PORT with a port from 1 to 65535", address);
    }
    memcpy(resolved->address, address, strlen(address) + 1);
    if (local) {
        memcpy(resolved->path, path, strlen(path) + 1);
    }
    return ADTOPK_OK;
}

static enum adtopk_status options_place_world(
    const struct adtopk_options *options, int *world_size, struct error *err)
{
    *world_size = options->world_size != 0 ? options->world_size : 1;
    if (options->world_size == 0) {
        if (!options->has_rank && options_first(options_world) == NULL &&
            options_variable("RANK") != NULL) {
            return error_set(err, ADTOPK_ERR_ARGUMENT,
                "$RANK is set, and $WORLD_SIZE, the number of ranks, is not: this rank would train "
                "alone");
        }
        if (options_first_number(options_world, OPTIONS_MAX_WORLD, world_size, err) != ADTOPK_OK) {
            return err->code;
        }
    }
    return *world_size >= 1 && *world_size <= OPTIONS_MAX_WORLD
               ? ADTOPK_OK
               : error_set(err, ADTOPK_ERR_ARGUMENT, "the world size is %d; 1 to %d are allowed",
                     *world_size, OPTIONS_MAX_WORLD);
}

/* The rank that the options or the environment say. In a world of one it need not be said. */
static enum adtopk_status options_place_rank(
    const struct adtopk_options *options, int world_size, int *rank, struct error *err)
{
    if (options->has_rank) {
        *rank = options->rank;
        return ADTOPK_OK;
    }
    *rank = -1;
    if (options_first_number(options_rank, OPTIONS_MAX_WORLD, rank, err) != ADTOPK_OK) {
        return err->code;
    }
    if (*rank < 0 && world_size > 1) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "the world size is %d, and neither has_rank nor $RANK, $OMPI_COMM_WORLD_RANK, "
            "$PMI_RANK or $SLURM_PROCID is set",
            world_size);
    }
    *rank = *rank < 0 ? 0 : *rank;
    return ADTOPK_OK;
}

static enum adtopk_status options_place(
    const struct adtopk_options *options, struct client_options *resolved, struct error *err)
{
    if (options_place_world(options, &resolved->world_size, err) != ADTOPK_OK ||
        options_place_rank(options, resolved->world_size, &resolved->rank, err) != ADTOPK_OK) {
        return err->code;
    }
    return resolved->rank >= 0 && resolved->rank < resolved->world_size
               ? ADTOPK_OK
               : error_set(err, ADTOPK_ERR_ARGUMENT,
                     "the rank is %d; with a world size of %d, 0 to %d are allowed%s",
                     resolved->rank, resolved->world_size, resolved->world_size - 1,
                     resolved->world_size > 1
                         ? ""
                         : " (world_size, $WORLD_SIZE, $OMPI_COMM_WORLD_SIZE, $PMI_SIZE "
                           "or $SLURM_NTASKS say how many ranks there are)");
}

enum adtopk_status client_options_resolve(
    const struct adtopk_options *options, struct client_options *resolved, struct error *err)
{
    struct adtopk_options known = {.size = sizeof known};
    enum adtopk_status status = ADTOPK_OK;

    memset(resolved, 0, sizeof *resolved);
    if (options != NULL) {
        status = client_sized_take("struct adtopk_options", options, &known, sizeof known, err);
    }
    if (status == ADTOPK_OK) {
        status = options_address(
            options_text(known.address, "ADTOPK_ADDRESS", OPTIONS_ADDRESS), resolved, err);
    }
    if (status == ADTOPK_OK) {
        status = options_job(&known, resolved->job, err);
    }
    if (status == ADTOPK_OK) {
        status = options_run_id(known.run_id, resolved->run_id, err);
    }
    if (status == ADTOPK_OK) {
        status = options_place(&known, resolved, err);
    }
    if (status == ADTOPK_OK && known.connect_timeout_ms < -1) {
        status = error_set(
            err, ADTOPK_ERR_ARGUMENT, "connect_timeout_ms is %d", known.connect_timeout_ms);
    }
    if (status == ADTOPK_OK && (known.answer_timeout_ms < 0 || known.return_timeout_ms < -1)) {
        status =
            error_set(err, ADTOPK_ERR_ARGUMENT, "answer_timeout_ms is %d, return_timeout_ms is %d",
                known.answer_timeout_ms, known.return_timeout_ms);
    }
    resolved->answer_timeout_ms = known.answer_timeout_ms;
    resolved->key_file = options_text(known.key_file, "ADTOPK_KEY_FILE", NULL);
    resolved->server_key = options_text(known.server_key, "ADTOPK_SERVER_KEY", NULL);
    resolved->interruptible = known.interruptible != 0;
    resolved->comes_back = known.comes_back != 0;
    resolved->first_step = known.first_step;
    resolved->policy = known.policy != NULL ? known.policy : "";
    resolved->connect_timeout_ms =
        known.connect_timeout_ms != 0 ? known.connect_timeout_ms : OPTIONS_CONNECT_MS;
    resolved->return_timeout_ms =
        known.return_timeout_ms != 0 ? known.return_timeout_ms : resolved->connect_timeout_ms;
    return status;
}
