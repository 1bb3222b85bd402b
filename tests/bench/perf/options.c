#include "tests/bench/perf/options.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/arguments.h"
#include "proto/guess.h"
#include "tests/bench/perf/team.h"

#define HELP_COLUMNS 100
#define HELP_INDENT 25
#define SIZE_LOW 64.0
#define SIZE_HIGH ((double)(UINT64_C(8) << 30))

enum option_type {
    OPTION_SIZE,       /* bytes */
    OPTION_BOTH_SIZES, /* --size: min and max at once */
    OPTION_NUMBER,     /* a whole number */
    OPTION_REAL,
    OPTION_LIST,      /* of whole numbers */
    OPTION_REAL_LIST, /* of numbers above `low` */
    OPTION_NAMES,     /* a list from a table */
    OPTION_PATH,
    OPTION_SWITCH,
};

/* Which benchmarks an option belongs to; the bits are in the order of main.c's table. */
enum {
    SELECT = 1 << 0,
    ENCODE = 1 << 1,
    DECODE = 1 << 2,
    SUM = 1 << 3,
    HANDOVER = 1 << 4,
    ROUND = 1 << 5,
    LINK = 1 << 6,
    SPARSIFY = 1 << 7,
    OVERTAKE = 1 << 8,
    CLUSTER = 1 << 9,
    ALL = (1 << 10) - 1,
    WITH_DAEMON = HANDOVER | ROUND,
    WITH_DENSITY = ALL & ~(LINK | OVERTAKE),
};

