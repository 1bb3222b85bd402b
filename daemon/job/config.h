/*
 * What a driver gives a core: its configuration, and memory that outlives the core.
 */
#ifndef ADTOPK_JOB_CONFIG_H
#define ADTOPK_JOB_CONFIG_H

#include "daemon/job/events.h"
#include "daemon/job/machine.h"
#include "kernels/base/parallel.h"

/* A piece of the results, in bytes. */
struct core_piece {
    uint64_t offset, size;
};

/* Memory outside the core. `job` is the number that the core gave a job on this node; the core
 * never uses a number twice. All memory is zero when new and aligned to 4096. A failure fills in
 * err and returns NULL. */
struct core_memory {
    void *context;
    /* The core calls it before the first store() or results() of a job. returning: the job gets the
     * stores that an earlier core of this node left under this key. Otherwise those are freed, and
     * the job begins with new ones. NULL: no store outlives a core. */
    void (*open_job)(void *context, uint64_t job, const struct job_key *key, bool returning);
    /* The arena into which one rank writes gradients; the core only reads it. Each batch of tensors
     * has one. Arenas of earlier batches stay where they are. */
    const void *(*gradients)(
        void *context, session_id session, unsigned batch, uint64_t size, struct error *err);
    /* The arena from which all ranks of this node read updates, one per batch of tensors.
     * *existing: it has the content that an earlier core of this node left. */
    void *(*results)(void *context, uint64_t job, unsigned batch, uint64_t size, bool *existing,
        struct error *err);
    /* Reserves pieces of a batch's results, in ascending order. The core may write them from then
     * on, until the job is released. *later: they are reserved when EVENT_RESERVED comes for the
     * job. Events of one job come in the order of the calls, and the core does not release the job
     * before. NULL: all may be written at once. */
    enum adtopk_status (*reserve_results)(void *context, uint64_t job, unsigned batch,
        const struct core_piece *piece, unsigned pieces, bool *later, struct error *err);
    /* Residuals and their state: outlives the core. A job has part 0, part 1 while its ranks have
     * residuals of their own, and by turns parts 2 and 3, and 4 and 5 (store.h). Each further batch
     * of tensors has four parts behind those. A part whose size has changed is new. drop_store() of
     * a part that is not there does nothing. shown: ranks may map the part, which has residuals of
     * a batch with LOCAL_FORM_PENDING. It never changes in a part. Private memory is faster. What a
     * far engine has may not outlive the core: the engine says so. */
    void *(*store)(void *context, uint64_t job, unsigned part, uint64_t size, bool shown,
        bool *existing, struct error *err);
    void (*drop_store)(void *context, uint64_t job, unsigned part);
    /* Memory of this process for a part that a far engine has, or another copy of it, which
     * outlives the core as other parts do. The core writes it when results_reserve() has reserved
     * it. drop_store() drops it, too. NULL if the engine is near. */
    void *(*keep)(void *context, uint64_t job, unsigned part, uint64_t size, bool *existing,
        struct error *err);
    void (*drop_keep)(void *context, uint64_t job, unsigned part);
    /* Nothing of the job is with the far engine any more, until store() opens a part of its
     * residuals again: its memory there is free. NULL if the engine is near. */
    void (*leave_engine)(void *context, uint64_t job);
    /* The core no longer uses the session's gradients, or the job's results and store. */
    void (*release_session)(void *context, session_id session);
    /* The job's run has ended. */
    void (*release_job)(void *context, uint64_t job);
    /* The job has ended before it was back in its run: its store stays, and ranks may return to it
     * again. NULL if open_job is. */
    void (*leave_job)(void *context, uint64_t job);
    /* How many of config.devices may have residuals of the job. NULL: all. */
    unsigned (*devices)(void *context, uint64_t job);
    /* Whether an earlier core of this node left a store under this key. NULL if open_job is. */
    bool (*has_store)(void *context, const struct job_key *key);
};

struct core_config {
    uint16_t node;
    uint64_t incarnation;
    uint64_t secret;           /* drawn for this start; no message and no answer shows it */
    struct links_config links; /* the core fills in self and incarnation */
    struct core_memory memory;
    /* Makes the passes over residuals; NULL: engine_host. The daemon's far engine is engine_cuda,
     * if the setting `engine` says so. */
    const struct engine_ops *engine;
    void *engine_context; /* of a far engine */
    unsigned devices;     /* over which it can spread a job's tensors; 0: over one */
    /* Moves values between nodes for the collectives that want it; NULL: frames do that. Nodes can
     * do so together if the versions are equal; 0: there is none. */
    const struct carrier_ops *carrier;
    void *carrier_context;
    uint32_t carrier_version;
    /* Sends a packet at once, not through the action queue: see links_ops.transmit. */
    bool (*transmit)(void *context, uint16_t peer, enum link_lane lane, const uint8_t *header,
        size_t header_size, const uint8_t *body, size_t body_size, struct buffer *owner);
    /* Opens another connection for a lane: see links_ops.reopen. May be NULL. */
    void (*reopen)(void *context, uint16_t peer, enum link_lane lane);
    void *transmit_context; /* the first argument of both */
    /* Threads that run computes, if a later daemon is to repeat interrupted passes from the store.
     * 0: the store ends with the daemon, and no pass is journalled. */
    unsigned threads;
    /* How a compute spreads a loop over idle threads. The core fills in `caller` for each compute,
     * with its thread. Numbers are those of compute.thread. Zero: computes do not spread loops. */
    struct parallel parallel;
    uint64_t segment; /* elements of a dense bucket that are under way at a time; 0: CORE_SEGMENT */
    uint64_t range;   /* elements of a tensor for which another worker pays; 0: ENGINE_RANGE */
    /* A job with at most this many tensors does its work per tensor without a worker; 0:
     * CORE_INLINE_TENSORS. */
    uint32_t inline_tensors;
    const char *policy;  /* JSON: the default policy; NULL for the built-in one */
    uint64_t stuck_us;   /* a job that waits so long for one thing is stuck; 0: CORE_STUCK_US */
    uint64_t plan_every; /* steps between two decisions of the planner; 0: CORE_PLAN_EVERY */
    /* Gets lines for operators: the planner's changes, and their results. NULL: nobody does. The
     * first argument is that of `trace`. */
    void (*note)(void *context, const char *line);
    /* Gets lines about trouble: a job is stuck, or goes on. */
    void (*warn)(void *context, const char *line);
    /* Gets one line per decision, for traces and failed tests; may be NULL. */
    void (*trace)(void *context, const char *line);
    /* Gets every move of a state machine, for coverage; may be NULL. `id`: the job's, for a machine
     * of a job. */
    void (*moved)(void *context, const struct machine_table *table, uint64_t id, unsigned from,
        unsigned event, unsigned to);
    /* Gets every job that fails, before its ranks hear of it; may be NULL. */
    void (*failed)(void *context, uint64_t job);
    /* Gets every job that gets stuck, and why, once until it goes on; may be NULL. */
    void (*stuck)(void *context, uint64_t job, const char *reason);
    void *trace_context;
};

/** No store outlives the core: nothing is journalled, and ranks cannot return to another core. The
 * daemon and the simulator call this, so both mean the same by it. */
static inline void core_config_keep_nothing(struct core_config *config)
{
    config->threads = 0;
    config->memory.open_job = NULL;
    config->memory.leave_job = NULL;
    config->memory.has_store = NULL;
}

#endif
