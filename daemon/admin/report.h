/*
 * The documents that the control socket answers with: JSON, with "schema": 1 first. A schema's
 * fields keep their meaning; fields may be added. README.md beside this file lists them.
 *
 * All texts are to be freed with free(); NULL without memory.
 */
#ifndef ADTOPK_REPORT_H
#define ADTOPK_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/admin/document.h"
#include "daemon/admin/seen.h"

#define REPORT_MAX_TENSORS 1024u /* described one by one in an answer; the rest is only counted */

/* The protection that the transport reports, and how much it refused since the start. */
struct report_network {
    const char *protection;            /* "curve", "control only" or "none"; NULL: no other nodes */
    uint64_t cpu_us;                   /* of the threads that encrypt, send and receive */
    uint64_t keys, handshakes, tokens; /* connections, by the reason */
    uint64_t packets;
};

/* Connections of trainers since the start, and the sessions of now. */
struct report_trainers {
    uint32_t sessions;
    uint64_t opened, refused;  /* for want of a right, a place, memory or descriptors */
    uint64_t keys, handshakes; /* refused from other machines, as in struct report_network */
    uint64_t lost;             /* ranks of a job that went without leaving it */
    uint64_t protocol_errors;  /* sessions that ended because their client broke the protocol */
};

/* How busy the daemon's threads are, and its log. */
struct report_load {
    uint64_t longest_us; /* CPU time of the loop's longest iteration, since the start */
    uint64_t minute_us;  /* the same, in the last minute */
    uint64_t cpu_us;     /* CPU time of the loop's thread */
    unsigned workers;
    uint64_t busy_us; /* time that the workers together spent in work that is over */
    uint64_t lines_left_out, lines_lost; /* of the log: by its limits; not written */
};

/* A GPU on which residuals live. */
struct report_device {
    char uuid[48], name[96];
    uint64_t memory;                     /* bytes in all */
    uint64_t residuals, arenas, scratch; /* of jobs, of their ranks, and of workers */
    uint64_t context;                    /* of one worker's context; 0: not known */
    uint64_t contexts, communicators;    /* of all that run, and of NCCL in them */
    unsigned jobs;
    unsigned major, minor;         /* of its compute capability */
    int driver;                    /* its version: 12040 is CUDA 12.4 */
    int mps;                       /* its contexts are shared by MPS: 1 or 0; -1: unknown */
    char missing[ERROR_TEXT_SIZE]; /* kernels that the build lacks, "" */
    unsigned nccl;                 /* its version, 22809 for 2.28.9; 0: it cannot be used */
    char no_nccl[ERROR_TEXT_SIZE]; /* why not */
};

/* A process that runs kernels for the jobs of one user. */
struct report_worker {
    unsigned device; /* the number of its GPU */
    uint32_t owner;
    int pid;                           /* 0: it does not run */
    uint64_t batches, carried, starts; /* carried: operations of NCCL */
    uint64_t launches;                 /* of kernels */
    uint64_t copies;                   /* between host and device, of a slice each */
    uint64_t questions;                /* of rules, for which a batch had to wait */
    char trouble[ERROR_TEXT_SIZE];     /* why it was last started again; "": it never was */
};

/* Tensors of a job on one GPU, of one commit. */
struct report_shard {
    char uuid[48];
    uint32_t first, end; /* numbers of tensors, end excluded; there may be none */
};

/* By index; false: there is none. NULL: the processor makes the passes. */
struct report_devices {
    bool (*device)(void *context, unsigned index, struct report_device *found);
    bool (*worker)(void *context, unsigned index, struct report_worker *found);
    bool (*shard)(void *context, uint64_t job, unsigned index, struct report_shard *found);
    void *context;
};

/* A store that outlives the daemon. */
struct report_store {
    struct job_key key; /* all zero: no file says it */
    uint64_t bytes;
    uint64_t idle_s; /* since a job last used it */
    bool used;
    const char *fault; /* why no job can return to it; "": one can */
};

/* How the daemon knows a peer. */
struct report_peer {
    const char *endpoint; /* "": not known yet */
    const char *origin;   /* "configured", "seed", "joined" or "learned" */
    int seed;             /* that introduced it; -1: none did */
};

/* The subject of the documents: the core, and facts about its daemon that the core does not know.
 */
