/*
 * Spoilt and forged frames of `balanced`, `oktopk` and `exclusive`, in every phase. The receiver
 * refuses each with an error that names its node, whatever the frame claims, and frees everything.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/collective/oktopk.h"
#include "tests/unit/arrays.h"
#include "tests/unit/collective_group.h"

#define MEMBERS 3
#define NUMEL 120
#define SENT 33

#define PHASES ((unsigned)OKTOPK_PHASES)

/* One tensor with nearly all entries in its first third. Ok-Topk has to vote twice and to balance.
 */
struct fixture {
    struct group group;
    struct exchange_tensor tensor[MEMBERS];
    uint32_t position[MEMBERS][SENT];
    float value[MEMBERS][SENT], acc[MEMBERS][NUMEL];
    uint32_t update_position[MEMBERS][NUMEL], returned_position[MEMBERS][NUMEL];
    float update_value[MEMBERS][NUMEL], returned_value[MEMBERS][NUMEL];
};

static void fixture_init(struct fixture *fixture, const struct collective_ops *ops)
{
    memset(fixture, 0, sizeof(*fixture));
    group_init(&fixture->group, ops, MEMBERS);
    group_set_values(&fixture->group, PAYLOAD_VALUE_BF16, 1);
    for (unsigned m = 0; m < MEMBERS; m++) {
        for (unsigned i = 0; i < SENT; i++) {
            fixture->position[m][i] = i < 30 ? i + m : 40 * (i - 30) + 39;
            fixture->value[m][i] = (float)(1 + random_below(127));
        }
        for (unsigned i = 0; i < NUMEL; i++) {
            fixture->acc[m][i] = random_value();
        }
        fixture->tensor[m] = (struct exchange_tensor){
            .shape = {.view = {1, NUMEL, 1}, .max_count = SENT},
            .numel = NUMEL,
            .acc = fixture->acc[m],
            .select = SENT,
            .sent = {fixture->position[m], fixture->value[m], SENT, SENT},
            .update = {fixture->update_position[m], fixture->update_value[m], 0, SENT * MEMBERS},
            .rests = {fixture->returned_position[m], fixture->returned_value[m], 0, NUMEL},
        };
        fixture->group.exchange[m].tensors = 1;
        fixture->group.exchange[m].tensor = &fixture->tensor[m];
    }
}

/* Visits every frame of every phase. */
static void each_frame(const struct collective_ops *ops,
    void (*visit)(struct group *group, unsigned phase, unsigned from, unsigned to))
{
    static struct fixture fixture;
    unsigned frames, all;

    fixture_init(&fixture, ops);
    group_exchange(&fixture.group);
    frames = group_each_frame(&fixture.group, visit);
    all = MEMBERS * (MEMBERS - 1) * ops->phases(fixture.group.exchange);
    /* While Ok-Topk balances, a member with nothing to give away sends no frame. */
    assert_true(frames == all || (ops == &collective_oktopk && frames < all && frames > all - 6));
    group_free(&fixture.group);
}

static void test_spoilt(void **state)
{
    (void)state;
    each_frame(&collective_balanced, group_spoil);
    each_frame(&collective_oktopk, group_spoil);
    each_frame(&collective_exclusive, group_spoil);
}

/* ------------------------------------------------------------------ other sections */

/* Each kind of list differs from a right one in one respect. */
enum section { NOTHING, BYTES, DENSE, OUTSIDE, LONG, SECTIONS };

static void put_section(struct payload_writer *writer, enum section section)
{
    static const float zeros[NUMEL];
    const struct payload_shape shape = {.view = {1, NUMEL, 1}, .max_count = NUMEL};
    uint32_t position[NUMEL];
    float value[NUMEL];
    struct sparse list = {position, value, section == LONG ? SENT + 1 : 1, NUMEL};
    enum adtopk_status status = ADTOPK_OK;

    for (unsigned i = 0; i < NUMEL; i++) {
        position[i] = section == OUTSIDE ? NUMEL - 1 : i;
        value[i] = 1;
    }
    if (section == BYTES) {
        status = payload_put_bytes(writer, zeros, 7);
    } else if (section == DENSE) {
        status = payload_put_dense(writer, zeros, NUMEL / MEMBERS, PAYLOAD_VALUE_F32, NULL);
    } else if (section != NOTHING) {
        status = payload_put_list(writer, &shape, &list, PAYLOAD_INDEX_RAW, PAYLOAD_VALUE_F32);
    }
    assert_int_equal(status, ADTOPK_OK);
}

/* Replaces a frame by one with two other sections. */
static void forge(struct group *group, unsigned phase, unsigned from, unsigned to,
    enum section first, enum section second)
{
    struct payload_writer writer = group_begin(group, phase, from);

