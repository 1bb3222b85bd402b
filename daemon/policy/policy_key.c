#include "daemon/policy/policy_key.h"

#include "daemon/link/share.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "daemon/policy/budget.h"
#include "proto/guess.h"
#include "proto/utf8.h"

#define SECOND_US 1000000u
#define AUTO "auto"
#define KEY_NUMBER_SIZE 64

_Static_assert(POLICY_VALUES_AUTO == 8, "its place in both lists of names");

static const char *const scope_names[] = {"node", "rank", NULL};
static const char *const residual_names[] = {"f32", "bf16", NULL};
static const char *const reduce_names[] = {"mean", "sum", NULL};
static const char *const non_finite_names[] = {"revoke", "propagate", "reject", NULL};
static const char *const peer_loss_names[] = {"wait", "fail", "shrink", NULL};
static const char *const rank_loss_names[] = {"fail", "wait", NULL};
static const char *const engine_names[] = {"node", "host", NULL};
static const char *const fit_names[] = {"exponential", "pareto", "gamma", NULL};
static const char *const fibres_names[] = {"axis1", "row", "longest", "chunk", NULL};
static const char *const value_names[] = {
    "f32", "bf16", "f16", "int8", "two", "sign", "int4", "int3", "auto", NULL};
/* Dense elements are sent in slices, one per node. Blocks of values would depend on where the
 * slices begin, so there are none. */
static const char *const dense_value_names[] = {
    "f32", "bf16", "f16", "", "", "", "", "", "auto", NULL};
static const char *const index_names[] = {
    "auto", "", "raw", "rows", "delta", "bitmap", "rice", "hashmap", NULL};

#define JOB(member) .offset = offsetof(struct policy, member)
#define TENSOR(member) .tensor = true, .offset = offsetof(struct tensor_policy, member)

