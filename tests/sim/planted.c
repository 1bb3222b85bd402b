/*
 * Functions of the core that the linker replaces in the simulator (--wrap). They add the test
 * collective, and plant bugs that the checks must find.
 */
#include <string.h>

#include "daemon/compute/comeback.h"
#include "daemon/compute/grow.h"
#include "daemon/compute/launch_order.h"
#include "daemon/compute/layout.h"
#include "daemon/compute/orders.h"
#include "daemon/compute/recall.h"
#include "daemon/compute/results.h"
#include "daemon/core/agree/coordinate.h"
#include "daemon/core/agree/view.h"
#include "daemon/core/waiting.h"
#include "daemon/job/ranks.h"
#include "daemon/link/lane.h"
#include "kernels/base/quantise.h"
#include "kernels/cpu/merge.h"
#include "kernels/cpu/narrow.h"
#include "tests/sim/world.h"

enum planted planted_bug = PLANTED_NONE;

const struct collective_ops *__real_collective_find(const char *name);
const struct collective_ops *__wrap_collective_find(const char *name);
enum adtopk_status __real_combination_check(const struct tensor_policy *policy, struct error *err);
enum adtopk_status __wrap_combination_check(const struct tensor_policy *policy, struct error *err);
void __real_orders_leave(
    const struct job *job, struct engine_batch *batch, uint32_t tensor, const uint8_t *accepted);
void __wrap_orders_leave(
    const struct job *job, struct engine_batch *batch, uint32_t tensor, const uint8_t *accepted);
void __real_orders_read(
    const struct job *job, struct engine_batch *batch, uint32_t tensor, unsigned rank, float *out);
void __wrap_orders_read(
    const struct job *job, struct engine_batch *batch, uint32_t tensor, unsigned rank, float *out);
void __real_merge_run(struct merge *merge, const struct parallel *parallel);
void __wrap_merge_run(struct merge *merge, const struct parallel *parallel);
void __real_exchange_note(struct exchange *exchange, const struct payload_reader *reader);
void __wrap_exchange_note(struct exchange *exchange, const struct payload_reader *reader);
float __real_narrow_rest(float value, enum dtype dtype);
float __wrap_narrow_rest(float value, enum dtype dtype);
void __real_narrow_add_rests(
    float *x, const float *value, uint64_t n, enum dtype dtype, float shrink, float unscale);
void __wrap_narrow_add_rests(
    float *x, const float *value, uint64_t n, enum dtype dtype, float shrink, float unscale);
void __real_round_freeze(struct round *round);
void __wrap_round_freeze(struct round *round);
void __real_orders_add(const struct job *job, struct engine_batch *batch, uint32_t tensor);
void __wrap_orders_add(const struct job *job, struct engine_batch *batch, uint32_t tensor);
void __real_quantise_values(float *value, size_t n, enum quantisation type, uint64_t seed);
void __wrap_quantise_values(float *value, size_t n, enum quantisation type, uint64_t seed);
void __real_job_peer_left(struct job *job, uint16_t node, uint64_t steps_done, uint64_t ops_done);
void __wrap_job_peer_left(struct job *job, uint16_t node, uint64_t steps_done, uint64_t ops_done);
bool __real_lane_out_cut(
    const struct lane_out *out, size_t longest, uint64_t limit, struct packet *packet);
bool __wrap_lane_out_cut(
    const struct lane_out *out, size_t longest, uint64_t limit, struct packet *packet);
void __real_frame_receive(struct job *job, uint16_t node, struct buffer *frame);
void __wrap_frame_receive(struct job *job, uint16_t node, struct buffer *frame);
uint32_t __real_rank_arena(const struct job *job, unsigned rank, uint32_t t);
uint32_t __wrap_rank_arena(const struct job *job, unsigned rank, uint32_t t);
struct round *__real_launch_first(const struct core *core);
struct round *__wrap_launch_first(const struct core *core);
enum adtopk_status __real_round_begin_exchange(struct round *round);
enum adtopk_status __wrap_round_begin_exchange(struct round *round);
enum adtopk_status __real_payload_begin(
    struct payload_writer *writer, const struct payload_header *header);
enum adtopk_status __wrap_payload_begin(
    struct payload_writer *writer, const struct payload_header *header);
enum adtopk_status __real_copy_decode(
    struct round *round, const struct buffer *frame, struct error *err);
enum adtopk_status __wrap_copy_decode(
    struct round *round, const struct buffer *frame, struct error *err);
bool __real_share_put(
    struct share *share, struct share_item *item, const struct share_class *class);