    put_section(&writer, first);
    put_section(&writer, second);
    group_end(group, phase, from, to, &writer);
}

static void other_sections(struct group *group, unsigned phase, unsigned from, unsigned to)
{
    struct group_frame *frame = &group->frame[phase][from][to];
    struct group_frame good = {allocate(frame->size, 1), frame->size};

    memcpy(good.bytes, frame->bytes, good.size);
    for (int section = NOTHING; section < SECTIONS; section++) {
        /* A sum may have as many entries as there are positions. */
        bool sums = group->ops == &collective_balanced && phase == 1;
        if (sums && section == LONG) {
            continue;
        }
        forge(group, phase, from, to, (enum section)section, NOTHING);
        group_assert_blamed(group, phase, from, to);
        forge(group, phase, from, to, OUTSIDE, (enum section)section);
        group_assert_blamed(group, phase, from, to);
    }
    group_replace(group, phase, from, to, good.bytes, good.size);
    free(good.bytes);
}

static void test_other_sections(void **state)
{
    (void)state;
    each_frame(&collective_balanced, other_sections);
    each_frame(&collective_oktopk, other_sections);
    each_frame(&collective_exclusive, other_sections);
}

/* A frame does not interpret positions of exclusive: it takes any bytes. */
static void any_positions(struct group *group, unsigned phase, unsigned from, unsigned to)
{
    struct group_frame *frame = &group->frame[phase][from][to];
    struct group_frame good = {allocate(frame->size, 1), frame->size};

    memcpy(good.bytes, frame->bytes, good.size);
    for (unsigned i = 0; phase == 0 && i < 500; i++) {
        struct payload_writer writer = group_begin(group, 0, from);
        uint8_t bytes[80];
        struct error err;
        size_t size = 9 + random_below(i % 2 == 0 ? 4 : 60);
        for (size_t b = 0; b < size; b++) {
            bytes[b] = (uint8_t)random_below(i % 5 == 0 ? 256 : 6);
        }
        assert_int_equal(payload_put_bytes(&writer, bytes, size), ADTOPK_OK);
        group_end(group, 0, from, to, &writer);
        if (group_judge(group, phase, to, &err) != ADTOPK_OK) {
            group_assert_blamed(group, phase, from, to);
        } else {
            assert_int_equal(size, SENT / MEMBERS); /* as many entries as its share, a byte each */
        }
    }
    group_replace(group, phase, from, to, good.bytes, good.size);
    free(good.bytes);
}

static void test_any_positions(void **state)
{
    (void)state;
    each_frame(&collective_exclusive, any_positions);
}

/* ------------------------------------------------------------------ votes */

/* Puts a vote into a frame in which a vote was cast. */
static void cast(
    struct group *group, unsigned phase, unsigned from, unsigned to, const struct vote *vote)
{
    struct payload_writer writer = group_begin(group, phase, from);
    uint8_t bytes[VOTE_BYTES];

    assert_int_equal(
        payload_put_bytes(&writer, bytes, vote_write(vote, phase == VOTE, bytes)), ADTOPK_OK);
    group_end(group, phase, from, to, &writer);
}

static void vote_and_blame(
    struct group *group, unsigned phase, unsigned from, unsigned to, const struct vote *vote)
{
    cast(group, phase, from, to, vote);
    group_assert_blamed(group, phase, from, to);
}

/* Votes that contradict earlier ones. */
static void impossible(struct group *group, unsigned phase, unsigned from, unsigned to)
{
    const struct vote good = oktopk_region(&group->exchange[from], 0)->vote;
    struct vote vote = good;
    struct error err;

    if (phase == VOTE) {
        vote.cells = 0; /* it had no window in that case */
        vote.above = 0;
        vote.sent = SENT + 1;
        vote_and_blame(group, VOTE, from, to, &vote);
        vote.sent = UINT64_C(1) << 34;
        vote_and_blame(group, VOTE, from, to, &vote);
        vote.sent = 0; /* but some entries came */
        vote_and_blame(group, VOTE, from, to, &vote);
        vote.sent = SENT;
    } else if (phase == VOTE_AGAIN) {
        vote.above++;
        vote_and_blame(group, VOTE_AGAIN, from, to, &vote);
        vote.above--;
        vote.cell[255]++;
        vote_and_blame(group, VOTE_AGAIN, from, to, &vote);
        vote.cell[255] += UINT64_C(1) << 34;
        vote_and_blame(group, VOTE_AGAIN, from, to, &vote);
        vote = good;
    } else {
        return;
    }
    cast(group, phase, from, to, &vote);
    assert_int_equal(group_judge(group, phase, to, &err), ADTOPK_OK);
}

