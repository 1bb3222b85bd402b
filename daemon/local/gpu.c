/*
 * Gradients in a GPU's memory. Of the rank's arena, only the operation area, the flags and the
 * words (proto/local.h) lie in host memory. Behind these are addresses without memory. The core
 * names gradients by them, and the engine knows which device memory is meant.
 *
 * Happy path: the rank's first tensor names the GPU, and the commit makes the arena. Each entry
 * that pushes a gradient is held, with those behind it, until the rank's stream has written the
 * gradient's flag. While entries are held and the loop has nothing else to do, a timer ends its
 * sleep, because nobody sends a wake-up when a stream writes. The core says what is delivered and
 * accepted, and the words say so to streams of the rank that wait for it.
 *
 * Failures: this daemon has no such GPU, or no memory is left there. The registration or the commit
 * is refused. A rank that never writes a flag has not pushed: the core's push_timeout names it. A
 * client that fails lets go of its streams, and no later push of it counts: its session ends.
 */
#include "daemon/local/gpu.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "daemon/local/local_session.h"
#include "proto/local.h"

#define GPU_AREA (CORE_OP_GRADIENTS + CORE_OP_SIZE) /* bytes of the first arena before tensors */
#define GPU_PAGE UINT64_C(4096)
#define GPU_LOOK_MIN_US 50u
#define GPU_LOOK_MAX_US 1000u
#define GPU_LOOK_SHARE 16u /* the next look comes after this share of the time waited so far */

static const char gpu_arena_name[] = "gradient arena";

/* ---- registering ---- */

bool gpu_may_hold(const struct local_session *session)
{
    return session->local->config.gpu_find != NULL;
}

static bool gpu_is_uuid(const char *text)
{
    static const char allowed[] = "0123456789-abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    const size_t length = strlen(text);

    return length > 0 && length < GPU_UUID_SIZE && strspn(text, allowed) == length;
}

static enum adtopk_status gpu_check(
    const struct local_session *session, const char *tensor, const char *gpu, struct error *err)
{
    const struct local *local = session->local;
    struct error why;

    if (!gpu_may_hold(session)) { /* a client of an earlier version did not look */
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "tensor \"%s\" is in a GPU's memory, and this daemon works in host memory (its setting "
            "\"engine\" is not \"cuda\")",
            tensor);
    }
    if (!gpu_is_uuid(gpu)) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "tensor \"%s\" is in a GPU's memory, and its device is no UUID as nvidia-smi prints it",
            tensor);
    }
    return local->config.gpu_find(local->context, gpu, &why) == ADTOPK_OK
               ? ADTOPK_OK
               : error_set(err, why.code, "tensor \"%s\": %.250s", tensor, why.text);
}

enum adtopk_status gpu_place(
    struct session *base, const char *tensor, const char *gpu, struct error *err)
{
    struct local_session *session = local_session(base);
    const char *uuid = gpu != NULL ? gpu : "";

    if (gpu != NULL && (base->tensors == 0 || strcmp(uuid, session->gpu.uuid) != 0) &&
        gpu_check(session, tensor, gpu, err) != ADTOPK_OK) {
        return err->code;
    }
    if (base->tensors > 0 && strcmp(uuid, session->gpu.uuid) != 0) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "tensor \"%s\" is in %s%s, and the tensors before it are in %s%s: the gradients of a "
            "rank lie in one kind of memory, on one device",
            tensor, gpu != NULL ? "memory of " : "host memory", uuid,
            session->gpu.uuid[0] != '\0' ? "memory of " : "host memory", session->gpu.uuid);
    }
    (void)memcpy(session->gpu.uuid, uuid, strlen(uuid) + 1);
    return ADTOPK_OK;
}

/* ---- the arena ---- */

/* Only the first arena has the area of operations. */
static bool gpu_is_first(const struct local_gpu_batch *batch)
{
    return batch->first == 0;
}

/* Offset of the flags in the host part, and of the device memory in the arena. */
static uint64_t gpu_flags_offset(const struct local_gpu_batch *batch)
{
    return gpu_is_first(batch) ? GPU_AREA : 0;
}

/* The words are alone in their pages, which the daemon can write. */
static uint64_t gpu_words_offset(const struct local_gpu_batch *batch)
{
    const uint64_t end = gpu_flags_offset(batch) + batch->tensors * sizeof(uint32_t);

    return (end + GPU_PAGE - 1) / GPU_PAGE * GPU_PAGE;
}

/* Behind those of tensors the first batch has one for the step. */
static uint32_t gpu_words(const struct local_gpu_batch *batch)
{
    return batch->tensors + (gpu_is_first(batch) ? 1 : 0);
}

static uint64_t gpu_words_size(const struct local_gpu_batch *batch)
{
    return gpu_words(batch) * sizeof(struct local_word);
}

static void gpu_drop_words(struct local_gpu_batch *batch)
{
    if (batch->word != NULL) {
        (void)munmap(batch->word, gpu_words_size(batch));
        batch->word = NULL;
    }
}

