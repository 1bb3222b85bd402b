#include "daemon/job/roster.h"

#include <math.h>
#include <stdlib.h>

#include "daemon/job/actions.h"
#include "daemon/job/job_index.h"
#include "daemon/job/job_state.h"
#include "daemon/job/machine.h"
#include "daemon/job/peer.h"
#include "daemon/job/ticket.h"
#include "daemon/link/link.h"

#define ROSTER_FRAMING 512u /* bytes of a message around its ranks, with the job's key */
#define ROSTER_RANK 64u     /* bytes of one rank in it, at most */

/* Bytes that may wait for a node that asks. */
#define ROSTER_UNREAD_MAX (256u * 1024)

static struct rank_info roster_rank(const struct rank *rank)
{
    const struct job *job = rank->job;
    const uint64_t step = job->store != NULL ? step_number(job) : 0;

    return (struct rank_info){.number = rank->number,
        .pid = rank->client.pid,
        .state = machine_state(&rank->machine),
        .step = step,
        .pushed = rank->pace.pushed_us != 0,
        .ended = rank->ended == step + 1,
        .pace_steps = rank->pace.steps,
        .pace_us = rank->pace.mean_us,
        .pace_last_us = rank->pace.last_us};
}

bool roster_local(const struct job *job, uint32_t index, struct rank_info *info)
{
    if (index < job->ranks) {
        *info = roster_rank(job->rank[index]);
    }
    return index < job->ranks;
}

const struct node_ranks *roster_node(const struct job *job, uint32_t index)
{
    return index < job->figures.roster.nodes ? &job->figures.roster.node[index] : NULL;
}

/* ------------------------------------------------------------------ the node that asks */

static void roster_clear(struct roster *roster)
{
    for (unsigned i = 0; i < roster->nodes; i++) {
        free(roster->node[i].rank);
    }
    free(roster->node);
    roster->node = NULL;
    roster->nodes = 0;
}

/* Asks all members that are up. The answers to earlier questions go. */
static enum adtopk_status roster_begin(struct job *job)
{
    struct roster *roster = &job->figures.roster;
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerRanksAsk ask = ADTOPK__PEER_RANKS_ASK__INIT;

    roster_clear(roster);
    roster->node = calloc(job->in_force.nodes, sizeof(*roster->node));
    if (roster->node == NULL) {
        return ADTOPK_ERR_MEMORY;
    }
    roster->awaited = 0;
    roster->due_us = job->core->now_us + ROSTER_WAIT_US;
    ask.number = ++roster->number;
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_RANKS_ASK;
    message.ranks_ask = &ask;
    for (unsigned i = 0; i < job->in_force.nodes; i++) {
        const uint16_t node = job->in_force.node[i];

        if (node != job->core->config.node) {
            roster->node[roster->nodes++] = (struct node_ranks){
                .node = node, .most = job->in_force.ranks[i], .asked = job_peer_is_up(job, node)};
        }
        if (node != job->core->config.node && job_peer_is_up(job, node)) {
            roster->awaited++;
            peer_offer(job, node, &message);
        }
    }
    return ADTOPK_OK;
}

/* Answers the clients that wait, with what is there. */
static void roster_finish(struct job *job)
{
    ticket_answer_all(
        job, &job->figures.roster.tickets, &(struct action){.type = ACTION_RANKS}, NULL);
}

enum adtopk_status roster_request(struct core *core, const struct event *event, struct error *err)
{
    struct job *job = job_by_number(core, event->asked.job);
    struct ticket *ticket;

    if (job == NULL || job->view == 0 || job_ended(job)) {
        return error_set(err, ADTOPK_ERR_STATE, "the job is not running: it has no nodes to ask");
    }
    if (ticket_count(job->figures.roster.tickets) >= ROSTER_ASKING_MAX) {
        return error_set(err, ADTOPK_ERR_STATE,
            "%u requests wait for the ranks of job '%s' already", ROSTER_ASKING_MAX, job->key.name);
    }
    ticket = ticket_create(event->asked.ticket);
    if (ticket == NULL || (job->figures.roster.tickets == NULL && roster_begin(job) != ADTOPK_OK)) {
        ticket_free(ticket);
        return error_set(
            err, ADTOPK_ERR_MEMORY, "no memory for the ranks of job '%s'", job->key.name);
    }
    ticket->next = job->figures.roster.tickets;
    job->figures.roster.tickets = ticket;
    if (job->figures.roster.awaited == 0) {
        roster_finish(job);
    }
    return ADTOPK_OK;
}

uint64_t roster_deadline(const struct job *job)
{
    return job->figures.roster.tickets != NULL ? job->figures.roster.due_us : UINT64_MAX;
}

void roster_check_time(struct job *job)
{
    if (job->core->now_us >= roster_deadline(job)) {
        roster_finish(job);
    }
}

