#include "daemon/admin/report.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "proto/utf8.h"

#define TEXT_SIZE 256

/* A document under construction. Memory may run out at any item: that is looked at once, at the
 * end, and adding to NULL is harmless. */
struct builder {
    bool failed;
};

static cJSON *add(struct builder *builder, cJSON *object, const char *name, cJSON *item)
{
    if (item == NULL || object == NULL || !cJSON_AddItemToObject(object, name, item)) {
        cJSON_Delete(item);
        builder->failed = true;
        return NULL;
    }
    return item;
}

static cJSON *append(struct builder *builder, cJSON *array, cJSON *item)
{
    if (item == NULL || array == NULL || !cJSON_AddItemToArray(array, item)) {
        cJSON_Delete(item);
        builder->failed = true;
        return NULL;
    }
    return item;
}

static void add_number(struct builder *builder, cJSON *object, const char *name, double number)
{
    (void)add(builder, object, name, cJSON_CreateNumber(number));
}

static void add_count(struct builder *builder, cJSON *object, const char *name, uint64_t count)
{
    add_number(builder, object, name, (double)count); /* exact up to 2^53 */
}

/* Names come from clients: what is not valid UTF-8 becomes a question mark. */
static void add_text(struct builder *builder, cJSON *object, const char *name, const char *text)
{
    char valid[TEXT_SIZE];
    size_t size = 0;

    while (*text != '\0') {
        size_t length = utf8_length(text);
        size_t taken = length > 0 ? length : 1;

        if (size + taken >= sizeof(valid)) {
            break;
        }
        memcpy(valid + size, length > 0 ? text : "?", taken);
        size += taken;
        text += taken;
    }
    valid[size] = '\0';
    (void)add(builder, object, name, cJSON_CreateString(valid));
}

/* 64-bit identities do not survive as numbers in JSON. */
static void add_identity(
    struct builder *builder, cJSON *object, const char *name, uint64_t identity)
{
    char text[17];

    (void)snprintf(text, sizeof(text), "%016" PRIx64, identity);
    add_text(builder, object, name, text);
}

static char *finish(struct builder *builder, cJSON *document)
{
    char *text = builder->failed ? NULL : cJSON_PrintUnformatted(document);

    cJSON_Delete(document);
    return text;
}

static void add_peers(struct builder *builder, cJSON *document, const struct core *core)
{
    cJSON *peers = add(builder, document, "peers", cJSON_CreateArray());
    struct peer_info info;

    for (uint32_t i = 0; i < core_peer_count(core) && core_peer_info(core, i, &info); i++) {
        cJSON *peer = append(builder, peers, cJSON_CreateObject());

        add_count(builder, peer, "node", info.node);
        add_text(builder, peer, "state", info.up ? "up" : "down");
        add_identity(builder, peer, "incarnation", info.incarnation);
        add_count(builder, peer, "round_trip_us", info.link.round_trip_us);
        add_count(builder, peer, "queued_bytes", info.link.queued_bytes);
    }
}

static void add_strangers(struct builder *builder, cJSON *document, const struct core *core)
{
    struct link_refused refused = core_refused(core);
    cJSON *object = add(builder, document, "strangers", cJSON_CreateObject());

    add_count(builder, object, "packets", refused.strangers);
    if (refused.strangers > 0) {
        add_count(builder, object, "source", refused.source);
        add_count(builder, object, "destination", refused.destination);
    }
}

static void add_network(
    struct builder *builder, cJSON *document, const struct report_network *network)
{
    cJSON *object, *refused;

    if (network->protection == NULL) {
        return;
    }
    object = add(builder, document, "network", cJSON_CreateObject());
    add_text(builder, object, "protection", network->protection);
    refused = add(builder, object, "refused", cJSON_CreateObject());
    add_count(builder, refused, "keys", network->keys);
    add_count(builder, refused, "handshakes", network->handshakes);
    add_count(builder, refused, "tokens", network->tokens);
    add_count(builder, refused, "packets", network->packets);
}

