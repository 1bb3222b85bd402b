/*
 * Views: which nodes take part, agreed by all of them.
 *
 * The happy path: every node whose ranks have committed sends a join to all peers. When the joins
 * that a node has seen name every rank, the lowest node among them, the coordinator, proposes a
 * view with a number higher than any before (prepare). The others stop starting rounds, finish
 * what they compute, and answer with what they have delivered (state). From all answers the
 * coordinator makes the commit: rounds that anybody delivered are completed everywhere from that
 * copy, all others are retried. A first view and one after a restart go the same way.
 *
 * What can go wrong:
 * - a daemon restarts: its join carries a new incarnation, so a new view is proposed; the link has
 *   dropped all that was under way to the old one;
 * - the coordinator restarts: it learns the highest view number from the joins and answers and
 *   begins anew with a higher one; a commit for a lower number is ignored;
 * - nodes disagree (world size, policy, tensors, a rank twice), or residuals are gone: the job
 *   fails everywhere with a sentence that names the tensor, rank or node;
 * - somebody never comes: the job's time limits end the wait.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/model.h"
#include "peer.pb-c.h"
#include "proto/codec.h"

#define ALL_ROUNDS UINT32_MAX

/* Members */

struct member *view_member(const struct job *job, uint16_t node)
{
    for (unsigned i = 0; i < job->members; i++) {
        if (job->member[i]->node == node) {
            return job->member[i];
        }
    }
    return NULL;
}

int view_index(const struct job *job, uint16_t node)
{
    for (unsigned i = 0; i < job->view_nodes; i++) {
        if (job->view_node[i] == node) {
            return (int)i;
        }
    }
    return -1;
}

static struct member *member_add(struct job *job, uint16_t node)
{
    struct member *member = view_member(job, node);
    struct member **grown;
    unsigned at = job->members;

    if (member != NULL) {
        return member;
    }
    grown = realloc(job->member, (job->members + 1) * sizeof(struct member *));
    if (grown == NULL) {
        return NULL;
    }
    job->member = grown;
    member = calloc(1, sizeof(*member));
    if (member == NULL) {
        return NULL;
    }
    member->node = node;
    for (; at > 0 && grown[at - 1]->node > node; at--) {
        grown[at] = grown[at - 1];
    }
    grown[at] = member;
    job->members++;
    return member;
}

static struct member *self_member(const struct job *job)
{
    return view_member(job, job->core->config.node);
}

static uint64_t hash_text(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (; *text != '\0'; text++) {
        hash = (hash ^ (uint8_t)*text) * 0x100000001b3u;
    }
    return hash;
}

/* Copies what a join says into the member. */
static enum adtopk_status member_fill(
    struct member *member, const Adtopk__PeerJoin *join, uint64_t incarnation)
{
    uint32_t *rank = malloc(join->n_ranks * sizeof(*rank) + 1);
    uint64_t *tensor = malloc(join->n_tensors * sizeof(*tensor) + 1);

    if (rank == NULL || tensor == NULL) {
        free(rank);
        free(tensor);
        return ADTOPK_ERR_MEMORY;
    }
    if (join->n_ranks > 0) {
        (void)memcpy(rank, join->ranks, join->n_ranks * sizeof(*rank));
    }
    if (join->n_tensors > 0) {
        (void)memcpy(tensor, join->tensors, join->n_tensors * sizeof(*tensor));
    }
    if (member->incarnation != incarnation || member->ranks != join->n_ranks) {
        member->anew = true;
        member->left = false;
    }
    free(member->rank);
    free(member->tensor);
    member->incarnation = incarnation;
    member->policy = join->policy;
    member->world_size = join->world_size;
    member->view = join->view;
    member->rank = rank;
    member->ranks = (uint32_t)join->n_ranks;
    member->tensor = tensor;
    member->tensors = (uint32_t)join->n_tensors;
    return ADTOPK_OK;
}

/* Messages */

static bool send_to(const struct job *job, uint16_t node, Adtopk__PeerMessage *message)
{
    size_t size = 0;
    uint8_t *bytes;
    struct buffer *buffer;
    bool sent;

    message->job = job->id;
    bytes = codec_pack(&message->base, &size);
    buffer = bytes != NULL ? buffer_adopt(bytes, size) : NULL;
    if (buffer == NULL) {
        return false;
    }
    sent = links_send(job->core->links, node, LINK_CONTROL, buffer);
    buffer_unref(buffer);
    return sent;
}