struct report_daemon {
    const struct core *core;
    struct seen jobs;
    uint16_t node;
    uint64_t incarnation;
    uint64_t uptime_s;
    double clock_s; /* monotonic, from any moment on */
    struct report_trainers trainers;
    bool draining;
    struct report_network network;
    struct report_load load;
    struct report_devices devices;
    bool (*store)(void *context, unsigned index, struct report_store *found); /* NULL: none */
    bool (*peer)(void *context, uint16_t node, struct report_peer *found);    /* NULL: none */
    uint64_t (*memory)(void *context, uint64_t job); /* bytes on this node; 0: it is over */
    void *context; /* the first argument of `store`, `peer` and `memory` */
};

/** Seconds from a moment of the core's time until now. */
double report_since_s(const struct report_daemon *daemon, uint64_t since_us);

char *report_status(const struct report_daemon *daemon);

/** `job`: only jobs that it fits (jobname.h), or all if it is empty. *found tells whether there
 * was such a job. */
char *report_jobs(const struct report_daemon *daemon, const char *job, bool *found);

char *report_peers(const struct report_daemon *daemon);

/** The stores that outlive the daemon, as far as the user may see their jobs. */
char *report_stores(const struct report_daemon *daemon);

char *report_drain(const struct report_daemon *daemon);

/** `job` and *found as above. tensors: how many tensors are described at most, in all jobs
 * together; with 0 jobs have no list of them. */
char *report_stats(
    const struct report_daemon *daemon, const char *job, uint32_t tensors, bool *found);

/** The tensors of a live job from number `first` on. */
char *report_tensors(
    const struct report_daemon *daemon, const struct job_info *job, uint32_t first);

/** The ranks of a live job: on this node, or also those that other nodes told of at last. */
char *report_ranks(const struct report_daemon *daemon, const struct job_info *job, bool all_nodes);

/** The ranks on this node of all jobs that train. */
char *report_all_ranks(const struct report_daemon *daemon);

/** The plan of a live job, its tensors from number `first` on, and the planner's predictions. */
char *report_plan(const struct report_daemon *daemon, const struct job_info *job, uint32_t first);

/** The policy of a live job. */
char *report_policy(const struct report_daemon *daemon, const struct job_info *job);

/** The daemon's default policy: its document on top of the built-in one (NULL: nothing). */
char *report_default_policy(const char *policy);

/** The ranks of the job save a checkpoint after this step. */
char *report_checkpoint(const struct job_info *job, uint64_t step);

/** A change that was agreed on: this version holds from this step on. */
char *report_policy_change(const struct report_daemon *daemon, const struct job_info *job,
    uint32_t version, uint64_t step);

/** The changes of the policy of a job that lives or has ended. */
char *report_policy_log(const struct report_daemon *daemon, const struct job_info *job);

/** The result of the verification at the end of `step` for the tensors of a live job. */
char *report_verify(const struct report_daemon *daemon, const struct job_info *job, uint64_t step);

/* Parts of several documents. */

/** "name", "run_id" and "owner" of a job. */
void report_key(struct document *document, cJSON *object, const struct job_key *key);

/** "unmatched_rules": the patterns of its policy's rules that match no tensor. */
void report_unmatched(struct document *document, cJSON *object, const struct report_daemon *daemon,
    const struct job_info *job);

/* What the policies of jobs change. Reading a policy takes some 20 us, and many jobs have the same
 * one: the last one that was read is kept. Begins as zeros. */
struct policy_reader {
    cJSON *usual;       /* an empty policy, with all keys */
    const char *policy; /* borrowed from the job that had it */
    char *changes;
};

/** "policy_changes": the keys of its policy that are not as built in, with their values; nothing if
 * the job has ended. */
void report_changes(struct document *document, cJSON *object, const struct job_info *job,
    struct policy_reader *reader);

void policy_reader_end(struct policy_reader *reader);

/** A number, or null if it is below 0: it is missing. */
void report_maybe(struct document *document, cJSON *object, const char *name, int64_t number);

/** A process id, or null for 0: a process that this daemon cannot name. */
void report_pid(struct document *document, cJSON *object, uint32_t pid);

/** The traffic to a peer. */
void report_link(struct document *document, cJSON *peer, const struct link_stats *link);

#endif
