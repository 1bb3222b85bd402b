/*
 * The model of a step compared with a plain simulation of the same recurrence, the choice of dense
 * tensors with all subsets, and kinds of plans with their definitions.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/planner/candidate.h"
#include "daemon/planner/candidate_search.h"
#include "planner_world.h"

#define TENSORS_MAX 40
#define THREADS_MAX 9

/* The factor by which a partial plan may be worse, in the model, than the best of all subsets. */
#define PARTIAL_FACTOR 1.03

struct scene {
    struct planner_tensor tensor[TENSORS_MAX];
    struct planner_config config;
    struct estimates estimates;
    struct forecast forecast;
    struct choices plan;
};

static double draw(uint64_t *random, double least, double most)
{
    return least * pow(most / least, world_random(random));
}

static void begin(struct scene *scene, uint32_t tensors, uint64_t *random)
{
    *scene =
        (struct scene){.config = {.tensor = scene->tensor,
                           .tensors = tensors,
                           .nodes = 1 + (unsigned)(world_random(random) * 12),
                           .threads = 1 + (unsigned)(world_random(random) * (THREADS_MAX - 1))}};
    for (uint32_t t = 0; t < tensors; t++) {
        uint64_t numel = (uint64_t)draw(random, 10, 2e7);
        scene->tensor[t] = (struct planner_tensor){
            .numel = numel, .count = 1 + numel / 100, .allowed = (1u << CHOICES) - 1};
    }
    assert_true(estimate_init(&scene->estimates, tensors, scene->config.nodes));
    assert_true(choices_init(&scene->plan, tensors));
    scene->plan.bucket_bytes = (uint64_t)draw(random, 1e4, 1e8);
    for (uint32_t t = 0; t < tensors; t++) {
        scene->plan.choice[t] = (uint8_t)(world_random(random) * CHOICES);
        estimate_arrival(&scene->estimates, t, floor(draw(random, 1, 1e5)));
    }
    for (unsigned c = 0; c < CHOICES; c++) {
        bool sparse = choice_is_sparse((enum choice)c);
        for (unsigned i = 0; i < 10; i++) {
            uint64_t n = (uint64_t)draw(random, 1e4, 1e7), k = sparse ? n / 100 : 0;
            double rate = draw(random, 0.5, 2);
            estimate_select(
                &scene->estimates, (enum choice)c, n, k, 1, 30 + rate * 1e-3 * (double)n);
            estimate_reduce(
                &scene->estimates, (enum choice)c, n, k, 1, 30 + rate * 1e-3 * (double)n);
            estimate_exchange(&scene->estimates, (enum choice)c, (struct cost_load){n, k, 0},
                1 + (sparse ? 10 * k : 4 * n), 50 + rate * 1e-3 * (double)n);
        }
        estimate_step(&scene->estimates, 1e5);
    }
    assert_true(forecast_init(&scene->forecast, &scene->config));
    forecast_set(&scene->forecast, &scene->estimates);
}

static void end(struct scene *scene)
{
    forecast_free(&scene->forecast);
    estimate_free(&scene->estimates);
    choices_free(&scene->plan);
}

/* ------------------------------------------------------------------ the plain simulation */

struct plain_bucket {
    unsigned choice;
    uint64_t elements, entries;
    uint32_t last; /* the tensor whose gradient comes last */
    double ready, exchanged;
    bool selected, summed;
};

/* The end of a shared compute: the time at which the sharers have had `us` to spare together. By
 * bisection. */
static double plain_end(const double *sorted, unsigned sharers, double ready, double us)
{
    double low = ready, high = ready + sorted[sharers - 1] + us;

    for (unsigned i = 0; i < 200; i++) {
        double middle = (low + high) / 2, spare = 0;
        for (unsigned w = 0; w < sharers; w++) {
            spare += fmax(0, middle - fmax(ready, sorted[w]));
        }
        *(spare < us ? &low : &high) = middle;
    }
    return high;
}

static int ascending(const void *a, const void *b)
{
    double one = *(const double *)a, other = *(const double *)b;

    return one < other ? -1 : one > other;
}

static double plain_compute(
    double *worker, unsigned threads, uint64_t elements, double ready, double us)
{
    unsigned sharers = elements / 262144 < 2         ? 1
                       : elements / 262144 < threads ? (unsigned)(elements / 262144)
                                                     : threads;
    double over;

    qsort(worker, threads, sizeof(*worker), ascending);
    over = plain_end(worker, sharers, ready, us);
    for (unsigned w = 0; w < sharers; w++) {
        worker[w] = fmax(worker[w], over);
    }
    return over;
}

