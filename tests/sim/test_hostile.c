/*
 * Hostile peers. First a node whose packets are changed on the way; then one that has all keys and
 * keeps the rules of the links, and says over them what it likes. The others must not crash, lose
 * or double anything of their own, or hang beyond the job's time limits; a job in which the hostile
 * node has no rank is not disturbed at all.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/estimate.h"
#include "peer.pb-c.h"
#include "proto/bits.h"
#include "proto/codec.h"
#include "proto/payload_frame.h"
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
        scenario.again = scenario.dies = false;
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
};

static void say(struct liar *liar, uint16_t peer, Adtopk__PeerMessage *message)
{
    Adtopk__PeerAbout about = ADTOPK__PEER_ABOUT__INIT;
    size_t size;
    uint8_t *bytes;

    about.owner = 1000;
    about.name = (char *)(uintptr_t) "job";
    about.run_id = (char *)(uintptr_t) "1";
    about.run = liar->run;
    about.sender_job = 1;
    about.receiver_job = liar->job[peer];
    message->about = &about;
    bytes = sim_must(codec_pack(&message->base, &size));
    (void)ghost_say(&liar->ghost, peer, LINK_CONTROL, bytes, size);
    free(bytes);
}

static void say_join(struct liar *liar, uint16_t peer, uint32_t rank, uint32_t ranks, bool reply)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerJoin join = ADTOPK__PEER_JOIN__INIT;
    uint32_t *list = sim_alloc((ranks + 1) * sizeof(*list));

    for (uint32_t r = 0; r < ranks; r++) {
        list[r] = rank + r;
    }
    join.world_size = 3;
    join.ranks = list;
    join.n_ranks = ranks;
    join.policy = liar->policy;
    join.exchanges = liar->exchanges;
    join.tensors = liar->tensor;
    join.n_tensors = liar->tensors;
    join.view = liar->view;
    join.reply = reply;
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_JOIN;
    message.join = &join;
    say(liar, peer, &message);
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
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerPrepare prepare = ADTOPK__PEER_PREPARE__INIT;
    struct world *world = liar->ghost.world;
    uint32_t members[6];
    uint64_t incarnations[6], jobs[6];
    unsigned step = 1 + (unsigned)world_random(world, 2);

    for (unsigned i = 0; i < 6; i++) {
        members[i] = world_chance(world, 0.9) ? i * step : (uint32_t)any(liar);
        incarnations[i] = i * step < 3 ? world->node[i * step].incarnation : any(liar);
        jobs[i] = i * step < 2 ? liar->job[i * step] : 1;
    }
    prepare.view = (uint32_t)any(liar);
    prepare.members = members;
    prepare.n_members = world_random(world, 7);
    prepare.incarnations = incarnations;
    prepare.n_incarnations = world_chance(world, 0.9) ? prepare.n_members : 1;
    prepare.jobs = jobs;
    prepare.n_jobs = prepare.n_members;
    prepare.run = world_chance(world, 0.9) ? liar->run : any(liar);
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_PREPARE;
    message.prepare = &prepare;
    say(liar, peer, &message);
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
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerPolicyAsk ask = ADTOPK__PEER_POLICY_ASK__INIT;
    Adtopk__PeerPolicyPropose propose = ADTOPK__PEER_POLICY_PROPOSE__INIT;
    Adtopk__PeerPolicyAnswer reply = ADTOPK__PEER_POLICY_ANSWER__INIT;
    Adtopk__PeerPolicyEnd end = ADTOPK__PEER_POLICY_END__INIT;
    struct world *world = liar->ghost.world;
    Adtopk__PeerPolicy policy = any_policy(liar);

    ask.policy = propose.policy = world_chance(world, 0.9) ? &policy : NULL;
    propose.attempt = reply.attempt = (uint32_t)any(liar);
    reply.version = end.version = policy.version;
    reply.status = end.status = (uint32_t)any(liar);
    reply.text = end.text = policy.text;
    end.node = policy.node;
    switch (world_random(world, 4)) {
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
        message.policy_answer = &reply;
        break;
    default:
        message.kind_case = ADTOPK__PEER_MESSAGE__KIND_POLICY_END;
        message.policy_end = &end;
        break;
    }
    say(liar, peer, &message);
}

/* Random bytes, or nearly what could be. */
static void lie_estimates(struct liar *liar, uint16_t peer)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerEstimates estimates = ADTOPK__PEER_ESTIMATES__INIT;
    struct world *world = liar->ghost.world;
    uint32_t tensors =
        world_chance(world, 0.8) ? world->job[0].tensors : (uint32_t)world_random(world, 9);
    uint8_t *bytes = sim_alloc(estimate_packed_size(tensors) + 1);
    struct estimates own;

    estimates.policy = world_chance(world, 0.7) ? 0 : (uint32_t)any(liar);
    estimates.step = world_chance(world, 0.7) ? world_random(world, 10) : any(liar);
    estimates.packed.data = bytes;
    estimates.packed.len = estimate_packed_size(tensors);
    if (estimate_init(&own, tensors, world->scenario.nodes)) {
        estimate_pack(&own, bytes);
        estimate_free(&own);
    }
    for (unsigned i = (unsigned)world_random(world, 8); i-- > 0;) {
        bytes[world_random(world, estimates.packed.len)] = (uint8_t)world_random(world, 256);
    }
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_ESTIMATES;
    message.estimates = &estimates;
    say(liar, peer, &message);
    free(bytes);
}

