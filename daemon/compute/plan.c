/*
 * The plan of a job: which tensors are sent dense, which are sent together, and how each is
 * selected.
 *
 * It is a function of the registrations and the policy alone, so that all nodes and a restarted
 * daemon make the same plan. If the policy leaves a choice open ("auto"), its key "plan" makes it,
 * which the planner writes. Without that key, policy_settled() says what "auto" means.
 */
#include "daemon/compute/plan.h"

#include <stdlib.h>

#include "daemon/compute/layout_plan.h"
#include "daemon/compute/results.h"
#include "daemon/compute/round_memory.h"
#include "daemon/job/plan_query.h"
#include "daemon/planner/choosing.h"
#include "daemon/policy/combination.h"
#include "proto/utf8.h"

/* A tensor keeps this share of its density, however much of the other tensors is sent dense. */
#define DENSITY_FLOOR 0.1
#define DENSITY_MIN 1e-6 /* the least density of the policy's key */

struct plan *plan_create(const struct policy *policy)
{
    struct plan *plan = calloc(1, sizeof(*plan));

    if (plan != NULL) {
        plan->policy = *policy;
        policy_print(policy, plan->text);
    }
    return plan;
}

static void plan_tensor_free(struct plan_tensor *planned)
{
    free(planned->selection);
    free(planned->positions);
    free(planned->values);
    free(planned->known_sum);
    free(planned->hints);
    free(planned->memory.cut);
    free(planned->accepted);
    free(planned->rests_accepted);
}

void plan_empty(struct plan *plan)
{
    for (uint32_t r = 0; r < plan->rounds; r++) {
        round_free(&plan->round[r]);
    }
    for (uint32_t t = 0; t < plan->tensors; t++) {
        plan_tensor_free(&plan->tensor[t]);
    }
    free(plan->round);
    free(plan->tensor);
    plan->round = NULL;
    plan->tensor = NULL;
    plan->rounds = plan->tensors = 0;
}

void plan_free(struct plan *plan)
{
    if (plan != NULL) {
        plan_empty(plan);
        free(plan);
    }
}

/* Dense if the sparsifier says so, or if the sparse payload would not be smaller. */
static void choose(const struct tensor *tensor, struct plan_tensor *planned)
{
    const struct tensor_policy *policy = &planned->policy;
    const struct sparsifier_agreed agreed = {.real = {0}};
    size_t dense = payload_dense_size(tensor->numel, policy->dense_values);
    size_t sparse = 0;

    planned->count = 0;
    for (uint64_t turn = 0; turn < sparsifier_period(&policy->params); turn++) {
        struct sparsifier_choice choice = plan_choice_of(tensor, policy, &agreed, turn);
        struct payload_shape payload = {
            .view = choice.view, .per_fibre = choice.per_fibre, .max_count = choice.count};
        size_t size = choice.mode == SPARSIFIER_KNOWN
                          ? payload_dense_size(choice.count, policy->values)
                          : payload_list_bound(&payload, choice.count, policy->values);
        sparse = size > sparse ? size : sparse;
        planned->count = choice.count > planned->count ? choice.count : planned->count;
        planned->known = choice.mode == SPARSIFIER_KNOWN;
    }
    planned->dense = planned->count == 0 || sparse >= dense;
    planned->known = planned->known && !planned->dense;
    planned->by_rank = !planned->dense && policy->scope == SCOPE_RANK;
    planned->rounded = !planned->dense && policy->residual == RESIDUAL_BF16;
    planned->narrow = results_is_narrow(tensor);
}

/* Makes room for the hints of the selection: one for the whole tensor, then one for every fibre
 * that is long enough. Hints of shorter ones would take more than 1 % of the residual. */
static enum adtopk_status hints_alloc(
    const struct job *job, const struct tensor *tensor, struct plan_tensor *planned)
{
    const struct sparsifier_agreed agreed = {.real = {0}};
    unsigned residuals = plan_residuals(job, planned);

    if (planned->dense) {
        return ADTOPK_OK;
    }
    for (uint64_t turn = 0; turn < sparsifier_period(&planned->policy.params); turn++) {
        struct sparsifier_choice choice = plan_choice_of(tensor, &planned->policy, &agreed, turn);
        if (choice.mode == SPARSIFIER_FIBRES && choice.view.length >= ENGINE_HINTED &&
            choice.view.fibres > planned->fibres) {
            planned->fibres = choice.view.fibres;
        }
    }
    planned->hints = calloc((1 + planned->fibres) * residuals, sizeof(*planned->hints));
    return planned->hints != NULL ? ADTOPK_OK : ADTOPK_ERR_MEMORY;
}

/* *all becomes false without memory. */
static void *plan_room(size_t count, size_t size, bool *all)
{
    void *memory = calloc(count, size);

    *all = *all && memory != NULL;
    return memory;
}