void roster_drop(struct job *job)
{
    struct roster *roster = &job->figures.roster;

    ticket_free(roster->tickets);
    roster->tickets = NULL;
    roster_clear(roster);
}

/* ------------------------------------------------------------------ answers */

/* The node whose answer is awaited; NULL: none of this one. */
static struct node_ranks *roster_awaits(const struct roster *roster, uint16_t node)
{
    for (unsigned i = 0; roster->tickets != NULL && i < roster->nodes; i++) {
        if (roster->node[i].node == node) {
            return roster->node[i].asked && !roster->node[i].answered ? &roster->node[i] : NULL;
        }
    }
    return NULL;
}

/* Ranks of the run, each once, in states that there are. */
static bool roster_is_valid(
    const struct job *job, const struct node_ranks *node, const Adtopk__PeerRanks *answer)
{
    bool valid = answer->n_ranks <= node->most;

    for (size_t i = 0; valid && i < answer->n_ranks; i++) {
        const Adtopk__PeerRank *rank = answer->ranks[i];

        valid = rank->rank < job->run.world_size &&
                (i == 0 || rank->rank > answer->ranks[i - 1]->rank) && rank->state < RANK_STATES &&
                isfinite(rank->pace_us) && rank->pace_us >= 0;
    }
    return valid;
}

static struct rank_info roster_unpack(const Adtopk__PeerRank *rank)
{
    return (struct rank_info){.number = rank->rank,
        .pid = rank->pid,
        .state = rank_machine.state_name[rank->state],
        .step = rank->step,
        .pushed = rank->pushed != 0,
        .ended = rank->ended != 0,
        .pace_steps = rank->pace_steps,
        .pace_us = rank->pace_us,
        .pace_last_us = rank->pace_last_us};
}

/* Without memory the node counts as one that gave no answer. */
static void roster_take(struct node_ranks *node, const Adtopk__PeerRanks *answer)
{
    node->rank = calloc(answer->n_ranks + 1, sizeof(*node->rank));
    node->answered = node->rank != NULL;
    for (size_t i = 0; node->answered && i < answer->n_ranks; i++) {
        node->rank[node->ranks++] = roster_unpack(answer->ranks[i]);
    }
}

/* An answer to an earlier question, or a second one, means nothing any more. */
void roster_answered(struct job *job, uint16_t from, const Adtopk__PeerRanks *answer)
{
    struct roster *roster = &job->figures.roster;
    struct node_ranks *node = roster_awaits(roster, from);

    if (node == NULL || answer->number != roster->number) {
        job->core->late_messages++;
    } else if (!roster_is_valid(job, node, answer)) {
        job->core->bad_messages++;
    } else {
        node->asked = false;
        roster_take(node, answer);
        if (--roster->awaited == 0) {
            roster_finish(job);
        }
    }
}

/* ------------------------------------------------------------------ the nodes that are asked */

static void roster_pack(const struct rank *rank, Adtopk__PeerRank *packed)
{
    const struct rank_info info = roster_rank(rank);

    adtopk__peer_rank__init(packed);
    packed->rank = info.number;
    packed->pid = info.pid;
    packed->state = rank->machine.state;
    packed->step = info.step;
    packed->pushed = info.pushed;
    packed->ended = info.ended;
    packed->pace_steps = info.pace_steps;
    packed->pace_us = info.pace_us;
    packed->pace_last_us = info.pace_last_us;
}

static unsigned roster_fits(const struct job *job)
{
    const size_t longest = job->core->config.links.max_control_message;
    const size_t fits = longest > ROSTER_FRAMING ? (longest - ROSTER_FRAMING) / ROSTER_RANK : 0;

    return fits < job->ranks ? (unsigned)fits : job->ranks;
}

/* A node that asks without reading gets no more answers: they would take memory without end.
 * Without memory there is no answer either. */
void roster_asked(struct job *job, uint16_t from, const Adtopk__PeerRanksAsk *ask)
{
    const unsigned ranks = roster_fits(job);
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerRanks answer = ADTOPK__PEER_RANKS__INIT;
    Adtopk__PeerRank *packed, **list;

    if (membership_index(&job->in_force, from) < 0) {
        job->core->bad_messages++;
        return;
    }
    if (links_queued_control(job->core->links, from) > ROSTER_UNREAD_MAX) {
        return;
    }
    packed = calloc(ranks + 1, sizeof(*packed));
    list = calloc(ranks + 1, sizeof(*list));
    for (unsigned i = 0; packed != NULL && list != NULL && i < ranks; i++) {
        roster_pack(job->rank[i], &packed[i]);
        list[i] = &packed[i];
        answer.n_ranks++;
    }
    if (answer.n_ranks == ranks) {
        answer.number = ask->number;
        answer.ranks = list;
        message.kind_case = ADTOPK__PEER_MESSAGE__KIND_RANKS;
        message.ranks = &answer;
        peer_offer(job, from, &message);
    }
    free(packed);
    free(list);
}
