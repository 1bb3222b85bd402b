#include "planner_world.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/perf/models.h"

#define BUCKETS_MAX 4096
#define WORKERS_MAX 16
#define WORLD_SAMPLES 9
#define PARTS 64

struct bucket {
    enum choice choice;
    uint64_t elements, entries;
    double ready, exchanged;
};

double world_random(uint64_t *random)
{
    *random += 0x9e3779b97f4a7c15u;
    uint64_t x = *random;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (double)((x ^ x >> 31) >> 11) * 0x1p-53;
}

static double factor(struct world *world, double least, double most)
{
    return least * pow(most / least, world_random(&world->random));
}

static double noisy(struct world *world, double us)
{
    double sum = -6;

    for (int i = 0; i < 12; i++) {
        sum += world_random(&world->random);
    }
    return us * fmax(1 + world->noise * sum, 0.1);
}

static void draw_costs(struct world *world)
{
    static const double select[CHOICES] = {1.4, 1.1, 0.5, 0.5, 0.5, 0.5};
    static const double reduce[CHOICES] = {1.3, 1.5, 0.25, 0.25, 0.25, 0.25};

    for (unsigned c = 0; c < CHOICES; c++) {
        bool sparse = c >= CHOICE_ALLGATHER;
        /* The pass is the same for all sparse choices. */
        world->select_element[c] = c > CHOICE_ALLGATHER ? world->select_element[CHOICE_ALLGATHER]
                                                        : select[c] * factor(world, 0.6, 1.6);
        world->reduce_element[c] = reduce[c] * factor(world, 0.6, 1.6);
        world->select_entry[c] = sparse ? factor(world, 2, 6) : 0;
        world->reduce_entry[c] = sparse ? factor(world, 4, 16) : 0;
        world->bytes[c] = factor(world, 0.95, 1.15);
    }
    world->settle_element = factor(world, 0.2, 0.6);
    world->settle_entry = factor(world, 3, 10);
    world->bucket_us = factor(world, 10, 60);
    world->message_us = factor(world, 3, 20);
    world->copy_ns = factor(world, 0.2, 0.8);
    world->round_trip_us = factor(world, 20, 150);
    world->step_us = factor(world, 100, 1000);
}

static double arrival_of(enum world_pattern pattern, uint32_t t, uint32_t tensors, double backward)
{
    double place = (t + 1.0) / tensors;

    switch (pattern) {
    case WORLD_BACKWARD: return backward * (1 - place);
    case WORLD_FORWARD: return backward * place;
    case WORLD_LATE: return backward * (t == tensors - 1 ? 0 : 0.9 + 0.1 * (1 - place));
    default: return 0;
    }
}

void world_init(struct world *world, unsigned model, enum world_pattern pattern, double backward_us,
    uint64_t seed)
{
    struct model_tensor tensor;

    *world = (struct world){.nodes = 4, .threads = 4, .noise = 0.05, .random = seed};
    world->gamma = 2.5;
    while (models_tensor(model, world->tensors, &tensor)) {
        world->tensors++;
    }
    world->tensor = calloc(world->tensors, sizeof(*world->tensor));
    world->arrival_us = calloc(world->tensors, sizeof(*world->arrival_us));
    for (uint32_t t = 0; t < world->tensors; t++) {
        struct planner_tensor *one = &world->tensor[t];
        (void)models_tensor(model, t, &tensor);
        one->numel = 1;
        for (unsigned d = 0; d < tensor.shape.dims; d++) {
            one->numel *= tensor.shape.size[d];
        }
        one->count = one->numel / 100 + 1;
        one->allowed = tensor.shape.dims > 1 ? (1u << CHOICES) - 1 : 3;
        world->arrival_us[t] = arrival_of(pattern, t, world->tensors, backward_us);
    }
    draw_costs(world);
    world_link(world, 0);
}

void world_free(struct world *world)
{
    free(world->tensor);
    free(world->arrival_us);
}

void world_link(struct world *world, double gbit_s)
{
    world->byte_ns = gbit_s > 0 ? 8 / gbit_s : 0;
}

