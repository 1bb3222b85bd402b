/*
 * The happy path: ask for two documents, or three if the ranks or tensors of a job are shown; fill
 * the table, draw it, and wait for keys until the next interval. A daemon that does not answer is
 * named on the screen, and asked again. A key ends the waiting for an answer. Nothing that a
 * document has in it commands the terminal.
 */
#include "client/adtopkctl/top.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/adtopkctl/show.h"
#include "client/adtopkctl/terminal.h"
#include "client/adtopkctl/text.h"
#include "client/adtopkctl/top_view.h"
#include "client/control/connection.h"

#define INTERVAL_S 1.0
#define FILTER_SIZE 64
#define HEAD_LINES 3 /* above the table's own title */
#define KEYS "q quit  1-4 view  up/down job  enter ranks  s sort  / filter  space pause"

struct top {
    const struct options *options;
    struct answer status, stats, earlier, job;
    struct error trouble;   /* why the last question has no answer; OK: it has */
    char chosen[TEXT_SIZE]; /* the job of which ranks or tensors are shown, "" before */
    enum top_kind kind;
    unsigned sort[TOP_KINDS]; /* column + 1; 0: the daemon's order */
    size_t selected;
    bool live;  /* on a terminal, with keys */
    bool woken; /* by a key, before all answers were there */
    bool paused, filtering;
    char filter[FILTER_SIZE];
};

/* ------------------------------------------------------------------ asking */

/* Replaces an answer; without one it stays. */
static void top_ask(struct top *top, const struct question *question, struct answer *answer)
{
    struct answer fresh = {.text = NULL};
    enum adtopk_status status;
    enum connection_end end;

    if (top->trouble.code != ADTOPK_OK || top->woken) {
        return;
    }
    status = connection_ask(run_socket_path(top->options), question->timeout_ms, &question->request,
        NULL, &fresh.text, top->live ? STDIN_FILENO : -1, &end, &top->trouble);
    top->woken = status == ADTOPK_PENDING;
    if (status != ADTOPK_OK) {
        return;
    }
    fresh.document = cJSON_Parse(fresh.text);
    if (text_number(fresh.document, "schema") != RUN_SCHEMA) {
        (void)error_set(&top->trouble, ADTOPK_ERR_PROTOCOL, "this is no answer of adtopkd");
        run_answer_free(&fresh);
        return;
    }
    run_answer_free(answer);
    *answer = fresh;
}

static void top_ask_about_job(struct top *top)
{
    struct question question;

    if (top->woken) {
        return;
    }
    run_answer_free(&top->job);
    if (top->chosen[0] == '\0' || (top->kind != TOP_RANKS && top->kind != TOP_TENSORS)) {
        return;
    }
    question_begin(&question, top->kind == TOP_RANKS ? COMMAND_RANKS : COMMAND_TENSORS, top->chosen,
        top->options);
    top_ask(top, &question, &top->job);
}

/* "UID:NAME/RUN" of a job. */
static void top_name_job(const cJSON *job, char name[TEXT_SIZE])
{
    const cJSON *text = text_member(job, "name");
    const cJSON *run = text_member(job, "run_id");

    name[0] = '\0';
    if (cJSON_IsString(text) && cJSON_IsString(run)) {
        (void)snprintf(name, TEXT_SIZE, "%.0f:%.200s/%.200s", text_number(job, "owner"),
            text->valuestring, run->valuestring);
    }
}

/* Until somebody chooses one, it is the first job. */
static void top_choose_first(struct top *top)
{
    if (top->chosen[0] == '\0') {
        const cJSON *jobs = text_member(top->status.document, "jobs");
        top_name_job(jobs != NULL ? jobs->child : NULL, top->chosen);
    }
}

static void top_ask_all(struct top *top)
{
    struct question question;
    struct answer fresh = {.text = NULL};
    const struct error before = top->trouble;

    top->trouble = (struct error){.code = ADTOPK_OK};
    top->woken = false;
    question_begin(&question, COMMAND_STATUS, NULL, top->options);
    top_ask(top, &question, &top->status);
    question_begin(&question, COMMAND_STATS, NULL, top->options);
    question.body.stats.no_tensors = true;
    top_ask(top, &question, &fresh);
    if (fresh.document != NULL) {
        run_answer_free(&top->earlier);
        top->earlier = top->stats;
        top->stats = fresh;
    }
    top_choose_first(top);
    top_ask_about_job(top);
    top->trouble = top->woken ? before : top->trouble; /* nothing new is known */
}

/* ------------------------------------------------------------------ showing */

static void top_fill(const struct top *top, struct table *table)
{
    const struct top_documents documents = {.status = top->status.document,
        .stats = top->stats.document,
        .earlier = top->earlier.document,
        .job = top->job.document};

    top_view_fill(table, top->kind, &documents);
    table_filter(table, top->filter);
    if (top->sort[top->kind] > 0) {
        (void)table_sort(table, table->column[top->sort[top->kind] - 1].title);
    }
}

