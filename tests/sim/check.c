/*
 * The invariants. None of them trusts the core's own bookkeeping: gradients are computed again
 * from the seed, residuals and updates are read from memory.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/convert.h"
#include "proto/local.h"
#include "tests/host/inside.h"
#include "tests/sim/far.h"
#include "tests/sim/world.h"

bool check_find(const struct world *world, unsigned node, unsigned job, struct job_info *info)
{
    const struct core *core = world->node[node].core;

    for (uint32_t i = 0;
         core != NULL && world->job[job].over_us == 0 && core_job_info(core, i, info); i++) {
        if (core_same_job(&info->key, &world->job[job].key) && strcmp(info->state, JOB_DONE) != 0 &&
            strcmp(info->state, JOB_FAILED) != 0) {
            return true;
        }
    }
    return false;
}

/* The error of sums of the smallest f32 numbers. */
#define SMALLEST_SUMS 1e-42

/* Where values are no integers, sums of elements in f32 lose about this share. */
bool check_equal(const struct world *world, double a, double b)
{
    double scale = world->scenario.scale > 0 ? world->scenario.scale : 1;
    double lost = 0.01 * scale + SMALLEST_SUMS;

    return world->scenario.changed || scale > 1 ? fabs(a - b) < lost + 1e-6 * (fabs(a) + fabs(b))
                                                : a == b;
}

/* The owner of a residual: a node's ranks from `first` on. */
struct owner {
    unsigned job, node, first, ranks;
    uint64_t since; /* it was new in this step */
    float momentum; /* share of the last velocity in the next; 0: none */
    float gamma;    /* factor of gradients */
};

/* What one step adds to each element: the ranks' sum, which counts where it is finite. */
static void owned_gradient(
    const struct world *world, const struct owner *owner, uint64_t step, unsigned t, float *sum)
{
    (void)memset(sum, 0, world->job[owner->job].numel[t] * sizeof(*sum));
    for (unsigned r = owner->first; r < owner->first + owner->ranks; r++) {
        if (trainer_pushes(world, owner->job, step, r, t)) {
            trainer_add_gradient(world, owner->job, step, r, t, sum);
        }
    }
}

/* What the accepted ones of the first `steps` steps add to the ledger of a tensor. */
static void add_gradients(const struct world *world, const struct owner *owner, uint64_t steps,
    unsigned t, double sums[2])
{
    const uint64_t numel = world->job[owner->job].numel[t];
    float *sum = sim_alloc(2 * numel * sizeof(*sum)), *velocity = sum + numel;

    for (uint64_t s = owner->since; s < steps; s++) {
        if (world->job[owner->job].update_status[s] != 1 + ADTOPK_OK ||
            !trainer_node_pushes(world, owner->job, s, owner->node, t)) {
            continue;
        }
        owned_gradient(world, owner, s, t, sum);
        for (uint64_t i = 0; i < numel; i++) {
            velocity[i] =
                owner->momentum * velocity[i] + owner->gamma * (isfinite(sum[i]) ? sum[i] : 0);
            sums[0] += (double)velocity[i];
            sums[1] += (double)velocity[i] * ledger_sign(i);
        }
    }
    free(sum);
}

/* input == applied + lost + residual, plain and sign-hashed, for every tensor. Where all values are
 * integers the comparison is exact. */
static void check_job(struct world *world, unsigned number, uint64_t job)
{
    const struct core *core = world->node[number].core;
    struct tensor_info info;

    for (unsigned t = 0; core_tensor_info(core, job, t, &info); t++) {
        double left[2] = {0, 0}, input[2], applied[2], lost[2];
        float *residual = sim_alloc(info.numel * sizeof(*residual));
        (void)inside_ledger(core, job, t, input, applied, lost);
        for (uint32_t slot = 0; inside_residual_copy(core, job, t, slot, residual); slot++) {
            ledger_sums(residual, info.numel, left);
        }
        free(residual);
        for (unsigned k = 0; k < 2; k++) {
            if (!check_equal(world, input[k], applied[k] + lost[k] + left[k])) {
                world_violate(world,
                    "conservation: node %u tensor %u sum %u: input %g, applied %g, lost %g, "
                    "residual %g",
                    number, t, k, input[k], applied[k], lost[k], left[k]);
            }
        }
    }
}

