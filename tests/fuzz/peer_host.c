#include "tests/fuzz/peer_host.h"

#include <stdlib.h>
#include <string.h>

#include "proto/bits.h"
#include "proto/codec.h"
#include "proto/payload_frame.h"

#define PUMP_MAX 20000     /* packets until they must have come to rest */
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

static void queue_put(struct host_queue *queue, enum link_lane lane, const uint8_t *header,
    size_t header_size, const uint8_t *body, size_t body_size)
{
    struct host_packet *packet = need(malloc(sizeof(*packet) + header_size + body_size));

    *packet = (struct host_packet){.lane = lane, .size = header_size + body_size};
    memcpy(packet->bytes, header, header_size);
    if (body_size > 0) {
        memcpy(packet->bytes + header_size, body, body_size);
    }
    *queue->last = packet;
    queue->last = &packet->next;
}

static struct host_packet *queue_take(struct host_queue *queue)
{
    struct host_packet *packet = queue->first;

    if (packet != NULL) {
        queue->first = packet->next;
        if (queue->first == NULL) {
            queue->last = &queue->first;
        }
    }
    return packet;
}

static void queue_drop(struct host_queue *queue)
{
    struct host_packet *packet;

    while ((packet = queue_take(queue)) != NULL) {
        free(packet);
    }
}

static bool core_transmit(void *context, uint16_t peer, enum link_lane lane, const uint8_t *header,
    size_t header_size, const uint8_t *body, size_t body_size)
{
    if (peer != PEER) {
        abort();
    }
    queue_put(&((struct host *)context)->to_peer, lane, header, header_size, body, body_size);
    return true;
}

static bool peer_transmit(void *context, uint16_t peer, enum link_lane lane, const uint8_t *header,
    size_t header_size, const uint8_t *body, size_t body_size)
{
    (void)peer;
    queue_put(&((struct host *)context)->to_core, lane, header, header_size, body, body_size);
    return true;
}

/* Memory */

static const void *memory_gradients(
    void *context, session_id session, uint64_t size, struct error *err)
{
    struct host *host = context;

    (void)session;
    (void)err;
    free(host->gradients);
    return host->gradients = need(calloc(1, size));
}

static void *memory_keep(void **memory, uint64_t *had, bool *old, uint64_t size, bool *existing)
{
    if (*memory == NULL || *had != size) {
        free(*memory);
        *memory = need(aligned_alloc(64, (size + 63) / 64 * 64));
        memset(*memory, 0, size);
        *had = size;
        *old = false;
    }
    *existing = *old;
    *old = true;
    return *memory;
}

static void *memory_results(
    void *context, uint64_t job, uint64_t size, bool *existing, struct error *err)
{
    struct host *host = context;

    (void)job;
    (void)err;
    return memory_keep(&host->results, &host->results_size, &host->results_old, size, existing);
}

static void *memory_store(
    void *context, uint64_t job, unsigned part, uint64_t size, bool *existing, struct error *err)
{
    struct host *host = context;

    (void)job;
    (void)err;
    return memory_keep(
        &host->store[part], &host->store_size[part], &host->store_old[part], size, existing);
}

static void memory_drop_store(void *context, uint64_t job, unsigned part)
{
    struct host *host = context;

    (void)job;
    free(host->store[part]);
    host->store[part] = NULL;
}

static void memory_open_job(void *context, uint64_t job, const struct job_key *key, bool returning)
{
    (void)key;
    for (unsigned part = 0; part < CORE_STORE_PARTS && !returning; part++) {
        memory_drop_store(context, job, part);
    }
}

static bool memory_has_store(void *context, const struct job_key *key)
{
    const struct host *host = context;

    (void)key;
    return host->store[0] != NULL;
}

static void memory_release_session(void *context, session_id session)
{
    struct host *host = context;

    if (session == host->last_session) {
        free(host->gradients);
        host->gradients = NULL;
    }
}

static void memory_release_job(void *context, uint64_t job)
{
    struct host *host = context;

    free(host->results);
    host->results = NULL;
    for (unsigned part = 0; part < CORE_STORE_PARTS; part++) {
        memory_drop_store(context, job, part);
    }
}

/* The core */

