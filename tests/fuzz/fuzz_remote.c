/*
 * Fuzz target: the messages of a remote trainer, from its first one on, to the real sessions over a
 * small core. Functions here replace the socket and take every message.
 *
 * The input is a list of records: a kind, then its numbers. Numbers of messages are filled in, so
 * that the fuzzer gets past the first check; kind 0 is a header byte for byte. An input that begins
 * with 0xff is one message for the codec.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/remote/trainer.h"
#include "daemon/session/answer.h"
#include "proto/remote.h"
#include "tests/fuzz/message.h"
#include "tests/fuzz/request.h"
#include "tests/unit/local_core.h"

#define FUZZ_PART_MAX 20000u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ---- the socket ---- */

static uint64_t fuzz_received; /* messages of the daemon */

enum gate_sent gate_send(struct gate *gate, const uint8_t *route, size_t route_size,
    const uint8_t *header, size_t header_size, zmq_msg_t *part)
{
    Adtopk__RemoteReply *reply = (Adtopk__RemoteReply *)(void *)codec_unpack(
        &adtopk__remote_reply__descriptor, header, header_size, REMOTE_HEADER_MAX, NULL);

    (void)gate;
    (void)route;
    (void)route_size;
    if (reply == NULL || (part != NULL && zmq_msg_size(part) > REMOTE_OP_SIZE)) {
        abort();
    }
    fuzz_received = reply->sequence;
    codec_free(&reply->base);
    if (part != NULL) {
        (void)zmq_msg_close(part);
    }
    return GATE_SENT;
}

uint16_t gate_who(const struct gate *gate, struct gate_message *message)
{
    (void)gate;
    (void)message;
    return GATE_NOBODY;
}

/* ---- the host ---- */

static void fuzz_turn(struct remote *remote, struct fake_core *core)
{
    struct action action;

    for (struct session *one = remote->door.sessions; one != NULL; one = one->next) {
        (void)session_execute(one);
        (void)delivery_pump(trainer_of(one), 16);
    }
    trainer_sweep(remote);
    while (fake_core_next_action(core, &action)) {
        answer_apply(remote->door.doors, &action);
    }
    answer_emptied(remote->door.doors);
}

/* ---- records ---- */

static void fuzz_deliver(
    struct remote *remote, const void *header, size_t header_size, size_t part_size)
{
    static const uint8_t zeros[FUZZ_PART_MAX];
    struct gate_message message = {.has_part = part_size > 0, .whole = true};

    if (zmq_msg_init_size(&message.route, 1) != 0 ||
        zmq_msg_init_size(&message.header, header_size) != 0 ||
        zmq_msg_init_size(&message.part, part_size) != 0) {
        abort();
    }
    memset(zmq_msg_data(&message.route), 'r', 1);
    memcpy(zmq_msg_data(&message.header), header, header_size);
    memcpy(zmq_msg_data(&message.part), zeros, part_size);
    intake_take(remote, &message);
    (void)zmq_msg_close(&message.route);
    (void)zmq_msg_close(&message.header);
    (void)zmq_msg_close(&message.part);
}

/* The latest trainer, or NULL. */
static const struct trainer *fuzz_trainer(const struct remote *remote)
{
    return remote->door.sessions != NULL ? trainer_of(remote->door.sessions) : NULL;
}

static void fuzz_send(struct remote *remote, Adtopk__RemoteRequest *request, size_t part_size)
{
    const struct trainer *trainer = fuzz_trainer(remote);
    const bool counts = request->kind_case != ADTOPK__REMOTE_REQUEST__KIND__NOT_SET;
    size_t size = 0;
    uint8_t *header;

    request->sequence = (trainer != NULL ? trainer->route.received : 0) + (counts ? 1 : 0);
    request->acknowledged = trainer != NULL ? fuzz_received : 0;
    header = codec_pack(&request->base, &size);
    if (header != NULL) {
        fuzz_deliver(remote, header, size, part_size);
    }
    free(header);
}

