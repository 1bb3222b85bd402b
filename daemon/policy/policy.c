/*
 * Policy documents: their defaults, their rules, reading and writing them.
 */
#include "daemon/policy/policy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/policy/budget.h"
#include "daemon/policy/combination.h"
#include "daemon/policy/policy_key.h"
#include "proto/guess.h"
#include "proto/json.h"
#include "proto/utf8.h"

#define SECOND_US 1000000u
#define DEFAULT_BUDGET "as 1% bf16"

void policy_default(struct policy *policy)
{
    *policy = (struct policy){
        .tensor =
            {
                .sparsifier = sparsifier_find("topk"),
                .budget = budget_read(DEFAULT_BUDGET),
                .params =
                    {
                        .density = 0, /* the budget says it */
                        .epoch_turns = 1000,
                        .fibres = FIBRES_AXIS_1,
                        .interleave = true,
                        .fibre_turns = 1,
                        .global_turns = 1,
                        .estimate_period = 5,
                        .sample = 0.01,
                        .fit = SIDCO_EXPONENTIAL,
                        .beta = 1,
                        .gamma = 1,
                        .momentum_masking = true,
                    },
                .scope = SCOPE_NODE,
                .lookahead = 0.25,
                .indices = PAYLOAD_INDEX_AUTO,
                .values = POLICY_VALUES_AUTO,
                .dense_values = PAYLOAD_VALUE_F32,
                .sparse_collective = &collective_allgather,
                .dense_collective = &collective_allreduce,
            },
        .reduce = REDUCE_MEAN,
        .on_peer_loss = PEER_LOSS_WAIT,
        .on_rank_loss = RANK_LOSS_FAIL,
        .tie_breaker = -1,
        .weight = 1,
        .bucket_bytes = POLICY_BUCKET_BYTES,
        .replan = true,
        .join_timeout_us = (uint64_t)300 * SECOND_US,
        .push_timeout_us = (uint64_t)1800 * SECOND_US,
        .round_timeout_us = (uint64_t)300 * SECOND_US,
        .wait_limit_us = (uint64_t)600 * SECOND_US,
        .shrink_after_us = (uint64_t)4 * SECOND_US,
    };
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

/* Whether the pattern matches. A '*' is tried with ever more characters, but only the last one
 * needs that: what an earlier one took can stay as it is. */
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
    const struct policy_key *key;

    for (unsigned i = 0; (key = policy_key_at(i)) != NULL; i++) {
        if ((rule->sets >> i & 1) != 0) {
            (void)memcpy((char *)tensor + key->offset, (const char *)&rule->tensor + key->offset,
                policy_key_size(key));
        }
    }
}

/* Whether entries with two magnitudes can be sent under this policy. */
static bool takes_two(const struct tensor_policy *policy)
{
    const struct collective_ops *ops = policy->sparse_collective;
    const struct sparsifier_ops *sparsifier = policy->sparsifier;

    return ops != NULL && (ops->traits.values & 1u << PAYLOAD_VALUE_TWO) != 0 &&
           (sparsifier == NULL || sparsifier->known == NULL) && policy->residual == RESIDUAL_F32;
}

/* Fills in values that are "auto", then a density that follows from the budget. With a budget the
 * bits that values save are spent on entries, so the values are the fewest bits that go with the
 * rest. A density that is given keeps its usual values. */