static const struct option {
    const char *flag;
    const char *argument;
    enum option_type type;
    size_t offset;
    double low, high;
    unsigned belongs;
    size_t names; /* offset in struct vocabulary */
    const char *help;
} table[] = {
    {"--min", "SIZE", OPTION_SIZE, offsetof(struct options, min), SIZE_LOW, SIZE_HIGH, ALL, 0,
        "smallest tensor or message, in bytes; K, M, G are powers of 1024"},
    {"--max", "SIZE", OPTION_SIZE, offsetof(struct options, max), SIZE_LOW, SIZE_HIGH, ALL, 0,
        "largest tensor or message; it is always measured"},
    {"--size", "SIZE", OPTION_BOTH_SIZES, 0, SIZE_LOW, SIZE_HIGH, ALL, 0, "only this size"},
    {"--factor", "X", OPTION_REAL, offsetof(struct options, factor), 1.01, 1e6, ALL, 0,
        "ratio of one size to the one before"},
    {"--iterations", "N", OPTION_NUMBER, offsetof(struct options, iterations), 1, 1e6, ALL, 0,
        "samples of each row (handover: steps)"},
    {"--warmup", "N", OPTION_NUMBER, offsetof(struct options, warmup), 0, 1e6, ALL, 0,
        "turns before the first sample"},
    {"--density", "LIST", OPTION_REAL_LIST, offsetof(struct options, densities), 0, 1, WITH_DENSITY,
        0, "fractions of the elements that are sent; 1 is dense"},
    {"--dtype", "LIST", OPTION_NAMES, offsetof(struct options, dtypes), 0, 0, SELECT,
        offsetof(struct vocabulary, dtypes), "element type of the gradient"},
    {"--residual", "LIST", OPTION_NAMES, offsetof(struct options, residuals), 0, 0, SELECT,
        offsetof(struct vocabulary, residuals), "element type of the residual"},
    {"--distribution", "LIST", OPTION_NAMES, offsetof(struct options, distributions), 0, 0,
        SELECT | SPARSIFY, offsetof(struct vocabulary, distributions),
        "distribution of the gradient's values"},
    {"--view", "LIST", OPTION_NAMES, offsetof(struct options, views), 0, 0, SELECT,
        offsetof(struct vocabulary, views),
        "the k largest of the tensor, of every row, of every fibre of [*,512,3,3]"},
    {"--columns", "LIST", OPTION_LIST, offsetof(struct options, columns), 1, 1e9, SELECT, 0,
        "elements of a row"},
    {"--model", "LIST", OPTION_NAMES, offsetof(struct options, models), 0, 0, SELECT,
        offsetof(struct vocabulary, models),
        "all tensors of a model as adtopk sees them, instead of sizes and views"},
    {"--layers", NULL, OPTION_SWITCH, offsetof(struct options, layers), 0, 0, SELECT, 0,
        "measure each tensor of a model as well"},
    {"--threads", "LIST", OPTION_LIST, offsetof(struct options, threads), 1, TEAM_MAX,
        SELECT | SUM | SPARSIFY, 0, "threads that share the work"},
    {"--peers", "LIST", OPTION_NAMES, offsetof(struct options, peers), 0, 0, SELECT,
        offsetof(struct vocabulary, peers), "other programs to compare with, if installed"},
    {"--fibre", "N", OPTION_NUMBER, offsetof(struct options, fibre), 1, 1e9, ENCODE | DECODE, 0,
        "elements of a fibre for selections per fibre"},
    {"--sparsifier", "LIST", OPTION_NAMES, offsetof(struct options, sparsifiers), 0, 0, SPARSIFY,
        offsetof(struct vocabulary, sparsifiers), "sparsifiers to measure"},
    {"--index", "LIST", OPTION_NAMES, offsetof(struct options, indices), 0, 0, ENCODE | DECODE,
        offsetof(struct vocabulary, indices), "index encodings"},
    {"--value", "LIST", OPTION_NAMES, offsetof(struct options, values), 0, 0,
        ENCODE | DECODE | ROUND, offsetof(struct vocabulary, values),
        "value encodings; round: only the policy's without it"},
    {"--lists", "LIST", OPTION_LIST, offsetof(struct options, lists), 2, 256, SUM, 0,
        "how many contributions are summed"},
    {"--ranks", "LIST", OPTION_LIST, offsetof(struct options, ranks), 1, 64, SELECT | HANDOVER, 0,
        "trainers on the node: gradients that are summed"},
    {"--tensors", "LIST", OPTION_LIST, offsetof(struct options, tensors), 1, 65536, ROUND, 0,
        "tensors of equal size that share the bytes of a step"},
    {"--mode", "LIST", OPTION_NAMES, offsetof(struct options, modes), 0, 0, HANDOVER,
        offsetof(struct vocabulary, modes), "whether trainer and daemon are awake, asleep or busy"},
    {"--pause", "MS", OPTION_NUMBER, offsetof(struct options, pause_ms), 1, 10000, HANDOVER, 0,
        "pause between the steps of mode asleep"},
    {"--burners", "N", OPTION_NUMBER, offsetof(struct options, burners), 1, 256, HANDOVER, 0,
        "processes that keep cores busy in mode busy"},
    {"--security", "LIST", OPTION_NAMES, offsetof(struct options, security), 0, 0, LINK,
        offsetof(struct vocabulary, security), "how the link is protected"},
    {"--device", "GPU", OPTION_PATH, offsetof(struct options, device), 0, 0,
        SELECT | HANDOVER | ROUND, 0,
        "a GPU that selects, or has residuals (handover, round): its UUID or number"},
    {"--daemon", "PATH", OPTION_PATH, offsetof(struct options, daemon), 0, 0, WITH_DAEMON, 0,
        "adtopkd to start; default: the one beside this program"},
    {"--ctl", "PATH", OPTION_PATH, offsetof(struct options, ctl), 0, 0, ROUND, 0,
        "adtopkctl to ask; default: the one beside this program"},
    {"--json", NULL, OPTION_SWITCH, offsetof(struct options, json), 0, 0, ALL, 0,
        "print one JSON document, with every sample"},
};

#define OPTION_COUNT (sizeof(table) / sizeof(table[0]))

static const struct names *option_names(
    const struct vocabulary *vocabulary, const struct option *option)
{
    return (const struct names *)(const void *)((const char *)vocabulary + option->names);
}

bool options_size(const char *text, uint64_t *size)
{
    static const char *const units[] = {"", "K", "M", "G"};
    char *end = NULL;
    double number = strtod(text, &end);
    double unit = 1;

    if (end == text || end != text + strspn(text, "0123456789.") || number > 0x1p52) {
        return false;
    }
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++, unit *= 1024) {
        size_t length = strlen(units[i]);
        const char *rest = end + length;
        bool prefix = length == 0 || (*end & ~0x20) == *units[i];

        if (prefix &&
            (*rest == '\0' || strcmp(rest, "B") == 0 || (length > 0 && strcmp(rest, "iB") == 0))) {
            *size = (uint64_t)(number * unit);
            return (double)*size == number * unit;
        }
    }
    return false;
}