/* To every other node of the view, or, before there is one, to every member that is known. */
static void send_to_members(const struct job *job, Adtopk__PeerMessage *message)
{
    for (unsigned i = 0; i < job->members; i++) {
        if (job->member[i]->node != job->core->config.node) {
            (void)send_to(job, job->member[i]->node, message);
        }
    }
}

/* Fills a join from this node's own member entry; its arrays are borrowed. */
static void own_join(const struct job *job, bool reply, Adtopk__PeerJoin *join)
{
    const struct member *self = self_member(job);

    adtopk__peer_join__init(join);
    join->owner = job->key.owner;
    join->name = (char *)(uintptr_t)job->key.name;
    join->run_id = (char *)(uintptr_t)job->key.run_id;
    join->world_size = self->world_size;
    join->ranks = self->rank;
    join->n_ranks = self->ranks;
    join->policy = self->policy;
    join->tensors = self->tensor;
    join->n_tensors = self->tensors;
    join->view = job->promised;
    join->reply = reply;
}

static void send_join(const struct job *job, uint16_t node, bool reply)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerJoin join;

    own_join(job, reply, &join);
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_JOIN;
    message.join = &join;
    (void)send_to(job, node, &message);
}

void view_send_split(struct job *job, uint64_t step, uint32_t bucket)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerSplit split = ADTOPK__PEER_SPLIT__INIT;

    split.step = step;
    split.bucket = bucket;
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_SPLIT;
    message.split = &split;
    send_to_members(job, &message);
}

void view_send_fail(struct job *job, const struct error *error)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerFail fail = ADTOPK__PEER_FAIL__INIT;

    fail.status = (uint32_t)error->code;
    fail.text = (char *)(uintptr_t)error->text;
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_FAIL;
    message.fail = &fail;
    send_to_members(job, &message);
}

void view_send_leave(struct job *job)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerLeave leave = ADTOPK__PEER_LEAVE__INIT;

    leave.steps_done = step_number(job);
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_LEAVE;
    message.leave = &leave;
    send_to_members(job, &message);
}

void view_send_fetch(struct job *job, uint16_t holder, uint64_t number, uint32_t bucket, bool op)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerFetch fetch = ADTOPK__PEER_FETCH__INIT;
    Adtopk__PeerRound round = ADTOPK__PEER_ROUND__INIT;

    round.number = number;
    round.bucket = bucket;
    round.operation = op;
    fetch.round = &round;
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_FETCH;
    message.fetch = &fetch;
    (void)send_to(job, holder, &message);
}

/* Agreement */

