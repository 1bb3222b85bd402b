/* Registering tensors: checked at once, and sent to the daemon in batches at commit. */
#include <adtopk/stream.h>
#include <stdlib.h>
#include <string.h>

#include "client/src/device.h"
#include "client/src/transport.h"
#include "proto/utf8.h"

#define TENSOR_BATCH_BYTES 40000 /* limit of a batch; a message may have 60,000 */
/* The forms in which an update comes. */
#define TENSOR_VALUES (ADTOPK_FORM_LIST | ADTOPK_FORM_DENSE | ADTOPK_FORM_DENSE16)
#define TENSOR_FORMS                                                                               \
    ((unsigned)(TENSOR_VALUES | ADTOPK_FORM_PENDING | ADTOPK_FORM_DEVICE | ADTOPK_FORM_DEVICE_LIST))

/* ---- names ---- */

static uint32_t tensor_hash(const char *name)
{
    uint32_t hash = 2166136261u; /* FNV-1a */

    for (; *name != '\0'; name++) {
        hash = (hash ^ (unsigned char)*name) * 16777619u;
    }
    return hash;
}

/* The slot of the name, or the free slot for it. */
static uint32_t *tensor_slot(const adtopk_context *context, const char *name)
{
    uint32_t at = tensor_hash(name) & (context->slots - 1);

    while (
        context->slot[at] != 0 && strcmp(context->tensor[context->slot[at] - 1].name, name) != 0) {
        at = (at + 1) & (context->slots - 1);
    }
    return &context->slot[at];
}

/* Makes room for one more tensor and its name. The table stays at most half full. */
static enum adtopk_status tensor_grow(adtopk_context *context)
{
    const uint32_t capacity = context->capacity > 0 ? 2 * context->capacity : 64;
    struct client_tensor *tensor;
    uint32_t *slot;

    if (context->tensors < context->capacity) {
        return ADTOPK_OK;
    }
    tensor = realloc(context->tensor, capacity * sizeof *tensor);
    if (tensor != NULL) {
        context->tensor = tensor;
    }
    slot = tensor != NULL ? calloc(2 * (size_t)capacity, sizeof *slot) : NULL;
    if (slot == NULL) {
        return client_refuse(context, ADTOPK_ERR_MEMORY, "no memory to register a tensor");
    }
    free(context->slot);
    context->slot = slot;
    context->slots = 2 * capacity;
    context->capacity = capacity;
    for (uint32_t i = 0; i < context->tensors; i++) {
        *tensor_slot(context, context->tensor[i].name) = i + 1;
    }
    return ADTOPK_OK;
}

/* ---- checks ---- */

static enum adtopk_status tensor_check_name(adtopk_context *context, const char *name)
{
    const size_t length = name != NULL ? strnlen(name, CLIENT_NAME_MAX + 1) : 0;
    char fault[UTF8_FAULT_SIZE];

    if (length == 0 || length > CLIENT_NAME_MAX) {
        return client_refuse(context, ADTOPK_ERR_ARGUMENT,
            "the name of tensor %u is %s; 1 to %d bytes are allowed", context->tensors,
            length == 0 ? "empty" : "too long", CLIENT_NAME_MAX);
    }
    if (utf8_name_fault(name, fault)) {
        return client_refuse(
            context, ADTOPK_ERR_ARGUMENT, "the name of tensor %u has %s", context->tensors, fault);
    }
    return ADTOPK_OK;
}

/* Checks the shape and fills in numel. */
static enum adtopk_status tensor_check_shape(
    adtopk_context *context, const struct adtopk_tensor_spec *spec, uint64_t *numel)
{
    if (spec->dims < 1 || spec->dims > ADTOPK_MAX_DIMS) {
        return client_refuse(context, ADTOPK_ERR_ARGUMENT,
            "tensor \"%s\" has %d dimensions; 1 to %d are allowed", spec->name, spec->dims,
            ADTOPK_MAX_DIMS);
    }
    *numel = 1;
    for (int i = 0; i < spec->dims; i++) {
        if (spec->shape[i] == 0) {
            return client_refuse(
                context, ADTOPK_ERR_ARGUMENT, "tensor \"%s\" has shape[%d] = 0", spec->name, i);
        }
        if (spec->shape[i] > UINT32_MAX / *numel) {
            return client_refuse(context, ADTOPK_ERR_ARGUMENT,
                "tensor \"%s\" has more than %u elements", spec->name, UINT32_MAX);
        }
        *numel *= spec->shape[i];
    }
    return ADTOPK_OK;
}

