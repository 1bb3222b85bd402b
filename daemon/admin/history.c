#include "daemon/admin/history.h"

#include <string.h>
#include <uv.h>

static void history_remove_at(struct history *history, uint32_t index)
{
    history->count--;
    memmove(&history->job[index], &history->job[index + 1],
        (history->count - index) * sizeof(history->job[0]));
}

static void history_keep_changes(struct history_job *kept, const struct core *core)
{
    kept->changes = 0;
    while (kept->changes < POLICY_CHANGES &&
           core_policy_change(core, kept->info.id, kept->changes, &kept->past[kept->changes])) {
        kept->changes++;
    }
}

static uint32_t history_jobs_of(const struct history *history, uint32_t owner)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < history->count; i++) {
        count += history->job[i].info.key.owner == owner ? 1 : 0;
    }
    return count;
}

/* The oldest job of the user who has most of them; of two such users, the one with the oldest job.
 */
static uint32_t history_most_crowded(const struct history *history)
{
    uint32_t found = 0;
    uint32_t most = 0;

    for (uint32_t i = 0; i < history->count; i++) {
        uint32_t jobs = history_jobs_of(history, history->job[i].info.key.owner);

        if (jobs > most) {
            most = jobs;
            found = i;
        }
    }
    return found;
}

static uint32_t history_oldest_of(const struct history *history, uint32_t owner)
{
    uint32_t i = 0;

    while (history->job[i].info.key.owner != owner) {
        i++;
    }
    return i;
}

static void history_make_room(struct history *history, uint32_t owner)
{
    if (history_jobs_of(history, owner) == HISTORY_JOBS_A_USER) {
        history_remove_at(history, history_oldest_of(history, owner));
    } else if (history->count == HISTORY_JOBS) {
        history_remove_at(history, history_most_crowded(history));
    }
}

static void history_keep(
    struct history *history, const struct core *core, const struct job_info *info)
{
    struct history_job *kept;

    for (uint32_t i = 0; i < history->count; i++) {
        if (history->job[i].info.id == info->id) {
            history_remove_at(history, i);
            break;
        }
    }
    history_make_room(history, info->key.owner);
    kept = &history->job[history->count++];
    kept->info = *info;
    kept->ended_us = uv_hrtime() / 1000;
    kept->info.state = info->reason[0] != '\0' ? JOB_FAILED : JOB_DONE;
    kept->info.waiting_for[0] = '\0';
    kept->info.waiting.kind = WAIT_NOTHING;
    kept->info.stuck = false;
    kept->info.local_ranks = 0;    /* the last one has left, or it is about to hear the reason */
    kept->info.policy.text = NULL; /* the core's memory */
    history_keep_changes(kept, core);
}

void history_record(struct history *history, const struct core *core, session_id session)
{
    uint64_t id = core_session_job(core, session);
    struct job_info info;

    if (id != 0 && core_find_job(core, id, &info)) {
        history_keep(history, core, &info);
    }
}

bool history_failed(
    struct history *history, const struct core *core, uint64_t job, struct job_info *failed)
{
    if (!core_find_job(core, job, failed)) {
        return false;
    }
    history_keep(history, core, failed);
    return true;
}

bool history_policy_change(const struct history *history, const struct core *core, uint64_t job,
    uint32_t index, struct policy_past *past)
{
    struct job_info live;

    if (core_find_job(core, job, &live)) {
        return core_policy_change(core, job, index, past);
    }
    for (uint32_t i = 0; i < history->count; i++) {
        if (history->job[i].info.id == job && index < history->job[i].changes) {
            *past = history->job[i].past[index];
            return true;
        }
    }
    return false;
}
