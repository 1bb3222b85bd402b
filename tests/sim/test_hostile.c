/*
 * Hostile peers. In the first tests a node's packets are changed on the way. In the others a node
 * has all keys, keeps the rules of the links, and sends any messages it likes. The other nodes must
 * not crash, lose or double anything of their own, or hang beyond the job's time limits. A job in
 * which the hostile node has no rank is not disturbed at all.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/job/model.h"
#include "daemon/job/recording.h"
#include "daemon/job/roster.h"
#include "peer.pb-c.h"
#include "tests/host/sanitized.h"
#include "tests/host/words.h"
#include "tests/sim/failure.h"
#include "tests/sim/liar.h"

#define SEEDS CASES(60u, 20u)

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
        if (scenario.loses) {
            continue; /* there the hostile node is left out, rightly */
        }
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

/* What a job does when it loses nodes, or when some come. */
static const char *const policies[] = {
    POLICY_WITH(",\"sparse_collective\":\"auto\""),
    POLICY_WITH(",\"on_peer_loss\":\"shrink\",\"shrink_after\":1"),
    POLICY_WITH(",\"on_peer_loss\":\"shrink\",\"shrink_after\":1,\"grow\":true"),
};

static void messages(double rate, uint64_t seeds)
{
    uint64_t lies = 0, steps = 0;
    unsigned failed = 0;

    for (uint64_t seed = 1; seed <= seeds; seed++) {
        struct liar liar = {.rate = rate, .exchanges = EXCHANGE_VERSION};
        struct world *world = liar_world_under(&liar, seed, policies[seed / 3 % 3]);
        expect_end(world);
        lies += liar.lies;
        steps += world->trainer[0].step;
        failed += world->trainer[0].state == TRAINER_FAILED ? 1 : 0;
        if (rate == 0) {
            assert_int_equal(world->trainer[0].state, TRAINER_DONE);
            assert_int_equal(world->trainer[1].state, TRAINER_DONE);
        }
        liar_end(&liar, world);
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
        world = liar_world(&liar, 1);
        expect_end(world);
        assert_int_equal(world->trainer[0].state, TRAINER_FAILED);
        assert_int_equal(world->trainer[0].error.code, ADTOPK_ERR_MISMATCH);
        assert_non_null(strstr(world->trainer[0].error.text, "run the same release on both"));
        liar_end(&liar, world);
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
    const struct payload_header header = {.run = liar->run + 1, .source = LIAR_NODE};
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
    struct world *world = liar_world_under(&liar, 1,
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
    liar_end(&liar, world);
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
    liar_say_of(liar, 0, variant == 3 ? 0 : 1, &words.message);
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
    liar_say(liar, 0, &words.message);
}

/* What its residuals add up to is not a number, or more than residuals can hold: two of those would
 * add up to infinity. */
static void say_impossible_residual(struct liar *liar, unsigned variant)
{
    struct words words;
    Adtopk__PeerResidual *residual = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_RESIDUAL);

    residual->sum = variant == 0 ? NAN : variant == 1 ? -DBL_MAX : 1;
    residual->hashed = variant == 2 ? 1e308 : variant == 3 ? INFINITY : 1;
    liar_say(liar, 0, &words.message);
}

/* The sum of magnitudes is no number, negative or too large. */
static void say_impossible_magnitude(struct liar *liar, unsigned variant)
{
    static const double magnitudes[] = {NAN, -1, DBL_MAX, INFINITY};
    struct words words;
    Adtopk__PeerResidual *residual = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_RESIDUAL);

    residual->measured = true;
    residual->magnitude = magnitudes[variant];
    liar_say(liar, 0, &words.message);
}

/* Each is counted, and changes nothing. */
static void test_impossible(void **state)
{
    static void (*const say[])(struct liar * liar, unsigned variant) = {say_impossible_join,
        say_impossible_wait, say_impossible_residual, say_impossible_magnitude};

    (void)state;
    for (unsigned variant = 0; variant < 16; variant++) {
        struct liar liar = {
            .exchanges = EXCHANGE_VERSION, .once = say[variant / 4], .variant = variant % 4};
        struct world *world = liar_world(&liar, 1);
        expect_end(world);
        assert_null(liar.once);
        assert_int_equal(world->trainer[0].state, TRAINER_DONE);
        assert_int_equal(world->node[0].core->bad_messages, 1);
        assert_int_equal(world->node[1].core->bad_messages, 0);
        liar_end(&liar, world);
    }
}

/* An answer to a question that nobody can have asked: no view is in force yet. */
static void say_early_records(struct liar *liar, unsigned variant)
{
    struct words words;
    Adtopk__PeerRecords *records = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_RECORDS);

    records->number = variant;
    records->whole = 1;
    liar_say(liar, 0, &words.message);
}

