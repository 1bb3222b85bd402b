#include "daemon/transport/parts.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/transport/socket.h"
#include "proto/retry.h"

/* ------------------------------------------------------------------ sending */

bool parts_send_one(
    void *socket, const uint8_t *header, size_t header_size, const uint8_t *body, size_t body_size)
{
    zmq_msg_t message;

    if (zmq_msg_init_size(&message, header_size + body_size) != 0) {
        return false;
    }
    memcpy(zmq_msg_data(&message), header, header_size);
    if (body_size > 0) {
        memcpy((uint8_t *)zmq_msg_data(&message) + header_size, body, body_size);
    }
    if (zmq_msg_send(&message, socket, ZMQ_DONTWAIT) < 0) {
        (void)zmq_msg_close(&message);
        return false;
    }
    return true;
}

/* libzmq needs the bytes no longer; on its thread, or on this one. */
static void parts_sent(void *bytes, void *owner)
{
    (void)bytes;
    buffer_unref(owner);
}

static bool parts_send_header(void *socket, const uint8_t *header, size_t header_size)
{
    zmq_msg_t message;

    if (zmq_msg_init_size(&message, header_size) != 0) {
        return false;
    }
    memcpy(zmq_msg_data(&message), header, header_size);
    if (zmq_msg_send(&message, socket, ZMQ_DONTWAIT | ZMQ_SNDMORE) < 0) {
        (void)zmq_msg_close(&message);
        return false;
    }
    return true;
}

/* If the connection ends between the parts, libzmq forgets the first one and refuses the second. If
 * a signal ends the call, it waits for the second one: the next message would become that. */
bool parts_send_two(void *socket, const uint8_t *header, size_t header_size, const uint8_t *body,
    size_t body_size, struct buffer *owner)
{
    zmq_msg_t message;
    bool sent = false;

    if (zmq_msg_init_data(
            &message, (void *)(uintptr_t)body, body_size, parts_sent, buffer_ref(owner)) != 0) {
        buffer_unref(owner);
        return false;
    }
    if (parts_send_header(socket, header, header_size)) {
        int size;

        RETRY(size, zmq_msg_send(&message, socket, ZMQ_DONTWAIT));
        sent = size >= 0;
    }
    if (!sent) {
        (void)zmq_msg_close(&message);
    }
    return sent;
}

/* ------------------------------------------------------------------ receiving */

static void parts_release(void *context)
{
    (void)zmq_msg_close(context);
    free(context);
}

/* The second part as a buffer; NULL if it is none that could be a body, or without memory. *more:
 * others follow. */
static struct buffer *parts_second(void *socket, bool *more)
{
    zmq_msg_t *message = malloc(sizeof(*message));
    struct buffer *body = NULL;

    if (message == NULL) {
        *more = !socket_drop_parts(socket, 1);
        return NULL;
    }
    *more = false;
    (void)zmq_msg_init(message);
    if (socket_receive_part(socket, message)) {
        *more = zmq_msg_more(message) != 0;
        if (zmq_msg_size(message) >= LINK_KEEP_MIN) {
            body =
                buffer_wrap(zmq_msg_data(message), zmq_msg_size(message), parts_release, message);
        }
    }
    if (body == NULL) {
        parts_release(message);
    }
    return body;
}

enum parts parts_take_rest(void *socket, zmq_msg_t *first, struct buffer **body)
{
    bool more;

    *body = NULL;
    if (zmq_msg_more(first) == 0) {
        return PARTS_PACKET;
    }
    *body = parts_second(socket, &more);
    if (more) {
        buffer_unref(*body);
        *body = NULL;
        return PARTS_MANY;
    }
    return *body != NULL ? PARTS_PACKET : PARTS_BAD;
}
