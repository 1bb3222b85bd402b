#include "daemon/session/check.h"

#include <string.h>

#include "proto/local.h"
#include "proto/utf8.h"

static enum adtopk_status check_copy_key(
    char to[CORE_KEY_SIZE], const char *from, const char *field, struct error *err)
{
    const size_t length = strlen(from);
    char fault[UTF8_FAULT_SIZE];

    if (length == 0 || length >= CORE_KEY_SIZE) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "the %s has %zu bytes; 1 to %d are allowed",
            field, length, CORE_KEY_SIZE - 1);
    }
    if (utf8_name_fault(from, fault)) { /* adtopkctl must be able to name the job */
        return error_set(err, ADTOPK_ERR_ARGUMENT, "the %s has %s", field, fault);
    }
    memcpy(to, from, length + 1);
    return ADTOPK_OK;
}

enum adtopk_status check_open(const Adtopk__LocalOpen *open, uint32_t version, uint32_t owner,
    struct event *event, struct error *err)
{
    enum adtopk_status status;

    *event = (struct event){.type = EVENT_RANK_OPEN,
        .open = {.key = {.owner = owner},
            .rank = open->rank,
            .world_size = open->world_size,
            .policy = open->policy[0] != '\0' ? open->policy : NULL,
            .run = open->run,
            .batches = open->batches,
            .comes_back = open->comes_back,
            .first_step = open->first_step}};
    if (open->version != version) {
        return error_set(err, ADTOPK_ERR_PROTOCOL,
            "the trainer's libadtopk-client speaks protocol %u, and this daemon needs "
            "version " LOCAL_LIBRARY " of it (protocol %u)",
            open->version, version);
    }
    if (open->batches > (open->run != 0 ? CORE_MAX_BATCHES : 1)) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "rank %u asks to commit tensors %u times before it is ready; a rank that %s may do so "
            "at "
            "most %u times",
            open->rank, open->batches, open->run != 0 ? "returns" : "begins a run",
            open->run != 0 ? CORE_MAX_BATCHES : 1);
    }
    status = check_copy_key(event->open.key.name, open->job, "job's name", err);
    if (status == ADTOPK_OK) {
        status = check_copy_key(event->open.key.run_id, open->run_id, "run id", err);
    }
    return status;
}

enum adtopk_status check_tensor(
    const Adtopk__LocalTensor *tensor, struct tensor_spec *spec, struct error *err)
{
    const size_t length = strlen(tensor->name);
    char fault[UTF8_FAULT_SIZE];

    if (length == 0 || length >= CORE_NAME_SIZE) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "a tensor's name has %zu bytes; 1 to %d are allowed", length, CORE_NAME_SIZE - 1);
    }
    if (utf8_name_fault(tensor->name, fault)) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "a tensor's name has %s", fault);
    }
    memset(spec, 0, sizeof *spec);
    memcpy(spec->name, tensor->name, length + 1);
    if (tensor->dtype >= DTYPE_COUNT) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "tensor \"%s\" has the unknown dtype %u",
            spec->name, tensor->dtype);
    }
    if (tensor->n_shape == 0 || tensor->n_shape > TENSOR_MAX_DIMS) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "tensor \"%s\" has %zu dimensions; 1 to %d are allowed", spec->name, tensor->n_shape,
            TENSOR_MAX_DIMS);
    }
    if (tensor->forms == 0 || (tensor->forms & ~LOCAL_FORMS) != 0) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "tensor \"%s\" asks for unknown forms %u",
            spec->name, tensor->forms);
    }
    if (tensor->group[0] != '\0' || tensor->n_global_shape > 0 || tensor->n_global_offset > 0 ||
        tensor->memory > LOCAL_LISTED_ON_GPU) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "tensor \"%s\" is in a group, a shard or in a kind of memory that this daemon does not "
            "serve",
            spec->name);
    }
    spec->on_gpu = tensor->memory != 0;
    spec->shown_on_gpu = tensor->memory == LOCAL_LISTED_ON_GPU  ? CORE_SHOWN_LISTS
                         : tensor->memory == LOCAL_SHOWN_ON_GPU ? CORE_SHOWN_WHOLE
                                                                : CORE_SHOWN_NOT;
    spec->dtype = (enum dtype)tensor->dtype;
    spec->forms = tensor->forms;
    spec->shape.dims = (unsigned)tensor->n_shape;
    memcpy(spec->shape.size, tensor->shape, tensor->n_shape * sizeof tensor->shape[0]);
    return ADTOPK_OK;
}
