#include "daemon/admin/history.h"

#include <string.h>

static bool find_live(const struct core *core, uint64_t id, struct job_info *info)
{
    for (uint32_t i = 0; i < core_job_count(core) && core_job_info(core, i, info); i++) {
        if (info->id == id) {
            return true;
        }
    }
    return false;
}

static void remove_at(struct history *history, uint32_t index)
{
    history->count--;
    memmove(&history->job[index], &history->job[index + 1],
        (history->count - index) * sizeof(history->job[0]));
}

void history_record(struct history *history, const struct core *core, session_id session)
{
    uint64_t id = core_session_job(core, session);
    struct job_info info;

    if (id == 0 || !find_live(core, id, &info)) {
        return;
    }
    for (uint32_t i = 0; i < history->count; i++) {
        if (history->job[i].id == id) {
            remove_at(history, i);
            break;
        }
    }
    if (history->count == HISTORY_JOBS) {
        remove_at(history, 0);
    }
    info.state = "ended";
    info.waiting_for[0] = '\0';
    info.policy = NULL; /* the core's memory */
    history->job[history->count++] = info;
}

bool history_job(const struct history *history, const struct core *core, uint32_t index,
    struct job_info *info, bool *live)
{
    struct job_info other;

    *live = index < core_job_count(core);
    if (*live) {
        return core_job_info(core, index, info);
    }
    index -= core_job_count(core);
    for (uint32_t i = 0; i < history->count; i++) {
        if (find_live(core, history->job[i].id, &other)) {
            continue; /* it goes on with other ranks, or was started anew */
        }
        if (index-- == 0) {
            *info = history->job[i];
            return true;
        }
    }
    return false;
}
