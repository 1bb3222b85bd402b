#include "daemon/job/views_peer.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/job/job_fail.h"
#include "daemon/job/job_index.h"
#include "daemon/job/members.h"
#include "daemon/job/peer.h"

/* ------------------------------------------------------------------ out */

static bool views_fill(
    const uint16_t *node, uint32_t nodes, uint16_t tie_breaker, Adtopk__PeerView *message)
{
    message->tie_breaker = tie_breaker + 1u;
    message->members = malloc(nodes * sizeof(*message->members) + 1);
    for (uint32_t i = 0; message->members != NULL && i < nodes; i++) {
        message->members[i] = node[i];
    }
    message->n_members = nodes;
    return message->members != NULL;
}

bool views_fill_known(const struct views *views, Adtopk__PeerView *message)
{
    const struct known_view *known = views_known(views);

    adtopk__peer_view__init(message);
    message->view = known->view;
    message->founders = views->founders;
    /* Copies, because the views may move to the store before the message is sent. */
    message->ranks = malloc(known->nodes * sizeof(*message->ranks) + 1);
    message->since = malloc(known->nodes * sizeof(*message->since) + 1);
    if (!views_fill(known->node, known->nodes, known->tie_breaker, message) ||
        message->ranks == NULL || message->since == NULL) {
        views_drop_message(message);
        return false;
    }
    (void)memcpy(message->ranks, known->ranks, known->nodes * sizeof(*known->ranks));
    (void)memcpy(message->since, known->since, known->nodes * sizeof(*known->since));
    message->n_ranks = message->n_since = known->nodes;
    return true;
}

void views_drop_message(Adtopk__PeerView *message)
{
    free(message->members);
    free(message->ranks);
    free(message->since);
    message->members = message->ranks = NULL;
    message->since = NULL;
}

static bool views_fill_promised(const struct views *views, Adtopk__PeerView *promised,
    Adtopk__PeerView **list, Adtopk__PeerState *state)
{
    state->promised = list;
    for (unsigned i = 0; i < VIEWS_PROMISED; i++) {
        const struct promised_view *view = &views->promised[i];
        Adtopk__PeerView *next = &promised[state->n_promised];
        if (!views_counts(views, i)) {
            continue;
        }
        adtopk__peer_view__init(next);
        next->view = view->view;
        if (!views_fill(view->node, view->nodes, view->tie_breaker, next)) {
            return false;
        }
        list[state->n_promised++] = next;
    }
    return true;
}

void views_refuse(struct job *job, uint16_t node, uint32_t view)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerState state = ADTOPK__PEER_STATE__INIT;
    Adtopk__PeerView known, promised[VIEWS_PROMISED], *list[VIEWS_PROMISED];
    bool filled;

    state.view = view;
    state.outvoted = true;
    state.known = &known;
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_STATE;
    message.state = &state;
    filled = views_fill_known(job->agreement.views, &known) &&
             views_fill_promised(job->agreement.views, promised, list, &state);
    if (filled) {
        peer_send(job, node, &message);
    }
    views_drop_message(&known);
    for (size_t i = 0; i < state.n_promised; i++) {
        views_drop_message(list[i]);
    }
    if (!filled) {
        job_fail_with(job, ADTOPK_ERR_MEMORY, "no memory to answer node %u", node);
    }
}

/* ------------------------------------------------------------------ in */

/* Reads ascending nodes, and which of them breaks ties. False: that cannot be a view. */
static bool views_read(const Adtopk__PeerView *message, uint16_t *node, uint16_t *tie_breaker)
{
    bool decides = message->tie_breaker == 0;

    if (message->view == 0 || message->n_members == 0 || message->n_members > CORE_MAX_NODES) {
        return false;
    }
    for (size_t i = 0; i < message->n_members; i++) {
        if (message->members[i] >= UINT16_MAX ||
            (i > 0 && message->members[i] <= message->members[i - 1])) {
            return false;
        }
        node[i] = (uint16_t)message->members[i];
        decides = decides || message->members[i] + 1 == message->tie_breaker;
    }
    *tie_breaker = message->tie_breaker != 0 ? (uint16_t)(message->tie_breaker - 1) : node[0];
    return decides;
}

/* Reads a known view; false: it is none. */
static bool views_read_known(const Adtopk__PeerView *message, struct known_view *known)
{
    *known = (struct known_view){.view = message != NULL ? message->view : 0};
    if (message == NULL || !views_read(message, known->node, &known->tie_breaker) ||
        message->n_ranks != message->n_members || message->n_since != message->n_members) {
        return false;
    }
    for (size_t i = 0; i < message->n_since; i++) {
        if (message->since[i] == SINCE_UNKNOWN) {
            return false;
        }
    }
    known->nodes = (uint32_t)message->n_members;
    (void)memcpy(known->ranks, message->ranks, message->n_ranks * sizeof(*known->ranks));
    (void)memcpy(known->since, message->since, message->n_since * sizeof(*known->since));
    return true;
}

