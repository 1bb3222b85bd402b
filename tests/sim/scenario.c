/* Random scenarios with every kind of fault, a seed each. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/world.h"

#define PROPAGATE "\"non_finite\":\"propagate\""
#define AUTO                                                                                       \
    "{\"reduce\":\"sum\",\"sparsifier\":\"auto\",\"sparse_collective\":\"auto\","                  \
    "\"dense_values\":\"auto\",\"bucket_bytes\":\"auto\""

/* Policies under which every sum of integers is exact. */
static const char *const policies[] = {
    "{\"sparsifier\":\"adtopk\",\"reduce\":\"sum\",\"density\":0.05,\"values\":\"f32\"}",
    "{\"sparsifier\":\"adtopk\",\"reduce\":\"sum\",\"density\":0.05,\"values\":\"bf16\",\"bucket_"
    "bytes\":1000}",
    "{\"reduce\":\"sum\",\"density\":0.1,\"sparsifier\":\"topk\",\"values\":\"f32\"}",
    "{\"reduce\":\"sum\",\"sparsifier\":\"dense\"}",
    "{\"reduce\":\"sum\",\"sparsifier\":\"dense\",\"dense_values\":\"bf16\",\"bucket_bytes\":1}",
    "{\"sparsifier\":\"adtopk\",\"reduce\":\"sum\",\"density\":0.05,\"scope\":\"rank\",\"values\":"
    "\"f32\"}",
    "{\"sparsifier\":\"adtopk\",\"reduce\":\"sum\",\"density\":0.08,\"scope\":\"rank\",\"values\":"
    "\"bf16\",\"interleave\":"
    "false}",
    "{\"sparsifier\":\"adtopk\",\"reduce\":\"sum\",\"density\":0.1,\"sparse_collective\":\"half\","
    "\"values\":\"f32\"}",
    "{\"sparsifier\":\"adtopk\",\"reduce\":\"sum\",\"density\":0.1,\"sparse_collective\":\"half\","
    "\"scope\":\"rank\","
    "\"values\":\"bf16\",\"fibres\":\"longest\"}",
    "{\"sparsifier\":\"adtopk\",\"reduce\":\"sum\",\"density\":0.06,\"fibres\":\"row\",\"indices\":"
    "\"bitmap\"}",
    "{\"sparsifier\":\"adtopk\",\"reduce\":\"sum\",\"density\":0.05,\"fibres\":\"chunk\","
    "\"values\":\"f32\","
    "\"bucket_bytes\":2000}",
    "{\"reduce\":\"sum\",\"density\":0.07,\"sparsifier\":\"topk\",\"values\":\"bf16\","
    "\"indices\":\"delta\",\"bucket_bytes\":500}",
    "{\"sparsifier\":\"adtopk\",\"reduce\":\"sum\",\"density\":0.05,\"weight\":7,\"rules\":["
    "{\"match\":\"*.weight\",\"values\":\"f32\",\"priority\":-3},"
    "{\"match\":\"conv*\",\"sparsifier\":\"topk\",\"density\":0.2,\"scope\":\"rank\"},"
    "{\"match\":\"head.?eight\",\"sparsifier\":\"dense\",\"priority\":5}]}",
    "{\"reduce\":\"sum\",\"density\":0.1,\"sparsifier\":\"dgc\",\"values\":\"f32\"}",
    "{\"reduce\":\"sum\",\"density\":0.1,\"sparsifier\":\"gaussiank\",\"scope\":\"rank\"}",
    "{\"reduce\":\"sum\",\"density\":0.1,\"sparsifier\":\"redsync\",\"warmup_epochs\":2,"
    "\"epoch_turns\":5}",
    "{\"reduce\":\"sum\",\"density\":0.1,\"sparsifier\":\"redsync-trim\",\"indices\":\"rice\"}",
    "{\"reduce\":\"sum\",\"density\":0.1,\"sparsifier\":\"sidco\",\"fit\":\"pareto\"}",
    "{\"reduce\":\"sum\",\"density\":0.3,\"sparsifier\":\"threshold\",\"threshold\":40}",
    "{\"reduce\":\"sum\",\"density\":0.1,\"sparsifier\":\"randomk\",\"values\":\"f32\"}",
    "{\"reduce\":\"sum\",\"density\":0.2,\"sparsifier\":\"randomk\",\"scope\":\"rank\","
    "\"bucket_bytes\":1000}",
    "{\"sparsifier\":\"adtopk\",\"reduce\":\"sum\",\"density\":0.05,\"adaptive\":true,\"values\":"
    "\"f16\"}",
    "{\"sparsifier\":\"adtopk\",\"reduce\":\"sum\",\"density\":0.05,\"fibre_turns\":2,\"global_"
    "turns\":3,\"estimate\":true,"
    "\"values\":\"f32\"}",
    "{\"sparsifier\":\"adtopk\",\"reduce\":\"sum\",\"density\":0.3,\"scope\":\"rank\",\"rules\":[{"
    "\"match\":\"fc.*\","
    "\"scope\":\"node\",\"density\":0.9}]}",
    "{\"reduce\":\"sum\",\"density\":0.1,\"sparsifier\":\"randomk\"}",
    "{\"reduce\":\"sum\",\"density\":0.06,\"sparsifier\":\"randomk\",\"scope\":\"rank\","
    "\"values\":\"f32\",\"warmup_epochs\":2,\"epoch_turns\":3}",
    "{\"sparsifier\":\"adtopk\",\"reduce\":\"sum\",\"density\":0.05,\"adaptive\":true,\"estimate\":"
    "true,\"values\":\"f32\"}",
    "{\"reduce\":\"sum\",\"density\":0.05,\"sparsifier\":\"sidco\",\"scope\":\"rank\",\"rules\":["
    "{\"match\":\"fc*\",\"sparsifier\":\"dgc\",\"sample\":0.5,\"priority\":-1},"
    "{\"match\":\"*.bias\",\"sparsifier\":\"redsync\"},"
    "{\"match\":\"conv*\",\"sparsifier\":\"gaussiank\",\"scope\":\"node\"}]}",
    "{\"sparsifier\":\"adtopk\",\"reduce\":\"sum\",\"density\":0.1,\"sparse_collective\":"
    "\"balanced\",\"values\":\"f32\"}",
    "{\"sparsifier\":\"adtopk\",\"reduce\":\"sum\",\"density\":0.2,\"sparse_collective\":"
    "\"balanced\",\"fibre_turns\":2}",
    "{\"sparsifier\":\"adtopk\",\"reduce\":\"sum\",\"density\":0.1,\"sparse_collective\":"
    "\"balanced\",\"scope\":\"rank\","
    "\"fibres\":\"longest\"}",
    "{\"reduce\":\"sum\",\"density\":0.05,\"sparse_collective\":\"balanced\",\"sparsifier\":"
    "\"topk\",\"values\":\"f16\",\"bucket_bytes\":1000}",
    "{\"reduce\":\"sum\",\"sparsifier\":\"dense\",\"dense_collective\":\"ring\"}",
    "{\"reduce\":\"sum\",\"sparsifier\":\"dense\",\"dense_collective\":\"halving-doubling\","
    "\"bucket_bytes\":1}",
    "{\"sparsifier\":\"adtopk\",\"reduce\":\"sum\",\"density\":0.05,\"dense_collective\":\"ring\","
    "\"values\":\"f32\","
    "\"sparse_collective\":\"hierarchical\",\"bucket_bytes\":1000}",
    "{\"reduce\":\"sum\",\"sparsifier\":\"dense\",\"dense_collective\":\"pairwise\","
    "\"dense_values\":\"bf16\"}",
    "{\"reduce\":\"sum\",\"sparsifier\":\"dense\",\"dense_collective\":\"one-shot\","
    "\"dense_values\":\"f16\",\"bucket_bytes\":1000}",
    "{\"reduce\":\"sum\",\"sparsifier\":\"dense\",\"dense_collective\":\"pairwise\","
    "\"dense_values\":\"f16\",\"bucket_bytes\":2000}",
    "{\"reduce\":\"sum\",\"sparsifier\":\"dense\",\"dense_collective\":\"ring\","
    "\"dense_values\":\"bf16\"}",
    "{\"reduce\":\"sum\",\"sparsifier\":\"dense\",\"dense_collective\":\"ring\","
    "\"dense_values\":\"f16\",\"bucket_bytes\":2000}",
    "{\"reduce\":\"sum\",\"sparsifier\":\"randomk\",\"density\":0.3,\"values\":\"bf16\","
    "\"dense_collective\":\"ring\"}",
    "{\"sparsifier\":\"adtopk\",\"reduce\":\"sum\",\"density\":0.2,\"sparse_collective\":"
    "\"hierarchical\",\"scope\":\"rank\","
    "\"fibres\":\"longest\"}",
    "{\"reduce\":\"sum\",\"density\":0.4,\"sparse_collective\":\"hierarchical\",\"sparsifier\":"
    "\"topk\",\"values\":\"f16\",\"indices\":\"raw\",\"dense_collective\":\"halving-doubling\"}",
    "{\"reduce\":\"sum\",\"density\":0.2,\"sparsifier\":\"randomk\",\"scope\":\"rank\","
    "\"values\":\"f32\",\"dense_collective\":\"halving-doubling\"}",
    "{\"sparsifier\":\"adtopk\",\"reduce\":\"sum\",\"density\":0.1,\"sparse_collective\":"
    "\"oktopk\",\"values\":\"f32\"}",
    "{\"reduce\":\"sum\",\"density\":0.1,\"sparsifier\":\"topk\",\"sparse_collective\":"
    "\"exclusive\",\"values\":\"f32\"}",
    "{\"reduce\":\"sum\",\"density\":0.2,\"sparsifier\":\"topk\",\"sparse_collective\":"
    "\"exclusive\",\"bucket_bytes\":1000,\"warmup_epochs\":2,\"epoch_turns\":3}",
    "{\"reduce\":\"sum\",\"density\":0.2,\"sparse_collective\":\"oktopk\",\"sparsifier\":\"topk\"}",
    "{\"reduce\":\"sum\",\"density\":0.1,\"sparse_collective\":\"oktopk\",\"scope\":\"rank\","
    "\"sparsifier\":\"dgc\",\"bucket_bytes\":2000}",
    "{\"sparsifier\":\"adtopk\",\"reduce\":\"sum\",\"density\":0.05,\"residual\":\"bf16\"}",
    "{\"reduce\":\"sum\",\"density\":0.1,\"sparsifier\":\"topk\",\"residual\":\"bf16\","
    "\"values\":\"f32\",\"sparse_collective\":\"balanced\"}",
    "{\"sparsifier\":\"adtopk\",\"reduce\":\"sum\",\"density\":0.2,\"residual\":\"bf16\","
    "\"fibres\":\"row\",\"rules\":["
    "{\"match\":\"conv*\",\"residual\":\"f32\"}],\"bucket_bytes\":1000}",
    "{\"reduce\":\"sum\",\"density\":0.1,\"residual\":\"bf16\",\"values\":\"f32\","
    "\"sparse_collective\":\"oktopk\",\"sparsifier\":\"topk\"}",
    "{\"reduce\":\"sum\",\"density\":0.1,\"values\":\"f32\",\"sparsifier\":\"topk\"," PROPAGATE "}",
    "{\"sparsifier\":\"adtopk\",\"reduce\":\"sum\",\"density\":0.2,\"scope\":\"rank\"," PROPAGATE
    ",\"bucket_bytes\":1000}",
    "{\"reduce\":\"sum\",\"density\":0.2,\"sparsifier\":\"topk\"," PROPAGATE
    ",\"sparse_collective\":\"oktopk\"}",
    "{\"reduce\":\"sum\",\"density\":0.2,\"sparsifier\":\"topk\"," PROPAGATE
    ",\"sparse_collective\":\"exclusive\"}",
    "{\"reduce\":\"sum\",\"density\":0.2,\"sparsifier\":\"randomk\"," PROPAGATE
    ",\"dense_collective\":\"ring\"}",
    "{\"sparsifier\":\"adtopk\",\"reduce\":\"sum\",\"density\":0.1,\"residual\":\"bf16\"," PROPAGATE
    "}",
    "{\"reduce\":\"sum\",\"sparsifier\":\"dense\"," PROPAGATE "}",
    "{\"reduce\":\"sum\",\"sparsifier\":\"dense\",\"dense_values\":\"bf16\"," PROPAGATE
    ",\"dense_collective\":\"pairwise\",\"bucket_bytes\":1000}",
    "{\"reduce\":\"sum\",\"sparsifier\":\"dense\",\"dense_collective\":\"nccl-allreduce\","
    "\"bucket_bytes\":1000}",
    "{\"sparsifier\":\"adtopk\",\"reduce\":\"sum\",\"density\":0.1,\"values\":\"f32\","
    "\"sparse_collective\":\"nccl-allgather\",\"dense_collective\":\"nccl-allreduce\","
    "\"bucket_bytes\":1000}",
    "{\"reduce\":\"sum\",\"density\":0.2,\"sparsifier\":\"dgc\",\"scope\":\"rank\","
    "\"sparse_collective\":\"nccl-allgather\",\"bucket_bytes\":1}",
    "{\"reduce\":\"sum\",\"density\":0.1,\"sparsifier\":\"topk\",\"bucket_bytes\":1000,"
    "\"sparse_collective\":\"nccl-balanced\"}",
    "{\"reduce\":\"sum\",\"density\":0.2,\"sparsifier\":\"topk\",\"bucket_bytes\":1000,"
    "\"sparse_collective\":\"nccl-exclusive\"}",
};

