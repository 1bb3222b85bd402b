#include "daemon/core/waiting.h"

#include <stdio.h>

#include "daemon/compute/successor.h"
#include "daemon/core/overdue.h"
#include "daemon/job/job_fail.h"
#include "daemon/job/job_state.h"
#include "daemon/job/machine.h"
#include "daemon/job/members.h"
#include "daemon/job/notes.h"
#include "daemon/job/peer.h"

#define TEXT_SIZE 160

/* ------------------------------------------------------------------ reasons that this node sees */

int waiting_lost_node(const struct job *job)
{
    const struct member *lost = members_first(job, member_is_away);

    return lost != NULL ? lost->node : -1;
}

/* Whether the rank has not called the next plain operation. */
static bool waiting_owes_call(const struct rank *rank)
{
    return rank->submitted != rank->job->store->ops_done + 1;
}

/* A tensor of the current step that some local rank has not pushed, and that rank. A rank in an
 * operation waits itself. */
static bool missing_push(const struct job *job, const struct rank **late, uint32_t *tensor)
{
    const uint64_t step = step_number(job) + 1;

    for (unsigned i = 0; i < job->ranks; i++) {
        *late = job->rank[i];
        *tensor = (*late)->ended != step && waiting_owes_call(*late) ? 0 : job->tensors;
        while (*tensor < job->tensors && (*late)->pushed[*tensor] == step) {
            ++*tensor;
        }
        if (*tensor < job->tensors) {
            return true;
        }
    }
    return false;
}

static bool waiting_owes_leave(const struct rank *rank)
{
    return rank->machine.state != RANK_LEFT;
}

/* Whether the rank has not mapped the batch of tensors that others have. */
static bool waiting_owes_commit(const struct rank *rank)
{
    return rank->job->registering.since_us != 0 && rank->mapped == rank->job->batches;
}

/* The first local rank of which that is true; NULL: there is none. */
static const struct rank *waiting_first(
    const struct job *job, bool (*owes)(const struct rank *rank))
{
    for (unsigned i = 0; i < job->ranks; i++) {
        if (owes(job->rank[i])) {
            return job->rank[i];
        }
    }
    return NULL;
}

static bool waiting_owes_batch(const struct job *job, const struct member *member)
{
    return member->batches == job->batches;
}

/* A round that waits for the frame of another node, or NULL. */
static const struct round *late_round(const struct job *job)
{
    for (uint32_t r = 0; r < job->plan->rounds; r++) {
        if (round_late_node(&job->plan->round[r]) >= 0) {
            return &job->plan->round[r];
        }
    }
    return round_late_node(&job->op.round) >= 0 ? &job->op.round : NULL;
}

/* A reason without a node or rank. If the job moved since, it has waited only since then. */
static struct waiting wait_for(
    const struct job *job, enum wait_kind kind, bool operation, uint64_t since_us)
{
    return (struct waiting){.kind = kind,
        .operation = operation,
        .number = job->store == NULL ? 0
                  : operation        ? job->store->ops_done
                                     : step_number(job),
        .rank = -1,
        .node = -1,
        .since_us = since_us > job->waits.moved_us ? since_us : job->waits.moved_us};
}

static struct waiting wait_for_rank(
    const struct job *job, enum wait_kind kind, const struct rank *rank, uint64_t since_us)
{
    struct waiting waiting = wait_for(job, kind, kind == WAIT_CALL, since_us);

    waiting.rank = (int32_t)rank->number;
    waiting.node = job->core->config.node;
    waiting.pid = rank->client.pid;
    return waiting;
}

/* The local ranks have done their part: a frame is missing, or computes are under way. */
static struct waiting wait_for_round(const struct job *job, bool operation, uint64_t since_us)
{
    const struct round *late = late_round(job);
    struct waiting waiting = wait_for(job, late != NULL ? WAIT_FRAME : WAIT_COMPUTE,
        late != NULL ? late->op : operation, since_us);

    waiting.node = late != NULL ? round_late_node(late) : job->core->config.node;
    waiting.relayed = late != NULL && round_relays(late);
    return waiting;
}