bool __wrap_share_put(
    struct share *share, struct share_item *item, const struct share_class *class);
void __real_share_charge(struct share *share, struct share_item *item, uint64_t cost);
void __wrap_share_charge(struct share *share, struct share_item *item, uint64_t cost);

void __real_coordinate(struct job *job);
void __wrap_coordinate(struct job *job);
bool __real_view_prepare(struct job *job, uint16_t from, const Adtopk__PeerPrepare *prepare);
bool __wrap_view_prepare(struct job *job, uint16_t from, const Adtopk__PeerPrepare *prepare);
bool __real_views_promise(struct views *views, const struct membership *members, uint32_t view);
bool __wrap_views_promise(struct views *views, const struct membership *members, uint32_t view);
void __real_recall_views(struct job *job);
void __wrap_recall_views(struct job *job);
void __real_grow_count(struct job *job);
void __wrap_grow_count(struct job *job);
void __real_comeback_hear(struct job *job, const Adtopk__PeerPrepare *prepare);
void __wrap_comeback_hear(struct job *job, const Adtopk__PeerPrepare *prepare);
bool __real_grow_take(struct job *job, const Adtopk__PeerCommit *commit);
bool __wrap_grow_take(struct job *job, const Adtopk__PeerCommit *commit);
bool __real_views_allow(const struct views *views, const struct membership *members);
bool __wrap_views_allow(const struct views *views, const struct membership *members);
void __real_coordinate_state(struct job *job, uint16_t from, const Adtopk__PeerState *state);
void __wrap_coordinate_state(struct job *job, uint16_t from, const Adtopk__PeerState *state);
struct job *__real_job_find(struct core *core, const struct job_key *key);
struct job *__wrap_job_find(struct core *core, const struct job_key *key);
struct job *__real_job_find_run(struct core *core, uint64_t run);
struct job *__wrap_job_find_run(struct core *core, uint64_t run);
void __real_peer_send(struct job *job, uint16_t node, Adtopk__PeerMessage *message);
void __wrap_peer_send(struct job *job, uint16_t node, Adtopk__PeerMessage *message);
void __real_waiting_look(struct job *job);
void __wrap_waiting_look(struct job *job);

/* The test collective goes with the same settings as allgather. */
enum adtopk_status __wrap_combination_check(const struct tensor_policy *policy, struct error *err)
{
    struct tensor_policy known = *policy;

    if (known.sparse_collective == &collective_half) {
        known.sparse_collective = &collective_allgather;
    }
    return __real_combination_check(&known, err);
}

const struct collective_ops *__wrap_collective_find(const char *name)
{
    return strcmp(name, "half") == 0 ? &collective_half : __real_collective_find(name);
}

void __wrap_orders_leave(
    const struct job *job, struct engine_batch *batch, uint32_t tensor, const uint8_t *accepted)
{
    __real_orders_leave(job, batch, tensor, accepted);
    if (planted_bug == PLANTED_STOLEN) {
        job->tensor[tensor].residual_owner = ENGINE_OWNER_CORE;
    }
    if (planted_bug == PLANTED_RESIDUAL && layout_residual(job, tensor, 0) != NULL) {
        layout_residual(job, tensor, 0)[job->tensor[tensor].numel - 1] = 0;
    }
}

void __wrap_merge_run(struct merge *merge, const struct parallel *parallel)
{
    const struct sparse *list = merge->list;

    __real_merge_run(merge, parallel);
    if (planted_bug == PLANTED_DOUBLE && merge->lists > 1 && list[0].count > 0 &&
        list[1].count > 0) {
        if (merge->out != NULL) {
            merge->out->value[0] += list[1].value[0];
        }
        if (merge->dense != NULL) {
            merge->dense[0] += list[1].value[0];
        }
    }
}

float __wrap_narrow_rest(float value, enum dtype dtype)
{
    return planted_bug == PLANTED_RESTS ? 0 : __real_narrow_rest(value, dtype);
}

void __wrap_narrow_add_rests(
    float *x, const float *value, uint64_t n, enum dtype dtype, float shrink, float unscale)
{
    if (planted_bug != PLANTED_RESTS_DENSE) {
        __real_narrow_add_rests(x, value, n, dtype, shrink, unscale);
    }
}

/* The values do not show this bug: a retry is bit-identical, so a round that ends in the old view
 * has the right sum. But the round cannot end, because the frames that it waits for come in the new
 * view. */
void __wrap_round_freeze(struct round *round)
{
    if (planted_bug != PLANTED_VIEW) {
        __real_round_freeze(round);
    }
}

