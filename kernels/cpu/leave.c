#include "kernels/cpu/leave.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/base/ledger.h"
#include "kernels/cpu/journal.h"

/* How many entries ahead memory is fetched: they are far apart. */
enum { AHEAD = 24 };

/* The work is cut in so many parts, of fewer entries than that in one. */
enum { PARTS = 64, WHOLE = 8192 };

static unsigned leave_parts(const struct leave *leave)
{
    return leave->sent->count < WHOLE ? 1 : PARTS;
}

/* The first entry of a part. */
static size_t leave_first(const struct leave *leave, unsigned part)
{
    return (size_t)((uint64_t)leave->sent->count * part / leave_parts(leave));
}

static bool leave_is_accepted(const struct leave *leave, size_t entry)
{
    const uint8_t *accepted = leave->accepted;
    return accepted == NULL || (accepted[entry / 8] >> (entry % 8) & 1) != 0;
}

/* The signs of the chunk that was met last. */
struct signs {
    uint64_t chunk;
    uint64_t words;
    uint64_t lanes;
};

/* value * ledger_sign(). Neighbours share a hash, which is computed once; and there is no branch,
 * because it could not be predicted. */
static double leave_signed(struct signs *signs, uint64_t element, double value)
{
    uint64_t bits;

    const uint64_t chunk = element / CHUNK;
    if (chunk != signs->chunk) {
        *signs = (struct signs){chunk, ledger_word_signs(chunk), ledger_lane_signs(chunk)};
    }
    memcpy(&bits, &value, sizeof bits);
    bits ^= ledger_is_negative(signs->words, signs->lanes, element) << 63;
    memcpy(&value, &bits, sizeof value);
    return value;
}

struct leave_ledger {
    const struct leave *leave;
    double sums[PARTS][2];
};

static void leave_sums_part(void *arg, unsigned part, unsigned thread)
{
    struct leave_ledger *ledger = arg;
    const struct leave *leave = ledger->leave;
    const struct sparse *sent = leave->sent;
    const size_t end = leave_first(leave, part + 1);
    struct signs signs = {.chunk = UINT64_MAX};
    double plain = 0;
    double hashed = 0;
    (void)thread;
    for (size_t i = leave_first(leave, part); i < end; i++) {
        if (leave_is_accepted(leave, i)) {
            const double value = (double)sent->value[i];
            plain += value;
            hashed += leave_signed(&signs, view_element(leave->view, sent->position[i]), value);
        }
    }
    ledger->sums[part][0] = plain;
    ledger->sums[part][1] = hashed;
}

void leave_sums(const struct leave *leave, double sums[2], const struct parallel *parallel)
{
    struct leave_ledger ledger = {.leave = leave};
    const unsigned parts = leave_parts(leave);
    parallel_for(parallel, leave_sums_part, &ledger, parts);
    for (unsigned p = 0; p < parts; p++) {
        sums[0] += ledger.sums[p][0];
        sums[1] += ledger.sums[p][1];
    }
}

/* What remains of an element when a value is subtracted. Infinity and NaN leave nothing behind,
 * also where f16 and int8 sent their largest number instead, or bf16 rounded to infinity. */
static float leave_rest(float before, float sent)
{
    const float rest = before - sent;
    return isfinite(rest) ? rest : 0;
}

struct leave_elements {
    const struct leave *leave;
    float *residual;
    float *momentum;
    const float *before;
};

static void leave_fetch(const struct leave_elements *elements, size_t entry)
{
    const struct leave *leave = elements->leave;
    const uint64_t element = view_element(leave->view, leave->sent->position[entry]);
    __builtin_prefetch(elements->residual + element, 1);
    if (elements->momentum != NULL) {
        __builtin_prefetch(elements->momentum + element, 1);
    }
}

static void leave_entry(const struct leave_elements *elements, size_t entry)
{
    const struct leave *leave = elements->leave;
    const uint64_t element = view_element(leave->view, leave->sent->position[entry]);
    if (!leave_is_accepted(leave, entry)) {
        return;
    }
    elements->residual[element] = leave_rest(elements->before[entry], leave->sent->value[entry]);
    if (elements->momentum != NULL) {
        elements->momentum[element] = 0;
    }
}

static void leave_residual_part(void *arg, unsigned part, unsigned thread)
{
    const struct leave_elements *elements = arg;
    const size_t end = leave_first(elements->leave, part + 1);
    size_t fetched = leave_first(elements->leave, part);
    (void)thread;
    for (size_t i = fetched; i < end; i++) {
        for (; fetched < end && fetched <= i + AHEAD; fetched++) {
            leave_fetch(elements, fetched);
        }
        leave_entry(elements, i);
    }
}

void leave_residual(float *residual, float *momentum, const struct leave *leave,
    const float *before, const struct parallel *parallel)
{
    struct leave_elements elements = {leave, residual, momentum, before};
    parallel_for(parallel, leave_residual_part, &elements, leave_parts(leave));
}

struct leave_halves {
    const struct leave *leave;
    uint16_t *residual;
};

static uint16_t *leave_half(const struct leave_halves *halves, size_t entry)
{
    const struct leave *leave = halves->leave;
    return halves->residual + view_element(leave->view, leave->sent->position[entry]);
}

static void leave_rounded_part(void *arg, unsigned part, unsigned thread)
{
    const struct leave_halves *halves = arg;
    const size_t end = leave_first(halves->leave, part + 1);
    size_t fetched = leave_first(halves->leave, part);
    (void)thread;
    for (size_t i = fetched; i < end; i++) {
        for (; fetched < end && fetched <= i + AHEAD; fetched++) {
            __builtin_prefetch(leave_half(halves, fetched), 1);
        }
        if (leave_is_accepted(halves->leave, i)) {
            *leave_half(halves, i) = 0;
        }
    }
}

void leave_rounded(uint16_t *residual, const struct leave *leave, const struct parallel *parallel)
{
    struct leave_halves halves = {leave, residual};
    parallel_for(parallel, leave_rounded_part, &halves, leave_parts(leave));
}
