#include "client/adtopkctl/options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/control/exchange.h"
#include "proto/arguments.h"
#include "proto/guess.h"

#define TIMEOUT_MS 5000
#define WAIT_MS 60000 /* for commands that wait for an outcome */
#define TIMEOUT_MAX 3600000
#define SECONDS 30.0 /* of a plot */
#define WAIT_MAX 600000
#define NAME_SIZE 128 /* of a command as it was given */
#define BIT(option) (1u << (option))
#define EVERYWHERE (BIT(OPTION_HELP) | BIT(OPTION_VERSION))
#define TABLE (BIT(OPTION_WIDE) | BIT(OPTION_SORT))
#define DAEMON_TEXT (BIT(OPTION_SOCKET) | BIT(OPTION_TIMEOUT))
#define DAEMON (DAEMON_TEXT | BIT(OPTION_JSON))

#define JOB_IS                                                                                     \
    "JOB: NAME, NAME/RUN, USER:NAME or USER:NAME/RUN of a job with ranks here.\n"                  \
    "Any part of it may be shortened to \"..\"."
#define POLICY_IS                                                                                  \
    "The policy: a FILE with a JSON document, - for standard input, or KEY=VALUE...\n"             \
    "A VALUE that is not JSON is a text: density=0.02 sparsifier=topk."

