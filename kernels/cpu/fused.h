/*
 * Compensate and select in one pass: residual += gradients, the k largest magnitudes of the result,
 * the ledger and the journal, at 12 bytes of memory traffic an element; 8 if the residual is in
 * bf16 (rounded.h).
 *
 * The result is, bit for bit, what accumulate() (and rounding) and then select_top() or
 * select_fibres() give; it depends neither on the number of ranges, nor on the implementation, nor
 * on what is repeated.
 *
 * Happy path: set the fields, fused_start(), fused_range() once for every range on any threads,
 * then fused_finish(); or fused_run() for all of that. A large tensor has its k-th magnitude
 * guessed from the last turn's or a sample, a little lower; the pass collects what reaches that,
 * fused_finish() selects among it. Where the guess was wrong, it makes another one from the
 * finished residual and collects once more. Fibres, contiguous (rows) or strided, are selected from
 * while they go by. Where no guess is worth it (tiny fibres, more than one element in eight), or
 * two were wrong, the plain selection reads the residual again.
 *
 * Retry: a pass whose stamp is in the progress already adds nothing, needs no gradients (count may
 * be 0) and selects the same list again. Killed anywhere, by whatever signal: give every pending
 * journal back with journal_recover(), then repeat the pass with the same stamp, the same gradients
 * and any number of ranges; chunks that are done are only looked at. The sums may be those from
 * before the pass or whatever the killed fused_finish() left of them. A pass with momentum moves
 * it exactly as often as the residual.
 */
#ifndef ADTOPK_KERNELS_FUSED_H
#define ADTOPK_KERNELS_FUSED_H

#include "kernels/cpu/journal.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rest.h"
#include "kernels/cpu/rounded.h"
#include "kernels/cpu/survey.h"

struct chunk_ops;
struct stats;
struct stats_ops;

enum { FUSED_MAX_RANGES = 64 };

/* How the selection is made; chosen by fused_start(). */
enum fused_mode {
    FUSED_NOTHING, /* nothing is selected */
    FUSED_BRACKET, /* candidates of the whole tensor */
    FUSED_ROWS,    /* fibres that are contiguous, each while it is in the cache */
    FUSED_SLABS,   /* strided fibres, where they lie */
    FUSED_RULE,    /* a survey for a rule that selects itself */
    FUSED_AFTER    /* plain selection after the pass */
};

/* What leaves the residual when all of a tensor travels. */
enum fused_take {
    FUSED_TAKE_NOTHING = 0,
    FUSED_TAKE_F32,  /* every element itself; +0 remains */
    FUSED_TAKE_BF16, /* its nearest bfloat16 */
    FUSED_TAKE_F16   /* its nearest binary16 that is finite */
};

struct fused {
    /* What the caller sets; all pointers stay the caller's and valid until fused_finish(). */
    float *residual;        /* view_size(view) elements, tensor memory */
    struct rounded rounded; /* or they are here. Then no rule, take or momentum; a strided view is
                             * selected from per fibre */
    struct view view;       /* a global selection of stride 1 is made as one row: this changes */
    uint64_t k; /* entries to select, of the tensor or of every fibre; 0: none, out may be NULL */
    bool per_fibre; /* select_fibres() instead of select_top() */
    bool rule;      /* nothing is selected: fused_survey() after the pass. View of stride 1; k is
                     * about how many entries questions will be about, 0 if unknown; no out */
    unsigned need;  /* rule: statistics that the survey will be asked for, of enum survey_need */
    float guess;    /* rule: magnitude that questions will be about, or a little less; 0 if unknown:
                     * taken from a sample */
    bool withdraw;  /* subtract the gradients instead (the inverse pass); take k = 0 */
    enum fused_take take; /* instead of adding gradients, subtract what travels; take k = 0, no
                           * momentum. Values that are not finite leave nothing behind. */
    struct rest rest;     /* take: what comes back of sums that were rounded */
    const void *const *gradients; /* as accumulate() takes them */
    unsigned count;
    enum dtype dtype;
    float scale;     /* of the gradients' sum, before anything else; 0 or 1: none. Finite, not
                      * negative; what is not finite unscaled is left out whatever the scale */
    float *momentum; /* of every element of the residual, zeros at first; or NULL. The pass adds
                      * what momentum.h says instead of the gradients, of which none count as 0 */
    float mu;        /* in [0, 1) */
    bool nesterov;
    uint64_t id;    /* the residual's number in journals */
    uint64_t stamp; /* never 0; each pass (step, and its withdrawal) has one of its own */
    struct progress *progress; /* progress_size() bytes, zeros before the first pass */
    float *hints; /* or NULL: one float a fibre, or one for the whole tensor, zeros at first, which
                   * the caller keeps from turn to turn for this tensor. Any values give the right
                   * list, good ones sooner. */
    struct sparse *out;       /* capacity as select_top() or select_fibres() ask for */
    unsigned ranges;          /* 1..FUSED_MAX_RANGES parts that threads may work on side by side */
    struct parallel parallel; /* threads that fused_finish() may use besides its own */
    void *scratch;            /* fused_scratch() bytes, aligned to 64 */
    const struct chunk_ops *ops;      /* NULL: the best for this processor */
    const struct stats_ops *surveyed; /* rule: the same */