/* Policies that leave a choice to the planner. */
static const char *const automatic[] = {
    AUTO ",\"density\":0.1,\"values\":\"f32\"}",
    AUTO
    ",\"density\":0.05,\"scope\":\"rank\",\"tune_density\":true,\"rules\":["
    "{\"match\":\"fc*\",\"sparsifier\":\"topk\"},{\"match\":\"conv*\",\"sparsifier\":\"dense\","
    "\"scope\":\"node\"}]}",
    AUTO ",\"density\":0.2,\"replan\":false}",
    "{\"sparsifier\":\"adtopk\",\"reduce\":\"sum\",\"density\":0.1,\"sparse_collective\":\"auto\","
    "\"values\":\"f32\"}",
    "{\"reduce\":\"sum\",\"density\":0.1,\"sparsifier\":\"auto\",\"adaptive\":true}",
    AUTO ",\"density\":0.1,\"residual\":\"bf16\",\"rules\":[{\"match\":\"conv*\",\"residual\":"
         "\"f32\"}]}",
};

/* Policies that change gradients before they are added, or round the rest of sums. */
static const char *const changing[] = {
    "{\"sparsifier\":\"adtopk\",\"reduce\":\"sum\",\"density\":0.05,\"values\":\"f32\","
    "\"momentum\":0.5}",
    "{\"sparsifier\":\"adtopk\",\"density\":0.05,\"scope\":\"rank\",\"momentum\":0.5,\"momentum_"
    "masking\":false}",
    "{\"density\":0.1,\"sparsifier\":\"topk\",\"momentum\":0.5,\"momentum_masking\":false}",
    "{\"density\":0.1,\"sparsifier\":\"dgc\",\"momentum\":0.9,\"nesterov\":true,\"clip\":20}",
    "{\"sparsifier\":\"adtopk\",\"density\":0.05,\"values\":\"f32\",\"beta\":0.5}",
    "{\"sparsifier\":\"adtopk\",\"density\":0.1,\"scope\":\"rank\",\"beta\":0.75,\"gamma\":2,"
    "\"bucket_bytes\":1000}",
    "{\"density\":0.1,\"sparsifier\":\"topk\",\"beta\":0,\"values\":\"two\"}",
    "{\"density\":0.1,\"sparsifier\":\"sidco\",\"beta\":0.9,\"gamma\":2,\"momentum\":0}",
    "{\"sparsifier\":\"adtopk\",\"density\":0.1,\"gamma\":2,\"momentum\":0.5,\"momentum_masking\":"
    "false}",
    "{\"sparsifier\":\"adtopk\",\"density\":0.1,\"beta\":0.5,\"sparse_collective\":"
    "\"oktopk\"," PROPAGATE "}",
    "{\"sparsifier\":\"dense\",\"dense_values\":\"bf16\",\"beta\":0.5,\"gamma\":2}",
    AUTO ",\"density\":0.1,\"beta\":0.95,\"gamma\":2,\"clip\":20}",
    "{\"budget\":\"as 5% bf16\"}",
    "{\"budget\":\"as 5% bf16\",\"scope\":\"rank\",\"sparse_collective\":\"hierarchical\"}",
    "{\"sparsifier\":\"dense\",\"momentum\":0.5,\"momentum_masking\":false}",
    "{\"sparsifier\":\"dense\",\"momentum\":0.5,\"momentum_masking\":false," PROPAGATE "}",
    "{\"sparsifier\":\"adtopk\",\"density\":0.1,\"scope\":\"rank\",\"momentum\":0.5,\"clip\":"
    "30," PROPAGATE "}",
    "{\"sparsifier\":\"dense\",\"dense_values\":\"bf16\",\"momentum\":0.5,\"clip\":30}",
    AUTO ",\"density\":0.1,\"momentum\":0.5,\"momentum_masking\":false}",
    AUTO ",\"density\":0.1,\"scope\":\"rank\",\"momentum\":0.5,\"momentum_masking\":false}",
    AUTO ",\"density\":0.1,\"scope\":\"rank\",\"momentum\":0.7,\"clip\":20}",
    "{\"sparsifier\":\"adtopk\",\"density\":0.05,\"values\":\"int8\"}",
    "{\"sparsifier\":\"adtopk\",\"density\":0.1,\"values\":\"int8\",\"scope\":\"rank\","
    "\"momentum\":0.5,\"clip\":30}",
    "{\"density\":0.1,\"sparsifier\":\"randomk\",\"momentum\":0.5,\"values\":\"f16\"}",
    "{\"density\":0.2,\"sparsifier\":\"randomk\",\"scope\":\"rank\",\"momentum\":0.5,"
    "\"momentum_masking\":false}",
    "{\"sparsifier\":\"adtopk\",\"density\":0.1,\"sparse_collective\":\"half\",\"scope\":\"rank\","
    "\"momentum\":0.7,"
    "\"values\":\"int8\"}",
    "{\"sparsifier\":\"adtopk\",\"density\":0.1,\"sparse_collective\":\"half\",\"momentum\":0.5,"
    "\"bucket_bytes\":1000}",
    "{\"sparsifier\":\"adtopk\",\"density\":0.05,\"adaptive\":true,\"momentum\":0.5,\"momentum_"
    "masking\":false,"
    "\"warmup_epochs\":2,\"epoch_turns\":2}",
    "{\"density\":0.1,\"sparsifier\":\"sidco\",\"clip\":10,\"values\":\"int8\",\"indices\":"
    "\"rice\"}",
    "{\"density\":0.1,\"values\":\"int8\",\"sparsifier\":\"topk\",\"bucket_bytes\":1000}",
    "{\"sparsifier\":\"adtopk\",\"reduce\":\"sum\",\"density\":0.2,\"values\":\"int8\",\"scope\":"
    "\"rank\"}",
    "{\"sparsifier\":\"adtopk\",\"density\":0.1,\"values\":\"f16\",\"sparse_collective\":"
    "\"balanced\"}",
    "{\"density\":0.1,\"values\":\"f16\",\"sparse_collective\":\"oktopk\",\"sparsifier\":"
    "\"topk\"}",
    "{\"density\":0.2,\"values\":\"f16\",\"sparse_collective\":\"exclusive\",\"sparsifier\":"
    "\"topk\"}",
    "{\"sparsifier\":\"adtopk\",\"density\":0.1,\"values\":\"int8\",\"sparse_collective\":"
    "\"hierarchical\"}",
    "{\"sparsifier\":\"adtopk\",\"budget\":\"as 2% "
    "bf16\",\"values\":\"two\",\"warmup_epochs\":1,\"epoch_turns\":3,"
    "\"total_turns\":20}",
    "{\"sparsifier\":\"adtopk\",\"density\":0.1,\"values\":\"two\",\"scope\":\"rank\",\"momentum\":"
    "0.5,\"clip\":30}",
    "{\"sparsifier\":\"adtopk\",\"reduce\":\"sum\",\"density\":0.2,\"values\":\"two\",\"scope\":"
    "\"rank\"}",
    "{\"density\":0.1,\"values\":\"two\",\"sparse_collective\":\"hierarchical\",\"sparsifier\":"
    "\"topk\"}",
    "{\"sparsifier\":\"adtopk\",\"density\":0.1,\"sparse_collective\":\"half\",\"values\":\"two\","
    "\"bucket_bytes\":1000}",
    "{\"sparsifier\":\"adtopk\",\"reduce\":\"sum\",\"density\":0.1,\"values\":\"sign\",\"rules\":[{"
    "\"match\":\"fc*\","
    "\"values\":"
    "\"int4\"}]}",
    "{\"sparsifier\":\"adtopk\",\"density\":0.1,\"values\":\"int3\",\"scope\":\"rank\",\"sparse_"
    "collective\":"
    "\"hierarchical\"}",
    "{\"sparsifier\":\"dense\",\"dense_values\":\"f16\"}",
    "{\"sparsifier\":\"dense\",\"dense_values\":\"bf16\",\"dense_collective\":\"pairwise\"}",
    "{\"sparsifier\":\"dense\",\"dense_values\":\"bf16\",\"dense_collective\":\"ring\"}",
};