static void lie_state(struct liar *liar, uint16_t peer)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerState peer_state = ADTOPK__PEER_STATE__INIT;
    uint32_t numbers[4] = {
        (uint32_t)any(liar), (uint32_t)any(liar), (uint32_t)any(liar), (uint32_t)any(liar)};
    uint64_t steps[4] = {any(liar), any(liar), any(liar), any(liar)};
    Adtopk__PeerPolicy policy = any_policy(liar);

    peer_state.policy = world_chance(liar->ghost.world, 0.5) ? &policy : NULL;
    peer_state.held = (uint32_t)any(liar);
    peer_state.view = (uint32_t)any(liar);
    peer_state.steps_done = any(liar);
    peer_state.ops_done = any(liar);
    peer_state.delivered = numbers;
    peer_state.n_delivered = world_random(liar->ghost.world, 5);
    peer_state.split = numbers;
    peer_state.n_split = world_random(liar->ghost.world, 5);
    peer_state.split_step = steps;
    peer_state.n_split_step = world_random(liar->ghost.world, 5);
    peer_state.fresh = world_chance(liar->ghost.world, 0.5);
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_STATE;
    message.state = &peer_state;
    say(liar, peer, &message);
}

static void lie_commit(struct liar *liar, uint16_t peer)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerCommit commit = ADTOPK__PEER_COMMIT__INIT;
    Adtopk__PeerRound round = ADTOPK__PEER_ROUND__INIT;
    Adtopk__PeerRound *rounds[1] = {&round};
    uint32_t bucket = (uint32_t)any(liar);
    uint64_t step = any(liar);
    Adtopk__PeerPolicy policy = any_policy(liar);

    commit.policy = world_chance(liar->ghost.world, 0.5) ? &policy : NULL;
    commit.split_policy = (uint32_t)any(liar);
    round.number = any(liar);
    round.bucket = (uint32_t)any(liar);
    round.operation = world_chance(liar->ghost.world, 0.3);
    round.holder = (uint32_t)any(liar);
    commit.view = (uint32_t)any(liar);
    commit.delivered = rounds;
    commit.n_delivered = world_random(liar->ghost.world, 2);
    commit.split = &bucket;
    commit.n_split = 1;
    commit.split_step = &step;
    commit.n_split_step = world_random(liar->ghost.world, 2);
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_COMMIT;
    message.commit = &commit;
    say(liar, peer, &message);
}

