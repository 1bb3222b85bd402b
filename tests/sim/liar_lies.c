/* What a liar says: messages of every kind with any contents, frames, and rubbish. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/job/recorder.h"
#include "daemon/job/states.h"
#include "daemon/planner/estimate.h"
#include "peer.pb-c.h"
#include "proto/codec.h"
#include "tests/host/words.h"
#include "tests/sim/liar.h"

/* What a message says where it does not matter, or matters very much. */
static uint64_t any_number(struct liar *liar)
{
    static const uint64_t limits[] = {
        0, 1, 2, 3, 255, 65535, 65536, UINT32_MAX, (uint64_t)UINT32_MAX + 1, UINT64_MAX};
    struct world *world = liar->ghost.world;
    uint64_t near = world_chance(world, 0.5) ? liar->steps : liar->view;

    switch (world_random(world, 3)) {
    case 0: return limits[world_random(world, sizeof(limits) / sizeof(limits[0]))];
    case 1: return near + world_random(world, 3) - 1;
    default: return world_random(world, 8);
    }
}

#define LIED_NODES 6u

/* A view of any members, and the lists to which it points. */
struct lied_view {
    Adtopk__PeerView view;
    uint32_t member[LIED_NODES];
    uint32_t ranks[LIED_NODES];
    uint64_t since[LIED_NODES];
};

/* None, which means the lowest; one of the members, of which there are LIED_NODES; or any. */
static uint32_t any_tie_breaker(struct liar *liar, const uint32_t *members)
{
    struct world *world = liar->ghost.world;

    switch (world_random(world, 3)) {
    case 0: return 0;
    case 1: return members[world_random(world, LIED_NODES)] + 1;
    default: return (uint32_t)any_number(liar);
    }
}

static Adtopk__PeerView *any_view(struct liar *liar, struct lied_view *lied)
{
    struct world *world = liar->ghost.world;
    Adtopk__PeerView *view = &lied->view;
    uint32_t node = (uint32_t)world_random(world, 2);

    adtopk__peer_view__init(view);
    for (unsigned i = 0; i < LIED_NODES; i++) {
        lied->member[i] = world_chance(world, 0.95) ? node : (uint32_t)any_number(liar);
        lied->ranks[i] = world_chance(world, 0.9) ? 1 : (uint32_t)any_number(liar);
        lied->since[i] = world_chance(world, 0.9) ? 0 : any_number(liar);
        node += 1 + (uint32_t)world_random(world, 2);
    }
    view->view = world_chance(world, 0.5) ? liar->view + (uint32_t)world_random(world, 3)
                                          : (uint32_t)any_number(liar);
    view->members = lied->member;
    view->n_members = world_random(world, LIED_NODES);
    view->ranks = lied->ranks;
    view->n_ranks = world_chance(world, 0.9) ? view->n_members : 1;
    view->since = lied->since;
    view->n_since = world_chance(world, 0.9) ? view->n_members : 0;
    view->founders = (uint32_t)world_random(world, 8);
    view->tie_breaker = any_tie_breaker(liar, lied->member);
    return view;
}

/* What nodes that join must know: nearly what could be, or rubbish. The caller frees it. */
static ProtobufCBinaryData any_newcomer(struct liar *liar)
{
    struct world *world = liar->ghost.world;
    Adtopk__PeerNewcomer newcomer = ADTOPK__PEER_NEWCOMER__INIT;
    uint64_t turns[SIM_MAX_TENSORS];
    uint32_t agreed[2], numbers[4];
    double reals[6] = {0, INFINITY, NAN, -1, 1e300, 1};
    ProtobufCBinaryData packed = {0};

    for (unsigned i = 0; i < SIM_MAX_TENSORS; i++) {
        turns[i] = any_number(liar);
    }
    for (unsigned i = 0; i < 4; i++) {
        agreed[i / 2] = (uint32_t)any_number(liar);
        numbers[i] = (uint32_t)any_number(liar);
    }
    newcomer.steps_done = any_number(liar);
    newcomer.seed = any_number(liar);
    newcomer.steps_before = any_number(liar);
    newcomer.turns = turns;
    newcomer.n_turns = world_chance(world, 0.8) ? liar->tensors : world_random(world, 5);
    newcomer.agreed = agreed;
    newcomer.n_agreed = world_random(world, 3);
    newcomer.reals = reals;
    newcomer.n_reals = world_chance(world, 0.9) ? 3 * newcomer.n_agreed : 1;
    newcomer.numbers = numbers;
    newcomer.n_numbers = 2 * newcomer.n_agreed;
    packed.data = sim_must(codec_pack(&newcomer.base, &packed.len));
    for (unsigned i = (unsigned)world_random(world, 3); i-- > 0;) {
        packed.data[world_random(world, packed.len)] = (uint8_t)world_random(world, 256);
    }
    return packed;
}

