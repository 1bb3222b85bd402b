/*
 * Fuzz target: the messages of a daemon on another machine, as the library receives them.
 *
 * The input is a list of records: a kind, then its numbers; kind 0 is a header byte for byte. The
 * context has four tensors in an open step, the last two with updates in 16 bits.
 */
#include <stdlib.h>
#include <string.h>

#include "client/src/remote.h"
#include "client/src/transport.h"
#include "proto/codec.h"

#define FUZZ_TENSORS 4u
#define FUZZ_PART_MAX 4096u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct fuzz_input {
    const uint8_t *data;
    size_t size;
};

static unsigned fuzz_byte(struct fuzz_input *input)
{
    if (input->size == 0) {
        return 0;
    }
    input->size--;
    return *input->data++;
}

static void fuzz_send(
    adtopk_context *context, Adtopk__RemoteReply *reply, const uint8_t *part, size_t part_size)
{
    const bool counts = reply->kind_case != ADTOPK__REMOTE_REPLY__KIND__NOT_SET;
    size_t size = 0;
    uint8_t *header;

    reply->sequence = context->remote->received + (counts ? 1 : 0);
    header = codec_pack(&reply->base, &size);
    if (header != NULL) {
        (void)client_intake_message(context, header, size, part, part_size);
    }
    free(header);
}

static void fuzz_update(adtopk_context *context, struct fuzz_input *input)
{
    Adtopk__RemoteUpdate update = ADTOPK__REMOTE_UPDATE__INIT;
    Adtopk__RemoteReply reply = ADTOPK__REMOTE_REPLY__INIT;
    uint8_t part[FUZZ_PART_MAX];
    size_t size;

    update.tensor = fuzz_byte(input) % (FUZZ_TENSORS + 1);
    update.step = context->step;
    update.status = fuzz_byte(input) % 20 == 19;
    update.forms = fuzz_byte(input) % 8;
    update.count = fuzz_byte(input);
    update.first = fuzz_byte(input);
    update.span = fuzz_byte(input);
    update.sparse = fuzz_byte(input) % 2 == 1;
    size = (size_t)fuzz_byte(input) * 4;
    memset(part, 0, sizeof part);
    for (size_t i = 0; i + 3 < size; i += 4) {
        part[i] = (uint8_t)fuzz_byte(input);
        part[i + 3] = part[i] == 0xff ? 0xff : 0;
    }
    reply.kind_case = ADTOPK__REMOTE_REPLY__KIND_UPDATE;
    reply.update = &update;
    fuzz_send(context, &reply, part, size);
}

static void fuzz_other(adtopk_context *context, unsigned kind, struct fuzz_input *input)
{
    static uint8_t part[256];
    Adtopk__RemoteStep step = ADTOPK__REMOTE_STEP__INIT;
    Adtopk__RemoteOpDone done = ADTOPK__REMOTE_OP_DONE__INIT;
    Adtopk__LocalBye bye = ADTOPK__LOCAL_BYE__INIT;
    Adtopk__LocalReply answer = ADTOPK__LOCAL_REPLY__INIT;
    Adtopk__RemoteReply reply = ADTOPK__REMOTE_REPLY__INIT;
    size_t size = 0;

    if (kind == 2) {
        step.number = context->step;
        step.status = fuzz_byte(input);
        reply.kind_case = ADTOPK__REMOTE_REPLY__KIND_STEP;
        reply.step = &step;
    } else if (kind == 3) {
        done.number = fuzz_byte(input);
        size = fuzz_byte(input);
        reply.kind_case = ADTOPK__REMOTE_REPLY__KIND_OP_DONE;
        reply.op_done = &done;
    } else {
        answer.kind_case = ADTOPK__LOCAL_REPLY__KIND_BYE;
        answer.bye = &bye;
        reply.kind_case = ADTOPK__REMOTE_REPLY__KIND_REPLY;
        reply.reply = &answer;
    }
    fuzz_send(context, &reply, part, size);
}

static void fuzz_record(adtopk_context *context, struct fuzz_input *input)
{
    const unsigned kind = fuzz_byte(input) % 5;

    if (kind == 0) {
        const size_t wanted = fuzz_byte(input);
        const size_t size = wanted < input->size ? wanted : input->size;

        (void)client_intake_message(context, input->data, size, input->data, size);
        input->data += size;
        input->size -= size;
    } else if (kind == 1) {
        fuzz_update(context, input);
    } else {
        fuzz_other(context, kind, input);
    }
}

/* Reads whatever may be read: it lies in memory of its size. */
static void fuzz_look(const adtopk_context *context)
{
    for (uint32_t t = 0; t < context->tensors; t++) {
        struct adtopk_update update = {.size = sizeof update, .numel = context->tensor[t].numel};
        double sum = 0;

        if (atomic_load(&context->remote->page->delivered[t]) != (context->step + 1) << 8) {
            continue;
        }
        context->transport->update(context, t, &update);
        for (uint64_t i = 0; i < update.count; i++) {
            sum += (double)update.value[i];
            if (update.index[i] >= update.numel) {
                abort();
            }
        }
        for (uint64_t i = 0; update.dense != NULL && i < update.numel; i++) {
            sum += (double)update.dense[i];
        }
        for (uint64_t i = 0; update.dense16 != NULL && i < update.numel; i++) {
            sum += update.dense16[i];
        }
        *(volatile double *)&sum = sum;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint64_t numel[FUZZ_TENSORS] = {1, 100, 255, 30};
    struct fuzz_input input = {.data = data, .size = size};
    adtopk_context context = {.transport = &client_remote,
        .place = {.address = "tcp://fuzz"},
        .commit = CLIENT_COMMIT_DONE,
        .tensors = FUZZ_TENSORS,
        .batch = {.ready = FUZZ_TENSORS},
        .step = 5};
    struct client_tensor tensor[FUZZ_TENSORS] = {{.name = ""}};

    context.tensor = tensor;
    context.remote = calloc(1, sizeof *context.remote);
    context.remote->page =
        calloc(1, sizeof(struct local_page) + CLIENT_MAX_TENSORS * sizeof(uint64_t));
    context.remote->arrival = calloc(FUZZ_TENSORS, sizeof *context.remote->arrival);
    context.remote->arrivals = FUZZ_TENSORS;
    context.remote->op_out = calloc(1, 64);
    context.remote->op_bytes = 64;
    for (uint32_t t = 0; t < FUZZ_TENSORS; t++) {
        tensor[t].numel = numel[t];
        tensor[t].forms = ADTOPK_FORM_LIST | (t == 1 ? ADTOPK_FORM_PENDING : 0) |
                          (t < 2 ? ADTOPK_FORM_DENSE : ADTOPK_FORM_DENSE16);
        tensor[t].dtype = t < 2 ? ADTOPK_F32 : t == 2 ? ADTOPK_F16 : ADTOPK_BF16;
    }
    while (input.size > 0 && context.failure.code == ADTOPK_OK) {
        fuzz_record(&context, &input);
        fuzz_look(&context);
    }
    free(context.remote->op_out);
    client_remote.close(&context, false);
    return 0;
}
