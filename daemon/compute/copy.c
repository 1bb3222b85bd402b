/*
 * Copies of delivered rounds. After a change of the view, a node that delivered a round before
 * gives the update to nodes that did not.
 *
 * A copy is a frame with one section of opaque bytes per tensor. The first byte says which form
 * follows, and whether the update is NaN. Then comes the list (elements, then values), or all
 * elements. A tensor that no rank pushed has only the byte 0. Copies are not compressed, because
 * view changes are rare, and the bits must be those of the holder.
 */
#include "daemon/compute/copy.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/compute/layout.h"
#include "daemon/compute/rests.h"
#include "daemon/job/plan_query.h"
#include "daemon/job/store.h"
#include "proto/loss_scale.h"

#define COPY_UNPUSHED 0      /* in the place of a form */
#define COPY_NONFINITE 0x80u /* beside a form: the update is NaN, as the policy says */

static uint8_t *op_result(const struct job *job)
{
    return job->layout.batch[0].results + job->layout.op_result_offset;
}

/* Encodes one tensor's update; *size receives the number of bytes. NULL without memory. */
static uint8_t *encode_tensor(const struct job *job, uint32_t t, size_t *size)
{
    const struct local_update *update = results_update(job, t);
    size_t list = (size_t)update->count * sizeof(uint32_t);
    bool dense = (update->forms & LOCAL_FORM_LIST) == 0;
    size_t body = dense ? (size_t)update->numel * sizeof(float) : 2 * list;
    uint8_t *bytes;

    body = update->unpushed != 0 ? 0 : body;
    bytes = malloc(1 + body);
    if (bytes == NULL) {
        return NULL;
    }
    bytes[0] = dense ? LOCAL_FORM_DENSE : LOCAL_FORM_LIST;
    if (update->unpushed != 0) {
        bytes[0] = COPY_UNPUSHED;
    } else if (dense) {
        (void)memcpy(bytes + 1, results_at(job, t, update->dense_offset), body);
    } else {
        (void)memcpy(bytes + 1, results_at(job, t, update->index_offset), list);
        (void)memcpy(bytes + 1 + list, results_at(job, t, update->value_offset), list);
    }
    bytes[0] |= (uint8_t)(update->nonfinite != 0 ? COPY_NONFINITE : 0);
    *size = 1 + body;
    return bytes;
}

/* Whether the step is to be withdrawn. The tensors know it of the open step. Of the step before,
 * only the result is left. */
static bool is_withdrawn(const struct round *round, uint64_t number)
{
    const struct job *job = round->job;

    if (round->op || number < job->store->steps_done) {
        return !round->op && store_step_status(job->store) == ADTOPK_NONFINITE;
    }
    for (unsigned i = 0; i < round->tensors; i++) {
        if (job->tensor[round->tensor[i]].store->round_nonfinite != 0 &&
            results_update(job, round->tensor[i])->nonfinite == 0) {
            return true;
        }
    }
    return false;
}

struct buffer *copy_encode(const struct round *round, uint64_t number)
{
    const struct job *job = round->job;
    struct payload_header header = {
        .run = job->run.id,
        .number = number,
        .view = job->view,
        .bucket = round->bucket,
        .source = job->core->config.node,
        .kind = round->op ? FRAME_OP_COPY : FRAME_STEP_COPY,
        .loss_scale = round->op ? 0 : job->tensor[round->tensor[0]].store->loss_scale,
        .loss_rank = round->op ? 0 : job->tensor[round->tensor[0]].store->ranks,
    };
    struct payload_writer writer = {0};
    enum adtopk_status status;

    if (is_withdrawn(round, number)) {
        header.flags = PAYLOAD_FLAG_NONFINITE;
    }
    status = payload_begin(&writer, &header);
    for (unsigned i = 0; status == ADTOPK_OK && i < round->tensors; i++) {
        size_t size = 0;
        uint8_t *bytes = encode_tensor(job, round->tensor[i], &size);
        status = bytes != NULL ? payload_put_bytes(&writer, bytes, size) : ADTOPK_ERR_MEMORY;
        free(bytes);
    }
    if (status == ADTOPK_OK && round->op) {
        status = payload_put_bytes(&writer, op_result(job), store_op_size(job->store));
    }
    if (status != ADTOPK_OK) {
        payload_free(&writer);
        return NULL;
    }
    payload_end(&writer);
    return buffer_adopt(writer.bytes, writer.size);
}

