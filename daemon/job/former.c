#include "daemon/job/former.h"

#include <stdio.h>

#include "daemon/job/job_index.h"
#include "proto/utf8.h"

static struct former *former_find(const struct core *core, uint64_t key, uint16_t node)
{
    uint64_t incarnation = links_incarnation(core->links, node);

    for (unsigned i = 0; i < FORMER_JOBS; i++) {
        const struct former *former = &core->formers.job[i];
        if (former->key == key && former->node == node && former->incarnation == incarnation &&
            former->number != 0) {
            return (struct former *)(uintptr_t)former;
        }
    }
    return NULL;
}

/* The member's entry, or a new one in place of the oldest. */
static struct former *entry_of(struct core *core, uint64_t key, const struct member *member)
{
    struct former *former = former_find(core, key, member->node);

    if (former == NULL) {
        former = &core->formers.job[core->formers.jobs++ % FORMER_JOBS];
        *former =
            (struct former){.key = key, .node = member->node, .incarnation = member->incarnation};
    }
    return former;
}

void former_note(const struct job *job, bool ended)
{
    for (unsigned i = 0; i < job->members; i++) {
        const struct member *member = job->member[i];
        struct former *former;
        if (member->node == job->core->config.node || member->incarnation == 0 ||
            member->incarnation != links_incarnation(job->core->links, member->node)) {
            continue;
        }
        former = entry_of(job->core, job->run.seed, member);
        former->number = member->job > former->number ? member->job : former->number;
        if (ended && member->job > former->failed) {
            former->failed = member->job;
        }
    }
}

void former_leave_out(const struct job *job, const struct membership *kept)
{
    for (unsigned i = 0; i < job->members; i++) {
        const struct member *member = job->member[i];
        if (membership_index(kept, member->node) < 0 && member->incarnation != 0) {
            struct former *former = entry_of(job->core, job->run.seed, member);
            former->number = member->job > former->number ? member->job : former->number;
            former->left_out = member->job;
        }
    }
}

bool former_is_left_out(
    const struct core *core, const struct job_key *key, uint16_t node, uint64_t number)
{
    const struct former *former = former_find(core, job_seed(key), node);

    return former != NULL && number != 0 && number <= former->left_out;
}

bool former_had(const struct job *job, uint16_t node, uint64_t number)
{
    const struct former *former = former_find(job->core, job->run.seed, node);

    return former != NULL && number <= former->number;
}

bool former_ended(const struct job *job, uint16_t node, uint64_t number)
{
    const struct former *former = former_find(job->core, job->run.seed, node);

    return former != NULL && number <= former->failed;
}

void former_note_why(const struct job *job, const char *why)
{
    struct formers *formers = &job->core->formers;
    const unsigned at = (unsigned)(formers->runs % OVER_RUNS);

    if (job->run.id != 0) {
        formers->run[at] = job->run.id;
        (void)snprintf(formers->why[at], sizeof(formers->why[at]), ": %.*s", UTF8_FIT(130, why));
        formers->runs++;
    }
}

enum adtopk_status former_check_return(
    const struct core *core, const struct event *event, struct error *err)
{
    const struct core_memory *memory = &core->config.memory;
    const char *why = former_why(core, event->open.run);

    if (event->open.run != 0 && memory->has_store == NULL) {
        return error_set(err, ADTOPK_ERR_STATE,
            "rank %u asks to return to a run of job '%s'; this daemon can only begin runs",
            event->open.rank, event->open.key.name);
    }
    if (event->open.run != 0 && why[0] != '\0' &&
        !memory->has_store(memory->context, &event->open.key)) {
        return error_set(err, ADTOPK_ERR_LOST,
            "rank %u asks to return to a run of job '%s' that has ended here%s", event->open.rank,
            event->open.key.name, why);
    }
    return ADTOPK_OK;
}

const char *former_why(const struct core *core, uint64_t run)
{
    const struct formers *formers = &core->formers;

    for (uint64_t i = formers->runs; i > 0 && formers->runs - i < OVER_RUNS; i--) {
        if (formers->run[(i - 1) % OVER_RUNS] == run) {
            return formers->why[(i - 1) % OVER_RUNS];
        }
    }
    return "";
}
