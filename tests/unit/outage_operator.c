/* Requests of an operator, from the process of a rank or from one of their own. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "client/control/connection.h"
#include "outage_walk.h"

#define ASK_MS 5000 /* within which a daemon answers an operator */

struct operator_question {
    Adtopk__ControlRequest__KindCase kind;
    void *content;
};

/* Asks the daemon, and notes its sentence if it refuses. */
static enum adtopk_status operator_ask(struct walker *walker, struct operator_question question)
{
    Adtopk__ControlRequest request = ADTOPK__CONTROL_REQUEST__INIT;
    char *document = NULL;
    enum connection_end end;
    enum adtopk_status status;

    request.version = 1;
    request.kind_case = question.kind;
    request.status = question.content; /* a union of pointers */
    status = connection_ask(
        walker->node->control, ASK_MS, &request, NULL, &document, -1, &end, &walker->refusal);
    free(document);
    return status;
}

static enum adtopk_status operator_ask_all(
    struct walker *walker, const struct operator_question *questions, unsigned count)
{
    enum adtopk_status status = ADTOPK_OK;

    for (unsigned i = 0; status == ADTOPK_OK && i < count; i++) {
        status = operator_ask(walker, questions[i]);
    }
    return status;
}

/* The job's key, since the job of a walk before may be ending still. */
static void operator_name(const struct walker *walker, char job[32])
{
    (void)snprintf(job, 32, "walk/%u", walker->number);
}

enum adtopk_status walk_ask(struct walker *walker)
{
    Adtopk__ControlStatus status = ADTOPK__CONTROL_STATUS__INIT;
    Adtopk__ControlStats stats = ADTOPK__CONTROL_STATS__INIT;
    Adtopk__ControlTensors tensors = ADTOPK__CONTROL_TENSORS__INIT;
    Adtopk__ControlPolicyGet policy = ADTOPK__CONTROL_POLICY_GET__INIT;
    Adtopk__ControlVerify verify = ADTOPK__CONTROL_VERIFY__INIT;
    Adtopk__ControlPlan plan = ADTOPK__CONTROL_PLAN__INIT;
    Adtopk__ControlRanks ranks = ADTOPK__CONTROL_RANKS__INIT;
    Adtopk__ControlStores stores = ADTOPK__CONTROL_STORES__INIT;
    Adtopk__ControlTrace trace = ADTOPK__CONTROL_TRACE__INIT;
    char job[32];
    const struct operator_question questions[] = {
        {ADTOPK__CONTROL_REQUEST__KIND_STATUS, &status},
        {ADTOPK__CONTROL_REQUEST__KIND_STATS, &stats},
        {ADTOPK__CONTROL_REQUEST__KIND_TENSORS, &tensors},
        {ADTOPK__CONTROL_REQUEST__KIND_POLICY_GET, &policy},
        {ADTOPK__CONTROL_REQUEST__KIND_VERIFY, &verify},
        {ADTOPK__CONTROL_REQUEST__KIND_PLAN, &plan},
        {ADTOPK__CONTROL_REQUEST__KIND_RANKS, &ranks},
        {ADTOPK__CONTROL_REQUEST__KIND_STORES, &stores},
        {ADTOPK__CONTROL_REQUEST__KIND_TRACE, &trace},
    };

    operator_name(walker, job);
    tensors.job = policy.job = verify.job = plan.job = ranks.job = trace.job = job;
    verify.timeout_ms = trace.timeout_ms = ASK_MS / 2;
    return walker->kind == WALK_ASK && walker->rank == 0
               ? operator_ask_all(walker, questions, sizeof(questions) / sizeof(questions[0]))
               : ADTOPK_OK;
}

/* Waits until the ranks train, or one of them has given up. */
static bool operator_awaits(const struct walker *walker)
{
    const struct walkers *shared = walker->shared;
    const struct timespec pause = {.tv_nsec = 200000};

    while (atomic_load(&shared->trains) != walker->number) {
        for (unsigned rank = 0; rank < 2; rank++) {
            if (atomic_load(&shared->done[rank]) == walker->number) {
                return false;
            }
        }
        (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL); /* not one that fails */
    }
    return true;
}

enum adtopk_status walk_take_again(struct walker *walker)
{
    Adtopk__ControlDrain drain = ADTOPK__CONTROL_DRAIN__INIT;
    const struct operator_question question = {ADTOPK__CONTROL_REQUEST__KIND_DRAIN, &drain};

    drain.undo = 1;
    return operator_ask(walker, question);
}

enum adtopk_status walk_operate(struct walker *walker)
{
    Adtopk__ControlJobs jobs = ADTOPK__CONTROL_JOBS__INIT;
    Adtopk__ControlPeers peers = ADTOPK__CONTROL_PEERS__INIT;
    Adtopk__ControlPolicySet set = ADTOPK__CONTROL_POLICY_SET__INIT;
    Adtopk__ControlPolicyLog log = ADTOPK__CONTROL_POLICY_LOG__INIT;
    Adtopk__ControlCheckpoint checkpoint = ADTOPK__CONTROL_CHECKPOINT__INIT;
    Adtopk__ControlDrain drain = ADTOPK__CONTROL_DRAIN__INIT;
    char job[32], policy[] = "{\"density\":0.1}";
    const struct operator_question questions[] = {
        {ADTOPK__CONTROL_REQUEST__KIND_JOBS, &jobs},
        {ADTOPK__CONTROL_REQUEST__KIND_PEERS, &peers},
        {ADTOPK__CONTROL_REQUEST__KIND_POLICY_SET, &set},
        {ADTOPK__CONTROL_REQUEST__KIND_POLICY_LOG, &log},
        {ADTOPK__CONTROL_REQUEST__KIND_CHECKPOINT, &checkpoint},
        {ADTOPK__CONTROL_REQUEST__KIND_DRAIN, &drain},
    };
    enum adtopk_status status;

    if (walker->kind != WALK_OPERATE || !operator_awaits(walker)) {
        return ADTOPK_OK;
    }
    operator_name(walker, job);
    set.job = log.job = checkpoint.job = job;
    set.policy = policy;
    set.merge = 1;
    set.timeout_ms = checkpoint.timeout_ms = ASK_MS / 2;
    status = operator_ask_all(walker, questions, sizeof(questions) / sizeof(questions[0]));
    return status == ADTOPK_OK ? walk_take_again(walker) : status;
}
