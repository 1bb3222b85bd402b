#include "client/exporter/source.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/exporter/ask.h"

#define JOB_NAME_SIZE 512 /* OWNER:NAME/RUN as control.proto has it */

struct source {
    uv_loop_t *loop;
    const char *path;
    bool tensors;
    source_told *told;
    void *owner;
    struct snapshot last;
    struct snapshot next; /* what is being made */
    bool asking;
    bool failed;         /* the next snapshot has no documents */
    const cJSON *to_ask; /* the next of next.stats's jobs whose ranks are to be asked for */
    char job[JOB_NAME_SIZE];
};

static void snapshot_clear(struct snapshot *snapshot)
{
    cJSON_Delete(snapshot->status);
    cJSON_Delete(snapshot->stats);
    cJSON_Delete(snapshot->ranks);
    *snapshot = (struct snapshot){.status = NULL};
}

/* The snapshot is complete, or there is none. */
static void source_finish(struct source *source)
{
    if (source->failed) {
        struct error why = source->next.why;

        snapshot_clear(&source->next);
        source->next.why = why;
    }
    snapshot_clear(&source->last);
    source->last = source->next;
    source->last.taken_ms = uv_now(source->loop);
    source->next = (struct snapshot){.status = NULL};
    source->asking = false;
    source->told(source->owner);
}

static void source_fail(struct source *source, const struct error *why)
{
    source->failed = true;
    source->next.why = *why;
    source_finish(source);
}

static void source_next(struct source *source);

static void source_answered(
    void *owner, enum adtopk_status status, bool refused, char *document, const struct error *err)
{
    struct source *source = owner;
    cJSON *parsed = document != NULL ? cJSON_Parse(document) : NULL;
    struct error why;

    free(document);
    if (status != ADTOPK_OK && !(refused && source->next.ranks != NULL)) {
        source_fail(source, err);
        return;
    }
    if (status == ADTOPK_OK && parsed == NULL) {
        (void)error_set(&why, ADTOPK_ERR_PROTOCOL, "the daemon's answer is not JSON");
        source_fail(source, &why);
        return;
    }
    if (source->next.status == NULL) {
        source->next.status = parsed;
    } else if (source->next.stats == NULL) {
        source->next.stats = parsed;
    } else if (parsed != NULL) { /* a job that ended meanwhile has no ranks */
        (void)cJSON_AddItemToArray(source->next.ranks, parsed);
    }
    source_next(source);
}

/* Asks for the ranks of the next job that trains. False: there is none left. */
static bool source_choose_job(struct source *source)
{
    for (; source->to_ask != NULL; source->to_ask = source->to_ask->next) {
        const cJSON *job = source->to_ask;
        const cJSON *owner = cJSON_GetObjectItemCaseSensitive(job, "owner");
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(job, "name"));
        const char *run = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(job, "run_id"));
        const char *state = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(job, "state"));

        if (cJSON_IsNumber(owner) && name != NULL && run != NULL && state != NULL &&
            strcmp(state, "active") == 0) {
            (void)snprintf(
                source->job, sizeof(source->job), "%.0f:%s/%s", owner->valuedouble, name, run);
            source->to_ask = job->next;
            return true;
        }
    }
    return false;
}

/* Chooses the next request. False: there is none left, or no memory, which `failed` tells. */
static bool source_choose(struct source *source, Adtopk__ControlRequest *request,
    Adtopk__ControlStatus *status, Adtopk__ControlStats *stats, Adtopk__ControlRanks *ranks)
{
    if (source->next.status == NULL) {
        request->kind_case = ADTOPK__CONTROL_REQUEST__KIND_STATUS;
        request->status = status;
        return true;
    }
    if (source->next.stats == NULL) {
        request->kind_case = ADTOPK__CONTROL_REQUEST__KIND_STATS;
        stats->no_tensors = !source->tensors;
        request->stats = stats;
        return true;
    }
    if (source->next.ranks == NULL) {
        const cJSON *jobs = cJSON_GetObjectItemCaseSensitive(source->next.stats, "jobs");

        source->next.ranks = cJSON_CreateArray();
        source->to_ask = jobs != NULL ? jobs->child : NULL;
        source->failed = source->next.ranks == NULL;
    }
    ranks->job = source->job;
    request->kind_case = ADTOPK__CONTROL_REQUEST__KIND_RANKS;
    request->ranks = ranks;
    return !source->failed && source_choose_job(source);
}

/* Asks for the next document; called again with each answer. */
static void source_next(struct source *source)
{
    Adtopk__ControlRequest request = ADTOPK__CONTROL_REQUEST__INIT;
    Adtopk__ControlStatus status = ADTOPK__CONTROL_STATUS__INIT;
    Adtopk__ControlStats stats = ADTOPK__CONTROL_STATS__INIT;
    Adtopk__ControlRanks ranks = ADTOPK__CONTROL_RANKS__INIT;
    struct error why = {.code = ADTOPK_OK};

    request.version = 1;
    if (!source_choose(source, &request, &status, &stats, &ranks)) {
        if (source->failed) {
            (void)error_set(&source->next.why, ADTOPK_ERR_MEMORY, "no memory for the documents");
        }
        source_finish(source);
    } else if (ask_start(source->loop, source->path, &request, source_answered, source, &why) !=
               ADTOPK_OK) {
        source_fail(source, &why);
    }
}

struct source *source_create(
    uv_loop_t *loop, const char *path, bool tensors, source_told *told, void *owner)
{
    struct source *source = calloc(1, sizeof(*source));

    if (source != NULL) {
        *source = (struct source){
            .loop = loop, .path = path, .tensors = tensors, .told = told, .owner = owner};
    }
    return source;
}

bool source_want(struct source *source)
{
    bool known = source->last.status != NULL || source->last.why.code != ADTOPK_OK;

    if (known && uv_now(source->loop) - source->last.taken_ms < SOURCE_FRESH_MS) {
        return true;
    }
    if (!source->asking) {
        source->asking = true;
        source->failed = false;
        source_next(source);
    }
    return !source->asking; /* a daemon that is not there is known at once */
}

const struct snapshot *source_snapshot(const struct source *source)
{
    return &source->last;
}
