/*
 * The command line. One table of options yields the flags, their values, the benchmarks that they
 * belong to, and --help.
 */
#ifndef PERF_OPTIONS_H
#define PERF_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "proto/error.h"

#define OPTIONS_LIST_MAX 16
#define OPTIONS_PATH_SIZE 4096

/* A list of numbers; count 0: not given. */
struct number_list {
    double value[OPTIONS_LIST_MAX];
    size_t count;
};

/* Names from a table, one bit each in the order of the table; 0: not given. */
typedef uint32_t name_set;

/* What was given; 0, empty or NULL means that the benchmark's default holds. */
struct options {
    uint64_t min, max; /* bytes of the dense tensor */
    double factor;
    uint64_t iterations;
    uint64_t warmup;
    bool warmup_given; /* because 0 is a valid number */
    struct number_list densities;
    struct number_list lists; /* of a sum */
    struct number_list ranks;
    struct number_list tensors; /* that share the size */
    name_set distributions, dtypes, residuals, views, models, peers, sparsifiers, indices, values,
        modes, security;
    struct number_list threads;
    struct number_list columns; /* of the view rows */
    bool layers;                /* each tensor of a model has a row */
    uint64_t fibre;             /* elements of one */
    uint64_t pause_ms;          /* pause between steps, in which all sides fall asleep */
    uint64_t burners;           /* processes that keep the cores busy */
    const char *device;         /* a GPU; NULL: this processor */
    const char *daemon;
    const char *ctl;
    bool json;
};

/* What the command line asks for. */
enum options_action { OPTIONS_RUN, OPTIONS_HELP, OPTIONS_VERSION };

/* The names that one option accepts. */
struct names {
    const char *const *name; /* ends with NULL; at most 32 */
};

/* What the parser has to know of a benchmark. */
struct benchmark_name {
    const char *name;
    const char *help;
    bool apart; /* runs alone only, and is no part of all */
    const struct options *defaults;
};

/* The tables that options draw on; the same order as the enums of data.h, floor.h and others. */
struct vocabulary {
    struct names distributions, dtypes, residuals, views, models, peers, sparsifiers, indices,
        values, modes, security;
    const struct benchmark_name *benchmarks;
    size_t benchmark_count;
};

/**
 * Parses a command line. `chosen` gets the requested benchmarks, one bit each in the order of the
 * vocabulary. Errors (ADTOPK_ERR_ARGUMENT) name the option and its values; an option that belongs
 * to none of the chosen benchmarks is an error.
 */
enum adtopk_status options_parse(const struct vocabulary *vocabulary, int argc, char *const *argv,
    struct options *options, name_set *chosen, enum options_action *action, struct error *err);

/** The text of --help. Where one benchmark is chosen: its options, with its defaults. */
void options_help(const struct vocabulary *vocabulary, name_set chosen, FILE *out);

/** Bytes from text such as "4096", "4K", "1.5M", "100MB", "1GiB": K, M and G are powers of 1024.
 * False for anything else and for a size that is no whole number of bytes. */
bool options_size(const char *text, uint64_t *size);

#endif
