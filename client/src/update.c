/* Reading updates. */
#include "client/src/transport.h"

static enum adtopk_status update_check_state(
    adtopk_context *context, const struct client_tensor *tensor)
{
    if (context->step_state == CLIENT_STEP_NEW) {
        if (context->accepted != 0) {
            return ADTOPK_OK;
        }
        return client_refuse(context, ADTOPK_ERR_STATE,
            context->withdrawn ? "the update of tensor \"%s\" was withdrawn with its step"
                               : "no update of tensor \"%s\" was waited for yet",
            tensor->name);
    }
    if (tensor->waited == context->step + 1) {
        return ADTOPK_OK;
    }
    return client_refuse(context, ADTOPK_ERR_STATE,
        "tensor \"%s\" has no update in step %llu: it was not waited for, or not finite; older ones"
        " are released",
        tensor->name, (unsigned long long)context->step);
}

enum adtopk_status adtopk_update(
    adtopk_context *context, uint32_t tensor, struct adtopk_update *update)
{
    enum adtopk_status status = client_enter_tensor(context, "adtopk_update()", tensor, true);
    struct adtopk_update found = {0};

    if (status == ADTOPK_OK && update == NULL) {
        status = client_refuse(context, ADTOPK_ERR_ARGUMENT, "update is NULL");
    }
    if (status == ADTOPK_OK) {
        status = update_check_state(context, &context->tensor[tensor]);
    }
    if (status != ADTOPK_OK) {
        return status;
    }
    found.numel = context->tensor[tensor].numel;
    context->transport->update(context, tensor, &found);
    if ((found.index == NULL || found.value == NULL) && found.dense == NULL) {
        return client_fail(context, ADTOPK_ERR_PROTOCOL,
            "the daemon's update of tensor \"%s\" lies outside its arena",
            context->tensor[tensor].name);
    }
    *update = found;
    return ADTOPK_OK;
}

void adtopk_apply_sgd(float *parameters, const struct adtopk_update *update, float learning_rate)
{
    if (update->index != NULL) {
        for (uint64_t i = 0; i < update->count; i++) {
            parameters[update->index[i]] -= learning_rate * update->value[i];
        }
    } else {
        for (uint64_t i = 0; i < update->numel; i++) {
            parameters[i] -= learning_rate * update->dense[i];
        }
    }
}