static const struct option {
    const char *flag;
    const char *argument; /* NULL: takes no value */
    const char *help;
} option_table[OPTION_COUNT] = {
    [OPTION_SOCKET] = {"--socket", "PATH",
        "control socket of the daemon ($ADTOPK_CONTROL_SOCKET,\nelse " CONTROL_DEFAULT_SOCKET ")"},
    [OPTION_JSON] = {"--json", NULL, "print a JSON document, with its \"schema\""},
    [OPTION_TIMEOUT] = {"--timeout", "MS",
        "time limit in milliseconds (5000; 60000 for commands\nthat wait for all nodes)"},
    [OPTION_JOB] = {"--job", "JOB", "only jobs with this name ('': all jobs)"},
    [OPTION_INTERVAL] = {"--interval", "S", "print rates over intervals of S seconds"},
    [OPTION_INTERVALS] = {"--count", "N", "number of intervals (1); 0: until stopped"},
    [OPTION_SECONDS] = {"--seconds", "S", "for how many seconds to ask the daemon (30)"},
    [OPTION_FIRST] = {"--first", "N", "number of the first tensor to show (0)"},
    [OPTION_IF_VERSION] = {"--if-version", "N", "refuse unless version N is in force"},
    [OPTION_MERGE] = {"--merge", NULL, "other keys keep their value of the policy in force"},
    [OPTION_REPLACE] = {"--replace", NULL, "other keys get the daemon's default"},
    [OPTION_OUT] = {"--out", "FILE", NULL}, /* option_help() */
    [OPTION_FROM] = {"--from", NULL, "read FILEs that daemons wrote, instead of asking one"},
    [OPTION_WIDE] = {"--wide", NULL, "show whole names, however wide the terminal is"},
    [OPTION_SORT] = {"--sort", "COLUMN",
        "sort the table by this column, numbers from large to\nsmall"},
    [OPTION_STATE] = {"--state", "STATE",
        "only jobs in this state (forming, prepared, active,\ndone, failed), or peers (up, down)"},
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
    [COMMAND_STATUS] = {"status", "", 0, 0, DAEMON | TABLE | BIT(OPTION_STATE),
        "show the daemon, its peers and its jobs", NULL},
    [COMMAND_JOBS] = {"jobs", "[JOB]", 0, 1, DAEMON | TABLE | BIT(OPTION_STATE),
        "show each job: ranks, tensors, policy, trouble",
        "With JOB: the jobs of that name, ended ones too. The exit status is about them."},
    [COMMAND_RANKS] = {"ranks", "JOB", 1, 1, DAEMON | TABLE,
        "show the ranks of a job on all nodes, and how late they are",
        JOB_IS
        "\nA rank's pace is the time from a step's last update to its last push in the next\n"
        "step. It is late by what it takes longer than the fastest rank. The mean is over\n"
        "about the last 64 steps. A node that is down, does not answer or is of an older\n"
        "version is named below the table."},
    [COMMAND_TENSORS] = {"tensors", "JOB", 1, 1, DAEMON | TABLE | BIT(OPTION_FIRST),
        "show how each tensor of a job is sent",
        JOB_IS "\nThe residual is the mean magnitude of its elements on this node when the daemon\n"
               "last read them, or adtopkctl verify. Narrow terminals need --wide to show it.\n"
               "At most 1024 tensors are shown at a time."},
    [COMMAND_PLAN] = {"plan", "JOB", 1, 1, DAEMON | BIT(OPTION_FIRST),
        "show the planner's choice for each tensor, and why",
        JOB_IS "\nThe planner decides on the job's coordinator: the lowest of the nodes that have\n"
               "been in the job longest. That node also shows the other plans.\n"
               "At most 1024 tensors are shown at a time."},
    [COMMAND_PEERS] = {"peers", "", 0, 0, DAEMON | TABLE | BIT(OPTION_STATE),
        "show the other nodes and the links to them", NULL},
    [COMMAND_STORES] = {"stores", "", 0, 0, DAEMON,
        "show the stores of jobs that outlive the daemon",
        "Residuals of jobs, to which ranks can return when the daemon was started again\n"
        "(systemd keeps them, or store_folder), for residual_ttl_s at most."},
    [COMMAND_STATS] = {"stats", "[JOB]", 0, 1,
        DAEMON | BIT(OPTION_WIDE) | BIT(OPTION_JOB) | BIT(OPTION_INTERVAL) | BIT(OPTION_INTERVALS),
        "show the bytes that each job sent, and its times",
        "Jobs that have ended are only counted, unless they are named and no other job\n"
        "has that name.\n"
        "With --interval: steps and bytes per second, entries sent per element of sparse\n"
        "tensors, and milliseconds per step in each phase. Phases of different buckets\n"
        "overlap. With --json it prints the daemon's documents, one per line. Their\n"
        "\"clock_s\" gives the time between two."},
    [COMMAND_POLICY_GET] = {"policy get", "[JOB]", 0, 1, DAEMON,
        "show the policy in force; without JOB the default",
        JOB_IS "\nA star marks keys whose value is not the built-in default."},
    [COMMAND_POLICY_SET] = {"policy set", "JOB FILE|-|KEY=VALUE...", 2, OPTIONS_ARGUMENTS_MAX,
        DAEMON | BIT(OPTION_IF_VERSION) | BIT(OPTION_MERGE) | BIT(OPTION_REPLACE),
        "change a policy on all nodes, and wait for the outcome",
        JOB_IS "\n" POLICY_IS "\n"
               "KEY=VALUE... starts from the policy in force, a document from the daemon's\n"
               "default, which itself stays as it is. --replace and --merge choose the other\n"
               "base."},
    [COMMAND_POLICY_CHECK] = {"policy check", "FILE|-|KEY=VALUE...", 1, OPTIONS_ARGUMENTS_MAX,
        BIT(OPTION_JSON), "check a policy, without a daemon",
        POLICY_IS
        "\nPrints all keys, missing ones with their default, and the density of a budget."},
    [COMMAND_POLICY_KEYS] = {"policy keys", "", 0, 0, BIT(OPTION_JSON),
        "list the keys of a policy, without a daemon", NULL},
    [COMMAND_POLICY_LOG] = {"policy log", "JOB", 1, 1, DAEMON | BIT(OPTION_WIDE),
        "show who changed a policy, when, and what",
        JOB_IS "\nWorks for the last 16 ended jobs of each user as well."},
    [COMMAND_SPARSIFIERS] = {"sparsifiers", "", 0, 0, BIT(OPTION_JSON),
        "list the sparsifiers and their parameters", "Needs no daemon."},
    [COMMAND_VERIFY] = {"verify", "[JOB]", 0, 1, DAEMON,
        "check that no gradient was lost or counted twice",
        JOB_IS
        "\nWithout JOB: all live jobs, with --json one document per line. The input of each\n"
        "tensor must equal the applied updates, the residual and what is declared as lost\n"
        "together. Exit status 1 if it does not, 6 if that could not be determined, for\n"
        "example because the job ended."},
    [COMMAND_TOP] = {"top", "", 0, 0,
        DAEMON_TEXT | TABLE | BIT(OPTION_INTERVAL) | BIT(OPTION_INTERVALS),
        "watch jobs, ranks, tensors and peers",
        "Draws on the terminal until q is pressed. 1 to 4 choose jobs, ranks, tensors or\n"
        "peers; up and down choose a job, s sorts by the next column, / filters, the\n"
        "space bar pauses. Without a terminal it prints the table of jobs, after an\n"
        "interval of one second, or as --interval and --count say."},
    [COMMAND_TRACE] = {"trace", "JOB|FILE...", 1, OPTIONS_ARGUMENTS_MAX,
        DAEMON | BIT(OPTION_OUT) | BIT(OPTION_FROM),
        "write the last steps of a job on all nodes, for Perfetto",
        JOB_IS "\nWrites trace events in JSON, which https://ui.perfetto.dev and chrome://tracing\n"
               "show: steps, ranks, buckets and messages of the last 64 steps, or fewer if a\n"
               "step has many buckets. Clocks are compared by the messages between nodes.\n"
               "With --from it reads documents that daemons wrote when a job failed or was stuck\n"
               "(trace_folder), of one node each. --json prints the daemon's document."},
    [COMMAND_PLOT] = {"plot", "JOB", 1, 1, DAEMON_TEXT | BIT(OPTION_SECONDS) | BIT(OPTION_OUT),
        "draw what a job does over some time, as SVG",
        JOB_IS "\nAsks the daemon while the job trains, for 30 seconds or as --seconds says, and\n"
               "then writes the picture to --out FILE, or into a pipe. The residual is read at\n"
               "most eight times, as verify does, which only the job's owner and administrators\n"
               "may. A step's whole time includes the trainers' computing. The planner measures\n"
               "and predicts the part from the first gradient on, if the policy leaves something\n"
               "\"auto\". If the daemon goes away, the picture has what came before (status 3)."},
    [COMMAND_CHECKPOINT_ASK] = {"checkpoint ask", "JOB", 1, 1, DAEMON,
        "have all ranks of a job save a checkpoint, after one step",
        JOB_IS "\nWaits until all ranks have saved one, after their next step. The trainer\n"
               "decides what it saves, and where: it must ask adtopk_checkpoint_due() between\n"
               "its steps. Exit status 1 if they began and have not saved: their own messages\n"
               "say why; 6 if they go on without adtopk_checkpoint_save() and without\n"
               "adtopk_checkpoint_saved(). Only the job's owner and administrators may ask."},
    [COMMAND_CHECKPOINT_CHECK] = {"checkpoint check", "FOLDER", 1, 1, BIT(OPTION_JSON),
        "check the files of a checkpoint, without a daemon",
        "Shows the job and step of a checkpoint, and reads all files of its nodes to\n"
        "their ends. Exit status 1 if one is missing, damaged or of another checkpoint.\n"
        "Trainers save checkpoints: adtopk_checkpoint_save()."},
    [COMMAND_DRAIN] = {"drain", "", 0, 0, DAEMON | BIT(OPTION_UNDO),
        "take no new ranks; present jobs go on", NULL},
    [COMMAND_KEYGEN] = {"keygen", "", 0, 0, BIT(OPTION_JSON) | BIT(OPTION_OUT),
        "make a key pair for a node or a remote trainer",
        "Writes a file that only its owner may read, and prints the public key. Never\n"
        "overwrites a file."},
    [COMMAND_KEY_SHOW] = {"key show", "FILE", 1, 1, BIT(OPTION_JSON),
        "print the public key of a key pair", "The file is one that keygen has written."},
    [COMMAND_COMPLETION] = {"completion", "bash|fish|zsh", 1, OPTIONS_ARGUMENTS_MAX,
        BIT(OPTION_SOCKET), "print a completion of the command line",
        "  . <(adtopkctl completion bash)           (zsh: the same with zsh)\n"
        "  adtopkctl completion fish | source\n"
        "The scripts call adtopkctl completion words -- WORD..., which prints what the\n"
        "last WORD may become: commands, options, jobs, keys and values of a policy."},
};

