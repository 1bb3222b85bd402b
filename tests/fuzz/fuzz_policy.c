/*
 * Fuzz target: policy documents. An accepted one has a canonical text with the same meaning. Its
 * last rule wins for a tensor whose name is the rule's pattern, which matches itself. A refused
 * document changes nothing.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/policy/policy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The number of the key that sets the density. */
static unsigned density_key(void)
{
    struct policy_key_info key;
    unsigned density = 0;

    for (unsigned i = 0; policy_key(i, &key); i++) {
        density = strcmp(key.name, "density") == 0 ? i : density;
    }
    return density;
}

/* The text has the names of the chosen values. */
static void check_names(const struct tensor_policy *tensor, const char *text)
{
    if (strstr(text, policy_index_name(tensor->indices)) == NULL ||
        strstr(text, policy_value_name(tensor->values)) == NULL ||
        strstr(text, policy_scope_name(tensor->scope)) == NULL) {
        abort();
    }
}

static void check_rules(const struct policy *policy)
{
    static unsigned density;
    const struct policy_rule *last;
    struct tensor_policy found;

    if (policy->rules == 0) {
        return;
    }
    density = density == 0 ? density_key() : density;
    last = &policy->rule[policy->rules - 1];
    found = policy_of(policy, last->match);
    if ((last->sets >> density & 1u) != 0 && last->tensor.params.density > 0 &&
        found.params.density != last->tensor.params.density) {
        abort();
    }
    (void)policy_of(policy, "layer.1.w\xc3\xa4ight");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[POLICY_TEXT_SIZE], again[POLICY_TEXT_SIZE];
    struct policy policy, copy;
    struct error err = {ADTOPK_OK, ""};
    char *json = malloc(size + 1);
    enum adtopk_status status;

    if (json == NULL) {
        return 0;
    }
    memcpy(json, data, size);
    json[size] = '\0';
    policy_default(&policy);
    policy_print(&policy, text);
    status = policy_parse(&policy, json, &err);
    free(json);
    policy_print(&policy, again);
    if (status != ADTOPK_OK) {
        if (err.code != status || err.text[0] == '\0' || strcmp(text, again) != 0) {
            abort();
        }
        return 0;
    }
    check_rules(&policy);
    check_names(&policy.tensor, again);
    policy_default(&copy);
    if (policy_parse(&copy, again, NULL) != ADTOPK_OK) {
        abort();
    }
    policy_print(&copy, text);
    if (strcmp(text, again) != 0) {
        abort();
    }
    return 0;
}