static void take_action(struct host *host, const struct action *action)
{
    switch (action->type) {
    case ACTION_POLICY:
    case ACTION_VERIFIED:
        if ((action->status == ADTOPK_OK) != (action->error == NULL)) {
            abort();
        }
        break;
    case ACTION_COMPUTE:
        if (host->held_count == 64) {
            abort();
        }
        host->held[host->held_count++] = action->compute;
        break;
    case ACTION_READY:
        host->step = action->number;
        host->operation = action->operation;
        break;
    case ACTION_STEP: host->step = action->number + 1; break;
    case ACTION_OP_DONE: host->operation = action->number + 1; break;
    case ACTION_FAILED:
        if (action->error->code == ADTOPK_OK || action->error->text[0] == '\0') {
            abort();
        }
        /* fall through */
    case ACTION_CLOSED: host->session = 0; break;
    case ACTION_DELIVERED: break;
    }
}

static void drain(struct host *host)
{
    struct action action;

    while (core_next_action(host->core, &action)) {
        take_action(host, &action);
    }
}

void host_compute(struct host *host)
{
    while (host->held_count > 0) {
        struct compute *compute = host->held[--host->held_count];
        struct event event = {
            .type = EVENT_COMPUTE_DONE, .now_us = host->now_us, .compute = compute};
        compute->run(compute);
        (void)core_event(host->core, &event, NULL);
        drain(host);
    }
}

void host_event(struct host *host, struct event event)
{
    struct error err = {ADTOPK_OK, ""};

    event.now_us = host->now_us;
    if (event.session == 0) {
        event.session = host->session;
    }
    if (core_event(host->core, &event, &err) != ADTOPK_OK && err.text[0] == '\0') {
        abort();
    }
    drain(host);
    if (!host->hold) {
        host_compute(host);
    }
}

void host_pump(struct host *host)
{
    struct host_packet *packet;

    for (unsigned turn = 0; turn < PUMP_MAX; turn++) {
        links_tick(host->peer, host->now_us);
        if (core_deadline(host->core) <= host->now_us) {
            host_event(host, (struct event){.type = EVENT_TIMER});
        }
        if ((packet = queue_take(&host->to_peer)) != NULL) {
            links_receive(
                host->peer, host->node, packet->lane, packet->bytes, packet->size, host->now_us);
        } else if ((packet = queue_take(&host->to_core)) != NULL) {
            host_event(host, (struct event){.type = EVENT_PACKET,
                                 .packet = {PEER, packet->lane, packet->bytes, packet->size}});
        } else {
            return;
        }
        free(packet);
    }
    abort(); /* a storm */
}

void host_wait(struct host *host, uint64_t us)
{
    host->now_us += us;
    host_event(host, (struct event){.type = EVENT_TIMER});
    host_pump(host);
}

void host_fill(struct host *host, uint32_t tensor, uint8_t seed)
{
    struct tensor_layout layout;
    uint64_t numel = tensor_numel(&specs[tensor % HOST_TENSORS].shape);

    if (host->gradients == NULL ||
        !core_tensor_layout(host->core, host->session, tensor, &layout)) {
        return;
    }
    for (uint64_t i = 0; i < numel; i++) {
        /* Sometimes not finite: bits 0x7f8..... */
        uint32_t bits =
            seed == 255 ? UINT32_C(0x7f800000) : UINT32_C(0x3f000000) + seed * (uint32_t)i;
        memcpy((uint8_t *)host->gradients + layout.gradient_offset + 4 * i, &bits, 4);
    }
}

void host_open(struct host *host)
{
    struct event open = {.type = EVENT_RANK_OPEN,
        .open = {.key = {.owner = 1, .name = "job", .run_id = "1"},
            .rank = 0,
            .world_size = 2,
            .policy = host->policy}};

    if (host->session != 0) {
        return;
    }
    host_compute(host); /* those of the job before */
    if (host->store[0] == NULL) {
        host->step = host->operation = 0;
    }
    host->session = ++host->last_session;
    open.open.run = host->store[0] != NULL ? host->run : 0;
    host_event(host, open);
    host->job = core_session_job(host->core, host->session);
    for (unsigned t = 0; t < HOST_TENSORS; t++) {
        host_event(host, (struct event){.type = EVENT_RANK_REGISTER, .spec = &specs[t]});
    }
    host_event(host, (struct event){.type = EVENT_RANK_COMMIT});
    host_event(host, (struct event){.type = EVENT_RANK_MAPPED});
    host_pump(host);
}

