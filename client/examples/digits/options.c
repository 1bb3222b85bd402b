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

static const char help[] =
    "Usage: adtopk-digits --data FILE [option...]\n"
    "\n"
    "Trains a small convolutional network on hand-written digits, data-parallel through adtopkd.\n"
    "Start one process a rank; rank and world size come from the variables of torchrun, Slurm or\n"
    "MPI (RANK, WORLD_SIZE, ...) unless given here.\n"
    "\n"
    "  --data FILE      CSV: 64 pixels 0..16 and a label 0..9 a line (gunzip digits.csv.gz first)\n"
    "  --local          train alone in this process, without a daemon\n"
    "  --steps N        training steps (default 440)\n"
    "  --batch N        examples a step, over all ranks (default 128)\n"
    "  --lr X           highest learning rate (default 0.04)\n"
    "  --warmup N       steps until the highest rate is reached (default 40, at most --steps)\n"
    "  --seed S         seed of parameters and batches, the same on all ranks (default 1)\n"
    "  --log FILE       write JSON lines: one a step, then a final one (rank 0 only)\n"
    "  --address ADDR   of the daemon, such as unix:/run/adtopk/adtopkd.sock\n"
    "  --job NAME       name of the job\n"
    "  --policy FILE    policy document (JSON), the same on all ranks\n"
    "  --rank N         this process, 0 to world size - 1\n"
    "  --world N        number of ranks\n"
    "  --help           this text\n";

enum {
    OPTION_DATA = 1,
    OPTION_LOCAL,
    OPTION_STEPS,
    OPTION_BATCH,
    OPTION_LR,
    OPTION_WARMUP,
    OPTION_SEED,
    OPTION_LOG,
    OPTION_ADDRESS,
    OPTION_JOB,
    OPTION_POLICY,
    OPTION_RANK,
    OPTION_WORLD,
    OPTION_HELP
};

static const struct option flags[] = {
    {"data", required_argument, NULL, OPTION_DATA},
    {"local", no_argument, NULL, OPTION_LOCAL},
    {"steps", required_argument, NULL, OPTION_STEPS},
    {"batch", required_argument, NULL, OPTION_BATCH},
    {"lr", required_argument, NULL, OPTION_LR},
    {"warmup", required_argument, NULL, OPTION_WARMUP},
    {"seed", required_argument, NULL, OPTION_SEED},
    {"log", required_argument, NULL, OPTION_LOG},
    {"address", required_argument, NULL, OPTION_ADDRESS},
    {"job", required_argument, NULL, OPTION_JOB},
    {"policy", required_argument, NULL, OPTION_POLICY},
    {"rank", required_argument, NULL, OPTION_RANK},
    {"world", required_argument, NULL, OPTION_WORLD},
    {"help", no_argument, NULL, OPTION_HELP},
    {0},
};

static int options_number(
    const char *name, const char *text, uint64_t least, uint64_t most, uint64_t *value)
{
    char *end = NULL;
    errno = 0;
    const unsigned long long number = strtoull(text, &end, 10);
    const int digits_only = text[0] != '\0' && strspn(text, "0123456789") == strlen(text);
    if (digits_only && errno == 0 && number >= least && number <= most) {
        *value = number;
        return 0;
    }
    fprintf(stderr,
        "adtopk-digits: --%s %s: expected a whole number from %" PRIu64 " to %" PRIu64 "\n", name,
        text, least, most);
    return -1;
}

static int options_small(const char *name, const char *text, int least, int *value)
{
    uint64_t number = 0;
    if (options_number(name, text, (uint64_t)least, INT_MAX, &number) != 0) {
        return -1;
    }
    *value = (int)number;
    return 0;
}

static int options_rate(const char *text, float *value)
{
    char *end = NULL;
    const float number = strtof(text, &end);
    if (end != text && *end == '\0' && isfinite(number) && number > 0) {
        *value = number;
        return 0;
    }
    fprintf(stderr, "adtopk-digits: --lr %s: expected a number above 0\n", text);
    return -1;
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
        fprintf(stderr, "adtopk-digits: --policy %s: %s\n", path, problem);
        free(text);
        return -1;
    }
    text[size] = '\0';
    free(options->policy_text);
    options->policy_text = text;
    options->exchange.policy = text;
    return 0;
}

static int options_set(struct options *o, int option, const char *value)
{
    switch (option) {
    case OPTION_DATA: o->data = value; return 0;
    case OPTION_LOCAL: o->exchange.local = 1; return 0;
    case OPTION_STEPS: return options_number("steps", value, 1, max_count, &o->steps);
    case OPTION_BATCH: return options_number("batch", value, 1, max_count, &o->batch);
    case OPTION_LR: return options_rate(value, &o->lr);
    case OPTION_WARMUP: return options_number("warmup", value, 0, max_count, &o->warmup);
    case OPTION_SEED: return options_number("seed", value, 0, UINT64_MAX, &o->seed);
    case OPTION_LOG: o->log = value; return 0;
    case OPTION_ADDRESS: o->exchange.address = value; return 0;
    case OPTION_JOB: o->exchange.job = value; return 0;
    case OPTION_POLICY: return options_policy(o, value);
    case OPTION_RANK: return options_small("rank", value, 0, &o->exchange.rank);
    case OPTION_WORLD: return options_small("world", value, 1, &o->exchange.world);
    default: return -1; /* getopt has said what is wrong */
    }
}

static int options_check(const struct options *options, int argc, char **argv)
{
    const struct exchange_options *join = &options->exchange;
    if (optind < argc) {
        fprintf(stderr, "adtopk-digits: unexpected argument '%s'\n", argv[optind]);
    } else if (!options->data) {
        fprintf(stderr, "adtopk-digits: --data FILE is needed; see --help\n");
    } else if (join->local &&
               (join->address || join->job || join->policy || join->rank >= 0 || join->world > 0)) {
        fprintf(stderr, "adtopk-digits: --local trains alone; it goes with none of --address, "
                        "--job, --policy, --rank, --world\n");
    } else {
        return 0;
    }
    return -1;
}

enum options_result options_read(struct options *options, int argc, char **argv)
{
    *options = (struct options){
        .steps = 440, .seed = 1, .batch = 128, .warmup = 40, .lr = 0.04f, .exchange = {.rank = -1}};
    for (int option; (option = getopt_long(argc, argv, "", flags, NULL)) != -1;) {
        if (option == OPTION_HELP) {
            fputs(help, stdout);
            return OPTIONS_HELP;
        }
        if (options_set(options, option, optarg) != 0) {
            return OPTIONS_ERROR;
        }
    }
    if (options_check(options, argc, argv) != 0) {
        return OPTIONS_ERROR;
    }
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
