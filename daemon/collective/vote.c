/* See vote.h. */
#include "daemon/collective/vote.h"

#include <string.h>

#include "daemon/collective/number.h"

#define CELL_SHIFT 15

uint32_t vote_cell(float sum)
{
    uint32_t bits;

    (void)memcpy(&bits, &sum, sizeof(bits));
    return (bits & 0x7fffffffu) >> CELL_SHIFT;
}

void vote_count(struct vote *vote, const struct sparse *sums)
{
    uint32_t end = vote->first + vote->cells;

    (void)memset(vote->octave, 0, sizeof(vote->octave));
    (void)memset(vote->cell, 0, sizeof(vote->cell));
    vote->above = 0;
    for (size_t i = 0; i < sums->count; i++) {
        uint32_t cell = vote_cell(sums->value[i]);
        if (cell == 0) {
            continue;
        }
        vote->octave[cell / VOTE_OCTAVE_CELLS]++;
        if (cell >= end) {
            vote->above++;
        } else if (cell >= vote->first) {
            vote->cell[cell - vote->first]++;
        }
    }
}

/* ------------------------------------------------------------------ on the wire */

/* The counts between the zeros at both ends. */
static uint8_t *put_counts(uint8_t *out, const uint64_t *count, uint32_t counts)
{
    uint32_t first = 0;

    while (first < counts && count[first] == 0) {
        first++;
    }
    while (counts > first && count[counts - 1] == 0) {
        counts--;
    }
    out = number_put(number_put(out, first), counts - first);
    for (uint32_t i = first; i < counts; i++) {
        out = number_put(out, count[i]);
    }
    return out;
}

static bool get_counts(const uint8_t **bytes, const uint8_t *end, uint64_t *count, uint32_t counts)
{
    uint64_t first, length;

    (void)memset(count, 0, counts * sizeof(*count));
    if (!number_get(bytes, end, &first) || !number_get(bytes, end, &length) || first > counts ||
        length > counts - first) {
        return false;
    }
    for (uint64_t i = first; i < first + length; i++) {
        if (!number_get(bytes, end, &count[i])) {
            return false;
        }
    }
    return true;
}

size_t vote_write(const struct vote *vote, bool octaves, uint8_t out[VOTE_BYTES])
{
    uint8_t *end = out;

    if (octaves) {
        end = put_counts(number_put(end, vote->sent), vote->octave, VOTE_OCTAVES);
    }
    end = put_counts(number_put(end, vote->above), vote->cell, vote->cells);
    return (size_t)(end - out);
}

bool vote_read(struct vote *vote, bool octaves, const uint8_t *bytes, size_t size)
{
    const uint8_t *end = bytes + size;

    if (octaves && (!number_get(&bytes, end, &vote->sent) ||
                       !get_counts(&bytes, end, vote->octave, VOTE_OCTAVES))) {
        return false;
    }
    return number_get(&bytes, end, &vote->above) &&
           get_counts(&bytes, end, vote->cell, vote->cells) && bytes == end &&
           (vote->first > 0 || vote->cells == 0 || vote->cell[0] == 0);
}

/* ------------------------------------------------------------------ the line */

void vote_add(struct vote *total, const struct vote *vote)
{
    total->sent += vote->sent;
    total->above += vote->above;
    for (unsigned i = 0; i < VOTE_OCTAVES; i++) {
        total->octave[i] += vote->octave[i];
    }
    for (unsigned i = 0; i < total->cells; i++) {
        total->cell[i] += vote->cell[i];
    }
}

void vote_split_octave(const struct vote *vote, uint32_t octave, uint64_t *above, uint64_t *in)
{
    *above = 0;
    for (uint32_t i = octave + 1; i < VOTE_OCTAVES; i++) {
        *above += vote->octave[i];
    }
    *in = vote->octave[octave];
}

bool vote_agrees(const struct vote *vote, uint64_t above, uint64_t in)
{
    uint64_t count = 0;

    for (uint32_t i = 0; i < vote->cells; i++) {
        count += vote->cell[i];
    }
    return vote->above == above && count == in;
}

/* The first of `counts`, from the end, with which the total reaches k, given the number above. */
static bool crossing(
    const uint64_t *count, uint32_t counts, uint64_t k, uint64_t *above, uint32_t *at)
{
    for (uint32_t i = counts; *above < k && i-- > 0;) {
        if (*above + count[i] >= k) {
            *at = i;
            return true;
        }
        *above += count[i];
    }
    return false;
}

bool vote_octave(const struct vote *total, uint64_t k, uint32_t *octave)
{
    uint64_t above = 0;

    return crossing(total->octave, VOTE_OCTAVES, k, &above, octave);
}

bool vote_find(const struct vote *total, uint64_t k, struct vote_line *line)
{
    uint64_t above = total->above;
    uint32_t at;

    if (!crossing(total->cell, total->cells, k, &above, &at)) {
        return false;
    }
    *line = (struct vote_line){.cell = total->first + at, .quota = k - above};
    return true;
}

void vote_split(
    const struct vote *vote, const struct vote_line *line, uint64_t *above, uint64_t *in)
{
    *in = 0;
    if (line->cell == 0) {
        *above = 0;
        for (unsigned i = 0; i < VOTE_OCTAVES; i++) {
            *above += vote->octave[i];
        }
        return;
    }
    *above = vote->above;
    for (uint32_t i = vote->cells; i-- > 0;) {
        uint32_t cell = vote->first + i;
        *above += cell > line->cell ? vote->cell[i] : 0;
        *in += cell == line->cell ? vote->cell[i] : 0;
    }
}