static enum adtopk_status tensor_check_forms(
    adtopk_context *context, const struct adtopk_tensor_spec *spec)
{
    const unsigned forms = spec->forms;

    if ((forms & ~TENSOR_FORMS) != 0) {
        return client_refuse(context, ADTOPK_ERR_ARGUMENT,
            "tensor \"%s\" asks for the unknown forms %u", spec->name, forms);
    }
    if ((forms & ADTOPK_FORM_DENSE16) != 0 && spec->dtype == ADTOPK_F32) {
        return client_refuse(context, ADTOPK_ERR_ARGUMENT,
            "tensor \"%s\" is f32: ADTOPK_FORM_DENSE16 is for f16 and bf16", spec->name);
    }
    if ((forms & ADTOPK_FORM_DENSE16) != 0 && (forms & ADTOPK_FORM_DENSE) != 0) {
        return client_refuse(context, ADTOPK_ERR_ARGUMENT,
            "tensor \"%s\" asks for ADTOPK_FORM_DENSE and ADTOPK_FORM_DENSE16: one of them",
            spec->name);
    }
    return ADTOPK_OK;
}

/* Refuses kinds of memory that the gradient cannot lie in. Opens the GPU that it names. */
static enum adtopk_status tensor_check_memory(
    adtopk_context *context, const struct adtopk_tensor_spec *spec)
{
    const bool on_device = spec->memory == ADTOPK_CUDA;

    if (spec->memory != ADTOPK_HOST && !on_device) {
        return client_refuse(context, ADTOPK_ERR_ARGUMENT,
            "tensor \"%s\": the kind of memory %d is unknown", spec->name, (int)spec->memory);
    }
    if (spec->device != NULL && !on_device) {
        return client_refuse(context, ADTOPK_ERR_ARGUMENT,
            "tensor \"%s\" names a GPU, and its memory is not ADTOPK_CUDA", spec->name);
    }
    if (on_device && context->transport != &client_local) {
        return client_refuse(context, ADTOPK_ERR_ARGUMENT,
            "tensor \"%s\": with a daemon on another machine gradients lie in host memory",
            spec->name);
    }
    if (context->tensors > 0 && on_device != client_is_on_device(context)) {
        return client_refuse(context, ADTOPK_ERR_ARGUMENT,
            "tensor \"%s\" is in %s memory and tensor \"%s\" in %s memory: the gradients of a rank "
            "lie in one kind of memory",
            spec->name, on_device ? "CUDA" : "host", context->tensor[0].name,
            on_device ? "host" : "CUDA");
    }
    if (on_device && context->place.memory == LOCAL_MEMORY_HOST) {
        return client_refuse(context, ADTOPK_ERR_ARGUMENT,
            "tensor \"%s\" is in a GPU's memory, and this daemon works in host memory (its setting "
            "\"engine\" is not \"cuda\")",
            spec->name);
    }
    return on_device ? client_device_open(context, spec) : ADTOPK_OK;
}

/* Refuses a form on a GPU where updates of other tensors do not have it. */
static enum adtopk_status tensor_check_all(
    adtopk_context *context, const struct adtopk_tensor_spec *spec, unsigned form, const char *name)
{
    const bool asked = (spec->forms & form) != 0;

    if (context->tensors > 0 && asked != ((context->tensor[0].forms & form) != 0)) {
        return client_refuse(context, ADTOPK_ERR_ARGUMENT,
            "tensor \"%s\" asks for ADTOPK_FORM_%s and tensor \"%s\" does not: a rank asks for "
            "it for all its tensors, or for none",
            asked ? spec->name : context->tensor[0].name, name,
            asked ? context->tensor[0].name : spec->name);
    }
    return ADTOPK_OK;
}

