#include "proto/guess.h"

#include <ctype.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* Upper case and '-' for '_' are no mistakes worth counting: the name is meant. */
static int plain(char byte)
{
    return byte == '-' ? '_' : tolower((unsigned char)byte);
}

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* How many bytes to insert, remove, replace or swap with their neighbour make `b` from `a`, both
 * shorter than GUESS_SIZE. */
static unsigned guess_distance(const char *a, const char *b)
{
    unsigned row[3][GUESS_SIZE];
    const size_t length = strlen(b);

    for (unsigned j = 0; j <= length; j++) {
        row[0][j] = j;
    }
    for (size_t i = 1; a[i - 1] != '\0'; i++) {
        unsigned *now = row[i % 3];
        const unsigned *last = row[(i + 2) % 3], *before = row[(i + 1) % 3];

        now[0] = (unsigned)i;
        for (size_t j = 1; j <= length; j++) {
            const unsigned other = plain(a[i - 1]) != plain(b[j - 1]);

            now[j] = least(least(last[j], now[j - 1]) + 1, last[j - 1] + other);
            if (i > 1 && j > 1 && plain(a[i - 1]) == plain(b[j - 2]) &&
                plain(a[i - 2]) == plain(b[j - 1])) {
                now[j] = least(now[j], before[j - 2] + 1);
            }
        }
    }
    return row[strlen(a) % 3][length];
}

/* Up to a third of the word may be wrong, but always one byte of it. */
static unsigned limit(const struct guess *guess)
{
    const unsigned length = (unsigned)strlen(guess->word);
    const unsigned third = length > guess->prefix ? (length - guess->prefix) / 3 : 0;

    return third > 1 ? third : 1;
}

void guess_start(struct guess *guess, const char *word, unsigned prefix)
{
    *guess = (struct guess){.word = word, .prefix = prefix, .distance = UINT_MAX};
}

void guess_name(struct guess *guess, const char *name)
{
    const size_t word = strlen(guess->word), length = strlen(name);
    const size_t differ = word > length ? word - length : length - word;
    unsigned found;

    if (word == 0 || length == 0 || word >= GUESS_SIZE || length >= GUESS_SIZE ||
        differ > limit(guess)) { /* the distance is at least that */
        return;
    }
    found = guess_distance(guess->word, name);
    if (found <= limit(guess) && found + guess->prefix < length && found < guess->distance) {
        guess->distance = found;
        (void)strcpy(guess->name, name);
    }
}

const char *guess_text(const struct guess *guess, char text[GUESS_TEXT_SIZE])
{
    text[0] = '\0';
    if (guess->distance != UINT_MAX) {
        (void)snprintf(text, GUESS_TEXT_SIZE, "; did you mean \"%s\"?", guess->name);
    }
    return text;
}

const char *guess_of(
    const char *word, const char *const *names, unsigned count, char text[GUESS_LIST_SIZE])
{
    char meant[GUESS_TEXT_SIZE];
    struct guess guess;
    size_t used = 0;

    guess_start(&guess, word, 0);
    for (unsigned i = 0; i < count; i++) {
        guess_name(&guess, names[i]);
    }
    (void)snprintf(text, GUESS_LIST_SIZE, "%s", guess_text(&guess, meant));
    for (unsigned i = 0; meant[0] == '\0' && i < count && used < GUESS_LIST_SIZE; i++) {
        const char *before = i == 0 ? ": possible are " : i + 1 < count ? ", " : " and ";

        used += (size_t)snprintf(text + used, GUESS_LIST_SIZE - used, "%s%s", before, names[i]);
    }
    return text;
}