static void fail(struct job *job, enum adtopk_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void fail(struct job *job, enum adtopk_status code, const char *format, ...)
{
    struct error error = {.code = code};
    va_list args;

    va_start(args, format);
    (void)vsnprintf(error.text, sizeof(error.text), format, args);
    va_end(args);
    job_fail(job, &error, true);
}

/* Compares a member's join with this node's own. False, and the job has failed, if they differ. */
static bool agrees(struct job *job, const struct member *other)
{
    const struct member *self = self_member(job);
    uint16_t node = job->core->config.node;

    if (other->world_size != job->world_size) {
        fail(job, ADTOPK_ERR_MISMATCH, "job '%s' has %u ranks on node %u, but %u on node %u",
            job->key.name, job->world_size, node, other->world_size, other->node);
        return false;
    }
    if (other->policy != self->policy) {
        fail(job, ADTOPK_ERR_MISMATCH, "job '%s' has another policy on node %u than on node %u",
            job->key.name, other->node, node);
        return false;
    }
    for (uint32_t t = 0; t < self->tensors && t < other->tensors; t++) {
        if (self->tensor[t] != other->tensor[t]) {
            fail(job, ADTOPK_ERR_MISMATCH,
                "tensor %u, '%s' on node %u (rank %u), has another name, type, shape or form on "
                "node %u (rank %u)",
                t, job->tensor[t].spec.name, node, self->rank[0], other->node, other->rank[0]);
            return false;
        }
    }
    if (other->tensors != self->tensors) {
        fail(job, ADTOPK_ERR_MISMATCH,
            "node %u (rank %u) registered %u tensors, node %u (rank %u) %u; the first that differs "
            "is number %u",
            node, self->rank[0], self->tensors, other->node, other->rank[0], other->tensors,
            self->tensors < other->tensors ? self->tensors : other->tensors);
        return false;
    }
    return true;
}

/* The node that has the rank, among those whose join is current; -1: none yet, -2: two have it. */
static int rank_home(const struct job *job, uint32_t rank, uint16_t *second)
{
    int home = -1;

    for (unsigned i = 0; i < job->members; i++) {
        const struct member *member = job->member[i];
        for (uint32_t r = 0; member->incarnation != 0 && r < member->ranks; r++) {
            if (member->rank[r] != rank) {
                continue;
            }
            if (home >= 0) {
                *second = member->node;
                return -2;
            }
            home = member->node;
        }
    }
    return home;
}

void view_missing_ranks(const struct job *job, char *text, size_t size)
{
    uint16_t second;
    size_t used = 0;
    unsigned missing = 0;

    for (uint32_t rank = 0; rank < job->world_size; rank++) {
        int written;
        if (rank_home(job, rank, &second) != -1) {
            continue;
        }
        if (++missing > 8) {
            (void)snprintf(text + used, size - used, " and more");
            return;
        }
        written = snprintf(text + used, size - used, "%s%u", missing == 1 ? "rank " : ", ", rank);
        used += written > 0 && (size_t)written < size - used ? (size_t)written : 0;
    }
    if (missing == 0) {
        (void)snprintf(text, size, "the first view");
    }
}

/* True if the current joins name every rank once. */
static bool complete(struct job *job)
{
    uint32_t total = 0;
    uint16_t second = 0;

    for (unsigned i = 0; i < job->members; i++) {
        total += job->member[i]->incarnation != 0 ? job->member[i]->ranks : 0;
    }
    if (total < job->world_size) {
        return false;
    }
    for (uint32_t rank = 0; rank < job->world_size; rank++) {
        int home = rank_home(job, rank, &second);
        if (home == -2) {
            fail(job, ADTOPK_ERR_MISMATCH, "rank %u of job '%s' runs twice, once on node %u", rank,
                job->key.name, second);
            return false;
        }
        if (home < 0) {
            return false;
        }
    }
    return true;
}

static void on_prepare(struct job *job, uint16_t from, const Adtopk__PeerPrepare *prepare);

static bool in_view(const struct member *member)
{
    return member->incarnation != 0 && member->ranks > 0;
}

static void propose(struct job *job, uint32_t view)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerPrepare prepare = ADTOPK__PEER_PREPARE__INIT;

    prepare.view = view;
    prepare.members = malloc(job->members * sizeof(*prepare.members));
    prepare.incarnations = malloc(job->members * sizeof(*prepare.incarnations));
    if (prepare.members == NULL || prepare.incarnations == NULL) {
        fail(job, ADTOPK_ERR_MEMORY, "no memory to propose view %u", view);
    } else {
        for (unsigned i = 0; i < job->members; i++) {
            struct member *member = job->member[i];
            if (in_view(member)) {
                prepare.members[prepare.n_members++] = member->node;
                prepare.incarnations[prepare.n_incarnations++] = member->incarnation;
                member->answered = false;
            }
        }
        job->proposed = view;
        message.kind_case = ADTOPK__PEER_MESSAGE__KIND_PREPARE;
        message.prepare = &prepare;
        send_to_members(job, &message);
        on_prepare(job, job->core->config.node, &prepare);
    }
    free(prepare.members);
    free(prepare.incarnations);
}

/* Proposes a view if this node is to be its coordinator and there is reason for a new one. */
static void consider(struct job *job)
{
    uint32_t highest = job->promised > job->proposed ? job->promised : job->proposed;
    bool reason = job->view == 0;

    if (!complete(job)) {
        return;
    }
    for (unsigned i = 0; i < job->members; i++) {
        const struct member *member = job->member[i];
        if (!in_view(member)) {
            continue;
        }
        if (member->node < job->core->config.node) {
            return; /* somebody else's to propose */
        }
        highest = member->view > highest ? member->view : highest;
        reason = reason || member->anew;
    }
    if (reason) {
        propose(job, highest + 1);
    }
}

/* Notes this node's own ranks and tensors as if they had come in a join. */
static enum adtopk_status note_self(struct job *job)
{
    struct member *self = member_add(job, job->core->config.node);
    uint32_t *rank = malloc(job->ranks * sizeof(*rank));
    uint64_t *tensor = malloc(job->tensors * sizeof(*tensor));

    if (self == NULL || rank == NULL || tensor == NULL) {
        free(rank);
        free(tensor);
        return ADTOPK_ERR_MEMORY;
    }
    free(self->rank);
    free(self->tensor);
    self->rank = rank;
    self->ranks = 0;
    for (unsigned r = 0; r < job->ranks; r++) {
        if (job->rank[r]->machine.state >= RANK_MAPPED) {
            rank[self->ranks++] = job->rank[r]->number;
        }
    }
    self->tensor = tensor;
    self->tensors = job->tensors;
    for (uint32_t t = 0; t < job->tensors; t++) {
        tensor[t] = job->tensor[t].hash;
    }
    self->incarnation = job->core->config.incarnation;
    self->world_size = job->world_size;
    self->policy = hash_text(job->policy_text);
    self->anew = true;
    return ADTOPK_OK;
}

