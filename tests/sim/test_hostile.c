/*
 * Hostile peers. In the first tests a node's packets are changed on the way. In the others a node
 * has all keys, keeps the rules of the links, and sends any messages it likes. The other nodes must
 * not crash, lose or double anything of their own, or hang beyond the job's time limits. A job in
 * which the hostile node has no rank is not disturbed at all.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/job/model.h"
#include "daemon/planner/estimate.h"
#include "peer.pb-c.h"
#include "proto/bits.h"
#include "proto/codec.h"
#include "proto/payload_frame.h"
#include "tests/host/words.h"
#include "tests/sim/failure.h"
#include "tests/sim/ghost.h"

#define SEEDS 60u
#define GHOST 2u

/* Packets */

/* What gets past the links is the body of a frame; its own checksum names who sent it. */
static void expect_blamed(const struct trainer *trainer, unsigned node)
{
    char culprit[32];

    (void)snprintf(culprit, sizeof(culprit), "node %u", node);
    expect_rank(trainer, ADTOPK_ERR_PROTOCOL, culprit, "");
}

static void packets(bool reseal)
{
    unsigned failed = 0;

    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct scenario scenario = scenario_of(seed);
        struct world *world;
        scenario.nodes = scenario.nodes < 2 ? 2 : scenario.nodes;
        if (reseal) {
            scenario.policy = POLICY; /* a link that is out of step for ever must end by a limit */
            scenario.mixed = false;
        }
        scenario.hostile = (unsigned)(seed % scenario.nodes);
        scenario.refuses = MEMORY_ALL;
        scenario.forsakes = scenario.again = scenario.dies = false;
        scenario.mixed = false;
        scenario.mutate = 0.05;
        scenario.reseal = reseal;
        world = world_create(&scenario);
        for (unsigned j = 0; j < world->jobs; j++) {
            world->job[j].may_fail = true;
            world->job[j].forged = reseal;
        }
        if (!world_run(world)) {
            (void)printf("# seed %llu: %s\n", (unsigned long long)seed, world->violation);
        }
        assert_false(world->violated);
        for (unsigned i = 0; i < world->trainers; i++) {
            const struct trainer *trainer = &world->trainer[i];
            failed += trainer->state == TRAINER_FAILED ? 1 : 0;
            if (trainer->state == TRAINER_FAILED && !reseal) {
                expect_blamed(trainer, scenario.hostile);
            }
        }
        world_destroy(world);
    }
    (void)printf("# %u seeds, %u ranks failed\n", SEEDS, failed);
}

static void test_changed_packets(void **state)
{
    (void)state;
    packets(false);
}

static void test_changed_and_sealed_packets(void **state)
{
    (void)state;
    packets(true);
}

/* Messages */

struct liar {
    struct ghost ghost;
    double rate;                 /* lies a message heard */
    uint64_t job[SIM_MAX_NODES]; /* numbers that the nodes give the job */
    uint64_t run;
    uint32_t view;
    uint64_t steps;
    uint64_t lies;
    uint64_t *tensor;
    size_t tensors;
    uint64_t policy;
    uint32_t exchanges; /* of the release that it says it is of */
    uint64_t hangs_at;  /* it sends no frame of this step or a later one; 0: it never hangs */
    /* Said once, to node 0, as soon as a view was proposed; NULL: nothing. */
    void (*once)(struct liar *liar, unsigned variant);
    unsigned variant;
    bool silent; /* it agrees to no view */
};

static void say_of(
    struct liar *liar, uint16_t peer, uint64_t sender_job, Adtopk__PeerMessage *message)
{
    Adtopk__PeerAbout about = ADTOPK__PEER_ABOUT__INIT;
    size_t size;
    uint8_t *bytes;

    about.owner = 1000;
    about.name = (char *)(uintptr_t) "job";
    about.run_id = (char *)(uintptr_t) "1";
    about.run = liar->run;
    about.sender_job = sender_job;
    about.receiver_job = liar->job[peer];
    message->about = &about;
    bytes = sim_must(codec_pack(&message->base, &size));
    (void)ghost_say(&liar->ghost, peer, LINK_CONTROL, bytes, size);
    free(bytes);
}