static enum adtopk_status bad_copy(const struct job *job, uint32_t t, struct error *err)
{
    return error_set(err, ADTOPK_ERR_PROTOCOL, "a copy of tensor '%s' does not fit it",
        job->tensor[t].spec.name);
}

static enum adtopk_status decode_list(
    struct job *job, uint32_t t, const uint8_t *bytes, size_t size, struct error *err)
{
    struct local_update *update = results_update(job, t);
    uint64_t count = size / (2 * sizeof(uint32_t));
    uint32_t *index = results_at(job, t, update->index_offset);
    float *value = results_at(job, t, update->value_offset);
    float *dense = results_at(job, t, update->dense_offset);
    bool wants_dense = (results_forms(&job->tensor[t]) & LOCAL_FORM_DENSE) != 0;

    if (update->index_offset == 0 || size % (2 * sizeof(uint32_t)) != 0 ||
        count > update->capacity || count > plan_update_count(job, job->plan, t)) {
        return bad_copy(job, t, err);
    }
    (void)memcpy(index, bytes, count * sizeof(*index));
    (void)memcpy(value, bytes + count * sizeof(*index), count * sizeof(*value));
    for (uint64_t i = 0; i < count; i++) {
        if (index[i] >= update->numel) {
            return bad_copy(job, t, err);
        }
    }
    if (wants_dense) {
        (void)memset(dense, 0, update->numel * sizeof(*dense));
        for (uint64_t i = 0; i < count; i++) {
            dense[index[i]] = value[i];
        }
    }
    update->count = count;
    update->forms = LOCAL_FORM_LIST | (wants_dense ? LOCAL_FORM_DENSE : 0u);
    return ADTOPK_OK;
}

/* Whether memory is reserved for the dense form under this plan. */
static bool may_be_dense(const struct job *job, uint32_t t)
{
    return job->plan->tensor[t].dense || results_forms(&job->tensor[t]) != LOCAL_FORM_LIST ||
           plan_update_count(job, job->plan, t) > job->tensor[t].list_capacity;
}

/* Writes the update of a tensor that no rank pushed: no entries, all zeros. */
static void write_empty(const struct job *job, uint32_t t)
{
    struct local_update *update = results_update(job, t);
    unsigned forms = job->plan->tensor[t].dense ? LOCAL_FORM_DENSE : results_forms(&job->tensor[t]);

    if ((forms & LOCAL_FORM_DENSE) != 0) {
        (void)memset(results_at(job, t, update->dense_offset), 0, update->numel * sizeof(float));
    }
    update->count = 0;
    update->forms = forms;
}

static enum adtopk_status decode_dense(
    struct job *job, uint32_t t, const uint8_t *bytes, size_t size, struct error *err)
{
    struct local_update *update = results_update(job, t);

    if (size != (size_t)update->numel * sizeof(float) || !may_be_dense(job, t)) {
        return bad_copy(job, t, err);
    }
    (void)memcpy(results_at(job, t, update->dense_offset), bytes, size);
    update->count = 0;
    update->forms = LOCAL_FORM_DENSE;
    return ADTOPK_OK;
}

/* Decodes the update of a tensor that some rank pushed. The first byte is the form. */
static enum adtopk_status decode_form(
    struct job *job, uint32_t t, const uint8_t *bytes, size_t size, struct error *err)
{
    switch (size > 0 ? bytes[0] & ~COPY_NONFINITE : COPY_UNPUSHED) {
    case LOCAL_FORM_LIST: return decode_list(job, t, bytes + 1, size - 1, err);
    case LOCAL_FORM_DENSE: return decode_dense(job, t, bytes + 1, size - 1, err);
    default: return bad_copy(job, t, err);
    }
}

static enum adtopk_status decode_tensor(
    struct job *job, uint32_t t, struct payload_reader *reader, struct error *err)
{
    struct local_update *update = results_update(job, t);
    size_t dense = (size_t)update->numel * sizeof(float);
    size_t list = (size_t)update->capacity * 2 * sizeof(uint32_t);
    const uint8_t *bytes;
    size_t size;

