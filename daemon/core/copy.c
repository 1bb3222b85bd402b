/*
 * Copies of delivered rounds: what a node that delivered a round before the view changed gives to
 * those that did not. A frame with one section of opaque bytes a tensor: a byte that says which
 * form follows, then the list (elements, then values) or all elements. Not compressed: view
 * changes are rare, and the bits must be the holder's.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/core/model.h"
#include "daemon/core/plan.h"

static uint8_t *result_at(const struct job *job, uint64_t offset)
{
    return job->results + offset;
}

/* The bytes of one tensor's update; *size receives their number. NULL without memory. */
static uint8_t *encode_tensor(const struct job *job, uint32_t t, size_t *size)
{
    const struct local_update *update = layout_update(job, t);
    size_t list = (size_t)update->count * sizeof(uint32_t);
    bool dense = (update->forms & LOCAL_FORM_LIST) == 0;
    size_t body = dense ? (size_t)update->numel * sizeof(float) : 2 * list;
    uint8_t *bytes = malloc(1 + body);

    if (bytes == NULL) {
        return NULL;
    }
    bytes[0] = dense ? LOCAL_FORM_DENSE : LOCAL_FORM_LIST;
    if (dense) {
        (void)memcpy(bytes + 1, result_at(job, update->dense_offset), body);
    } else {
        (void)memcpy(bytes + 1, result_at(job, update->index_offset), list);
        (void)memcpy(bytes + 1 + list, result_at(job, update->value_offset), list);
    }
    *size = 1 + body;
    return bytes;
}

/* Of the open step the tensors know; of the one before, the outcome of the step is all there is. */
static bool is_nonfinite(const struct round *round, uint64_t number)
{
    const struct job *job = round->job;

    if (round->op || number < job->store->steps_done) {
        return !round->op && store_step_status(job->store) == ADTOPK_NONFINITE;
    }
    for (unsigned i = 0; i < round->tensors; i++) {
        if (job->tensor[round->tensor[i]].store->round_nonfinite != 0) {
            return true;
        }
    }
    return false;
}

struct buffer *copy_encode(const struct round *round, uint64_t number)
{
    const struct job *job = round->job;
    struct payload_header header = {
        .run = job->run,
        .number = number,
        .view = job->view,
        .bucket = round->bucket,
        .source = job->core->config.node,
        .kind = round->op ? FRAME_OP_COPY : FRAME_STEP_COPY,
    };
    struct payload_writer writer = {0};
    enum adtopk_status status;

    if (is_nonfinite(round, number)) {
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
        status = payload_put_bytes(
            &writer, result_at(job, job->op_result_offset), store_op_size(job->store));
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
    struct local_update *update = layout_update(job, t);
    uint64_t count = size / (2 * sizeof(uint32_t));
    uint32_t *index = (uint32_t *)(void *)result_at(job, update->index_offset);
    float *value = (float *)(void *)result_at(job, update->value_offset);
    float *dense = (float *)(void *)result_at(job, update->dense_offset);
    bool wants_dense = (job->tensor[t].spec.forms & LOCAL_FORM_DENSE) != 0;

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
    return job->plan->tensor[t].dense || job->tensor[t].spec.forms != LOCAL_FORM_LIST ||
           plan_update_count(job, job->plan, t) > job->tensor[t].list_capacity;
}

static enum adtopk_status decode_tensor(
    struct job *job, uint32_t t, struct payload_reader *reader, struct error *err)
{
    struct local_update *update = layout_update(job, t);
    size_t dense = (size_t)update->numel * sizeof(float);
    size_t list = (size_t)update->capacity * 2 * sizeof(uint32_t);
    const uint8_t *bytes;
    size_t size;

    if (payload_get_bytes(reader, 1 + (dense > list ? dense : list), &bytes, &size, err) !=
        ADTOPK_OK) {
        return err->code;
    }
    if (size > 0 && bytes[0] == LOCAL_FORM_LIST) {
        if (decode_list(job, t, bytes + 1, size - 1, err) != ADTOPK_OK) {
            return err->code;
        }
    } else {
        if (size != 1 + dense || bytes[0] != LOCAL_FORM_DENSE || !may_be_dense(job, t)) {
            return bad_copy(job, t, err);
        }
        (void)memcpy(result_at(job, update->dense_offset), bytes + 1, dense);
        update->count = 0;
        update->forms = LOCAL_FORM_DENSE;
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
    (void)memcpy(result_at(job, job->op_result_offset), bytes, size);
    store_count_op(job->store, (uint32_t)size);
    return ADTOPK_OK;
}

/* A copy counts as delivered only if this node took part in the round: then its gradient is in
 * the residual, and what it sent is in the sum. Some of its tensors may be delivered already: a
 * daemon was killed while it noted that. */
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

enum adtopk_status copy_decode(struct round *round, const struct buffer *frame, struct error *err)
{
    struct job *job = round->job;
    struct payload_reader reader;
    enum adtopk_status status = payload_open(&reader, frame->bytes, frame->size, err);

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
        store->round_nonfinite = (reader.header.flags & PAYLOAD_FLAG_NONFINITE) != 0;
        store_publish(&store->stage, STAGE_DELIVERED);
    }
    return status;
}
