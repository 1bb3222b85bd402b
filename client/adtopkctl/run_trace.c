#include "client/adtopkctl/run_trace.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/adtopkctl/save.h"
#include "client/adtopkctl/text.h"
#include "client/adtopkctl/trace.h"

#define FILE_MAX (256u << 20) /* bytes of a document that a daemon wrote */

/* ------------------------------------------------------------------ reading */

/* The text of a file, to be freed; NULL and the reason in errno. */
static char *run_trace_read(const char *path)
{
    FILE *file = fopen(path, "re");
    char *text = NULL;
    size_t size = 0, room = 0;
    int code = 0;

    if (file == NULL) {
        return NULL;
    }
    do {
        char *grown = size + 1 >= room ? realloc(text, room = 2 * room + 65536) : text;

        if (grown == NULL || room > FILE_MAX) {
            text = grown != NULL ? grown : text;
            code = grown == NULL ? ENOMEM : EFBIG;
            break;
        }
        text = grown;
        size += fread(text + size, 1, room - size - 1, file);
    } while (!feof(file) && !ferror(file));
    code = code == 0 && ferror(file) ? EIO : code;
    (void)fclose(file);
    if (code != 0) {
        free(text);
        errno = code;
        return NULL;
    }
    text[size] = '\0';
    return text;
}

/* Adds the trace of a file, whose document goes to `document`, to be freed. */
static enum exit_code run_trace_add_file(struct trace *trace, const char *path, cJSON **document)
{
    char *text = run_trace_read(path);
    struct error err = {.code = ADTOPK_OK};

    if (text == NULL) {
        (void)error_set(&err, ADTOPK_ERR_SYSTEM, "%.200s: %s", path, strerror(errno));
        return run_failed(&err, false);
    }
    *document = cJSON_Parse(text);
    free(text);
    if (text_number(*document, "schema") != RUN_SCHEMA ||
        trace_add(trace, *document, &err) != ADTOPK_OK) {
        struct error whole;
        (void)error_set(&whole, ADTOPK_ERR_PROTOCOL, "%.200s: %s", path,
            err.code != ADTOPK_OK ? err.text : "this is no trace of adtopkd");
        return run_failed(&whole, false);
    }
    return EXIT_OK;
}

/* ------------------------------------------------------------------ writing */

static void run_trace_print(FILE *file, const void *trace)
{
    trace_print(file, trace);
}

static enum exit_code run_trace_write(const struct options *options, struct trace *trace)
{
    const char *path = options->value[OPTION_OUT];
    struct error err = {.code = ADTOPK_OK};

    if (trace_align(trace, &err) != ADTOPK_OK ||
        (path != NULL && save_file(path, run_trace_print, trace, &err) != ADTOPK_OK)) {
        return run_failed(&err, false);
    }
    if (path == NULL) {
        trace_print(stdout, trace);
    }
    trace_summary(stderr, trace);
    return run_flushed(EXIT_OK);
}

/* ------------------------------------------------------------------ both ways */

static enum exit_code run_trace_files(const struct options *options, struct trace *trace)
{
    cJSON *document[OPTIONS_ARGUMENTS_MAX] = {NULL};
    enum exit_code code = EXIT_OK;

    for (unsigned i = 0; code == EXIT_OK && i < options->arguments; i++) {
        code = run_trace_add_file(trace, options->argument[i], &document[i]);
    }
    code = code == EXIT_OK ? run_trace_write(options, trace) : code;
    for (unsigned i = 0; i < options->arguments; i++) {
        cJSON_Delete(document[i]);
    }
    return code;
}

static enum exit_code run_trace_job(const struct options *options, struct trace *trace)
{
    struct question question;
    struct error err = {.code = ADTOPK_OK};
    struct answer answer;
    enum exit_code code;

    question_begin(&question, COMMAND_TRACE, options->argument[0], options);
    code = run_ask(options, &question, &answer);
    if (code == EXIT_OK && options->value[OPTION_JSON] != NULL) {
        (void)printf("%s\n", answer.text);
        code = run_flushed(code);
    } else if (code == EXIT_OK) {
        code = trace_add(trace, answer.document, &err) == ADTOPK_OK
                   ? run_trace_write(options, trace)
                   : run_failed(&err, true);
    }
    run_answer_free(&answer);
    return code;
}

enum exit_code run_trace(const struct options *options)
{
    struct trace *trace = calloc(1, sizeof(*trace));
    enum exit_code code;

    if (trace == NULL) {
        run_complain("no memory for the trace");
        return EXIT_FAILED;
    }
    code = options->value[OPTION_FROM] != NULL ? run_trace_files(options, trace)
                                               : run_trace_job(options, trace);
    trace_free(trace);
    free(trace);
    return code;
}