static void add_status_jobs(
    struct builder *builder, cJSON *document, const struct report_daemon *daemon)
{
    cJSON *jobs = add(builder, document, "jobs", cJSON_CreateArray());
    struct job_info info;
    bool live;

    for (uint32_t i = 0; history_job(daemon->history, daemon->core, i, &info, &live); i++) {
        cJSON *job = append(builder, jobs, cJSON_CreateObject());

        add_text(builder, job, "name", info.key.name);
        add_text(builder, job, "run_id", info.key.run_id);
        add_count(builder, job, "owner", info.key.owner);
        add_text(builder, job, "state", info.state);
        add_text(builder, job, "waiting_for", info.waiting_for);
        add_text(builder, job, "reason", info.reason);
        add_count(builder, job, "world_size", info.world_size);
        add_count(builder, job, "local_ranks", info.local_ranks);
        add_count(builder, job, "nodes", info.nodes);
        add_count(builder, job, "view", info.view);
        add_count(builder, job, "steps_done", info.steps_done);
    }
}

char *report_status(const struct report_daemon *daemon)
{
    struct builder builder = {.failed = false};
    cJSON *document = cJSON_CreateObject();

    add_count(&builder, document, "schema", REPORT_SCHEMA);
    add_text(&builder, document, "version", ADTOPK_VERSION);
    add_count(&builder, document, "node", daemon->node);
    add_count(&builder, document, "pid", (uint64_t)getpid());
    add_count(&builder, document, "uptime_s", daemon->uptime_s);
    add_identity(&builder, document, "incarnation", daemon->incarnation);
    add_count(&builder, document, "sessions", daemon->sessions);
    add_peers(&builder, document, daemon->core);
    add_strangers(&builder, document, daemon->core);
    add_network(&builder, document, &daemon->network);
    add_status_jobs(&builder, document, daemon);
    return finish(&builder, document);
}

static const char *dtype_name(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_F32: return "f32";
    case DTYPE_F16: return "f16";
    case DTYPE_BF16: return "bf16";
    default: return "unknown";
    }
}

static void add_pair(struct builder *builder, cJSON *object, const char *name, const double sums[2])
{
    (void)add(builder, object, name, cJSON_CreateDoubleArray(sums, 2));
}

static void add_tensor(struct builder *builder, cJSON *tensors, const struct tensor_info *info)
{
    cJSON *tensor = append(builder, tensors, cJSON_CreateObject());

    add_text(builder, tensor, "name", info->spec.name);
    add_text(builder, tensor, "dtype", dtype_name(info->spec.dtype));
    add_count(builder, tensor, "elements", info->numel);
    add_text(builder, tensor, "sparsifier", info->sparsifier);
    add_text(builder, tensor, "collective", info->collective);
    add_count(builder, tensor, "bucket", info->bucket);
    add_count(builder, tensor, "turn", info->turn);
    add_count(builder, tensor, "count", info->count);
    add_pair(builder, tensor, "input", info->input);
    add_pair(builder, tensor, "applied", info->applied);
}

/* core: NULL for a job that has ended, whose tensors are forgotten. */
static void add_tensors(
    struct builder *builder, cJSON *job, const struct core *core, const struct job_info *info)
{
    uint32_t limit = core != NULL ? REPORT_MAX_TENSORS : 0;
    uint32_t shown = info->tensors < limit ? info->tensors : limit;
    cJSON *tensors = add(builder, job, "tensors_detail", cJSON_CreateArray());
    struct tensor_info tensor;

    for (uint32_t i = 0; i < shown && core_tensor_info(core, info->id, i, &tensor); i++) {
        add_tensor(builder, tensors, &tensor);
    }
    add_count(builder, job, "tensors_omitted", info->tensors - shown);
}

