#include "client/adtopkctl/question.h"

#include <assert.h>

#include "client/adtopkctl/show.h"
#include "client/adtopkctl/text.h"

#define QUESTION_SLACK_MS 3000       /* time for a daemon to report that no outcome came in time */
#define QUESTION_RANKS_WAIT_MS 10000 /* longer than a daemon waits for other nodes */

static const struct question question_blank = {.request = ADTOPK__CONTROL_REQUEST__INIT,
    .body = {.status = ADTOPK__CONTROL_STATUS__INIT,
        .stats = ADTOPK__CONTROL_STATS__INIT,
        .jobs = ADTOPK__CONTROL_JOBS__INIT,
        .peers = ADTOPK__CONTROL_PEERS__INIT,
        .stores = ADTOPK__CONTROL_STORES__INIT,
        .tensors = ADTOPK__CONTROL_TENSORS__INIT,
        .ranks = ADTOPK__CONTROL_RANKS__INIT,
        .plan = ADTOPK__CONTROL_PLAN__INIT,
        .policy_get = ADTOPK__CONTROL_POLICY_GET__INIT,
        .policy_set = ADTOPK__CONTROL_POLICY_SET__INIT,
        .policy_log = ADTOPK__CONTROL_POLICY_LOG__INIT,
        .verify = ADTOPK__CONTROL_VERIFY__INIT,
        .checkpoint = ADTOPK__CONTROL_CHECKPOINT__INIT,
        .trace = ADTOPK__CONTROL_TRACE__INIT,
        .drain = ADTOPK__CONTROL_DRAIN__INIT}};

/* The request is the `member` of the body, `shower` shows the answer, and `judger` judges it. */
#define QUESTION_ASK(question, KIND, member, shower, judger)                                       \
    ((question)->request.kind_case = ADTOPK__CONTROL_REQUEST__KIND_##KIND,                         \
        (question)->request.member = &(question)->body.member, (question)->show = (shower),        \
        (question)->judge = (judger))

static enum exit_code question_judge_health(const cJSON *document)
{
    return show_is_healthy(document) ? EXIT_OK : EXIT_DEGRADED;
}

/* Only a tensor that is out of balance is a failure. */
static enum exit_code question_judge_verify(const cJSON *document)
{
    if (text_number(document, "unbalanced") > 0) {
        return EXIT_FAILED;
    }
    return text_true(document, "conserved") ? EXIT_OK : EXIT_UNKNOWN;
}

/* About the daemon, or all of its jobs. */
static bool question_of_daemon(
    struct question *question, enum command_id command, const struct options *options)
{
    switch (command) {
    case COMMAND_STATUS:
        QUESTION_ASK(question, STATUS, status, show_status, question_judge_health);
        return true;
    case COMMAND_PEERS:
        QUESTION_ASK(question, PEERS, peers, show_peers, question_judge_health);
        return true;
    case COMMAND_STORES: QUESTION_ASK(question, STORES, stores, show_stores, NULL); return true;
    case COMMAND_DRAIN:
        QUESTION_ASK(question, DRAIN, drain, show_drain, NULL);
        question->body.drain.undo = options->value[OPTION_UNDO] != NULL;
        return true;
    default: return false;
    }
}

/* About a job, which the daemon answers at once. job: NULL where the command names none. */
static bool question_of_job(
    struct question *question, enum command_id command, const struct options *options, char *job)
{
    struct question_body *body = &question->body;

    switch (command) {
    case COMMAND_JOBS:
        QUESTION_ASK(question, JOBS, jobs, show_jobs, question_judge_health);
        body->jobs.job = job != NULL ? job : body->jobs.job;
        return true;
    case COMMAND_STATS:
        QUESTION_ASK(question, STATS, stats, show_stats, NULL);
        body->stats.job = job != NULL ? job : body->stats.job;
        return true;
    case COMMAND_TENSORS:
        QUESTION_ASK(question, TENSORS, tensors, show_tensors, NULL);
        body->tensors.job = job;
        body->tensors.first = options->first;
        return true;
    case COMMAND_RANKS:
        QUESTION_ASK(question, RANKS, ranks, show_ranks, NULL);
        body->ranks.job = job;
        body->ranks.timeout_ms = QUESTION_RANKS_WAIT_MS;
        return true;
    case COMMAND_PLAN:
        QUESTION_ASK(question, PLAN, plan, show_plan, NULL);
        body->plan.job = job;
        body->plan.first = options->first;
        return true;
    case COMMAND_POLICY_GET:
        QUESTION_ASK(question, POLICY_GET, policy_get, show_policy, NULL);
        body->policy_get.job = job != NULL ? job : body->policy_get.job;
        return true;
    case COMMAND_POLICY_LOG:
        QUESTION_ASK(question, POLICY_LOG, policy_log, show_policy_log, NULL);
        body->policy_log.job = job;
        return true;
    default: return false;
    }
}

/* About a job, for an outcome that takes a while. */
static bool question_of_outcome(
    struct question *question, enum command_id command, const struct options *options, char *job)
{
    struct question_body *body = &question->body;
    const uint32_t timeout_ms = (uint32_t)options->timeout_ms;

    question->timeout_ms += QUESTION_SLACK_MS;
    switch (command) {
    case COMMAND_POLICY_SET:
        QUESTION_ASK(question, POLICY_SET, policy_set, show_policy_change, NULL);
        body->policy_set.job = job;
        body->policy_set.check_version = options->value[OPTION_IF_VERSION] != NULL;
        body->policy_set.if_version = options->if_version;
        body->policy_set.timeout_ms = timeout_ms;
        return true;
    case COMMAND_VERIFY:
        QUESTION_ASK(question, VERIFY, verify, show_verify, question_judge_verify);
        body->verify.job = job;
        body->verify.timeout_ms = timeout_ms;
        return true;
    case COMMAND_CHECKPOINT_ASK:
        QUESTION_ASK(question, CHECKPOINT, checkpoint, show_checkpoint_ask, NULL);
        body->checkpoint.job = job;
        body->checkpoint.timeout_ms = timeout_ms;
        return true;
    case COMMAND_TRACE:
        QUESTION_ASK(question, TRACE, trace, NULL, NULL);
        body->trace.job = job;
        body->trace.timeout_ms = timeout_ms;
        return true;
    default: return false;
    }
}

void question_begin(struct question *question, enum command_id command, const char *job,
    const struct options *options)
{
    char *about = (char *)(uintptr_t)job; /* messages have no const; nobody writes through it */
    bool known;

    *question = question_blank;
    question->request.version = 1;
    question->timeout_ms = options->timeout_ms;
    known = question_of_daemon(question, command, options) ||
            question_of_job(question, command, options, about) ||
            question_of_outcome(question, command, options, about);
    assert(known);
    (void)known;
}
