#include "daemon/admin/jobname.h"
#include "proto/utf8.h"

#include <stdio.h>
#include <string.h>

void jobname_print(const struct job_key *key, char text[JOBNAME_SIZE])
{
    (void)snprintf(text, JOBNAME_SIZE, "%u:%s/%s", key->owner, key->name, key->run_id);
}

typedef bool jobname_is(const char *full, const char *text);

static bool jobname_is_same(const char *full, const char *text)
{
    return strcmp(full, text) == 0;
}

/* The same, but each ".." in the text stands for any characters. */
static bool jobname_is_short(const char *full, const char *text)
{
    const char *gap = strstr(text, "..");
    size_t left;

    if (gap == NULL) {
        return jobname_is_same(full, text);
    }
    if (strncmp(full, text, (size_t)(gap - text)) != 0) {
        return false;
    }
    full += gap - text;
    for (text = gap + 2; (gap = strstr(text, "..")) != NULL; text = gap + 2) {
        full = memmem(full, strlen(full), text, (size_t)(gap - text));
        if (full == NULL) {
            return false;
        }
        full += gap - text;
    }
    left = strlen(full);
    return left >= strlen(text) && strcmp(full + left - strlen(text), text) == 0;
}

/* Names may hold slashes and colons, so nothing is taken apart: the text is compared with all that
 * the job may be called. */
static bool jobname_compare(const struct job_key *key, const char *text, jobname_is *is)
{
    char full[JOBNAME_SIZE];
    size_t owner = (size_t)snprintf(full, sizeof(full), "%u:", key->owner);
    size_t name = strlen(key->name);

    jobname_print(key, full);
    if (is(full, text) || is(full + owner, text)) {
        return true;
    }
    full[owner + name] = '\0';
    return is(full, text) || is(full + owner, text);
}

bool jobname_fits(const struct job_key *key, const char *text)
{
    return jobname_compare(key, text, jobname_is_same);
}

bool jobname_resembles(const struct job_key *key, const char *text)
{
    return jobname_compare(key, text, jobname_is_short);
}

/* Whether a live job that the user may see has this very name. */
static bool jobname_is_taken(const struct seen *seen, const char *text)
{
    struct job_info info;
    bool taken = false;

    for (uint32_t i = 0; !taken && core_job_info(seen->core, i, &info); i++) {
        taken = seen_has(seen, &info.key) && jobname_fits(&info.key, text);
    }
    return taken;
}

/* The text may mean this job. shortened: ".." in it stands for any characters. */
static bool jobname_may_mean(
    const struct seen *seen, const char *text, bool shortened, const struct job_key *key)
{
    return seen_has(seen, key) &&
           (shortened ? jobname_resembles(key, text) : jobname_fits(key, text));
}

static enum adtopk_status jobname_ambiguous(
    const struct seen *seen, const char *text, bool shortened, unsigned count, struct error *err)
{
    char list[ERROR_TEXT_SIZE / 2 + JOBNAME_SIZE] = "";
    size_t used = 0;
    unsigned shown = 0;
    struct job_info info;

    for (uint32_t i = 0; core_job_info(seen->core, i, &info); i++) {
        if (jobname_may_mean(seen, text, shortened, &info.key) && used < ERROR_TEXT_SIZE / 2) {
            char name[JOBNAME_SIZE];

            jobname_print(&info.key, name);
            used += (size_t)snprintf(
                list + used, sizeof(list) - used, "%s%s", shown > 0 ? ", " : "", name);
            shown++;
        }
    }
    return error_set(err, ADTOPK_ERR_ARGUMENT, "\"%.*s\" fits %u jobs: %s%s; name one of them",
        UTF8_FIT(64, text), count, list, shown < count ? " and others" : "");
}

enum adtopk_status jobname_find(
    const struct seen *seen, const char *text, bool ended, struct job_info *info, struct error *err)
{
    const struct history *history = seen->history;
    const bool shortened = !jobname_is_taken(seen, text);
    unsigned count = 0;
    struct job_info one;

    for (uint32_t i = 0; core_job_info(seen->core, i, &one); i++) {
        if (jobname_may_mean(seen, text, shortened, &one.key)) {
            /* A job whose ranks have left may exist beside a new one with its key: the new one
             * counts. */
            count += count == 0 || !core_same_job(&one.key, &info->key) ? 1 : 0;
            *info = one;
        }
    }
    if (count == 1) {
        return ADTOPK_OK;
    }
    if (count > 1) {
        return jobname_ambiguous(seen, text, shortened, count, err);
    }
    for (uint32_t i = history->count; i-- > 0;) {
        if (jobname_may_mean(seen, text, shortened, &history->job[i].info.key)) {
            *info = history->job[i].info;
            return ended ? ADTOPK_OK
                         : error_set(
                               err, ADTOPK_ERR_STATE, "job \"%.*s\" has ended", UTF8_FIT(64, text));
        }
    }
    return error_set(
        err, ADTOPK_ERR_ARGUMENT, "no job \"%.*s\" has ranks on this node", UTF8_FIT(64, text));
}
