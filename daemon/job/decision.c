#include "daemon/job/decision.h"

#include <stdlib.h>

#include "daemon/job/declare.h"
#include "daemon/job/job_fail.h"
#include "daemon/job/loss.h"
#include "daemon/job/members.h"

static enum adtopk_status decision_add(
    struct decision *decision, uint64_t number, uint32_t bucket, bool op, uint16_t holder)
{
    if (decision->count == decision->capacity) {
        size_t capacity = decision->capacity * 2 + 16;
        Adtopk__PeerRound *grown = realloc(decision->round, capacity * sizeof(*grown));
        if (grown == NULL) {
            return ADTOPK_ERR_MEMORY;
        }
        decision->round = grown;
        decision->capacity = capacity;
    }
    adtopk__peer_round__init(&decision->round[decision->count]);
    decision->round[decision->count].number = number;
    decision->round[decision->count].bucket = bucket;
    decision->round[decision->count].operation = op;
    decision->round[decision->count].holder = holder;
    decision->count++;
    return ADTOPK_OK;
}

static void decision_lacks_residuals(struct job *job, uint16_t node, uint64_t steps)
{
    struct error error;

    (void)error_set(&error, ADTOPK_ERR_LOST,
        "node %u came back without its residuals; the job is at step %llu", node,
        (unsigned long long)steps);
    declare_add_to(&error, job, node);
    job->ending.alone = node == job->core->config.node;
    job_fail(job, &error, true);
}

/* A new store is valid as long as no node delivered anything: then nothing that it should hold was
 * applied. But where the job goes on without lost nodes, the store before may have known what this
 * node promised. */
bool decision_is_possible(struct job *job, uint64_t *steps, uint64_t *ops)
{
    bool delivered = false;

    *steps = 0;
    *ops = 0;
    for (unsigned i = 0; i < job->members; i++) {
        const struct member *member = job->member[i];
        if (member_was_there(job, member)) {
            *steps = member->answer.steps_done > *steps ? member->answer.steps_done : *steps;
            *ops = member->answer.ops_done > *ops ? member->answer.ops_done : *ops;
            delivered = delivered || member->answer.delivered_count > 0;
        }
    }
    delivered = delivered || *steps > 0 || *ops > 0 ||
                (job->plan->policy.on_peer_loss == PEER_LOSS_SHRINK &&
                    views_known(job->agreement.views)->nodes > 0);
    for (unsigned i = 0; i < job->members; i++) {
        const struct member *member = job->member[i];
        if (member_was_there(job, member) && member->answer.fresh && delivered) {
            if (loss_for_ever(job, member->node)) {
                return false; /* it is dropped */
            }
            decision_lacks_residuals(job, member->node, *steps);
            return false;
        }
        if (member_was_there(job, member) &&
            (member->answer.steps_done + 1 < *steps || member->answer.ops_done + 1 < *ops)) {
            job_fail_with(job, ADTOPK_ERR_LOST, "node %u is at step %llu while others are at %llu",
                member->node, (unsigned long long)member->answer.steps_done,
                (unsigned long long)*steps);
            return false;
        }
    }
    return true;
}

/* Adds the rounds of the open step that the member delivered and none before it. seen: a bit
 * per round. */
static enum adtopk_status decision_add_delivered(
    const struct member *member, uint64_t steps, uint8_t *seen, struct decision *decision)
{
    enum adtopk_status status = ADTOPK_OK;

    for (uint32_t d = 0; status == ADTOPK_OK && d < member->answer.delivered_count; d++) {
        const uint32_t round = member->answer.delivered[d];
        const uint8_t bit = (uint8_t)(1u << round % 8);

        if ((seen[round / 8] & bit) == 0) {
            seen[round / 8] |= bit;
            status = decision_add(decision, steps, round, false, member->node);
        }
    }
    return status;
}

static enum adtopk_status decision_list(
    const struct job *job, uint64_t steps, uint64_t ops, struct decision *decision)
{
    uint8_t *seen = calloc(job->plan->rounds / 8 + 1, 1);
    enum adtopk_status status = seen != NULL ? ADTOPK_OK : ADTOPK_ERR_MEMORY;
    bool behind = false, ops_behind = false;

    for (unsigned i = 0; i < job->members; i++) {
        behind = behind || (member_was_there(job, job->member[i]) &&
                               job->member[i]->answer.steps_done < steps);
        ops_behind = ops_behind || (member_was_there(job, job->member[i]) &&
                                       job->member[i]->answer.ops_done < ops);
    }
    for (unsigned i = 0; status == ADTOPK_OK && i < job->members; i++) {
        const struct member *member = job->member[i];
        if (!member_was_there(job, member)) {
            continue;
        }
        if (behind && member->answer.steps_done == steps) {
            status = decision_add(decision, steps - 1, ALL_ROUNDS, false, member->node);
            behind = false;
        }
        if (status == ADTOPK_OK && ops_behind && member->answer.ops_done == ops) {
            status = decision_add(decision, ops - 1, 0, true, member->node);
            ops_behind = false;
        }
        if (status == ADTOPK_OK && member->answer.steps_done == steps) {
            status = decision_add_delivered(member, steps, seen, decision);
        }
    }
    free(seen);
    return status;
}

enum adtopk_status decision_make(
    const struct job *job, uint64_t steps, uint64_t ops, struct decision *decision)
{
    *decision = (struct decision){.count = 0};
    if (decision_list(job, steps, ops, decision) != ADTOPK_OK) {
        return ADTOPK_ERR_MEMORY;
    }
    decision->list = malloc((decision->count + 1) * sizeof(*decision->list));
    for (size_t i = 0; decision->list != NULL && i < decision->count; i++) {
        decision->list[i] = &decision->round[i];
    }
    return decision->list != NULL ? ADTOPK_OK : ADTOPK_ERR_MEMORY;
}

void decision_free(struct decision *decision)
{
    free(decision->list);
    free(decision->round);
}
