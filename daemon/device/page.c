#include "daemon/device/page.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

uint64_t page_now_us(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static bool page_is_printable(const char *text)
{
    while (*text > ' ' && *text <= '~') {
        text++;
    }
    return *text == '\0';
}

/* Early releases have a number at the beginning of the page. */
const char *page_release(const struct page *page, char text[PAGE_RELEASE_SIZE])
{
    (void)snprintf(text, PAGE_RELEASE_SIZE, "%.*s", (int)PAGE_RELEASE_SIZE - 1, page->release);
    if (text[0] == '\0' || !page_is_printable(text)) {
        (void)snprintf(text, PAGE_RELEASE_SIZE, "an earlier one");
    }
    return text;
}

bool page_pass_time(struct spin *spin)
{
    const uint64_t now = page_now_us();

    if (spin->active_us == 0) {
        spin->active_us = now;
    }
    switch (spin_choose(spin, now)) {
    case SPIN_PAUSE: return true;
    case SPIN_YIELD:
        (void)sched_yield();
        spin_yielded(spin, now, page_now_us());
        return true;
    case SPIN_SLEEP: break;
    }
    spin->active_us = 0; /* the next wait begins anew; a crowded core stays so for a while */
    return false;
}

/* Room for one descriptor beside a message. */
union page_control {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
};

static void page_attach(struct msghdr *out, union page_control *control, int descriptor)
{
    struct cmsghdr *header;

    (void)memset(control, 0, sizeof(*control));
    out->msg_control = control;
    out->msg_controllen = sizeof(control->bytes);
    header = CMSG_FIRSTHDR(out);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    (void)memcpy(CMSG_DATA(header), &descriptor, sizeof(descriptor));
}

bool message_send(int socket, const struct message *message, int descriptor)
{
    struct iovec bytes = {.iov_base = (void *)(uintptr_t)message, .iov_len = sizeof(*message)};
    struct msghdr out = {.msg_iov = &bytes, .msg_iovlen = 1};
    const int flags = MSG_NOSIGNAL | (message->type == MESSAGE_WAKE ? MSG_DONTWAIT : 0);
    union page_control control;
    ssize_t sent;

    if (descriptor >= 0) {
        page_attach(&out, &control, descriptor);
    }
    do {
        sent = sendmsg(socket, &out, flags);
    } while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)sizeof(*message);
}

static void page_detach(struct msghdr *in, int *descriptor)
{
    for (struct cmsghdr *header = CMSG_FIRSTHDR(in); header != NULL;
         header = CMSG_NXTHDR(in, header)) {
        if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
            header->cmsg_len == CMSG_LEN(sizeof(int))) {
            (void)memcpy(descriptor, CMSG_DATA(header), sizeof(*descriptor));
        }
    }
}

enum message_outcome message_take(int socket, int wait_ms, struct message *message, int *descriptor)
{
    struct pollfd wait = {.fd = socket, .events = POLLIN};
    struct iovec bytes = {.iov_base = message, .iov_len = sizeof(*message)};
    union page_control control;
    struct msghdr in = {.msg_iov = &bytes,
        .msg_iovlen = 1,
        .msg_control = &control,
        .msg_controllen = sizeof(control.bytes)};
    ssize_t got;

    *descriptor = -1;
    if (poll(&wait, 1, wait_ms) <= 0) {
        return MESSAGE_NONE;
    }
    do { /* A worker that ends without reading its messages resets ours; then come its last ones. */
        got = recvmsg(socket, &in, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    } while (got < 0 && errno == ECONNRESET);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) {
        return MESSAGE_NONE;
    }
    if (got == (ssize_t)sizeof(*message)) {
        page_detach(&in, descriptor);
        return MESSAGE_GOT;
    }
    return MESSAGE_GONE;
}
