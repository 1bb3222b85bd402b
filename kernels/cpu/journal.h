/*
 * How far a pass over a residual has come. With it the pass can be repeated after a SIGKILL at any
 * instruction without adding a gradient twice.
 *
 * A pass works chunk by chunk, and in a chunk word by word. The tensor keeps a *record* for every
 * chunk: what the chunk's gradients added to the ledger, and the *stamp* of the last pass that
 * added any. Every worker has one *journal*, which gets the old bytes of a word before the pass
 * modifies it. The journal has room for two words, so that it stays in the first-level cache: while
 * the pass may modify one word, it saves the next one.
 *
 * Happy path: journal_open, then for each word journal_save and modify, then write the record,
 * publish the stamp, journal_close. With momentum or decay, or when a whole tensor is sent, the
 * added values depend on the old bytes. Then journal_copy first copies the whole chunk.
 *
 * Killed before the stamp: journal_recover puts such a copy back. Without one it puts the last
 * word's bytes back and notes in the record how many words before it are complete. The repeated
 * pass only reads those and goes on behind them. Killed after the stamp: the repeated pass skips
 * the chunk. Journal and records live in memory that outlives the process; all bytes zero is their
 * initial state. Chunks of a bf16 residual are journalled in another way (rounded.h).
 *
 * A killed thread stops between two instructions, and everything that it stored before stays. So it
 * is enough to keep the compiler from reordering the stores.
 */
#ifndef ADTOPK_KERNELS_JOURNAL_H
#define ADTOPK_KERNELS_JOURNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/record.h"
#include "kernels/base/rounded.h"

/* Elements of a word, and words of a journal. */
enum { JOURNAL_WORD = 64, JOURNAL_WORDS = 2 };

/* Whose elements a journal's copy is of. 2 was a rounded chunk as it becomes. */
enum { JOURNAL_RESIDUAL = 0, JOURNAL_MOMENTUM, JOURNAL_ROUNDED = 3 };

/* Of one worker; used by one thread at a time. */
struct journal {
    uint64_t residual; /* the caller's number for it */
    uint64_t stamp;
    uint64_t chunk;
    _Atomic uint64_t saved; /* the chunk's elements up to here may be modified, the last word of
                             * them is in `old`; 0: none */
    _Alignas(64) float old[JOURNAL_WORDS][JOURNAL_WORD];
    uint64_t copy_of;
    _Atomic uint64_t copied; /* so many first elements of the chunk are there; 0: none */
    union {
        _Alignas(64) float copy[CHUNK];
        struct rounded_chunk {
            uint16_t element[CHUNK];
            struct carry carry;
        } rounded;
    };
};

/** Begins the pass `stamp`, or goes on with it: only the first call keeps the sums as before. lost:
 * two sums as well, or NULL for zeros. */
void progress_start(
    struct progress *progress, uint64_t stamp, const double sums[2], const double *lost);

/** Announces that a chunk is going to be modified. */
void journal_open(struct journal *journal, uint64_t residual, uint64_t stamp, uint64_t chunk);

/** Where the old bytes of a chunk's word number `word` go. */
static inline float *journal_word(struct journal *journal, uint64_t word)
{
    return journal->old[word % JOURNAL_WORDS];
}

/** The word that ends with the chunk's element number `saved` - 1 is in its place. The pass may
 * modify it now, and the words before it are complete. */
static inline void journal_save(struct journal *journal, uint64_t saved)
{
    atomic_store_explicit(&journal->saved, saved, memory_order_release);
    atomic_signal_fence(memory_order_seq_cst);
}

/** The first `copied` elements of the chunk, all that will change, are in journal->copy. */
static inline void journal_copied(struct journal *journal, uint64_t copied)
{
    atomic_store_explicit(&journal->copied, copied, memory_order_release);
    atomic_signal_fence(memory_order_seq_cst);
}

/** Copies `length` elements of the chunk from number `first` on, of the momentum or else of the
 * residual, before they change. The elements before them have been copied already. */
void journal_copy(
    struct journal *journal, bool of_momentum, const float *x, unsigned first, unsigned length);

/** Publishes a finished chunk's record, then closes the journal (which may be NULL). */
void journal_close(struct journal *journal, struct chunk_record *record, uint64_t stamp);

/** Whether the journal's owner was stopped inside a chunk; *residual is the number of the residual
 * that has to be given to journal_recover(). */
bool journal_pending(const struct journal *journal, uint64_t *residual);

/** How many first elements of the chunk the pass had completed when it was stopped in it: a
 * multiple of JOURNAL_WORD. */
static inline unsigned journal_resumed(const struct chunk_record *record, uint64_t stamp)
{
    const uint64_t resumed = atomic_load_explicit(&record->resumed, memory_order_relaxed);
    return resumed / CHUNK == stamp ? (unsigned)(resumed % CHUNK) : 0;
}

/**
 * Puts back the old bytes of an interrupted chunk that was not finished, notes in its record what
 * is complete, and closes the journal. May itself be interrupted and repeated. residual: n
 * elements, with its progress; momentum: as many, or NULL where no pass had any. Returns false, and
 * changes nothing, if the journal does not fit them: its bytes are damaged.
 */
bool journal_recover(struct journal *journal, float *residual, float *momentum, uint64_t n,
    struct progress *progress);

#endif