enum adtopk_status gpu_host_size(
    struct local_session *session, unsigned number, uint64_t *size, struct error *err)
{
    struct local_gpu_batch *batch = &session->gpu.batch[number];

    if (number > 0 && (session->base.abilities & LOCAL_CAN_BATCH) == 0) {
        return error_set(err, ADTOPK_ERR_STATE,
            "with a client library of an earlier release a rank whose gradients are in memory of a "
            "GPU commits its tensors once");
    }
    gpu_drop_words(batch); /* of a commit that failed */
    batch->first = number > 0 ? batch[-1].first + batch[-1].tensors : 0;
    batch->tensors = session->base.tensors - batch->first;
    *size = gpu_words_offset(batch) + gpu_words_size(batch);
    return ADTOPK_OK;
}

static enum adtopk_status gpu_map_words(
    struct local_gpu_batch *batch, const struct segment *segment, struct error *err)
{
    void *words = mmap(NULL, gpu_words_size(batch), PROT_READ | PROT_WRITE, MAP_SHARED, segment->fd,
        (off_t)gpu_words_offset(batch));

    if (words == MAP_FAILED) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no addresses for words of a %s", gpu_arena_name);
    }
    batch->word = words;
    return ADTOPK_OK;
}

/* Maps the host part over the beginning of a range of addresses for the whole arena. */
static enum adtopk_status gpu_map(
    struct local_gpu_batch *batch, struct segment *segment, uint64_t size, struct error *err)
{
    const uint64_t all = segment->size + size;
    void *range = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (range == MAP_FAILED) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no addresses for a %s of %llu bytes",
            gpu_arena_name, (unsigned long long)size);
    }
    if (segment_map_over(segment, range, PROT_READ, gpu_arena_name, err) != ADTOPK_OK) {
        (void)munmap(range, all);
        return err->code;
    }
    batch->behind = (uint8_t *)range + segment->size;
    batch->behind_size = size;
    return ADTOPK_OK;
}

enum adtopk_status gpu_arena(struct local_session *session, unsigned number,
    struct segment *segment, uint64_t size, struct error *err)
{
    const struct local *local = session->local;
    struct local_gpu_batch *batch = &session->gpu.batch[number];
    struct local_gpu_arena arena = {
        .session = session->base.id, .gpu = session->gpu.uuid, .begin = gpu_flags_offset(batch)};

    assert(batch->behind == NULL && arena.gpu[0] != '\0' && size > arena.begin);
    if (gpu_map(batch, segment, size, err) != ADTOPK_OK) {
        return err->code;
    }
    arena.base = segment->bytes;
    arena.size = size - arena.begin;
    if (gpu_map_words(batch, segment, err) != ADTOPK_OK ||
        local->config.gpu_open(local->context, &arena, err) != ADTOPK_OK) {
        gpu_drop(session, number, segment->bytes);
        return err->code;
    }
    batch->open = true;
    batch->descriptor = arena.descriptor;
    batch->begin = arena.begin;
    batch->size = arena.size;
    batch->flag = (const _Atomic uint32_t *)(const void *)((const uint8_t *)segment->bytes +
                                                           gpu_flags_offset(batch));
    return ADTOPK_OK;
}

void gpu_drop(struct local_session *session, unsigned number, const void *base)
{
    struct local_gpu_batch *batch = &session->gpu.batch[number];

    if (batch->open) {
        session->local->config.gpu_drop(session->local->context, base);
    }
    if (batch->behind != NULL) {
        (void)munmap(batch->behind, batch->behind_size);
    }
    batch->open = false;
    batch->behind = NULL;
    batch->flag = NULL;
    session->gpu.holds = false;
}

int gpu_describe(const struct local_session *session, unsigned number, Adtopk__LocalArena *arena)
{
    const struct local_gpu_batch *batch = &session->gpu.batch[number];

    if (!batch->open) {
        return -1;
    }
    arena->device_size = batch->size;
    arena->device_offset = batch->begin;
    arena->flags = gpu_flags_offset(batch);
    arena->words = gpu_words_offset(batch);
    return batch->descriptor;
}

/* The batch of a tensor; NULL: no batch has it. */
static const struct local_gpu_batch *gpu_batch_of(const struct local_gpu *gpu, uint32_t tensor)
{
    for (unsigned b = 0; b < CORE_MAX_BATCHES; b++) {
        const struct local_gpu_batch *batch = &gpu->batch[b];

        if (batch->flag != NULL && tensor >= batch->first &&
            tensor - batch->first < batch->tensors) {
            return batch;
        }
    }
    return NULL;
}

/* ---- streams that wait ---- */

void gpu_begin(struct local_session *session, uint64_t step)
{
    const struct local_gpu_batch *batch = &session->gpu.batch[session->base.batches];

    for (uint32_t i = 0; batch->word != NULL && i < gpu_words(batch); i++) {
        atomic_store(&batch->word[i].right, local_flag_of(step) - 1);
        atomic_store(&batch->word[i].over, local_flag_of(step) - 1);
    }
}

