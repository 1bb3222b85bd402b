/* The operator: changes policies and verifies ledgers while everything goes on and goes wrong. */
#include <stdio.h>
#include <string.h>

#include "daemon/job/hash.h"
#include "tests/sim/world.h"

#define OPERATOR_TEXT 512

static struct sim_ticket *find(struct world *world, unsigned node, uint64_t number)
{
    for (unsigned i = 0; i < world->tickets; i++) {
        if (world->ticket[i].number == number && world->ticket[i].node == node) {
            return &world->ticket[i];
        }
    }
    return NULL;
}

static void drop(struct world *world, struct sim_ticket *ticket)
{
    *ticket = world->ticket[--world->tickets];
}

static uint64_t operator_ask(
    struct world *world, unsigned number, struct event event, struct error *err)
{
    uint64_t ticket = ++world->next_ticket;
    struct sim_ticket *refused;

    if (event.type != EVENT_POLICY) {
        event.asked.ticket = ticket;
    } else {
        world->rounded = world->rounded || scenario_is_rounded(event.policy.text);
        event.policy.ticket = ticket;
    }
    /* An answer may come at once: the ticket must be known before. */
    world->ticket[world->tickets++] = (struct sim_ticket){.number = ticket, .node = number};
    if (node_event(world, number, &event, err) == ADTOPK_OK) {
        return ticket;
    }
    refused = find(world, number, ticket);
    if (refused == NULL) {
        world_violate(world, "node %u refused and answered one request", number);
    } else {
        drop(world, refused);
    }
    return 0;
}

/* The number of the job on that node; 0: it is not there. */
static uint64_t operator_job(const struct world *world, unsigned node, unsigned job)
{
    struct job_info info;

    return check_find(world, node, job, &info) ? info.id : 0;
}

uint64_t operator_change(
    struct world *world, unsigned node, unsigned job, const char *policy, struct error *err)
{
    struct event event = {.type = EVENT_POLICY,
        .policy = {.job = operator_job(world, node, job),
            .text = policy,
            .merge = true,
            .if_version = UINT32_MAX,
            .uid = node}};

    return operator_ask(world, node, event, err);
}

void operator_look(struct world *world, unsigned node, unsigned job, enum event_type what)
{
    struct event event = {.type = what, .asked = {.job = operator_job(world, node, job)}};
    struct error err;

    if (world->tickets < SIM_MAX_TICKETS) {
        (void)operator_ask(world, node, event, &err);
    }
}

uint64_t operator_checkpoint(struct world *world, unsigned node, unsigned job, struct error *err)
{
    struct event event = {
        .type = EVENT_CHECKPOINT, .asked = {.job = operator_job(world, node, job)}};

    return operator_ask(world, node, event, err);
}

const struct error *operator_answer(const struct world *world, uint64_t ticket)
{
    for (unsigned i = 0; i < SIM_ANSWERS; i++) {
        if (world->answer[i].ticket == ticket && ticket != 0) {
            return &world->answer[i].error;
        }
    }
    return NULL;
}

/* Where some nodes have far engines, many changes say where residuals are: some say nothing else,
 * others change everything at once. Other scenarios draw as they would without this. */
static void operator_draw_engine(
    const struct world *world, struct event_policy *policy, char text[OPERATOR_TEXT])
{
    const uint64_t chance = hash_mix(world->scenario.seed ^ world->next_ticket * 1000003) % 8;
    const size_t length = strlen(policy->text) - 1; /* without the brace that closes it */

    if (world->scenario.seed % 3 != 2 || chance >= 5) {
        return;
    }
    if (chance < 3) {
        policy->text = chance < 2 ? "{\"engine\":\"host\"}" : "{\"engine\":\"node\"}";
        policy->merge = true;
    } else {
        (void)snprintf(text, OPERATOR_TEXT, "%.*s,\"engine\":\"host\"}", (int)length, policy->text);
        policy->text = text;
    }
}

