/*
 * A sparsifier goes with scopes and values, and so does the collective that its entries travel by;
 * what is in no row does not exist. tests/unit/test_combination.c tries all there is.
 */
#include "daemon/core/combination.h"

#include <string.h>

#define ONE(what) (1u << (what))
#define SCOPES (ONE(SCOPE_NODE) | ONE(SCOPE_RANK))
#define VALUES                                                                                     \
    (ONE(PAYLOAD_VALUE_F32) | ONE(PAYLOAD_VALUE_BF16) | ONE(PAYLOAD_VALUE_F16) |                   \
        ONE(PAYLOAD_VALUE_INT8))
/* Where lists are cut into parts: not values that are rounded in blocks of the whole. */
#define CUT (VALUES & ~ONE(PAYLOAD_VALUE_INT8))

struct combination {
    const char *name;
    unsigned scopes;
    unsigned values;
    bool lists; /* sparsifiers: what they select travels by a sparse collective */
};

static const struct combination sparsifiers[] = {
    {"adtopk", SCOPES, VALUES, true},
    {"topk", SCOPES, VALUES, true},
    {"dgc", SCOPES, VALUES, true},
    {"gaussiank", SCOPES, VALUES, true},
    {"redsync", SCOPES, VALUES, true},
    {"redsync-trim", SCOPES, VALUES, true},
    {"sidco", SCOPES, VALUES, true},
    {"threshold", SCOPES, VALUES, true},
    /* Its positions are those of all ranks and nodes: the dense collective adds up the values, in
     * slices. */
    {"randomk", SCOPES, CUT, false},
    /* Everything is sent: a rank has nothing to select for itself, and no residual but the node's.
     */
    {"dense", ONE(SCOPE_NODE), VALUES, false},
    {NULL, 0, 0, false},
};

static const struct combination collectives[] = {
    {"allgather", SCOPES, VALUES, true},
    {"balanced", SCOPES, CUT, true},
    {"oktopk", SCOPES, CUT, true},
    {NULL, 0, 0, false},
};

static const struct combination *find(const struct combination *table, const char *name)
{
    while (table->name != NULL && strcmp(table->name, name) != 0) {
        table++;
    }
    return table;
}

static enum adtopk_status check_row(const struct combination *row, const char *what,
    const char *name, const struct tensor_policy *policy, struct error *err)
{
    if ((row->scopes & ONE(policy->scope)) == 0) {
        return error_set(err, ADTOPK_ERR_POLICY, "%s \"%s\" does not go with scope \"%s\"", what,
            name, policy_scope_name(policy->scope));
    }
    if ((row->values & ONE(policy->values)) == 0) {
        return error_set(err, ADTOPK_ERR_POLICY, "%s \"%s\" does not go with values \"%s\"", what,
            name, policy_value_name(policy->values));
    }
    return ADTOPK_OK;
}

enum adtopk_status combination_check(const struct tensor_policy *policy, struct error *err)
{
    const char *sparsifier = policy->sparsifier->name;
    const char *collective = policy->sparse_collective->name;
    const struct combination *row = find(sparsifiers, sparsifier);
    enum adtopk_status status = check_row(row, "sparsifier", sparsifier, policy, err);

    if (status == ADTOPK_OK && row->lists) {
        status = check_row(find(collectives, collective), "collective", collective, policy, err);
    }
    return status;
}
