/*
 * ADD that is killed at any switch of threads and repeated, while the blocks of the killed attempts
 * go on: the residual, the records, the ledger and the list are as if nothing had happened.
 *
 * An attempt has scratch and spare slots of its own. The spare slots of the next one are those that
 * no killed block can write to.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/scratch.h"
#include "tests/cuda/both.h"
#include "tests/cuda/device_code.h"
#include "tests/host/sanitized.h"

enum { ZOMBIES = 3, STEPS = 20000, POOL = (ZOMBIES + 6) * BOTH_SPARES };

/* An attempt at a pass: a table of its own, with scratch and lists of its own. */
struct attempt {
    struct add_steps steps;
    struct add_tensor *table;
    struct add_batch batch;
    struct launched *launched;
    uint32_t found; /* spare slots */
};

/* Slots that nobody writes to: neither chunks nor spares of an attempt that still runs. */
struct pool {
    uint32_t slot[POOL];
    unsigned count;
};

struct scene {
    struct both both;
    struct pool pool;
    struct attempt *zombie[ZOMBIES]; /* their blocks go on */
    unsigned zombies;
    uint64_t kills;
};

/* ------------------------------------------------------------------ slots */

/* When no attempt runs, what no entry names is free. */
static void pool_fill(struct scene *scene)
{
    struct both *const both = &scene->both;
    bool *const used = input_memory(both->slot_count, 0);
    for (unsigned h = 0; h < both->helds; h++) {
        const struct both_held *const held = &both->held[h];
        for (uint64_t c = 0; c < chunk_count(held->numel); c++) {
            const uint64_t entry = held->entry[c];
            const uint32_t slot = entry != 0 ? slot_of(entry) : held->home + (uint32_t)c;
            assert_true(slot < both->slot_count && !used[slot]); /* no chunk is lost */
            used[slot] = true;
        }
    }
    for (uint32_t a = 1; a <= BOTH_ABSENT; a++) {
        used[both->batch.slots.homes - a] = true;
    }
    scene->pool.count = 0;
    for (uint32_t s = 1; s < both->slot_count && scene->pool.count < POOL; s++) {
        if (!used[s]) {
            scene->pool.slot[scene->pool.count++] = s;
        }
    }
    input_free(used);
}

/* ------------------------------------------------------------------ attempts */

/* Once an attempt has begun, the sums that the caller has may be any. */
static void attempt_table(const struct both *both, struct attempt *attempt)
{
    static const double left[2] = {1e30, -7};
    memcpy(attempt->table, both->device, both->tensors * sizeof *attempt->table);
    for (unsigned i = 0; i < both->tensors; i++) {
        struct add_tensor *const t = &attempt->table[i];
        t->scratch = input_memory(scratch_size(t), 0xab);
        t->position = input_memory(t->view.fibres * t->k * sizeof(uint32_t), 0);
        t->value = input_memory(t->view.fibres * t->k * sizeof(float), 0);
        t->result = input_memory(sizeof *t->result, 0xab);
        if (t->clip != NULL) {
            const struct add_clip *const clip = t->clip;
            t->clip = memcpy(input_memory(sizeof *clip, 0), clip, sizeof *clip);
            t->clip->chunk = input_memory(chunk_count(t->numel) * sizeof(double), 0xab);
        }
        if (t->before->stamp == ((uint64_t)1 << 32 | t->stamp)) {
            t->ledger = (struct add_ledger){.input = left, .lost = left};
        }
    }
}

/* Takes a slot out of the pool; it must be there. */
static void pool_remove(struct pool *pool, uint32_t slot)
{
    unsigned at = 0;
    while (at < pool->count && pool->slot[at] != slot) {
        at++;
    }
    assert_true(at < pool->count);
    pool->slot[at] = pool->slot[--pool->count];
}

/* While killed attempts go on only this test knows which slots they write to. Else the device finds
 * the spare ones, which are all in the pool. */
static void attempt_spares(struct scene *scene, struct attempt *attempt)
{
    struct slots *const slots = &attempt->batch.slots;
    const struct launch how = input_launch(&scene->both.input);
    slots->found = &attempt->found;
    slots->spare = input_memory(BOTH_SPARES * sizeof(uint32_t), 0xff);
    slots->spares = scene->zombies == 0 ? BOTH_SPARES : 0;
    attempt->batch.velocities = both_velocities(slots);
    launch(&how, run_slots_begin, &attempt->batch);
    launch(&how, run_slots_spare, &attempt->batch);
    for (unsigned b = 0; b < BOTH_SPARES; b++) {
        assert_true(scene->pool.count > 0);
        if (scene->zombies > 0) {
            slots->spare[b] = scene->pool.slot[scene->pool.count - 1];
        }
        pool_remove(&scene->pool, slots->spare[b]);
    }
}

static struct attempt *attempt_begin(struct scene *scene)
{
    struct both *const both = &scene->both;
    struct attempt *const attempt = input_memory(sizeof *attempt, 0);
    attempt->batch = both->batch;
    attempt->table = input_memory(both->tensors * sizeof *attempt->table, 0);
    attempt_table(both, attempt);
    attempt->batch.tensor = attempt->table;
    attempt->batch.steps = &attempt->steps;
    attempt_spares(scene, attempt);
    return attempt;
}

static void attempt_end(struct attempt *attempt)
{
    if (attempt->launched != NULL) {
        launch_end(attempt->launched);
    }
    for (unsigned i = 0; i < attempt->batch.tensors; i++) {
        input_free(attempt->table[i].scratch);
        input_free(attempt->table[i].position);
        input_free(attempt->table[i].value);
        input_free(attempt->table[i].result);
        if (attempt->table[i].clip != NULL) {
            input_free(attempt->table[i].clip->chunk);
        }
        input_free(attempt->table[i].clip);
    }
    input_free(attempt->batch.slots.spare);
    input_free(attempt->table);
    input_free(attempt);
}