#define POLICY_COUNT (sizeof(policies) / sizeof(policies[0]))
#define CHANGING_COUNT (sizeof(changing) / sizeof(changing[0]))
#define AUTOMATIC_COUNT (sizeof(automatic) / sizeof(automatic[0]))

/* Where sums overflow, the checks cannot tell which updates are to be NaN. */
static const char *known_sums(const struct scenario *scenario, const char *policy)
{
    return scenario->scale > 0x1p20 && strstr(policy, PROPAGATE) != NULL ? policies[0] : policy;
}

static const char *any_policy(const struct world *world, uint64_t index)
{
    if (!world->scenario.changed && index % 5 == 0) {
        return automatic[index / 5 % AUTOMATIC_COUNT];
    }
    return known_sums(&world->scenario, world->scenario.changed && index % 2 == 0
                                            ? changing[index / 2 % CHANGING_COUNT]
                                            : policies[index % POLICY_COUNT]);
}

bool scenario_is_rounded(const char *policy)
{
    return strstr(policy, "\"residual\":\"bf16\"") != NULL;
}

/* Residuals in bf16 do not go with updates in 16 bits. */
const char *scenario_policy(const struct world *world, uint64_t index)
{
    while (world->scenario.half != 0 && scenario_is_rounded(any_policy(world, index))) {
        index++;
    }
    return any_policy(world, index);
}

