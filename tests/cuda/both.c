#include "tests/cuda/both.h"
#include "kernels/base/convert.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/chunk.h"
#include "kernels/cuda/scratch.h"
#include "tests/cuda/device_code.h"
#include "tests/cuda/placed.h"
#include "tests/host/fused_run.h"

enum { SCRATCH_BYTE = 0xab };

/* ------------------------------------------------------------------ the host's side */

/* A view of about n elements: rows, or fibres of some stride. */
static struct view both_view(struct input *input, uint64_t n)
{
    const uint64_t stride = input_below(input, 2) == 0 ? 1 : 1 + input_below(input, 40);
    const uint64_t length = input_size(input, n / stride + 1);
    const uint64_t slabs = n / (length * stride);
    return (struct view){
        .fibres = (slabs > 0 ? slabs : 1) * stride, .length = length, .stride = stride};
}

/* What the elements in bf16 are. */
static void both_read(struct both_tensor *t)
{
    const uint64_t n = view_size(&t->view);
    for (uint64_t first = 0; first < n; first += CHUNK) {
        const uint64_t rest = n - first;
        rounded_read(
            &t->rounded, first, rest < CHUNK ? (unsigned)rest : CHUNK, t->residual + first);
    }
}

/* A residual in bf16, with some carries. Its elements are what bf16 can hold. */
static void both_round(struct input *input, struct both_tensor *t)
{
    const uint64_t n = view_size(&t->view);
    t->halves = input_memory(rounded_size(n), 0);
    t->rounded = rounded_at(t->halves, n);
    t->rounded.salt = input_next(input);
    rounded_from(&t->rounded, t->residual, n);
    both_read(t);
}

static void both_host_make(struct input *input, struct both_tensor *t, uint64_t most, bool rounded)
{
    const uint64_t n = input_size(input, most);
    const bool fibres = input_below(input, 2) == 0;
    t->view = fibres ? both_view(input, n) : (struct view){.fibres = 1, .length = n, .stride = 1};
    t->kind = (enum input_kind)input_below(input, INPUT_KINDS);
    /* An eighth at most, and now and then nearly all. */
    t->k = input_size(input, input_below(input, 8) == 0 ? t->view.length : t->view.length / 8 + 1);
    const uint64_t entries = t->view.fibres * t->k;
    t->residual = input_memory(view_size(&t->view) * sizeof(float), 0);
    t->progress = input_memory(progress_size(view_size(&t->view)), 0);
    t->list = (struct sparse){.position = input_memory(entries * sizeof(uint32_t), 0),
        .value = input_memory(entries * sizeof(float), 0),
        .capacity = entries};
    t->fresh = input_below(input, 3) == 0;
    t->sums[0] = 3;
    t->sums[1] = -5;
    input_fill(input, t->kind, DTYPE_F32, view_size(&t->view), t->residual);
    placed_tame(t->residual, view_size(&t->view));
    if (rounded) {
        both_round(input, t);
    } else if (input_below(input, 2) == 0) {
        t->velocity = input_memory(view_size(&t->view) * sizeof(float), 0);
        input_fill(input, INPUT_NORMAL, DTYPE_F32, view_size(&t->view), t->velocity);
    }
}

/* What pass_prepare() of daemon/engine/host_pass.c does. */
static void both_host_clip(struct fused *pass, const struct add_clip *clip)
{
    const struct parallel alone = {.threads = 0};
    const double norm = fused_gradient_norm(pass, &alone) * (double)pass->scale;
    const float factor = norm > clip->limit ? (float)(clip->limit / norm) : 1.0f;
    pass->scale = fmaxf(factor * pass->scale, FLT_MIN);
    if (clip->after != 0 && clip->after != 1) {
        pass->scale = fmaxf(clip->after * pass->scale, FLT_MIN);
    }
}

