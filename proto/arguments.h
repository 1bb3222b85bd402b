/*
 * The options of a command line: "--name", "--name=VALUE" or "--name VALUE". "-h" is "--help".
 *
 *     struct arguments words = {.argc = argc, .argv = argv};
 *
 *     while (++words.at < argc) {
 *         if (argv[words.at][0] == '-') {
 *             status = arguments_option(&words, known, &given, err);
 */
#ifndef ADTOPK_ARGUMENTS_H
#define ADTOPK_ARGUMENTS_H

#include <stdbool.h>
#include <stddef.h>

#include "proto/error.h"

struct arguments {
    int argc;
    char *const *argv;
    int at; /* the word that is read */
};

#define ARGUMENTS_FLAG_SIZE 40

/* An option that the program has. */
struct arguments_flag {
    char name[ARGUMENTS_FLAG_SIZE]; /* "--name" */
    const char *value;              /* how help calls its value; NULL: it needs none */
    bool optional;                  /* it needs none, but "=VALUE" may follow */
};

/** Tells the program's option with this number; false behind the last one. */
typedef bool arguments_known(size_t index, struct arguments_flag *flag);

/* An option that the command line has. */
struct arguments_option {
    size_t index;
    const char *value; /* NULL: none */
};

/** Reads the option at words->at and its value, which may be the next word. ADTOPK_ERR_ARGUMENT:
 * the program has no such option (its index is one behind the last, and the sentence guesses the
 * one that was meant), or the value is missing or too much. */
enum adtopk_status arguments_option(struct arguments *words, arguments_known *known,
    struct arguments_option *given, struct error *err);

#endif