const struct waiting *waiting_heard(const struct job *job, const struct member *member)
{
    if (member == NULL || member->told.kind == WAIT_NOTHING || member->incarnation == 0 ||
        job->core->now_us - member->told_us > WAITING_HEARD_US ||
        !job_peer_is_up(job, member->node)) {
        return NULL;
    }
    return &member->told;
}

/* Since when another member waits in the step or operation that is the next here; 0: none does. */
static uint64_t awaited_since(const struct job *job, bool operation)
{
    uint64_t number = operation ? job->store->ops_done : step_number(job);

    for (unsigned i = 0; i < job->members; i++) {
        const struct waiting *told = waiting_heard(job, job->member[i]);
        if (told != NULL && told->kind >= WAIT_PUSH && told->kind <= WAIT_FRAME &&
            told->operation == operation && told->number == number) {
            return told->since_us;
        }
    }
    return 0;
}

/* Since when the next step or operation has been under way, here or elsewhere; 0: it is not. */
static uint64_t waiting_since(const struct job *job, bool operation)
{
    const uint64_t here_us = operation ? job->op.since_us : job->step.since_us;

    return here_us != 0 ? here_us : awaited_since(job, operation);
}

static struct waiting wait_in_operation(const struct job *job, uint64_t since_us)
{
    const struct rank *late = waiting_first(job, waiting_owes_call);

    return late != NULL ? wait_for_rank(job, WAIT_CALL, late, since_us)
                        : wait_for_round(job, true, since_us);
}

static struct waiting wait_in_step(const struct job *job, uint64_t since_us)
{
    const uint64_t called_us = waiting_since(job, true);
    const struct rank *late;
    uint32_t tensor;

    if (missing_push(job, &late, &tensor)) {
        struct waiting waiting = wait_for_rank(job, WAIT_PUSH, late, since_us);
        waiting.tensor = tensor;
        return waiting;
    }
    if (called_us != 0 && waiting_first(job, waiting_owes_call) != NULL) {
        return wait_in_operation(job, called_us);
    }
    return wait_for_round(job, false, since_us);
}

/* The reason if no step or operation is under way. */
static struct waiting wait_at_rest(const struct job *job)
{
    const struct rank *late = waiting_first(job, waiting_owes_leave);

    if (job->switching.machine.state == SWITCH_PROPOSED) {
        return wait_for(job, WAIT_BEGIN, false, 0);
    }
    if (late != NULL && job->ending.leaving_us != 0) {
        return wait_for_rank(job, WAIT_LEAVE, late, job->ending.leaving_us);
    }
    return wait_for(job, WAIT_NOTHING, false, 0);
}

/* More tensors are being committed: the job waits for ranks that have not done so. */
static struct waiting wait_in_batch(const struct job *job)
{
    const struct rank *late = waiting_first(job, waiting_owes_commit);
    const struct member *member = members_first(job, waiting_owes_batch);
    struct waiting waiting = wait_for(job, WAIT_COMMIT, false, job->registering.since_us);

    if (late != NULL) {
        return wait_for_rank(job, WAIT_COMMIT, late, job->registering.since_us);
    }
    waiting.node = member != NULL ? member->node : -1;
    return waiting;
}

static struct waiting wait_in_active(const struct job *job)
{
    const uint64_t step_us = waiting_since(job, false), operation_us = waiting_since(job, true);

    if (job->ending.left_since_us != 0) {
        struct waiting waiting = wait_for(job, WAIT_LEAVE, false, job->ending.left_since_us);
        const struct member *staying = members_staying(job);
        waiting.node = staying != NULL ? staying->node : -1;
        return waiting;
    }
    if (job->switching.machine.state >= SWITCH_HELD) {
        return wait_for(job, WAIT_SWITCH, false, 0);
    }
    if (job->registering.since_us != 0) {
        return wait_in_batch(job);
    }
    if (step_us != 0) {
        return wait_in_step(job, step_us);
    }
    return operation_us != 0 ? wait_in_operation(job, operation_us) : wait_at_rest(job);
}

static struct waiting wait_here(const struct job *job)
{
    const struct rank *vacant = successor_vacant(job);
    int lost = waiting_lost_node(job);