/* The peer */

void host_send(struct host *host, enum link_lane lane, const uint8_t *bytes, size_t size)
{
    struct buffer *buffer = need(buffer_new(size));

    if (size > 0) {
        memcpy(buffer->bytes, bytes, size);
    }
    (void)links_send(host->peer, host->node, lane, NULL, buffer);
    buffer_unref(buffer);
}

Adtopk__PeerAbout host_about(const struct host *host)
{
    Adtopk__PeerAbout about = ADTOPK__PEER_ABOUT__INIT;

    about.owner = 1;
    about.name = (char *)(uintptr_t) "job";
    about.run_id = (char *)(uintptr_t) "1";
    about.run = host->run;
    about.sender_job = host->peer_job;
    about.receiver_job = host->core_job;
    return about;
}

void host_send_message(struct host *host, Adtopk__PeerMessage *message)
{
    Adtopk__PeerAbout about = host_about(host);
    size_t size = 0;
    uint8_t *bytes;

    message->about = &about;
    bytes = need(codec_pack(&message->base, &size));
    host_send(host, LINK_CONTROL, bytes, size);
    free(bytes);
}

void host_send_join(struct host *host, uint32_t view, bool reply)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerJoin join = ADTOPK__PEER_JOIN__INIT;
    uint32_t rank = 1;

    join.world_size = 2;
    join.ranks = &rank;
    join.n_ranks = 1;
    join.policy = host->policy_hash;
    join.exchanges = EXCHANGE_VERSION;
    join.tensors = host->tensor_hash;
    join.n_tensors = host->tensor_hashes;
    join.view = view;
    join.reply = reply;
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_JOIN;
    message.join = &join;
    host_send_message(host, &message);
}

/* Sends the frame with changes; spoils `frame`. */
static void send_changed(
    struct host *host, struct host_frame *frame, const uint8_t *changes, size_t size)
{
    store_u16(frame->bytes + AT_SOURCE, PEER);
    for (size_t i = 0; i + 1 < size; i += 2) {
        frame->bytes[changes[i] % frame->size] ^= changes[i + 1];
    }
    store_u64(frame->bytes + AT_LENGTH, frame->size);
    store_u32(frame->bytes + AT_CRC, frame_crc(frame->bytes, frame->size));
    host_send(host, LINK_BULK, frame->bytes, frame->size);
}

void host_send_frame(struct host *host, const uint8_t *changes, size_t size)
{
    struct host_frame frame = host->frame;

    if (frame.size >= PAYLOAD_HEADER_SIZE) {
        send_changed(host, &frame, changes, size);
    }
}

void host_send_copy(struct host *host, const uint8_t *changes, size_t size)
{
    struct host_frame frame = host->copy;

    if (frame.size >= PAYLOAD_HEADER_SIZE) {
        store_u64(frame.bytes + AT_NUMBER,
            frame.bytes[AT_KIND] == KIND_OP_COPY ? host->operation : host->step);
        store_u32(frame.bytes + AT_VIEW, host->view);
        send_changed(host, &frame, changes, size);
    }
}

/* Answers as a member of the same view would. */
static void hear(struct host *host, const Adtopk__PeerMessage *message)
{
    host->core_job = message->about->sender_job;
    if (message->kind_case == ADTOPK__PEER_MESSAGE__KIND_JOIN || message->about->run != 0) {
        host->run = message->about->run;
    }
    if (message->kind_case == ADTOPK__PEER_MESSAGE__KIND_JOIN &&
        message->join->n_tensors <= HOST_TENSORS) {
        host->policy_hash = message->join->policy;
        host->tensor_hashes = (unsigned)message->join->n_tensors;
        memcpy(host->tensor_hash, message->join->tensors, 8 * message->join->n_tensors);
    } else if (message->kind_case == ADTOPK__PEER_MESSAGE__KIND_PREPARE) {
        host->view = message->prepare->view;
        host->run = message->prepare->run;
    } else if (message->kind_case == ADTOPK__PEER_MESSAGE__KIND_STATE) {
        host->view = message->state->view;
    }
    host_reflex(host, message);
}