/* Refuses updates on a GPU where the rank's gradients, or updates of other tensors, are not. */
static enum adtopk_status tensor_check_shown(
    adtopk_context *context, const struct adtopk_tensor_spec *spec)
{
    const unsigned beside = ADTOPK_FORM_DEVICE | ADTOPK_FORM_LIST;
    const bool shown = (spec->forms & ADTOPK_FORM_DEVICE) != 0;
    const bool listed = (spec->forms & ADTOPK_FORM_DEVICE_LIST) != 0;
    enum adtopk_status status;

    if (shown && spec->memory != ADTOPK_CUDA) {
        return client_refuse(context, ADTOPK_ERR_ARGUMENT,
            "tensor \"%s\" asks for ADTOPK_FORM_DEVICE, and its gradient is not in a GPU's memory "
            "(ADTOPK_CUDA)",
            spec->name);
    }
    if (listed && (spec->forms & beside) != beside) {
        return client_refuse(context, ADTOPK_ERR_ARGUMENT,
            "tensor \"%s\" asks for ADTOPK_FORM_DEVICE_LIST without ADTOPK_FORM_DEVICE "
            "and ADTOPK_FORM_LIST",
            spec->name);
    }
    status = tensor_check_all(context, spec, ADTOPK_FORM_DEVICE, "DEVICE");
    return status == ADTOPK_OK
               ? tensor_check_all(context, spec, ADTOPK_FORM_DEVICE_LIST, "DEVICE_LIST")
               : status;
}

/* Refuses values that the interface allows and this version does not support. */
static enum adtopk_status tensor_check_supported(
    adtopk_context *context, const struct adtopk_tensor_spec *spec)
{
    bool whole = true;

    for (int i = 0; i < spec->dims; i++) {
        whole &= spec->global_offset[i] == 0 &&
                 (spec->global_shape[i] == 0 || spec->global_shape[i] == spec->shape[i]);
    }
    if (!whole) {
        return client_refuse(context, ADTOPK_ERR_ARGUMENT,
            "tensor \"%s\" is a shard (global_shape, global_offset), which this version does not "
            "support",
            spec->name);
    }
    return tensor_check_shown(context, spec) == ADTOPK_OK ? tensor_check_memory(context, spec)
                                                          : ADTOPK_ERR_ARGUMENT;
}

static enum adtopk_status tensor_check(
    adtopk_context *context, const struct adtopk_tensor_spec *spec, uint64_t *numel)
{
    enum adtopk_status status = tensor_check_name(context, spec->name);

    if (status == ADTOPK_OK) {
        status = tensor_check_shape(context, spec, numel);
    }
    if (status != ADTOPK_OK) {
        return status;
    }
    if ((unsigned)spec->dtype > ADTOPK_BF16) {
        return client_refuse(context, ADTOPK_ERR_ARGUMENT, "tensor \"%s\" has the unknown dtype %d",
            spec->name, (int)spec->dtype);
    }
    status = tensor_check_forms(context, spec);
    if (status != ADTOPK_OK) {
        return status;
    }
    return tensor_check_supported(context, spec);
}

/* A daemon of an earlier version has no lists on GPUs. With one of those it has had none for the
 * first tensor, all others have none, either. */
static bool tensor_has_lists(const adtopk_context *context, const struct adtopk_tensor_spec *spec)
{
    return (spec->forms & ADTOPK_FORM_DEVICE_LIST) != 0 &&
           (context->tensors > 0 ? context->tensor[0].lists
                                 : context->place.memory == LOCAL_MEMORY_LISTS);
}

/* Appends a tensor that was checked. There must be room. */
static void tensor_add(
    adtopk_context *context, const struct adtopk_tensor_spec *spec, uint64_t numel)
{
    struct client_tensor *added = &context->tensor[context->tensors];

    *tensor_slot(context, spec->name) = context->tensors + 1;
    memset(added, 0, sizeof *added);
    memcpy(added->name, spec->name, strlen(spec->name) + 1);
    added->dtype = spec->dtype;
    added->forms =
        (spec->forms & TENSOR_VALUES) != 0 ? spec->forms : spec->forms | ADTOPK_FORM_DENSE;
    added->dims = spec->dims;
    memcpy(added->shape, spec->shape, (size_t)spec->dims * sizeof spec->shape[0]);
    added->guard = 1;
    added->on_device = spec->memory == ADTOPK_CUDA;
    added->lists = tensor_has_lists(context, spec);
    added->numel = numel;
    added->batch = context->batch.count;
    added->bytes = numel * (spec->dtype == ADTOPK_F32 ? 4 : 2);
    context->tensors++;
}

