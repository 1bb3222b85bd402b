/* status, jobs, stores and drain. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "client/adtopkctl/show.h"
#include "client/adtopkctl/text.h"

#define FAILED_S 900 /* for so long a failed job counts, as in the alert AdtopkJobFailed */

/* ------------------------------------------------------------------ health */

/* A node that is lost, or anything that takes longer than the daemon's stuck_after_ms. */
static bool is_in_trouble(const cJSON *waiting)
{
    return text_true(waiting, "stuck") || text_is(waiting, "kind", "peer") ||
           text_is(waiting, "kind", "return");
}

static bool job_is_healthy(const cJSON *job)
{
    if (text_is(job, "state", "failed")) {
        return text_number(job, "ended_s") >= FAILED_S;
    }
    return text_is_over(job) ||
           (text_is(job, "state", "active") && !is_in_trouble(text_member(job, "waiting")));
}

bool show_is_peer_healthy(const cJSON *peer)
{
    return text_is(peer, "state", "up") || text_is(peer, "endpoint", "");
}

bool show_is_healthy(const cJSON *document)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, text_member(document, "peers"))
    {
        if (!show_is_peer_healthy(item)) {
            return false;
        }
    }
    cJSON_ArrayForEach(item, text_member(document, "jobs"))
    {
        if (!job_is_healthy(item)) {
            return false;
        }
    }
    return true;
}

/* ------------------------------------------------------------------ tables */

static struct show_view show_present; /* how tables are to be shown */

void show_set_view(const struct show_view *view)
{
    show_present = *view;
}

bool show_is_named(void)
{
    return show_present.named;
}

bool show_is_wanted(const cJSON *object)
{
    return show_present.state == NULL || text_is(object, "state", show_present.state);
}

void show_table(FILE *out, struct table *table)
{
    if (show_present.sort != NULL) {
        (void)table_sort(table, show_present.sort);
    }
    if (table->rows > 0) {
        if (!table_print(out, table, text_get_width(), SIZE_MAX)) {
            (void)fprintf(out, "(a wider terminal shows more; so does --wide)\n");
        }
    } else {
        (void)fprintf(out, "none%s%s\n", show_present.state != NULL ? " in state " : "",
            show_present.state != NULL ? show_present.state : "");
    }
}

void show_count(struct table *table, const cJSON *object, const char *name)
{
    const double number = text_number(object, name);
    char text[TEXT_SIZE];

    (void)snprintf(text, sizeof(text), "%.0f", number);
    table_number(table, text, number);
}

void show_bytes(struct table *table, const cJSON *object, const char *name)
{
    const double number = text_number(object, name);
    char text[TEXT_SIZE];

    table_number(table, text_bytes(number, text), number);
}

/* ------------------------------------------------------------------ parts */

static void show_waiting(FILE *out, const cJSON *waiting, const char *sentence)
{
    double seconds = text_number(waiting, "seconds");
    char duration[TEXT_SIZE];
    char line[2 * TEXT_SIZE];

    if (seconds < 1) {
        text_wrapped(out, "waits for", sentence);
        return;
    }
    (void)snprintf(line, sizeof(line), "%.400s, for %s already%s", sentence,
        text_duration(seconds, duration), text_true(waiting, "stuck") ? ": it is stuck" : "");
    text_wrapped(out, "waits for", line);
}

static void show_losses(FILE *out, const cJSON *job)
{
    const cJSON *lost = text_member(job, "lost");
    char sentence[TEXT_SIZE];

    if (text_number(job, "losses") > 0) {
        (void)snprintf(sentence, sizeof(sentence),
            "residuals went with a GPU's memory %.0f time%s; their sum was %.6g",
            text_number(job, "losses"), text_s(text_number(job, "losses")),
            cJSON_GetNumberValue(cJSON_GetArrayItem(lost, 0)));
        text_wrapped(out, "lost:", sentence);
    }
}

/* Why a job does not go on, and how its values go where the policy says NCCL. */
static void show_trouble(FILE *out, const cJSON *job)
{
    const cJSON *sentence = text_member(job, "waiting_for");
    const cJSON *reason = text_member(job, "reason");
    const cJSON *carrier = text_member(job, "carrier");
    char duration[TEXT_SIZE];

    if (cJSON_IsString(sentence) && sentence->valuestring[0] != '\0') {
        show_waiting(out, text_member(job, "waiting"), sentence->valuestring);
    }
    if (cJSON_IsString(reason) && reason->valuestring[0] != '\0') {
        text_wrapped(out, "failed:", reason->valuestring);
    }
    if (cJSON_IsNumber(text_member(job, "ended_s"))) {
        (void)fprintf(
            out, "  ended %s ago\n", text_duration(text_number(job, "ended_s"), duration));
    }
    if (cJSON_IsString(carrier) && carrier->valuestring[0] != '\0') {
        text_wrapped(out, "values go:", carrier->valuestring);
    }
    show_losses(out, job);
}