static void test_impossible_votes(void **state)
{
    (void)state;
    each_frame(&collective_oktopk, impossible);
}

static uint64_t some_count(void)
{
    return random_below(4) == 0 ? random_next() >> (29 + random_below(30)) : random_below(40);
}

/* Changes a vote. In most cases a second vote agrees with the first. */
static void falsify(struct vote *vote, const struct vote *first, unsigned phase)
{
    uint32_t octave = vote->first / VOTE_OCTAVE_CELLS;

    if (phase == VOTE) {
        vote->sent = random_below(3) == 0 ? random_below(SENT + 1) : vote->sent;
        for (unsigned i = 0; i < random_below(4); i++) {
            vote->octave[random_below(2) == 0 ? random_below(VOTE_OCTAVES)
                                              : 128 + random_below(8)] = some_count();
        }
    } else if (random_below(8) == 0) {
        vote->cell[random_below(VOTE_OCTAVE_CELLS)] = some_count();
    } else {
        uint64_t all;
        vote_split_octave(first, octave, &vote->above, &all);
        memset(vote->cell, 0, sizeof(vote->cell));
        vote->cell[random_below(VOTE_OCTAVE_CELLS)] = all / 2;
        vote->cell[random_below(VOTE_OCTAVE_CELLS)] += all - all / 2;
    }
}

/* Produces a phase of member m and hands its frames over. False if the member refuses its frames.
 * Members other than the liar then name the liar. */
static bool produce(struct group *group, unsigned phase, unsigned m, unsigned liar)
{
    struct exchange *exchange = &group->exchange[m];
    struct error err = {ADTOPK_OK, ""};
    char name[16];

    (void)snprintf(name, sizeof(name), "node %u ", group->node[liar]);
    if ((phase < PHASES ? group->ops->produce(exchange, phase, &err)
                        : group->ops->finish(exchange, &err)) != ADTOPK_OK) {
        assert_int_equal(err.code, ADTOPK_ERR_PROTOCOL);
        if (m != liar && strstr(err.text, name) == NULL) {
            fail_msg("\"%s\" does not name %s", err.text, name);
        }
    }
    for (unsigned f = 0; err.code == ADTOPK_OK && f < exchange->outgoing_count; f++) {
        const struct exchange_frame *out = &exchange->outgoing[f];
        for (unsigned to = 0; to < MEMBERS; to++) {
            if (to != m && (out->to == to || out->to == EXCHANGE_ALL)) {
                group_replace(group, phase, m, to, out->frame.bytes, out->frame.size);
            }
        }
    }
    exchange_drop_frames(exchange);
    return err.code == ADTOPK_OK;
}

/* A member that refused, or that waits for a frame which never comes, takes no further part. */
static void look_who_is_there(const struct group *group, unsigned phase, bool there[MEMBERS])
{
    for (unsigned to = 0; to < MEMBERS; to++) {
        for (unsigned from = 0; there[to] && from < MEMBERS; from++) {
            there[to] = !group->ops->expects(&group->exchange[to], phase, from) ||
                        group->frame[phase][from][to].bytes != NULL;
        }
    }
}

/* One member tells all others the same lies, and otherwise behaves correctly. */
static unsigned run_lies(unsigned liar)
{
    static struct fixture fixture;
    struct group *group = &fixture.group;
    bool there[MEMBERS] = {true, true, true};
    struct vote first = {0};
    unsigned refused = 0;

    fixture_init(&fixture, &collective_oktopk);
    for (unsigned phase = 0; phase <= PHASES; phase++) {
        struct vote vote;
        for (unsigned m = 0; m < MEMBERS; m++) {
            if (there[m]) {
                there[m] = produce(group, phase, m, liar);
                refused += !there[m];
            }
        }
        vote = oktopk_region(&group->exchange[liar], 0)->vote;
        if (there[liar] && (phase == VOTE || phase == VOTE_AGAIN)) {
            falsify(&vote, &first, phase);
            for (unsigned to = 0; to < MEMBERS; to++) {
                if (to != liar && group->frame[phase][liar][to].bytes != NULL) {
                    cast(group, phase, liar, to, &vote);
                }
            }
            first = phase == VOTE ? vote : first;
        }
        if (phase < PHASES) {
            look_who_is_there(group, phase, there);
        }
    }
    group_free(group);
    return refused;
}

static void test_lies(void **state)
{
    unsigned refused = 0;

    (void)state;
    for (unsigned i = 0; i < 3000; i++) {
        refused += run_lies(i % MEMBERS);
    }
    assert_true(refused > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spoilt),
        cmocka_unit_test(test_other_sections),
        cmocka_unit_test(test_any_positions),
        cmocka_unit_test(test_impossible_votes),
        cmocka_unit_test(test_lies),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
