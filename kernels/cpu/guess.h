/*
 * Guesses of thresholds that adapt from fibre to fibre. Internal to kernels/cpu.
 *
 * A guess is the expected threshold less a margin. It should be high, because every candidate costs
 * a little. It should not be too high, because a fibre with too few candidates is read twice. So
 * the margin shrinks with every guess that was low enough, and grows by forty times as much with
 * every other, so that about one guess in forty is too high. The margin may become negative, where
 * thresholds grow from turn to turn. Any guess gives the same result.
 */
#ifndef ADTOPK_KERNELS_GUESS_H
#define ADTOPK_KERNELS_GUESS_H

#include <math.h>

#include "kernels/cpu/select.h"

struct guess {
    float margin; /* relative to the expected threshold */
    float spread; /* how far thresholds lie above their guesses, relative, on average */
};

#define GUESS_FIRST 0.25f
#define GUESS_STEP 0.0004f
#define GUESS_MISS (40 * GUESS_STEP)
#define GUESS_MOST 0.5f

/* Before anything is known: of a normal distribution's tail, the k-th largest varies by about that
 * much. */
static inline struct guess guess_first(uint64_t k)
{
    const float margin = GUESS_FIRST / sqrtf((float)k);
    return (struct guess){.margin = margin, .spread = margin};
}

/* Zeros are never candidates. Without a guess everything else is. */
static inline uint32_t guess_key(float guess)
{
    const uint32_t key = select_key(guess);
    return guess > 0 && key > 0 ? key : 1;
}

/* The key that candidates have to reach, above 0; expected: 0 if unknown. */
static inline uint32_t guess_least(const struct guess *guess, float expected)
{
    return guess_key(expected * (1.0f - guess->margin));
}

/* A key that the threshold is probably below. */
static inline uint32_t guess_likely(const struct guess *guess, uint32_t least)
{
    return guess_key(convert_float(least) * (1.0f + 2.0f * guess->spread));
}

/* A key that it is probably above after all, if the guess was too high. */
static inline uint32_t guess_lower(const struct guess *guess, uint32_t least)
{
    return guess_key(convert_float(least) * (1.0f - 2.0f * guess->spread));
}

/* A threshold lies so far above its guess. */
static inline void guess_spread(struct guess *guess, uint32_t least, float threshold)
{
    const float above = threshold / convert_float(least) - 1.0f;
    guess->spread += ((above < GUESS_MOST ? above : GUESS_MOST) - guess->spread) * 0.0625f;
    guess->spread = guess->spread > GUESS_STEP ? guess->spread : GUESS_STEP;
}

/* The guess was low enough. */
static inline void guess_met(struct guess *guess, uint32_t least, float threshold)
{
    const float margin = guess->margin - GUESS_STEP;
    guess->margin = margin > -GUESS_MOST ? margin : -GUESS_MOST;
    guess_spread(guess, least, threshold);
}

/* The same for many fibres at once, of which a fraction was missed; that should be `rate`. */
static inline void guess_adjust(struct guess *guess, float missed, float rate)
{
    const float margin = guess->margin + 2.5f * GUESS_STEP * (missed / rate - 1.0f);
    const float low = margin > -GUESS_MOST ? margin : -GUESS_MOST;
    guess->margin = low < GUESS_MOST ? low : GUESS_MOST;
}

/* Thresholds lie elsewhere than the guess that `least` was made with: half of the way to one that
 * would have been right. */
static inline void guess_far(
    struct guess *guess, const struct guess *made, uint32_t least, float threshold)
{
    const float right = 1.0f - (1.0f - made->margin) * threshold / convert_float(least);
    const float margin = 0.5f * (guess->margin + right);
    const float low = margin > -GUESS_MOST ? margin : -GUESS_MOST;
    guess->margin = low < GUESS_MOST ? low : GUESS_MOST;
}

static inline void guess_missed(struct guess *guess)
{
    const float margin = guess->margin + GUESS_MISS;
    guess->margin = margin < GUESS_MOST ? margin : GUESS_MOST;
}

#endif
