/*
 * One table describes every key: its name, type, range, place and meaning. Parsing, printing, help
 * texts and error messages all come from it.
 */
#include "daemon/core/policy.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/combination.h"
#include "proto/utf8.h"

#define SECOND_US 1000000u

enum key_type {
    KEY_CHOICE,
    KEY_NUMBER,
    KEY_BOOL,
    KEY_WHOLE,
    KEY_SECONDS,
    KEY_SPARSIFIER,
    KEY_COLLECTIVE
};

struct policy_key {
    const char *name;
    enum key_type type;
    bool tensor;                /* a field of struct tensor_policy, otherwise of struct policy */
    size_t offset;              /* of the field in it */
    const char *const *choices; /* KEY_CHOICE: names in the order of the enum; NULL-terminated */
    double minimum, maximum;
    const char *help;
};

static const char *const scope_names[] = {"node", "rank", NULL};
static const char *const reduce_names[] = {"mean", "sum", NULL};
static const char *const peer_loss_names[] = {"wait", "fail", NULL};
static const char *const fit_names[] = {"exponential", "pareto", "gamma", NULL};
static const char *const view_names[] = {"fibre", "row", "longest", NULL};
static const char *const value_names[] = {"f32", "bf16", "f16", "int8", NULL};
/* Dense elements travel in slices, one a node, and an int8 block would depend on where these begin:
 * no int8. */
static const char *const dense_value_names[] = {"f32", "bf16", "f16", NULL};
static const char *const index_names[] = {
    "auto", "", "raw", "rows", "delta", "bitmap", "rice", "hashmap", NULL};

#define JOB(member) .offset = offsetof(struct policy, member)
#define TENSOR(member) .tensor = true, .offset = offsetof(struct tensor_policy, member)