static enum adtopk_status refuse(const struct option *option, const char *text, struct error *err)
{
    switch (option->type) {
    case OPTION_SIZE:
    case OPTION_BOTH_SIZES:
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "%s: \"%.40s\" is no size from 64 bytes to 8G, such as 4096, 4K or 100M", option->flag,
            text);
    case OPTION_REAL_LIST:
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "%s: \"%.40s\" is no list of at most %d numbers above %g and at most %g", option->flag,
            text, OPTIONS_LIST_MAX, option->low, option->high);
    case OPTION_LIST:
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "%s: \"%.40s\" is no list of at most %d whole numbers from %.0f to %.0f", option->flag,
            text, OPTIONS_LIST_MAX, option->low, option->high);
    default:
        return error_set(err, ADTOPK_ERR_ARGUMENT, "%s: \"%.40s\" is no %s from %.10g to %.10g",
            option->flag, text, option->type == OPTION_NUMBER ? "whole number" : "number",
            option->low, option->high);
    }
}

/* One number of the option's range; whole if `whole`. */
static bool read_number(
    const struct option *option, const char *text, size_t length, bool whole, double *number)
{
    char copy[32];
    char *end = NULL;

    if (length == 0 || length >= sizeof(copy) || strspn(text, "0123456789.e-") < length) {
        return false;
    }
    memcpy(copy, text, length);
    copy[length] = '\0';
    *number = strtod(copy, &end);
    return *end == '\0' && *number >= option->low && *number <= option->high &&
           (!whole || *number == floor(*number));
}

static enum adtopk_status take_list(
    const struct option *option, const char *text, struct number_list *list, struct error *err)
{
    const bool whole = option->type == OPTION_LIST;
    const char *at = text;

    list->count = 0;
    for (;;) {
        size_t length = strcspn(at, ",");
        double number;

        if (list->count == OPTIONS_LIST_MAX || !read_number(option, at, length, whole, &number) ||
            (!whole && number == option->low)) {
            return refuse(option, text, err);
        }
        list->value[list->count++] = number;
        if (at[length] == '\0') {
            return ADTOPK_OK;
        }
        at += length + 1;
    }
}

/* The names of a set, with commas between them. */
static void print_names(const struct names *names, name_set set, char *text, size_t size)
{
    size_t used = 0;

    for (size_t i = 0; names->name[i] != NULL && used < size; i++) {
        if ((set >> i & 1u) != 0) {
            used += (size_t)snprintf(
                text + used, size - used, "%s%s", used > 0 ? ", " : "", names->name[i]);
        }
    }
}

static enum adtopk_status take_names(const struct vocabulary *vocabulary,
    const struct option *option, const char *text, name_set *set, struct error *err)
{
    const struct names *names = option_names(vocabulary, option);
    const char *at = text;
    char known[160];

    *set = 0;
    for (;;) {
        size_t length = strcspn(at, ",");
        size_t i = 0;

        while (names->name[i] != NULL &&
               (strlen(names->name[i]) != length || strncmp(names->name[i], at, length) != 0)) {
            i++;
        }
        if (names->name[i] != NULL) {
            *set |= (name_set)1 << i;
        } else if (length == 3 && strncmp(at, "all", 3) == 0) {
            *set = UINT32_MAX;
        } else {
            print_names(names, UINT32_MAX, known, sizeof(known));
            return error_set(err, ADTOPK_ERR_ARGUMENT, "%s: \"%.*s\" is not one of: %s, all",
                option->flag, (int)(length < 30 ? length : 30), at, known);
        }
        if (at[length] == '\0') {
            return ADTOPK_OK;
        }
        at += length + 1;
    }
}