static void say(struct liar *liar, uint16_t peer, Adtopk__PeerMessage *message)
{
    say_of(liar, peer, 1, message);
}

static void say_join(struct liar *liar, uint16_t peer, uint32_t rank, uint32_t ranks, bool reply)
{
    struct words words;
    Adtopk__PeerJoin *join = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_JOIN);
    uint32_t *list = sim_alloc((ranks + 1) * sizeof(*list));

    for (uint32_t r = 0; r < ranks; r++) {
        list[r] = rank + r;
    }
    join->world_size = 3;
    join->ranks = list;
    join->n_ranks = ranks;
    join->policy = liar->policy;
    join->exchanges = liar->exchanges;
    join->tensors = liar->tensor;
    join->n_tensors = liar->tensors;
    join->view = liar->view;
    join->reply = reply;
    say(liar, peer, &words.message);
    free(list);
}

/* What a message says where it does not matter, or matters very much. */
static uint64_t any(struct liar *liar)
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

static void lie_prepare(struct liar *liar, uint16_t peer)
{
    struct words words;
    Adtopk__PeerPrepare *prepare = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_PREPARE);
    struct world *world = liar->ghost.world;
    uint32_t members[6];
    uint64_t incarnations[6], jobs[6];
    unsigned step = 1 + (unsigned)world_random(world, 2);

    for (unsigned i = 0; i < 6; i++) {
        members[i] = world_chance(world, 0.9) ? i * step : (uint32_t)any(liar);
        incarnations[i] = i * step < 3 ? world->node[i * step].incarnation : any(liar);
        jobs[i] = i * step < 2 ? liar->job[i * step] : 1;
    }
    prepare->view = (uint32_t)any(liar);
    prepare->members = members;
    prepare->n_members = world_random(world, 7);
    prepare->incarnations = incarnations;
    prepare->n_incarnations = world_chance(world, 0.9) ? prepare->n_members : 1;
    prepare->jobs = jobs;
    prepare->n_jobs = prepare->n_members;
    prepare->run = world_chance(world, 0.9) ? liar->run : any(liar);
    say(liar, peer, &words.message);
}

static Adtopk__PeerPolicy any_policy(struct liar *liar)
{
    static const char *const texts[] = {"", "{}", "{\"density\":7}", "{\"scope\":\"rank\"}",
        "{\"reduce\":\"sum\",\"sparsifier\":\"dense\",\"bucket_bytes\":1}", "%s%n",
        "{\"sparsifier\":\"auto\",\"plan\":\"4096:5d\"}", "{\"plan\":\"4096:99999a1d\"}"};
    Adtopk__PeerPolicy policy = ADTOPK__PEER_POLICY__INIT;
    struct world *world = liar->ghost.world;

    policy.text = (char *)(uintptr_t)texts[world_random(world, 8)];
    policy.version = (uint32_t)any(liar);
    policy.step = any(liar);
    policy.node = world_chance(world, 0.5) ? GHOST : (uint32_t)any(liar);
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
    of.attempt = (uint32_t)any(liar);
    of.status = (uint32_t)any(liar);
    of.part = (unsigned)world_random(world, 4);
    words_policy(&words, &of);
    say(liar, peer, &words.message);
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

    estimates->policy = world_chance(world, 0.7) ? 0 : (uint32_t)any(liar);
    estimates->step = world_chance(world, 0.7) ? world_random(world, 10) : any(liar);
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
    say(liar, peer, &words.message);
    free(bytes);
}

