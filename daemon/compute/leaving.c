#include "daemon/compute/leaving.h"

#include "daemon/compute/launch.h"
#include "daemon/compute/layout.h"
#include "daemon/compute/orders.h"
#include "daemon/compute/residual.h"
#include "daemon/compute/results.h"
#include "daemon/compute/work.h"
#include "daemon/job/job_state.h"
#include "daemon/job/notes.h"
#include "daemon/job/plan_query.h"
#include "daemon/job/store.h"

/* Whether all ranks can come back. */
static bool leaving_ranks_return(const struct job *job)
{
    for (unsigned i = 0; i < job->ranks; i++) {
        if (!job->rank[i]->client.returns || job->rank[i]->machine.state >= RANK_LEFT) {
            return false;
        }
    }
    return true;
}

/* As in check_return() of core/rank.c: its store must be found again, and all of its ranks must
 * come back. They may be just coming back. */
static bool leaving_may(const struct job *job)
{
    const struct core *core = job->core;
    const struct core_memory *memory = &core->config.memory;

    return core->stopping == CORE_LEAVES && memory->has_store != NULL &&
           (engine_is_near(core->config.engine) || memory->keep != NULL) && !job_ended(job) &&
           job->run.id != 0 && leaving_ranks_return(job);
}

static bool leaving_is_far(const struct job *job)
{
    return plan_is_far(job, job->plan);
}

bool leaving_stays(const struct job *job)
{
    return leaving_may(job) &&
           (!leaving_is_far(job) || job->store == NULL || job->store->begun == BEGUN_KEPT ||
               job->lending.leaving.given_up);
}

/* ------------------------------------------------------------------ images */

/* The image of a part: as many bytes, and the same at each offset. NULL with an error. */
static uint8_t *leaving_image(
    struct job *job, unsigned part, uint64_t size, bool *existing, struct error *err)
{
    const struct core_memory *memory = &job->core->config.memory;

    return memory->keep(memory->context, job->number, part, size, existing, err);
}

static unsigned leaving_residuals_part(const struct job *job, unsigned batch)
{
    return store_part(STORE_RESIDUALS + job->plan->residuals, batch);
}

/* Opens all images. *found: an earlier daemon made all of them. */
static enum adtopk_status leaving_open(struct job *job, bool *found, struct error *err)
{
    struct leaving *leaving = &job->lending.leaving;
    const struct plan *plan = job->plan;
    bool existing;

    *found = true;
    for (unsigned b = 0; b < job->layout.batches; b++) {
        leaving->residuals[b] = leaving_image(
            job, leaving_residuals_part(job, b), residual_bytes(job, plan, b), &existing, err);
        if (leaving->residuals[b] == NULL) {
            return err->code;
        }
        *found = *found && existing;
    }
    if (plan->velocity_bytes > 0) {
        leaving->velocities =
            leaving_image(job, plan->velocity_part, plan->velocity_bytes, &existing, err);
        if (leaving->velocities == NULL) {
            return err->code;
        }
        *found = *found && existing;
    }
    return ADTOPK_OK;
}

/* Images that nobody needs would take room for as long as the store is there. */
static void leaving_drop(struct job *job)
{
    const struct core_memory *memory = &job->core->config.memory;

    for (unsigned b = 0; memory->drop_keep != NULL && b < job->layout.batches; b++) {
        memory->drop_keep(memory->context, job->number, leaving_residuals_part(job, b));
    }
    if (memory->drop_keep != NULL && job->plan->velocity_bytes > 0) {
        memory->drop_keep(memory->context, job->number, job->plan->velocity_part);
    }
    job->lending.leaving = (struct leaving){.velocities = NULL};
}

/* The place in an image of what lies there in the part. */
static void *leaving_at(const struct job *job, uint8_t *image, unsigned part, const void *address)
{
    return image + ((const uint8_t *)address - job->layout.arenas.store[part]);
}

/* ------------------------------------------------------------------ work */

/* Residuals of ranks but the first lie in a part that the store has, too. */
static void leaving_residual(struct work *work, uint32_t t, unsigned rank, bool loads)
{
    const struct job *job = work->job;
    const struct plan_tensor *planned = &job->plan->tensor[t];
    const unsigned batch = job->tensor[t].layout.batch;
    struct orders_image image = {.loads = loads, .count = job->tensor[t].numel, .progress = true};
    struct rounded rounded;

    image.element = rank > 0 ? layout_residual(job, t, rank)
                             : leaving_at(job, job->lending.leaving.residuals[batch],
                                   leaving_residuals_part(job, batch), planned->residual);
    if (rank == 0 && planned->rounded) {
        rounded = rounded_at(image.element, image.count);
        image.element = rounded.element;
        image.carry = rounded.carry;
    }
    orders_image(job, &work->batch[work->filling], t, rank, &image);
}