void operator_turn(struct world *world, unsigned number)
{
    unsigned job = (unsigned)world_random(world, world->jobs);
    struct error err = {.code = ADTOPK_OK};
    struct event event = {.type = EVENT_POLICY};
    char text[OPERATOR_TEXT];

    if (world->node[number].core == NULL || world->node[number].paused_until > world->now_us ||
        world->tickets == SIM_MAX_TICKETS) {
        return;
    }
    if (world_chance(world, 0.3)) {
        event.type = EVENT_VERIFY;
        event.asked.job = operator_job(world, number, job);
    } else if (world_chance(world, 0.1)) {
        static const enum event_type types[] = {EVENT_CHECKPOINT, EVENT_RECORDS, EVENT_RANKS};
        event.type = types[world->next_ticket % 3];
        event.asked.job = operator_job(world, number, job);
    } else {
        event.policy.job = operator_job(world, number, job);
        event.policy.text = scenario_policy(world, world_random(world, 1000));
        event.policy.merge = world_chance(world, 0.3);
        event.policy.if_version = UINT32_MAX;
        event.policy.uid = number;
        operator_draw_engine(world, &event.policy, text);
    }
    (void)operator_ask(world, number, event, &err);
}

/* All sums of a verification are of the same moment, so they must be equal. */
static void check_verified(struct world *world, unsigned number)
{
    struct tensor_info info;
    struct job_info job;

    for (unsigned j = 0; j < world->jobs; j++) {
        /* As check_node(): until a step ends, no ledger fits what a dead daemon's engine left. */
        if (world->node[number].memory[j].torn) {
            continue;
        }
        for (unsigned t = 0; check_find(world, number, j, &job) &&
                             core_tensor_info(world->node[number].core, job.id, t, &info);
             t++) {
            for (unsigned k = 0; info.verified.step != UINT64_MAX && k < 2; k++) {
                if (!check_equal(world, info.verified.input[k],
                        info.verified.applied[k] + info.verified.lost[k] +
                            info.verified.residual[k])) {
                    world_violate(world, "node %u tensor %u: verified sums do not fit", number, t);
                }
            }
        }
    }
}

/* Records are of the node's past, in order of time, without a gap, and frames were for the job's
 * nodes. */
static void check_recorded(struct world *world, unsigned number, const struct recorded *recorded)
{
    for (unsigned i = 0; recorded != NULL && i < recorded->parts; i++) {
        const struct recorded_part *part = &recorded->part[i];
        uint64_t closed = UINT64_MAX;

        world->stats.recorded_late += part->late && part->missing > 0 ? 1 : 0;
        if (world->scenario.reseal && part->node == world->scenario.hostile) {
            continue; /* what it sends may say anything */
        }
        for (uint32_t r = 0; r < part->records; r++) {
            const struct flight_record *record = &part->record[r];

            if (record->at_us > world->now_us || record->kind >= RECORD_KINDS ||
                (r > 0 && record->at_us < record[-1].at_us) ||
                record->node >= world->scenario.nodes ||
                (record->kind == RECORD_CLOSED && closed < record->step &&
                    closed + 1 != record->step)) {
                world_violate(
                    world, "node %u: record %u of node %u is wrong", number, r, part->node);
            }
            closed = record->kind == RECORD_CLOSED ? record->step : closed;
        }
    }
}

/* Every other node is there once, and tells of no more ranks than it has. */
static void check_roster(struct world *world, unsigned number)
{
    const struct core *core = world->node[number].core;
    const struct node_ranks *other;
    struct job_info job;

    for (unsigned j = 0; j < world->jobs; j++) {
        for (unsigned i = 0;
             check_find(world, number, j, &job) && (other = core_roster(core, job.id, i)) != NULL;
             i++) {
            if (other->node == number || other->ranks > other->most ||
                (other->answered && other->asked)) {
                world_violate(
                    world, "node %u: the ranks of node %u are wrong", number, other->node);
            }
            world->stats.listed += other->ranks;
        }
    }
}

