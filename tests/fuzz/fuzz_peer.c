/*
 * Fuzz target: a hostile peer of a running job. Its links are true; what it says is the input.
 *
 * The input is a byte of reflexes (what the peer answers truly by itself), a byte that picks the
 * job's policy and who coordinates, and a sequence of records: what, length, so many bytes. Some
 * records are the core's own rank, time, and restarts.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/heap.h"
#include "tests/fuzz/peer_host.h"

/* More than a job of this size can need, whatever its peer sends. */
#define ABOUT_MAX 64 /* bytes of what a message is about */
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
    ASK_POLICY, /* an operator of the core's node changes it, */
    ASK_VERIFY, /* or verifies the ledgers */
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

static void say_message(struct host *host, const uint8_t *bytes, size_t size)
{
    Adtopk__PeerHead head = ADTOPK__PEER_HEAD__INIT;
    Adtopk__PeerAbout about = host_about(host);
    uint8_t message[ABOUT_MAX + 255];
    size_t begin;

    head.about = &about;
    begin = adtopk__peer_head__get_packed_size(&head);
    if (begin > ABOUT_MAX) {
        abort();
    }
    (void)adtopk__peer_head__pack(&head, message);
    memcpy(message + begin, bytes, size);
    host_send(host, LINK_CONTROL, message, begin + size);
}

/* A view some way above the last one; its members are both nodes, and others the input names. */
static void say_prepare(struct host *host, const uint8_t *bytes, size_t size)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerPrepare prepare = ADTOPK__PEER_PREPARE__INIT;
    uint32_t members[2 + ROUNDS_MAX];
    uint64_t incarnations[2 + ROUNDS_MAX] = {0}, jobs[2 + ROUNDS_MAX] = {0};
    size_t count = 2;

    members[0] = host->node < PEER ? host->node : PEER;
    members[1] = host->node < PEER ? PEER : host->node;
    for (unsigned i = 0; i < 2; i++) {
        incarnations[i] =
            members[i] == PEER ? host->peer_incarnation : links_incarnation(host->peer, host->node);
        jobs[i] = members[i] == PEER ? host->peer_job : host->core_job;
    }
    for (size_t i = 1; i < size && count < 2 + ROUNDS_MAX; i++) {
        members[count++] = bytes[i];
    }
    prepare.view = host->view + byte_at(bytes, size, 0);
    prepare.members = members;
    prepare.n_members = count;
    prepare.incarnations = incarnations;
    prepare.n_incarnations = count;
    prepare.jobs = jobs;
    prepare.n_jobs = count;
    prepare.run = host->run != 0 ? host->run : 1;
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_PREPARE;
    message.prepare = &prepare;
    host_send_message(host, &message);
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
static Adtopk__PeerPolicy policy_of_byte(const struct host *host, uint8_t byte)
{
    Adtopk__PeerPolicy policy = ADTOPK__PEER_POLICY__INIT;

    policy.text = (char *)(uintptr_t)changes[byte % 8];
    policy.version = host->policy_version + byte / 16 % 4;
    policy.step = host->step + byte / 64;
    policy.node = (byte & 8) != 0 ? PEER : host->node;
    return policy;
}

/* Bytes: which message, the policy, attempt (a difference), status, version (a difference). */
static void say_policy(struct host *host, const uint8_t *bytes, size_t size)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerPolicy policy = policy_of_byte(host, byte_at(bytes, size, 1));
    Adtopk__PeerPolicy *said = byte_at(bytes, size, 0) < 128 ? &policy : NULL;
    Adtopk__PeerPolicyAsk ask = ADTOPK__PEER_POLICY_ASK__INIT;
    Adtopk__PeerPolicyPropose propose = ADTOPK__PEER_POLICY_PROPOSE__INIT;
    Adtopk__PeerPolicyAnswer answer = ADTOPK__PEER_POLICY_ANSWER__INIT;
    Adtopk__PeerPolicyEnd end = ADTOPK__PEER_POLICY_END__INIT;

    ask.policy = propose.policy = said;
    propose.attempt = answer.attempt = host->attempt + (uint32_t)change_at(bytes, size, 2);
    answer.status = end.status = byte_at(bytes, size, 3);
    answer.version = end.version = host->policy_version + (uint32_t)change_at(bytes, size, 4);
    end.node = policy.node;
    switch (byte_at(bytes, size, 0) % 4) {
    case 0:
        message.kind_case = ADTOPK__PEER_MESSAGE__KIND_POLICY_ASK;
        message.policy_ask = &ask;
        break;
    case 1:
        message.kind_case = ADTOPK__PEER_MESSAGE__KIND_POLICY_PROPOSE;
        message.policy_propose = &propose;
        break;
    case 2:
        message.kind_case = ADTOPK__PEER_MESSAGE__KIND_POLICY_ANSWER;
        message.policy_answer = &answer;
        break;
    default:
        message.kind_case = ADTOPK__PEER_MESSAGE__KIND_POLICY_END;
        message.policy_end = &end;
        break;
    }
    host_send_message(host, &message);
}