/* Makes room for what each residual selects, and for the entries to send if they are others. */
static enum adtopk_status sent_alloc(
    const struct job *job, uint64_t numel, struct plan_tensor *planned)
{
    const size_t capacity = (size_t)plan_contribution_count(job, planned, numel);
    const bool decoded = planned->by_rank || planned->policy.values != PAYLOAD_VALUE_F32;
    bool all = true;

    if (!planned->dense || planned->policy.params.momentum > 0) {
        planned->selection =
            plan_room(plan_residuals(job, planned), sizeof(*planned->selection), &all);
    }
    if (planned->by_rank) {
        planned->positions = plan_room(capacity, sizeof(*planned->positions), &all);
    }
    if (!planned->dense && decoded) {
        planned->values = plan_room(capacity, sizeof(*planned->values), &all);
    }
    if (planned->known) {
        planned->known_sum = plan_room(capacity, sizeof(*planned->known_sum), &all);
    }
    planned->sent.capacity = planned->dense ? 0 : capacity;
    return all ? ADTOPK_OK : ADTOPK_ERR_MEMORY;
}

/* Whether two tensors can be sent in one bucket. */
static bool alike(const struct plan_tensor *a, const struct plan_tensor *b)
{
    if (a->dense != b->dense || a->known != b->known) {
        return false;
    }
    if (a->known) {
        return a->policy.values == b->policy.values &&
               a->policy.dense_collective == b->policy.dense_collective;
    }
    if (a->dense) {
        return a->policy.dense_values == b->policy.dense_values &&
               a->policy.dense_collective == b->policy.dense_collective;
    }
    return a->policy.values == b->policy.values && a->policy.indices == b->policy.indices &&
           a->policy.sparse_collective == b->policy.sparse_collective;
}

#define NO_BUCKET UINT32_MAX

/* Puts `first` and all later tensors like it, in order of registration, into buckets of about
 * plan->bucket_bytes. */
static void assign_alike(const struct job *job, struct plan *plan, uint32_t first)
{
    uint64_t bytes = 0;

    for (uint32_t t = first; t < plan->tensors; t++) {
        uint64_t size = job->tensor[t].numel * sizeof(float);
        if (plan->tensor[t].bucket != NO_BUCKET || !alike(&plan->tensor[first], &plan->tensor[t])) {
            continue;
        }
        if (bytes > 0 && bytes + size > plan->bucket_bytes) {
            plan->buckets++;
            bytes = 0;
        }
        plan->tensor[t].bucket = plan->buckets;
        bytes += size;
    }
    plan->buckets++;
}

/* Sparse tensors come first. */
static void assign_buckets(const struct job *job, struct plan *plan)
{
    for (uint32_t t = 0; t < plan->tensors; t++) {
        plan->tensor[t].bucket = NO_BUCKET;
    }
    for (int dense = 0; dense < 2; dense++) {
        for (uint32_t t = 0; t < plan->tensors; t++) {
            if (plan->tensor[t].bucket == NO_BUCKET && plan->tensor[t].dense == (dense == 1)) {
                assign_alike(job, plan, t);
            }
        }
    }
}

/* Lists the tensors by bucket: those of bucket b are list[first[b]] to list[first[b + 1]]. */
static void sort_by_bucket(const struct plan *plan, uint32_t *first, uint32_t *list)
{
    for (uint32_t t = 0; t < plan->tensors; t++) {
        first[plan->tensor[t].bucket + 1]++;
    }
    for (uint32_t b = 0; b < plan->buckets; b++) {
        first[b + 1] += first[b];
    }
    for (uint32_t t = plan->tensors; t-- > 0;) {
        uint32_t *end = &first[plan->tensor[t].bucket + 1];
        list[--*end] = t;
    }
    /* Each end has become its bucket's beginning, so all are one place too far. */
    for (uint32_t b = 0; b < plan->buckets; b++) {
        first[b] = first[b + 1];
    }
    first[plan->buckets] = plan->tensors;
}

/* The place of a tensor: higher priorities first, then in order of registration. 0 is for messages
 * for which the whole job waits. */
static uint64_t place_of(const struct plan *plan, uint32_t t)
{
    return ((uint64_t)(POLICY_PRIORITY_MAX - plan->tensor[t].policy.priority) << 32 | t) + 1;
}

/* A round has the place of its most urgent tensor. */
static void place_rounds(struct plan *plan)
{
    for (uint32_t r = 0; r < plan->rounds; r++) {
        struct round *round = &plan->round[r];

        round->place = UINT64_MAX;
        for (unsigned i = 0; i < round->tensors; i++) {
            uint64_t place = place_of(plan, round->tensor[i]);
            round->place = place < round->place ? place : round->place;
        }
    }
}