static void add_phases(struct builder *builder, cJSON *job, const struct job_info *info)
{
    cJSON *phases = add(builder, job, "phase_seconds", cJSON_CreateObject());

    for (int i = 0; i < PHASE_COUNT; i++) {
        add_number(builder, phases, phase_name((enum phase)i), (double)info->phase_us[i] * 1e-6);
    }
}

static void add_stats_job(
    struct builder *builder, cJSON *jobs, const struct core *core, const struct job_info *info)
{
    cJSON *job = append(builder, jobs, cJSON_CreateObject());

    add_text(builder, job, "name", info->key.name);
    add_text(builder, job, "run_id", info->key.run_id);
    add_text(builder, job, "state", info->state);
    add_count(builder, job, "steps", info->steps_done);
    add_count(builder, job, "steps_withdrawn", info->steps_withdrawn);
    add_count(builder, job, "tensors", info->tensors);
    add_count(builder, job, "buckets", info->buckets);
    add_count(builder, job, "elements", info->elements);
    add_count(builder, job, "rounds", info->rounds);
    add_count(builder, job, "rounds_retried", info->rounds_retried);
    add_count(builder, job, "dense_bytes", info->dense_bytes);
    add_count(builder, job, "wire_bytes_sent", info->bytes_sent);
    add_count(builder, job, "operation_bytes_sent", info->op_bytes_sent);
    add_count(builder, job, "payload_bytes", info->payload_bytes);
    add_count(builder, job, "sparse_bytes_sent", info->sparse_payload_bytes);
    add_count(builder, job, "nonzeros_sent", info->sparse_nonzeros);
    if (info->sparse_nonzeros > 0) {
        add_number(builder, job, "bits_per_nonzero",
            8.0 * (double)info->sparse_payload_bytes / (double)info->sparse_nonzeros);
    } else {
        (void)add(builder, job, "bits_per_nonzero", cJSON_CreateNull());
    }
    add_phases(builder, job, info);
    add_tensors(builder, job, core, info);
}

static void add_links(struct builder *builder, cJSON *document, const struct core *core)
{
    cJSON *links = add(builder, document, "links", cJSON_CreateArray());
    struct peer_info info;

    for (uint32_t i = 0; i < core_peer_count(core) && core_peer_info(core, i, &info); i++) {
        cJSON *link = append(builder, links, cJSON_CreateObject());

        add_count(builder, link, "node", info.node);
        add_text(builder, link, "state", info.up ? "up" : "down");
        add_count(builder, link, "packets_sent", info.link.packets_sent);
        add_count(builder, link, "packets_received", info.link.packets_received);
        add_count(builder, link, "bytes_sent", info.link.bytes_sent);
        add_count(builder, link, "bytes_received", info.link.bytes_received);
        add_count(builder, link, "resent", info.link.resent);
        add_count(builder, link, "duplicates", info.link.duplicates);
        add_count(builder, link, "stale", info.link.stale);
        add_count(builder, link, "malformed", info.link.malformed);
        add_count(builder, link, "queued_bytes", info.link.queued_bytes);
        add_count(builder, link, "round_trip_us", info.link.round_trip_us);
    }
}

char *report_stats(const struct report_daemon *daemon, const char *job, bool *found)
{
    struct builder builder = {.failed = false};
    cJSON *document = cJSON_CreateObject();
    cJSON *jobs;
    struct job_info info;
    bool live;

    *found = *job == '\0';
    add_count(&builder, document, "schema", REPORT_SCHEMA);
    jobs = add(&builder, document, "jobs", cJSON_CreateArray());
    for (uint32_t i = 0; history_job(daemon->history, daemon->core, i, &info, &live); i++) {
        if (*job == '\0' || strcmp(job, info.key.name) == 0) {
            *found = true;
            add_stats_job(&builder, jobs, live ? daemon->core : NULL, &info);
        }
    }
    add_links(&builder, document, daemon->core);
    return finish(&builder, document);
}