/* First words of commands that have two, and what may follow. */
static const struct family {
    const char *name, *needs;
} family_table[] = {{"policy", "get, set, check, keys or log"},
    {"key", "show; keygen makes a pair"}, {"checkpoint", "ask or check"}};
#define FAMILIES (sizeof(family_table) / sizeof(*family_table))

/* ------------------------------------------------------------------ help */

/* These wait for all nodes. */
static bool command_waits(enum command_id command)
{
    return command == COMMAND_POLICY_SET || command == COMMAND_VERIFY || command == COMMAND_TRACE ||
           command == COMMAND_CHECKPOINT_ASK;
}

/* Of a command, or with COMMAND_COUNT of the program. */
static const char *option_help(const struct option *option, enum command_id command)
{
    if (option == &option_table[OPTION_OUT]) {
        return command == COMMAND_KEYGEN ? "file to make for the key pair (adtopk.key)"
               : command == COMMAND_PLOT
                   ? "file to write the picture to, instead of standard\noutput"
                   : "file to write the trace events to, instead of standard\noutput";
    }
    if (option != &option_table[OPTION_TIMEOUT] || command == COMMAND_COUNT) {
        return option->help;
    }
    return command_waits(command) ? "time limit in milliseconds (60000)"
                                  : "time limit in milliseconds (5000)";
}

