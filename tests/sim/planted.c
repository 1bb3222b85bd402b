/*
 * Functions of the core that the linker replaces in the simulator (--wrap): to know the test
 * collective, and to plant bugs that the checks must find.
 */
#include <string.h>

#include "daemon/core/lane.h"
#include "daemon/core/model.h"
#include "kernels/cpu/merge.h"
#include "kernels/cpu/quantise.h"
#include "tests/sim/world.h"

enum planted planted_bug = PLANTED_NONE;

const struct collective_ops *__real_collective_find(const char *name);
const struct collective_ops *__wrap_collective_find(const char *name);
enum adtopk_status __real_combination_check(const struct tensor_policy *policy, struct error *err);
enum adtopk_status __wrap_combination_check(const struct tensor_policy *policy, struct error *err);
enum adtopk_status __real_settle_tensor(struct work *work, uint32_t tensor);
enum adtopk_status __wrap_settle_tensor(struct work *work, uint32_t tensor);
void __real_merge_run(struct merge *merge, const struct parallel *parallel);
void __wrap_merge_run(struct merge *merge, const struct parallel *parallel);
void __real_round_freeze(struct round *round);
void __wrap_round_freeze(struct round *round);
void __real_work_select(struct compute *compute);
void __wrap_work_select(struct compute *compute);
void __real_quantise_values(float *value, size_t n, enum quantisation type, uint64_t seed);
void __wrap_quantise_values(float *value, size_t n, enum quantisation type, uint64_t seed);
void __real_job_peer_left(struct job *job, uint16_t node, uint64_t steps_done);
void __wrap_job_peer_left(struct job *job, uint16_t node, uint64_t steps_done);
bool __real_lane_out_cut(
    const struct lane_out *out, size_t longest, uint64_t limit, struct packet *packet);
bool __wrap_lane_out_cut(
    const struct lane_out *out, size_t longest, uint64_t limit, struct packet *packet);
void __real_frame_receive(struct job *job, uint16_t node, struct buffer *frame);
void __wrap_frame_receive(struct job *job, uint16_t node, struct buffer *frame);
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

/* The test collective goes with what allgather goes with. */
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

enum adtopk_status __wrap_settle_tensor(struct work *work, uint32_t tensor)
{
    enum adtopk_status status = __real_settle_tensor(work, tensor);

    if (planted_bug == PLANTED_RESIDUAL) {
        layout_residual(work->job, tensor, 0)[work->job->tensor[tensor].numel - 1] = 0;
    }
    return status;
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

/* Values cannot tell: a retry is bit-identical, so a round that ends in the old view has the right
 * sum. What it cannot do is end: the frames that it waits for come in the new view. */
void __wrap_round_freeze(struct round *round)
{
    if (planted_bug != PLANTED_VIEW) {
        __real_round_freeze(round);
    }
}

/* The retry forgets that the gradient is in the residual already. */
void __wrap_work_select(struct compute *compute)
{
    struct round *round = ((struct work *)compute)->round;

    for (unsigned i = 0; planted_bug == PLANTED_GRADIENT && i < round->tensors; i++) {
        const struct tensor *tensor = &round->job->tensor[round->tensor[i]];
        struct progress *progress = layout_progress(round->job, round->tensor[i], 0);
        for (uint64_t c = 0; c < chunk_count(tensor->numel); c++) {
            progress->chunk[c].stamp = 0;
        }
    }
    __real_work_select(compute);
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
        round->exchange.scale = 1.0f / (float)(round->job->view_nodes * round->job->ranks);
    }
    return status;
}

bool __wrap_lane_out_cut(
    const struct lane_out *out, size_t longest, uint64_t limit, struct packet *packet)
{
    return __real_lane_out_cut(
        out, longest, planted_bug == PLANTED_CREDIT ? UINT64_MAX : limit, packet);
}

/* Every leave that is heard is answered to all. */
void __wrap_job_peer_left(struct job *job, uint16_t node, uint64_t steps_done)
{
    if (planted_bug == PLANTED_STORM) {
        job->left_view = 0;
    }
    __real_job_peer_left(job, node, steps_done);
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
