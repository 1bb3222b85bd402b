#include "daemon/planner/choosing.h"

#include "daemon/policy/combination.h"

enum choice choosing_nearest(const struct tensor_policy *policy, enum choosing_way way)
{
    if (way == CHOOSING_DENSE) {
        return policy->dense_values == PAYLOAD_VALUE_F32 ||
                       policy->dense_values == POLICY_VALUES_AUTO
                   ? CHOICE_DENSE
                   : CHOICE_DENSE_BF16;
    }
    for (enum choice c = CHOICE_ALLGATHER; way == CHOOSING_LISTS && c < CHOICES; c++) {
        if (policy->sparse_collective == choice_collective(c)) {
            return c;
        }
    }
    /* Like Ok-Topk, a collective that picks positions sends k entries, however many nodes there
     * are. */
    return way == CHOOSING_LISTS && policy->sparse_collective != NULL &&
                   policy->sparse_collective->traits.picks == PICKS_POSITIONS
               ? CHOICE_OKTOPK
               : CHOICE_ALLGATHER;
}

static bool apply_sparse(const struct tensor_policy *policy, enum choosing_way way,
    enum choice choice, struct tensor_policy *chosen)
{
    if (way == CHOOSING_LISTS && policy->sparse_collective == NULL) {
        chosen->sparse_collective = choice_collective(choice);
        return true;
    }
    return choice == choosing_nearest(policy, way);
}

static bool apply_dense(const struct tensor_policy *policy, enum choosing_way way,
    enum choice choice, struct tensor_policy *chosen)
{
    if (way != CHOOSING_DENSE && policy->sparsifier != NULL) {
        return false;
    }
    if (policy->dense_values == POLICY_VALUES_AUTO) {
        chosen->dense_values = choice == CHOICE_DENSE ? PAYLOAD_VALUE_F32 : PAYLOAD_VALUE_BF16;
    } else if (choice != choosing_nearest(policy, CHOOSING_DENSE)) {
        return false;
    }
    if (way != CHOOSING_DENSE) {
        chosen->sparsifier = sparsifier_find("dense");
        chosen->scope = SCOPE_NODE;
    }
    return true;
}

bool choosing_apply(const struct tensor_policy *policy, enum choosing_way way, enum choice choice,
    unsigned nodes, struct tensor_policy *chosen)
{
    bool applies;

    *chosen = policy_settled(policy);
    if (choice_is_sparse(choice)) {
        applies = way != CHOOSING_DENSE && apply_sparse(policy, way, choice, chosen);
    } else {
        applies = apply_dense(policy, way, choice, chosen);
    }
    return applies && combination_check(chosen, NULL) == ADTOPK_OK &&
           combination_check_nodes(chosen, nodes, NULL) == ADTOPK_OK;
}

uint32_t choosing_allowed(const struct tensor_policy *policy, enum choosing_way way, unsigned nodes)
{
    uint32_t allowed = 0;

    for (enum choice c = 0; c < CHOICES; c++) {
        struct tensor_policy chosen;
        allowed |= choosing_apply(policy, way, c, nodes, &chosen) ? UINT32_C(1) << c : 0;
    }
    /* A policy that does not go with the nodes at all is refused elsewhere. */
    return allowed != 0 ? allowed : UINT32_C(1) << choosing_nearest(policy, way);
}
