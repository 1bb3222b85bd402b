#include "daemon/admin/jobname.h"
#include "proto/utf8.h"

#include <stdio.h>
#include <string.h>

void jobname_print(const struct job_key *key, char text[JOBNAME_SIZE])
{
    (void)snprintf(text, JOBNAME_SIZE, "%u:%s/%s", key->owner, key->name, key->run_id);
}

/* Names may hold slashes and colons, so nothing is taken apart: the text is compared with all that
 * the job may be called. */
bool jobname_fits(const struct job_key *key, const char *text)
{
    char full[JOBNAME_SIZE];
    size_t owner = (size_t)snprintf(full, sizeof(full), "%u:", key->owner);
    size_t name = strlen(key->name);

    jobname_print(key, full);
    if (strcmp(text, full) == 0 || strcmp(text, full + owner) == 0) {
        return true;
    }
    full[owner + name] = '\0';
    return strcmp(text, full) == 0 || strcmp(text, full + owner) == 0;
}

/* The text may mean this job. */
static bool jobname_may_mean(const struct seen *seen, const char *text, const struct job_key *key)
{
    return seen_has(seen, key) && jobname_fits(key, text);
}

static enum adtopk_status jobname_ambiguous(
    const struct seen *seen, const char *text, unsigned count, struct error *err)
{
    char list[ERROR_TEXT_SIZE / 2 + JOBNAME_SIZE] = "";
    size_t used = 0;
    unsigned shown = 0;
    struct job_info info;

    for (uint32_t i = 0; core_job_info(seen->core, i, &info); i++) {
        if (jobname_may_mean(seen, text, &info.key) && used < ERROR_TEXT_SIZE / 2) {
            char name[JOBNAME_SIZE];

            jobname_print(&info.key, name);
            used += (size_t)snprintf(
                list + used, sizeof(list) - used, "%s%s", shown > 0 ? ", " : "", name);
            shown++;
        }
    }
    return error_set(err, ADTOPK_ERR_ARGUMENT, "\"%.*s\" fits %u jobs: %s%s", UTF8_FIT(64, text),
        count, list, shown < count ? " and others" : "");
}

enum adtopk_status jobname_find(
    const struct seen *seen, const char *text, bool ended, struct job_info *info, struct error *err)
{
    const struct history *history = seen->history;
    unsigned count = 0;
    struct job_info one;

    for (uint32_t i = 0; core_job_info(seen->core, i, &one); i++) {
        if (jobname_may_mean(seen, text, &one.key)) {
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
        return jobname_ambiguous(seen, text, count, err);
    }
    for (uint32_t i = history->count; i-- > 0;) {
        if (jobname_may_mean(seen, text, &history->job[i].info.key)) {
            *info = history->job[i].info;
            return ended ? ADTOPK_OK
                         : error_set(
                               err, ADTOPK_ERR_STATE, "job \"%.*s\" has ended", UTF8_FIT(64, text));
        }
    }
    return error_set(
        err, ADTOPK_ERR_ARGUMENT, "no job \"%.*s\" has ranks on this node", UTF8_FIT(64, text));
}
