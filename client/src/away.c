/* What a rank notes while its daemon is there, so that it can come back to another one. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "client/src/beside.h"
#include "client/src/clock.h"
#include "client/src/comeback.h"
#include "client/src/device.h"

#define AWAY_MS_NS UINT64_C(1000000)

/* How long the rank waits for another daemon. */
static uint64_t away_limit_ns(const struct client_comeback *comeback)
{
    return comeback->connect_ms > 0 ? (uint64_t)comeback->connect_ms * AWAY_MS_NS : 0;
}

/* Whether the daemon that has ended was one. A daemon that ends before the rank is back is none,
 * unless it was there for as long as the rank would wait. So the wait ends, although a daemon is
 * started again and again and cannot go on. */
static bool away_had_daemon(const struct client_comeback *comeback, uint64_t now_ns)
{
    return comeback->stage == CLIENT_HERE ||
           (comeback->stage != CLIENT_AWAY &&
               now_ns - comeback->connected_ns >= away_limit_ns(comeback));
}

/* The next attempt comes after the pause, and the last one before the time is over. */
static void away_pause(struct client_comeback *comeback, uint64_t pause_ns)
{
    const uint64_t again_ns = client_now_ns() + pause_ns;

    comeback->again_ns = again_ns < comeback->deadline_ns ? again_ns : comeback->deadline_ns;
}

/* The connection broke before the rank was back. */
static void away_pause_longer(struct client_comeback *comeback)
{
    const uint64_t longer_ns =
        comeback->pause_ns != 0 ? 2 * comeback->pause_ns : CLIENT_COMEBACK_PAUSE_NS;

    comeback->pause_ns =
        longer_ns < CLIENT_COMEBACK_LONGEST_NS ? longer_ns : CLIENT_COMEBACK_LONGEST_NS;
    away_pause(comeback, comeback->pause_ns);
}

enum adtopk_status client_comeback_late(adtopk_context *context)
{
    const int limit_ms = context->comeback.connect_ms > 0 ? context->comeback.connect_ms : 0;

    return client_now_ns() < context->comeback.deadline_ns
               ? ADTOPK_OK
               : client_fail(context, ADTOPK_ERR_UNREACHABLE,
                     "the daemon at %s went away, and no other one was started within %d ms "
                     "(return_timeout_ms), or none that lasted",
                     context->place.address, limit_ms);
}

void client_comeback_put_off(adtopk_context *context)
{
    struct client_comeback *comeback = &context->comeback;

    if (!comeback->missed) {
        comeback->deadline_ns = client_now_ns() + away_limit_ns(comeback);
    }
}

enum adtopk_status client_comeback_later(adtopk_context *context)
{
    away_pause(&context->comeback, CLIENT_COMEBACK_PAUSE_NS);
    return client_comeback_late(context);
}

enum adtopk_status client_go_away(adtopk_context *context, const char *hint)
{
    struct client_comeback *comeback = &context->comeback;
    const uint64_t now_ns = client_now_ns();

    if (comeback->run == 0) {
        return client_fail(context, ADTOPK_ERR_UNREACHABLE, "the daemon at %s went away%s",
            context->place.address, hint);
    }
    if (away_had_daemon(comeback, now_ns)) {
        comeback->deadline_ns = now_ns + away_limit_ns(comeback);
        comeback->again_ns = comeback->pause_ns = 0;
        comeback->missed = false;
    } else if (now_ns >= comeback->deadline_ns) {
        return client_comeback_late(context);
    } else if (comeback->stage != CLIENT_AWAY) {
        away_pause_longer(comeback);
    }
    comeback->stage = CLIENT_AWAY;
    context->unfinished.answers = false; /* a call that reads a residual asks again */
    client_watch_wake(&context->batch.watch);
    return ADTOPK_OK;
}

/* Copies bytes of a batch's gradient arena to the new one; false: there is none. */
static bool away_copy(adtopk_context *context, unsigned batch, const void *from, uint64_t size)
{
    uint8_t *arena = context->comeback.arena[batch].bytes;
    const uint8_t *old = context->batch.gradients[batch].bytes;

    if (arena != NULL && size > 0) {
        memcpy(arena + ((const uint8_t *)from - old), from, size);
    }
    return arena != NULL;
}

uint64_t client_copy_entry(adtopk_context *context, const struct local_entry *entry)
{
    struct client_tensor *tensor = NULL;

    if (entry->type == LOCAL_OP) {
        return away_copy(context, 0, context->op_in, entry->size) ? entry->size : 0;
    }
    if (entry->type == LOCAL_PUSH) {
        tensor = &context->tensor[entry->tensor];
    }
    if (tensor != NULL && !tensor->on_device && tensor->moved != entry->number + 1 &&
        away_copy(context, tensor->batch, tensor->gradient, tensor->bytes)) {
        tensor->moved = entry->number + 1;
        return tensor->bytes;
    }
    return 0;
}