static void print_option(FILE *out, const struct option *option, enum command_id command)
{
    char left[32];
    const char *line = option_help(option, command);

    (void)snprintf(left, sizeof(left), "%s%s%s", option->flag, option->argument != NULL ? " " : "",
        option->argument != NULL ? option->argument : "");
    for (bool first = true; *line != '\0'; first = false) {
        size_t length = strcspn(line, "\n");

        (void)fprintf(out, "  %-17s %.*s\n", first ? left : "", (int)length, line);
        line += line[length] == '\n' ? length + 1 : length;
    }
}

static void print_options(FILE *out, unsigned set, enum command_id command)
{
    for (unsigned i = 0; i < OPTION_COUNT; i++) {
        if ((set & BIT(i)) != 0) {
            print_option(out, &option_table[i], command);
        }
    }
}

/* Of all commands, or of those that begin with this word. */
static void print_commands(FILE *out, const char *first)
{
    const size_t length = strlen(first);

    for (unsigned i = 0; i < COMMAND_COUNT; i++) {
        const struct command *command = &command_table[i];

        if (length == 0 ||
            (strncmp(command->name, first, length) == 0 && command->name[length] == ' ')) {
            (void)fprintf(out, "  %-17s %s\n", command->name, command->help);
        }
    }
}

static void program_help(FILE *out)
{
    (void)fprintf(out,
        "usage: adtopkctl [OPTION]... COMMAND\n\n"
        "Shows what the adtopk daemon of this node does, and changes it. Begin with\n"
        "adtopkctl status.\n\n");
    print_commands(out, "");
    (void)fprintf(out, "\n");
    print_options(out, DAEMON | EVERYWHERE, COMMAND_COUNT);
    (void)fprintf(out,
        "\nadtopkctl help COMMAND explains a command; so does adtopkctl COMMAND --help.\n\n"
        "Exit status:\n"
        "  0  success\n"
        "  1  failure\n"
        "  2  wrong usage\n"
        "  3  no daemon answers\n"
        "  4  not allowed\n"
        "  5  degraded (status, jobs, peers): a peer is down, or a job does not train\n"
        "     yet, waits for a lost node, is stuck, or failed in the last 15 minutes\n"
        "  6  not determined (verify: the job ended; policy set, checkpoint ask: no\n"
        "     outcome in time)\n");
}

static void family_help(FILE *out, const char *name)
{
    (void)fprintf(out, "usage: adtopkctl [OPTION]... %s COMMAND\n\n", name);
    print_commands(out, name);
    (void)fprintf(out, "\nadtopkctl help %s COMMAND explains a command.\n", name);
}

