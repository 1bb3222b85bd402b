#include "tests/bench/perf/report.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/perf/format.h"

struct report {
    FILE *out;
    cJSON *document; /* NULL: text */
    cJSON *rows;
    bool failed; /* no memory for some item of the document */
    enum report_layout layout;
    const char *table; /* whose heading was printed last: "": that of rows; NULL: none yet */
};

/* A row with what is derived from it. */
struct figures {
    const struct row *row;
    struct summary time, floor, settle, peer[REPORT_PEERS];
    double ratio;
};

double report_bits(double bytes, double nonzeros)
{
    return nonzeros > 0 ? 8 * bytes / nonzeros : NAN;
}

double report_bandwidth(double bytes, double us)
{
    return us > 0 ? bytes / us * 1e-3 : NAN;
}

/* How many times longer a peer takes than we do, for all of it; NAN: not measured. */
static double peer_ratio(const struct figures *figures, unsigned peer)
{
    const double settle = isnan(figures->settle.median) ? 0 : figures->settle.median;
    const double ours = figures->time.median + settle;

    return ours > 0 ? figures->peer[peer].median / ours : NAN;
}

static cJSON *add(struct report *report, cJSON *object, const char *name, cJSON *item)
{
    if (item == NULL || object == NULL || !cJSON_AddItemToObject(object, name, item)) {
        cJSON_Delete(item);
        report->failed = true;
        return NULL;
    }
    return item;
}

/* NAN becomes null. */
static void add_number(struct report *report, cJSON *object, const char *name, double number)
{
    (void)add(
        report, object, name, isnan(number) ? cJSON_CreateNull() : cJSON_CreateNumber(number));
}

static void add_text(struct report *report, cJSON *object, const char *name, const char *text)
{
    (void)add(report, object, name, cJSON_CreateString(text));
}

static void add_machine(struct report *report, const struct machine *machine)
{
    cJSON *object = add(report, report->document, "machine", cJSON_CreateObject());

    add_text(report, object, "cpu", machine->cpu);
    add_number(report, object, "cores", (double)machine->cores);
    add_text(report, object, "kernel", machine->kernel);
    add_text(report, object, "vectors", machine->vectors);
    add_number(report, object, "load", machine->load);
}

static void begin_document(
    struct report *report, const struct machine *machine, int argc, char *const *argv)
{
    cJSON *command;

    add_number(report, report->document, "schema", REPORT_SCHEMA);
    add_text(report, report->document, "program", "adtopk-perf");
    add_text(report, report->document, "version", ADTOPK_VERSION);
    command = add(report, report->document, "command", cJSON_CreateArray());
    for (int i = 1; i < argc; i++) {
        cJSON *word = cJSON_CreateString(argv[i]);

        if (word == NULL || command == NULL || !cJSON_AddItemToArray(command, word)) {
            cJSON_Delete(word);
            report->failed = true;
        }
    }
    add_machine(report, machine);
    report->rows = add(report, report->document, "rows", cJSON_CreateArray());
}

struct report *report_new(
    FILE *out, bool json, const struct machine *machine, int argc, char *const *argv)
{
    struct report *report = calloc(1, sizeof(*report));

    if (report == NULL) {
        return NULL;
    }
    report->out = out;
    if (json) {
        report->document = cJSON_CreateObject();
        if (report->document == NULL) {
            free(report);
            return NULL;
        }
        begin_document(report, machine, argc, argv);
        return report;
    }
    (void)fprintf(out, "# adtopk-perf " ADTOPK_VERSION ": %s, %ld cores, %s\n# %s, load %.1f\n",
        machine->cpu, machine->cores, machine->vectors, machine->kernel, machine->load);
    return report;
}

/* ---- the table ---- */

typedef void (*print_fn)(char text[FORMAT_SIZE], const struct figures *figures);

static void print_size(char text[FORMAT_SIZE], const struct figures *figures)
{
    format_count(text, (double)figures->row->size);
}

