/*
 * How far a pass over a residual has come, so that it can be repeated after a SIGKILL at any
 * instruction without adding a gradient twice.
 *
 * A pass works chunk by chunk, and in a chunk word by word. For every chunk the tensor keeps a
 * *record*: what the chunk's gradients added to the ledger, and the *stamp* of the pass that did so
 * last. Every worker has one *journal*: before a word is modified its old bytes are saved there. It
 * has room for two words, so that it stays in the first-level cache: while one may be modified the
 * next one is saved.
 *
 * Happy path: journal_open, (journal_save, modify) for one word after the other, record written,
 * stamp published, journal_close. Where what is added depends on the old bytes (momentum, and what
 * travels of a whole tensor), a copy of all of the chunk's is made first (journal_copy). Killed
 * before the stamp: such a copy goes back; otherwise the last word's bytes go back, and the record
 * says how many words before it are complete (journal_recover); the repeated pass only looks at
 * those and goes on behind them. Killed after the stamp: the repeated pass skips the chunk. Both
 * structures live in memory that outlives the process; all bytes zero is their initial state.
 * Chunks of a bf16 residual are journalled in another way (rounded.h).
 *
 * A killed thread stops between two instructions and what it stored before stays, so it is enough
 * to keep the compiler from reordering the stores.
 */
#ifndef ADTOPK_KERNELS_JOURNAL_H
#define ADTOPK_KERNELS_JOURNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/ledger.h"

/* Elements of a chunk and of a word. */
enum { CHUNK = 4096, JOURNAL_WORD = 64, JOURNAL_WORDS = 2 };

/* What the chunk's gradients came to; valid for the pass whose stamp it carries. */
struct chunk_record {
    double sums[2];     /* plain and sign-hashed */
    uint64_t nonfinite; /* elements left out */
    _Atomic uint64_t stamp;
    _Atomic uint64_t resumed; /* CHUNK * the stamp of a pass that was stopped in the chunk
                               * + elements that it had completed */
};

/* Of one residual. */
struct progress {
    double before[2]; /* the ledger's sums when the pass with this stamp began */
    _Atomic uint64_t stamp;
    uint64_t reserved;
    struct chunk_record chunk[];
};

/* What rounding cut off a chunk of a bf16 residual (rounded.h), by the ledger's sign and lane. */
struct carry {
    float of[2][LEDGER_LANES];
};

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

/** Chunks of a residual of n elements. */
static inline uint64_t chunk_count(uint64_t n)
{
    return n / CHUNK + (n % CHUNK != 0);
}

/** Bytes of the progress of a residual of n elements: 0.25% of the residual's. Aligned to 8. */
static inline size_t progress_size(uint64_t n)
{
    return sizeof(struct progress) + chunk_count(n) * sizeof(struct chunk_record);
}

/** Begins the pass `stamp`, or goes on with it: only the first call keeps `sums` as before. */
void progress_start(struct progress *progress, uint64_t stamp, const double sums[2]);

/** Announces that a chunk is going to be modified. */
void journal_open(struct journal *journal, uint64_t residual, uint64_t stamp, uint64_t chunk);

/** Where the old bytes of a chunk's word number `word` go. */
static inline float *journal_word(struct journal *journal, uint64_t word)
{
    return journal->old[word % JOURNAL_WORDS];
}

/** The word that ends with the chunk's element number `saved` - 1 is in its place: it may be
 * modified now, and those before it are complete. */
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

/** Copies the chunk's `length` elements from number `first` on, of the momentum or else of the
 * residual, before they change; those before them are copied. */
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
 * Puts back what an interrupted chunk was changed from, if it was not finished, notes in its record
 * what is complete, and closes the journal. May itself be interrupted and repeated. residual: n
 * elements, with its progress; momentum: as many, or NULL where no pass had any.
 * Returns false, and changes nothing, if the journal does not fit them: its bytes are damaged.
 */
bool journal_recover(struct journal *journal, float *residual, float *momentum, uint64_t n,
    struct progress *progress);

#endif