void view_joined(struct job *job)
{
    if (note_self(job) != ADTOPK_OK) {
        fail(job, ADTOPK_ERR_MEMORY, "no memory for job '%s'", job->key.name);
        return;
    }
    for (unsigned i = 0; i < job->members; i++) {
        if (job->member[i]->node != job->core->config.node && !agrees(job, job->member[i])) {
            return;
        }
    }
    for (unsigned i = 0; i < job->core->peers; i++) {
        send_join(job, job->core->peer[i].node, true);
    }
    consider(job);
}

void view_peer_up(struct core *core, uint16_t node)
{
    for (struct job *job = core->jobs; job != NULL; job = job->next) {
        struct member *member = view_member(job, node);
        if (job_ended(job)) {
            continue;
        }
        if (member != NULL && member->incarnation != links_incarnation(core->links, node)) {
            member->incarnation = 0; /* it restarted: its join was its predecessor's */
        }
        if (self_member(job) != NULL) {
            send_join(job, node, true);
        }
        view_try_answer(job);
    }
}

static void on_join(struct job *job, uint16_t from, const Adtopk__PeerJoin *join)
{
    struct member *member = member_add(job, from);
    uint64_t incarnation = links_incarnation(job->core->links, from);

    if (join->n_ranks == 0 || join->n_ranks > CORE_MAX_WORLD || join->world_size == 0 ||
        join->n_tensors > CORE_MAX_TENSORS) {
        job->core->bad_messages++;
        return;
    }
    if (member == NULL || member_fill(member, join, incarnation) != ADTOPK_OK) {
        fail(job, ADTOPK_ERR_MEMORY, "no memory for node %u of job '%s'", from, job->key.name);
        return;
    }
    if (self_member(job) == NULL || !agrees(job, member)) {
        return; /* compared when this node's own ranks have committed */
    }
    if (join->reply) {
        send_join(job, from, false);
    }
    consider(job);
}

/* Prepare and state */

static void freeze(struct job *job)
{
    for (uint32_t r = 0; job->round != NULL && r < job->rounds; r++) {
        round_freeze(&job->round[r]);
    }
    if (job->round != NULL) {
        round_freeze(&job->op_round);
    }
}

/* Answers that a higher number is promised already. */
static void refuse(struct job *job, uint16_t from)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerState state = ADTOPK__PEER_STATE__INIT;

    state.view = job->promised;
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_STATE;
    message.state = &state;
    (void)send_to(job, from, &message);
}

void view_drop_fetches(struct job *job)
{
    while (job->fetches != NULL) {
        struct fetch *fetch = job->fetches;
        job->fetches = fetch->next;
        free(fetch);
    }
}

/* Remembers whom the proposal is about. */
static enum adtopk_status note_members(struct job *job, const Adtopk__PeerPrepare *prepare)
{
    uint16_t *node = malloc(prepare->n_members * sizeof(*node));
    uint64_t *incarnation = malloc(prepare->n_members * sizeof(*incarnation));

    if (node == NULL || incarnation == NULL) {
        free(node);
        free(incarnation);
        return ADTOPK_ERR_MEMORY;
    }
    for (size_t i = 0; i < prepare->n_members; i++) {
        node[i] = (uint16_t)prepare->members[i];
        incarnation[i] = prepare->incarnations[i];
    }
    free(job->next_node);
    free(job->next_incarnation);
    job->next_node = node;
    job->next_incarnation = incarnation;
    job->next_nodes = (unsigned)prepare->n_members;
    return ADTOPK_OK;
}

static bool prepare_is_valid(const struct job *job, const Adtopk__PeerPrepare *prepare)
{
    bool self = false;

    if (self_member(job) == NULL || prepare->view == 0 || prepare->n_members == 0 ||
        prepare->n_members > CORE_MAX_NODES || prepare->n_members != prepare->n_incarnations) {
        return false;
    }
    for (size_t i = 0; i < prepare->n_members; i++) {
        if (prepare->members[i] >= UINT16_MAX ||
            (i > 0 && prepare->members[i] <= prepare->members[i - 1])) {
            return false;
        }
        self = self || prepare->members[i] == job->core->config.node;
    }
    return self;
}

