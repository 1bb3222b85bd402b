#include "client/exporter/history.h"

#include <string.h>

/* Adds a copy of a field. False: no memory. */
static bool history_copy(cJSON *to, const cJSON *from, const char *field)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(from, field);

    return item == NULL || cJSON_AddItemToObject(to, field, cJSON_Duplicate(item, 1));
}

static bool history_add_job(cJSON *jobs, const cJSON *job)
{
    static const char *const fields[] = {"owner", "name", "run_id", "state", "steps",
        "wire_bytes_sent", "dense_bytes", "nonzeros_sent", "sparse_elements", "phase_seconds",
        "residual_mean"};
    cJSON *copy = cJSON_CreateObject();
    bool good = cJSON_AddItemToArray(jobs, copy);

    for (size_t i = 0; good && i < sizeof(fields) / sizeof(fields[0]); i++) {
        good = history_copy(copy, job, fields[i]);
    }
    return good;
}

/* Jobs that ended are left out: their numbers no longer change. */
static bool history_counts(const cJSON *job)
{
    const char *state = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(job, "state"));

    return state != NULL && strcmp(state, "done") != 0 && strcmp(state, "failed") != 0;
}

static cJSON *history_sample(const struct snapshot *snapshot)
{
    cJSON *sample = cJSON_CreateObject(), *jobs = cJSON_AddArrayToObject(sample, "jobs");
    bool good = jobs != NULL &&
                cJSON_AddNumberToObject(sample, "t", (double)snapshot->taken_ms / 1000) != NULL &&
                cJSON_AddBoolToObject(sample, "up", snapshot->status != NULL) != NULL;
    const cJSON *job;
    int room = HISTORY_JOBS;

    cJSON_ArrayForEach(job, cJSON_GetObjectItemCaseSensitive(snapshot->stats, "jobs"))
    {
        if (good && room > 0 && history_counts(job)) {
            good = history_add_job(jobs, job);
            room--;
        }
    }
    if (!good) {
        cJSON_Delete(sample);
        return NULL;
    }
    return sample;
}

void history_add(struct history *history, const struct snapshot *snapshot)
{
    cJSON *sample = history_sample(snapshot);

    if (sample == NULL) {
        return;
    }
    cJSON_Delete(history->sample[history->next]);
    history->sample[history->next] = sample;
    history->next = (history->next + 1) % HISTORY_SAMPLES;
    history->count += history->count < HISTORY_SAMPLES;
}

char *history_document(const struct history *history)
{
    cJSON *document = cJSON_CreateObject();
    cJSON *samples = cJSON_AddArrayToObject(document, "samples");
    bool good = samples != NULL &&
                cJSON_AddNumberToObject(document, "period_s", HISTORY_PERIOD_MS / 1000.0) != NULL;
    unsigned first = (history->next + HISTORY_SAMPLES - history->count) % HISTORY_SAMPLES;
    char *text;

    for (unsigned i = 0; good && i < history->count; i++) {
        good =
            cJSON_AddItemReferenceToArray(samples, history->sample[(first + i) % HISTORY_SAMPLES]);
    }
    text = good ? cJSON_PrintUnformatted(document) : NULL;
    cJSON_Delete(document);
    return text;
}

void history_free(struct history *history)
{
    for (unsigned i = 0; i < HISTORY_SAMPLES; i++) {
        cJSON_Delete(history->sample[i]);
    }
    *history = (struct history){.count = 0};
}
