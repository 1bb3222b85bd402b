/*
 * Fused passes that are killed. A child works on shared memory and may stop anywhere. The test
 * restores the journals and repeats the pass. The result must be that of an undisturbed pass, bit
 * for bit.
 *
 * In the deterministic test the child is traced instruction by instruction. The memory after each
 * instruction is recovered in a copy. In the random test children with two threads are killed until
 * one of them finishes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/fused.h"
#include "tests/host/sanitized.h"
#include "tests/unit/arrays.h"

enum { WORKERS = 2, ID = 7, STAMP = 3 };

/* The state that outlives the process, in one mapping, so that it can be copied. */
struct world {
    struct journal journal[WORKERS];
    double sums[2];
    uint64_t n;
    size_t bytes; /* size of the whole */
    /* then the progress, then the residual, then its momentum */
    _Alignas(64) char more[];
};

static struct progress *world_progress(struct world *world)
{
    return (struct progress *)(void *)world->more;
}

static float *world_residual(struct world *world)
{
    return (float *)(void *)(world->more + progress_size(world->n));
}

static float *world_momentum(struct world *world)
{
    return world_residual(world) + world->n;
}

/* What a pass does with the residual. */
enum deed { ADD, ADD_WITH_MOMENTUM, UNDO_WITH_MOMENTUM, TAKE, ADD_ROUNDED, UNDO_ROUNDED };

/* Converts the residual to bf16, in the same place. */
static struct rounded world_rounded(struct world *world)
{
    return rounded_at(world_residual(world), world->n);
}

static bool is_rounded(enum deed deed)
{
    return deed == ADD_ROUNDED || deed == UNDO_ROUNDED;
}

static struct world *world_make(uint64_t n, enum deed deed)
{
    const size_t bytes = sizeof(struct world) + progress_size(n) + 2 * n * sizeof(float);
    struct world *world =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(world, MAP_FAILED);
    world->bytes = bytes;
    world->n = n;
    world->sums[0] = 0.1;
    world->sums[1] = -0.7;
    for (uint64_t i = 0; i < 2 * n; i++) {
        world_residual(world)[i] = random_value();
    }
    if (is_rounded(deed)) {
        const struct rounded rounded = world_rounded(world);
        assert_true(rounded_size(n) <= n * sizeof(float));
        memset(world_residual(world), 0, n * sizeof(float));
        rounded_from(&rounded, world_momentum(world), n);
    }
    return world;
}

/* The state that the process loses and can make again: gradients, lists, scratch. */
struct worker {
    const struct chunk_ops *ops;
    enum deed deed;
    uint64_t n;
    uint64_t k;
    const void *gradients[2];
    struct sparse out;
    void *scratch;
};

static struct worker worker_make(const struct chunk_ops *ops, uint64_t n, uint64_t k)
{
    const struct view view = {.fibres = 1, .length = n, .stride = 1};
    const size_t scratch = fused_scratch(&view, k, false, WORKERS);
    struct worker worker = {.ops = ops,
        .n = n,
        .k = k,
        .out = sparse_make(k),
        .scratch = aligned_alloc(64, (scratch + 63) / 64 * 64)};
    assert_non_null(worker.scratch);
    for (int g = 0; g < 2; g++) {
        float *gradient = allocate(n, sizeof *gradient);
        for (uint64_t i = 0; i < n; i++) {
            gradient[i] = i % 1000 == 77 ? INFINITY : random_value();
        }
        worker.gradients[g] = gradient;
    }
    return worker;
}

static void worker_drop(struct worker *worker)
{
    free((void *)(uintptr_t)worker->gradients[0]);
    free((void *)(uintptr_t)worker->gradients[1]);
    free(worker->scratch);
    sparse_drop(&worker->out);
}

