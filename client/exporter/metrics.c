#include "client/exporter/metrics.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum metric_kind { GAUGE, COUNTER, HISTOGRAM };

/* Which objects of the documents a metric is of. */
enum metric_scope {
    OF_DAEMON,
    OF_PEER,
    OF_PEER_STATS,
    OF_JOB,
    OF_JOB_STATS,
    OF_TENSOR,
    OF_RANK,
    OF_DEVICE
};

/* Rows of one name stand together; the first one's help is the metric's. */
struct metric {
    const char *name; /* without "adtopk_", and without the "_total" of counters */
    enum metric_kind kind;
    enum metric_scope scope;
    const char *field; /* "a.b": b in the object a */
    /* 1 if the field is this text, otherwise 0; NULL: the field's value. HISTOGRAM: the field of
     * the sum. */
    const char *is;
    double scale;         /* of the field, to the metric's unit */
    const char *label;    /* one more label; NULL: none */
    const char *labelled; /* the value of that label */
    const char *help;
};

static const struct metric metrics[] = {
    {"uptime_seconds", GAUGE, OF_DAEMON, "uptime_s", NULL, 1, NULL, NULL,
        "Time since the daemon started."},
    {"sessions", GAUGE, OF_DAEMON, "sessions", NULL, 1, NULL, NULL, "Connected ranks."},
    {"sessions_opened", COUNTER, OF_DAEMON, "trainers.opened", NULL, 1, NULL, NULL,
        "Connections of ranks."},
    {"sessions_refused", COUNTER, OF_DAEMON, "trainers.refused", NULL, 1, "reason", "place",
        "Connections of ranks that were refused: no right, place or memory; an unknown key; "
        "another "
        "protocol."},
    {"sessions_refused", COUNTER, OF_DAEMON, "trainers.keys", NULL, 1, "reason", "key", NULL},
    {"sessions_refused", COUNTER, OF_DAEMON, "trainers.handshakes", NULL, 1, "reason", "handshake",
        NULL},
    {"sessions_lost", COUNTER, OF_DAEMON, "trainers.lost", NULL, 1, NULL, NULL,
        "Ranks of jobs that went without leaving."},
    {"sessions_broken", COUNTER, OF_DAEMON, "trainers.protocol_errors", NULL, 1, NULL, NULL,
        "Sessions that ended because the rank broke the protocol."},
    {"draining", GAUGE, OF_DAEMON, "draining", NULL, 1, NULL, NULL,
        "1 if the daemon takes no new ranks."},
    {"loop_longest_iteration_seconds", GAUGE, OF_DAEMON, "loop.longest_iteration_last_minute_us",
        NULL, 1e-6, NULL, NULL,
        "CPU time of the longest iteration of the daemon's loop in the last minute."},
    {"loop_cpu_seconds", COUNTER, OF_DAEMON, "loop.cpu_us", NULL, 1e-6, NULL, NULL,
        "CPU time of the daemon's loop."},
    {"workers", GAUGE, OF_DAEMON, "workers.threads", NULL, 1, NULL, NULL,
        "Threads that the daemon has for long passes."},
    {"workers_busy_seconds", COUNTER, OF_DAEMON, "workers.busy_us", NULL, 1e-6, NULL, NULL,
        "Time that the workers together spent in passes that are over."},
    {"network_cpu_seconds", COUNTER, OF_DAEMON, "network.cpu_us", NULL, 1e-6, NULL, NULL,
        "CPU time of the threads that encrypt, send and receive; missing on a lone node."},
    {"log_missing_lines", COUNTER, OF_DAEMON, "log.left_out", NULL, 1, "reason", "limit",
        "Lines that the daemon's log lacks: left out by a limit, or lost because nothing took "
        "them."},
    {"log_missing_lines", COUNTER, OF_DAEMON, "log.lost", NULL, 1, "reason", "lost", NULL},
    {"refused_connections", COUNTER, OF_DAEMON, "network.refused.keys", NULL, 1, "reason", "key",
        "Connections of other machines that were refused."},
    {"refused_connections", COUNTER, OF_DAEMON, "network.refused.handshakes", NULL, 1, "reason",
        "handshake", NULL},
    {"refused_connections", COUNTER, OF_DAEMON, "network.refused.tokens", NULL, 1, "reason",
        "token", NULL},
    {"stranger_packets", COUNTER, OF_DAEMON, "strangers.packets", NULL, 1, NULL, NULL,
        "Packets for another node, or from a node that is no peer."},

    {"peer_up", GAUGE, OF_PEER, "state", "up", 1, NULL, NULL,
        "1 if the peer answers; missing if it has not joined by a seed yet."},
    {"peer_round_trip_seconds", GAUGE, OF_PEER_STATS, "round_trip_us", NULL, 1e-6, NULL, NULL,
        "Round trip to the peer; 0 if it was not measured yet."},
    {"peer_rate_bytes_per_second", GAUGE, OF_PEER_STATS, "rate_bytes_s", NULL, 1, NULL, NULL,
        "Speed of the link while there was more to send; 0 if it is not known."},
    {"peer_queued_bytes", GAUGE, OF_PEER_STATS, "queued_bytes", NULL, 1, NULL, NULL,
        "Bytes that the peer has not acknowledged."},
    {"peer_sent_bytes", COUNTER, OF_PEER_STATS, "bytes_sent", NULL, 1, NULL, NULL,
        "Bytes sent to the peer."},
    {"peer_received_bytes", COUNTER, OF_PEER_STATS, "bytes_received", NULL, 1, NULL, NULL,
        "Bytes received from the peer."},
    {"peer_resent_bytes", COUNTER, OF_PEER_STATS, "resent_bytes", NULL, 1, NULL, NULL,
        "Bytes sent to the peer again."},
    {"peer_malformed_packets", COUNTER, OF_PEER_STATS, "malformed", NULL, 1, NULL, NULL,
        "Packets of the peer that could not be read."},
    {"peer_reopened_connections", COUNTER, OF_PEER_STATS, "reopened", NULL, 1, NULL, NULL,
        "Connections to the peer that delivered nothing and were opened anew."},

    {"job_state", GAUGE, OF_JOB, "state", "forming", 1, "state", "forming",
        "1 for the state that the job is in. Jobs that ended stay for a while."},
    {"job_state", GAUGE, OF_JOB, "state", "prepared", 1, "state", "prepared", NULL},
    {"job_state", GAUGE, OF_JOB, "state", "active", 1, "state", "active", NULL},
    {"job_state", GAUGE, OF_JOB, "state", "done", 1, "state", "done", NULL},
    {"job_state", GAUGE, OF_JOB, "state", "failed", 1, "state", "failed", NULL},
    {"job_stuck", GAUGE, OF_JOB, "waiting.stuck", NULL, 1, NULL, NULL,
        "1 if the job waits for longer than stuck_after_ms; missing if it does not wait."},
    {"job_waiting_seconds", GAUGE, OF_JOB, "waiting.seconds", NULL, 1, NULL, NULL,
        "For how long the job waits for one thing; missing if it does not wait."},
    {"job_ranks", GAUGE, OF_JOB, "world_size", NULL, 1, NULL, NULL, "Ranks on all nodes."},
    {"job_lost_nodes", GAUGE, OF_JOB, "lost_nodes.nodes", NULL, 1, NULL, NULL,
        "Nodes without which the job went on while this daemon ran; missing if there are none."},
    {"job_lost_nodes_residual", GAUGE, OF_JOB, "lost_nodes.sum", NULL, 1, NULL, NULL,
        "The last known sum of the residuals of lost nodes; missing without any."},
    {"job_lost_nodes_magnitude", GAUGE, OF_JOB, "lost_nodes.magnitude", NULL, 1, NULL, NULL,
        "The last known sum of the magnitudes in residuals of lost nodes; missing if unknown."},
    {"job_lost_residuals", GAUGE, OF_JOB, "losses", NULL, 1, NULL, NULL,
        "Residuals whose content was lost with a GPU's memory on this node; missing if none was."},
    {"job_local_ranks", GAUGE, OF_JOB, "local_ranks", NULL, 1, NULL, NULL, "Ranks on this node."},
    {"job_memory_bytes", GAUGE, OF_JOB, "memory_bytes", NULL, 1, NULL, NULL,
        "Memory of this node for the job's gradients, residuals and updates."},
    {"job_policy_version", GAUGE, OF_JOB, "policy_version", NULL, 1, NULL, NULL,
        "Version of the policy in force; 0: the one that the ranks brought."},

    {"job_steps", COUNTER, OF_JOB_STATS, "steps", NULL, 1, NULL, NULL,
        "Steps that were accepted or withdrawn."},
    {"job_withdrawn_steps", COUNTER, OF_JOB_STATS, "steps_withdrawn", NULL, 1, NULL, NULL,
        "Steps that were withdrawn because of NaN or infinity."},
    {"job_rounds", COUNTER, OF_JOB_STATS, "rounds", NULL, 1, NULL, NULL, "Exchanges of a bucket."},
    {"job_retried_rounds", COUNTER, OF_JOB_STATS, "rounds_retried", NULL, 1, NULL, NULL,
        "Exchanges that had to begin again."},
    {"job_elements", GAUGE, OF_JOB_STATS, "elements", NULL, 1, NULL, NULL,
        "Elements of all tensors."},
    {"job_wire_sent_bytes", COUNTER, OF_JOB_STATS, "wire_bytes_sent", NULL, 1, NULL, NULL,
        "Bytes of steps that were sent to all peers."},
    {"job_dense_bytes", COUNTER, OF_JOB_STATS, "dense_bytes", NULL, 1, NULL, NULL,
        "Size of one rank's gradients in f32, over all steps."},
    {"job_sent_nonzeros", COUNTER, OF_JOB_STATS, "nonzeros_sent", NULL, 1, NULL, NULL,
        "Values in the sparse frames of steps, each counted once."},
    {"job_residual_mean", GAUGE, OF_JOB_STATS, "residual_mean", NULL, 1, NULL, NULL,
        "Mean magnitude of an element of the residual when it was last read; missing before."},
    {"job_unbalanced_tensors", GAUGE, OF_JOB_STATS, "unbalanced", NULL, 1, NULL, NULL,
        "Tensors whose ledger was out of balance when it was last verified; missing before."},
    {"job_predicted_step_seconds", GAUGE, OF_JOB_STATS, "predicted_us", NULL, 1e-6, NULL, NULL,
        "Time of a step as the planner predicted it; missing where it did not."},
    {"job_measured_step_seconds", GAUGE, OF_JOB_STATS, "measured_us", NULL, 1e-6, NULL, NULL,
        "Median time of a step under the plan in force; missing where it is not measured."},
    {"job_phase_seconds", COUNTER, OF_JOB_STATS, "phase_seconds.collect", NULL, 1, "phase",
        "collect", "Time in each phase, summed over buckets, which overlap."},
    {"job_phase_seconds", COUNTER, OF_JOB_STATS, "phase_seconds.select", NULL, 1, "phase", "select",
        NULL},
    {"job_phase_seconds", COUNTER, OF_JOB_STATS, "phase_seconds.exchange", NULL, 1, "phase",
        "exchange", NULL},
    {"job_phase_seconds", COUNTER, OF_JOB_STATS, "phase_seconds.reduce", NULL, 1, "phase", "reduce",
        NULL},
    {"job_phase_seconds", COUNTER, OF_JOB_STATS, "phase_seconds.settle", NULL, 1, "phase", "settle",
        NULL},

    {"job_phase_duration_seconds", HISTOGRAM, OF_JOB_STATS, "phase_counts.collect",
        "phase_seconds.collect", 1, "phase", "collect",
        "How long each phase of a bucket takes; settle: of a step."},
    {"job_phase_duration_seconds", HISTOGRAM, OF_JOB_STATS, "phase_counts.select",
        "phase_seconds.select", 1, "phase", "select", NULL},
    {"job_phase_duration_seconds", HISTOGRAM, OF_JOB_STATS, "phase_counts.exchange",
        "phase_seconds.exchange", 1, "phase", "exchange", NULL},
    {"job_phase_duration_seconds", HISTOGRAM, OF_JOB_STATS, "phase_counts.reduce",
        "phase_seconds.reduce", 1, "phase", "reduce", NULL},
    {"job_phase_duration_seconds", HISTOGRAM, OF_JOB_STATS, "phase_counts.settle",
        "phase_seconds.settle", 1, "phase", "settle", NULL},

    {"tensor_elements", GAUGE, OF_TENSOR, "elements", NULL, 1, NULL, NULL,
        "Elements of the tensor. Tensors are shown with --tensors."},
    {"tensor_density", GAUGE, OF_TENSOR, "density", NULL, 1, NULL, NULL,
        "Share of its elements that the plan sends; 1: it is sent dense."},
    {"tensor_turns", COUNTER, OF_TENSOR, "turn", NULL, 1, NULL, NULL,
        "How often it was sparsified."},
    {"tensor_sent_bytes", COUNTER, OF_TENSOR, "bytes_sent", NULL, 1, NULL, NULL,
        "Bytes of frames to other nodes; the tensors of a bucket share its frames by their "
        "entries."},
    {"tensor_received_bytes", COUNTER, OF_TENSOR, "bytes_received", NULL, 1, NULL, NULL,
        "Bytes of frames of other nodes, shared likewise."},
    {"tensor_residual_magnitude", GAUGE, OF_TENSOR, "residual_magnitude", NULL, 1, NULL, NULL,
        "Sum of the residual's absolute values when it was last read; missing before."},

    {"rank_step", GAUGE, OF_RANK, "step", NULL, 1, NULL, NULL, "The rank's open step."},
    {"rank_pace_seconds", GAUGE, OF_RANK, "pace_us", NULL, 1e-6, NULL, NULL,
        "From a step's last update to the rank's last push in the next step, mean of about 64 "
        "steps."},

    {"device_memory_bytes", GAUGE, OF_DEVICE, "memory_bytes", NULL, 1, NULL, NULL,
        "Memory of the GPU."},
    {"device_reserved_bytes", GAUGE, OF_DEVICE, "reserved_bytes", NULL, 1, NULL, NULL,
        "Memory of the GPU that jobs reserved."},
    {"device_jobs", GAUGE, OF_DEVICE, "jobs", NULL, 1, NULL, NULL,
        "Jobs with residuals on the GPU."},
};

