/*
 * Which settings go together follows from the tables of sparsifiers and collectives.
 * tests/unit/test_combination.c tries all combinations.
 */
#include "daemon/policy/combination.h"

#include <string.h>

#include "daemon/policy/budget.h"

static bool takes(const struct collective_ops *ops, enum payload_value value)
{
    return (ops->traits.values & 1u << value) != 0;
}

static enum adtopk_status combination_refuse(
    struct error *err, const char *what, const char *name, const char *key, const char *value)
{
    return error_set(
        err, ADTOPK_ERR_POLICY, "%s \"%s\" does not go with %s \"%s\"", what, name, key, value);
}

static enum adtopk_status check_sparsifier(const struct tensor_policy *policy, struct error *err)
{
    const struct sparsifier_ops *ops = policy->sparsifier;

    if (ops->node_only && policy->scope != SCOPE_NODE) {
        return combination_refuse(
            err, "sparsifier", ops->name, "scope", policy_scope_name(policy->scope));
    }
    /* The dense collective sends values at known positions, and adds them up in slices. */
    if (ops->known != NULL && payload_value_is_blocked(policy->values)) {
        return combination_refuse(
            err, "sparsifier", ops->name, "values", policy_value_name(policy->values));
    }
    return ADTOPK_OK;
}

/* The collective that sends a sparsifier's entries. */
static enum adtopk_status check_collective(const struct tensor_policy *policy, struct error *err)
{
    const struct collective_ops *ops =
        policy->sparsifier->known != NULL ? policy->dense_collective : policy->sparse_collective;

    if (strcmp(policy->sparsifier->name, "dense") == 0) {
        return ADTOPK_OK;
    }
    if (ops->traits.dense != (policy->sparsifier->known != NULL)) {
        return combination_refuse(
            err, "collective", ops->name, "sparsifier", policy->sparsifier->name);
    }
    if (ops->traits.picks == PICKS_POSITIONS && !policy->sparsifier->plain) {
        return error_set(err, ADTOPK_ERR_POLICY,
            "collective \"%s\" selects itself and does not go with sparsifier \"%s\", only with "
            "\"topk\"",
            ops->name, policy->sparsifier->name);
    }
    if (ops->traits.node_only && policy->scope != SCOPE_NODE) {
        return combination_refuse(
            err, "collective", ops->name, "scope", policy_scope_name(policy->scope));
    }
    return takes(ops, policy->values) ? ADTOPK_OK
                                      : combination_refuse(err, "collective", ops->name, "values",
                                            policy_value_name(policy->values));
}

/* Any tensor may be sent dense, whatever its sparsifier. */
static enum adtopk_status check_dense(const struct tensor_policy *policy, struct error *err)
{
    return takes(policy->dense_collective, policy->dense_values)
               ? ADTOPK_OK
               : combination_refuse(err, "collective", policy->dense_collective->name,
                     "dense_values", policy_value_name(policy->dense_values));
}

/* The pass has one way at a time to add more than gradients. */
static enum adtopk_status check_feedback(const struct tensor_policy *policy, struct error *err)
{
    if (!(policy->params.beta < 1)) {
        return ADTOPK_OK;
    }
    if (policy->params.momentum > 0) {
        return error_set(err, ADTOPK_ERR_POLICY, "\"beta\" below 1 does not go with \"momentum\"");
    }
    return policy->residual == RESIDUAL_BF16
               ? error_set(
                     err, ADTOPK_ERR_POLICY, "\"beta\" below 1 does not go with residual \"bf16\"")
               : ADTOPK_OK;
}

/* Residuals in bf16 need exact kernels, and values that leave nothing behind where they were sent.
 * Tensors that are sent dense keep f32. */
static enum adtopk_status check_residual(const struct tensor_policy *policy, struct error *err)
{
    static const char no[] = "residual \"bf16\" does not go with ";
    const struct sparsifier_ops *sparsifier = policy->sparsifier;
    const struct collective_ops *ops = policy->sparse_collective;

    if (policy->residual != RESIDUAL_BF16 || strcmp(sparsifier->name, "dense") == 0) {
        return ADTOPK_OK;
    }
    if (!sparsifier->bf16_residual) {
        return error_set(err, ADTOPK_ERR_POLICY, "%ssparsifier \"%s\"", no, sparsifier->name);
    }
    if (policy->params.momentum > 0) {
        return error_set(err, ADTOPK_ERR_POLICY, "%s\"momentum\"", no);
    }
    if (policy->params.estimate && sparsifier->select != NULL) {
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
    if (ops->traits.picks == PICKS_POSITIONS) {
        return error_set(err, ADTOPK_ERR_POLICY, "%scollective \"%s\"", no, ops->name);
    }
    if (ops->traits.rerounds && policy->values != PAYLOAD_VALUE_F32) {
        return error_set(
            err, ADTOPK_ERR_POLICY, "%scollective \"%s\" unless values are \"f32\"", no, ops->name);
    }
    return ADTOPK_OK;
}

enum adtopk_status combination_check(const struct tensor_policy *policy, struct error *err)
{
    struct tensor_policy settled = policy_settled(policy);
    enum adtopk_status status = budget_check(&settled, err);

    status = status == ADTOPK_OK ? check_sparsifier(&settled, err) : status;
    status = status == ADTOPK_OK ? check_collective(&settled, err) : status;
    status = status == ADTOPK_OK ? check_feedback(&settled, err) : status;
    status = status == ADTOPK_OK ? check_residual(&settled, err) : status;
    return status == ADTOPK_OK ? check_dense(&settled, err) : status;
}

static enum adtopk_status check_nodes(
    const struct collective_ops *ops, unsigned nodes, struct error *err)
{
    return ops->traits.members_max == 0 || nodes <= ops->traits.members_max
               ? ADTOPK_OK
               : error_set(err, ADTOPK_ERR_POLICY,
                     "collective \"%s\" is for at most %u nodes, not %u", ops->name,
                     ops->traits.members_max, nodes);
}

enum adtopk_status combination_check_nodes(
    const struct tensor_policy *policy, unsigned nodes, struct error *err)
{
    struct tensor_policy settled = policy_settled(policy);
    enum adtopk_status status = check_nodes(settled.sparse_collective, nodes, err);

    return status == ADTOPK_OK ? check_nodes(settled.dense_collective, nodes, err) : status;
}
