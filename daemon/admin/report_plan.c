/* The plan of a job: the choice for each tensor, the measurements, and the alternatives. */
#include <stdio.h>
#include <stdlib.h>

#include "daemon/admin/report.h"

#define CANDIDATES_SHOWN 16u

/* A plan has no character that JSON would escape, and may be longer than document_text() takes. */
static void report_plan_add_plan(struct document *document, cJSON *parent, const char *plan)
{
    size_t size = CHOICES_TEXT_SIZE + 2;
    char *quoted = malloc(size);

    if (quoted == NULL) {
        document->failed = true;
        return;
    }
    (void)snprintf(quoted, size, "\"%s\"", plan);
    document_raw(document, parent, "plan", quoted);
    free(quoted);
}

static void report_plan_add_tensor(
    struct document *document, cJSON *tensors, const struct tensor_info *info)
{
    cJSON *tensor = document_append(document, tensors);
    char letters[CHOICES + 1];
    unsigned count = 0;

    for (enum choice c = 0; c < CHOICES; c++) {
        if ((info->allowed >> c & 1) != 0) {
            letters[count++] = choice_letter(c);
        }
    }
    letters[count] = '\0';
    document_text(document, tensor, "name", info->spec.name);
    document_count(document, tensor, "elements", info->numel);
    document_text(document, tensor, "choice", choice_name(info->choice));
    document_text(document, tensor, "allowed", letters);
    document_count(document, tensor, "bucket", info->bucket);
    document_count(document, tensor, "count", info->count);
    document_optional(document, tensor, "arrival_us", info->arrival_us, info->arrival_us >= 0);
}

static void report_plan_add_tensors(
    struct document *document, const struct core *core, const struct job_info *job, uint32_t first)
{
    cJSON *tensors = document_array(document, document->root, "tensors");
    struct tensor_info tensor;
    uint32_t next = first < job->tensors ? first : job->tensors;

    while (next - first < REPORT_MAX_TENSORS && next < job->tensors &&
           core_tensor_info(core, job->id, next, &tensor)) {
        report_plan_add_tensor(document, tensors, &tensor);
        next++;
    }
    document_count(document, document->root, "tensors_omitted", job->tensors - next);
}

static void report_plan_add_candidate(
    struct document *document, cJSON *candidates, const struct planner_candidate *candidate)
{
    cJSON *object = document_append(document, candidates);
    char *text = malloc(CHOICES_TEXT_SIZE);

    if (text == NULL) {
        document->failed = true;
        return;
    }
    (void)choices_print(candidate->plan, text);
    report_plan_add_plan(document, object, text);
    free(text);
    document_text(document, object, "name", candidate->name);
    document_count(document, object, "bucket_bytes", candidate->plan->bucket_bytes);
    document_bool(document, object, "in_force", candidate->in_force);
    document_number(document, object, "predicted_us", candidate->predicted_us);
    document_optional(
        document, object, "measured_us", candidate->measured_us, candidate->measured_us > 0);
    document_number(document, object, "exchanged_us", candidate->finish_us);
    document_number(document, object, "select_us", candidate->select_us);
    document_number(document, object, "link_us", candidate->link_us);
    document_number(document, object, "reduce_us", candidate->reduce_us);
    document_count(document, object, "bytes", candidate->bytes);
}

static void report_plan_add_candidates(
    struct document *document, const struct core *core, const struct job_info *job)
{
    cJSON *candidates = document_array(document, document->root, "candidates");
    struct planner_candidate candidate;

    for (uint32_t i = 0; i < CANDIDATES_SHOWN && core_plan_candidate(core, job->id, i, &candidate);
         i++) {
        report_plan_add_candidate(document, candidates, &candidate);
    }
}

static void report_plan_add_measured(struct document *document, const struct plan_info *info)
{
    cJSON *measured = document_object(document, document->root, "measured");

    document_count(document, measured, "steps", info->steps);
    document_optional(document, measured, "step_us", info->step_us, info->step_us > 0);
    document_optional(document, measured, "gamma", info->gamma, info->gamma > 0);
    document_optional(document, measured, "link_bytes_s",
        info->link_us_byte > 0 ? 1e6 / info->link_us_byte : 0, info->link_us_byte > 0);
    document_optional(
        document, measured, "round_trip_us", info->round_trip_us, info->round_trip_us > 0);
}

char *report_plan(const struct report_daemon *daemon, const struct job_info *job, uint32_t first)
{
    struct document document;
    struct plan_info info = {.text = "", .why = ""};

    (void)core_plan_info(daemon->core, job->id, &info); /* nothing is chosen before it runs */
    document_begin(&document);
    report_key(&document, document.root, &job->key);
    document_count(&document, document.root, "node", daemon->node);
    document_count(&document, document.root, "coordinator", info.coordinator);
    document_bool(&document, document.root, "automatic", info.automatic);
    document_bool(&document, document.root, "replan", info.replan);
    report_plan_add_plan(&document, document.root, info.text);
    document_count(&document, document.root, "bucket_bytes", info.bucket_bytes);
    document_count(&document, document.root, "policy_version", job->policy.version);
    document_count(&document, document.root, "policy_step", job->policy.step);
    document_count(&document, document.root, "decisions", info.decisions);
    document_count(&document, document.root, "proposals", info.proposals);
    document_text(&document, document.root, "why", info.why);
    document_optional(
        &document, document.root, "predicted_us", info.predicted_us, info.predicted_us > 0);
    report_plan_add_measured(&document, &info);
    report_plan_add_candidates(&document, daemon->core, job);
    document_count(&document, document.root, "tensors_count", job->tensors);
    document_count(&document, document.root, "first", first);
    report_plan_add_tensors(&document, daemon->core, job, first);
    return document_end(&document);
}
