#include "remote_host.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <zmq.h>

#include "proto/codec.h"
#include "proto/remote.h"

/* ---- the daemon ---- */

static void host_warn(void *context, const char *line)
{
    struct remote_host *host = context;

    host->warnings++;
    (void)snprintf(host->warning, sizeof host->warning, "%s", line);
}

static void host_warn_user(void *context, uint32_t uid, const char *line)
{
    (void)uid;
    host_warn(context, line);
}

static const void *host_find_results(void *context, uint64_t job, unsigned batch)
{
    const struct remote_host *host = context;

    return fake_core_results(host->core, job, batch);
}

static enum adtopk_status host_event(void *context, struct event *event, struct error *err)
{
    struct remote_host *host = context;

    return fake_core_event(host->core, event, err);
}

void remote_host_start(struct remote_host *host, struct remote_config config)
{
    struct error err = {.code = ADTOPK_OK};

    memset(host, 0, sizeof *host);
    config.listen = config.listen != NULL ? config.listen : "tcp://127.0.0.1:*";
    config.timeout_ms = config.timeout_ms != 0 ? config.timeout_ms : 5000;
    config.heartbeat_ms = config.heartbeat_ms != 0 ? config.heartbeat_ms : 500;
    config.warn = host_warn;
    config.results = host_find_results;
    host->doors = (struct doors){.event = host_event, .warn = host_warn_user, .context = host};
    host->core = fake_core_create(&host->view);
    assert_non_null(host->core);
    assert_int_equal(uv_loop_init(&host->loop), 0);
    host->remote = remote_create(&host->loop, &config, &host->doors, host, &err);
    if (host->remote == NULL) {
        fail_msg("%s", err.text);
    }
    fake_core_serve(host->core, &host->doors);
}

bool remote_host_turn(struct remote_host *host)
{
    struct action action;
    const bool busy = remote_poll(host->remote);

    while (fake_core_next_action(host->core, &action)) {
        answer_apply(&host->doors, &action);
    }
    answer_emptied(&host->doors);
    (void)uv_run(&host->loop, UV_RUN_NOWAIT);
    return busy;
}

static uint64_t host_now_ms(void)
{
    return uv_hrtime() / 1000000;
}

void remote_host_run(struct remote_host *host, int ms)
{
    const struct timespec pause = {.tv_nsec = 200000};
    const uint64_t end = host_now_ms() + (uint64_t)ms;

    while (host_now_ms() < end) {
        if (!remote_host_turn(host)) {
            (void)nanosleep(&pause, NULL);
        }
    }
}

void remote_host_stop(struct remote_host *host)
{
    fake_core_destroy(host->core);
    remote_close(host->remote, false);
    (void)uv_run(&host->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&host->loop), 0);
}

/* ---- the trainer ---- */

void raw_open(struct raw_trainer *raw, struct remote_host *host, const char *route,
    const struct keyfile_pair *pair, const char *server_key)
{
    const int none = 0;

    memset(raw, 0, sizeof *raw);
    raw->host = host;
    raw->zmq = zmq_ctx_new();
    raw->dealer = zmq_socket(raw->zmq, ZMQ_DEALER);
    assert_non_null(raw->dealer);
    (void)zmq_setsockopt(raw->dealer, ZMQ_LINGER, &none, sizeof none);
    if (route != NULL) {
        (void)zmq_setsockopt(raw->dealer, ZMQ_ROUTING_ID, route, strlen(route));
    }
    if (pair != NULL) {
        (void)zmq_setsockopt(raw->dealer, ZMQ_CURVE_SERVERKEY, server_key, 40);
        (void)zmq_setsockopt(raw->dealer, ZMQ_CURVE_PUBLICKEY, pair->public_key, 40);
        (void)zmq_setsockopt(raw->dealer, ZMQ_CURVE_SECRETKEY, pair->secret_key, 40);
    }
    assert_int_equal(zmq_connect(raw->dealer, remote_endpoint(host->remote)), 0);
}

static void raw_drop(struct raw_trainer *raw)
{
    if (raw->reply != NULL) {
        codec_free(&raw->reply->base);
    }
    free(raw->part);
    raw->reply = NULL;
    raw->part = NULL;
    raw->part_size = 0;
}

void raw_close(struct raw_trainer *raw)
{
    raw_drop(raw);
    (void)zmq_close(raw->dealer);
    (void)zmq_ctx_term(raw->zmq);
}