/* clang-format off: one entry, one look */
static const struct policy_key keys[] = {
    {.name = "sparsifier",
        .type = KEY_SPARSIFIER,
        TENSOR(sparsifier),
        .automatic = true,
        .help = "selects the entries to send; auto: the plan chooses topk or dense"},
    {.name = "density",
        .type = KEY_NUMBER,
        TENSOR(params.density),
        .minimum = 1e-6,
        .maximum = 1.0,
        .automatic = true,
        .help = "share of the entries to send in each step; auto: the budget says it"},
    {.name = "budget",
        .type = KEY_BUDGET,
        TENSOR(budget),
        .minimum = 0,
        .maximum = BUDGET_MAX,
        .help = "bits to send per element, from which the density follows; 0: none"},
    {.name = "warmup_epochs",
        .type = KEY_WHOLE,
        TENSOR(params.warmup_epochs),
        .minimum = 0,
        .maximum = 100,
        .help = "epochs in which the density falls to its value by equal factors"},
    {.name = "epoch_turns",
        .type = KEY_WHOLE,
        TENSOR(params.epoch_turns),
        .minimum = 1,
        .maximum = 1e9,
        .help = "turns of one epoch of the warm-up"},
    {.name = "fibres",
        .type = KEY_CHOICE,
        TENSOR(params.fibres),
        .choices = fibres_names,
        .help = "adtopk: select along axis 1, from rows, along the longest axis, or from chunks of "
                "4096"},
    {.name = "interleave",
        .type = KEY_BOOL,
        TENSOR(params.interleave),
        .help = "adtopk: some turns select from the whole tensor, the others from each fibre"},
    {.name = "fibre_turns",
        .type = KEY_WHOLE,
        TENSOR(params.fibre_turns),
        .minimum = 1,
        .maximum = 64,
        .help = "adtopk: with interleave, turns in a row that select from each fibre"},
    {.name = "global_turns",
        .type = KEY_WHOLE,
        TENSOR(params.global_turns),
        .minimum = 1,
        .maximum = 64,
        .help = "adtopk: with interleave, turns in a row that select from the whole tensor"},
    {.name = "adaptive",
        .type = KEY_BOOL,
        TENSOR(params.adaptive),
        .help = "adtopk: the updates decide which 1 to 3 of 4 turns select from the whole tensor"},
    {.name = "total_turns",
        .type = KEY_WHOLE,
        TENSOR(params.total_turns),
        .minimum = 0,
        .maximum = 1e12,
        .help = "adtopk: turns of the training; all of the last quarter select from each fibre"},
    {.name = "estimate",
        .type = KEY_BOOL,
        TENSOR(params.estimate),
        .help = "adtopk: turns of the whole tensor use an estimated threshold"},
    {.name = "estimate_period",
        .type = KEY_WHOLE,
        TENSOR(params.estimate_period),
        .minimum = 5,
        .maximum = 1e6,
        .help = "adtopk: turns between two exact selections of the threshold, at first"},
    {.name = "sample",
        .type = KEY_NUMBER,
        TENSOR(params.sample),
        .minimum = 1e-6,
        .maximum = 1.0,
        .help = "dgc: share of the entries in the sample that gives the threshold"},
    {.name = "fit",
        .type = KEY_CHOICE,
        TENSOR(params.fit),
        .choices = fit_names,
        .help = "sidco: the distribution to fit to the magnitudes"},
    {.name = "threshold",
        .type = KEY_NUMBER,
        TENSOR(params.threshold),
        .minimum = 0,
        .maximum = 1e30,
        .help = "threshold: the magnitude above which entries are sent"},
    {.name = "beta",
        .type = KEY_NUMBER,
        TENSOR(params.beta),
        .minimum = 0,
        .maximum = 1,
        .help = "error feedback: factor of the residual when gradients are added; 1: no decay"},
    {.name = "gamma",
        .type = KEY_NUMBER,
        TENSOR(params.gamma),
        .minimum = 1e-6,
        .maximum = 1e6,
        .help = "error feedback: factor of the gradients that are added"},
    {.name = "momentum",
        .type = KEY_NUMBER,
        TENSOR(params.momentum),
        .minimum = 0,
        .maximum = 0.9999,
        .help = "momentum correction, never for Adam: factor of the last velocity; 0: off"},
    {.name = "nesterov",
        .type = KEY_BOOL,
        TENSOR(params.nesterov),
        .help = "momentum correction with Nesterov momentum"},
    {.name = "momentum_masking",
        .type = KEY_BOOL,
        TENSOR(params.momentum_masking),
        .help = "momentum correction resets the velocity of entries that were sent"},
    {.name = "clip",
        .type = KEY_NUMBER,
        TENSOR(params.clip),
        .minimum = 0,
        .maximum = 1e30,
        .help = "clip each rank's gradient to this L2 norm / sqrt(number of ranks); 0: off"},
    {.name = "scope",
        .type = KEY_CHOICE,
        TENSOR(scope),
        .choices = scope_names,
        .help = "select once per node from the sum of its ranks, or once per rank"},
    {.name = "residual",
        .type = KEY_CHOICE,
        TENSOR(residual),
        .choices = residual_names,
        .help = "type of residuals; bf16 takes half the memory and feeds rounding errors back"},
    {.name = "lookahead",
        .type = KEY_NUMBER,
        TENSOR(lookahead),
        .minimum = 0,
        .maximum = 1,
        .help =
            "trainers take gradients ahead of the unsent updates by this share of them; 0: off"},
    {.name = "engine",
        .type = KEY_CHOICE,
        JOB(engine),
        .choices = engine_names,
        .help = "where residuals are: as each node's setting engine says, or in host memory"},
    {.name = "reduce",
        .type = KEY_CHOICE,
        JOB(reduce),
        .choices = reduce_names,
        .help = "the update is the ranks' mean or their sum"},
    {.name = "non_finite",
        .type = KEY_CHOICE,
        JOB(non_finite),
        .choices = non_finite_names,
        .help = "gradients with NaN or Inf: take the step back, pass NaN on, or end the job"},
    {.name = "values",
        .type = KEY_CHOICE,
        TENSOR(values),
        .choices = value_names,
        .help = "type of the values in sparse contributions; auto: two with a budget, else bf16"},
    {.name = "dense_values",
        .type = KEY_CHOICE,
        TENSOR(dense_values),
        .choices = dense_value_names,
        .help = "type of the values in dense contributions; auto: the plan chooses"},
    {.name = "indices",
        .type = KEY_CHOICE,
        TENSOR(indices),
        .choices = index_names,
        .help = "encoding of positions; auto: the smallest one"},
    {.name = "sparse_collective",
        .type = KEY_COLLECTIVE,
        TENSOR(sparse_collective),
        .automatic = true,
        .help = "how nodes sum sparse contributions; auto: the plan chooses"},
    {.name = "dense_collective",
        .type = KEY_COLLECTIVE,
        TENSOR(dense_collective),
        .help = "how nodes sum dense contributions"},
    {.name = "priority",
        .type = KEY_INTEGER,
        TENSOR(priority),
        .minimum = -POLICY_PRIORITY_MAX,
        .maximum = POLICY_PRIORITY_MAX,
        .help = "order of the job's tensors: higher goes first, of equals the first registered"},
    {.name = "weight",
        .type = KEY_WHOLE,
        JOB(weight),
        .minimum = 1,
        .maximum = SHARE_WEIGHT_MAX,
        .help = "share of the job where several jobs compete for links and workers"},
    {.name = "bucket_bytes",
        .type = KEY_WHOLE,
        JOB(bucket_bytes),
        .minimum = 1,
        .maximum = 0x1p40,
        .automatic = true,
        .help = "approximate gradient bytes per bucket; auto: the plan chooses"},
    {.name = "tune_density",
        .type = KEY_BOOL,
        JOB(tune_density),
        .help = "dense tensors count into the density, so that of the others falls"},
    {.name = "plan",
        .type = KEY_PLAN,
        JOB(plan),
        .help = "the planner's choices for auto keys, as it writes them; empty: no plan yet"},
    {.name = "replan",
        .type = KEY_BOOL,
        JOB(replan),
        .help = "the planner may change the plan while the job trains"},
    {.name = "on_peer_loss",
        .type = KEY_CHOICE,
        JOB(on_peer_loss),
        .choices = peer_loss_names,
        .help = "when a node is lost: wait for it, end the job, or go on without it"},
    {.name = "on_rank_loss",
        .type = KEY_CHOICE,
        JOB(on_rank_loss),
        .choices = rank_loss_names,
        .help = "when a rank's process ends: end the job, or wait for another process"},
    {.name = "tie_breaker",
        .type = KEY_INTEGER,
        JOB(tie_breaker),
        .minimum = -1,
        .maximum = UINT16_MAX - 1,
        .help = "shrink: if half of the nodes are lost, the node whose half goes on; -1: the "
                "lowest"},
    {.name = "grow",
        .type = KEY_BOOL,
        JOB(grow),
        .help = "shrink: nodes with the ranks that are missing may join while the job trains"},
    {.name = "join_timeout",
        .type = KEY_SECONDS,
        JOB(join_timeout_us),
        .minimum = 0.001,
        .maximum = 1e6,
        .help = "seconds until all ranks must have joined"},
    {.name = "push_timeout",
        .type = KEY_SECONDS,
        JOB(push_timeout_us),
        .minimum = 0.001,
        .maximum = 1e6,
        .help = "seconds that a step may take from its first push"},
    {.name = "round_timeout",
        .type = KEY_SECONDS,
        JOB(round_timeout_us),
        .minimum = 0.001,
        .maximum = 1e6,
        .help = "seconds to wait for a live node's part of a bucket"},
    {.name = "wait_limit",
        .type = KEY_SECONDS,
        JOB(wait_limit_us),
        .minimum = 0.001,
        .maximum = 1e6,
        .help = "seconds to wait for a node that is lost, or a rank that ended"},
    {.name = "shrink_after",
        .type = KEY_SECONDS,
        JOB(shrink_after_us),
        .minimum = 0.001,
        .maximum = 1e6,
        .help = "shrink: seconds for a lost node to come back, before the job goes on without it"},
};
/* clang-format on */

