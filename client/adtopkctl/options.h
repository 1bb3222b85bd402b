/*
 * The command line: one table of commands and one of options. They drive parsing, --help and the
 * completion of bash.
 */
#ifndef ADTOPK_CTL_OPTIONS_H
#define ADTOPK_CTL_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "proto/error.h"

#define OPTIONS_ARGUMENTS_MAX 1026 /* a command of two words, and a file of every node */

enum command_id {
    COMMAND_STATUS,
    COMMAND_JOBS,
    COMMAND_RANKS,
    COMMAND_TENSORS,
    COMMAND_PLAN,
    COMMAND_PEERS,
    COMMAND_STORES,
    COMMAND_STATS,
    COMMAND_POLICY_GET,
    COMMAND_POLICY_SET,
    COMMAND_POLICY_CHECK,
    COMMAND_POLICY_KEYS,
    COMMAND_POLICY_LOG,
    COMMAND_SPARSIFIERS,
    COMMAND_VERIFY,
    COMMAND_TOP,
    COMMAND_TRACE,
    COMMAND_PLOT,
    COMMAND_CHECKPOINT_ASK,
    COMMAND_CHECKPOINT_CHECK,
    COMMAND_DRAIN,
    COMMAND_KEYGEN,
    COMMAND_KEY_SHOW,
    COMMAND_COMPLETION,
    COMMAND_COUNT
};

enum option_id {
    OPTION_SOCKET,
    OPTION_JSON,
    OPTION_TIMEOUT,
    OPTION_JOB,
    OPTION_INTERVAL,
    OPTION_INTERVALS,
    OPTION_SECONDS,
    OPTION_FIRST,
    OPTION_IF_VERSION,
    OPTION_MERGE,
    OPTION_REPLACE,
    OPTION_OUT,
    OPTION_FROM,
    OPTION_WIDE,
    OPTION_SORT,
    OPTION_STATE,
    OPTION_UNDO,
    OPTION_HELP,
    OPTION_VERSION,
    OPTION_COUNT
};

/* The parsed command line. Its texts point into argv. */
struct options {
    enum command_id command;         /* COMMAND_COUNT: none or "policy", with --help or --version */
    const char *value[OPTION_COUNT]; /* NULL: not given; "" for options without a value */
    const char *argument[OPTIONS_ARGUMENTS_MAX];
    unsigned arguments;
    int timeout_ms;
    double interval_s;  /* 0: not given */
    double seconds;     /* for how long to ask */
    uint32_t intervals; /* 0: without end */
    uint32_t first;
    uint32_t if_version; /* if value[OPTION_IF_VERSION] is given */
};

/** Reads the command line. ADTOPK_ERR_ARGUMENT: it is wrong, and err says why. */
enum adtopk_status options_parse(
    struct options *options, int argc, char *const *argv, struct error *err);

/** The text of --help: of the command, of the commands that begin with the one word that was given,
 * or of the program. */
void options_help(FILE *out, const struct options *options);

/* What else the last word of a command line may become. */
enum completion {
    COMPLETE_NOTHING,
    COMPLETE_JOBS,  /* a job of this node */
    COMPLETE_KEYS,  /* a key of a policy, and "=" */
    COMPLETE_VALUES /* KEY=VALUE */
};

/** Prints what the last word may become, one per line, as far as no daemon and no policy is asked
 * for that. */
enum completion options_complete(FILE *out, const char *const *word, unsigned words);

#endif