static void on_prepare(struct job *job, uint16_t from, const Adtopk__PeerPrepare *prepare)
{
    struct error error;

    if (!prepare_is_valid(job, prepare)) {
        job->core->bad_messages++;
        return;
    }
    if (job->store == NULL) {
        if (plan_store(job, &error) != ADTOPK_OK) {
            job_fail(job, &error, true);
            return;
        }
        job->promised = job->store->view > job->promised ? job->store->view : job->promised;
    }
    if (prepare->view <= job->promised) {
        if (from == job->core->config.node) {
            propose(job, job->promised + 1); /* a restarted coordinator finds more in its store */
        } else {
            refuse(job, from);
        }
        return;
    }
    if (note_members(job, prepare) != ADTOPK_OK) {
        fail(job, ADTOPK_ERR_MEMORY, "no memory for view %u", prepare->view);
        return;
    }
    job->promised = prepare->view;
    job->store->view = prepare->view;
    job->coordinator = from;
    job->owes_state = true;
    view_drop_fetches(job);
    job->forming_since_us = job->core->now_us;
    machine_fire(&job->machine, JOB_ON_PREPARE, JOB_PREPARED);
    freeze(job);
    view_try_answer(job);
}

/* The open step's rounds that are delivered here. Returns their number. */
static uint32_t delivered_rounds(const struct job *job, uint32_t *list)
{
    uint32_t count = 0;

    for (uint32_t r = 0; r < job->rounds; r++) {
        if (step_round_active(job, &job->round[r]) && round_delivered(&job->round[r])) {
            list[count++] = r;
        }
    }
    return count;
}

static void on_state(struct job *job, uint16_t from, const Adtopk__PeerState *state);

/* Sends this node's state to the coordinator, which may be itself. */
static void answer(struct job *job)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerState state = ADTOPK__PEER_STATE__INIT;
    uint32_t *list = malloc((job->rounds + 2 * job->buckets) * sizeof(*list));
    uint64_t *step = malloc(job->buckets * sizeof(*step));

    job->owes_state = false;
    if (list == NULL || step == NULL) {
        free(list);
        free(step);
        fail(job, ADTOPK_ERR_MEMORY, "no memory for the state of job '%s'", job->key.name);
        return;
    }
    state.view = job->promised;
    state.steps_done = job->store->steps_done;
    state.ops_done = job->store->ops_done;
    state.fresh = job->store_fresh;
    state.delivered = list;
    state.n_delivered = delivered_rounds(job, list);
    state.split = list + job->rounds;
    state.split_step = step;
    for (uint32_t b = 0; b < job->buckets; b++) {
        if (job->round[b].split_step != UINT64_MAX) {
            state.split[state.n_split++] = b;
            step[state.n_split_step++] = job->round[b].split_step;
        }
    }
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_STATE;
    message.state = &state;
    if (job->coordinator == job->core->config.node) {
        on_state(job, job->coordinator, &state);
    } else {
        (void)send_to(job, job->coordinator, &message);
    }
    free(list);
    free(step);
}

/* Nothing is computed any more, so that the state stands; and every member is known by the same
 * start of its daemon as to the coordinator, so that no frame of the view goes to an old one. */
static bool can_answer(const struct job *job)
{
    if (job->computing > 0) {
        return false;
    }
    for (unsigned i = 0; i < job->next_nodes; i++) {
        if (job->next_node[i] != job->core->config.node &&
            links_incarnation(job->core->links, job->next_node[i]) != job->next_incarnation[i]) {
            return false;
        }
    }
    return true;
}

void view_try_answer(struct job *job)
{
    if (job->owes_state && can_answer(job)) {
        answer(job);
    }
}

/* A split that some node knows of holds for all. */
static void learn_splits(
    struct job *job, const uint32_t *bucket, size_t buckets, const uint64_t *step, size_t steps)
{
    for (size_t i = 0; i < buckets && i < steps; i++) {
        if (bucket[i] < job->buckets) {
            round_split(&job->round[bucket[i]], step[i]);
        }
    }
}

/* Commit */

/* What the coordinator puts together; `round` has room for `capacity` entries. */
struct decision {
    Adtopk__PeerRound *round;
    Adtopk__PeerRound **list;
    size_t count;
    size_t capacity;
};

static enum adtopk_status decide(
    struct decision *decision, uint64_t number, uint32_t bucket, bool op, uint16_t holder)
{
    if (decision->count == decision->capacity) {
        size_t capacity = decision->capacity * 2 + 16;
        Adtopk__PeerRound *grown = realloc(decision->round, capacity * sizeof(*grown));
        if (grown == NULL) {
            return ADTOPK_ERR_MEMORY;
        }
        decision->round = grown;
        decision->capacity = capacity;
    }
    adtopk__peer_round__init(&decision->round[decision->count]);
    decision->round[decision->count].number = number;
    decision->round[decision->count].bucket = bucket;
    decision->round[decision->count].operation = op;
    decision->round[decision->count].holder = holder;
    decision->count++;
    return ADTOPK_OK;
}

