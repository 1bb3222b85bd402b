/* The lies of a node that lies, by kind. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/collective/collective.h"
#include "daemon/job/hash.h"
#include "proto/codec.h"
#include "proto/payload.h"
#include "tests/host/words.h"
#include "tests/integration/liar.h"

#define POLICY_OTHER 0xadu

/* Longer than any sentence of the daemon. A character lies across the limit of a sentence. */
#define EURO_4 "\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac"
#define EURO_20 EURO_4 EURO_4 EURO_4 EURO_4 EURO_4
static const char text_long[] = "\x1b" EURO_20 EURO_20 EURO_20 EURO_20 EURO_20;

/* Escape sequences, a format, a character that changes the direction of text, and half a character.
 */
static const char *const texts[] = {"\x1b[2J\x1b]0;owned\x07 node 1 is on fire\r\n",
    "%s%n \xe2\x80\xae\xff\x9b"
    "31m \xc2\x9b"
    "31m",
    "", "{}", "{\"density\":0.5}", text_long};

/* The content of messages */

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

/* The number of the run that node 0 begins or has begun. Node 0's messages to everybody give it
 * away. */
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

    liar_send(liar, peer, LINK_CONTROL, bytes, size);
    free(bytes);
}

/* Lies */

static void say_join(struct liar *liar, uint16_t peer, uint64_t policy, uint32_t rank)
{
    struct words words;
    Adtopk__PeerJoin *join = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_JOIN);

    join->world_size = 2;
    join->ranks = &rank;
    join->n_ranks = 1;
    join->policy = policy;
    join->exchanges = EXCHANGE_VERSION;
    join->tensors = liar->heard[0].tensor;
    join->n_tensors = liar->heard[0].tensors;
    join->view = (uint32_t)any(liar);
    join->reply = below(liar, 2) == 0;
    join->member = below(liar, 2) == 0;
    say(liar, peer, &words.message);
}

static void lie_join_policy(struct liar *liar, uint16_t peer)
{
    say_join(liar, peer, liar->heard[0].policy ^ POLICY_OTHER, 1);
}

static void lie_join_rank(struct liar *liar, uint16_t peer)
{
    say_join(liar, peer, liar->heard[0].policy, 1);
}

/* Members that do not exist, only itself, itself before the others, and the right members. */
static void lie_prepare(struct liar *liar, uint16_t peer)
{
    static uint32_t members[][3] = {{0, 1, 9}, {2, 3, 9}, {2, 0, 1}, {0, 1, 2}, {1, 2, 3}, {2}};
    struct words words;
    Adtopk__PeerPrepare *prepare = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_PREPARE);
    uint64_t which = below(liar, sizeof(members) / sizeof(members[0]));
    uint64_t incarnations[3], jobs[3];
    uint32_t ranks[3];

    for (unsigned i = 0; i < 3; i++) {
        uint32_t node = members[which][i];
        incarnations[i] = node < PEERS ? links_incarnation(liar->links, (uint16_t)node) : 1;
        jobs[i] = node < PEERS ? liar->heard[node].job : 1;
        ranks[i] = (uint32_t)below(liar, 3);
    }
    prepare->view = (uint32_t)any(liar);
    prepare->members = members[which];
    prepare->incarnations = incarnations;
    prepare->jobs = jobs;
    prepare->ranks = ranks;
    prepare->n_members = prepare->n_incarnations = prepare->n_jobs = prepare->n_ranks =
        which == 5 ? 1 : 3 - below(liar, 2);
    prepare->run = any_run(liar);
    prepare->tie_breaker = below(liar, 2) == 0 ? members[which][0] + 1 : (uint32_t)any(liar);
    say(liar, peer, &words.message);
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
    struct words words;
    Adtopk__PeerState *state = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_STATE);
    Adtopk__PeerPolicy policy = any_policy(liar);
    uint32_t bucket = (uint32_t)any(liar);
    uint64_t step = any(liar);

    state->view = (uint32_t)any(liar);
    state->steps_done = any(liar);
    state->ops_done = any(liar);
    state->delivered = state->split = &bucket;
    state->split_step = &step;
    state->n_delivered = state->n_split = state->n_split_step = 1;
    state->fresh = below(liar, 2) == 0;
    state->policy = below(liar, 2) == 0 ? &policy : NULL;
    state->held = (uint32_t)any(liar);
    say(liar, peer, &words.message);
}

static void lie_commit(struct liar *liar, uint16_t peer)
{
    struct words words;
    Adtopk__PeerCommit *commit = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_COMMIT);
    Adtopk__PeerRound round = ADTOPK__PEER_ROUND__INIT;
    Adtopk__PeerRound *rounds[] = {&round};
    Adtopk__PeerPolicy policy = any_policy(liar);
    uint32_t bucket = (uint32_t)any(liar);
    uint64_t step = any(liar);

    round.number = any(liar);
    round.bucket = (uint32_t)any(liar);
    round.operation = below(liar, 2) == 0;
    round.holder = (uint32_t)below(liar, 4);
    commit->view = (uint32_t)any(liar);
    commit->delivered = rounds;
    commit->split = &bucket;
    commit->split_step = &step;
    commit->n_delivered = commit->n_split = commit->n_split_step = 1;
    commit->policy = below(liar, 2) == 0 ? &policy : NULL;
    say(liar, peer, &words.message);
}