static unsigned plain_buckets(const struct scene *scene, struct plain_bucket *bucket)
{
    unsigned buckets = 0;

    for (unsigned c = 0; c < CHOICES; c++) {
        uint64_t bytes = 0;
        for (uint32_t t = 0; t < scene->config.tensors; t++) {
            uint64_t size = 4 * scene->tensor[t].numel;
            struct plain_bucket *last;
            if (scene->plan.choice[t] != c) {
                continue;
            }
            if (bytes == 0 || bytes + size > scene->plan.bucket_bytes) {
                bucket[buckets++] = (struct plain_bucket){.choice = c, .ready = -1};
                bytes = 0;
            }
            bytes += size;
            last = &bucket[buckets - 1];
            last->elements += scene->tensor[t].numel;
            last->entries += choice_is_sparse((enum choice)c) ? scene->tensor[t].count : 0;
            if (scene->estimates.arrival_us[t] >= last->ready) {
                last->ready = scene->estimates.arrival_us[t];
                last->last = t;
            }
        }
    }
    return buckets;
}

/* The bucket that is selected next: the first to be ready. */
static struct plain_bucket *plain_next(struct plain_bucket *bucket, unsigned buckets)
{
    struct plain_bucket *next = NULL;

    for (unsigned b = 0; b < buckets; b++) {
        if (!bucket[b].selected &&
            (next == NULL || bucket[b].ready < next->ready ||
                (bucket[b].ready <= next->ready && bucket[b].last < next->last))) {
            next = &bucket[b];
        }
    }
    return next;
}

static double line_at(struct line line, double x)
{
    return line.offset + line.slope * x;
}

static double plain_step(const struct scene *scene)
{
    const struct forecast_costs *costs = &scene->forecast.costs;
    struct plain_bucket bucket[TENSORS_MAX], *order[TENSORS_MAX], *next;
    unsigned buckets = plain_buckets(scene, bucket), selected = 0, summed = 0;
    double worker[THREADS_MAX] = {0}, link = 0, finish = 0;
    uint64_t dense = 0, entries = 0;

    while (summed < buckets) {
        next = plain_next(bucket, buckets);
        if (summed < selected && (next == NULL || order[summed]->exchanged <= next->ready)) {
            struct plain_bucket *b = order[summed++];
            double x = cost_reduce((enum choice)b->choice, scene->config.nodes, costs->gamma,
                (struct cost_load){b->elements, b->entries, 0});
            finish = fmax(finish, plain_compute(worker, scene->config.threads, b->elements,
                                      b->exchanged, line_at(costs->reduce[b->choice], x)));
            continue;
        }
        struct cost_load load = {next->elements, next->entries, 0};
        double x = cost_select((enum choice)next->choice, load);
        double bytes = costs->volume[next->choice] * cost_bytes((enum choice)next->choice,
                                                         scene->config.nodes, costs->gamma, load);
        double done = plain_compute(worker, scene->config.threads, next->elements, next->ready,
            line_at(costs->select[next->choice], x));
        link = fmax(link, done) + line_at(costs->exchange[next->choice], bytes);
        next->exchanged = link + costs->latency_us[next->choice];
        next->selected = true;
        order[selected++] = next;
    }
    for (uint32_t t = 0; t < scene->config.tensors; t++) {
        bool sparse = choice_is_sparse((enum choice)scene->plan.choice[t]);
        dense += sparse ? 0 : scene->tensor[t].numel;
        entries += sparse ? scene->tensor[t].count : 0;
    }
    return finish + line_at(costs->settle, cost_settle(dense, entries));
}

static void test_recurrence(void **state)
{
    uint64_t random = 1;

    (void)state;
    for (unsigned i = 0; i < 1500; i++) {
        struct scene scene;
        struct forecast_result result, again;
        double expected;

        begin(&scene, 1 + (uint32_t)(world_random(&random) * TENSORS_MAX), &random);
        forecast_run(&scene.forecast, &scene.plan, &result);
        forecast_run(&scene.forecast, &scene.plan, &again);
        assert_memory_equal(&result, &again, sizeof(result));
        expected = plain_step(&scene);
        if (fabs(result.step_us - expected) > 1e-6 * expected) {
            fail_msg("case %u: %.6f instead of %.6f us", i, result.step_us, expected);
        }
        assert_true(result.finish_us <= result.step_us);
        end(&scene);
    }
}

