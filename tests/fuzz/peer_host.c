#include "tests/fuzz/peer_host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/bits.h"
#include "proto/codec.h"
#include "proto/payload_frame.h"
#include "tests/host/deaf.h"
#include "tests/host/inside.h"
#include "tests/host/words.h"

#define PUMP_MAX 20000 /* packets until they must have come to rest */
#ifndef HOST_INLINE_TENSORS
#define HOST_INLINE_TENSORS 0 /* the core's default */
#endif
#define GREETING_US 200000 /* after which both ends of a link have noticed a restart */

/* The kinds of frames that are copies. */
enum { KIND_STEP_COPY = 2, KIND_OP_COPY = 3 };

static const struct tensor_spec specs[HOST_TENSORS] = {
    {.name = "fc.weight", .forms = 3, .shape = {.dims = 2, .size = {4, 24}}},
    {.name = "fc.bias", .forms = 2, .shape = {.dims = 1, .size = {6}}},
    {.name = "conv.weight", .forms = 1, .shape = {.dims = 4, .size = {4, 8, 2, 2}}},
    {.name = "head.bias", .forms = 2, .shape = {.dims = 1, .size = {6}}},
};

static void *need(void *memory)
{
    if (memory == NULL) {
        abort();
    }
    return memory;
}

/* Packets */

static bool peer_transmit(void *context, uint16_t peer, enum link_lane lane, const uint8_t *header,
    size_t header_size, const uint8_t *body, size_t body_size, struct buffer *owner)
{
    (void)peer;
    (void)owner;
    host_queue_put(
        &((struct pair *)context)->to_core, PEER, lane, header, header_size, body, body_size);
    return true;
}

/* The core */

static void take_action(void *context, const struct action *action)
{
    struct pair *pair = context;

    switch (action->type) {
    case ACTION_POLICY:
    case ACTION_VERIFIED:
    case ACTION_RECORDS:
    case ACTION_RANKS:
    case ACTION_CHECKPOINT:
        if ((action->status == ADTOPK_OK) != (action->error == NULL)) {
            abort();
        }
        break;
    case ACTION_READY:
        pair->step = action->number;
        pair->operation = action->operation;
        break;
    case ACTION_STEP: pair->step = action->number + 1; break;
    case ACTION_OP_DONE: pair->operation = action->number + 1; break;
    case ACTION_FAILED:
        if (action->error->code == ADTOPK_OK || action->error->text[0] == '\0') {
            abort();
        }
        /* fall through */
    case ACTION_CLOSED: pair->session = 0; break;
    case ACTION_DELIVERED:
    case ACTION_COMPUTE: break;
    }
}

void pair_event(struct pair *pair, struct event event)
{
    if (event.session == 0) {
        event.session = pair->session;
    }
    (void)host_event(&pair->host, event);
}

void pair_pump(struct pair *pair)
{
    struct host_packet *packet;

    for (unsigned turn = 0; turn < PUMP_MAX; turn++) {
        links_tick(pair->peer, pair->host.now_us);
        host_timer(&pair->host);
        if ((packet = host_queue_take(&pair->to_peer)) != NULL) {
            links_receive(pair->peer, pair->node, packet->lane, packet->bytes, packet->size, NULL,
                pair->host.now_us);
            free(packet);
        } else if (!host_receive(&pair->host, &pair->to_core)) {
            return;
        }
    }
    abort(); /* a storm */
}

void pair_wait(struct pair *pair, uint64_t us)
{
    pair->host.now_us += us;
    pair_event(pair, (struct event){.type = EVENT_TIMER});
    pair_pump(pair);
}

void pair_fill(struct pair *pair, uint32_t tensor, uint8_t seed)
{
    struct tensor_layout layout;
    uint64_t numel = tensor_numel(&specs[tensor % HOST_TENSORS].shape);

    uint8_t *arena = host_memory_arena(&pair->host.memory, pair->session);

    if (arena == NULL || !inside_layout(pair->host.core, pair->session, tensor, &layout)) {
        return;
    }
    for (uint64_t i = 0; i < numel; i++) {
        /* Sometimes not finite: bits 0x7f8..... */
        uint32_t bits =
            seed == 255 ? UINT32_C(0x7f800000) : UINT32_C(0x3f000000) + seed * (uint32_t)i;
        memcpy(arena + layout.gradient_offset + 4 * i, &bits, 4);
    }
}

