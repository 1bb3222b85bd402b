/*
 * The requests of clients. One table says who may make which; a kind that is not in it is refused.
 * A request that changes something on all nodes is an event with a ticket; request_finish() reports
 * its outcome.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/admin/client.h"
#include "daemon/admin/jobname.h"
#include "daemon/admin/report.h"
#include "daemon/admin/report_trace.h"
#include "proto/codec.h"
#include "proto/control.pb-c.h"
#include "proto/utf8.h"

#define POLICY_LOGGED 120 /* bytes of a policy in a line of the log */

typedef Adtopk__ControlRequest Request;

static bool request_is_admin(const struct client *client)
{
    return rights_allow(
        &client->control->rights, RIGHT_ADMIN, client->fd, &client->who, UINT32_MAX);
}

static struct seen request_seen_by(const struct client *client)
{
    const struct control *control = client->control;

    return (struct seen){.core = control->config.core,
        .history = control->config.history,
        .all = !control->limits.own_jobs || request_is_admin(client),
        .uid = client->who.uid};
}

static struct report_daemon request_describe(const struct client *client)
{
    const struct control *control = client->control;

    return (struct report_daemon){
        .core = control->config.core,
        .jobs = request_seen_by(client),
        .node = control->config.node,
        .incarnation = control->config.incarnation,
        .uptime_s = (uv_now(control->loop) - control->started_ms) / 1000,
        .clock_s = (double)uv_hrtime() * 1e-9,
        .trainers = control->config.trainers(control->config.context),
        .network = control->config.network != NULL
                       ? control->config.network(control->config.context)
                       : (struct report_network){.protection = NULL},
        .load = control->config.load(control->config.context),
        .memory = control->config.memory,
        .devices = {.device = control->config.gpu,
            .worker = control->config.gpu_worker,
            .shard = control->config.gpu_shard,
            .context = control->config.context},
        .store = control->config.store,
        .peer = control->config.peer,
        .context = control->config.context,
        .draining = control->draining,
    };
}

/* ------------------------------------------------------------------ looking */

static void request_answer_status(
    struct client *client, const Request *request, const struct job_info *job)
{
    struct report_daemon daemon = request_describe(client);

    (void)request;
    (void)job;
    client_reply(client, ADTOPK_OK, report_status(&daemon));
}

/* Replies with a document about all jobs that a name fits, ended ones too; found: there is one. */
static void request_reply_about(struct client *client, const char *name, bool found, char *document)
{
    char why[160];

    if (found) {
        client_reply(client, ADTOPK_OK, document);
        return;
    }
    free(document);
    (void)snprintf(
        why, sizeof(why), "no job \"%.*s\" has or had ranks on this node", UTF8_FIT(64, name));
    control_refuse(client, ADTOPK_ERR_ARGUMENT, why);
}

static void request_answer_jobs(
    struct client *client, const Request *request, const struct job_info *job)
{
    struct report_daemon daemon = request_describe(client);
    bool found = false;
    char *document = report_jobs(&daemon, request->jobs->job, &found);

    (void)job;
    request_reply_about(client, request->jobs->job, found, document);
}

static void request_answer_peers(
    struct client *client, const Request *request, const struct job_info *job)
{
    struct report_daemon daemon = request_describe(client);

    (void)request;
    (void)job;
    client_reply(client, ADTOPK_OK, report_peers(&daemon));
}

static void request_answer_stores(
    struct client *client, const Request *request, const struct job_info *job)
{
    struct report_daemon daemon = request_describe(client);

    (void)request;
    (void)job;
    client_reply(client, ADTOPK_OK, report_stores(&daemon));
}

static void request_answer_stats(
    struct client *client, const Request *request, const struct job_info *job)
{
    struct report_daemon daemon = request_describe(client);
    bool found = false;
    char *document = report_stats(
        &daemon, request->stats->job, request->stats->no_tensors ? 0 : REPORT_MAX_TENSORS, &found);

    (void)job;
    request_reply_about(client, request->stats->job, found, document);
}