/* Checks that the answers fit together; the job fails if they do not. A new store is in order as
 * long as nothing was delivered anywhere: then nothing that it should hold has been applied. */
static bool coherent(struct job *job, uint64_t *steps, uint64_t *ops)
{
    bool delivered = false;

    *steps = 0;
    *ops = 0;
    for (unsigned i = 0; i < job->members; i++) {
        const struct member *member = job->member[i];
        if (in_view(member)) {
            *steps = member->steps_done > *steps ? member->steps_done : *steps;
            *ops = member->ops_done > *ops ? member->ops_done : *ops;
            delivered = delivered || member->delivered_count > 0;
        }
    }
    delivered = delivered || *steps > 0 || *ops > 0;
    for (unsigned i = 0; i < job->members; i++) {
        const struct member *member = job->member[i];
        if (in_view(member) && member->fresh && delivered) {
            fail(job, ADTOPK_ERR_LOST,
                "node %u came back without its residuals; the job is at step %llu", member->node,
                (unsigned long long)*steps);
            return false;
        }
        if (in_view(member) && (member->steps_done + 1 < *steps || member->ops_done + 1 < *ops)) {
            fail(job, ADTOPK_ERR_LOST, "node %u is at step %llu while others are at %llu",
                member->node, (unsigned long long)member->steps_done, (unsigned long long)*steps);
            return false;
        }
    }
    return true;
}

/* Lists every round that somebody delivered and somebody else may lack. */
static enum adtopk_status decide_rounds(
    const struct job *job, uint64_t steps, uint64_t ops, struct decision *decision)
{
    enum adtopk_status status = ADTOPK_OK;
    bool behind = false, ops_behind = false;

    for (unsigned i = 0; i < job->members; i++) {
        behind = behind || (in_view(job->member[i]) && job->member[i]->steps_done < steps);
        ops_behind = ops_behind || (in_view(job->member[i]) && job->member[i]->ops_done < ops);
    }
    for (unsigned i = 0; status == ADTOPK_OK && i < job->members; i++) {
        const struct member *member = job->member[i];
        if (!in_view(member)) {
            continue;
        }
        if (behind && member->steps_done == steps) {
            status = decide(decision, steps - 1, ALL_ROUNDS, false, member->node);
            behind = false;
        }
        if (status == ADTOPK_OK && ops_behind && member->ops_done == ops) {
            status = decide(decision, ops - 1, 0, true, member->node);
            ops_behind = false;
        }
        for (uint32_t d = 0;
             status == ADTOPK_OK && member->steps_done == steps && d < member->delivered_count;
             d++) {
            status = decide(decision, steps, member->delivered[d], false, member->node);
        }
    }
    return status;
}

static void on_commit(struct job *job, uint16_t from, const Adtopk__PeerCommit *commit);
static void answer_fetches(struct job *job);

static void send_commit(struct job *job, struct decision *decision)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerCommit commit = ADTOPK__PEER_COMMIT__INIT;
    uint32_t *bucket = malloc(job->buckets * sizeof(*bucket));
    uint64_t *step = malloc(job->buckets * sizeof(*step));

    decision->list = malloc((decision->count + 1) * sizeof(*decision->list));
    if (bucket == NULL || step == NULL || decision->list == NULL) {
        fail(job, ADTOPK_ERR_MEMORY, "no memory for view %u", job->promised);
    } else {
        for (size_t i = 0; i < decision->count; i++) {
            decision->list[i] = &decision->round[i];
        }
        commit.view = job->proposed;
        commit.delivered = decision->list;
        commit.n_delivered = decision->count;
        commit.split = bucket;
        commit.split_step = step;
        for (uint32_t b = 0; b < job->buckets; b++) {
            if (job->round[b].split_step != UINT64_MAX) {
                bucket[commit.n_split++] = b;
                step[commit.n_split_step++] = job->round[b].split_step;
            }
        }
        job->proposed = 0;
        message.kind_case = ADTOPK__PEER_MESSAGE__KIND_COMMIT;
        message.commit = &commit;
        send_to_members(job, &message);
        on_commit(job, job->core->config.node, &commit);
    }
    free(bucket);
    free(step);
    free(decision->list);
}

/* All answers are in. */
static void conclude(struct job *job)
{
    struct decision decision = {0};
    uint64_t steps, ops;

    if (coherent(job, &steps, &ops)) {
        if (decide_rounds(job, steps, ops, &decision) != ADTOPK_OK) {
            fail(job, ADTOPK_ERR_MEMORY, "no memory for view %u", job->proposed);
        } else {
            send_commit(job, &decision);
        }
    }
    free(decision.round);
}