static enum adtopk_status init_rounds(
    struct job *job, struct plan *plan, const uint32_t *first, const uint32_t *list)
{
    enum adtopk_status status = ADTOPK_OK;

    for (uint32_t b = 0; status == ADTOPK_OK && b < plan->buckets; b++) {
        status = round_init(&plan->round[b], job, b, list + first[b], first[b + 1] - first[b]);
    }
    for (uint32_t t = 0; status == ADTOPK_OK && t < plan->tensors; t++) {
        status = round_init(&plan->round[plan->buckets + t], job, plan->buckets + t, &t, 1);
    }
    return status;
}

static enum adtopk_status make_rounds(struct job *job, struct plan *plan)
{
    uint32_t *first, *list;
    enum adtopk_status status = ADTOPK_ERR_MEMORY;

    assign_buckets(job, plan);
    first = calloc((size_t)plan->buckets + 1, sizeof(*first));
    list = malloc(plan->tensors * sizeof(*list));
    plan->round = calloc((size_t)plan->buckets + plan->tensors, sizeof(*plan->round));
    if (first != NULL && list != NULL && plan->round != NULL) {
        plan->rounds = plan->buckets + plan->tensors;
        sort_by_bucket(plan, first, list);
        status = init_rounds(job, plan, first, list);
    }
    if (status == ADTOPK_OK) {
        place_rounds(plan);
    }
    free(first);
    free(list);
    return status;
}

static enum adtopk_status check_rules(
    const struct job *job, const struct plan *plan, uint32_t t, struct error *err)
{
    const struct tensor_policy *policy = &plan->tensor[t].policy;
    struct error reason;

    if (combination_check(policy, &reason) == ADTOPK_OK &&
        combination_check_nodes(policy, job->in_force.nodes, &reason) == ADTOPK_OK) {
        return ADTOPK_OK;
    }
    return error_set(err, ADTOPK_ERR_POLICY, "policy: the rules for tensor '%s': %.*s",
        job->tensor[t].spec.name, UTF8_FIT(80, reason.text));
}

enum adtopk_status plan_check(const struct job *job, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;

    for (uint32_t t = 0; status == ADTOPK_OK && t < job->tensors; t++) {
        status = check_rules(job, job->plan, t, err);
    }
    return status;
}

/* ------------------------------------------------------------------ the meaning of "auto" */

static enum choosing_way way_of(const struct plan_tensor *planned)
{
    return planned->dense ? CHOOSING_DENSE : planned->known ? CHOOSING_VALUES : CHOOSING_LISTS;
}

/* Sets the choices that no plan sets. */
static enum adtopk_status settle(
    const struct job *job, struct plan *plan, uint32_t t, struct error *err)
{
    struct plan_tensor *planned = &plan->tensor[t];
    struct tensor_policy policy = policy_of(&plan->policy, job->tensor[t].spec.name);

    plan->matching |= policy_matching(&plan->policy, job->tensor[t].spec.name);
    planned->policy = policy_settled(&policy);
    if (check_rules(job, plan, t, err) != ADTOPK_OK) {
        return err->code;
    }
    choose(&job->tensor[t], planned);
    if (planned->rounded && planned->narrow) {
        return error_set(err, ADTOPK_ERR_POLICY,
            "policy: residual \"bf16\" does not go with the 16-bit updates of tensor '%s'",
            job->tensor[t].spec.name);
    }
    planned->sparse_count = planned->dense ? 0 : planned->count;
    planned->allowed = choosing_allowed(&policy, way_of(planned), job->in_force.nodes);
    planned->choice = choosing_nearest(&planned->policy, way_of(planned));
    return ADTOPK_OK;
}

static enum adtopk_status take_choice(
    const struct job *job, struct plan *plan, uint32_t t, enum choice choice, struct error *err)
{
    struct plan_tensor *planned = &plan->tensor[t];
    struct tensor_policy policy = policy_of(&plan->policy, job->tensor[t].spec.name);
    struct tensor_policy chosen;

    if (!choosing_apply(&policy, way_of(planned), choice, job->in_force.nodes, &chosen)) {
        return error_set(err, ADTOPK_ERR_POLICY,
            "policy: \"plan\": tensor '%s' cannot travel as \"%s\": nothing leaves it that choice",
            job->tensor[t].spec.name, choice_name(choice));
    }
    planned->policy = chosen;
    planned->choice = choice;
    choose(&job->tensor[t], planned);
    return ADTOPK_OK;
}

/* Reads the plan's choices. A plan for other tensors does not fit. The error names the first tensor
 * without a choice, or the last one that has one. */