bool views_hear_known(struct views *views, const Adtopk__PeerView *message)
{
    struct known_view known;

    if (!views_read_known(message, &known)) {
        return false;
    }
    if (views->founders == 0 && message->founders >= known.nodes &&
        message->founders <= CORE_MAX_NODES) {
        views->founders = message->founders;
    }
    return views_learn(views, &known);
}

static bool views_names(const Adtopk__PeerView *message, uint16_t node)
{
    for (size_t i = 0; message != NULL && i < message->n_members; i++) {
        if (message->members[i] == node) {
            return true;
        }
    }
    return false;
}

/* This node joins the job, whose known view this is. False: that cannot be a view. */
static bool views_hear_to_join(struct views *views, const Adtopk__PeerView *message)
{
    struct known_view known;

    if (!views_read_known(message, &known) || message->founders < known.nodes ||
        message->founders > CORE_MAX_NODES) {
        return false;
    }
    views_adopt(views, &known, message->founders);
    return true;
}

bool views_hear_proposer(const struct job *job, const Adtopk__PeerPrepare *prepare)
{
    struct views *views = job->agreement.views;

    if (prepare->known == NULL) {
        return views_known(views)->nodes == 0;
    }
    if (job->view == 0 && !views_names(prepare->known, job->core->config.node)) {
        return views_hear_to_join(views, prepare->known);
    }
    (void)views_hear_known(views, prepare->known);
    return views_known(views)->view == prepare->known->view;
}

/* The node that may make the proposal: of its members, the lowest of those that have been in the
 * known view longest. */
static uint64_t views_proposer(const Adtopk__PeerPrepare *prepare)
{
    const Adtopk__PeerView *known = prepare->known;
    uint64_t proposer = UINT64_MAX, since = UINT64_MAX;

    if (known == NULL) {
        return prepare->members[0];
    }
    for (size_t i = 0, k = 0;
         i < prepare->n_members && k < known->n_members && known->n_since == known->n_members;) {
        if (prepare->members[i] == known->members[k] && known->since[k] < since) {
            since = known->since[k];
            proposer = prepare->members[i];
        }
        if (prepare->members[i] <= known->members[k]) {
            i++;
        } else {
            k++;
        }
    }
    return proposer;
}

/* Whether the run's number is this job's, or may become it. */
static bool views_name_run(const struct job *job, const Adtopk__PeerPrepare *prepare)
{
    const struct job *other = job_find_run(job->core, prepare->run);

    return prepare->run != 0 && (other == NULL || other == job) &&
           (job->run.id == 0 || job->run.id == prepare->run);
}

bool views_prepare_is_valid(
    const struct job *job, uint16_t from, const Adtopk__PeerPrepare *prepare)
{
    bool self = false, decides = prepare->tie_breaker == 0;

    if (members_self(job) == NULL || prepare->view == 0 ||
        prepare->view - 1 > (uint64_t)job->agreement.promised + VIEW_JUMP ||
        prepare->n_members == 0 || prepare->n_members > CORE_MAX_NODES ||
        prepare->n_members != prepare->n_incarnations || prepare->n_members != prepare->n_jobs ||
        prepare->n_members != prepare->n_ranks || views_proposer(prepare) != from ||
        !views_name_run(job, prepare)) {
        return false;
    }
    for (size_t i = 0; i < prepare->n_members; i++) {
        if (prepare->members[i] >= UINT16_MAX || prepare->ranks[i] == 0 ||
            prepare->ranks[i] > job->run.world_size ||
            (i > 0 && prepare->members[i] <= prepare->members[i - 1])) {
            return false;
        }
        self = self ||
               (prepare->members[i] == job->core->config.node && prepare->jobs[i] == job->number);
        decides = decides || prepare->members[i] + 1 == prepare->tie_breaker;
    }
    return self && decides;
}

bool views_hear_refusal(struct views *views, const Adtopk__PeerState *state)
{
    bool news = views_hear_known(views, state->known);

    for (size_t i = 0; i < state->n_promised; i++) {
        struct promised_view heard = {
            .view = state->promised[i]->view, .nodes = (uint32_t)state->promised[i]->n_members};
        if (views_read(state->promised[i], heard.node, &heard.tie_breaker)) {
            news |= views_learn_promised(views, &heard);
        }
    }
    return news;
}

void views_left_out(struct job *job)
{
    job->ending.alone = true;
    job_fail_with(job, ADTOPK_ERR_PEER,
        "the other nodes of job '%s' lost node %u and went on without it", job->key.name,
        job->core->config.node);
}
