#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_POLICY_BYTES = 1 << 20 };
static const uint64_t max_count = 1000000000;

/* After the task's sentence: program, about, data, steps, batch, both rates, warmup. */
static const char help[] =
    "usage: %s --data FILE [OPTION]...\n"
    "\n"
    "%s"
    "Start one process per rank. Rank and world size are in the variables of\n"
    "torchrun, Slurm or MPI (RANK, WORLD_SIZE, ...), unless they are given here.\n"
    "\n"
    "  --data FILE           %s\n"
    "  --local               train alone in this process, without a daemon\n"
    "  --steps N             number of training steps (%" PRIu64 ")\n"
    "  --batch N             examples per step, of all ranks together (%" PRIu64 ")\n"
    "  --optimiser NAME      sgd, with momentum 0.9, or adamw (sgd)\n"
    "  --lr X                highest learning rate (%g; with adamw %g)\n"
    "  --weight-decay X      decay of weights, not biases (0.0001; with adamw 0.01)\n"
    "  --warmup N            steps until the highest rate is reached (%" PRIu64 ", at most\n"
    "                        --steps)\n"
    "  --corrected           leave the momentum to the daemon, whose policy must\n"
    "                        have \"momentum\": 0.9\n"
    "  --local-steps N       steps that a rank takes alone; then its drift is pushed\n"
    "                        as the gradient\n"
    "  --outer-lr X          rate at which the mean drift is applied (1)\n"
    "  --outer-momentum X    Nesterov momentum of the mean drift (0)\n"
    "  --seed S              seed of parameters and batches, equal on all ranks (1)\n"
    "  --log FILE            write JSON lines, one per step and a last one (rank 0)\n"
    "  --evaluate-every N    test every N steps, too, on a part of the test set\n"
    "                        (only at the end)\n"
    "  --checkpoint DIR      save the training in this folder, which all ranks see\n"
    "  --checkpoint-every N  steps between two checkpoints (100); the last step has\n"
    "                        one, too, and adtopkctl may ask for more\n"
    "  --resume              go on from the last checkpoint in the folder\n"
    "  --address ADDR        address of the daemon, such as\n"
    "                        unix:/run/adtopk/trainers/adtopkd.sock\n"
    "  --job NAME            name of the job\n"
    "  --policy FILE         policy document (JSON), equal on all ranks\n"
    "  --rank N              number of this process, from 0 to world size - 1\n"
    "  --world N             number of ranks\n";

enum {
    OPTION_DATA = 1,
    OPTION_LOCAL,
    OPTION_STEPS,
    OPTION_BATCH,
    OPTION_OPTIMISER,
    OPTION_LR,
    OPTION_WEIGHT_DECAY,
    OPTION_WARMUP,
    OPTION_CORRECTED,
    OPTION_LOCAL_STEPS,
    OPTION_OUTER_LR,
    OPTION_OUTER_MOMENTUM,
    OPTION_SEED,
    OPTION_LOG,
    OPTION_EVALUATE,
    OPTION_CHECKPOINT,
    OPTION_CHECKPOINT_EVERY,
    OPTION_RESUME,
    OPTION_ADDRESS,
    OPTION_JOB,
    OPTION_POLICY,
    OPTION_RANK,
    OPTION_WORLD,
    OPTION_HELP,
    OPTION_SIZES /* and the numbers after it: options of the task */
};

static const struct option flags[] = {
    {"data", required_argument, NULL, OPTION_DATA},
    {"local", no_argument, NULL, OPTION_LOCAL},
    {"steps", required_argument, NULL, OPTION_STEPS},
    {"batch", required_argument, NULL, OPTION_BATCH},
    {"optimiser", required_argument, NULL, OPTION_OPTIMISER},
    {"weight-decay", required_argument, NULL, OPTION_WEIGHT_DECAY},
    {"lr", required_argument, NULL, OPTION_LR},
    {"warmup", required_argument, NULL, OPTION_WARMUP},
    {"corrected", no_argument, NULL, OPTION_CORRECTED},
    {"local-steps", required_argument, NULL, OPTION_LOCAL_STEPS},
    {"outer-lr", required_argument, NULL, OPTION_OUTER_LR},
    {"outer-momentum", required_argument, NULL, OPTION_OUTER_MOMENTUM},
    {"seed", required_argument, NULL, OPTION_SEED},
    {"log", required_argument, NULL, OPTION_LOG},
    {"evaluate-every", required_argument, NULL, OPTION_EVALUATE},
    {"checkpoint", required_argument, NULL, OPTION_CHECKPOINT},
    {"checkpoint-every", required_argument, NULL, OPTION_CHECKPOINT_EVERY},
    {"resume", no_argument, NULL, OPTION_RESUME},
    {"address", required_argument, NULL, OPTION_ADDRESS},
    {"job", required_argument, NULL, OPTION_JOB},
    {"policy", required_argument, NULL, OPTION_POLICY},
    {"rank", required_argument, NULL, OPTION_RANK},
    {"world", required_argument, NULL, OPTION_WORLD},
    {"help", no_argument, NULL, OPTION_HELP},
};
enum { FLAGS = sizeof flags / sizeof flags[0] };

