/*
 * Fuzz target: a hostile peer of a running job. Its links work correctly; its messages are the
 * input.
 *
 * The input is a byte of reflexes (the answers that the peer gives correctly by itself), a byte
 * that picks the job's policy and coordinator, and a sequence of records: kind, length, so many
 * bytes. Some records are the core's own rank, time, and restarts.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/heap.h"
#include "tests/fuzz/peer_host.h"
#include "tests/host/words.h"

/* More than a job of this size can need, whatever its peer sends. */
#define ABOUT_MAX 64 /* bytes of a message's subject */
#define HEAP_LIMIT (32u << 20)
#define RECORDS_MAX 200
#define ROUNDS_MAX 16

enum record {
    SAY_RAW,     /* bytes as a control message */
    SAY_MESSAGE, /* the same with the job's id in front */
    SAY_JOIN,
    SAY_PREPARE,
    SAY_STATE,
    SAY_COMMIT,
    SAY_FETCH,
    SAY_SPLIT,
    SAY_FRAME,     /* the core's last frame with changes */
    SAY_FRAME_RAW, /* bytes as a frame */
    SAY_REFLEXES,
    RANK_PUSH,
    RANK_PUSH_ALL, /* every tensor, and the end of the step */
    RANK_STEP_END,
    RANK_WAIT,
    RANK_OP,
    RANK_LEAVE,
    RANK_LOST,
    RANK_OPEN,
    TIME,
    HOLD, /* computes wait, or are done */
    RESTART_CORE,
    RESTART_PEER,
    SAY_COPY,   /* the core's last copy with changes */
    SAY_POLICY, /* of a change of the policy: asks, proposes, answers, ends */
    ASK_POLICY, /* an operator of the core's node changes the policy */
    ASK_VERIFY, /* an operator of the core's node verifies the ledgers */
    JOIN_ANEW,  /* the peer's rank starts anew: it comes as a newcomer */
    SAY_RESIDUAL,
    RECORDS
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Byte i of a record, 0 behind its end. */
static uint8_t byte_at(const uint8_t *bytes, size_t size, size_t i)
{
    return i < size ? bytes[i] : 0;
}

/* The same as a difference, -128 to 127. */
static uint64_t change_at(const uint8_t *bytes, size_t size, size_t i)
{
    return byte_at(bytes, size, i) - UINT64_C(2) * (byte_at(bytes, size, i) & 128);
}

static void say_message(struct pair *pair, const uint8_t *bytes, size_t size)
{
    Adtopk__PeerHead head = ADTOPK__PEER_HEAD__INIT;
    Adtopk__PeerAbout about = pair_about(pair);
    uint8_t message[ABOUT_MAX + 255];
    size_t begin;

    head.about = &about;
    begin = adtopk__peer_head__get_packed_size(&head);
    if (begin > ABOUT_MAX) {
        abort();
    }
    (void)adtopk__peer_head__pack(&head, message);
    memcpy(message + begin, bytes, size);
    pair_send(pair, LINK_CONTROL, message, begin + size);
}

/* A view, and the lists to which it points. */
struct said_view {
    Adtopk__PeerView view;
    uint32_t members[8], ranks[8];
    uint64_t since[8];
};

/* nodes: a bit each. what: a difference of its number, two bits; one for a node that joined lately;
 * two for the founders; one for a tie-breaker, which may be no member. */
static Adtopk__PeerView *view_of(
    const struct pair *pair, struct said_view *said, uint8_t nodes, uint8_t what)
{
    Adtopk__PeerView *view = &said->view;

    adtopk__peer_view__init(view);
    for (uint32_t node = 0; node < 8; node++) {
        if ((nodes >> node & 1) != 0) {
            said->members[view->n_members] = node;
            said->ranks[view->n_members] = 1;
            said->since[view->n_members++] = node == (what & 4) / 4 ? pair->step + what / 64 : 0;
        }
    }
    view->view = pair->view + what % 4 - 1;
    view->members = said->members;
    view->ranks = said->ranks;
    view->since = said->since;
    view->n_ranks = view->n_since = view->n_members;
    view->founders = what / 8 % 4;
    view->tie_breaker = (what & 32) != 0 ? 1u + nodes % 8 : 0;
    return view;
}

/* None, which means the lowest; a member; or any number. */
static uint32_t tie_breaker_of(uint8_t what, const uint32_t *members, size_t count)
{
    return what < 64 ? 0 : what < 192 ? members[what % count] + 1 : what * UINT32_C(0x01010101);
}

/* A view some way above the last one; its members are both nodes, and others the input names. The
 * last of these bytes also picks the tie-breakers. */
static void say_prepare(struct pair *pair, const uint8_t *bytes, size_t size)
{
    struct words words;
    Adtopk__PeerPrepare *prepare = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_PREPARE);
    uint32_t members[2 + ROUNDS_MAX];
    uint64_t incarnations[2 + ROUNDS_MAX] = {0}, jobs[2 + ROUNDS_MAX] = {0};
    uint32_t ranks[2 + ROUNDS_MAX] = {1, 1};
    uint64_t since[2 + ROUNDS_MAX] = {0};
    Adtopk__PeerView known = ADTOPK__PEER_VIEW__INIT;
    const uint8_t last = size > 0 ? bytes[size - 1] : 0;
    size_t count = 2;

