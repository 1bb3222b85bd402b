/* Joining, committing, leaving. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/src/context.h"

#define SESSION_ANSWER_MS 30000 /* for what the daemon answers at once */
#define SESSION_BYE_MS 10000

/* ---- memory ---- */

/* A page that forked children find wiped: they have the context's bytes, but not the session. */
static uint32_t *session_mark(struct error *err)
{
    uint32_t *here = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (here == MAP_FAILED) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for a context");
        return NULL;
    }
    if (madvise(here, 4096, MADV_WIPEONFORK) != 0) {
        (void)munmap(here, 4096);
        (void)error_set(err, ADTOPK_ERR_SYSTEM, "this kernel has no MADV_WIPEONFORK (Linux 4.14)");
        return NULL;
    }
    *here = 1;
    return here;
}

/* Maps a descriptor of a reply, which must hold at least `least` bytes. */
static enum adtopk_status session_map(adtopk_context *context, const struct client_reply *reply,
    unsigned index, int protection, uint64_t least, struct client_mapping *mapping)
{
    struct stat status;
    void *bytes;

    if (index >= reply->descriptors || fstat(reply->descriptor[index], &status) != 0 ||
        (uint64_t)status.st_size < least) {
        return client_fail(context, ADTOPK_ERR_PROTOCOL,
            "the daemon at unix:%s shared no memory, or too little (%llu bytes wanted)",
            context->path, (unsigned long long)least);
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

static void session_unmap(struct client_mapping *mapping)
{
    if (mapping->bytes != NULL) {
        (void)munmap(mapping->bytes, mapping->size);
    }
}

static void session_free(adtopk_context *context)
{
    session_unmap(&context->ring_map);
    session_unmap(&context->page_map);
    session_unmap(&context->gradients);
    session_unmap(&context->results);
    if (context->socket >= 0) {
        (void)close(context->socket);
    }
    if (context->here != NULL) {
        (void)munmap(context->here, 4096);
    }
    free(context->tensor);
    free(context->slot);
    free(context);
}

/* The reply must be of this kind; anything else ends the context. */
static enum adtopk_status session_expect(adtopk_context *context, const struct client_reply *reply,
    Adtopk__LocalReply__KindCase kind, const char *wanted)
{
    if (reply->message->kind_case == kind) {
        return ADTOPK_OK;
    }
    if (reply->message->kind_case == ADTOPK__LOCAL_REPLY__KIND_ERROR) {
        return client_refuse(context, (enum adtopk_status)reply->message->error->status, "%.239s",
            reply->message->error->text);
    }
    return client_fail(context, ADTOPK_ERR_PROTOCOL,
        "the daemon at unix:%s sent reply %d instead of %s%s", context->path,
        (int)reply->message->kind_case, wanted,
        context->ring.page == NULL ? " (this may be the control socket)" : "");
}

/* ---- open ---- */

static enum adtopk_status session_hello(
    adtopk_context *context, const struct client_options *options)
{
    Adtopk__LocalOpen open = ADTOPK__LOCAL_OPEN__INIT;
    Adtopk__LocalRequest request = ADTOPK__LOCAL_REQUEST__INIT;
    struct client_options copy = *options;
    enum adtopk_status status;
    char *policy = strdup(options->policy);

    if (policy == NULL) {
        return client_fail(context, ADTOPK_ERR_MEMORY, "no memory for the policy");
    }
    open.version = LOCAL_VERSION;
    open.job = copy.job;
    open.run_id = copy.run_id;
    open.rank = (uint32_t)options->rank;
    open.world_size = (uint32_t)options->world_size;
    open.policy = policy;
    request.kind_case = ADTOPK__LOCAL_REQUEST__KIND_OPEN;
    request.open = &open;
    status = client_send(context, &request);
    free(policy);
    return status;
}

static enum adtopk_status session_opened(adtopk_context *context)
{
    struct client_reply reply;
    enum adtopk_status status =
        client_receive(context, SESSION_ANSWER_MS, "answer to adtopk_open()", &reply);

    if (status != ADTOPK_OK) {
        return status;
    }
    status = session_expect(
        context, &reply, ADTOPK__LOCAL_REPLY__KIND_OPENED, "an answer to adtopk_open()");
    if (status == ADTOPK_OK) {
        status = session_map(context, &reply, 0, PROT_READ | PROT_WRITE, sizeof(struct local_ring),
            &context->ring_map);
    }
    if (status == ADTOPK_OK) {
        status = session_map(context, &reply, 1, PROT_READ,
            sizeof(struct local_page) + CLIENT_MAX_TENSORS * sizeof(uint64_t), &context->page_map);
    }
    if (status == ADTOPK_OK) {
        context->ring.ring = context->ring_map.bytes;
        context->ring.page = context->page_map.bytes;
        if (context->ring.page->version != LOCAL_VERSION) {
            status = client_fail(context, ADTOPK_ERR_PROTOCOL,
                "the daemon's memory has version %u, the library's %u", context->ring.page->version,
                LOCAL_VERSION);
        }
    }
    client_reply_drop(&reply);
    return status;
}

static adtopk_context *session_new(const struct client_options *options, struct error *err)
{
    adtopk_context *context = calloc(1, sizeof *context);

    if (context == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for a context");
        return NULL;
    }
    memcpy(context->path, options->path, sizeof context->path);
    context->rank = options->rank;
    context->world_size = options->world_size;
    context->socket = -1;
    context->here = session_mark(err);
    if (context->here != NULL) {
        context->socket = client_connect(options->path, options->connect_timeout_ms, err);
    }
    if (context->socket < 0) {
        session_free(context);
        return NULL;
    }
    return context;
}

enum adtopk_status adtopk_open(const struct adtopk_options *options, adtopk_context **context)
{
    struct error *err = client_open_error();
    struct client_options resolved;
    adtopk_context *opened;
    enum adtopk_status status;

    if (context == NULL) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "context is NULL");
    }
    status = client_options_resolve(options, &resolved, err);
    if (status != ADTOPK_OK) {
        return status;
    }
    opened = session_new(&resolved, err);
    if (opened == NULL) {
        return err->code;
    }
    status = session_hello(opened, &resolved);
    if (status == ADTOPK_OK) {
        status = session_opened(opened);
    }
    if (status != ADTOPK_OK) {
        *err = opened->error;
        session_free(opened);
        return status;
    }
    *context = opened;
    return ADTOPK_OK;
}