/* Requests that may be refused; nothing more is asked of them. */
static void ask(struct host *host, enum record what, const uint8_t *bytes, size_t size)
{
    struct event event = {.type = EVENT_VERIFY};

    if (what == ASK_POLICY) {
        event.type = EVENT_POLICY;
        event.policy.job = host->job;
        event.policy.text = changes[byte_at(bytes, size, 0) % 8];
        event.policy.merge = (byte_at(bytes, size, 0) & 8) != 0;
        event.policy.if_version = UINT32_MAX;
    } else {
        event.verify.job = host->job;
    }
    host_event(host, event);
}

/* Bytes: view, steps, operations (differences), fresh and policy, splits, then delivered rounds.
 * Of the fourth: a bit for fresh, two for the policy in force, and two for the one it holds for. */
static void say_state(struct host *host, const uint8_t *bytes, size_t size)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerState state = ADTOPK__PEER_STATE__INIT;
    uint32_t delivered[ROUNDS_MAX], split = byte_at(bytes, size, 4);
    uint64_t step = host->step + split / 16;
    uint8_t more = byte_at(bytes, size, 3);
    Adtopk__PeerPolicy policy = policy_of_byte(host, (uint8_t)(more * 2));

    state.policy = (more & 6) != 0 ? &policy : NULL;
    state.held = (more & 24) != 0 ? host->policy_version + more / 8 % 4 : 0;
    state.view = host->view + (uint32_t)change_at(bytes, size, 0);
    state.steps_done = host->step + change_at(bytes, size, 1);
    state.ops_done = host->operation + change_at(bytes, size, 2);
    state.fresh = (byte_at(bytes, size, 3) & 1) != 0;
    state.split = &split;
    state.split_step = &step;
    state.n_split = state.n_split_step = split != 0;
    state.delivered = delivered;
    for (size_t i = 5; i < size && state.n_delivered < ROUNDS_MAX; i++) {
        delivered[state.n_delivered++] = bytes[i];
    }
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_STATE;
    message.state = &state;
    host_send_message(host, &message);
}

/* Two bytes a round: bucket, and a difference of the number with the holder in its upper bits. */
static Adtopk__PeerRound round_of(const struct host *host, uint8_t bucket, uint8_t what)
{
    Adtopk__PeerRound round = ADTOPK__PEER_ROUND__INIT;

    round.bucket = bucket == 255 ? UINT32_MAX : bucket;
    round.operation = (what & 1) != 0;
    round.number = (round.operation ? host->operation : host->step) + ((what >> 1) & 3) - 1;
    round.holder = (what >> 3) % 8 == 7 ? UINT32_C(70000) : (what >> 3) % 8;
    return round;
}

static void say_commit(struct host *host, const uint8_t *bytes, size_t size)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerCommit commit = ADTOPK__PEER_COMMIT__INIT;
    Adtopk__PeerRound round[ROUNDS_MAX], *list[ROUNDS_MAX];
    Adtopk__PeerPolicy policy = policy_of_byte(host, byte_at(bytes, size, 1));

    commit.view = host->view + (uint32_t)change_at(bytes, size, 0);
    commit.policy = size > 1 && bytes[1] != 0 ? &policy : NULL;
    commit.delivered = list;
    for (size_t i = 2; i + 1 < size && commit.n_delivered < ROUNDS_MAX; i += 2) {
        list[commit.n_delivered] = &round[commit.n_delivered];
        round[commit.n_delivered++] = round_of(host, bytes[i], bytes[i + 1]);
    }
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_COMMIT;
    message.commit = &commit;
    host_send_message(host, &message);
}

static void say_fetch(struct host *host, const uint8_t *bytes, size_t size)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerFetch fetch = ADTOPK__PEER_FETCH__INIT;
    Adtopk__PeerRound round = round_of(host, byte_at(bytes, size, 0), byte_at(bytes, size, 1));

    fetch.round = &round;
    fetch.view = size > 0 ? bytes[0] % 4 : 1;
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_FETCH;
    message.fetch = &fetch;
    host_send_message(host, &message);
}

static void say_split(struct host *host, const uint8_t *bytes, size_t size)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerSplit split = ADTOPK__PEER_SPLIT__INIT;

    split.bucket = byte_at(bytes, size, 0);
    split.step = host->step + change_at(bytes, size, 1);
    split.policy = host->policy_version + (uint32_t)change_at(bytes, size, 2);
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_SPLIT;
    message.split = &split;
    host_send_message(host, &message);
}