#define KEY_COUNT (sizeof(keys) / sizeof(keys[0]))

_Static_assert(KEY_COUNT <= 64, "policy_rule.sets has a bit for every key");

const struct policy_key *policy_key_at(unsigned index)
{
    return index < KEY_COUNT ? &keys[index] : NULL;
}

const struct policy_key *policy_key_find(const char *name)
{
    for (unsigned i = 0; i < KEY_COUNT; i++) {
        if (strcmp(keys[i].name, name) == 0) {
            return &keys[i];
        }
    }
    return NULL;
}

unsigned policy_key_number(const struct policy_key *key)
{
    return (unsigned)(key - keys);
}

const char *policy_scope_name(enum policy_scope scope)
{
    return scope_names[scope];
}

const char *policy_value_name(enum payload_value value)
{
    return value_names[value];
}

const char *policy_index_name(enum payload_index index)
{
    return index_names[index];
}

size_t policy_key_size(const struct policy_key *key)
{
    switch (key->type) {
    case KEY_CHOICE: return sizeof(unsigned);
    case KEY_BOOL: return sizeof(bool);
    case KEY_NUMBER:
    case KEY_BUDGET: return sizeof(double);
    case KEY_INTEGER: return sizeof(int64_t);
    case KEY_WHOLE:
    case KEY_SECONDS: return sizeof(uint64_t);
    case KEY_SPARSIFIER:
    case KEY_COLLECTIVE: break;
    case KEY_PLAN: return POLICY_PLAN_SIZE;
    }
    return sizeof(void *);
}