static enum adtopk_status note_state(struct member *member, const Adtopk__PeerState *state)
{
    uint32_t *delivered = malloc(state->n_delivered * sizeof(*delivered) + 1);

    if (delivered == NULL) {
        return ADTOPK_ERR_MEMORY;
    }
    if (state->n_delivered > 0) {
        (void)memcpy(delivered, state->delivered, state->n_delivered * sizeof(*delivered));
    }
    free(member->delivered);
    member->delivered = delivered;
    member->delivered_count = (uint32_t)state->n_delivered;
    member->answered = true;
    member->fresh = state->fresh;
    member->steps_done = state->steps_done;
    member->ops_done = state->ops_done;
    return ADTOPK_OK;
}

static void on_state(struct job *job, uint16_t from, const Adtopk__PeerState *state)
{
    struct member *member = view_member(job, from);

    if (job->proposed == 0 || member == NULL || !in_view(member) || state->view < job->proposed) {
        return; /* the answer to a proposal that is over */
    }
    if (state->view > job->proposed) {
        member->view = state->view;
        member->anew = true;
        consider(job);
        return;
    }
    if (note_state(member, state) != ADTOPK_OK) {
        fail(job, ADTOPK_ERR_MEMORY, "no memory for the state of node %u", from);
        return;
    }
    learn_splits(job, state->split, state->n_split, state->split_step, state->n_split_step);
    for (unsigned i = 0; i < job->members; i++) {
        if (in_view(job->member[i]) && !job->member[i]->answered) {
            return;
        }
    }
    conclude(job);
}

/* Takes over the members that were prepared. False, and the job has failed, if they cannot be. */
static bool take_members(struct job *job)
{
    bool same = job->view_nodes == 0 || job->view_nodes == job->next_nodes;

    for (unsigned i = 0; i < job->next_nodes; i++) {
        same = same && (job->view_nodes == 0 || job->view_node[i] == job->next_node[i]);
    }
    if (!same) {
        fail(job, ADTOPK_ERR_MISMATCH, "the ranks of job '%s' moved to other nodes", job->key.name);
        return false;
    }
    free(job->view_node);
    job->view_node = job->next_node;
    job->view_nodes = job->next_nodes;
    job->next_node = NULL;
    job->next_nodes = 0;
    job->self = (unsigned)view_index(job, job->core->config.node);
    return true;
}

/* Fetches what others delivered and this node did not. */
static void fetch_delivered(struct job *job, const Adtopk__PeerCommit *commit)
{
    for (size_t i = 0; i < commit->n_delivered; i++) {
        const Adtopk__PeerRound *held = commit->delivered[i];
        if (held->operation && held->number == job->store->ops_done) {
            round_fetch(&job->op_round, (uint16_t)held->holder);
        }
        if (held->operation || held->number != job->store->steps_done) {
            continue;
        }
        for (uint32_t r = 0; r < job->rounds; r++) {
            if ((held->bucket == r || held->bucket == ALL_ROUNDS) &&
                step_round_active(job, &job->round[r])) {
                round_fetch(&job->round[r], (uint16_t)held->holder);
            }
        }
    }
}

/* Splits that came up after this node's answer, which the commit therefore may lack. */
static void repeat_splits(struct job *job)
{
    for (uint32_t b = 0; b < job->buckets; b++) {
        if (job->round[b].split_step != UINT64_MAX &&
            job->round[b].split_step >= job->store->steps_done) {
            view_send_split(job, job->round[b].split_step, b);
        }
    }
}

static void start_rounds(struct job *job)
{
    for (uint32_t r = 0; r < job->rounds && !job_ended(job); r++) {
        round_try(&job->round[r]);
    }
    if (!job_ended(job)) {
        round_try(&job->op_round);
    }
    if (!job_ended(job)) {
        step_check(job);
    }
}