static unsigned form_buckets(
    const struct world *world, const struct choices *plan, struct bucket *bucket)
{
    unsigned buckets = 0;

    for (unsigned c = 0; c < CHOICES; c++) {
        uint64_t bytes = 0;
        for (uint32_t t = 0; t < world->tensors; t++) {
            uint64_t size = 4 * world->tensor[t].numel;
            if (plan->choice[t] != c) {
                continue;
            }
            if (bytes == 0 || bytes + size > plan->bucket_bytes) {
                bucket[buckets++] = (struct bucket){.choice = (enum choice)c};
                bytes = 0;
            }
            bytes += size;
            bucket[buckets - 1].elements += world->tensor[t].numel;
            bucket[buckets - 1].entries += c >= CHOICE_ALLGATHER ? world->tensor[t].count : 0;
            bucket[buckets - 1].ready = fmax(bucket[buckets - 1].ready, world->arrival_us[t]);
        }
    }
    return buckets;
}

static int by_ready(const void *a, const void *b)
{
    const struct bucket *one = a, *other = b;

    return one->ready < other->ready ? -1 : one->ready > other->ready;
}

struct phases {
    unsigned hops;
    double messages, bytes;
};

static struct phases phases_of(const struct world *world, const struct bucket *bucket)
{
    double p = world->nodes, n = (double)bucket->elements, k = (double)bucket->entries;
    double others = (p - 1) / p, sum = fmin(world->gamma * k, n), hops = log2(p);
    struct phases phases = {.hops = 1};

    switch (bucket->choice) {
    case CHOICE_DENSE:
        phases = (struct phases){(unsigned)(2 * hops), 2 * hops, 8 * n * others};
        break;
    case CHOICE_DENSE_BF16: phases = (struct phases){2, 2 * (p - 1), 6 * n * others}; break;
    case CHOICE_ALLGATHER: phases = (struct phases){1, p - 1, 3 * k * (p - 1)}; break;
    case CHOICE_BALANCED: phases = (struct phases){2, 2 * (p - 1), 3 * (k + sum) * others}; break;
    case CHOICE_OKTOPK:
        phases = (struct phases){4, 4 * (p - 1), 6 * k * others + 300 * (p - 1)};
        break;
    default:
        phases = (struct phases){(unsigned)hops, hops, 3 * k};
        for (double some = 2; some < p; some *= 2) {
            phases.bytes += 5 * k * pow(some, log(world->gamma) / log(p));
        }
        break;
    }
    phases.bytes = phases.bytes * world->bytes[bucket->choice] + 180 * phases.messages;
    return phases;
}

/* Cost of a bucket's sum per entry of a contribution. */
static double summed(const struct world *world, enum choice choice)
{
    double p = world->nodes;

    return choice == CHOICE_ALLGATHER  ? p
           : choice == CHOICE_BALANCED ? 1 + world->gamma
           : choice == CHOICE_OKTOPK   ? 3
                                       : 1.5 * world->gamma + log2(p);
}

/* Runs a compute on one worker or, if it is large, in parts that free workers take. Returns its
 * end; *took is how long it ran. */
static double run(double *worker, const struct world *world, uint64_t elements, double ready,
    double us, double *took)
{
    unsigned share = (unsigned)(elements >> 18);
    unsigned parts = share < 2 ? 1 : share < PARTS ? share : PARTS;
    double begin = INFINITY, end = 0;

    for (unsigned p = 0; p < parts; p++) {
        unsigned first = 0;
        double start;
        for (unsigned w = 1; w < world->threads; w++) {
            first = worker[w] < worker[first] ? w : first;
        }
        start = fmax(ready, worker[first]);
        worker[first] = start + us / parts * (parts > 1 ? 1.05 : 1);
        begin = fmin(begin, start);
        end = fmax(end, worker[first]);
    }
    *took = end - begin;
    return end;
}

/* A step under way. */
struct running {
    struct world *world;
    struct estimates *estimates;
    struct bucket bucket[BUCKETS_MAX];
    unsigned buckets, summed;
    double worker[WORKERS_MAX], link, end;
};

