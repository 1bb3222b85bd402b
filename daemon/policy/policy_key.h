/*
 * The keys of policy documents: one table has the name, type, range, place and meaning of each.
 * Parsing, printing, help texts and error messages all come from it. Internal to policy.c,
 * policy_key.c and difference.c.
 */
#ifndef ADTOPK_POLICY_KEY_H
#define ADTOPK_POLICY_KEY_H

#include <cjson/cJSON.h>

#include "daemon/policy/policy.h"

enum key_type {
    KEY_CHOICE,
    KEY_NUMBER,
    KEY_BOOL,
    KEY_WHOLE,
    KEY_INTEGER,
    KEY_SECONDS,
    KEY_SPARSIFIER,
    KEY_COLLECTIVE,
    KEY_PLAN,
    KEY_BUDGET
};

#define KEY_VALUE_SIZE (POLICY_PLAN_SIZE + 2) /* of a field as documents write it, with the NUL */

struct policy_key {
    const char *name;
    enum key_type type;
    bool tensor;                /* a field of struct tensor_policy, otherwise of struct policy */
    size_t offset;              /* of the field in it */
    const char *const *choices; /* KEY_CHOICE: names in the order of the enum; NULL-terminated */
    bool automatic;             /* "auto" is possible besides other types, as NULL or 0 */
    double minimum, maximum;
    const char *help;
};

/* The index-th key, NULL behind the last; the key of that name, or NULL. */
const struct policy_key *policy_key_at(unsigned index);
const struct policy_key *policy_key_find(const char *name);

/* The key's number, and its bytes in the struct. */
unsigned policy_key_number(const struct policy_key *key);
size_t policy_key_size(const struct policy_key *key);

/* Sets the field from the document. An error names the key and its possible values. */
enum adtopk_status policy_key_set(
    const struct policy_key *key, const cJSON *item, void *field, struct error *err);

/* The field as documents write it. */
void policy_key_print(const struct policy_key *key, const void *field, char text[KEY_VALUE_SIZE]);

#endif