/* The nodes whose ranks are missing. */
static void top_print_silent(const struct top *top, FILE *out)
{
    const cJSON *node;

    cJSON_ArrayForEach(node, text_member(top->job.document, "others"))
    {
        if (!text_true(node, "answered")) {
            (void)fprintf(out, ", node %.0f is silent", text_number(node, "node"));
        }
    }
}

static void top_print_title(const struct top *top, FILE *out, const struct table *table)
{
    for (unsigned k = 0; k < TOP_KINDS; k++) {
        (void)fprintf(out, k == top->kind ? "%s[%u %s]" : "%s %u %s ", k > 0 ? " " : "", k + 1,
            top_view_name((enum top_kind)k));
    }
    if (top->kind == TOP_RANKS || top->kind == TOP_TENSORS) {
        (void)fprintf(out, "  of %s", top->chosen);
    }
    if (top->kind == TOP_RANKS) {
        top_print_silent(top, out);
    }
    if (top->kind == TOP_TENSORS && text_number(top->job.document, "tensors_omitted") > 0) {
        (void)fprintf(out, ", %.0f more", text_number(top->job.document, "tensors_omitted"));
    }
    if (top->sort[top->kind] > 0) {
        (void)fprintf(out, "  by %s", table->column[top->sort[top->kind] - 1].title);
    }
    if (top->filtering || top->filter[0] != '\0') {
        (void)fprintf(out, "  filter: %s%s", top->filter, top->filtering ? "_" : "");
    }
    (void)fputs(top->paused ? "  PAUSED\n" : "\n", out);
}

/* A line that may have texts of others in it. */
static void top_print_clean(FILE *out, const char *line, size_t columns)
{
    char clean[TEXT_SIZE], part[TEXT_SIZE];

    (void)snprintf(part, sizeof(part), "%.*s", (int)strcspn(line, "\n"), line);
    (void)fprintf(out, "%s\n", text_clean(part, columns, clean));
}

static void top_print_head(
    const struct top *top, FILE *out, const struct table *table, size_t columns)
{
    const struct top_documents documents = {.status = top->status.document};
    char *lines = NULL;
    size_t size = 0;
    FILE *head = open_memstream(&lines, &size);

    if (head == NULL) {
        return;
    }
    if (top->trouble.code != ADTOPK_OK) {
        (void)fprintf(head, "%.300s\n", top->trouble.text);
    } else {
        top_view_head(head, &documents);
    }
    top_print_title(top, head, table);
    (void)fclose(head);
    if (lines != NULL) {
        const char *second = strchr(lines, '\n');
        top_print_clean(out, lines, columns);
        top_print_clean(out, second != NULL ? second + 1 : "", columns);
    }
    free(lines);
    (void)fputc('\n', out);
}

/* Puts lines on the screen, without its last one; some above the selected row may be left out. A
 * line is cleared before it is written: behind a full one the cursor still stands on its last
 * character. */
static void top_put(const char *text, size_t rows, size_t skip)
{
    size_t line = 0, shown = 0;

    (void)fputs("\033[H", stdout);
    while (*text != '\0' && shown + 1 < rows) {
        const size_t length = strcspn(text, "\n");

        if (line <= HEAD_LINES || line > HEAD_LINES + skip) {
            (void)printf("\033[K%.*s\r\n", (int)length, text);
            shown++;
        }
        line++;
        text += length + (text[length] == '\n' ? 1 : 0);
    }
    (void)fputs("\033[J", stdout);
}

static void top_draw(struct top *top, const struct table *table)
{
    size_t columns, rows, room;
    char *text = NULL;
    char keys[TEXT_SIZE];
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    if (out == NULL) {
        return;
    }
    terminal_size(&columns, &rows);
    top->selected = top->selected < table->rows ? top->selected
                    : table->rows > 0           ? table->rows - 1
                                                : 0;
    top_print_head(top, out, table, columns);
    (void)table_print(out, table, columns, top->selected);
    (void)fclose(out);
    room = rows > HEAD_LINES + 3 ? rows - HEAD_LINES - 2 : 1;
    top_put(text != NULL ? text : "", rows, top->selected >= room ? top->selected - room + 1 : 0);
    (void)printf("\033[%zu;1H\033[K%s", rows, text_clean(KEYS, columns, keys));
    (void)fflush(stdout);
    free(text);
}

/* ------------------------------------------------------------------ keys */

static void top_take_filter_key(struct top *top, int key)
{
    const size_t length = strlen(top->filter);

    if (key == '\n' || key == '\r' || key == 27) {
        top->filtering = false;
        top->filter[key == 27 ? 0 : length] = '\0';
    } else if ((key == 127 || key == 8) && length > 0) {
        top->filter[length - 1] = '\0';
    } else if (key >= 32 && key < 127 && length + 1 < FILTER_SIZE) {
        top->filter[length] = (char)key;
        top->filter[length + 1] = '\0';
    }
}