/* ---- commit ---- */

static enum adtopk_status session_simple(
    adtopk_context *context, Adtopk__LocalRequest__KindCase kind)
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
    return client_send(context, &request);
}

static enum adtopk_status session_take_arena(adtopk_context *context)
{
    struct client_reply reply;
    enum adtopk_status status = client_receive(context, -1, "gradient arena", &reply);

    if (status != ADTOPK_OK) {
        return status;
    }
    status = session_expect(context, &reply, ADTOPK__LOCAL_REPLY__KIND_ARENA, "a gradient arena");
    if (status == ADTOPK_OK) {
        status = session_map(context, &reply, 0, PROT_READ | PROT_WRITE, reply.message->arena->size,
            &context->gradients);
    }
    client_reply_drop(&reply);
    return status;
}

/* Where everything lies, from the table at the start of the results; checked against both. */
static enum adtopk_status session_take_layout(adtopk_context *context)
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

static enum adtopk_status session_take_ready(adtopk_context *context)
{
    const uint64_t least = sizeof(struct local_results) +
                           context->tensors * sizeof(((struct local_results *)0)->tensor[0]);
    struct client_reply reply;
    enum adtopk_status status = client_receive(context, -1, "start", &reply);

    if (status != ADTOPK_OK) {
        return status;
    }
    status = session_expect(context, &reply, ADTOPK__LOCAL_REPLY__KIND_READY, "the start");
    if (status == ADTOPK_OK) {
        status = session_map(context, &reply, 0, PROT_READ, least, &context->results);
    }
    if (status == ADTOPK_OK) {
        context->step = reply.message->ready->step;
        context->operation = reply.message->ready->operation;
        status = session_take_layout(context);
    }
    client_reply_drop(&reply);
    return status;
}

enum adtopk_status adtopk_commit(adtopk_context *context)
{
    enum adtopk_status status = client_enter(context);

    if (status == ADTOPK_OK && context->committed) {
        status = client_refuse(context, ADTOPK_ERR_STATE, "adtopk_commit() was called before");
    }
    if (status == ADTOPK_OK) {
        status = client_send_tensors(context);
    }
    if (status == ADTOPK_OK) {
        status = session_simple(context, ADTOPK__LOCAL_REQUEST__KIND_COMMIT);
    }
    if (status == ADTOPK_OK) {
        status = session_take_arena(context);
    }
    if (status != ADTOPK_OK) {
        return status;
    }
    status = session_simple(context, ADTOPK__LOCAL_REQUEST__KIND_MAPPED);
    if (status == ADTOPK_OK) {
        status = session_take_ready(context);
    }
    context->committed = status == ADTOPK_OK;
    return status;
}

/* ---- close ---- */

/* Says goodbye and waits until the daemon has taken it. */
static void session_leave(adtopk_context *context)
{
    bool waiting = session_simple(context, ADTOPK__LOCAL_REQUEST__KIND_LEAVE) == ADTOPK_OK;

    while (waiting) {
        struct client_reply reply;

        if (client_receive(context, SESSION_BYE_MS, "goodbye", &reply) != ADTOPK_OK) {
            return;
        }
        waiting = reply.message->kind_case != ADTOPK__LOCAL_REPLY__KIND_BYE;
        client_reply_drop(&reply);
    }
}

void adtopk_close(adtopk_context *context)
{
    if (context == NULL) {
        return;
    }
    if (!client_is_elsewhere(context) && client_enter(context) == ADTOPK_OK) {
        session_leave(context);
    }
    session_free(context);
}

int adtopk_rank(const adtopk_context *context)
{
    return context != NULL ? context->rank : -1;
}

int adtopk_world_size(const adtopk_context *context)
{
    return context != NULL ? context->world_size : -1;
}