void operator_action(struct world *world, unsigned number, const struct action *action)
{
    struct sim_ticket *ticket = find(world, number, action->ticket);

    if (ticket == NULL) {
        world_violate(world, "node %u answers a request that nobody made", number);
        return;
    }
    drop(world, ticket);
    world->answer[world->answers++ % SIM_ANSWERS] = (struct sim_answer){.ticket = action->ticket,
        .error = action->error != NULL ? *action->error : (struct error){.code = ADTOPK_OK}};
    if (action->status != ADTOPK_OK && (action->error == NULL || action->error->text[0] == '\0')) {
        world_violate(world, "node %u refuses without a word", number);
    }
    if (action->type == ACTION_VERIFIED) {
        check_verified(world, number);
        world->stats.verified += action->status == ADTOPK_OK ? 1 : 0;
    } else if (action->type == ACTION_RECORDS) {
        check_recorded(world, number, action->recorded);
        world->stats.recorded += action->status == ADTOPK_OK ? 1 : 0;
    } else if (action->type == ACTION_RANKS) {
        check_roster(world, number);
    } else if (action->type == ACTION_CHECKPOINT) {
        world->stats.due += action->status == ADTOPK_OK ? 1 : 0;
    } else {
        world->stats.switched += action->status == ADTOPK_OK ? 1 : 0;
        world->stats.called_off += action->status != ADTOPK_OK ? 1 : 0;
    }
}

void operator_crashed(struct world *world, unsigned number)
{
    for (unsigned i = world->tickets; i-- > 0;) {
        if (world->ticket[i].node == number) {
            drop(world, &world->ticket[i]);
        }
    }
}

/* The moments after the first node has switched are the interesting ones, because a node may
 * restart then. */
void operator_watch(struct world *world, unsigned number)
{
    struct job_info info;

    for (unsigned j = 0; j < world->jobs; j++) {
        struct node_job *memory = &world->node[number].memory[j];
        if (!check_find(world, number, j, &info) || info.policy.version <= memory->policy_seen) {
            continue;
        }
        memory->policy_seen = info.policy.version;
        world->stats.moves += info.policy.in_host != memory->in_host ? 1 : 0;
        memory->in_host = info.policy.in_host;
        if (world->scenario.crash_every_us > 0 && world_chance(world, 0.3)) {
            unsigned other = (unsigned)world_random(world, world->scenario.nodes);
            world_at(world, 1 + world_random(world, 300),
                (struct sim_event){.type = SIM_CRASH, .node = other});
        }
    }
}

/* All ranks hear the same before the same step: to save a checkpoint, or not to. */
void operator_check_due(const struct trainer *trainer, const struct action *action)
{
    struct world *world = trainer->world;
    struct sim_job *job = &world->job[trainer->job];
    const uint64_t step = action->number + (action->type == ACTION_STEP ? 1 : 0);

    if (action->type != ACTION_STEP && action->type != ACTION_READY) {
        return;
    }
    if (step > world->scenario.steps || job->forged || (job->astray >> trainer->node & 1) != 0) {
        return;
    }
    if (job->due[step] == 0) {
        job->due[step] = 1 + (action->members.due ? 1 : 0);
    } else if (job->due[step] != 1 + (action->members.due ? 1 : 0)) {
        world_violate(world, "rank %u is %stold to save before step %llu, another rank is%s",
            trainer->rank, action->members.due ? "" : "not ", (unsigned long long)step,
            action->members.due ? " not" : "");
    }
}

/* All nodes have the same policy in the same step. */
void operator_check_step(struct world *world, unsigned number, unsigned job_number, uint64_t step)
{
    struct sim_job *job = &world->job[job_number];
    struct job_info info;

    if (!check_find(world, number, job_number, &info)) {
        return;
    }
    if (info.policy.version > 0 && info.policy.step > step) {
        world_violate(world, "node %u: policy %u from step %llu in step %llu", number,
            info.policy.version, (unsigned long long)info.policy.step, (unsigned long long)step);
    }
    if (job->policy[step] == 0) {
        job->policy[step] = 1 + info.policy.version;
    } else if (job->policy[step] != 1 + info.policy.version) {
        world_violate(world, "step %llu: node %u has version %u of the policy, another node %u",
            (unsigned long long)step, number, info.policy.version, job->policy[step] - 1);
    }
}
