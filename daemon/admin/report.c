/* Documents about the daemon as a whole. */
#include "daemon/admin/report.h"
#include "daemon/admin/jobname.h"
#include "daemon/job/names.h"

#include <stdio.h>
#include <unistd.h>

void report_key(struct document *document, cJSON *object, const struct job_key *key)
{
    document_text(document, object, "name", key->name);
    document_text(document, object, "run_id", key->run_id);
    document_count(document, object, "owner", key->owner);
}

void report_maybe(struct document *document, cJSON *object, const char *name, int64_t number)
{
    if (number >= 0) {
        document_number(document, object, name, (double)number);
    } else {
        document_null(document, object, name);
    }
}

void report_pid(struct document *document, cJSON *object, uint32_t pid)
{
    report_maybe(document, object, "pid", pid != 0 ? (int64_t)pid : -1);
}

static bool report_has_number(enum wait_kind kind)
{
    return (kind >= WAIT_PUSH && kind <= WAIT_FRAME) || kind >= WAIT_SWITCH;
}

/* The clock never goes back, but the core may have read it earlier than this. */
double report_since_s(const struct report_daemon *daemon, uint64_t since_us)
{
    double seconds = daemon->clock_s - (double)since_us * 1e-6;

    return seconds > 0 ? seconds : 0;
}

static void report_add_waiting(struct document *document, cJSON *job,
    const struct report_daemon *daemon, const struct job_info *info)
{
    const struct waiting *waiting = &info->waiting;
    int64_t number = report_has_number(waiting->kind) ? (int64_t)waiting->number : -1;
    cJSON *object;

    if (waiting->kind == WAIT_NOTHING) {
        document_null(document, job, "waiting");
        return;
    }
    object = document_object(document, job, "waiting");
    document_text(document, object, "kind", wait_kind_name(waiting->kind));
    document_number(document, object, "seconds", report_since_s(daemon, waiting->since_us));
    document_bool(document, object, "stuck", info->stuck);
    report_maybe(document, object, "step", waiting->operation ? -1 : number);
    report_maybe(document, object, "operation", waiting->operation ? number : -1);
    report_maybe(document, object, "node", waiting->node);
    report_maybe(document, object, "rank", waiting->rank);
    report_pid(document, object, waiting->pid);
    if (waiting->kind == WAIT_PUSH) {
        document_text(document, object, "tensor", info->waiting_tensor);
    } else {
        document_null(document, object, "tensor");
    }
}

/* The GPUs that have the job's tensors; nothing where the processor makes the passes. */
static void report_add_shards(
    struct document *document, cJSON *job, const struct report_devices *devices, uint64_t id)
{
    struct report_shard found;
    cJSON *all;

    if (devices->shard == NULL || !devices->shard(devices->context, id, 0, &found)) {
        return;
    }
    all = document_array(document, job, "gpus");
    for (unsigned i = 0; devices->shard(devices->context, id, i, &found); i++) {
        cJSON *gpu;

        if (found.first == found.end) {
            continue;
        }
        gpu = document_append(document, all);
        document_text(document, gpu, "uuid", found.uuid);
        document_count(document, gpu, "first_tensor", found.first);
        document_count(document, gpu, "tensors", found.end - found.first);
    }
}

/* What was lost with nodes without which the job went on, if there are any. */
static void report_add_lost_nodes(
    struct document *document, cJSON *job, const struct lost_info *lost)
{
    cJSON *nodes;

    if (lost->nodes == 0) {
        return;
    }
    nodes = document_object(document, job, "lost_nodes");
    document_count(document, nodes, "nodes", lost->nodes);
    document_count(document, nodes, "unknown", lost->unknown);
    document_optional(document, nodes, "step", (double)lost->step, lost->nodes > lost->unknown);
    document_optional(document, nodes, "sum", lost->sums[0], lost->nodes > lost->unknown);
    document_optional(document, nodes, "hashed", lost->sums[1], lost->nodes > lost->unknown);
    document_optional(document, nodes, "magnitude", lost->magnitude,
        lost->nodes > lost->unknown && lost->unmeasured == 0);
}

/* What was lost with a GPU's memory or with nodes, if anything was. */
static void report_add_losses(
    struct document *document, cJSON *job, const struct core *core, uint64_t id)
{
    const struct residual_info residual = core_residual_info(core, id);

    if (residual.losses > 0) {
        document_count(document, job, "losses", residual.losses);
        document_pair(document, job, "lost", residual.lost);
    }
    report_add_lost_nodes(document, job, &residual.lost_nodes);
}

