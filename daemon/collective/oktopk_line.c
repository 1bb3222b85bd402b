/*
 * Which of the sums are selected: the votes of all nodes (vote.h).
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/collective/oktopk.h"

/* Shares are balanced where one is longer than the mean by more than a quarter and so many. */
#define UNEVEN 16u

/* Sends this node's votes to all: in the first vote those of all tensors. */
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
        return gather_no_memory(exchange, err);
    }
    payload_end(frame);
    return ADTOPK_OK;
}

/* Reads every member's next vote, all of which have our window. in NULL: adds them up; else the
 * line is known: notes in region->first how many each has above it, and in `in` how many on it. */
static enum adtopk_status read_votes(
    struct gather *gather, unsigned t, uint64_t *in, struct error *err)
{
    struct exchange *exchange = gather->exchange;
    struct region *region = oktopk_region(exchange, t);

    for (unsigned m = 0; m < exchange->members; m++) {
        struct vote vote = {.first = region->vote.first, .cells = region->vote.cells};
        const uint8_t *bytes;
        size_t size;
        if (m != exchange->self &&
            payload_get_bytes(&gather->reader[m], VOTE_BYTES, &bytes, &size, err) != ADTOPK_OK) {
            return exchange_blame(exchange, m, err);
        }
        if (m != exchange->self && !vote_read(&vote, gather->phase == VOTE, bytes, size)) {
            (void)error_set(err, ADTOPK_ERR_PROTOCOL, "a vote for tensor %u is malformed", t);
            return exchange_blame(exchange, m, err);
        }
        if (m == exchange->self) {
            vote = region->vote;
        }
        if (in == NULL) {
            vote_add(&region->total, &vote);
        } else {
            vote_split(&vote, &region->line, &region->first[m + 1], &in[m]);
        }
    }
    return ADTOPK_OK;
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

/* The k of each region, one behind the other: those above the line, and of those on it the first.
 */
static enum adtopk_status place_regions(
    const struct exchange *exchange, struct region *region, const uint64_t *in, struct error *err)
{
    uint64_t left = region->line.quota;

    for (unsigned m = 0; m < exchange->members; m++) {
        uint64_t taken = in[m] < left ? in[m] : left;
        if (region->first[m + 1] + taken > region->bound[m + 1] - region->bound[m]) {
            (void)error_set(
                err, ADTOPK_ERR_PROTOCOL, "it voted with more sums than its region has");
            return exchange_blame(exchange, m, err);
        }
        left -= taken;
        region->first[m + 1] += region->first[m] + taken;
    }
    region->balanced = is_uneven(region, exchange->members);
    return ADTOPK_OK;
}

/* Draws the line, if the votes show it. */
static enum adtopk_status draw(
    const struct exchange *exchange, struct region *region, bool again, struct error *err)
{
    if (again) {
        region->decided = vote_find(&region->total, region->k, &region->line);
        return region->decided ? ADTOPK_OK
                               : error_set(err, ADTOPK_ERR_PROTOCOL,
                                     "the nodes' votes for bucket %u contradict each other",
                                     exchange->header.bucket);
    }
    region->k = (region->total.sent + exchange->members - 1) / exchange->members;
    region->decided = region->k == 0 || !vote_octave(&region->total, region->k, &region->octave) ||
                      vote_find(&region->total, region->k, &region->line);
    return ADTOPK_OK;
}

/* Counts the votes for a tensor. */
static enum adtopk_status count_votes(struct gather *gather, unsigned t, struct error *err)
{
    struct exchange *exchange = gather->exchange;
    struct region *region = oktopk_region(exchange, t);
    size_t size = exchange->members * sizeof(*gather->reader);
    struct payload_reader *mark = malloc(size);
    uint64_t *in = calloc(exchange->members, sizeof(*in));
    enum adtopk_status status = ADTOPK_OK;

    if (mark == NULL || in == NULL) {
        status = gather_no_memory(exchange, err);
    } else if (!region->decided) {
        (void)memcpy(mark, gather->reader, size);
        status = read_votes(gather, t, NULL, err);
        if (status == ADTOPK_OK) {
            status = draw(exchange, region, gather->phase == VOTE_AGAIN, err);
        }
        if (status == ADTOPK_OK && region->decided) {
            (void)memcpy(gather->reader, mark, size);
            status = read_votes(gather, t, in, err);
            if (status == ADTOPK_OK) {
                status = place_regions(exchange, region, in, err);
            }
        }
    }
    free(mark);
    free(in);
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