/* Which of the job's tensors are on which GPU, if they are on several, or that none is. */
static void show_gpus(FILE *out, const cJSON *job)
{
    const cJSON *gpus = text_member(job, "gpus"), *gpu;
    char uuid[TEXT_SIZE];

    if (cJSON_IsTrue(text_member(job, "in_host_memory"))) {
        (void)fprintf(out, "  residuals are in host memory, as its policy says\n");
    }
    if (cJSON_GetArraySize(gpus) < 2) {
        return;
    }
    cJSON_ArrayForEach(gpu, gpus)
    {
        const double first = text_number(gpu, "first_tensor");

        (void)fprintf(out, "  tensors %.0f to %.0f are on %s\n", first,
            first + text_number(gpu, "tensors") - 1, text_string(gpu, "uuid", 48, uuid));
    }
}

char *show_below(const cJSON *object, void (*show)(FILE *out, const cJSON *object))
{
    char *lines = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&lines, &size);

    if (out == NULL) {
        return NULL;
    }
    show(out, object);
    (void)fclose(out);
    return lines;
}

static void show_total(FILE *out, const struct table *table, double steps, double ranks)
{
    if (table->rows > 1) {
        (void)fprintf(out, "total: %zu jobs, %.0f rank%s here, %.0f step%s\n", table->rows, ranks,
            text_s(ranks), steps, text_s(steps));
    }
}

static void show_status_more(FILE *out, const cJSON *job)
{
    show_trouble(out, job);
    show_gpus(out, job);
}

void show_job_row(struct table *table, const cJSON *job)
{
    char text[TEXT_SIZE];

    table_add(table, job);
    table_text(table, text_string(job, "name", TEXT_SIZE, text));
    table_text(table, text_string(job, "run_id", TEXT_SIZE, text));
    table_text(table, text_user(text_number(job, "owner"), TEXT_SIZE, text));
    table_text(table, text_string(job, "state", TEXT_SIZE, text));
}

/* The jobs that are wanted, a row each by `add`, and their total. */
static void show_job_rows(FILE *out, const cJSON *document, const struct table_column *columns,
    unsigned count, void (*add)(struct table *table, const cJSON *job))
{
    double steps = 0, ranks = 0;
    struct table table;
    const cJSON *job;

    if (cJSON_GetArraySize(text_member(document, "jobs")) == 0) {
        (void)fprintf(out, "no jobs\n");
        return;
    }
    table_begin(&table, columns, count);
    cJSON_ArrayForEach(job, text_member(document, "jobs"))
    {
        if (show_is_wanted(job)) {
            add(&table, job);
            steps += text_number(job, "steps_done");
            ranks += text_number(job, "local_ranks");
        }
    }
    show_table(out, &table);
    show_total(out, &table, steps, ranks);
    table_free(&table);
}

static void show_status_job(struct table *table, const cJSON *job)
{
    char ranks[TEXT_SIZE];

    show_job_row(table, job);
    (void)snprintf(ranks, sizeof(ranks), "%.0f of %.0f", text_number(job, "local_ranks"),
        text_number(job, "world_size"));
    table_number(table, ranks, text_number(job, "world_size"));
    show_count(table, job, "nodes");
    show_count(table, job, "view");
    show_count(table, job, "steps_done");
    show_bytes(table, job, "memory_bytes");
    table_below(table, show_below(job, show_status_more));
}

const struct table_column show_status_columns[SHOW_STATUS_COLUMNS] = {{.title = "job", .least = 18},
    {.title = "run", .least = 12}, {.title = "owner", .least = 8, .extra = true},
    {.title = "state"}, {.title = "ranks here", .right = true}, {.title = "nodes", .right = true},
    {.title = "view", .right = true}, {.title = "steps", .right = true},
    {.title = "memory", .right = true, .extra = true}};

/* ------------------------------------------------------------------ documents */