/* ended_us: when it ended; 0: it lives. */
static cJSON *report_add_job(struct document *document, cJSON *jobs,
    const struct report_daemon *daemon, const struct job_info *info, uint64_t ended_us)
{
    cJSON *job = document_append(document, jobs);

    report_key(document, job, &info->key);
    document_text(document, job, "state", info->state);
    document_text(document, job, "waiting_for", info->waiting_for);
    report_add_waiting(document, job, daemon, info);
    document_text(document, job, "reason", info->reason);
    document_optional(document, job, "ended_s", report_since_s(daemon, ended_us), ended_us != 0);
    document_text(document, job, "carrier", info->carrier);
    report_add_shards(document, job, &daemon->devices, info->id);
    if (info->policy.in_host) {
        document_bool(document, job, "in_host_memory", true);
    }
    report_add_losses(document, job, daemon->core, info->id);
    document_count(document, job, "world_size", info->world_size);
    document_count(document, job, "view_ranks", info->ranks);
    document_count(document, job, "local_ranks", info->local_ranks);
    document_count(document, job, "nodes", info->nodes);
    document_count(document, job, "view", info->view);
    document_count(document, job, "steps_done", info->steps_done);
    document_count(document, job, "steps_withdrawn", info->steps_withdrawn);
    document_count(document, job, "tensors", info->tensors);
    document_count(document, job, "buckets", info->buckets);
    document_count(document, job, "elements", info->elements);
    document_count(document, job, "memory_bytes", daemon->memory(daemon->context, info->id));
    document_count(document, job, "policy_version", info->policy.version);
    document_count(document, job, "policy_step", info->policy.step);
    document_count(document, job, "policy_next_version", info->policy.next_version);
    document_count(document, job, "policy_next_step", info->policy.next_step);
    report_unmatched(document, job, daemon, info);
    return job;
}

/* name: of the jobs to add; empty: all. policies: also what each job's policy changes. False: there
 * is no such job. */
static bool report_add_jobs(
    struct document *document, const struct report_daemon *daemon, const char *name, bool policies)
{
    cJSON *jobs = document_array(document, document->root, "jobs");
    struct policy_reader reader = {.usual = NULL};
    struct seen_walk walk = {.live = 0};
    struct job_info info;
    bool live, found = *name == '\0';

    while (seen_next(&daemon->jobs, &walk, &info, &live)) {
        cJSON *job;

        if (*name != '\0' && !jobname_resembles(&info.key, name)) {
            continue;
        }
        found = true;
        job = report_add_job(document, jobs, daemon, &info,
            live ? 0 : daemon->jobs.history->job[walk.ended - 1].ended_us);
        if (policies) {
            report_changes(document, job, &info, &reader);
        }
    }
    policy_reader_end(&reader);
    return found;
}

void report_link(struct document *document, cJSON *peer, const struct link_stats *link)
{
    document_count(document, peer, "round_trip_us", link->round_trip_us);
    document_count(document, peer, "rate_bytes_s", link->bulk_rate);
    document_count(document, peer, "queued_bytes", link->queued_bytes);
    document_count(document, peer, "packets_sent", link->packets_sent);
    document_count(document, peer, "packets_received", link->packets_received);
    document_count(document, peer, "bytes_sent", link->bytes_sent);
    document_count(document, peer, "bytes_received", link->bytes_received);
    document_count(document, peer, "resent", link->resent);
    document_count(document, peer, "resent_bytes", link->resent_bytes);
    document_count(document, peer, "copied_bytes", link->copied_bytes);
    document_count(document, peer, "checked_bytes", link->checked_bytes);
    document_count(document, peer, "duplicates", link->duplicates);
    document_count(document, peer, "stale", link->stale);
    document_count(document, peer, "malformed", link->malformed);
    document_count(document, peer, "reopened", link->reopened);
}

/* Where the peer is, and who says so. */
static void report_add_origin(
    struct document *document, cJSON *peer, const struct report_daemon *daemon, uint16_t node)
{
    struct report_peer known;

    if (daemon->peer == NULL || !daemon->peer(daemon->context, node, &known)) {
        return;
    }
    document_text(document, peer, "endpoint", known.endpoint);
    document_text(document, peer, "origin", known.origin);
    report_maybe(document, peer, "seed", known.seed);
}

static void report_add_peers(
    struct document *document, const struct report_daemon *daemon, bool all)
{
    cJSON *peers = document_array(document, document->root, "peers");
    struct peer_info info;

    for (uint32_t i = 0; core_peer_info(daemon->core, i, &info); i++) {
        cJSON *peer = document_append(document, peers);

        document_count(document, peer, "node", info.node);
        document_text(document, peer, "state", info.up ? "up" : "down");
        report_add_origin(document, peer, daemon, info.node);
        document_identity(document, peer, "incarnation", info.incarnation);
        if (all) {
            report_link(document, peer, &info.link);
        } else {
            document_count(document, peer, "round_trip_us", info.link.round_trip_us);
            document_count(document, peer, "queued_bytes", info.link.queued_bytes);
            document_count(document, peer, "reopened", info.link.reopened);
        }
    }
}