#define METRICS (sizeof(metrics) / sizeof(metrics[0]))

static const char *const scope_labels[] = {
    [OF_DAEMON] = "",
    [OF_PEER] = "peer",
    [OF_PEER_STATS] = "peer",
    [OF_JOB] = "owner, job_name, run",
    [OF_JOB_STATS] = "owner, job_name, run",
    [OF_TENSOR] = "owner, job_name, run, tensor",
    [OF_RANK] = "owner, job_name, run, rank",
    [OF_DEVICE] = "uuid",
};

/* The item at "a.b" of an object; NULL: there is none. */
static const cJSON *metric_item(const cJSON *object, const char *path)
{
    char part[64];

    while (object != NULL) {
        size_t length = strcspn(path, ".");

        if (length >= sizeof(part)) {
            return NULL;
        }
        memcpy(part, path, length);
        part[length] = '\0';
        object = cJSON_GetObjectItemCaseSensitive(object, part);
        if (path[length] == '\0') {
            return object;
        }
        path += length + 1;
    }
    return NULL;
}

/* NaN: the object does not say. */
static double metric_value(const struct metric *metric, const cJSON *object)
{
    const cJSON *item = metric_item(object, metric->field);

    if (metric->is != NULL) {
        const char *text = cJSON_GetStringValue(item);

        return text == NULL ? NAN : strcmp(text, metric->is) == 0 ? 1 : 0;
    }
    if (cJSON_IsBool(item)) {
        return cJSON_IsTrue(item) ? 1 : 0;
    }
    return cJSON_IsNumber(item) ? item->valuedouble * metric->scale : NAN;
}