/* What others know of a node that comes back, or of one that was never lost. */
struct lied_absent {
    Adtopk__PeerAbsent absent, *list[1];
    uint32_t delivered[LIED_NODES];
};

static Adtopk__PeerAbsent **any_absent(struct liar *liar, struct lied_absent *lied)
{
    adtopk__peer_absent__init(&lied->absent);
    lied->absent.node = (uint32_t)world_random(liar->ghost.world, LIED_NODES);
    lied->absent.step = any_number(liar);
    lied->absent.policy = (uint32_t)any_number(liar);
    lied->absent.delivered = lied->delivered;
    lied->absent.n_delivered = world_random(liar->ghost.world, LIED_NODES + 1);
    for (unsigned i = 0; i < LIED_NODES; i++) {
        lied->delivered[i] = (uint32_t)any_number(liar);
    }
    lied->list[0] = &lied->absent;
    return lied->list;
}

static void lie_prepare(struct liar *liar, uint16_t peer)
{
    struct words words;
    Adtopk__PeerPrepare *prepare = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_PREPARE);
    struct world *world = liar->ghost.world;
    uint32_t members[LIED_NODES];
    uint64_t incarnations[LIED_NODES], jobs[LIED_NODES];
    uint32_t ranks[LIED_NODES];
    struct lied_view known;
    struct lied_absent absent;
    unsigned step = 1 + (unsigned)world_random(world, 2);

    for (unsigned i = 0; i < LIED_NODES; i++) {
        members[i] = world_chance(world, 0.9) ? i * step : (uint32_t)any_number(liar);
        incarnations[i] = i * step < 3 ? world->node[i * step].incarnation : any_number(liar);
        jobs[i] = i * step < 2 ? liar->job[i * step] : 1;
        ranks[i] = world_chance(world, 0.9) ? 2 : (uint32_t)any_number(liar);
    }
    prepare->view = (uint32_t)any_number(liar);
    prepare->members = members;
    prepare->n_members = world_random(world, LIED_NODES + 1);
    prepare->incarnations = incarnations;
    prepare->n_incarnations = world_chance(world, 0.9) ? prepare->n_members : 1;
    prepare->jobs = jobs;
    prepare->n_jobs = prepare->n_members;
    prepare->ranks = ranks;
    prepare->n_ranks = world_chance(world, 0.9) ? prepare->n_members : 1;
    prepare->run = world_chance(world, 0.9) ? liar->run : any_number(liar);
    prepare->known = world_chance(world, 0.8) ? any_view(liar, &known) : NULL;
    prepare->tie_breaker = any_tie_breaker(liar, members);
    prepare->absent = any_absent(liar, &absent);
    prepare->n_absent = world_random(world, 2);
    liar_say(liar, peer, &words.message);
}

static Adtopk__PeerPolicy any_policy(struct liar *liar)
{
    static const char *const texts[] = {"", "{}", "{\"density\":7}", "{\"scope\":\"rank\"}",
        "{\"reduce\":\"sum\",\"sparsifier\":\"dense\",\"bucket_bytes\":1}", "%s%n",
        "{\"sparsifier\":\"auto\",\"plan\":\"4096:5d\"}", "{\"plan\":\"4096:99999a1d\"}"};
    Adtopk__PeerPolicy policy = ADTOPK__PEER_POLICY__INIT;
    struct world *world = liar->ghost.world;

    policy.text = (char *)(uintptr_t)texts[world_random(world, 8)];
    policy.version = (uint32_t)any_number(liar);
    policy.step = any_number(liar);
    policy.node = world_chance(world, 0.5) ? LIAR_NODE : (uint32_t)any_number(liar);
    return policy;
}

/* As one who asks, coordinates or follows. */
static void lie_policy(struct liar *liar, uint16_t peer)
{
    struct world *world = liar->ghost.world;
    Adtopk__PeerPolicy policy = any_policy(liar);
    struct words_of_policy of = {
        .version = policy.version, .node = policy.node, .text = policy.text};
    struct words words;

    of.policy = world_chance(world, 0.9) ? &policy : NULL;
    of.attempt = (uint32_t)any_number(liar);
    of.status = (uint32_t)any_number(liar);
    of.part = (unsigned)world_random(world, 4);
    words_policy(&words, &of);
    liar_say(liar, peer, &words.message);
}

