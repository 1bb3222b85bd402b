/*
 * A node that lies, for test_liar.py: it has a key that the others know, and keeps the rules of the
 * links, but it has no rank of the job that it talks about.
 *
 *   test-liar NODE KEY_FILE LISTEN ENDPOINT KEY ENDPOINT KEY     the peers are nodes 0 and 1
 *
 * Each line of its input, KIND OWNER JOB RUN_ID COUNT, makes it wait for node 0's join of the job,
 * and send each peer so many lies of that kind (see `lies`). When both links have acknowledged all
 * of them it answers "ok".
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "daemon/collective/collective.h"
#include "daemon/core/hash.h"
#include "daemon/core/link.h"
#include "daemon/transport/transport.h"
#include "peer.pb-c.h"
#include "proto/codec.h"
#include "proto/payload.h"

#define PEERS 2
#define SECOND_US UINT64_C(1000000)
#define PATIENCE_US (15 * SECOND_US)
#define QUEUE_MAX (1u << 20) /* bytes on their way to a peer before more are made */
#define TENSORS_MAX 16
#define POLICY_OTHER 0xadu

/* Longer than any sentence. A character lies across the place where a sentence is cut. */
#define EURO_4 "\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac"
#define EURO_20 EURO_4 EURO_4 EURO_4 EURO_4 EURO_4
static const char text_long[] = "\x1b" EURO_20 EURO_20 EURO_20 EURO_20 EURO_20;

/* Escape sequences, a format, a character that turns the line around, and one that is cut off. */
static const char *const texts[] = {"\x1b[2J\x1b]0;owned\x07 node 1 is on fire\r\n",
    "%s%n \xe2\x80\xae\xff\x9b"
    "31m \xc2\x9b"
    "31m",
    "", "{}", "{\"density\":0.5}", text_long};

/* What a peer's join said of the job. */
struct heard {
    char name[64];
    uint64_t job;
    uint64_t policy;
    uint64_t tensor[TENSORS_MAX];
    size_t tensors;
};

struct liar {
    struct links *links;
    void *transport;
    uint16_t node;
    uint64_t random;
    char name[64], run_id[64];
    uint32_t owner;
    struct heard heard[PEERS];
};

static void fail(const char *what)
{
    (void)fprintf(stderr, "test-liar: %s\n", what);
    exit(1);
}

static void *need(void *memory)
{
    if (memory == NULL) {
        fail("no memory");
    }
    return memory;
}

static uint64_t now_us(void)
{
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND_US + (uint64_t)now.tv_nsec / 1000;
}

/* The links */

static bool transmit(void *context, uint16_t peer, enum link_lane lane, const uint8_t *header,
    size_t header_size, const uint8_t *body, size_t body_size)
{
    const struct liar *liar = context;

    return transport_zmq.send(liar->transport, peer, lane, header, header_size, body, body_size);
}

static void reopen(void *context, uint16_t peer, enum link_lane lane)
{
    const struct liar *liar = context;

    transport_zmq.reopen(liar->transport, peer, lane);
}

static void hear(struct heard *heard, const Adtopk__PeerMessage *message)
{
    const Adtopk__PeerJoin *join = message->join;

    if (message->kind_case != ADTOPK__PEER_MESSAGE__KIND_JOIN || join->n_tensors > TENSORS_MAX) {
        return;
    }
    (void)snprintf(heard->name, sizeof(heard->name), "%s", message->about->name);
    heard->job = message->about->sender_job;
    heard->policy = join->policy;
    heard->tensors = join->n_tensors;
    (void)memcpy(heard->tensor, join->tensors, join->n_tensors * sizeof(heard->tensor[0]));
}