/* Whether orders of the job were dropped: with the daemon, or when the job failed. As after a kill,
 * only what is done next makes its ledgers fit again. */
static bool is_torn(const struct node *node, const struct job_info *job)
{
    for (unsigned j = 0; j < node->world->jobs; j++) {
        if (node->memory[j].number == job->id && node->memory[j].torn) {
            return true;
        }
    }
    return node->far && job->reason[0] != '\0';
}

void check_node(struct world *world, unsigned number)
{
    const struct core *core = world->node[number].core;
    struct job_info job;

    if (far_is_busy(&world->node[number])) {
        return; /* an order may have been carried out whose record is not written yet */
    }
    for (uint32_t i = 0; core != NULL && !world->violated && core_job_info(core, i, &job); i++) {
        if (!is_torn(&world->node[number], &job)) {
            check_job(world, number, job.id);
        }
    }
}

/* Whether this file can compute the gradients under the scenario's policy: they are unchanged, or
 * have a velocity that is never cleared, halves of halves that are exact. */
static bool can_repeat(const struct world *world, unsigned job)
{
    const struct scenario *scenario = &world->scenario;
    const char *policy = world->job[job].brings;

    if (world->job[job].spoiled && scenario->operator_every_us != 0) {
        return false; /* another scope leaves out another sum */
    }
    return !scenario->changed ||
           (scenario->operator_every_us == 0 && strstr(policy, "\"clip\"") == NULL &&
               (strstr(policy, "\"momentum\"") == NULL ||
                   strstr(policy, "\"momentum\":0.5,\"momentum_masking\":false") != NULL));
}

/* The step from which the node's residuals are those that it has now. */
static uint64_t check_since(const struct world *world, unsigned job, unsigned node)
{
    const struct sim_job *about = &world->job[job];
    const struct trainer *trainer = &world->trainer[about->first + about->node_first[node]];
    uint64_t since = 0;

    for (unsigned r = 0; r < about->node_ranks[node]; r++) {
        since = trainer[r].since > since ? trainer[r].since : since;
    }
    return since;
}

/* What is in the ledger besides the gradients of the ranks' steps since they came back. The first
 * step shows what was there before, and the second one what velocities of before still add. From
 * then on they fade. The residual of each element is compared at the end.
 * step: 1 for the first that the ranks close. */
static void note_brought(struct node_job *memory, unsigned t, const struct owner *owner,
    uint64_t step, const double more[2])
{
    for (unsigned i = 0; i < 2; i++) {
        double *brought = &memory->brought[t][i], *fades = &memory->fades[t][i];

        if (step == 1) {
            *brought = more[i];
            *fades = 0;
        } else if (owner->momentum > 0) {
            *fades = step == 2 ? more[i] - *brought : *fades * owner->momentum;
            *brought += *fades;
        }
    }
}