void options_help(FILE *out, const struct options *options)
{
    const struct command *command = &command_table[options->command];

    if (options->command == COMMAND_COUNT) {
        options->arguments > 0 ? family_help(out, options->argument[0]) : program_help(out);
        return;
    }
    (void)fprintf(out, "usage: adtopkctl [OPTION]... %s%s%s\n\n  %s\n\n", command->name,
        command->arguments[0] != '\0' ? " " : "", command->arguments, command->help);
    if (command->more != NULL) {
        (void)fprintf(out, "%s\n\n", command->more);
    }
    print_options(out, command->options | EVERYWHERE, options->command);
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

static const struct family *command_family(const char *word)
{
    for (size_t i = 0; i < FAMILIES; i++) {
        if (strcmp(family_table[i].name, word) == 0) {
            return &family_table[i];
        }
    }
    return NULL;
}

/* The given words of a command's name: "polcy get", but "stat" of "stat digits". */
static void command_given(const struct options *options, char given[NAME_SIZE])
{
    const char *first = options->argument[0];
    const bool two = command_family(first) != NULL;

    (void)snprintf(given, NAME_SIZE, "%.60s%s%.60s", first, two ? " " : "",
        two && options->arguments > 1 ? options->argument[1] : "");
}

static enum adtopk_status no_command(const struct options *options, struct error *err)
{
    char given[NAME_SIZE];
    char meant[GUESS_TEXT_SIZE];
    struct guess guess;
    const struct family *family;

    if (options->arguments == 0) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "a command is needed");
    }
    family = command_family(options->argument[0]);
    if (family != NULL && options->arguments == 1) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "%s needs %s", family->name, family->needs);
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

    while (options->arguments > 0 && strcmp(options->argument[0], "help") == 0) {
        options->value[OPTION_HELP] = "";
        options->arguments--;
        memmove(options->argument, options->argument + 1,
            options->arguments * sizeof(options->argument[0]));
    }
    while (i < COMMAND_COUNT && (words = command_words(options, &command_table[i])) == 0) {
        i++;
    }
    options->command = (enum command_id)i;
    if (i == COMMAND_COUNT) {
        const bool begun =
            options->arguments == 0 || /* or "policy --help" */
            (options->arguments == 1 && command_family(options->argument[0]) != NULL);

        return begun && (options->value[OPTION_HELP] != NULL ||
                            options->value[OPTION_VERSION] != NULL)
                   ? ADTOPK_OK
                   : no_command(options, err);
    }
    options->arguments -= words;
    memmove(options->argument, options->argument + words,
        options->arguments * sizeof(options->argument[0]));
    return ADTOPK_OK;
}

/* Jobs and peers have states of their own. */
static enum adtopk_status options_check_state(const struct options *options, struct error *err)
{
    static const char *const states[] = {
        "forming", "prepared", "active", "done", "failed", "up", "down"};
    const bool jobs = options->command != COMMAND_PEERS, peers = options->command != COMMAND_JOBS;
    const char *const *known = jobs ? states : states + 5;
    const unsigned count = jobs && peers ? 7 : jobs ? 5 : 2;
    const char *state = options->value[OPTION_STATE];
    char list[GUESS_LIST_SIZE];

    for (unsigned i = 0; state != NULL && i < count; i++) {
        if (strcmp(known[i], state) == 0) {
            return ADTOPK_OK;
        }
    }
    return state == NULL
               ? ADTOPK_OK
               : error_set(err, ADTOPK_ERR_ARGUMENT, "--state: no %s%s%s has the state \"%.40s\"%s",
                     jobs ? "job" : "", jobs && peers ? " or " : "", peers ? "peer" : "", state,
                     guess_of(state, known, count, list));
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
    if (options->value[OPTION_INTERVALS] != NULL && options->value[OPTION_INTERVAL] == NULL &&
        options->command != COMMAND_TOP) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "--count needs --interval");
    }
    if (options->command == COMMAND_TRACE && options->value[OPTION_FROM] == NULL &&
        options->arguments > 1) {
        return error_set(
            err, ADTOPK_ERR_ARGUMENT, "trace takes one JOB, or with --from several FILEs");
    }
    if (options->command == COMMAND_TRACE && options->value[OPTION_JSON] != NULL &&
        (options->value[OPTION_FROM] != NULL || options->value[OPTION_OUT] != NULL)) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "--json prints the daemon's answer, with neither --out nor --from");
    }
    if (options->value[OPTION_JOB] != NULL && options->arguments > 0) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "--job and JOB exclude each other");
    }
    return options_check_state(options, err);
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

static enum adtopk_status take_seconds(
    const struct options *options, enum option_id option, double *seconds, struct error *err)
{
    const char *text = options->value[option];
    char *end = NULL;

    if (text == NULL) {
        return ADTOPK_OK;
    }
    *seconds = strtod(text, &end);
    if (end == text || *end != '\0' || !(*seconds >= 0.01 && *seconds <= 86400)) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "%s: \"%.40s\" is not a number of seconds from 0.01 to 86400",
            option_table[option].flag, text);
    }
    return ADTOPK_OK;
}

