/*
 * One table describes every key: its name, type, range and place in struct policy. Parsing,
 * printing and error messages all come from it.
 */
#include "daemon/core/policy.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECOND_US 1000000u

enum key_type {
    KEY_CHOICE,
    KEY_NUMBER,
    KEY_BOOL,
    KEY_BYTES,
    KEY_SECONDS,
    KEY_SPARSIFIER,
    KEY_COLLECTIVE
};

struct policy_key {
    const char *name;
    enum key_type type;
    size_t offset;
    const char *const *choices; /* KEY_CHOICE: names in the order of the enum; NULL-terminated */
    double minimum, maximum;
};

static const char *const scope_names[] = {"node", "rank", NULL};
static const char *const reduce_names[] = {"mean", "sum", NULL};
static const char *const peer_loss_names[] = {"wait", "fail", NULL};
static const char *const view_names[] = {"fibre", "row", "longest", NULL};
static const char *const value_names[] = {"f32", "bf16", NULL};
static const char *const index_names[] = {"auto", "", "raw", "rows", "delta", "bitmap", NULL};

#define FIELD(member) offsetof(struct policy, member)

static const struct policy_key keys[] = {
    {.name = "sparsifier", .type = KEY_SPARSIFIER, .offset = FIELD(sparsifier)},
    {.name = "density",
        .type = KEY_NUMBER,
        .offset = FIELD(params.density),
        .minimum = 1e-6,
        .maximum = 1.0},
    {.name = "view", .type = KEY_CHOICE, .offset = FIELD(params.view), .choices = view_names},
    {.name = "interleave", .type = KEY_BOOL, .offset = FIELD(params.interleave)},
    {.name = "scope", .type = KEY_CHOICE, .offset = FIELD(scope), .choices = scope_names},
    {.name = "reduce", .type = KEY_CHOICE, .offset = FIELD(reduce), .choices = reduce_names},
    {.name = "values", .type = KEY_CHOICE, .offset = FIELD(values), .choices = value_names},
    {.name = "dense_values",
        .type = KEY_CHOICE,
        .offset = FIELD(dense_values),
        .choices = value_names},
    {.name = "indices", .type = KEY_CHOICE, .offset = FIELD(indices), .choices = index_names},
    {.name = "sparse_collective", .type = KEY_COLLECTIVE, .offset = FIELD(sparse_collective)},
    {.name = "dense_collective", .type = KEY_COLLECTIVE, .offset = FIELD(dense_collective)},
    {.name = "bucket_bytes",
        .type = KEY_BYTES,
        .offset = FIELD(bucket_bytes),
        .minimum = 1,
        .maximum = 0x1p40},
    {.name = "on_peer_loss",
        .type = KEY_CHOICE,
        .offset = FIELD(on_peer_loss),
        .choices = peer_loss_names},
    {.name = "join_timeout",
        .type = KEY_SECONDS,
        .offset = FIELD(join_timeout_us),
        .minimum = 0.001,
        .maximum = 1e6},
    {.name = "push_timeout",
        .type = KEY_SECONDS,
        .offset = FIELD(push_timeout_us),
        .minimum = 0.001,
        .maximum = 1e6},
    {.name = "wait_limit",
        .type = KEY_SECONDS,
        .offset = FIELD(wait_limit_us),
        .minimum = 0.001,
        .maximum = 1e6},
};

#define KEY_COUNT (sizeof(keys) / sizeof(keys[0]))

void policy_default(struct policy *policy)
{
    *policy = (struct policy){
        .sparsifier = sparsifier_find("adtopk"),
        .params = {.density = 0.01, .view = FIBRE_VIEW_FIBRE, .interleave = true},
        .scope = SCOPE_NODE,
        .reduce = REDUCE_MEAN,
        .on_peer_loss = PEER_LOSS_WAIT,
        .indices = PAYLOAD_INDEX_AUTO,
        .values = PAYLOAD_VALUE_BF16,
        .dense_values = PAYLOAD_VALUE_F32,
        .sparse_collective = &collective_allgather,
        .dense_collective = &collective_allreduce,
        .bucket_bytes = 4u << 20,
        .join_timeout_us = (uint64_t)300 * SECOND_US,
        .push_timeout_us = (uint64_t)1800 * SECOND_US,
        .wait_limit_us = (uint64_t)600 * SECOND_US,
    };
}

static enum adtopk_status set_choice(
    const struct policy_key *key, const cJSON *item, void *field, struct error *err)
{
    for (unsigned i = 0; cJSON_IsString(item) && key->choices[i] != NULL; i++) {
        if (item->valuestring[0] != '\0' && strcmp(item->valuestring, key->choices[i]) == 0) {
            *(unsigned *)field = i;
            return ADTOPK_OK;
        }
    }
    return error_set(err, ADTOPK_ERR_POLICY,
        "policy: \"%s\" must be one of its names, such as \"%s\"", key->name, key->choices[0]);
}

static enum adtopk_status set_number(
    const struct policy_key *key, const cJSON *item, void *field, struct error *err)
{
    double x = cJSON_IsNumber(item) ? item->valuedouble : NAN;

    if (!(x >= key->minimum && x <= key->maximum) || (key->type == KEY_BYTES && x != floor(x))) {
        return error_set(err, ADTOPK_ERR_POLICY, "policy: \"%s\" must be a %s from %g to %g",
            key->name, key->type == KEY_BYTES ? "whole number" : "number", key->minimum,
            key->maximum);
    }
    if (key->type == KEY_NUMBER) {
        *(double *)field = x;
    } else {
        *(uint64_t *)field = (uint64_t)(key->type == KEY_SECONDS ? x * SECOND_US + 0.5 : x);
    }
    return ADTOPK_OK;
}