static void request_answer_tensors(
    struct client *client, const Request *request, const struct job_info *job)
{
    struct report_daemon daemon = request_describe(client);

    client_reply(client, ADTOPK_OK, report_tensors(&daemon, job, request->tensors->first));
}

static void request_answer_plan(
    struct client *client, const Request *request, const struct job_info *job)
{
    struct report_daemon daemon = request_describe(client);

    client_reply(client, ADTOPK_OK, report_plan(&daemon, job, request->plan->first));
}

static void request_answer_policy_get(
    struct client *client, const Request *request, const struct job_info *job)
{
    const struct control_config *config = &client->control->config;
    struct report_daemon daemon = request_describe(client);

    (void)request;
    client_reply(client, ADTOPK_OK,
        job != NULL ? report_policy(&daemon, job)
                    : report_default_policy(
                          config->policy != NULL ? config->policy(config->context) : NULL));
}

static void request_answer_policy_log(
    struct client *client, const Request *request, const struct job_info *job)
{
    struct report_daemon daemon = request_describe(client);

    (void)request;
    client_reply(client, ADTOPK_OK, report_policy_log(&daemon, job));
}

/* ------------------------------------------------------------------ changing */

static void request_answer_drain(
    struct client *client, const Request *request, const struct job_info *job)
{
    struct control *control = client->control;
    struct report_daemon daemon;
    char asker[CLIENT_NAME_SIZE];

    (void)job;
    control->draining = !request->drain->undo;
    client_log(client, CONTROL_CHANGE, "%s: asked by %s",
        control->draining ? "draining, no new ranks" : "new ranks are taken again",
        client_name(client, asker));
    daemon = request_describe(client);
    client_reply(client, ADTOPK_OK, report_drain(&daemon));
}

/* Whether there is room for one more request. Other users' requests never keep an administrator's
 * out. If not, `why` names the limit. */
static bool request_has_room(const struct client *client, char why[200])
{
    const struct control *control = client->control;
    const bool admin = request_is_admin(client);
    const unsigned all = admin ? CONTROL_PENDING : CONTROL_PENDING - CONTROL_PENDING_FREE;
    unsigned own = 0;

    for (unsigned i = 0; i < control->pending; i++) {
        own += control->request[i].uid == client->who.uid;
    }
    if (control->pending >= all) {
        (void)snprintf(why, 200, "%u requests are under way on this node already, of %u",
            control->pending, all);
        return false;
    }
    if (!admin && own >= control->limits.requests) {
        (void)snprintf(why, 200,
            "user %u has %u requests under way on this node, and one user may have %u "
            "(user_requests)",
            client->who.uid, own, control->limits.requests);
        return false;
    }
    return true;
}

/* A ticket for the client; 0 if it was refused one. */
static uint64_t request_take_ticket(struct client *client, uint64_t job, uint32_t limit_ms)
{
    struct control *control = client->control;
    char why[200];

    if (limit_ms == 0 || limit_ms > CONTROL_WAIT_MS) {
        (void)snprintf(why, sizeof(why), "a time limit of %" PRIu32 " ms: 1 to %d are possible",
            limit_ms, CONTROL_WAIT_MS);
        control_refuse(client, ADTOPK_ERR_ARGUMENT, why);
        return 0;
    }
    if (!request_has_room(client, why)) {
        control_refuse(client, ADTOPK_ERR_STATE, why);
        return 0;
    }
    client->ticket = ++control->tickets;
    client->job = job;
    client->limit_ms = limit_ms;
    client->deadline_ms = uv_now(control->loop) + limit_ms;
    client->noted[0] = '\0';
    return client->ticket;
}

/* Into the core with it. False: it was refused, which is the answer. */
static bool request_raise_event(struct client *client, struct event *event)
{
    struct control *control = client->control;
    struct error err = {.code = ADTOPK_OK};
    enum adtopk_status status = control->config.event(control->config.context, event, &err);

    if (status != ADTOPK_OK) {
        control_refuse(client, status, err.text);
        return false;
    }
    control->request[control->pending++] = (struct control_request){
        .ticket = client->ticket, .job = client->job, .uid = client->who.uid};
    return true;
}

