/*
 * Kinds of plans, and all candidates: see candidate.h. The sets of partial ones:
 * candidate_search.c.
 */
#include "daemon/planner/candidate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/planner/candidate_search.h"

#define SPARSE_CHOICES (CHOICES - CHOICE_ALLGATHER)

_Static_assert(KIND_OTHER == KIND_PARTIAL + CHOICE_ALLGATHER * SPARSE_CHOICES, "kinds of mixtures");

#define BUCKET_FACTOR 4u /* between a size and the next smaller one */
static const uint64_t bucket_sizes[CANDIDATE_BUCKETS] = {UINT64_C(4) << 20, UINT64_C(1) << 20,
    UINT64_C(16) << 20, UINT64_C(256) << 10, UINT64_C(64) << 20};

enum choice candidate_dense(unsigned kind)
{
    if (kind < KIND_PARTIAL) {
        return choice_is_sparse((enum choice)kind) ? CHOICES : (enum choice)kind;
    }
    return kind < KIND_OTHER ? (enum choice)((kind - KIND_PARTIAL) / SPARSE_CHOICES) : CHOICES;
}

enum choice candidate_sparse(unsigned kind)
{
    if (kind < KIND_PARTIAL) {
        return choice_is_sparse((enum choice)kind) ? (enum choice)kind : CHOICES;
    }
    return kind < KIND_OTHER
               ? (enum choice)(CHOICE_ALLGATHER + (kind - KIND_PARTIAL) % SPARSE_CHOICES)
               : CHOICES;
}

static unsigned partial_kind(enum choice dense, enum choice sparse)
{
    return KIND_PARTIAL + (unsigned)dense * SPARSE_CHOICES + (unsigned)sparse - CHOICE_ALLGATHER;
}

void candidate_name(unsigned kind, char name[CANDIDATE_NAME_SIZE])
{
    if (kind < KIND_PARTIAL) {
        (void)snprintf(name, CANDIDATE_NAME_SIZE, "%s", choice_name((enum choice)kind));
    } else if (kind < KIND_OTHER) {
        (void)snprintf(name, CANDIDATE_NAME_SIZE, "partial: %s, %s",
            choice_name(candidate_dense(kind)), choice_name(candidate_sparse(kind)));
    } else {
        (void)snprintf(name, CANDIDATE_NAME_SIZE, "mixed");
    }
}

/* The choice of a tensor that should get `wanted`: that one if it is allowed, otherwise the most
 * similar one. */
static enum choice nearest(const struct planner_tensor *tensor, enum choice wanted)
{
    bool sparse = choice_is_sparse(wanted);

    if ((tensor->allowed >> wanted & 1) != 0) {
        return wanted;
    }
    for (unsigned pass = 0; pass < 2; pass++) {
        for (unsigned c = 0; c < CHOICES; c++) {
            bool alike = choice_is_sparse((enum choice)c) == sparse;
            if (alike == (pass == 0) && (tensor->allowed >> c & 1) != 0) {
                return (enum choice)c;
            }
        }
    }
    return wanted;
}

static void fill(const struct planner_config *config, enum choice wanted, struct choices *plan)
{
    for (uint32_t t = 0; t < config->tensors; t++) {
        plan->choice[t] = (uint8_t)nearest(&config->tensor[t], wanted);
    }
}

/* The choices that are used where there is one between dense and sparse, else where there is any.
 */
static uint32_t choices_used(const struct planner_config *config, const struct choices *plan)
{
    const uint32_t dense = (1u << CHOICE_ALLGATHER) - 1;
    uint32_t both = 0, any = 0, all = 0;

    for (uint32_t t = 0; t < config->tensors; t++) {
        uint32_t allowed = config->tensor[t].allowed, used = 1u << plan->choice[t];
        both |= (allowed & dense) != 0 && (allowed & ~dense) != 0 ? used : 0;
        any |= (allowed & (allowed - 1)) != 0 ? used : 0;
        all |= used;
    }
    return both != 0 ? both : any != 0 ? any : all;
}

unsigned candidate_kind(const struct planner_config *config, const struct choices *plan)
{
    uint32_t used = choices_used(config, plan), dense, sparse;

    dense = used & ((1u << CHOICE_ALLGATHER) - 1);
    sparse = used & ~dense;
    for (unsigned kind = 0; kind < KIND_OTHER; kind++) {
        enum choice d = candidate_dense(kind), s = candidate_sparse(kind);
        if (dense == (d < CHOICES ? 1u << d : 0) && sparse == (s < CHOICES ? 1u << s : 0)) {
            return kind;
        }
    }
    return KIND_OTHER;
}