static enum adtopk_status read_choices(
    const struct job *job, const struct plan *plan, struct choices *choices, struct error *err)
{
    struct error reason;

    if (!choices_init(choices, plan->tensors)) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for a plan");
    }
    if (choices_parse(choices, plan->policy.plan, &reason) != ADTOPK_OK) {
        return error_set(err, ADTOPK_ERR_POLICY,
            "policy: \"plan\" does not fit the %u tensors, '%s' to '%s': %.*s", plan->tensors,
            job->tensor[0].spec.name, job->tensor[plan->tensors - 1].spec.name,
            UTF8_FIT(120, reason.text));
    }
    if (plan->policy.bucket_bytes != 0 && choices->bucket_bytes != plan->policy.bucket_bytes) {
        return error_set(err, ADTOPK_ERR_POLICY,
            "policy: \"plan\" has buckets of %llu bytes, but \"bucket_bytes\" is %llu",
            (unsigned long long)choices->bucket_bytes,
            (unsigned long long)plan->policy.bucket_bytes);
    }
    return ADTOPK_OK;
}

static enum adtopk_status take_choices(const struct job *job, struct plan *plan, struct error *err)
{
    struct choices choices = {.tensors = 0};
    enum adtopk_status status = ADTOPK_OK;

    plan->bucket_bytes =
        plan->policy.bucket_bytes != 0 ? plan->policy.bucket_bytes : POLICY_BUCKET_BYTES;
    if (plan->policy.plan[0] == '\0') {
        return ADTOPK_OK;
    }
    status = read_choices(job, plan, &choices, err);
    for (uint32_t t = 0; status == ADTOPK_OK && t < plan->tensors; t++) {
        status = take_choice(job, plan, t, (enum choice)choices.choice[t], err);
    }
    plan->bucket_bytes = status == ADTOPK_OK ? choices.bucket_bytes : 0;
    choices_free(&choices);
    return status;
}

/* Reduces the densities of the sparse tensors, all by the same factor, to make up for the dense
 * ones. Then as many elements are sent as the densities say. */
static void tune_density(const struct job *job, struct plan *plan)
{
    double sparse = 0, wanted = 0, dense = 0, factor;

    for (uint32_t t = 0; t < plan->tensors; t++) {
        double numel = (double)job->tensor[t].numel;
        double share = plan->tensor[t].policy.params.density * numel;
        wanted += share;
        sparse += plan->tensor[t].dense ? 0 : share;
        dense += plan->tensor[t].dense ? numel : 0;
    }
    factor = sparse > 0 ? (wanted - dense) / sparse : 1;
    factor = factor > DENSITY_FLOOR ? factor : DENSITY_FLOOR;
    for (uint32_t t = 0; factor < 1 && t < plan->tensors; t++) {
        struct plan_tensor *planned = &plan->tensor[t];
        double density = planned->policy.params.density * factor;
        if (!planned->dense) {
            planned->policy.params.density = density > DENSITY_MIN ? density : DENSITY_MIN;
            choose(&job->tensor[t], planned);
        }
    }
}

/* Chooses how each tensor is sent. */
static enum adtopk_status choose_all(const struct job *job, struct plan *plan, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;

    for (uint32_t t = 0; status == ADTOPK_OK && t < plan->tensors; t++) {
        status = settle(job, plan, t, err);
    }
    if (status == ADTOPK_OK) {
        status = take_choices(job, plan, err);
    }
    if (status == ADTOPK_OK && plan->policy.tune_density) {
        tune_density(job, plan);
    }
    for (uint32_t t = 0; t < plan->tensors; t++) {
        plan->sparse_elements += plan->tensor[t].dense ? 0 : job->tensor[t].numel;
    }
    return status;
}

enum adtopk_status plan_fill(struct job *job, struct plan *plan, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;
    const uint32_t tensors = plan_tensors(job);

    plan->tensor = calloc(tensors, sizeof(*plan->tensor));
    plan->tensors = plan->tensor != NULL ? tensors : 0;
    plan->ranks = job->ranks;
    status = plan->tensor != NULL ? ADTOPK_OK : ADTOPK_ERR_MEMORY;
    if (status == ADTOPK_OK && choose_all(job, plan, err) != ADTOPK_OK) {
        return err->code;
    }
    for (uint32_t t = 0; status == ADTOPK_OK && t < plan->tensors; t++) {
        status = sent_alloc(job, job->tensor[t].numel, &plan->tensor[t]);
        if (status == ADTOPK_OK) {
            status = hints_alloc(job, &job->tensor[t], &plan->tensor[t]);
        }
    }
    if (status == ADTOPK_OK) {
        status = make_rounds(job, plan);
    }
    if (status == ADTOPK_OK) {
        layout_measure(job, plan);
    }
    return status == ADTOPK_OK
               ? ADTOPK_OK
               : error_set(err, status, "no memory for the plan of job '%s'", job->key.name);
}
