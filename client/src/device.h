/*
 * Gradients in a GPU's memory (device.c). The context's lock is held in all calls. All of them
 * leave the caller's current CUDA context as it was.
 */
#ifndef ADTOPK_CLIENT_DEVICE_H
#define ADTOPK_CLIENT_DEVICE_H

#include "client/src/context.h"

/** Whether the context's tensors have their gradients on a device. */
static inline bool client_is_on_device(const adtopk_context *context)
{
    return context->tensors > 0 && context->tensor[0].on_device;
}

/** Finds the device that a tensor names, or the current one, and makes it the context's. Errors:
 * ARGUMENT with the tensor and what is wrong; SYSTEM, MEMORY with the call of the driver. */
enum adtopk_status client_device_open(
    adtopk_context *context, const struct adtopk_tensor_spec *spec);

/** The UUID of the context's device. */
char *client_device_uuid(adtopk_context *context);

/** Maps the part of the batch's gradient arena that lies on the device, and clears it. */
enum adtopk_status client_device_map(adtopk_context *context, const struct client_reply *reply);

/** The batch is ready: from now on streams can wait for its updates. */
enum adtopk_status client_device_watch(adtopk_context *context);

/** The address of a gradient or an update at this offset of the batch's arena; NULL: it does not
 * lie there. */
void *client_device_memory(const adtopk_context *context, uint64_t offset, uint64_t bytes);

/** Where a list on the device has its entries. */
static inline const uint32_t *client_list_index(const struct client_tensor *tensor)
{
    return (const uint32_t *)(void *)((uint8_t *)tensor->list + LOCAL_LIST_BEGIN);
}

static inline const float *client_list_value(const struct client_tensor *tensor)
{
    return (const float *)(void *)((uint8_t *)tensor->list + LOCAL_LIST_BEGIN +
                                   local_list_half(tensor->numel));
}

/** Puts into the stream what has to happen there for a push: a copy of `gradient`, unless that is
 * NULL or lies in the arena, and the flag that tells the daemon. */
enum adtopk_status client_device_push(
    adtopk_context *context, uint32_t tensor, const struct adtopk_push_spec *push);

#define CLIENT_STEP UINT32_MAX /* the step itself, in place of a tensor */

/** Has the stream wait for the word of a tensor, or of CLIENT_STEP, in this step (proto/local.h).
 * *word: the address on the device of the one by which kernels see whether the update is right. */
enum adtopk_status client_device_wait(
    adtopk_context *context, uint32_t tensor, void *stream, const uint32_t **word);

/** Whether the word of a tensor says that its update of this step is on the device. True if the
 * daemon is of an earlier version, and has no words. */
bool client_device_is_right(const adtopk_context *context, uint32_t tensor, uint64_t step);

/** Lets go of streams that wait, waits until the device has finished, and gives back everything
 * that the functions above made. */
void client_device_close(adtopk_context *context);

#endif