static void hear_frame(struct host *host, const struct buffer *buffer)
{
    struct payload_reader reader;
    struct host_frame *frame = &host->frame;

    if (buffer->size > HOST_FRAME_MAX ||
        payload_open(&reader, buffer->bytes, buffer->size, NULL) != ADTOPK_OK) {
        abort();
    }
    if (reader.header.kind >= KIND_STEP_COPY) {
        frame = &host->copy;
    }
    memcpy(frame->bytes, buffer->bytes, buffer->size);
    frame->size = buffer->size;
    if ((host->reflexes & REFLEX_FRAME) != 0 && frame == &host->frame) {
        host_send_frame(host, NULL, 0);
    }
}

static void peer_deliver(void *context, uint16_t from, enum link_lane lane, struct buffer *buffer)
{
    struct host *host = context;

    (void)from;
    if (lane == LINK_CONTROL) {
        Adtopk__PeerMessage *message = (Adtopk__PeerMessage *)(void *)codec_unpack(
            &adtopk__peer_message__descriptor, buffer->bytes, buffer->size, CODEC_PEER_MAX, NULL);
        if (message == NULL) {
            abort(); /* whatever comes in, what goes out is well-formed */
        }
        hear(host, message);
        codec_free(&message->base);
    } else {
        hear_frame(host, buffer);
    }
    buffer_unref(buffer);
}

static void peer_up(void *context, uint16_t peer, uint64_t incarnation)
{
    (void)context;
    (void)peer;
    (void)incarnation;
}

static void peer_down(void *context, uint16_t peer)
{
    (void)context;
    (void)peer;
}

/* Starting and ending */

static struct links_config links_of(uint16_t node, uint64_t incarnation)
{
    return (struct links_config){.self = node,
        .incarnation = incarnation,
        .chunk_size = 4096,
        .window = 16384,
        .max_control_message = 1u << 16,
        .max_bulk_message = HOST_FRAME_MAX,
        .heartbeat_us = 100000,
        .timeout_us = 1000000,
        .resend_us = 10000};
}

static void start_core(struct host *host)
{
    const struct core_config config = {.node = host->node,
        .incarnation = ++host->incarnation,
        .links = links_of(host->node, host->incarnation),
        .memory = {.context = host,
            .gradients = memory_gradients,
            .results = memory_results,
            .store = memory_store,
            .drop_store = memory_drop_store,
            .open_job = memory_open_job,
            .has_store = memory_has_store,
            .release_session = memory_release_session,
            .release_job = memory_release_job},
        .transmit = core_transmit,
        .transmit_context = host};

    host->core = need(core_create(&config, NULL));
    if (core_add_peer(host->core, PEER, host->now_us) != ADTOPK_OK) {
        abort();
    }
}

static void start_peer(struct host *host)
{
    static const struct links_ops ops = {.transmit = peer_transmit,
        .deliver = peer_deliver,
        .peer_up = peer_up,
        .peer_down = peer_down};
    const struct links_config config = links_of(PEER, ++host->incarnation);

    host->peer_incarnation = config.incarnation;
    host->peer = need(links_create(&config, &ops, host));
    if (links_add_peer(host->peer, host->node, host->now_us) != ADTOPK_OK) {
        abort();
    }
}

void host_restart_core(struct host *host)
{
    host->held_count = 0;
    core_destroy(host->core);
    host->session = 0;
    queue_drop(&host->to_peer);
    queue_drop(&host->to_core);
    start_core(host);
    host_wait(host, GREETING_US);
    host_open(host);
}

void host_restart_peer(struct host *host)
{
    links_destroy(host->peer);
    queue_drop(&host->to_peer);
    queue_drop(&host->to_core);
    start_peer(host);
    host_wait(host, GREETING_US);
}

void host_init(struct host *host, uint16_t node, const char *policy, unsigned reflexes)
{
    *host = (struct host){
        .node = node, .policy = policy, .now_us = 1, .peer_job = 1, .reflexes = reflexes};
    host->to_core.last = &host->to_core.first;
    host->to_peer.last = &host->to_peer.first;
    start_core(host);
    start_peer(host);
    host_wait(host, 1);
    if (!links_is_up(host->peer, node)) {
        abort();
    }
    host_open(host);
}

void host_free(struct host *host)
{
    core_destroy(host->core);
    links_destroy(host->peer);
    queue_drop(&host->to_core);
    queue_drop(&host->to_peer);
    free(host->gradients);
    free(host->results);
    for (unsigned part = 0; part < CORE_STORE_PARTS; part++) {
        free(host->store[part]);
    }
}
