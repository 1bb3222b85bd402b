/*
 * The policy of a job: what its JSON document says, with every default filled in.
 *
 *     {"density": 0.01,
 *      "rules": [{"match": "embedding.*", "sparsifier": "topk", "density": 0.001},
 *                {"match": "*.norm.*", "sparsifier": "dense"}]}
 *
 * Some keys concern the job, the others each tensor. A rule sets keys of the second kind for the
 * tensors whose names it matches; of several rules that match, later ones win. policy_key() lists
 * every key.
 */
#ifndef ADTOPK_POLICY_H
#define ADTOPK_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/collective/collective.h"
#include "daemon/policy/choices.h"
#include "daemon/sparsify/sparsifier.h"
#include "proto/error.h"
#include "proto/faults.h"

#define POLICY_VERSION 1 /* of the document; its key "version" may say so */
#define POLICY_RULES_MAX 32
#define POLICY_MATCH_SIZE 128  /* of a rule's pattern, including the NUL */
#define POLICY_TEXT_SIZE 73728 /* of a canonical document, including the NUL */
#define POLICY_PRIORITY_MAX 1000
#define POLICY_PLAN_SIZE CHOICES_TEXT_SIZE
#define POLICY_BUCKET_BYTES (UINT64_C(4) << 20) /* default size of a bucket */
#define POLICY_VALUES_SIZE                                                                         \
    160 /* bytes for the possible values of a key, including                                       \
         * the NUL */

/* tensor_policy.dense_values that the planner chooses; tensor_policy.values that follow from the
 * other keys. */
#define POLICY_VALUES_AUTO PAYLOAD_VALUE_COUNT

enum policy_scope { SCOPE_NODE = 0, SCOPE_RANK };
enum policy_reduce { REDUCE_MEAN = 0, REDUCE_SUM };
enum policy_non_finite { NON_FINITE_REVOKE = 0, NON_FINITE_PROPAGATE, NON_FINITE_REJECT };
enum policy_residual { RESIDUAL_F32 = 0, RESIDUAL_BF16 };
enum policy_peer_loss { PEER_LOSS_WAIT = 0, PEER_LOSS_FAIL, PEER_LOSS_SHRINK };
enum policy_rank_loss { RANK_LOSS_FAIL = 0, RANK_LOSS_WAIT };
enum policy_engine { POLICY_ENGINE_NODE = 0, POLICY_ENGINE_HOST };

/* The settings of one tensor. "auto" is NULL, or POLICY_VALUES_AUTO: the plan chooses. A density of
 * 0 is "auto" as well: the budget says it (budget.h). */
struct tensor_policy {
    const struct sparsifier_ops *sparsifier;
    struct sparsifier_params params;
    enum policy_scope scope;
    enum policy_residual residual;
    enum payload_index indices;
    enum payload_value values;       /* of sparse contributions, or POLICY_VALUES_AUTO */
    enum payload_value dense_values; /* of dense ones */
    const struct collective_ops *sparse_collective;
    const struct collective_ops *dense_collective;
    int64_t priority; /* higher goes first */
    double lookahead; /* share of its missing updates by which a rank looks ahead */
    double budget;    /* bits per element, from which params.density follows; 0: none */
};

struct policy_rule {
    char match[POLICY_MATCH_SIZE]; /* a tensor's name; '*' any characters, '?' any one */
    uint64_t sets;                 /* one bit a key, in the order of policy_key() */
    struct tensor_policy tensor;   /* only the keys that it sets */
};

struct policy {
    struct tensor_policy tensor; /* where no rule says otherwise */
    unsigned rules;
    struct policy_rule rule[POLICY_RULES_MAX];
    enum policy_reduce reduce;
    enum policy_non_finite non_finite;
    enum policy_peer_loss on_peer_loss;
    enum policy_rank_loss on_rank_loss;
    enum policy_engine engine;   /* HOST: residuals are in host memory, on nodes with GPUs too */
    int64_t tie_breaker;         /* the node whose half of a view goes on; -1: the lowest one */
    uint64_t weight;             /* of the job's share of links and workers */
    uint64_t bucket_bytes;       /* gradient bytes of one bucket, about; 0: auto, the plan says */
    bool tune_density;           /* count tensors that are sent dense into the density */
    bool replan;                 /* the planner may change `plan` */
    bool grow;                   /* ranks may join a job that has lost nodes */
    char plan[POLICY_PLAN_SIZE]; /* the meaning of "auto" (choices.h); "": no plan yet */
    uint64_t join_timeout_us;
    uint64_t push_timeout_us;
    uint64_t round_timeout_us;
    uint64_t wait_limit_us;
    uint64_t shrink_after_us;
};

/** One of the times above, with its key, for sentences. */
struct policy_limit {
    const char *key;
    uint64_t us;
};

/** The settings of an empty document. */
void policy_default(struct policy *policy);

/**
 * Reads a JSON document on top of *policy; its rules, if it has any, replace those of *policy. It
 * is strict: an unknown or repeated key, a wrong type, a value out of range, values that do not go
 * together (combination.h) or text after the document is an error. The error names line, column,
 * rule and key, and shows the line (proto/json.h). *policy is unchanged on error. NULL is refused
 * like an empty document.
 */
enum adtopk_status policy_parse(struct policy *policy, const char *json, struct error *err);

/**
 * The same for a document that a person wrote, which `name` names: every fault of it is added to
 * `faults` with its place (json.h). policy_parse() tells of the first one only.
 */
enum adtopk_status policy_read(
    struct policy *policy, const char *name, const char *text, struct faults *faults);

/** The same for a document that starts at `start` inside `text`, which is valid JSON. */
enum adtopk_status policy_read_part(struct policy *policy, const char *name, const char *text,
    const char *start, struct faults *faults);

/** The canonical document: every key, in a fixed order. Two policies are equal if and only if
 * their texts are. */
void policy_print(const struct policy *policy, char text[POLICY_TEXT_SIZE]);

/** The settings of a tensor of this name. Values that are "auto" and a density that a budget leaves
 * are filled in. */
struct tensor_policy policy_of(const struct policy *policy, const char *tensor);

/** The same with the value of "auto" as long as no plan says otherwise. The density stays 0 if the
 * budget leaves none. */
struct tensor_policy policy_settled(const struct tensor_policy *policy);

/** The rules that match a tensor of this name, one bit 1 << rule for each. */
uint32_t policy_matching(const struct policy *policy, const char *tensor);

/** Whether the document, which is right, names this key of the job; true without memory. */
bool policy_names(const char *json, const char *key);

/** What one policy sets that the other does not, in words: "density=0.02, values=bf16". Of rules
 * and of a plan it tells only that they are others. Ends with "..." where `size` is too small; ""
 * if they are equal. */
void policy_difference(const struct policy *from, const struct policy *to, char *text, size_t size);

/** Whether a plan made for one of them also fits the other. They may differ only in the plan
 * itself, in `replan`, `engine`, the job's weight and time limits. */
bool policy_same_choices(const struct policy *a, const struct policy *b);

/* A key, for help texts. */
struct policy_key_info {
    const char *name;
    bool tensor; /* may stand in a rule */
    char values[POLICY_VALUES_SIZE];
    char standard[32]; /* the default */
    const char *help;
};

/** The index-th key; false if there are no more. */
bool policy_key(unsigned index, struct policy_key_info *info);

/** The name of a value as documents write it. */
const char *policy_scope_name(enum policy_scope scope);
const char *policy_value_name(enum payload_value value);
const char *policy_index_name(enum payload_index index);

#endif