bool candidates_init(struct candidates *candidates, const struct planner_config *config)
{
    bool all = true;

    *candidates = (struct candidates){.count = 0};
    for (unsigned i = 0; i < CANDIDATES_MAX; i++) {
        all = choices_init(&candidates->item[i].plan, config->tensors) && all;
    }
    candidates->search = candidate_search_create(config);
    return all && candidates->search != NULL;
}

void candidates_free(struct candidates *candidates)
{
    for (unsigned i = 0; i < CANDIDATES_MAX; i++) {
        choices_free(&candidates->item[i].plan);
    }
    candidate_search_free(candidates->search);
    *candidates = (struct candidates){.count = 0};
}

/* The sizes that differ: a smaller one that holds everything makes the larger ones the same. */
static unsigned sizes_of(const struct planner_config *config, uint64_t size[CANDIDATE_BUCKETS])
{
    uint64_t total = 0;
    unsigned count = 0;

    if (config->bucket_bytes > 0) {
        size[0] = config->bucket_bytes;
        return 1;
    }
    for (uint32_t t = 0; t < config->tensors; t++) {
        total += config->tensor[t].numel * sizeof(float);
    }
    for (unsigned i = 0; i < CANDIDATE_BUCKETS; i++) {
        if (bucket_sizes[i] <= bucket_sizes[0] || bucket_sizes[i] / BUCKET_FACTOR < total) {
            size[count++] = bucket_sizes[i];
        }
    }
    return count;
}

bool candidate_same(const struct choices *a, const struct forecast_result *predicted_a,
    const struct choices *b, const struct forecast_result *predicted_b)
{
    return predicted_a->buckets == predicted_b->buckets &&
           memcmp(predicted_a, predicted_b, offsetof(struct forecast_result, buckets)) == 0 &&
           memcmp(a->choice, b->choice, a->tensors) == 0;
}

/* Keeps the candidate behind the last, if it is a new one and can be written down. */
static struct candidate *candidate_keep(struct candidates *candidates, struct forecast *forecast)
{
    struct candidate *last = &candidates->item[candidates->count];
    char text[CHOICES_TEXT_SIZE];

    forecast_run(forecast, &last->plan, &last->result);
    for (unsigned i = 0; i < candidates->count; i++) {
        const struct candidate *other = &candidates->item[i];
        if (candidate_same(&other->plan, &other->result, &last->plan, &last->result)) {
            return NULL;
        }
    }
    if (!choices_print(&last->plan, text)) {
        return NULL;
    }
    candidates->count++;
    return last;
}

/* Adds a kind with every size of bucket. Returns the best of them, NULL if there is no new one. */
static const struct candidate *add_kind(struct candidates *candidates, struct forecast *forecast,
    unsigned kind, const struct choices *partial)
{
    uint64_t size[CANDIDATE_BUCKETS];
    unsigned sizes = sizes_of(forecast->config, size);
    const struct candidate *best = NULL;

    for (unsigned i = 0; i < sizes; i++) {
        struct candidate *next = &candidates->item[candidates->count];
        if (partial != NULL) {
            choices_copy(&next->plan, partial);
        } else {
            fill(forecast->config, (enum choice)kind, &next->plan);
        }
        next->plan.bucket_bytes = size[i];
        next->kind = kind;
        next = candidate_keep(candidates, forecast);
        if (next != NULL && (best == NULL || next->result.step_us < best->result.step_us)) {
            best = next;
        }
    }
    return best;
}

static const struct candidate *better(
    const struct candidate *a, const struct candidate *b, const double weight[KINDS])
{
    if (a == NULL || b == NULL) {
        return a != NULL ? a : b;
    }
    return b->result.step_us * weight[b->kind] < a->result.step_us * weight[a->kind] ? b : a;
}

void candidates_make(
    struct candidates *candidates, struct forecast *forecast, const double weight[KINDS])
{
    const struct candidate *dense = NULL, *sparse = NULL;
    const struct choices *partial;

    candidates->count = 0;
    for (unsigned kind = 0; kind < KIND_PARTIAL; kind++) {
        const struct candidate *best = add_kind(candidates, forecast, kind, NULL);
        /* Where it is not allowed anywhere it has become something else. */
        if (best != NULL && candidate_kind(forecast->config, &best->plan) == kind) {
            if (choice_is_sparse((enum choice)kind)) {
                sparse = better(sparse, best, weight);
            } else {
                dense = better(dense, best, weight);
            }
        }
    }
    if (dense == NULL || sparse == NULL) {
        return;
    }
    partial = candidate_search(candidates->search, forecast, &sparse->plan,
        (enum choice)dense->kind, (enum choice)sparse->kind);
    if (partial != NULL) {
        (void)add_kind(candidates, forecast,
            partial_kind((enum choice)dense->kind, (enum choice)sparse->kind), partial);
    }
}