    members[0] = pair->node < PEER ? pair->node : PEER;
    members[1] = pair->node < PEER ? PEER : pair->node;
    for (unsigned i = 0; i < 2; i++) {
        incarnations[i] =
            members[i] == PEER ? pair->peer_incarnation : links_incarnation(pair->peer, pair->node);
        jobs[i] = members[i] == PEER ? pair->peer_job : pair->core_job;
    }
    for (size_t i = 1; i < size && count < 2 + ROUNDS_MAX; i++) {
        ranks[count] = 1 + bytes[i] % 3;
        members[count++] = bytes[i];
    }
    /* A part of the members is known before, or all are. */
    known.view = pair->view;
    known.members = members + byte_at(bytes, size, 0) / 128;
    known.n_members = known.n_ranks = known.n_since = 1 + byte_at(bytes, size, 0) / 32 % 2;
    known.ranks = ranks;
    known.since = since;
    since[1] = (byte_at(bytes, size, 0) & 64) != 0 ? pair->step + 1 : 0;
    known.founders = (uint32_t)count;
    known.tie_breaker = tie_breaker_of(last, known.members, known.n_members);
    prepare->tie_breaker = tie_breaker_of(last, members, count);
    prepare->known = known.view > 0 ? &known : NULL;
    prepare->view = pair->view + byte_at(bytes, size, 0) % 32;
    prepare->members = members;
    prepare->n_members = count;
    prepare->incarnations = incarnations;
    prepare->n_incarnations = count;
    prepare->jobs = jobs;
    prepare->n_jobs = count;
    prepare->ranks = ranks;
    prepare->n_ranks = count;
    prepare->run = pair->run != 0 ? pair->run : 1;
    pair_send_message(pair, &words.message);
}

static const char *const changes[] = {
    "{\"scope\":\"rank\",\"sparsifier\":\"adtopk\"}",
    "{\"scope\":\"node\",\"sparsifier\":\"dense\",\"bucket_bytes\":1}",
    "{\"bucket_bytes\":100000}",
    "{\"values\":\"bf16\",\"rules\":[{\"match\":\"*t\",\"sparsifier\":\"topk\"}]}",
    "{\"scope\":\"rank\",\"rules\":[{\"match\":\"*\",\"sparsifier\":\"dense\"}]}",
    "{\"density\":2}",
    "",
    "{\"rules\":[{\"match\":\"fc*\",\"dense_values\":\"bf16\",\"density\":0.3}]}",
};

/* A byte: its lower half picks the document, its upper one differences of version and step. */
static Adtopk__PeerPolicy policy_of_byte(const struct pair *pair, uint8_t byte)
{
    Adtopk__PeerPolicy policy = ADTOPK__PEER_POLICY__INIT;

    policy.text = (char *)(uintptr_t)changes[byte % 8];
    policy.version = pair->policy_version + byte / 16 % 4;
    policy.step = pair->step + byte / 64;
    policy.node = (byte & 8) != 0 ? PEER : pair->node;
    return policy;
}

