#include "daemon/compute/launch.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "daemon/collective/carried.h"
#include "daemon/compute/device_sum.h"
#include "daemon/compute/launch_order.h"
#include "daemon/compute/spread.h"
#include "daemon/job/job_fail.h"
#include "daemon/job/job_index.h"
#include "daemon/job/job_state.h"
#include "daemon/job/members.h"
#include "daemon/job/notes.h"

static bool launch_is_carried(const struct round *round)
{
    return !round->op && round->exchange.ops->traits.framed != NULL && round->exchange.members > 1;
}

uint32_t launch_devices(const struct job *job)
{
    const uint32_t devices = spread_devices(job);

    return devices > 0 ? devices : 1;
}

bool launch_carries(const struct job *job)
{
    for (unsigned i = 0; i < job->in_force.nodes; i++) {
        const struct member *member = members_find(job, job->in_force.node[i]);
        if (member == NULL || member->carrier.version != job->core->config.carrier_version ||
            member->carrier.devices != launch_devices(job)) {
            return false;
        }
    }
    return job->core->config.carrier != NULL && job->plan->policy.engine == POLICY_ENGINE_NODE;
}

/* Devices that take part in the job's operations: its shards, as far as there may be so many. All
 * nodes spread the same tensors over the same number of devices. */
static unsigned launch_shards(const struct job *job)
{
    const unsigned shards = job->layout.arenas.shards;

    return shards < 2 ? 1 : shards < CARGO_DEVICES ? shards : CARGO_DEVICES;
}

/* ------------------------------------------------------------------ operations that were started
 */

/* An operation with orders uses memory of its job, which so computes until it comes back. */
static void launch_hold(struct core *core, const struct cargo *cargo, int more)
{
    if (cargo->orders != NULL) {
        struct job *job = job_index_first(core, BY_NUMBER, cargo->job);

        assert(job != NULL);
        job->advance.computing += (unsigned)more;
        job_touch(job);
    }
}

static void launch_start(struct core *core, struct cargo *cargo, uint64_t job, void *waits)
{
    cargo->job = job;
    cargo->waits = waits;
    cargo->started_us = core->now_us;
    launch_hold(core, cargo, 1);
    cargo->next = core->launches.cargos;
    core->launches.cargos = cargo;
    core->config.carrier->start(core->config.carrier_context, cargo);
}

static void launch_unlink(struct core *core, const struct cargo *cargo)
{
    struct cargo **at = &core->launches.cargos;

    while (*at != cargo) {
        at = &(*at)->next;
    }
    *at = cargo->next;
}

/* The operation has failed; or it never begins, because an earlier one has failed. The job ends
 * when a member that is lost would be known to be, and before other nodes are at their own limit.
 */
static void launch_fail(struct round *round, bool follows)
{
    const struct core *core = round->job->core;
    const uint64_t silence_us = core->config.links.timeout_us;
    const uint64_t half_us = round->job->plan->policy.round_timeout_us / 2;

    round->launch.failed = true;
    round->launch.follows = follows;
    round->launch.ends_us = core->now_us + (silence_us < half_us ? silence_us : half_us);
}

/* Starts what is next in the order. Operations of a group happen in the order in which members
 * start them, whatever they are. So a node that has left one out starts no other one of that job.
 * Nor does it make a group alone that the others have already. */
static void launch_next(struct core *core)
{
    struct round *round;

    while ((round = launch_first(core)) != NULL && round->launch.number != 0) {
        struct carrying *carrying = &round->job->run.carrying;
        struct cargo *cargo = round->exchange.carried.cargo;

        launch_remove(round);
        if (carrying->left_out || cargo->group.number <= carrying->broken) {
            (void)error_set(&cargo->error, ADTOPK_ERR_STATE,
                "its group has lost an earlier operation, or the process that made it");
            launch_fail(round, true);
            continue;
        }
        cargo->group.made = cargo->group.number == carrying->made;
        carrying->made = cargo->group.number;
        cargo->number = round->launch.number;
        core_trace(core, "job %llx: carries bucket %u as operation %llu in group %llu",
            (unsigned long long)round->job->number, round->bucket,
            (unsigned long long)cargo->number, (unsigned long long)cargo->group.number);
        round->launch.started = true;
        launch_start(core, cargo, round->job->number, round);
    }
}

/* ------------------------------------------------------------------ groups */

/* This node may have left an operation out in an earlier view, in whatever group the others made
 * it. Or the carrier has lost the job's group since its last operation. */
static void launch_look(struct job *job)
{
    const struct core_config *config = &job->core->config;
    struct carrying *carrying = &job->run.carrying;

    if (carrying->left_out) {
        carrying->since = job->view;
        carrying->left_out = false;
    }
    if (carrying->made != 0 &&
        !config->carrier->has(config->carrier_context, job->number, carrying->made)) {
        carrying->broken = carrying->made;
        carrying->made = 0;
    }
}

