/*
 * daemon/remote in the test's own process, over the small core of local_core.h. Also a client that
 * speaks to it over a bare DEALER socket, and can send anything.
 */
#ifndef ADTOPK_TESTS_REMOTE_HOST_H
#define ADTOPK_TESTS_REMOTE_HOST_H

#include "daemon/remote/remote.h"
#include "daemon/session/answer.h"
#include "local_core.h"
#include "proto/remote.pb-c.h"

/* Takes turns of the host until the condition holds, or patience is over. */
#define REMOTE_AWAIT(host, condition)                                                              \
    for (int waited_ = 0; !(condition) && waited_ < PATIENCE_MS; waited_++) {                      \
        remote_host_run(host, 1);                                                                  \
    }

struct remote_host {
    uv_loop_t loop;
    struct doors doors;
    struct remote *remote;
    struct fake_core *core;
    struct daemon_view view;
    unsigned warnings;
    char warning[ERROR_TEXT_SIZE]; /* the last warning */
};

/** Starts the host. `config` may leave `listen` NULL for a free port of loopback. An error fails
 * the test. */
void remote_host_start(struct remote_host *host, struct remote_config config);

/** Takes one turn of the loop. False: there was nothing to do. */
bool remote_host_turn(struct remote_host *host);

/** Takes turns for about `ms` milliseconds. */
void remote_host_run(struct remote_host *host, int ms);

/** Stops the host. Fails the test if anything was left open. */
void remote_host_stop(struct remote_host *host);

struct raw_trainer {
    struct remote_host *host;
    void *zmq, *dealer;
    uint64_t sent, received;
    Adtopk__RemoteReply *reply;
    uint8_t *part;
    size_t part_size;
};

/** Connects. Uses the routing id `route` if it is not NULL, and keys if `pair` is not NULL. */
void raw_open(struct raw_trainer *raw, struct remote_host *host, const char *route,
    const struct keyfile_pair *pair, const char *server_key);
void raw_close(struct raw_trainer *raw);

/** Sends a message with the next number, and a part if `size` > 0. */
void raw_send(
    struct raw_trainer *raw, Adtopk__RemoteRequest *request, const void *part, size_t size);

/** Sends an acknowledgement of the received messages, and nothing else. */
void raw_acknowledge(struct raw_trainer *raw);

/** Sends these parts without any change. */
void raw_send_parts(struct raw_trainer *raw, unsigned count, size_t size);

/** Waits for the next message that has a kind, and returns it: raw->reply and raw->part. NULL if
 * none comes. */
const Adtopk__RemoteReply *raw_receive(struct raw_trainer *raw, int ms);

/** The next message must be a final error with this status and these words. */
void raw_expect_error(struct raw_trainer *raw, enum adtopk_status status, const char *words);

/** Joins: opens, registers `tensors` tensors of `numel` f32 elements each, commits, maps, gets
 * ready. */
void raw_join(struct raw_trainer *raw, const char *job, uint32_t tensors, uint64_t numel);

void raw_request(struct raw_trainer *raw, Adtopk__LocalRequest__KindCase kind);
void raw_open_request(struct raw_trainer *raw, const char *job, uint32_t version);
void raw_register(struct raw_trainer *raw, uint32_t tensors, uint64_t numel, uint32_t forms);
void raw_push(struct raw_trainer *raw, uint32_t tensor, uint64_t step, uint64_t offset,
    const void *bytes, size_t size);
void raw_step_end(struct raw_trainer *raw, uint64_t step);

#endif