static void on_commit(struct job *job, uint16_t from, const Adtopk__PeerCommit *commit)
{
    bool first = job->results == NULL;
    struct error error;

    if (job->machine.state != JOB_PREPARED || from != job->coordinator ||
        commit->view != job->promised || job->owes_state || job->next_nodes == 0) {
        return; /* a proposal that a higher one has replaced */
    }
    if (!take_members(job)) {
        return;
    }
    if (first && plan_results(job, &error) != ADTOPK_OK) {
        job_fail(job, &error, true);
        return;
    }
    job->view = commit->view;
    job->store_fresh = false;
    for (unsigned i = 0; i < job->members; i++) {
        job->member[i]->anew = false;
    }
    round_drop_parked(job, job->view);
    learn_splits(job, commit->split, commit->n_split, commit->split_step, commit->n_split_step);
    machine_fire(&job->machine, JOB_ON_COMMIT, JOB_ACTIVE);
    if (first) {
        for (unsigned r = 0; r < job->ranks; r++) {
            rank_ready(job->rank[r]);
        }
        step_open(job);
        round_open(&job->op_round);
    }
    answer_fetches(job);
    fetch_delivered(job, commit);
    repeat_splits(job);
    start_rounds(job);
    job_try_leave(job);
}

static void on_split(struct job *job, const Adtopk__PeerSplit *split)
{
    if (job->round == NULL || split->bucket >= job->buckets ||
        split->step > job->store->steps_done + 1) {
        return; /* before the plan: the commit repeats it */
    }
    round_split(&job->round[split->bucket], split->step);
}

static void send_held(struct job *job, const struct fetch *fetch)
{
    if (fetch->op && fetch->number + 1 == job->store->ops_done) {
        round_send_copy(&job->op_round, fetch->node, fetch->number);
    } else if (!fetch->op && fetch->bucket < job->rounds) {
        const struct round *round = &job->round[fetch->bucket];
        if (fetch->number + 1 == job->store->steps_done ||
            (fetch->number == job->store->steps_done && round_delivered(round))) {
            round_send_copy(round, fetch->node, fetch->number);
        }
    }
}

/* Answers the fetches that came before this node's own commit did. */
static void answer_fetches(struct job *job)
{
    while (job->fetches != NULL && !job_ended(job)) {
        struct fetch *fetch = job->fetches;
        job->fetches = fetch->next;
        send_held(job, fetch);
        free(fetch);
    }
}

static void on_fetch(struct job *job, uint16_t from, const Adtopk__PeerFetch *message)
{
    const Adtopk__PeerRound *held = message->round;
    struct fetch *fetch = held != NULL ? malloc(sizeof(*fetch)) : NULL;

    if (fetch == NULL || view_member(job, from) == NULL) {
        free(fetch);
        job->core->bad_messages++;
        return;
    }
    *fetch = (struct fetch){.next = job->fetches,
        .node = from,
        .number = held->number,
        .bucket = held->bucket,
        .op = held->operation};
    job->fetches = fetch;
    if (job->machine.state == JOB_ACTIVE) {
        answer_fetches(job);
    }
}

static void on_fail(struct job *job, uint16_t from, const Adtopk__PeerFail *failed)
{
    struct error error;

    (void)error_set(&error,
        failed->status > ADTOPK_NONFINITE && failed->status < ADTOPK_STATUS_COUNT
            ? (enum adtopk_status)failed->status
            : ADTOPK_ERR_PROTOCOL,
        "%.200s (said node %u)", failed->text, from);
    job_fail(job, &error, false);
}

static void dispatch(struct job *job, uint16_t from, const Adtopk__PeerMessage *message)
{
    switch (message->kind_case) {
    case ADTOPK__PEER_MESSAGE__KIND_JOIN: on_join(job, from, message->join); break;
    case ADTOPK__PEER_MESSAGE__KIND_PREPARE: on_prepare(job, from, message->prepare); break;
    case ADTOPK__PEER_MESSAGE__KIND_STATE: on_state(job, from, message->state); break;
    case ADTOPK__PEER_MESSAGE__KIND_COMMIT: on_commit(job, from, message->commit); break;
    case ADTOPK__PEER_MESSAGE__KIND_FETCH: on_fetch(job, from, message->fetch); break;
    case ADTOPK__PEER_MESSAGE__KIND_SPLIT: on_split(job, message->split); break;
    case ADTOPK__PEER_MESSAGE__KIND_FAIL: on_fail(job, from, message->fail); break;
    case ADTOPK__PEER_MESSAGE__KIND_LEAVE:
        job_peer_left(job, from, message->leave->steps_done);
        break;
    default: job->core->bad_messages++; break;
    }
}

void view_message(struct core *core, uint16_t node, struct buffer *buffer)
{
    Adtopk__PeerMessage *message = (Adtopk__PeerMessage *)codec_unpack(
        &adtopk__peer_message__descriptor, buffer->bytes, buffer->size, CODEC_PEER_MAX, NULL);
    struct job *job = message != NULL ? job_find(core, message->job) : NULL;

    if (message == NULL) {
        core->bad_messages++;
    } else if (job != NULL) {
        dispatch(job, node, message);
    }
    codec_free((ProtobufCMessage *)message);
}