    if (job_ended(job)) {
        return wait_for(job, WAIT_NOTHING, false, 0);
    }
    if (lost >= 0) {
        struct waiting waiting =
            wait_for(job, job_peer_is_up(job, (uint16_t)lost) ? WAIT_RETURN : WAIT_PEER, false, 0);
        waiting.node = lost;
        waiting.since_us =
            job->waits.lost_since_us != 0 ? job->waits.lost_since_us : waiting.since_us;
        return waiting;
    }
    if (vacant != NULL) {
        struct waiting waiting = wait_for_rank(job, WAIT_VACANT, vacant, 0);
        waiting.since_us = vacant->vacancy.since_us;
        waiting.deserted = successor_all_ended(job);
        return waiting;
    }
    switch (job->machine.state) {
    case JOB_FORMING: return wait_for(job, WAIT_FORMING, false, job->waits.forming_since_us);
    case JOB_PREPARED: return wait_for(job, WAIT_AGREE, false, job->waits.forming_since_us);
    default: return wait_in_active(job);
    }
}

bool waiting_hears_vacant(const struct job *job)
{
    for (unsigned i = 0; job->waits.heard_us != 0 && i < job->members; i++) {
        const struct waiting *told = waiting_heard(job, job->member[i]);
        if (told != NULL && told->kind == WAIT_VACANT) {
            return true;
        }
    }
    return false;
}

bool waiting_is_culprit(const struct job *job)
{
    const struct rank *late;
    uint32_t tensor;

    if (successor_vacant(job) != NULL) {
        return true;
    }
    if (job->registering.since_us != 0) {
        return waiting_first(job, waiting_owes_commit) != NULL;
    }
    return (job->step.since_us != 0 && missing_push(job, &late, &tensor)) ||
           (job->op.since_us != 0 && waiting_first(job, waiting_owes_call) != NULL);
}

/* ------------------------------------------------------------------ reasons that members see */

/* The distance of a reason from the cause. Only the first three come from other nodes. */
static unsigned distance(const struct waiting *waiting)
{
    switch (waiting->kind) {
    case WAIT_PEER:
    case WAIT_RETURN:
    case WAIT_VACANT: return 0;
    case WAIT_PUSH:
    case WAIT_CALL: return 1;
    case WAIT_COMMIT:
    case WAIT_LEAVE: return waiting->rank >= 0 ? 1 : 3;
    case WAIT_COMPUTE: return 2;
    default: return 3;
    }
}

/* Compares two reasons, so that all nodes choose the same one among those that they know. */
static bool is_nearer(const struct waiting *one, const struct waiting *other)
{
    if (distance(one) != distance(other)) {
        return distance(one) < distance(other);
    }
    return one->rank != other->rank ? one->rank < other->rank : one->node < other->node;
}

/* Whether the told reason can explain why this node does not go on. */
static bool concerns(const struct job *job, const struct waiting *told, const struct waiting *here)
{
    switch (told->kind) {
    case WAIT_PEER:
    case WAIT_RETURN:
    case WAIT_VACANT: return true;
    case WAIT_COMMIT: return here->kind == WAIT_COMMIT;
    case WAIT_LEAVE: return here->kind == WAIT_LEAVE || here->kind == WAIT_NOTHING;
    case WAIT_PUSH:
    case WAIT_CALL:
    case WAIT_COMPUTE:
        if (told->operation) {
            return told->number == job->store->ops_done;
        }
        return told->number == step_number(job) ||
               (here->kind == WAIT_SWITCH && told->number + 1 == step_number(job));
    default: return false;
    }
}

/* A node that does not send its frame may itself wait for one: follows these waits to the first. */
static struct waiting follow_frames(const struct job *job, struct waiting waiting)
{
    for (unsigned i = 0; i < job->in_force.nodes && waiting.kind == WAIT_FRAME; i++) {
        const struct waiting *told = waiting_heard(job, members_find(job, (uint16_t)waiting.node));
        if (told == NULL || told->kind != WAIT_FRAME || told->operation != waiting.operation ||
            told->number != waiting.number || told->node == job->core->config.node) {
            break;
        }
        waiting = *told;
    }
    return waiting;
}

struct waiting waiting_find(const struct job *job)
{
    const struct waiting here = wait_here(job);
    struct waiting found = follow_frames(job, here);

    for (unsigned i = 0; job->machine.state == JOB_ACTIVE && i < job->members; i++) {
        const struct waiting *told = waiting_heard(job, job->member[i]);
        if (told != NULL && distance(told) < 3 && concerns(job, told, &here) &&
            is_nearer(told, &found)) {
            found = *told;
        }
    }
    return found;
}

