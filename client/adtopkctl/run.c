#include "client/adtopkctl/run.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "client/adtopkctl/complete.h"
#include "client/adtopkctl/offline.h"
#include "client/adtopkctl/owner.h"
#include "client/adtopkctl/policytext.h"
#include "client/adtopkctl/run_plot.h"
#include "client/adtopkctl/run_trace.h"
#include "client/adtopkctl/show.h"
#include "client/adtopkctl/text.h"
#include "client/adtopkctl/top.h"
#include "client/adtopkctl/top_view.h"
#include "client/control/connection.h"
#include "client/control/exchange.h"
#include "proto/guess.h"

void run_complain(const char *sentence)
{
    char line[TEXT_SIZE], clean[TEXT_SIZE];
    const char *prefix = "adtopkctl: ";

    while (prefix != NULL) { /* a fault of a document has more than one line */
        const size_t length = strcspn(sentence, "\n");

        (void)snprintf(line, sizeof(line), "%.*s", (int)length, sentence);
        (void)fprintf(stderr, "%s%s\n", prefix, text_clean(line, TEXT_SIZE, clean));
        sentence += length;
        prefix = strncmp(sentence, "\n  ", 3) == 0 ? "" : NULL;
        sentence += prefix != NULL ? 1 : 0;
    }
}

enum exit_code run_exit_code(enum adtopk_status status, bool answered)
{
    switch (status) {
    case ADTOPK_OK: return EXIT_OK;
    case ADTOPK_ERR_DENIED: return EXIT_DENIED;
    case ADTOPK_ERR_UNREACHABLE: return answered ? EXIT_FAILED : EXIT_UNREACHABLE;
    case ADTOPK_ERR_TIMEOUT: return answered ? EXIT_UNKNOWN : EXIT_UNREACHABLE;
    default: return EXIT_FAILED;
    }
}

enum exit_code run_failed(const struct error *err, bool answered)
{
    run_complain(err->text);
    return run_exit_code(err->code, answered);
}

/* ------------------------------------------------------------------ asking */

const char *run_socket_path(const struct options *options)
{
    const char *path = options->value[OPTION_SOCKET];

    path = path != NULL ? path : getenv("ADTOPK_CONTROL_SOCKET");
    return path != NULL ? path : CONTROL_DEFAULT_SOCKET;
}

void run_answer_free(struct answer *answer)
{
    free(answer->text);
    cJSON_Delete(answer->document);
    *answer = (struct answer){.text = NULL};
}

/* Asked the same, the socket for trainers answers, but with no document. */
static enum exit_code no_document(const char *path, const cJSON *document)
{
    bool has_schema = cJSON_IsNumber(text_member(document, "schema"));
    char sentence[TEXT_SIZE];

    (void)snprintf(sentence, sizeof(sentence), "the daemon's answer is not a document of schema %d",
        RUN_SCHEMA);
    run_complain(sentence);
    if (!has_schema) {
        (void)snprintf(sentence, sizeof(sentence),
            "%.200s may be the socket for trainers; adtopkctl needs the control socket", path);
        run_complain(sentence);
    }
    return EXIT_FAILED;
}

/* Whether this asks for a change, which the daemon may carry out later if it got the request. */
static bool run_changes(const Adtopk__ControlRequest *request)
{
    return request->kind_case == ADTOPK__CONTROL_REQUEST__KIND_POLICY_SET ||
           request->kind_case == ADTOPK__CONTROL_REQUEST__KIND_CHECKPOINT ||
           request->kind_case == ADTOPK__CONTROL_REQUEST__KIND_DRAIN;
}

/* What else somebody should know whose question failed. */
static const char *run_hint(const struct options *options, const struct question *question,
    enum connection_end end, enum adtopk_status status)
{
    if (end == CONNECTION_UNANSWERED && run_changes(&question->request)) {
        return "; the request may still be carried out";
    }
    return status == ADTOPK_ERR_UNREACHABLE && end == CONNECTION_UNSENT &&
                   options->value[OPTION_SOCKET] == NULL && getenv("ADTOPK_CONTROL_SOCKET") == NULL
               ? " --socket names another one"
               : "";
}