static void settle_values(struct tensor_policy *policy)
{
    const bool by_budget = !(policy->params.density > 0);

    if (policy->values == POLICY_VALUES_AUTO) {
        policy->values = by_budget && takes_two(policy) ? PAYLOAD_VALUE_TWO : PAYLOAD_VALUE_BF16;
    }
    if (!(policy->params.density > 0)) {
        policy->params.density = budget_density(policy);
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
    settle_values(&found);
    return found;
}

_Static_assert(POLICY_RULES_MAX <= 32, "policy_matching() has a bit a rule");

uint32_t policy_matching(const struct policy *policy, const char *tensor)
{
    uint32_t matching = 0;

    for (unsigned r = 0; r < policy->rules; r++) {
        matching |= matches(policy->rule[r].match, tensor) ? UINT32_C(1) << r : 0;
    }
    return matching;
}

struct tensor_policy policy_settled(const struct tensor_policy *policy)
{
    struct tensor_policy settled = *policy;

    settle_values(&settled); /* a collective that is still to be chosen limits them */
    if (settled.sparsifier == NULL) {
        settled.sparsifier = sparsifier_find("topk");
    }
    if (settled.sparse_collective == NULL) {
        settled.sparse_collective = &collective_allgather;
    }
    if (settled.dense_values == POLICY_VALUES_AUTO) {
        settled.dense_values = PAYLOAD_VALUE_F32;
    }
    return settled;
}

/* ------------------------------------------------------------------ parsing */

/* A document that is being read, and the errors in it. */
struct reading {
    struct json json;
    struct faults *faults;
    unsigned before;       /* faults that were there before */
    struct policy *policy; /* the settings that have been read so far */
};

static bool is_repeated(const cJSON *object, const cJSON *item)
{
    for (const cJSON *other = object->child; other != item; other = other->next) {
        if (strcmp(other->string, item->string) == 0) {
            return true;
        }
    }
    return false;
}

/* "rules[1]: " of an item that is in a rule, "" otherwise. */
struct prefix {
    char text[24];
};

static struct prefix prefix_of(int rule)
{
    struct prefix prefix = {""};

    if (rule >= 0) {
        (void)snprintf(prefix.text, sizeof(prefix.text), "rules[%d]: ", rule);
    }
    return prefix;
}

static void policy_refuse_key(const struct reading *reading, const cJSON *item, int rule)
{
    const struct policy_key *key;
    struct guess guess;
    char text[GUESS_TEXT_SIZE];

    guess_start(&guess, item->string, 0);
    for (unsigned i = 0; (key = policy_key_at(i)) != NULL; i++) {
        if (rule < 0 || key->tensor) {
            guess_name(&guess, key->name);
        }
    }
    guess_name(&guess, rule < 0 ? "rules" : "match");
    (void)json_fault(&reading->json, item, JSON_KEY, reading->faults, "%sunknown key \"%.*s\"%s",
        prefix_of(rule).text, UTF8_FIT(64, item->string), guess_text(&guess, text));
}

static void set_key(const struct reading *reading, const struct policy_key *key, const cJSON *item,
    int rule, void *base)
{
    struct error err;

    if (policy_key_set(key, item, (char *)base + key->offset, &err) != ADTOPK_OK) {
        (void)json_fault(&reading->json, item, JSON_VALUE, reading->faults, "%s%s",
            prefix_of(rule).text, err.text);
    }
}

/* Of density and budget the one that is set last holds, and says that the other does not. Returns
 * the key that it has set for that, or NULL. */
static const struct policy_key *set_partner(
    const struct policy_key *key, struct tensor_policy *tensor)
{
    if (strcmp(key->name, "density") == 0 && tensor->params.density > 0) {
        tensor->budget = 0;
        return policy_key_find("budget");
    }
    if (strcmp(key->name, "budget") == 0 && tensor->budget > 0) {
        tensor->params.density = 0;
        return policy_key_find("density");
    }
    return NULL;
}

/* One object cannot say both. */
static void check_partners(const struct reading *reading, const cJSON *object, int rule)
{
    const cJSON *density = cJSON_GetObjectItemCaseSensitive(object, "density");
    const cJSON *budget = cJSON_GetObjectItemCaseSensitive(object, "budget");

    if (cJSON_IsNumber(density) && budget != NULL &&
        (!cJSON_IsNumber(budget) || budget->valuedouble > 0)) {
        (void)json_fault(&reading->json, budget, JSON_KEY, reading->faults,
            "%s\"density\" and \"budget\" are both given: one follows from the other",
            prefix_of(rule).text);
    }
}

static void set_match(
    const struct reading *reading, struct policy_rule *rule, int number, const cJSON *item)
{
    size_t length = cJSON_IsString(item) ? strlen(item->valuestring) : 0;
    char fault[UTF8_FAULT_SIZE];

    if (length == 0 || length >= sizeof(rule->match) || utf8_name_fault(item->valuestring, fault)) {
        (void)json_fault(&reading->json, item, JSON_VALUE, reading->faults,
            "%s\"match\" must be a pattern of 1 to %zu bytes of text", prefix_of(number).text,
            sizeof(rule->match) - 1);
    } else {
        (void)memcpy(rule->match, item->valuestring, length + 1);
    }
}

static void set_rule_item(
    const struct reading *reading, struct policy_rule *rule, int number, const cJSON *item)
{
    const struct policy_key *key = policy_key_find(item->string), *partner;

    if (strcmp(item->string, "match") == 0) {
        set_match(reading, rule, number, item);
    } else if (key == NULL) {
        policy_refuse_key(reading, item, number);
    } else if (!key->tensor) {
        (void)json_fault(&reading->json, item, JSON_KEY, reading->faults,
            "%s\"%s\" concerns the whole job and cannot stand in a rule", prefix_of(number).text,
            key->name);
    } else {
        rule->sets |= UINT64_C(1) << policy_key_number(key);
        set_key(reading, key, item, number, &rule->tensor);
        partner = set_partner(key, &rule->tensor);
        rule->sets |= partner != NULL ? UINT64_C(1) << policy_key_number(partner) : 0;
    }
}

/* Whether the member is the first of its name; a fault otherwise. */
static bool is_first(
    const struct reading *reading, const cJSON *object, const cJSON *item, int rule)
{
    if (is_repeated(object, item)) {
        (void)json_fault(&reading->json, item, JSON_KEY, reading->faults,
            "%s\"%.*s\" is given twice", prefix_of(rule).text, UTF8_FIT(64, item->string));
        return false;
    }
    return true;
}

static void set_rule(
    const struct reading *reading, struct policy_rule *rule, int number, const cJSON *object)
{
    const unsigned before = reading->faults->count;

    *rule = (struct policy_rule){.sets = 0};
    if (!cJSON_IsObject(object)) {
        (void)json_fault(&reading->json, object, JSON_VALUE, reading->faults,
            "%sa rule must be an object", prefix_of(number).text);
        return;
    }
    for (const cJSON *item = object->child; item != NULL && !faults_full(reading->faults);
         item = item->next) {
        if (is_first(reading, object, item, number)) {
            set_rule_item(reading, rule, number, item);
        }
    }
    check_partners(reading, object, number);
    if (reading->faults->count == before && (rule->match[0] == '\0' || rule->sets == 0)) {
        (void)json_fault(&reading->json, object, JSON_VALUE, reading->faults,
            "%sa rule needs a \"match\" and a key to set", prefix_of(number).text);
    }
}

static void set_rules(const struct reading *reading, const cJSON *array)
{
    struct policy *policy = reading->policy;

    if (!cJSON_IsArray(array) || cJSON_GetArraySize(array) > POLICY_RULES_MAX) {
        (void)json_fault(&reading->json, array, JSON_VALUE, reading->faults,
            "\"rules\" must be an array of at most %d rules", POLICY_RULES_MAX);
        return;
    }
    policy->rules = 0;
    for (const cJSON *item = array->child; item != NULL && !faults_full(reading->faults);
         item = item->next) {
        set_rule(reading, &policy->rule[policy->rules], (int)policy->rules, item);
        policy->rules++;
    }
}

static void set_item(const struct reading *reading, const cJSON *item)
{
    const struct policy_key *key = policy_key_find(item->string);
    struct policy *policy = reading->policy;

    if (strcmp(item->string, "rules") == 0) {
        set_rules(reading, item);
    } else if (strcmp(item->string, "version") == 0) {
        if (!cJSON_IsNumber(item) || item->valuedouble != POLICY_VERSION) {
            (void)json_fault(&reading->json, item, JSON_VALUE, reading->faults,
                "\"version\" must be %d: the only one that this daemon knows", POLICY_VERSION);
        }
    } else if (key == NULL) {
        policy_refuse_key(reading, item, -1);
    } else {
        set_key(reading, key, item, -1, key->tensor ? (void *)&policy->tensor : policy);
        (void)set_partner(key, &policy->tensor);
    }
}

/* The plan checks for each tensor what overlapping rules give together. A fault of a rule that the
 * document does not have is reported for the whole document. */
static void check_combinations(const struct reading *reading)
{
    const struct policy *policy = reading->policy;
    const cJSON *rules = cJSON_GetObjectItemCaseSensitive(reading->json.root, "rules");
    struct error err;

    if (combination_check(&policy->tensor, &err) != ADTOPK_OK) {
        (void)json_fault(
            &reading->json, reading->json.root, JSON_VALUE, reading->faults, "%s", err.text);
        return;
    }
    for (unsigned r = 0; r < policy->rules; r++) {
        struct tensor_policy tensor = policy->tensor;
        apply_rule(&policy->rule[r], &tensor);
        if (combination_check(&tensor, &err) != ADTOPK_OK) {
            (void)json_fault(&reading->json,
                rules != NULL ? cJSON_GetArrayItem(rules, (int)r) : reading->json.root, JSON_VALUE,
                reading->faults, "%s%s", prefix_of((int)r).text, err.text);
        }
    }
}

static void set_document(const struct reading *reading)
{
    const cJSON *document = reading->json.root;

    if (!cJSON_IsObject(document)) {
        (void)json_fault(&reading->json, document, JSON_VALUE, reading->faults,
            "a policy must be an object, {...}");
        return;
    }
    for (const cJSON *item = document->child; item != NULL && !faults_full(reading->faults);
         item = item->next) {
        if (is_first(reading, document, item, -1)) {
            set_item(reading, item);
        }
    }
    check_partners(reading, document, -1);
    if (reading->faults->count == reading->before) {
        check_combinations(reading);
    }
}

/* Reads the document that is open, and closes it. */
static enum adtopk_status policy_read_document(struct policy *policy, struct reading *reading)
{
    struct policy parsed = *policy;

    reading->policy = &parsed;
    if (reading->json.root != NULL) {
        set_document(reading);
    }
    json_free(&reading->json);
    if (reading->faults->count == reading->before) {
        *policy = parsed;
    }
    return reading->faults->count == reading->before ? ADTOPK_OK : ADTOPK_ERR_POLICY;
}

enum adtopk_status policy_read(
    struct policy *policy, const char *name, const char *text, struct faults *faults)
{
    struct reading reading = {.faults = faults, .before = faults->count};

    (void)json_read(&reading.json, name, text, strlen(text), ADTOPK_ERR_POLICY, faults);
    return policy_read_document(policy, &reading);
}

enum adtopk_status policy_read_part(struct policy *policy, const char *name, const char *text,
    const char *start, struct faults *faults)
{
    struct reading reading = {.faults = faults, .before = faults->count};

    (void)json_read_part(&reading.json, name, text, start, ADTOPK_ERR_POLICY, faults);
    return policy_read_document(policy, &reading);
}

enum adtopk_status policy_parse(struct policy *policy, const char *json, struct error *err)
{
    struct faults faults = {.first_only = true};

    (void)policy_read(policy, "policy", json != NULL ? json : "", &faults);
    return faults_first(&faults, err);
}

bool policy_names(const char *json, const char *key)
{
    cJSON *document = cJSON_Parse(json);
    bool names = document == NULL || cJSON_GetObjectItemCaseSensitive(document, key) != NULL;

    cJSON_Delete(document);
    return names;
}

/* ------------------------------------------------------------------ printing */

/* A text that grows; POLICY_TEXT_SIZE is enough for the longest document. */
struct printer {
    char *text;
    size_t used;
};

static void policy_put(struct printer *printer, const char *text)
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
    char value[KEY_VALUE_SIZE];

    policy_key_print(key, field, value);
    policy_put(printer, ",\"");
    policy_put(printer, key->name);
    policy_put(printer, "\":");
    policy_put(printer, value);
}