static void report_add_strangers(struct document *document, const struct core *core)
{
    struct link_refused refused = core_refused(core);
    cJSON *object = document_object(document, document->root, "strangers");

    document_count(document, object, "packets", refused.strangers);
    document_count(document, object, "unreadable", refused.packets - refused.strangers);
    if (refused.strangers > 0) {
        document_count(document, object, "source", refused.source);
        document_count(document, object, "destination", refused.destination);
    }
}

static void report_add_network(struct document *document, const struct report_network *network)
{
    cJSON *object, *refused;

    if (network->protection == NULL) {
        return;
    }
    object = document_object(document, document->root, "network");
    document_text(document, object, "protection", network->protection);
    document_count(document, object, "cpu_us", network->cpu_us);
    refused = document_object(document, object, "refused");
    document_count(document, refused, "keys", network->keys);
    document_count(document, refused, "handshakes", network->handshakes);
    document_count(document, refused, "tokens", network->tokens);
    document_count(document, refused, "packets", network->packets);
}

static void report_add_workers(
    struct document *document, cJSON *gpu, const struct report_devices *devices, unsigned number)
{
    cJSON *workers = document_array(document, gpu, "workers");
    struct report_worker found;

    for (unsigned i = 0; devices->worker(devices->context, i, &found); i++) {
        cJSON *worker = found.device == number ? document_append(document, workers) : NULL;

        if (worker != NULL) {
            document_count(document, worker, "owner", found.owner);
            report_maybe(document, worker, "pid", found.pid > 0 ? found.pid : -1);
            document_count(document, worker, "batches", found.batches);
            document_count(document, worker, "carried", found.carried);
            document_count(document, worker, "launches", found.launches);
            document_count(document, worker, "copies", found.copies);
            document_count(document, worker, "questions", found.questions);
            document_count(document, worker, "starts", found.starts);
            document_text(document, worker, "trouble", found.trouble);
        }
    }
}

static void report_add_nccl(
    struct document *document, cJSON *gpu, const struct report_device *found)
{
    char version[24] = "";

    if (found->nccl != 0) {
        (void)snprintf(version, sizeof(version), "%u.%u.%u", found->nccl / 10000,
            found->nccl / 100 % 100, found->nccl % 100);
    }
    document_text(document, gpu, "nccl", version);
    document_text(document, gpu, "no_nccl", found->no_nccl);
}

/* What the daemon does not allocate itself, and so has measured. */
static void report_add_contexts(
    struct document *document, cJSON *gpu, const struct report_device *found)
{
    const bool known = found->context != 0;

    report_maybe(document, gpu, "worker_context_bytes", known ? (int64_t)found->context : -1);
    report_maybe(document, gpu, "context_bytes", known ? (int64_t)found->contexts : -1);
    document_count(document, gpu, "nccl_bytes", found->communicators);
}

static void report_add_driver(
    struct document *document, cJSON *gpu, const struct report_device *found)
{
    char text[24];

    (void)snprintf(text, sizeof(text), "%u.%u", found->major, found->minor);
    document_text(document, gpu, "compute_capability", text);
    (void)snprintf(text, sizeof(text), "%d.%d", found->driver / 1000, found->driver % 1000 / 10);
    document_text(document, gpu, "driver", text);
    report_maybe(document, gpu, "mps", found->mps);
}

/* Nothing where the processor makes the passes. */
static void report_add_devices(struct document *document, const struct report_devices *devices)
{
    struct report_device found;
    cJSON *all;

    if (devices->device == NULL || !devices->device(devices->context, 0, &found)) {
        return;
    }
    all = document_array(document, document->root, "devices");
    for (unsigned i = 0; devices->device(devices->context, i, &found); i++) {
        cJSON *gpu = document_append(document, all);

        document_text(document, gpu, "uuid", found.uuid);
        document_text(document, gpu, "name", found.name);
        document_count(document, gpu, "memory_bytes", found.memory);
        document_count(document, gpu, "reserved_bytes", found.residuals + found.arenas);
        document_count(document, gpu, "residual_bytes", found.residuals);
        document_count(document, gpu, "arena_bytes", found.arenas);
        document_count(document, gpu, "scratch_bytes", found.scratch);
        report_add_contexts(document, gpu, &found);
        document_count(document, gpu, "jobs", found.jobs);
        document_text(document, gpu, "missing_kernels", found.missing);
        report_add_driver(document, gpu, &found);
        report_add_nccl(document, gpu, &found);
        report_add_workers(document, gpu, devices, i);
    }
}