static enum adtopk_status take_size(
    const struct option *option, const char *text, struct options *options, struct error *err)
{
    uint64_t size;

    if (!options_size(text, &size) || (double)size < option->low || (double)size > option->high) {
        return refuse(option, text, err);
    }
    if (option->type == OPTION_BOTH_SIZES) {
        options->min = options->max = size;
    } else {
        *(uint64_t *)(void *)((char *)options + option->offset) = size;
    }
    return ADTOPK_OK;
}

static enum adtopk_status take_number(
    const struct option *option, const char *text, struct options *options, struct error *err)
{
    void *field = (char *)options + option->offset;
    double number;

    if (!read_number(option, text, strlen(text), option->type == OPTION_NUMBER, &number)) {
        return refuse(option, text, err);
    }
    if (option->type == OPTION_REAL) {
        *(double *)field = number;
    } else {
        *(uint64_t *)field = (uint64_t)number;
    }
    options->warmup_given = options->warmup_given || field == &options->warmup;
    return ADTOPK_OK;
}

static enum adtopk_status take_value(const struct vocabulary *vocabulary,
    const struct option *option, const char *text, struct options *options, struct error *err)
{
    void *field = (char *)options + option->offset;

    switch (option->type) {
    case OPTION_SIZE:
    case OPTION_BOTH_SIZES: return take_size(option, text, options, err);
    case OPTION_NUMBER:
    case OPTION_REAL: return take_number(option, text, options, err);
    case OPTION_LIST:
    case OPTION_REAL_LIST: return take_list(option, text, field, err);
    case OPTION_NAMES: return take_names(vocabulary, option, text, field, err);
    case OPTION_PATH: *(const char **)field = text; return ADTOPK_OK;
    case OPTION_SWITCH: *(bool *)field = true; return ADTOPK_OK;
    }
    return ADTOPK_ERR_ARGUMENT;
}

static bool known_option(size_t index, struct arguments_flag *flag)
{
    static const char *const others[] = {"--help", "--version"}; /* options_parse() takes them */
    const bool other = index >= OPTION_COUNT;

    if (index >= OPTION_COUNT + sizeof(others) / sizeof(others[0])) {
        return false;
    }
    (void)snprintf(flag->name, sizeof(flag->name), "%s",
        other ? others[index - OPTION_COUNT] : table[index].flag);
    flag->value = other ? NULL : table[index].argument;
    return true;
}

static enum adtopk_status take_option(const struct vocabulary *vocabulary, struct arguments *words,
    struct options *options, bool given[], struct error *err)
{
    struct arguments_option option;

    if (arguments_option(words, known_option, &option, err) != ADTOPK_OK) {
        return err->code;
    }
    given[option.index] = true;
    return take_value(vocabulary, &table[option.index], option.value, options, err);
}

static enum adtopk_status take_benchmark(
    const struct vocabulary *vocabulary, const char *name, name_set *chosen, struct error *err)
{
    const char *known[8 * sizeof(name_set) + 1];
    char list[GUESS_LIST_SIZE];
    unsigned count = 0;

    for (size_t i = 0; i < vocabulary->benchmark_count; i++) {
        if (strcmp(vocabulary->benchmarks[i].name, name) == 0) {
            *chosen |= (name_set)1 << i;
            return ADTOPK_OK;
        }
        known[count++] = vocabulary->benchmarks[i].name;
    }
    if (strcmp(name, "all") == 0) {
        for (size_t i = 0; i < vocabulary->benchmark_count; i++) {
            *chosen |= (name_set)!vocabulary->benchmarks[i].apart << i;
        }
        return ADTOPK_OK;
    }
    known[count++] = "all";
    return error_set(err, ADTOPK_ERR_ARGUMENT, "unknown benchmark \"%.60s\"%s", name,
        guess_of(name, known, count, list));
}

static enum adtopk_status check_apart(
    const struct vocabulary *vocabulary, name_set chosen, struct error *err)
{
    for (size_t i = 0; i < vocabulary->benchmark_count; i++) {
        const name_set bit = (name_set)1 << i;

        if (vocabulary->benchmarks[i].apart && (chosen & bit) != 0 && chosen != bit) {
            return error_set(err, ADTOPK_ERR_ARGUMENT, "%s runs alone, without other benchmarks",
                vocabulary->benchmarks[i].name);
        }
    }
    return ADTOPK_OK;
}

