/*
 * The invariants. None of them trusts the core's own bookkeeping: gradients are computed again
 * from the seed, residuals and updates are read from memory.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/local.h"
#include "tests/sim/world.h"

static const struct store_header *store_of(const struct node *node)
{
    return (const struct store_header *)(const void *)node->store;
}

/* The sum that step `step` adds to the ledger of a tensor: all finite sums of this node's ranks. */
static void add_gradients(const struct world *world, unsigned node, uint64_t step, unsigned t,
    bool by_rank, double sums[2])
{
    unsigned first = node * world->scenario.ranks_per_node;

    for (uint64_t i = 0; i < world->numel[t]; i++) {
        float sum = 0;
        for (unsigned r = first; r < first + world->scenario.ranks_per_node; r++) {
            float g =
                trainer_pushes(world, step, r, t) ? trainer_gradient(world, step, r, t, i) : 0;
            if (by_rank && isfinite(g)) {
                sums[0] += (double)g;
                sums[1] += (double)g * ledger_sign(i);
            }
            sum += g;
        }
        if (!by_rank && isfinite(sum)) {
            sums[0] += (double)sum;
            sums[1] += (double)sum * ledger_sign(i);
        }
    }
}

/* input == applied + residual, plain and sign-hashed, for every tensor of a node; and input is
 * what the trainers pushed. All values are integers: the comparison is exact. */
static void check_node(struct world *world, unsigned number)
{
    struct node *node = &world->node[number];
    struct job_info job;
    struct tensor_info info;

    if (node->core == NULL || !core_job_info(node->core, 0, &job)) {
        return;
    }
    for (unsigned t = 0; t < world->tensors; t++) {
        double left[2] = {0, 0};
        if (!core_tensor_info(node->core, job.id, t, &info)) {
            return;
        }
        for (uint32_t slot = 0; core_residual(node->core, job.id, t, slot) != NULL; slot++) {
            ledger_sums(core_residual(node->core, job.id, t, slot), world->numel[t], left);
        }
        for (unsigned k = 0; k < 2; k++) {
            if (info.input[k] != info.applied[k] + left[k]) {
                world_violate(world,
                    "conservation: node %u tensor %u sum %u: input %g, applied %g, residual %g",
                    number, t, k, info.input[k], info.applied[k], left[k]);
            }
        }
    }
}

/* When a node closes a step, the ledger's input must be all accepted gradients so far. */
static void check_input(struct world *world, unsigned number)
{
    struct node *node = &world->node[number];
    const struct store_header *store = store_of(node);
    bool by_rank = strstr(world->scenario.policy, "\"rank\"") != NULL;

    for (unsigned t = 0; t < world->tensors; t++) {
        double want[2] = {0, 0};
        struct tensor_info info;
        struct job_info job;
        (void)core_job_info(node->core, 0, &job);
        (void)core_tensor_info(node->core, job.id, t, &info);
        for (uint64_t s = 0; s < store->steps_done; s++) {
            if (world->update_status[s] == 1 + ADTOPK_OK) {
                add_gradients(
                    world, number, s, t, by_rank && strcmp(info.sparsifier, "dense") != 0, want);
            }
        }
        if (info.input[0] != want[0] || info.input[1] != want[1]) {
            world_violate(world, "node %u tensor %u: the ledger took in %g, the ranks pushed %g",
                number, t, info.input[0], want[0]);
        }
    }
}

void check_event(struct world *world)
{
    for (unsigned n = 0; n < world->scenario.nodes && !world->violated; n++) {
        check_node(world, n);
    }
}

static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t size)
{
    const uint8_t *byte = bytes;

    for (size_t i = 0; i < size; i++) {
        hash = (hash ^ byte[i]) * 0x100000001b3u;
    }
    return hash;
}

/* One tensor's update of a node as dense values, from whichever form there is; adds its bits. */
static uint64_t read_update(
    struct world *world, const struct node *node, unsigned t, uint64_t step, double *dense)
{
    const struct local_results *table = (const void *)node->results;
    const struct local_update *update =
        (const void *)(node->results + table->tensor[t].update_offset);
    const float *value = (const void *)(node->results + update->value_offset);
    const uint32_t *index = (const void *)(node->results + update->index_offset);
    const float *all = (const void *)(node->results + update->dense_offset);
    uint64_t hash = hash_bytes(0xcbf29ce484222325u, &update->count, sizeof(update->count));