static bool takes_dense(const struct policy_key *key)
{
    return key->offset == offsetof(struct tensor_policy, dense_collective);
}

static bool policy_key_is_whole(const struct policy_key *key)
{
    return key->type == KEY_WHOLE || key->type == KEY_INTEGER;
}

/* "a, b or c" */
static void describe_names(const char *const *name, unsigned count, char *text, size_t size)
{
    size_t used = 0;

    for (unsigned i = 0; i < count && used < size; i++) {
        const char *between = i == 0 ? "" : i + 1 < count ? ", " : " or ";
        int written = snprintf(text + used, size - used, "%s\"%s\"", between, name[i]);
        used += written > 0 ? (size_t)written : 0;
    }
}

#define NAMES_MAX 16

/* The names that a key may have; returns how many. */
static unsigned list_names(const struct policy_key *key, const char *name[NAMES_MAX])
{
    unsigned count = 0;

    for (unsigned i = 0; key->type == KEY_CHOICE && key->choices[i] != NULL; i++) {
        if (key->choices[i][0] != '\0') {
            name[count++] = key->choices[i];
        }
    }
    for (unsigned i = 0; key->type == KEY_SPARSIFIER && sparsifier_table[i] != NULL; i++) {
        name[count++] = sparsifier_table[i]->name;
    }
    for (unsigned i = 0; key->type == KEY_COLLECTIVE && collective_table[i] != NULL; i++) {
        if (collective_table[i]->traits.dense == takes_dense(key)) {
            name[count++] = collective_table[i]->name;
        }
    }
    if (count > 0 && key->automatic) {
        name[count++] = AUTO;
    }
    return count;
}

/* The names that a key may have, or its range. */
static void describe_values(const struct policy_key *key, char *text, size_t size)
{
    const char *also = key->automatic ? " or \"auto\"" : "";
    const char *name[NAMES_MAX];
    const unsigned count = list_names(key, name);

    text[0] = '\0';
    describe_names(name, count, text, size);
    if (key->type == KEY_BOOL) {
        (void)snprintf(text, size, "true or false");
    } else if (key->type == KEY_NUMBER || key->type == KEY_SECONDS) {
        (void)snprintf(
            text, size, "a number from %.15g to %.15g%s", key->minimum, key->maximum, also);
    } else if (key->type == KEY_BUDGET) {
        (void)snprintf(text, size, "a number from %.15g to %.15g or a text such as \"as 1%% bf16\"",
            key->minimum, key->maximum);
    } else if (policy_key_is_whole(key)) {
        (void)snprintf(
            text, size, "a whole number from %.15g to %.15g%s", key->minimum, key->maximum, also);
    } else if (key->type == KEY_PLAN) {
        (void)snprintf(text, size, "a plan such as \"4194304:12a3d\", or an empty text");
    }
}

