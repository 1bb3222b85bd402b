/*
 * Happy path of reading: a piece comes that the stretch does not have. So the array is saved from
 * there on, in the form of the engine, and becomes floats. The next pieces are copied out of it.
 * Happy path of writing: pieces are copied into the stretch, one behind the other. Then the floats
 * get the form of the residual, and are loaded.
 *
 * With a far engine that is work of the job. Meanwhile no round begins, and the rank is told to
 * come again. A stretch that was read is good until the step or the policy changes.
 */
#include "daemon/compute/keeping_array.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/compute/orders.h"
#include "daemon/compute/work.h"
#include "daemon/job/job_state.h"
#include "daemon/job/plan_query.h"
#include "kernels/base/convert.h"
#include "kernels/kernels.h"
#include "proto/checkpoint_content.h"

#define KEEPING_FLOATS (UINT64_C(1) << 18) /* of a far engine's stretch */
#define KEEPING_US 5000u                   /* so long a stretch waits for its reader */
#define KEEPING_READ KEEP_SECTIONS /* a section of no checkpoint: see keeping_read_elements() */

static_assert(CHECKPOINT_CHUNK == CHUNK, "a carry is of a chunk");
static_assert(sizeof(struct carry) == CHECKPOINT_CARRY * sizeof(float), "a carry is floats");

uint64_t keeping_floats(const struct job *job, uint32_t t, enum keep_section section)
{
    const struct plan_tensor *planned = &job->plan->tensor[t];
    const uint64_t numel = job->tensor[t].numel;

    switch (section) {
    case KEEPING_READ:
    case KEEP_ELEMENTS: return planned->residual != NULL ? numel : 0;
    case KEEP_CARRIES: return planned->rounded ? chunk_count(numel) * CHECKPOINT_CARRY : 0;
    default:
        return planned->selection != NULL && planned->selection[0].momentum != NULL ? numel : 0;
    }
}

static bool keeping_is_near(const struct job *job)
{
    return engine_is_near(plan_engine(job));
}

/* ------------------------------------------------------------------ floats and engines */

/* The elements are in bf16, where the engine has them. */
static bool keeping_is_rounded(const struct job *job)
{
    const struct keeping *keeping = &job->lending.keeping;

    return keeping->section == KEEP_ELEMENTS && job->plan->tensor[keeping->tensor].rounded;
}

/* Halves become floats, in place, from the last one on. */
static void keeping_widen(struct keeping *keeping)
{
    const uint8_t *half = (const uint8_t *)keeping->value;

    for (uint64_t i = keeping->count; i-- > 0;) {
        uint16_t bits;
        (void)memcpy(&bits, half + i * sizeof(bits), sizeof(bits));
        keeping->value[i] = convert_bf16(bits);
    }
}

static unsigned keeping_length(const struct keeping *keeping, uint64_t at)
{
    return keeping->count - at < CHUNK ? (unsigned)(keeping->count - at) : CHUNK;
}

/* Floats become halves, in place. The chunks' carries become what rounding cuts off, and those that
 * the checkpoint has on top. */
static void keeping_narrow(struct keeping *keeping)
{
    uint8_t *half = (uint8_t *)keeping->value;

    for (uint64_t at = 0; at < keeping->count; at += CHUNK) {
        const unsigned length = keeping_length(keeping, at);
        float *sum = (float *)&keeping->carry[at / CHUNK];
        struct carry cut;
        uint16_t rounded[CHUNK];
        float chunk[CHUNK];
        (void)memcpy(chunk, &keeping->value[at], length * sizeof(*chunk));
        rounded_alone(rounded_best(), (keeping->first + at) / CHUNK, chunk, length, rounded, &cut);
        (void)memcpy(half + at * sizeof(*rounded), rounded, length * sizeof(*rounded));
        for (unsigned i = 0; i < CHECKPOINT_CARRY; i++) {
            sum[i] = keeping->carries ? ((const float *)&cut)[i] + sum[i] : ((float *)&cut)[i];
        }
    }
}