static void launch_break(struct job *job, uint64_t group)
{
    if (group > job->run.carrying.broken) {
        job->run.carrying.broken = group;
    }
    if (job->run.carrying.made == group) {
        job->run.carrying.made = 0;
    }
}

static bool launch_needs_group(const struct carrying *carrying, const struct carried_groups *said)
{
    const uint64_t number = carrying->group.number;

    return number == 0 || said->broken >= number || said->seen > number ||
           said->since > carrying->told;
}

/* The leader asks for the name of the next group ahead of its use. Without memory it does so later.
 */
static void launch_ask(struct job *job)
{
    struct carrying *carrying = &job->run.carrying;

    if (!carrying->named && carrying->asked == NULL) {
        carrying->asked = cargo_create(CARGO_NAME, sizeof(carrying->name), 1);
    }
    if (!carrying->named && carrying->asked != NULL && carrying->asked->waits == NULL) {
        carrying->asked->group.devices = launch_shards(job);
        launch_start(job->core, carrying->asked, job->number, job);
    }
}

/* Whether the leader knows a group that all members can use; otherwise its name is on the way. */
static bool launch_choose(struct round *round)
{
    struct job *job = round->job;
    struct carrying *carrying = &job->run.carrying;
    struct carried_groups said;

    carried_groups(&round->exchange, round->phase, &said);
    if (launch_needs_group(carrying, &said)) {
        launch_ask(job);
        if (!carrying->named && carrying->asked == NULL) {
            job_fail_with(
                job, ADTOPK_ERR_MEMORY, "no memory to carry values of job '%s'", job->key.name);
        }
        if (!carrying->named) {
            return false;
        }
        carrying->group.number = (said.seen > said.broken ? said.seen : said.broken) + 1;
        carrying->told = job->view;
        (void)memcpy(carrying->group.name, carrying->name, sizeof(carrying->name));
        carrying->named = false;
    }
    round->exchange.carried.group = carrying->group;
    return true;
}

/* ------------------------------------------------------------------ a round */

/* An operation is to come. */
static void launch_expect(struct round *round)
{
    struct job *job = round->job;

    round->launch = (struct launch){.number = 0};
    launch_look(job);
    round->exchange.carried.devices = launch_shards(job);
    round->exchange.carried.said = (struct carried_groups){.seen = job->run.carrying.seen,
        .broken = job->run.carrying.broken,
        .since = job->run.carrying.since};
    if (round->exchange.self == 0 &&
        launch_needs_group(&job->run.carrying, &round->exchange.carried.said)) {
        launch_ask(job);
    }
}

void launch_begin(struct round *round)
{
    assert(!round->launch.waits && !round->launch.started);
    round->launch = (struct launch){.number = 0};
    round->exchange.carried = (struct exchange_carried){.proposed = 0};
    if (launch_is_carried(round)) {
        launch_expect(round);
        round->exchange.carried.on_devices = device_sum_can(round);
    }
}

/* All are ready: this node proposes a number, and takes its place in the order. */
static bool launch_propose(struct round *round)
{
    if (round->exchange.self == 0 && !launch_choose(round)) {
        return false;
    }
    round->exchange.carried.proposed = ++round->job->core->launches.clock;
    launch_add(round);
    return true;
}

/* All have proposed: the number is known. */
static void launch_agree(struct round *round)
{
    struct job *job = round->job;
    struct core *core = job->core;
    struct cargo *cargo = round->exchange.carried.cargo;
    uint64_t number;
    struct error err;

    if (carried_agree(&round->exchange, round->phase, &number, &cargo->group, &err) != ADTOPK_OK) {
        job_fail(job, &err, true);
        return;
    }
    round->launch.number = number;
    if (number > core->launches.clock) {
        core->launches.clock = number;
    }
    if (cargo->group.number > job->run.carrying.seen) {
        job->run.carrying.seen = cargo->group.number;
    }
    launch_next(core);
}

bool launch_advance(struct round *round)
{
    if (!launch_is_carried(round)) {
        return true;
    }
    if (round->phase % CARRIED_PHASES == 0) {
        return launch_propose(round);
    }
    if (round->launch.done) {
        if (round->phase + 1 < round->phases) {
            launch_expect(round);
        }
        return true;
    }
    if (round->launch.number == 0) {
        launch_agree(round);
    }
    return false;
}

/* The carrier has the operation: it keeps its memory until it comes back. */
static void launch_abort(struct round *round)
{
    const struct core_config *config = &round->job->core->config;
    struct cargo *cargo = round->exchange.carried.cargo;

    round->job->run.carrying.left_out = true;
    cargo->waits = NULL;
    round->exchange.carried.cargo = NULL;
    config->carrier->abort(config->carrier_context, cargo);
}