void pair_open(struct pair *pair)
{
    struct event open = {.type = EVENT_RANK_OPEN,
        .open = {.key = {.owner = 1, .name = "job", .run_id = "1"},
            .rank = 0,
            .world_size = 2,
            .policy = pair->policy}};

    if (pair->session != 0) {
        return;
    }
    host_compute(&pair->host); /* those of the job before */
    if (pair->host.memory.store[0].bytes == NULL) {
        pair->step = pair->operation = 0;
    }
    pair->session = ++pair->last_session;
    open.open.run = pair->host.memory.store[0].bytes != NULL ? pair->run : 0;
    pair_event(pair, open);
    pair->job = core_session_job(pair->host.core, pair->session);
    for (unsigned t = 0; t < HOST_TENSORS; t++) {
        pair_event(pair, (struct event){.type = EVENT_RANK_REGISTER, .spec = &specs[t]});
    }
    pair_event(pair, (struct event){.type = EVENT_RANK_COMMIT});
    pair_event(pair, (struct event){.type = EVENT_RANK_MAPPED});
    pair_pump(pair);
}

/* The peer */

void pair_send(struct pair *pair, enum link_lane lane, const uint8_t *bytes, size_t size)
{
    struct buffer *buffer = need(buffer_new(size));

    if (size > 0) {
        memcpy(buffer->bytes, bytes, size);
    }
    (void)links_send(pair->peer, pair->node, lane, NULL, buffer);
    buffer_unref(buffer);
}

Adtopk__PeerAbout pair_about(const struct pair *pair)
{
    Adtopk__PeerAbout about = ADTOPK__PEER_ABOUT__INIT;

    about.owner = 1;
    about.name = (char *)(uintptr_t) "job";
    about.run_id = (char *)(uintptr_t) "1";
    about.run = pair->run;
    about.sender_job = pair->peer_job;
    about.receiver_job = pair->core_job;
    return about;
}

void pair_send_message(struct pair *pair, Adtopk__PeerMessage *message)
{
    Adtopk__PeerAbout about = pair_about(pair);
    size_t size = 0;
    uint8_t *bytes;

    message->about = &about;
    bytes = need(codec_pack(&message->base, &size));
    pair_send(pair, LINK_CONTROL, bytes, size);
    free(bytes);
}

void pair_send_join(struct pair *pair, uint32_t view, bool reply)
{
    struct words words;
    Adtopk__PeerJoin *join = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_JOIN);
    uint32_t rank = 1;

    join->world_size = 2;
    join->ranks = &rank;
    join->n_ranks = 1;
    join->policy = pair->policy_hash;
    join->exchanges = EXCHANGE_VERSION;
    join->tensors = pair->tensor_hash;
    join->n_tensors = pair->tensor_hashes;
    join->view = view;
    join->reply = reply;
    join->grows = pair->takes_in;
    pair->run = pair->anew ? 0 : pair->run;
    pair_send_message(pair, &words.message);
}

void pair_join_anew(struct pair *pair)
{
    pair->anew = true;
    pair->peer_job++;
    pair_send_join(pair, 0, true);
}

/* Sends the frame with changes; spoils `frame`. */
static void send_changed(
    struct pair *pair, struct pair_frame *frame, const uint8_t *changes, size_t size)
{
    store_u16(frame->bytes + AT_SOURCE, PEER);
    for (size_t i = 0; i + 1 < size; i += 2) {
        frame->bytes[changes[i] % frame->size] ^= changes[i + 1];
    }
    store_u64(frame->bytes + AT_LENGTH, frame->size);
    store_u32(frame->bytes + AT_CRC, frame_crc(frame->bytes, frame->size));
    pair_send(pair, LINK_BULK, frame->bytes, frame->size);
}

void pair_send_frame(struct pair *pair, const uint8_t *changes, size_t size)
{
    struct pair_frame frame = pair->frame;

    if (frame.size >= PAYLOAD_HEADER_SIZE) {
        send_changed(pair, &frame, changes, size);
    }
}

void pair_send_copy(struct pair *pair, const uint8_t *changes, size_t size)
{
    struct pair_frame frame = pair->copy;

    if (frame.size >= PAYLOAD_HEADER_SIZE) {
        store_u64(frame.bytes + AT_NUMBER,
            frame.bytes[AT_KIND] == KIND_OP_COPY ? pair->operation : pair->step);
        store_u32(frame.bytes + AT_VIEW, pair->view);
        send_changed(pair, &frame, changes, size);
    }
}

/* Answers as a member of the same view would. */
static void hear(struct pair *pair, const Adtopk__PeerMessage *message)
{
    pair->core_job = message->about->sender_job;
    if (message->kind_case == ADTOPK__PEER_MESSAGE__KIND_JOIN || message->about->run != 0) {
        pair->run = message->about->run;
    }
    if (message->kind_case == ADTOPK__PEER_MESSAGE__KIND_JOIN &&
        message->join->n_tensors <= HOST_TENSORS) {
        pair->policy_hash = message->join->policy;
        pair->tensor_hashes = (unsigned)message->join->n_tensors;
        memcpy(pair->tensor_hash, message->join->tensors, 8 * message->join->n_tensors);
    } else if (message->kind_case == ADTOPK__PEER_MESSAGE__KIND_PREPARE) {
        pair->view = message->prepare->view;
        pair->run = message->prepare->run;
        pair->anew = false;
    } else if (message->kind_case == ADTOPK__PEER_MESSAGE__KIND_STATE) {
        pair->view = message->state->view;
        pair->refused = message->state->refused;
    } else if (message->kind_case == ADTOPK__PEER_MESSAGE__KIND_FAIL) {
        (void)snprintf(pair->failure, sizeof(pair->failure), "%s", message->fail->text);
    }
    pair_reflex(pair, message);
}

