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

enum travels {
    AS_LISTS = 1, /* by a sparse collective */
    AS_VALUES,    /* at positions that all know: by a dense collective */
    WHOLE,        /* by a dense collective, as dense_values says */
};

struct combination {
    const char *name;
    unsigned scopes;
    unsigned values;
    enum travels travels; /* what a sparsifier selects */
};

static const struct combination sparsifiers[] = {
    {"adtopk", SCOPES, VALUES, AS_LISTS},
    {"topk", SCOPES, VALUES, AS_LISTS},
    {"dgc", SCOPES, VALUES, AS_LISTS},
    {"gaussiank", SCOPES, VALUES, AS_LISTS},
    {"redsync", SCOPES, VALUES, AS_LISTS},
    {"redsync-trim", SCOPES, VALUES, AS_LISTS},
    {"sidco", SCOPES, VALUES, AS_LISTS},
    {"threshold", SCOPES, VALUES, AS_LISTS},
    /* Its positions are those of all ranks and nodes: the dense collective adds up the values, in
     * slices. */
    {"randomk", SCOPES, CUT, AS_VALUES},
    /* Everything is sent: a rank has nothing to select for itself, and no residual but the node's.
     */
    {"dense", ONE(SCOPE_NODE), VALUES, WHOLE},
    {NULL, 0, 0, 0},
};

static const struct combination sparse_collectives[] = {
    {"allgather", SCOPES, VALUES, AS_LISTS},
    {"balanced", SCOPES, CUT, AS_LISTS},
    {"oktopk", SCOPES, CUT, AS_LISTS},
    {"hierarchical", SCOPES, VALUES, AS_LISTS},
    /* It selects for the node, by magnitude alone as topk does, and cuts. */
    {"exclusive", ONE(SCOPE_NODE), CUT, AS_LISTS},
    {NULL, 0, 0, 0},
};

static const struct combination dense_collectives[] = {
    {"allreduce", SCOPES, CUT, WHOLE},
    {"one-shot", SCOPES, CUT, WHOLE},
    {"pairwise", SCOPES, CUT, WHOLE},
    {"ring", SCOPES, CUT, WHOLE},
    /* A node would round sums of the same element in several hops, and keep several rests of it. */
    {"halving-doubling", SCOPES, ONE(PAYLOAD_VALUE_F32), WHOLE},
    {NULL, 0, 0, 0},
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

static enum adtopk_status check_sparse(const struct tensor_policy *policy, struct error *err)
{
    const char *name = policy->sparse_collective->name;

    if (policy->sparse_collective->whole && strcmp(policy->sparsifier->name, "topk") != 0) {
        return error_set(err, ADTOPK_ERR_POLICY,
            "collective \"%s\" selects itself and does not go with sparsifier \"%s\", only with "
            "\"topk\"",
            name, policy->sparsifier->name);
    }
    return check_row(find(sparse_collectives, name), "collective", name, policy, err);
}

/* By what the sparsifier's entries travel. */
static enum adtopk_status check_collective(
    const struct combination *sparsifier, const struct tensor_policy *policy, struct error *err)
{
    const char *dense = policy->dense_collective->name;

    switch (sparsifier->travels) {
    case AS_LISTS: return check_sparse(policy, err);
    case AS_VALUES:
        return check_row(find(dense_collectives, dense), "collective", dense, policy, err);
    case WHOLE: break;
    }
    return ADTOPK_OK;
}

/* Any tensor may travel dense, whatever its sparsifier. */
static enum adtopk_status check_dense(const struct tensor_policy *policy, struct error *err)
{
    const char *collective = policy->dense_collective->name;

    return (find(dense_collectives, collective)->values & ONE(policy->dense_values)) != 0
               ? ADTOPK_OK
               : error_set(err, ADTOPK_ERR_POLICY,
                     "collective \"%s\" does not go with dense_values \"%s\"", collective,
                     policy_value_name(policy->dense_values));
}

/* What goes with residuals in bf16: selections by exact kernels, and what leaves nothing behind
 * where values were sent. Tensors that travel dense keep f32. */
static enum adtopk_status check_residual(const struct tensor_policy *policy, struct error *err)
{
    static const char no[] = "residual \"bf16\" does not go with ";
    const char *sparsifier = policy->sparsifier->name;
    const struct collective_ops *ops = policy->sparse_collective;

    if (policy->residual != RESIDUAL_BF16 || strcmp(sparsifier, "dense") == 0) {
        return ADTOPK_OK;
    }
    if (strcmp(sparsifier, "adtopk") != 0 && strcmp(sparsifier, "topk") != 0) {
        return error_set(err, ADTOPK_ERR_POLICY, "%ssparsifier \"%s\"", no, sparsifier);
    }
    if (policy->params.momentum > 0) {
        return error_set(err, ADTOPK_ERR_POLICY, "%s\"momentum\"", no);
    }
    if (policy->params.estimate && strcmp(sparsifier, "adtopk") == 0) {
        return error_set(err, ADTOPK_ERR_POLICY, "%s\"estimate\"", no);
    }
    if (policy->scope != SCOPE_NODE) {
        return error_set(
            err, ADTOPK_ERR_POLICY, "%sscope \"%s\"", no, policy_scope_name(policy->scope));
    }
    if (policy->values != PAYLOAD_VALUE_F32 && policy->values != PAYLOAD_VALUE_BF16) {
        return error_set(
            err, ADTOPK_ERR_POLICY, "%svalues \"%s\"", no, policy_value_name(policy->values));
    }
    if (ops->whole || (ops->rounds && policy->values != PAYLOAD_VALUE_F32)) {
        return error_set(err, ADTOPK_ERR_POLICY, "%scollective \"%s\"%s", no, ops->name,
            ops->whole ? "" : " unless values are \"f32\"");
    }
    return ADTOPK_OK;
}

enum adtopk_status combination_check(const struct tensor_policy *policy, struct error *err)
{
    struct tensor_policy settled = policy_settled(policy);
    const char *sparsifier = settled.sparsifier->name;
    const struct combination *row = find(sparsifiers, sparsifier);
    enum adtopk_status status = check_row(row, "sparsifier", sparsifier, &settled, err);

    if (status == ADTOPK_OK) {
        status = check_collective(row, &settled, err);
    }
    status = status == ADTOPK_OK ? check_residual(&settled, err) : status;
    return status == ADTOPK_OK ? check_dense(&settled, err) : status;
}

static enum adtopk_status check_nodes(
    const struct collective_ops *ops, unsigned nodes, struct error *err)
{
    return ops->members_max == 0 || nodes <= ops->members_max
               ? ADTOPK_OK
               : error_set(err, ADTOPK_ERR_POLICY,
                     "collective \"%s\" is for at most %u nodes, not %u", ops->name,
                     ops->members_max, nodes);
}

enum adtopk_status combination_check_nodes(
    const struct tensor_policy *policy, unsigned nodes, struct error *err)
{
    struct tensor_policy settled = policy_settled(policy);
    enum adtopk_status status = check_nodes(settled.sparse_collective, nodes, err);

    return status == ADTOPK_OK ? check_nodes(settled.dense_collective, nodes, err) : status;
}