/* Bytes: which message, the policy, attempt (a difference), status, version (a difference). */
static void say_policy(struct pair *pair, const uint8_t *bytes, size_t size)
{
    Adtopk__PeerPolicy policy = policy_of_byte(pair, byte_at(bytes, size, 1));
    const struct words_of_policy of = {.part = byte_at(bytes, size, 0) % 4,
        .policy = byte_at(bytes, size, 0) < 128 ? &policy : NULL,
        .version = pair->policy_version + (uint32_t)change_at(bytes, size, 4),
        .attempt = pair->attempt + (uint32_t)change_at(bytes, size, 2),
        .status = byte_at(bytes, size, 3),
        .node = policy.node,
        .text = (char *)(uintptr_t) ""};
    struct words words;

    words_policy(&words, &of);
    pair_send_message(pair, &words.message);
}

/* Requests that may be refused; nothing more is asked of them. */
static void ask(struct pair *pair, enum record what, const uint8_t *bytes, size_t size)
{
    struct event event = {.type = EVENT_VERIFY};

    if (what == ASK_POLICY) {
        event.type = EVENT_POLICY;
        event.policy.job = pair->job;
        event.policy.text = changes[byte_at(bytes, size, 0) % 8];
        event.policy.merge = (byte_at(bytes, size, 0) & 8) != 0;
        event.policy.if_version = UINT32_MAX;
    } else {
        event.asked.job = pair->job;
    }
    pair_event(pair, event);
}

/* Bytes: view, steps, operations (differences), fresh and policy, splits, then delivered rounds.
 * Of the fourth: a bit for fresh, two for the policy in force, two for the one it holds for, and
 * one for refused. With the next bit it is outvoted, and bytes 5 to 8 say a known and a promised
 * view. With the last bit all bytes are what a node that joins must know. */
static void say_state(struct pair *pair, const uint8_t *bytes, size_t size)
{
    struct words words;
    Adtopk__PeerState *state = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_STATE);
    struct said_view known, promised;
    Adtopk__PeerView *list = &promised.view;
    uint32_t delivered[ROUNDS_MAX], split = byte_at(bytes, size, 4);
    uint64_t step = pair->step + split / 16;
    uint8_t more = byte_at(bytes, size, 3);
    Adtopk__PeerPolicy policy = policy_of_byte(pair, (uint8_t)(more * 2));

    state->policy = (more & 6) != 0 ? &policy : NULL;
    state->held = (more & 24) != 0 ? pair->policy_version + more / 8 % 4 : 0;
    state->view = pair->view + (uint32_t)change_at(bytes, size, 0);
    state->steps_done = pair->step + change_at(bytes, size, 1);
    state->ops_done = pair->operation + change_at(bytes, size, 2);
    state->fresh = (more & 1) != 0;
    state->refused = (more & 32) != 0;
    state->outvoted = (more & 64) != 0;
    if (state->outvoted) {
        state->known = view_of(pair, &known, byte_at(bytes, size, 5), byte_at(bytes, size, 6));
        (void)view_of(pair, &promised, byte_at(bytes, size, 7), byte_at(bytes, size, 8));
        state->promised = &list;
        state->n_promised = size > 7 ? 1 : 0;
    }
    state->newcomer.data = (uint8_t *)(uintptr_t)bytes;
    state->newcomer.len = (more & 128) != 0 ? size : 0;
    state->split = &split;
    state->split_step = &step;
    state->n_split = state->n_split_step = split != 0;
    state->delivered = delivered;
    for (size_t i = 5; i < size && state->n_delivered < ROUNDS_MAX; i++) {
        delivered[state->n_delivered++] = bytes[i];
    }
    pair_send_message(pair, &words.message);
}

/* Two bytes per round: bucket, and a difference of the number with the holder in its upper bits. */
static Adtopk__PeerRound round_of(const struct pair *pair, uint8_t bucket, uint8_t what)
{
    Adtopk__PeerRound round = ADTOPK__PEER_ROUND__INIT;

    round.bucket = bucket == 255 ? UINT32_MAX : bucket;
    round.operation = (what & 1) != 0;
    round.number = (round.operation ? pair->operation : pair->step) + ((what >> 1) & 3) - 1;
    round.holder = (what >> 3) % 8 == 7 ? UINT32_C(70000) : (what >> 3) % 8;
    return round;
}

