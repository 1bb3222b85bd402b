/*
 * Fuzz target: estimates from peers, and texts of plans. Accepted estimates pack to the same bytes,
 * merge with this node's own, and can be planned with. An accepted text is the one that its choices
 * are written as.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/planner/planner.h"

#define TENSORS 3
#define NODES 4

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds) {
        abort();
    }
}

/* A few decisions, the first of which learns the plan in force. */
static void plan_with(const struct estimates *first, const struct estimates *then)
{
    static const struct planner_tensor tensor[TENSORS] = {
        {.numel = 1 << 20, .count = 1 << 13, .allowed = 63},
        {.numel = 100, .count = 1, .allowed = 3},
        {.numel = UINT64_C(1) << 40, .count = UINT64_C(1) << 34, .allowed = 63}};
    const struct planner_config config = {
        .tensor = tensor, .tensors = TENSORS, .nodes = NODES, .threads = 3};
    uint8_t choice[TENSORS] = {CHOICE_ALLGATHER, CHOICE_DENSE, CHOICE_ALLGATHER};
    struct choices plan = {.bucket_bytes = 1 << 22, .tensors = TENSORS, .choice = choice};
    struct planner *planner = planner_create(&config, NULL);
    struct planner_decision decision;

    must(planner != NULL);
    for (unsigned i = 0; i < 3; i++) {
        planner_decide(planner, i == 0 ? first : then, &plan, &decision);
        if (decision.change) {
            choices_copy(&plan, decision.plan);
        }
    }
    planner_free(planner);
}

/* What this node has measured, in steps that take longer of late. */
static void take_steps(struct estimates *own, unsigned steps, double us)
{
    for (unsigned i = 0; i < steps; i++) {
        estimate_step(own, us);
    }
}

static void take_estimates(const uint8_t *data, size_t size)
{
    struct estimates estimates, own, merged;
    uint8_t *bytes = malloc(estimate_packed_size(TENSORS));

    must(bytes != NULL && estimate_init(&estimates, TENSORS, NODES) &&
         estimate_init(&own, TENSORS, NODES) && estimate_init(&merged, TENSORS, NODES));
    if (estimate_unpack(&estimates, data, size, NULL) == ADTOPK_OK) {
        estimate_pack(&estimates, bytes);
        must(memcmp(bytes, data, size) == 0);
        plan_with(&estimates, &estimates);
        estimate_plan(&own, estimates.plan);
        take_steps(&own, 12, 1000);
        estimate_copy(&merged, &own);
        take_steps(&merged, 3, 3000);
        estimate_merge(&merged, &estimates);
        plan_with(&own, &merged);
    }
    estimate_free(&estimates);
    estimate_free(&own);
    estimate_free(&merged);
    free(bytes);
}

static void take_text(const uint8_t *data, size_t size)
{
    static char again[CHOICES_TEXT_SIZE];
    char *text = malloc(size + 1);
    struct choices choices;

    must(text != NULL && choices_init(&choices, TENSORS));
    (void)memcpy(text, data, size);
    text[size] = '\0';
    if (choices_parse(&choices, text, NULL) == ADTOPK_OK) {
        must(choices_check(text, NULL) == ADTOPK_OK);
        must(choices_print(&choices, again) && strcmp(text, again) == 0);
    }
    choices_free(&choices);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    take_estimates(data, size);
    take_text(data, size);
    return 0;
}