/* Carries that a residual in f32 does not have are added to the elements that would take them. */
static void keeping_fold(struct keeping *keeping)
{
    for (uint64_t at = 0; at < keeping->count; at += CHUNK) {
        const unsigned length = keeping_length(keeping, at);
        const struct carry *carry = &keeping->carry[at / CHUNK];
        for (uint32_t i = 0; i < length && i < 2 * LEDGER_LANES; i++) {
            keeping->value[at + i] = rounded_wide(
                carry, (keeping->first + at) / CHUNK, length, i, keeping->value[at + i]);
        }
    }
}

/* What was written gets the form that the engine has. */
static void keeping_form(struct job *job)
{
    if (keeping_is_rounded(job)) {
        keeping_narrow(&job->lending.keeping);
    } else if (job->lending.keeping.carries) {
        keeping_fold(&job->lending.keeping);
    }
}

/* Carries of whole chunks, but for a tensor's last one. */
static struct orders_image keeping_carries(const struct job *job)
{
    const struct keeping *keeping = &job->lending.keeping;
    const uint64_t first = keeping->first / CHECKPOINT_CARRY * CHUNK;
    const uint64_t count = keeping->count / CHECKPOINT_CARRY * CHUNK;
    const uint64_t left = job->tensor[keeping->tensor].numel - first;

    return (struct orders_image){.first = first,
        .count = count < left ? count : left,
        .carry = (struct carry *)(void *)keeping->value};
}

static void keeping_order(const struct job *job, struct engine_batch *batch)
{
    const struct keeping *keeping = &job->lending.keeping;
    const bool carries = keeping->writes && keeping_is_rounded(job);
    const struct orders_image image = {.loads = keeping->writes,
        .velocity = keeping->section == KEEP_VELOCITY,
        .first = keeping->first,
        .count = keeping->count,
        .element = keeping->value,
        .carry = carries ? keeping->carry : NULL};
    const struct orders_image only_carries = keeping_carries(job);
    const struct orders_part part = {keeping->first, keeping->count, keeping->value};

    if (keeping->section == KEEPING_READ) {
        orders_read_part(job, batch, keeping->tensor, keeping->residual, &part);
    } else {
        orders_image(job, batch, keeping->tensor, keeping->residual,
            keeping->section == KEEP_CARRIES ? &only_carries : &image);
    }
}

/* ------------------------------------------------------------------ carrying it out */

/* The stretch was saved, or is loaded. */
static void keeping_is_done(struct job *job)
{
    struct keeping *keeping = &job->lending.keeping;

    if (keeping->writes) {
        keeping->count = 0;
    } else if (keeping_is_rounded(job)) {
        keeping_widen(keeping);
    }
}

static enum adtopk_status keeping_stage_order(struct work *work, uint32_t t)
{
    if (t == work->job->lending.keeping.tensor) {
        if (work->job->lending.keeping.writes) {
            keeping_form(work->job);
        }
        keeping_order(work->job, &work->batch[work->filling]);
    }
    return ADTOPK_OK;
}

static enum adtopk_status keeping_stage_done(struct work *work, uint32_t t)
{
    if (t == work->job->lending.keeping.tensor) {
        keeping_is_done(work->job);
    }
    return ADTOPK_OK;
}

static const struct work_kind keeping_work = {.verb = "save or load a checkpoint",
    .residuals = true,
    .stage = {keeping_stage_order, keeping_stage_done}};

static void keeping_worked(struct work *work)
{
    work->job->lending.running = false;
    work->job->lending.keeping.used_us = work->job->core->now_us;
    work->job->advance.opened = true; /* rounds have waited for the residuals */
}

static void keeping_run_near(struct job *job)
{
    const struct core_config *config = &job->core->config;
    const struct parallel alone = {.threads = 0};
    struct engine_order order;
    struct engine_result result;
    struct engine_batch batch = {
        .memory = &job->layout.arenas, .order = &order, .result = &result, .room = 1};

    assert(job->tensor[job->lending.keeping.tensor].residual_owner == ENGINE_OWNER_CORE);
    if (job->lending.keeping.writes) {
        keeping_form(job);
    }
    keeping_order(job, &batch);
    plan_engine(job)->run(config->engine_context, &batch, &alone);
    keeping_is_done(job);
}