/* Which of the simulator's tensors there are. */
unsigned scenario_tensors(struct world *dice)
{
    static const unsigned sets[] = {
        0x1f,  /* all kinds of layer */
        0x060, /* of one element each */
        0xfff, /* all */
        0xf80, /* odd shapes */
    };

    return world_chance(dice, 0.6) ? sets[0]
                                   : sets[world_random(dice, sizeof(sets) / sizeof(sets[0]))];
}

static void random_faults(struct world *dice, struct scenario *scenario)
{
    if (world_chance(dice, 0.7)) {
        scenario->loss = (double)world_random(dice, 20) / 100;
        scenario->duplicate = (double)world_random(dice, 20) / 100;
        scenario->refuse = (double)world_random(dice, 10) / 100;
    }
    scenario->crash_every_us = world_chance(dice, 0.5) ? 3000 + world_random(dice, 20000) : 0;
    scenario->max_crashes = 2 + (unsigned)world_random(dice, 8);
    scenario->cut_every_us = world_chance(dice, 0.2) ? 20000 + world_random(dice, 40000) : 0;
    scenario->operator_every_us = world_chance(dice, 0.5) ? 1000 + world_random(dice, 20000) : 0;
    scenario->nonfinite = world_chance(dice, 0.4) ? 0.03 : 0;
    scenario->skip = world_chance(dice, 0.3) ? 0.1 : 0;
    scenario->wait = scenario->skip == 0 && world_chance(dice, 0.4) ? 0.2 : 0;
}

