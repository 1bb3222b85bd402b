#include "daemon/admin/seen.h"

static bool seen_next_live(const struct seen *seen, struct seen_walk *walk, struct job_info *info)
{
    while (core_job_info(seen->core, walk->live, info)) {
        walk->live++;
        if (seen_has(seen, &info->key)) {
            return true;
        }
    }
    return false;
}

/* Leaves out jobs that go on with other ranks, or were started again. */
static bool seen_next_ended(const struct seen *seen, struct seen_walk *walk, struct job_info *info)
{
    struct job_info other;

    while (walk->ended < seen->history->count) {
        *info = seen->history->job[walk->ended++].info;
        if (seen_has(seen, &info->key) && !core_find_job(seen->core, info->id, &other)) {
            return true;
        }
    }
    return false;
}

bool seen_next(const struct seen *seen, struct seen_walk *walk, struct job_info *info, bool *live)
{
    *live = seen_next_live(seen, walk, info);
    return *live || seen_next_ended(seen, walk, info);
}