    if (update->step != step) {
        world_violate(world, "node %u tensor %u: an update of step %llu in step %llu", node->number,
            t, (unsigned long long)update->step, (unsigned long long)step);
        return 0;
    }
    if ((update->forms & LOCAL_FORM_LIST) != 0) {
        for (uint64_t i = 0; i < update->count; i++) {
            dense[index[i]] += (double)value[i];
        }
        hash = hash_bytes(hash, index, update->count * sizeof(*index));
        hash = hash_bytes(hash, value, update->count * sizeof(*value));
    }
    if ((update->forms & LOCAL_FORM_DENSE) != 0) {
        for (uint64_t i = 0; i < update->numel; i++) {
            if ((update->forms & LOCAL_FORM_LIST) == 0) {
                dense[i] += (double)all[i];
            } else if (dense[i] != (double)all[i]) {
                world_violate(world, "node %u tensor %u: list and dense form differ at %llu",
                    node->number, t, (unsigned long long)i);
            }
        }
        hash = hash_bytes(hash, all, update->numel * sizeof(*all));
    }
    return hash;
}

/* A step is over on a node: the same outcome and the same bits as everywhere else. */
void check_step(struct world *world, unsigned number, uint64_t step, enum adtopk_status status)
{
    struct node *node = &world->node[number];
    double *dense = calloc(world->elements, sizeof(*dense));
    uint64_t hash = 0, offset = 0;

    if (node->step_mark != step + 1) {
        struct job_info job;
        (void)core_job_info(node->core, 0, &job);
        node->step_mark = step + 1;
        world->stats.rounds += job.buckets;
        world->stats.faulted_rounds += node->fault_mark != world->faults ? job.buckets : 0;
        node->fault_mark = world->faults;
    }
    for (unsigned t = 0; status == ADTOPK_OK && t < world->tensors; t++) {
        hash = hash * 31 + read_update(world, node, t, step, dense + offset);
        offset += world->numel[t];
    }
    if (world->update_status[step] == 0) {
        world->update_status[step] = (uint8_t)(1 + status);
        world->update_hash[step] = hash;
        world->stats.steps++;
        world->stats.withdrawn += status == ADTOPK_NONFINITE ? 1 : 0;
        for (uint64_t i = 0; status == ADTOPK_OK && i < world->elements; i++) {
            world->applied[i] += dense[i];
        }
    } else if (world->update_status[step] != 1 + (int)status) {
        world_violate(world, "step %llu: node %u says %s, another node did not",
            (unsigned long long)step, number, adtopk_status_name(status));
    } else if (world->update_hash[step] != hash) {
        world_violate(world, "step %llu: node %u has other bits", (unsigned long long)step, number);
    }
    free(dense);
    check_input(world, number);
}

/* At the end, element by element: what all ranks pushed in accepted steps == the sum of all
 * updates + what is left in all residuals. */
void check_end(struct world *world)
{
    uint64_t offset = 0;

    for (unsigned t = 0; t < world->tensors; t++) {
        for (uint64_t i = 0; i < world->numel[t]; i++) {
            double pushed = 0, have = world->applied[offset + i];
            for (uint64_t s = 0; s < world->scenario.steps; s++) {
                for (unsigned r = 0;
                     world->update_status[s] == 1 + ADTOPK_OK && r < world->trainers; r++) {
                    pushed += trainer_pushes(world, s, r, t)
                                  ? (double)trainer_gradient(world, s, r, t, i)
                                  : 0;
                }
            }
            for (unsigned n = 0; n < world->scenario.nodes; n++) {
                have += world->residual[n * world->elements + offset + i];
            }
            if (pushed != have) {
                world_violate(world, "tensor %u element %llu: %g pushed, %g applied or left", t,
                    (unsigned long long)i, pushed, have);
                return;
            }
        }
        offset += world->numel[t];
    }
}

/* A node's residuals, before its job ends and they are gone. */
void check_residuals(struct world *world, unsigned number)
{
    struct node *node = &world->node[number];
    double *left = world->residual + number * world->elements;
    struct job_info job;

    if (!core_job_info(node->core, 0, &job)) {
        return;
    }
    for (unsigned t = 0; t < world->tensors; t++) {
        for (uint64_t i = 0; i < world->numel[t]; i++) {
            left[i] = 0;
        }
        for (uint32_t slot = 0; core_residual(node->core, job.id, t, slot) != NULL; slot++) {
            const float *residual = core_residual(node->core, job.id, t, slot);
            for (uint64_t i = 0; i < world->numel[t]; i++) {
                left[i] += (double)residual[i];
            }
        }
        left += world->numel[t];
    }
}