/* Seconds in two or three digits. */
static const char *show_seconds(const cJSON *object, const char *name, char out[TEXT_SIZE])
{
    const double seconds = text_number(object, name) * 1e-6;

    (void)snprintf(out, TEXT_SIZE, seconds < 100 ? "%.2g s" : "%.0f s", seconds);
    return out;
}

static void show_busy(FILE *out, const cJSON *document)
{
    const cJSON *workers = text_member(document, "workers");
    const double threads = text_number(workers, "threads");
    const cJSON *network = text_member(document, "network");
    const bool measured = text_member(network, "cpu_us") != NULL;
    char loop[TEXT_SIZE], busy[TEXT_SIZE], net[TEXT_SIZE];

    if (workers != NULL) {
        (void)fprintf(out, "  CPU time: loop %s, %.0f worker%s %s together%s%s\n",
            show_seconds(text_member(document, "loop"), "cpu_us", loop), threads, text_s(threads),
            show_seconds(workers, "busy_us", busy), measured ? ", network " : "",
            measured ? show_seconds(network, "cpu_us", net) : "");
    }
}

/* Nothing while the log is complete. */
static void show_log(FILE *out, const cJSON *document)
{
    const cJSON *lines = text_member(document, "log");
    const double left_out = text_number(lines, "left_out"), lost = text_number(lines, "lost");

    if (left_out + lost > 0) {
        (void)fprintf(out, "log: %.0f line%s left out by its limits, %.0f lost\n", left_out,
            text_s(left_out), lost);
    }
}

/* How long the daemon at most kept all ranks waiting. */
static void show_loop(FILE *out, const cJSON *document)
{
    const cJSON *loop = text_member(document, "loop");

    if (loop != NULL) {
        (void)fprintf(out, "  longest iteration of the loop: %.1f ms, in the last minute %.1f ms\n",
            text_number(loop, "longest_iteration_us") / 1000,
            text_number(loop, "longest_iteration_last_minute_us") / 1000);
    }
}

static void show_driver(FILE *out, const cJSON *gpu)
{
    const cJSON *mps = text_member(gpu, "mps");
    char driver[TEXT_SIZE], capability[TEXT_SIZE];

    (void)fprintf(out, "  compute capability %s, driver for CUDA %s, %s\n",
        text_string(gpu, "compute_capability", 12, capability),
        text_string(gpu, "driver", 12, driver),
        !cJSON_IsNumber(mps)    ? "whether MPS runs is unknown"
        : mps->valuedouble != 0 ? "shared by MPS"
                                : "without MPS");
}

static void show_nccl(FILE *out, const cJSON *gpu)
{
    const cJSON *missing = text_member(gpu, "no_nccl");
    char version[TEXT_SIZE];

    if (cJSON_IsString(missing) && missing->valuestring[0] != '\0') {
        text_wrapped(out, "no NCCL:", missing->valuestring);
    } else {
        (void)fprintf(out, "  NCCL %s\n", text_string(gpu, "nccl", 20, version));
    }
}

/* What no job has asked for. An older daemon does not count it. */
static void show_contexts(FILE *out, const cJSON *gpu)
{
    char each[TEXT_SIZE], all[TEXT_SIZE], nccl[TEXT_SIZE];

    if (text_member(gpu, "nccl_bytes") == NULL) {
        return;
    }
    if (cJSON_IsNumber(text_member(gpu, "context_bytes"))) {
        (void)fprintf(out, "  contexts about %s (%s for each worker), ",
            text_bytes(text_number(gpu, "context_bytes"), all),
            text_bytes(text_number(gpu, "worker_context_bytes"), each));
    } else {
        (void)fprintf(out, "  contexts: not known, ");
    }
    (void)fprintf(out, "NCCL about %s\n", text_bytes(text_number(gpu, "nccl_bytes"), nccl));
}