/* The retry forgets that the gradient is in the residual already, or the loss scale. */
void __wrap_orders_add(const struct job *job, struct engine_batch *batch, uint32_t t)
{
    struct progress *progress = layout_progress(job, t, 0);
    const unsigned first = batch->count;

    for (uint64_t c = 0; planted_bug == PLANTED_GRADIENT && c < chunk_count(job->tensor[t].numel);
         c++) {
        progress->chunk[c].stamp = 0;
    }
    __real_orders_add(job, batch, t);
    for (unsigned i = first; planted_bug == PLANTED_SCALE && job->view > 1 && i < batch->count;
         i++) {
        batch->order[i].add.unscale = 1;
    }
}

/* A retry rounds with another seed than the first time. */
void __wrap_quantise_values(float *value, size_t n, enum quantisation type, uint64_t seed)
{
    static uint64_t calls;

    __real_quantise_values(value, n, type, planted_bug == PLANTED_ROUNDING ? seed + calls++ : seed);
}

enum adtopk_status __wrap_round_begin_exchange(struct round *round)
{
    enum adtopk_status status = __real_round_begin_exchange(round);

    if (planted_bug == PLANTED_MEAN && round->exchange.scale < 1) {
        round->exchange.scale = 1.0f / (float)(round->job->in_force.nodes * round->job->ranks);
    }
    return status;
}

bool __wrap_lane_out_cut(
    const struct lane_out *out, size_t longest, uint64_t limit, struct packet *packet)
{
    return __real_lane_out_cut(
        out, longest, planted_bug == PLANTED_CREDIT ? UINT64_MAX : limit, packet);
}

void __wrap_orders_read(
    const struct job *job, struct engine_batch *batch, uint32_t t, unsigned rank, float *out)
{
    if (planted_bug == PLANTED_PAST && batch->room > 1) {
        (void)memcpy(out, layout_residual(job, t, rank), job->tensor[t].numel * sizeof(*out));
    } else {
        __real_orders_read(job, batch, t, rank, out);
    }
}

/* Every leave that is heard is answered to all. */
void __wrap_job_peer_left(struct job *job, uint16_t node, uint64_t steps_done, uint64_t ops_done)
{
    if (planted_bug == PLANTED_STORM) {
        job->ending.left_view = 0;
    }
    __real_job_peer_left(job, node, steps_done, ops_done);
}

void __wrap_frame_receive(struct job *job, uint16_t node, struct buffer *frame)
{
    static uint64_t calls;

    __real_frame_receive(job, node, frame);
    if (planted_bug == PLANTED_TWICE && ++calls % 100 == 0) {
        __real_frame_receive(job, node, frame);
    }
}

enum adtopk_status __wrap_payload_begin(
    struct payload_writer *writer, const struct payload_header *header)
{
    struct payload_header changed = *header;

    if (planted_bug == PLANTED_NONFINITE && header->kind == FRAME_STEP_COPY) {
        changed.flags = 0;
    }
    return __real_payload_begin(writer, &changed);
}

void __wrap_exchange_note(struct exchange *exchange, const struct payload_reader *reader)
{
    struct payload_reader changed = *reader;

    if (planted_bug == PLANTED_UNPUSHED && exchange->self == 1) {
        changed.unpushed = NULL;
    }
    __real_exchange_note(exchange, &changed);
}

/* The round is complete by a copy; that something of this node is in it is forgotten. */
enum adtopk_status __wrap_copy_decode(
    struct round *round, const struct buffer *frame, struct error *err)
{
    enum adtopk_status status = __real_copy_decode(round, frame, err);

    for (unsigned i = 0; planted_bug == PLANTED_SETTLE && status == ADTOPK_OK && i < round->tensors;
         i++) {
        round->job->tensor[round->tensor[i]].store->stage = STAGE_SETTLED;
    }
    return status;
}

/* All jobs are as one, in which the weight is the place and nothing grows old. */
bool __wrap_share_put(struct share *share, struct share_item *item, const struct share_class *class)
{
    const struct share_class strict = {.place = SHARE_WEIGHT_MAX - class->weight};

    return __real_share_put(share, item, planted_bug == PLANTED_STRICT ? &strict : class);
}

void __wrap_share_charge(struct share *share, struct share_item *item, uint64_t cost)
{
    if (planted_bug != PLANTED_STRICT) {
        __real_share_charge(share, item, cost);
    }
}