/* clang-format off: one entry, one look */
static const struct policy_key keys[] = {
    {.name = "sparsifier",
        .type = KEY_SPARSIFIER,
        TENSOR(sparsifier),
        .help = "which entries travel"},
    {.name = "density",
        .type = KEY_NUMBER,
        TENSOR(params.density),
        .minimum = 1e-6,
        .maximum = 1.0,
        .help = "share of the entries that travel each step"},
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
    {.name = "view",
        .type = KEY_CHOICE,
        TENSOR(params.view),
        .choices = view_names,
        .help = "adtopk: what it selects from: fibres along axis 1, rows, or the longest axis"},
    {.name = "interleave",
        .type = KEY_BOOL,
        TENSOR(params.interleave),
        .help = "adtopk: some turns select from the whole tensor, the others from each fibre"},
    {.name = "fibre_turns",
        .type = KEY_WHOLE,
        TENSOR(params.fibre_turns),
        .minimum = 1,
        .maximum = 64,
        .help = "adtopk: with interleave, so many turns select from each fibre"},
    {.name = "global_turns",
        .type = KEY_WHOLE,
        TENSOR(params.global_turns),
        .minimum = 1,
        .maximum = 64,
        .help = "adtopk: ... then so many from the whole tensor"},
    {.name = "adaptive",
        .type = KEY_BOOL,
        TENSOR(params.adaptive),
        .help = "adtopk: instead 1 to 3 of 4 turns select from the whole tensor, as updates show"},
    {.name = "total_turns",
        .type = KEY_WHOLE,
        TENSOR(params.total_turns),
        .minimum = 0,
        .maximum = 1e12,
        .help = "adtopk: turns of the training; in the last quarter all select from each fibre"},
    {.name = "estimate",
        .type = KEY_BOOL,
        TENSOR(params.estimate),
        .help = "adtopk: turns of the whole tensor go by an estimated threshold"},
    {.name = "estimate_period",
        .type = KEY_WHOLE,
        TENSOR(params.estimate_period),
        .minimum = 5,
        .maximum = 1e6,
        .help = "adtopk: estimates between two exact selections, to begin with"},
    {.name = "sample",
        .type = KEY_NUMBER,
        TENSOR(params.sample),
        .minimum = 1e-6,
        .maximum = 1.0,
        .help = "dgc: share of the entries that its threshold is estimated from"},
    {.name = "fit",
        .type = KEY_CHOICE,
        TENSOR(params.fit),
        .choices = fit_names,
        .help = "sidco: the distribution that it fits to the magnitudes"},
    {.name = "threshold",
        .type = KEY_NUMBER,
        TENSOR(params.threshold),
        .minimum = 0,
        .maximum = 1e30,
        .help = "threshold: the magnitude above which entries travel"},
    {.name = "momentum",
        .type = KEY_NUMBER,
        TENSOR(params.momentum),
        .minimum = 0,
        .maximum = 0.9999,
        .help = "momentum correction: share of the last velocity in the next; 0: none"},
    {.name = "nesterov",
        .type = KEY_BOOL,
        TENSOR(params.nesterov),
        .help = "momentum correction looks one step ahead"},
    {.name = "momentum_masking",
        .type = KEY_BOOL,
        TENSOR(params.momentum_masking),
        .help = "momentum correction forgets the velocity of what was sent"},
    {.name = "clip",
        .type = KEY_NUMBER,
        TENSOR(params.clip),
        .minimum = 0,
        .maximum = 1e30,
        .help =
            "norm to which a gradient is clipped, of a rank over the root of the ranks; 0: none"},
    {.name = "scope",
        .type = KEY_CHOICE,
        TENSOR(scope),
        .choices = scope_names,
        .help = "who selects: the node from its ranks' sum, or each rank for itself"},
    {.name = "reduce",
        .type = KEY_CHOICE,
        JOB(reduce),
        .choices = reduce_names,
        .help = "the update is the ranks' mean or their sum"},
    {.name = "values",
        .type = KEY_CHOICE,
        TENSOR(values),
        .choices = value_names,
        .help = "how the values of sparse contributions travel"},
    {.name = "dense_values",
        .type = KEY_CHOICE,
        TENSOR(dense_values),
        .choices = dense_value_names,
        .help = "how the values of dense contributions travel"},
    {.name = "indices",
        .type = KEY_CHOICE,
        TENSOR(indices),
        .choices = index_names,
        .help = "how positions travel; auto: the smallest"},
    {.name = "sparse_collective",
        .type = KEY_COLLECTIVE,
        TENSOR(sparse_collective),
        .help = "how sparse contributions become one sum"},
    {.name = "dense_collective",
        .type = KEY_COLLECTIVE,
        TENSOR(dense_collective),
        .help = "how dense contributions become one sum"},
    {.name = "bucket_bytes",
        .type = KEY_WHOLE,
        JOB(bucket_bytes),
        .minimum = 1,
        .maximum = 0x1p40,
        .help = "gradient bytes that travel together, about"},
    {.name = "on_peer_loss",
        .type = KEY_CHOICE,
        JOB(on_peer_loss),
        .choices = peer_loss_names,
        .help = "when a node is lost: wait for it, or end the job"},
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
    {.name = "wait_limit",
        .type = KEY_SECONDS,
        JOB(wait_limit_us),
        .minimum = 0.001,
        .maximum = 1e6,
        .help = "seconds to wait for a node that is lost"},
};
/* clang-format on */

#define KEY_COUNT (sizeof(keys) / sizeof(keys[0]))

_Static_assert(KEY_COUNT <= 64, "policy_rule.sets has a bit for every key");