static enum adtopk_status tensor_register(
    adtopk_context *context, const struct adtopk_tensor_spec *spec)
{
    uint64_t numel = 0;
    enum adtopk_status status = tensor_check(context, spec, &numel);

    if (status == ADTOPK_OK && context->tensors == CLIENT_MAX_TENSORS) {
        status = client_refuse(context, ADTOPK_ERR_ARGUMENT,
            "tensor \"%s\" is over the limit of %u tensors", spec->name, CLIENT_MAX_TENSORS);
    }
    if (status == ADTOPK_OK) {
        status = tensor_grow(context);
    }
    if (status == ADTOPK_OK && *tensor_slot(context, spec->name) != 0) {
        status = client_refuse(
            context, ADTOPK_ERR_ARGUMENT, "tensor \"%s\" is registered already", spec->name);
    }
    if (status == ADTOPK_OK) {
        tensor_add(context, spec, numel);
    }
    return status;
}

static bool tensor_is_committing(const adtopk_context *context)
{
    return context->commit != CLIENT_COMMIT_NOT && context->commit != CLIENT_COMMIT_DONE;
}

static enum adtopk_status tensor_register_spec(
    adtopk_context *context, const struct adtopk_tensor_spec *spec, uint32_t *tensor)
{
    enum adtopk_status status = client_enter(context);
    struct adtopk_tensor_spec known = {.size = sizeof known};

    if (status == ADTOPK_OK &&
        (context->sent > context->batch.ready || tensor_is_committing(context))) {
        status = client_refuse(
            context, ADTOPK_ERR_STATE, "adtopk_register() before adtopk_commit() is complete");
    }
    if (status == ADTOPK_OK && context->batch.count == CLIENT_MAX_BATCHES) {
        status = client_refuse(context, ADTOPK_ERR_ARGUMENT,
            "tensors can be committed %u times, and were", CLIENT_MAX_BATCHES);
    }
    if (status == ADTOPK_OK) {
        status = client_take(context, "struct adtopk_tensor_spec", spec, &known, sizeof known);
    }
    if (status == ADTOPK_OK) {
        status = tensor_register(context, &known);
    }
    if (status == ADTOPK_OK && tensor != NULL) {
        *tensor = context->tensors - 1;
    }
    return status;
}

enum adtopk_status adtopk_register(
    adtopk_context *context, const struct adtopk_tensor_spec *spec, uint32_t *tensor)
{
    client_lock(context);
    return client_unlock(context, tensor_register_spec(context, spec, tensor));
}

enum adtopk_status adtopk_check_device(adtopk_context *context, const char *device)
{
    const struct adtopk_tensor_spec any = {
        .size = sizeof any, .name = "*", .memory = ADTOPK_CUDA, .device = device};
    enum adtopk_status status;

    client_lock(context);
    status = client_enter(context);
    if (status == ADTOPK_OK) {
        status = tensor_check_memory(context, &any);
    }
    return client_unlock(context, status);
}

/* ---- telling the daemon ---- */

enum adtopk_status client_say_hello(adtopk_context *context, const struct client_patience *patience)
{
    Adtopk__LocalOpen open = ADTOPK__LOCAL_OPEN__INIT;
    Adtopk__LocalRequest request = ADTOPK__LOCAL_REQUEST__INIT;

    open.version = LOCAL_VERSION;
    open.job = context->place.job;
    open.run_id = context->place.run_id;
    open.rank = (uint32_t)context->place.rank;
    open.world_size = (uint32_t)context->place.world_size;
    open.policy = context->comeback.policy;
    open.run = context->comeback.run;
    open.batches = context->comeback.brings;
    open.abilities = LOCAL_CAN_BATCH | LOCAL_CAN_RETURN | LOCAL_CAN_FOLLOW;
    open.comes_back = context->place.comes_back && open.run == 0; /* otherwise it did */
    open.first_step = open.comes_back ? context->place.first_step : context->step;
    request.kind_case = ADTOPK__LOCAL_REQUEST__KIND_OPEN;
    request.open = &open;
    return context->transport->send(context, &request, patience);
}