/* Has the engine save or load the stretch. */
static enum adtopk_status keeping_run(struct job *job, struct error *err)
{
    if (keeping_is_near(job)) {
        keeping_run_near(job);
        return ADTOPK_OK;
    }
    if (job->machine.state == JOB_PREPARED) { /* its commit may give the residuals to a switch */
        return error_set(err, ADTOPK_PENDING, "the nodes agree on a view");
    }
    job->lending.running = true;
    core_work(&job->lending.work, &keeping_work, keeping_worked,
        job->lending.keeping.count * sizeof(float));
    return error_set(err, ADTOPK_PENDING, "the engine saves or loads residuals");
}

/* ------------------------------------------------------------------ stretches */

static enum adtopk_status keeping_make_room(struct job *job, struct error *err)
{
    struct keeping *keeping = &job->lending.keeping;

    if (keeping->room == 0) {
        keeping->room = keeping_is_near(job) ? CORE_READ_STEP : KEEPING_FLOATS;
        keeping->value = malloc(keeping->room * sizeof(*keeping->value));
        keeping->carry = malloc(chunk_count(keeping->room) * sizeof(*keeping->carry));
    }
    if (keeping->value == NULL || keeping->carry == NULL) {
        keeping_free(job);
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for a stretch of a checkpoint");
    }
    return ADTOPK_OK;
}

void keeping_free(struct job *job)
{
    free(job->lending.keeping.value);
    free(job->lending.keeping.carry);
    job->lending.keeping = (struct keeping){.count = 0};
}

/* A stretch begins with the piece, and has nothing yet. */
static void keeping_begin(struct job *job, const struct event_keep *keep)
{
    struct keeping *keeping = &job->lending.keeping;

    keeping->writes = keep->writes;
    keeping->section = keep->section;
    keeping->tensor = keep->tensor;
    keeping->residual = keep->residual;
    keeping->first = keeping->next = keep->first;
    keeping->count = 0;
    keeping->step = step_number(job);
    keeping->policies = job->store->policies;
}

/* Whether the stretch is of the same array. */
static bool keeping_is_of(const struct keeping *keeping, const struct event_keep *keep)
{
    return keeping->count > 0 && keeping->writes == keep->writes &&
           keeping->section == keep->section && keeping->tensor == keep->tensor &&
           keeping->residual == keep->residual && keep->first >= keeping->first;
}

/* Whether the stretch is still what the engine has. */
static bool keeping_holds(const struct job *job)
{
    const struct keeping *keeping = &job->lending.keeping;

    return keeping->count > 0 && !keeping_is_near(job) && keeping->step == step_number(job) &&
           keeping->policies == job->store->policies;
}

static bool keeping_has(const struct job *job, const struct event_keep *keep)
{
    const struct keeping *keeping = &job->lending.keeping;

    return keeping_holds(job) && keeping_is_of(keeping, keep) &&
           keep->first + keep->count <= keeping->first + keeping->count;
}

/* Whether another reader is in the middle of the stretch: two that took it from each other would
 * get nowhere. */
static bool keeping_is_wanted(const struct job *job)
{
    const struct keeping *keeping = &job->lending.keeping;

    return keeping_holds(job) && !keeping->writes &&
           keeping->next < keeping->first + keeping->count &&
           job->core->now_us < keeping->used_us + KEEPING_US;
}

/* Saves a stretch that begins with the piece. */
static enum adtopk_status keeping_fetch(
    struct job *job, const struct event_keep *keep, struct error *err)
{
    struct keeping *keeping = &job->lending.keeping;
    const uint64_t left = keeping_floats(job, keep->tensor, keep->section) - keep->first;