void policy_default(struct policy *policy)
{
    *policy = (struct policy){
        .tensor =
            {
                .sparsifier = sparsifier_find("adtopk"),
                .params =
                    {
                        .density = 0.01,
                        .epoch_turns = 1000,
                        .view = FIBRE_VIEW_FIBRE,
                        .interleave = true,
                        .fibre_turns = 1,
                        .global_turns = 1,
                        .estimate_period = 5,
                        .sample = 0.01,
                        .fit = SIDCO_EXPONENTIAL,
                        .momentum_masking = true,
                    },
                .scope = SCOPE_NODE,
                .indices = PAYLOAD_INDEX_AUTO,
                .values = PAYLOAD_VALUE_BF16,
                .dense_values = PAYLOAD_VALUE_F32,
                .sparse_collective = &collective_allgather,
                .dense_collective = &collective_allreduce,
            },
        .reduce = REDUCE_MEAN,
        .on_peer_loss = PEER_LOSS_WAIT,
        .bucket_bytes = 4u << 20,
        .join_timeout_us = (uint64_t)300 * SECOND_US,
        .push_timeout_us = (uint64_t)1800 * SECOND_US,
        .wait_limit_us = (uint64_t)600 * SECOND_US,
    };
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

/* ------------------------------------------------------------------ values */

static size_t key_size(const struct policy_key *key)
{
    switch (key->type) {
    case KEY_CHOICE: return sizeof(unsigned);
    case KEY_BOOL: return sizeof(bool);
    case KEY_NUMBER: return sizeof(double);
    case KEY_WHOLE:
    case KEY_SECONDS: return sizeof(uint64_t);
    case KEY_SPARSIFIER:
    case KEY_COLLECTIVE: break;
    }
    return sizeof(void *);
}

static bool takes_dense(const struct policy_key *key)
{
    return key->offset == offsetof(struct tensor_policy, dense_collective);
}

/* The names that a key may have, "a, b or c", or its range. */
static void describe_values(const struct policy_key *key, char *text, size_t size)
{
    const char *name[16];
    unsigned count = 0;
    size_t used = 0;

    for (unsigned i = 0; key->type == KEY_CHOICE && key->choices[i] != NULL; i++) {
        if (key->choices[i][0] != '\0') {
            name[count++] = key->choices[i];
        }
    }
    for (unsigned i = 0; key->type == KEY_SPARSIFIER && sparsifier_table[i] != NULL; i++) {
        name[count++] = sparsifier_table[i]->name;
    }
    for (unsigned i = 0; key->type == KEY_COLLECTIVE && collective_table[i] != NULL; i++) {
        if (collective_table[i]->dense == takes_dense(key)) {
            name[count++] = collective_table[i]->name;
        }
    }
    text[0] = '\0';
    for (unsigned i = 0; i < count && used < size; i++) {
        const char *between = i == 0 ? "" : i + 1 < count ? ", " : " or ";
        int written = snprintf(text + used, size - used, "%s\"%s\"", between, name[i]);
        used += written > 0 ? (size_t)written : 0;
    }
    if (key->type == KEY_BOOL) {
        (void)snprintf(text, size, "true or false");
    } else if (key->type == KEY_NUMBER || key->type == KEY_SECONDS) {
        (void)snprintf(text, size, "a number from %.15g to %.15g", key->minimum, key->maximum);
    } else if (key->type == KEY_WHOLE) {
        (void)snprintf(
            text, size, "a whole number from %.15g to %.15g", key->minimum, key->maximum);
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

static bool set_number(const struct policy_key *key, const cJSON *item, void *field)
{
    double x = cJSON_IsNumber(item) ? item->valuedouble : NAN;

    if (!(x >= key->minimum && x <= key->maximum) || (key->type == KEY_WHOLE && x != floor(x))) {
        return false;
    }
    if (key->type == KEY_NUMBER) {
        *(double *)field = x;
    } else {
        *(uint64_t *)field = (uint64_t)(key->type == KEY_SECONDS ? x * SECOND_US + 0.5 : x);
    }
    return true;
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

    if (key->type == KEY_SPARSIFIER && sparsifier != NULL) {
        *(const struct sparsifier_ops **)field = sparsifier;
        return true;
    }
    if (key->type == KEY_COLLECTIVE && collective != NULL &&
        collective->dense == takes_dense(key)) {
        *(const struct collective_ops **)field = collective;
        return true;
    }
    return false;
}

static enum adtopk_status set_key(
    const struct policy_key *key, const cJSON *item, void *field, struct error *err)
{
    char values[POLICY_VALUES_SIZE];
    bool set = false;

    switch (key->type) {
    case KEY_CHOICE: set = set_choice(key, item, field); break;
    case KEY_NUMBER:
    case KEY_WHOLE:
    case KEY_SECONDS: set = set_number(key, item, field); break;
    case KEY_BOOL: set = set_bool(item, field); break;
    case KEY_SPARSIFIER:
    case KEY_COLLECTIVE: set = set_named(key, item, field); break;
    }
    if (set) {
        return ADTOPK_OK;
    }
    describe_values(key, values, sizeof(values));
    return error_set(err, ADTOPK_ERR_POLICY, "\"%s\" %s%.48s%smust be %s", key->name,
        cJSON_IsString(item) ? "is \"" : "", cJSON_IsString(item) ? item->valuestring : "",
        cJSON_IsString(item) ? "\" but " : "", values);
}

/* ------------------------------------------------------------------ rules */

/* Bytes of a character of a name, which is UTF-8. */
static size_t character_size(const char *name)
{
    size_t size = 1;

    while (((unsigned char)name[size] & 0xC0) == 0x80) {
        size++;
    }
    return size;
}

/* Whether the pattern fits. A '*' is tried with ever more characters, but only the last one met
 * needs to be: what an earlier one took can stay as it is. */
static bool matches(const char *pattern, const char *name)
{
    const char *star = NULL, *from = NULL;

    while (*name != '\0') {
        if (*pattern == '*') {
            star = pattern++;
            from = name;
        } else if (*pattern == '?') {
            pattern++;
            name += character_size(name);
        } else if (*pattern == *name) {
            pattern++;
            name++;
        } else if (star != NULL) {
            pattern = star + 1;
            name = ++from;
        } else {
            return false;
        }
    }
    while (*pattern == '*') {
        pattern++;
    }
    return *pattern == '\0';
}

static void apply_rule(const struct policy_rule *rule, struct tensor_policy *tensor)
{
    for (unsigned i = 0; i < KEY_COUNT; i++) {
        if ((rule->sets >> i & 1) != 0) {
            (void)memcpy((char *)tensor + keys[i].offset,
                (const char *)&rule->tensor + keys[i].offset, key_size(&keys[i]));
        }
    }
}

struct tensor_policy policy_of(const struct policy *policy, const char *tensor)
{
    struct tensor_policy found = policy->tensor;

    for (unsigned r = 0; r < policy->rules; r++) {
        if (matches(policy->rule[r].match, tensor)) {
            apply_rule(&policy->rule[r], &found);
        }
    }
    return found;
}

/* ------------------------------------------------------------------ parsing */

static const struct policy_key *find_key(const char *name)
{
    for (unsigned i = 0; i < KEY_COUNT; i++) {
        if (strcmp(keys[i].name, name) == 0) {
            return &keys[i];
        }
    }
    return NULL;
}

static bool is_repeated(const cJSON *object, const cJSON *item)
{
    for (const cJSON *other = object->child; other != item; other = other->next) {
        if (strcmp(other->string, item->string) == 0) {
            return true;
        }
    }
    return false;
}

static enum adtopk_status set_match(struct policy_rule *rule, const cJSON *item, struct error *err)
{
    size_t length = cJSON_IsString(item) ? strlen(item->valuestring) : 0;

    if (length == 0 || length >= sizeof(rule->match) ||
        utf8_name_fault(item->valuestring) != NULL) {
        return error_set(err, ADTOPK_ERR_POLICY,
            "\"match\" must be a pattern of 1 to %zu bytes of text", sizeof(rule->match) - 1);
    }
    (void)memcpy(rule->match, item->valuestring, length + 1);
    return ADTOPK_OK;
}

static enum adtopk_status set_rule_item(
    struct policy_rule *rule, const cJSON *item, struct error *err)
{
    const struct policy_key *key = find_key(item->string);

    if (strcmp(item->string, "match") == 0) {
        return set_match(rule, item, err);
    }
    if (key == NULL) {
        return error_set(err, ADTOPK_ERR_POLICY, "unknown key \"%.64s\"", item->string);
    }
    if (!key->tensor) {
        return error_set(err, ADTOPK_ERR_POLICY,
            "\"%s\" concerns the whole job and cannot stand in a rule", key->name);
    }
    rule->sets |= UINT64_C(1) << (key - keys);
    return set_key(key, item, (char *)&rule->tensor + key->offset, err);
}

static enum adtopk_status set_rule(struct policy_rule *rule, const cJSON *object, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;

    *rule = (struct policy_rule){.sets = 0};
    if (!cJSON_IsObject(object)) {
        return error_set(err, ADTOPK_ERR_POLICY, "a rule must be an object");
    }
    for (const cJSON *item = object->child; status == ADTOPK_OK && item != NULL;
         item = item->next) {
        status = is_repeated(object, item)
                     ? error_set(err, ADTOPK_ERR_POLICY, "\"%.64s\" is given twice", item->string)
                     : set_rule_item(rule, item, err);
    }
    if (status == ADTOPK_OK && (rule->match[0] == '\0' || rule->sets == 0)) {
        return error_set(err, ADTOPK_ERR_POLICY, "a rule needs a \"match\" and a key to set");
    }
    return status;
}

/* Puts "rules[N]: " before an error. */
static enum adtopk_status blame_rule(int rule, struct error *err)
{
    struct error inner = *err;

    return error_set(err, inner.code, "rules[%d]: %.200s", rule, inner.text);
}

static enum adtopk_status set_rules(struct policy *policy, const cJSON *array, struct error *err)
{
    int count = cJSON_GetArraySize(array);

    if (!cJSON_IsArray(array) || count > POLICY_RULES_MAX) {
        return error_set(err, ADTOPK_ERR_POLICY, "\"rules\" must be an array of at most %d rules",
            POLICY_RULES_MAX);
    }
    policy->rules = 0;
    for (const cJSON *item = array->child; item != NULL; item = item->next) {
        if (set_rule(&policy->rule[policy->rules], item, err) != ADTOPK_OK) {
            return blame_rule((int)policy->rules, err);
        }
        policy->rules++;
    }
    return ADTOPK_OK;
}

static enum adtopk_status set_item(struct policy *policy, const cJSON *item, struct error *err)
{
    const struct policy_key *key = find_key(item->string);

    if (strcmp(item->string, "rules") == 0) {
        return set_rules(policy, item, err);
    }
    if (strcmp(item->string, "version") == 0) {
        return cJSON_IsNumber(item) && item->valuedouble == POLICY_VERSION
                   ? ADTOPK_OK
                   : error_set(err, ADTOPK_ERR_POLICY,
                         "\"version\" must be %d: the only one that this daemon knows",
                         POLICY_VERSION);
    }
    if (key == NULL) {
        return error_set(err, ADTOPK_ERR_POLICY, "unknown key \"%.64s\"", item->string);
    }
    return set_key(
        key, item, (key->tensor ? (char *)&policy->tensor : (char *)policy) + key->offset, err);
}

/* What overlapping rules make together is checked for each tensor when the plan is made. */
static enum adtopk_status check_combinations(const struct policy *policy, struct error *err)
{
    if (combination_check(&policy->tensor, err) != ADTOPK_OK) {
        return err->code;
    }
    for (unsigned r = 0; r < policy->rules; r++) {
        struct tensor_policy tensor = policy->tensor;
        apply_rule(&policy->rule[r], &tensor);
        if (combination_check(&tensor, err) != ADTOPK_OK) {
            return blame_rule((int)r, err);
        }
    }
    return ADTOPK_OK;
}

static enum adtopk_status set_document(
    struct policy *policy, const cJSON *document, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;

    if (!cJSON_IsObject(document)) {
        return error_set(err, ADTOPK_ERR_POLICY, "the document must be an object");
    }
    for (const cJSON *item = document->child; status == ADTOPK_OK && item != NULL;
         item = item->next) {
        status = is_repeated(document, item)
                     ? error_set(err, ADTOPK_ERR_POLICY, "\"%.64s\" is given twice", item->string)
                     : set_item(policy, item, err);
    }
    return status == ADTOPK_OK ? check_combinations(policy, err) : status;
}

/* Whether a text in it has a NUL, at which it would seem to end. */
static bool has_nul(const char *json)
{
    for (const char *at = strchr(json, '\\'); at != NULL; at = strchr(at + 2, '\\')) {
        if (strncmp(at, "\\u0000", 6) == 0) {
            return true;
        }
    }
    return false;
}

enum adtopk_status policy_parse(struct policy *policy, const char *json, struct error *err)
{
    const char *end = NULL;
    cJSON *document = cJSON_ParseWithOpts(json, &end, true);
    struct policy parsed = *policy;
    struct error inner;
    enum adtopk_status status;

    if (document != NULL && has_nul(json)) {
        status = error_set(&inner, ADTOPK_ERR_POLICY, "\\u0000 does not belong in it");
    } else if (document == NULL) {
        status = error_set(&inner, ADTOPK_ERR_POLICY, "not valid JSON at byte %zu",
            end != NULL ? (size_t)(end - json) : (size_t)0);
    } else {
        status = set_document(&parsed, document, &inner);
    }
    cJSON_Delete(document);
    if (status != ADTOPK_OK) {
        return error_set(err, status, "policy: %.220s", inner.text);
    }
    *policy = parsed;
    return ADTOPK_OK;
}

/* ------------------------------------------------------------------ printing */

static void print_value(const struct policy_key *key, const void *field, char text[64])
{
    const char *name = NULL;

    switch (key->type) {
    case KEY_CHOICE: name = key->choices[*(const unsigned *)field]; break;
    case KEY_SPARSIFIER: name = (*(const struct sparsifier_ops *const *)field)->name; break;
    case KEY_COLLECTIVE: name = (*(const struct collective_ops *const *)field)->name; break;
    case KEY_NUMBER: (void)snprintf(text, 64, "%.17g", *(const double *)field); return;
    case KEY_BOOL: (void)snprintf(text, 64, "%s", *(const bool *)field ? "true" : "false"); return;
    case KEY_WHOLE: (void)snprintf(text, 64, "%" PRIu64, *(const uint64_t *)field); return;
    case KEY_SECONDS:
        (void)snprintf(text, 64, "%.6f", (double)*(const uint64_t *)field / SECOND_US);
        return;
    }
    (void)snprintf(text, 64, "\"%s\"", name);
}

/* A text that grows; POLICY_TEXT_SIZE is enough for the longest document. */
struct printer {
    char *text;
    size_t used;
};

static void put(struct printer *printer, const char *text)
{
    size_t length = strlen(text);

    if (printer->used + length >= POLICY_TEXT_SIZE) {
        abort(); /* POLICY_TEXT_SIZE is too small for the table: our own bug */
    }
    (void)memcpy(printer->text + printer->used, text, length + 1);
    printer->used += length;
}

static void put_key(struct printer *printer, const struct policy_key *key, const void *field)
{
    char value[64];

    print_value(key, field, value);
    put(printer, ",\"");
    put(printer, key->name);
    put(printer, "\":");
    put(printer, value);
}

static void put_rule(struct printer *printer, const struct policy_rule *rule)
{
    put(printer, "{\"match\":\"");
    for (const char *c = rule->match; *c != '\0'; c++) {
        char text[3] = {'\\', *c, '\0'};
        put(printer, *c == '"' || *c == '\\' ? text : text + 1);
    }
    put(printer, "\"");
    for (unsigned i = 0; i < KEY_COUNT; i++) {
        if ((rule->sets >> i & 1) != 0) {
            put_key(printer, &keys[i], (const char *)&rule->tensor + keys[i].offset);
        }
    }
    put(printer, "}");
}

void policy_print(const struct policy *policy, char text[POLICY_TEXT_SIZE])
{
    struct printer printer = {.text = text};

    put(&printer, "{\"version\":1");
    for (unsigned i = 0; i < KEY_COUNT; i++) {
        const void *base = keys[i].tensor ? (const void *)&policy->tensor : policy;
        put_key(&printer, &keys[i], (const char *)base + keys[i].offset);
    }
    put(&printer, ",\"rules\":[");
    for (unsigned r = 0; r < policy->rules; r++) {
        put(&printer, r > 0 ? "," : "");
        put_rule(&printer, &policy->rule[r]);
    }
    put(&printer, "]}");
}

bool policy_key(unsigned index, struct policy_key_info *info)
{
    struct policy policy;
    const struct policy_key *key = index < KEY_COUNT ? &keys[index] : NULL;
    char value[64];

    if (key == NULL) {
        return false;
    }
    policy_default(&policy);
    *info = (struct policy_key_info){.name = key->name, .tensor = key->tensor, .help = key->help};
    describe_values(key, info->values, sizeof(info->values));
    print_value(key,
        (const char *)(key->tensor ? (const void *)&policy.tensor : &policy) + key->offset, value);
    (void)snprintf(info->standard, sizeof(info->standard), "%.31s", value);
    if (key->type == KEY_SECONDS) {
        *strchr(info->standard, '.') = '\0'; /* the defaults are whole seconds */
    }
    return true;
}
