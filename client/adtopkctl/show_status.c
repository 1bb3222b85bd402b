/* status, jobs, peers, stores and drain. */
#include <string.h>

#include "client/adtopkctl/show.h"
#include "client/adtopkctl/text.h"

/* ------------------------------------------------------------------ health */

/* A node that is lost, or anything that takes longer than the daemon's stuck_after_ms. */
static bool is_in_trouble(const cJSON *waiting)
{
    return text_true(waiting, "stuck") || text_is(waiting, "kind", "peer") ||
           text_is(waiting, "kind", "return");
}

static bool job_is_healthy(const cJSON *job)
{
    return text_is_over(job) ||
           (text_is(job, "state", "active") && !is_in_trouble(text_member(job, "waiting")));
}

bool show_is_healthy(const cJSON *document)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, text_member(document, "peers"))
    {
        if (!text_is(item, "state", "up")) {
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

/* ------------------------------------------------------------------ parts */

static void show_strangers(FILE *out, const cJSON *document)
{
    const cJSON *strangers = text_member(document, "strangers");

    if (text_number(strangers, "packets") > 0) {
        (void)fprintf(out,
            "%.0f packets were not for this node or not from one of its peers; the last\n"
            "one was from node %.0f for node %.0f: node ids or peers are configured wrongly\n",
            text_number(strangers, "packets"), text_number(strangers, "source"),
            text_number(strangers, "destination"));
    }
}

static void show_status_peers(FILE *out, const cJSON *document)
{
    const cJSON *peer;
    char queued[TEXT_SIZE];
    char trip[TEXT_SIZE];

    if (cJSON_GetArraySize(text_member(document, "peers")) == 0) {
        (void)fprintf(out, "no peers\n");
        return;
    }
    (void)fprintf(out, "  peer  state  round trip     queued  reopened\n");
    cJSON_ArrayForEach(peer, text_member(document, "peers"))
    {
        (void)fprintf(out, "%6.0f  ", text_number(peer, "node"));
        text_column(out, peer, "state", 5);
        (void)fprintf(out, "%12s  %9s%10.0f\n", text_round_trip(peer, trip),
            text_bytes(text_number(peer, "queued_bytes"), queued), text_number(peer, "reopened"));
    }
}

/* How the links are protected, and what the daemon refused. */
static void show_network(FILE *out, const cJSON *document)
{
    const cJSON *network = text_member(document, "network");
    const cJSON *refused = text_member(network, "refused");
    char protection[TEXT_SIZE];

    if (network == NULL) {
        return;
    }
    (void)fprintf(out, "protection: %s\n", text_string(network, "protection", 20, protection));
    if (text_number(refused, "keys") + text_number(refused, "handshakes") +
            text_number(refused, "tokens") + text_number(refused, "packets") >
        0) {
        (void)fprintf(out, "refused: %.0f keys, %.0f handshakes, %.0f tokens, %.0f packets\n",
            text_number(refused, "keys"), text_number(refused, "handshakes"),
            text_number(refused, "tokens"), text_number(refused, "packets"));
    }
}

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

/* Why a job does not go on, and how its values go where the policy says NCCL. */
static void show_trouble(FILE *out, const cJSON *job)
{
    const cJSON *sentence = text_member(job, "waiting_for");
    const cJSON *reason = text_member(job, "reason");
    const cJSON *carrier = text_member(job, "carrier");

    if (cJSON_IsString(sentence) && sentence->valuestring[0] != '\0') {
        show_waiting(out, text_member(job, "waiting"), sentence->valuestring);
    }
    if (cJSON_IsString(reason) && reason->valuestring[0] != '\0') {
        text_wrapped(out, "failed:", reason->valuestring);
    }
    if (cJSON_IsString(carrier) && carrier->valuestring[0] != '\0') {
        text_wrapped(out, "values go:", carrier->valuestring);
    }
}

static void show_status_jobs(FILE *out, const cJSON *document)
{
    const cJSON *job;

    if (cJSON_GetArraySize(text_member(document, "jobs")) == 0) {
        (void)fprintf(out, "no jobs\n");
        return;
    }
    (void)fprintf(
        out, "%-20s%-14s%-10shere of ranks  nodes  view    steps\n", "job", "run", "state");
    cJSON_ArrayForEach(job, text_member(document, "jobs"))
    {
        text_column(out, job, "name", 18);
        (void)fprintf(out, "  ");
        text_column(out, job, "run_id", 12);
        (void)fprintf(out, "  ");
        text_column(out, job, "state", 8);
        (void)fprintf(out, "  %4.0f of %5.0f  %5.0f  %4.0f  %7.0f\n",
            text_number(job, "local_ranks"), text_number(job, "world_size"),
            text_number(job, "nodes"), text_number(job, "view"), text_number(job, "steps_done"));
        show_trouble(out, job);
    }
}

/* ------------------------------------------------------------------ documents */

/* How long the daemon at most kept all ranks waiting. */
static void show_loop(FILE *out, const cJSON *document)
{
    const cJSON *loop = text_member(document, "loop");

    if (loop != NULL) {
        (void)fprintf(out, "longest iteration of the loop: %.1f ms, in the last minute %.1f ms\n",
            text_number(loop, "longest_iteration_us") / 1000,
            text_number(loop, "longest_iteration_last_minute_us") / 1000);
    }
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

/* GPUs on which residuals live, and the processes that run kernels there. */
static void show_devices(FILE *out, const cJSON *document)
{
    const cJSON *gpu, *worker;
    char uuid[TEXT_SIZE], name[TEXT_SIZE], reserved[TEXT_SIZE], memory[TEXT_SIZE], user[TEXT_SIZE];
    char missing[TEXT_SIZE];

    cJSON_ArrayForEach(gpu, text_member(document, "devices"))
    {
        (void)fprintf(out, "%s (%s): %.0f jobs have %s of %s\n", text_string(gpu, "uuid", 40, uuid),
            text_string(gpu, "name", 40, name), text_number(gpu, "jobs"),
            text_bytes(text_number(gpu, "reserved_bytes"), reserved),
            text_bytes(text_number(gpu, "memory_bytes"), memory));
        if (text_string(gpu, "missing_kernels", TEXT_SIZE - 1, missing)[0] != '\0') {
            text_wrapped(out, "jobs are refused: the build lacks kernels:", missing);
        }
        show_nccl(out, gpu);
        cJSON_ArrayForEach(worker, text_member(gpu, "workers"))
        {
            (void)fprintf(out, "  worker of %s: %s, started %.0f times\n",
                text_user(text_number(worker, "owner"), 12, user),
                cJSON_IsNumber(text_member(worker, "pid")) ? "runs" : "does not run",
                text_number(worker, "starts"));
        }
    }
}

void show_status(FILE *out, const cJSON *document)
{
    char version[TEXT_SIZE];
    char up[TEXT_SIZE];

    (void)fprintf(out, "node %.0f: adtopkd %s, pid %.0f, up %s, %.0f sessions\n",
        text_number(document, "node"), text_string(document, "version", 20, version),
        text_number(document, "pid"), text_duration(text_number(document, "uptime_s"), up),
        text_number(document, "sessions"));
    if (text_true(document, "draining")) {
        (void)fprintf(
            out, "draining: the daemon takes no new ranks (adtopkctl drain --undo ends that)\n");
    }
    show_loop(out, document);
    (void)fprintf(out, "\n");
    show_status_peers(out, document);
    show_strangers(out, document);
    show_network(out, document);
    show_devices(out, document);
    (void)fprintf(out, "\n");
    show_status_jobs(out, document);
}

static void show_job(FILE *out, const cJSON *job)
{
    char count[TEXT_SIZE];
    char user[TEXT_SIZE];
    char line[2 * TEXT_SIZE];

    text_column(out, job, "name", 22);
    (void)fprintf(out, "  ");
    text_column(out, job, "run_id", 14);
    (void)fprintf(out, "  ");
    text_pad(out, text_user(text_number(job, "owner"), 12, user), 12);
    (void)fprintf(out, "  ");
    text_column(out, job, "state", 8);
    (void)fprintf(out, "  %12.0f\n", text_number(job, "steps_done"));
    (void)snprintf(line, sizeof(line),
        "%.0f of %.0f ranks here, %.0f nodes; %.0f tensors in %.0f buckets, %s elements",
        text_number(job, "local_ranks"), text_number(job, "world_size"), text_number(job, "nodes"),
        text_number(job, "tensors"), text_number(job, "buckets"),
        text_count(text_number(job, "elements"), count));
    (void)fprintf(out, "  ");
    text_fill(out, 2, 4, line);
    (void)fprintf(out, "  policy version %.0f", text_number(job, "policy_version"));
    if (text_number(job, "policy_version") > 0) {
        (void)fprintf(out, " from step %.0f", text_number(job, "policy_step"));
    }
    if (text_number(job, "policy_next_version") > 0) {
        (void)fprintf(out, ", version %.0f from step %.0f", text_number(job, "policy_next_version"),
            text_number(job, "policy_next_step"));
    }
    (void)fprintf(out, "\n");
    show_unmatched(out, job);
    show_trouble(out, job);
}

void show_jobs(FILE *out, const cJSON *document)
{
    const cJSON *job;

    if (cJSON_GetArraySize(text_member(document, "jobs")) == 0) {
        (void)fprintf(out, "no jobs\n");
        return;
    }
    (void)fprintf(out, "%-24s%-16s%-14s%-10s%12s\n", "job", "run", "owner", "state", "steps");
    cJSON_ArrayForEach(job, text_member(document, "jobs"))
    {
        show_job(out, job);
    }
}

void show_peers(FILE *out, const cJSON *document)
{
    const cJSON *peer;
    char sent[TEXT_SIZE];
    char received[TEXT_SIZE];
    char queued[TEXT_SIZE];
    char trip[TEXT_SIZE];

    if (cJSON_GetArraySize(text_member(document, "peers")) == 0) {
        (void)fprintf(out, "no peers\n");
        return;
    }
    (void)fprintf(out, "  peer  state round trip     sent  received   queued"
                       " resent twice  bad  reopened\n");
    cJSON_ArrayForEach(peer, text_member(document, "peers"))
    {
        (void)fprintf(out, "%6.0f  ", text_number(peer, "node"));
        text_column(out, peer, "state", 5);
        (void)fprintf(out, "%11s%9s%10s%9s %6.0f %5.0f %4.0f %9.0f\n", text_round_trip(peer, trip),
            text_bytes(text_number(peer, "bytes_sent"), sent),
            text_bytes(text_number(peer, "bytes_received"), received),
            text_bytes(text_number(peer, "queued_bytes"), queued), text_number(peer, "resent"),
            text_number(peer, "duplicates"), text_number(peer, "malformed"),
            text_number(peer, "reopened"));
    }
    show_strangers(out, document);
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
        (void)fprintf(out, "node %.0f takes no new ranks; %.0f are connected\n",
            text_number(document, "node"), sessions);
    } else {
        (void)fprintf(out, "node %.0f takes new ranks\n", text_number(document, "node"));
    }
}
