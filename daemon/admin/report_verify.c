/* The result of a verification. */
#include <math.h>

#include "daemon/admin/report.h"
#include "daemon/job/verdict.h"

#define SHOWN_MAX 64 /* tensors out of balance; the rest is only counted */

/* A sum that is infinite or no number becomes null. */
static void report_verify_add_tensor(struct document *document, cJSON *tensors,
    const struct tensor_info *info, const struct verdict *verdict)
{
    cJSON *tensor = document_append(document, tensors);

    document_text(document, tensor, "name", info->spec.name);
    document_count(document, tensor, "elements", info->numel);
    document_pair(document, tensor, "input", info->verified.input);
    document_pair(document, tensor, "applied", info->verified.applied);
    document_pair(document, tensor, "lost", info->verified.lost);
    document_pair(document, tensor, "residual", info->verified.residual);
    document_number(document, tensor, "residual_magnitude", info->verified.magnitude);
    document_pair(document, tensor, "off", verdict->off);
    document_number(document, tensor, "tolerance", verdict->tolerance);
}

/* How much of its tolerance the worse of the two sums takes: at most 1 in balance. */
static double report_verify_share(const struct verdict *verdict)
{
    double off = fmax(fabs(verdict->off[0]), fabs(verdict->off[1]));

    return off > 0 ? off / verdict->tolerance : 0;
}

char *report_verify(const struct report_daemon *daemon, const struct job_info *job, uint64_t step)
{
    struct document document;
    struct tensor_info info;
    uint64_t checked = 0;
    uint64_t unbalanced = 0;
    double worst = 0;
    cJSON *tensors;

    document_begin(&document);
    report_key(&document, document.root, &job->key);
    document_count(&document, document.root, "node", daemon->node);
    document_count(&document, document.root, "step", step);
    tensors = document_array(&document, document.root, "out_of_balance");
    for (uint32_t i = 0; i < job->tensors && core_tensor_info(daemon->core, job->id, i, &info);
         i++) {
        struct verdict verdict = verdict_of(&info.verified, info.numel);

        if (info.verified.step != step) {
            continue;
        }
        checked++;
        worst = fmax(worst, report_verify_share(&verdict));
        unbalanced += verdict.balanced ? 0 : 1;
        if (!verdict.balanced && unbalanced <= SHOWN_MAX) {
            report_verify_add_tensor(&document, tensors, &info, &verdict);
        }
    }
    document_count(&document, document.root, "tensors", job->tensors);
    document_count(&document, document.root, "checked", checked);
    document_count(&document, document.root, "unbalanced", unbalanced);
    document_number(&document, document.root, "worst_share_of_tolerance", worst);
    document_bool(
        &document, document.root, "conserved", unbalanced == 0 && checked == job->tensors);
    return document_end(&document);
}
