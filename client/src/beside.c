/*
 * Gradients in a GPU's memory, when the rank has come back to another daemon.
 *
 * That daemon has an arena of its own on the device. It is mapped beside the old one, whose memory
 * lives as long as it is mapped here. The program's pointers and streams go on using the old one,
 * until the step is over:
 *
 * - A push writes the old flag. When it is there, the gradient is copied to the new arena, and the
 *   new flag is written behind the copy.
 * - When the daemon has delivered an update, it is copied to the old arena, and the old word is
 *   written behind the copy. So streams that wait there find what is right. What updates lack is
 *   copied before the step's word.
 *
 * Both happen in a stream of the library. No wait is ever put into it, because this file looks at
 * flags and the page on the host, again and again: the thread of watch.c does, and calls that wait.
 *
 * When the step is over no stream waits any more. Then the device is waited for, what is in the old
 * arena is copied, and the new memory is mapped at the old addresses.
 *
 * Failures: that daemon has less memory for the rank, or a call of the driver failed, which ends
 * the context. CUDA does not know what a stream waits for that waits for a word. So it may put the
 * library's copies behind such a stream, on the same connection to the device. Then they never
 * come, and watch.c lets go of the streams. If that daemon goes away, too, the old arena still has
 * everything, and its own is kept until the step is over.
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "client/src/beside.h"
#include "client/src/device_state.h"
#include "client/src/transport.h"

static void beside_drop_host(struct client_mapping *host)
{
    if (host->bytes != NULL) {
        (void)munmap(host->bytes, host->size);
        host->bytes = NULL;
    }
}

static uint64_t beside_offset(const struct client_mapping *host, const void *at)
{
    return (uint64_t)((const uint8_t *)at - (const uint8_t *)host->bytes);
}

/* Whether flags, words and gradients have the same places in both arenas. */
static bool beside_fits(const adtopk_context *context, unsigned batch, uint64_t flags)
{
    const struct client_mapping *host = &context->batch.gradients[batch];
    const struct client_mapping *next_host = &context->comeback.arena[batch];
    const struct device_arena *old = &context->batch.device->arena[batch];
    const struct device_arena *next = &context->batch.device->beside[batch];

    return next->size >= old->size && next->begin == old->begin && next_host->size == host->size &&
           beside_offset(host, old->flags) == flags && old->words.word != NULL &&
           next->words.word != NULL && next->words.count == old->words.count &&
           beside_offset(host, old->words.word) == beside_offset(next_host, next->words.word);
}

static bool beside_copy(struct client_device *device, CUdeviceptr to, CUdeviceptr from,
    uint64_t size, struct error *err)
{
    return DEVICE_TRY(device, err, cuMemcpyDtoDAsync_v2, to, from, size, device->mover);
}

static bool beside_write(
    struct client_device *device, CUdeviceptr word, uint32_t number, struct error *err)
{
    return DEVICE_TRY(device, err, cuStreamWriteValue32_v2, device->mover, word, number,
        CU_STREAM_WRITE_VALUE_DEFAULT);
}

static bool beside_finish(struct client_device *device, struct error *err)
{
    return device->mover == NULL || DEVICE_TRY(device, err, cuStreamSynchronize, device->mover);
}

/* ---- the new arena ---- */

/* No gradient of the open step is there yet. */
static void beside_clear_flags(const adtopk_context *context, const struct device_arena *arena)
{
    _Atomic uint32_t *flag = arena->flags;
    const uint32_t tensors = arena->words.count - (arena == context->batch.device->beside ? 1 : 0);

    for (uint32_t i = 0; i < tensors; i++) {
        atomic_store(&flag[i], local_flag_of(context->step) - 1);
    }
}

