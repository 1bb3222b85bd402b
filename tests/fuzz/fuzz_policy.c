/*
 * Fuzz target: policy documents. What is taken has a canonical text that says the same; what is
 * refused changes nothing.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/core/policy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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
