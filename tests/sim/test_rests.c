/*
 * Nodes are lost while ranks see updates in 16 bits: every rest of an update comes back once.
 */
#include "tests/host/sanitized.h"
#include "tests/sim/failure.h"

#define HALF_SEEDS CASES_OF(120u, 20u, 6u)
#define HALF_POLICY(keys)                                                                          \
    "{" keys ",\"bucket_bytes\":2000,\"join_timeout\":30,\"push_timeout\":60,\"wait_limit\":60,"   \
    "\"on_peer_loss\":\"shrink\",\"shrink_after\":1}"

/* Ranks see updates in 16 bits. Their rests are divided by the members of the view that summed the
 * update, also where several views came before its copy did. */
static bool half_run(uint64_t seed, struct losses_ends *ends, char *found)
{
    static const char *const sparse[] = {
        HALF_POLICY("\"reduce\":\"sum\",\"density\":0.05,\"sparsifier\":\"topk\","
                    "\"values\":\"f32\",\"sparse_collective\":\"allgather\""),
        HALF_POLICY("\"reduce\":\"sum\",\"density\":0.05,\"sparsifier\":\"topk\","
                    "\"sparse_collective\":\"balanced\""),
        HALF_POLICY("\"reduce\":\"sum\",\"density\":0.02,\"sparsifier\":\"randomk\","
                    "\"values\":\"f32\"")};
    struct scenario scenario = losses_scenario(sparse[seed % 3], seed / 3 + 1);

    scenario.nodes = 5 + (unsigned)((seed / 3 + 1) % 3);
    scenario.half = 0xfff;
    return losses_run(&scenario, ends, found);
}

static void test_random_half(void **state)
{
    (void)state;
    assert_true(losses_all(HALF_SEEDS, half_run).done > 0);
}

const struct CMUnitTest suite_rests[] = {
    cmocka_unit_test(test_random_half),
    {0},
};