static void say_commit(struct pair *pair, const uint8_t *bytes, size_t size)
{
    struct words words;
    Adtopk__PeerCommit *commit = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_COMMIT);
    Adtopk__PeerRound round[ROUNDS_MAX], *list[ROUNDS_MAX];
    Adtopk__PeerPolicy policy = policy_of_byte(pair, byte_at(bytes, size, 1));

    commit->view = pair->view + (uint32_t)change_at(bytes, size, 0);
    commit->policy = size > 1 && bytes[1] != 0 ? &policy : NULL;
    commit->since = pair->step + byte_at(bytes, size, 2) % 8 - 1;
    commit->newcomer.data = (uint8_t *)(uintptr_t)bytes;
    commit->newcomer.len = size;
    commit->delivered = list;
    for (size_t i = 2; i + 1 < size && commit->n_delivered < ROUNDS_MAX; i += 2) {
        list[commit->n_delivered] = &round[commit->n_delivered];
        round[commit->n_delivered++] = round_of(pair, bytes[i], bytes[i + 1]);
    }
    pair_send_message(pair, &words.message);
}

static void say_fetch(struct pair *pair, const uint8_t *bytes, size_t size)
{
    struct words words;
    Adtopk__PeerFetch *fetch = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_FETCH);
    Adtopk__PeerRound round = round_of(pair, byte_at(bytes, size, 0), byte_at(bytes, size, 1));

    fetch->round = &round;
    fetch->view = size > 0 ? bytes[0] % 4 : 1;
    pair_send_message(pair, &words.message);
}

static void say_split(struct pair *pair, const uint8_t *bytes, size_t size)
{
    struct words words;
    Adtopk__PeerSplit *split = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_SPLIT);

    split->bucket = byte_at(bytes, size, 0);
    split->step = pair->step + change_at(bytes, size, 1);
    split->policy = pair->policy_version + (uint32_t)change_at(bytes, size, 2);
    pair_send_message(pair, &words.message);
}

/* A difference of the step, and the upper bytes of all sums: any sign, size, Inf and NaN. */
static void say_residual(struct pair *pair, const uint8_t *bytes, size_t size)
{
    struct words words;
    Adtopk__PeerResidual *residual = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_RESIDUAL);
    double *const sums[] = {&residual->sum, &residual->hashed, &residual->magnitude};

    residual->step = pair->step + change_at(bytes, size, 0);
    residual->measured = true;
    for (size_t i = 0; i < 3; i++) {
        const uint64_t bits = (uint64_t)byte_at(bytes, size, 1 + 2 * i) << 56 |
                              (uint64_t)byte_at(bytes, size, 2 + 2 * i) << 48;
        memcpy(sums[i], &bits, sizeof(bits));
    }
    pair_send_message(pair, &words.message);
}

static void say(struct pair *pair, enum record what, const uint8_t *bytes, size_t size)
{
    switch (what) {
    case SAY_RAW: pair_send(pair, LINK_CONTROL, bytes, size); break;
    case SAY_MESSAGE: say_message(pair, bytes, size); break;
    case SAY_JOIN:
        pair_send_join(pair, pair->view + (uint32_t)change_at(bytes, size, 0),
            (byte_at(bytes, size, 1) & 1) != 0);
        break;
    case SAY_PREPARE: say_prepare(pair, bytes, size); break;
    case SAY_STATE: say_state(pair, bytes, size); break;
    case SAY_COMMIT: say_commit(pair, bytes, size); break;
    case SAY_FETCH: say_fetch(pair, bytes, size); break;
    case SAY_SPLIT: say_split(pair, bytes, size); break;
    case SAY_FRAME: pair_send_frame(pair, bytes, size); break;
    case SAY_FRAME_RAW: pair_send(pair, LINK_BULK, bytes, size); break;
    default: pair->reflexes = byte_at(bytes, size, 0); break;
    }
}

static void push(struct pair *pair, uint32_t tensor, uint8_t seed)
{
    struct event event = {.type = EVENT_RANK_PUSH};

    pair_fill(pair, tensor, seed);
    event.step.tensor = tensor;
    event.step.number = pair->step;
    pair_event(pair, event);
}