/* Maps it. Updates that the old daemon has delivered are in it from the start. */
static bool beside_map(struct client_device *device, unsigned batch, int descriptor,
    const struct client_mapping *host, uint64_t flags, struct error *err)
{
    struct device_arena *arena = &device->beside[batch];

    return (device->mover != NULL ||
               DEVICE_TRY(device, err, cuStreamCreate, &device->mover, CU_STREAM_NON_BLOCKING)) &&
           client_device_import(device, arena, descriptor, err) &&
           client_device_map_window(device, arena, arena->handle, err) &&
           client_device_register(
               device, arena, (uint8_t *)host->bytes + flags, host->size - flags, err) &&
           beside_copy(device, arena->window, device->arena[batch].window, arena->size, err) &&
           beside_finish(device, err);
}

enum adtopk_status client_beside_map(
    adtopk_context *context, const struct client_reply *reply, unsigned batch)
{
    const struct client_mapping *host = &context->comeback.arena[batch];
    const uint64_t flags = reply->message->arena->flags;
    struct client_device *device = context->batch.device;
    struct device_arena *arena = &device->beside[batch];
    struct error err;
    bool done;

    if (!client_device_read(context, reply, batch, host, arena) ||
        !beside_fits(context, batch, flags)) {
        return client_fail(context, ADTOPK_ERR_PROTOCOL,
            "the daemon at %s has other memory of %s for this rank than the one before",
            context->place.address, device->device.uuid);
    }
    arena->size = device->arena[batch].size;
    if (!client_device_enter(device, &err)) {
        return client_fail(context, err.code, "%s", err.text);
    }
    done = beside_map(device, batch, reply->descriptor[1], host, flags, &err);
    client_device_leave(device);
    if (!done) {
        return client_fail(context, err.code, "the gradient arena: %.300s", err.text);
    }
    beside_clear_flags(context, arena);
    atomic_store(&context->batch.watch.step, context->step);
    return ADTOPK_OK;
}

enum adtopk_status client_beside_drop(
    adtopk_context *context, unsigned batch, struct client_mapping *host)
{
    struct client_device *device = context->batch.device;
    struct device_arena *arena =
        batch < context->batch.count ? &device->beside[batch] : &device->arena[batch];
    struct device_gone *gone;

    if (arena->window == 0) {
        return ADTOPK_OK;
    }
    gone = malloc(sizeof *gone);
    if (gone == NULL) {
        return client_fail(context, ADTOPK_ERR_MEMORY, "no memory to come back to a daemon");
    }
    *gone = (struct device_gone){.next = device->gone, .arena = *arena, .host = *host};
    device->gone = gone;
    *arena = (struct device_arena){.window = 0};
    *host = (struct client_mapping){.bytes = NULL};
    return ADTOPK_OK;
}

void client_beside_clear(struct client_device *device)
{
    while (device->gone != NULL) {
        struct device_gone *gone = device->gone;

        device->gone = gone->next;
        client_device_drop(device, &gone->arena);
        beside_drop_host(&gone->host);
        free(gone);
    }
    if (device->staging.bytes != NULL) {
        (void)device->driver.cuMemHostUnregister(device->staging.bytes);
        beside_drop_host(&device->staging);
    }
    if (device->mover != NULL) {
        (void)device->driver.cuStreamDestroy_v2(device->mover);
        device->mover = NULL;
    }
}

bool client_beside_is_there(const adtopk_context *context)
{
    const struct client_device *device = context->batch.device;
    bool there = false;

    for (unsigned b = 0; device != NULL && !there && b < CLIENT_MAX_BATCHES; b++) {
        there = device->beside[b].window != 0;
    }
    return there;
}

bool client_beside_moves(const adtopk_context *context)
{
    return client_beside_is_there(context) && context->batch.device->moves;
}

/* ---- gradients ---- */

static bool beside_move_push(adtopk_context *context, uint32_t t, struct error *err)
{
    struct client_device *device = context->batch.device;
    struct client_tensor *tensor = &context->tensor[t];
    const struct device_arena *old = &device->arena[tensor->batch];
    const struct device_arena *next = &device->beside[tensor->batch];
    const uint32_t at = client_device_place(context, t), number = local_flag_of(context->step);
    const CUdeviceptr from = (CUdeviceptr)(uintptr_t)tensor->gradient;

    /* What a stream writes after it was let go may be no gradient. */
    if (tensor->pushed != context->step + 1 || tensor->moved == context->step + 1 ||
        !local_flag_is((const _Atomic uint32_t *)old->flags + at, number) ||
        client_watch_is_cut(&context->batch.watch)) {
        return true;
    }
    tensor->moved = context->step + 1;
    return beside_copy(device, next->window + (from - old->window), from, tensor->bytes, err) &&
           beside_write(device, next->flag + at * sizeof(uint32_t), number, err);
}