#define NUMBER_SIZE 32

/* The shortest text that is read as the same value. Most values are small whole numbers, of which
 * printf() would make many digits first. Returns `text`. */
static const char *number_text(double value, char text[NUMBER_SIZE])
{
    if (value >= 0 && value <= UINT32_MAX && value == (double)(uint32_t)value) {
        (void)snprintf(text, NUMBER_SIZE, "%" PRIu32, (uint32_t)value);
        return text;
    }
    (void)snprintf(text, NUMBER_SIZE, "%.15g", value);
    if (strtod(text, NULL) != value) {
        (void)snprintf(text, NUMBER_SIZE, "%.17g", value);
    }
    return text;
}

/* The labels of one sample, as they are written. */
struct labels {
    FILE *out;
    const char *before; /* "{", then "," */
};

/* There are thousands of labels: what printf() does for each would take most of a scrape. */
static void label_text(struct labels *labels, const char *name, const char *value)
{
    (void)fputs(labels->before, labels->out);
    (void)fputs(name, labels->out);
    (void)fputs("=\"", labels->out);
    for (;;) {
        const size_t plain = strcspn(value, "\n\"\\");

        (void)fwrite(value, 1, plain, labels->out);
        value += plain;
        if (*value == '\0') {
            break;
        }
        (void)fputc('\\', labels->out);
        (void)fputc(*value == '\n' ? 'n' : *value, labels->out);
        value++;
    }
    (void)fputc('"', labels->out);
    labels->before = ",";
}