void launch_drop(struct round *round)
{
    if (round->launch.waits) {
        launch_remove(round);
        round->job->run.carrying.left_out = true;
        launch_next(round->job->core);
    } else if (round->launch.started && !round->launch.done && !round->launch.failed) {
        launch_abort(round);
    }
    round->launch = (struct launch){.number = 0};
}

/* ------------------------------------------------------------------ what comes back */

uint64_t launch_orders_since(struct work *work)
{
    const struct core *core = work->job->core;
    const struct cargo *cargo = core->launches.cargos;

    while (cargo != NULL && (cargo->kind == CARGO_NAME || cargo->started_us > work->submitted_us)) {
        cargo = cargo->next;
    }
    if (cargo != NULL) {
        work->excused_us = core->now_us;
    }
    return work->submitted_us > work->excused_us ? work->submitted_us : work->excused_us;
}

/* Whether another operation of the job has failed by itself, which is then the reason. */
static bool launch_has_cause(const struct job *job)
{
    bool has = false;

    for (uint32_t r = 0; r < job->plan->rounds; r++) {
        const struct launch *launch = &job->plan->round[r].launch;
        has = has || (launch->failed && !launch->follows);
    }
    return has;
}

/* Whether an operation has failed for long enough, or takes too long. */
static bool launch_is_over(const struct round *round)
{
    const struct core *core = round->job->core;
    const struct cargo *cargo = round->exchange.carried.cargo;

    return round->launch.failed
               ? core->now_us >= round->launch.ends_us
               : round->launch.started &&
                     core->now_us - cargo->started_us >= round->job->plan->policy.round_timeout_us;
}

void launch_check(struct round *round)
{
    struct job *job = round->job;
    const struct core *core = job->core;
    const struct cargo *cargo = round->exchange.carried.cargo;
    const uint64_t limit_us = job->plan->policy.round_timeout_us;
    char text[ERROR_TEXT_SIZE / 2];
    struct error err;

    if (job_ended(job) || round->launch.done || !launch_is_over(round) ||
        members_first(job, member_is_away) != NULL ||
        (round->launch.follows && launch_has_cause(job))) {
        return;
    }
    (void)snprintf(text, sizeof(text), "%s of node %u did not carry bucket %u of step %llu",
        core->config.carrier->name, core->config.node, round->bucket,
        (unsigned long long)round_number(round));
    if (round->launch.failed) {
        (void)error_set(&err, cargo->error.code, "%.150s: %.240s", text, cargo->error.text);
    } else {
        (void)error_set(&err, ADTOPK_ERR_TIMEOUT, "%.150s within round_timeout, %llu s", text,
            (unsigned long long)(limit_us / 1000000));
    }
    job_fail(job, &err, true);
}

/* All rounds of the job that wait for the name go on. */
static void launch_named(
    struct job *job, const struct cargo *cargo, void (*advance)(struct round *round))
{
    struct error err;

    job->run.carrying.asked = NULL;
    if (job_ended(job)) {
        return;
    }
    if (cargo->error.code != ADTOPK_OK) {
        (void)error_set(&err, cargo->error.code, "%s of node %u: %.300s",
            job->core->config.carrier->name, job->core->config.node, cargo->error.text);
        job_fail(job, &err, true);
        return;
    }
    (void)memcpy(job->run.carrying.name, cargo->input, sizeof(job->run.carrying.name));
    job->run.carrying.named = true;
    for (uint32_t r = 0; r < job->plan->rounds && !job_ended(job); r++) {
        advance(&job->plan->round[r]);
    }
}

static void launch_done(
    struct round *round, const struct cargo *cargo, void (*advance)(struct round *round))
{
    round->launch.done = cargo->error.code == ADTOPK_OK;
    if (!round->launch.done) {
        launch_fail(round, false);
        launch_break(round->job, cargo->group.number);
    } else {
        advance(round);
    }
}

void launch_returned(struct core *core, struct cargo *cargo, void (*advance)(struct round *round))
{
    launch_unlink(core, cargo);
    launch_hold(core, cargo, -1);
    if (cargo->waits == NULL) {
        cargo_free(cargo);
    } else if (cargo->kind == CARGO_NAME) {
        struct job *job = cargo->waits;

        launch_named(job, cargo, advance);
        job_touch(job);
        cargo_free(cargo);
    } else {
        struct round *round = cargo->waits;

        launch_done(round, cargo, advance);
        job_touch(round->job);
    }
}

void launch_end(struct job *job)
{
    for (uint32_t r = 0; job->plan->round != NULL && r < job->plan->rounds; r++) {
        launch_drop(&job->plan->round[r]);
    }
}

void launch_forget(struct job *job)
{
    if (job->run.carrying.asked != NULL) {
        job->run.carrying.asked->waits = NULL;
    }
}

void launch_free(struct core *core)
{
    while (core->launches.cargos != NULL) {
        struct cargo *cargo = core->launches.cargos;
        core->launches.cargos = cargo->next;
        cargo_free(cargo);
    }
}