/* What is right is there before a stream goes on. */
static void gpu_end_word(struct local_word *word, uint64_t step, bool right)
{
    if (right) {
        atomic_store(&word->right, local_flag_of(step));
    }
    atomic_store(&word->over, local_flag_of(step));
}

void gpu_tell(struct local_session *session, const struct action *action)
{
    struct local_gpu *gpu = &session->gpu;
    const struct local_gpu_batch *first = &gpu->batch[0];
    const struct local_gpu_batch *batch =
        action->type == ACTION_DELIVERED ? gpu_batch_of(gpu, action->tensor) : NULL;
    const bool right = action->status == ADTOPK_OK;

    if (batch != NULL) {
        gpu_end_word(
            &batch->word[action->tensor - batch->first], action->number, right && action->shown);
        gpu->hidden = gpu->hidden || !action->shown;
    } else if (action->type == ACTION_STEP && first->flag != NULL) {
        gpu_end_word(&first->word[first->tensors], action->number, right && !gpu->hidden);
        gpu->hidden = false;
    }
}

/* Before its first step no stream waits, and the client could still take the memory away. */
void gpu_let_go(struct local_session *session)
{
    const struct local_gpu_batch *batch = session->gpu.batch;

    for (unsigned b = 0; b < session->base.batches; b++) {
        if (batch[b].word != NULL) {
            local_let_go(batch[b].word, gpu_words(&batch[b]),
                atomic_load(&session->reader.page->steps_done));
        }
    }
}

void gpu_close(struct local_session *session)
{
    for (unsigned b = 0; b < CORE_MAX_BATCHES; b++) {
        gpu_drop_words(&session->gpu.batch[b]);
    }
}

/* ---- entries that wait for a stream ---- */

static bool gpu_is_written(const struct local_session *session, const struct local_entry *entry)
{
    const struct local_gpu_batch *batch =
        entry->type == LOCAL_PUSH ? gpu_batch_of(&session->gpu, entry->tensor) : NULL;

    return batch == NULL || /* the core refuses a push of such a tensor */
           local_flag_is(&batch->flag[entry->tensor - batch->first], local_flag_of(entry->number));
}

/* Looks behind the gradient's flag: a stream that was let go may have made it with an old update.
 */
static int gpu_check_push(
    const struct local_session *session, const struct local_entry *entry, struct error *err)
{
    if (entry->type != LOCAL_PUSH || !ring_reader_is_let_go(&session->reader)) {
        return 1;
    }
    (void)error_set(err, ADTOPK_ERR_STATE,
        "its streams no longer wait for updates, so its gradient of tensor %u in step %llu may be "
        "wrong",
        entry->tensor, (unsigned long long)entry->number);
    return -1;
}

int gpu_take(struct local_session *session, struct local_entry *entry, struct error *err)
{
    struct local_gpu *gpu = &session->gpu;
    int got = 1;

    if (gpu->holds) {
        *entry = gpu->held;
    } else {
        got = ring_reader_take(&session->reader, entry, err);
    }
    if (got > 0 && !gpu->holds) {
        gpu->held = *entry;
        gpu->held_us = uv_hrtime() / 1000;
    }
    gpu->holds = got > 0 && !gpu_is_written(session, entry);
    if (gpu->holds) {
        return 0;
    }
    return got > 0 ? gpu_check_push(session, entry, err) : got;
}

/* ---- the loop's sleep ---- */

static void gpu_on_look(uv_poll_t *poll, int status, int events)
{
    const struct local *local = poll->data;
    uint64_t times;

    (void)status;
    (void)events;
    (void)!read(local->look, &times, sizeof(times)); /* it has ended the sleep: that was all */
}

enum adtopk_status gpu_open_look(struct local *local, struct error *err)
{
    local->look = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    return local->look >= 0 ? ADTOPK_OK
                            : error_set(err, ADTOPK_ERR_SYSTEM,
                                  "no timer for gradients on GPUs: %s", strerror(errno));
}

void gpu_watch_look(struct local *local)
{
    (void)uv_poll_init(local->loop, &local->look_poll, local->look);
    local->look_poll.data = local;
    (void)uv_poll_start(&local->look_poll, UV_READABLE, gpu_on_look);
}

bool gpu_must_look(struct local_session *session)
{
    const struct local_gpu *gpu = &session->gpu;
    uint64_t us = GPU_LOOK_MIN_US;

    if (!gpu->holds) {
        return false;
    }
    if (gpu_is_written(session, &gpu->held)) {
        return true;
    }
    us += (uv_hrtime() / 1000 - gpu->held_us) / GPU_LOOK_SHARE;
    us = us < GPU_LOOK_MAX_US ? us : GPU_LOOK_MAX_US;
    if (session->local->look_us == 0 || us < session->local->look_us) {
        session->local->look_us = us;
    }
    return false;
}

void gpu_look_later(struct local *local)
{
    const struct itimerspec when = {.it_value = {.tv_nsec = (long)local->look_us * 1000}};

    (void)timerfd_settime(local->look, 0, &when, NULL);
    local->look_us = 0;
}