static void put_rule(struct printer *printer, const struct policy_rule *rule)
{
    const struct policy_key *key;

    policy_put(printer, "{\"match\":\"");
    for (const char *c = rule->match; *c != '\0'; c++) {
        char text[3] = {'\\', *c, '\0'};
        policy_put(printer, *c == '"' || *c == '\\' ? text : text + 1);
    }
    policy_put(printer, "\"");
    for (unsigned i = 0; (key = policy_key_at(i)) != NULL; i++) {
        if ((rule->sets >> i & 1) != 0) {
            put_key(printer, key, (const char *)&rule->tensor + key->offset);
        }
    }
    policy_put(printer, "}");
}

void policy_print(const struct policy *policy, char text[POLICY_TEXT_SIZE])
{
    struct printer printer = {.text = text};
    const struct policy_key *key;

    policy_put(&printer, "{\"version\":1");
    for (unsigned i = 0; (key = policy_key_at(i)) != NULL; i++) {
        const void *base = key->tensor ? (const void *)&policy->tensor : policy;
        put_key(&printer, key, (const char *)base + key->offset);
    }
    policy_put(&printer, ",\"rules\":[");
    for (unsigned r = 0; r < policy->rules; r++) {
        policy_put(&printer, r > 0 ? "," : "");
        put_rule(&printer, &policy->rule[r]);
    }
    policy_put(&printer, "]}");
}

bool policy_same_choices(const struct policy *a, const struct policy *b)
{
    struct policy *same = malloc(sizeof(*same));
    char *text = malloc(2 * POLICY_TEXT_SIZE);
    bool equal = same != NULL && text != NULL;

    if (equal) {
        *same = *b;
        same->replan = a->replan;
        same->grow = a->grow;
        same->on_peer_loss = a->on_peer_loss;
        same->on_rank_loss = a->on_rank_loss;
        same->tie_breaker = a->tie_breaker;
        same->non_finite = a->non_finite;
        same->engine = a->engine;
        same->weight = a->weight;
        same->join_timeout_us = a->join_timeout_us;
        same->push_timeout_us = a->push_timeout_us;
        same->round_timeout_us = a->round_timeout_us;
        same->wait_limit_us = a->wait_limit_us;
        same->shrink_after_us = a->shrink_after_us;
        (void)memcpy(same->plan, a->plan, sizeof(same->plan));
        policy_print(a, text);
        policy_print(same, text + POLICY_TEXT_SIZE);
        equal = strcmp(text, text + POLICY_TEXT_SIZE) == 0;
    }
    free(same);
    free(text);
    return equal;
}
