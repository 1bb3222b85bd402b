#include "daemon/transport/zap.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "daemon/transport/clock.h"
#include "daemon/transport/socket.h"
#include "proto/retry.h"

#define ZAP_ENDPOINT "inproc://zeromq.zap.01"
#define ZAP_VERSION "1.0"
#define ZAP_YES "200"
/* Not "400": libzmq's client would take that for final and never try again, but the list of keys
 * may change. */
#define ZAP_NOT_NOW "300"
#define ZAP_NO "400"
#define ZAP_FRAMES 8 /* of a question with two credentials, which is the longest */
#define ZAP_FRAME_MAX 255
#define ZAP_KEY_BYTES 32

/* The frames of a question in their order. */
enum {
    ZAP_AT_VERSION,
    ZAP_AT_REQUEST,
    ZAP_AT_DOMAIN,
    ZAP_AT_ADDRESS,
    ZAP_AT_IDENTITY,
    ZAP_AT_MECHANISM,
    ZAP_AT_CREDENTIAL,
    ZAP_AT_PASSWORD
};

struct zap_frame {
    char bytes[ZAP_FRAME_MAX + 1]; /* with a NUL behind it */
    size_t size;
};

struct zap_question {
    struct zap_frame frame[ZAP_FRAMES];
    size_t frames; /* more than ZAP_FRAMES, or 0, if it was too long */
};

bool zap_open(struct zap *zap, void *zmq)
{
    const int linger = 0;
    int bound = -1, reason;

    zap->socket = zmq_socket(zmq, ZMQ_REP);
    if (zap->socket != NULL &&
        zmq_setsockopt(zap->socket, ZMQ_LINGER, &linger, sizeof(linger)) == 0) {
        RETRY(bound, zmq_bind(zap->socket, ZAP_ENDPOINT));
    }
    if (bound == 0) {
        return true;
    }
    reason = errno;
    zap_close(zap);
    errno = reason;
    return false;
}

void zap_close(struct zap *zap)
{
    if (zap->socket != NULL) {
        (void)zmq_close(zap->socket);
        zap->socket = NULL;
    }
}

static bool zap_is(const struct zap_frame *frame, const char *text)
{
    return frame->size == strlen(text) && memcmp(frame->bytes, text, frame->size) == 0;
}

/* A key of our peers: writes it to `user` and says yes. */
static bool zap_check_key(
    struct zap *zap, const struct zap_question *question, char user[KEYFILE_KEY_SIZE])
{
    const struct zap_frame *key = &question->frame[ZAP_AT_CREDENTIAL];
    char line[ERROR_TEXT_SIZE];

    if (key->size != ZAP_KEY_BYTES ||
        zmq_z85_encode(user, (const uint8_t *)key->bytes, ZAP_KEY_BYTES) == NULL) {
        return false;
    }
    if (allow_find(zap->allow, user) != UINT16_MAX) {
        return true;
    }
    (void)snprintf(line, sizeof(line), "refused a connection from %.64s: its key %s is no peer's",
        question->frame[ZAP_AT_ADDRESS].bytes, user);
    refusals_add(zap->refusals, REFUSAL_KEY, line);
    return false;
}

/* Node ids are plain decimal numbers, at most 5 digits. */
static bool zap_read_node(const struct zap_frame *frame, uint16_t *node)
{
    size_t digits = strspn(frame->bytes, "0123456789");
    unsigned long number = strtoul(frame->bytes, NULL, 10);

    *node = (uint16_t)number;
    return digits > 0 && digits <= 5 && digits == frame->size && number < UINT16_MAX;
}

static bool zap_check_token(
    struct zap *zap, const struct zap_question *question, char user[KEYFILE_KEY_SIZE])
{
    const struct zap_frame *text = &question->frame[ZAP_AT_PASSWORD];
    uint8_t token[TOKEN_BYTES];
    char line[ERROR_TEXT_SIZE];
    uint16_t node = UINT16_MAX;