/* ------------------------------------------------------------------ sentences */

static const char *rank_text(const struct waiting *waiting, char text[TEXT_SIZE])
{
    int used = snprintf(text, TEXT_SIZE, "rank %d on node %d", waiting->rank, waiting->node);

    if (waiting->pid != 0 && used > 0) {
        (void)snprintf(text + used, TEXT_SIZE - (size_t)used, " (pid %u)", waiting->pid);
    }
    return text;
}

static void switch_text(
    const struct job *job, const struct waiting *waiting, char *text, size_t size)
{
    unsigned long long step = waiting->number;

    if (job->switching.next == NULL) {
        (void)snprintf(text, size, "the residuals to fit the new policy");
    } else if (waiting->kind == WAIT_SWITCH) {
        (void)snprintf(text, size,
            "all nodes to reach step %llu, where version %u of the policy begins", step,
            job->switching.next->change.version);
    } else {
        (void)snprintf(text, size,
            "ranks to begin step %llu; version %u of the policy holds from step %llu", step,
            job->switching.next->change.version,
            (unsigned long long)job->switching.next->change.step);
    }
}

static void ranks_text(const struct waiting *waiting, char *text, size_t size)
{
    const char *what = waiting->kind == WAIT_LEAVE ? "leave" : "commit more tensors";
    char rank[TEXT_SIZE];

    if (waiting->rank >= 0) {
        (void)snprintf(text, size, "%s to %s", rank_text(waiting, rank), what);
    } else {
        (void)snprintf(text, size, "the ranks of node %d to %s", waiting->node, what);
    }
}

/* Where other nodes do not answer either, the network may be cut, and the text says so. */
static void waiting_peer_text(
    const struct job *job, const struct waiting *waiting, char *text, size_t size)
{
    int written = snprintf(text, size, "node %d, which does not answer", waiting->node);
    unsigned more = 0;

    for (unsigned i = 0; i < job->in_force.nodes; i++) {
        const uint16_t node = job->in_force.node[i]; /* this node counts as up */
        more += node != waiting->node && !job_peer_is_up(job, node) ? 1 : 0;
    }
    if (more > 0 && written > 0 && (size_t)written < size) {
        (void)snprintf(text + written, size - (size_t)written,
            ", like %u more of the job's %u nodes", more, job->in_force.nodes);
    }
}

const char *waiting_text(
    const struct job *job, const struct waiting *waiting, char *text, size_t size)
{
    const char *what = waiting->operation ? "operation" : "step";
    unsigned long long number = waiting->number;
    char rank[TEXT_SIZE];

    text[0] = '\0';
    switch (waiting->kind) {
    case WAIT_PEER: waiting_peer_text(job, waiting, text, size); break;
    case WAIT_RETURN:
        (void)snprintf(
            text, size, "node %d, which restarted and has not joined again", waiting->node);
        break;
    case WAIT_VACANT:
        (void)snprintf(text, size, "%s, which ended", rank_text(waiting, rank));
        break;
    case WAIT_PUSH:
        (void)snprintf(text, size, "%s to push tensor '%s' of step %llu", rank_text(waiting, rank),
            job->tensor[waiting->tensor].spec.name, number);
        break;
    case WAIT_CALL:
        (void)snprintf(text, size, "%s to call operation %llu", rank_text(waiting, rank), number);
        break;
    case WAIT_COMPUTE:
        (void)snprintf(
            text, size, "the computes of %s %llu on node %d", what, number, waiting->node);
        break;
    case WAIT_FRAME:
        (void)snprintf(text, size, "node %d to send its part of %s %llu%s", waiting->node, what,
            number, waiting->relayed ? ", or a node that it waits for" : "");
        break;
    case WAIT_FORMING: (void)members_missing_ranks(job, text, size); break;
    case WAIT_AGREE:
        (void)snprintf(text, size, "the nodes of view %u to agree", job->agreement.promised);
        break;
    case WAIT_COMMIT:
    case WAIT_LEAVE: ranks_text(waiting, text, size); break;
    case WAIT_SWITCH:
    case WAIT_BEGIN: switch_text(job, waiting, text, size); break;
    case WAIT_NOTHING:
    case WAIT_KINDS: break;
    }
    return text;
}