enum adtopk_status client_send_plain(adtopk_context *context, Adtopk__LocalRequest__KindCase kind,
    const struct client_patience *patience)
{
    Adtopk__LocalCommit commit = ADTOPK__LOCAL_COMMIT__INIT;
    Adtopk__LocalMapped mapped = ADTOPK__LOCAL_MAPPED__INIT;
    Adtopk__LocalLeave leave = ADTOPK__LOCAL_LEAVE__INIT;
    Adtopk__LocalRequest request = ADTOPK__LOCAL_REQUEST__INIT;

    request.kind_case = kind;
    if (kind == ADTOPK__LOCAL_REQUEST__KIND_COMMIT) {
        request.commit = &commit;
    } else if (kind == ADTOPK__LOCAL_REQUEST__KIND_MAPPED) {
        request.mapped = &mapped;
    } else {
        request.leave = &leave;
    }
    return context->transport->send(context, &request, patience);
}

static void tensor_message(
    adtopk_context *context, struct client_tensor *tensor, Adtopk__LocalTensor *message)
{
    adtopk__local_tensor__init(message);
    message->name = tensor->name;
    message->dtype = (uint32_t)tensor->dtype;
    message->n_shape = (size_t)tensor->dims;
    message->shape = tensor->shape;
    message->forms = tensor->forms & LOCAL_FORMS;
    if (tensor->on_device) {
        message->memory = tensor->lists                               ? LOCAL_LISTED_ON_GPU
                          : (tensor->forms & ADTOPK_FORM_DEVICE) != 0 ? LOCAL_SHOWN_ON_GPU
                                                                      : LOCAL_ON_GPU;
        message->device = client_device_uuid(context);
    }
}

/* Sends as many tensors as one message holds. */
static enum adtopk_status tensor_send_batch(adtopk_context *context, uint32_t end,
    Adtopk__LocalTensor *message, Adtopk__LocalTensor **pointer,
    const struct client_patience *patience)
{
    Adtopk__LocalRegister batch = ADTOPK__LOCAL_REGISTER__INIT;
    Adtopk__LocalRequest request = ADTOPK__LOCAL_REQUEST__INIT;
    size_t bytes = 0;
    enum adtopk_status status;

    while (context->sent + batch.n_tensors < end && bytes < TENSOR_BATCH_BYTES) {
        const size_t i = batch.n_tensors++;

        tensor_message(context, &context->tensor[context->sent + i], &message[i]);
        pointer[i] = &message[i];
        bytes += protobuf_c_message_get_packed_size(&message[i].base) + 4;
    }
    batch.tensors = pointer;
    request.kind_case = ADTOPK__LOCAL_REQUEST__KIND_REGISTER;
    request.register_ = &batch;
    status = context->transport->send(context, &request, patience);
    context->sent += status == ADTOPK_OK ? (uint32_t)batch.n_tensors : 0;
    return status;
}

enum adtopk_status client_send_tensors(
    adtopk_context *context, uint32_t end, const struct client_patience *patience)
{
    const size_t count = end - context->sent;
    Adtopk__LocalTensor *message = malloc((count + 1) * sizeof *message);
    Adtopk__LocalTensor **pointer = malloc((count + 1) * sizeof *pointer);
    enum adtopk_status status = ADTOPK_OK;

    if (message == NULL || pointer == NULL) {
        status =
            client_refuse(context, ADTOPK_ERR_MEMORY, "no memory to register %zu tensors", count);
    }
    while (status == ADTOPK_OK && context->sent < end) {
        status = tensor_send_batch(context, end, message, pointer, patience);
    }
    free(message);
    free(pointer);
    return status;
}

void *adtopk_gradient(adtopk_context *context, uint32_t tensor)
{
    void *gradient = NULL;

    client_lock(context);
    if (context != NULL && !client_is_elsewhere(context) && context->commit == CLIENT_COMMIT_DONE &&
        tensor < context->batch.ready) {
        gradient = context->tensor[tensor].gradient;
    }
    (void)client_unlock(context, ADTOPK_OK);
    return gradient;
}