static void random_network(struct world *dice, struct scenario *scenario)
{
    scenario->rate = world_chance(dice, 0.2) ? 50 + world_random(dice, 2000) : 0;
    scenario->pause_every_us = world_chance(dice, 0.15) ? 20000 + world_random(dice, 40000) : 0;
    scenario->storm_every_us = world_chance(dice, 0.1) ? 500000 + world_random(dice, 5000000) : 0;
    scenario->storm_loss = 0.5 + (double)world_random(dice, 41) / 100;
    if (world_chance(dice, 0.15)) {
        scenario->away_us = 3000000;
        scenario->cut_every_us *= 100;
        scenario->crash_every_us *= 100;
        scenario->pause_every_us *= 100;
    }
}

/* How jobs end, and which jobs come after them. */
static void random_end(struct world *dice, struct scenario *scenario)
{
    scenario->linger_us = world_chance(dice, 0.3) ? 10 + world_random(dice, 300000) : 0;
    if (world_chance(dice, 0.1)) {
        scenario->forsakes = true;
        scenario->linger_us = 300000;
        scenario->max_us = 3000000000; /* all limits of the default policy, one after the other */
    }
    scenario->again = world_chance(dice, 0.1);
    scenario->dies = scenario->again && world_chance(dice, 0.6);
    scenario->gap_us = world_chance(dice, 0.5) ? 0 : world_random(dice, 1000000);
}

