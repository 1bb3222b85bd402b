/*
 * The planner's choices: how each tensor of a job is sent, and how large buckets are.
 *
 * As text, in a policy, they are "BYTES:RUNS". BYTES is the size of a bucket. RUNS says, for the
 * tensors in order of registration, how many have the same choice, and the letter of the choice.
 * "4194304:12a3d" is 12 tensors by all-gather, then 3 dense ones in f32, in buckets of 4 MiB. There
 * is one text for each set of choices: no leading zeros, neighbouring runs differ.
 *
 * Pure and without state: any thread may call it.
 */
#ifndef ADTOPK_CHOICES_H
#define ADTOPK_CHOICES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/collective/collective.h"
#include "proto/error.h"

enum choice {
    CHOICE_DENSE,        /* d: dense, f32 */
    CHOICE_DENSE_BF16,   /* h: dense, contributions in bf16 */
    CHOICE_ALLGATHER,    /* a: sparse from here on, by this collective */
    CHOICE_BALANCED,     /* b */
    CHOICE_OKTOPK,       /* o */
    CHOICE_HIERARCHICAL, /* c */
    CHOICES
};

#define CHOICES_TEXT_SIZE 16384 /* of a text, including the NUL */
#define CHOICES_BUCKET_MAX (UINT64_C(1) << 40)

struct choices {
    uint64_t bucket_bytes; /* 1 to CHOICES_BUCKET_MAX */
    uint32_t tensors;
    uint8_t *choice; /* enum choice of each tensor */
};

/** The letter of texts; the name that people read ("dense", "dense bf16", "allgather", ...). */
char choice_letter(enum choice choice);
const char *choice_name(enum choice choice);

/** The collective that sends the tensor. Its traits have a cost. */
const struct collective_ops *choice_collective(enum choice choice);

static inline bool choice_is_sparse(enum choice choice)
{
    return choice >= CHOICE_ALLGATHER;
}

/** Room for so many tensors, all CHOICE_DENSE; false without memory. Freed by choices_free(). */
bool choices_init(struct choices *choices, uint32_t tensors);
void choices_free(struct choices *choices);

/** Copies; both must have room for equally many tensors. */
void choices_copy(struct choices *to, const struct choices *from);
bool choices_equal(const struct choices *a, const struct choices *b);

/** Writes the text; false (and an empty text) where it would not fit. */
bool choices_print(const struct choices *choices, char text[CHOICES_TEXT_SIZE]);

/**
 * Checks that a text is a text of choices, for any number of tensors. Errors: ADTOPK_ERR_POLICY,
 * and a sentence that says what is wrong and where.
 */
enum adtopk_status choices_check(const char *text, struct error *err);

/**
 * Reads a text into *choices; both must have the same number of tensors. On error *choices is
 * unchanged: ADTOPK_ERR_POLICY says what is wrong and where.
 */
enum adtopk_status choices_parse(struct choices *choices, const char *text, struct error *err);

#endif
