/* How much jobs sent, and how their tensors are sent. */
#include "daemon/admin/jobname.h"
#include "daemon/admin/report.h"
#include "daemon/job/names.h"

/* How large the residual was when it was read last; null if it never was. */
static void report_stats_add_residual(
    struct document *document, cJSON *tensor, const struct tensor_info *info)
{
    const bool read = info->read.step != UINT64_MAX;

    document_optional(document, tensor, "residual_magnitude", info->read.magnitude, read);
    document_optional(document, tensor, "residual_step", (double)info->read.step, read);
}

static void report_stats_add_tensor(
    struct document *document, cJSON *tensors, const struct tensor_info *info)
{
    cJSON *tensor = document_append(document, tensors);

    document_text(document, tensor, "name", info->spec.name);
    document_text(document, tensor, "dtype", dtype_name(info->spec.dtype));
    document_count(document, tensor, "elements", info->numel);
    document_text(document, tensor, "sparsifier", info->sparsifier);
    document_text(document, tensor, "collective", info->collective);
    document_number(document, tensor, "density", info->density);
    document_text(document, tensor, "scope", info->scope);
    document_text(document, tensor, "values", info->values);
    document_text(document, tensor, "indices", info->indices);
    document_count(document, tensor, "bucket", info->bucket);
    document_count(document, tensor, "turn", info->turn);
    document_count(document, tensor, "count", info->count);
    document_count(document, tensor, "bytes_sent", info->bytes.sent);
    document_count(document, tensor, "bytes_received", info->bytes.received);
    document_number(document, tensor, "lookahead", info->lookahead);
    document_number(document, tensor, "lookahead_policy", info->lookahead_policy);
    document_pair(document, tensor, "input", info->input);
    document_pair(document, tensor, "applied", info->applied);
    document_pair(document, tensor, "lost", info->lost);
    report_stats_add_residual(document, tensor, info);
}

/* Adds at most `most` of the job's tensors from number `first` on, and how many follow the last one
 * shown. core: NULL for a job that has ended, whose tensors are forgotten. Returns how many are
 * shown. */
static uint32_t report_stats_add_tensors(struct document *document, cJSON *parent, const char *name,
    const struct core *core, const struct job_info *job, uint32_t first, uint32_t most)
{
    cJSON *tensors = document_array(document, parent, name);
    struct tensor_info tensor;
    uint32_t next = first < job->tensors ? first : job->tensors, shown = 0;

    while (core != NULL && shown < most && next < job->tensors &&
           core_tensor_info(core, job->id, next, &tensor)) {
        report_stats_add_tensor(document, tensors, &tensor);
        next++;
        shown++;
    }
    document_count(document, parent, "tensors_omitted", job->tensors - next);
    return shown;
}

static void report_stats_add_phases(
    struct document *document, cJSON *job, const struct job_info *info)
{
    cJSON *phases = document_object(document, job, "phase_seconds");
    cJSON *counts = document_object(document, job, "phase_counts");

    for (int i = 0; i < PHASE_COUNT; i++) {
        const char *name = phase_name((enum phase)i);

        document_number(document, phases, name, (double)info->phases.us[i] * 1e-6);
        document_counts(document, counts, name, info->phases.counts[i], PHASE_BUCKETS);
    }
}

static void report_stats_add_volume(
    struct document *document, cJSON *job, const struct job_info *info)
{
    document_count(document, job, "dense_bytes", info->dense_bytes);
    document_count(document, job, "wire_bytes_sent", info->bytes_sent);
    document_count(document, job, "operation_bytes_sent", info->op_bytes_sent);
    document_count(document, job, "payload_bytes", info->payload_bytes);
    document_count(document, job, "sparse_bytes_sent", info->sparse.bytes);
    document_count(document, job, "nonzeros_sent", info->sparse.nonzeros);
    document_optional(document, job, "bits_per_nonzero",
        8.0 * (double)info->sparse.bytes / (double)info->sparse.nonzeros,
        info->sparse.nonzeros > 0);
}

/* What was read of residuals. core: NULL for a job that has ended. */
static void report_stats_add_residuals(
    struct document *document, cJSON *job, const struct core *core, uint64_t id)
{
    const struct residual_info found =
        core != NULL ? core_residual_info(core, id) : (struct residual_info){.read = false};

    document_optional(
        document, job, "residual_mean", found.magnitude / (double)found.elements, found.read);
    document_optional(document, job, "residual_step", (double)found.step, found.read);
    document_optional(document, job, "unbalanced", found.unbalanced, found.verified);
}

