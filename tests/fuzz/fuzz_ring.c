/*
 * Fuzz target: what a trainer on this node can write, from its first message on: requests, entries
 * of its ring, the ring's index and its word for sleeping. The sessions are the real ones, over a
 * small core. Functions here replace the socket and the shared memory.
 *
 * The input is a list of records: a kind, then its numbers. Numbers of steps are near the right
 * one, so that the fuzzer gets past the first check.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/local/local_session.h"
#include "daemon/session/answer.h"
#include "daemon/session/joining.h"
#include "proto/codec.h"
#include "tests/fuzz/request.h"
#include "tests/unit/local_core.h"

#define FIRST_ENTRY 6u /* the first kind of record that is not a request */
#define ENTRIES_A_TURN 16u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct local_ring ring;
static _Alignas(
    64) uint8_t page_bytes[sizeof(struct local_page) + CORE_MAX_TENSORS * sizeof(uint64_t)];

static struct local_page *ring_page(void)
{
    return (struct local_page *)(void *)page_bytes;
}

/* ---- what local/ has in other files ---- */

void local_session_watch(struct local_session *session)
{
    (void)session;
}

enum outbox_result outbox_send(struct outbox *outbox, int socket, const uint8_t *bytes, size_t size,
    const int *descriptor, unsigned descriptors)
{
    Adtopk__LocalReply *reply = (Adtopk__LocalReply *)(void *)codec_unpack(
        &adtopk__local_reply__descriptor, bytes, size, CODEC_LOCAL_MAX, NULL);

    (void)outbox;
    (void)socket;
    (void)descriptor;
    (void)descriptors;
    if (reply == NULL) {
        abort(); /* whatever is received, messages that are sent are well-formed */
    }
    codec_free(&reply->base);
    return OUTBOX_SENT;
}

void outbox_clear(struct outbox *outbox)
{
    (void)outbox;
}

bool outbox_wake(int socket)
{
    (void)socket;
    return true;
}

bool gpu_may_hold(const struct local_session *session)
{
    (void)session;
    return false;
}

int gpu_describe(const struct local_session *session, unsigned batch, Adtopk__LocalArena *arena)
{
    (void)session;
    (void)batch;
    (void)arena;
    return -1; /* no rank is on a GPU */
}

int gpu_take(struct local_session *session, struct local_entry *entry, struct error *err)
{
    (void)session;
    (void)entry;
    (void)err;
    return 0; /* no rank is on a GPU */
}

void gpu_let_go(struct local_session *session)
{
    (void)session;
}

void gpu_begin(struct local_session *session, uint64_t step)
{
    (void)session;
    (void)step;
}

void gpu_tell(struct local_session *session, const struct action *action)
{
    (void)session;
    (void)action;
}

struct results *memory_results(const struct local *local, uint64_t job, unsigned batch)
{
    (void)local;
    (void)job;
    (void)batch;
    return NULL;
}

int memory_show_results(const struct local *local, const struct results *results, struct error *err)
{
    (void)local;
    (void)results;
    (void)err;
    return -1; /* no job has any */
}

int memory_show(const struct local *local, uint64_t job, unsigned part, uint64_t *size)
{
    (void)local;
    (void)job;
    (void)part;
    *size = 0;
    return -1;
}

/* ---- the connection ---- */

static void ring_moved(struct session *base)
{
    (void)base;
}

static enum adtopk_status ring_add(
    struct session *base, const struct tensor_spec *spec, struct error *err)
{
    (void)base;
    (void)spec;
    (void)err;
    return ADTOPK_OK;
}

static const void *ring_arena(
    struct session *base, unsigned batch, uint64_t *size, struct error *err)
{
    struct segment *arena = &local_session(base)->gradients[batch];

    arena->bytes = calloc(1, *size);
    if (arena->bytes == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory");
    }
    return arena->bytes;
}

static void ring_give_back(struct session *base)
{
    for (unsigned b = 0; b < CORE_MAX_BATCHES; b++) {
        free(local_session(base)->gradients[b].bytes);
        local_session(base)->gradients[b].bytes = NULL;
    }
}

static enum adtopk_status ring_ready(
    struct session *base, const struct action *action, Adtopk__LocalReady *ready, struct error *err)
{
    (void)base;
    (void)action;
    (void)err;
    ready->size = 1;
    return ADTOPK_OK;
}

