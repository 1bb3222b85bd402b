#include "client/adtopkctl/options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/arguments.h"
#include "proto/guess.h"

#define TIMEOUT_MS 5000
#define WAIT_MS 60000 /* for commands that wait for an outcome */
#define TIMEOUT_MAX 3600000
#define WAIT_MAX 600000
#define NAME_SIZE 128 /* of a command as it was given */
#define BIT(option) (1u << (option))
#define EVERYWHERE (BIT(OPTION_HELP) | BIT(OPTION_VERSION))
#define DAEMON (BIT(OPTION_SOCKET) | BIT(OPTION_JSON) | BIT(OPTION_TIMEOUT))

#define JOB_IS "JOB: NAME, NAME/RUN, UID:NAME or UID:NAME/RUN of a job with ranks on this node."
#define POLICY_IS                                                                                  \
    "The policy: a FILE with a JSON document, - for standard input, or KEY=VALUE...\n"             \
    "A VALUE that is not JSON is a text: density=0.02 sparsifier=topk."

static const struct option {
    const char *flag;
    const char *argument; /* NULL: takes no value */
    const char *help;
} option_table[OPTION_COUNT] = {
    [OPTION_SOCKET] = {"--socket", "PATH",
        "control socket of the daemon ($ADTOPK_CONTROL_SOCKET,\nelse " OPTIONS_SOCKET ")"},
    [OPTION_JSON] = {"--json", NULL, "print a JSON document, with its \"schema\""},
    [OPTION_TIMEOUT] = {"--timeout", "MS",
        "time limit in milliseconds (5000; 60000 for commands\nthat wait for all nodes)"},
    [OPTION_JOB] = {"--job", "JOB", "only jobs with this name ('': all jobs)"},
    [OPTION_INTERVAL] = {"--interval", "S", "print rates over intervals of S seconds"},
    [OPTION_INTERVALS] = {"--count", "N", "number of intervals (1); 0: until stopped"},
    [OPTION_FIRST] = {"--first", "N", "number of the first tensor to show (0)"},
    [OPTION_IF_VERSION] = {"--if-version", "N", "refuse unless version N is in force"},
    [OPTION_MERGE] = {"--merge", NULL, "other keys keep their value of the policy in force"},
    [OPTION_REPLACE] = {"--replace", NULL, "other keys get the daemon's default"},
    [OPTION_OUT] = {"--out", "FILE", "file for the key pair (adtopk.key)"},
    [OPTION_UNDO] = {"--undo", NULL, "take new ranks again"},
    [OPTION_HELP] = {"--help", NULL, "print this text"},
    [OPTION_VERSION] = {"--version", NULL, "print the version"},
};

