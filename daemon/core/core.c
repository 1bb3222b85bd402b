/*
 * The core's entry and exit: it hands events to the files that handle them, and queues actions.
 */
#include "daemon/core/core.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/compute/launch.h"
#include "daemon/compute/layout.h"
#include "daemon/compute/work.h"
#include "daemon/core/advance.h"
#include "daemon/core/agree/join.h"
#include "daemon/core/agree/switch_ask.h"
#include "daemon/core/dispatch.h"
#include "daemon/core/frame.h"
#include "daemon/core/job.h"
#include "daemon/core/job_wait.h"
#include "daemon/core/rank.h"
#include "daemon/core/round.h"
#include "daemon/core/verify.h"
#include "daemon/core/waiting.h"
#include "daemon/job/actions.h"
#include "daemon/job/due.h"
#include "daemon/job/id_table.h"
#include "daemon/job/job_fail.h"
#include "daemon/job/job_index.h"
#include "daemon/job/job_state.h"
#include "daemon/job/loss.h"
#include "daemon/job/machine.h"
#include "daemon/job/notes.h"
#include "daemon/job/recording.h"
#include "daemon/job/roster.h"

static void trace_move(void *context, const struct machine_table *table, uint64_t id, unsigned from,
    unsigned event, unsigned to)
{
    struct core *core = context;

    if (core->config.moved != NULL) {
        core->config.moved(core->config.trace_context, table, id, from, event, to);
    }
    if (core->config.trace != NULL) {
        core_trace(core, "%s %llx: %s -%s-> %s", table->name, (unsigned long long)id,
            table->state_name[from], table->event_name[event], table->state_name[to]);
    }
}

static struct failure *failure_of(const struct error *error)
{
    return (struct failure *)((uintptr_t)error - offsetof(struct failure, error));
}

bool core_next_action(struct core *core, struct action *action)
{
    job_drop_failure(core->taken.told);
    core->taken.told = NULL;
    recorded_free(core->taken.given);
    core->taken.given = NULL;
    if (core->queue_count == 0) {
        return false;
    }
    *action = core->queue[core->queue_head];
    core->taken.given = action->recorded;
    if (action->error != NULL) {
        core->taken.told = failure_of(action->error);
    }
    core->queue_count--;
    /* Begins at the first slot again: so a large queue takes only the memory that a burst needs. */
    core->queue_head = core->queue_count > 0 ? (core->queue_head + 1) % core->queue_size : 0;
    return true;
}

static void compute_done(struct compute *compute)
{
    struct work *work = (struct work *)compute;
    struct job *job = work->job;

    work_spent(work, compute->took_us);
    if (work->ordered && !job_ended(job)) {
        work_submit(work); /* the next stage follows when a far engine has carried out its orders */
        return;
    }
    compute->took_us = work->spent_unknown ? 0 : work->spent_us; /* all stages, and a far engine */
    work_ended(work);
    job->advance.computing--;
    job->waits.moved_us = job->core->now_us;
    if (!job_ended(job) && work->status != ADTOPK_OK) {
        job_fail(job, &work->error, true);
    } else if (!job_ended(job)) {
        work->done(work);
    }
    job_touch(job);
}

/* The functions that the links call. */

static bool links_transmit(void *context, uint16_t peer, enum link_lane lane, const uint8_t *header,
    size_t header_size, const uint8_t *body, size_t body_size, struct buffer *owner)
{
    struct core *core = context;

    return core->config.transmit(
        core->config.transmit_context, peer, lane, header, header_size, body, body_size, owner);
}

static void links_reopen(void *context, uint16_t peer, enum link_lane lane)
{
    struct core *core = context;

    core_trace(core, "peer %u: lane %d does not deliver", peer, (int)lane);
    if (core->config.reopen != NULL) {
        core->config.reopen(core->config.transmit_context, peer, lane);
    }
}

static void links_deliver(void *context, uint16_t peer, enum link_lane lane, struct buffer *message)
{
    struct core *core = context;

    if (lane == LINK_CONTROL) {
        dispatch_control(core, peer, message);
    } else {
        struct payload_header header;
        struct job *job = NULL;
        if (payload_peek(&header, message->bytes, message->size, NULL) == ADTOPK_OK) {
            job = job_find_run(core, header.run);
        }
        if (job != NULL && !job->advance.frozen) {
            frame_receive(job, peer, message);
            job_touch(job);
        } else {
            core->late_messages++; /* of a run that is over here, like any frame without a run */
        }
    }
    buffer_unref(message);
    advance_jobs(core);
}