static void top_show_kind(struct top *top, enum top_kind kind)
{
    top->kind = kind;
    top->selected = 0;
    top->filter[0] = '\0';
    top->trouble = (struct error){.code = ADTOPK_OK};
    top->woken = false;
    top_ask_about_job(top);
}

/* The job under the cursor is the one of which ranks and tensors are shown. */
static void top_choose(struct top *top, const struct table *table)
{
    if (top->kind == TOP_JOBS && table_about(table, top->selected) != NULL) {
        top_name_job(table_about(table, top->selected), top->chosen);
    }
}

/* False: the user wants to leave. */
static bool top_take_key(struct top *top, const struct table *table, int key)
{
    if (key == TERMINAL_GONE) {
        return false;
    }
    if (top->filtering && key < TERMINAL_UP) {
        top_take_filter_key(top, key);
        return true;
    }
    if (key == TERMINAL_UP || key == 'k') {
        top->selected -= top->selected > 0 ? 1 : 0;
    } else if (key == TERMINAL_DOWN || key == 'j') {
        top->selected += top->selected + 1 < table->rows ? 1 : 0;
    } else if (key == 's') {
        top->sort[top->kind] = (top->sort[top->kind] + 1) % (table->columns + 1);
    } else if (key == ' ') {
        top->paused = !top->paused;
    } else if (key == '/') {
        top->filtering = true;
    } else if (key >= '1' && key < '1' + TOP_KINDS) {
        top_choose(top, table);
        top_show_kind(top, (enum top_kind)(key - '1'));
    } else if ((key == '\n' || key == '\r') && top->kind == TOP_JOBS) {
        top_choose(top, table);
        top_show_kind(top, TOP_RANKS);
    } else if (key == 27) {
        top_show_kind(top, TOP_JOBS);
    }
    return key != 'q';
}

static double top_now_s(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Draws, and takes keys until the time has come to ask again. False: the user wants to leave. */
static bool top_show_until(struct top *top, double until_s)
{
    bool stay = true;
    int key;

    do {
        struct table table;
        double left_s = until_s - top_now_s();

        top_fill(top, &table);
        top_draw(top, &table);
        left_s = left_s > 0 ? left_s : 0;
        key = terminal_key(top->paused ? 1000 : (int)(left_s * 1000) + 1);
        if (key != TERMINAL_NOTHING && key != TERMINAL_RESIZED) {
            stay = top_take_key(top, &table, key);
        }
        table_free(&table);
    } while (stay && (top->paused || top_now_s() < until_s));
    return stay;
}

/* ------------------------------------------------------------------ both ways */

static double top_interval_s(const struct top *top)
{
    return top->options->interval_s > 0 ? top->options->interval_s : INTERVAL_S;
}

static bool top_counts(const struct top *top, uint64_t done)
{
    return top->options->value[OPTION_INTERVALS] == NULL || top->options->intervals == 0 ||
           done < top->options->intervals;
}

static enum exit_code top_live(struct top *top)
{
    bool stay = true;

    for (uint64_t i = 0; stay && top_counts(top, i); i++) {
        top_ask_all(top);
        stay = top_show_until(top, top_now_s() + top_interval_s(top));
    }
    terminal_close();
    return run_flushed(EXIT_OK);
}

/* Whole tables one below the other, for pipes and files. */
static enum exit_code top_plain(struct top *top)
{
    enum exit_code code = EXIT_OK;

    text_set_width(TABLE_UNLIMITED);
    top_ask_all(top);
    for (uint64_t i = 0; code == EXIT_OK && top->trouble.code == ADTOPK_OK &&
                         (i < top->options->intervals || top->options->intervals == 0);
         i++) {
        struct table table;

        run_rest(top_interval_s(top));
        top_ask_all(top);
        if (top->trouble.code == ADTOPK_OK) {
            top_fill(top, &table);
            (void)fputs(i > 0 ? "\n" : "", stdout);
            show_table(stdout, &table);
            table_free(&table);
            code = run_flushed(code);
        }
    }
    return top->trouble.code != ADTOPK_OK ? run_failed(&top->trouble, false) : code;
}

enum exit_code top_run(const struct options *options)
{
    struct top top = {.options = options};
    enum exit_code code;

    top_ask_all(&top);
    if (top.trouble.code != ADTOPK_OK) {
        return run_failed(&top.trouble, false);
    }
    top.live = terminal_open();
    code = top.live ? top_live(&top) : top_plain(&top);
    run_answer_free(&top.status);
    run_answer_free(&top.stats);
    run_answer_free(&top.earlier);
    run_answer_free(&top.job);
    return code;
}