static void hear_frame(struct pair *pair, const struct buffer *buffer)
{
    struct payload_reader reader;
    struct pair_frame *frame = &pair->frame;

    if (buffer->size > HOST_FRAME_MAX ||
        payload_open(&reader, buffer->bytes, buffer->size, NULL) != ADTOPK_OK) {
        abort();
    }
    if (reader.header.kind >= KIND_STEP_COPY) {
        frame = &pair->copy;
    }
    memcpy(frame->bytes, buffer->bytes, buffer->size);
    frame->size = buffer->size;
    if ((pair->reflexes & REFLEX_FRAME) != 0 && frame == &pair->frame) {
        pair_send_frame(pair, NULL, 0);
    }
}

static void peer_deliver(void *context, uint16_t from, enum link_lane lane, struct buffer *buffer)
{
    struct pair *pair = context;

    (void)from;
    if (lane == LINK_CONTROL) {
        Adtopk__PeerMessage *message = (Adtopk__PeerMessage *)(void *)codec_unpack(
            &adtopk__peer_message__descriptor, buffer->bytes, buffer->size, CODEC_PEER_MAX, NULL);
        if (message == NULL) {
            abort(); /* whatever is received, messages that are sent are well-formed */
        }
        hear(pair, message);
        codec_free(&message->base);
    } else {
        hear_frame(pair, buffer);
    }
    buffer_unref(buffer);
}

/* Starting and ending */

static struct links_config links_of(uint16_t node, uint64_t incarnation)
{
    return (struct links_config){.self = node,
        .incarnation = incarnation,
        .part_size = 4096,
        .window = 16384,
        .max_control_message = 1u << 16,
        .max_bulk_message = HOST_FRAME_MAX,
        .heartbeat_us = 100000,
        .timeout_us = 1000000,
        .resend_us = 10000};
}

static void start_core(struct pair *pair)
{
    pair->host.config.incarnation = pair->incarnation;
    pair->host.config.links = links_of(pair->node, pair->incarnation + 1);
    pair->host.memory.outlives = !pair->forgetful;
    host_start(&pair->host);
    pair->incarnation = pair->host.config.incarnation;
    if (core_add_peer(pair->host.core, PEER, pair->host.now_us) != ADTOPK_OK) {
        abort();
    }
}

static void start_peer(struct pair *pair)
{
    static const struct links_ops ops = {.transmit = peer_transmit,
        .deliver = peer_deliver,
        .peer_up = deaf_peer_up,
        .peer_down = deaf_peer_down};
    const struct links_config config = links_of(PEER, ++pair->incarnation);

    pair->peer_incarnation = config.incarnation;
    pair->peer = need(links_create(&config, &ops, pair));
    if (links_add_peer(pair->peer, pair->node, pair->host.now_us) != ADTOPK_OK) {
        abort();
    }
}

void pair_restart_core(struct pair *pair)
{
    host_kill(&pair->host);
    pair->session = 0;
    host_queue_drop(&pair->to_peer);
    host_queue_drop(&pair->to_core);
    start_core(pair);
    pair_wait(pair, GREETING_US);
    pair_open(pair);
}

void pair_restart_peer(struct pair *pair)
{
    links_destroy(pair->peer);
    host_queue_drop(&pair->to_peer);
    host_queue_drop(&pair->to_core);
    start_peer(pair);
    pair_wait(pair, GREETING_US);
}

void pair_init(struct pair *pair, uint16_t node, const char *policy, unsigned reflexes)
{
    *pair = (struct pair){.node = node,
        .policy = policy,
        .peer_job = 1,
        .reflexes = reflexes,
        .host = {.config = {.node = node, .inline_tensors = HOST_INLINE_TENSORS},
            .now_us = 1,
            .note = take_action,
            .context = pair,
            .to = {[PEER] = &pair->to_peer}}};
    start_core(pair);
    start_peer(pair);
    pair_wait(pair, 1);
    if (!links_is_up(pair->peer, node)) {
        abort();
    }
    pair_open(pair);
}

void pair_free(struct pair *pair)
{
    links_destroy(pair->peer);
    host_queue_drop(&pair->to_core);
    host_queue_drop(&pair->to_peer);
    host_stop(&pair->host);
}
