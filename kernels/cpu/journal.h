/*
 * How far a pass over a residual has come, so that it can be repeated after a SIGKILL at any
 * instruction without adding a gradient twice.
 *
 * A pass works chunk by chunk. For every chunk the tensor keeps a *record*: what the chunk's
 * gradients added to the ledger, and the *stamp* of the pass that did so last. Every worker has one
 * *journal*: before elements of a chunk are modified their old bytes are saved there.
 *
 * Happy path: journal_open, (journal_save, modify) for one group of elements after the other, and
 * (journal_move, modify) for the momentum, record written, stamp published, journal_close. Killed
 * before the stamp: the saved bytes go back (journal_recover) and the repeated pass does that chunk
 * again. Killed after it: the repeated pass skips the chunk. Both structures live in memory that
 * outlives the process; all bytes zero is their initial state.
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

/* Elements of a chunk: its old bytes and its gradient together fit in a first-level cache. */
enum { CHUNK = 4096 };

/* What the chunk's gradients came to; valid for the pass whose stamp it carries. */
struct chunk_record {
    double sums[2];     /* plain and sign-hashed */
    uint64_t nonfinite; /* elements left out */
    _Atomic uint64_t stamp;
};

/* Of one residual. */
struct progress {
    double before[2]; /* the ledger's sums when the pass with this stamp began */
    _Atomic uint64_t stamp;
    uint64_t reserved;
    struct chunk_record chunk[];
};

/* Of one worker; used by one thread at a time. */
struct journal {
    uint64_t residual; /* the caller's number for it */
    uint64_t stamp;
    uint64_t chunk;
    _Atomic uint64_t saved; /* that many first elements of the chunk are in `old`; 0: none */
    _Alignas(64) float old[CHUNK];
    _Alignas(64) _Atomic uint64_t moved; /* the same of the chunk's momentum */
    _Alignas(64) float momentum[CHUNK];
};

/** Chunks of a residual of n elements. */
static inline uint64_t chunk_count(uint64_t n)
{
    return n / CHUNK + (n % CHUNK != 0);
}

/** Bytes of the progress of a residual of n elements: 0.2% of the residual's. Aligned to 8. */
static inline size_t progress_size(uint64_t n)
{
    return sizeof(struct progress) + chunk_count(n) * sizeof(struct chunk_record);
}

/** Begins the pass `stamp`, or goes on with it: only the first call keeps `sums` as before. */
void progress_start(struct progress *progress, uint64_t stamp, const double sums[2]);

/** Announces that a chunk is going to be modified. */
void journal_open(struct journal *journal, uint64_t residual, uint64_t stamp, uint64_t chunk);

/** The first `saved` elements of the chunk are in journal->old: they may be modified now. */
static inline void journal_save(struct journal *journal, uint64_t saved)
{
    atomic_store_explicit(&journal->saved, saved, memory_order_release);
    atomic_signal_fence(memory_order_seq_cst);
}

/** The same for the first `moved` elements of the chunk's momentum, in journal->momentum. */
static inline void journal_move(struct journal *journal, uint64_t moved)
{
    atomic_store_explicit(&journal->moved, moved, memory_order_release);
    atomic_signal_fence(memory_order_seq_cst);
}

/** Publishes a finished chunk's record, then closes the journal (which may be NULL). */
void journal_close(struct journal *journal, struct chunk_record *record, uint64_t stamp);

/** Whether the journal's owner was stopped inside a chunk; *residual is the number of the residual
 * that has to be given to journal_recover(). */
bool journal_pending(const struct journal *journal, uint64_t *residual);

/**
 * Puts the interrupted chunk's old bytes back, if it was not finished, and closes the journal. May
 * itself be interrupted and repeated. residual: n elements, with its progress; momentum: as many,
 * or NULL where no pass had any.
 * Returns false, and changes nothing, if the journal does not fit them: its bytes are damaged.
 */
bool journal_recover(struct journal *journal, float *residual, float *momentum, uint64_t n,
    const struct progress *progress);

#endif