static void both_host_add(struct both_tensor *t, const struct add_tensor *device)
{
    struct fused pass = {.residual = t->halves == NULL ? t->residual : NULL,
        .rounded = t->rounded,
        .view = t->view,
        .k = device->mode == ADD_NOTHING ? 0 : t->k,
        .per_fibre = device->mode == ADD_FIBRES,
        .gradients = (const void *const *)t->gradient,
        .count = device->gradients,
        .dtype = (enum dtype)device->dtype,
        .scale = device->scale,
        .withdraw = device->withdraw != 0,
        .momentum = t->velocity,
        .mu = device->momentum.mu,
        .nesterov = device->momentum.nesterov != 0,
        .decay = {.share = device->decay, .lost = t->lost},
        .stamp = device->stamp + 1ull, /* never 0 */
        .progress = t->progress,
        .out = &t->list,
        .ranges = 1};
    pass.scratch = aligned_alloc(
        64, (fused_scratch(&pass.view, pass.k, pass.per_fibre, 1) + 63) / 64 * 64 + 64);
    if (pass.scratch == NULL) {
        abort();
    }
    if (device->clip != NULL) {
        both_host_clip(&pass, device->clip);
    }
    t->list.count = 0;
    t->nonfinite = fused_run(&pass, NULL, t->sums);
    free(pass.scratch);
    if (t->halves != NULL) {
        both_read(t);
    }
}

void both_host(struct both *both)
{
    for (unsigned i = 0; i < both->tensors; i++) {
        both_host_add(&both->host[i], &both->device[i]);
    }
}

/* ------------------------------------------------------------------ the device's side */

/* Room for candidates: mostly enough, sometimes too little. */
static uint32_t both_room(struct input *input, const struct add_tensor *device)
{
    const uint64_t enough = device->mode == ADD_TOP ? device->k * CHUNK / device->numel * 2 + 64
                                                    : device->k + 8 + input_below(input, 64);
    if (device->mode == ADD_TOP && input_below(input, 4) == 0) {
        return 1 + (uint32_t)input_below(input, enough);
    }
    return (uint32_t)(enough < device->view.length || device->mode == ADD_TOP
                          ? enough
                          : device->view.length);
}

/* Short fibres have none. */
static float *both_hints(struct input *input, const struct add_tensor *device)
{
    const bool none = device->mode == ADD_FIBRES && input_below(input, 4) == 0;

    return none ? NULL : input_memory(device->view.fibres * sizeof(float), 0);
}

/* Mostly none. */
static float both_scale(struct input *input)
{
    static const float some[] = {0, 0, 1, 0x1p-16f, 0.3f, 0x1p-126f, 0x1p100f};
    return some[input_below(input, sizeof some / sizeof *some)];
}

static struct add_clip *both_clip(struct input *input, uint64_t numel)
{
    static const double some[] = {0x1p-140, 0.125, 3, 100, 0x1p100};
    struct add_clip *const clip = input_memory(sizeof *clip, SCRATCH_BYTE);
    clip->limit = some[input_below(input, sizeof some / sizeof *some)];
    clip->after = both_scale(input);
    clip->chunk = input_memory(chunk_count(numel) * sizeof(double), SCRATCH_BYTE);
    return clip;
}

/* Momentum correction and clipping. */
static void both_prepare(struct both *both, struct both_tensor *t, struct add_tensor *device)
{
    static const float some[] = {0, 0.9f, 0.5f, 0x1p-20f};
    static const float shares[] = {0.1f, 0.5f, 1, 0x1p-20f};
    struct input *const input = &both->input;
    if (t->velocity != NULL) {
        device->velocity = input_memory(chunk_count(device->numel) * sizeof(uint64_t), 0);
        device->momentum.mu = some[input_below(input, sizeof some / sizeof *some)];
        device->momentum.nesterov = (uint32_t)input_below(input, 2);
    } else if (!both->rounded && input_below(input, 3) == 0) {
        device->decay = shares[input_below(input, sizeof shares / sizeof *shares)];
    }
    if (input_below(input, 3) == 0) {
        device->scale = device->scale > 0 ? device->scale : 1;
        device->clip = both_clip(input, device->numel);
    }
}