static struct peer *peer_find(struct core *core, uint16_t node)
{
    for (unsigned i = 0; i < core->peers; i++) {
        if (core->peer[i].node == node) {
            return &core->peer[i];
        }
    }
    return NULL;
}

static void links_peer_up(void *context, uint16_t node, uint64_t incarnation)
{
    struct core *core = context;
    struct peer *peer = peer_find(core, node);

    core_trace(core, "peer %u up, incarnation %llx", node, (unsigned long long)incarnation);
    if (peer == NULL) {
        return;
    }
    peer->up = true;
    if (peer->incarnation != incarnation) {
        peer->incarnation = incarnation;
        join_peer_up(core, node);
        return;
    }
    for (struct job *job = core->jobs; job != NULL; job = job->places.next) {
        loss_back(job, node); /* it was only silent, and nothing was lost */
    }
}

static void links_peer_down(void *context, uint16_t node)
{
    struct core *core = context;
    struct peer *peer = peer_find(core, node);

    core_trace(core, "peer %u down", node);
    if (peer != NULL) {
        peer->up = false;
    }
    for (struct job *job = core->jobs; job != NULL; job = job->places.next) {
        job_peer_lost(job, node, PEER_SILENT);
    }
}

/* A peer that answers is not gone, whatever listens at its address. */
static void peer_gone(struct core *core, uint16_t node)
{
    const struct peer *peer = peer_find(core, node);

    for (struct job *job = core->jobs; peer != NULL && !peer->up && job != NULL;
         job = job->places.next) {
        job_peer_lost(job, node, PEER_GONE);
    }
}

static const struct links_ops links_ops = {
    .transmit = links_transmit,
    .reopen = links_reopen,
    .deliver = links_deliver,
    .peer_up = links_peer_up,
    .peer_down = links_peer_down,
};

struct core *core_create(const struct core_config *config, struct error *err)
{
    struct core *core = calloc(1, sizeof(*core));
    struct links_config links = config->links;

    links.self = config->node;
    links.incarnation = config->incarnation;
    if (core == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for the core");
        return NULL;
    }
    core->config = *config;
    if (core->config.engine == NULL) {
        core->config.engine = &engine_host;
    }
    if (core->config.inline_tensors == 0) {
        core->config.inline_tensors = CORE_INLINE_TENSORS;
    }
    core->trace = (struct machine_trace){.move = trace_move, .context = core};
    core->queue_size = ACTIONS_MIN;
    core->queue = malloc(core->queue_size * sizeof(*core->queue));
    core->links = links_create(&links, &links_ops, core);
    core_set_stuck(core, config->stuck_us);
    policy_default(&core->policy);
    if (core->queue == NULL || core->links == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for the core");
    } else if (config->policy == NULL ||
               policy_parse(&core->policy, config->policy, err) == ADTOPK_OK) {
        return core;
    }
    core_destroy(core);
    return NULL;
}

void core_destroy(struct core *core)
{
    if (core == NULL) {
        return;
    }
    for (struct action action; core->queue != NULL && core_next_action(core, &action);) {
    }
    job_drop_failure(core->taken.told);
    recorded_free(core->taken.given);
    while (core->jobs != NULL) {
        struct job *job = core->jobs;
        core->jobs = job->places.next;
        job_free(job);
    }
    launch_free(core);
    if (core->links != NULL) {
        links_destroy(core->links);
    }
    id_table_free(&core->ranks);
    free(core->job_at);
    free(core->peer);
    free(core->queue);
    free(core);
}

enum adtopk_status core_add_peer(struct core *core, uint16_t node, uint64_t now_us)
{
    struct peer *grown = realloc(core->peer, (core->peers + 1) * sizeof(*grown));
    enum adtopk_status status;

    if (grown == NULL) {
        return ADTOPK_ERR_MEMORY;
    }
    core->peer = grown;
    grown[core->peers] = (struct peer){.node = node};
    status = links_add_peer(core->links, node, now_us);
    core->peers += status == ADTOPK_OK ? 1 : 0;
    return status;
}

enum adtopk_status core_set_default_policy(struct core *core, const char *json, struct error *err)
{
    struct policy policy;
    enum adtopk_status status = ADTOPK_OK;

    policy_default(&policy);
    if (json != NULL) {
        status = policy_parse(&policy, json, err);
    }
    if (status == ADTOPK_OK) {
        core->policy = policy;
    }
    return status;
}