/* A case that can be computed by hand: two tensors, one worker. */
static void test_by_hand(void **state)
{
    struct scene scene;
    struct forecast_result result;
    struct forecast_costs *costs = &scene.forecast.costs;
    uint64_t random = 1;

    (void)state;
    begin(&scene, 2, &random);
    scene.config.threads = 1;
    scene.config.nodes = 2;
    for (uint32_t t = 0; t < 2; t++) {
        scene.tensor[t].numel = 1000;
        scene.plan.choice[t] = CHOICE_DENSE;
        scene.estimates.arrival_us[t] = t == 0 ? 100 : 10; /* the second comes first */
    }
    scene.plan.bucket_bytes = 4000;
    forecast_set(&scene.forecast, &scene.estimates);
    costs->select[CHOICE_DENSE] = (struct line){.offset = 20};
    costs->exchange[CHOICE_DENSE] = (struct line){.offset = 200};
    costs->latency_us[CHOICE_DENSE] = 5;
    costs->reduce[CHOICE_DENSE] = (struct line){.offset = 30};
    costs->settle = (struct line){.offset = 7};
    forecast_run(&scene.forecast, &scene.plan, &result);
    /* Selected at 30 and 120; on the link until 230 and 430; received at 235 and 435; summed at
     * 465. */
    assert_true(fabs(result.finish_us - 465) < 1e-9);
    assert_true(fabs(result.step_us - 472) < 1e-9);
    assert_true(fabs(result.link_us - 400) < 1e-9);
    assert_int_equal(result.buckets, 2);
    end(&scene);
}

/* ------------------------------------------------------------------ partial plans */

static double best_of_all(struct scene *scene, enum choice dense, enum choice sparse)
{
    struct forecast_result result;
    double best = INFINITY;

    for (uint32_t set = 0; set < 1u << scene->config.tensors; set++) {
        for (uint32_t t = 0; t < scene->config.tensors; t++) {
            scene->plan.choice[t] = (uint8_t)((set >> t & 1) != 0 ? dense : sparse);
        }
        forecast_run(&scene->forecast, &scene->plan, &result);
        best = fmin(best, result.step_us);
    }
    return best;
}

static void test_partial(void **state)
{
    uint64_t random = 4;
    unsigned exact = 0, cases = 0;

    (void)state;
    for (unsigned i = 0; i < 120; i++) {
        enum choice dense = i % 2 == 0 ? CHOICE_DENSE : CHOICE_DENSE_BF16;
        enum choice sparse = (enum choice)(CHOICE_ALLGATHER + i % 4);
        struct candidate_search *search;
        const struct choices *found;
        struct forecast_result result;
        struct scene scene;
        double best;

        begin(&scene, 1 + i % 10, &random);
        best = best_of_all(&scene, dense, sparse);
        search = candidate_search_create(&scene.config);
        assert_non_null(search);
        found = candidate_search(search, &scene.forecast, &scene.plan, dense, sparse);
        assert_non_null(found);
        forecast_run(&scene.forecast, found, &result);
        if (scene.config.tensors <= CANDIDATE_EXHAUSTIVE) {
            assert_true(result.step_us <= best);
        } else {
            assert_true(result.step_us <= PARTIAL_FACTOR * best);
            cases++;
            exact += result.step_us <= best;
        }
        candidate_search_free(search);
        end(&scene);
    }
    assert_true(10 * exact >= 8 * cases);
}

/* A tensor that must be dense, or must be sparse, stays as it is. If all must, there is nothing to
 * find. */
static void test_partial_allowed(void **state)
{
    uint64_t random = 8;
    struct candidate_search *search;
    const struct choices *found;
    struct scene scene;

    (void)state;
    begin(&scene, 30, &random);
    for (uint32_t t = 0; t < 30; t++) {
        scene.tensor[t].allowed = t % 3 == 0 ? 1u << CHOICE_BALANCED : (1u << CHOICES) - 1;
        scene.plan.choice[t] = t % 3 == 0 ? CHOICE_BALANCED : CHOICE_ALLGATHER;
    }
    search = candidate_search_create(&scene.config);
    assert_non_null(search);
    found = candidate_search(search, &scene.forecast, &scene.plan, CHOICE_DENSE, CHOICE_ALLGATHER);
    assert_non_null(found);
    for (uint32_t t = 0; t < 30; t++) {
        unsigned c = found->choice[t];
        assert_true(t % 3 == 0 ? c == CHOICE_BALANCED : c == CHOICE_DENSE || c == CHOICE_ALLGATHER);
    }
    for (uint32_t t = 0; t < 30; t++) {
        scene.tensor[t].allowed = 1u << CHOICE_BALANCED;
    }
    assert_null(
        candidate_search(search, &scene.forecast, &scene.plan, CHOICE_DENSE, CHOICE_ALLGATHER));
    candidate_search_free(search);
    end(&scene);
}