static void print_count(char text[FORMAT_SIZE], const struct figures *figures)
{
    format_count(text, (double)figures->row->count);
}

static void print_type(char text[FORMAT_SIZE], const struct figures *figures)
{
    (void)snprintf(text, FORMAT_SIZE, "%s", figures->row->type);
}

/* With the number of gradients that are summed: "bf16x2". */
static void print_types(char text[FORMAT_SIZE], const struct figures *figures)
{
    const struct row *row = figures->row;

    (void)snprintf(text, FORMAT_SIZE, row->ranks > 1 ? "%sx%u" : "%s", row->type, row->ranks);
}

static void print_residual(char text[FORMAT_SIZE], const struct figures *figures)
{
    const char *residual = figures->row->residual;

    (void)snprintf(text, FORMAT_SIZE, "%s", residual != NULL ? residual : "-");
}

static void print_threads(char text[FORMAT_SIZE], const struct figures *figures)
{
    format_count(text, figures->row->threads > 0 ? (double)figures->row->threads : NAN);
}

static void print_density(char text[FORMAT_SIZE], const struct figures *figures)
{
    format_density(text, figures->row->density);
}

static void print_time(char text[FORMAT_SIZE], const struct figures *figures)
{
    format_measure(text, figures->time.median);
}

static void print_tensors(char text[FORMAT_SIZE], const struct figures *figures)
{
    format_count(text, (double)figures->row->tensors);
}

static void print_cpu(char text[FORMAT_SIZE], const struct figures *figures)
{
    format_measure(text, figures->row->cpu_us);
}

static void print_p90(char text[FORMAT_SIZE], const struct figures *figures)
{
    format_measure(text, figures->time.p90);
}

static void print_p99(char text[FORMAT_SIZE], const struct figures *figures)
{
    format_measure(text, figures->time.p99);
}

static void print_max(char text[FORMAT_SIZE], const struct figures *figures)
{
    format_measure(text, figures->time.max);
}

static void print_target(char text[FORMAT_SIZE], const struct figures *figures)
{
    format_count(text, figures->row->target_us);
}

static void print_algbw(char text[FORMAT_SIZE], const struct figures *figures)
{
    format_measure(text, report_bandwidth(figures->row->alg_bytes, figures->time.median));
}

static void print_busbw(char text[FORMAT_SIZE], const struct figures *figures)
{
    format_measure(text, report_bandwidth(figures->row->bus_bytes, figures->time.median));
}

static void print_wire(char text[FORMAT_SIZE], const struct figures *figures)
{
    format_count(text, figures->row->wire_bytes);
}

static void print_bits(char text[FORMAT_SIZE], const struct figures *figures)
{
    format_measure(text, report_bits(figures->row->wire_bytes, figures->row->nonzeros));
}

static void print_floor(char text[FORMAT_SIZE], const struct figures *figures)
{
    format_measure(text, figures->floor.median);
}

static void print_ratio(char text[FORMAT_SIZE], const struct figures *figures)
{
    format_measure(text, figures->ratio);
}

static void print_spread(char text[FORMAT_SIZE], const struct figures *figures)
{
    format_percent(text, figures->time.spread);
}

static void print_settle(char text[FORMAT_SIZE], const struct figures *figures)
{
    format_measure(text, figures->settle.median);
}

static void print_share(char text[FORMAT_SIZE], const struct figures *figures)
{
    format_measure(text, figures->row->nonzeros / figures->row->target_count);
}

static void print_peer_0(char text[FORMAT_SIZE], const struct figures *figures)
{
    format_measure(text, peer_ratio(figures, 0));
}

static void print_peer_1(char text[FORMAT_SIZE], const struct figures *figures)
{
    format_measure(text, peer_ratio(figures, 1));
}

struct column {
    const char *name, *unit;
    int width;
    print_fn print;
};

#define COLUMNS_MAX 13