static void report_add_trainers(struct document *document, const struct report_trainers *trainers)
{
    cJSON *object = document_object(document, document->root, "trainers");

    document_count(document, object, "opened", trainers->opened);
    document_count(document, object, "refused", trainers->refused);
    document_count(document, object, "keys", trainers->keys);
    document_count(document, object, "handshakes", trainers->handshakes);
    document_count(document, object, "lost", trainers->lost);
    document_count(document, object, "protocol_errors", trainers->protocol_errors);
}

static void report_add_load(struct document *document, const struct report_load *load)
{
    cJSON *loop = document_object(document, document->root, "loop");
    cJSON *workers = document_object(document, document->root, "workers");
    cJSON *lines = document_object(document, document->root, "log");

    document_count(document, loop, "longest_iteration_us", load->longest_us);
    document_count(document, loop, "longest_iteration_last_minute_us", load->minute_us);
    document_count(document, loop, "cpu_us", load->cpu_us);
    document_count(document, workers, "threads", load->workers);
    document_count(document, workers, "busy_us", load->busy_us);
    document_count(document, lines, "left_out", load->lines_left_out);
    document_count(document, lines, "lost", load->lines_lost);
}

/* An operator who stops the node before these ranks are back ends their jobs. */
static void report_add_stores_waiting(struct document *document, const struct report_daemon *daemon)
{
    struct report_store found;
    uint64_t count = 0;

    for (unsigned i = 0; daemon->store != NULL && daemon->store(daemon->context, i, &found); i++) {
        count += !found.used && found.fault[0] == '\0' ? 1 : 0;
    }
    document_count(document, document->root, "stores_waiting", count);
}

char *report_status(const struct report_daemon *daemon)
{
    struct document document;

    document_begin(&document);
    document_text(&document, document.root, "version", ADTOPK_VERSION);
    document_count(&document, document.root, "node", daemon->node);
    document_count(&document, document.root, "pid", (uint64_t)getpid());
    document_count(&document, document.root, "uptime_s", daemon->uptime_s);
    document_identity(&document, document.root, "incarnation", daemon->incarnation);
    document_count(&document, document.root, "sessions", daemon->trainers.sessions);
    document_bool(&document, document.root, "draining", daemon->draining);
    report_add_stores_waiting(&document, daemon);
    report_add_trainers(&document, &daemon->trainers);
    report_add_load(&document, &daemon->load);
    report_add_peers(&document, daemon, false);
    report_add_strangers(&document, daemon->core);
    report_add_network(&document, &daemon->network);
    report_add_devices(&document, &daemon->devices);
    (void)report_add_jobs(&document, daemon, "", false);
    return document_end(&document);
}

char *report_jobs(const struct report_daemon *daemon, const char *job, bool *found)
{
    struct document document;

    document_begin(&document);
    document_count(&document, document.root, "node", daemon->node);
    *found = report_add_jobs(&document, daemon, job, true);
    return document_end(&document);
}

char *report_peers(const struct report_daemon *daemon)
{
    struct document document;

    document_begin(&document);
    document_count(&document, document.root, "node", daemon->node);
    report_add_peers(&document, daemon, true);
    report_add_strangers(&document, daemon->core);
    return document_end(&document);
}

static void report_add_store(
    struct document *document, cJSON *stores, const struct report_store *found)
{
    cJSON *store = document_append(document, stores);

    report_key(document, store, &found->key);
    document_count(document, store, "bytes", found->bytes);
    document_bool(document, store, "used", found->used);
    document_count(document, store, "idle_s", found->idle_s);
    document_text(document, store, "fault", found->fault);
}

char *report_stores(const struct report_daemon *daemon)
{
    struct report_store found;
    struct document document;
    cJSON *stores;

    document_begin(&document);
    document_count(&document, document.root, "node", daemon->node);
    stores = document_array(&document, document.root, "stores");
    for (unsigned i = 0; daemon->store != NULL && daemon->store(daemon->context, i, &found); i++) {
        if (seen_has(&daemon->jobs, &found.key)) {
            report_add_store(&document, stores, &found);
        }
    }
    return document_end(&document);
}

char *report_drain(const struct report_daemon *daemon)
{
    struct document document;

    document_begin(&document);
    document_count(&document, document.root, "node", daemon->node);
    document_bool(&document, document.root, "draining", daemon->draining);
    document_count(&document, document.root, "sessions", daemon->trainers.sessions);
    report_add_stores_waiting(&document, daemon);
    return document_end(&document);
}