static void both_hold(struct both *both, const struct both_tensor *t, float *host, uint64_t *entry)
{
    const uint64_t numel = view_size(&t->view);
    both->held[both->helds++] = (struct both_held){.numel = numel,
        .host = host,
        .rounded = both->rounded ? &t->rounded : NULL,
        .entry = entry,
        .home = 1 + both->homes,
        .fresh = t->fresh};
    both->homes += (uint32_t)chunk_count(numel);
}

static void both_device_make(struct both *both, struct both_tensor *t, struct add_tensor *device)
{
    struct input *const input = &both->input;
    const uint64_t fibres = t->view.fibres;
    device->numel = view_size(&t->view);
    device->dtype = (uint32_t)input_below(input, DTYPE_COUNT);
    device->gradients = input_below(input, 3) == 0 ? BOTH_GRADIENTS : 1;
    device->gradient = (const void *const *)t->gradient;
    device->stamp = (uint32_t)input_next(input);
    device->mode = fibres > 1 ? (uint32_t)ADD_FIBRES : (uint32_t)input_below(input, 3);
    device->withdraw = device->mode == ADD_NOTHING && input_below(input, 2) == 0;
    device->scale = both_scale(input);
    device->view = t->view;
    device->k = t->k;
    device->room = both_room(input, device);
    device->hints = both_hints(input, device);
    device->position = input_memory(fibres * t->k * sizeof(uint32_t), 0);
    device->value = input_memory(fibres * t->k * sizeof(float), 0);
    device->result = input_memory(sizeof(struct add_result), SCRATCH_BYTE);
    device->ledger.input = t->before;
    device->ledger.lost = t->before_lost;
    device->before = input_memory(sizeof *device->before, 0);
    for (unsigned g = 0; g < BOTH_GRADIENTS; g++) {
        t->pushed[g] = input_memory(device->numel * dtype_size((enum dtype)device->dtype), 0);
    }
    device->entry = input_memory(chunk_count(device->numel) * sizeof(uint64_t), 0);
    both_prepare(both, t, device);
    device->home = 1 + both->homes;
    both_hold(both, t, t->residual, device->entry);
    if (t->velocity != NULL) {
        device->momentum.home = 1 + both->homes;
        both_hold(both, t, t->velocity, device->velocity);
    }
}

static uint32_t both_chunks(const struct both_held *held)
{
    return (uint32_t)chunk_count(held->numel);
}

/* The elements of a chunk on the device. */
static void both_chunk(const struct both *both, uint64_t entry, float x[CHUNK])
{
    const struct slots *const slots = &both->batch.slots;
    const uint64_t slot = slot_of(entry);
    for (uint32_t i = 0; i < CHUNK; i++) {
        x[i] = both->rounded ? convert_bf16(slots->half[slot * CHUNK + i])
                             : slots->element[slot * CHUNK + i];
    }
}

static void both_put(const struct both *both, uint64_t slot, uint64_t i, float x)
{
    const struct slots *const slots = &both->batch.slots;
    if (both->rounded) {
        slots->half[slot * CHUNK + i] = (uint16_t)(convert_bits(x) >> 16);
    } else {
        slots->element[slot * CHUNK + i] = x;
    }
}

/* Puts chunks into slots that were drawn, and the elements there. The stamp is one before the
 * first pass's. */
static void both_place(
    struct both *both, const struct both_held *held, uint32_t stamp, const uint32_t *slot)
{
    for (uint64_t c = 0; c < chunk_count(held->numel); c++) {
        held->entry[c] = slot_entry(stamp, slot[c]);
        both->batch.slots.owner[slot[c]] = slot_owner(&both->batch.slots, &held->entry[c]);
        for (uint64_t e = 0; e < CHUNK; e++) {
            const uint64_t element = c * CHUNK + e;
            both_put(both, slot[c], e, element < held->numel ? held->host[element] : 0);
        }
        if (both->rounded) {
            both->batch.slots.carry[slot[c]] = held->rounded->carry[c];
        }
    }
}