/* The time of a step: what the planner predicted, and what came of it. core: NULL for a job that
 * has ended. */
static void report_stats_add_times(
    struct document *document, cJSON *job, const struct core *core, uint64_t id)
{
    struct plan_info plan = {.predicted_us = 0};

    if (core != NULL) {
        (void)core_plan_info(core, id, &plan); /* nothing is planned before it runs */
    }
    document_optional(document, job, "predicted_us", plan.predicted_us, plan.predicted_us > 0);
    document_optional(document, job, "measured_us", plan.step_us, plan.step_us > 0);
}

/* *room: how many tensors may still be described; NULL: the job gets no list of them. */
static void report_stats_add_job(struct document *document, cJSON *jobs, const struct core *core,
    bool live, const struct job_info *info, uint32_t *room)
{
    cJSON *job = document_append(document, jobs);

    report_key(document, job, &info->key);
    document_text(document, job, "state", info->state);
    document_count(document, job, "steps", info->steps_done);
    document_count(document, job, "steps_withdrawn", info->steps_withdrawn);
    document_count(document, job, "tensors", info->tensors);
    document_count(document, job, "buckets", info->buckets);
    document_count(document, job, "elements", info->elements);
    document_count(document, job, "sparse_elements", live ? info->sparse_elements : 0);
    document_optional(
        document, job, "checkpoint_due", (double)info->checkpoint.due, info->checkpoint.due > 0);
    document_optional(
        document, job, "checkpoint_read", (double)info->checkpoint.read, info->checkpoint.read > 0);
    document_optional(document, job, "checkpoint_saved", (double)info->checkpoint.saved,
        info->checkpoint.saved > 0);
    document_count(document, job, "rounds", info->rounds);
    document_count(document, job, "rounds_retried", info->rounds_retried);
    report_stats_add_volume(document, job, info);
    document_count(document, job, "policy_version", info->policy.version);
    document_count(document, job, "policy_step", info->policy.step);
    report_stats_add_phases(document, job, info);
    report_stats_add_residuals(document, job, live ? core : NULL, info->id);
    report_stats_add_times(document, job, live ? core : NULL, info->id);
    if (room != NULL) {
        *room -= report_stats_add_tensors(
            document, job, "tensors_detail", live ? core : NULL, info, 0, *room);
    }
}

static void report_stats_add_links(struct document *document, const struct core *core)
{
    cJSON *links = document_array(document, document->root, "links");
    struct peer_info info;

    for (uint32_t i = 0; core_peer_info(core, i, &info); i++) {
        cJSON *link = document_append(document, links);

        document_count(document, link, "node", info.node);
        document_text(document, link, "state", info.up ? "up" : "down");
        report_link(document, link, &info.link);
    }
}

char *report_stats(
    const struct report_daemon *daemon, const char *job, uint32_t tensors, bool *found)
{
    struct document document;
    struct seen_walk walk = {.live = 0};
    uint32_t *room = tensors > 0 ? &tensors : NULL;
    struct job_info info;
    cJSON *jobs;
    bool live;

    *found = *job == '\0';
    document_begin(&document);
    document_number(&document, document.root, "clock_s", daemon->clock_s);
    jobs = document_array(&document, document.root, "jobs");
    while (seen_next(&daemon->jobs, &walk, &info, &live)) {
        if (*job == '\0' || jobname_resembles(&info.key, job)) {
            *found = true;
            report_stats_add_job(&document, jobs, daemon->core, live, &info, room);
        }
    }
    report_stats_add_links(&document, daemon->core);
    return document_end(&document);
}

char *report_tensors(const struct report_daemon *daemon, const struct job_info *job, uint32_t first)
{
    struct document document;

    document_begin(&document);
    report_key(&document, document.root, &job->key);
    document_count(&document, document.root, "tensors_count", job->tensors);
    document_count(&document, document.root, "first", first);
    (void)report_stats_add_tensors(
        &document, document.root, "tensors", daemon->core, job, first, REPORT_MAX_TENSORS);
    return document_end(&document);
}

char *report_checkpoint(const struct job_info *job, uint64_t step)
{
    struct document document;

    document_begin(&document);
    report_key(&document, document.root, &job->key);
    document_count(&document, document.root, "step", step);
    document_count(&document, document.root, "steps", job->steps_done);
    return document_end(&document);
}
