/*
 * Choices and their text: see choices.h.
 */
#include "daemon/policy/choices.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char letters[] = "dhaboc";

_Static_assert(sizeof(letters) - 1 == CHOICES, "a letter for every choice");

char choice_letter(enum choice choice)
{
    return letters[choice];
}

const char *choice_name(enum choice choice)
{
    return choice == CHOICE_DENSE        ? "dense"
           : choice == CHOICE_DENSE_BF16 ? "dense bf16"
                                         : choice_collective(choice)->name;
}

const struct collective_ops *choice_collective(enum choice choice)
{
    static const struct collective_ops *const collectives[CHOICES] = {
        [CHOICE_DENSE] = &collective_allreduce,
        [CHOICE_DENSE_BF16] = &collective_allreduce,
        [CHOICE_ALLGATHER] = &collective_allgather,
        [CHOICE_BALANCED] = &collective_balanced,
        [CHOICE_OKTOPK] = &collective_oktopk,
        [CHOICE_HIERARCHICAL] = &collective_hierarchical,
    };

    return collectives[choice];
}

bool choices_init(struct choices *choices, uint32_t tensors)
{
    *choices = (struct choices){.bucket_bytes = 1, .tensors = tensors};
    choices->choice = calloc(tensors > 0 ? tensors : 1, sizeof(*choices->choice));
    return choices->choice != NULL;
}

void choices_free(struct choices *choices)
{
    free(choices->choice);
    *choices = (struct choices){.tensors = 0};
}

void choices_copy(struct choices *to, const struct choices *from)
{
    to->bucket_bytes = from->bucket_bytes;
    (void)memcpy(to->choice, from->choice, from->tensors);
}

bool choices_equal(const struct choices *a, const struct choices *b)
{
    return a->bucket_bytes == b->bucket_bytes && a->tensors == b->tensors &&
           memcmp(a->choice, b->choice, a->tensors) == 0;
}

bool choices_print(const struct choices *choices, char text[CHOICES_TEXT_SIZE])
{
    size_t used = (size_t)snprintf(text, CHOICES_TEXT_SIZE, "%" PRIu64 ":", choices->bucket_bytes);
    uint32_t run;

    for (uint32_t t = 0; t < choices->tensors && used < CHOICES_TEXT_SIZE; t += run) {
        for (run = 1; t + run < choices->tensors && choices->choice[t + run] == choices->choice[t];
             run++) {
        }
        used += (size_t)snprintf(text + used, CHOICES_TEXT_SIZE - used, "%" PRIu32 "%c", run,
            letters[choices->choice[t]]);
    }
    if (used >= CHOICES_TEXT_SIZE) {
        text[0] = '\0';
        return false;
    }
    return true;
}

/* A number from 1 to `most` without leading zeros; 0 if there is none. *text moves behind it. */
static uint64_t choices_read_number(const char **text, uint64_t most)
{
    uint64_t number = 0;

    if (**text == '0') {
        return 0;
    }
    for (; **text >= '0' && **text <= '9'; (*text)++) {
        uint64_t digit = (uint64_t)(**text - '0');
        if (number > (most - digit) / 10) {
            return 0;
        }
        number = 10 * number + digit;
    }
    return number;
}

/* One run of a text. */
struct run {
    uint32_t count;
    enum choice choice;
};

/* Reads the run at *text; `last` is the choice of the run before it, CHOICES if there is none. */
static enum adtopk_status read_run(
    const char **text, const char *whole, enum choice last, struct run *run, struct error *err)
{
    size_t at = (size_t)(*text - whole);
    const char *letter;

    run->count = (uint32_t)choices_read_number(text, UINT32_MAX);
    if (run->count == 0) {
        return error_set(
            err, ADTOPK_ERR_POLICY, "plan: a number of tensors expected at character %zu", at);
    }
    letter = **text != '\0' ? strchr(letters, **text) : NULL;
    if (letter == NULL) {
        return error_set(err, ADTOPK_ERR_POLICY,
            "plan: one of the letters %s expected at character %zu", letters,
            (size_t)(*text - whole));
    }
    (*text)++;
    run->choice = (enum choice)(letter - letters);
    if (run->choice == last) {
        return error_set(err, ADTOPK_ERR_POLICY,
            "plan: the runs before and at character %zu have the same letter", at);
    }
    return ADTOPK_OK;
}

/* Walks through a text; writes the choices where `choice` is not NULL, for `tensors` at most. */
static enum adtopk_status walk(const char *whole, uint64_t *bucket_bytes, uint8_t *choice,
    uint64_t tensors, uint64_t *found, struct error *err)
{
    const char *text = whole;
    struct run run = {.choice = CHOICES};

    *bucket_bytes = choices_read_number(&text, CHOICES_BUCKET_MAX);
    if (*bucket_bytes == 0 || *text != ':') {
        return error_set(err, ADTOPK_ERR_POLICY,
            "plan: has to begin with the bytes of a bucket, 1 to %" PRIu64 ", and a colon",
            CHOICES_BUCKET_MAX);
    }
    text++;
    for (*found = 0; *text != '\0'; *found += run.count) {
        enum adtopk_status status = read_run(&text, whole, run.choice, &run, err);
        if (status != ADTOPK_OK) {
            return status;
        }
        if (choice != NULL && *found + run.count <= tensors) {
            (void)memset(choice + *found, (int)run.choice, run.count);
        }
    }
    return ADTOPK_OK;
}

enum adtopk_status choices_check(const char *text, struct error *err)
{
    uint64_t bucket_bytes, found;
    size_t size = strnlen(text, CHOICES_TEXT_SIZE);

    if (size == CHOICES_TEXT_SIZE) {
        return error_set(
            err, ADTOPK_ERR_POLICY, "plan: longer than %d characters", CHOICES_TEXT_SIZE - 1);
    }
    if (walk(text, &bucket_bytes, NULL, 0, &found, err) != ADTOPK_OK) {
        return ADTOPK_ERR_POLICY;
    }
    return found > 0 && found <= UINT32_MAX
               ? ADTOPK_OK
               : error_set(err, ADTOPK_ERR_POLICY, "plan: for %" PRIu64 " tensors", found);
}

enum adtopk_status choices_parse(struct choices *choices, const char *text, struct error *err)
{
    uint64_t bucket_bytes, found;

    if (choices_check(text, err) != ADTOPK_OK) {
        return ADTOPK_ERR_POLICY;
    }
    (void)walk(text, &bucket_bytes, NULL, 0, &found, err);
    if (found != choices->tensors) {
        return error_set(err, ADTOPK_ERR_POLICY,
            "plan: for %" PRIu64 " tensors, the job has %" PRIu32, found, choices->tensors);
    }
    (void)walk(text, &choices->bucket_bytes, choices->choice, choices->tensors, &found, err);
    return ADTOPK_OK;
}