static int options_read_number(const struct options *options, const char *name, const char *text,
    uint64_t least, uint64_t most, uint64_t *value)
{
    char *end = NULL;
    errno = 0;
    const unsigned long long number = strtoull(text, &end, 10);
    const int digits_only = text[0] != '\0' && strspn(text, "0123456789") == strlen(text);
    if (digits_only && errno == 0 && number >= least && number <= most) {
        *value = number;
        return 0;
    }
    fprintf(stderr, "%s: --%s %s: expected a whole number from %" PRIu64 " to %" PRIu64 "\n",
        options->task->program, name, text, least, most);
    return -1;
}

static int options_small(
    const struct options *options, const char *name, const char *text, int least, int *value)
{
    uint64_t number = 0;
    if (options_read_number(options, name, text, (uint64_t)least, INT_MAX, &number) != 0) {
        return -1;
    }
    *value = (int)number;
    return 0;
}

static int options_real(
    const struct options *options, const char *name, const char *text, int positive, float *value)
{
    char *end = NULL;
    const float number = strtof(text, &end);
    if (end != text && *end == '\0' && isfinite(number) && (positive ? number > 0 : number >= 0)) {
        *value = number;
        return 0;
    }
    fprintf(stderr, "%s: --%s %s: expected a number %s\n", options->task->program, name, text,
        positive ? "above 0" : "of at least 0");
    return -1;
}

static int options_optimiser(struct options *options, const char *name)
{
    if (strcmp(name, "sgd") != 0 && strcmp(name, "adamw") != 0) {
        fprintf(
            stderr, "%s: --optimiser %s: expected sgd or adamw\n", options->task->program, name);
        return -1;
    }
    options->optimiser = strcmp(name, "adamw") == 0 ? OPTIMISER_ADAMW : OPTIMISER_SGD;
    return 0;
}

/* What was not given has the default of the optimiser. */
static void options_default_rates(struct options *options)
{
    const int adamw = options->optimiser == OPTIMISER_ADAMW;
    if (options->lr <= 0) {
        options->lr = adamw ? options->task->adamw_lr : options->task->lr;
    }
    if (options->weight_decay < 0) {
        options->weight_decay = adamw ? 0.01f : 1e-4f;
    }
}

static int options_policy(struct options *options, const char *path)
{
    FILE *file = fopen(path, "r");
    char *text = malloc(MAX_POLICY_BYTES + 1);
    size_t size = 0;
    const char *problem = NULL;

    if (!file) {
        problem = strerror(errno);
    } else if (!text) {
        problem = "no memory";
    } else if ((size = fread(text, 1, MAX_POLICY_BYTES + 1, file)) > MAX_POLICY_BYTES) {
        problem = "larger than 1 MiB";
    } else if (ferror(file)) {
        problem = strerror(errno);
    } else if (memchr(text, '\0', size)) {
        problem = "not text";
    }
    if (file) {
        fclose(file);
    }
    if (problem) {
        fprintf(stderr, "%s: --policy %s: %s\n", options->task->program, path, problem);
        free(text);
        return -1;
    }
    text[size] = '\0';
    free(options->policy_text);
    options->policy_text = text;
    options->exchange.policy = text;
    return 0;
}

static int options_size(struct options *o, int number, const char *value)
{
    if (number < 0 || number >= OPTIONS_MAX_SIZES) {
        return -1; /* options_refuse() has said why */
    }
    const struct options_size *size = &o->task->sizes[number];
    return options_read_number(o, size->name, value, size->least, size->most, &o->sizes[number]);
}