/* ---- updates ---- */

/* How the step has ended; PENDING: it has not. */
static enum adtopk_status beside_step_outcome(const adtopk_context *context)
{
    const struct local_page *page = context->ring.page;

    return atomic_load(&page->steps_done) > context->step
               ? (enum adtopk_status)atomic_load(&page->step_status)
               : ADTOPK_PENDING;
}

/* The same of a tensor's round. A daemon that begins behind the step says nothing of tensors. */
static enum adtopk_status beside_outcome(const adtopk_context *context, uint32_t t)
{
    const uint64_t word = atomic_load(&context->ring.page->delivered[t]);

    return word >> 8 > context->step ? (enum adtopk_status)(word & 0xff)
                                     : beside_step_outcome(context);
}

/* Writes the elements of a list. False: it is not one. */
static bool beside_spread_list(const struct adtopk_update *update, float *element)
{
    for (uint64_t i = 0; i < update->count; i++) {
        if (update->index == NULL || update->value == NULL || update->index[i] >= update->numel) {
            return false;
        }
        element[update->index[i]] = update->value[i];
    }
    return true;
}

/* Makes all elements of an update, as the device has them, of what is in host memory. False: they
 * do not fit, or are none. */
static bool beside_spread(const struct adtopk_update *update, void *bytes, uint64_t size)
{
    const bool fits = update->numel * sizeof *update->dense <= size;

    memset(bytes, 0, size);
    if (update->dense16 != NULL) {
        memcpy(bytes, update->dense16, update->numel * sizeof *update->dense16);
        return true;
    }
    if (update->dense != NULL && fits) {
        memcpy(bytes, update->dense, update->numel * sizeof *update->dense);
        return true;
    }
    return update->dense == NULL && (fits ? beside_spread_list(update, bytes) : update->count == 0);
}

static uint64_t beside_shown_size(const struct client_tensor *tensor)
{
    return local_shown_size(tensor->numel, tensor->forms);
}