static void say(struct host *host, enum record what, const uint8_t *bytes, size_t size)
{
    switch (what) {
    case SAY_RAW: host_send(host, LINK_CONTROL, bytes, size); break;
    case SAY_MESSAGE: say_message(host, bytes, size); break;
    case SAY_JOIN:
        host_send_join(host, host->view + (uint32_t)change_at(bytes, size, 0),
            (byte_at(bytes, size, 1) & 1) != 0);
        break;
    case SAY_PREPARE: say_prepare(host, bytes, size); break;
    case SAY_STATE: say_state(host, bytes, size); break;
    case SAY_COMMIT: say_commit(host, bytes, size); break;
    case SAY_FETCH: say_fetch(host, bytes, size); break;
    case SAY_SPLIT: say_split(host, bytes, size); break;
    case SAY_FRAME: host_send_frame(host, bytes, size); break;
    case SAY_FRAME_RAW: host_send(host, LINK_BULK, bytes, size); break;
    default: host->reflexes = byte_at(bytes, size, 0); break;
    }
}

static void push(struct host *host, uint32_t tensor, uint8_t seed)
{
    struct event event = {.type = EVENT_RANK_PUSH};

    host_fill(host, tensor, seed);
    event.step.tensor = tensor;
    event.step.number = host->step;
    host_event(host, event);
}

static void rank_op(struct host *host, const uint8_t *bytes, size_t size)
{
    struct event event = {.type = EVENT_RANK_OP};

    event.op.number = host->operation;
    event.op.kind = (enum op_kind)(byte_at(bytes, size, 0) % OP_KIND_COUNT);
    event.op.root = byte_at(bytes, size, 1) % 3;
    event.op.size = event.op.kind == OP_BARRIER ? 0 : byte_at(bytes, size, 2) * 4u;
    host_event(host, event);
}

static void rank_do(struct host *host, enum record what, const uint8_t *bytes, size_t size)
{
    struct event event = {.type = EVENT_RANK_STEP_END};

    if (host->session == 0 && what != RANK_OPEN) {
        return; /* the local sessions see to that */
    }
    event.step.tensor = byte_at(bytes, size, 0) % (HOST_TENSORS + 1);
    event.step.number = host->step;
    switch (what) {
    case RANK_PUSH: push(host, event.step.tensor, byte_at(bytes, size, 1)); return;
    case RANK_PUSH_ALL:
        for (uint32_t t = 0; t < HOST_TENSORS && host->session != 0; t++) {
            push(host, t, byte_at(bytes, size, t));
        }
        if (host->session == 0) {
            return;
        }
        break;
    case RANK_STEP_END: break;
    case RANK_WAIT: event.type = EVENT_RANK_WAIT; break;
    case RANK_OP: rank_op(host, bytes, size); return;
    case RANK_LEAVE: event.type = EVENT_RANK_LEAVE; break;
    case RANK_LOST:
        event.type = EVENT_RANK_LOST;
        event.reason = "its process ended";
        host_event(host, event);
        host->session = 0;
        return;
    default: host_open(host); return;
    }
    host_event(host, event);
}

static void act(struct host *host, enum record what, const uint8_t *bytes, size_t size)
{
    if (what <= SAY_REFLEXES) {
        say(host, what, bytes, size);
    } else if (what <= RANK_OPEN) {
        rank_do(host, what, bytes, size);
    } else if (what == TIME) {
        host_wait(host, UINT64_C(1) << (byte_at(bytes, size, 0) % 32)); /* up to half an hour */
    } else if (what == HOLD) {
        host->hold = !host->hold;
        host_compute(host);
    } else if (what == SAY_COPY) {
        host_send_copy(host, bytes, size);
    } else if (what == SAY_POLICY) {
        say_policy(host, bytes, size);
    } else if (what == ASK_POLICY || what == ASK_VERIFY) {
        ask(host, what, bytes, size);
    } else if (what == RESTART_CORE) {
        host_restart_core(host);
    } else {
        host_restart_peer(host);
    }
    host_pump(host);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const policies[] = {
        "{\"density\":0.1,\"bucket_bytes\":600}",
        "{\"density\":0.1,\"scope\":\"rank\",\"values\":\"f32\",\"indices\":\"bitmap\"}",
        "{\"sparsifier\":\"dense\",\"bucket_bytes\":1,\"reduce\":\"sum\"}",
        "{\"sparsifier\":\"topk\",\"dense_values\":\"bf16\",\"on_peer_loss\":\"fail\"}",
    };
    static struct host host; /* large */
    size_t before = heap_used(), at = 2;

    if (size < 2) {
        return 0;
    }
    host_init(&host, data[1] & 1 ? 2 : 0, policies[data[1] / 2 % 4], data[0]);
    for (unsigned records = 0; records < RECORDS_MAX && size - at >= 2; records++) {
        enum record what = (enum record)(data[at] % RECORDS);
        size_t length = data[at + 1];

        at += 2;
        length = length < size - at ? length : size - at;
        act(&host, what, data + at, length);
        at += length;
        if (heap_used() > before + HEAP_LIMIT) {
            abort();
        }
    }
    host_free(&host);
    return 0;
}