static void deliver(void *context, uint16_t peer, enum link_lane lane, struct buffer *buffer)
{
    struct liar *liar = context;

    if (lane == LINK_CONTROL) {
        Adtopk__PeerMessage *message = need(codec_unpack(
            &adtopk__peer_message__descriptor, buffer->bytes, buffer->size, CODEC_PEER_MAX, NULL));
        hear(&liar->heard[peer], message);
        codec_free(&message->base);
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

static void receive(
    void *context, uint16_t peer, enum link_lane lane, const uint8_t *packet, size_t size)
{
    const struct liar *liar = context;

    links_receive(liar->links, peer, lane, packet, size, now_us());
}

/* Sleeps until a packet, a line of input or a deadline, and lets the links do what is due. Returns
 * true if there is a line. */
static bool turn(struct liar *liar, bool sleep)
{
    struct pollfd polls[] = {{.fd = transport_zmq.descriptor(liar->transport), .events = POLLIN},
        {.fd = STDIN_FILENO, .events = POLLIN}};
    uint64_t now = now_us(), deadline = links_deadline(liar->links);
    uint64_t wait = deadline > now ? (deadline - now + 999) / 1000 : 0;

    if (poll(polls, 2, !sleep ? 0 : wait > 100 ? 100 : (int)wait) < 0) {
        fail("cannot poll");
    }
    if (links_deadline(liar->links) <= now_us()) {
        links_tick(liar->links, now_us());
    }
    while (transport_zmq.pump(liar->transport, 64)) {
    }
    return polls[1].revents != 0;
}

static uint64_t queued(const struct liar *liar, uint16_t peer)
{
    struct link_stats stats = {0};

    (void)links_stats(liar->links, peer, &stats);
    return stats.queued_bytes;
}

/* Turns until no peer has more than `most` bytes of lies on their way to it. */
static void drain(struct liar *liar, uint64_t most)
{
    uint64_t end = now_us() + PATIENCE_US;

    for (uint16_t peer = 0; peer < PEERS; peer++) {
        while (queued(liar, peer) > most) {
            (void)turn(liar, queued(liar, 0) > 0);
            if (now_us() > end) {
                fail("a peer does not acknowledge");
            }
        }
    }
}

static void send_bytes(
    struct liar *liar, uint16_t peer, enum link_lane lane, const void *bytes, size_t size)
{
    struct buffer *buffer = need(buffer_new(size));

    (void)memcpy(buffer->bytes, bytes, size);
    if (!links_send(liar->links, peer, lane, NULL, buffer)) {
        fail("a peer is not there");
    }
    buffer_unref(buffer);
}

/* What messages say */

/* splitmix64 */
static uint64_t below(struct liar *liar, uint64_t bound)
{
    liar->random += 0x9e3779b97f4a7c15u;
    return hash_mix(liar->random) % bound;
}

static uint64_t any(struct liar *liar)
{
    static const uint64_t limits[] = {
        255, 65535, 65536, UINT32_MAX, (uint64_t)UINT32_MAX + 1, UINT64_MAX};
    const size_t count = sizeof(limits) / sizeof(limits[0]);

    return below(liar, 3) == 0 ? limits[below(liar, count)] : below(liar, 12);
}

static char *any_text(struct liar *liar)
{
    return (char *)(uintptr_t)texts[below(liar, sizeof(texts) / sizeof(texts[0]))];
}

/* The number of the run that node 0 begins or has begun: it can be computed from what node 0 says
 * to everybody. */
static uint64_t true_run(const struct liar *liar)
{
    return hash_mix(links_incarnation(liar->links, 0) ^ hash_mix(liar->heard[0].job));
}

static uint64_t any_run(struct liar *liar)
{
    const uint64_t runs[] = {0, true_run(liar), hash_mix(liar->random)};

    return runs[below(liar, 3)];
}

static uint64_t job_of(struct liar *liar, uint16_t peer)
{
    const uint64_t jobs[] = {0, liar->heard[peer].job, 1 + below(liar, 8)};

    return jobs[below(liar, 3)];
}

static uint8_t *pack(struct liar *liar, uint16_t peer, Adtopk__PeerMessage *message, size_t *size)
{
    Adtopk__PeerAbout about = ADTOPK__PEER_ABOUT__INIT;
    uint8_t *bytes;

    about.owner = liar->owner;
    about.name = liar->name;
    about.run_id = liar->run_id;
    about.run = message->kind_case == ADTOPK__PEER_MESSAGE__KIND_JOIN ? 0 : any_run(liar);
    about.sender_job = 1 + below(liar, 3);
    about.receiver_job = job_of(liar, peer);
    message->about = &about;
    bytes = need(codec_pack(&message->base, size));
    message->about = NULL;
    return bytes;
}

static void say(struct liar *liar, uint16_t peer, Adtopk__PeerMessage *message)
{
    size_t size = 0;
    uint8_t *bytes = pack(liar, peer, message, &size);

    send_bytes(liar, peer, LINK_CONTROL, bytes, size);
    free(bytes);
}

/* Lies */

static void say_join(struct liar *liar, uint16_t peer, uint64_t policy, uint32_t rank)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerJoin join = ADTOPK__PEER_JOIN__INIT;

    join.world_size = 2;
    join.ranks = &rank;
    join.n_ranks = 1;
    join.policy = policy;
    join.exchanges = EXCHANGE_VERSION;
    join.tensors = liar->heard[0].tensor;
    join.n_tensors = liar->heard[0].tensors;
    join.view = (uint32_t)any(liar);
    join.reply = below(liar, 2) == 0;
    join.member = below(liar, 2) == 0;
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_JOIN;
    message.join = &join;
    say(liar, peer, &message);
}

static void lie_join_policy(struct liar *liar, uint16_t peer)
{
    say_join(liar, peer, liar->heard[0].policy ^ POLICY_OTHER, 1);
}

static void lie_join_rank(struct liar *liar, uint16_t peer)
{
    say_join(liar, peer, liar->heard[0].policy, 1);
}

/* Members that are not there, only itself, itself before the others, and the right ones. */
static void lie_prepare(struct liar *liar, uint16_t peer)
{
    static uint32_t members[][3] = {{0, 1, 9}, {2, 3, 9}, {2, 0, 1}, {0, 1, 2}, {1, 2, 3}, {2}};
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerPrepare prepare = ADTOPK__PEER_PREPARE__INIT;
    uint64_t which = below(liar, sizeof(members) / sizeof(members[0]));
    uint64_t incarnations[3], jobs[3];

    for (unsigned i = 0; i < 3; i++) {
        uint32_t node = members[which][i];
        incarnations[i] = node < PEERS ? links_incarnation(liar->links, (uint16_t)node) : 1;
        jobs[i] = node < PEERS ? liar->heard[node].job : 1;
    }
    prepare.view = (uint32_t)any(liar);
    prepare.members = members[which];
    prepare.incarnations = incarnations;
    prepare.jobs = jobs;
    prepare.n_members = prepare.n_incarnations = prepare.n_jobs =
        which == 5 ? 1 : 3 - below(liar, 2);
    prepare.run = any_run(liar);
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_PREPARE;
    message.prepare = &prepare;
    say(liar, peer, &message);
}

static Adtopk__PeerPolicy any_policy(struct liar *liar)
{
    Adtopk__PeerPolicy policy = ADTOPK__PEER_POLICY__INIT;

    policy.version = (uint32_t)any(liar);
    policy.step = any(liar);
    policy.node = (uint32_t)below(liar, 3);
    policy.text = any_text(liar);
    return policy;
}

static void lie_state(struct liar *liar, uint16_t peer)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerState state = ADTOPK__PEER_STATE__INIT;
    Adtopk__PeerPolicy policy = any_policy(liar);
    uint32_t bucket = (uint32_t)any(liar);
    uint64_t step = any(liar);

    state.view = (uint32_t)any(liar);
    state.steps_done = any(liar);
    state.ops_done = any(liar);
    state.delivered = state.split = &bucket;
    state.split_step = &step;
    state.n_delivered = state.n_split = state.n_split_step = 1;
    state.fresh = below(liar, 2) == 0;
    state.policy = below(liar, 2) == 0 ? &policy : NULL;
    state.held = (uint32_t)any(liar);
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_STATE;
    message.state = &state;
    say(liar, peer, &message);
}