enum exit_code run_ask_for(const char *lead, const struct options *options,
    const struct question *question, struct answer *answer)
{
    const char *path = run_socket_path(options);
    struct error err = {.code = ADTOPK_OK};
    enum connection_end end;

    *answer = (struct answer){.text = NULL};
    if (connection_ask(path, question->timeout_ms, &question->request, run_complain, &answer->text,
            -1, &end, &err) != ADTOPK_OK) {
        const bool answered = end == CONNECTION_ANSWERED;
        char sentence[TEXT_SIZE];

        (void)snprintf(sentence, sizeof(sentence), "%.60s%s%s", lead, err.text,
            run_hint(options, question, end, err.code));
        run_complain(sentence);
        answer->refused = answered ? err.code : ADTOPK_OK;
        return run_exit_code(err.code, answered);
    }
    answer->document = cJSON_Parse(answer->text);
    if (text_number(answer->document, "schema") != RUN_SCHEMA) {
        return no_document(path, answer->document);
    }
    return EXIT_OK;
}

enum exit_code run_ask(
    const struct options *options, const struct question *question, struct answer *answer)
{
    return run_ask_for("", options, question, answer);
}

/* The reader of standard output must have got all of it. */
enum exit_code run_flushed(enum exit_code code)
{
    char sentence[TEXT_SIZE];

    if (fflush(stdout) != 0 || ferror(stdout) != 0) {
        (void)snprintf(sentence, sizeof(sentence), "cannot write the answer: %s", strerror(errno));
        run_complain(sentence);
        return EXIT_FAILED;
    }
    return code;
}

enum exit_code run_print(const struct options *options, cJSON *document, bool complete,
    void (*show)(FILE *out, const cJSON *document))
{
    bool json = options->value[OPTION_JSON] != NULL;
    char *text = json && complete ? cJSON_PrintUnformatted(document) : NULL;

    if (!complete || (json && text == NULL)) {
        run_complain("no memory for the answer");
        cJSON_Delete(document);
        return EXIT_FAILED;
    }
    if (json) {
        (void)printf("%s\n", text);
    } else {
        show(stdout, document);
    }
    cJSON_free(text);
    cJSON_Delete(document);
    return run_flushed(EXIT_OK);
}

/* Whether the daemon says why it could not verify, as for a job that has ended. It does not, where
 * the question is wrong: no job or several are of that name. */
static bool run_could_not_look(const struct answer *answer)
{
    return answer->refused != ADTOPK_OK && answer->refused != ADTOPK_ERR_ARGUMENT;
}

/* The usual command: one question, one document. */
static enum exit_code ask_and_print(const struct options *options, const struct question *question)
{
    struct answer answer;
    enum exit_code code = run_ask(options, question, &answer);

    if (code == EXIT_OK) {
        if (options->value[OPTION_JSON] != NULL) {
            (void)printf("%s\n", answer.text);
        } else {
            question->show(stdout, answer.document);
        }
        code = question->judge != NULL ? question->judge(answer.document) : EXIT_OK;
        code = run_flushed(code);
    } else if (question->request.kind_case == ADTOPK__CONTROL_REQUEST__KIND_VERIFY &&
               code == EXIT_FAILED && run_could_not_look(&answer)) {
        code = EXIT_UNKNOWN;
    }
    run_answer_free(&answer);
    return code;
}

static enum exit_code run_question(const struct options *options, const char *job)
{
    struct question question;

    question_begin(&question, options->command, job, options);
    return ask_and_print(options, &question);
}

/* ------------------------------------------------------------------ stats with rates */

