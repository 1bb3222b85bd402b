/*
 * Which of the sums are selected: the votes of all nodes (vote.h).
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/collective/oktopk.h"

/* Shares are balanced where one is longer than the mean by more than a quarter and so many. */
#define UNEVEN 16u

/* Sends this node's votes to all members; the first vote has those of all tensors. */
static enum adtopk_status send_votes(
    struct exchange *exchange, enum oktopk_phase phase, struct error *err)
{
    struct payload_writer *frame = exchange_add_frame(exchange, phase, EXCHANGE_ALL);
    uint8_t bytes[VOTE_BYTES];

    for (unsigned t = 0; frame != NULL && t < exchange->tensors; t++) {
        struct region *region = oktopk_region(exchange, t);
        size_t size;
        if (phase == VOTE_AGAIN && region->decided) {
            continue;
        }
        vote_count(&region->vote, &region->sum);
        region->vote.sent = exchange->tensor[t].sent.count;
        region->total.first = region->vote.first;
        region->total.cells = region->vote.cells;
        size = vote_write(&region->vote, phase == VOTE, bytes);
        if (payload_put_bytes(frame, bytes, size) != ADTOPK_OK) {
            frame = NULL;
        }
    }
    if (frame == NULL) {
        return exchange_no_memory(exchange, "sum", err);
    }
    payload_end(frame);
    return ADTOPK_OK;
}

/* Checks a vote against the counts before it; returns what cannot be, or NULL. */
static const char *contradiction(
    const struct gather *gather, unsigned t, unsigned m, const struct vote *vote)
{
    const struct region *region = oktopk_region(gather->exchange, t);

    if (gather->phase == VOTE_AGAIN) {
        return vote_agrees(vote, region->first[m + 1], region->in[m])
                   ? NULL
                   : "its second vote contradicts its first";
    }
    if (vote->sent > gather->exchange->tensor[t].shape.max_count) {
        return "it voted with more entries than a node may send";
    }
    return vote->sent < region->came[m] ? "it voted with fewer entries than it sent" : NULL;
}

/* Reads member m's next vote, which has our window. */
static enum adtopk_status next_vote(
    struct gather *gather, unsigned t, unsigned m, struct vote *vote, struct error *err)
{
    struct exchange *exchange = gather->exchange;
    const struct region *region = oktopk_region(exchange, t);
    const char *wrong;
    const uint8_t *bytes;
    size_t size;

    if (m == exchange->self) {
        *vote = region->vote;
        return ADTOPK_OK;
    }
    *vote = (struct vote){.first = region->vote.first, .cells = region->vote.cells};
    if (payload_get_bytes(&gather->reader[m], VOTE_BYTES, &bytes, &size, err) != ADTOPK_OK) {
        return exchange_blame(exchange, m, err);
    }
    wrong = vote_read(vote, gather->phase == VOTE, bytes, size) ? contradiction(gather, t, m, vote)
                                                                : "it is malformed";
    if (wrong == NULL) {
        return ADTOPK_OK;
    }
    (void)error_set(err, ADTOPK_ERR_PROTOCOL, "the vote for tensor %u: %s", t, wrong);
    return exchange_blame(exchange, m, err);
}

/* Adds up all votes. */
static enum adtopk_status add_votes(struct gather *gather, unsigned t, struct error *err)
{
    struct region *region = oktopk_region(gather->exchange, t);
    enum adtopk_status status = ADTOPK_OK;
    struct vote vote;

    for (unsigned m = 0; status == ADTOPK_OK && m < gather->exchange->members; m++) {
        status = next_vote(gather, t, m, &vote, err);
        if (status == ADTOPK_OK) {
            vote_add(&region->total, &vote);
        }
    }
    return status;
}

/* Notes how many sums each member has above the line and on it, or above its octave and in it. */
static enum adtopk_status split_votes(struct gather *gather, unsigned t, struct error *err)
{
    struct region *region = oktopk_region(gather->exchange, t);
    enum adtopk_status status = ADTOPK_OK;
    struct vote vote;

