#include "client/adtopkctl/top_view.h"

#include <stdio.h>

#include "client/adtopkctl/show.h"
#include "client/adtopkctl/text.h"

const char *top_view_name(enum top_kind kind)
{
    static const char *const names[TOP_KINDS] = {"jobs", "ranks", "tensors", "peers"};

    return names[kind];
}

/* The entry for the same job in another document; NULL: there is none. A run that is over is not
 * the one that has its name now. */
static const cJSON *top_view_same(const cJSON *document, const cJSON *job)
{
    const cJSON *other;

    cJSON_ArrayForEach(other, text_member(document, "jobs"))
    {
        if (show_is_same_job(other, job) && text_is_over(other) == text_is_over(job)) {
            return other;
        }
    }
    return NULL;
}

/* By how much a member has grown between two documents; below 0: that is not known. */
static double top_view_grown(const cJSON *earlier, const cJSON *later, const char *name)
{
    return earlier != NULL && cJSON_IsNumber(text_member(earlier, name))
               ? text_number(later, name) - text_number(earlier, name)
               : -1;
}

static double top_view_seconds(const struct top_documents *documents)
{
    const double seconds = top_view_grown(documents->earlier, documents->stats, "clock_s");

    return seconds > 0 ? seconds : -1;
}

/* A cell "12.3" per second, or of bytes per second. */
static void top_view_rate(struct table *table, double grown, double seconds, bool bytes)
{
    char text[TEXT_SIZE], rate[TEXT_SIZE];

    if (grown < 0 || seconds <= 0) {
        table_number(table, "-", -1);
        return;
    }
    if (bytes) {
        (void)snprintf(rate, sizeof(rate), "%s/s", text_bytes(grown / seconds, text));
    } else {
        (void)snprintf(rate, sizeof(rate), "%.1f", grown / seconds);
    }
    table_number(table, rate, grown / seconds);
}

/* ------------------------------------------------------------------ jobs */

static const struct table_column top_view_jobs[] = {{.title = "job", .least = 10},
    {.title = "run", .least = 6, .extra = true}, {.title = "owner", .least = 6, .extra = true},
    {.title = "state"}, {.title = "ranks", .right = true}, {.title = "steps", .right = true},
    {.title = "steps/s", .right = true}, {.title = "sent/s", .right = true},
    {.title = "density", .right = true}, {.title = "waits for", .least = 12}};

/* Entries sent per element of sparse tensors and step. */
static void top_view_density(struct table *table, const cJSON *earlier, const cJSON *job)
{
    const double steps = top_view_grown(earlier, job, "steps");
    const double entries = top_view_grown(earlier, job, "nonzeros_sent");
    const double elements = text_number(job, "sparse_elements");
    char text[TEXT_SIZE];

    if (steps > 0 && entries >= 0 && elements > 0) {
        (void)snprintf(text, sizeof(text), "%.3g%%", 100 * entries / (steps * elements));
        table_number(table, text, entries / (steps * elements));
    } else {
        table_number(table, "-", -1);
    }
}

static void top_view_waits(struct table *table, const cJSON *about)
{
    const cJSON *waiting = text_member(about, "waiting");
    char sentence[TEXT_SIZE], line[TEXT_SIZE + 64];

    if (about == NULL || !cJSON_IsObject(waiting)) {
        table_text(table, "");
        return;
    }
    (void)snprintf(line, sizeof(line), "%s%s, %.0f s", text_true(waiting, "stuck") ? "STUCK: " : "",
        text_string(about, "waiting_for", 300, sentence), text_number(waiting, "seconds"));
    table_text(table, text_number(waiting, "seconds") >= 1 ? line : "");
}

static void top_view_add_job(
    struct table *table, const struct top_documents *documents, const cJSON *job)
{
    const cJSON *earlier = text_is_over(job) ? NULL : top_view_same(documents->earlier, job);
    const cJSON *about = top_view_same(documents->status, job);
    const double seconds = top_view_seconds(documents);

    show_job_row(table, job);
    show_count(table, about, "world_size");
    show_count(table, job, "steps");
    top_view_rate(table, top_view_grown(earlier, job, "steps"), seconds, false);
    top_view_rate(table, top_view_grown(earlier, job, "wire_bytes_sent"), seconds, true);
    top_view_density(table, earlier, job);
    top_view_waits(table, about);
}