void raw_send(
    struct raw_trainer *raw, Adtopk__RemoteRequest *request, const void *part, size_t size)
{
    size_t header_size = 0;
    uint8_t *header;

    request->sequence = ++raw->sent;
    request->acknowledged = raw->received;
    header = codec_pack(&request->base, &header_size);
    assert_non_null(header);
    assert_true(zmq_send(raw->dealer, header, header_size, size > 0 ? ZMQ_SNDMORE : 0) >= 0);
    if (size > 0) {
        assert_true(zmq_send(raw->dealer, part, size, 0) >= 0);
    }
    free(header);
}

void raw_acknowledge(struct raw_trainer *raw)
{
    Adtopk__RemoteRequest nothing = ADTOPK__REMOTE_REQUEST__INIT;

    raw->sent--;
    raw_send(raw, &nothing, NULL, 0);
}

void raw_send_parts(struct raw_trainer *raw, unsigned count, size_t size)
{
    uint8_t *bytes = calloc(1, size + 1);

    assert_non_null(bytes);
    for (unsigned i = 0; i < count; i++) {
        assert_true(zmq_send(raw->dealer, bytes, size, i + 1 < count ? ZMQ_SNDMORE : 0) >= 0);
    }
    free(bytes);
}

/* Takes a message if there is one. */
static bool raw_take(struct raw_trainer *raw)
{
    zmq_msg_t message;
    bool took;

    (void)zmq_msg_init(&message);
    took = zmq_msg_recv(&message, raw->dealer, ZMQ_DONTWAIT) >= 0;
    if (took) {
        raw_drop(raw);
        raw->reply = (Adtopk__RemoteReply *)(void *)codec_unpack(&adtopk__remote_reply__descriptor,
            zmq_msg_data(&message), zmq_msg_size(&message), REMOTE_HEADER_MAX, NULL);
        assert_non_null(raw->reply);
    }
    if (took && zmq_msg_more(&message) != 0) {
        assert_true(zmq_msg_recv(&message, raw->dealer, ZMQ_DONTWAIT) >= 0);
        raw->part_size = zmq_msg_size(&message);
        raw->part = malloc(raw->part_size + 1);
        assert_non_null(raw->part);
        memcpy(raw->part, zmq_msg_data(&message), raw->part_size);
        assert_int_equal(zmq_msg_more(&message), 0);
    }
    (void)zmq_msg_close(&message);
    return took;
}

const Adtopk__RemoteReply *raw_receive(struct raw_trainer *raw, int ms)
{
    const uint64_t end = host_now_ms() + (uint64_t)ms;

    while (host_now_ms() < end) {
        while (raw_take(raw)) {
            const bool counts = raw->reply->kind_case != ADTOPK__REMOTE_REPLY__KIND__NOT_SET;

            assert_int_equal(raw->reply->sequence, raw->received + (counts ? 1 : 0));
            raw->received = raw->reply->sequence;
            if (counts) {
                return raw->reply;
            }
        }
        remote_host_run(raw->host, 1);
    }
    return NULL;
}

void raw_expect_error(struct raw_trainer *raw, enum adtopk_status status, const char *words)
{
    const Adtopk__RemoteReply *reply = raw_receive(raw, PATIENCE_MS);

    assert_non_null(reply);
    assert_int_equal(reply->kind_case, ADTOPK__REMOTE_REPLY__KIND_REPLY);
    assert_int_equal(reply->reply->kind_case, ADTOPK__LOCAL_REPLY__KIND_ERROR);
    if (reply->reply->error->status != (uint32_t)status ||
        strstr(reply->reply->error->text, words) == NULL) {
        fail_msg("%u \"%s\" is not %d \"%s\"", reply->reply->error->status,
            reply->reply->error->text, status, words);
    }
    assert_true(reply->reply->error->final);
}

/* ---- what a trainer says ---- */

static void raw_say(struct raw_trainer *raw, Adtopk__LocalRequest *request)
{
    Adtopk__RemoteRequest message = ADTOPK__REMOTE_REQUEST__INIT;

    message.kind_case = ADTOPK__REMOTE_REQUEST__KIND_REQUEST;
    message.request = request;
    raw_send(raw, &message, NULL, 0);
}