    if (zap_read_node(&question->frame[ZAP_AT_CREDENTIAL], &node) &&
        text->size == TOKEN_TEXT_SIZE - 1 && zmq_z85_decode(token, text->bytes) != NULL &&
        token_take(zap->tokens, node, token, transport_now_us(), user) &&
        allow_find(zap->allow, user) == node) {
        return true;
    }
    (void)snprintf(line, sizeof(line),
        "refused a bulk connection from %.64s, which says it is node %.20s: no valid token",
        question->frame[ZAP_AT_ADDRESS].bytes, question->frame[ZAP_AT_CREDENTIAL].bytes);
    refusals_add(zap->refusals, REFUSAL_TOKEN, line);
    return false;
}

/* The requirements of our two sockets; a question that fits neither is refused. */
static bool zap_decide(
    struct zap *zap, const struct zap_question *question, char user[KEYFILE_KEY_SIZE])
{
    const struct zap_frame *frame = question->frame;

    if (question->frames == ZAP_AT_CREDENTIAL + 1 && zap_is(&frame[ZAP_AT_MECHANISM], "CURVE") &&
        zap_is(&frame[ZAP_AT_DOMAIN], SOCKET_DOMAIN_CONTROL)) {
        return zap_check_key(zap, question, user);
    }
    if (question->frames == ZAP_AT_PASSWORD + 1 && zap_is(&frame[ZAP_AT_MECHANISM], "PLAIN") &&
        zap_is(&frame[ZAP_AT_DOMAIN], SOCKET_DOMAIN_BULK)) {
        return zap_check_token(zap, question, user);
    }
    return false;
}

/* Receives all frames of the next question, even those that are too many or too long. */
static bool zap_receive(struct zap *zap, struct zap_question *question)
{
    bool fits = true, more = true;
    zmq_msg_t message;

    question->frames = 0;
    if (zmq_msg_init(&message) != 0) {
        return false;
    }
    while (more) {
        size_t size;

        if (!socket_receive_part(zap->socket, &message)) {
            (void)zmq_msg_close(&message);
            return false;
        }
        more = zmq_msg_more(&message) != 0;
        size = zmq_msg_size(&message);
        fits = fits && question->frames < ZAP_FRAMES && size <= ZAP_FRAME_MAX;
        if (fits) {
            struct zap_frame *frame = &question->frame[question->frames++];

            memcpy(frame->bytes, zmq_msg_data(&message), size);
            frame->bytes[size] = '\0';
            frame->size = size;
        }
    }
    (void)zmq_msg_close(&message);
    question->frames = fits ? question->frames : 0;
    return true;
}

/* A frame that is left out would make the next question's answer part of this one. If the asker is
 * gone, libzmq itself drops the reply. */
static void zap_send(struct zap *zap, const char *text, size_t size, int flags)
{
    int sent;

    RETRY(sent, zmq_send(zap->socket, text, size, flags));
}

static void zap_answer(struct zap *zap, const struct zap_question *question, const char *user)
{
    const struct zap_frame *request = &question->frame[ZAP_AT_REQUEST];
    bool known = question->frames > ZAP_AT_REQUEST;

    zap_send(zap, ZAP_VERSION, strlen(ZAP_VERSION), ZMQ_SNDMORE);
    zap_send(zap, request->bytes, known ? request->size : 0, ZMQ_SNDMORE);
    zap_send(zap, user != NULL ? ZAP_YES : zap->final ? ZAP_NO : ZAP_NOT_NOW, 3, ZMQ_SNDMORE);
    zap_send(zap, "", 0, ZMQ_SNDMORE);
    zap_send(zap, user, user != NULL ? strlen(user) : 0, ZMQ_SNDMORE);
    zap_send(zap, "", 0, 0);
}

bool zap_serve(struct zap *zap, unsigned budget)
{
    while (budget > 0) {
        struct zap_question question;
        char user[KEYFILE_KEY_SIZE];
        bool welcome;

        if (!zap_receive(zap, &question)) {
            break;
        }
        welcome = question.frames > ZAP_AT_CREDENTIAL &&
                  zap_is(&question.frame[ZAP_AT_VERSION], ZAP_VERSION) &&
                  zap_decide(zap, &question, user);
        zap_answer(zap, &question, welcome ? user : NULL);
        budget--;
    }
    return (socket_events(zap->socket) & ZMQ_POLLIN) != 0;
}