static void random_memory(struct world *dice, struct scenario *scenario)
{
    scenario->slow_us = world_chance(dice, 0.05) ? 400000 : 0;
    scenario->refuses = world_chance(dice, 0.03)
                            ? MEMORY_NO_GRADIENTS + (enum node_memory)world_random(dice, 3)
                            : MEMORY_ALL;
}

/* How many of everything. What there is more of costs elsewhere, so that no run takes long. */
static void random_size(struct world *dice, struct scenario *scenario)
{
    static const unsigned many[] = {6, 7, 9, 11, 13}, most[] = {16, 33, 64};

    scenario->uneven = world_chance(dice, 0.3);
    if (world_chance(dice, 0.05)) {
        scenario->jobs = 3 + (unsigned)world_random(dice, 6);
        scenario->nodes = 1 + (unsigned)world_random(dice, 3);
        scenario->steps = 2 + (unsigned)world_random(dice, 3);
    } else if (world_chance(dice, 0.05)) {
        scenario->nodes = many[world_random(dice, 5)];
        scenario->ranks_per_node = 1 + (unsigned)world_random(dice, 2);
        scenario->steps = 2 + (unsigned)world_random(dice, 3);
        scenario->jobs = 1;
    } else if (world_chance(dice, 0.004)) {
        scenario->nodes = most[world_random(dice, 3)];
        scenario->tensors = 0x060;
        scenario->ranks_per_node = 1;
        scenario->steps = 2;
        scenario->jobs = scenario->operations = 1;
        scenario->max_crashes = 2;
        scenario->operator_every_us = 0;
    }
    scenario->mixed = scenario->jobs > 1 && world_chance(dice, 0.7);
}