    for (unsigned m = 0; status == ADTOPK_OK && m < gather->exchange->members; m++) {
        status = next_vote(gather, t, m, &vote, err);
        if (status == ADTOPK_OK && region->decided) {
            vote_split(&vote, &region->line, &region->first[m + 1], &region->in[m]);
        } else if (status == ADTOPK_OK) {
            vote_split_octave(&vote, region->octave, &region->first[m + 1], &region->in[m]);
        }
    }
    return status;
}

static bool is_uneven(const struct region *region, unsigned members)
{
    uint64_t mean = region->first[members] / members;

    for (unsigned m = 0; m < members; m++) {
        if (region->first[m + 1] - region->first[m] > mean + mean / 4 + UNEVEN) {
            return true;
        }
    }
    return false;
}

/* Places the k of each region one behind the other: the sums above the line, and the first of those
 * on it. */
static enum adtopk_status place_regions(
    const struct exchange *exchange, struct region *region, struct error *err)
{
    uint64_t left = region->line.quota;

    for (unsigned m = 0; m < exchange->members; m++) {
        uint64_t taken = region->in[m] < left ? region->in[m] : left;
        uint64_t sums = region->first[m + 1] + taken;
        if (sums > region->bound[m + 1] - region->bound[m] || region->first[m] + sums > region->k) {
            (void)error_set(err, ADTOPK_ERR_PROTOCOL,
                "it voted with more sums than its region has, or the nodes sent");
            return exchange_blame(exchange, m, err);
        }
        left -= taken;
        region->first[m + 1] = region->first[m] + sums;
    }
    region->balanced = is_uneven(region, exchange->members);
    return ADTOPK_OK;
}

/* Draws the line, if the votes show it: second ones do. */
static void draw(const struct exchange *exchange, struct region *region)
{
    if (region->k == 0) {
        region->k = (region->total.sent + exchange->members - 1) / exchange->members;
        region->decided =
            region->k == 0 || !vote_octave(&region->total, region->k, &region->octave);
    }
    region->decided = region->decided || vote_find(&region->total, region->k, &region->line);
}

/* Counts the votes for a tensor. */
static enum adtopk_status count_votes(struct gather *gather, unsigned t, struct error *err)
{
    struct exchange *exchange = gather->exchange;
    struct region *region = oktopk_region(exchange, t);
    size_t size = exchange->members * sizeof(*gather->reader);
    struct payload_reader *mark;
    enum adtopk_status status;

    if (region->decided) {
        return ADTOPK_OK;
    }
    mark = malloc(size);
    if (mark == NULL) {
        return exchange_no_memory(exchange, "sum", err);
    }
    (void)memcpy(mark, gather->reader, size);
    status = add_votes(gather, t, err);
    if (status == ADTOPK_OK) {
        draw(exchange, region);
        assert(region->decided || gather->phase == VOTE);
        (void)memcpy(gather->reader, mark, size);
        status = split_votes(gather, t, err);
    }
    if (status == ADTOPK_OK && region->decided) {
        status = place_regions(exchange, region, err);
    }
    free(mark);
    return status;
}

/* The window of a second vote is the octave where the line must be. */
static void look_again(struct region *region)
{
    region->vote.first = region->total.first = region->octave * VOTE_OCTAVE_CELLS;
    region->vote.cells = region->total.cells = VOTE_OCTAVE_CELLS;
    region->total.above = 0;
    (void)memset(region->total.cell, 0, sizeof(region->total.cell));
}

enum adtopk_status oktopk_vote(struct exchange *exchange, struct error *err)
{
    return send_votes(exchange, VOTE, err);
}

enum adtopk_status oktopk_vote_again(struct exchange *exchange, struct error *err)
{
    struct oktopk *oktopk = exchange->state;

    if (gather_each(exchange, VOTE, count_votes, err) != ADTOPK_OK) {
        return err->code;
    }
    for (unsigned t = 0; t < exchange->tensors; t++) {
        if (!oktopk->region[t].decided) {
            look_again(&oktopk->region[t]);
            oktopk->again = true;
        }
    }
    return oktopk->again ? send_votes(exchange, VOTE_AGAIN, err) : ADTOPK_OK;
}

enum adtopk_status oktopk_decide(struct exchange *exchange, struct error *err)
{
    const struct oktopk *oktopk = exchange->state;

    return oktopk->again ? gather_each(exchange, VOTE_AGAIN, count_votes, err) : ADTOPK_OK;
}
