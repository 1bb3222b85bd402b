/* The daemon on this node: a socket (connect.c), a ring (ring.c, wait.c), and shared memory. */
#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/src/comeback.h"
#include "client/src/device.h"
#include "client/src/pending.h"
#include "client/src/tend.h"

static enum adtopk_status local_connect(
    adtopk_context *context, const struct client_options *options, struct error *err)
{
    context->socket =
        client_connect(options->path, options->connect_timeout_ms, options->interruptible, err);
    return context->socket >= 0 ? ADTOPK_OK : err->code;
}

/* ---- mappings ---- */

enum adtopk_status client_map(adtopk_context *context, const struct client_reply *reply,
    unsigned index, int protection, uint64_t least, struct client_mapping *mapping)
{
    struct stat status;
    void *bytes;

    if (index >= reply->descriptors || fstat(reply->descriptor[index], &status) != 0 ||
        (uint64_t)status.st_size < least) {
        return client_fail(context, ADTOPK_ERR_PROTOCOL,
            "the daemon at %s shared no memory, or too little (%llu bytes wanted)",
            context->place.address, (unsigned long long)least);
    }
    bytes = mmap(NULL, (size_t)status.st_size, protection, MAP_SHARED, reply->descriptor[index], 0);
    if (bytes == MAP_FAILED) {
        return client_fail(context, ADTOPK_ERR_MEMORY,
            "cannot map %llu bytes shared by the daemon: %s", (unsigned long long)status.st_size,
            strerror(errno));
    }
    mapping->bytes = bytes;
    mapping->size = (uint64_t)status.st_size;
    return ADTOPK_OK;
}

void client_unmap(struct client_mapping *mapping)
{
    if (mapping->bytes != NULL) {
        (void)munmap(mapping->bytes, mapping->size);
        *mapping = (struct client_mapping){.bytes = NULL};
    }
}

static enum adtopk_status local_opened(adtopk_context *context, const struct client_reply *reply)
{
    const uint64_t page = sizeof(struct local_page) + CLIENT_MAX_TENSORS * sizeof(uint64_t);
    enum adtopk_status status = client_map(
        context, reply, 0, PROT_READ | PROT_WRITE, sizeof(struct local_ring), &context->ring_map);

    if (status == ADTOPK_OK) {
        status = client_map(context, reply, 1, PROT_READ, page, &context->page_map);
    }
    if (status != ADTOPK_OK) {
        return status;
    }
    context->place.memory = reply->message->opened->memory;
    context->ring.ring = context->ring_map.bytes;
    context->ring.page = context->page_map.bytes;
    if (context->ring.page->version != LOCAL_VERSION) {
        return client_fail(context, ADTOPK_ERR_PROTOCOL,
            "the daemon's memory has version %u, the library's %u", context->ring.page->version,
            LOCAL_VERSION);
    }
    return ADTOPK_OK;
}

static enum adtopk_status local_arena(adtopk_context *context, const struct client_reply *reply)
{
    const enum adtopk_status status = client_map(context, reply, 0, PROT_READ | PROT_WRITE,
        reply->message->arena->size, &context->batch.gradients[context->batch.count]);

    return status == ADTOPK_OK && client_is_on_device(context) ? client_device_map(context, reply)
                                                               : status;
}

/* A tensor's gradient at this offset of the arena; NULL: it does not lie there. */
static void *local_gradient(
    const adtopk_context *context, const struct client_tensor *tensor, uint64_t offset)
{
    const struct client_mapping *host = &context->batch.gradients[context->batch.count];

    if (tensor->on_device) {
        return client_device_memory(context, offset, tensor->bytes);
    }
    return offset <= host->size && tensor->bytes <= host->size - offset
               ? (uint8_t *)host->bytes + offset
               : NULL;
}

/* Finds the memory of a tensor of the batch. False: it does not lie in the batch's arenas. */
static bool local_take_tensor(
    const adtopk_context *context, struct client_tensor *tensor, uint64_t gradient, uint64_t update)
{
    const struct client_mapping *results = &context->batch.results[context->batch.count];

    tensor->gradient = local_gradient(context, tensor, gradient);
    tensor->update =
        (const struct local_update *)(const void *)((const uint8_t *)results->bytes + update);
    return gradient % 64 == 0 && update % 8 == 0 && tensor->gradient != NULL &&
           update <= results->size && sizeof(struct local_update) <= results->size - update;
}