static void label_field(
    struct labels *labels, const char *name, const cJSON *object, const char *field)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, field);
    char number[NUMBER_SIZE];

    if (cJSON_IsString(item)) {
        label_text(labels, name, item->valuestring);
    } else if (cJSON_IsNumber(item)) {
        label_text(labels, name, number_text(item->valuedouble, number));
    }
}

/* job: what names the job of a tensor or a rank. most: the upper end of a histogram's bucket; NULL:
 * none. */
static void metric_labels(
    FILE *out, const struct metric *metric, const cJSON *job, const cJSON *object, const char *most)
{
    struct labels labels = {.out = out, .before = "{"};

    if (metric->scope == OF_PEER_STATS || metric->scope == OF_PEER) {
        label_field(&labels, "peer", object, "node");
    } else if (metric->scope == OF_DEVICE) {
        label_field(&labels, "uuid", object, "uuid");
    } else if (metric->scope != OF_DAEMON) {
        label_field(&labels, "owner", job, "owner");
        label_field(&labels, "job_name", job, "name");
        label_field(&labels, "run", job, "run_id");
    }
    if (metric->scope == OF_TENSOR) {
        label_field(&labels, "tensor", object, "name");
    } else if (metric->scope == OF_RANK) {
        label_field(&labels, "rank", object, "rank");
    }
    if (metric->label != NULL) {
        label_text(&labels, metric->label, metric->labelled);
    }
    if (most != NULL) {
        label_text(&labels, "le", most);
    }
    if (*labels.before == ',') {
        (void)fputc('}', out);
    }
}