static const struct layout {
    int what; /* width of the first column */
    struct column columns[COLUMNS_MAX];
} layouts[] = {
    [REPORT_BANDWIDTH] = {20,
        {{"size", "(B)", 9, print_size}, {"count", "", 8, print_count}, {"type", "", 4, print_type},
            {"dens.", "", 5, print_density}, {"time", "(us)", 7, print_time},
            {"algbw", "(GB/s)", 6, print_algbw}, {"busbw", "(GB/s)", 6, print_busbw},
            {"wire", "(B)", 9, print_wire}, {"bits", "/nnz", 4, print_bits},
            {"ratio", "", 5, print_ratio}, {"spread", "", 6, print_spread}}},
    [REPORT_SELECT] = {19, {{"size", "(B)", 9, print_size}, {"type", "", 6, print_types},
                               {"res.", "", 4, print_residual}, {"dens.", "", 6, print_density},
                               {"thr.", "", 4, print_threads}, {"time", "(us)", 6, print_time},
                               {"floor", "(us)", 6, print_floor},
                               {"busbw", "(GB/s)", 6, print_busbw}, {"ratio", "", 5, print_ratio},
                               {"spread", "", 6, print_spread}, {"settle", "(us)", 6, print_settle},
                               {"nth", "", 4, print_peer_0}, {"torch", "", 5, print_peer_1}}},
    [REPORT_SPARSIFY] = {19,
        {{"size", "(B)", 9, print_size}, {"type", "", 6, print_types},
            {"dens.", "", 6, print_density}, {"thr.", "", 4, print_threads},
            {"time", "(us)", 6, print_time}, {"floor", "(us)", 6, print_floor},
            {"ratio", "", 5, print_ratio}, {"spread", "", 6, print_spread},
            {"settle", "(us)", 6, print_settle}, {"count/k", "", 7, print_share}}},
    [REPORT_LAYERS] = {36, {{"size", "(B)", 9, print_size}, {"type", "", 6, print_types},
                               {"dens.", "", 6, print_density}, {"thr.", "", 4, print_threads},
                               {"time", "(us)", 6, print_time}, {"floor", "(us)", 6, print_floor},
                               {"ratio", "", 5, print_ratio}, {"spread", "", 6, print_spread},
                               {"settle", "(us)", 6, print_settle}}},
    [REPORT_ROUND] = {14,
        {{"size", "(B)", 8, print_size}, {"count", "", 7, print_count},
            {"dens.", "", 5, print_density}, {"tens.", "", 5, print_tensors},
            {"time", "(us)", 7, print_time}, {"cpu", "(us)", 7, print_cpu},
            {"algbw", "(GB/s)", 6, print_algbw}, {"busbw", "(GB/s)", 6, print_busbw},
            {"wire", "(B)", 8, print_wire}, {"bits", "/nnz", 4, print_bits},
            {"ratio", "", 5, print_ratio}, {"spread", "", 6, print_spread}}},
    [REPORT_LATENCY] = {19,
        {{"size", "(B)", 8, print_size}, {"count", "", 7, print_count}, {"type", "", 4, print_type},
            {"dens.", "", 5, print_density}, {"time", "(us)", 7, print_time},
            {"p90", "(us)", 7, print_p90}, {"p99", "(us)", 7, print_p99},
            {"max", "(us)", 7, print_max}, {"target", "(us)", 6, print_target},
            {"floor", "(us)", 6, print_floor}, {"ratio", "", 6, print_ratio}}},
};

static void print_heading(const struct report *report)
{
    const struct layout *layout = &layouts[report->layout];
    const struct column *columns = layout->columns;

    for (int line = 0; line < 2; line++) {
        (void)fprintf(report->out, "%-*s", layout->what, line == 0 ? "# what" : "#");
        for (size_t i = 0; i < COLUMNS_MAX && columns[i].name != NULL; i++) {
            (void)fprintf(report->out, " %*s", columns[i].width,
                line == 0 ? columns[i].name : columns[i].unit);
        }
        (void)fprintf(report->out, "\n");
    }
}