void core_set_stuck(struct core *core, uint64_t stuck_us)
{
    core->stuck_us = stuck_us != 0 ? stuck_us : CORE_STUCK_US;
    core->due_known = false;
}

void core_set_trace(struct core *core, void (*trace)(void *context, const char *line))
{
    core->config.trace = trace;
}

static void check_jobs(struct core *core)
{
    for (struct job *job = core->jobs; job != NULL; job = job->places.next) {
        if (loss_may_matter(job)) {
            loss_look(job);
        }
        job_check_time(job);
        recording_check_time(job);
        roster_check_time(job);
        waiting_look(job);
    }
}

/* Steps and operations that are under way may end first. */
static void stop_jobs(struct core *core)
{
    for (struct job *job = core->jobs; core->stopping != CORE_GOES_ON && job != NULL;
         job = job->places.next) {
        job_stop(job);
    }
}

static void fail_starved_jobs(struct core *core)
{
    for (struct job *job = core->starved ? core->jobs : NULL; job != NULL; job = job->places.next) {
        job_fail_unsent(job);
    }
    core->starved = false;
}

/* Aborts an ended job's operations of a carrier. Removes its frames from the links, unless others
 * may still finish its step. */
static void drop_frames(struct core *core, struct job *job)
{
    if (job_ended(job) && !job->ending.aborted) {
        launch_end(job);
        job->ending.aborted = true;
    }
    if (job_ended(job) && !job->ending.dropped && job->ending.last_steps == 0) {
        links_drop_job(core->links, job->number);
        job->ending.dropped = true;
    }
}

static void reap_jobs(struct core *core)
{
    for (struct job *job = core->ended > 0 ? core->jobs : NULL, *next; job != NULL; job = next) {
        next = job->places.next;
        job_tell_failure(job);
        drop_frames(core, job);
        job_reap(job);
    }
}

enum adtopk_status core_event(struct core *core, const struct event *event, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;

    core->now_us = event->now_us > core->now_us ? event->now_us : core->now_us;
    switch (event->type) {
    case EVENT_PACKET:
        links_receive(core->links, event->packet.peer, event->packet.lane, event->packet.bytes,
            event->packet.size, event->packet.body, core->now_us);
        break;
    case EVENT_COMPUTE_DONE: compute_done(event->compute); break;
    case EVENT_ENGINE_DONE: work_ordered(event->batch); break;
    case EVENT_ENGINE_LOST: work_engine_lost(core, event->lost); break;
    case EVENT_CARRIED: launch_returned(core, event->cargo, round_advance); break;
    case EVENT_RESERVED: results_reserved(core, event->reserved.job, event->reserved.error); break;
    case EVENT_TIMER: check_jobs(core); break;
    case EVENT_POLICY: status = switch_request(core, event, err); break;
    case EVENT_VERIFY: status = verify_request(core, event, err); break;
    case EVENT_RECORDS: status = recording_request(core, event, err); break;
    case EVENT_RANKS: status = roster_request(core, event, err); break;
    case EVENT_CHECKPOINT: status = due_request(core, event, err); break;
    case EVENT_PEER_GONE: peer_gone(core, event->peer_gone); break;
    case EVENT_STOP: core->stopping = event->stay ? CORE_LEAVES : CORE_STOPS; break;
    default: status = rank_event(core, event, err); break;
    }
    advance_jobs(core);
    fail_starved_jobs(core);
    stop_jobs(core);
    if (core->peers > 0 && links_deadline(core->links) <= core->now_us) {
        links_tick(core->links, core->now_us); /* messages that this event queued are sent now */
        advance_jobs(core);                    /* of nodes that turned out to be lost */
    }
    reap_jobs(core);
    core->due_known = false;
    return status;
}

/* Only an event changes when a job is due. */
static uint64_t jobs_deadline(struct core *core)
{
    if (!core->due_known) {
        core->due_us = UINT64_MAX;
        for (const struct job *job = core->jobs; job != NULL; job = job->places.next) {
            const uint64_t due[] = {job_deadline(job), waiting_deadline(job),
                recording_deadline(job), roster_deadline(job)};
            for (size_t i = 0; i < sizeof(due) / sizeof(due[0]); i++) {
                core->due_us = due[i] < core->due_us ? due[i] : core->due_us;
            }
        }
        core->due_known = true;
    }
    return core->due_us;
}

uint64_t core_deadline(struct core *core)
{
    uint64_t links = core->peers > 0 ? links_deadline(core->links) : UINT64_MAX;
    uint64_t jobs = jobs_deadline(core);

    return links < jobs ? links : jobs;
}
