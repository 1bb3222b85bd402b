/*
 * Carries a command out: asks the daemon and prints its answer.
 */
#ifndef ADTOPK_RUN_H
#define ADTOPK_RUN_H

#include <cjson/cJSON.h>

#include "client/adtopkctl/question.h"

#define RUN_SCHEMA 1

/** Prints documents to standard output and errors to standard error. */
enum exit_code run_command(const struct options *options);

/** Of an error; answered: it is the daemon's answer. */
enum exit_code run_exit_code(enum adtopk_status status, bool answered);

/* Shared with commands that have files of their own. */

/* An answer: its text, and the same parsed; or the error that the daemon answered. */
struct answer {
    char *text;
    cJSON *document;
    enum adtopk_status refused; /* ADTOPK_OK: it refused nothing */
};

/** Asks the daemon, and complains about errors. Free the answer in any case. */
enum exit_code run_ask(
    const struct options *options, const struct question *question, struct answer *answer);
void run_answer_free(struct answer *answer);

/** The same; `lead` stands before the reason in a complaint. */
enum exit_code run_ask_for(const char *lead, const struct options *options,
    const struct question *question, struct answer *answer);

/** Prints a document of our own, which it deletes. NULL, or one that is not complete because memory
 * was short, is a failure. */
enum exit_code run_print(const struct options *options, cJSON *document, bool complete,
    void (*show)(FILE *out, const cJSON *document));

/** The control socket. */
const char *run_socket_path(const struct options *options);

/** Passes this time. */
void run_rest(double seconds);

/** "adtopkctl: SENTENCE" on standard error. */
void run_complain(const char *sentence);

/** Complains, and returns the exit code. */
enum exit_code run_failed(const struct error *err, bool answered);

/** `code` if all of standard output could be written, because its reader must have got all. */
enum exit_code run_flushed(enum exit_code code);

#endif