/* Registers memory for the largest update. It stays registered as long as streams may wait. */
static bool beside_stage(adtopk_context *context, struct error *err)
{
    struct client_device *device = context->batch.device;
    struct client_mapping *staging = &device->staging;

    if (staging->bytes != NULL) {
        return true;
    }
    for (uint32_t t = 0; t < context->batch.ready; t++) {
        const uint64_t size = beside_shown_size(&context->tensor[t]);
        staging->size = size > staging->size ? size : staging->size;
    }
    staging->bytes =
        mmap(NULL, staging->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (staging->bytes == MAP_FAILED) {
        *staging = (struct client_mapping){.bytes = NULL};
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for an update");
        return false;
    }
    if (!DEVICE_TRY(device, err, cuMemHostRegister_v2, staging->bytes, staging->size,
            CU_MEMHOSTREGISTER_DEVICEMAP)) {
        beside_drop_host(staging);
        return false;
    }
    return true;
}

/* Whether the daemon has the update in memory of this process. Other nodes may have delivered the
 * round before this one came back: then it has their copy, in host memory only. In the first step
 * of a process that takes a place the form may be in memory of the process before. */
static bool beside_is_shown(const adtopk_context *context, uint32_t t)
{
    const bool first = context->place.comes_back && context->step == context->place.first_step;

    return !first && (context->tensor[t].update->forms & LOCAL_FORM_SHOWN) != 0;
}

/* Makes the update of the one in host memory. */
static bool beside_fill(adtopk_context *context, uint32_t t, struct error *err)
{
    const struct client_tensor *tensor = &context->tensor[t];
    const CUdeviceptr shown = (CUdeviceptr)(uintptr_t)tensor->shown;
    struct adtopk_update update = {.numel = tensor->numel};
    struct client_device *device = context->batch.device;

    if (!beside_stage(context, err)) {
        return false;
    }
    context->transport->update(context, t, &update);
    if (!beside_spread(&update, device->staging.bytes, beside_shown_size(tensor))) {
        (void)error_set(
            err, ADTOPK_ERR_PROTOCOL, "the daemon's update of tensor \"%s\" is none", tensor->name);
        return false;
    }
    return DEVICE_TRY(device, err, cuMemcpyHtoDAsync_v2, shown, device->staging.bytes,
               beside_shown_size(tensor), device->mover) &&
           beside_finish(device, err);
}

/* Copies a part of a tensor's arena from the new one to the same place in the old one. */
static bool beside_bring_part(adtopk_context *context, const struct client_tensor *tensor,
    const void *part, uint64_t size, struct error *err)
{
    struct client_device *device = context->batch.device;
    const CUdeviceptr to = (CUdeviceptr)(uintptr_t)part;
    const CUdeviceptr from =
        device->beside[tensor->batch].window + (to - device->arena[tensor->batch].window);

    return beside_copy(device, to, from, size, err);
}

/* Brings the list of an update, or says that there is none. */
static bool beside_bring_list(
    adtopk_context *context, struct client_tensor *tensor, bool shown, struct error *err)
{
    const bool listed = shown && (tensor->update->forms & LOCAL_FORM_LISTED) != 0;

    if (tensor->list == NULL) {
        return true;
    }
    tensor->listed = listed ? context->step + 1 : 0;
    return listed ? beside_bring_part(
                        context, tensor, tensor->list, local_list_size(tensor->numel), err)
                  : beside_write(context->batch.device, (CUdeviceptr)(uintptr_t)tensor->list,
                        LOCAL_NO_LIST, err);
}

/* Brings a right update to where streams look for it. */
static bool beside_bring_update(adtopk_context *context, uint32_t t, struct error *err)
{
    struct client_tensor *tensor = &context->tensor[t];
    const bool shown = beside_is_shown(context, t);

    tensor->filled = context->step + 1;
    return beside_bring_list(context, tensor, shown, err) &&
           (shown ? beside_bring_part(
                        context, tensor, tensor->shown, beside_shown_size(tensor), err)
                  : beside_fill(context, t, err));
}

static bool beside_tell(const adtopk_context *context, const struct device_arena *old, uint32_t at,
    bool right, struct error *err)
{
    const CUdeviceptr word = old->word + at * sizeof(struct local_word);
    const uint32_t number = local_flag_of(context->step);
    struct client_device *device = context->batch.device;

    return (!right ||
               beside_write(device, word + offsetof(struct local_word, right), number, err)) &&
           beside_write(device, word + offsetof(struct local_word, over), number, err);
}

/* Whether an old word says of this step that it is over. */
static bool beside_is_told(
    const adtopk_context *context, const struct device_arena *old, uint32_t at)
{
    return local_flag_is(&old->words.word[at].over, local_flag_of(context->step));
}

/* Whether it says that the update is right. */
static bool beside_is_right(
    const adtopk_context *context, const struct device_arena *old, uint32_t at)
{
    return atomic_load(&old->words.word[at].right) == local_flag_of(context->step);
}

static bool beside_tell_tensor(adtopk_context *context, uint32_t t, struct error *err)
{
    struct client_tensor *tensor = &context->tensor[t];
    const struct device_arena *old = &context->batch.device->arena[tensor->batch];
    const enum adtopk_status outcome = beside_outcome(context, t);
    const uint32_t at = client_device_place(context, t);
    const bool right = outcome == ADTOPK_OK;

    if (tensor->told == context->step + 1 || outcome == ADTOPK_PENDING) {
        return true;
    }
    tensor->told = context->step + 1;
    if (beside_is_told(context, old, at)) {
        tensor->filled = beside_is_right(context, old, at) ? context->step + 1 : tensor->filled;
        return true;
    }
    return (!right || beside_bring_update(context, t, err)) &&
           beside_tell(context, old, at, right, err);
}

/* Whether the GPU has the tensor's update. It has not if the old daemon had another node's, or if
 * the update was delivered before this process took its place. */
static bool beside_has_update(const adtopk_context *context, uint32_t t)
{
    return context->tensor[t].filled == context->step + 1 ||
           client_device_is_right(context, t, context->step);
}

/* A daemon that begins behind the step has the copy of what the old one wrote. */
static bool beside_bring_pending(adtopk_context *context, struct error *err)
{
    bool brought = true;

    for (uint32_t t = 0; brought && t < context->batch.ready; t++) {
        const struct client_tensor *tensor = &context->tensor[t];

        brought = tensor->pending == NULL ||
                  context->batch.device->beside[tensor->batch].window == 0 ||
                  beside_bring_part(context, tensor, tensor->pending,
                      local_pending_size(tensor->numel, tensor->forms), err);
    }
    return brought;
}

static bool beside_tell_step(adtopk_context *context, struct error *err)
{
    struct client_device *device = context->batch.device;
    const struct device_arena *old = &device->arena[0];
    const enum adtopk_status outcome = beside_step_outcome(context);
    const uint32_t at = old->words.count - 1;
    bool right = outcome == ADTOPK_OK;

    if (device->told == context->step + 1 || outcome == ADTOPK_PENDING ||
        beside_is_told(context, old, at)) {
        return true;
    }
    device->told = context->step + 1;
    for (uint32_t t = 0; right && t < context->batch.ready; t++) {
        right = beside_has_update(context, t);
    }
    return beside_bring_pending(context, err) && beside_tell(context, old, at, right, err);
}

/* ---- both ---- */

/* A batch that was being committed when the daemon went away has one arena only. */
static bool beside_move_tensor(adtopk_context *context, uint32_t t, struct error *err)
{
    const struct client_tensor *tensor = &context->tensor[t];

    return context->batch.device->beside[tensor->batch].window == 0 ||
           (beside_move_push(context, t, err) &&
               (tensor->shown == NULL || beside_tell_tensor(context, t, err)));
}

static bool beside_move(adtopk_context *context, struct error *err)
{
    struct client_device *device = context->batch.device;
    CUresult result;

    for (uint32_t t = 0; t < context->batch.ready; t++) {
        if (!beside_move_tensor(context, t, err)) {
            return false;
        }
    }
    if (context->tensor[0].shown != NULL && !beside_tell_step(context, err)) {
        return false;
    }
    result = device->driver.cuStreamQuery(device->mover);
    device->moves = result == CUDA_ERROR_NOT_READY;
    return device->moves || driver_check(&device->driver, result, "cuStreamQuery", &device->device,
                                err) == ADTOPK_OK;
}

static enum adtopk_status beside_do(
    adtopk_context *context, bool (*what)(adtopk_context *context, struct error *err))
{
    struct client_device *device = context->batch.device;
    struct error err;
    bool done;

    if (!client_beside_is_there(context)) {
        return ADTOPK_OK;
    }
    done = client_device_enter(device, &err);
    if (done) {
        done = what(context, &err);
        client_device_leave(device);
    }
    /* Behind the copies: what streams have found is right if they were not let go by now. */
    return done ? client_check_cut(context)
                : client_fail(
                      context, err.code, "the gradient arena of the next daemon: %.300s", err.text);
}

enum adtopk_status client_beside_tend(adtopk_context *context)
{
    return beside_do(context, beside_move);
}

static bool beside_bring(adtopk_context *context, struct error *err)
{
    return beside_move(context, err) && beside_finish(context->batch.device, err);
}

enum adtopk_status client_beside_bring(adtopk_context *context)
{
    return beside_do(context, beside_bring);
}

/* ---- the step is over ---- */

static bool beside_unregister(
    struct client_device *device, struct device_arena *arena, struct error *err)
{
    const bool done = DEVICE_TRY(device, err, cuMemHostUnregister, arena->flags);

    arena->flags = NULL;
    return done;
}

static bool beside_unmap(
    struct client_device *device, struct device_arena *arena, struct error *err)
{
    const bool done = DEVICE_TRY(device, err, cuMemUnmap, arena->window, arena->size);

    arena->mapped = false;
    return done;
}

/* Maps the new memory at the old addresses. If that fails the old one goes there again: the program
 * has pointers to it. */
static bool beside_exchange(struct client_device *device, struct device_arena *old,
    struct device_arena *next, struct error *err)
{
    const CUmemGenericAllocationHandle before = old->handle;
    struct error ignored;

    if (!beside_unmap(device, next, err) || !beside_unmap(device, old, err)) {
        return false;
    }
    if (!client_device_map_window(device, old, next->handle, err)) {
        (void)((!old->mapped || beside_unmap(device, old, &ignored)) &&
               client_device_map_window(device, old, before, &ignored));
        return false;
    }
    old->handle = next->handle;
    next->handle = before; /* so it is released with `next` */
    return true;
}

/* What the words say of the step stays until the next push. That daemon may say less: it does if it
 * begins behind the step. */
static void beside_keep_right(const struct device_arena *old, const struct device_arena *next)
{
    for (uint32_t i = 0; i < old->words.count; i++) {
        atomic_store(&next->words.word[i].right, atomic_load(&old->words.word[i].right));
    }
}

/* Of the host's part the program writes the area of operations, in front of the flags. If the call
 * fails the old mapping may be gone, and other threads still write to the words there. */
static bool beside_replace_host(
    struct client_mapping *next, const struct client_mapping *old, uint64_t area, struct error *err)
{
    memcpy(next->bytes, old->bytes, area);
    if (mremap(next->bytes, next->size, next->size, MREMAP_MAYMOVE | MREMAP_FIXED, old->bytes) ==
        MAP_FAILED) {
        (void)error_set(err, ADTOPK_ERR_SYSTEM, "mremap failed: %s", strerror(errno));
        (void)mmap(old->bytes, old->size, PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        return false;
    }
    *next = (struct client_mapping){.bytes = NULL};
    return true;
}

/* Maps a batch's new memory at the old addresses, which nothing uses. */
static bool beside_replace(adtopk_context *context, unsigned batch, struct error *err)
{
    struct client_mapping *next_host = &context->comeback.arena[batch];
    const struct client_mapping *host = &context->batch.gradients[batch];
    struct client_device *device = context->batch.device;
    struct device_arena *old = &device->arena[batch], *next = &device->beside[batch];
    uint8_t *flags = old->flags;
    const uint64_t area = beside_offset(host, flags);
    bool done;

    beside_keep_right(old, next);
    done = beside_copy(device, next->window, old->window, old->size, err) &&
           beside_finish(device, err) && beside_exchange(device, old, next, err) &&
           beside_unregister(device, old, err) && beside_unregister(device, next, err) &&
           beside_replace_host(next_host, host, area, err) &&
           client_device_register(device, old, flags, host->size - area, err);

    if (done) {
        client_device_drop(device, next);
    }
    return done;
}

static bool beside_replace_all(adtopk_context *context, struct error *err)
{
    struct client_device *device = context->batch.device;
    bool done = beside_move(context, err) && beside_finish(device, err) &&
                driver_check(&device->driver, device->driver.cuCtxSynchronize(), "cuCtxSynchronize",
                    &device->device, err) == ADTOPK_OK;
    for (unsigned b = 0; done && b < context->batch.count; b++) {
        done = device->beside[b].window == 0 || beside_replace(context, b, err);
    }
    if (done) {
        client_beside_clear(device);
    }
    return done;
}

/* A context that has failed may have done so in the middle of this. */
enum adtopk_status client_beside_settle(adtopk_context *context)
{
    if (client_beside_is_there(context) && context->failure.code != ADTOPK_OK) {
        return client_fail(context, context->failure.code, "%s", context->failure.text);
    }
    return beside_do(context, beside_replace_all);
}