/* When a node closes a step, the ledger's input must be all accepted gradients so far. */
static void check_input(struct world *world, unsigned number, unsigned job)
{
    const struct core *core = world->node[number].core;
    struct node_job *memory = &world->node[number].memory[job];
    const char *policy = world->job[job].brings;
    const struct sim_job *about = &world->job[job];
    unsigned end = about->node_first[number] + about->node_ranks[number];
    struct job_info job_info;

    for (unsigned t = 0; check_find(world, number, job, &job_info) &&
                         t < trainer_tensors(world, job, job_info.steps_done - 1);
         t++) {
        double want[2] = {0, 0};
        if (about->loaded != NULL) {
            (void)memcpy(want, about->loaded->input[number][t], sizeof(want));
        }
        struct tensor_info info;
        struct owner owner = {.job = job,
            .node = number,
            .first = about->node_first[number],
            .ranks = about->node_ranks[number],
            .since = check_since(world, job, number)};
        (void)core_tensor_info(core, job_info.id, t, &info);
        owner.momentum = strstr(policy, "\"momentum\":0.5") != NULL ? 0.5f : 0;
        owner.gamma = strstr(policy, "\"gamma\":2") != NULL ? 2 : 1;
        if (strcmp(info.sparsifier, "dense") != 0 && strstr(policy, "\"rank\"") != NULL) {
            owner.ranks = 1;
        }
        for (; owner.first < end; owner.first += owner.ranks) {
            add_gradients(world, &owner, job_info.steps_done, t, want);
        }
        if (owner.since > 0 && memory->left) {
            const double more[2] = {info.input[0] - want[0], info.input[1] - want[1]};

            note_brought(memory, t, &owner, job_info.steps_done - owner.since, more);
            want[0] += memory->brought[t][0];
            want[1] += memory->brought[t][1];
        }
        if (!check_equal(world, info.input[0], want[0]) ||
            !check_equal(world, info.input[1], want[1])) {
            world_violate(world, "node %u tensor %u: the ledger took in %g, the ranks pushed %g",
                number, t, info.input[0], want[0]);
        }
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

/* What ranks see of an update in 16 bits. Its list, if they asked for it, has the same values. */
static uint64_t read_half(struct world *world, unsigned number, const struct tensor_spec *spec,
    const uint8_t *results, const struct local_update *update, double *dense)
{
    const uint16_t *half = (const void *)(results + update->half_offset);
    const float *shown = (const void *)(results + update->shown_offset);
    const uint32_t *index = (const void *)(results + update->index_offset);
    bool listed = (spec->forms & update->forms & LOCAL_FORM_LIST) != 0;

    for (uint64_t i = 0; i < update->numel; i++) {
        dense[i] =
            (double)(spec->dtype == DTYPE_F16 ? convert_f16(half[i]) : convert_bf16(half[i]));
    }
    for (uint64_t i = 0; listed && i < update->count; i++) {
        if (dense[index[i]] != (double)shown[i] && !(isnan(dense[index[i]]) && isnan(shown[i]))) {
            world_violate(world, "node %u tensor '%s': list and 16-bit form differ at %u", number,
                spec->name, index[i]);
        }
    }
    return hash_bytes(0xcbf29ce484222325u, half, update->numel * sizeof(*half));
}

/* One tensor's update of a node, and the results that it is in. */
static const struct local_update *find_update(
    const struct world *world, unsigned number, unsigned job, unsigned t, const uint8_t **results)
{
    const struct sim_job *about = &world->job[job];
    const unsigned batch = t >= about->first_batch ? 1 : 0;
    const struct local_results *table;

    *results = world->node[number].memory[job].results[batch];
    table = (const void *)*results;
    return (const void *)(*results +
                          table->tensor[t - (batch > 0 ? about->first_batch : 0)].update_offset);
}

/* One tensor's update of a node as dense values, from whichever form there is; adds its bits. */
static uint64_t read_update(
    struct world *world, unsigned number, unsigned job, unsigned t, uint64_t step, double *dense)
{
    const uint8_t *results;
    const struct local_update *update = find_update(world, number, job, t, &results);
    const float *value = (const void *)(results + update->value_offset);
    const uint32_t *index = (const void *)(results + update->index_offset);
    const float *all = (const void *)(results + update->dense_offset);
    uint64_t hash = hash_bytes(0xcbf29ce484222325u, &update->count, sizeof(update->count));

    if (update->step != step) {
        world_violate(world, "node %u tensor %u: an update of step %llu in step %llu", number, t,
            (unsigned long long)update->step, (unsigned long long)step);
        return 0;
    }
    if ((update->forms & LOCAL_FORM_DENSE16) != 0) {
        return read_half(world, number, &world->job[job].tensor[t], results, update, dense);
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
            } else if (dense[i] != (double)all[i] && !(isnan(dense[i]) && isnan(all[i]))) {
                world_violate(world, "node %u tensor %u: list and dense form differ at %llu",
                    number, t, (unsigned long long)i);
            }
        }
        hash = hash_bytes(hash, all, update->numel * sizeof(*all));
    }
    return hash;
}

