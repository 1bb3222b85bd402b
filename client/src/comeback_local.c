/* How a rank comes back to a daemon on its own machine: a socket, and memory that both share. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "client/src/beside.h"
#include "client/src/clock.h"
#include "client/src/comeback.h"
#include "client/src/device.h"

#define COMEBACK_ROOM_NS 100000 /* between two looks for room in the ring */

enum adtopk_status client_local_reconnect(adtopk_context *context)
{
    struct error err;
    const int fd = client_connect(context->place.address + strlen("unix:"), 0, false, &err);

    if (fd >= 0) {
        bool moved;
        int reason;

        client_descriptor_hide(context);
        moved = dup3(fd, context->socket, O_CLOEXEC) >= 0; /* the thread of watch.c polls it */
        reason = errno;
        (void)close(fd);
        context->comeback.stage = CLIENT_OPENS;
        return moved ? client_descriptor_show(context)
                     : client_fail(context, ADTOPK_ERR_SYSTEM, "dup3 failed: %s", strerror(reason));
    }
    if (err.code != ADTOPK_ERR_UNREACHABLE) {
        return client_fail(
            context, err.code, "the daemon at %s went away; %s", context->place.address, err.text);
    }
    return client_comeback_later(context);
}

/* Maps a descriptor in the place of an old mapping, or anywhere if that is empty. The kernel
 * replaces an old one at once, so another thread that reads there sees the old memory or the new
 * one. */
static enum adtopk_status comeback_map(adtopk_context *context, const struct client_reply *reply,
    unsigned index, int protection, struct client_mapping *mapping)
{
    const int fixed = mapping->bytes != NULL ? MAP_FIXED : 0;
    struct stat status;
    void *bytes;

    if (index >= reply->descriptors || fstat(reply->descriptor[index], &status) != 0 ||
        (uint64_t)status.st_size < mapping->size) {
        return client_fail(context, ADTOPK_ERR_PROTOCOL,
            "the daemon at %s has less memory for this rank than the one before",
            context->place.address);
    }
    bytes = mmap(
        mapping->bytes, mapping->size, protection, MAP_SHARED | fixed, reply->descriptor[index], 0);
    if (bytes == MAP_FAILED) {
        return client_fail(context, ADTOPK_ERR_MEMORY,
            "cannot map %llu bytes shared by the daemon: %s", (unsigned long long)mapping->size,
            strerror(errno));
    }
    mapping->bytes = bytes;
    return ADTOPK_OK;
}

/* The page of the old daemon stays where it is. What that has done holds, even if no other one can
 * go on. Nor has the new page the members of the job before the rank is back. */
enum adtopk_status client_local_reopened(adtopk_context *context, const struct client_reply *reply)
{
    struct client_mapping *page = &context->comeback.page;
    enum adtopk_status status =
        comeback_map(context, reply, 0, PROT_READ | PROT_WRITE, &context->ring_map);

    client_unmap(page); /* of a daemon that went away before the rank was back */
    page->size = context->page_map.size;
    if (status == ADTOPK_OK) {
        status = comeback_map(context, reply, 1, PROT_READ, page);
    }
    context->ring.tail = 0;
    context->ring.answered = 0;
    return status;
}

/* The new page takes the place of the old one. */
static enum adtopk_status comeback_turn_page(adtopk_context *context)
{
    struct client_mapping *page = &context->comeback.page;

    if (page->bytes == NULL) {
        return ADTOPK_OK; /* for an earlier batch */
    }
    if (mremap(page->bytes, page->size, page->size, MREMAP_MAYMOVE | MREMAP_FIXED,
            context->page_map.bytes) == MAP_FAILED) {
        return client_fail(context, ADTOPK_ERR_MEMORY,
            "cannot map the page of the daemon at %s: %s", context->place.address, strerror(errno));
    }
    page->bytes = NULL;
    context->sharing.seen = UINT64_MAX; /* of another page */
    return ADTOPK_OK;
}

enum adtopk_status client_local_rearena(
    adtopk_context *context, const struct client_reply *reply, unsigned batch)
{
    const bool ready = batch < context->batch.count;
    const struct client_mapping *old = &context->batch.gradients[batch];
    struct client_mapping *arena =
        ready ? &context->comeback.arena[batch] : &context->batch.gradients[batch];
    enum adtopk_status status =
        client_is_on_device(context) ? client_beside_drop(context, batch, arena) : ADTOPK_OK;

    if (status != ADTOPK_OK) {
        return status;
    }
    client_forget_moved(context, batch);
    client_unmap(arena); /* of a daemon that went away before the rank was back */
    status = client_map(context, reply, 0, PROT_READ | PROT_WRITE,
        ready ? old->size : reply->message->arena->size, arena);
    if (status != ADTOPK_OK || !client_is_on_device(context)) {
        return status;
    }
    return ready ? client_beside_map(context, reply, batch) : client_device_map(context, reply);
}

enum adtopk_status client_local_reready(
    adtopk_context *context, const struct client_reply *reply, unsigned batch)
{
    const enum adtopk_status status =
        comeback_map(context, reply, 0, PROT_READ, &context->batch.results[batch]);

    return status == ADTOPK_OK ? comeback_turn_page(context) : status;
}

/* Waits for room in the ring. */
static enum adtopk_status comeback_room(
    adtopk_context *context, const struct client_patience *patience)
{
    const struct timespec pause = {.tv_nsec = COMEBACK_ROOM_NS};
    struct pollfd end = {.fd = context->socket}; /* reports the end of the connection unasked */

    client_wake(context);
    if (patience->deadline_ns <= client_now_ns()) {
        return ADTOPK_PENDING;
    }
    client_let_go(context);
    (void)nanosleep(&pause, NULL);
    client_take_back(context);
    if (poll(&end, 1, 0) > 0) {
        const enum adtopk_status status = client_go_away(context, "");

        return status == ADTOPK_OK ? ADTOPK_ERR_UNREACHABLE : status;
    }
    return client_wait_may_go_on(context);
}

enum adtopk_status client_local_resubmit(adtopk_context *context,
    const struct client_patience *patience, const struct local_entry *entry)
{
    enum adtopk_status status = ADTOPK_OK;

    while (status == ADTOPK_OK && !ring_writer_has_room(&context->ring)) {
        status = comeback_room(context, patience);
    }
    if (status == ADTOPK_OK) {
        ring_writer_put(&context->ring, entry);
        client_wake(context);
    }
    return status;
}