    if (payload_get_bytes(reader, 1 + (dense > list ? dense : list), &bytes, &size, err) !=
        ADTOPK_OK) {
        return err->code;
    }
    update->nonfinite = size > 1 && (bytes[0] & COPY_NONFINITE) != 0;
    update->final = plan_propagates(job->plan);
    update->unpushed = size == 1 && bytes[0] == COPY_UNPUSHED;
    if (update->unpushed != 0) {
        if (job->tensor[t].store->unpushed == 0) {
            return bad_copy(job, t, err); /* a rank of this node pushed it */
        }
        write_empty(job, t);
    } else if (decode_form(job, t, bytes, size, err) != ADTOPK_OK) {
        return err->code;
    }
    if (results_is_narrow(&job->tensor[t])) {
        update->forms |= LOCAL_FORM_DENSE16;
        rests_narrow(job, t);
    }
    update->step = job->store->steps_done;
    update->turn = (uint32_t)job->tensor[t].store->turn;
    return ADTOPK_OK;
}

static enum adtopk_status decode_op(
    struct job *job, struct payload_reader *reader, struct error *err)
{
    const uint8_t *bytes;
    size_t size;

    if (payload_get_bytes(reader, CORE_OP_SIZE, &bytes, &size, err) != ADTOPK_OK) {
        return err->code;
    }
    (void)memcpy(op_result(job), bytes, size);
    store_count_op(job->store, (uint32_t)size);
    return ADTOPK_OK;
}

/* A copy counts as delivered only if this node took part in the round. Then its gradient is in the
 * residual, and its contribution in the sum. Some tensors may be delivered already, if a daemon was
 * killed while it noted that. */
static enum adtopk_status check_contributed(const struct round *round, struct error *err)
{
    const struct job *job = round->job;

    for (unsigned i = 0; i < round->tensors; i++) {
        const struct tensor *tensor = &job->tensor[round->tensor[i]];
        if (tensor->store->step != job->store->steps_done ||
            (tensor->store->stage != STAGE_ACCUMULATED &&
                tensor->store->stage != STAGE_DELIVERED)) {
            return error_set(err, ADTOPK_ERR_LOST,
                "tensor '%s' of step %llu was delivered with a contribution that this node lost",
                tensor->spec.name, (unsigned long long)job->store->steps_done);
        }
    }
    return ADTOPK_OK;
}

/* Copies of an operation have no mean. */
static bool copy_ranks_fit(const struct round *round, uint32_t ranks)
{
    return round->op || (ranks > 0 && ranks <= round->job->run.world_size);
}

enum adtopk_status copy_decode(struct round *round, const struct buffer *frame, struct error *err)
{
    struct job *job = round->job;
    struct payload_reader reader;
    enum adtopk_status status = payload_open(&reader, frame->bytes, frame->size, err);

    if (status == ADTOPK_OK && !copy_ranks_fit(round, reader.header.loss_rank)) {
        status = error_set(err, ADTOPK_ERR_PROTOCOL, "a copy of bucket %u is a mean over %u ranks",
            round->bucket, reader.header.loss_rank);
    }
    if (status == ADTOPK_OK) {
        status = check_contributed(round, err);
    }
    for (unsigned i = 0; status == ADTOPK_OK && i < round->tensors; i++) {
        status = decode_tensor(job, round->tensor[i], &reader, err);
    }
    if (status == ADTOPK_OK && round->op) {
        status = decode_op(job, &reader, err);
    }
    if (status == ADTOPK_OK) {
        status = payload_close(&reader, err);
    }
    for (unsigned i = 0; status == ADTOPK_OK && i < round->tensors; i++) {
        struct store_tensor *store = job->tensor[round->tensor[i]].store;
        store->round_nonfinite = (reader.header.flags & PAYLOAD_FLAG_NONFINITE) != 0 ||
                                 results_update(job, round->tensor[i])->nonfinite != 0;
        store->round_unpushed = results_update(job, round->tensor[i])->unpushed;
        store->loss_scale = loss_scale_factor(reader.header.loss_scale);
        store->ranks = reader.header.loss_rank;
        store_publish(&store->stage, STAGE_DELIVERED);
    }
    return status;
}
