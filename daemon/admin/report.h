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
#include "daemon/admin/history.h"
#include "daemon/core/inspect.h"

#define REPORT_MAX_TENSORS 1024u /* described one by one, a job; the rest is only counted */

/* What the transport says of its protection, and how much it refused since the start. */
struct report_network {
    const char *protection;            /* "curve", "control only" or "none"; NULL: no other nodes */
    uint64_t keys, handshakes, tokens; /* connections, by the reason */
    uint64_t packets;
};

/* CPU time of the longest turns of the daemon's loop. */
struct report_turns {
    uint64_t longest_us; /* since the start */
    uint64_t minute_us;  /* in the last minute */
};

/* What the documents are about: the core, and what it does not know of its daemon. */
struct report_daemon {
    const struct core *core;
    const struct history *history;
    uint16_t node;
    uint64_t incarnation;
    uint64_t uptime_s;
    double clock_s; /* monotonic, from any moment on */
    uint32_t sessions;
    bool draining;
    struct report_network network;
    struct report_turns turns;
};

char *report_status(const struct report_daemon *daemon);

char *report_jobs(const struct report_daemon *daemon);

char *report_peers(const struct report_daemon *daemon);

char *report_drain(const struct report_daemon *daemon);

/** `job`: only jobs that it fits (jobname.h), or all if it is empty. *found tells whether there
 * was such a job. */
char *report_stats(const struct report_daemon *daemon, const char *job, bool *found);

/** The tensors of a live job from number `first` on. */
char *report_tensors(
    const struct report_daemon *daemon, const struct job_info *job, uint32_t first);

/** The plan of a live job, its tensors from number `first` on, and what the planner thinks. */
char *report_plan(const struct report_daemon *daemon, const struct job_info *job, uint32_t first);

/** The policy of a live job. */
char *report_policy(const struct report_daemon *daemon, const struct job_info *job);

/** The daemon's default policy: its document on top of the built-in one (NULL: nothing). */
char *report_default_policy(const char *policy);

/** A change that was agreed on: this version holds from this step on. */
char *report_policy_change(const struct report_daemon *daemon, const struct job_info *job,
    uint32_t version, uint64_t step);

/** Who changed the policy of a job that lives or has ended. */
char *report_policy_log(const struct report_daemon *daemon, const struct job_info *job);

/** What the verification at the end of `step` found in the tensors of a live job. */
char *report_verify(const struct report_daemon *daemon, const struct job_info *job, uint64_t step);

/* Parts of several documents. */

/** "name", "run_id" and "owner" of a job. */
void report_key(struct document *document, cJSON *object, const struct job_key *key);

/** "unmatched_rules": the patterns of its policy's rules that match no tensor. */
void report_unmatched(struct document *document, cJSON *object, const struct report_daemon *daemon,
    const struct job_info *job);

/** What went over the link to a peer. */
void report_link(struct document *document, cJSON *peer, const struct link_stats *link);

#endif