static void lie_commit(struct liar *liar, uint16_t peer)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerCommit commit = ADTOPK__PEER_COMMIT__INIT;
    Adtopk__PeerRound round = ADTOPK__PEER_ROUND__INIT;
    Adtopk__PeerRound *rounds[] = {&round};
    Adtopk__PeerPolicy policy = any_policy(liar);
    uint32_t bucket = (uint32_t)any(liar);
    uint64_t step = any(liar);

    round.number = any(liar);
    round.bucket = (uint32_t)any(liar);
    round.operation = below(liar, 2) == 0;
    round.holder = (uint32_t)below(liar, 4);
    commit.view = (uint32_t)any(liar);
    commit.delivered = rounds;
    commit.split = &bucket;
    commit.split_step = &step;
    commit.n_delivered = commit.n_split = commit.n_split_step = 1;
    commit.policy = below(liar, 2) == 0 ? &policy : NULL;
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_COMMIT;
    message.commit = &commit;
    say(liar, peer, &message);
}

static void lie_fetch(struct liar *liar, uint16_t peer)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerFetch fetch = ADTOPK__PEER_FETCH__INIT;
    Adtopk__PeerRound round = ADTOPK__PEER_ROUND__INIT;

    round.number = any(liar);
    round.bucket = (uint32_t)any(liar);
    round.operation = below(liar, 2) == 0;
    fetch.view = (uint32_t)any(liar);
    fetch.round = below(liar, 8) > 0 ? &round : NULL;
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_FETCH;
    message.fetch = &fetch;
    say(liar, peer, &message);
}

