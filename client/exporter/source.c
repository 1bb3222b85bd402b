#include "client/exporter/source.h"

#include <stdlib.h>
#include <string.h>

#include "client/exporter/ask.h"

struct source {
    uv_loop_t *loop;
    const char *path;
    bool tensors;
    source_told *told;
    void *owner;
    struct snapshot last;
    struct snapshot next; /* what is being made */
    bool asking;
    uint64_t end_ms; /* when all answers have to be there */
    bool failed;     /* the next snapshot has no documents */
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

/* The list of jobs in a document, which goes. An empty one where there is none; NULL: no memory. */
static cJSON *source_jobs(cJSON *document)
{
    cJSON *jobs = cJSON_DetachItemFromObjectCaseSensitive(document, "jobs");

    cJSON_Delete(document);
    return jobs != NULL ? jobs : cJSON_CreateArray();
}

static bool source_has_ended(const cJSON *job)
{
    const char *state = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(job, "state"));

    return state != NULL && (strcmp(state, "done") == 0 || strcmp(state, "failed") == 0);
}

static bool source_is_same(const cJSON *one, const cJSON *other, const char *field)
{
    return cJSON_Compare(cJSON_GetObjectItemCaseSensitive(one, field),
        cJSON_GetObjectItemCaseSensitive(other, field), true);
}

/* Whether another run of this name and number stands for one that has ended: the one that lives, or
 * one that ended later, and so is behind it in the list. */
static bool source_is_repeated(const cJSON *jobs, const cJSON *ended)
{
    const cJSON *other;
    bool behind = false;

    cJSON_ArrayForEach(other, jobs)
    {
        if ((behind || !source_has_ended(other)) && source_is_same(other, ended, "name") &&
            source_is_same(other, ended, "owner") && source_is_same(other, ended, "run_id")) {
            return true;
        }
        behind = behind || other == ended;
    }
    return false;
}

/* Otherwise two jobs would have the same series. */
static void source_drop_repeated(cJSON *document)
{
    cJSON *jobs = cJSON_GetObjectItemCaseSensitive(document, "jobs"), *job, *next;

    for (job = jobs != NULL ? jobs->child : NULL; job != NULL; job = next) {
        next = job->next;
        if (source_has_ended(job) && source_is_repeated(jobs, job)) {
            cJSON_Delete(cJSON_DetachItemViaPointer(jobs, job));
        }
    }
}

static void source_answered(
    void *owner, enum adtopk_status status, bool refused, char *document, const struct error *err)
{
    struct source *source = owner;
    cJSON *parsed = document != NULL ? cJSON_Parse(document) : NULL;
    struct error why;

    free(document);
    if (status != ADTOPK_OK && !(refused && source->next.stats != NULL)) {
        source_fail(source, err); /* a daemon of an older version refuses the last question */
        return;
    }
    if (status == ADTOPK_OK && parsed == NULL) {
        (void)error_set(&why, ADTOPK_ERR_PROTOCOL, "the daemon's answer is not JSON");
        source_fail(source, &why);
        return;
    }
    source_drop_repeated(parsed);
    if (source->next.status == NULL) {
        source->next.status = parsed;
    } else if (source->next.stats == NULL) {
        source->next.stats = parsed;
    } else {
        source->next.ranks = source_jobs(parsed);
        if (source->next.ranks == NULL) {
            (void)error_set(&why, ADTOPK_ERR_MEMORY, "no memory for the documents");
            source_fail(source, &why);
            return;
        }
    }
    source_next(source);
}

/* Chooses the next request. False: there is none left. */
static bool source_choose(struct source *source, Adtopk__ControlRequest *request,
    Adtopk__ControlStatus *status, Adtopk__ControlStats *stats, Adtopk__ControlRanks *ranks)
{
    if (source->next.status == NULL) {
        request->kind_case = ADTOPK__CONTROL_REQUEST__KIND_STATUS;
        request->status = status;
    } else if (source->next.stats == NULL) {
        request->kind_case = ADTOPK__CONTROL_REQUEST__KIND_STATS;
        stats->no_tensors = !source->tensors;
        request->stats = stats;
    } else {
        request->kind_case = ADTOPK__CONTROL_REQUEST__KIND_RANKS;
        request->ranks = ranks;
    }
    return source->next.ranks == NULL;
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
        source_finish(source);
    } else if (ask_start(source->loop, source->path, &request, source->end_ms, source_answered,
                   source, &why) != ADTOPK_OK) {
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
        source->end_ms = uv_now(source->loop) + ASK_PATIENCE_MS;
        source_next(source);
    }
    return !source->asking; /* a daemon that is not there is known at once */
}

const struct snapshot *source_snapshot(const struct source *source)
{
    return &source->last;
}