/* Makes zeros of slots. */
static void both_empty(const struct both *both, uint64_t first, uint64_t count)
{
    const struct slots *const slots = &both->batch.slots;
    if (both->rounded) {
        memset(slots->half + first * CHUNK, 0, count * CHUNK * sizeof *slots->half);
        memset(slots->carry + first, 0, count * sizeof *slots->carry);
    } else {
        memset(slots->element + first * CHUNK, 0, count * CHUNK * sizeof *slots->element);
    }
}

/* What was never written: its homes are zeros, as memory is at first. */
static void both_leave_fresh(struct both *both, const struct both_held *held)
{
    memset(held->host, 0, held->numel * sizeof(float));
    if (both->rounded) {
        memset(held->rounded->element, 0, rounded_size(held->numel));
    }
    both_empty(both, held->home, both_chunks(held));
}

/* Slots but the homes of what is fresh, in a random order. Returns how many. */
static uint32_t both_draw_slots(struct both *both, uint32_t *slot)
{
    uint32_t count = 0;
    for (uint32_t s = 1; s < both->slot_count; s++) {
        bool taken = s > both->homes && s < both->batch.slots.homes;
        for (unsigned h = 0; h < both->helds; h++) {
            const struct both_held *const held = &both->held[h];
            taken = taken || (held->fresh && s >= held->home && s < held->home + both_chunks(held));
        }
        const uint32_t other = taken ? 0 : (uint32_t)input_below(&both->input, ++count);
        if (!taken) {
            slot[count - 1] = slot[other];
            slot[other] = s;
        }
    }
    return count;
}

/* A slot that had an owner, which is elsewhere now. */
static void both_disown(struct both *both, uint32_t slot)
{
    for (unsigned i = 0; i < both->tensors; i++) {
        if (!both->host[i].fresh) {
            both->batch.slots.owner[slot] = slot_owner(&both->batch.slots, both->device[i].entry);
        }
    }
}

/* The homes of a tensor that is not in the batch and was never written. */
static uint64_t both_absent(const struct both *both)
{
    return 1 + both->homes;
}

struct slots both_velocities(const struct slots *slots)
{
    struct slots velocities = *slots;
    velocities.spare = slots->spare + BOTH_BLOCKS;
    return velocities;
}

static void both_slots_make(struct both *both, uint32_t spares)
{
    struct slots *const slots = &both->batch.slots;
    const uint32_t homes = 1 + both->homes + BOTH_ABSENT;
    const uint32_t count = homes + spares;
    both->slot_count = count;
    if (both->rounded) {
        slots->half = input_memory(count * sizeof *slots->half * CHUNK, 0x55);
        slots->carry = input_memory(count * sizeof *slots->carry, 0x55);
    } else {
        slots->element = input_memory(count * sizeof(float) * CHUNK, 0x55);
    }
    slots->record = input_memory(count * sizeof *slots->record, 0x55);
    slots->spare = input_memory(BOTH_SPARES * sizeof *slots->spare, 0xff);
    slots->owner = input_memory(count * sizeof *slots->owner, 0);
    slots->found = input_memory(sizeof *slots->found, 0xff);
    slots->entries = both->device[0].entry;
    slots->first = 1;
    slots->homes = homes;
    both_empty(both, both_absent(both), BOTH_ABSENT);
    slots->count = count;
    slots->spares = BOTH_SPARES;
    both->batch.velocities = both_velocities(slots);
}

/* The stamp of the tensor before its first turn. */
static uint32_t both_stamp(const struct both *both, const struct both_held *held)
{
    unsigned i = 0;
    while (both->device[i].entry != held->entry && both->device[i].velocity != held->entry) {
        i++;
    }
    return both->device[i].stamp;
}