static const struct command {
    const char *name;
    const char *arguments;
    unsigned low, high; /* how many arguments */
    unsigned options;   /* besides EVERYWHERE */
    const char *help;
    const char *more; /* for --help of this command; may be NULL */
} command_table[COMMAND_COUNT] = {
    [COMMAND_STATUS] = {"status", "", 0, 0, DAEMON, "show the daemon, its peers and its jobs",
        NULL},
    [COMMAND_JOBS] = {"jobs", "", 0, 0, DAEMON, "show each job: ranks, tensors, policy, trouble",
        NULL},
    [COMMAND_RANKS] = {"ranks", "JOB", 1, 1, DAEMON,
        "show the ranks of a job on this node, and how late they are",
        JOB_IS "\nA rank is late by the time from the first local rank's last push of a step to\n"
               "its own. The mean is over about the last 64 steps."},
    [COMMAND_TENSORS] = {"tensors", "JOB", 1, 1, DAEMON | BIT(OPTION_FIRST),
        "show how each tensor of a job is sent",
        JOB_IS "\nAt most 1024 tensors are shown at a time."},
    [COMMAND_PLAN] = {"plan", "JOB", 1, 1, DAEMON | BIT(OPTION_FIRST),
        "show the planner's choice for each tensor, and why",
        JOB_IS "\nThe planner decides on the job's lowest node, which also shows the other plans.\n"
               "At most 1024 tensors are shown at a time."},
    [COMMAND_PEERS] = {"peers", "", 0, 0, DAEMON, "show the other nodes and the links to them",
        NULL},
    [COMMAND_STORES] = {"stores", "", 0, 0, DAEMON,
        "show the stores of jobs that outlive the daemon",
        "Residuals of jobs, to which ranks can return when the daemon was started again\n"
        "(store_folder). A store whose job does not return is removed (residual_ttl_s)."},
    [COMMAND_STATS] = {"stats", "[JOB]", 0, 1,
        DAEMON | BIT(OPTION_JOB) | BIT(OPTION_INTERVAL) | BIT(OPTION_INTERVALS),
        "show the bytes that each job sent, and its times",
        "With --interval: steps and bytes per second, entries sent per element of sparse\n"
        "tensors, and milliseconds per step in each phase. Phases of different buckets\n"
        "overlap. With --json it prints the daemon's documents, one per line. Their\n"
        "\"clock_s\" gives the time between two."},
    [COMMAND_POLICY_GET] = {"policy get", "[JOB]", 0, 1, DAEMON,
        "show the policy in force; without JOB the default", JOB_IS},
    [COMMAND_POLICY_SET] = {"policy set", "JOB FILE|-|KEY=VALUE...", 2, OPTIONS_ARGUMENTS_MAX,
        DAEMON | BIT(OPTION_IF_VERSION) | BIT(OPTION_MERGE) | BIT(OPTION_REPLACE),
        "change a policy on all nodes, and wait for the outcome",
        JOB_IS "\n" POLICY_IS "\n"
               "KEY=VALUE... changes the policy in force; a document changes the daemon's\n"
               "default. --replace and --merge choose the other base."},
    [COMMAND_POLICY_CHECK] = {"policy check", "FILE|-|KEY=VALUE...", 1, OPTIONS_ARGUMENTS_MAX,
        BIT(OPTION_JSON), "check a policy, without a daemon",
        POLICY_IS "\nPrints the policy with all keys; missing ones get the built-in default."},
    [COMMAND_POLICY_KEYS] = {"policy keys", "", 0, 0, BIT(OPTION_JSON),
        "list the keys of a policy, without a daemon", NULL},
    [COMMAND_POLICY_LOG] = {"policy log", "JOB", 1, 1, DAEMON,
        "show who changed a policy, and from which step",
        JOB_IS "\nWorks for the last 16 ended jobs of each user as well."},
    [COMMAND_SPARSIFIERS] = {"sparsifiers", "", 0, 0, BIT(OPTION_JSON),
        "list the sparsifiers and their parameters", "Needs no daemon."},
    [COMMAND_VERIFY] = {"verify", "[JOB]", 0, 1, DAEMON,
        "check that no gradient was lost or counted twice",
        JOB_IS
        "\nWithout JOB: all live jobs, with --json one document per line. The input of each\n"
        "tensor must equal the applied updates plus the residual. Exit status 1 if it\n"
        "does not, 6 if that could not be determined, for example because the job ended."},
    [COMMAND_DRAIN] = {"drain", "", 0, 0, DAEMON | BIT(OPTION_UNDO),
        "take no new ranks; present jobs go on", NULL},
    [COMMAND_KEYGEN] = {"keygen", "", 0, 0, BIT(OPTION_JSON) | BIT(OPTION_OUT),
        "make a key pair for a node or a remote trainer",
        "Writes a file that only its owner may read, and prints the public key. Never\n"
        "overwrites a file."},
    [COMMAND_KEY_SHOW] = {"key show", "FILE", 1, 1, BIT(OPTION_JSON),
        "print the public key of a key pair", "The file is one that keygen has written."},
    [COMMAND_COMPLETION] = {"completion", "bash", 1, 1, 0, "print a completion of the command line",
        "  . <(adtopkctl completion bash)"},
};

const char *options_command_name(enum command_id command)
{
    return command_table[command].name;
}

/* ------------------------------------------------------------------ help */

static void print_option(FILE *out, const struct option *option)
{
    char left[32];
    const char *line = option->help;

    (void)snprintf(left, sizeof(left), "%s%s%s", option->flag, option->argument != NULL ? " " : "",
        option->argument != NULL ? option->argument : "");
    for (bool first = true; *line != '\0'; first = false) {
        size_t length = strcspn(line, "\n");

        (void)fprintf(out, "  %-16s %.*s\n", first ? left : "", (int)length, line);
        line += line[length] == '\n' ? length + 1 : length;
    }
}