/* Finds the areas of the plain operations, which are in the first arenas. */
static bool local_take_areas(adtopk_context *context, const struct local_results *table)
{
    const uint64_t in = context->batch.gradients[0].size, out = context->batch.results[0].size;

    context->op_in = (uint8_t *)context->batch.gradients[0].bytes + table->op_gradient_offset;
    context->op_out = (const uint8_t *)table + table->op_result_offset;
    return table->op_gradient_offset <= in - CLIENT_OP_SIZE && in >= CLIENT_OP_SIZE &&
           table->op_result_offset <= out - CLIENT_OP_SIZE && out >= CLIENT_OP_SIZE;
}

/* Finds the update that the rank sees on its GPU, if it asked for that, and goes on behind it.
 * False: it does not lie in the arena. */
static bool local_take_shown(
    const adtopk_context *context, struct client_tensor *tensor, uint64_t *offset)
{
    const uint64_t size = local_shown_size(tensor->numel, tensor->forms);
    const bool asked = (tensor->forms & ADTOPK_FORM_DEVICE) != 0;

    tensor->shown = asked ? client_device_memory(context, *offset, size) : NULL;
    *offset += size;
    return !asked || tensor->shown != NULL;
}

/* Does the same with its list. */
static bool local_take_list(
    const adtopk_context *context, struct client_tensor *tensor, uint64_t *offset)
{
    const uint64_t size = tensor->lists ? local_list_size(tensor->numel) : 0;

    tensor->list = tensor->lists ? client_device_memory(context, *offset, size) : NULL;
    *offset += size;
    return !tensor->lists || tensor->list != NULL;
}

/* Does the same with what updates lack. A daemon of an earlier version has no room for that. */
static void local_take_pending(
    const adtopk_context *context, struct client_tensor *tensor, uint64_t *offset)
{
    const uint64_t size = local_pending_size(tensor->numel, tensor->forms);

    tensor->pending =
        size > 0 && tensor->shown != NULL ? client_device_memory(context, *offset, size) : NULL;
    *offset += size;
}

/* Where updates on a GPU begin: behind the gradients. */
static uint64_t local_shown_begin(const adtopk_context *context, const struct local_results *table)
{
    const uint32_t last = context->tensors - 1;
    const uint64_t end =
        table->tensor[last - context->batch.ready].gradient_offset + context->tensor[last].bytes;

    return (end + LOCAL_SHOWN_ALIGNMENT - 1) / LOCAL_SHOWN_ALIGNMENT * LOCAL_SHOWN_ALIGNMENT;
}

/* Finds the last batch's gradients and updates, from the table at the start of its results. */
static enum adtopk_status local_take_layout(adtopk_context *context)
{
    const struct local_results *table = context->batch.results[context->batch.count].bytes;
    bool right = table->tensors == context->tensors - context->batch.ready &&
                 (context->batch.count > 0 || local_take_areas(context, table));
    uint64_t shown;

    for (uint32_t i = context->batch.ready; right && i < context->tensors; i++) {
        const uint32_t at = i - context->batch.ready;
        right = local_take_tensor(context, &context->tensor[i], table->tensor[at].gradient_offset,
            table->tensor[at].update_offset);
    }
    shown = right ? local_shown_begin(context, table) : 0;
    for (uint32_t i = context->batch.ready; right && i < context->tensors; i++) {
        right = local_take_shown(context, &context->tensor[i], &shown);
    }
    for (uint32_t i = context->batch.ready; right && i < context->tensors; i++) {
        right = local_take_list(context, &context->tensor[i], &shown);
    }
    for (uint32_t i = context->batch.ready; right && i < context->tensors; i++) {
        local_take_pending(context, &context->tensor[i], &shown);
    }
    return right ? ADTOPK_OK
                 : client_fail(context, ADTOPK_ERR_PROTOCOL,
                       "the daemon's table of tensors does not fit what was registered");
}

static enum adtopk_status local_ready(adtopk_context *context, const struct client_reply *reply)
{
    const uint64_t tensors = context->tensors - context->batch.ready;
    const uint64_t least =
        sizeof(struct local_results) + tensors * sizeof(((struct local_results *)0)->tensor[0]);
    const enum adtopk_status status = client_map(
        context, reply, 0, PROT_READ, least, &context->batch.results[context->batch.count]);

    if (status != ADTOPK_OK || local_take_layout(context) != ADTOPK_OK) {
        return context->failure.code;
    }
    return client_is_on_device(context) ? client_device_watch(context) : client_watch_rank(context);
}