static void both_slots(struct both *both, uint32_t spares)
{
    both_slots_make(both, spares);
    uint32_t *const slot = input_memory(both->slot_count * sizeof *slot, 0);
    const uint32_t drawn = both_draw_slots(both, slot);
    uint32_t next = 0;
    for (unsigned h = 0; h < both->helds; h++) {
        const struct both_held *const held = &both->held[h];
        if (held->fresh) {
            both_leave_fresh(both, held);
        } else {
            both_place(both, held, both_stamp(both, held), slot + next);
            next += both_chunks(held);
        }
    }
    for (; next < drawn; next++) {
        if (slot[next] < both->batch.slots.homes) {
            both_disown(both, slot[next]);
        }
    }
    input_free(slot);
}

void both_make(struct both *both, uint64_t seed, uint64_t most, uint32_t spares)
{
    memset(both, 0, sizeof *both);
    both->input.state = seed;
    both->rounded = input_below(&both->input, 3) == 0;
    both->tensors = 1 + (unsigned)input_below(&both->input, BOTH_TENSORS);
    both->device = input_memory(both->tensors * sizeof *both->device, 0);
    both->batch.tensor = both->device;
    both->batch.tensors = both->tensors;
    both->batch.steps = input_memory(sizeof *both->batch.steps, SCRATCH_BYTE);
    for (unsigned i = 0; i < both->tensors; i++) {
        both_host_make(&both->input, &both->host[i], most / both->tensors + 1, both->rounded);
        both_device_make(both, &both->host[i], &both->device[i]);
        both->device[i].first = both->batch.chunks;
        both->batch.chunks += (uint32_t)chunk_count(both->device[i].numel);
        both->batch.top |= both->device[i].mode == ADD_TOP;
        both->batch.fibres |= both->device[i].mode == ADD_FIBRES;
    }
    both_slots(both, spares);
}

void both_drop(struct both *both)
{
    for (unsigned i = 0; i < both->tensors; i++) {
        struct both_tensor *const t = &both->host[i];
        struct add_tensor *const device = &both->device[i];
        for (unsigned g = 0; g < BOTH_GRADIENTS; g++) {
            input_free(t->pushed[g]);
        }
        input_free(t->residual);
        input_free(t->progress);
        input_free(t->list.position);
        input_free(t->list.value);
        input_free(device->hints);
        input_free(device->position);
        input_free(device->value);
        input_free(device->result);
        input_free(device->before);
        input_free(device->entry);
        input_free(device->scratch);
        input_free(t->halves);
        input_free(t->velocity);
        input_free(device->velocity);
        if (device->clip != NULL) {
            input_free(device->clip->chunk);
        }
        input_free(device->clip);
    }
    input_free(both->batch.steps);
    input_free(both->batch.slots.element);
    input_free(both->batch.slots.half);
    input_free(both->batch.slots.carry);
    input_free(both->batch.slots.record);
    input_free(both->batch.slots.spare);
    input_free(both->batch.slots.owner);
    input_free(both->batch.slots.found);
    input_free(both->device);
}

/* ------------------------------------------------------------------ a turn */

void both_attempt(struct both *both)
{
    for (unsigned i = 0; i < both->tensors; i++) {
        input_free(both->device[i].scratch);
        both->device[i].scratch = input_memory(scratch_size(&both->device[i]), SCRATCH_BYTE);
    }
}

void both_push(struct both *both)
{
    struct input *const input = &both->input;
    for (unsigned i = 0; i < both->tensors; i++) {
        struct both_tensor *const t = &both->host[i];
        struct add_tensor *const device = &both->device[i];
        const enum dtype dtype = (enum dtype)device->dtype;
        device->stamp++;
        device->rounding = rounded_pass(device->stamp + 1ull, t->rounded.salt);
        memcpy(t->before, t->sums, sizeof t->sums);
        memcpy(t->before_lost, t->lost, sizeof t->lost);
        for (unsigned g = 0; g < BOTH_GRADIENTS; g++) {
            const bool there = input_below(input, device->gradients == 1 ? 16 : 3) != 0;
            t->gradient[g] = there && g < device->gradients ? t->pushed[g] : NULL;
            if (t->gradient[g] != NULL) {
                input_fill(input, t->kind, dtype, device->numel, t->gradient[g]);
            }
        }
        device->plain = !both->rounded && add_is_plain(device, t->gradient[0]);
    }
    both_attempt(both);
}