static bool set_choice(const struct policy_key *key, const cJSON *item, void *field)
{
    for (unsigned i = 0; cJSON_IsString(item) && key->choices[i] != NULL; i++) {
        if (item->valuestring[0] != '\0' && strcmp(item->valuestring, key->choices[i]) == 0) {
            *(unsigned *)field = i;
            return true;
        }
    }
    return false;
}

static bool is_auto(const struct policy_key *key, const cJSON *item)
{
    return key->automatic && cJSON_IsString(item) && strcmp(item->valuestring, AUTO) == 0;
}

static bool set_number(const struct policy_key *key, const cJSON *item, void *field)
{
    double x = cJSON_IsNumber(item) ? item->valuedouble : NAN;

    if (is_auto(key, item)) {
        *(uint64_t *)field = 0;
        return true;
    }
    if (!(x >= key->minimum && x <= key->maximum) || (policy_key_is_whole(key) && x != floor(x))) {
        return false;
    }
    if (key->type == KEY_NUMBER || key->type == KEY_BUDGET) {
        *(double *)field = x + 0.0; /* -0 becomes 0: equal policies have equal texts */
    } else if (key->type == KEY_INTEGER) {
        *(int64_t *)field = (int64_t)x;
    } else {
        *(uint64_t *)field = (uint64_t)(key->type == KEY_SECONDS ? x * SECOND_US + 0.5 : x);
    }
    return true;
}

static bool set_budget(const struct policy_key *key, const cJSON *item, void *field)
{
    const double bits = cJSON_IsString(item) ? budget_read(item->valuestring) : 0;

    if (bits > 0) {
        *(double *)field = bits;
    }
    return bits > 0 || set_number(key, item, field);
}

static bool set_bool(const cJSON *item, void *field)
{
    *(bool *)field = cJSON_IsTrue(item);
    return cJSON_IsBool(item);
}

static bool set_named(const struct policy_key *key, const cJSON *item, void *field)
{
    const char *name = cJSON_IsString(item) ? item->valuestring : "";
    const struct sparsifier_ops *sparsifier = sparsifier_find(name);
    const struct collective_ops *collective = collective_find(name);

    if (is_auto(key, item)) {
        *(const void **)field = NULL;
        return true;
    }
    if (key->type == KEY_SPARSIFIER && sparsifier != NULL) {
        *(const struct sparsifier_ops **)field = sparsifier;
        return true;
    }
    if (key->type == KEY_COLLECTIVE && collective != NULL &&
        collective->traits.dense == takes_dense(key)) {
        *(const struct collective_ops **)field = collective;
        return true;
    }
    return false;
}

static bool set_plan(const cJSON *item, void *field, struct error *why)
{
    const char *text = cJSON_IsString(item) ? item->valuestring : NULL;

    if (text == NULL || (*text != '\0' && choices_check(text, why) != ADTOPK_OK)) {
        return false;
    }
    (void)strcpy(field, text);
    return true;
}

/* "; did you mean ...?", or "". */
static const char *guess_value(
    const struct policy_key *key, const cJSON *item, char text[GUESS_TEXT_SIZE])
{
    const char *name[NAMES_MAX];
    const unsigned count = list_names(key, name);
    struct guess guess;

    guess_start(&guess, cJSON_IsString(item) ? item->valuestring : "", 0);
    for (unsigned i = 0; i < count; i++) {
        guess_name(&guess, name[i]);
    }
    return guess_text(&guess, text);
}