static void print_options(FILE *out, unsigned set)
{
    for (unsigned i = 0; i < OPTION_COUNT; i++) {
        if ((set & BIT(i)) != 0) {
            print_option(out, &option_table[i]);
        }
    }
}

static void program_help(FILE *out)
{
    (void)fprintf(out, "usage: adtopkctl [OPTION]... COMMAND\n\n");
    for (unsigned i = 0; i < COMMAND_COUNT; i++) {
        (void)fprintf(out, "  %-16s %s\n", command_table[i].name, command_table[i].help);
    }
    (void)fprintf(out, "\n");
    print_options(out, DAEMON | EVERYWHERE);
    (void)fprintf(out,
        "\nadtopkctl COMMAND --help explains a command.\n\n"
        "Exit status:\n"
        "  0  success\n"
        "  1  failure\n"
        "  2  wrong usage\n"
        "  3  no daemon answers\n"
        "  4  not allowed\n"
        "  5  degraded (status, jobs, peers): a peer is down, or a job is not running,\n"
        "     waits for a lost node or is stuck\n"
        "  6  not determined (verify: the job ended; policy set: no outcome in time)\n");
}

void options_help(FILE *out, enum command_id id)
{
    const struct command *command;

    if (id >= COMMAND_COUNT) {
        program_help(out);
        return;
    }
    command = &command_table[id];
    (void)fprintf(out, "usage: adtopkctl [OPTION]... %s%s%s\n\n  %s\n\n", command->name,
        command->arguments[0] != '\0' ? " " : "", command->arguments, command->help);
    if (command->more != NULL) {
        (void)fprintf(out, "%s\n\n", command->more);
    }
    print_options(out, command->options | EVERYWHERE);
}

/* ------------------------------------------------------------------ completion */

static void completion_case(FILE *out, const struct command *command)
{
    (void)fprintf(out, "    \"%s\" | \"%s \"*) words=\"", command->name, command->name);
    for (unsigned i = 0; i < OPTION_COUNT; i++) {
        if (((command->options | EVERYWHERE) & BIT(i)) != 0) {
            (void)fprintf(out, " %s", option_table[i].flag);
        }
    }
    if (command == &command_table[COMMAND_COMPLETION]) {
        (void)fprintf(out, " %s", command->arguments);
    }
    (void)fprintf(out, "\" ;;\n");
}

/* The first words of all commands, or the second words behind `first`. */
static void completion_words(FILE *out, const char *first)
{
    size_t skip = first != NULL ? strlen(first) + 1 : 0;
    const char *last = "";

    for (unsigned i = 0; i < COMMAND_COUNT; i++) {
        const char *word = command_table[i].name + skip;
        size_t length;

        if (first != NULL && (strncmp(command_table[i].name, first, skip - 1) != 0 ||
                                 command_table[i].name[skip - 1] != ' ')) {
            continue;
        }
        length = strcspn(word, " ");
        if (strncmp(word, last, length) != 0 || last[length] != ' ') { /* "policy" only once */
            (void)fprintf(out, " %.*s", (int)length, word);
        }
        last = word;
    }
}

void options_completion(FILE *out)
{
    (void)fprintf(out, "_adtopkctl() {\n"
                       "    local command= words= i\n"
                       "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
                       "        case ${COMP_WORDS[i]} in\n"
                       "        --socket | --timeout) ((i++)) ;;\n"
                       "        -*) ;;\n"
                       "        *) command+=\"${command:+ }${COMP_WORDS[i]}\" ;;\n"
                       "        esac\n"
                       "    done\n"
                       "    case $command in\n"
                       "    \"\") words=\"");
    completion_words(out, NULL);
    (void)fprintf(out, "\" ;;\n    policy) words=\"");
    completion_words(out, "policy");
    (void)fprintf(out, "\" ;;\n    key) words=\"");
    completion_words(out, "key");
    (void)fprintf(out, "\" ;;\n");
    for (unsigned i = 0; i < COMMAND_COUNT; i++) {
        completion_case(out, &command_table[i]);
    }
    (void)fprintf(out, "    esac\n"
                       "    COMPREPLY=($(compgen -W \"$words\" -- \"${COMP_WORDS[COMP_CWORD]}\"))\n"
                       "}\n"
                       "complete -o default -F _adtopkctl adtopkctl\n");
}

