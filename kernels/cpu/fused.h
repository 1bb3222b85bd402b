/*
 * Compensate and select in one pass. The pass adds the gradients to the residual, selects the k
 * largest magnitudes of the result, and keeps the ledger and the journal. It moves 12 bytes of
 * memory per element, or 8 if the residual is in bf16 (rounded.h).
 *
 * The result equals, bit for bit, that of accumulate() (and rounding) and then select_top() or
 * select_fibres(). It does not depend on the number of ranges, on the implementation or on
 * repetitions.
 *
 * Happy path: set the fields, call fused_start(), then fused_range() once for every range on any
 * threads, then fused_finish().
 *
 * Selection. For a large tensor the pass guesses the k-th magnitude from the last turn or a sample,
 * a little too low. It collects the elements that reach the guess, and fused_finish() selects among
 * them. If the guess was wrong, fused_finish() makes another one from the finished residual and
 * collects once more. For fibres, contiguous (rows) or strided, the pass selects from each fibre
 * while its elements are in the cache. The plain selection reads the residual again if two guesses
 * were wrong, or if a guess is not worth it: tiny fibres, or more than one element in eight.
 *
 * Retry. A pass whose stamp is in the progress already adds nothing, needs no gradients (count may
 * be 0) and selects the same list again. After a kill at any instruction, by any signal: give every
 * pending journal back with journal_recover(). Then repeat the pass with the same stamp, the same
 * gradients and any number of ranges; it only reads the chunks that are done. The sums may be those
 * from before the pass, or whatever the killed fused_finish() left of them. A pass with momentum
 * changes the momentum exactly as often as the residual.
 */
#ifndef ADTOPK_KERNELS_FUSED_H
#define ADTOPK_KERNELS_FUSED_H

#include "kernels/base/ahead.h"
#include "kernels/base/parallel.h"
#include "kernels/cpu/journal.h"
#include "kernels/cpu/plain.h"
#include "kernels/cpu/rest.h"
#include "kernels/cpu/rounded.h"
#include "kernels/cpu/survey.h"

struct chunk_ops;
struct stats;
struct stats_ops;

enum { FUSED_MAX_RANGES = 64, FUSED_RESTS = 2 };

/* How the selection is made; chosen by fused_start(). */
enum fused_mode {
    FUSED_NOTHING, /* nothing is selected */
    FUSED_BRACKET, /* candidates of the whole tensor */
    FUSED_ROWS,    /* fibres that are contiguous, each while it is in the cache */
    FUSED_SLABS,   /* strided fibres, where they lie */
    FUSED_RULE,    /* a survey for a rule that selects itself */
    FUSED_AFTER    /* plain selection after the pass */
};

/* What the pass takes from the residual when all of a tensor is sent. */
enum fused_take {
    FUSED_TAKE_NOTHING = 0,
    FUSED_TAKE_F32,  /* every element itself; +0 remains */
    FUSED_TAKE_BF16, /* its nearest bfloat16 */
    FUSED_TAKE_F16,  /* its nearest binary16 that is finite */
    FUSED_TAKE_RESTS /* nothing, but rests come back as in the others */
};

/* What residuals lose before the gradients are added. A withdrawal gives it back, but for a share
 * of 1, of which nothing is left to give back. */
struct fused_decay {
    float share;  /* of every element, in [0, 1]; 0: none */
    double *lost; /* or NULL: two sums of what was lost. fused_finish() sets them as `sums` */
};