/* The code does not know that a proposal is pending. */
void __wrap_coordinate(struct job *job)
{
    unsigned nodes = job->agreement.members.nodes;

    if (planted_bug != PLANTED_LIVELOCK || job->machine.state == JOB_ACTIVE) {
        __real_coordinate(job);
        return;
    }
    job->agreement.members.nodes = 0;
    __real_coordinate(job);
    job->agreement.members.nodes =
        job->agreement.members.nodes > 0 ? job->agreement.members.nodes : nodes;
}

bool __wrap_view_prepare(struct job *job, uint16_t from, const Adtopk__PeerPrepare *prepare)
{
    bool promised = __real_view_prepare(job, from, prepare);

    if (planted_bug == PLANTED_LIVELOCK) {
        job->waits.forming_since_us = job->core->now_us;
    }
    return promised;
}

bool __wrap_views_allow(const struct views *views, const struct membership *members)
{
    return planted_bug == PLANTED_HALVES || __real_views_allow(views, members);
}

bool __wrap_views_promise(struct views *views, const struct membership *members, uint32_t view)
{
    return planted_bug == PLANTED_PROMISE || __real_views_promise(views, members, view);
}

void __wrap_recall_views(struct job *job)
{
    struct error ignored;

    if (planted_bug == PLANTED_HEADER && layout_find(job, &ignored) == ADTOPK_OK) {
        job->layout.found->views = (struct views){.changes = 0};
    }
    __real_recall_views(job);
}

void __wrap_grow_count(struct job *job)
{
    __real_grow_count(job);
    if (planted_bug == PLANTED_DIVISOR) {
        job->run.ranks = job->run.world_size;
        results_rescale(job);
    }
}

bool __wrap_grow_take(struct job *job, const Adtopk__PeerCommit *commit)
{
    Adtopk__PeerCommit changed = *commit;

    changed.since -= planted_bug == PLANTED_SINCE && commit->since > 1 ? 1 : 0;
    return __real_grow_take(job, &changed);
}

void __wrap_comeback_hear(struct job *job, const Adtopk__PeerPrepare *prepare)
{
    for (size_t i = 0; planted_bug == PLANTED_COMEBACK && i < prepare->n_absent; i++) {
        prepare->absent[i]->n_delivered = 0;
    }
    __real_comeback_hear(job, prepare);
}

/* The coordinator takes every member's last answer for its answer to this proposal. */
void __wrap_coordinate_state(struct job *job, uint16_t from, const Adtopk__PeerState *state)
{
    for (unsigned i = 0; planted_bug == PLANTED_QUORUM && i < job->members; i++) {
        job->member[i]->answer.answered = true;
    }
    __real_coordinate_state(job, from, state);
}

struct job *__wrap_job_find(struct core *core, const struct job_key *key)
{
    struct job *newest = NULL;

    if (planted_bug != PLANTED_OWNER) {
        return __real_job_find(core, key);
    }
    for (struct job *job = core->jobs; job != NULL; job = job->places.next) {
        if (!job_ended(job) && strcmp(job->key.name, key->name) == 0 &&
            strcmp(job->key.run_id, key->run_id) == 0) {
            newest = job;
        }
    }
    return newest;
}

struct job *__wrap_job_find_run(struct core *core, uint64_t run)
{
    struct job *found = __real_job_find_run(core, run);

    for (struct job *job = core->jobs;
         planted_bug == PLANTED_RUN && found == NULL && run != 0 && job != NULL;
         job = job->places.next) {
        found = job_ended(job) ? NULL : job;
    }
    return found;
}

void __wrap_peer_send(struct job *job, uint16_t node, Adtopk__PeerMessage *message)
{
    if (planted_bug != PLANTED_UNTOLD || message->kind_case != ADTOPK__PEER_MESSAGE__KIND_FAIL ||
        message->fail->node == job->core->config.node) {
        __real_peer_send(job, node, message);
    }
}

void __wrap_waiting_look(struct job *job)
{
    if (planted_bug == PLANTED_PATIENT) {
        job->plan->policy.round_timeout_us = UINT64_MAX / 2;
    }
    __real_waiting_look(job);
}

struct round *__wrap_launch_first(const struct core *core)
{
    struct round *round = core->launches.waiting;

    if (planted_bug != PLANTED_ORDER) {
        return __real_launch_first(core);
    }
    while (round != NULL && round->launch.number == 0) {
        round = round->launch.next;
    }
    return round;
}

uint32_t __wrap_rank_arena(const struct job *job, unsigned rank, uint32_t t)
{
    return planted_bug == PLANTED_SUCCESSOR
               ? ENGINE_GRADIENTS + job->tensor[t].layout.batch * job->ranks + rank
               : __real_rank_arena(job, rank, t);
}
