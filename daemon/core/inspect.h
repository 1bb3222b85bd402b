/*
 * Looking into a core, for status and stats. Read-only, on the core's thread.
 */
#ifndef ADTOPK_INSPECT_H
#define ADTOPK_INSPECT_H

#include "daemon/core/core.h"
#include "daemon/job/info.h"
#include "daemon/job/recorder.h"
#include "daemon/planner/planner.h"

struct tensor_info {
    struct tensor_spec spec;
    uint64_t numel;
    const char *sparsifier; /* "dense" if it is sent dense */
    const char *collective;
    double density;
    const char *scope;   /* "node" or "rank" */
    const char *values;  /* the type of sent values, by the name that a policy uses */
    const char *indices; /* as in the policy: "auto", ...; "none" if it is sent dense */
    uint32_t bucket;
    uint64_t turn;
    struct tensor_bytes bytes;
    uint64_t count; /* entries selected per turn; 0: dense */
    enum choice choice;
    uint32_t allowed;        /* choices that the policy leaves: a bit 1 << choice each */
    double lookahead;        /* the share by which ranks looked ahead when they last pushed it */
    double lookahead_policy; /* the policy's share, which a guard may reduce */
    double arrival_us; /* time of its last gradient after the step's first; below 0: not measured */
    /* The ledger when the last step was closed: plain and sign-hashed sums of the input, of the
     * applied values, and of what decay took. The residual is what remains of the input, to
     * rounding. */
    double input[2];
    double applied[2];
    double lost[2];
    /* The residual's own sums when the job was last verified, and the ledger of that moment. */
    struct verified verified;
    struct residual_read read;
};

struct peer_info {
    uint16_t node;
    bool up;
    uint64_t incarnation;
    struct link_stats link;
};

/** Number of jobs, and the job_info of the index-th, in order of creation. */
uint32_t core_job_count(const struct core *core);
bool core_job_info(const struct core *core, uint32_t index, struct job_info *info);

/** How many of them the next daemon of this node can go on with. Only while the core stops. */
uint32_t core_staying_count(const struct core *core);

/** The job_info of the job with this id; false if there is none. */
bool core_find_job(const struct core *core, uint64_t id, struct job_info *info);

/** How many jobs the owner of this job has; 0 if this job exists already. */
uint32_t core_jobs_beside(const struct core *core, const struct job_key *key);

/** The index-th rule of the policy in force that matches no tensor, as its pattern. NULL: there are
 * no more, or the job's tensors are not known. Valid until the next event. */
const char *core_unmatched_rule(const struct core *core, uint64_t job, uint32_t index);

/** The index-th of the job's last policy changes, the newest first. */
bool core_policy_change(
    const struct core *core, uint64_t job, uint32_t index, struct policy_past *past);

/** The job's residual as it was read last, and its losses; zeros if it is no job. */
struct residual_info core_residual_info(const struct core *core, uint64_t job);

/** The plan of a job, as this node knows it. */
bool core_plan_info(const struct core *core, uint64_t job, struct plan_info *info);

/** The index-th of the plans that the planner compared last, best first; where it decides. */
bool core_plan_candidate(
    const struct core *core, uint64_t job, uint32_t index, struct planner_candidate *candidate);

/** The index-th of the job's ranks on this node, in ascending order. */
bool core_rank_info(const struct core *core, uint64_t job, uint32_t index, struct rank_info *info);

/** The ranks of the index-th other node, as it told them when a client asked last (ACTION_RANKS);
 * NULL: there are no more. Valid until the next event. */
const struct node_ranks *core_roster(const struct core *core, uint64_t job, uint32_t index);

/** A tensor of the job with that id. */
bool core_tensor_info(
    const struct core *core, uint64_t job, uint32_t tensor, struct tensor_info *info);

/** What this node has recorded of a job, to be freed with recorded_free(). NULL: there is no such
 * job, or no memory. */
struct recorded *core_read_records(const struct core *core, uint64_t job);

uint32_t core_peer_count(const struct core *core);
bool core_peer_info(const struct core *core, uint32_t index, struct peer_info *info);
/** The incarnation of a peer that is up; 0 if it is not. */
uint64_t core_peer_answers(const struct core *core, uint16_t node);

/** Refused packets, also from strangers, that belong to no peer. */
struct link_refused core_refused(const struct core *core);

/** The number of the job that a session belongs to; 0 for an unknown session. */
uint64_t core_session_job(const struct core *core, session_id session);
/** The key of the session's job; NULL for an unknown session. Valid until the next event. */
const struct job_key *core_session_key(const struct core *core, session_id session);
/** The key of the job with this id; NULL if there is none. */
const struct job_key *core_job_key(const struct core *core, uint64_t job);
/** The arenas of the job with this id; NULL if there is none. They stay as long as the job. */
const struct engine_memory *core_job_arenas(const struct core *core, uint64_t job);

#endif