static enum adtopk_status check(const struct vocabulary *vocabulary, const struct options *options,
    const bool given[], name_set chosen, struct error *err)
{
    if (chosen == 0) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "name a benchmark, or all");
    }
    if (check_apart(vocabulary, chosen, err) != ADTOPK_OK) {
        return err->code;
    }
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        if (given[i] && (table[i].belongs & chosen) == 0) {
            return error_set(err, ADTOPK_ERR_ARGUMENT, "%s is no option of the requested benchmark",
                table[i].flag);
        }
    }
    if (options->min > 0 && options->max > 0 && options->min > options->max) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "--min is larger than --max");
    }
    if (options->layers && options->models == 0) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "--layers needs --model");
    }
    if (options->models != 0 && chosen == SELECT &&
        (options->max > 0 || options->min > 0 || options->views != 0 ||
            options->columns.count > 0)) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "--model: tensors have their own sizes and views; --size, --min, --max, --view and "
            "--columns do not go with it");
    }
    return ADTOPK_OK;
}

enum adtopk_status options_parse(const struct vocabulary *vocabulary, int argc, char *const *argv,
    struct options *options, name_set *chosen, enum options_action *action, struct error *err)
{
    struct arguments words = {.argc = argc, .argv = argv};
    bool given[OPTION_COUNT] = {false};
    enum adtopk_status status = ADTOPK_OK;

    memset(options, 0, sizeof(*options));
    *chosen = 0;
    *action = OPTIONS_RUN;
    while (++words.at < argc && status == ADTOPK_OK) {
        const char *word = argv[words.at];

        if (strcmp(word, "--help") == 0 || strcmp(word, "--version") == 0) {
            *action = word[2] == 'h' ? OPTIONS_HELP : OPTIONS_VERSION;
            return ADTOPK_OK;
        }
        status = word[0] == '-' ? take_option(vocabulary, &words, options, given, err)
                                : take_benchmark(vocabulary, word, chosen, err);
    }
    return status == ADTOPK_OK ? check(vocabulary, options, given, *chosen, err) : status;
}

/* Breaks the line behind words that would pass the last column. */
static void help_words(const char *words, FILE *out)
{
    const size_t room = HELP_COLUMNS - HELP_INDENT;

    while (*words != '\0') {
        size_t length = strlen(words);

        if (length > room) {
            length = room;
            while (length > 1 && words[length - 1] != ' ') {
                length--;
            }
        }
        (void)fprintf(out, "%*s%.*s\n", HELP_INDENT, "",
            (int)(length - (words[length - 1] == ' ' ? 1 : 0)), words);
        words += length;
    }
}

static void print_numbers(const struct number_list *list, char *text, size_t size)
{
    size_t used = 0;

    for (size_t i = 0; i < list->count && used < size; i++) {
        used +=
            (size_t)snprintf(text + used, size - used, "%s%g", used > 0 ? "," : "", list->value[i]);
    }
}

/* As options_size() reads it. */
static void print_size(uint64_t bytes, char *text, size_t size)
{
    static const char units[][2] = {"", "K", "M", "G"};
    size_t unit = 0;

    while (unit < 3 && bytes > 0 && bytes % 1024 == 0) {
        bytes /= 1024;
        unit++;
    }
    (void)snprintf(text, size, "%llu%s", (unsigned long long)bytes, units[unit]);
}

/* The value of the option; "" if it has none. */
static void print_value(const struct vocabulary *vocabulary, const struct option *option,
    const struct options *options, char *text, size_t size)
{
    const void *field = (const char *)options + option->offset;

    text[0] = '\0';
    switch (option->type) {
    case OPTION_SIZE: print_size(*(const uint64_t *)field, text, size); return;
    case OPTION_NUMBER:
        (void)snprintf(text, size, "%llu", (unsigned long long)*(const uint64_t *)field);
        return;
    case OPTION_REAL: (void)snprintf(text, size, "%g", *(const double *)field); return;
    case OPTION_LIST:
    case OPTION_REAL_LIST: print_numbers(field, text, size); return;
    case OPTION_NAMES:
        if (*(const name_set *)field == UINT32_MAX) {
            (void)snprintf(text, size, "all");
        } else {
            print_names(option_names(vocabulary, option), *(const name_set *)field, text, size);
        }
        return;
    default: return;
    }
}