/* ------------------------------------------------------------------ reading */

static bool known_option(size_t index, struct arguments_flag *flag)
{
    if (index < OPTION_COUNT) {
        (void)snprintf(flag->name, sizeof(flag->name), "%s", option_table[index].flag);
        flag->value = option_table[index].argument;
    }
    return index < OPTION_COUNT;
}

/* Options and arguments may stand in any order; behind "--" all are arguments. */
static enum adtopk_status take_words(
    struct options *options, int argc, char *const *argv, struct error *err)
{
    struct arguments words = {.argc = argc, .argv = argv};
    bool only_arguments = false;

    while (++words.at < argc) {
        const char *word = argv[words.at];

        if (!only_arguments && strcmp(word, "--") == 0) {
            only_arguments = true;
        } else if (!only_arguments && word[0] == '-' && word[1] != '\0') {
            struct arguments_option given;

            if (arguments_option(&words, known_option, &given, err) != ADTOPK_OK) {
                return err->code;
            }
            options->value[given.index] = given.value != NULL ? given.value : "";
        } else if (options->arguments == OPTIONS_ARGUMENTS_MAX) {
            return error_set(err, ADTOPK_ERR_ARGUMENT,
                "too many arguments: at most %d are possible", OPTIONS_ARGUMENTS_MAX);
        } else {
            options->argument[options->arguments++] = word;
        }
    }
    return ADTOPK_OK;
}

/* How many words of the arguments make up this command's name; 0: they do not. */
static unsigned command_words(const struct options *options, const struct command *command)
{
    const char *name = command->name;
    size_t first = strcspn(name, " ");

    if (options->arguments == 0 || strlen(options->argument[0]) != first ||
        strncmp(options->argument[0], name, first) != 0) {
        return 0;
    }
    if (name[first] == '\0') {
        return 1;
    }
    return options->arguments > 1 && strcmp(options->argument[1], name + first + 1) == 0 ? 2 : 0;
}

/* The given words of a command's name: "polcy get", but "stat" of "stat digits". */
static void command_given(const struct options *options, char given[NAME_SIZE])
{
    const char *first = options->argument[0];
    const bool two = strcmp(first, "policy") == 0 || strcmp(first, "key") == 0;

    (void)snprintf(given, NAME_SIZE, "%.60s%s%.60s", first, two ? " " : "",
        two && options->arguments > 1 ? options->argument[1] : "");
}

static enum adtopk_status no_command(const struct options *options, struct error *err)
{
    char given[NAME_SIZE];
    char meant[GUESS_TEXT_SIZE];
    struct guess guess;

    if (options->arguments == 0) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "a command is needed");
    }
    if (strcmp(options->argument[0], "policy") == 0 && options->arguments == 1) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "policy needs get, set, check, keys or log");
    }
    if (strcmp(options->argument[0], "key") == 0 && options->arguments == 1) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "key needs show; keygen makes a pair");
    }
    command_given(options, given);
    guess_start(&guess, given, 0);
    for (unsigned i = 0; i < COMMAND_COUNT; i++) {
        guess_name(&guess, command_table[i].name);
    }
    return error_set(
        err, ADTOPK_ERR_ARGUMENT, "unknown command \"%s\"%s", given, guess_text(&guess, meant));
}

static enum adtopk_status options_take_command(struct options *options, struct error *err)
{
    unsigned words = 0;
    unsigned i = 0;

    while (i < COMMAND_COUNT && (words = command_words(options, &command_table[i])) == 0) {
        i++;
    }
    options->command = (enum command_id)i;
    if (i == COMMAND_COUNT) {
        return options->arguments == 0 && (options->value[OPTION_HELP] != NULL ||
                                              options->value[OPTION_VERSION] != NULL)
                   ? ADTOPK_OK
                   : no_command(options, err);
    }
    options->arguments -= words;
    memmove(options->argument, options->argument + words,
        options->arguments * sizeof(options->argument[0]));
    return ADTOPK_OK;
}