static void request_answer_policy_set(
    struct client *client, const Request *request, const struct job_info *job)
{
    const Adtopk__ControlPolicySet *set = request->policy_set;
    struct event event = {.type = EVENT_POLICY};
    char name[JOBNAME_SIZE], asker[CLIENT_NAME_SIZE];

    event.policy.ticket = request_take_ticket(client, job->id, set->timeout_ms);
    event.policy.job = job->id;
    event.policy.text = set->policy;
    event.policy.merge = set->merge != 0;
    event.policy.if_version = set->check_version != 0 ? set->if_version : UINT32_MAX;
    event.policy.uid = client->who.uid;
    event.policy.pid = (uint32_t)client->who.pid;
    if (event.policy.ticket != 0 && request_raise_event(client, &event)) {
        jobname_print(&job->key, name);
        client_log(client, CONTROL_CHANGE, "%s %s the policy of job %s: %.*s",
            client_name(client, asker), set->merge ? "amends" : "replaces", name, POLICY_LOGGED,
            set->policy);
        client_await(client);
    }
}

/* Asks the core about the job; the client waits for the outcome. False: it was refused. */
static bool request_await(
    struct client *client, enum event_type type, const struct job_info *job, uint32_t limit_ms)
{
    struct event event = {.type = type};

    event.asked.ticket = request_take_ticket(client, job->id, limit_ms);
    event.asked.job = job->id;
    if (event.asked.ticket == 0 || !request_raise_event(client, &event)) {
        return false;
    }
    client_await(client);
    return true;
}

/* Of all nodes, or at once of this one alone. No job: of all jobs. */
static void request_answer_ranks(
    struct client *client, const Request *request, const struct job_info *job)
{
    struct report_daemon daemon = request_describe(client);

    if (job == NULL) {
        client_reply(client, ADTOPK_OK, report_all_ranks(&daemon));
    } else if (request->ranks->timeout_ms > 0 && job->nodes > 1) {
        (void)request_await(client, EVENT_RANKS, job, request->ranks->timeout_ms);
    } else {
        client_reply(client, ADTOPK_OK, report_ranks(&daemon, job, false));
    }
}

static void request_answer_verify(
    struct client *client, const Request *request, const struct job_info *job)
{
    (void)request_await(client, EVENT_VERIFY, job, request->verify->timeout_ms);
}

static void request_answer_trace(
    struct client *client, const Request *request, const struct job_info *job)
{
    (void)request_await(client, EVENT_RECORDS, job, request->trace->timeout_ms);
}

static void request_answer_checkpoint(
    struct client *client, const Request *request, const struct job_info *job)
{
    char name[JOBNAME_SIZE], asker[CLIENT_NAME_SIZE];

    if (request_await(client, EVENT_CHECKPOINT, job, request->checkpoint->timeout_ms)) {
        jobname_print(&job->key, name);
        client_log(client, CONTROL_CHANGE, "%s asks job %s for a checkpoint",
            client_name(client, asker), name);
    }
}

void request_waits(const struct client *client, char text[ERROR_TEXT_SIZE])
{
    struct job_info job;

    text[0] = '\0';
    if (core_find_job(client->control->config.core, client->job, &job) &&
        job.waiting_for[0] != '\0') {
        (void)snprintf(
            text, ERROR_TEXT_SIZE, "the job waits for %.*s", UTF8_FIT(200, job.waiting_for));
    }
}