    /* The pass's own. */
    enum fused_mode mode;
    uint32_t least; /* candidates of a global selection have at least this key */
    uint32_t *histogram;
    struct sparse candidate[FUSED_MAX_RANGES];
    bool overflow[FUSED_MAX_RANGES];
    bool pruned[FUSED_MAX_RANGES];
    struct stats *statistics;            /* rule: of every chunk */
    uint32_t complete[FUSED_MAX_RANGES]; /* rule: a list holds all of at least this key */
};

/** Bytes of scratch for a pass: 300 KiB and about 10 bytes an entry of a global selection. */
size_t fused_scratch(const struct view *view, uint64_t k, bool per_fibre, unsigned ranges);

/** The same for a rule's pass over n elements: 20 bytes an entry up to n / 4, none beyond. */
size_t fused_rule_scratch(uint64_t n, uint64_t k, unsigned ranges);

/** Begins the pass. sums: the ledger's two sums as the last pass left them. Reads a sample of the
 * gradients and the residual; changes the progress only. */
void fused_start(struct fused *pass, const double sums[2]);

/** Works on range number `range` < pass->ranges. Different ranges may run at the same time;
 * journal: this thread's, or NULL where no restart will repeat the pass. */
void fused_range(struct fused *pass, unsigned range, struct journal *journal);

/** The Euclidean norm of the sum of the local gradients, unscaled, elements that are not finite
 * left out: what clipping compares with its limit. One read of the gradients; needs the fields
 * view, gradients, count and dtype. The same bits on every machine, by any number of threads. */
double fused_gradient_norm(const struct fused *pass, const struct parallel *parallel);

/** After all ranges: fills pass->out and sets sums to what they were when the pass with this stamp
 * first began, plus what it added (minus what it withdrew). Returns the number of non-finite
 * elements, which were left out. */
uint64_t fused_finish(struct fused *pass, double sums[2]);

/** After all ranges of a rule's pass, once: what the rule can ask. The survey points into the pass,
 * its residual and its scratch. Same answers whatever guess, ranges, implementation or repetition.
 */
void fused_survey(const struct fused *pass, struct survey *survey);

/** All of it on this thread. */
uint64_t fused_run(struct fused *pass, struct journal *journal, double sums[2]);

/* For the parts of the pass: is the chunk complete already, and where does a range begin? */
bool fused_is_added(const struct fused *pass, uint64_t chunk);
uint64_t fused_first_chunk(const struct fused *pass, unsigned range);

/* Elements of the residual from `first` on, in f32: where they lie, or expanded in `buffer`. */
const float *fused_elements(
    const struct fused *pass, uint64_t first, unsigned length, float *buffer);

/* Whether the residual is in bf16. */
static inline bool fused_is_rounded(const struct fused *pass)
{
    return pass->rounded.element != NULL;
}

#endif