static struct fused worker_pass(struct worker *worker, struct world *world, unsigned ranges)
{
    const bool moves = worker->deed == ADD_WITH_MOMENTUM || worker->deed == UNDO_WITH_MOMENTUM;
    return (struct fused){.residual = is_rounded(worker->deed) ? NULL : world_residual(world),
        .rounded = is_rounded(worker->deed) ? world_rounded(world) : (struct rounded){0},
        .view = {.fibres = 1, .length = worker->n, .stride = 1},
        .k = worker->k,
        .gradients = worker->gradients,
        .count = 1 + (unsigned)(worker->n % 2), /* one is added from its own place */
        .dtype = DTYPE_F32,
        .momentum = moves ? world_momentum(world) : NULL,
        .mu = 0.9f,
        .withdraw = worker->deed == UNDO_WITH_MOMENTUM || worker->deed == UNDO_ROUNDED,
        .take = worker->deed == TAKE ? FUSED_TAKE_BF16 : FUSED_TAKE_NOTHING,
        .id = ID,
        .stamp = STAMP,
        .progress = world_progress(world),
        .out = &worker->out,
        .ranges = ranges,
        .scratch = worker->scratch,
        .ops = worker->ops};
}

static bool recover(const struct worker *worker, struct world *world, struct journal *journal)
{
    const struct rounded rounded = world_rounded(world);
    return is_rounded(worker->deed)
               ? rounded_recover(journal, &rounded, world->n, world_progress(world))
               : journal_recover(journal, world_residual(world), world_momentum(world), world->n,
                     world_progress(world));
}

/* Recovers, then does the whole pass. */
static uint64_t worker_run(struct worker *worker, struct world *world, unsigned ranges)
{
    struct fused pass = worker_pass(worker, world, ranges);
    for (unsigned w = 0; w < WORKERS; w++) {
        uint64_t residual;
        if (journal_pending(&world->journal[w], &residual)) {
            assert_int_equal(residual, ID);
            assert_true(recover(worker, world, &world->journal[w]));
        }
    }
    fused_start(&pass, world->sums);
    for (unsigned r = 0; r < ranges; r++) {
        fused_range(&pass, r, &world->journal[r % WORKERS]);
    }
    return fused_finish(&pass, world->sums);
}

/* The result of an undisturbed pass. */
struct outcome {
    struct world *world;
    struct sparse list;
    uint64_t nonfinite;
};

static struct world *world_copy(const struct world *world)
{
    struct world *copy = aligned_alloc(64, (world->bytes + 63) / 64 * 64);
    assert_non_null(copy);
    memcpy(copy, world, world->bytes);
    return copy;
}

static struct outcome outcome_of(struct worker *worker, const struct world *world)
{
    struct outcome outcome = {.world = world_copy(world), .list = sparse_make(worker->k)};
    outcome.nonfinite = worker_run(worker, outcome.world, 1);
    assert_int_equal(worker->out.count, worker->k);
    memcpy(outcome.list.position, worker->out.position, worker->k * sizeof(uint32_t));
    memcpy(outcome.list.value, worker->out.value, worker->k * sizeof(float));
    return outcome;
}

static void outcome_drop(struct outcome *outcome)
{
    free(outcome->world);
    sparse_drop(&outcome->list);
}

/* Continues in `world`, in which another process stopped in the middle. */
static void assert_recovers(
    struct worker *worker, struct world *world, unsigned ranges, const struct outcome *expected)
{
    assert_int_equal(worker_run(worker, world, ranges), expected->nonfinite);
    assert_same_bits(world_residual(world), world_residual(expected->world), world->n);
    assert_same_bits(world_momentum(world), world_momentum(expected->world), world->n);
    assert_memory_equal(world->sums, expected->world->sums, sizeof world->sums);
    assert_int_equal(worker->out.count, worker->k);
    assert_memory_equal(
        worker->out.position, expected->list.position, worker->k * sizeof(uint32_t));
    assert_same_bits(worker->out.value, expected->list.value, worker->k);
}

/* ---- instruction by instruction ---- */

/* Runs in the child: stops itself, then does the whole pass. */
static void traced_pass(struct worker *worker, struct world *world)
{
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) {
        _exit(1);
    }
    (void)raise(SIGSTOP);
    (void)worker_run(worker, world, 1);
    _exit(0);
}

/* Recovers copies of the memory that the child has after every `interval`-th instruction. Returns
 * their number, or 0 if tracing is not allowed. */
