#include "client/exporter/history.h"

#include <stdio.h>
#include <stdlib.h>
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

/* Its text; NULL: no memory. */
static char *history_sample(const struct snapshot *snapshot)
{
    cJSON *sample = cJSON_CreateObject(), *jobs = cJSON_AddArrayToObject(sample, "jobs");
    bool good = jobs != NULL &&
                cJSON_AddNumberToObject(sample, "t", (double)snapshot->taken_ms / 1000) != NULL &&
                cJSON_AddBoolToObject(sample, "up", snapshot->status != NULL) != NULL;
    const cJSON *job;
    int room = HISTORY_JOBS;
    char *text;

    cJSON_ArrayForEach(job, cJSON_GetObjectItemCaseSensitive(snapshot->stats, "jobs"))
    {
        if (good && room > 0 && history_counts(job)) {
            good = history_add_job(jobs, job);
            room--;
        }
    }
    text = good ? cJSON_PrintUnformatted(sample) : NULL;
    cJSON_Delete(sample);
    return text;
}

void history_add(struct history *history, const struct snapshot *snapshot)
{
    char *sample = history_sample(snapshot);

    if (sample == NULL) {
        return;
    }
    free(history->sample[history->next]);
    history->sample[history->next] = sample;
    history->next = (history->next + 1) % HISTORY_SAMPLES;
    history->count += history->count < HISTORY_SAMPLES;
}

char *history_document(const struct history *history, size_t *size)
{
    unsigned first = (history->next + HISTORY_SAMPLES - history->count) % HISTORY_SAMPLES;
    char *text = NULL;
    FILE *out = open_memstream(&text, size);
    bool whole;

    if (out == NULL) {
        return NULL;
    }
    (void)fprintf(out, "{\"period_s\":%g,\"samples\":[", HISTORY_PERIOD_MS / 1000.0);
    for (unsigned i = 0; i < history->count; i++) {
        (void)fputs(i > 0 ? "," : "", out);
        (void)fputs(history->sample[(first + i) % HISTORY_SAMPLES], out);
    }
    (void)fputs("]}", out);
    whole = ferror(out) == 0;
    if (fclose(out) != 0 || !whole) {
        free(text);
        return NULL;
    }
    return text;
}

void history_free(struct history *history)
{
    for (unsigned i = 0; i < HISTORY_SAMPLES; i++) {
        free(history->sample[i]);
    }
    *history = (struct history){.count = 0};
}
