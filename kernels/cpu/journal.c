#include "kernels/cpu/journal.h"

#include <string.h>

void progress_start(
    struct progress *progress, uint64_t stamp, const double sums[2], const double *lost)
{
    if (atomic_load_explicit(&progress->stamp, memory_order_acquire) == stamp) {
        return;
    }
    progress->before[0] = sums[0];
    progress->before[1] = sums[1];
    progress->before_lost[0] = lost != NULL ? lost[0] : 0;
    progress->before_lost[1] = lost != NULL ? lost[1] : 0;
    atomic_store_explicit(&progress->stamp, stamp, memory_order_release);
    atomic_signal_fence(memory_order_seq_cst);
}

void journal_open(struct journal *journal, uint64_t residual, uint64_t stamp, uint64_t chunk)
{
    /* `saved` is 0: no one reads these fields before journal_save(). */
    journal->residual = residual;
    journal->stamp = stamp;
    journal->chunk = chunk;
}

void journal_copy(
    struct journal *journal, bool of_momentum, const float *x, unsigned first, unsigned length)
{
    journal->copy_of = of_momentum ? JOURNAL_MOMENTUM : JOURNAL_RESIDUAL;
    memcpy(journal->copy + first, x, length * sizeof *x);
    journal_copied(journal, first + length);
}

void journal_close(struct journal *journal, struct chunk_record *record, uint64_t stamp)
{
    atomic_store_explicit(&record->stamp, stamp, memory_order_release);
    atomic_signal_fence(memory_order_seq_cst);
    if (journal != NULL) {
        journal_save(journal, 0);
        journal_copied(journal, 0);
    }
}

bool journal_pending(const struct journal *journal, uint64_t *residual)
{
    *residual = journal->residual;
    return atomic_load_explicit(&journal->saved, memory_order_acquire) != 0 ||
           atomic_load_explicit(&journal->copied, memory_order_acquire) != 0;
}

/* Takes the interrupted chunk back to where the repeated pass can go on. */
static void journal_restore(struct journal *journal, float *residual, float *momentum,
    uint64_t saved, uint64_t copied, struct chunk_record *record)
{
    uint64_t complete = 0;
    if (copied > 0 && journal->copy_of == JOURNAL_RESIDUAL) {
        memcpy(residual, journal->copy, copied * sizeof *residual);
        saved = 0;
    } else if (copied > 0) {
        memcpy(momentum, journal->copy, copied * sizeof *momentum);
    }
    if (saved > 0) {
        const uint64_t word = (saved - 1) / JOURNAL_WORD;
        complete = word * JOURNAL_WORD;
        memcpy(residual + complete, journal_word(journal, word),
            (saved - complete) * sizeof *residual);
    }
    if (complete > 0) {
        atomic_store_explicit(
            &record->resumed, journal->stamp * CHUNK + complete, memory_order_release);
    }
    atomic_signal_fence(memory_order_seq_cst);
}

bool journal_recover(struct journal *journal, float *residual, float *momentum, uint64_t n,
    struct progress *progress)
{
    const uint64_t saved = atomic_load_explicit(&journal->saved, memory_order_acquire);
    const uint64_t copied = atomic_load_explicit(&journal->copied, memory_order_acquire);
    const uint64_t most = saved > copied ? saved : copied;
    if (most == 0) {
        return true;
    }
    if (most > CHUNK || journal->chunk >= chunk_count(n) ||
        (copied > 0 && journal->copy_of == JOURNAL_MOMENTUM && momentum == NULL) ||
        (copied > 0 && journal->copy_of > JOURNAL_MOMENTUM)) {
        return false;
    }
    const uint64_t first = journal->chunk * CHUNK;
    if (most > n - first) {
        return false;
    }
    struct chunk_record *record = &progress->chunk[journal->chunk];
    if (atomic_load_explicit(&record->stamp, memory_order_acquire) != journal->stamp) {
        journal_restore(journal, residual + first, momentum != NULL ? momentum + first : NULL,
            saved, copied, record);
    }
    journal_save(journal, 0);
    journal_copied(journal, 0);
    return true;
}