/* GPUs on which residuals live, and the processes that run kernels there. */
static void show_devices(FILE *out, const cJSON *document)
{
    const cJSON *gpu, *worker;
    char uuid[TEXT_SIZE], name[TEXT_SIZE], reserved[TEXT_SIZE], memory[TEXT_SIZE], user[TEXT_SIZE];
    char missing[TEXT_SIZE], arenas[TEXT_SIZE], scratch[TEXT_SIZE];

    cJSON_ArrayForEach(gpu, text_member(document, "devices"))
    {
        (void)fprintf(out, "%s (%s)\n  %.0f job%s with %s of %s\n",
            text_string(gpu, "uuid", 40, uuid), text_string(gpu, "name", 36, name),
            text_number(gpu, "jobs"), text_s(text_number(gpu, "jobs")),
            text_bytes(text_number(gpu, "reserved_bytes"), reserved),
            text_bytes(text_number(gpu, "memory_bytes"), memory));
        (void)fprintf(out, "  residuals %s, gradients and updates %s, work and exchange %s\n",
            text_bytes(text_number(gpu, "residual_bytes"), reserved),
            text_bytes(text_number(gpu, "arena_bytes"), arenas),
            text_bytes(text_number(gpu, "scratch_bytes"), scratch));
        show_contexts(out, gpu);
        show_driver(out, gpu);
        if (text_string(gpu, "missing_kernels", TEXT_SIZE - 1, missing)[0] != '\0') {
            text_wrapped(out, "jobs are refused: the build lacks kernels:", missing);
        }
        show_nccl(out, gpu);
        cJSON_ArrayForEach(worker, text_member(gpu, "workers"))
        {
            (void)fprintf(out, "  worker of %s: %s, started %.0f time%s\n",
                text_user(text_number(worker, "owner"), 12, user),
                cJSON_IsNumber(text_member(worker, "pid")) ? "runs" : "does not run",
                text_number(worker, "starts"), text_s(text_number(worker, "starts")));
        }
    }
}

/* Trainers that did not come, or did not go, as they should. */
static void show_trainers(FILE *out, const cJSON *document)
{
    const cJSON *trainers = text_member(document, "trainers");
    const double refused = text_number(trainers, "refused") + text_number(trainers, "keys") +
                           text_number(trainers, "handshakes");
    const double lost = text_number(trainers, "lost");
    const double broke = text_number(trainers, "protocol_errors");

    if (refused + lost + broke > 0) {
        (void)fprintf(out,
            "ranks since the start: %.0f came, %.0f left without a word, %.0f broke the\n"
            "protocol; refused: %.0f\n",
            text_number(trainers, "opened"), lost, broke, refused);
    }
}

static void show_stores_waiting(FILE *out, const cJSON *document)
{
    const double stores = text_number(document, "stores_waiting");

    if (stores > 0) {
        (void)fprintf(out, "%.0f store%s for ranks that can return (adtopkctl stores lists %s)\n",
            stores, stores == 1 ? " waits" : "s wait", stores == 1 ? "it" : "them");
    }
}

void show_status(FILE *out, const cJSON *document)
{
    char version[TEXT_SIZE];
    char up[TEXT_SIZE];

    (void)fprintf(out, "node %.0f: adtopkd %s, pid %.0f, up %s, %.0f session%s\n",
        text_number(document, "node"), text_string(document, "version", 20, version),
        text_number(document, "pid"), text_duration(text_number(document, "uptime_s"), up),
        text_number(document, "sessions"), text_s(text_number(document, "sessions")));
    if (text_true(document, "draining")) {
        (void)fprintf(
            out, "draining: the daemon takes no new ranks (adtopkctl drain --undo ends that)\n");
    }
    show_stores_waiting(out, document);
    show_loop(out, document);
    show_busy(out, document);
    show_log(out, document);
    (void)fprintf(out, "\n");
    show_links(out, document);
    show_trainers(out, document);
    show_devices(out, document);
    (void)fprintf(out, "\n");
    show_job_rows(out, document, show_status_columns, SHOW_STATUS_COLUMNS, show_status_job);
}

/* How much was lost with nodes without which the job went on. */
static void show_lost_nodes(FILE *out, const cJSON *lost)
{
    const double nodes = text_number(lost, "nodes"), unknown = text_number(lost, "unknown");
    char magnitude[64] = "", known[TEXT_SIZE] = "", sentence[2 * TEXT_SIZE];

    if (cJSON_IsNumber(text_member(lost, "magnitude"))) {
        (void)snprintf(magnitude, sizeof(magnitude), ", their magnitudes to %.6g",
            text_number(lost, "magnitude"));
    }
    if (nodes > unknown) {
        (void)snprintf(known, sizeof(known),
            "with %.0f node%s, whose residuals added up to %.6g at step %.0f%s", nodes - unknown,
            text_s(nodes - unknown), text_number(lost, "sum"), text_number(lost, "step"),
            magnitude);
    }
    (void)snprintf(sentence, sizeof(sentence), "%s", known);
    if (unknown > 0) {
        (void)snprintf(sentence, sizeof(sentence), "%s%swith %.0f node%s, nobody knows how much",
            known, known[0] != '\0' ? "; and " : "", unknown, text_s(unknown));
    }
    if (nodes > 0) {
        text_wrapped(out, "lost:", sentence);
    }
}