/* A range's list of candidates. */
struct fused_list {
    bool overflow; /* it had no room for all of them */
    bool pruned;   /* it has only the best of them */
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
    unsigned need;  /* rule: the statistics that the survey will be asked for, of enum
                     * survey_need */
    float guess;    /* rule: magnitude that questions will be about, or a little less; 0 if unknown:
                     * taken from a sample */
    bool withdraw;  /* subtract the gradients instead (the inverse pass); take k = 0 */
    enum fused_take take; /* instead of adding gradients, subtract the values that are sent;
                           * requires k = 0 and no momentum. Values that are not finite leave
                           * nothing behind. */
    struct rest rest[FUSED_RESTS]; /* take: the rounding errors of sums and of updates, which go
                                    * back to the residual */
    const void *const *gradients;  /* as accumulate() takes them */
    unsigned count;
    enum dtype dtype;
    float scale;     /* factor of the gradients' sum, applied first; 0 or 1: none. Finite, not
                      * negative. Elements that are not finite before scaling are left out whatever
                      * the factor. */
    float *momentum; /* momentum of every element of the residual, zeros at first; or NULL. The pass
                      * adds what momentum.h defines instead of the gradients. A pass without
                      * gradients counts them as 0. */
    float mu;        /* in [0, 1) */
    bool nesterov;
    struct fused_decay decay;  /* not with momentum, take or bf16 */
    uint64_t id;               /* the residual's number in journals */
    uint64_t stamp;            /* never 0; each pass (a step's, or its withdrawal's) has its own */
    struct progress *progress; /* progress_size() bytes, zeros before the first pass */
    float *hints; /* or NULL: one float per fibre, or one for the whole tensor, zeros at first. The
                   * caller keeps them from turn to turn for this tensor. Any values give the right
                   * list; good ones make the pass faster. */
    struct sparse *out;       /* capacity as select_top() or select_fibres() ask for */
    unsigned ranges;          /* 1..FUSED_MAX_RANGES parts that threads may work on side by side */
    struct parallel parallel; /* threads that fused_finish() may use besides its own; and what
                               * passes have learned of the machine */
    void *scratch;            /* fused_scratch() bytes, aligned to 64 */
    const struct chunk_ops *ops;      /* NULL: the best for this processor */
    const struct stats_ops *surveyed; /* rule: the same */

    /* The pass's own. */
    enum fused_mode mode;
    uint32_t least; /* candidates of a global selection have at least this key */
    uint32_t *histogram;
    struct sparse candidate[FUSED_MAX_RANGES];
    struct fused_list of_list[FUSED_MAX_RANGES];
    struct stats *statistics;            /* rule: of every chunk */
    uint32_t complete[FUSED_MAX_RANGES]; /* rule: a list holds all of at least this key */
};

/** Bytes of scratch for a pass: 300 KiB and about 10 bytes per entry of a global selection. */
size_t fused_scratch(const struct view *view, uint64_t k, bool per_fibre, unsigned ranges);

/** The same for a rule's pass over n elements: 20 bytes per entry up to n / 4, none beyond. */
size_t fused_rule_scratch(uint64_t n, uint64_t k, unsigned ranges);

/** Begins the pass. sums: the ledger's two sums as the last pass left them. Reads a sample of the
 * gradients and the residual; changes the progress only. */
void fused_start(struct fused *pass, const double sums[2]);

/** Works on range number `range` < pass->ranges. Different ranges may run at the same time;
 * journal: this thread's, or NULL where no restart will repeat the pass. */
void fused_range(struct fused *pass, unsigned range, struct journal *journal);

/** The Euclidean norm of the unscaled sum of the local gradients, without elements that are not
 * finite. Clipping compares it with its limit. Reads the gradients once; needs the fields view,
 * gradients, count and dtype. Gives the same bits on every machine, with any number of threads. */
double fused_gradient_norm(const struct fused *pass, const struct parallel *parallel);

/** Call it after all ranges. Fills pass->out. Sets `sums` to their values when the pass with this
 * stamp first began, plus the gradients that it added, minus those that it withdrew. What decay
 * took is not in them: residual = sums - lost. Returns the number of non-finite elements, which
 * were left out. */
uint64_t fused_finish(struct fused *pass, double sums[2]);

/** Call it once, after all ranges of a rule's pass. Prepares the survey that the rule asks. The
 * survey points into the pass, its residual and its scratch. It gives the same answers for any
 * guess, ranges, implementation or repetition. */
void fused_survey(const struct fused *pass, struct cpu_survey *survey);

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
