/*
 * One row for each pair of sparsifier and collective that exists; a pair that is in no row does
 * not. tests/unit/test_combination.c tries all there are.
 */
#include "daemon/core/combination.h"

#include <string.h>

#define ONE(what) (1u << (what))
#define SCOPES (ONE(SCOPE_NODE) | ONE(SCOPE_RANK))
#define VALUES                                                                                     \
    (ONE(PAYLOAD_VALUE_F32) | ONE(PAYLOAD_VALUE_BF16) | ONE(PAYLOAD_VALUE_F16) |                   \
        ONE(PAYLOAD_VALUE_INT8))

static const struct {
    const char *sparsifier;
    const char *collective; /* of the tensors that it sparsifies */
    unsigned scopes;
    unsigned values;
} combinations[] = {
    {"adtopk", "allgather", SCOPES, VALUES},
    {"topk", "allgather", SCOPES, VALUES},
    {"dgc", "allgather", SCOPES, VALUES},
    {"gaussiank", "allgather", SCOPES, VALUES},
    {"redsync", "allgather", SCOPES, VALUES},
    {"redsync-trim", "allgather", SCOPES, VALUES},
    {"sidco", "allgather", SCOPES, VALUES},
    {"threshold", "allgather", SCOPES, VALUES},
    /* Its positions are those of all ranks and nodes: the dense collective adds up the values. It
     * cuts them into slices, which are not those that stochastic values were rounded in. */
    {"randomk", "allgather", SCOPES, VALUES & ~ONE(PAYLOAD_VALUE_INT8)},
    /* Everything is sent: a rank has nothing to select for itself, and no residual but the node's.
     */
    {"dense", "allgather", ONE(SCOPE_NODE), VALUES},
};

enum adtopk_status combination_check(const struct tensor_policy *policy, struct error *err)
{
    const char *sparsifier = policy->sparsifier->name;
    const char *collective = policy->sparse_collective->name;

    for (size_t i = 0; i < sizeof(combinations) / sizeof(combinations[0]); i++) {
        if (strcmp(combinations[i].sparsifier, sparsifier) != 0 ||
            strcmp(combinations[i].collective, collective) != 0) {
            continue;
        }
        if ((combinations[i].scopes & ONE(policy->scope)) == 0) {
            return error_set(err, ADTOPK_ERR_POLICY,
                "sparsifier \"%s\" does not go with scope "
                "\"%s\"",
                sparsifier, policy_scope_name(policy->scope));
        }
        if ((combinations[i].values & ONE(policy->values)) == 0) {
            return error_set(err, ADTOPK_ERR_POLICY,
                "sparsifier \"%s\" does not go with values "
                "\"%s\"",
                sparsifier, policy_value_name(policy->values));
        }
        return ADTOPK_OK;
    }
    return error_set(err, ADTOPK_ERR_POLICY, "sparsifier \"%s\" does not go with collective \"%s\"",
        sparsifier, collective);
}