static void rank_op(struct pair *pair, const uint8_t *bytes, size_t size)
{
    struct event event = {.type = EVENT_RANK_OP};

    event.op.number = pair->operation;
    event.op.kind = (enum op_kind)(byte_at(bytes, size, 0) % OP_KIND_COUNT);
    event.op.root = byte_at(bytes, size, 1) % 3;
    event.op.size = event.op.kind == OP_BARRIER ? 0 : byte_at(bytes, size, 2) * 4u;
    pair_event(pair, event);
}

static void rank_do(struct pair *pair, enum record what, const uint8_t *bytes, size_t size)
{
    struct event event = {.type = EVENT_RANK_STEP_END};

    if (pair->session == 0 && what != RANK_OPEN) {
        return; /* the local sessions see to that */
    }
    event.step.tensor = byte_at(bytes, size, 0) % (HOST_TENSORS + 1);
    event.step.number = pair->step;
    switch (what) {
    case RANK_PUSH: push(pair, event.step.tensor, byte_at(bytes, size, 1)); return;
    case RANK_PUSH_ALL:
        for (uint32_t t = 0; t < HOST_TENSORS && pair->session != 0; t++) {
            push(pair, t, byte_at(bytes, size, t));
        }
        if (pair->session == 0) {
            return;
        }
        break;
    case RANK_STEP_END: break;
    case RANK_WAIT: event.type = EVENT_RANK_WAIT; break;
    case RANK_OP: rank_op(pair, bytes, size); return;
    case RANK_LEAVE: event.type = EVENT_RANK_LEAVE; break;
    case RANK_LOST:
        event.type = EVENT_RANK_LOST;
        event.reason = "its process ended";
        pair_event(pair, event);
        pair->session = 0;
        return;
    default: pair_open(pair); return;
    }
    pair_event(pair, event);
}

static void act(struct pair *pair, enum record what, const uint8_t *bytes, size_t size)
{
    if (what <= SAY_REFLEXES) {
        say(pair, what, bytes, size);
    } else if (what <= RANK_OPEN) {
        rank_do(pair, what, bytes, size);
    } else if (what == TIME) {
        pair_wait(pair, UINT64_C(1) << (byte_at(bytes, size, 0) % 32)); /* up to half an hour */
    } else if (what == HOLD) {
        pair->host.hold = !pair->host.hold;
        host_compute(&pair->host);
    } else if (what == SAY_COPY) {
        pair_send_copy(pair, bytes, size);
    } else if (what == SAY_POLICY) {
        say_policy(pair, bytes, size);
    } else if (what == ASK_POLICY || what == ASK_VERIFY) {
        ask(pair, what, bytes, size);
    } else if (what == JOIN_ANEW) {
        pair_join_anew(pair);
    } else if (what == SAY_RESIDUAL) {
        say_residual(pair, bytes, size);
    } else if (what == RESTART_CORE) {
        pair_restart_core(pair);
    } else {
        pair_restart_peer(pair);
    }
    pair_pump(pair);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const policies[] = {
        "{\"density\":0.1,\"bucket_bytes\":600}",
        "{\"density\":0.1,\"scope\":\"rank\",\"values\":\"f32\",\"indices\":\"bitmap\"}",
        "{\"sparsifier\":\"dense\",\"bucket_bytes\":1,\"reduce\":\"sum\"}",
        "{\"sparsifier\":\"topk\",\"dense_values\":\"bf16\",\"on_peer_loss\":\"fail\"}",
        "{\"density\":0.1,\"on_peer_loss\":\"shrink\",\"shrink_after\":1}",
        "{\"sparsifier\":\"topk\",\"on_peer_loss\":\"shrink\",\"shrink_after\":1,\"grow\":true}",
    };
    static struct pair pair; /* large */
    size_t before = heap_used(), at = 2;

    if (size < 2) {
        return 0;
    }
    pair_init(&pair, data[1] & 1 ? 2 : 0,
        policies[data[1] / 2 % (sizeof(policies) / sizeof(policies[0]))], data[0]);
    for (unsigned records = 0; records < RECORDS_MAX && size - at >= 2; records++) {
        enum record what = (enum record)(data[at] % RECORDS);
        size_t length = data[at + 1];

        at += 2;
        length = length < size - at ? length : size - at;
        act(&pair, what, data + at, length);
        at += length;
        if (heap_used() > before + HEAP_LIMIT) {
            abort();
        }
    }
    pair_free(&pair);
    return 0;
}