static void test_early_records(void **state)
{
    (void)state;
    for (unsigned number = 0; number < 2; number++) {
        struct liar liar = {
            .exchanges = EXCHANGE_VERSION, .once = say_early_records, .variant = number};
        struct world *world = liar_world(&liar, 1);
        expect_end(world);
        assert_null(liar.once);
        assert_int_equal(world->trainer[0].state, TRAINER_DONE);
        assert_int_equal(world->node[0].core->bad_messages, 0);
        assert_true(world->node[0].core->late_messages > 0);
        liar_end(&liar, world);
    }
}

/* A node that asks for records and ranks again and again, and reads nothing, gets no more than a
 * few. */
static void test_many_questions(void **state)
{
    struct liar liar = {.rate = 0, .exchanges = EXCHANGE_VERSION, .hangs_at = 3};
    struct world *world = liar_world(&liar, 1);
    Adtopk__PeerRecordsAsk ask = ADTOPK__PEER_RECORDS_ASK__INIT;
    const Adtopk__PeerRanksAsk about_ranks = ADTOPK__PEER_RANKS_ASK__INIT;
    struct link_stats stats;

    (void)state;
    slice_ends = 1000000;
    assert_true(world_until(world, slice_is_over));
    ask.most = UINT32_MAX;
    for (unsigned i = 0; i < 20000; i++) {
        recording_asked(world->node[0].core->jobs, LIAR_NODE, &ask);
        roster_asked(world->node[0].core->jobs, LIAR_NODE, &about_ranks);
    }
    assert_true(links_stats(world->node[0].core->links, LIAR_NODE, &stats));
    assert_true(stats.queued_bytes > 1u << 18 && stats.queued_bytes < 1u << 19);
    expect_end(world);
    liar_end(&liar, world);
}

/* Clients that ask and go away could fill the queue of actions: their number has a limit. */
static void ask_too_often(struct job *job)
{
    struct event event = {.type = EVENT_RANKS, .asked = {.job = job->number}};
    struct error err;

    for (unsigned i = 0; i < ROSTER_ASKING_MAX; i++) {
        assert_int_equal(roster_request(job->core, &event, &err), ADTOPK_OK);
    }
    assert_int_equal(roster_request(job->core, &event, &err), ADTOPK_ERR_STATE);
    roster_drop(job);
}

/* A node takes one answer to its question about ranks, and only one that can be true. */
static void test_told_ranks(void **state)
{
    struct liar liar = {.rate = 0, .exchanges = EXCHANGE_VERSION, .hangs_at = 3};
    struct world *world = liar_world(&liar, 1);
    Adtopk__PeerRanks answer = ADTOPK__PEER_RANKS__INIT;
    Adtopk__PeerRank rank = ADTOPK__PEER_RANK__INIT, *list[2] = {&rank, &rank};
    struct job *job;
    uint64_t late, bad;

    (void)state;
    slice_ends = 1000000;
    assert_true(world_until(world, slice_is_over));
    job = world->node[0].core->jobs;
    ask_too_often(job);
    operator_look(world, 0, 0, EVENT_RANKS);
    late = job->core->late_messages;
    bad = job->core->bad_messages;
    answer.ranks = list;
    answer.n_ranks = 1;
    answer.number = job->figures.roster.number + 1;
    roster_answered(job, LIAR_NODE, &answer); /* to another question */
    assert_int_equal(job->core->late_messages, late + 1);
    answer.number--;
    answer.n_ranks = 2;
    roster_answered(job, LIAR_NODE, &answer); /* of more ranks than it has */
    answer.n_ranks = 1;
    rank.state = RANK_STATES;
    roster_answered(job, LIAR_NODE, &answer);
    rank.state = RANK_READY;
    rank.pace_us = NAN;
    roster_answered(job, LIAR_NODE, &answer);
    rank.pace_us = 1;
    rank.rank = job->run.world_size; /* no rank of the run */
    roster_answered(job, LIAR_NODE, &answer);
    rank.rank = 0;
    assert_int_equal(job->core->bad_messages, bad + 4);
    roster_answered(job, LIAR_NODE, &answer);
    roster_answered(job, LIAR_NODE, &answer);
    assert_int_equal(job->core->late_messages, late + 2);
    assert_int_equal(job->core->bad_messages, bad + 4);
    expect_end(world);
    assert_true(world->stats.listed > 0);
    liar_end(&liar, world);
}

/* Answers with this many records of which the first has number 0. */
static void tell_records(struct job *job, uint32_t count)
{
    static uint8_t packed[200 * RECORD_PACKED];
    Adtopk__PeerRecords answer = ADTOPK__PEER_RECORDS__INIT;

    assert_true(count <= sizeof packed / RECORD_PACKED);
    answer.number = job->figures.recording.number;
    answer.whole = 1;
    answer.format = RECORDING_FORMAT;
    answer.packed.data = packed;
    answer.packed.len = (size_t)count * RECORD_PACKED;
    answer.older = 1;
    recording_answered(job, LIAR_NODE, &answer);
}

