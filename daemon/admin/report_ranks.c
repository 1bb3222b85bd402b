/* The ranks of a job: those of this node, or those of all. The loop waits until the document is
 * made, so a job of very many ranks does not have all of them in it. */
#include "daemon/admin/report.h"

#include <math.h>

#define RANKS_MAX 1024u

/* The list under construction. */
struct ranks_list {
    struct document *document;
    cJSON *ranks;
    uint32_t shown, omitted;
    /* The shortest pace of all ranks, in the mean and in the last step: others are late by what
     * they take longer. */
    double shortest_us, shortest_last_us;
};

static void report_ranks_compare(struct ranks_list *list, const struct rank_info *info)
{
    if (info->pace_steps > 0) {
        list->shortest_us = fmin(list->shortest_us, info->pace_us);
        list->shortest_last_us = fmin(list->shortest_last_us, (double)info->pace_last_us);
    }
}

/* Finds the shortest pace of all ranks that are to be in the list. */
static void report_ranks_find_shortest(struct ranks_list *list, const struct report_daemon *daemon,
    const struct job_info *job, bool all_nodes)
{
    const struct node_ranks *other;
    struct rank_info info;

    list->shortest_us = list->shortest_last_us = INFINITY;
    for (uint32_t i = 0; core_rank_info(daemon->core, job->id, i, &info); i++) {
        report_ranks_compare(list, &info);
    }
    for (uint32_t i = 0; all_nodes && (other = core_roster(daemon->core, job->id, i)) != NULL;
         i++) {
        for (uint32_t r = 0; r < other->ranks; r++) {
            report_ranks_compare(list, &other->rank[r]);
        }
    }
}

static void report_ranks_add(struct ranks_list *list, uint16_t node, const struct rank_info *info)
{
    struct document *document = list->document;
    const bool measured = info->pace_steps > 0;
    cJSON *rank;

    if (list->shown == RANKS_MAX) {
        list->omitted++;
        return;
    }
    list->shown++;
    rank = document_append(document, list->ranks);
    document_count(document, rank, "rank", info->number);
    document_count(document, rank, "node", node);
    report_pid(document, rank, info->pid);
    document_text(document, rank, "state", info->state);
    document_count(document, rank, "step", info->step);
    document_bool(document, rank, "pushed", info->pushed);
    document_bool(document, rank, "ended", info->ended);
    document_count(document, rank, "pace_steps", info->pace_steps);
    document_optional(document, rank, "pace_us", info->pace_us, measured);
    document_optional(document, rank, "pace_last_us", (double)info->pace_last_us, measured);
    document_optional(document, rank, "late_us", info->pace_us - list->shortest_us, measured);
    document_optional(document, rank, "late_last_us",
        (double)info->pace_last_us - list->shortest_last_us, measured);
}

/* Other nodes, and the ranks of those that answered. */
static void report_ranks_add_others(
    struct ranks_list *list, const struct report_daemon *daemon, const struct job_info *job)
{
    cJSON *nodes = document_array(list->document, list->document->root, "others");
    const struct node_ranks *other;

    for (uint32_t i = 0; (other = core_roster(daemon->core, job->id, i)) != NULL; i++) {
        cJSON *node = document_append(list->document, nodes);

        document_count(list->document, node, "node", other->node);
        document_bool(list->document, node, "answered", other->answered);
        for (uint32_t r = 0; r < other->ranks; r++) {
            report_ranks_add(list, other->node, &other->rank[r]);
        }
    }
}

/* What there is to say of a job on this node. */
static void report_ranks_add_job(struct ranks_list *list, cJSON *object,
    const struct report_daemon *daemon, const struct job_info *job, bool all_nodes)
{
    struct rank_info info;

    report_key(list->document, object, &job->key);
    document_count(list->document, object, "node", daemon->node);
    document_count(list->document, object, "world_size", job->world_size);
    list->ranks = document_array(list->document, object, "ranks");
    report_ranks_find_shortest(list, daemon, job, all_nodes);
    for (uint32_t i = 0; core_rank_info(daemon->core, job->id, i, &info); i++) {
        report_ranks_add(list, daemon->node, &info);
    }
}

char *report_ranks(const struct report_daemon *daemon, const struct job_info *job, bool all_nodes)
{
    struct document document;
    struct ranks_list list = {.document = &document};

    document_begin(&document);
    report_ranks_add_job(&list, document.root, daemon, job, all_nodes);
    if (all_nodes) {
        report_ranks_add_others(&list, daemon, job);
    }
    document_count(&document, document.root, "ranks_omitted", list.omitted);
    return document_end(&document);
}

char *report_all_ranks(const struct report_daemon *daemon)
{
    struct document document;
    struct ranks_list list = {.document = &document};
    struct seen_walk walk = {.live = 0};
    struct job_info info;
    cJSON *jobs;
    bool live;

    document_begin(&document);
    jobs = document_array(&document, document.root, "jobs");
    while (seen_next(&daemon->jobs, &walk, &info, &live)) {
        if (live && info.nodes > 0) {
            report_ranks_add_job(&list, document_append(&document, jobs), daemon, &info, false);
        }
    }
    document_count(&document, document.root, "ranks_omitted", list.omitted);
    return document_end(&document);
}