/* ------------------------------------------------------------------ telling the members */

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* This time, or one so short that other nodes know the reason before a time limit passes. */
static uint64_t interval(const struct job *job, uint64_t most_us)
{
    return smaller(most_us, smaller(job->core->stuck_us, job->plan->policy.round_timeout_us) / 4);
}

static void send_waiting(struct job *job, const struct waiting *waiting)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerWaiting about = ADTOPK__PEER_WAITING__INIT;

    about.kind = (uint32_t)waiting->kind;
    about.operation = waiting->operation;
    about.number = waiting->number;
    about.tensor = waiting->tensor;
    about.rank = (uint32_t)(waiting->rank + 1);
    about.node = (uint32_t)(waiting->node + 1);
    about.pid = waiting->pid;
    about.deserted = waiting->deserted;
    about.before_step = waiting->operation && job->step.since_us == 0;
    about.waited_ms = (job->core->now_us - waiting->since_us) / 1000;
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_WAITING;
    message.waiting = &about;
    peer_offer_all(job, &message);
}

/* How long a wait for work may last in a job that moves: its steps may be longer than a second.
 * One step that was stuck does not count. */
static uint64_t waiting_patience(const struct job *job)
{
    const uint64_t usual_us = smaller(job->step.took_us[0], job->step.took_us[1]);

    return 2 * usual_us > WAITING_TELL_US ? 2 * usual_us : WAITING_TELL_US;
}

/* Whether the others should know: the job rests, or they wait for work here that is merely slow. */
static bool is_worth_telling(const struct job *job, const struct waiting *here)
{
    bool ours = here->kind == WAIT_PUSH || here->kind == WAIT_CALL || here->kind == WAIT_COMPUTE;
    uint64_t after_us = ours || here->kind == WAIT_FRAME ? waiting_patience(job) : WAITING_TELL_US;

    return here->kind != WAIT_NOTHING && here->kind != WAIT_BEGIN &&
           (job->core->now_us - here->since_us >= interval(job, after_us) ||
               (ours && awaited_since(job, here->operation) != 0));
}

/* Reports the reason that this node sees itself, not one that it heard. */
static void tell(struct job *job)
{
    struct waiting here = wait_here(job);
    bool waits = job->machine.state == JOB_ACTIVE && is_worth_telling(job, &here);

    if (!waits) {
        here = wait_for(job, WAIT_NOTHING, false, 0);
    }
    if (waits || job->waits.told) {
        send_waiting(job, &here);
    }
    job->waits.told = waits;
}

bool waiting_is_stuck(const struct job *job, const struct waiting *waiting)
{
    return waiting->kind != WAIT_NOTHING && waiting->kind != WAIT_BEGIN &&
           job->core->now_us - waiting->since_us >= job->core->stuck_us;
}

static void note_stuck(struct job *job)
{
    struct waiting found = waiting_find(job);
    char text[ERROR_TEXT_SIZE];

    if (waiting_is_stuck(job, &found) && job->waits.stuck_since_us == 0) {
        job->waits.stuck_since_us = found.since_us;
        (void)waiting_text(job, &found, text, sizeof(text));
        core_warn(job->core, "job %u:%s/%s is stuck: for %llu s it has waited for %s",
            job->key.owner, job->key.name, job->key.run_id,
            (unsigned long long)((job->core->now_us - found.since_us) / 1000000), text);
        if (job->core->config.stuck != NULL) {
            job->core->config.stuck(job->core->config.trace_context, job->number, text);
        }
    } else if (!waiting_is_stuck(job, &found) && job->waits.stuck_since_us != 0) {
        core_warn(job->core, "job %u:%s/%s goes on after %llu s", job->key.owner, job->key.name,
            job->key.run_id,
            (unsigned long long)((job->core->now_us - job->waits.stuck_since_us) / 1000000));
        job->waits.stuck_since_us = 0;
    }
}