static void lie_residual(struct liar *liar, uint16_t peer)
{
    static const double sums[] = {0, NAN, INFINITY, -INFINITY, DBL_MAX};
    struct words words;
    Adtopk__PeerResidual *residual = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_RESIDUAL);

    residual->step = any_number(liar);
    residual->sum = sums[world_random(liar->ghost.world, 5)];
    residual->hashed = sums[world_random(liar->ghost.world, 5)];
    residual->measured = true;
    residual->magnitude = sums[world_random(liar->ghost.world, 5)];
    liar_say(liar, peer, &words.message);
}

static void lie_ask(struct liar *liar, uint16_t peer)
{
    struct words words;

    (void)words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_CHECKPOINT_ASK);
    liar_say(liar, peer, &words.message);
}

/* Random bytes, or nearly what could be. */
static void lie_estimates(struct liar *liar, uint16_t peer)
{
    struct words words;
    Adtopk__PeerEstimates *estimates = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_ESTIMATES);
    struct world *world = liar->ghost.world;
    uint32_t tensors =
        world_chance(world, 0.8) ? world->job[0].tensors : (uint32_t)world_random(world, 9);
    uint8_t *bytes = sim_alloc(estimate_packed_size(tensors) + 1);
    struct estimates own;

    estimates->policy = world_chance(world, 0.7) ? 0 : (uint32_t)any_number(liar);
    estimates->step = world_chance(world, 0.7) ? world_random(world, 10) : any_number(liar);
    estimates->packed.data = bytes;
    estimates->packed.len = estimate_packed_size(tensors);
    if (estimate_init(&own, tensors, world->scenario.nodes)) {
        estimate_pack(&own, bytes);
        estimate_free(&own);
    }
    for (unsigned i = (unsigned)world_random(world, 8); i-- > 0;) {
        uint64_t at = world_random(world, estimates->packed.len);
        bytes[at] = (uint8_t)world_random(world, 256);
    }
    liar_say(liar, peer, &words.message);
    free(bytes);
}

/* Asks for ranks, or answers a question that nobody may have asked. */
static void lie_ranks(struct liar *liar, uint16_t peer, bool asks)
{
    struct words words;
    Adtopk__PeerRank rank = ADTOPK__PEER_RANK__INIT;
    Adtopk__PeerRank *list[4] = {&rank, &rank, &rank, &rank};

    if (asks) {
        Adtopk__PeerRanksAsk *ask = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_RANKS_ASK);
        ask->number = (uint32_t)any_number(liar);
    } else {
        Adtopk__PeerRanks *ranks = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_RANKS);
        rank.rank = (uint32_t)any_number(liar);
        rank.pid = (uint32_t)any_number(liar);
        rank.state = (uint32_t)world_random(liar->ghost.world, RANK_STATES + 1);
        rank.step = any_number(liar);
        rank.pace_us = world_chance(liar->ghost.world, 0.9) ? 1 : NAN;
        ranks->number = (uint32_t)any_number(liar);
        ranks->ranks = list;
        ranks->n_ranks = world_random(liar->ghost.world, 5);
    }
    liar_say(liar, peer, &words.message);
}

/* Asks for records, or answers a question that nobody may have asked. */
static void lie_records(struct liar *liar, uint16_t peer)
{
    struct words words;
    struct world *world = liar->ghost.world;
    uint8_t bytes[5 * RECORD_PACKED];
    const uint64_t lie = world_random(world, 4);

    if (lie >= 2) {
        lie_ranks(liar, peer, lie == 2);
        return;
    }
    if (lie == 0) {
        Adtopk__PeerRecordsAsk *ask = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_RECORDS_ASK);
        ask->number = (uint32_t)any_number(liar);
        ask->most = (uint32_t)any_number(liar);
        ask->before = any_number(liar);
    } else {
        Adtopk__PeerRecords *records = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_RECORDS);
        for (unsigned i = 0; i < sizeof(bytes); i++) {
            bytes[i] = (uint8_t)world_random(world, 256);
        }
        records->number = (uint32_t)any_number(liar);
        records->clock_us = any_number(liar);
        records->whole = world_chance(world, 0.5);
        records->format = (uint32_t)any_number(liar);
        records->first = any_number(liar);
        records->older = (uint32_t)any_number(liar);
        records->packed.data = bytes;
        records->packed.len = world_chance(world, 0.8) ? RECORD_PACKED * world_random(world, 6)
                                                       : world_random(world, sizeof(bytes));
    }
    liar_say(liar, peer, &words.message);
}