void run_rest(double seconds)
{
    struct timespec left = {
        .tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};

    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

/* Each interval begins with the document that ended the one before. */
static enum exit_code watch(const struct options *options, const char *job)
{
    struct question question;
    struct answer before;
    struct answer after = {.text = NULL};
    bool json = options->value[OPTION_JSON] != NULL;
    enum exit_code code;

    question_begin(&question, COMMAND_STATS, job, options);
    code = run_ask(options, &question, &before);
    if (code == EXIT_OK && json) {
        (void)printf("%s\n", before.text);
    } else if (code == EXIT_OK) {
        show_rates_header(stdout);
    }
    code = code == EXIT_OK ? run_flushed(code) : code;
    for (uint64_t i = 0; code == EXIT_OK && (options->intervals == 0 || i < options->intervals);
         i++) {
        run_rest(options->interval_s);
        code = run_ask(options, &question, &after);
        if (code == EXIT_OK && json) {
            (void)printf("%s\n", after.text);
        } else if (code == EXIT_OK) {
            show_rates(stdout, before.document, after.document);
        }
        code = code == EXIT_OK ? run_flushed(code) : code;
        run_answer_free(&before);
        before = after;
        after = (struct answer){.text = NULL};
    }
    run_answer_free(&before);
    return code;
}

/* ------------------------------------------------------------------ policy set */

static enum exit_code policy_set(const struct options *options)
{
    struct question question;
    struct error err = {.code = ADTOPK_OK};
    enum exit_code code;
    char *text = NULL;
    bool pairs = false;

    if (policytext_read(options->argument + 1, options->arguments - 1, &text, &pairs, &err) !=
        ADTOPK_OK) {
        return run_failed(&err, false);
    }
    question_begin(&question, COMMAND_POLICY_SET, options->argument[0], options);
    question.body.policy_set.policy = text;
    question.body.policy_set.merge =
        options->value[OPTION_MERGE] != NULL || (pairs && options->value[OPTION_REPLACE] == NULL);
    code = ask_and_print(options, &question);
    free(text);
    return code;
}

/* The whole name of a job in a document. False: it has none. */
static bool run_name(const cJSON *job, char name[TEXT_SIZE])
{
    const cJSON *text = text_member(job, "name");
    const cJSON *run = text_member(job, "run_id");

    if (!cJSON_IsString(text) || !cJSON_IsString(run)) {
        return false;
    }
    (void)snprintf(name, TEXT_SIZE, "%.0f:%.200s/%.200s", text_number(job, "owner"),
        text->valuestring, run->valuestring);
    return true;
}

/* ------------------------------------------------------------------ checkpoint ask */

#define RUN_SAVED_PAUSE_S 0.02

static double run_now_s(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Complains about what came of the checkpoint for which `asked` is the answer. */
static enum exit_code run_not_saved(
    enum exit_code code, const cJSON *asked, const char *what, const char *advice)
{
    char sentence[TEXT_SIZE];

    (void)snprintf(sentence, sizeof(sentence), "%s after step %.0f%s", what,
        text_number(asked, "step"), advice);
    run_complain(sentence);
    return code;
}

/* The ranks have gone on, or left. */
static enum exit_code run_went_on(const cJSON *job, const cJSON *asked)
{
    return text_number(job, "checkpoint_read") >= text_number(asked, "step")
               ? run_not_saved(EXIT_FAILED, asked, "the ranks began a checkpoint",
                     ", and have not saved it: their own messages say why")
               : run_not_saved(EXIT_UNKNOWN, asked,
                     "the ranks did not say that they have saved a checkpoint",
                     ": only the trainer knows, see adtopk_checkpoint_saved()");
}

/* Asks once whether the ranks have saved; *over: they have, or will not. */
static enum exit_code run_look_saved(
    const struct options *options, const struct question *question, const cJSON *asked, bool *over)
{
    struct answer answer;
    enum exit_code code = run_ask(options, question, &answer);
    const cJSON *job = cJSON_GetArrayItem(text_member(answer.document, "jobs"), 0);
    const bool saved = text_number(job, "checkpoint_saved") >= text_number(asked, "step");

    *over = code != EXIT_OK || saved || text_is_over(job) ||
            text_number(job, "steps") > text_number(asked, "steps");
    if (code == EXIT_OK && *over && !saved) {
        code = run_went_on(job, asked);
    }
    run_answer_free(&answer);
    return code;
}

/* A daemon that does not tell its `steps` cannot tell what was saved, either. */
static enum exit_code run_await_saved(const struct options *options, double until_s, cJSON *asked)
{
    struct question question;
    enum exit_code code;
    char job[TEXT_SIZE];
    bool over;

    if (text_member(asked, "steps") == NULL || !run_name(asked, job)) {
        return EXIT_OK;
    }
    question_begin(&question, COMMAND_STATS, job, options);
    question.body.stats.no_tensors = true;
    while ((code = run_look_saved(options, &question, asked, &over)) == EXIT_OK && !over) {
        if (run_now_s() >= until_s) {
            return run_not_saved(EXIT_UNKNOWN, asked, "the ranks are told to save a checkpoint",
                ", and had not saved it within the time limit");
        }
        run_rest(RUN_SAVED_PAUSE_S);
    }
    return code == EXIT_OK && cJSON_AddTrueToObject(asked, "saved") == NULL
               ? run_failed(
                     &(struct error){.code = ADTOPK_ERR_MEMORY, .text = "no memory for the answer"},
                     false)
               : code;
}

static enum exit_code checkpoint_ask(const struct options *options, const char *job)
{
    const double until_s = run_now_s() + options->timeout_ms * 1e-3;
    struct question question;
    struct answer answer;
    enum exit_code code;

    question_begin(&question, COMMAND_CHECKPOINT_ASK, job, options);
    code = run_ask(options, &question, &answer);
    if (code == EXIT_OK) {
        code = run_await_saved(options, until_s, answer.document);
    }
    if (code == EXIT_OK) {
        code = run_print(options, answer.document, true, question.show);
        answer.document = NULL;
    }
    run_answer_free(&answer);
    return code;
}

/* ------------------------------------------------------------------ verify */

/* A lost gradient outweighs a job that could not be checked. */
static enum exit_code worse(enum exit_code one, enum exit_code other)
{
    return one == EXIT_OK || other == EXIT_FAILED ? other : one;
}

/* One after the other. */
static enum exit_code verify_all(const struct options *options)
{
    struct question question;
    struct answer answer;
    enum exit_code code;
    enum exit_code all = EXIT_OK;
    const cJSON *job;
    bool any = false;

    question_begin(&question, COMMAND_JOBS, NULL, options);
    code = run_ask(options, &question, &answer);
    cJSON_ArrayForEach(job, text_member(answer.document, "jobs"))
    {
        char name[TEXT_SIZE];

        if (text_is_over(job) || !run_name(job, name)) {
            continue;
        }
        any = true;
        code = run_question(options, name);
        all = worse(all, code);
    }
    run_answer_free(&answer);
    if (!any && code == EXIT_OK && options->value[OPTION_JSON] == NULL) {
        (void)printf("no jobs\n");
        code = run_flushed(code);
    }
    return all == EXIT_OK ? code : all;
}

/* ------------------------------------------------------------------ all commands */

/* The width of the terminal; 80 columns where there is none. */
static size_t run_width(const struct options *options)
{
    struct winsize size;

    if (options->value[OPTION_WIDE] != NULL) {
        return TABLE_UNLIMITED;
    }
    return isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0
               ? size.ws_col
               : TEXT_COLUMNS;
}

/* The table that --sort is about, without rows. */
static void run_table(enum command_id command, struct table *table)
{
    switch (command) {
    case COMMAND_JOBS: table_begin(table, show_jobs_columns, SHOW_JOBS_COLUMNS); break;
    case COMMAND_PEERS: table_begin(table, show_peers_columns, SHOW_PEERS_COLUMNS); break;
    case COMMAND_RANKS: table_begin(table, show_ranks_columns, SHOW_RANKS_COLUMNS); break;
    case COMMAND_TENSORS: table_begin(table, show_tensors_columns, SHOW_TENSORS_COLUMNS); break;
    case COMMAND_TOP:
        top_view_fill(table, TOP_JOBS, &(struct top_documents){.status = NULL});
        break;
    default: table_begin(table, show_status_columns, SHOW_STATUS_COLUMNS); break;
    }
}

/* Whether the table has the column; otherwise the sentence names those that it has. */
static bool run_can_sort(const struct options *options)
{
    const char *title = options->value[OPTION_SORT];
    const char *names[TABLE_COLUMNS_MAX];
    char sentence[TEXT_SIZE], known[GUESS_LIST_SIZE];
    struct table table;

    run_table(options->command, &table);
    if (title == NULL || table_sort(&table, title)) {
        return true;
    }
    for (unsigned i = 0; i < table.columns; i++) {
        names[i] = table.column[i].title;
    }
    (void)snprintf(sentence, sizeof(sentence), "--sort: no column is called \"%.60s\"%s", title,
        guess_of(title, names, table.columns, known));
    run_complain(sentence);
    return false;
}

/* Runs a command that makes a file. A terminal that got it would show thousands of its lines. */
static enum exit_code run_into_file(
    const struct options *options, enum exit_code (*run)(const struct options *options))
{
    if (options->value[OPTION_OUT] == NULL && options->value[OPTION_JSON] == NULL &&
        isatty(STDOUT_FILENO)) {
        run_complain("a terminal cannot show this: write it to a file, with --out FILE");
        return EXIT_USAGE;
    }
    return run(options);
}

static enum exit_code run_wanted(const struct options *options)
{
    const char *job = options->arguments > 0 ? options->argument[0] : options->value[OPTION_JOB];

    switch (options->command) {
    case COMMAND_STATUS:
    case COMMAND_JOBS:
    case COMMAND_PEERS:
    case COMMAND_STORES:
    case COMMAND_DRAIN:
    case COMMAND_RANKS:
    case COMMAND_TENSORS:
    case COMMAND_PLAN:
    case COMMAND_POLICY_GET:
    case COMMAND_POLICY_LOG: return run_question(options, job);
    case COMMAND_CHECKPOINT_ASK: return checkpoint_ask(options, job);
    case COMMAND_VERIFY: return job != NULL ? run_question(options, job) : verify_all(options);
    case COMMAND_STATS:
        return options->interval_s > 0 ? watch(options, job) : run_question(options, job);
    case COMMAND_POLICY_SET: return policy_set(options);
    case COMMAND_TRACE: return run_into_file(options, run_trace);
    case COMMAND_PLOT: return run_into_file(options, run_plot);
    case COMMAND_TOP: return top_run(options);
    case COMMAND_POLICY_CHECK: return offline_policy_check(options);
    case COMMAND_POLICY_KEYS: return offline_policy_keys(options);
    case COMMAND_SPARSIFIERS: return offline_sparsifiers(options);
    case COMMAND_KEYGEN: return offline_keygen(options);
    case COMMAND_KEY_SHOW: return offline_key_show(options);
    case COMMAND_CHECKPOINT_CHECK: return offline_checkpoint_check(options);
    case COMMAND_COMPLETION: return complete_run(options);
    case COMMAND_COUNT: break;
    }
    return EXIT_USAGE;
}

/* The commands whose first argument is a job. */
static bool run_is_about_job(const struct options *options)
{
    switch (options->command) {
    case COMMAND_RANKS:
    case COMMAND_TENSORS:
    case COMMAND_PLAN:
    case COMMAND_JOBS:
    case COMMAND_STATS:
    case COMMAND_POLICY_GET:
    case COMMAND_POLICY_SET:
    case COMMAND_POLICY_LOG:
    case COMMAND_VERIFY:
    case COMMAND_PLOT:
    case COMMAND_CHECKPOINT_ASK: return options->arguments > 0;
    case COMMAND_TRACE: return options->arguments > 0 && options->value[OPTION_FROM] == NULL;
    default: return false;
    }
}

enum exit_code run_command(const struct options *options)
{
    struct options wanted = *options;
    char argument_job[TEXT_SIZE], option_job[TEXT_SIZE];

    if (!run_can_sort(options)) {
        return EXIT_USAGE;
    }
    text_set_width(run_width(options));
    show_set_view(&(struct show_view){.sort = options->value[OPTION_SORT],
        .state = options->value[OPTION_STATE],
        .named = options->arguments > 0 || options->value[OPTION_JOB] != NULL});
    if (run_is_about_job(options)) {
        wanted.argument[0] = owner_with_number(options->argument[0], argument_job);
    }
    if (options->value[OPTION_JOB] != NULL) {
        wanted.value[OPTION_JOB] = owner_with_number(options->value[OPTION_JOB], option_job);
    }
    return run_wanted(&wanted);
}