/* The smallest numbers that there are, such that sums overflow, or loss scales. */
static void random_scale(struct world *dice, struct scenario *scenario)
{
    static const int exponents[] = {-149, -140, -130, -126, 12, 100, 118};

    if (world_chance(dice, 0.15)) {
        scenario->scale = ldexp(1, exponents[world_random(dice, 7)]);
    } else if (world_chance(dice, 0.4)) {
        scenario->scales = scenario->changed ? SCALES_ANY : SCALES_EXACT;
    }
}

/* Numbers that the 16-bit types can say. */
static void random_half(struct world *dice, struct scenario *scenario)
{
    if (scenario->scale == 0 && scenario->scales != SCALES_ANY &&
        !scenario_is_rounded(scenario->policy) && world_chance(dice, 0.4)) {
        scenario->half = (unsigned)world_random(dice, 1u << SIM_MAX_TENSORS);
    }
}

/* Each draw is a statement of its own: in an initialiser or among arguments, compilers choose which
 * comes first. */
static void random_training(struct world *dice, struct scenario *scenario)
{
    scenario->nodes = world_chance(dice, 0.05) ? 8 : 1 + (unsigned)world_random(dice, 5);
    scenario->ranks_per_node = 1 + (unsigned)world_random(dice, 3);
    scenario->jobs = world_chance(dice, 0.15) ? 2 : 1;
    scenario->steps = 2 + (unsigned)world_random(dice, 6);
    scenario->tensors = scenario_tensors(dice);
    scenario->operations = (unsigned)world_random(dice, 4);
    scenario->policy = policies[world_random(dice, POLICY_COUNT)];
    scenario->compute_us = world_chance(dice, 0.1) ? 10000 : 300;
    scenario->delay_us = 20 + world_random(dice, 2000);
}

/* Limits that some rank waits out. By default a job waits for minutes, and nodes talk meanwhile. */
#define LIMITS "\"join_timeout\":30,\"push_timeout\":60,\"wait_limit\":60"
#define LOSING "{" LIMITS ",\"on_peer_loss\":\"shrink\",\"shrink_after\":1"

/* Nodes are away for so long that the others go on without them. Gradients are plain ones. */
static void random_losses(struct world *dice, struct scenario *scenario)
{
    scenario->loses = true;
    scenario->grows = world_chance(dice, 0.5);
    scenario->default_policy = scenario->grows ? LOSING ",\"grow\":true}" : LOSING "}";
    scenario->nodes = 2 + (unsigned)world_random(dice, 6);
    scenario->ranks_per_node = 1 + (unsigned)world_random(dice, 2);
    scenario->jobs = 1;
    scenario->operations = 0;
    scenario->steps = 6 + (unsigned)world_random(dice, 7);
    scenario->compute_us = 20000;
    scenario->pace_us = scenario->grows ? 300000 : 0;
    scenario->away_us = 4000000;
    scenario->crash_every_us = 300000 + world_random(dice, 3000000);
    scenario->max_crashes = 6;
    scenario->cut_every_us = world_chance(dice, 0.5) ? 400000 + world_random(dice, 3000000) : 0;
    scenario->pause_every_us = world_chance(dice, 0.2) ? 500000 : 0;
    scenario->operator_every_us = scenario->storm_every_us = scenario->linger_us = 0;
    scenario->mixed = scenario->later = scenario->forsakes = scenario->again = false;
    scenario->dies = false;
    scenario->nonfinite = scenario->skip = scenario->idle = scenario->wait = 0;
    scenario->scale = 0;
    scenario->scales = SCALES_NONE;
}

struct scenario scenario_of(uint64_t seed)
{
    struct world dice = {.random = seed * 77 + 5};
    struct scenario scenario = {.seed = seed, .hostile = SIM_MAX_NODES, .max_us = 600000000};

    random_training(&dice, &scenario);
    random_faults(&dice, &scenario);
    random_network(&dice, &scenario);
    random_memory(&dice, &scenario);
    scenario.changed = world_chance(&dice, 0.3);
    if (scenario.changed) {
        scenario.policy = changing[world_random(&dice, CHANGING_COUNT)];
    } else if (world_chance(&dice, 0.25)) {
        scenario.policy = automatic[world_random(&dice, AUTOMATIC_COUNT)];
        scenario.steps += 4;
    }
    random_size(&dice, &scenario);
    random_scale(&dice, &scenario);
    random_half(&dice, &scenario);
    if (scenario.refuses == MEMORY_ALL && scenario.nodes <= 8) {
        random_end(&dice, &scenario);
    }
    scenario.policy = known_sums(&scenario, scenario.policy);
    scenario.idle = world_chance(&dice, 0.3) ? 0.4 : 0;
    scenario.later = world_chance(&dice, 0.2);
    scenario.wait = scenario.idle == 0 ? scenario.wait : 0;
    if (scenario.refuses != MEMORY_ALL || scenario.forsakes) {
        scenario.default_policy = "{" LIMITS "}";
    } else if (world_chance(&dice, 0.05)) {
        random_losses(&dice, &scenario);
    }
    /* Without a draw, so that the others stay as they are. */
    scenario.fleeting = seed % 4 == 1 && scenario.crash_every_us == 0 && !scenario.forsakes;
    return scenario;
}