static void lie_state(struct liar *liar, uint16_t peer)
{
    struct words words;
    Adtopk__PeerState *peer_state = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_STATE);
    uint32_t numbers[4];
    uint64_t steps[4];
    Adtopk__PeerPolicy policy = any_policy(liar);

    for (unsigned i = 0; i < 4; i++) {
        numbers[i] = (uint32_t)any(liar);
        steps[i] = any(liar);
    }
    peer_state->policy = world_chance(liar->ghost.world, 0.5) ? &policy : NULL;
    peer_state->held = (uint32_t)any(liar);
    peer_state->view = (uint32_t)any(liar);
    peer_state->steps_done = any(liar);
    peer_state->ops_done = any(liar);
    peer_state->delivered = numbers;
    peer_state->n_delivered = world_random(liar->ghost.world, 5);
    peer_state->split = numbers;
    peer_state->n_split = world_random(liar->ghost.world, 5);
    peer_state->split_step = steps;
    peer_state->n_split_step = world_random(liar->ghost.world, 5);
    peer_state->fresh = world_chance(liar->ghost.world, 0.5);
    peer_state->refused = world_chance(liar->ghost.world, 0.2);
    say(liar, peer, &words.message);
}

static void lie_commit(struct liar *liar, uint16_t peer)
{
    struct words words;
    Adtopk__PeerCommit *commit = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_COMMIT);
    Adtopk__PeerRound round = ADTOPK__PEER_ROUND__INIT;
    Adtopk__PeerRound *rounds[1] = {&round};
    uint32_t bucket = (uint32_t)any(liar);
    uint64_t step = any(liar);
    Adtopk__PeerPolicy policy = any_policy(liar);

    commit->policy = world_chance(liar->ghost.world, 0.5) ? &policy : NULL;
    commit->split_policy = (uint32_t)any(liar);
    round.number = any(liar);
    round.bucket = (uint32_t)any(liar);
    round.operation = world_chance(liar->ghost.world, 0.3);
    round.holder = (uint32_t)any(liar);
    commit->view = (uint32_t)any(liar);
    commit->delivered = rounds;
    commit->n_delivered = world_random(liar->ghost.world, 2);
    commit->split = &bucket;
    commit->n_split = 1;
    commit->split_step = &step;
    commit->n_split_step = world_random(liar->ghost.world, 2);
    say(liar, peer, &words.message);
}

static void lie_fetch(struct liar *liar, uint16_t peer)
{
    struct words words;
    Adtopk__PeerFetch *fetch = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_FETCH);
    Adtopk__PeerRound round = ADTOPK__PEER_ROUND__INIT;

    round.number = any(liar);
    round.bucket = (uint32_t)any(liar);
    round.operation = world_chance(liar->ghost.world, 0.3);
    fetch->view = (uint32_t)world_random(liar->ghost.world, 4);
    fetch->round = world_chance(liar->ghost.world, 0.9) ? &round : NULL;
    say(liar, peer, &words.message);
}

static void lie_split(struct liar *liar, uint16_t peer)
{
    struct words words;
    Adtopk__PeerSplit *split = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_SPLIT);

    split->step = any(liar);
    split->bucket = (uint32_t)any(liar);
    split->policy = world_chance(liar->ghost.world, 0.5) ? 0 : (uint32_t)any(liar);
    say(liar, peer, &words.message);
}

/* That its ranks have left, or that it failed. */
static void lie_end(struct liar *liar, uint16_t peer)
{
    struct words words;

    if (world_chance(liar->ghost.world, 0.5)) {
        Adtopk__PeerLeave *leaving = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_LEAVE);
        leaving->steps_done = any(liar);
    } else {
        Adtopk__PeerFail *fail = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_FAIL);
        fail->status = (uint32_t)any(liar);
        fail->text = (char *)(uintptr_t) "%s%n\x1b[2J\xe2\x80\xae\xff";
    }
    say(liar, peer, &words.message);
}