static void show_job_more(FILE *out, const cJSON *job)
{
    const double nodes = text_number(job, "nodes");
    const double tensors = text_number(job, "tensors");
    const double buckets = text_number(job, "buckets");
    char count[TEXT_SIZE];
    char line[2 * TEXT_SIZE];

    (void)snprintf(line, sizeof(line),
        "%.0f of %.0f ranks here, %.0f node%s; %.0f tensor%s in %.0f bucket%s, %s elements",
        text_number(job, "local_ranks"), text_number(job, "world_size"), nodes, text_s(nodes),
        tensors, text_s(tensors), buckets, text_s(buckets),
        text_count(text_number(job, "elements"), count));
    (void)fprintf(out, "  ");
    text_fill(out, 2, 4, line);
    if (text_number(job, "view_ranks") > 0 && /* older daemons do not tell it */
        text_number(job, "view_ranks") < text_number(job, "world_size")) {
        (void)fprintf(out, "  goes on with %.0f of its %.0f ranks: the others' nodes are lost\n",
            text_number(job, "view_ranks"), text_number(job, "world_size"));
    }
    show_lost_nodes(out, text_member(job, "lost_nodes"));
    (void)fprintf(out, "  policy version %.0f", text_number(job, "policy_version"));
    if (text_number(job, "policy_version") > 0) {
        (void)fprintf(out, " from step %.0f", text_number(job, "policy_step"));
    }
    if (text_number(job, "policy_next_version") > 0) {
        (void)fprintf(out, ", version %.0f from step %.0f", text_number(job, "policy_next_version"),
            text_number(job, "policy_next_step"));
    }
    (void)fprintf(out, "\n");
    show_changes(out, job);
    show_unmatched(out, job);
    show_trouble(out, job);
}

static void show_jobs_job(struct table *table, const cJSON *job)
{
    show_job_row(table, job);
    show_count(table, job, "steps_done");
    table_below(table, show_below(job, show_job_more));
}

const struct table_column show_jobs_columns[SHOW_JOBS_COLUMNS] = {{.title = "job", .least = 22},
    {.title = "run", .least = 14}, {.title = "owner", .least = 12}, {.title = "state"},
    {.title = "steps", .right = true}};

void show_jobs(FILE *out, const cJSON *document)
{
    show_job_rows(out, document, show_jobs_columns, SHOW_JOBS_COLUMNS, show_jobs_job);
}

static void show_store(FILE *out, const cJSON *store)
{
    char bytes[TEXT_SIZE], idle[TEXT_SIZE], text[TEXT_SIZE];

    text_column(out, store, "name", 23);
    (void)fputc(' ', out);
    text_column(out, store, "run_id", 15);
    (void)fputc(' ', out);
    text_pad(out, text_user(text_number(store, "owner"), 12, text), 12);
    (void)fprintf(out, "%11s%12s\n", text_bytes(text_number(store, "bytes"), bytes),
        text_true(store, "used") ? "in use" : text_duration(text_number(store, "idle_s"), idle));
    if (cJSON_IsString(text_member(store, "fault")) && !text_is(store, "fault", "")) {
        text_wrapped(out, "not usable:", text_string(store, "fault", 200, text));
    }
}

void show_stores(FILE *out, const cJSON *document)
{
    const cJSON *store;

    if (cJSON_GetArraySize(text_member(document, "stores")) == 0) {
        (void)fprintf(out, "no stores\n");
        return;
    }
    (void)fprintf(out, "%-24s%-16s%-12s%11s%12s\n", "job", "run", "owner", "size", "unused for");
    cJSON_ArrayForEach(store, text_member(document, "stores"))
    {
        show_store(out, store);
    }
}

void show_drain(FILE *out, const cJSON *document)
{
    double sessions = text_number(document, "sessions");

    if (text_true(document, "draining")) {
        (void)fprintf(out, "node %.0f takes no new ranks; %.0f %s connected\n",
            text_number(document, "node"), sessions, sessions == 1 ? "is" : "are");
        show_stores_waiting(out, document);
    } else {
        (void)fprintf(out, "node %.0f takes new ranks\n", text_number(document, "node"));
    }
}
