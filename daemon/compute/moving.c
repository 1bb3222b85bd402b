#include "daemon/compute/moving.h"

#include "daemon/compute/residual.h"
#include "daemon/job/notes.h"
#include "daemon/job/plan_query.h"
#include "daemon/job/store.h"

uint8_t *moving_part(
    struct job *job, unsigned number, uint64_t size, bool shown, bool *existing, struct error *err)
{
    const struct core_config *config = &job->core->config;
    const struct core_memory *memory = &config->memory;

    return engine_is_near(config->engine) || plan_is_far(job, job->plan)
               ? memory->store(memory->context, job->number, number, size, shown, existing, err)
               : memory->keep(memory->context, job->number, number, size, existing, err);
}

enum adtopk_status moving_check(const struct job *job, const struct plan *plan, struct error *err)
{
    for (unsigned r = 0; !plan_is_far(job, plan) && r < job->ranks; r++) {
        if (job->rank[r]->on_gpu) {
            return error_set(err, ADTOPK_ERR_POLICY,
                "engine \"host\" does not go with gradients on GPUs, where rank %u has some",
                job->rank[r]->number);
        }
    }
    return ADTOPK_OK;
}

/* ------------------------------------------------------------------ memory on the other side */

static unsigned moving_number(const struct plan *plan, unsigned batch)
{
    return store_part(STORE_RESIDUALS + plan->residuals, batch);
}

/* New memory for a part of the next plan: in host memory if that is not the far engine's. */
static uint8_t *moving_make(
    struct job *job, const struct plan *next, unsigned number, uint64_t size, struct error *err)
{
    const struct core_memory *memory = &job->core->config.memory;
    bool existing;

    if (plan_is_far(job, next)) {
        return memory->store(memory->context, job->number, number, size, false, &existing, err);
    }
    memory->drop_keep(memory->context, job->number, number);
    return memory->keep(memory->context, job->number, number, size, &existing, err);
}

enum adtopk_status moving_open(struct job *job, struct plan *next, struct error *err)
{
    struct moving *moving = &next->moving;

    *moving = (struct moving){.open = plan_is_far(job, next) != plan_is_far(job, job->plan)};
    for (unsigned b = 0; moving->open && b < job->layout.batches; b++) {
        moving->residuals[b] =
            moving_make(job, next, moving_number(next, b), residual_bytes(job, next, b), err);
        if (moving->residuals[b] == NULL) {
            return err->code;
        }
    }
    if (moving->open && next->velocity_bytes > 0) {
        moving->velocities = moving_make(job, next, next->velocity_part, next->velocity_bytes, err);
        if (moving->velocities == NULL) {
            return err->code;
        }
    }
    return ADTOPK_OK;
}

/* The place on the other side of what is at this address of a part. */
static void *moving_place(
    const struct job *job, unsigned number, const void *address, uint8_t *other)
{
    return other + ((const uint8_t *)address - job->layout.arenas.store[number]);
}

void *moving_place_residual(const struct job *job, const struct plan *next, uint32_t t)
{
    const unsigned batch = job->tensor[t].layout.batch;

    return moving_place(
        job, moving_number(next, batch), next->tensor[t].residual, next->moving.residuals[batch]);
}

void *moving_place_velocity(
    const struct job *job, const struct plan *next, uint32_t t, unsigned rank)
{
    return moving_place(job, next->velocity_part, next->tensor[t].selection[rank].momentum,
        next->moving.velocities);
}

/* ------------------------------------------------------------------ moved */

static bool moving_has_velocity(const struct plan_tensor *planned)
{
    return planned->selection != NULL && planned->selection[0].momentum != NULL;
}

static void moving_end_tensor(const struct job *job, struct plan *next, uint32_t t)
{
    struct plan_tensor *planned = &next->tensor[t];

    for (unsigned r = 0; moving_has_velocity(planned) && r < plan_residuals(job, planned); r++) {
        planned->selection[r].momentum = moving_place_velocity(job, next, t, r);
    }
    planned->residual = moving_place_residual(job, next, t);
}

/* The plan that was put in force has its residuals on the other side. A job that is frozen before
 * that keeps what it has here. */
static void moving_end(struct job *job)
{
    struct plan *plan = job->plan;
    const struct moving moving = plan->moving;

    for (uint32_t t = 0; moving.open && t < plan->tensors; t++) {
        moving_end_tensor(job, plan, t);
    }
    for (unsigned b = 0; moving.open && b < job->layout.batches; b++) {
        job->layout.arenas.store[moving_number(plan, b)] = moving.residuals[b];
    }
    if (moving.velocities != NULL) {
        job->layout.arenas.store[plan->velocity_part] = moving.velocities;
    }
    plan->moving = (struct moving){.open = false};
}

/* ------------------------------------------------------------------ what is left behind */

/* In host memory there may be images that an earlier daemon left, which are being loaded, or those
 * that this one saves (leaving.c). */
static void moving_forget_host(const struct job *job)
{
    const struct core_memory *memory = &job->core->config.memory;

    if (job->advance.frozen || job->store->begun == BEGUN_KEPT) {
        return;
    }
    for (unsigned b = 0; b < job->layout.batches; b++) {
        memory->drop_keep(memory->context, job->number, moving_number(job->plan, b));
    }
    if (job->plan->velocity_bytes > 0) {
        memory->drop_keep(memory->context, job->number, job->plan->velocity_part);
    }
}

/* The log says when residuals are somewhere else than before. */
static void moving_note(struct job *job, bool in_host)
{
    if (in_host != job->figures.counters.policy.in_host) {
        core_note(job->core, "job '%s': its residuals are %s from step %llu on", job->key.name,
            in_host ? "in host memory, as its policy says," : "on GPUs again",
            (unsigned long long)job->store->steps_done);
    }
    job->figures.counters.policy.in_host = in_host;
}

void moving_forget(struct job *job)
{
    const struct core_memory *memory = &job->core->config.memory;

    moving_end(job);
    moving_note(job, plan_engine(job) != job->core->config.engine);
    if (plan_is_far(job, job->plan)) {
        moving_forget_host(job);
    } else if (job->figures.counters.policy.in_host) {
        memory->leave_engine(memory->context, job->number);
    }
}