/* The tensors in the order in which the search makes them dense: by size or by arrival, from
 * either end. */
static void plain_order(const struct scene *scene, bool by_size, bool backwards, uint32_t *order)
{
    uint32_t n = scene->config.tensors;

    for (uint32_t t = 0; t < n; t++) {
        uint32_t place = 0;
        for (uint32_t u = 0; by_size && u < n; u++) {
            uint64_t one = scene->tensor[u].numel, other = scene->tensor[t].numel;
            place += one < other || (one == other && u < t);
        }
        place = by_size ? place : scene->forecast.rank[t];
        order[backwards ? n - 1 - place : place] = t;
    }
}

/* The best step with the first tensors of an order dense, among the places at which a search
 * begins. */
static double best_of_grid(
    struct scene *scene, const uint32_t *order, enum choice dense, enum choice sparse)
{
    uint32_t n = scene->config.tensors, step = (n + 7) / 8;
    struct forecast_result result;
    double best = INFINITY;

    for (uint32_t some = 0; some < n + step; some += step) {
        for (uint32_t i = 0; i < n; i++) {
            scene->plan.choice[order[i]] = (uint8_t)(i < some ? dense : sparse);
        }
        forecast_run(&scene->forecast, &scene->plan, &result);
        best = fmin(best, result.step_us);
    }
    return best;
}

/* The search finds a plan at least as good as any whose first eighths of an order are dense. */
static void test_partial_grid(void **state)
{
    uint64_t random = 6;

    (void)state;
    for (unsigned i = 0; i < 600; i++) {
        enum choice dense = i % 2 == 0 ? CHOICE_DENSE : CHOICE_DENSE_BF16;
        enum choice sparse = (enum choice)(CHOICE_ALLGATHER + i % 4);
        struct candidate_search *search;
        const struct choices *found;
        struct forecast_result result;
        uint32_t order[TENSORS_MAX];
        struct scene scene;

        begin(&scene, 9 + i % (TENSORS_MAX - 8), &random);
        search = candidate_search_create(&scene.config);
        assert_non_null(search);
        found = candidate_search(search, &scene.forecast, &scene.plan, dense, sparse);
        assert_non_null(found);
        forecast_run(&scene.forecast, found, &result);
        for (unsigned o = 0; o < 4; o++) {
            plain_order(&scene, o % 2 == 0, o / 2 == 1, order);
            assert_true(result.step_us <= best_of_grid(&scene, order, dense, sparse));
        }
        candidate_search_free(search);
        end(&scene);
    }
}

/* ------------------------------------------------------------------ kinds of plans */

#define DENSE_CHOICES ((1u << CHOICE_DENSE) | (1u << CHOICE_DENSE_BF16))

/* The choices that a plan makes freely. If some tensors may be dense or sparse, only theirs count.
 * Else, if some tensors have two choices, only theirs count. Else all count. */
static uint32_t plain_used(const struct scene *scene)
{
    uint32_t used[3] = {0, 0, 0};

    for (uint32_t t = 0; t < scene->config.tensors; t++) {
        uint32_t allowed = scene->tensor[t].allowed;
        bool dense = (allowed & DENSE_CHOICES) != 0, sparse = (allowed & ~DENSE_CHOICES) != 0;
        used[0] |= dense && sparse ? 1u << scene->plan.choice[t] : 0;
        used[1] |= __builtin_popcount(allowed) > 1 ? 1u << scene->plan.choice[t] : 0;
        used[2] |= 1u << scene->plan.choice[t];
    }
    return used[0] != 0 ? used[0] : used[1] != 0 ? used[1] : used[2];
}

static unsigned plain_kind(uint32_t used)
{
    uint32_t dense = used & DENSE_CHOICES, sparse = used & ~DENSE_CHOICES;
    bool mixture = __builtin_popcount(dense) == 1 && __builtin_popcount(sparse) == 1;

    if (__builtin_popcount(used) == 1) {
        return (unsigned)__builtin_ctz(used);
    }
    return mixture ? KIND_PARTIAL + 4 * (unsigned)__builtin_ctz(dense) +
                         (unsigned)__builtin_ctz(sparse) - CHOICE_ALLGATHER
                   : KIND_OTHER;
}

