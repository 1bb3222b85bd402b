#include "kernels/cpu/leave.h"

#include <math.h>
#include <stdbool.h>

#include "kernels/cpu/journal.h"
#include "kernels/cpu/ledger.h"

/* How many entries ahead memory is fetched: they are far apart. */
enum { AHEAD = 24 };

static bool leave_is_accepted(const uint8_t *accepted, size_t entry)
{
    return accepted == NULL || (accepted[entry / 8] >> (entry % 8) & 1) != 0;
}

/* The signs of the chunk that was met last. */
struct signs {
    uint64_t chunk;
    uint64_t words;
    uint64_t lanes;
};

/* ledger_sign(), without hashing again what neighbours share. */
static double leave_sign(struct signs *signs, uint64_t element)
{
    const uint64_t chunk = element / CHUNK;
    if (chunk != signs->chunk) {
        *signs = (struct signs){chunk, ledger_word_signs(chunk), ledger_lane_signs(chunk)};
    }
    return ledger_element_sign(signs->words, signs->lanes, element);
}

void leave_sums(
    const struct view *view, const struct sparse *sent, const uint8_t *accepted, double sums[2])
{
    struct signs signs = {.chunk = UINT64_MAX};
    double plain = sums[0];
    double hashed = sums[1];
    for (size_t i = 0; i < sent->count; i++) {
        if (leave_is_accepted(accepted, i)) {
            const double value = (double)sent->value[i];
            plain += value;
            hashed += value * leave_sign(&signs, view_element(view, sent->position[i]));
        }
    }
    sums[0] = plain;
    sums[1] = hashed;
}

/* What is left when a value has left; infinity and NaN leave nothing behind, also where f16 and
 * int8 sent their largest number instead, or bf16 rounded to infinity. */
static float leave_rest(float kept, float sent)
{
    const float rest = kept - sent;
    return isfinite(rest) ? rest : 0;
}

void leave_residual(float *residual, float *momentum, const struct view *view,
    const struct sparse *sent, const float *kept, const uint8_t *accepted)
{
    for (size_t i = 0; i < sent->count; i++) {
        if (i + AHEAD < sent->count) {
            __builtin_prefetch(residual + view_element(view, sent->position[i + AHEAD]), 1);
        }
        if (!leave_is_accepted(accepted, i)) {
            continue;
        }
        const uint64_t element = view_element(view, sent->position[i]);
        residual[element] = leave_rest(kept[i], sent->value[i]);
        if (momentum != NULL) {
            momentum[element] = 0;
        }
    }
}