static enum adtopk_status set_named(
    const struct policy_key *key, const cJSON *item, void *field, struct error *err)
{
    const char *name = cJSON_IsString(item) ? item->valuestring : "";

    if (key->type == KEY_SPARSIFIER) {
        const struct sparsifier_ops *ops = sparsifier_find(name);
        if (ops != NULL) {
            *(const struct sparsifier_ops **)field = ops;
            return ADTOPK_OK;
        }
    } else {
        const struct collective_ops *ops = collective_find(name);
        if (ops != NULL && ops->dense == (key->offset == FIELD(dense_collective))) {
            *(const struct collective_ops **)field = ops;
            return ADTOPK_OK;
        }
    }
    return error_set(err, ADTOPK_ERR_POLICY, "policy: \"%s\" cannot be \"%.64s\"", key->name, name);
}

static enum adtopk_status set_key(
    const struct policy_key *key, const cJSON *item, struct policy *policy, struct error *err)
{
    void *field = (char *)policy + key->offset;

    switch (key->type) {
    case KEY_CHOICE: return set_choice(key, item, field, err);
    case KEY_NUMBER:
    case KEY_BYTES:
    case KEY_SECONDS: return set_number(key, item, field, err);
    case KEY_SPARSIFIER:
    case KEY_COLLECTIVE: return set_named(key, item, field, err);
    case KEY_BOOL: break;
    }
    if (!cJSON_IsBool(item)) {
        return error_set(err, ADTOPK_ERR_POLICY, "policy: \"%s\" must be true or false", key->name);
    }
    *(bool *)field = cJSON_IsTrue(item);
    return ADTOPK_OK;
}

static enum adtopk_status set_item(
    const cJSON *item, struct policy *policy, bool seen[KEY_COUNT], struct error *err)
{
    for (unsigned i = 0; i < KEY_COUNT; i++) {
        if (strcmp(item->string, keys[i].name) != 0) {
            continue;
        }
        if (seen[i]) {
            return error_set(err, ADTOPK_ERR_POLICY, "policy: \"%s\" is given twice", keys[i].name);
        }
        seen[i] = true;
        return set_key(&keys[i], item, policy, err);
    }
    return error_set(err, ADTOPK_ERR_POLICY, "policy: unknown key \"%.64s\"", item->string);
}

enum adtopk_status policy_parse(struct policy *policy, const char *json, struct error *err)
{
    const char *end = NULL;
    cJSON *document = cJSON_ParseWithOpts(json, &end, true);
    struct policy parsed = *policy;
    bool seen[KEY_COUNT] = {false};
    enum adtopk_status status = ADTOPK_OK;

    if (document != NULL && strstr(json, "\\u0000") != NULL) {
        cJSON_Delete(document); /* its strings would end there and hide the rest */
        return error_set(err, ADTOPK_ERR_POLICY, "policy: \\u0000 does not belong in it");
    }
    if (document == NULL) {
        return error_set(err, ADTOPK_ERR_POLICY, "policy: not valid JSON at byte %zu",
            end != NULL ? (size_t)(end - json) : (size_t)0);
    }
    if (!cJSON_IsObject(document)) {
        status = error_set(err, ADTOPK_ERR_POLICY, "policy: the document must be an object");
    }
    for (const cJSON *item = document->child; status == ADTOPK_OK && item != NULL;
         item = item->next) {
        status = set_item(item, &parsed, seen, err);
    }
    cJSON_Delete(document);
    if (status == ADTOPK_OK) {
        *policy = parsed;
    }
    return status;
}

static void print_value(const struct policy_key *key, const struct policy *policy, char text[64])
{
    const void *field = (const char *)policy + key->offset;
    const char *name = NULL;

    switch (key->type) {
    case KEY_CHOICE: name = key->choices[*(const unsigned *)field]; break;
    case KEY_SPARSIFIER: name = (*(const struct sparsifier_ops *const *)field)->name; break;
    case KEY_COLLECTIVE: name = (*(const struct collective_ops *const *)field)->name; break;
    case KEY_NUMBER: (void)snprintf(text, 64, "%.17g", *(const double *)field); return;
    case KEY_BOOL: (void)snprintf(text, 64, "%s", *(const bool *)field ? "true" : "false"); return;
    case KEY_BYTES: (void)snprintf(text, 64, "%" PRIu64, *(const uint64_t *)field); return;
    case KEY_SECONDS:
        (void)snprintf(text, 64, "%.6f", (double)*(const uint64_t *)field / SECOND_US);
        return;
    }
    (void)snprintf(text, 64, "\"%s\"", name);
}

void policy_print(const struct policy *policy, char text[POLICY_TEXT_SIZE])
{
    size_t used = 0;

    for (unsigned i = 0; i < KEY_COUNT; i++) {
        char value[64];
        int written;
        print_value(&keys[i], policy, value);
        written = snprintf(text + used, POLICY_TEXT_SIZE - used, "%s\"%s\":%s", i == 0 ? "{" : ",",
            keys[i].name, value);
        used += written > 0 ? (size_t)written : 0;
        if (used >= POLICY_TEXT_SIZE - 2) {
            abort(); /* POLICY_TEXT_SIZE is too small for the table: our own bug */
        }
    }
    (void)snprintf(text + used, POLICY_TEXT_SIZE - used, "}");
}