static void help_default(const struct vocabulary *vocabulary, const struct option *option,
    const struct options *defaults, FILE *out)
{
    char value[160];
    char words[176];

    print_value(vocabulary, option, defaults, value, sizeof(value));
    if (value[0] != '\0') {
        (void)snprintf(words, sizeof(words), "default: %s", value);
        help_words(words, out);
    }
}

static void help_option(const struct vocabulary *vocabulary, const struct option *option, FILE *out)
{
    char left[32];
    char known[160];
    char words[168];

    (void)snprintf(left, sizeof(left), "%s%s%s", option->flag, option->argument != NULL ? " " : "",
        option->argument != NULL ? option->argument : "");
    (void)fprintf(out, "  %-20s %s\n", left, option->help);
    if (option->type == OPTION_NAMES) {
        print_names(option_names(vocabulary, option), UINT32_MAX, known, sizeof(known));
        (void)snprintf(words, sizeof(words), "%s, all", known);
        help_words(words, out);
    }
}

static void help_belongs(
    const struct vocabulary *vocabulary, const struct option *option, FILE *out)
{
    const char *gap = "  (";

    if (option->belongs == ALL) {
        return;
    }
    (void)fprintf(out, "  %-20s", "");
    for (size_t i = 0; i < vocabulary->benchmark_count; i++) {
        if ((option->belongs >> i & 1u) != 0) {
            (void)fprintf(out, "%s%s", gap, vocabulary->benchmarks[i].name);
            gap = ", ";
        }
    }
    (void)fprintf(out, ")\n");
}

static void help_end(FILE *out)
{
    (void)fprintf(out, "  %-20s %s\n  %-20s %s\n", "--help", "print this text", "--version",
        "print the version");
    (void)fprintf(out, "\nA LIST is separated by commas; lists of names accept all.\n"
                       "Exit status: 0 measured, 1 failure or interrupted, 2 usage.\n");
}

static void help_of_one(const struct vocabulary *vocabulary, size_t benchmark, FILE *out)
{
    const struct benchmark_name *name = &vocabulary->benchmarks[benchmark];

    (void)fprintf(out, "usage: adtopk-perf [OPTION]... %s\n\n  %s\n\n", name->name, name->help);
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        if ((table[i].belongs >> benchmark & 1u) != 0) {
            help_option(vocabulary, &table[i], out);
            help_default(vocabulary, &table[i], name->defaults, out);
        }
    }
    help_end(out);
}

static void help_of_all(const struct vocabulary *vocabulary, FILE *out)
{
    (void)fprintf(out,
        "usage: adtopk-perf [OPTION]... BENCHMARK...\n"
        "       adtopk-perf BENCHMARK --help    its options, with its defaults\n\n"
        "Measures parts of adtopk on this machine, each beside the least time that the machine "
        "needs\n"
        "for the same bytes. With cluster it is one rank of several: torchrun, srun or mpirun "
        "starts\n"
        "it where adtopkd runs. $ADTOPK_ADDRESS and $ADTOPK_CONTROL_SOCKET name another "
        "daemon.\n\n");
    for (size_t i = 0; i < vocabulary->benchmark_count; i++) {
        (void)fprintf(
            out, "  %-20s %s\n", vocabulary->benchmarks[i].name, vocabulary->benchmarks[i].help);
    }
    (void)fprintf(
        out, "  %-20s %s\n\n", "all", "measure all of these but cluster, one after the other");
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        help_option(vocabulary, &table[i], out);
        help_belongs(vocabulary, &table[i], out);
    }
    help_end(out);
}

void options_help(const struct vocabulary *vocabulary, name_set chosen, FILE *out)
{
    for (size_t i = 0; i < vocabulary->benchmark_count; i++) {
        if (chosen == (name_set)1 << i) {
            help_of_one(vocabulary, i, out);
            return;
        }
    }
    help_of_all(vocabulary, out);
}