static void lie_state(struct liar *liar, uint16_t peer)
{
    struct words words;
    Adtopk__PeerState *peer_state = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_STATE);
    uint32_t numbers[4];
    uint64_t steps[4];
    Adtopk__PeerPolicy policy = any_policy(liar);
    struct lied_view known, promised[2];
    Adtopk__PeerView *list[] = {any_view(liar, &promised[0]), any_view(liar, &promised[1])};

    for (unsigned i = 0; i < 4; i++) {
        numbers[i] = (uint32_t)any_number(liar);
        steps[i] = any_number(liar);
    }
    peer_state->policy = world_chance(liar->ghost.world, 0.5) ? &policy : NULL;
    peer_state->held = (uint32_t)any_number(liar);
    peer_state->view = (uint32_t)any_number(liar);
    peer_state->steps_done = any_number(liar);
    peer_state->ops_done = any_number(liar);
    peer_state->delivered = numbers;
    peer_state->n_delivered = world_random(liar->ghost.world, 5);
    peer_state->split = numbers;
    peer_state->n_split = world_random(liar->ghost.world, 5);
    peer_state->split_step = steps;
    peer_state->n_split_step = world_random(liar->ghost.world, 5);
    peer_state->fresh = world_chance(liar->ghost.world, 0.5);
    peer_state->refused = world_chance(liar->ghost.world, 0.2);
    peer_state->outvoted = world_chance(liar->ghost.world, 0.3);
    peer_state->known = world_chance(liar->ghost.world, 0.8) ? any_view(liar, &known) : NULL;
    peer_state->promised = list;
    peer_state->n_promised = world_random(liar->ghost.world, 3);
    peer_state->newcomer = any_newcomer(liar);
    peer_state->checkpoint = any_number(liar);
    peer_state->wants_checkpoint = world_chance(liar->ghost.world, 0.2);
    peer_state->kept = world_chance(liar->ghost.world, 0.3);
    liar_say(liar, peer, &words.message);
    free(peer_state->newcomer.data);
}

#define LIAR_KEPT 6u

static void lie_commit(struct liar *liar, uint16_t peer)
{
    struct words words;
    Adtopk__PeerCommit *commit = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_COMMIT);
    Adtopk__PeerRound round = ADTOPK__PEER_ROUND__INIT;
    Adtopk__PeerRound *rounds[1] = {&round};
    uint32_t bucket = (uint32_t)any_number(liar), kept[LIAR_KEPT];
    uint64_t step = any_number(liar);
    Adtopk__PeerPolicy policy = any_policy(liar);

    commit->policy = world_chance(liar->ghost.world, 0.5) ? &policy : NULL;
    commit->split_policy = (uint32_t)any_number(liar);
    round.number = any_number(liar);
    round.bucket = (uint32_t)any_number(liar);
    round.operation = world_chance(liar->ghost.world, 0.3);
    round.holder = (uint32_t)any_number(liar);
    commit->view = (uint32_t)any_number(liar);
    commit->delivered = rounds;
    commit->n_delivered = world_random(liar->ghost.world, 2);
    commit->split = &bucket;
    commit->n_split = 1;
    commit->split_step = &step;
    commit->n_split_step = world_random(liar->ghost.world, 2);
    commit->since = any_number(liar);
    commit->ops_done = any_number(liar);
    commit->newcomer = any_newcomer(liar);
    commit->checkpoint = any_number(liar);
    for (unsigned i = 0; i < LIAR_KEPT; i++) { /* members, twice, too many, or larger numbers */
        kept[i] =
            (uint32_t)(world_chance(liar->ghost.world, 0.5) ? world_random(liar->ghost.world, 5)
                                                            : any_number(liar));
    }
    commit->kept = kept;
    commit->n_kept = world_random(liar->ghost.world, LIAR_KEPT + 1);
    liar_say(liar, peer, &words.message);
    free(commit->newcomer.data);
}

static void lie_fetch(struct liar *liar, uint16_t peer)
{
    struct words words;
    Adtopk__PeerFetch *fetch = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_FETCH);
    Adtopk__PeerRound round = ADTOPK__PEER_ROUND__INIT;

    round.number = any_number(liar);
    round.bucket = (uint32_t)any_number(liar);
    round.operation = world_chance(liar->ghost.world, 0.3);
    fetch->view = (uint32_t)world_random(liar->ghost.world, 4);
    fetch->round = world_chance(liar->ghost.world, 0.9) ? &round : NULL;
    liar_say(liar, peer, &words.message);
}