/* A frame with right checksums and any contents. */
static void lie_frame(struct liar *liar, uint16_t peer)
{
    struct world *world = liar->ghost.world;
    struct payload_writer writer = {0};
    float values[40];
    struct payload_header header = {.run = liar->run, .source = GHOST};

    header.number = any(liar);
    header.view = (uint32_t)any(liar);
    header.bucket = (uint32_t)any(liar);
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
    uint32_t rank = (uint32_t)any(liar);
    uint32_t ranks = (uint32_t)world_random(liar->ghost.world, 5);

    say_join(liar, peer, rank, ranks, true);
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

static void lie(struct liar *liar)
{
    struct world *world = liar->ghost.world;
    uint16_t peer = (uint16_t)world_random(world, 2);

    liar->lies++;
    switch (world_random(world, 15)) {
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
    default: lie_rubbish(liar, peer); break;
    }
}

/* Contributes to a round what node 0 did, perhaps with a few bits changed. */
static void echo(struct liar *liar, const struct buffer *frame)
{
    struct world *world = liar->ghost.world;
    uint8_t *bytes = sim_alloc(frame->size);

    (void)memcpy(bytes, frame->bytes, frame->size);
    store_u16(bytes + AT_SOURCE, GHOST);
    if (world_chance(world, liar->rate / 20)) {
        uint64_t at = world_random(world, frame->size);
        bytes[at] ^= (uint8_t)(1u << world_random(world, 8));
        liar->lies++;
    }
    store_u32(bytes + AT_CRC, frame_crc(bytes, frame->size));
    (void)ghost_say(&liar->ghost, 0, LINK_BULK, bytes, frame->size);
    (void)ghost_say(&liar->ghost, 1, LINK_BULK, bytes, frame->size);
    free(bytes);
}

/* The honest part: joins, agrees to views, and keeps the rounds going. */
static void answer(struct liar *liar, uint16_t peer, const Adtopk__PeerMessage *message)
{
    if (message->kind_case == ADTOPK__PEER_MESSAGE__KIND_JOIN) {
        const Adtopk__PeerJoin *join = message->join;
        liar->policy = join->policy;
        if (liar->tensor == NULL) {
            liar->tensors = join->n_tensors;
            liar->tensor = sim_alloc(join->n_tensors * sizeof(uint64_t) + 1);
            (void)memcpy(liar->tensor, join->tensors, join->n_tensors * sizeof(uint64_t));
        }
        if (join->reply) {
            say_join(liar, peer, 2, 1, false);
        }
    } else if (message->kind_case == ADTOPK__PEER_MESSAGE__KIND_PREPARE) {
        struct words words;
        Adtopk__PeerState *peer_state = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_STATE);
        peer_state->view = liar->view = message->prepare->view;
        liar->run = message->prepare->run;
        peer_state->steps_done = liar->steps;
        if (!liar->silent) {
            say(liar, peer, &words.message);
        }
    }
}

static void hear(
    struct ghost *ghost, uint16_t peer, enum link_lane lane, const struct buffer *heard)
{
    struct liar *liar = ghost->context;
    struct payload_header header;

    if (lane == LINK_CONTROL) {
        Adtopk__PeerMessage *message = (Adtopk__PeerMessage *)codec_unpack(
            &adtopk__peer_message__descriptor, heard->bytes, heard->size, CODEC_PEER_MAX, NULL);
        if (message != NULL && message->about->owner == 1000) {
            liar->job[peer] = message->about->sender_job;
            answer(liar, peer, message);
        }
        codec_free((ProtobufCMessage *)message);
    } else if (payload_peek(&header, heard->bytes, heard->size, NULL) == ADTOPK_OK && peer == 0 &&
               header.kind < 2) {
        liar->steps = header.number;
        if (liar->hangs_at == 0 || liar->steps < liar->hangs_at) {
            echo(liar, heard);
        }
    }
    if (liar->view > 0 && liar->once != NULL) {
        liar->once(liar, liar->variant);
        liar->once = NULL;
    }
    if (liar->view > 0 && world_chance(ghost->world, liar->rate)) {
        lie(liar);
    }
}

/* Three nodes of one rank each; the ghost plays the third, and only job 0 has a rank there. */
static struct world *world_under(struct liar *liar, uint64_t seed, const char *policy)
{
    double rate = liar->rate;
    struct scenario scenario = failure_scenario(policy);
    struct world *world;