/* An update of a tensor that no rank pushed is empty and says so. The turns before it are the
 * accepted steps in which some rank pushed it. */
static void check_pushed(struct world *world, unsigned number, unsigned job, unsigned t,
    uint64_t step, const double *dense)
{
    const uint8_t *results;
    const struct local_update *update = find_update(world, number, job, t, &results);
    const bool pushed = trainer_any_pushes(world, job, step, t);
    const struct sim_loaded *loaded = world->job[job].loaded;
    uint32_t turns = loaded != NULL ? (uint32_t)loaded->turn[t] : 0;

    for (uint64_t s = 0; s < step; s++) {
        turns += world->job[job].update_status[s] == 1 + ADTOPK_OK &&
                 trainer_any_pushes(world, job, s, t) && !trainer_spoils(world, job, s, t);
    }
    if ((update->unpushed == 0) != pushed || update->turn != turns) {
        world_violate(world, "node %u tensor %u step %llu: unpushed %u, turn %u; not %d and %u",
            number, t, (unsigned long long)step, update->unpushed, update->turn, !pushed, turns);
    }
    for (uint64_t i = 0; !pushed && i < update->numel; i++) {
        if (update->count != 0 || dense[i] != 0) {
            world_violate(world,
                "node %u tensor %u step %llu: nobody pushed it, but it is not empty", number, t,
                (unsigned long long)step);
            return;
        }
    }
    world->stats.unpushed += pushed ? 0 : 1;
}

/* In an accepted step only a policy that passes NaN on has NaN in updates: every entry of the
 * tensor is NaN, and there is one. They count as nothing. */
static void check_finite(
    struct world *world, unsigned number, unsigned job, unsigned t, uint64_t step, double *dense)
{
    const bool spoils = trainer_spoils(world, job, step, t);
    uint64_t nan = 0, finite = 0;

    for (uint64_t i = 0; i < world->job[job].numel[t]; i++) {
        nan += isnan(dense[i]) ? 1 : 0;
        finite += !isnan(dense[i]) && dense[i] != 0 ? 1 : 0;
        dense[i] = isnan(dense[i]) ? 0 : dense[i];
    }
    if (spoils ? nan == 0 || finite > 0 : nan > 0) {
        world_violate(world,
            "node %u tensor %u step %llu: %llu NaN, %llu others, and ranks pushed %s", number, t,
            (unsigned long long)step, (unsigned long long)nan, (unsigned long long)finite,
            spoils ? "some" : "none");
    }
    world->stats.spoiled += spoils ? 1 : 0;
    world->job[job].spoiled = world->job[job].spoiled || spoils;
}

static void count_rounds(struct world *world, unsigned number, unsigned job)
{
    struct node_job *memory = &world->node[number].memory[job];
    struct job_info info;

    if (check_find(world, number, job, &info)) {
        world->stats.rounds += info.buckets;
        world->stats.faulted_rounds += memory->fault_mark != world->faults ? info.buckets : 0;
    }
    memory->fault_mark = world->faults;
}

/* Whether some tensor has another value than the usual one for this key of a canonical policy. */
static bool policy_has(const char *policy, const char *key, double usual)
{
    for (const char *at = policy; (at = strstr(at, key)) != NULL;) {
        at += strlen(key);
        if (strtod(at, NULL) != usual) {
            return true;
        }
    }
    return false;
}

/* Reads the policy in force for the sums at the end. Returns the factor that makes an update the
 * ranks' sum. */
static double note_policy(struct world *world, unsigned number, unsigned job_number)
{
    struct sim_job *job = &world->job[job_number];
    struct job_info info;

    if (!check_find(world, number, job_number, &info)) {
        return 1;
    }
    job->bent = job->bent || policy_has(info.policy.text, "\"momentum\":", 0) ||
                policy_has(info.policy.text, "\"clip\":", 0) ||
                policy_has(info.policy.text, "\"beta\":", 1) ||
                policy_has(info.policy.text, "\"gamma\":", 1);
    return strstr(info.policy.text, "\"reduce\":\"sum\"") != NULL ? 1 : (double)job->trainers;
}

