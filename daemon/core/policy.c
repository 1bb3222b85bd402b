/*
 * Policy documents: their defaults, their rules, reading and writing them.
 */
#include "daemon/core/policy.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/core/combination.h"
#include "daemon/core/policy_key.h"
#include "proto/utf8.h"

#define SECOND_US 1000000u

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
        .weight = 1,
        .bucket_bytes = POLICY_BUCKET_BYTES,
        .replan = true,
        .join_timeout_us = (uint64_t)300 * SECOND_US,
        .push_timeout_us = (uint64_t)1800 * SECOND_US,
        .wait_limit_us = (uint64_t)600 * SECOND_US,
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
    const struct policy_key *key;

    for (unsigned i = 0; (key = policy_key_at(i)) != NULL; i++) {
        if ((rule->sets >> i & 1) != 0) {
            (void)memcpy((char *)tensor + key->offset, (const char *)&rule->tensor + key->offset,
                policy_key_size(key));
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

    if (settled.sparsifier == NULL) {
        settled.sparsifier = sparsifier_find("adtopk");
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
    char fault[UTF8_FAULT_SIZE];

    if (length == 0 || length >= sizeof(rule->match) || utf8_name_fault(item->valuestring, fault)) {
        return error_set(err, ADTOPK_ERR_POLICY,
            "\"match\" must be a pattern of 1 to %zu bytes of text", sizeof(rule->match) - 1);
    }
    (void)memcpy(rule->match, item->valuestring, length + 1);
    return ADTOPK_OK;
}

static enum adtopk_status set_rule_item(
    struct policy_rule *rule, const cJSON *item, struct error *err)
{
    const struct policy_key *key = policy_key_find(item->string);

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
    rule->sets |= UINT64_C(1) << policy_key_number(key);
    return policy_key_set(key, item, (char *)&rule->tensor + key->offset, err);
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
    const struct policy_key *key = policy_key_find(item->string);

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
    return policy_key_set(
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
    char value[KEY_VALUE_SIZE];

    policy_key_print(key, field, value);
    put(printer, ",\"");
    put(printer, key->name);
    put(printer, "\":");
    put(printer, value);
}

static void put_rule(struct printer *printer, const struct policy_rule *rule)
{
    const struct policy_key *key;

    put(printer, "{\"match\":\"");
    for (const char *c = rule->match; *c != '\0'; c++) {
        char text[3] = {'\\', *c, '\0'};
        put(printer, *c == '"' || *c == '\\' ? text : text + 1);
    }
    put(printer, "\"");
    for (unsigned i = 0; (key = policy_key_at(i)) != NULL; i++) {
        if ((rule->sets >> i & 1) != 0) {
            put_key(printer, key, (const char *)&rule->tensor + key->offset);
        }
    }
    put(printer, "}");
}

void policy_print(const struct policy *policy, char text[POLICY_TEXT_SIZE])
{
    struct printer printer = {.text = text};
    const struct policy_key *key;

    put(&printer, "{\"version\":1");
    for (unsigned i = 0; (key = policy_key_at(i)) != NULL; i++) {
        const void *base = key->tensor ? (const void *)&policy->tensor : policy;
        put_key(&printer, key, (const char *)base + key->offset);
    }
    put(&printer, ",\"rules\":[");
    for (unsigned r = 0; r < policy->rules; r++) {
        put(&printer, r > 0 ? "," : "");
        put_rule(&printer, &policy->rule[r]);
    }
    put(&printer, "]}");
}

bool policy_same_choices(const struct policy *a, const struct policy *b)
{
    struct policy *same = malloc(sizeof(*same));
    char *text = malloc(2 * POLICY_TEXT_SIZE);
    bool equal = same != NULL && text != NULL;

    if (equal) {
        *same = *b;
        same->replan = a->replan;
        same->on_peer_loss = a->on_peer_loss;
        same->weight = a->weight;
        same->join_timeout_us = a->join_timeout_us;
        same->push_timeout_us = a->push_timeout_us;
        same->wait_limit_us = a->wait_limit_us;
        (void)memcpy(same->plan, a->plan, sizeof(same->plan));
        policy_print(a, text);
        policy_print(same, text + POLICY_TEXT_SIZE);
        equal = strcmp(text, text + POLICY_TEXT_SIZE) == 0;
    }
    free(same);
    free(text);
    return equal;
}