static void lie_split(struct liar *liar, uint16_t peer)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerSplit split = ADTOPK__PEER_SPLIT__INIT;

    split.step = any(liar);
    split.bucket = (uint32_t)any(liar);
    split.policy = (uint32_t)below(liar, 3);
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_SPLIT;
    message.split = &split;
    say(liar, peer, &message);
}

static void say_fail(struct liar *liar, uint16_t peer, const char *text, uint32_t node)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerFail failed = ADTOPK__PEER_FAIL__INIT;

    failed.status = (uint32_t)any(liar);
    failed.text = (char *)(uintptr_t)text;
    failed.steps_done = any(liar);
    failed.node = node;
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_FAIL;
    message.fail = &failed;
    say(liar, peer, &message);
}

static void lie_fail(struct liar *liar, uint16_t peer)
{
    say_fail(liar, peer, any_text(liar), liar->node);
}

static void lie_fail_long(struct liar *liar, uint16_t peer)
{
    say_fail(liar, peer, text_long, liar->node);
}

/* As if it only passed on what another node said. */
static void lie_fail_other(struct liar *liar, uint16_t peer)
{
    say_fail(liar, peer, texts[0], (uint32_t)below(liar, PEERS));
}

static void lie_fail_nobody(struct liar *liar, uint16_t peer)
{
    say_fail(liar, peer, texts[0], (uint32_t)(UINT16_MAX + any(liar)));
}

static void lie_leave(struct liar *liar, uint16_t peer)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerLeave leave = ADTOPK__PEER_LEAVE__INIT;

    leave.steps_done = any(liar);
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_LEAVE;
    message.leave = &leave;
    say(liar, peer, &message);
}

/* As one who asks, who coordinates and who follows. */
static void lie_policy(struct liar *liar, uint16_t peer)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerPolicyAsk ask = ADTOPK__PEER_POLICY_ASK__INIT;
    Adtopk__PeerPolicyPropose propose = ADTOPK__PEER_POLICY_PROPOSE__INIT;
    Adtopk__PeerPolicyAnswer answer = ADTOPK__PEER_POLICY_ANSWER__INIT;
    Adtopk__PeerPolicyEnd end = ADTOPK__PEER_POLICY_END__INIT;
    Adtopk__PeerPolicy policy = any_policy(liar);

    ask.policy = propose.policy = &policy;
    propose.attempt = answer.attempt = (uint32_t)any(liar);
    answer.version = end.version = policy.version;
    answer.status = end.status = (uint32_t)any(liar);
    answer.text = end.text = policy.text;
    end.node = policy.node;
    switch (below(liar, 4)) {
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
    say(liar, peer, &message);
}