static uint64_t trace(const struct chunk_ops *ops, enum deed deed, uint64_t n, uint64_t k,
    uint64_t interval, bool *traced)
{
    struct world *world = world_make(n, deed);
    struct worker worker = worker_make(ops, n, k);
    worker.deed = deed;
    struct outcome expected = outcome_of(&worker, world);
    uint64_t steps = 0;
    int status = 0;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        traced_pass(&worker, world);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    *traced = WIFSTOPPED(status);
    while (WIFSTOPPED(status)) {
        if (steps % interval == 0) {
            struct world *copy = world_copy(world);
            assert_recovers(&worker, copy, 1, &expected);
            free(copy);
        }
        steps++;
        assert_int_equal(ptrace(PTRACE_SINGLESTEP, child, NULL, NULL), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
    }
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == (*traced ? 0 : 1));
    outcome_drop(&expected);
    worker_drop(&worker);
    assert_int_equal(munmap(world, world->bytes), 0);
    return steps;
}

static void test_every_instruction(void **state)
{
    (void)state;
    static const struct {
        enum deed deed;
        uint64_t n;
        uint64_t k;
        uint64_t interval;
    } cases[] = {{ADD, 85, 4, 1}, {ADD, 130, 0, 1}, {ADD, 448, 10, 7}, {ADD, CHUNK + 70, 0, 97},
        {ADD_WITH_MOMENTUM, 85, 4, 1}, {ADD_WITH_MOMENTUM, 448, 10, 7},
        {UNDO_WITH_MOMENTUM, 85, 0, 1}, {TAKE, 85, 0, 1}, {TAKE, 448, 0, 7},
        {ADD_WITH_MOMENTUM, 600, 0, 7}, {TAKE, CHUNK + 70, 0, 97}, {ADD_ROUNDED, 85, 4, 1},
        {UNDO_ROUNDED, 130, 0, 1}, {ADD_ROUNDED, 448, 10, 7}, {ADD_ROUNDED, CHUNK + 70, 0, 97}};
    for (size_t i = 0; chunk_table[i] != NULL && chunk_table[i]->supported(); i++) {
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
            if (cases[c].n > 200 && chunk_table[i] != chunk_best()) {
                continue; /* takes long */
            }
            bool traced;
            const uint64_t steps = trace(
                chunk_table[i], cases[c].deed, cases[c].n, cases[c].k, cases[c].interval, &traced);
            if (!traced) {
                print_message("# tracing is not allowed here\n");
                return;
            }
            assert_true(steps > 100);
        }
    }
}

/* ---- at random instants ---- */

struct thread {
    struct fused *pass;
    struct world *world;
    unsigned range;
};

static void *run_range(void *argument)
{
    struct thread *thread = argument;
    fused_range(thread->pass, thread->range, &thread->world->journal[thread->range]);
    return NULL;
}

/* Runs in the child: worker_run() with one thread per range. */
static void threaded_pass(struct worker *worker, struct world *world)
{
    struct fused pass = worker_pass(worker, world, WORKERS);
    pthread_t id[WORKERS];
    struct thread thread[WORKERS];
    for (unsigned w = 0; w < WORKERS; w++) {
        if (!recover(worker, world, &world->journal[w])) {
            _exit(1);
        }
    }
    fused_start(&pass, world->sums);
    for (unsigned w = 0; w < WORKERS; w++) {
        thread[w] = (struct thread){.pass = &pass, .world = world, .range = w};
        if (pthread_create(&id[w], NULL, run_range, &thread[w]) != 0) {
            _exit(1);
        }
    }
    for (unsigned w = 0; w < WORKERS; w++) {
        (void)pthread_join(id[w], NULL);
    }
    (void)fused_finish(&pass, world->sums);
    _exit(0);
}

