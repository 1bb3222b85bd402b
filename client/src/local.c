/* The daemon on this node: a socket (connect.c), a ring (ring.c, wait.c), and shared memory. */
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/src/transport.h"

static enum adtopk_status local_connect(
    adtopk_context *context, const struct client_options *options, struct error *err)
{
    context->socket = client_connect(options->path, options->connect_timeout_ms, err);
    return context->socket >= 0 ? ADTOPK_OK : err->code;
}

/* ---- mappings ---- */

/* Maps a descriptor of a reply, which must hold at least `least` bytes. */
static enum adtopk_status local_map(adtopk_context *context, const struct client_reply *reply,
    unsigned index, int protection, uint64_t least, struct client_mapping *mapping)
{
    struct stat status;
    void *bytes;

    if (index >= reply->descriptors || fstat(reply->descriptor[index], &status) != 0 ||
        (uint64_t)status.st_size < least) {
        return client_fail(context, ADTOPK_ERR_PROTOCOL,
            "the daemon at %s shared no memory, or too little (%llu bytes wanted)",
            context->address, (unsigned long long)least);
    }
    bytes = mmap(NULL, (size_t)status.st_size, protection, MAP_SHARED, reply->descriptor[index], 0);
    if (bytes == MAP_FAILED) {
        return client_fail(context, ADTOPK_ERR_MEMORY, "cannot map %llu bytes shared by the daemon",
            (unsigned long long)status.st_size);
    }
    mapping->bytes = bytes;
    mapping->size = (uint64_t)status.st_size;
    return ADTOPK_OK;
}

static void local_unmap(struct client_mapping *mapping)
{
    if (mapping->bytes != NULL) {
        (void)munmap(mapping->bytes, mapping->size);
    }
}

static enum adtopk_status local_opened(adtopk_context *context, const struct client_reply *reply)
{
    const uint64_t page = sizeof(struct local_page) + CLIENT_MAX_TENSORS * sizeof(uint64_t);
    enum adtopk_status status = local_map(
        context, reply, 0, PROT_READ | PROT_WRITE, sizeof(struct local_ring), &context->ring_map);

    if (status == ADTOPK_OK) {
        status = local_map(context, reply, 1, PROT_READ, page, &context->page_map);
    }
    if (status != ADTOPK_OK) {
        return status;
    }
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
    return local_map(context, reply, 0, PROT_READ | PROT_WRITE, reply->message->arena->size,
        &context->gradients);
}

/* Where everything lies, from the table at the start of the results; checked against both. */
static enum adtopk_status local_take_layout(adtopk_context *context)
{
    const struct local_results *table = context->results.bytes;
    const uint64_t in = context->gradients.size, out = context->results.size;
    bool right = table->tensors == context->tensors &&
                 table->op_gradient_offset <= in - CLIENT_OP_SIZE && in >= CLIENT_OP_SIZE &&
                 table->op_result_offset <= out - CLIENT_OP_SIZE && out >= CLIENT_OP_SIZE;

    for (uint32_t i = 0; right && i < context->tensors; i++) {
        struct client_tensor *tensor = &context->tensor[i];
        const uint64_t gradient = table->tensor[i].gradient_offset;
        const uint64_t update = table->tensor[i].update_offset;

        right = gradient % 64 == 0 && update % 8 == 0 && gradient <= in &&
                tensor->bytes <= in - gradient && update <= out &&
                sizeof(struct local_update) <= out - update;
        tensor->gradient = (uint8_t *)context->gradients.bytes + gradient;
        tensor->update =
            (const struct local_update *)(const void *)((const uint8_t *)table + update);
    }
    if (!right) {
        return client_fail(context, ADTOPK_ERR_PROTOCOL,
            "the daemon's table of tensors does not fit what was registered");
    }
    context->op_in = (uint8_t *)context->gradients.bytes + table->op_gradient_offset;
    context->op_out = (const uint8_t *)table + table->op_result_offset;
    return ADTOPK_OK;
}

static enum adtopk_status local_ready(adtopk_context *context, const struct client_reply *reply)
{
    const uint64_t least = sizeof(struct local_results) +
                           context->tensors * sizeof(((struct local_results *)0)->tensor[0]);
    const enum adtopk_status status =
        local_map(context, reply, 0, PROT_READ, least, &context->results);

    return status == ADTOPK_OK ? local_take_layout(context) : status;
}

/* ---- updates ---- */

/* A part of the result arena, or NULL if it does not lie inside. */
static const void *local_part(const adtopk_context *context, uint64_t offset, uint64_t count)
{
    const uint64_t size = context->results.size;

    if (offset > size || count > (size - offset) / sizeof(float) || offset % sizeof(float) != 0) {
        return NULL;
    }
    return (const uint8_t *)context->results.bytes + offset;
}

static void local_update(
    const adtopk_context *context, uint32_t tensor, struct adtopk_update *update)
{
    const struct local_update from = *context->tensor[tensor].update;

    if ((from.forms & LOCAL_FORM_LIST) != 0 && from.index_offset != 0) {
        update->count = from.count;
        update->index = local_part(context, from.index_offset, from.count);
        update->value = local_part(context, from.value_offset, from.count);
    }
    if ((from.forms & LOCAL_FORM_DENSE) != 0 && from.dense_offset != 0) {
        update->dense = local_part(context, from.dense_offset, update->numel);
    }
}

static void local_close(adtopk_context *context, bool ours)
{
    (void)ours; /* a child has its own descriptor and mappings */
    local_unmap(&context->ring_map);
    local_unmap(&context->page_map);
    local_unmap(&context->gradients);
    local_unmap(&context->results);
    if (context->socket >= 0) {
        (void)close(context->socket);
    }
}

const struct client_transport client_local = {
    .connect = local_connect,
    .send = client_send,
    .receive = client_receive,
    .opened = local_opened,
    .arena = local_arena,
    .ready = local_ready,
    .submit = client_submit,
    .wait = client_wait,
    .update = local_update,
    .close = local_close,
};