static void lie_fetch(struct liar *liar, uint16_t peer)
{
    struct words words;
    Adtopk__PeerFetch *fetch = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_FETCH);
    Adtopk__PeerRound round = ADTOPK__PEER_ROUND__INIT;

    round.number = any(liar);
    round.bucket = (uint32_t)any(liar);
    round.operation = below(liar, 2) == 0;
    fetch->view = (uint32_t)any(liar);
    fetch->round = below(liar, 8) > 0 ? &round : NULL;
    say(liar, peer, &words.message);
}

static void lie_split(struct liar *liar, uint16_t peer)
{
    struct words words;
    Adtopk__PeerSplit *split = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_SPLIT);

    split->step = any(liar);
    split->bucket = (uint32_t)any(liar);
    split->policy = (uint32_t)below(liar, 3);
    say(liar, peer, &words.message);
}

static void say_fail(struct liar *liar, uint16_t peer, const char *text, uint32_t node)
{
    struct words words;
    Adtopk__PeerFail *failed = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_FAIL);

    failed->status = (uint32_t)any(liar);
    failed->text = (char *)(uintptr_t)text;
    failed->steps_done = any(liar);
    failed->node = node;
    say(liar, peer, &words.message);
}

static void lie_fail(struct liar *liar, uint16_t peer)
{
    say_fail(liar, peer, any_text(liar), liar->node);
}

static void lie_fail_long(struct liar *liar, uint16_t peer)
{
    say_fail(liar, peer, text_long, liar->node);
}

/* Pretends to pass on a message of another node. */
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
    struct words words;
    Adtopk__PeerLeave *leave = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_LEAVE);

    leave->steps_done = any(liar);
    leave->ops_done = any(liar);
    say(liar, peer, &words.message);
}

/* Plays the node that asks, the coordinator and a follower. */
static void lie_policy(struct liar *liar, uint16_t peer)
{
    Adtopk__PeerPolicy policy = any_policy(liar);
    struct words_of_policy of = {.policy = &policy, .text = policy.text, .node = policy.node};
    struct words words;

    of.version = policy.version;
    of.attempt = (uint32_t)any(liar);
    of.status = (uint32_t)any(liar);
    of.part = (unsigned)below(liar, 4);
    words_policy(&words, &of);
    say(liar, peer, &words.message);
}

static void lie_estimates(struct liar *liar, uint16_t peer)
{
    struct words words;
    Adtopk__PeerEstimates *estimates = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_ESTIMATES);
    uint8_t packed[64];

    for (size_t i = 0; i < sizeof(packed); i++) {
        packed[i] = (uint8_t)below(liar, 256);
    }
    estimates->policy = (uint32_t)below(liar, 3);
    estimates->step = any(liar);
    estimates->packed.data = packed;
    estimates->packed.len = below(liar, sizeof(packed));
    say(liar, peer, &words.message);
}

static void lie_waiting(struct liar *liar, uint16_t peer)
{
    struct words words;
    Adtopk__PeerWaiting *waiting = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_WAITING);

    waiting->kind = (uint32_t)any(liar);
    waiting->number = any(liar);
    waiting->operation = below(liar, 2) == 0;
    waiting->tensor = (uint32_t)any(liar);
    waiting->rank = (uint32_t)any(liar);
    waiting->node = (uint32_t)any(liar);
    waiting->pid = (uint32_t)any(liar);
    waiting->waited_ms = any(liar);
    say(liar, peer, &words.message);
}

static void lie_residual(struct liar *liar, uint16_t peer)
{
    const double sums[] = {0, NAN, INFINITY, -1e308};
    struct words words;
    Adtopk__PeerResidual *residual = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_RESIDUAL);

    residual->step = any(liar);
    residual->sum = sums[below(liar, 4)];
    residual->hashed = sums[below(liar, 4)];
    residual->measured = true;
    residual->magnitude = sums[below(liar, 4)];
    say(liar, peer, &words.message);
}

/* The head says what the message is about, but the commit after it is unreadable. */
static void lie_unreadable(struct liar *liar, uint16_t peer)
{
    static const uint8_t commit[] = {5 << 3 | 2, 1, 0xFF};
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    size_t size = 0;
    uint8_t *head = pack(liar, peer, &message, &size);
    uint8_t *bytes = need(malloc(size + sizeof(commit)));

    (void)memcpy(bytes, head, size);
    (void)memcpy(bytes + size, commit, sizeof(commit));
    liar_send(liar, peer, LINK_CONTROL, bytes, size + sizeof(commit));
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
    liar_send(liar, peer, LINK_BULK, writer.bytes, writer.size);
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
    {"residual", lie_residual},
    {"unreadable", lie_unreadable},
    {"frame", lie_frame},
};

void liar_tell(struct liar *liar, const char *kind, uint16_t peer)
{
    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        if (strcmp(lies[i].kind, kind) == 0) {
            lies[i].tell(liar, peer);
            return;
        }
    }
    fail("no such kind of lie");
}