static void metric_number(FILE *out, double value)
{
    char text[NUMBER_SIZE];

    (void)fputc(' ', out);
    (void)fputs(number_text(value, text), out);
    (void)fputc('\n', out);
}

static void metric_name(FILE *out, const struct metric *metric, const char *suffix)
{
    (void)fputs("adtopk_", out);
    (void)fputs(metric->name, out);
    (void)fputs(suffix, out);
}

static void metric_bucket(
    FILE *out, const struct metric *metric, const cJSON *object, const char *most, double count)
{
    metric_name(out, metric, "_bucket");
    metric_labels(out, metric, object, object, most);
    metric_number(out, count);
}

static void metric_part(
    FILE *out, const struct metric *metric, const cJSON *object, const char *part, double value)
{
    metric_name(out, metric, part);
    metric_labels(out, metric, object, object, NULL);
    metric_number(out, value);
}

/* The i-th count is of what took at most 2^i microseconds. Every third one ends a bucket, and the
 * last one, which has all that took longer, is part of the last bucket. */
static void metric_histogram(FILE *out, const struct metric *metric, const cJSON *object)
{
    const cJSON *counts = metric_item(object, metric->field);
    const cJSON *sum = metric_item(object, metric->is);
    const int last = cJSON_GetArraySize(counts) - 1;
    const cJSON *count;
    double total = 0;
    int i = 0;

    if (!cJSON_IsArray(counts) || !cJSON_IsNumber(sum)) {
        return;
    }
    cJSON_ArrayForEach(count, counts)
    {
        total += cJSON_IsNumber(count) ? count->valuedouble : 0;
        if (i % 3 == 1 && i < last) {
            char most[32];

            (void)snprintf(most, sizeof(most), "%.9g", ldexp(1e-6, i));
            metric_bucket(out, metric, object, most, total);
        }
        i++;
    }
    metric_bucket(out, metric, object, "+Inf", total);
    metric_part(out, metric, object, "_count", total);
    metric_part(out, metric, object, "_sum", sum->valuedouble);
}

/* A node that may join by a seed, and has not done so yet, is no peer that is down. */
static bool metric_has(const struct metric *metric, const cJSON *object)
{
    const char *endpoint =
        cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, "endpoint"));

    return metric->scope != OF_PEER || endpoint == NULL || *endpoint != '\0';
}

static void metric_sample(
    FILE *out, const struct metric *metric, const cJSON *job, const cJSON *object)
{
    double value;

    if (metric->kind == HISTOGRAM) {
        metric_histogram(out, metric, object);
        return;
    }
    value = metric_value(metric, object);
    if (isnan(value) || !metric_has(metric, object)) {
        return;
    }
    metric_name(out, metric, metric->kind == COUNTER ? "_total" : "");
    metric_labels(out, metric, job, object, NULL);
    metric_number(out, value);
}