/* Ends a job of which no rank has a process any more: nobody waits. */
static void waiting_end_deserted(struct job *job)
{
    for (unsigned i = 0; i < job->in_force.nodes; i++) {
        const struct waiting *told = waiting_heard(job, members_at(job, i));
        if (i != job->in_force.self && (told == NULL || !told->deserted)) {
            return;
        }
    }
    if (job->machine.state == JOB_ACTIVE && successor_all_ended(job)) {
        job_fail_with(job, ADTOPK_ERR_PEER, "all ranks of job '%s' ended", job->key.name);
    }
}

uint64_t waiting_deadline(const struct job *job)
{
    bool may_wait = job->machine.state != JOB_ACTIVE || job->step.since_us != 0 ||
                    job->op.since_us != 0 || job->registering.since_us != 0 ||
                    job->ending.leaving_us != 0 || job->waits.lost_since_us != 0 ||
                    successor_vacant(job) != NULL || job->switching.machine.state >= SWITCH_HELD;
    bool reports = job->waits.told || job->waits.stuck_since_us != 0 || job->waits.heard_us != 0;
    bool moved = job->waits.moved_us > job->waits.looked_us;
    uint64_t first_us =
        (moved ? job->waits.moved_us : job->waits.looked_us) + interval(job, WAITING_TELL_US);
    uint64_t next_us = job->waits.looked_us + interval(job, WAITING_REPEAT_US);

    if (job_ended(job) || !(reports || may_wait)) {
        return UINT64_MAX;
    }
    return !reports ? first_us : moved ? smaller(first_us, next_us) : next_us;
}

void waiting_look(struct job *job)
{
    uint64_t due_us = waiting_deadline(job);

    if (job->core->now_us < due_us) {
        return;
    }
    if (job->core->now_us - due_us >= interval(job, WAITING_REPEAT_US)) {
        overdue_forgive(job); /* This daemon was stopped, so its knowledge of the others is old. */
    }
    job->waits.looked_us = job->core->now_us;
    if (job->core->now_us - job->waits.heard_us > WAITING_HEARD_US) {
        job->waits.heard_us = 0;
    }
    overdue_check(job);
    if (job_ended(job)) {
        return;
    }
    tell(job);
    note_stuck(job);
    waiting_end_deserted(job);
}

/* Whether the node may be in the view. Before there is one, every node may. */
static bool may_be_member(const struct job *job, uint32_t node)
{
    return job->in_force.nodes == 0 || membership_index(&job->in_force, (uint16_t)node) >= 0;
}

/* Whether a member of the view may see this reason. */
static bool is_valid(const struct job *job, const Adtopk__PeerWaiting *message)
{
    bool of_node =
        message->kind == WAIT_PEER || message->kind == WAIT_RETURN || message->kind == WAIT_FRAME;

    return message->kind < WAIT_KINDS && message->rank <= job->run.world_size &&
           message->node <= UINT16_MAX &&
           (!of_node || (message->node > 0 && may_be_member(job, message->node - 1))) &&
           (message->kind != WAIT_PUSH || message->tensor < CORE_MAX_TENSORS);
}

void waiting_message(struct job *job, uint16_t from, const Adtopk__PeerWaiting *message)
{
    struct member *member = members_find(job, from);
    uint64_t now_us = job->core->now_us;
    bool of_its_own = message->kind == WAIT_PUSH || message->kind == WAIT_CALL ||
                      message->kind == WAIT_COMPUTE || message->kind == WAIT_VACANT ||
                      (message->kind == WAIT_LEAVE && message->rank > 0);

    if (member == NULL || !may_be_member(job, from) || !is_valid(job, message)) {
        job->core->bad_messages++;
        return;
    }
    if (job->in_force.nodes == 0 ||
        (message->kind == WAIT_PUSH && message->tensor >= job->tensors)) {
        return; /* of a view, or of tensors, whose commit is on its way to here */
    }
    member->told = (struct waiting){
        .kind = (enum wait_kind)message->kind,
        .operation = message->operation,
        .number = message->number,
        .tensor = message->tensor,
        .rank = (int32_t)message->rank - 1,
        .node = of_its_own ? from : (int32_t)message->node - 1,
        .pid = message->pid,
        .deserted = message->kind == WAIT_VACANT && message->deserted,
        .outside = message->operation && message->before_step,
        .since_us = now_us - smaller(now_us, message->waited_ms * 1000),
    };
    member->told_us = now_us;
    job->waits.heard_us = now_us;
    waiting_end_deserted(job);
}