void both_add(struct both *both)
{
    static launch_kernel *const add[] = {
#define BOTH_RUN(name, type) run_##name,
        CUDA_CLIP(BOTH_RUN) CUDA_ADD(BOTH_RUN)
#undef BOTH_RUN
    };
    for (size_t i = 0; i < sizeof add / sizeof *add; i++) {
        const struct launch how = input_launch(&both->input);
        launch(&how, add[i], &both->batch);
    }
}

/* ------------------------------------------------------------------ comparison */

static bool both_differ(unsigned tensor, const struct add_tensor *t, const char *what, uint64_t at)
{
    fprintf(stderr,
        "tensor %u (%llu elements, mode %u, %llu fibres, stride %llu, k %llu, room %u): %s %llu "
        "differs\n",
        tensor, (unsigned long long)t->numel, t->mode, (unsigned long long)t->view.fibres,
        (unsigned long long)t->view.stride, (unsigned long long)t->k, t->room, what,
        (unsigned long long)at);
    return false;
}

static bool both_same_carry(const struct both *both, unsigned i, uint64_t chunk)
{
    const uint64_t slot = slot_of(both->device[i].entry[chunk]);
    return !both->rounded || memcmp(&both->batch.slots.carry[slot],
                                 &both->host[i].rounded.carry[chunk], sizeof(struct carry)) == 0;
}

static bool both_same_chunk(const struct both *both, unsigned i, uint64_t chunk)
{
    const struct add_tensor *const device = &both->device[i];
    const struct both_tensor *const host = &both->host[i];
    const uint64_t rest = device->numel - chunk * CHUNK;
    const struct slot_record *const record =
        &both->batch.slots.record[slot_of(device->entry[chunk])];
    float expected[CHUNK] = {0}, found[CHUNK];
    memcpy(expected, host->residual + chunk * CHUNK, (rest < CHUNK ? rest : CHUNK) * sizeof(float));
    both_chunk(both, device->entry[chunk], found);
    return memcmp(expected, found, sizeof expected) == 0 && both_same_carry(both, i, chunk) &&
           device->entry[chunk] >> 32 == device->stamp &&
           memcmp(record->sums, host->progress->chunk[chunk].sums, sizeof record->sums) == 0 &&
           (device->decay == 0 ||
               memcmp(record->lost, host->progress->chunk[chunk].lost, sizeof record->lost) == 0) &&
           record->nonfinite == host->progress->chunk[chunk].nonfinite;
}

static bool both_same_velocity(const struct both *both, unsigned i, uint64_t chunk)
{
    const struct add_tensor *const device = &both->device[i];
    const uint64_t rest = device->numel - chunk * CHUNK;
    float expected[CHUNK] = {0}, found[CHUNK];
    if (device->velocity == NULL) {
        return true;
    }
    memcpy(expected, both->host[i].velocity + chunk * CHUNK,
        (rest < CHUNK ? rest : CHUNK) * sizeof(float));
    both_chunk(both, device->velocity[chunk], found);
    return memcmp(expected, found, sizeof expected) == 0 &&
           device->velocity[chunk] >> 32 == device->stamp;
}

static bool both_same_list(const struct both *both, unsigned i)
{
    const struct add_tensor *const device = &both->device[i];
    const struct sparse *const list = &both->host[i].list;
    if (device->result->count != list->count) {
        return both_differ(i, device, "count", device->result->count);
    }
    for (uint64_t e = 0; e < list->count; e++) {
        if (device->position[e] != list->position[e] ||
            memcmp(&device->value[e], &list->value[e], sizeof(float)) != 0) {
            return both_differ(i, device, "entry", e);
        }
    }
    return true;
}

static float both_value(const struct both_tensor *host, enum dtype dtype, unsigned g, uint64_t i)
{
    const void *const from = host->gradient[g];
    if (from == NULL) {
        return 0;
    }
    switch (dtype) {
    case DTYPE_F16: return convert_f16(((const uint16_t *)from)[i]);
    case DTYPE_BF16: return convert_bf16(((const uint16_t *)from)[i]);
    default: return ((const float *)from)[i];
    }
}