static void lie_small(struct liar *liar, uint16_t peer, unsigned kind)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerFetch fetch = ADTOPK__PEER_FETCH__INIT;
    Adtopk__PeerRound round = ADTOPK__PEER_ROUND__INIT;
    Adtopk__PeerSplit split = ADTOPK__PEER_SPLIT__INIT;
    Adtopk__PeerLeave leaving = ADTOPK__PEER_LEAVE__INIT;
    Adtopk__PeerFail fail = ADTOPK__PEER_FAIL__INIT;

    round.number = any(liar);
    round.bucket = (uint32_t)any(liar);
    round.operation = world_chance(liar->ghost.world, 0.3);
    fetch.view = (uint32_t)world_random(liar->ghost.world, 4);
    fetch.round = world_chance(liar->ghost.world, 0.9) ? &round : NULL;
    split.step = any(liar);
    split.bucket = (uint32_t)any(liar);
    split.policy = world_chance(liar->ghost.world, 0.5) ? 0 : (uint32_t)any(liar);
    leaving.steps_done = any(liar);
    fail.status = (uint32_t)any(liar);
    fail.text = (char *)(uintptr_t) "%s%n\x1b[2J\xe2\x80\xae\xff";
    if (kind == 0) {
        message.kind_case = ADTOPK__PEER_MESSAGE__KIND_FETCH;
        message.fetch = &fetch;
    } else if (kind == 1) {
        message.kind_case = ADTOPK__PEER_MESSAGE__KIND_SPLIT;
        message.split = &split;
    } else if (kind == 2) {
        message.kind_case = ADTOPK__PEER_MESSAGE__KIND_LEAVE;
        message.leave = &leaving;
    } else {
        message.kind_case = ADTOPK__PEER_MESSAGE__KIND_FAIL;
        message.fail = &fail;
    }
    say(liar, peer, &message);
}

/* A frame with right checksums and any contents. */
static void lie_frame(struct liar *liar, uint16_t peer)
{
    struct world *world = liar->ghost.world;
    struct payload_writer writer = {0};
    float values[40];
    struct payload_header header = {
        .run = liar->run,
        .number = any(liar),
        .view = (uint32_t)any(liar),
        .bucket = (uint32_t)any(liar),
        .source = GHOST,
        .kind = (uint8_t)world_random(world, 5),
        .phase = (uint8_t)world_random(world, 3),
        .flags = (uint8_t)world_random(world, 2),
    };

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

static void lie(struct liar *liar)
{
    struct world *world = liar->ghost.world;
    uint16_t peer = (uint16_t)world_random(world, 2);
    uint8_t rubbish[64];

    liar->lies++;
    switch (world_random(world, 15)) {
    case 0:
        say_join(liar, peer, (uint32_t)any(liar), (uint32_t)world_random(world, 5), true);
        break;
    case 1: lie_prepare(liar, peer); break;
    case 2: lie_state(liar, peer); break;
    case 3: lie_commit(liar, peer); break;
    case 4:
    case 5:
    case 6: lie_small(liar, peer, 0); break;
    case 7: lie_small(liar, peer, 1); break;
    case 8:
        lie_small(liar, peer, world_chance(world, 0.1) ? 2 + (unsigned)world_random(world, 2) : 1);
        break;
    case 9:
    case 10: lie_frame(liar, peer); break;
    case 11:
    case 12: lie_policy(liar, peer); break;
    case 13: lie_estimates(liar, peer); break;
    default:
        for (unsigned i = 0; i < sizeof(rubbish); i++) {
            rubbish[i] = (uint8_t)world_random(world, 256);
        }
        (void)ghost_say(&liar->ghost, peer, (enum link_lane)world_random(world, 2), rubbish,
            world_random(world, sizeof(rubbish)));
        break;
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
        bytes[world_random(world, frame->size)] ^= (uint8_t)(1u << world_random(world, 8));
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
        Adtopk__PeerMessage reply = ADTOPK__PEER_MESSAGE__INIT;
        Adtopk__PeerState peer_state = ADTOPK__PEER_STATE__INIT;
        peer_state.view = liar->view = message->prepare->view;
        liar->run = message->prepare->run;
        peer_state.steps_done = liar->steps;
        reply.kind_case = ADTOPK__PEER_MESSAGE__KIND_STATE;
        reply.state = &peer_state;
        say(liar, peer, &reply);
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
        echo(liar, heard);
    }
    if (liar->view > 0 && world_chance(ghost->world, liar->rate)) {
        lie(liar);
    }
}

/* Three nodes of one rank each; the ghost plays the third, and only job 0 has a rank there. */
static struct world *world_with(struct liar *liar, uint64_t seed)
{
    double rate = liar->rate;
    struct scenario scenario = failure_scenario(POLICY_WITH(",\"sparse_collective\":\"auto\""));
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
        cmocka_unit_test(test_few_lies),
        cmocka_unit_test(test_many_lies),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