static void sum_one(struct running *step, struct bucket *bucket)
{
    struct world *world = step->world;
    enum choice c = bucket->choice;
    double took,
        us = world->bucket_us +
             1e-3 * (world->reduce_element[c] * (double)bucket->elements +
                        world->reduce_entry[c] * summed(world, c) * (double)bucket->entries);
    double end =
        run(step->worker, world, bucket->elements, bucket->exchanged, noisy(world, us), &took);

    step->end = fmax(step->end, end);
    if (step->estimates != NULL) {
        estimate_reduce(
            step->estimates, c, bucket->elements, bucket->entries, world->threads, took);
    }
}

static void select_one(struct running *step, struct bucket *bucket)
{
    struct world *world = step->world;
    enum choice c = bucket->choice;
    struct phases phases = phases_of(world, bucket);
    bool noise = step->estimates != NULL;
    double took, before = step->link;
    double us = world->bucket_us + 1e-3 * (world->select_element[c] * (double)bucket->elements +
                                              world->select_entry[c] * (double)bucket->entries);
    double selected =
        run(step->worker, world, bucket->elements, bucket->ready, noisy(world, us), &took);
    double busy = 1e-3 * phases.bytes * fmax(world->byte_ns, world->copy_ns) +
                  world->message_us * phases.messages;
    double start = fmax(before, selected);

    step->link = start + noisy(world, busy);
    bucket->exchanged = step->link + phases.hops * world->round_trip_us / 2;
    if (noise) {
        estimate_select(
            step->estimates, c, bucket->elements, bucket->entries, world->threads, took);
        estimate_exchange(step->estimates, c,
            (struct cost_load){bucket->elements, bucket->entries, 0}, (uint64_t)phases.bytes,
            bucket->exchanged - start);
        estimate_link(step->estimates, (uint64_t)phases.bytes, bucket->exchanged - start,
            world->round_trip_us);
        if (c == CHOICE_ALLGATHER || c == CHOICE_BALANCED || c == CHOICE_HIERARCHICAL) {
            estimate_gamma(step->estimates, (uint64_t)(world->gamma * (double)bucket->entries),
                bucket->entries);
        }
    }
}

static double settle(struct world *world, const struct choices *plan, struct estimates *estimates)
{
    uint64_t dense = 0, entries = 0;
    double us;

    for (uint32_t t = 0; t < world->tensors; t++) {
        dense += plan->choice[t] < CHOICE_ALLGATHER ? world->tensor[t].numel : 0;
        entries += plan->choice[t] < CHOICE_ALLGATHER ? 0 : world->tensor[t].count;
    }
    us = 1e-3 * (world->settle_element * (double)dense + world->settle_entry * (double)entries);
    us = noisy(world, us + world->bucket_us);
    if (estimates != NULL) {
        estimate_settle(estimates, dense, entries, us);
    }
    return us;
}

double world_true(const struct world *world, const struct choices *plan)
{
    struct world other = *world;
    double sum = 0;

    other.random = 1;
    for (unsigned s = 0; s < WORLD_SAMPLES; s++) {
        sum += world_step(&other, plan, NULL);
    }
    return sum / WORLD_SAMPLES;
}

double world_step(struct world *world, const struct choices *plan, struct estimates *estimates)
{
    struct running *step = calloc(1, sizeof(*step));
    double us;

    step->world = world;
    step->estimates = estimates;
    step->buckets = form_buckets(world, plan, step->bucket);
    qsort(step->bucket, step->buckets, sizeof(step->bucket[0]), by_ready);
    for (unsigned b = 0; b < step->buckets; b++) {
        while (step->summed < b && step->bucket[step->summed].exchanged <= step->bucket[b].ready) {
            sum_one(step, &step->bucket[step->summed++]);
        }
        select_one(step, &step->bucket[b]);
    }
    while (step->summed < step->buckets) {
        sum_one(step, &step->bucket[step->summed++]);
    }
    us = step->end + world->step_us + settle(world, plan, estimates);
    if (estimates != NULL) {
        us = noisy(world, us);
        for (uint32_t t = 0; t < world->tensors; t++) {
            estimate_arrival(estimates, t, noisy(world, world->arrival_us[t]));
        }
        estimate_step(estimates, us);
    }
    free(step);
    return us;
}