/* What host_fault() of daemon/engine/host.c says. */
static struct add_fault both_fault(const struct both *both, unsigned i)
{
    const struct both_tensor *const host = &both->host[i];
    const uint64_t n = host->nonfinite > 0 ? both->device[i].numel : 0;
    for (uint64_t e = 0; e < n; e++) {
        for (unsigned g = 0; g < BOTH_GRADIENTS; g++) {
            const float value = both_value(host, (enum dtype)both->device[i].dtype, g, e);
            if (!(fabsf(value) < KERNEL_FINITE_LIMIT)) {
                return (struct add_fault){e, g, 1, value};
            }
        }
    }
    return (struct add_fault){.found = 0};
}

static bool both_same_fault(const struct both *both, unsigned i)
{
    const struct add_fault expected = both_fault(both, i);
    const struct add_fault *const found = &both->device[i].result->fault;
    return found->element == expected.element && found->part == expected.part &&
           found->found == expected.found &&
           memcmp(&found->value, &expected.value, sizeof expected.value) == 0;
}

static bool both_same_absent(const struct both *both)
{
    for (uint32_t a = 0; a < BOTH_ABSENT; a++) {
        float x[CHUNK];
        both_chunk(both, both_absent(both) + a, x);
        for (uint32_t i = 0; i < CHUNK; i++) {
            if (x[i] != 0) {
                return both_differ(0, both->device, "slot of another tensor", i);
            }
        }
    }
    return true;
}

bool both_compare(const struct both *both)
{
    if (!both_same_absent(both)) {
        return false;
    }
    for (unsigned i = 0; i < both->tensors; i++) {
        const struct add_tensor *const device = &both->device[i];
        const struct both_tensor *const host = &both->host[i];
        for (uint64_t c = 0; c < chunk_count(device->numel); c++) {
            if (!both_same_chunk(both, i, c)) {
                return both_differ(i, device, "chunk", c);
            }
            if (!both_same_velocity(both, i, c)) {
                return both_differ(i, device, "velocity of chunk", c);
            }
        }
        if (memcmp(device->result->sums, host->sums, sizeof host->sums) != 0 ||
            (device->decay > 0 &&
                memcmp(device->result->lost, host->lost, sizeof host->lost) != 0) ||
            device->result->nonfinite != host->nonfinite) {
            return both_differ(i, device, "ledger of turn", device->stamp);
        }
        if (!both_same_fault(both, i)) {
            return both_differ(i, device, "fault", device->result->fault.element);
        }
        if (!both_same_list(both, i)) {
            return false;
        }
    }
    return true;
}

bool both_compare_lists(const struct both *both)
{
    bool same = true;
    for (unsigned i = 0; i < both->tensors && same; i++) {
        same = both_same_list(both, i);
    }
    return same;
}

void both_spoil(struct both *both)
{
    for (unsigned i = 0; i < both->tensors; i++) {
        struct both_tensor *const host = &both->host[i];
        const uint64_t n = both->device[i].numel;
        for (uint64_t times = host->halves == NULL ? 1 + n / 1000 : 0; times-- > 0;) {
            const uint64_t element = input_below(&both->input, n);
            host->residual[element] = NAN;
            both_put(both, slot_of(both->device[i].entry[element / CHUNK]), element % CHUNK, NAN);
        }
    }
}

void both_leave(struct both *both)
{
    for (unsigned i = 0; i < both->tensors; i++) {
        const struct sparse *const list = &both->host[i].list;
        for (uint64_t e = 0; e < list->count; e++) {
            const uint64_t element = view_element(&both->host[i].view, list->position[e]);
            both->host[i].residual[element] = 0;
            if (both->rounded) {
                both->host[i].rounded.element[element] = 0;
            }
            both_put(both, slot_of(both->device[i].entry[element / CHUNK]), element % CHUNK, 0);
        }
    }
}
