/*
 * The reason for which a job waits. job/info.h has the structure.
 *
 * The happy path: while a job moves, nodes say nothing. When it has not moved for 1 s, this node
 * tells the other members what it sees. That is a late rank of its own, a node that does not
 * answer, or a frame that does not come. Where steps take longer than half a second, it waits twice
 * as long as a step for pushes, calls, computes and frames. Short time limits shorten both times.
 * The node repeats its report every 5 s, and says once that it is over. So every member can name
 * the culprit, even if only one of them sees it. And a node whose own ranks are all late learns
 * that others wait for them.
 *
 * What could go wrong: a message may be lost for want of memory; the next one repeats it. A node
 * may fall silent; its reports are forgotten after WAITING_HEARD_US. A node may lie; it can only
 * accuse itself and its own ranks of being late.
 */
#ifndef ADTOPK_CORE_WAITING_H
#define ADTOPK_CORE_WAITING_H

#include "daemon/job/model.h"
#include "peer.pb-c.h"

#define WAITING_TELL_US UINT64_C(1000000)
#define WAITING_REPEAT_US UINT64_C(5000000)
#define WAITING_HEARD_US (3 * WAITING_REPEAT_US)

/** The first node of the view that is down, or that restarted and has not joined again; or -1. */
int waiting_lost_node(const struct job *job);

/** Whether the place of a rank on another node is vacant, as that node says. */
bool waiting_hears_vacant(const struct job *job);

/** Whether a rank of this node is late in the open step or operation, or its place vacant. */
bool waiting_is_culprit(const struct job *job);

/** The reason for which the job waits, as far as this node or another member knows. */
struct waiting waiting_find(const struct job *job);

/** The member's last report about its waiting, or NULL if there is none lately. */
const struct waiting *waiting_heard(const struct job *job, const struct member *member);

/** The reason as the end of a sentence that begins with "waits for"; "" for WAIT_NOTHING. */
const char *waiting_text(
    const struct job *job, const struct waiting *waiting, char *text, size_t size);

/** Whether the job has waited for this for core_config.stuck_us. */
bool waiting_is_stuck(const struct job *job, const struct waiting *waiting);

/** When waiting_look() is due; UINT64_MAX: never. */
uint64_t waiting_deadline(const struct job *job);

/** Tells the other members, notes when the job becomes stuck and when that ends, and fails the job
 * if a live node is overdue (overdue.h). Does nothing before waiting_deadline(). */
void waiting_look(struct job *job);

/** Handles another member's report about its waiting. */
void waiting_message(struct job *job, uint16_t from, const Adtopk__PeerWaiting *message);

#endif