static void print_row(struct report *report, const struct figures *figures)
{
    const struct layout *layout = &layouts[report->layout];
    const struct column *columns = layout->columns;
    const struct row *row = figures->row;
    char what[64];

    if (report->table == NULL || *report->table != '\0') {
        (void)fputs(report->table != NULL ? "#\n" : "", report->out);
        print_heading(report);
        report->table = "";
    }
    (void)snprintf(what, sizeof(what), "%.30s%s%.30s", row->variant,
        row->input[0] != '\0' ? " " : "", row->input);
    (void)fprintf(report->out, "%-*s", layout->what, row->layer != NULL ? row->layer : what);
    for (size_t i = 0; i < COLUMNS_MAX && columns[i].name != NULL; i++) {
        char text[FORMAT_SIZE];

        columns[i].print(text, figures);
        (void)fprintf(report->out, " %*s", columns[i].width, text);
    }
    (void)fprintf(report->out, "\n");
    (void)fflush(report->out);
}

/* ---- tables of their own kind ---- */

static int fact_width(const struct report_fact *fact)
{
    const int least = fact->whole || fact->text != NULL ? 6 : 8;
    const int name = (int)strlen(fact->name);

    return name > least ? name : least;
}

static void print_facts_heading(
    struct report *report, const char *name, const struct report_fact *facts, size_t count)
{
    (void)fprintf(report->out, "%s# %-8s", report->table != NULL ? "#\n" : "", name);
    for (size_t i = 0; i < count; i++) {
        (void)fprintf(report->out, " %*s", fact_width(&facts[i]), facts[i].name);
    }
    (void)fprintf(report->out, "\n# %-8s", "");
    for (size_t i = 0; i < count; i++) {
        char unit[FORMAT_SIZE] = "";

        if (facts[i].unit != NULL) {
            (void)snprintf(unit, sizeof(unit), "(%s)", facts[i].unit);
        }
        (void)fprintf(report->out, " %*s", fact_width(&facts[i]), unit);
    }
    (void)fprintf(report->out, "\n");
    report->table = name;
}

static void print_facts(
    struct report *report, const char *name, const struct report_fact *facts, size_t count)
{
    if (report->table == NULL || strcmp(report->table, name) != 0) {
        print_facts_heading(report, name, facts, count);
    }
    (void)fprintf(report->out, "%-10s", "");
    for (size_t i = 0; i < count; i++) {
        char text[FORMAT_SIZE];

        if (facts[i].whole) {
            format_count(text, facts[i].number);
        } else {
            format_measure(text, facts[i].number);
        }
        (void)fprintf(report->out, " %*s", fact_width(&facts[i]),
            facts[i].text != NULL ? facts[i].text : text);
    }
    (void)fprintf(report->out, "\n");
    (void)fflush(report->out);
}

void report_device(struct report *report, const char *name)
{
    if (report->document != NULL) {
        add_text(report, report->document, "device", name);
    } else {
        (void)fprintf(report->out, "# on %s\n", name);
    }
}

void report_begin(struct report *report, enum report_layout layout, const char *name,
    const char *help, const char *about)
{
    if (report->document != NULL) {
        return;
    }
    report->layout = layout;
    report->table = NULL;
    (void)fprintf(report->out, "#\n# %s: %s\n%s#\n", name, help, about);
}

/* ---- the document ---- */

static void add_series(struct report *report, cJSON *object, const char *name,
    const struct summary *summary, const struct series *series)
{
    cJSON *item = add(report, object, name, cJSON_CreateObject());

    add_number(report, item, "median", summary->median);
    add_number(report, item, "p90", summary->p90);
    add_number(report, item, "p99", summary->p99);
    add_number(report, item, "min", summary->min);
    add_number(report, item, "max", summary->max);
    add_number(report, item, "spread", summary->spread);
    (void)add(report, item, "samples",
        series->count > 0 ? cJSON_CreateDoubleArray(series->value, (int)series->count)
                          : cJSON_CreateArray());
}