void request_finish(struct client *client, const struct action *action)
{
    struct control *control = client->control;
    struct report_daemon daemon = request_describe(client);
    struct job_info job;
    char name[JOBNAME_SIZE], asker[CLIENT_NAME_SIZE];

    if (action->status != ADTOPK_OK) {
        control_refuse(client, action->status, action->error->text);
    } else if (!core_find_job(control->config.core, client->job, &job)) {
        control_refuse(client, ADTOPK_ERR_STATE, "the job ended meanwhile");
    } else if (action->type == ACTION_POLICY) {
        jobname_print(&job.key, name);
        client_log(client, CONTROL_CHANGE,
            "policy version %" PRIu64 " of job %s holds from step %" PRIu64 ", set by %s",
            action->operation, name, action->number, client_name(client, asker));
        client_reply(client, ADTOPK_OK,
            report_policy_change(&daemon, &job, (uint32_t)action->operation, action->number));
    } else if (action->type == ACTION_CHECKPOINT) {
        client_reply(client, ADTOPK_OK, report_checkpoint(&job, action->number));
    } else if (action->type == ACTION_RECORDS) {
        client_reply(client, ADTOPK_OK, report_trace(daemon.node, &job, "", action->recorded));
    } else if (action->type == ACTION_RANKS) {
        client_reply(client, ADTOPK_OK, report_ranks(&daemon, &job, true));
    } else {
        client_reply(client, ADTOPK_OK, report_verify(&daemon, &job, action->number));
    }
}

/* ------------------------------------------------------------------ the table */

static const char *request_tensors_job(const Request *request)
{
    return request->tensors->job;
}

/* All nodes are asked about one job only. */
static const char *request_ranks_job(const Request *request)
{
    const Adtopk__ControlRanks *ranks = request->ranks;

    return ranks->job[0] != '\0' || ranks->timeout_ms > 0 ? ranks->job : NULL;
}

static const char *request_plan_job(const Request *request)
{
    return request->plan->job;
}

static const char *request_policy_get_job(const Request *request)
{
    return request->policy_get->job[0] != '\0' ? request->policy_get->job : NULL;
}

static const char *request_policy_set_job(const Request *request)
{
    return request->policy_set->job;
}

static const char *request_policy_log_job(const Request *request)
{
    return request->policy_log->job;
}

static const char *request_verify_job(const Request *request)
{
    return request->verify->job;
}

static const char *request_trace_job(const Request *request)
{
    return request->trace->job;
}

static const char *request_checkpoint_job(const Request *request)
{
    return request->checkpoint->job;
}

static const struct kind {
    Adtopk__ControlRequest__KindCase kind;
    enum right right;
    const char *what;                    /* "may not ... job NAME" */
    const char *(*job)(const Request *); /* the one job it is about; NULL, or of NULL: none */
    bool ended;                          /* which may have ended */
    void (*answer)(struct client *client, const Request *request, const struct job_info *job);
} kinds[] = {
    {ADTOPK__CONTROL_REQUEST__KIND_STATUS, RIGHT_READ, "see the status", NULL, false,
        request_answer_status},
    {ADTOPK__CONTROL_REQUEST__KIND_STATS, RIGHT_READ, "see statistics", NULL, false,
        request_answer_stats},
    {ADTOPK__CONTROL_REQUEST__KIND_JOBS, RIGHT_READ, "see jobs", NULL, false, request_answer_jobs},
    {ADTOPK__CONTROL_REQUEST__KIND_PEERS, RIGHT_READ, "see peers", NULL, false,
        request_answer_peers},
    {ADTOPK__CONTROL_REQUEST__KIND_STORES, RIGHT_READ, "see stores", NULL, false,
        request_answer_stores},
    {ADTOPK__CONTROL_REQUEST__KIND_TENSORS, RIGHT_READ, "see the tensors of", request_tensors_job,
        false, request_answer_tensors},
    {ADTOPK__CONTROL_REQUEST__KIND_RANKS, RIGHT_READ, "see the ranks of", request_ranks_job, false,
        request_answer_ranks},
    {ADTOPK__CONTROL_REQUEST__KIND_PLAN, RIGHT_READ, "see the plan of", request_plan_job, false,
        request_answer_plan},
    {ADTOPK__CONTROL_REQUEST__KIND_POLICY_GET, RIGHT_READ, "see the policy of",
        request_policy_get_job, false, request_answer_policy_get},
    {ADTOPK__CONTROL_REQUEST__KIND_POLICY_LOG, RIGHT_READ, "see who changed the policy of",
        request_policy_log_job, true, request_answer_policy_log},
    {ADTOPK__CONTROL_REQUEST__KIND_POLICY_SET, RIGHT_OWNER, "change the policy of",
        request_policy_set_job, false, request_answer_policy_set},
    {ADTOPK__CONTROL_REQUEST__KIND_VERIFY, RIGHT_OWNER, "verify", request_verify_job, false,
        request_answer_verify},
    {ADTOPK__CONTROL_REQUEST__KIND_TRACE, RIGHT_OWNER, "trace", request_trace_job, false,
        request_answer_trace},
    {ADTOPK__CONTROL_REQUEST__KIND_CHECKPOINT, RIGHT_OWNER, "ask for a checkpoint of",
        request_checkpoint_job, false, request_answer_checkpoint},
    {ADTOPK__CONTROL_REQUEST__KIND_DRAIN, RIGHT_ADMIN, "drain this node", NULL, false,
        request_answer_drain},
};