/* ------------------------------------------------------------------ peers */

static const struct table_column top_view_peers[] = {{.title = "peer", .right = true},
    {.title = "state"}, {.title = "rtt", .right = true}, {.title = "sent/s", .right = true},
    {.title = "received/s", .right = true}, {.title = "queued", .right = true},
    {.title = "resent", .right = true}, {.title = "bad", .right = true, .extra = true},
    {.title = "reopened", .right = true, .extra = true}};

static const cJSON *top_view_link(const cJSON *document, const cJSON *link)
{
    const cJSON *other;

    cJSON_ArrayForEach(other, text_member(document, "links"))
    {
        if (text_number(other, "node") == text_number(link, "node")) {
            return other;
        }
    }
    return NULL;
}

static void top_view_add_peer(
    struct table *table, const struct top_documents *documents, const cJSON *link)
{
    const cJSON *earlier = top_view_link(documents->earlier, link);
    const double seconds = top_view_seconds(documents);
    char text[TEXT_SIZE];

    table_add(table, link);
    show_count(table, link, "node");
    table_text(table, text_string(link, "state", TEXT_SIZE, text));
    table_number(table, text_round_trip(link, text), text_number(link, "round_trip_us"));
    top_view_rate(table, top_view_grown(earlier, link, "bytes_sent"), seconds, true);
    top_view_rate(table, top_view_grown(earlier, link, "bytes_received"), seconds, true);
    show_bytes(table, link, "queued_bytes");
    show_count(table, link, "resent");
    show_count(table, link, "malformed");
    show_count(table, link, "reopened");
}

/* ------------------------------------------------------------------ all */

void top_view_fill(struct table *table, enum top_kind kind, const struct top_documents *documents)
{
    static const struct {
        const struct table_column *column;
        unsigned columns;
    } tables[TOP_KINDS] = {
        [TOP_JOBS] = {top_view_jobs, sizeof(top_view_jobs) / sizeof(top_view_jobs[0])},
        [TOP_RANKS] = {show_ranks_columns, SHOW_RANKS_COLUMNS},
        [TOP_TENSORS] = {show_tensors_columns, SHOW_TENSORS_COLUMNS},
        [TOP_PEERS] = {top_view_peers, sizeof(top_view_peers) / sizeof(top_view_peers[0])}};
    const cJSON *rows = kind == TOP_JOBS    ? text_member(documents->stats, "jobs")
                        : kind == TOP_PEERS ? text_member(documents->stats, "links")
                                            : text_member(documents->job, "tensors");
    const cJSON *row;

    table_begin(table, tables[kind].column, tables[kind].columns);
    if (kind == TOP_RANKS) {
        show_ranks_rows(table, text_member(documents->job, "ranks"));
        return;
    }
    cJSON_ArrayForEach(row, rows)
    {
        switch (kind) {
        case TOP_TENSORS: show_tensors_tensor(table, row); break;
        case TOP_PEERS: top_view_add_peer(table, documents, row); break;
        case TOP_JOBS:
        case TOP_RANKS:
        case TOP_KINDS: top_view_add_job(table, documents, row); break;
        }
    }
}

void top_view_head(FILE *out, const struct top_documents *documents)
{
    const cJSON *status = documents->status;
    const int peers = cJSON_GetArraySize(text_member(status, "peers"));
    const double sessions = text_number(status, "sessions");
    char version[TEXT_SIZE], up[TEXT_SIZE];
    const cJSON *peer;
    int down = 0;

    cJSON_ArrayForEach(peer, text_member(status, "peers"))
    {
        down += show_is_peer_healthy(peer) ? 0 : 1;
    }
    (void)fprintf(out, "node %.0f, adtopkd %s, up %s; %.0f rank%s here, %d peer%s",
        text_number(status, "node"), text_string(status, "version", 20, version),
        text_duration(text_number(status, "uptime_s"), up), sessions, text_s(sessions), peers,
        text_s(peers));
    if (down > 0) {
        (void)fprintf(out, ", %d DOWN", down);
    }
    (void)fputs(text_true(status, "draining") ? ", draining\n" : "\n", out);
}