static void ring_free(struct session *base)
{
    free(local_session(base));
}

static const struct connection ring_connection = {
    .version = LOCAL_VERSION,
    .linger_ms = 1000,
    .send = reply_send,
    .moved = ring_moved,
    .add = ring_add,
    .arena = ring_arena,
    .give_back = ring_give_back,
    .drain = submit_drain,
    .ready = ring_ready,
    .show = reply_show,
    .progress = reply_progress,
    .free = ring_free,
};

/* ---- records ---- */

static struct local_session *ring_connect(struct local *local)
{
    struct local_session *session = calloc(1, sizeof *session);

    if (session == NULL) {
        abort();
    }
    memset(&ring, 0, sizeof ring);
    memset(page_bytes, 0, sizeof page_bytes);
    session->local = local;
    session->socket = session->process = session->shown = -1;
    session->ring = session->page = segment_none;
    session->reader.ring = &ring;
    session->reader.page = ring_page();
    for (unsigned b = 0; b < CORE_MAX_BATCHES; b++) {
        session->gradients[b] = segment_none;
    }
    session_begin(&session->base, &local->door, 1);
    return session;
}

static void ring_request(struct local_session *session, unsigned kind, struct fuzz_input *input)
{
    struct fuzz_request made;

    fuzz_request_make(&made, kind, LOCAL_VERSION, input);
    if (session->base.state < SESSION_LEAVING && session->base.verdict == VERDICT_NONE) {
        joining_take(&session->base, &made.request); /* as receive_messages() does */
    }
}

/* Bytes: type, tensor, a difference to the open step, root, size. */
static void ring_entry(struct fuzz_input *input)
{
    struct local_entry *entry = &ring.entry[atomic_load(&ring.tail) % LOCAL_RING_ENTRIES];

    entry->type = fuzz_byte(input);
    entry->tensor = fuzz_byte(input);
    entry->number = atomic_load(&ring_page()->steps_done) + (uint64_t)(int8_t)fuzz_byte(input);
    entry->root = fuzz_byte(input);
    entry->size = fuzz_number(input) * 17;
    entry->scale = (float)fuzz_byte(input) - 1;
    atomic_fetch_add(&ring.tail, 1);
}

static void ring_record(struct local_session *session, unsigned kind, struct fuzz_input *input)
{
    if (kind < FIRST_ENTRY) {
        ring_request(session, kind, input);
    } else if (kind < FIRST_ENTRY + 6) {
        ring_entry(input);
    } else if (kind == FIRST_ENTRY + 6) {
        atomic_fetch_add(&ring.tail, (uint64_t)(int16_t)fuzz_number(input));
    } else {
        atomic_store(&ring.client_asleep, fuzz_byte(input));
    }
}

static void ring_turn(struct local *local, struct local_session *session, struct fake_core *core)
{
    struct action action;

    local->serving.iteration++;
    if (session->base.state != SESSION_CLOSED) {
        (void)submit_take(session, ENTRIES_A_TURN);
        (void)session_execute(&session->base);
    }
    while (fake_core_next_action(core, &action)) {
        answer_apply(local->door.doors, &action);
    }
    answer_emptied(local->door.doors);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uv_loop_t loop; /* its clock stands still */
    static struct daemon_view view;
    struct fake_core *core = fake_core_create(&view);
    struct doors doors = {.event = fake_core_event, .context = core};
    struct local local = {
        .door = {.connection = &ring_connection, .loop = &loop, .max_sessions = 4}};
    struct fuzz_input input = {.data = data, .size = size};
    struct local_session *session;

    if (core == NULL || door_open(&local.door, &doors, NULL) != ADTOPK_OK) {
        abort();
    }
    fake_core_serve(core, &doors);
    session = ring_connect(&local);
    while (input.size > 0 && session->base.state != SESSION_CLOSED) {
        ring_record(session, fuzz_byte(&input) % (FIRST_ENTRY + 8), &input);
        ring_turn(&local, session, core);
    }
    fake_core_destroy(core);
    session_stop(&local.door, false);
    session_drop(&session->base); /* its socket has closed */
    door_free(&local.door);
    return 0;
}