    scenario.seed = seed;
    scenario.nodes = 3;
    scenario.ranks_per_node = 1;
    scenario.tensors = 0x209;
    scenario.steps = 12;
    scenario.loss = seed % 3 == 0 ? 0.05 : 0;
    scenario.wait = seed % 2 == 0 ? 0.3 : 0;
    scenario.operator_every_us = rate > 0 && seed % 4 < 2 ? 30000 : 0;
    world = world_create(&scenario);
    world->job[0].may_fail = world->job[0].forged = true;
    world->job[1].trainers = 2;
    world->trainer[2].state = TRAINER_DONE;
    world->trainer[5].state = TRAINER_DONE;
    world->trainer[3].says_world_size = world->trainer[4].says_world_size = 2;
    liar->ghost.hear = hear;
    liar->ghost.context = liar;
    ghost_start(world, GHOST, &liar->ghost);
    return world;
}

static struct world *world_with(struct liar *liar, uint64_t seed)
{
    return world_under(liar, seed, POLICY_WITH(",\"sparse_collective\":\"auto\""));
}

static void messages(double rate, uint64_t seeds)
{
    uint64_t lies = 0, steps = 0;
    unsigned failed = 0;

    for (uint64_t seed = 1; seed <= seeds; seed++) {
        struct liar liar = {.rate = rate, .exchanges = EXCHANGE_VERSION};
        struct world *world = world_with(&liar, seed);
        expect_end(world);
        lies += liar.lies;
        steps += world->trainer[0].step;
        failed += world->trainer[0].state == TRAINER_FAILED ? 1 : 0;
        if (rate == 0) {
            assert_int_equal(world->trainer[0].state, TRAINER_DONE);
            assert_int_equal(world->trainer[1].state, TRAINER_DONE);
        }
        ghost_stop(&liar.ghost);
        free(liar.tensor);
        world_destroy(world);
    }
    (void)printf("# %llu lies, %llu steps of rank 0, %u of %llu jobs failed\n",
        (unsigned long long)lies, (unsigned long long)steps, failed, (unsigned long long)seeds);
}

static void test_honest_ghost(void **state)
{
    (void)state;
    messages(0, 3);
}

/* A daemon that exchanges in another way: an error that says so, instead of sums of other things.
 */
static void test_other_release(void **state)
{
    (void)state;
    for (uint32_t exchanges = 0; exchanges < 2 * EXCHANGE_VERSION; exchanges++) {
        struct liar liar = {.rate = 0, .exchanges = exchanges};
        struct world *world;
        if (exchanges == EXCHANGE_VERSION) {
            continue;
        }
        world = world_with(&liar, 1);
        expect_end(world);
        assert_int_equal(world->trainer[0].state, TRAINER_FAILED);
        assert_int_equal(world->trainer[0].error.code, ADTOPK_ERR_MISMATCH);
        assert_non_null(strstr(world->trainer[0].error.text, "run the same release on both"));
        ghost_stop(&liar.ghost);
        free(liar.tensor);
        world_destroy(world);
    }
}

static uint64_t slice_ends;

static bool slice_is_over(const struct world *world)
{
    return world->now_us >= slice_ends || world->trainer[0].state >= TRAINER_DONE;
}

/* A frame of a run that the receiver does not know, as of another job. */
static void say_other_frame(struct liar *liar, uint16_t peer)
{
    const struct payload_header header = {.run = liar->run + 1, .source = GHOST};
    struct payload_writer writer = {0};

    (void)payload_begin(&writer, &header);
    payload_end(&writer);
    (void)ghost_say(&liar->ghost, peer, LINK_BULK, writer.bytes, writer.size);
    payload_free(&writer);
}

/* A node that hangs in one job is not excused by frames of another one. */
static void test_hung_beside_another_job(void **state)
{
    struct liar liar = {.rate = 0, .exchanges = EXCHANGE_VERSION, .hangs_at = 3};
    struct world *world = world_under(&liar, 1,
        "{\"reduce\":\"sum\",\"round_timeout\":1,\"push_timeout\":600,\"wait_limit\":600}");

    (void)state;
    while (world->trainer[0].state < TRAINER_DONE && slice_ends < 10000000) {
        slice_ends += 50000;
        assert_true(world_until(world, slice_is_over));
        say_other_frame(&liar, 0);
        say_other_frame(&liar, 1);
    }
    expect_rank(
        &world->trainer[0], ADTOPK_ERR_TIMEOUT, "node 2 is up, but its part", "round_timeout, 1 s");
    ghost_stop(&liar.ghost);
    free(liar.tensor);
    world_destroy(world);
}