/* The first node to close a step sets its outcome; all others must have the same. */
static void compare_step(struct world *world, unsigned number, unsigned job_number, uint64_t step,
    enum adtopk_status status, uint64_t hash, const double *dense)
{
    struct sim_job *job = &world->job[job_number];
    double scale =
        note_policy(world, number, job_number) / (double)trainer_scale(world, job_number, step);

    if (job->outcome !=
        NULL) { /* a node may be left out after a step that the others took without it */
        job->outcome[number * (world->scenario.steps + 1) + step] = hash ^ (1 + status);
        job->update_status[step] = (uint8_t)(1 + status);
        return;
    }
    if (job->update_status[step] == 0) {
        job->update_status[step] = (uint8_t)(1 + status);
        job->update_hash[step] = hash;
        world->stats.steps++;
        world->stats.withdrawn += status == ADTOPK_NONFINITE ? 1 : 0;
        for (uint64_t i = 0; status == ADTOPK_OK && i < job->elements; i++) {
            job->applied[i] += scale * dense[i];
        }
    } else if (job->update_status[step] != 1 + (int)status) {
        world_violate(world, "step %llu: node %u says %s, another node did not",
            (unsigned long long)step, number, adtopk_status_name(status));
    } else if (job->update_hash[step] != hash) {
        world_violate(world, "step %llu: node %u has other bits", (unsigned long long)step, number);
    }
}

/* A step is over on a node: the same outcome and the same bits as everywhere else. */
void check_step(
    struct world *world, unsigned number, unsigned job, uint64_t step, enum adtopk_status status)
{
    struct node_job *memory = &world->node[number].memory[job];
    bool follows = memory->step_mark == step && !memory->moved;
    double *dense;
    uint64_t hash = 0, offset = 0;

    if (memory->step_mark == step + 1 || step >= world->scenario.steps) {
        return; /* another rank of the node was told before */
    }
    memory->step_mark = step + 1;
    memory->moved = false;
    memory->torn = far_has_untold(memory);
    count_rounds(world, number, job);
    operator_check_step(world, number, job, step);
    if (world->job[job].forged || (world->job[job].astray >> number & 1) != 0) {
        return;
    }
    dense = sim_alloc(world->job[job].elements * sizeof(*dense));
    for (unsigned t = 0; status == ADTOPK_OK && t < trainer_tensors(world, job, step); t++) {
        hash = hash * 31 + read_update(world, number, job, t, step, dense + offset);
        check_finite(world, number, job, t, step, dense + offset);
        check_pushed(world, number, job, t, step, dense + offset);
        offset += world->job[job].numel[t];
    }
    compare_step(world, number, job, step, status, hash, dense);
    free(dense);
    if (memory->forgot) {
        return; /* gradients that were lost were added again, to a residual that was empty */
    }
    selection_check(world, number, job, step, status, follows);
    if (can_repeat(world, job) && !world->node[number].leaves) {
        check_input(world, number, job);
    }
}

/* Whether some node that is not lost has closed the step. */
static bool closed_elsewhere(const struct world *world, uint64_t lost, unsigned job, uint64_t step)
{
    for (unsigned n = 0; n < world->scenario.nodes; n++) {
        if ((lost >> n & 1) == 0 && world->node[n].memory[job].step_mark > step) {
            return true;
        }
    }
    return false;
}

