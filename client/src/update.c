/* Reading updates. */
#include <string.h>

#include "client/src/copy.h"
#include "client/src/sized.h"
#include "client/src/transport.h"
#include "kernels/base/convert.h"

/* Whether the tensor's update is that of the last step: no step is open, or this rank has not
 * pushed the tensor in the open one. */
static bool update_is_of_last_step(
    const adtopk_context *context, const struct client_tensor *tensor)
{
    const uint32_t number = (uint32_t)(tensor - context->tensor);

    return context->step_state == CLIENT_STEP_NEW ||
           (context->step_state == CLIENT_STEP_OPEN && context->step > tensor->since &&
               tensor->pushed == context->step && context->transport->is_final(context, number));
}

static enum adtopk_status update_check_state(
    adtopk_context *context, const struct client_tensor *tensor)
{
    if (context->step_state == CLIENT_STEP_NEW) {
        if (context->accepted != 0 && context->step > tensor->since) {
            return ADTOPK_OK;
        }
        return client_refuse(context, ADTOPK_ERR_STATE,
            context->withdrawn ? "the update of tensor \"%s\" was withdrawn with its step"
                               : "no update of tensor \"%s\" was waited for yet",
            tensor->name);
    }
    if (tensor->waited == context->step + 1 || update_is_of_last_step(context, tensor)) {
        return ADTOPK_OK;
    }
    return client_refuse(context, ADTOPK_ERR_STATE,
        "tensor \"%s\" has no update in step %llu: it was not waited for, or not finite; older ones"
        " are released",
        tensor->name, (unsigned long long)context->step);
}

static enum adtopk_status update_read(
    adtopk_context *context, uint32_t tensor, struct adtopk_update *update)
{
    enum adtopk_status status = client_enter_tensor(context, "adtopk_update()", tensor, true);
    struct adtopk_update found = {.size = sizeof found};
    struct error err;

    if (status == ADTOPK_OK &&
        client_sized_check("struct adtopk_update", update, &err) != ADTOPK_OK) {
        status = client_refuse(context, err.code, "%s", err.text);
    }
    if (status == ADTOPK_OK) {
        status = update_check_state(context, &context->tensor[tensor]);
    }
    if (status != ADTOPK_OK) {
        return status;
    }
    found.numel = context->tensor[tensor].numel;
    found.step =
        context->step - (update_is_of_last_step(context, &context->tensor[tensor]) ? 1 : 0);
    context->transport->update(context, tensor, &found);
    if ((context->tensor[tensor].forms & ADTOPK_FORM_PENDING) != 0 &&
        context->step_state == CLIENT_STEP_NEW && context->transport->pending != NULL &&
        context->failure.code == ADTOPK_OK) {
        status = context->transport->pending(context, tensor, &found);
        if (status == ADTOPK_INTERRUPTED) {
            return status;
        }
        /* After any other failure the next call fails, too. */
    }
    if (found.pending != NULL) {
        context->pending.read = context->step + 1;
    }
    found.dtype16 = found.dense16 != NULL || found.device_dense16 != NULL
                        ? (uint32_t)context->tensor[tensor].dtype
                        : 0;
    if ((found.index == NULL || found.value == NULL) && found.dense == NULL &&
        found.dense16 == NULL) {
        return client_fail(context, ADTOPK_ERR_PROTOCOL,
            "the daemon's update of tensor \"%s\" lies outside its arena",
            context->tensor[tensor].name);
    }
    client_sized_fill(update, &found, sizeof found);
    return ADTOPK_OK;
}

enum adtopk_status adtopk_update(
    adtopk_context *context, uint32_t tensor, struct adtopk_update *update)
{
    client_lock(context);
    return client_unlock(context, update_read(context, tensor, update));
}

static float update_element(const struct adtopk_update *update, uint64_t i)
{
    return update->dtype16 == ADTOPK_F16 ? convert_f16(update->dense16[i])
                                         : convert_bf16(update->dense16[i]);
}

/* A program may have a smaller structure. */
static struct adtopk_update update_known(const struct adtopk_update *update)
{
    struct adtopk_update known = {.size = 0};

    memcpy(&known, update, update->size < sizeof known ? update->size : sizeof known);
    return known;
}

void adtopk_copy_update(void *to, const struct adtopk_update *update)
{
    const struct adtopk_update known = update_known(update);

    if (known.dense16 != NULL) {
        client_copy(to, known.dense16, known.numel * sizeof *known.dense16);
    } else if (known.dense != NULL) {
        client_copy(to, known.dense, known.numel * sizeof *known.dense);
    } else {
        client_copy_list(to, known.numel, known.index, known.value, known.count);
    }
}

void adtopk_apply_sgd(float *parameters, const struct adtopk_update *update, float learning_rate)
{
    const struct adtopk_update known = update_known(update);

    if (known.index != NULL) {
        for (uint64_t i = 0; i < known.count; i++) {
            parameters[known.index[i]] -= learning_rate * known.value[i];
        }
    } else if (known.dense != NULL) {
        for (uint64_t i = 0; i < known.numel; i++) {
            parameters[i] -= learning_rate * known.dense[i];
        }
    } else if (known.dense16 != NULL) {
        for (uint64_t i = 0; i < known.numel; i++) {
            parameters[i] -= learning_rate * update_element(&known, i);
        }
    }
}