/* Starts children and kills them until one has ended by itself. Returns the number killed. */
static unsigned kill_children(struct worker *worker, struct world *world)
{
    for (unsigned killed = 0;; killed++) {
        int status;
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            threaded_pass(worker, world);
        }
        (void)usleep((useconds_t)random_below(1500u << random_below(4)));
        if (killed < 12) { /* later children may take their time */
            (void)kill(child, SIGKILL);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        if (WIFEXITED(status)) {
            assert_int_equal(WEXITSTATUS(status), 0);
            return killed;
        }
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
}

static void test_random_kills(void **state)
{
    (void)state;
    enum { N = 300001, K = 3000 };
    unsigned killed = 0;
    struct worker worker = worker_make(chunk_best(), N, K);
    for (int round = 0; round < CASES(21, 3); round++) {
        static const enum deed deeds[] = {ADD, ADD_WITH_MOMENTUM, ADD_ROUNDED};
        worker.deed = deeds[round % 3];
        struct world *world = world_make(N, worker.deed);
        struct outcome expected = outcome_of(&worker, world);
        killed += kill_children(&worker, world);
        assert_recovers(&worker, world, 1 + (unsigned)random_below(WORKERS), &expected);
        outcome_drop(&expected);
        assert_int_equal(munmap(world, world->bytes), 0);
    }
    print_message("# %u children killed\n", killed);
    worker_drop(&worker);
}

/* ---- damaged journals ---- */

static void test_damaged_journal(void **state)
{
    (void)state;
    enum { N = CHUNK + 100 };
    static const struct {
        uint64_t chunk;
        uint64_t saved;
        bool fits;
        uint64_t restored;
    } cases[] = {{0, 0, true, 0}, {0, 1, true, 1}, {0, 128, true, 64}, {0, CHUNK, true, 64},
        {1, 100, true, 36}, {9, 0, true, 0}, {0, CHUNK + 1, false, 0}, {1, 101, false, 0},
        {2, 1, false, 0}, {UINT64_MAX, 5, false, 0}, {0, UINT64_MAX, false, 0}};
    static struct journal journal;
    static float residual[N];
    struct progress *progress = allocate(1, progress_size(N));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memset(residual, 0, sizeof residual);
        journal = (struct journal){.stamp = 1, .chunk = cases[i].chunk};
        for (unsigned j = 0; j < JOURNAL_WORD; j++) {
            journal.old[0][j] = journal.old[1][j] = 1;
        }
        atomic_store(&journal.saved, cases[i].saved);
        assert_int_equal(journal_recover(&journal, residual, NULL, N, progress), cases[i].fits);
        uint64_t restored = 0;
        for (unsigned j = 0; j < N; j++) {
            restored += residual[j] == 1;
        }
        assert_int_equal(restored, cases[i].restored);
        assert_int_equal(atomic_load(&journal.saved), cases[i].fits ? 0 : cases[i].saved);
    }
    /* Momentum that the residual does not have. */
    journal = (struct journal){.stamp = 1, .copy_of = JOURNAL_MOMENTUM, .copied = 1};
    assert_false(journal_recover(&journal, residual, NULL, N, progress));
    assert_true(journal_recover(&journal, residual, residual, N, progress));
    /* A chunk in bf16 for an f32 residual, and the reverse. */
    journal = (struct journal){.stamp = 2, .copy_of = JOURNAL_ROUNDED, .copied = CHUNK};
    assert_false(journal_recover(&journal, residual, residual, N, progress));
    const struct rounded rounded = rounded_at(residual, N);
    atomic_store(&journal.copied, CHUNK + 1);
    assert_false(rounded_recover(&journal, &rounded, N, progress));
    journal.copied = 100;
    journal.chunk = 2;
    assert_false(rounded_recover(&journal, &rounded, N, progress));
    journal.chunk = 0;
    journal.copy_of = JOURNAL_MOMENTUM;
    assert_false(rounded_recover(&journal, &rounded, N, progress));
    journal.copy_of = JOURNAL_ROUNDED;
    rounded.element[99] = rounded.element[100] = 7;
    rounded.carry[0].of[1][5] = 3;
    assert_true(rounded_recover(&journal, &rounded, N, progress));
    assert_int_equal(rounded.element[99], 0);
    assert_int_equal(rounded.element[100], 7);
    assert_true(rounded.carry[0].of[1][5] == 0);
    assert_int_equal(atomic_load(&progress->chunk[0].stamp), 0);
    assert_int_equal(atomic_load(&journal.copied), 0);
    free(progress);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_kills),
        cmocka_unit_test(test_damaged_journal),
        cmocka_unit_test(test_every_instruction),
    };
    /* Sanitizers make ten times as many instructions: minutes, and the plain build has them all. */
    const size_t count = sizeof tests / sizeof *tests - (SANITIZED ? 1 : 0);
    return _cmocka_run_group_tests("journal", tests, count, NULL, NULL);
}
