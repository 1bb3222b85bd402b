#include "kernels/cpu/journal.h"

#include <string.h>

void progress_start(struct progress *progress, uint64_t stamp, const double sums[2])
{
    if (atomic_load_explicit(&progress->stamp, memory_order_acquire) == stamp) {
        return;
    }
    progress->before[0] = sums[0];
    progress->before[1] = sums[1];
    atomic_store_explicit(&progress->stamp, stamp, memory_order_release);
    atomic_signal_fence(memory_order_seq_cst);
}

void journal_open(struct journal *journal, uint64_t residual, uint64_t stamp, uint64_t chunk)
{
    /* saved is 0: nobody looks at these fields until journal_save(). */
    journal->residual = residual;
    journal->stamp = stamp;
    journal->chunk = chunk;
}

void journal_close(struct journal *journal, struct chunk_record *record, uint64_t stamp)
{
    atomic_store_explicit(&record->stamp, stamp, memory_order_release);
    atomic_signal_fence(memory_order_seq_cst);
    if (journal != NULL) {
        journal_save(journal, 0);
        journal_move(journal, 0);
    }
}

bool journal_pending(const struct journal *journal, uint64_t *residual)
{
    *residual = journal->residual;
    return atomic_load_explicit(&journal->saved, memory_order_acquire) != 0 ||
           atomic_load_explicit(&journal->moved, memory_order_acquire) != 0;
}

<<<<<<< HEAD
bool journal_recover(
    struct journal *journal, float *residual, uint64_t n, struct progress *progress)
=======
bool journal_recover(struct journal *journal, float *residual, float *momentum, uint64_t n,
    const struct progress *progress)
>>>>>>> kern-s
{
    const uint64_t saved = atomic_load_explicit(&journal->saved, memory_order_acquire);
    const uint64_t moved = atomic_load_explicit(&journal->moved, memory_order_acquire);
    const uint64_t most = saved > moved ? saved : moved;
    if (most == 0) {
        return true;
    }
    if (most > CHUNK || journal->chunk >= chunk_count(n) || (moved > 0 && momentum == NULL)) {
        return false;
    }
    const uint64_t first = journal->chunk * CHUNK;
    if (most > n - first) {
        return false;
    }
    struct chunk_record *record = &progress->chunk[journal->chunk];
    if (atomic_load_explicit(&record->stamp, memory_order_acquire) != journal->stamp) {
<<<<<<< HEAD
        const uint64_t word = (saved - 1) / JOURNAL_WORD;
        const uint64_t complete = word * JOURNAL_WORD;
        memcpy(residual + first + complete, journal_word(journal, word),
            (saved - complete) * sizeof *residual);
        atomic_store_explicit(
            &record->resumed, journal->stamp * CHUNK + complete, memory_order_release);
=======
        memcpy(residual + first, journal->old, saved * sizeof *residual);
        if (moved > 0) {
            memcpy(momentum + first, journal->momentum, moved * sizeof *momentum);
        }
>>>>>>> kern-s
        atomic_signal_fence(memory_order_seq_cst);
    }
    journal_save(journal, 0);
    journal_move(journal, 0);
    return true;
}