static void add_peers(struct report *report, cJSON *object, const struct figures *figures)
{
    cJSON *peers = add(report, object, "peers", cJSON_CreateArray());

    for (unsigned p = 0; p < REPORT_PEERS; p++) {
        const struct row_peer *peer = &figures->row->peer[p];
        cJSON *item;

        if (peer->time == NULL || peer->time->count == 0) {
            continue;
        }
        item = cJSON_CreateObject();
        if (item == NULL || peers == NULL || !cJSON_AddItemToArray(peers, item)) {
            cJSON_Delete(item);
            report->failed = true;
            return;
        }
        add_text(report, item, "name", peer->name);
        add_series(report, item, "time_us", &figures->peer[p], peer->time);
        add_number(report, item, "ratio", peer_ratio(figures, p));
    }
}

static void add_row(struct report *report, const struct figures *figures)
{
    const struct row *row = figures->row;
    cJSON *object = cJSON_CreateObject();

    if (object == NULL || !cJSON_AddItemToArray(report->rows, object)) {
        cJSON_Delete(object);
        report->failed = true;
        return;
    }
    add_text(report, object, "benchmark", row->benchmark);
    add_text(report, object, "variant", row->variant);
    add_text(report, object, "input", row->input);
    (void)add(report, object, "layer",
        row->layer != NULL ? cJSON_CreateString(row->layer) : cJSON_CreateNull());
    add_number(report, object, "size_bytes", (double)row->size);
    add_number(report, object, "count", (double)row->count);
    add_text(report, object, "type", row->type);
    (void)add(report, object, "residual",
        row->residual != NULL ? cJSON_CreateString(row->residual) : cJSON_CreateNull());
    add_number(report, object, "density", row->density);
    add_number(report, object, "threads", row->threads > 0 ? (double)row->threads : NAN);
    add_number(report, object, "tensors", row->tensors > 0 ? (double)row->tensors : NAN);
    add_number(report, object, "cpu_us", row->cpu_us > 0 ? row->cpu_us : NAN);
    add_number(report, object, "ranks", row->ranks > 0 ? (double)row->ranks : NAN);
    add_series(report, object, "time_us", &figures->time, row->time);
    add_number(
        report, object, "algbw_gb_s", report_bandwidth(row->alg_bytes, figures->time.median));
    add_number(
        report, object, "busbw_gb_s", report_bandwidth(row->bus_bytes, figures->time.median));
    add_number(report, object, "wire_bytes", row->wire_bytes);
    add_number(report, object, "nonzeros", row->nonzeros);
    add_number(report, object, "target_count", row->target_count > 0 ? row->target_count : NAN);
    add_number(report, object, "bits_per_nonzero", report_bits(row->wire_bytes, row->nonzeros));
    add_number(report, object, "target_us", row->target_us);
    add_text(report, object, "floor", row->floor_name);
    add_series(report, object, "floor_us", &figures->floor, row->floor);
    add_number(report, object, "ratio", figures->ratio);
    add_text(report, object, "ratio_of", row->paired ? "pairs" : "medians");
    if (row->settle != NULL) {
        add_series(report, object, "settle_us", &figures->settle, row->settle);
    } else {
        add_number(report, object, "settle_us", NAN);
    }
    add_peers(report, object, figures);
}

/* The document's list of this name, which the first item makes. */
static cJSON *list_of(struct report *report, const char *name)
{
    cJSON *list = cJSON_GetObjectItemCaseSensitive(report->document, name);

    return list != NULL ? list : add(report, report->document, name, cJSON_CreateArray());
}

static void add_item(struct report *report, const char *name, cJSON *item)
{
    cJSON *list = list_of(report, name);

    if (item == NULL || list == NULL || !cJSON_AddItemToArray(list, item)) {
        cJSON_Delete(item);
        report->failed = true;
    }
}