/* The jobs whose parts are the objects of a scope; NULL: it has no such parts. */
static const cJSON *metric_jobs(enum metric_scope scope, const struct snapshot *snapshot)
{
    return scope == OF_RANK     ? snapshot->ranks
           : scope == OF_TENSOR ? cJSON_GetObjectItemCaseSensitive(snapshot->stats, "jobs")
                                : NULL;
}

/* The objects of a scope; job: whose tensors or ranks. */
static const cJSON *metric_objects(
    enum metric_scope scope, const struct snapshot *snapshot, const cJSON *job)
{
    switch (scope) {
    case OF_PEER: return cJSON_GetObjectItemCaseSensitive(snapshot->status, "peers");
    case OF_PEER_STATS: return cJSON_GetObjectItemCaseSensitive(snapshot->stats, "links");
    case OF_JOB: return cJSON_GetObjectItemCaseSensitive(snapshot->status, "jobs");
    case OF_JOB_STATS: return cJSON_GetObjectItemCaseSensitive(snapshot->stats, "jobs");
    case OF_TENSOR: return cJSON_GetObjectItemCaseSensitive(job, "tensors_detail");
    case OF_RANK: return cJSON_GetObjectItemCaseSensitive(job, "ranks");
    case OF_DEVICE: return cJSON_GetObjectItemCaseSensitive(snapshot->status, "devices");
    case OF_DAEMON: break;
    }
    return NULL;
}

static void metric_samples(FILE *out, const struct metric *metric, const struct snapshot *snapshot)
{
    const cJSON *jobs = metric_jobs(metric->scope, snapshot), *job, *item;

    if (metric->scope == OF_DAEMON) {
        metric_sample(out, metric, NULL, snapshot->status);
    } else if (jobs != NULL) {
        cJSON_ArrayForEach(job, jobs)
        {
            cJSON_ArrayForEach(item, metric_objects(metric->scope, snapshot, job))
            {
                metric_sample(out, metric, job, item);
            }
        }
    } else {
        cJSON_ArrayForEach(item, metric_objects(metric->scope, snapshot, NULL))
        {
            metric_sample(out, metric, item, item);
        }
    }
}

static void metric_head(FILE *out, const struct metric *metric, bool open_metrics)
{
    const char *total = metric->kind == COUNTER && !open_metrics ? "_total" : "";

    (void)fprintf(out, "# HELP adtopk_%s%s %s\n# TYPE adtopk_%s%s %s\n", metric->name, total,
        metric->help, metric->name, total,
        metric->kind == COUNTER     ? "counter"
        : metric->kind == HISTOGRAM ? "histogram"
                                    : "gauge");
}

static void metrics_write_up(FILE *out, const struct snapshot *snapshot)
{
    const char *version =
        cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(snapshot->status, "version"));
    struct labels labels = {.out = out, .before = "{"};

    (void)fprintf(out,
        "# HELP adtopk_up 1 if the daemon answers.\n# TYPE adtopk_up gauge\nadtopk_up %d\n",
        snapshot->status != NULL);
    if (version != NULL) {
        (void)fputs(
            "# HELP adtopk_daemon_version 1; the label tells the daemon's version and node.\n"
            "# TYPE adtopk_daemon_version gauge\nadtopk_daemon_version",
            out);
        label_text(&labels, "version", version);
        label_field(&labels, "node", snapshot->status, "node");
        (void)fputs("} 1\n", out);
    }
}

void metrics_write(FILE *out, const struct snapshot *snapshot, bool open_metrics)
{
    metrics_write_up(out, snapshot);
    for (size_t i = 0; i < METRICS && snapshot->status != NULL; i++) {
        if (metrics[i].help != NULL) {
            metric_head(out, &metrics[i], open_metrics);
        }
        metric_samples(out, &metrics[i], snapshot);
    }
    if (open_metrics) {
        (void)fputs("# EOF\n", out);
    }
}

void metrics_list(FILE *out)
{
    (void)fputs(
        "| `adtopk_up` | | 1 if the daemon answers. |\n"
        "| `adtopk_daemon_version` | version, node | 1; the label tells the daemon's version "
        "and node. |\n",
        out);
    for (size_t i = 0; i < METRICS; i++) {
        const struct metric *metric = &metrics[i];

        if (metric->help != NULL) {
            (void)fprintf(out, "| `adtopk_%s%s` | %s%s%s | %s |\n", metric->name,
                metric->kind == COUNTER ? "_total" : "", scope_labels[metric->scope],
                metric->label != NULL && *scope_labels[metric->scope] != '\0' ? ", " : "",
                metric->label != NULL ? metric->label : "", metric->help);
        }
    }
}