static int options_set(struct options *o, int option, const char *value)
{
    switch (option) {
    case OPTION_DATA: o->data = value; return 0;
    case OPTION_LOCAL: o->exchange.local = 1; return 0;
    case OPTION_STEPS: return options_read_number(o, "steps", value, 1, max_count, &o->steps);
    case OPTION_BATCH: return options_read_number(o, "batch", value, 1, max_count, &o->batch);
    case OPTION_OPTIMISER: return options_optimiser(o, value);
    case OPTION_LR: return options_real(o, "lr", value, 1, &o->lr);
    case OPTION_WEIGHT_DECAY: return options_real(o, "weight-decay", value, 0, &o->weight_decay);
    case OPTION_WARMUP: return options_read_number(o, "warmup", value, 0, max_count, &o->warmup);
    case OPTION_CORRECTED: o->corrected = 1; return 0;
    case OPTION_LOCAL_STEPS:
        return options_read_number(o, "local-steps", value, 1, max_count, &o->drift.steps);
    case OPTION_OUTER_LR: return options_real(o, "outer-lr", value, 1, &o->drift.rate);
    case OPTION_OUTER_MOMENTUM:
        return options_real(o, "outer-momentum", value, 0, &o->drift.momentum);
    case OPTION_SEED: return options_read_number(o, "seed", value, 0, UINT64_MAX, &o->seed);
    case OPTION_LOG: o->log = value; return 0;
    case OPTION_CHECKPOINT: o->checkpoint = value; return 0;
    case OPTION_CHECKPOINT_EVERY:
        return options_read_number(
            o, "checkpoint-every", value, 1, max_count, &o->checkpoint_every);
    case OPTION_RESUME: o->resume = 1; return 0;
    case OPTION_ADDRESS: o->exchange.address = value; return 0;
    case OPTION_JOB: o->exchange.job = value; return 0;
    case OPTION_POLICY: return options_policy(o, value);
    case OPTION_RANK: return options_small(o, "rank", value, 0, &o->exchange.rank);
    case OPTION_WORLD: return options_small(o, "world", value, 1, &o->exchange.world);
    case OPTION_EVALUATE:
        return options_read_number(o, "evaluate-every", value, 1, max_count, &o->evaluate_every);
    default: return options_size(o, option - OPTION_SIZES, value);
    }
}

/* Options that need local steps, or that these exclude. */
static int options_check_drift(const struct options *options)
{
    const struct drift_options *drift = &options->drift;
    const char *program = options->task->program;
    if (drift->steps == 0 && (drift->rate > 0 || drift->momentum > 0)) {
        fprintf(stderr, "%s: --outer-lr and --outer-momentum need --local-steps\n", program);
    } else if (drift->momentum >= 1) {
        fprintf(stderr, "%s: --outer-momentum must be below 1\n", program);
    } else if (drift->steps > 0 && options->corrected) {
        fprintf(stderr, "%s: --corrected and --local-steps exclude each other\n", program);
    } else if (drift->steps > 0 && options->evaluate_every % drift->steps != 0) {
        fprintf(stderr, "%s: --evaluate-every must be a multiple of --local-steps\n", program);
    } else {
        return 0;
    }
    return -1;
}

/* Options that need checkpoints, or that these exclude. */
static int options_check_checkpoint(const struct options *options)
{
    const char *program = options->task->program;
    if (options->resume && !options->checkpoint) {
        fprintf(stderr, "%s: --resume needs --checkpoint DIR\n", program);
    } else if (options->checkpoint && (options->exchange.local || options->drift.steps > 0)) {
        fprintf(stderr, "%s: --checkpoint excludes --local and --local-steps\n", program);
    } else {
        return 0;
    }
    return -1;
}

static int options_check(const struct options *options, int argc, char **argv)
{
    const struct exchange_options *join = &options->exchange;
    const char *program = options->task->program;
    if (optind < argc) {
        fprintf(stderr, "%s: unexpected argument \"%s\"\n", program, argv[optind]);
    } else if (!options->data) {
        fprintf(stderr, "%s: --data FILE is needed\n", program);
    } else if (join->local && (options->corrected || join->address || join->job || join->policy ||
                                  join->rank >= 0 || join->world > 0)) {
        fprintf(stderr,
            "%s: --local trains alone: it excludes --corrected, --address, --job, "
            "--policy, --rank and --world\n",
            program);
    } else if (options->corrected && options->optimiser != OPTIMISER_SGD) {
        fprintf(stderr, "%s: --corrected needs --optimiser sgd\n", program);
    } else {
        return 0;
    }
    return -1;
}