static void lie_split(struct liar *liar, uint16_t peer)
{
    struct words words;
    Adtopk__PeerSplit *split = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_SPLIT);

    split->step = any_number(liar);
    split->bucket = (uint32_t)any_number(liar);
    split->policy = world_chance(liar->ghost.world, 0.5) ? 0 : (uint32_t)any_number(liar);
    liar_say(liar, peer, &words.message);
}

/* That its ranks have left, or that it failed. */
static void lie_end(struct liar *liar, uint16_t peer)
{
    struct words words;

    if (world_chance(liar->ghost.world, 0.5)) {
        Adtopk__PeerLeave *leaving = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_LEAVE);
        leaving->steps_done = any_number(liar);
    } else {
        Adtopk__PeerFail *fail = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_FAIL);
        fail->status = (uint32_t)any_number(liar);
        fail->text = (char *)(uintptr_t) "%s%n\x1b[2J\xe2\x80\xae\xff";
    }
    liar_say(liar, peer, &words.message);
}

/* A frame with right checksums and any contents. */
static void lie_frame(struct liar *liar, uint16_t peer)
{
    struct world *world = liar->ghost.world;
    struct payload_writer writer = {0};
    float values[40];
    struct payload_header header = {.run = liar->run, .source = LIAR_NODE};

    header.number = any_number(liar);
    header.view = (uint32_t)any_number(liar);
    header.bucket = (uint32_t)any_number(liar);
    header.kind = (uint8_t)world_random(world, 5);
    header.phase = (uint8_t)world_random(world, 3);
    header.flags = (uint8_t)world_random(world, 2);
    for (unsigned i = 0; i < 40; i++) {
        uint32_t bits = (uint32_t)world_random(world, 1ull << 32);
        (void)memcpy(&values[i], &bits, sizeof(bits));
    }
    (void)payload_begin(&writer, &header);
    for (uint64_t sections = world_random(world, 4); sections > 0; sections--) {
        if (world_chance(world, 0.5)) {
            (void)payload_put_bytes(&writer, values, world_random(world, sizeof(values)));
        } else {
            (void)payload_put_dense(&writer, values, 40, PAYLOAD_VALUE_F32, NULL);
        }
    }
    payload_end(&writer);
    (void)ghost_say(&liar->ghost, peer, LINK_BULK, writer.bytes, writer.size);
    payload_free(&writer);
}

static void lie_join(struct liar *liar, uint16_t peer)
{
    uint32_t rank = (uint32_t)any_number(liar);
    uint32_t ranks = (uint32_t)world_random(liar->ghost.world, 5);
    struct lied_view known;

    liar_say_join(liar, peer, rank, ranks, true,
        world_chance(liar->ghost.world, 0.5) ? any_view(liar, &known) : NULL);
}

static void lie_rubbish(struct liar *liar, uint16_t peer)
{
    struct world *world = liar->ghost.world;
    enum link_lane lane = (enum link_lane)world_random(world, LINK_LANES);
    uint8_t bytes[64];

    for (unsigned i = 0; i < sizeof(bytes); i++) {
        bytes[i] = (uint8_t)world_random(world, 256);
    }
    (void)ghost_say(&liar->ghost, peer, lane, bytes, world_random(world, sizeof(bytes)));
}

void liar_lie(struct liar *liar)
{
    struct world *world = liar->ghost.world;
    uint16_t peer = (uint16_t)world_random(world, 2);

    liar->lies++;
    switch (world_random(world, 17)) {
    case 0: lie_join(liar, peer); break;
    case 1: lie_prepare(liar, peer); break;
    case 2: lie_state(liar, peer); break;
    case 3: lie_commit(liar, peer); break;
    case 4:
    case 5:
    case 6: lie_fetch(liar, peer); break;
    case 7: lie_split(liar, peer); break;
    case 8:
        if (world_chance(world, 0.1)) {
            lie_end(liar, peer);
        } else {
            lie_split(liar, peer);
        }
        break;
    case 9:
    case 10: lie_frame(liar, peer); break;
    case 11:
    case 12: lie_policy(liar, peer); break;
    case 13: lie_estimates(liar, peer); break;
    case 14: lie_records(liar, peer); break;
    case 15:
        if (world_chance(world, 0.2)) {
            lie_ask(liar, peer);
        } else {
            lie_residual(liar, peer);
        }
        break;
    default: lie_rubbish(liar, peer); break;
    }
}