void raw_request(struct raw_trainer *raw, Adtopk__LocalRequest__KindCase kind)
{
    Adtopk__LocalCommit commit = ADTOPK__LOCAL_COMMIT__INIT;
    Adtopk__LocalMapped mapped = ADTOPK__LOCAL_MAPPED__INIT;
    Adtopk__LocalLeave leave = ADTOPK__LOCAL_LEAVE__INIT;
    Adtopk__LocalRequest request = ADTOPK__LOCAL_REQUEST__INIT;

    request.kind_case = kind;
    switch (kind) {
    case ADTOPK__LOCAL_REQUEST__KIND_COMMIT: request.commit = &commit; break;
    case ADTOPK__LOCAL_REQUEST__KIND_MAPPED: request.mapped = &mapped; break;
    default: request.leave = &leave; break;
    }
    raw_say(raw, &request);
}

void raw_open_request(struct raw_trainer *raw, const char *job, uint32_t version)
{
    Adtopk__LocalOpen open = ADTOPK__LOCAL_OPEN__INIT;
    Adtopk__LocalRequest request = ADTOPK__LOCAL_REQUEST__INIT;
    char name[100], run[] = "0";

    (void)snprintf(name, sizeof name, "%s", job);
    open.version = version;
    open.job = name;
    open.run_id = run;
    open.world_size = 1;
    request.kind_case = ADTOPK__LOCAL_REQUEST__KIND_OPEN;
    request.open = &open;
    raw_say(raw, &request);
}

void raw_register(struct raw_trainer *raw, uint32_t tensors, uint64_t numel, uint32_t forms)
{
    for (uint32_t i = 0; i < tensors; i++) {
        Adtopk__LocalTensor tensor = ADTOPK__LOCAL_TENSOR__INIT;
        Adtopk__LocalTensor *list[] = {&tensor};
        Adtopk__LocalRegister batch = ADTOPK__LOCAL_REGISTER__INIT;
        Adtopk__LocalRequest request = ADTOPK__LOCAL_REQUEST__INIT;
        char name[16];

        (void)snprintf(name, sizeof name, "t%u", i);
        tensor.name = name;
        tensor.n_shape = 1;
        tensor.shape = &numel;
        tensor.forms = forms;
        batch.n_tensors = 1;
        batch.tensors = list;
        request.kind_case = ADTOPK__LOCAL_REQUEST__KIND_REGISTER;
        request.register_ = &batch;
        raw_say(raw, &request);
    }
}

static void raw_expect(struct raw_trainer *raw, Adtopk__LocalReply__KindCase kind)
{
    const Adtopk__RemoteReply *reply = raw_receive(raw, PATIENCE_MS);

    assert_non_null(reply);
    assert_int_equal(reply->kind_case, ADTOPK__REMOTE_REPLY__KIND_REPLY);
    if (reply->reply->kind_case == ADTOPK__LOCAL_REPLY__KIND_ERROR &&
        reply->reply->kind_case != kind) {
        fail_msg("%s", reply->reply->error->text);
    }
    assert_int_equal(reply->reply->kind_case, kind);
}

void raw_join(struct raw_trainer *raw, const char *job, uint32_t tensors, uint64_t numel)
{
    raw_open_request(raw, job, REMOTE_VERSION);
    raw_expect(raw, ADTOPK__LOCAL_REPLY__KIND_OPENED);
    raw_register(raw, tensors, numel, 2);
    raw_request(raw, ADTOPK__LOCAL_REQUEST__KIND_COMMIT);
    raw_expect(raw, ADTOPK__LOCAL_REPLY__KIND_ARENA);
    raw_request(raw, ADTOPK__LOCAL_REQUEST__KIND_MAPPED);
    raw_expect(raw, ADTOPK__LOCAL_REPLY__KIND_READY);
}

void raw_push(struct raw_trainer *raw, uint32_t tensor, uint64_t step, uint64_t offset,
    const void *bytes, size_t size)
{
    Adtopk__RemotePush push = ADTOPK__REMOTE_PUSH__INIT;
    Adtopk__RemoteRequest message = ADTOPK__REMOTE_REQUEST__INIT;

    push.tensor = tensor;
    push.step = step;
    push.offset = offset;
    message.kind_case = ADTOPK__REMOTE_REQUEST__KIND_PUSH;
    message.push = &push;
    raw_send(raw, &message, bytes, size);
}

void raw_step_end(struct raw_trainer *raw, uint64_t step)
{
    Adtopk__RemoteStepEnd end = ADTOPK__REMOTE_STEP_END__INIT;
    Adtopk__RemoteRequest message = ADTOPK__REMOTE_REQUEST__INIT;

    end.step = step;
    message.kind_case = ADTOPK__REMOTE_REQUEST__KIND_STEP_END;
    message.step_end = &end;
    raw_send(raw, &message, NULL, 0);
}