static void attempt_launch(struct scene *scene, struct attempt *attempt, launch_kernel *kernel)
{
    const struct launch how = input_launch(&scene->both.input);
    attempt->launched = launch_begin(&how, kernel, &attempt->batch);
}

/* The killed attempts' blocks go on for a while. */
static void scene_haunt(struct scene *scene)
{
    for (unsigned z = 0; z < scene->zombies; z++) {
        (void)launch_go_on(
            scene->zombie[z]->launched, input_below(&scene->both.input, STEPS / 4) + 1);
    }
}

static void scene_bury(struct scene *scene)
{
    while (scene->zombies > 0) {
        attempt_end(scene->zombie[--scene->zombies]);
    }
    pool_fill(scene);
}

/* Runs a kernel of the attempt for so many switches, at most, with the killed ones beside it. True:
 * it has ended. */
static bool scene_run(struct scene *scene, struct attempt *attempt, uint64_t switches)
{
    while (switches > 0) {
        const uint64_t portion = input_below(&scene->both.input, STEPS / 4) + 1;
        const uint64_t some = portion < switches ? portion : switches;
        if (launch_go_on(attempt->launched, some)) {
            return true;
        }
        switches -= some;
        scene_haunt(scene);
    }
    return false;
}

/* An attempt that is killed in a pass over the elements. */
static void scene_kill(struct scene *scene)
{
    static launch_kernel *const kernel[] = {
        run_clip_squares, run_clip_factor, run_add_begin, run_add_plain, run_add_stream};
    const size_t last = 3 + input_below(&scene->both.input, 2);
    struct attempt *const attempt = attempt_begin(scene);
    for (size_t i = 0; i < last; i++) {
        attempt_launch(scene, attempt, kernel[i]);
        assert_true(scene_run(scene, attempt, UINT64_MAX));
        launch_end(attempt->launched);
    }
    attempt_launch(scene, attempt, kernel[last]);
    (void)scene_run(scene, attempt, input_below(&scene->both.input, STEPS));
    scene->kills++;
    scene->zombie[scene->zombies++] = attempt;
}

/* One that ends: its results count. It has its spares. */
static void scene_finish(struct scene *scene, struct attempt *attempt)
{
    static launch_kernel *const add[] = {
#define KILLED_RUN(name, type) run_##name,
        CUDA_CLIP(KILLED_RUN) CUDA_ADD(KILLED_RUN)
#undef KILLED_RUN
    };
    attempt->batch.slots.spares = 0;
    for (size_t i = 0; i < sizeof add / sizeof *add; i++) {
        attempt_launch(scene, attempt, add[i]);
        assert_true(scene_run(scene, attempt, UINT64_MAX));
        launch_end(attempt->launched);
    }
    attempt->launched = NULL;
}

/* The results of an attempt take the place of those of both_add(). */
static void scene_take(struct both *both, const struct attempt *attempt)
{
    for (unsigned i = 0; i < both->tensors; i++) {
        struct add_tensor *const to = &both->device[i];
        const struct add_tensor *const from = &attempt->table[i];
        const uint64_t entries = from->view.fibres * from->k;
        memcpy(to->position, from->position, entries * sizeof *to->position);
        memcpy(to->value, from->value, entries * sizeof *to->value);
        *to->result = *from->result;
    }
}

static bool scene_turn(struct scene *scene)
{
    struct both *const both = &scene->both;
    const unsigned kills = 1 + (unsigned)input_below(&both->input, ZOMBIES);
    both_push(both);
    both_host(both);
    for (unsigned k = 0; k < kills; k++) {
        if (scene->zombies == ZOMBIES || scene->pool.count < 2 * BOTH_SPARES) {
            scene_bury(scene);
        }
        scene_kill(scene);
    }
    if (scene->pool.count < BOTH_SPARES) {
        scene_bury(scene);
    }
    struct attempt *const attempt = attempt_begin(scene);
    scene_finish(scene, attempt);
    scene_take(both, attempt);
    attempt_end(attempt);
    return both_compare(both);
}

/* ------------------------------------------------------------------ the tests */

static bool killed_case(uint64_t seed, uint64_t *kills)
{
    enum { TURNS = 6, ELEMENTS = 9000 };
    struct scene scene = {.zombies = 0};
    bool same = true;
    both_make(&scene.both, seed, ELEMENTS, POOL);
    pool_fill(&scene);
    for (int turn = 0; turn < TURNS && same; turn++) {
        same = scene_turn(&scene);
        both_leave(&scene.both);
    }
    scene_bury(&scene);
    *kills += scene.kills;
    both_drop(&scene.both);
    return same;
}

/* Device code that publishes too early (early.py) is found by what it computes. */
#ifdef KILLED_EARLY
#define KILLED_SAME false
#else
#define KILLED_SAME true
#endif

static void test_killed(void **state)
{
    const uint64_t wanted = getenv("ADTOPK_TEST_LONG") != NULL ? 5000 : CASES(500, 40);
    uint64_t kills = 0, seed = 0;
    bool same = true;
    (void)state;
    while (same && kills < wanted) {
        same = killed_case(++seed, &kills);
    }
    print_message("# %llu attempts were killed, the last ones with seed %llu\n",
        (unsigned long long)kills, (unsigned long long)seed);
    assert_int_equal(same, KILLED_SAME);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_killed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