/* ---- updates ---- */

/* The part of the result arena with `count` elements of this size. NULL if the arena does not
 * contain it. */
static const void *local_part(
    const struct client_mapping *results, uint64_t offset, uint64_t count, size_t element)
{
    const uint64_t size = results->size;

    if (offset > size || count > (size - offset) / element || offset % sizeof(float) != 0) {
        return NULL;
    }
    return (const uint8_t *)results->bytes + offset;
}

/* Whether the rank has this update on its GPU. Its process may have come later. */
static bool local_is_shown(const adtopk_context *context, uint32_t tensor, uint64_t step)
{
    const struct client_tensor *about = &context->tensor[tensor];

    return about->shown != NULL &&
           (about->filled == step + 1 || ((about->update->forms & LOCAL_FORM_SHOWN) != 0 &&
                                             client_device_is_right(context, tensor, step)));
}

/* Whether its list is there, too. */
static bool local_is_listed(const struct client_tensor *tensor, const struct local_update *from)
{
    return tensor->list != NULL &&
           (tensor->filled == from->step + 1 ? tensor->listed == from->step + 1
                                             : (from->forms & LOCAL_FORM_LISTED) != 0);
}

/* With the 16-bit form the list has values of its own, and there is no dense form in f32. */
static void local_update(
    const adtopk_context *context, uint32_t tensor, struct adtopk_update *update)
{
    const struct client_mapping *results = &context->batch.results[context->tensor[tensor].batch];
    const struct client_tensor *about = &context->tensor[tensor];
    const struct local_update from = *about->update;
    const bool half = (about->forms & ADTOPK_FORM_DENSE16) != 0;
    const unsigned forms = half ? from.forms & about->forms : from.forms;
    const uint64_t value = half ? from.shown_offset : from.value_offset;

    update->unpushed = from.unpushed != 0;
    if ((forms & LOCAL_FORM_LIST) != 0 && from.index_offset != 0) {
        update->count = from.count;
        update->index = local_part(results, from.index_offset, from.count, sizeof(uint32_t));
        update->value = local_part(results, value, from.count, sizeof(float));
    }
    if ((forms & LOCAL_FORM_DENSE) != 0 && from.dense_offset != 0) {
        update->dense = local_part(results, from.dense_offset, update->numel, sizeof(float));
    }
    if ((forms & LOCAL_FORM_DENSE16) != 0 && from.half_offset != 0) {
        update->dense16 = local_part(results, from.half_offset, update->numel, sizeof(uint16_t));
    }
    if (local_is_shown(context, tensor, from.step)) {
        update->device_dense = half ? NULL : about->shown;
        update->device_dense16 = half ? about->shown : NULL;
        if (update->index != NULL && local_is_listed(about, &from)) {
            update->device_index = client_list_index(about);
            update->device_value = client_list_value(about);
        }
    }
}

static bool local_is_final(const adtopk_context *context, uint32_t tensor)
{
    return context->tensor[tensor].update->final != 0;
}

/* What the daemon writes to the socket is for threads that wait: this shows its end only. */
static struct pollfd local_end(const adtopk_context *context)
{
    return (struct pollfd){.fd = context->socket, .events = POLLRDHUP};
}

static void local_close(adtopk_context *context, bool ours)
{
    client_watch_end(&context->batch.watch, ours);
    if (ours) { /* a child has its own descriptors and mappings, but no device */
        client_device_close(context);
    }
    client_unmap(&context->ring_map);
    client_unmap(&context->page_map);
    for (unsigned b = 0; b < CLIENT_MAX_BATCHES; b++) {
        client_unmap(&context->batch.gradients[b]);
        client_unmap(&context->batch.results[b]);
    }
    client_pending_drop(&context->pending);
    if (context->socket >= 0) {
        (void)close(context->socket);
    }
}

const struct client_transport client_local = {
    .connect = local_connect,
    .send = client_send,
    .receive = client_receive_local,
    .opened = local_opened,
    .arena = local_arena,
    .ready = local_ready,
    .submit = client_submit,
    .wait = client_wait,
    .update = local_update,
    .is_final = local_is_final,
    .pending = client_pending_find,
    .come_back = client_miss,
    .reconnect = client_local_reconnect,
    .reopened = client_local_reopened,
    .rearena = client_local_rearena,
    .reready = client_local_reready,
    .resubmit = client_local_resubmit,
    .tend = client_tend,
    .end = local_end,
    .drain = client_drain,
    .close = local_close,
};