static void lie_estimates(struct liar *liar, uint16_t peer)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerEstimates estimates = ADTOPK__PEER_ESTIMATES__INIT;
    uint8_t packed[64];

    for (size_t i = 0; i < sizeof(packed); i++) {
        packed[i] = (uint8_t)below(liar, 256);
    }
    estimates.policy = (uint32_t)below(liar, 3);
    estimates.step = any(liar);
    estimates.packed.data = packed;
    estimates.packed.len = below(liar, sizeof(packed));
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_ESTIMATES;
    message.estimates = &estimates;
    say(liar, peer, &message);
}

static void lie_waiting(struct liar *liar, uint16_t peer)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerWaiting waiting = ADTOPK__PEER_WAITING__INIT;

    waiting.kind = (uint32_t)any(liar);
    waiting.number = any(liar);
    waiting.operation = below(liar, 2) == 0;
    waiting.tensor = (uint32_t)any(liar);
    waiting.rank = (uint32_t)any(liar);
    waiting.node = (uint32_t)any(liar);
    waiting.pid = (uint32_t)any(liar);
    waiting.waited_ms = any(liar);
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_WAITING;
    message.waiting = &waiting;
    say(liar, peer, &message);
}

/* The head says what the message is about; the commit behind it cannot be read. */
static void lie_unreadable(struct liar *liar, uint16_t peer)
{
    static const uint8_t commit[] = {5 << 3 | 2, 1, 0xFF};
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    size_t size = 0;
    uint8_t *head = pack(liar, peer, &message, &size);
    uint8_t *bytes = need(malloc(size + sizeof(commit)));

    (void)memcpy(bytes, head, size);
    (void)memcpy(bytes + size, commit, sizeof(commit));
    send_bytes(liar, peer, LINK_CONTROL, bytes, size + sizeof(commit));
    free(bytes);
    free(head);
}

/* Frames with right checksums. */
static void lie_frame(struct liar *liar, uint16_t peer)
{
    struct payload_writer writer = {0};
    const struct payload_header header = {.run = any_run(liar),
        .number = any(liar),
        .view = (uint32_t)any(liar),
        .bucket = (uint32_t)any(liar),
        .source = below(liar, 2) == 0 ? liar->node : (uint16_t)below(liar, PEERS),
        .kind = (uint8_t)below(liar, 5),
        .phase = (uint8_t)below(liar, 3),
        .flags = (uint8_t)below(liar, 2)};
    float values[512];

    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        values[i] = (float)below(liar, 1000);
    }
    if (payload_begin(&writer, &header) != ADTOPK_OK ||
        payload_put_dense(&writer, values, below(liar, 513), PAYLOAD_VALUE_F32, NULL) !=
            ADTOPK_OK) {
        fail("no memory");
    }
    payload_end(&writer);
    send_bytes(liar, peer, LINK_BULK, writer.bytes, writer.size);
    payload_free(&writer);
}

static const struct lie {
    const char *kind;
    void (*tell)(struct liar *liar, uint16_t peer);
} lies[] = {
    {"join-policy", lie_join_policy},
    {"join-rank", lie_join_rank},
    {"prepare", lie_prepare},
    {"state", lie_state},
    {"commit", lie_commit},
    {"fetch", lie_fetch},
    {"split", lie_split},
    {"fail", lie_fail},
    {"fail-long", lie_fail_long},
    {"fail-other", lie_fail_other},
    {"fail-nobody", lie_fail_nobody},
    {"leave", lie_leave},
    {"policy", lie_policy},
    {"estimates", lie_estimates},
    {"waiting", lie_waiting},
    {"unreadable", lie_unreadable},
    {"frame", lie_frame},
};