void check_forget_step(struct world *world, unsigned number, unsigned job_number, uint64_t lost)
{
    struct sim_job *job = &world->job[job_number];
    const uint64_t mark = world->node[number].memory[job_number].step_mark;
    double scale, *dense;
    uint64_t offset = 0;

    if (mark == 0 || closed_elsewhere(world, lost, job_number, mark - 1) ||
        job->update_status[mark - 1] == 0) {
        return;
    }
    scale =
        note_policy(world, number, job_number) / (double)trainer_scale(world, job_number, mark - 1);
    dense = sim_alloc(job->elements * sizeof(*dense));
    for (unsigned t = 0; job->update_status[mark - 1] == 1 + ADTOPK_OK && t < job->tensors; t++) {
        (void)read_update(world, number, job_number, t, mark - 1, dense + offset);
        offset += job->numel[t];
    }
    for (uint64_t i = 0; i < job->elements; i++) {
        job->applied[i] -= scale * dense[i];
    }
    job->update_status[mark - 1] = 0;
    free(dense);
}

/* The sum that all ranks pushed for one element in accepted steps. */
static double pushed_in_all(const struct world *world, unsigned job, unsigned t, uint64_t element)
{
    double pushed = 0;

    for (uint64_t s = 0; s < world->scenario.steps; s++) {
        for (unsigned r = 0;
             world->job[job].update_status[s] == 1 + ADTOPK_OK && r < world->job[job].trainers;
             r++) {
            float g = trainer_pushes(world, job, s, r, t)
                          ? trainer_gradient(world, job, s, r, t, element)
                          : 0;
            pushed += isfinite(g) ? (double)g : (double)NAN;
        }
    }
    return pushed;
}

/* One tensor at the end, element by element. Where some residuals were in bf16, rounding moves what
 * it cuts off to other elements: then only the sums of all elements are equal. */
static void check_tensor(struct world *world, unsigned number, unsigned t, uint64_t offset)
{
    const struct sim_job *job = &world->job[number];
    double all_pushed = 0, all_have = 0;
    bool left_out = false;

    for (uint64_t i = 0; i < job->numel[t]; i++) {
        double pushed = pushed_in_all(world, number, t, i), have = job->applied[offset + i];
        pushed += job->loaded != NULL ? job->loaded->residual[offset + i] : 0;
        for (unsigned n = 0; n < world->scenario.nodes; n++) {
            have += job->residual[n * job->elements + offset + i];
        }
        if (isnan(pushed)) { /* whether the others' elements were left out is for the ledger */
            left_out = true;
            continue;
        }
        all_pushed += pushed;
        all_have += have;
        if (!world->rounded && !check_equal(world, pushed, have)) {
            world_violate(world, "tensor %u element %llu: %g pushed, %g applied or left", t,
                (unsigned long long)i, pushed, have);
            return;
        }
    }
    if (world->rounded && !left_out && !check_equal(world, all_pushed, all_have)) {
        world_violate(world, "tensor %u: %g pushed, %g applied or left", t, all_pushed, all_have);
    }
}

/* Pushed gradients of accepted steps == the sum of all updates + all residuals. With decay,
 * momentum and clipping this cannot be checked. */
void check_end(struct world *world, unsigned number)
{
    const struct sim_job *job = &world->job[number];
    uint64_t offset = 0;

    for (unsigned t = 0; !job->bent && t < job->tensors; t++) {
        check_tensor(world, number, t, offset);
        offset += job->numel[t];
    }
}

/* A node's residuals, before its job ends and they are gone. */
void check_residuals(struct world *world, unsigned number, unsigned job_number)
{
    const struct core *core = world->node[number].core;
    const struct sim_job *about = &world->job[job_number];
    double *left = about->residual + number * about->elements;
    struct job_info job;

    if (!check_find(world, number, job_number, &job)) {
        return;
    }
    for (unsigned t = 0; t < about->tensors; t++) {
        for (uint64_t i = 0; i < about->numel[t]; i++) {
            left[i] = 0;
        }
        float *residual = sim_alloc(about->numel[t] * sizeof(*residual));
        for (uint32_t slot = 0; inside_residual_copy(core, job.id, t, slot, residual); slot++) {
            for (uint64_t i = 0; i < about->numel[t]; i++) {
                left[i] += (double)residual[i];
            }
        }
        free(residual);
        left += about->numel[t];
    }
}