/* From Linux 5.14 on. */
static void away_touch(const struct client_mapping *arena, uint64_t from)
{
    const uint64_t left = arena->size - from;

    (void)madvise((uint8_t *)arena->bytes + from,
        left < CLIENT_COMEBACK_PIECE ? left : CLIENT_COMEBACK_PIECE, MADV_POPULATE_WRITE);
}

bool client_touch_arenas(adtopk_context *context)
{
    struct client_comeback *comeback = &context->comeback;

    for (; !client_is_on_device(context) && comeback->touches < context->batch.count;
         comeback->touches++) {
        const struct client_mapping *arena = &comeback->arena[comeback->touches];

        if (arena->bytes != NULL && comeback->touched < arena->size) {
            away_touch(arena, comeback->touched);
            comeback->touched += CLIENT_COMEBACK_PIECE;
            return true;
        }
        comeback->touched = 0;
    }
    return false;
}

void client_forget_moved(adtopk_context *context, unsigned batch)
{
    for (uint32_t t = 0; t < context->batch.ready; t++) {
        context->tensor[t].moved = context->tensor[t].batch == batch ? 0 : context->tensor[t].moved;
    }
}

/* ---- entries ---- */

static enum adtopk_status away_grow(adtopk_context *context)
{
    struct client_comeback *comeback = &context->comeback;
    const uint32_t room = 2 * comeback->room + 16;
    struct local_entry *entry = realloc(comeback->entry, room * sizeof *entry);

    if (entry == NULL) {
        return client_fail(context, ADTOPK_ERR_MEMORY, "no memory to note what a step submits");
    }
    comeback->entry = entry;
    comeback->room = room;
    return ADTOPK_OK;
}

enum adtopk_status client_note_entry(adtopk_context *context, const struct local_entry *entry)
{
    struct client_comeback *comeback = &context->comeback;

    if (comeback->run == 0) {
        return ADTOPK_OK;
    }
    client_copy_entry(context, entry);
    if (entry->type == LOCAL_OP) {
        comeback->operation = *entry;
        comeback->operates = true;
        return ADTOPK_OK;
    }
    if (comeback->step != entry->number) {
        comeback->step = entry->number;
        comeback->entries = comeback->submitted = 0;
    }
    if (comeback->entries == comeback->room && away_grow(context) != ADTOPK_OK) {
        return context->failure.code;
    }
    comeback->entry[comeback->entries++] = *entry;
    return ADTOPK_OK;
}

void client_forget_entry(adtopk_context *context, const struct local_entry *entry)
{
    struct client_comeback *comeback = &context->comeback;

    if (entry->type == LOCAL_OP) {
        comeback->operates = false;
    } else if (comeback->run != 0) {
        comeback->entries--;
    }
}

/* Copies what the program wrote and did not push. The gradients of this step are there. */
static void away_copy_rest(adtopk_context *context, unsigned batch)
{
    const uint8_t *old = context->batch.gradients[batch].bytes;
    uint64_t done = 0;

    for (uint32_t t = 0; t < context->batch.ready; t++) {
        const struct client_tensor *tensor = &context->tensor[t];
        const bool moved = tensor->batch == batch && tensor->moved == context->step + 1;
        const uint64_t at = moved ? (uint64_t)((const uint8_t *)tensor->gradient - old) : 0;

        if (moved && at >= done) {
            (void)away_copy(context, batch, old + done, at - done);
            done = at + tensor->bytes;
        }
    }
    (void)away_copy(context, batch, old + done, context->batch.gradients[batch].size - done);
}

static void away_settle(adtopk_context *context, unsigned batch)
{
    struct client_mapping *arena = &context->comeback.arena[batch];
    const struct client_mapping *old = &context->batch.gradients[batch];

    away_copy_rest(context, batch);
    if (mremap(arena->bytes, old->size, old->size, MREMAP_MAYMOVE | MREMAP_FIXED, old->bytes) !=
        MAP_FAILED) { /* otherwise pushes go on to copy */
        *arena = (struct client_mapping){.bytes = NULL};
    }
}

enum adtopk_status client_settle_arenas(adtopk_context *context)
{
    if (client_is_on_device(context)) {
        return client_beside_settle(context);
    }
    for (unsigned b = 0; !client_is_away(context) && b < context->batch.count; b++) {
        if (context->comeback.arena[b].bytes != NULL) {
            away_settle(context, b);
        }
    }
    return ADTOPK_OK;
}

void client_drop_comeback(adtopk_context *context)
{
    for (unsigned b = 0; b < CLIENT_MAX_BATCHES; b++) {
        if (context->comeback.arena[b].bytes != NULL) {
            (void)munmap(context->comeback.arena[b].bytes, context->comeback.arena[b].size);
        }
    }
    if (context->comeback.page.bytes != NULL) {
        (void)munmap(context->comeback.page.bytes, context->comeback.page.size);
    }
    free(context->comeback.entry);
    free(context->comeback.policy);
}