static enum adtopk_status take_numbers(struct options *options, struct error *err)
{
    bool waits = command_waits(options->command);
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
    options->seconds = SECONDS;
    if (status == ADTOPK_OK) {
        status = take_seconds(options, OPTION_SECONDS, &options->seconds, err);
    }
    return status == ADTOPK_OK ? take_seconds(options, OPTION_INTERVAL, &options->interval_s, err)
                               : status;
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

/* ------------------------------------------------------------------ completion */

static bool completion_begins(const char *word, const char *prefix)
{
    return strncmp(word, prefix, strlen(prefix)) == 0;
}

/* The option of this flag; OPTION_COUNT: there is none. */
static unsigned completion_option(const char *flag)
{
    unsigned i = 0;

    while (i < OPTION_COUNT && strcmp(option_table[i].flag, flag) != 0) {
        i++;
    }
    return i;
}

/* Leaves the arguments among the words before the last: neither options nor their values. True if
 * the last one is the value of an option, which is *option then. */
static bool completion_arguments(
    struct options *options, const char *const *word, unsigned words, unsigned *option)
{
    bool value = false;

    *options = (struct options){.command = COMMAND_COUNT};
    for (unsigned i = 0; i + 1 < words && options->arguments < OPTIONS_ARGUMENTS_MAX; i++) {
        if (value) {
            value = false;
        } else if (word[i][0] == '-' && word[i][1] != '\0') {
            *option = completion_option(word[i]);
            value = *option < OPTION_COUNT && option_table[*option].argument != NULL;
        } else if (options->arguments > 0 || strcmp(word[i], "help") != 0) {
            options->argument[options->arguments++] = word[i];
        }
    }
    return value;
}

static void completion_flags(FILE *out, const struct command *command, const char *prefix)
{
    const unsigned options = command != NULL ? command->options : DAEMON;

    for (unsigned i = 0; i < OPTION_COUNT; i++) {
        if (((options | EVERYWHERE) & BIT(i)) != 0 &&
            completion_begins(option_table[i].flag, prefix)) {
            (void)fprintf(out, "%s\n", option_table[i].flag);
        }
    }
}

/* The first words of commands, or the second ones behind the argument that is there. */
static void completion_commands(FILE *out, const struct options *options, const char *prefix)
{
    const char *first = options->arguments > 0 ? options->argument[0] : "";
    const size_t skip = strlen(first) + (options->arguments > 0 ? 1 : 0);
    const char *last = "";

    for (unsigned i = 0; i < COMMAND_COUNT; i++) {
        const char *name = command_table[i].name;
        const char *word = name + (strlen(name) > skip ? skip : 0);
        const size_t length = strcspn(word, " ");
        const bool fits = skip == 0 || (completion_begins(name, first) && name[skip - 1] == ' ');

        if (fits && completion_begins(word, prefix) &&
            (strncmp(word, last, length) != 0 || last[length] != ' ')) { /* "policy" only once */
            (void)fprintf(out, "%.*s\n", (int)length, word);
            last = word;
        }
    }
}

static enum completion completion_argument(
    FILE *out, const struct options *options, const char *prefix)
{
    const struct command *command = &command_table[options->command];

    if (options->command == COMMAND_COMPLETION && options->arguments == 0) {
        (void)fputs("bash\nfish\nzsh\n", out);
        return COMPLETE_NOTHING;
    }
    if (options->arguments == 0 && (completion_begins(command->arguments, "JOB") ||
                                       completion_begins(command->arguments, "[JOB]"))) {
        return COMPLETE_JOBS;
    }
    if (options->command == COMMAND_POLICY_CHECK || options->command == COMMAND_POLICY_SET) {
        return strchr(prefix, '=') != NULL ? COMPLETE_VALUES : COMPLETE_KEYS;
    }
    return COMPLETE_NOTHING;
}

enum completion options_complete(FILE *out, const char *const *word, unsigned words)
{
    const char *prefix = words > 0 ? word[words - 1] : "";
    unsigned option = OPTION_COUNT;
    struct options options;
    struct error err;
    bool known;

    if (completion_arguments(&options, word, words, &option)) {
        return option == OPTION_JOB ? COMPLETE_JOBS : COMPLETE_NOTHING;
    }
    known = options.arguments > 0 && options_take_command(&options, &err) == ADTOPK_OK;
    if (prefix[0] == '-') {
        completion_flags(out, known ? &command_table[options.command] : NULL, prefix);
        return COMPLETE_NOTHING;
    }
    if (known) {
        return completion_argument(out, &options, prefix);
    }
    if (options.arguments < 2) {
        completion_commands(out, &options, prefix);
    }
    return COMPLETE_NOTHING;
}