static void fuzz_local(struct remote *remote, unsigned kind, struct fuzz_input *input)
{
    Adtopk__RemoteRequest message = ADTOPK__REMOTE_REQUEST__INIT;
    struct fuzz_request made;

    fuzz_request_make(&made, kind, REMOTE_VERSION, input);
    message.kind_case = ADTOPK__REMOTE_REQUEST__KIND_REQUEST;
    message.request = &made.request;
    fuzz_send(remote, &message, 0);
}

static void fuzz_training(struct remote *remote, unsigned kind, struct fuzz_input *input)
{
    const struct trainer *trainer = fuzz_trainer(remote);
    const uint64_t step =
        (trainer != NULL ? trainer->pushes.step : 0) + (fuzz_byte(input) == 0xff ? 1 : 0);
    Adtopk__RemotePush push = ADTOPK__REMOTE_PUSH__INIT;
    Adtopk__RemoteStepEnd end = ADTOPK__REMOTE_STEP_END__INIT;
    Adtopk__RemoteWait wait = ADTOPK__REMOTE_WAIT__INIT;
    Adtopk__RemoteOp op = ADTOPK__REMOTE_OP__INIT;
    Adtopk__RemoteRequest message = ADTOPK__REMOTE_REQUEST__INIT;
    size_t part = 0;

    message.kind_case = (Adtopk__RemoteRequest__KindCase)kind;
    switch (message.kind_case) {
    case ADTOPK__REMOTE_REQUEST__KIND_PUSH:
        push.tensor = fuzz_byte(input);
        push.step = step;
        push.offset = fuzz_number(input);
        part = fuzz_number(input) % FUZZ_PART_MAX;
        message.push = &push;
        break;
    case ADTOPK__REMOTE_REQUEST__KIND_STEP_END:
        end.step = step;
        message.step_end = &end;
        break;
    case ADTOPK__REMOTE_REQUEST__KIND_WAIT:
        wait.tensor = fuzz_byte(input);
        wait.step = step;
        message.wait = &wait;
        break;
    default:
        message.kind_case = ADTOPK__REMOTE_REQUEST__KIND_OP;
        op.number = fuzz_byte(input);
        op.kind = fuzz_byte(input);
        op.root = fuzz_byte(input);
        op.size = fuzz_number(input) * 17;
        part = fuzz_number(input) % FUZZ_PART_MAX;
        message.op = &op;
        break;
    }
    fuzz_send(remote, &message, part);
}

static void fuzz_record(struct remote *remote, struct fuzz_input *input)
{
    const unsigned kind = fuzz_byte(input) % 12;

    if (kind == 0) {
        const size_t wanted = fuzz_byte(input);
        const size_t size = wanted < input->size ? wanted : input->size;

        fuzz_deliver(remote, input->data, size, fuzz_received % 5);
        input->data += size;
        input->size -= size;
    } else if (kind <= 5) {
        fuzz_local(remote, kind, input);
    } else if (kind <= 9) {
        fuzz_training(remote, kind - 2, input);
    } else {
        Adtopk__RemoteRequest nothing = ADTOPK__REMOTE_REQUEST__INIT;

        fuzz_send(remote, &nothing, 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uv_loop_t loop; /* its clock stands still */
    static struct daemon_view view;
    struct fake_core *core = fake_core_create(&view);
    struct doors doors = {.event = fake_core_event, .context = core};
    struct remote remote = {.config = {.results = fake_core_results},
        .door = {.connection = &trainer_connection, .loop = &loop, .max_sessions = 4}};
    struct fuzz_input input = {.data = data, .size = size};

    if (core == NULL || door_open(&remote.door, &doors, NULL) != ADTOPK_OK) {
        abort();
    }
    fuzz_received = 0;
    remote.context = core;
    fake_core_serve(core, &doors);
    if (size > 0 && data[0] == 0xff) {
        message_check_dialogue(&adtopk__remote_request__descriptor,
            &adtopk__remote_reply__descriptor, data + 1, size - 1);
        input.size = 0;
    }
    while (input.size > 0) {
        fuzz_record(&remote, &input);
        fuzz_turn(&remote, core);
    }
    fake_core_destroy(core);
    session_stop(&remote.door, false);
    trainer_sweep(&remote);
    door_free(&remote.door);
    return 0;
}