enum adtopk_status policy_key_set(
    const struct policy_key *key, const cJSON *item, void *field, struct error *err)
{
    char values[POLICY_VALUES_SIZE], meant[GUESS_TEXT_SIZE];
    struct error why = {.code = ADTOPK_OK};
    bool set = false;

    switch (key->type) {
    case KEY_CHOICE: set = set_choice(key, item, field); break;
    case KEY_NUMBER:
    case KEY_WHOLE:
    case KEY_INTEGER:
    case KEY_SECONDS: set = set_number(key, item, field); break;
    case KEY_BOOL: set = set_bool(item, field); break;
    case KEY_SPARSIFIER:
    case KEY_COLLECTIVE: set = set_named(key, item, field); break;
    case KEY_PLAN: set = set_plan(item, field, &why); break;
    case KEY_BUDGET: set = set_budget(key, item, field); break;
    }
    if (set) {
        return ADTOPK_OK;
    }
    describe_values(key, values, sizeof(values));
    if (why.code != ADTOPK_OK) {
        return error_set(err, ADTOPK_ERR_POLICY, "\"%s\" must be %s; %.*s", key->name, values,
            UTF8_FIT(120, why.text));
    }
    return error_set(err, ADTOPK_ERR_POLICY, "\"%s\" %s%.*s%smust be %s%s", key->name,
        cJSON_IsString(item) ? "is \"" : "",
        UTF8_FIT(48, cJSON_IsString(item) ? item->valuestring : ""),
        cJSON_IsString(item) ? "\" but " : "", values, guess_value(key, item, meant));
}

/* The name of the value behind a pointer of a policy: NULL is auto. */
static const char *named(const struct policy_key *key, const void *field)
{
    const void *const *pointer = field;

    if (*pointer == NULL) {
        return AUTO;
    }
    return key->type == KEY_SPARSIFIER ? ((const struct sparsifier_ops *)*pointer)->name
                                       : ((const struct collective_ops *)*pointer)->name;
}

static const char *whole(const struct policy_key *key, uint64_t value, char text[KEY_NUMBER_SIZE])
{
    if (key->automatic && value == 0) {
        return "\"" AUTO "\"";
    }
    (void)snprintf(text, KEY_NUMBER_SIZE, "%" PRIu64, value);
    return text;
}

static const char *real(const struct policy_key *key, double value, char text[KEY_NUMBER_SIZE])
{
    if (key->automatic && !(value > 0)) {
        return "\"" AUTO "\"";
    }
    (void)snprintf(text, KEY_NUMBER_SIZE, "%.17g", value);
    return text;
}

void policy_key_print(const struct policy_key *key, const void *field, char text[KEY_VALUE_SIZE])
{
    char number[KEY_NUMBER_SIZE];
    const char *quoted = NULL, *plain = NULL;

    switch (key->type) {
    case KEY_CHOICE: quoted = key->choices[*(const unsigned *)field]; break;
    case KEY_SPARSIFIER:
    case KEY_COLLECTIVE: quoted = named(key, field); break;
    case KEY_PLAN: quoted = field; break;
    case KEY_BOOL: plain = *(const bool *)field ? "true" : "false"; break;
    case KEY_WHOLE: plain = whole(key, *(const uint64_t *)field, number); break;
    case KEY_INTEGER:
        (void)snprintf(number, sizeof(number), "%" PRId64, *(const int64_t *)field);
        plain = number;
        break;
    case KEY_NUMBER:
    case KEY_BUDGET: plain = real(key, *(const double *)field, number); break;
    case KEY_SECONDS:
        (void)snprintf(
            number, sizeof(number), "%.6f", (double)*(const uint64_t *)field / SECOND_US);
        plain = number;
        break;
    }
    (void)snprintf(
        text, KEY_VALUE_SIZE, quoted != NULL ? "\"%s\"" : "%s", quoted != NULL ? quoted : plain);
}

bool policy_key(unsigned index, struct policy_key_info *info)
{
    struct policy policy;
    const struct policy_key *key = index < KEY_COUNT ? &keys[index] : NULL;
    char value[KEY_VALUE_SIZE];

    if (key == NULL) {
        return false;
    }
    policy_default(&policy);
    *info = (struct policy_key_info){.name = key->name, .tensor = key->tensor, .help = key->help};
    describe_values(key, info->values, sizeof(info->values));
    policy_key_print(key,
        (const char *)(key->tensor ? (const void *)&policy.tensor : &policy) + key->offset, value);
    (void)snprintf(info->standard, sizeof(info->standard), "%.31s", value);
    if (key->type == KEY_SECONDS) {
        *strchr(info->standard, '.') = '\0'; /* the defaults are whole seconds */
    }
    return true;
}
