#include "client/control/exchange.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "proto/codec.h"
#include "proto/retry.h"

#define DOCUMENT_MAX (256u << 20) /* bytes: no daemon sends more */

static enum adtopk_status control_lost(const char *path, const char *what, struct error *err)
{
    return error_set(err, ADTOPK_ERR_UNREACHABLE, "%s %s: %s", what, path,
        errno != 0 ? strerror(errno) : "the daemon closed the connection");
}

enum adtopk_status control_open(const char *path, int *fd, struct error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(path);

    *fd = -1;
    if (length == 0 || length >= sizeof(address.sun_path)) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "a socket's path has 1 to %zu bytes, not %zu",
            sizeof(address.sun_path) - 1, length);
    }
    memcpy(address.sun_path, path, length);
    *fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0) {
        return error_set(err, ADTOPK_ERR_SYSTEM, "cannot make a socket: %s", strerror(errno));
    }
    if (connect(*fd, (const struct sockaddr *)&address, sizeof(address)) == 0) {
        return ADTOPK_OK;
    }
    if (errno == EAGAIN || errno == EINTR) {
        return ADTOPK_PENDING;
    }
    if (errno == EACCES || errno == EPERM) {
        return error_set(err, ADTOPK_ERR_DENIED, "cannot connect to %s: %s", path, strerror(errno));
    }
    if (errno == ENOENT || errno == ECONNREFUSED) {
        return error_set(err, ADTOPK_ERR_UNREACHABLE,
            "cannot connect to %s: %s; does adtopkd run, with this control_socket?", path,
            strerror(errno));
    }
    return control_lost(path, "cannot connect to", err);
}

enum adtopk_status control_send(
    int fd, const char *path, const Adtopk__ControlRequest *request, struct error *err)
{
    size_t size = 0;
    uint8_t *bytes = codec_pack(&request->base, &size);
    ssize_t sent;

    if (bytes == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for the request");
    }
    RETRY(sent, send(fd, bytes, size, MSG_NOSIGNAL)); /* the first: there is room */
    free(bytes);
    /* A daemon that has hung up already may have said why, which control_receive() reads. */
    return sent >= 0 || errno == EPIPE ? ADTOPK_OK : control_lost(path, "cannot send to", err);
}

static enum adtopk_status control_append(
    struct control_answer *answer, const char *text, struct error *err)
{
    size_t length = strlen(text);
    char *grown;

    if (length > DOCUMENT_MAX - answer->size) {
        return error_set(
            err, ADTOPK_ERR_PROTOCOL, "the answer is longer than %u bytes", DOCUMENT_MAX);
    }
    grown = realloc(answer->text, answer->size + length + 1);
    if (grown == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for the answer");
    }
    memcpy(grown + answer->size, text, length + 1);
    answer->text = grown;
    answer->size += length;
    return ADTOPK_OK;
}

static enum adtopk_status control_take(struct control_answer *answer,
    const Adtopk__ControlReply *reply, void (*note)(const char *sentence), struct error *err)
{
    answer->more = reply->more != 0;
    answer->refused = reply->status != ADTOPK_OK;
    if (answer->refused) {
        return error_set(err,
            reply->status < ERROR_STATUSES && reply->status != ADTOPK_PENDING
                ? (enum adtopk_status)reply->status
                : ADTOPK_ERR_PROTOCOL,
            "%s", reply->text);
    }
    /* The socket for trainers answers with a message in the place of the note. */
    if (note != NULL && reply->note[0] >= ' ') {
        note(reply->note);
    }
    return control_append(answer, reply->text, err);
}

enum adtopk_status control_receive(int fd, const char *path, struct control_answer *answer,
    void (*note)(const char *sentence), struct error *err)
{
    static const size_t room = CODEC_LOCAL_MAX;
    uint8_t bytes[CODEC_LOCAL_MAX];
    Adtopk__ControlReply *reply;
    enum adtopk_status status;
    ssize_t size;
    int resets = 0;

    do { /* a daemon that hung up before it read the request may still have said why */
        errno = 0;
        size = recv(fd, bytes, room, 0);
    } while (size < 0 && errno == ECONNRESET && resets++ == 0);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) {
        return ADTOPK_PENDING;
    }
    if (size <= 0) {
        return control_lost(path, "cannot read from", err);
    }
    reply = (Adtopk__ControlReply *)codec_unpack(
        &adtopk__control_reply__descriptor, bytes, (size_t)size, room, err);
    if (reply == NULL) {
        return err->code;
    }
    status = control_take(answer, reply, note, err);
    codec_free(&reply->base);
    return status;
}