static const struct kind *request_find_kind(const Request *request)
{
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (kinds[i].kind == request->kind_case) {
            return &kinds[i];
        }
    }
    return NULL;
}

/* A kind that this daemon does not know is a field that its messages do not know. */
static void request_refuse_unknown(struct client *client, const Request *request)
{
    char why[80] = "the request has no kind";

    if (request->base.n_unknown_fields > 0) {
        (void)snprintf(why, sizeof(why), "this daemon does not know requests of kind %" PRIu32,
            request->base.unknown_fields[0].tag);
    }
    control_refuse(client, ADTOPK_ERR_PROTOCOL, why);
}

static void request_refuse_right(
    struct client *client, const struct kind *kind, const struct job_info *job)
{
    const struct control *control = client->control;
    char why[ERROR_TEXT_SIZE * 2];
    char name[JOBNAME_SIZE] = "";

    if (job != NULL) {
        jobname_print(&job->key, name);
    }
    (void)snprintf(why, sizeof(why),
        "uid %u may not %s%s%s: only %sroot, the daemon's user and members of the group %s may",
        client->who.uid, kind->what, job != NULL ? " job " : "", name,
        kind->right == RIGHT_OWNER ? "its owner, " : "", control->config.group);
    control_refuse(client, ADTOPK_ERR_DENIED, why);
}

static void request_answer(struct client *client, const Request *request)
{
    struct control *control = client->control;
    const struct kind *kind = request_find_kind(request);
    const char *name = kind != NULL && kind->job != NULL ? kind->job(request) : NULL;
    const struct seen seen = request_seen_by(client);
    struct job_info job = {.id = 0};
    struct error err = {.code = ADTOPK_OK};

    if (request->version != 1) {
        control_refuse(client, ADTOPK_ERR_PROTOCOL, "this daemon speaks version 1 of the messages");
    } else if (kind == NULL) {
        request_refuse_unknown(client, request);
    } else if (name != NULL && jobname_find(&seen, name, kind->ended, &job, &err) != ADTOPK_OK) {
        control_refuse(client, err.code, err.text);
    } else if (!rights_allow(
                   &control->rights, kind->right, client->fd, &client->who, job.key.owner)) {
        request_refuse_right(client, kind, name != NULL ? &job : NULL);
    } else {
        kind->answer(client, request, name != NULL ? &job : NULL);
    }
}

void request_take(struct client *client, const uint8_t *bytes, size_t size)
{
    struct error err = {.code = ADTOPK_OK};
    ProtobufCMessage *message =
        codec_unpack(&adtopk__control_request__descriptor, bytes, size, CODEC_LOCAL_MAX, &err);

    if (message == NULL) {
        control_refuse(client, err.code, err.text);
        return;
    }
    request_answer(client, (const Request *)message);
    codec_free(message);
}