/* What no daemon says: joins without ranks, a job or a world, joins with too many tensors. */
static void say_impossible_join(struct liar *liar, unsigned variant)
{
    struct words words;
    Adtopk__PeerJoin *join = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_JOIN);
    uint64_t *tensor = sim_alloc((CORE_MAX_TENSORS + 1) * sizeof(*tensor));
    uint32_t rank = 2;

    join->world_size = variant == 0 ? 0 : 3;
    join->ranks = &rank;
    join->n_ranks = variant == 1 ? 0 : 1;
    join->policy = liar->policy;
    join->exchanges = liar->exchanges;
    join->tensors = variant == 2 ? tensor : liar->tensor;
    join->n_tensors = variant == 2 ? CORE_MAX_TENSORS + 1 : liar->tensors;
    say_of(liar, 0, variant == 3 ? 0 : 1, &words.message);
    free(tensor);
}

/* It waits for nothing there is, no node, no rank, no tensor. */
static void say_impossible_wait(struct liar *liar, unsigned variant)
{
    struct words words;
    Adtopk__PeerWaiting *waiting = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_WAITING);

    waiting->kind = variant == 0 ? WAIT_KINDS : variant == 1 ? WAIT_PEER : WAIT_PUSH;
    waiting->rank = variant == 2 ? UINT32_MAX : 1;
    waiting->tensor = variant == 3 ? UINT32_MAX : 0;
    say(liar, 0, &words.message);
}

/* Each is counted, and changes nothing. */
static void test_impossible(void **state)
{
    (void)state;
    for (unsigned variant = 0; variant < 8; variant++) {
        struct liar liar = {.exchanges = EXCHANGE_VERSION,
            .once = variant < 4 ? say_impossible_join : say_impossible_wait,
            .variant = variant % 4};
        struct world *world = world_with(&liar, 1);
        expect_end(world);
        assert_null(liar.once);
        assert_int_equal(world->trainer[0].state, TRAINER_DONE);
        assert_int_equal(world->node[0].core->bad_messages, 1);
        assert_int_equal(world->node[1].core->bad_messages, 0);
        ghost_stop(&liar.ghost);
        free(liar.tensor);
        world_destroy(world);
    }
}

/* Frames of a view that is not in force yet, more than any daemon has to send. */
static void say_early_frames(struct liar *liar, unsigned count)
{
    const struct payload_header header = {
        .run = liar->run, .source = GHOST, .number = 1, .view = liar->view};
    struct payload_writer writer = {0};

    (void)payload_begin(&writer, &header);
    payload_end(&writer);
    for (unsigned i = 0; i < count; i++) {
        assert_true(ghost_say(&liar->ghost, 0, LINK_BULK, writer.bytes, writer.size));
    }
    payload_free(&writer);
}

/* A node keeps them up to a number, and blames whoever sends more. */
static void test_early_frames(void **state)
{
    struct liar liar = {
        .exchanges = EXCHANGE_VERSION, .once = say_early_frames, .variant = 5000, .silent = true};
    struct world *world = world_with(&liar, 1);

    (void)state;
    expect_end(world);
    expect_rank(&world->trainer[0], ADTOPK_ERR_PROTOCOL, "no room to keep", "frame of node 2");
    ghost_stop(&liar.ghost);
    free(liar.tensor);
    world_destroy(world);
}

static void test_few_lies(void **state)
{
    (void)state;
    messages(0.03, 2 * SEEDS);
}

static void test_many_lies(void **state)
{
    (void)state;
    messages(0.5, 2 * SEEDS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_changed_packets),
        cmocka_unit_test(test_changed_and_sealed_packets),
        cmocka_unit_test(test_honest_ghost),
        cmocka_unit_test(test_other_release),
        cmocka_unit_test(test_hung_beside_another_job),
        cmocka_unit_test(test_impossible),
        cmocka_unit_test(test_early_frames),
        cmocka_unit_test(test_few_lies),
        cmocka_unit_test(test_many_lies),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
