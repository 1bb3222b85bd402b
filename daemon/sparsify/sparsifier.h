/*
 * Sparsifiers select the entries of an accumulated gradient that are sent in a turn.
 *
 * Each sparsifier is one file with one table of operations. It never touches gradients, files or
 * messages. Before a turn it chooses how to select from the tensor (choose). Most leave the
 * selection to the exact kernels (kernels/cpu/fused.h). A sparsifier with its own rule then reads
 * the complete residual through a survey (kernels/base/survey.h) and selects itself (select). A
 * sparsifier whose positions all nodes know beforehand only lists them (known).
 *
 * A choice is the same on every node: it depends on shape, parameters, turn and the data that the
 * nodes agree on, never on a node's own residual. A selection depends on the residual and its
 * state. A retry repeats it bit for bit, because it never changes the state that it reads, only the
 * next one.
 */
#ifndef ADTOPK_SPARSIFIER_H
#define ADTOPK_SPARSIFIER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/sparse.h"
#include "kernels/base/view.h"
#include "kernels/kernels.h"

#define TENSOR_MAX_DIMS 8

/* How all-dimension top-k divides a tensor into fibres. Chunks all have one length: the largest
 * divisor of the tensor's size up to FIBRES_CHUNK_LENGTH. If that is below FIBRES_CHUNK_LEAST,
 * there is one chunk, the tensor. */
#define FIBRES_CHUNK_LENGTH 4096u
#define FIBRES_CHUNK_LEAST 256u
enum fibres {
    FIBRES_AXIS_1 = 0, /* along axis 1, the paper's choice */
    FIBRES_ROW,        /* [s0, rest]: one fibre per index of axis 0 */
    FIBRES_LONGEST,    /* axis 0 when s0 > s1, else axis 1 */
    FIBRES_CHUNK,      /* stretches of FIBRES_CHUNK_LENGTH elements, in the order of memory */
    FIBRES_COUNT
};

/* The distribution that sidco fits to the magnitudes. */
enum sidco_fit { SIDCO_EXPONENTIAL = 0, SIDCO_PARETO, SIDCO_GAMMA, SIDCO_FITS };

/* The parameters of all sparsifiers. daemon/policy/policy_key.c has their ranges, defaults and
 * meaning; each sparsifier says which ones it uses. All may be 0 except the density. */
struct sparsifier_params {
    double density; /* in (0, 1]: the share of entries to send once the warm-up is over */
    uint64_t warmup_epochs;
    uint64_t epoch_turns; /* of one epoch of the warm-up */

    /* adtopk */
    enum fibres fibres;
    bool interleave;       /* turns alternate between all-dimension and traditional (global)
                            * top-k */
    uint64_t fibre_turns;  /* number of all-dimension turns in a row */
    uint64_t global_turns; /* number of traditional turns in a row; 0 counts as 1, at most 64
                            * each */
    bool adaptive;         /* let the updates decide which turns are traditional */
    uint64_t total_turns;  /* of the training; 0: not known */
    bool estimate;         /* traditional turns go by an estimated threshold */
    uint64_t estimate_period;

    double sample;      /* dgc: the share of the entries in the sample for the threshold */
    enum sidco_fit fit; /* sidco */
    double threshold;   /* threshold */

    /* Parameters of the pass before selection: error feedback, momentum correction and clipping. */
    double beta;     /* factor of the residual before gradients are added; 1: nothing decays */
    double gamma;    /* factor of the gradients that are added */
    double momentum; /* correction factor; 0: none */
    bool nesterov;   /* Nesterov momentum */
    bool momentum_masking; /* an entry that leaves the residual also leaves the momentum */
    double clip;           /* clip each rank's gradient to this norm / sqrt(ranks); 0: off */
};

struct tensor_shape {
    unsigned dims;
    uint64_t size[TENSOR_MAX_DIMS];
};

/* What a sparsifier remembers of one residual from turn to turn; zeros before its first. Kept in
 * the store, so plain numbers only. */
struct sparsifier_state {
    float
        threshold; /* RULE: from which magnitude on the next pass had better collect; 0: unknown */
    uint32_t number[5];
    double real[3];
};