/* Every plan has the kind of its definition, however few choices some tensors have. */
static void test_kinds(void **state)
{
    unsigned seen[KINDS] = {0};
    uint64_t random = 12;
    struct scene scene;

    (void)state;
    for (unsigned i = 0; i < 3000; i++) {
        unsigned different = 1 + i % 3, kind;
        begin(&scene, 1 + i % 4, &random);
        for (uint32_t t = 0; t < scene.config.tensors; t++) {
            unsigned choice = (unsigned)(world_random(&random) * CHOICES) / different;
            uint32_t others = i % 5 == 0 ? 0 : (uint32_t)(world_random(&random) * 64);
            scene.tensor[t].allowed = 1u << choice | (i % 5 == 1 ? others & DENSE_CHOICES : others);
            scene.plan.choice[t] = (uint8_t)choice;
        }
        kind = candidate_kind(&scene.config, &scene.plan);
        assert_int_equal(kind, plain_kind(plain_used(&scene)));
        seen[kind]++;
        end(&scene);
    }
    for (unsigned kind = 0; kind < KINDS; kind++) {
        assert_true(seen[kind] > 0);
    }
}

/* Two tensors, each in its own bucket. Dense takes long on the link, and sparse long to select. So
 * one of each is quickest. */
static void begin_pair(struct scene *scene, uint64_t *random)
{
    struct forecast_costs *costs = &scene->forecast.costs;

    begin(scene, 2, random);
    scene->config.threads = 1;
    scene->config.bucket_bytes = 4000;
    for (uint32_t t = 0; t < 2; t++) {
        scene->tensor[t].numel = 1000;
        scene->estimates.arrival_us[t] = t;
    }
    forecast_set(&scene->forecast, &scene->estimates);
    costs->settle = (struct line){.offset = 1};
    for (unsigned c = 0; c < CHOICES; c++) {
        bool sparse = choice_is_sparse((enum choice)c);
        costs->select[c] = (struct line){.offset = sparse ? 100 : 10};
        costs->exchange[c] = (struct line){.offset = sparse ? 10 : 100};
        costs->latency_us[c] = 0;
        costs->reduce[c] = (struct line){.offset = 0};
    }
}

/* The choice from `first` up to `end` that promises most alone; the first one of several. */
static unsigned plain_best(
    const struct candidates *candidates, const double weight[KINDS], unsigned first, unsigned end)
{
    double best = INFINITY;
    unsigned found = first;

    for (unsigned c = first; c < end; c++) {
        for (unsigned i = 0; i < candidates->count; i++) {
            const struct candidate *item = &candidates->item[i];
            if (item->kind == c && item->result.step_us * weight[c] < best) {
                best = item->result.step_us * weight[c];
                found = c;
            }
        }
    }
    return found;
}

/* The best dense and the best sparse choice are mixed, by prediction and weight. Of equal ones the
 * first counts. */
static void test_mixture(void **state)
{
    uint64_t random = 14;

    (void)state;
    for (unsigned i = 0; i < 200; i++) {
        struct candidates candidates;
        double weight[KINDS];
        struct scene scene;
        unsigned dense, sparse, mixed = 0;

        begin_pair(&scene, &random);
        for (unsigned kind = 0; kind < KINDS; kind++) {
            weight[kind] = i % 4 < 2 ? 1 : draw(&random, 0.8, 1.25);
        }
        for (unsigned c = 0; c < CHOICES && i % 2 == 1; c++) {
            scene.forecast.costs.latency_us[c] = floor(5 * world_random(&random));
        }
        assert_true(candidates_init(&candidates, &scene.config));
        candidates_make(&candidates, &scene.forecast, weight);
        dense = plain_best(&candidates, weight, 0, CHOICE_ALLGATHER);
        sparse = plain_best(&candidates, weight, CHOICE_ALLGATHER, CHOICES);
        for (unsigned n = 0; n < candidates.count; n++) {
            unsigned kind = candidates.item[n].kind;
            if (kind >= KIND_PARTIAL) {
                assert_int_equal(kind, KIND_PARTIAL + 4 * dense + sparse - CHOICE_ALLGATHER);
                mixed++;
            }
        }
        assert_int_equal(mixed, 1);
        candidates_free(&candidates);
        end(&scene);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recurrence),
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_partial),
        cmocka_unit_test(test_partial_allowed),
        cmocka_unit_test(test_partial_grid),
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_mixture),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