static const struct lie *lie_of(const char *kind)
{
    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        if (strcmp(lies[i].kind, kind) == 0) {
            return &lies[i];
        }
    }
    fail("no such kind of lie");
    return NULL;
}

/* Until node 0 has told of the job, and both peers are there. */
static void wait_join(struct liar *liar)
{
    uint64_t end = now_us() + PATIENCE_US;

    while (strcmp(liar->heard[0].name, liar->name) != 0 || !links_is_up(liar->links, 0) ||
           !links_is_up(liar->links, 1)) {
        (void)turn(liar, true);
        if (now_us() > end) {
            fail("node 0 says nothing of the job");
        }
    }
}

static void obey(struct liar *liar, const char *line)
{
    char kind[32];
    unsigned count = 0;
    const struct lie *lie;

    if (sscanf(line, "%31s %u %63s %63s %u", kind, &liar->owner, liar->name, liar->run_id,
            &count) != 5) {
        fail("cannot read a line");
    }
    lie = lie_of(kind);
    wait_join(liar);
    for (unsigned i = 0; i < count; i++) {
        for (uint16_t peer = 0; peer < PEERS; peer++) {
            lie->tell(liar, peer);
        }
        drain(liar, QUEUE_MAX);
    }
    drain(liar, 0);
    (void)printf("ok\n");
    (void)fflush(stdout);
}

/* Opening */

static void open_links(struct liar *liar)
{
    struct links_config config = {.self = liar->node,
        .chunk_size = 256u << 10,
        .window = 4u << 20,
        .max_control_message = TRANSPORT_BODY_MAX,
        .max_bulk_message = 64u << 20,
        .heartbeat_us = SECOND_US,
        .timeout_us = 10 * SECOND_US,
        .resend_us = SECOND_US / 10,
        .reopen_us = 5 * SECOND_US};
    const struct links_ops ops = {.transmit = transmit,
        .reopen = reopen,
        .deliver = deliver,
        .peer_up = peer_up,
        .peer_down = peer_down};

    if (getrandom(&config.incarnation, sizeof(config.incarnation), 0) !=
        sizeof(config.incarnation)) {
        fail("no random number");
    }
    config.incarnation |= 1;
    liar->links = need(links_create(&config, &ops, liar));
}

static void open_transport(struct liar *liar, char **argv)
{
    struct keyfile_pair pair;
    const struct transport_config config = {.self = liar->node, .listen = argv[3], .pair = &pair};
    struct error err = {.code = ADTOPK_OK};

    if (keyfile_load(argv[2], &pair, &err) != ADTOPK_OK) {
        fail(err.text);
    }
    liar->transport = transport_zmq.create(&config, receive, liar, &err);
    keyfile_wipe(&pair);
    if (liar->transport == NULL) {
        fail(err.text);
    }
    for (uint16_t peer = 0; peer < PEERS; peer++) {
        const struct transport_peer there = {
            .id = peer, .endpoint = argv[4 + 2 * peer], .keys = {argv[5 + 2 * peer]}};
        if (transport_zmq.add_peer(liar->transport, &there, &err) != ADTOPK_OK ||
            links_add_peer(liar->links, peer, now_us()) != ADTOPK_OK) {
            fail(err.text);
        }
    }
}

int main(int argc, char **argv)
{
    static struct liar liar = {.random = 1};
    char line[512];

    if (argc != 8) {
        fail("usage: test-liar NODE KEY_FILE LISTEN ENDPOINT KEY ENDPOINT KEY");
    }
    liar.node = (uint16_t)strtoul(argv[1], NULL, 10);
    (void)setvbuf(stdin, NULL, _IONBF, 0); /* poll() must see what is left */
    open_links(&liar);
    open_transport(&liar, argv);
    for (;;) {
        if (turn(&liar, true)) {
            if (fgets(line, sizeof(line), stdin) == NULL) {
                break;
            }
            obey(&liar, line);
        }
    }
    links_destroy(liar.links);
    transport_zmq.destroy(liar.transport);
    return 0;
}