    if (keeping_is_wanted(job)) {
        return error_set(err, ADTOPK_PENDING, "another rank reads residuals");
    }
    if (keeping_flush(job, err) != ADTOPK_OK || keeping_make_room(job, err) != ADTOPK_OK) {
        return err->code;
    }
    keeping_begin(job, keep);
    keeping->count = left < keeping->room ? left : keeping->room;
    return keeping_run(job, err);
}

enum adtopk_status keeping_read_array(struct job *job, struct event_keep *keep, struct error *err)
{
    struct keeping *keeping = &job->lending.keeping;

    keep->size = keep->count * sizeof(float);
    if (keep->count == 0) {
        return ADTOPK_OK;
    }
    if (!keeping_has(job, keep) && keeping_fetch(job, keep, err) != ADTOPK_OK) {
        return err->code;
    }
    (void)memcpy(keep->bytes, &keeping->value[keep->first - keeping->first], keep->size);
    keeping->next = keep->first + keep->count;
    keeping->used_us = job->core->now_us;
    return ADTOPK_OK;
}

enum adtopk_status keeping_read_elements(
    struct job *job, struct event_keep *keep, struct error *err)
{
    keep->section = KEEPING_READ;
    return keeping_read_array(job, keep, err);
}

/* ------------------------------------------------------------------ writing */

/* A piece brings carries if it is longer than its elements. */
static bool keeping_brings_carries(const struct event_keep *keep)
{
    return keep->size > keep->count * sizeof(float);
}

/* Whether the piece may be copied into the stretch. */
static bool keeping_continues(const struct job *job, const struct event_keep *keep)
{
    const struct keeping *keeping = &job->lending.keeping;

    return keeping_is_of(keeping, keep) && keeping->carries == keeping_brings_carries(keep) &&
           keeping->policies == job->store->policies &&
           keep->first <= keeping->first + keeping->count &&
           keep->first + keep->count <= keeping->first + keeping->room;
}

static void keeping_append(struct keeping *keeping, const struct event_keep *keep)
{
    const uint64_t at = keep->first - keeping->first;
    const size_t size = keep->count * sizeof(float);

    (void)memcpy(&keeping->value[at], keep->bytes, size);
    if (keeping->carries) {
        (void)memcpy(&keeping->carry[at / CHUNK], keep->bytes + size, keep->size - size);
    }
    keeping->count = at + keep->count > keeping->count ? at + keep->count : keeping->count;
}

static bool keeping_any(const float *values, uint32_t count)
{
    bool any = false;

    for (uint32_t i = 0; i < count; i++) {
        any |= values[i] != 0;
    }
    return any;
}

enum adtopk_status keeping_write_array(
    struct job *job, const struct event_keep *keep, struct error *err)
{
    const float *values = (const float *)(const void *)keep->bytes;
    const uint32_t floats = (uint32_t)(keep->size / sizeof(float));

    if (!checkpoint_are_valid(values, floats)) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "the checkpoint has values of tensor '%s' that are not finite, or too large",
            job->tensor[keep->tensor].spec.name);
    }
    if (!keeping_continues(job, keep)) {
        if (keeping_flush(job, err) != ADTOPK_OK || keeping_make_room(job, err) != ADTOPK_OK) {
            return err->code;
        }
        keeping_begin(job, keep);
        job->lending.keeping.carries = keeping_brings_carries(keep);
    }
    if (keeping_any(values, floats)) {
        store_note_filled(job->tensor[keep->tensor].store);
    }
    keeping_append(&job->lending.keeping, keep);
    return keeping_is_near(job) ? keeping_flush(job, err) : ADTOPK_OK;
}

enum adtopk_status keeping_flush(struct job *job, struct error *err)
{
    if (!job->lending.keeping.writes || job->lending.keeping.count == 0) {
        return ADTOPK_OK;
    }
    if (job->lending.keeping.policies != job->store->policies) {
        return error_set(err, ADTOPK_ERR_STATE,
            "the policy of the job changed while a checkpoint was being loaded: open the job "
            "again");
    }
    return keeping_run(job, err);
}