static void leaving_velocity(struct work *work, uint32_t t, unsigned rank, bool loads)
{
    const struct job *job = work->job;
    const float *momentum = job->plan->tensor[t].selection[rank].momentum;

    orders_image(job, &work->batch[work->filling], t, rank,
        &(struct orders_image){.loads = loads,
            .velocity = true,
            .progress = loads, /* passes move it together with its residual, which has saved that */
            .count = job->tensor[t].numel,
            .element = leaving_at(
                job, job->lending.leaving.velocities, job->plan->velocity_part, momentum)});
}

static enum adtopk_status leaving_residuals(struct work *work, uint32_t t, bool loads)
{
    for (unsigned r = 0; r < plan_residuals(work->job, &work->job->plan->tensor[t]); r++) {
        leaving_residual(work, t, r, loads);
    }
    return ADTOPK_OK;
}

static enum adtopk_status leaving_velocities(struct work *work, uint32_t t, bool loads)
{
    const struct plan_tensor *planned = &work->job->plan->tensor[t];
    const bool any = planned->selection != NULL && planned->selection[0].momentum != NULL;

    for (unsigned r = 0; any && r < plan_residuals(work->job, planned); r++) {
        leaving_velocity(work, t, r, loads);
    }
    return ADTOPK_OK;
}

static enum adtopk_status leaving_save_residuals(struct work *work, uint32_t t)
{
    return leaving_residuals(work, t, false);
}

static enum adtopk_status leaving_save_velocities(struct work *work, uint32_t t)
{
    return leaving_velocities(work, t, false);
}

static enum adtopk_status leaving_load_residuals(struct work *work, uint32_t t)
{
    return leaving_residuals(work, t, true);
}

static enum adtopk_status leaving_load_velocities(struct work *work, uint32_t t)
{
    return leaving_velocities(work, t, true);
}

static const struct work_kind leaving_saving = {.verb = "save its residuals",
    .residuals = true,
    .last = true,
    .stage = {leaving_save_residuals, leaving_save_velocities}};

static const struct work_kind leaving_loading = {.verb = "load its residuals",
    .residuals = true,
    .stage = {leaving_load_residuals, leaving_load_velocities}};

static uint64_t leaving_bytes(const struct job *job)
{
    uint64_t bytes = job->plan->velocity_bytes;

    for (unsigned b = 0; b < job->layout.batches; b++) {
        bytes += residual_bytes(job, job->plan, b);
    }
    return bytes;
}

/* ------------------------------------------------------------------ out */

/* From now on no residual changes any more: `running` stays. */
static void leaving_saved(struct work *work)
{
    store_publish(&work->job->store->begun, BEGUN_KEPT);
}

/* The images have memory, or find none. Then the job is like one whose daemon was killed. */
static void leaving_reserved(struct job *job, const struct error *error)
{
    if (error != NULL) {
        core_warn(job->core, "job '%s': its residuals cannot be saved: %.300s", job->key.name,
            error->text);
        leaving_drop(job);
        job->lending.leaving.given_up = true;
        return;
    }
    core_work(&job->lending.work, &leaving_saving, leaving_saved, leaving_bytes(job));
}

/* Whether the job has no residuals yet, or a compute has them. */
static bool leaving_is_busy(const struct job *job)
{
    return job->plan->rounds == 0 || !residuals_are_free(job);
}

/* Operations of a carrier use residuals, too, and other nodes may have stopped in the middle of
 * them. */
static void leaving_freeze(struct job *job)
{
    if (!job->advance.frozen) {
        job->advance.frozen = true;
        launch_end(job);
    }
}

bool leaving_saves(struct job *job)
{
    struct error error;
    bool found;

    if (!leaving_is_far(job) || !leaving_may(job) || job->store == NULL ||
        job->store->restore == RESTORE_BEGUN) {
        return false;
    }
    leaving_freeze(job);
    if (leaving_is_busy(job)) {
        return true;
    }
    job->lending.running = true;
    leaving_drop(job); /* a change of policy that is given up may have some, too (moving.h) */
    if (leaving_open(job, &found, &error) != ADTOPK_OK ||
        results_reserve(job, job->plan, leaving_reserved, &error) != ADTOPK_OK) {
        leaving_reserved(job, &error);
    }
    return true;
}

/* ------------------------------------------------------------------ in */

static void leaving_loaded(struct work *work)
{
    store_publish(&work->job->store->begun, BEGUN_THERE);
    leaving_drop(work->job);
}

enum adtopk_status leaving_load(struct job *job, struct error *err)
{
    bool found = false;

    if (!leaving_is_far(job) || job->store->begun != BEGUN_KEPT) {
        if (leaving_is_far(job)) {
            leaving_drop(job); /* of a daemon that was killed while it saved */
        }
        store_publish(&job->store->begun, BEGUN_THERE); /* of a daemon that had another engine */
        return ADTOPK_OK;
    }
    if (leaving_open(job, &found, err) != ADTOPK_OK) {
        return err->code;
    }
    if (!found) {
        return error_set(err, ADTOPK_ERR_LOST,
            "the residuals that job '%s' had on GPUs were saved, and are gone", job->key.name);
    }
    core_work(&job->lending.work, &leaving_loading, leaving_loaded, leaving_bytes(job));
    return ADTOPK_OK;
}