static void options_help(const struct options_task *task)
{
    printf(help, task->program, task->about, task->data, task->steps, task->batch, (double)task->lr,
        (double)task->adamw_lr, task->warmup);
    for (size_t i = 0; i < OPTIONS_MAX_SIZES && task->sizes[i].name; i++) {
        const struct options_size *size = &task->sizes[i];
        const int name = printf("  --%s N", size->name);
        printf("%*s %s (%" PRIu64 ")\n", name < 23 ? 23 - name : 0, "", size->help, size->usual);
    }
    puts("  --help                print this text");
}

/* The flags of every example and then those of this one. */
static void options_flags(const struct options_task *task, struct option *all)
{
    memcpy(all, flags, sizeof flags);
    for (int i = 0; i < OPTIONS_MAX_SIZES && task->sizes[i].name; i++) {
        all[FLAGS + i] =
            (struct option){task->sizes[i].name, required_argument, NULL, OPTION_SIZES + i};
    }
}

/* Says what is wrong with the word that getopt_long() refused. */
static void options_refuse(const struct options_task *task, int option, char **argv)
{
    const char *word = argv[optind - 1];
    if (option == ':') {
        fprintf(stderr, "%s: %s needs a value\n", task->program, word);
    } else if (optopt >= ' ') { /* a short one; optopt numbers a long one */
        fprintf(stderr, "%s: unknown option \"-%c\"\n", task->program, optopt);
    } else if (optopt != 0) {
        fprintf(stderr, "%s: %.*s takes no value\n", task->program, (int)strcspn(word, "="), word);
    } else {
        fprintf(stderr, "%s: unknown option \"%s\"\n", task->program, word);
    }
}

/* Reads the options of the command line. */
static enum options_result options_take(struct options *options, int argc, char **argv)
{
    const struct options_task *task = options->task;
    struct option all[FLAGS + OPTIONS_MAX_SIZES + 1] = {0};
    options_flags(task, all);
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, ":", all, NULL)) != -1;) {
        if (option == OPTION_HELP) {
            options_help(task);
            return OPTIONS_HELP;
        }
        if (option == '?' || option == ':') {
            options_refuse(task, option, argv);
            return OPTIONS_ERROR;
        }
        if (options_set(options, option, optarg) != 0) {
            return OPTIONS_ERROR;
        }
    }
    return options_check(options, argc, argv) == 0 && options_check_drift(options) == 0 &&
                   options_check_checkpoint(options) == 0
               ? OPTIONS_RUN
               : OPTIONS_ERROR;
}

enum options_result options_read(
    struct options *options, const struct options_task *task, int argc, char **argv)
{
    *options = (struct options){.task = task,
        .steps = task->steps,
        .seed = 1,
        .batch = task->batch,
        .warmup = task->warmup,
        .weight_decay = -1,
        .checkpoint_every = 100,
        .exchange = {.rank = -1}};
    for (size_t i = 0; i < OPTIONS_MAX_SIZES; i++) {
        options->sizes[i] = task->sizes[i].usual;
    }
    const enum options_result result = options_take(options, argc, argv);
    if (result == OPTIONS_ERROR) {
        fprintf(stderr, "%s --help lists the options\n", task->program);
    }
    if (result != OPTIONS_RUN) {
        return result;
    }
    options->drift.rate = options->drift.rate > 0 ? options->drift.rate : 1;
    options_default_rates(options);
    if (options->warmup > options->steps) {
        options->warmup = options->steps;
    }
    return OPTIONS_RUN;
}

void options_free(struct options *options)
{
    free(options->policy_text);
    options->policy_text = NULL;
}

void options_words(const struct options *options, char *words, size_t size)
{
    const struct drift_options *drift = &options->drift;
    snprintf(words, size,
        "--optimiser %s --lr %.9g --weight-decay %.9g --warmup %" PRIu64 " --steps %" PRIu64
        " --batch %" PRIu64 " --seed %" PRIu64 " --local-steps %" PRIu64
        " --outer-lr %.9g --outer-momentum %.9g --corrected %d",
        options->optimiser == OPTIMISER_ADAMW ? "adamw" : "sgd", (double)options->lr,
        (double)options->weight_decay, options->warmup, options->steps, options->batch,
        options->seed, drift->steps, (double)drift->rate, (double)drift->momentum,
        options->corrected);
}