/* "4K step" in "us" becomes "4k_step_us". */
static void fact_key(const struct report_fact *fact, char key[64])
{
    const char *unit = fact->unit == NULL                ? ""
                       : strcmp(fact->unit, "%") == 0    ? "percent"
                       : strcmp(fact->unit, "MB/s") == 0 ? "mb_s"
                                                         : fact->unit;

    (void)snprintf(key, 64, "%s%s%s", fact->name, *unit != '\0' ? "_" : "", unit);
    for (char *at = key; *at != '\0'; at++) {
        *at = (char)(*at == ' ' ? '_' : tolower((unsigned char)*at));
    }
}

static void add_facts(
    struct report *report, const char *name, const struct report_fact *facts, size_t count)
{
    cJSON *object = cJSON_CreateObject();

    for (size_t i = 0; i < count && object != NULL; i++) {
        char key[64];

        fact_key(&facts[i], key);
        if (facts[i].text != NULL) {
            add_text(report, object, key, facts[i].text);
        } else {
            add_number(report, object, key, facts[i].number);
        }
    }
    add_item(report, name, object);
}

static enum adtopk_status report_result(const struct report *report, struct error *err)
{
    return report->failed ? error_set(err, ADTOPK_ERR_MEMORY, "no memory for the document")
                          : ADTOPK_OK;
}

enum adtopk_status report_facts(struct report *report, const char *name,
    const struct report_fact *facts, size_t count, bool listed, struct error *err)
{
    if (report->document != NULL) {
        add_facts(report, name, facts, count);
    } else if (listed) {
        print_facts(report, name, facts, count);
    }
    return report_result(report, err);
}

enum adtopk_status report_remark(struct report *report, const char *sentence, struct error *err)
{
    if (report->document != NULL) {
        add_item(report, "remarks", cJSON_CreateString(sentence));
    } else {
        (void)fprintf(report->out, "# %s\n", sentence);
    }
    return report_result(report, err);
}

static bool summarise(struct figures *figures)
{
    static const struct series none = {0};
    const struct row *row = figures->row;
    bool ok = series_summarise(row->time, &figures->time) &&
              series_summarise(row->floor, &figures->floor) &&
              series_summarise(row->settle != NULL ? row->settle : &none, &figures->settle) &&
              series_ratio(row->time, row->floor, row->paired, &figures->ratio);

    for (unsigned p = 0; p < REPORT_PEERS && ok; p++) {
        ok = series_summarise(
            row->peer[p].time != NULL ? row->peer[p].time : &none, &figures->peer[p]);
    }
    return ok;
}

enum adtopk_status report_row(struct report *report, const struct row *row, struct error *err)
{
    struct figures figures = {.row = row, .ratio = NAN};

    if (!summarise(&figures)) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for the statistics");
    }
    if (row->time->count == 0) {
        return ADTOPK_OK; /* interrupted before the first sample */
    }
    if (report->document == NULL) {
        print_row(report, &figures);
    } else {
        add_row(report, &figures);
    }
    return report_result(report, err);
}

static enum adtopk_status print_document(struct report *report, bool interrupted, struct error *err)
{
    char *text = NULL;

    (void)add(report, report->document, "interrupted", cJSON_CreateBool(interrupted));
    if (!report->failed) {
        text = cJSON_PrintUnformatted(report->document);
    }
    if (text == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for the document");
    }
    (void)fprintf(report->out, "%s\n", text);
    cJSON_free(text);
    return ADTOPK_OK;
}

enum adtopk_status report_finish(struct report *report, bool interrupted, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;

    if (report == NULL) {
        return ADTOPK_OK;
    }
    if (report->document != NULL) {
        status = print_document(report, interrupted, err);
    } else if (interrupted) {
        (void)fprintf(report->out, "# interrupted\n");
    }
    if (status == ADTOPK_OK && (fflush(report->out) != 0 || ferror(report->out) != 0)) {
        status = error_set(err, ADTOPK_ERR_SYSTEM, "cannot write the report: %s", strerror(errno));
    }
    cJSON_Delete(report->document);
    free(report);
    return status;
}