/* The data of a tensor on which all nodes agree, because it is made from updates only. Zeros at
 * first. */
struct sparsifier_agreed {
    double real[3];
    uint32_t number[2];
};

/* One time a tensor is sparsified. */
struct sparsifier_turn {
    const struct tensor_shape *shape;
    const struct sparsifier_params *params;
    const struct sparsifier_agreed *agreed;
    uint64_t turn;
    uint64_t seed; /* of job, tensor and turn; the same on all nodes */
};

enum sparsifier_mode {
    SPARSIFIER_DENSE = 0, /* the tensor is sent whole */
    SPARSIFIER_TOP,       /* the `count` largest magnitudes of the tensor, exact */
    SPARSIFIER_FIBRES,    /* the `per_fibre` largest of every fibre of the view, exact */
    SPARSIFIER_RULE,      /* the entries that select() takes, at most `count` */
    SPARSIFIER_KNOWN      /* the `count` positions that known() lists, which are not sent */
};

struct sparsifier_choice {
    enum sparsifier_mode mode;
    struct view view;   /* the view whose positions the turn's selection uses */
    uint64_t per_fibre; /* FIBRES; else 0 */
    uint64_t count;     /* entries of the turn; RULE: at most */
    unsigned need;      /* RULE: statistics that select() looks at, of enum survey_need */
};

/* The update of a turn, which every node has. Input of observe(). */
struct sparsifier_update {
    uint64_t count; /* elements that are not zero */
    double sum_abs; /* of their magnitudes */
};

struct sparsifier_ops {
    const char *name;
    const char *help;    /* one sentence */
    const char *entries; /* how many entries a turn sends, where k is the density's share */
    const char *source;  /* the publication of the rule */
    const char *const *parameters; /* policy keys besides sparsifier_common; NULL-terminated */

    /* The settings that it supports; the policy's checks read them here. */
    bool node_only;     /* not residuals of single ranks (scope "rank"): it selects nothing */
    bool plain;         /* it takes the largest magnitudes of the whole tensor: a collective that
                         * picks the positions for all nodes does the same */
    bool bf16_residual; /* the residual may be in bf16, while the turn's mode is TOP or FIBRES */

    /** How the turn selects. Within the first sparsifier_period() turns every mode and view occurs,
     * and no later choice has a larger count. */
    void (*choose)(const struct sparsifier_turn *turn, struct sparsifier_choice *choice);

    /** RULE (else NULL): selects from a complete residual into out, ascending positions, capacity
     * choice.count. state: after the turns before; next: a copy of it, to be brought up to date. */
    void (*select)(const struct sparsifier_turn *turn, const struct sparsifier_state *state,
        struct survey *survey, struct sparsifier_state *next, struct sparse *out);

    /** KNOWN (else NULL): the positions, ascending, into out->position and out->count. */
    void (*known)(const struct sparsifier_turn *turn, struct sparse *out);

    /** Whether these parameters' choices depend on updates, for which a pass over each is due;
     * NULL: they never do. */
    bool (*observes)(const struct sparsifier_params *params);

    /** Where observes() is true: keeps what the choices of later turns need from this turn's
     * update. `agreed` comes with the data so far and is brought up to date. */
    void (*observe)(const struct sparsifier_turn *turn, const struct sparsifier_update *update,
        struct sparsifier_agreed *agreed);
};

/** See choose(); at most 128. */
unsigned sparsifier_period(const struct sparsifier_params *params);

/** The density of a turn: above params->density during a warm-up, never rising. */
double sparsifier_density(const struct sparsifier_params *params, uint64_t turn);

/** Elements of a shape; 0 if a size is 0 or the product exceeds 2^40. */
uint64_t tensor_numel(const struct tensor_shape *shape);

/** The sparsifier of that name, or NULL. */
const struct sparsifier_ops *sparsifier_find(const char *name);

/** All sparsifiers, NULL-terminated, in the order of their names' documentation. */
extern const struct sparsifier_ops *const sparsifier_table[];

/** The policy keys that all sparsifiers but dense use, NULL-terminated. */
extern const char *const sparsifier_common[];

#endif