/* A node tells more records than it said that there are. */
static void test_told_records(void **state)
{
    struct liar liar = {.rate = 0, .exchanges = EXCHANGE_VERSION, .hangs_at = 3};
    struct world *world = liar_world(&liar, 1);
    struct job *job;

    (void)state;
    slice_ends = 1000000;
    assert_true(world_until(world, slice_is_over));
    job = world->node[0].core->jobs;
    operator_look(world, 0, 0, EVENT_RECORDS);
    tell_records(job, 1);
    while (job->figures.recording.ticket != NULL &&
           recording_deadline(job) != job->figures.recording.due_us) {
        job->core->now_us = recording_deadline(job);
        recording_check_time(job);
        tell_records(job, 200);
    }
    expect_end(world);
    liar_end(&liar, world);
}

/* Frames of a view that is not in force yet, more than any daemon has to send. */
static void say_early_frames(struct liar *liar, unsigned count)
{
    const struct payload_header header = {
        .run = liar->run, .source = LIAR_NODE, .number = 1, .view = liar->view};
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
    struct world *world = liar_world(&liar, 1);

    (void)state;
    expect_end(world);
    expect_rank(&world->trainer[0], ADTOPK_ERR_PROTOCOL, "no room to keep", "frame of node 2");
    liar_end(&liar, world);
}

/* ------------------------------------------------------------------ newcomers */

static void say_its_part_ended(struct liar *liar)
{
    for (uint16_t peer = 0; peer < 2; peer++) {
        struct words words;
        Adtopk__PeerFail *failed = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_FAIL);
        failed->status = ADTOPK_ERR_PEER;
        failed->text = (char *)(uintptr_t) "rank 2 is gone";
        failed->node = LIAR_NODE;
        failed->alone = true;
        liar_say(liar, peer, &words.message);
    }
}

/* As a newcomer, to the coordinator. */
static void say_newcomer(struct liar *liar, uint64_t job, uint32_t *ranks, size_t count)
{
    struct words words;
    Adtopk__PeerJoin *join = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_JOIN);

    join->world_size = 3;
    join->ranks = ranks;
    join->n_ranks = count;
    join->policy = liar->policy;
    join->exchanges = liar->exchanges;
    join->tensors = liar->tensor;
    join->n_tensors = liar->tensors;
    liar->run = 0;
    liar_say_of(liar, 0, job, &words.message);
}

static const struct liar *newcomer;

static bool newcomer_is_told(const struct world *world)
{
    return newcomer->told[0] != '\0' || world->trainer[0].state >= TRAINER_DONE;
}

static bool is_at_rest(const struct world *world)
{
    return world->trainer[0].state >= TRAINER_DONE ||
           (world->trainer[0].step == world->trainer[0].hold_step && world->now_us > slice_ends);
}

/* Its ranks must be there, be lost, and ascend. The job goes on without it. */
static void test_newcomer_with_other_ranks(void **state)
{
    static uint32_t ranks[][2] = {{2, 1}, {3, 4}, {1, 2}, {2, 2}};
    static const char *const why[] = {"names rank 1 of job 'job' after rank 2: ranks ascend",
        "has rank 3 of job 'job', which has 3", "rank 1 of job 'job' trains on another node",
        "names rank 2 of job 'job' after rank 2"};
    struct liar liar = {.exchanges = EXCHANGE_VERSION};
    struct world *world = liar_world_under(&liar, 1, policies[2]);

    (void)state;
    newcomer = &liar;
    for (unsigned i = 0; i < 2; i++) {
        world->trainer[i].hold = HOLD_STEP;
        world->trainer[i].hold_step = 4;
    }
    slice_ends = 1000000;
    assert_true(world_until(world, is_at_rest));
    say_its_part_ended(&liar);
    slice_ends = 2000000;
    assert_true(world_until(world, is_at_rest));
    for (unsigned i = 0; i < 4; i++) {
        liar.told[0] = '\0';
        say_newcomer(&liar, 2 + i, ranks[i], 2);
        assert_true(world_until(world, newcomer_is_told));
        assert_non_null(strstr(liar.told, why[i]));
    }
    let_go(&world->trainer[0]);
    let_go(&world->trainer[1]);
    expect_end(world);
    assert_int_equal(world->trainer[0].state, TRAINER_DONE);
    assert_int_equal(world->trainer[1].state, TRAINER_DONE);
    liar_end(&liar, world);
}

/* ------------------------------------------------------------------ anything */

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
        cmocka_unit_test(test_early_records),
        cmocka_unit_test(test_many_questions),
        cmocka_unit_test(test_told_ranks),
        cmocka_unit_test(test_told_records),
        cmocka_unit_test(test_newcomer_with_other_ranks),
        cmocka_unit_test(test_few_lies),
        cmocka_unit_test(test_many_lies),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
