#include "daemon/local/outbox.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/local.h"
#include "proto/retry.h"

static enum outbox_result outbox_try(
    int socket, const void *bytes, size_t size, const int *descriptor, unsigned descriptors)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int) * OUTBOX_DESCRIPTORS)];
    } control;
    struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    ssize_t sent;

    if (descriptors > 0) {
        memset(&control, 0, sizeof control);
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * descriptors);
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(sizeof(int) * descriptors);
        memcpy(CMSG_DATA(&control.header), descriptor, sizeof(int) * descriptors);
    }
    RETRY(sent, sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL));
    if (sent >= 0) {
        return OUTBOX_SENT;
    }
    /* ETOOMANYREFS: too many descriptors of the daemon are in flight to clients. */
    return errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM || errno == ETOOMANYREFS
               ? OUTBOX_QUEUED
               : OUTBOX_BROKEN;
}

static void outbox_message_drop(struct outbox_message *message)
{
    for (unsigned i = 0; i < message->descriptors; i++) {
        (void)close(message->descriptor[i]);
    }
    free(message->bytes);
    memset(message, 0, sizeof *message);
}

static enum outbox_result outbox_queue(struct outbox *outbox, const uint8_t *bytes, size_t size,
    const int *descriptor, unsigned descriptors)
{
    struct outbox_message *message =
        &outbox->message[(outbox->first + outbox->count) % OUTBOX_MESSAGES];

    if (outbox->count == OUTBOX_MESSAGES) {
        return OUTBOX_FULL;
    }
    *message = (struct outbox_message){.bytes = malloc(size), .size = size};
    if (message->bytes == NULL) {
        return OUTBOX_STARVED;
    }
    memcpy(message->bytes, bytes, size);
    for (unsigned i = 0; i < descriptors; i++) {
        message->descriptor[i] = fcntl(descriptor[i], F_DUPFD_CLOEXEC, 0);
        if (message->descriptor[i] < 0) {
            outbox_message_drop(message);
            return OUTBOX_STARVED;
        }
        message->descriptors++;
    }
    outbox->count++;
    return OUTBOX_QUEUED;
}

enum outbox_result outbox_send(struct outbox *outbox, int socket, const uint8_t *bytes, size_t size,
    const int *descriptor, unsigned descriptors)
{
    enum outbox_result result = OUTBOX_QUEUED;

    if (outbox->count == 0) {
        result = outbox_try(socket, bytes, size, descriptor, descriptors);
    }
    return result == OUTBOX_QUEUED ? outbox_queue(outbox, bytes, size, descriptor, descriptors)
                                   : result;
}

enum outbox_result outbox_flush(struct outbox *outbox, int socket)
{
    while (outbox->count > 0) {
        struct outbox_message *message = &outbox->message[outbox->first];
        const enum outbox_result result = outbox_try(
            socket, message->bytes, message->size, message->descriptor, message->descriptors);

        outbox->starved = result == OUTBOX_QUEUED;
        if (result != OUTBOX_SENT) {
            return result;
        }
        outbox_message_drop(message);
        outbox->first = (outbox->first + 1) % OUTBOX_MESSAGES;
        outbox->count--;
    }
    return OUTBOX_SENT;
}

void outbox_clear(struct outbox *outbox)
{
    for (; outbox->count > 0; outbox->count--) {
        outbox_message_drop(&outbox->message[outbox->first]);
        outbox->first = (outbox->first + 1) % OUTBOX_MESSAGES;
    }
}

bool outbox_wake(int socket)
{
    const uint8_t wake = LOCAL_WAKE;
    ssize_t sent;

    RETRY(sent, send(socket, &wake, sizeof wake, MSG_DONTWAIT | MSG_NOSIGNAL));
    return sent == 1;
}