struct scenario scenario_of_many(uint64_t seed)
{
    struct world dice = {.random = seed * 77 + 6};
    struct scenario scenario = {.seed = seed, .hostile = SIM_MAX_NODES, .max_us = 600000000};

    random_training(&dice, &scenario);
    random_faults(&dice, &scenario);
    random_losses(&dice, &scenario);
    scenario.nodes = MANY_NODES + 1 + (unsigned)world_random(&dice, SIM_MAX_NODES - MANY_NODES);
    scenario.ranks_per_node = 1;
    scenario.tensors = 0x060;
    scenario.steps = 8;
    return scenario;
}

void scenario_describe(const struct scenario *s, char text[SCENARIO_TEXT])
{
    (void)snprintf(text, SCENARIO_TEXT,
        "%u nodes x %u ranks%s, %u%s jobs, %u steps, tensors %#x%s half %#x, %u operations, scale "
        "%g %d, loss %g duplicate %g refuse %g nonfinite %g skip %g idle %g wait %g, rate %" PRIu64
        " delay %" PRIu64 " compute %" PRIu64 " slow %" PRIu64 " refuses %d, crash %" PRIu64
        " (%u) cut %" PRIu64 " storm %" PRIu64 " (%g) pause %" PRIu64 " away %" PRIu64
        " operator %" PRIu64 ", linger %" PRIu64 " forsakes %d again %d dies %d gap %" PRIu64
        ", loses %d grows %d, fleeting %d, changed %d %s",
        s->nodes, s->ranks_per_node, s->uneven ? " uneven" : "", s->jobs, s->mixed ? " mixed" : "",
        s->steps, s->tensors, s->later ? " (half later)" : "", s->half, s->operations, s->scale,
        (int)s->scales, s->loss, s->duplicate, s->refuse, s->nonfinite, s->skip, s->idle, s->wait,
        s->rate, s->delay_us, s->compute_us, s->slow_us, (int)s->refuses, s->crash_every_us,
        s->max_crashes, s->cut_every_us, s->storm_every_us, s->storm_loss, s->pause_every_us,
        s->away_us, s->operator_every_us, s->linger_us, s->forsakes, s->again, s->dies, s->gap_us,
        s->loses, s->grows, s->fleeting, s->changed, s->policy);
}

struct sim_stats scenario_total;

static void add_stats(const struct sim_stats *s)
{
    struct sim_stats *total = &scenario_total;

    total->runs += s->runs;
    total->fleeting += s->fleeting;
    total->events += s->events;
    total->packets += s->packets;
    total->lost += s->lost;
    total->duplicated += s->duplicated;
    total->crashes += s->crashes;
    total->deaths += s->deaths;
    total->moves += s->moves;
    total->cuts += s->cuts;
    total->pauses += s->pauses;
    total->storms += s->storms;
    total->rounds += s->rounds;
    total->carried += s->carried;
    total->faulted_rounds += s->faulted_rounds;
    total->steps += s->steps;
    total->withdrawn += s->withdrawn;
    total->switched += s->switched;
    total->called_off += s->called_off;
    total->verified += s->verified;
    total->recorded += s->recorded;
    total->recorded_late += s->recorded_late;
    total->replanned += s->replanned;
    total->due += s->due;
    total->listed += s->listed;
    total->selections += s->selections;
    total->unpushed += s->unpushed;
    total->unmoved += s->unmoved;
    total->spoiled += s->spoiled;
    total->left_out += s->left_out;
    total->many_left_out += s->many_left_out;
    total->taken_in += s->taken_in;
    total->many_taken_in += s->many_taken_in;
    total->nodes = s->nodes > total->nodes ? s->nodes : total->nodes;
    total->virtual_us += s->virtual_us;
}

bool scenario_run(const struct scenario *scenario, bool print)
{
    struct world *world = world_create(scenario);
    bool ok = world_run(world);

    if (!ok && print) {
        char text[SCENARIO_TEXT];
        scenario_describe(scenario, text);
        (void)printf("# seed %" PRIu64 ": %s (at %" PRIu64 " us; %s)\n", scenario->seed,
            world->violation, world->now_us, text);
    }
    world->stats.virtual_us = world->now_us;
    add_stats(&world->stats);
    world_destroy(world);
    return ok;
}
