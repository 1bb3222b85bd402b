/* What jobs sent and how their tensors travel. */
#include "daemon/admin/jobname.h"
#include "daemon/admin/report.h"

static const char *dtype_name(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_F32: return "f32";
    case DTYPE_F16: return "f16";
    case DTYPE_BF16: return "bf16";
    default: return "unknown";
    }
}

static void add_tensor(struct document *document, cJSON *tensors, const struct tensor_info *info)
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
    document_pair(document, tensor, "input", info->input);
    document_pair(document, tensor, "applied", info->applied);
}

/* The job's tensors from number `first` on, and how many come after the last one shown. core: NULL
 * for a job that has ended, whose tensors are forgotten. */
static void add_tensors(struct document *document, cJSON *parent, const char *name,
    const struct core *core, const struct job_info *job, uint32_t first)
{
    cJSON *tensors = document_array(document, parent, name);
    struct tensor_info tensor;
    uint32_t next = first < job->tensors ? first : job->tensors;

    while (core != NULL && next - first < REPORT_MAX_TENSORS && next < job->tensors &&
           core_tensor_info(core, job->id, next, &tensor)) {
        add_tensor(document, tensors, &tensor);
        next++;
    }
    document_count(document, parent, "tensors_omitted", job->tensors - next);
}

static void add_phases(struct document *document, cJSON *job, const struct job_info *info)
{
    cJSON *phases = document_object(document, job, "phase_seconds");

    for (int i = 0; i < PHASE_COUNT; i++) {
        document_number(
            document, phases, phase_name((enum phase)i), (double)info->phase_us[i] * 1e-6);
    }
}

static uint64_t sparse_elements(const struct core *core, const struct job_info *job)
{
    struct tensor_info tensor;
    uint64_t elements = 0;

    for (uint32_t i = 0; i < job->tensors && core_tensor_info(core, job->id, i, &tensor); i++) {
        elements += tensor.count > 0 ? tensor.numel : 0;
    }
    return elements;
}

static void add_volume(struct document *document, cJSON *job, const struct job_info *info)
{
    document_count(document, job, "dense_bytes", info->dense_bytes);
    document_count(document, job, "wire_bytes_sent", info->bytes_sent);
    document_count(document, job, "operation_bytes_sent", info->op_bytes_sent);
    document_count(document, job, "payload_bytes", info->payload_bytes);
    document_count(document, job, "sparse_bytes_sent", info->sparse_payload_bytes);
    document_count(document, job, "nonzeros_sent", info->sparse_nonzeros);
    if (info->sparse_nonzeros > 0) {
        document_number(document, job, "bits_per_nonzero",
            8.0 * (double)info->sparse_payload_bytes / (double)info->sparse_nonzeros);
    } else {
        document_null(document, job, "bits_per_nonzero");
    }
}

static void add_job(struct document *document, cJSON *jobs, const struct core *core, bool live,
    const struct job_info *info)
{
    cJSON *job = document_append(document, jobs);

    report_key(document, job, &info->key);
    document_text(document, job, "state", info->state);
    document_count(document, job, "steps", info->steps_done);
    document_count(document, job, "steps_withdrawn", info->steps_withdrawn);
    document_count(document, job, "tensors", info->tensors);
    document_count(document, job, "buckets", info->buckets);
    document_count(document, job, "elements", info->elements);
    document_count(document, job, "sparse_elements", live ? sparse_elements(core, info) : 0);
    document_count(document, job, "rounds", info->rounds);
    document_count(document, job, "rounds_retried", info->rounds_retried);
    add_volume(document, job, info);
    document_count(document, job, "policy_version", info->policy_version);
    document_count(document, job, "policy_step", info->policy_step);
    add_phases(document, job, info);
    add_tensors(document, job, "tensors_detail", live ? core : NULL, info, 0);
}

static void add_links(struct document *document, const struct core *core)
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

char *report_stats(const struct report_daemon *daemon, const char *job, bool *found)
{
    struct document document;
    struct job_info info;
    cJSON *jobs;
    bool live;

    *found = *job == '\0';
    document_begin(&document);
    document_number(&document, document.root, "clock_s", daemon->clock_s);
    jobs = document_array(&document, document.root, "jobs");
    for (uint32_t i = 0; history_job(daemon->history, daemon->core, i, &info, &live); i++) {
        if (*job == '\0' || jobname_fits(&info.key, job)) {
            *found = true;
            add_job(&document, jobs, daemon->core, live, &info);
        }
    }
    add_links(&document, daemon->core);
    return document_end(&document);
}

char *report_tensors(const struct report_daemon *daemon, const struct job_info *job, uint32_t first)
{
    struct document document;

    document_begin(&document);
    report_key(&document, document.root, &job->key);
    document_count(&document, document.root, "tensors_count", job->tensors);
    document_count(&document, document.root, "first", first);
    add_tensors(&document, document.root, "tensors", daemon->core, job, first);
    return document_end(&document);
}