static enum adtopk_status check_command(const struct options *options, struct error *err)
{
    const struct command *command = &command_table[options->command];

    for (unsigned i = 0; i < OPTION_COUNT; i++) {
        unsigned allowed = command->options | EVERYWHERE | BIT(OPTION_SOCKET); /* of an alias */

        if (options->value[i] != NULL && (allowed & BIT(i)) == 0) {
            return error_set(err, ADTOPK_ERR_ARGUMENT, "%s does not belong to %s",
                option_table[i].flag, command->name);
        }
    }
    if (options->arguments > command->high) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "unexpected argument \"%.100s\"",
            options->argument[command->high]);
    }
    if (options->arguments < command->low) {
        return error_set(
            err, ADTOPK_ERR_ARGUMENT, "%s needs %s", command->name, command->arguments);
    }
    if (options->value[OPTION_MERGE] != NULL && options->value[OPTION_REPLACE] != NULL) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "--merge and --replace exclude each other");
    }
    if (options->value[OPTION_INTERVALS] != NULL && options->value[OPTION_INTERVAL] == NULL) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "--count needs --interval");
    }
    if (options->value[OPTION_JOB] != NULL && options->arguments > 0) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "--job and JOB exclude each other");
    }
    return ADTOPK_OK;
}

static enum adtopk_status take_number(const struct options *options, enum option_id option,
    const char *what, uint32_t low, uint32_t high, uint32_t *number, struct error *err)
{
    const char *text = options->value[option];
    unsigned long long value = 0;
    char *end = NULL;

    if (text == NULL) {
        return ADTOPK_OK;
    }
    errno = 0;
    if (isdigit((unsigned char)text[0])) {
        value = strtoull(text, &end, 10);
    }
    if (end == NULL || *end != '\0' || errno != 0 || value < low || value > high) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "%s: \"%.40s\" is not %s from %u to %u",
            option_table[option].flag, text, what, low, high);
    }
    *number = (uint32_t)value;
    return ADTOPK_OK;
}

static enum adtopk_status take_interval(struct options *options, struct error *err)
{
    const char *text = options->value[OPTION_INTERVAL];
    char *end = NULL;

    if (text == NULL) {
        return ADTOPK_OK;
    }
    options->interval_s = strtod(text, &end);
    if (end == text || *end != '\0' ||
        !(options->interval_s >= 0.01 && options->interval_s <= 86400)) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "--interval: \"%.40s\" is not a number of seconds from 0.01 to 86400", text);
    }
    return ADTOPK_OK;
}

static enum adtopk_status take_numbers(struct options *options, struct error *err)
{
    bool waits = options->command == COMMAND_POLICY_SET || options->command == COMMAND_VERIFY;
    uint32_t timeout = waits ? WAIT_MS : TIMEOUT_MS;
    enum adtopk_status status = take_number(options, OPTION_TIMEOUT, "a number of milliseconds", 1,
        waits ? WAIT_MAX : TIMEOUT_MAX, &timeout, err);

    options->timeout_ms = (int)timeout;
    options->intervals = 1;
    if (status == ADTOPK_OK) {
        status = take_number(
            options, OPTION_INTERVALS, "a whole number", 0, UINT32_MAX, &options->intervals, err);
    }
    if (status == ADTOPK_OK) {
        status = take_number(
            options, OPTION_FIRST, "a whole number", 0, UINT32_MAX, &options->first, err);
    }
    if (status == ADTOPK_OK) {
        status = take_number(options, OPTION_IF_VERSION, "a whole number", 0, UINT32_MAX - 1,
            &options->if_version, err);
    }
    return status == ADTOPK_OK ? take_interval(options, err) : status;
}

enum adtopk_status options_parse(
    struct options *options, int argc, char *const *argv, struct error *err)
{
    enum adtopk_status status;

    *options = (struct options){.command = COMMAND_COUNT};
    status = take_words(options, argc, argv, err);
    if (status == ADTOPK_OK) {
        status = options_take_command(options, err);
    }
    if (status != ADTOPK_OK || options->value[OPTION_HELP] != NULL ||
        options->value[OPTION_VERSION] != NULL) {
        return status;
    }
    status = check_command(options, err);
    return status == ADTOPK_OK ? take_numbers(options, err) : status;
}
